import gzip
import json
import random

import pytest
import torch

from ragbias import DebiasedLM, Prompt
from ragbias.generation.scoring import continuation_logits
from ragbias.methods import get
from ragbias.prompt import TokenisedPrompt
from studies import train_reader
from studies.windows import STATES, Row, generated, logprobs, target_logits

PLACES = [f"{first}{last}" for first in ("Ro", "Os", "Li", "Ky", "Bo", "Ca") for last in "abcdefghij"]


@pytest.fixture(scope="module")
def lm():
    return DebiasedLM.from_pretrained("tiny", "none")


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


def rows_of(lm):
    """Prompts with the same prefix, and windows, suffixes and targets of different lengths."""
    rng = random.Random(0)

    def ids(length):
        return [rng.randrange(10, 500) for _ in range(length)]

    prefix = ids(7)
    return [Row(prefix, [ids(rng.randint(3, 9)) for _ in range(3)], ids(4 + n), ids(2 + n)) for n in range(3)]


@pytest.mark.parametrize("cached", [0, 10**9])
def test_batched_windows_equal_the_method_and_the_plain_model(lm, monkeypatch, cached):
    monkeypatch.setattr(STATES, "left", cached)
    monkeypatch.setattr(STATES, "known", {})
    rows = rows_of(lm)
    for method, batch in (("pcw", rows), ("none", [row.plain for row in rows])):
        for _ in range(2):  # the second time from cached states
            scores, (logits, real) = logprobs(lm.model, batch), target_logits(lm.model, batch)
        for index, row in enumerate(rows):
            prompt = TokenisedPrompt(row.prefix, row.windows, row.suffix)
            expected = continuation_logits(lm.model, prompt, get(method), row.target, "torch")
            torch.testing.assert_close(logits[index, real[index]], expected, atol=1e-4, rtol=1e-4)
            chosen = expected.log_softmax(-1).gather(1, torch.tensor(row.target)[:, None])
            assert scores[index] == pytest.approx(float(chosen.sum()), abs=1e-3)


def test_batched_answers_equal_those_of_the_method(lm):
    rows = rows_of(lm)
    answers = generated(lm.model, rows, lm.tokenizer.eos_token_id)
    for row, answer in zip(rows, answers, strict=True):
        texts = [lm.tokenizer.decode(part) for part in (row.prefix, *row.windows, row.suffix)]
        prompt = Prompt(texts[0], texts[1:-1], texts[-1])
        if lm.prepare(prompt).tokens.ids == [*row.prefix, *(t for w in row.windows for t in w), *row.suffix]:
            assert lm.generate(prompt, method="pcw", max_new_tokens=len(answer)).token_ids == answer


@pytest.mark.parametrize("objective", ["distil", "known", "both", "free", "plain"])
def test_each_objective_lowers_its_loss(lm, file, tmp_path, monkeypatch, capsys, objective):
    monkeypatch.setattr(train_reader, "HELD_OUT", 2)
    command = [str(file), "--out", str(tmp_path), "--model", "tiny", "--device", "cpu", "--groups", "1", "--group", "6"]
    train_reader.main([*command, "--batch", "3", "--rate", "0.01", "--one-form", "--readers", f"r:{objective}:40"])
    losses = [float(line.split()[4]) for line in capsys.readouterr().out.splitlines() if " loss " in line]
    assert losses[-1] < losses[0]
