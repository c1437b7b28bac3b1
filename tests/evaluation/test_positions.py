"""Accuracy by the place of the gold document."""

import pytest

from ragbias.evaluation.metrics import normalised
from ragbias.evaluation.positions import Curve, Example, measure
from ragbias.methods import CanonicalOrder, NoMethod, Pine


def test_curve_figures():
    curve = Curve({1: 0.9, 3: 0.5, 5: 0.7}, 0.4, [])
    assert (curve.mean, curve.worst, curve.gap) == pytest.approx((0.7, 0.5, 0.4))
    assert curve.as_dict()["accuracy_by_position"] == {"1": 0.9, "3": 0.5, "5": 0.7}


def test_example_puts_the_gold_document_in_its_place():
    example = Example("q", "a", "gold", ("x", "y"))
    assert [example.arranged(position) for position in range(3)] == [
        ["gold", "x", "y"],
        ["x", "gold", "y"],
        ["x", "y", "gold"],
    ]


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
        assert curve.flip_rate == sum(len(set(answers)) > 1 for answers in curve.answers) / 2
        if method.name != "none":
            assert curve.flip_rate == 0
