from itertools import accumulate, chain, pairwise

import torch

from ragbias import DebiasedLM, debias
from ragbias.methods import Method, NoMethod, Pine
from ragbias.models.tiny.world import PREFIX, SEPARATOR
from ragbias_eval.tasks import Case, TinyQA


def test_default_cases_are_one_hundred_questions_at_five_places():
    found = list(TinyQA().cases())
    assert len(found) == len({case.id for case in found}) == 2 * 100 * 5
    assert [case.gold_position for case in found[:5]] == [0, 2, 4, 7, 9]
    assert [case.gold_position for case in found[500:505]] == [0, 5, 10, 14, 19]
    assert found == list(TinyQA().cases())


def test_fewer_questions_are_the_first_ones():
    settings = dict(documents=(5,), positions=(0,), seed=3)
    assert list(TinyQA(**settings, limit=10).cases())[:4] == list(TinyQA(**settings, limit=4).cases())  # type: ignore[arg-type]


def test_orders_hold_the_same_documents_and_place_the_gold_one():
    found = list(TinyQA(documents=(6,), positions=(2,), orders=3, limit=2).cases())
    for begin in (0, 3):
        part = found[begin : begin + 3]
        assert len({case.documents for case in part}) == 3
        assert len({frozenset(case.documents) for case in part}) == 1
        assert len({case.documents[2] for case in part}) == 1
        assert len({case.question for case in part}) == 1


def alone(tiny: DebiasedLM, case: Case, method: Method) -> str:
    """Generate with the model itself and a binding on the spans of the passages, separators included."""
    parts = [PREFIX, *(document + SEPARATOR for document in case.documents)]
    suffix = case.text.removeprefix("".join(parts))
    ids = tiny.tokenizer([*parts, suffix], add_special_tokens=False)["input_ids"]
    spans = list(pairwise(accumulate(map(len, ids[1:-1]), initial=len(ids[0]))))
    prompt = torch.tensor([list(chain(*ids))])
    with debias(tiny.model, method, spans):
        output = tiny.model.generate(prompt, max_new_tokens=8, do_sample=False)  # type: ignore[operator]
    return str(tiny.tokenizer.decode(output[0, prompt.shape[1] :], skip_special_tokens=True)).strip()


def test_answers_are_those_of_the_model_itself(tiny):
    for method, count in ((NoMethod(), 20), (Pine(), 6)):
        task = TinyQA(documents=(8,), positions=(0, 3), limit=count, seed=5)
        found = list(task.cases())
        answers = task.answers(tiny, found, method, batch_size=12)
        expected = [alone(tiny, case, method) for case in found]
        assert [answer.prediction.strip() for answer in answers] == expected
        scores = [task.score(case, answer.prediction) for case, answer in zip(found, answers, strict=True)]
        assert scores == [text == case.answers[0] for text, case in zip(expected, found, strict=True)]
        assert {answer.report.method_ran for answer in answers} == {method.name}
