"""Positions of the gold document, and orders of the documents."""

from itertools import permutations

from ragbias_eval.tasks.task import alphabetical_ranks, spread_positions


def test_positions_are_spread_from_first_to_last():
    assert spread_positions(10, 5) == [0, 2, 4, 7, 9]
    assert spread_positions(3, 5) == [0, 1, 2]
    assert (spread_positions(5, 1), spread_positions(1, 1), spread_positions(1, 3)) == ([2], [0], [0])


def test_a_documents_number_does_not_depend_on_the_order():
    wanted = ["whale", "hen", "owl"]
    for given in permutations(wanted):
        assert alphabetical_ranks(given, [given.index(text) for text in wanted]) == (2, 0, 1)


def test_equal_documents_are_numbered_as_they_are_shown():
    assert (
        alphabetical_ranks(["owl", "hen", "owl"], (2, 1, 0))
        == alphabetical_ranks(["owl", "owl", "hen"], (0, 2, 1))
        == (1, 0, 2)
    )
    assert alphabetical_ranks(["owl", "hen"], ()) == ()
