from __future__ import annotations

from ragbias import DebiasedLM
from ragbias.evaluation.tasks import TinyQA
from ragbias.methods import NoMethod, Pine
from training.evaluate import by_position


def test_default_cases_are_one_hundred_questions_at_five_places() -> None:
    found = list(TinyQA().cases())
    assert len(found) == len({case.id for case in found}) == 2 * 100 * 5
    assert [case.gold_position for case in found[:5]] == [0, 2, 4, 7, 9]
    assert [case.gold_position for case in found[500:505]] == [0, 5, 10, 14, 19]
    assert found == list(TinyQA().cases())


def test_fewer_questions_are_the_first_ones() -> None:
    settings = dict(documents=(5,), positions=(0,), seed=3)
    assert list(TinyQA(**settings, limit=10).cases())[:4] == list(TinyQA(**settings, limit=4).cases())  # type: ignore[arg-type]


def test_orders_hold_the_same_documents_with_the_gold_one_in_its_place() -> None:
    found = list(TinyQA(documents=(6,), positions=(2,), orders=3, limit=2).cases())
    for begin in (0, 3):
        part = found[begin : begin + 3]
        assert len({case.documents for case in part}) == 3
        assert len({frozenset(case.documents) for case in part}) == 1
        assert len({case.documents[2] for case in part}) == 1
        assert len({case.question for case in part}) == 1


def test_numbers_are_those_of_the_embedded_models_own_evaluation(tiny: DebiasedLM) -> None:
    for method, count in ((NoMethod(), 20), (Pine(), 6)):
        task = TinyQA(documents=(8,), positions=(0, 3), limit=count, seed=5)
        found = list(task.cases())
        answers = task.answers(tiny, found, method, batch_size=12)
        scores = [task.score(case, answer.prediction) for case, answer in zip(found, answers, strict=True)]
        expected = by_position(tiny.model, tiny.tokenizer, 8, seed=5, count=count, places=(0, 3), method=method)
        assert {1: sum(scores[::2]) / count, 4: sum(scores[1::2]) / count} == expected
        assert {answer.report.method_ran for answer in answers} == {method.name}
