"""lm-eval with its model ``ragbias``, on tasks of a few lines over local files."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from datasets import disable_progress_bars
from lm_eval.models.huggingface import HFLM

from ragbias import methods
from ragbias.errors import MissingExtraError, RunError
from ragbias.evaluation.lm_eval.harness import RagBiasLM, harness_records
from ragbias.evaluation.measures.aggregates import summarise
from ragbias.methods import ChannelScaling, MsPoE, Pine
from ragbias.models import tiny

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
GENERATED = """
task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: generate_until
doc_to_text: "Question: {{{{question}}}}\\nAnswer:"
doc_to_target: "{{{{choices[answer]}}}}"
generation_kwargs:
  until: ["\\n"]
  max_gen_toks: 6
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
"""
LONGBENCH = """
task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: generate_until
doc_to_text: "{{{{context}}}}\\n\\nQuestion: {{{{question}}}}\\nAnswer:"
doc_to_target: "{{{{answers}}}}"
process_results: !function metrics.{measure}
generation_kwargs:
  max_gen_toks: 32
  temperature: 1
  do_sample: False
  until: ["\\n"]
metric_list:
{metrics}
"""
METRIC = '  - metric: "{}"\n    aggregation: mean\n    higher_is_better: {}\n'
METRICS = """
def with_score(doc, results):
    right = results[0].strip().rstrip(".") in doc["answers"]
    return {"score": 0.25 + 0.5 * right, "qa_f1_score": 0.25 + 0.5 * right}

def own(doc, results):
    return {"percent": 37.5, "error_rate": 0.25, "overlap": 0.75}

def unusable(doc, results):
    return {"percent": 37.5, "error_rate": 0.25}
"""
LONG = "The lamp was green. "
FACT = "At Falcon Station the passphrase is whisper lagoon dagger. "
ASKED = "What is the passphrase of Falcon Station?"
GROUP = "group: little_group\ntask: [little_choice, little_text]\n"


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a task of each kind and a group of both."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    disable_progress_bars()
    data = tmp_path / "questions.json"
    data.write_text("\n".join(map(json.dumps, QUESTIONS)))
    folder = tmp_path / "tasks"
    folder.mkdir()
    for name, template in (("little_choice", MULTIPLE_CHOICE), ("little_text", GENERATED)):
        (folder / f"{name}.yaml").write_text(template.format(name=name, data=data))
    (folder / "group.yaml").write_text(GROUP)
    (folder / "metrics.py").write_text(METRICS)
    return folder


def longbench(tasks: Path, measure: str, contexts: list[str], **higher_is_better: bool) -> str:
    """Adds a task that is made as lm-eval makes LongBench's."""
    data = tasks / f"{measure}.json"
    lines = [{"context": each, "question": ASKED, "answers": ["whisper lagoon dagger"]} for each in contexts]
    data.write_text("\n".join(map(json.dumps, lines)))
    metrics = "".join(METRIC.format(*each) for each in higher_is_better.items())
    name = f"longbench_{measure}"
    (tasks / f"{name}.yaml").write_text(LONGBENCH.format(name=name, data=data, measure=measure, metrics=metrics))
    return name


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
def test_a_method_that_changes_nothing_scores_as_the_plain_model(plain: object, method: object) -> None:
    own = scored(RagBiasLM("tiny", method=method), REQUESTS)
    expected = scored(plain, REQUESTS)
    assert [greedy for _, greedy in own] == [greedy for _, greedy in expected]
    assert [value for value, _ in own] == pytest.approx([value for value, _ in expected], rel=1e-5, abs=1e-4)


def test_a_method_scores_as_ragbias_itself_does(plain: object) -> None:
    from ragbias import DebiasedLM

    method = MsPoE(min_ratio=1.5, max_ratio=3.0, layers=(0, None))
    own = scored(RagBiasLM("tiny", method=method), [(CONTEXT, choice) for choice in CHOICES])
    lm = DebiasedLM.from_pretrained("tiny", method=method)
    expected = [lm.score(CONTEXT, choice.strip()).total for choice in CHOICES]  # as lm-eval splits the tokens
    assert [value for value, _ in own] == pytest.approx(expected, rel=1e-5, abs=1e-4)
    assert own[0][0] != pytest.approx(scored(plain, [(CONTEXT, CHOICES[0])])[0][0], abs=1e-3)


def test_a_whole_text_is_as_likely_as_for_the_plain_model(plain: object) -> None:
    from lm_eval.api.instance import Instance

    requests = [Instance("loglikelihood_rolling", {}, (CONTEXT,), 0)]
    own = RagBiasLM("tiny", method=MsPoE(min_ratio=1, max_ratio=1))
    expected = plain.loglikelihood_rolling(requests, disable_tqdm=True)  # type: ignore[attr-defined]
    assert own.loglikelihood_rolling(requests, disable_tqdm=True) == pytest.approx(expected, abs=1e-3)


def test_each_example_becomes_a_record(tasks: Path) -> None:
    records = harness_records("tiny", methods.get("none"), "none", ["little_group"], include_path=tasks)
    assert [record.id for record in records] == [
        f"little_{kind}/{n}/0" for kind in ("choice", "text") for n in range(3)
    ]
    assert {(record.task, record.model, record.method, record.method_ran) for record in records} == {
        ("little_group", "tiny", "none", "none")
    }
    for record, question in zip(records[:3], QUESTIONS, strict=True):
        choices, right = question["choices"], question["answer"]
        assert record.prediction in choices
        assert record.score == float(record.prediction == choices[right])
    assert all(
        record.prompt_tokens > 0 and record.completion_tokens > 0 and record.seconds > 0 for record in records[:3]
    )
    assert all((record.documents, record.gold_position) == (0, None) for record in records)
    assert all(record.group == record.id.split("/")[0] for record in records)


def test_the_limit_counts_examples_and_methods_change_answers(tasks: Path) -> None:
    strong = ChannelScaling(channel=0, factor=-30.0, layers=(0, None), last="all")
    records = {
        label: harness_records("tiny", method, label, ["little_text"], limit=2, include_path=tasks)
        for label, method in (("none", methods.get("none")), ("strong", strong))
    }
    assert [len(each) for each in records.values()] == [2, 2]
    assert [record.prediction for record in records["none"]] != [record.prediction for record in records["strong"]]
    assert {record.method_ran for record in records["strong"]} == {"channel-scaling"}


def test_any_measure_from_0_to_1_counts_and_what_cannot_is_named(tasks: Path) -> None:
    measured = {"percent": True, "error_rate": False}
    name = longbench(tasks, "own", [FACT], **measured, overlap=True)
    (record,) = harness_records("tiny", methods.get("none"), "none", [name], include_path=tasks)
    assert record.score == 0.75
    name = longbench(tasks, "unusable", [FACT], **measured)
    message = (
        "task 'longbench_unusable' has no usable measure: percent is 37.5 for an example; error_rate is "
        "better if lower; expected a measure that gives each example a number from 0 to 1"
    )
    with pytest.raises(RunError, match=re.escape(message)):
        harness_records("tiny", methods.get("none"), "none", [name], include_path=tasks)


def fitted(model: object, text: str, room: int) -> tuple[list[int], list[int]]:
    """All tokens of a prompt, and those that enter."""
    ids, mask = model.tok_batch_encode(["Short.", text], left_truncate_len=room)  # type: ignore[attr-defined]
    assert ids.shape == mask.shape and int(mask[1].sum()) == ids.shape[1]
    return model.tok_encode(text), ids[1].tolist()  # type: ignore[attr-defined]


@pytest.mark.parametrize("room", [40, 41])
def test_a_prompt_that_is_too_long_keeps_its_first_and_last_half(room: int) -> None:
    model, text = RagBiasLM("tiny", cut_middle=True), FACT + LONG * 20
    whole, shortened = fitted(model, text, room)
    assert len(whole) > room and shortened == whole[: room // 2] + whole[len(whole) - (room - room // 2) :]
    assert len(shortened) == room and model.cut == {text: room}
    short, same = fitted(model, FACT, 200)
    assert same == short and model.cut == {text: room}


def test_a_long_prompt_loses_its_beginning_with_a_warning(plain: object) -> None:
    model, text = RagBiasLM("tiny"), FACT + LONG * 20
    with pytest.warns(UserWarning, match="a prompt has .* tokens, but only 40 fit .*cut_middle=True"):
        whole, shortened = fitted(model, text, 40)
    assert shortened == fitted(plain, text, 40)[1] == whole[-40:] and model.cut == {text: 40}


@pytest.mark.parametrize("cut_middle", [True, False])
@pytest.mark.filterwarnings("ignore:a prompt of")
def test_longbench_scores_count_and_cut_prompts_are_counted(tasks: Path, cut_middle: bool) -> None:
    """The embedded model's window is shrunk to 400 tokens; the fact stands first, so only the middle may go."""
    name = longbench(tasks, "with_score", [FACT + LONG * 100, FACT], score=True, qa_f1_score=True)
    small = shutil.copytree(tiny.path(), tasks / "small")
    config = json.loads((small / "config.json").read_text())
    (small / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 400}))
    records = harness_records(
        str(small), methods.get("none"), "none", [name], include_path=tasks, cut_middle=cut_middle
    )
    assert [record.cut for record in records] == ["middle" if cut_middle else "front", ""]
    assert records[0].prompt_tokens == 400 - 32 and records[1].prompt_tokens < 60
    assert [record.score for record in records] == [0.75 if cut_middle else 0.25, 0.75]
    (result,) = summarise(records)["results"]
    assert result["methods"]["none"]["cut"] == {records[0].cut: 1}
    lost = "their middle was cut out" if cut_middle else "their beginning was cut off"
    assert f"none: 1 of 2 prompts were too long for the window; {lost}." in result["notes"]


@pytest.mark.parametrize("cut_middle", [True, False])
@pytest.mark.filterwarnings("ignore:a prompt of")
def test_scored_continuations_follow_a_prompt_that_was_cut(cut_middle: bool) -> None:
    model = RagBiasLM("tiny", cut_middle=cut_middle, max_length=40)
    context, continuation = FACT + LONG * 20, " green lamp"
    tokens, target = model._encode_pair(context, continuation)
    room = 41 - len(target)
    first = room // 2 if cut_middle else 0
    (value,) = (value for value, _ in scored(model, [(context, continuation)]))
    logits = model._after(tokens[:first] + tokens[len(tokens) - (room - first) :], target)
    assert value == pytest.approx(logits.log_softmax(-1)[range(len(target)), target].sum().item(), abs=1e-5)
    assert model.cut == {context: room}
    with pytest.raises(RunError, match="leaves no tokens for its prompt in the model's window of 40"):
        scored(model, [(FACT, LONG * 20)])


def test_an_option_that_is_neither_true_nor_false_is_refused() -> None:
    with pytest.raises(RunError, match="cut_middle='yes'; expected True or False"):
        RagBiasLM("tiny", cut_middle="yes")


def test_methods_that_need_documents_are_refused(tasks: Path) -> None:
    with pytest.raises(RunError, match="pine needs documents.*ms-poe"):
        harness_records("tiny", Pine(), "pine", ["little_choice"], include_path=tasks)


def test_an_unknown_task_is_named(tasks: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("lm_eval.tasks.manager.__file__", str(tmp_path / "none" / "manager.py"))  # of 14,000 tasks
    with pytest.raises(RunError, match="no task 'little_choise'"):
        harness_records("tiny", methods.get("none"), "none", ["little_choise"], include_path=tasks)


def test_without_lm_eval_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval.models.huggingface", None)
    monkeypatch.delitem(sys.modules, RagBiasLM.__module__)
    with pytest.raises(MissingExtraError, match=r"pip install 'ragbias\[lm-eval\]'"):
        import_module(RagBiasLM.__module__)


@pytest.mark.slow
def test_the_command_line_of_lm_eval_knows_the_model(tasks: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "ragbias.evaluation.lm_eval.harness",
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
