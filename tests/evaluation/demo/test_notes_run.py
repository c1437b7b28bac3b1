"""The demo of a real model, on a small scale and with the embedded one."""

import json
from dataclasses import replace

import pytest

from ragbias.errors import RunError
from ragbias.evaluation.demo import notes_run
from ragbias.evaluation.demo.kept_documents import first_token_line
from ragbias.evaluation.demo.outcome import save

SMALL = notes_run.NotesSettings(model="tiny", questions=5, documents=3, positions=2)


def test_figures_are_paired_with_the_plain_model_and_invariant_methods_are_flat(tmp_path):
    told = []
    prepared = notes_run.NotesDemo(SMALL)
    outcome = notes_run.run(prepared, lambda name, count: told.append(name))
    results = outcome["results"]
    assert list(results) == ["none", "pine", "rotor", "pcw"]
    assert len(told) == prepared.steps == 4 * 5 * 2
    assert results["none"]["minus_plain_mean"] == [0, 0, 0]
    for name, row in results.items():
        low, middle, high = (row["minus_plain_mean"][index] for index in (1, 0, 2))
        assert low <= middle <= high
        assert set(row["accuracy_by_position"]) == {"0", "2"}
        assert name == "none" or row["logprob"]["gap"][0] == 0
    line = first_token_line(prepared.lm, prepared.task)
    assert "its 3 documents computed before" in line and "with ape" in line and "tokens were kept" in line
    save(outcome, notes_run.figure(outcome), tmp_path)
    assert json.loads((tmp_path / "results.json").read_text())["settings"]["questions"] == 5
    assert (tmp_path / "bias.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("questions", [4, 31])
def test_too_few_or_too_many_questions_are_refused(questions):
    with pytest.raises(RunError, match=f"questions={questions}"):
        notes_run.NotesDemo(replace(SMALL, questions=questions))
