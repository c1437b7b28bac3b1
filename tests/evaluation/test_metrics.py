"""Scores computed by hand from the benchmarks' definitions."""

import pytest

from ragbias.data.questions import best_subspan_em, normalise_squad
from ragbias_eval.metrics import exact_match, normalise, qa_f1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The Quick,  brown\tFox!", "quick brown fox"),
        ("an apple a day", "apple day"),
        ("The theatre", "theatre"),  # an article is a word of its own
        ("U.S.A.", "usa"),
        ("a-b the_c", "ab thec"),  # punctuation goes before the articles do
        ("“curly” Röntgen", "“curly” röntgen"),  # ASCII punctuation only
        ("The", ""),
    ],
)
def test_normalisation(text, expected):
    assert normalise_squad(text) == expected


@pytest.mark.parametrize(
    ("prediction", "answers", "score"),
    [
        ("Wilhelm Conrad Röntgen", ["Wilhelm Conrad Röntgen"], 1.0),
        (" It was wilhelm conrad röntgen, of Germany.", ["Wilhelm Conrad Röntgen"], 1.0),
        ("Röntgen", ["Wilhelm Conrad Röntgen"], 0.0),
        ("I think\nWilhelm Conrad Röntgen", ["Wilhelm Conrad Röntgen"], 0.0),  # the first line counts alone
        ("\nWilhelm Conrad Röntgen", ["Wilhelm Conrad Röntgen"], 0.0),
        ("May 18, 2018", ["no", "May 18 2018"], 1.0),  # any of the answers
        ("the 14th of December", ["14 December"], 0.0),
        ("in 1901", ["190"], 1.0),  # part of a word is enough
        ("The United States", ["a United States"], 1.0),
        ("", ["x"], 0.0),
        ("anything", ["*"], 1.0),  # nothing is left of the answer, and any text contains that
    ],
)
def test_best_subspan_em(prediction, answers, score):
    assert best_subspan_em(prediction, answers) == score


@pytest.mark.parametrize(
    ("prediction", "answers", "score"),
    [
        ("Mara Quill", ["mara quill."], 1.0),
        ("the founder Mara Quill", ["Mara Quill"], 0.8),  # precision 2/3, recall 1
        ("Mara", ["Mara Quill"], 2 / 3),  # precision 1, recall 1/2
        ("Mara Quill", ["Ed", "Mara Anne Quill"], 0.8),  # the best of the answers; precision 1, recall 2/3
        ("no no no", ["no"], 0.5),  # a word counts as often as both have it: precision 1/3, recall 1
        ("Paris", ["London"], 0.0),
        ("", ["London"], 0.0),
        ("the", ["the"], 0.0),  # no words are left
        ("yes\nit is", ["it"], 0.5),  # all lines count
    ],
)
def test_qa_f1(prediction, answers, score):
    assert qa_f1(prediction, answers) == pytest.approx(score)


@pytest.mark.parametrize(
    ("prediction", "score"), [(" green  door.", 1.0), ("Green door", 1.0), ("red", 1.0), ("a green door", 0.0)]
)
def test_exact(prediction, score):
    assert exact_match(prediction, ["green door", "Red"]) == score


def test_answers_compare_without_case_white_space_and_full_stop():
    assert normalise(" Brass  Owl. ") == "brass owl"
