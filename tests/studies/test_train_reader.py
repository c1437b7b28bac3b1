import gzip
import json
import re
from pathlib import Path

import pytest
import torch

from ragbias import Prompt
from ragbias.generation.scoring import continuation_logits
from ragbias.methods import get
from ragbias.prompt import TokenisedPrompt
from studies import train_reader, training_prompts
from studies.readers import document_orders, read_cases, render_prompt
from studies.windows import (
    ANSWER_TOKENS,
    STATES,
    compute_logprobs,
    compute_target_logits,
    evaluate_mixture,
    generate_answers,
)

PLACES = [f"{first}{last}" for first in ("Ro", "Os", "Li", "Ky", "Bo", "Ca") for last in "abcdefghij"]


@pytest.fixture
def file(tmp_path):
    rows = []
    for number, place in enumerate(PLACES):
        words = " ".join(f"note{number}{index} about it" for index in range(number % 7))
        ctx = {"title": f"Note {number}", "text": f"The box {number} is in {place}. {words}", "isgold": True}
        rows.append({"question": f"Where is the box {number}?", "answers": [place], "ctxs": [ctx]})
    path = tmp_path / "training.jsonl.gz"
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    return path


def questions_of(folder):
    """Write a file in the official format, with the gold document first."""
    rows = []
    for number, place in enumerate(PLACES[:4]):
        texts = [f"The key {other} is in {PLACES[other]}." for other in (number, 11, 12, 13)]
        ctxs = [{"title": f"K{index}", "text": text, "isgold": index == 0} for index, text in enumerate(texts)]
        rows.append({"question": f"Where is the key {number}?", "answers": [place], "ctxs": ctxs})
    path = folder / "questions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("cached", [0, 10**9])
def test_batched_windows_equal_the_method_and_the_plain_model(tiny, make_rows, monkeypatch, cached):
    monkeypatch.setattr(STATES, "left", cached)
    monkeypatch.setattr(STATES, "known", {})
    rows = make_rows()
    for method, batch in (("pcw", rows), ("none", [row.plain for row in rows])):
        for _ in range(2):  # the second time from cached states
            scores, (logits, real) = compute_logprobs(tiny.model, batch), compute_target_logits(tiny.model, batch)
        for index, row in enumerate(rows):
            prompt = TokenisedPrompt(row.prefix, row.windows, row.suffix)
            expected = continuation_logits(tiny.loaded, prompt, get(method), row.target)
            torch.testing.assert_close(logits[index, real[index]], expected, atol=1e-4, rtol=1e-4)
            chosen = expected.log_softmax(-1).gather(1, torch.tensor(row.target)[:, None])
            assert scores[index] == pytest.approx(float(chosen.sum()), abs=1e-3)


def test_batched_answers_equal_those_of_the_method(tiny, make_rows):
    rows = make_rows()
    answers = generate_answers(tiny.model, rows, tiny.tokenizer.eos_token_id)
    for row, answer in zip(rows, answers, strict=True):
        texts = [tiny.tokenizer.decode(part) for part in (row.prefix, *row.windows, row.suffix)]
        prompt = Prompt(texts[0], texts[1:-1], texts[-1])
        if tiny.prepare(prompt).tokens.ids == [*row.prefix, *(t for w in row.windows for t in w), *row.suffix]:
            assert tiny.generate(prompt, method="pcw", max_new_tokens=len(answer)).token_ids == answer


def test_mixtures_equal_the_method(tiny, tmp_path):
    cases = read_cases(questions_of(tmp_path), 10_000, 3)
    scores, answers = evaluate_mixture(tiny, cases, None, answers=True)
    for case, (score,), (answer,) in zip(cases, scores, answers, strict=True):
        prompt = render_prompt(tiny, document_orders(case)[0], case.question, "chat")
        assert score == pytest.approx(tiny.score(prompt, case.answers[0], method="mixture").total, abs=1e-3)
        assert tiny.generate(prompt, method="mixture", max_new_tokens=ANSWER_TOKENS).text == answer


@pytest.mark.parametrize("objective", ["distil --mixture", "distil", "known", "both", "free", "ranked", "plain"])
def test_each_objective_lowers_its_loss(file, tmp_path, monkeypatch, capsys, objective):
    monkeypatch.setattr(training_prompts, "HELD_OUT", 2)
    name, *options = objective.split()
    command = [str(file), "--out", str(tmp_path), "--model", "tiny", "--device", "cpu", "--groups", "1", "--group", "6"]
    train_reader.main([*command, "--batch", "3", "--rate", "0.01", "--one-form", *options, "--readers", f"r:{name}:40"])
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", capsys.readouterr().out)]
    assert losses[-1] < losses[0]


def test_a_trained_reader_is_evaluated_and_written(tiny, file, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(training_prompts, "HELD_OUT", 5)
    command = [str(file), "--out", str(tmp_path / "out"), "--model", "tiny", "--device", "cpu", "--groups", "1"]
    command += ["--evaluation", str(questions_of(tmp_path)), "--questions", "4", "--generate", "--receipt"]
    train_reader.main([*command, "--batch", "2", "--readers", "first:known:3"])
    results = json.loads((tmp_path / "out/results.json").read_text())["questions"]
    assert {name: [len(values) for values in of_name] for name, of_name in results["scores"].items()} == {
        "none": [3] * 4,
        "pcw": [1] * 4,
        "first": [1] * 4,
    }
    assert "minus the plain mean" in capsys.readouterr().out
    reader = str(tmp_path / "out/reader")
    assert json.loads(Path(reader, "reader.json").read_text())["receipt"]["questions"] == 5
    case = read_cases(tmp_path / "questions.jsonl", 10_000, 4)[0]
    prompt = render_prompt(tiny, document_orders(case)[0], case.question, "chat")
    score = tiny.score(prompt, case.answers[0], method=f"pcw(reader={reader})").total
    assert score == pytest.approx(results["scores"]["first"][0][0], abs=0.02)  # the reader is saved in bfloat16
    assert score != pytest.approx(results["scores"]["pcw"][0][0], abs=1e-4)
