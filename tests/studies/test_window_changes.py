import json

import pytest
import torch

from studies import window_changes
from studies.window_changes import enclose_documents, recompute_context, turn_tokens
from studies.windows import Row, compute_logprobs

PLACES = "Oslo", "Rome", "Lima", "Kyiv"


@torch.no_grad()
def test_a_single_document_stays_as_it_is_when_it_is_recomputed(tiny, make_rows):
    rows = make_rows(1)
    scores = compute_logprobs(tiny.model, rows, context=recompute_context(tiny.model, rows, 0.5))
    assert scores == pytest.approx(compute_logprobs(tiny.model, rows), abs=1e-3)


@torch.no_grad()
def test_recomputed_documents_see_the_others_in_any_order(tiny, make_rows):
    rows = make_rows(3)
    other = [Row(row.prefix, row.windows[::-1], row.suffix, row.target) for row in rows]
    scores = compute_logprobs(tiny.model, rows, context=recompute_context(tiny.model, rows, 0.5))
    assert scores == pytest.approx(
        compute_logprobs(tiny.model, other, context=recompute_context(tiny.model, other, 0.5)), abs=1e-3
    )
    assert scores != pytest.approx(compute_logprobs(tiny.model, rows), abs=1e-2)


def test_a_document_is_enclosed_in_a_turn_of_its_own(tiny):
    close, opening = turn_tokens(tiny)
    row = enclose_documents(Row([1], [[5], [6]], [2]), [*close, *opening], [*close, *opening])
    text = tiny.tokenizer.decode(row.windows[0])
    turn = str(tiny.chat_text([{"role": "user", "content": "?"}] * 2)).split("?")[1]
    assert text == turn + tiny.tokenizer.decode([5]) + turn


def test_the_study_prints_all_variants(tmp_path, capsys):
    rows = []
    for number, place in enumerate(PLACES):
        texts = [f"The key {other} is in {PLACES[other]}." for other in (number, *{0, 1, 2, 3} - {number})]
        ctxs = [{"title": f"K{index}", "text": text, "isgold": index == 0} for index, text in enumerate(texts)]
        rows.append({"question": f"Where is the key {number}?", "answers": [place], "ctxs": ctxs})
    file = tmp_path / "questions.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    window_changes.main([str(file), "--out", str(tmp_path / "out.json"), "--model", "tiny", "--batch", "2"])
    printed = capsys.readouterr().out
    assert all(f"{name}: " in printed for name in ("pcw", "turn", "opening", "recomputed"))
    scores = json.loads((tmp_path / "out.json").read_text())["scores"]
    assert [len(of_name) for of_name in scores.values()] == [4] * 5
