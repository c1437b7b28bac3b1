import json
from pathlib import Path
from typing import Any

import pytest

from ragbias.errors import DataError, RunError
from ragbias.generation.preparing import split_prompt
from ragbias_eval.tasks import MuSiQue, make_task
from ragbias_eval.tasks.task import Case

ENTRY: dict[str, Any] = {
    "question": "Who built the station that Quill's ship left from?",
    "answers": ["Mara Quill"],
    "ctxs": [
        {"title": "", "text": "the ship left from falcon station."},
        {"title": "Falcon", "text": " falcon station was built by mara quill in spring . "},
        {"title": "", "text": "an otter"},
    ],
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "musique_s.json"
    path.write_text(json.dumps([ENTRY, {**ENTRY, "question": "Again?"}], indent=1))
    return path


def cases(*data: Path, **settings: Any) -> list[Case]:
    return list(MuSiQue(data=data, **settings).cases())


def test_a_question_has_its_passages_in_the_order_of_the_file(data):
    first, second = cases(data)
    assert first.documents == (
        "the ship left from falcon station.",
        "Falcon\n\nfalcon station was built by mara quill in spring .",
        "an otter",
    )
    assert first.text.startswith("You will be asked a question after reading several passages.")
    assert "Passages:\n\nthe ship left" in first.text
    assert first.text.endswith("\nQuestion: Who built the station that Quill's ship left from?\nAnswer:")
    assert (first.answers, first.gold_position, first.order, first.shorten) == (("Mara Quill",), None, 0, None)
    assert first.question != second.question


def test_orders_shuffle_passages_and_the_limit_counts_questions(data):
    shuffled = cases(data, orders=3, limit=1)
    assert [case.order for case in shuffled] == [0, 1, 2] and len({case.id for case in shuffled}) == 3
    assert (
        len({case.documents for case in shuffled}) == 3 and len({frozenset(case.documents) for case in shuffled}) == 1
    )
    assert {case.question for case in shuffled} == {shuffled[0].question}
    assert [case.documents for case in cases(data, orders=3, limit=1)] == [case.documents for case in shuffled]


def test_documents_are_found_in_the_prompt_in_every_order(data, tiny):
    task = MuSiQue(data=(data,), orders=3)
    splits = [split_prompt(task.prompt(tiny, case), case.documents) for case in task.cases()]
    found = {frozenset(split.parts.documents) for split in splits}
    assert len(found) == 1


def test_the_measures_are_f1_or_the_answer_in_the_first_line(data):
    (case, _), prediction = cases(data), "It was built by Mara Quill"
    assert 0 < MuSiQue(data=(data,)).score(case, prediction) < 1
    assert MuSiQue(data=(data,), metric="subspan-em").score(case, prediction) == 1
    with pytest.raises(RunError, match="musique: metric: Input should be 'f1' or 'subspan-em', got 'bleu'"):
        make_task("musique", data=data, metric="bleu")


def test_passages_can_be_cut_around_the_answer(data):
    case = cases(data, shorten=5)[0]
    assert case.documents[1] == "Falcon\n\nby mara quill in spring" and case.shorten == 5
    assert case.documents[0] == "the ship left from falcon"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"ctxs": []}, "1.ctxs: Tuple should have at least 1 item"),
        ({"ctxs": [{"title": "", "text": " "}]}, "1.ctxs.0.text: is empty"),
        ({"answers": [" "]}, "1.answers.0: is empty"),
        ({"answers": "Mara"}, "1.answers: Input should be a valid array, got 'Mara'"),
    ],
)
def test_an_entry_of_another_format_is_named(tmp_path, change, complaint):
    path = tmp_path / "broken.json"
    path.write_text(json.dumps([ENTRY, {**ENTRY, **change}]))
    with pytest.raises(DataError, match=f"broken.json: {complaint}"):
        cases(path)
