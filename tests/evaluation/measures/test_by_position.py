"""Accuracy by the place of the gold document."""

import numpy as np
import pytest
from scipy.stats import binom

from ragbias.errors import RunError
from ragbias.evaluation.measures.bootstrap import Scores
from ragbias.evaluation.measures.by_position import Curve, Example, measure, split, widest_margin
from ragbias.evaluation.measures.metrics import normalised
from ragbias.methods import CanonicalOrder, NoMethod, Pine


def made_curve(right):
    """With the gold document first and third; ``right`` by example and position."""
    values = np.array(right, dtype=float)
    names = tuple(map(str, range(len(right))))
    return Curve(Scores(names, (0, 2), values), [["owl" if each else "hen" for each in given] for given in right])


def test_curve_figures():
    curve = made_curve([[1, 0], [1, 1], [1, 0], [0, 0]])
    assert (curve.mean, curve.worst, curve.gap, curve.flip_rate) == (0.5, 0.25, 0.5, 0.5)
    assert curve.as_dict()["accuracy_by_position"] == {"1": 0.75, "3": 0.25}


def test_the_margin_of_an_accuracy_is_that_of_the_widest_interval():
    """For a share, the bootstrap's interval is that of the binomial distribution."""
    sure, unsure = made_curve([[1, 1]] * 40), made_curve([[1, 0], [1, 1]] * 20)
    assert widest_margin([sure]) == 0
    low, high = binom.ppf([0.025, 0.975], 40, 0.5) / 40
    assert widest_margin([sure, unsure]) == pytest.approx(max(0.5 - low, high - 0.5), abs=0.026)  # one question
    assert widest_margin([sure, made_curve([[1, 1]] * 4)]) is None


def test_example_puts_the_gold_document_in_its_place():
    example = Example("q", "a", "gold", ("x", "y"))
    assert [example.arranged(position) for position in range(3)] == [
        ["gold", "x", "y"],
        ["x", "gold", "y"],
        ["x", "y", "gold"],
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("An owl.\n\nWho?", "1 of the 2 documents given explicitly do not appear verbatim in the prompt"),
        ("Who?", "none of the 2 documents given explicitly appears verbatim"),
        ("Document [1] A cat.\nDocument [2] A dog.\n\nWho?", "none of the 2 documents given explicitly"),
    ],
)
def test_a_prompt_without_all_of_its_documents_is_refused(lm, text, reason):
    documents = ["An owl.", "A hen."]
    with pytest.raises(RunError, match=reason):
        split(text, documents)
    example = Example("Who?", "owl", "An owl.", ("A hen.",))
    with pytest.raises(RunError, match=reason):
        measure(lm, NoMethod(), [example], [0], lambda documents, question: text)


def test_measure_counts_right_answers_and_flips(lm):
    """Against generating each prompt by itself."""
    examples = [Example(f"Which {n}?", "owl", f"A gold {n}.", (f"One {n}.", f"Two {n} more.")) for n in ("x", "yy")]

    def text(documents, question):
        return "Context:\n\n" + "\n\n".join(documents) + "\n\n" + question

    for method in (NoMethod(), Pine(), CanonicalOrder()):
        curve = measure(lm, method, examples, [0, 2], text, max_new_tokens=4)
        for example, answers in zip(examples, curve.answers, strict=True):
            for position, answer in zip((0, 2), answers, strict=True):
                documents = example.arranged(position)
                alone = lm.generate(
                    text(documents, example.question), documents=documents, method=method, max_new_tokens=4
                )
                assert normalised(alone.text) == answer
        right = [[text == "owl" for text in answers] for answers in curve.answers]
        np.testing.assert_array_equal(curve.scores.values, right)
        assert curve.flip_rate == sum(len(set(answers)) > 1 for answers in curve.answers) / 2
        if method.name != "none":
            assert curve.flip_rate == 0
