"""The model ``ragbias`` of lm-eval, on small tasks over local files."""

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from datasets import disable_progress_bars
from lm_eval.models.huggingface import HFLM

from ragbias.errors import MissingExtraError, RunError
from ragbias.generation.scoring import continue_prefill, prefill
from ragbias.methods import ChannelScaling, MsPoE
from ragbias.models import tiny
from ragbias_eval.harness import RagBiasLM

CONTEXT = "Context:\nFalcon Station\nFalcon Station was founded by Mara Quill.\n\nQuestion: Who founded it?\nAnswer:"
CHOICES = [" Mara Quill", " a green door", " B"]
QUESTIONS = [
    {"question": "Which letter comes first?", "choices": ["A", "B", "C", "D"], "answer": 0},
    {"question": "Which is a colour?", "choices": ["stone", "green", "seven", "north"], "answer": 1},
    {"question": "Which is a number?", "choices": ["red", "door", "seven", "Mara Quill"], "answer": 2},
]
MULTIPLE_CHOICE = """
task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: multiple_choice
doc_to_text: "Question: {{{{question}}}}\\nAnswer:"
doc_to_target: answer
doc_to_choice: choices
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
"""
LONG = "The lamp was green. "
FACT = "At Falcon Station the passphrase is whisper lagoon dagger. "


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a task."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    disable_progress_bars()
    data = tmp_path / "questions.json"
    data.write_text("\n".join(map(json.dumps, QUESTIONS)))
    folder = tmp_path / "tasks"
    folder.mkdir()
    (folder / "little_choice.yaml").write_text(MULTIPLE_CHOICE.format(name="little_choice", data=data))
    return folder


def scored(lm: object, requests: list[tuple[str, str]]) -> list[tuple[float, bool]]:
    from lm_eval.api.instance import Instance

    return lm.loglikelihood(  # type: ignore[attr-defined]
        [Instance("loglikelihood", {}, request, index) for index, request in enumerate(requests)], disable_tqdm=True
    )


@pytest.fixture(scope="module")
def plain() -> object:
    return HFLM(pretrained=str(tiny.path()), device="cpu", backend="causal", batch_size=4)


REQUESTS = [(context, choice) for context in (CONTEXT, "Question: short?\nAnswer:", "") for choice in CHOICES]


@pytest.mark.parametrize("method", ["none", MsPoE(min_ratio=1, max_ratio=1)], ids=["none", "neutral-ms-poe"])
def test_a_method_without_effect_scores_as_the_plain_model(plain, method):
    own = scored(RagBiasLM("tiny", method=method), REQUESTS)
    expected = scored(plain, REQUESTS)
    assert [greedy for _, greedy in own] == [greedy for _, greedy in expected]
    assert [value for value, _ in own] == pytest.approx([value for value, _ in expected], rel=1e-5, abs=1e-4)


def test_a_method_scores_as_ragbias_itself_does(plain):
    from ragbias import DebiasedLM

    method = MsPoE(min_ratio=1.5, max_ratio=3.0, layers=(0, None))
    own = scored(RagBiasLM("tiny", method=method), [(CONTEXT, choice) for choice in CHOICES])
    lm = DebiasedLM.from_pretrained("tiny", method=method)
    expected = [lm.score(CONTEXT, choice.strip()).total for choice in CHOICES]  # as lm-eval splits the tokens
    assert [value for value, _ in own] == pytest.approx(expected, rel=1e-5, abs=1e-4)
    assert own[0][0] != pytest.approx(scored(plain, [(CONTEXT, CHOICES[0])])[0][0], abs=1e-3)


def test_a_whole_text_is_as_likely_as_for_the_plain_model(plain):
    from lm_eval.api.instance import Instance

    requests = [Instance("loglikelihood_rolling", {}, (CONTEXT,), 0)]
    own = RagBiasLM("tiny", method=MsPoE(min_ratio=1, max_ratio=1))
    expected = plain.loglikelihood_rolling(requests, disable_tqdm=True)  # type: ignore[attr-defined]
    assert own.loglikelihood_rolling(requests, disable_tqdm=True) == pytest.approx(expected, abs=1e-3)


def test_without_lm_eval_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval.models.huggingface", None)
    monkeypatch.delitem(sys.modules, RagBiasLM.__module__)
    with pytest.raises(MissingExtraError, match=r"pip install 'ragbias-eval\[lm-eval\]' .*'evaluation\[lm-eval\]'"):
        import_module(RagBiasLM.__module__)


def test_a_continuation_follows_the_end_of_a_long_prompt():
    model, context, continuation = RagBiasLM("tiny", max_length=40), FACT + LONG * 20, " green lamp"
    tokens, target = model._encode_pair(context, continuation)
    with pytest.warns(UserWarning, match="too long for the model's window of 40 tokens lose their beginning"):
        ((value, _),) = scored(model, [(context, continuation)])
    logits = continue_prefill(model.model, *prefill(model.model, tokens[-(41 - len(target)) :]), target)
    assert value == pytest.approx(logits.log_softmax(-1)[range(len(target)), target].sum().item(), abs=1e-5)
    with pytest.raises(RunError, match="leaves no tokens for its prompt in the model's window of 40"):
        scored(model, [(FACT, LONG * 20)])


def test_methods_that_need_documents_are_refused():
    with pytest.raises(RunError, match="pine needs documents.*ms-poe"):
        RagBiasLM("tiny", method="pine")


def test_a_method_changes_generated_answers(plain):
    from lm_eval.api.instance import Instance

    requests = [Instance("generate_until", {}, (CONTEXT, {"until": ["\n"], "max_gen_toks": 6}), 0)]
    strong = RagBiasLM("tiny", method=ChannelScaling(channel=0, factor=-30.0, layers=(0, None), last="all"))
    neutral = RagBiasLM("tiny", method=MsPoE(min_ratio=1, max_ratio=1))
    expected = plain.generate_until(requests, disable_tqdm=True)  # type: ignore[attr-defined]
    assert neutral.generate_until(requests, disable_tqdm=True) == expected
    assert strong.generate_until(requests, disable_tqdm=True) != expected


@pytest.mark.slow
def test_the_command_line_of_lm_eval_knows_the_model(tasks):
    command = [
        sys.executable,
        "-m",
        "ragbias_eval.harness",
        "--model",
        "ragbias",
        "--tasks",
        "little_choice",
    ]
    options = ["--include_path", str(tasks), "--limit", "2", "--model_args"]
    done = subprocess.run(
        [*command, *options, "pretrained=tiny,method=ms-poe"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "little_choice" in done.stdout
    assert "method=ms-poe" in done.stdout or "'method': 'ms-poe'" in done.stdout
