"""Places of the gold document."""

from __future__ import annotations

from ragbias.evaluation.tasks.arranging import evenly_spread


def test_positions_are_spread_from_first_to_last() -> None:
    assert evenly_spread(10, 5) == [0, 2, 4, 7, 9]
    assert evenly_spread(3, 5) == [0, 1, 2]
    assert (evenly_spread(5, 1), evenly_spread(1, 1), evenly_spread(1, 3)) == ([2], [0], [0])
