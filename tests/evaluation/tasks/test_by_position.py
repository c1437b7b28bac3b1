"""Accuracy by the position of the gold document."""

from dataclasses import dataclass

import numpy as np
import pytest
from scipy.stats import binom

from ragbias.errors import DocumentNotFoundError
from ragbias.evaluation.measures.bootstrap import Scores
from ragbias.evaluation.measures.metrics import exact, normalised
from ragbias.evaluation.tasks import Case, Task
from ragbias.evaluation.tasks.by_position import Curve, measure, widest_margin
from ragbias.evaluation.tasks.orders import gold_orders
from ragbias.methods import CanonicalOrder, NoMethod, Pine


def made_curve(right):
    """With the gold document first and third; ``right`` by question and position."""
    values = np.array(right, dtype=float)
    names = tuple(map(str, range(len(right))))
    return Curve(Scores(names, (0, 2), values), [["owl" if each else "hen" for each in given] for given in right])


def test_curve_figures():
    curve = made_curve([[1, 0], [1, 1], [1, 0], [0, 0]])
    assert (curve.mean, curve.worst, curve.gap, curve.flip_rate) == (0.5, 0.25, 0.5, 0.5)
    assert curve.as_dict()["accuracy_by_position"] == {"1": 0.75, "3": 0.25}


def test_the_margin_of_accuracy_is_that_of_the_widest_interval():
    """For a share, the bootstrap's interval is that of the binomial distribution."""
    sure, unsure = made_curve([[1, 1]] * 40), made_curve([[1, 0], [1, 1]] * 20)
    assert widest_margin([sure]) == 0
    low, high = binom.ppf([0.025, 0.975], 40, 0.5) / 40
    assert widest_margin([sure, unsure]) == pytest.approx(max(0.5 - low, high - 0.5), abs=0.026)  # one question
    assert widest_margin([sure, made_curve([[1, 1]] * 4)]) is None


@dataclass(frozen=True)
class MadeUp(Task):
    """Two questions over three documents, the gold one first and last."""

    text: str = "Context:\n\n{}\n\n{}"

    name = "made-up"
    max_new_tokens = 4

    def cases(self):
        for number in ("x", "yy"):
            others = [f"One {number}.", f"Two {number} more."]
            for documents, position, _ in gold_orders(f"A gold {number}.", others, (0, 2), 1, number):
                text = self.text.format("\n\n".join(documents), f"Which {number}?")
                yield Case(f"{number}/{position}", number, text, tuple(documents), ("owl",), position)

    def score(self, case, prediction):
        return exact(prediction, case.answers)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("A gold x.\n\nWho?", "2 of the 3 documents given explicitly do not appear verbatim in the prompt"),
        ("Who?", "none of the 3 documents given explicitly appears verbatim"),
        ("Document [1] A cat.\nDocument [2] A dog.\n\nWho?", "none of the 3 documents given explicitly"),
    ],
)
def test_a_prompt_without_all_of_its_documents_is_refused(lm, text, reason):
    with pytest.raises(DocumentNotFoundError, match=reason):
        measure(lm, NoMethod(), MadeUp(text))


def test_measure_counts_right_answers_and_flips(lm):
    """Against generating each prompt by itself."""
    task, done = MadeUp(), []
    for method in (NoMethod(), Pine(), CanonicalOrder()):
        curve = measure(lm, method, task, done.append)
        expected = {}
        for case in task.cases():
            alone = lm.generate(task.prompt(lm, case), documents=case.documents, method=method, max_new_tokens=4)
            expected.setdefault(case.question, []).append(normalised(alone.text))
        assert (list(curve.scores.questions), curve.answers) == (list(expected), list(expected.values()))
        right = [[text == "owl" for text in answers] for answers in curve.answers]
        np.testing.assert_array_equal(curve.scores.values, right)
        assert curve.scores.positions == (0, 2)
        assert curve.flip_rate == sum(len(set(answers)) > 1 for answers in curve.answers) / 2
        if method.name != "none":
            assert curve.flip_rate == 0
    assert sum(done) == 3 * 4
