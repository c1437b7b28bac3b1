"""Passages cut around the answer."""

import pytest

from ragbias_eval.tasks.task import cut_around_answer

WORDS = [f"w{index}" for index in range(100)]
TEXT = "  ".join(WORDS)


@pytest.mark.parametrize(
    ("answers", "first"),
    [
        (["w50"], 46),  # the middle
        (["w2"], 0),  # near the beginning, where the passage ends on that side
        (["w98"], 90),  # near its end
        (["W50"], 46),  # case does not matter
        (["w80", "w30"], 26),  # the first occurrence of any
        (["nothing"], 0),
        ([""], 0),
    ],
)
def test_the_piece_lies_around_the_first_answer(answers, first):
    assert cut_around_answer(TEXT, answers, 10) == "  ".join(WORDS[first : first + 10])


def test_answers_of_several_words_and_white_space_stay_whole():
    text = "a b\tc  the red\n house d e f"
    assert cut_around_answer(text, ["red\n house"], 4) == "the red\n house d"
    assert cut_around_answer(text, ["red\n house"], 2) == "red\n house"


def test_whole_words_come_before_parts_of_words():
    text = " ".join(["2001", *WORDS[:30], "1", *WORDS[30:]])
    assert "1" in cut_around_answer(text, ["1"], 5).split()
    assert cut_around_answer("x1x " + TEXT, ["1x"], 5).startswith("x1x")


def test_punctuation_beside_an_answer_belongs_to_its_word():
    assert cut_around_answer(TEXT.replace("w50", "(w50),"), ["w50"], 3) == "w49  (w50),  w51"


def test_short_and_unlimited_passages_are_unchanged():
    assert cut_around_answer(TEXT + " ", ["w5"], 100) == TEXT + " "
    assert cut_around_answer(TEXT, ["w5"], None) == TEXT
