import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from ragbias import DebiasedLM
from ragbias.errors import DataError, RunError
from ragbias.generation.preparing import split_prompt
from ragbias.methods import Pine
from ragbias.models.tiny.world import held_out_corpus, held_out_questions
from ragbias_eval.tasks import MultiDocumentQA
from ragbias_eval.tasks.task import Case

OFFICIAL = "nq-open-3_total_documents_gold_at_{}.jsonl.gz"
PROMPT = """\
Write a high-quality answer for the given question using only the provided search results (some of which might be \
irrelevant).

Document [1](Title: Mara) Quill lives {{here}}.
Document [2](Title: Falcon (station)) It was built in 1901.
Document [3](Title: Otter) No "brackets" [2].

Question: when was it built
Answer:"""


def context(title: str, text: str, gold: bool = False) -> dict[str, Any]:
    return {"id": "7", "title": title, "text": text, "score": "1.5", "hasanswer": gold, "isgold": gold}


MARA, OTTER = context("Mara", "Quill lives {{here}}."), context("Otter", 'No "brackets" [2].')
GOLD = context("Falcon (station)", "It was built in 1901.", gold=True)


def question(*contexts: dict[str, Any], text: str = "when was it built", answers: tuple[str, ...] = ("1901",)) -> Any:
    return {"question": text, "answers": list(answers), "ctxs": list(contexts), "nq_annotated_gold": {}}


NAMES = ("Falcon", "Otter", "Birch", "Cedar", "Quartz", "Heron", "Amber", "Willow")


def oracle_lines(count: int = len(NAMES)) -> list[Any]:
    return [
        question(
            context(f"{name} Station", f"{name} Station was founded by {name[::-1].title()} Quill.", gold=True),
            text=f"Who founded {name} Station?",
            answers=(f"{name[::-1].title()} Quill",),
        )
        for name in NAMES[:count]
    ]


@pytest.fixture
def oracle(write: Any) -> Path:
    path: Path = write("nq-open-oracle.jsonl.gz", *oracle_lines())
    return path


def cases(*data: Path, **settings: Any) -> list[Case]:
    return list(MultiDocumentQA(data, **settings).cases())


# the official files


def test_the_official_prompt_is_reproduced_to_the_letter(write):
    (case,) = cases(write(OFFICIAL.format(1), question(MARA, GOLD, OTTER)))
    assert case.text == PROMPT
    assert case.documents == tuple(line for line in PROMPT.split("\n") if line.startswith("Document"))
    assert (case.answers, case.gold_position, case.order, case.seed) == (("1901",), 1, 0, 0)
    assert case.id == "nq-open-3_total_documents_gold_at_1/1/3/1/0"
    assert MultiDocumentQA.max_new_tokens == 100


def test_without_indices_the_headers_have_no_number(write):
    (case,) = cases(write(OFFICIAL.format(1), question(MARA, GOLD, OTTER)), indices=False)
    assert case.text == re.sub(r"Document \[\d\]", "Document ", PROMPT)


def test_the_official_measure_scores_an_answer(write):
    (case,) = cases(write(OFFICIAL.format(1), question(MARA, GOLD, OTTER)))
    task = MultiDocumentQA(())
    scores = {" In 1901.": 1.0, "In 1910": 0.0, "I do not know\n1901": 0.0}
    assert {answer: task.score(case, answer) for answer in scores} == scores


def test_positions_move_only_the_gold_document(write):
    found = cases(write(OFFICIAL.format(1), question(MARA, GOLD, OTTER)), positions=(2, 0), indices=False)
    titles = [re.findall(r"Title: (\w+)", case.text) for case in found]
    assert titles == [["Mara", "Otter", "Falcon"], ["Falcon", "Mara", "Otter"]]
    assert [case.gold_position for case in found] == [2, 0]
    assert len({case.question for case in found}) == 1


def test_documents_are_the_same_whatever_their_number(write):
    first, last = cases(write(OFFICIAL.format(1), question(MARA, GOLD, OTTER)), positions=(0, 2))
    assert set(first.documents) != set(last.documents) and set(first.contents) == set(last.contents)
    assert len(set(first.contents)) == 3 and first.contents[0] == last.contents[2]


def test_files_of_other_gold_positions_hold_the_same_questions(write):
    other = question(OTTER, MARA, context("Birch", "A tree.", gold=True), text="what is birch")
    first = write(OFFICIAL.format(0), question(GOLD, MARA, OTTER), other)
    last = write(OFFICIAL.format(2), question(MARA, OTTER, GOLD), other)
    found = cases(first, last)
    assert [(case.gold_position, case.question == found[0].question) for case in found] == [
        (0, True),
        (2, True),
        (2, False),  # the other question, which is the same in both files, comes once
    ]
    assert len(cases(first, last, limit=1)) == 2
    assert len(cases(first, last, positions=(0, 1))) == 4


def test_another_number_of_documents_than_the_files_is_refused(write):
    path = write(OFFICIAL.format(1), question(MARA, GOLD, OTTER))
    assert len(cases(path, documents=(3, 10))) == 1
    with pytest.raises(DataError, match=r"line 1: 3 documents, but documents=10, 20; an official file"):
        cases(path, documents=(10, 20))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (question(MARA, OTTER), "0 documents in 'ctxs' have \"isgold\": true; expected one"),
        (question(GOLD, GOLD), "2 documents in 'ctxs' have \"isgold\": true"),
        (question(GOLD), "one document, but other lines have several"),
        (question(GOLD, MARA, answers=("1901", " \n")), "answers.1: is empty"),
        ({"question": "x", "ctxs": [GOLD, MARA]}, "'answers' is missing"),
        (question(GOLD, {"title": "x", "text": "y"}), "'ctxs.1.isgold' is missing"),
        (question(GOLD, {**MARA, "text": None}), "ctxs.1.text: Input should be a valid string, got None"),
    ],
)
def test_a_line_of_another_format_is_named(write, line, message):
    path = write(OFFICIAL.format(1), question(MARA, GOLD, OTTER), line)
    with pytest.raises(DataError, match=re.escape(f"{path}, line 2: {message}")):
        cases(path)


# the oracle file


def test_the_oracle_file_has_10_and_20_documents_at_5_positions(write):
    lines = [
        question(context(f"T{n}", f"text {n}", gold=True), text=f"q{n}", answers=(f"answer {n}",)) for n in range(24)
    ]
    found = cases(write("oracle.jsonl", *lines), limit=2)
    positions = defaultdict(list)
    for case in found:
        positions[case.question, len(case.documents)].append(case.gold_position)
    assert len({case.question for case in found}) == 2
    assert [(count, spread) for (_, count), spread in positions.items()] == [
        (10, [0, 2, 4, 7, 9]),
        (20, [0, 5, 10, 14, 19]),
    ] * 2


def test_distractors_are_drawn_once_for_a_question(oracle):
    settings: dict[str, Any] = dict(documents=(3, 5), positions=(0, 2), indices=False)
    found = cases(oracle, **settings)
    assert cases(oracle, **settings) == found
    assert [case.documents for case in cases(oracle, **settings, seed=1)] != [case.documents for case in found]
    limited = cases(oracle, **settings, limit=3)
    assert limited == found[: len(limited)]
    for case in found:
        assert f"Title: {NAMES[int(case.id.split('/')[1]) - 1]} Station" in case.documents[case.gold_position or 0]
    by_question = defaultdict(list)
    for case in found:
        by_question[case.question].append(case)
    for first, second, *more in by_question.values():
        assert set(first.documents) == set(second.documents)
        assert all(set(first.documents) < set(case.documents) for case in more)


def test_no_distractor_can_be_right(write):
    lines = [
        question(context("Falcon", "Mara Quill built it.", gold=True), text="who", answers=("Mara Quill", "the Owl")),
        question(context("Falcon", "Another passage of the same title.", gold=True), text="b", answers=("x1",)),
        question(context("Otter", "Here MARA, Quill is named too.", gold=True), text="c", answers=("x2",)),
        question(context("Owl", "The bird in the title.", gold=True), text="d", answers=("x3",)),
        question(context("Birch", "Owls and Mara Quilly are no answers.", gold=True), text="e", answers=("x4",)),
        question(context("Cedar", "Nothing.", gold=True), text="f", answers=("x5",)),
    ]
    path = write("oracle.jsonl", *lines)
    (case,) = cases(path, documents=(3,), positions=(0,), limit=1, indices=False)
    assert {re.findall(r"Title: (\w+)", document)[0] for document in case.documents[1:]} == {"Birch", "Cedar"}
    with pytest.raises(RunError, match=r"documents=4, but .* line 1, has 2 distractors in its file; use at most 3"):
        cases(path, documents=(4,), limit=1)


def test_the_gold_document_may_stand_alone(oracle):
    found = cases(oracle, documents=(1,), limit=2)
    assert [(len(case.documents), case.gold_position) for case in found] == [(1, 0), (1, 0)]


def test_orders_shuffle_the_distractors_around_the_gold_one(oracle):
    found = cases(oracle, documents=(5,), positions=(0, 3), orders=3, indices=False, limit=2)
    assert [(case.order, case.gold_position) for case in found[:6]] == [(k, p) for k in range(3) for p in (0, 3)]
    for begin in (0, 6):
        part = found[begin : begin + 6]
        assert len({frozenset(case.documents) for case in part}) == 1
        assert len({case.documents for case in part}) == 6
        for at_first, at_fourth in zip(part[::2], part[1::2], strict=True):
            assert at_first.documents[0] == at_fourth.documents[3]
            assert at_first.documents[1:] == at_fourth.documents[:3] + at_fourth.documents[4:]
    assert len({case.id for case in found}) == 12


def test_more_orders_than_there_are_is_refused(oracle):
    with pytest.raises(RunError, match="orders=3, but 2 documents that can move have 2 orders"):
        cases(oracle, documents=(3,), orders=3)


def test_a_position_beyond_the_documents_is_refused(oracle):
    with pytest.raises(RunError, match="position 5 among 5 documents; positions count from 0 to 4"):
        cases(oracle, documents=(5,), positions=(0, 5))


# with a model


def test_each_header_belongs_to_its_documents_segment(oracle):
    for indices in (True, False):
        (case,) = cases(oracle, documents=(5,), positions=(2,), limit=1, indices=indices)
        split = split_prompt(case.text, case.documents)
        prompt, reason = split.parts, split.why_unsplit
        assert not reason
        assert prompt.documents == tuple(document + "\n" for document in case.documents)
        assert prompt.suffix == "\nQuestion: Who founded Falcon Station?\nAnswer:"


def test_the_model_finds_the_answers_of_its_own_world(tiny, write):
    corpus = held_out_corpus(12, seed=0)
    by_gold = {each.gold: each for each in held_out_questions(corpus, 16, seed=0)}
    lines = [
        question(context(gold.title, gold.text, gold=True), text=each.question, answers=(each.answer,))
        for gold, each in by_gold.items()
    ]
    task = MultiDocumentQA((write("oracle.jsonl.gz", *lines),), documents=(4,), positions=(3,), indices=False)
    found = list(task.cases())
    answers = task.answers(tiny, found, Pine(), batch_size=4)
    assert len(answers) == len(by_gold) > 6
    assert all(answer.report.method_ran == "pine" and answer.report.n_found == 4 for answer in answers)
    scores = [task.score(case, answer.prediction) for case, answer in zip(found, answers, strict=True)]
    assert sum(scores) > len(scores) / 2


def test_the_bare_prompt_is_the_benchmarks_own_text(write):
    lm = DebiasedLM.from_pretrained("tiny")
    lm.tokenizer.chat_template = "{{ '<user>' + messages[0]['content'] + '<assistant>' }}"
    path = write(OFFICIAL.format(1), question(MARA, GOLD, OTTER))
    for chat in (True, False):
        task = MultiDocumentQA((path,), chat=chat)
        (case,) = task.cases()
        assert task.prompt(lm, case) == (f"<user>{case.text}<assistant>" if chat else case.text)
