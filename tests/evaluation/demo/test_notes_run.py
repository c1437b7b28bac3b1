"""The demo of a real model, at a small size with the embedded model."""

import io
import json
from itertools import islice

import pytest
from rich.console import Console
from rich.progress import Progress

from ragbias.errors import RunError
from ragbias_eval.demo import NotesDemo

SMALL = {"model": "tiny", "questions": 5, "documents": 3, "positions": 2}


def test_figures_pair_with_plain_and_invariant_ones_are_flat():
    prepared = NotesDemo(**SMALL)
    outcome = prepared.run(bar := Progress(disable=True))
    results = outcome["results"]
    assert list(results) == ["none", "pine", "rotor", "pcw"]
    assert bar.finished and bar.tasks[0].total == 4 * 5 * 2
    assert results["none"]["minus_plain_mean"] == [0, 0, 0]
    for name, row in results.items():
        low, middle, high = (row["minus_plain_mean"][index] for index in (1, 0, 2))
        assert low <= middle <= high
        assert set(row["accuracy_by_position"]) == {"0", "2"}
        assert name == "none" or row["logprob"]["gap"][0] == 0
    assert json.loads(json.dumps(outcome))["settings"]["questions"] == 5
    (axis,) = NotesDemo.draw(outcome).axes
    curves = [line.get_label() for line in axis.lines if line.get_marker() != "None"]
    assert curves == ["none (plain tiny)", "pine (order-invariant)"]  # as on the start page


def test_nothing_of_the_tables_is_cut_off_on_80_columns():
    by_position = {str(at): [-2.01, -2.1, -1.9] for at in (0, 2, 4, 7, 9)}
    row = {
        "minus_plain_mean_by_position": by_position,
        "accuracy_by_position": {at: [0.65, 0.5, 0.8] for at in by_position},
        **{f"minus_plain_{end}": [-1.01, -1.42, -0.65] for end in ("mean", "worst", "best")},
    }
    outcome = {"settings": {"questions": 20, "documents": 10}, "results": {"none": row, "pine": row, "rotor": row}}
    shown = Console(width=80, file=io.StringIO())
    shown.print(*islice(NotesDemo.report(outcome), 2), sep="\n")
    output = shown.file.getvalue()
    assert "…" not in output and output.count("rotor") == 2 and output.count("none") == 1
    assert output.count("-2.01 (0.65)") == 3 * 5 and output.count("-1.01 (-1.42 to -0.65)") == 2 * 3


def test_more_questions_than_notes_are_refused():
    with pytest.raises(RunError, match="questions=31, but the demo of tiny has 30 questions; use fewer"):
        NotesDemo(**{**SMALL, "questions": 31})
