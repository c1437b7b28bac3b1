"""Attention to the gold document, by position, layer and head."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM

from ragbias.methods import NoMethod, Pine
from studies.attention import measure
from studies.experiment import Questions
from studies.layer_attention import attention_by_head


@pytest.fixture(scope="module")
def samples(small_lm):
    return Questions("tiny", limit=2, documents=4).samples(small_lm)


def test_it_is_that_of_the_eager_model(small_lm, samples):
    eager = AutoModelForCausalLM.from_config(small_lm.model.config, attn_implementation="eager")
    eager.load_state_dict(small_lm.model.state_dict())
    found = measure(small_lm, samples, NoMethod(), iter)
    assert found.positions == [0, 1, 2, 3]
    golds = []
    for sample in (each for each in samples if each.gold == 1):
        with torch.no_grad():
            attentions = eager(torch.tensor([sample.prompt.ids]), output_attentions=True).attentions
        begin, end = sample.prompt.spans[1]
        golds.append(torch.stack([layer[0, :, -1, begin:end].sum(-1) for layer in attentions]))
    torch.testing.assert_close(found.gold[:, 1], torch.stack(golds), atol=1e-5, rtol=1e-4)


def test_the_position_alone_gets_what_other_documents_get_there(small_lm, samples):
    found = measure(small_lm, samples, NoMethod(), iter)
    masses = [attention_by_head(small_lm, each.prompt, NoMethod())[:, :, 2] for each in samples if each.gold != 2]
    torch.testing.assert_close(found.instead[:, 2].mean(0), torch.stack(masses).mean(0))


def test_with_one_position_the_mean_other_document_is_reference(small_lm, samples):
    found = measure(small_lm, [each for each in samples if each.gold == 2], NoMethod(), iter)
    assert found.as_dict()["another_at_that_position"] is None and torch.equal(found.reference, found.other)
    layer, head = found.best_heads[0]
    assert (found.gold - found.other).mean(0)[0, layer, head] == (found.gold - found.other).mean(0).max()


def test_invariant_methods_make_it_independent_of_position(small_lm, samples):
    found = measure(small_lm, samples, Pine(), iter)
    torch.testing.assert_close(found.gold, found.gold[:, :1].expand(-1, 4, -1, -1), atol=0, rtol=0)
    plain = measure(small_lm, samples, NoMethod(), iter)
    assert (plain.gold - plain.gold[:, :1]).abs().max() > 0.01


def test_the_command_draws_prints_and_writes(study, tmp_path):
    out, numbers = tmp_path / "a.png", tmp_path / "a.json"
    size = ("--limit", "1", "--documents", "4", "--depths", "2")
    code, output, _ = study("attention", "--model", "tiny", *size, "--out", out, "--json", numbers)
    found = json.loads(numbers.read_text())
    assert code == 0 and out.stat().st_size > 10_000 and "1 retrieves" in output
    assert found["positions"] == [0, 3] and found["questions"]["evaluated"] == 1 and found["retrieval_layers"] == [1]
    assert len(found["gold"]) == 2 and len(found["gold"][0]) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--task", "tiny", "--questions", "q.jsonl"], "task tiny draws its own questions; leave out q.jsonl"),
        (["--task", "data"], "task data reads questions from a file; name it with --questions"),
        (["--task", "kw"], "experiment: task='kw'"),
        (["--documents", "9999"], "9999 passages; expected at most 466, the number of distinct names"),
        (["--method", "pined"], "pined"),
        (["--method", "attention-sorting"], "attention-sorting does not change attention"),
    ],
    ids=["drawn with a file", "no file", "no task", "too many", "no method", "method of the order"],
)
def test_invalid_settings_are_refused(study, tmp_path, options, message):
    code, _, errors = study("attention", "--model", "tiny", "--limit", "1", "--out", tmp_path / "a.png", *options)
    assert code == 2 and message in " ".join(errors.split())


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ([["red " * 9000, "blue " * 9000]], "use fewer documents"),
        ([["a", "b"], ["a", "b", "c"]], "have 2, 3 documents"),
    ],
    ids=["too long", "different numbers"],
)
def test_unusable_questions_of_a_file_are_refused(study, tmp_path, documents, message):
    question = {"question": "Which?", "answer": "red", "gold": 0}
    lines = [json.dumps({**question, "documents": texts}) for texts in documents]
    (tmp_path / "q.jsonl").write_text("\n".join(lines))
    code, _, errors = study(
        "attention", "--model", "tiny", "--questions", tmp_path / "q.jsonl", "--out", tmp_path / "a.png"
    )
    assert code == 2 and message in " ".join(errors.split())
