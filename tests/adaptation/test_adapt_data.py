"""Questions, examples and lessons of a training."""

import json
import random
from dataclasses import replace

import pytest

from ragbias import adapt
from ragbias.adaptation import AdaptSettings, Question, read_questions
from ragbias.adaptation.examples import draw_examples, most_similar, rarity_of
from ragbias.adaptation.run import _split
from ragbias.adaptation.sources import read_sources
from ragbias.adaptation.teacher import ANSWER_TOKENS, make_lessons
from ragbias.errors import ArgumentError, DataError
from support.trainings import SHORT, InterruptedTrainingError, interrupt_at


def test_any_text_may_be_in_a_question(lm, questions):
    strange = [replace(question, question="What is {documents} in {question}?") for question in questions]
    examples = draw_examples(lm, strange, AdaptSettings(examples=8))
    assert all("{documents} in {question}?" in example.prompt.suffix + example.prompt.prefix for example in examples)


def test_too_little_data_is_refused_with_what_is_enough(lm, questions, tmp_path):
    with pytest.raises(DataError, match="19 different questions with two or more documents; give at least 20"):
        adapt(lm, [*questions[:19], questions[0]], tmp_path, AdaptSettings(**SHORT))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(steps=0), "steps=0; expected a whole number from 1"),
        (dict(learning_rate=2.0), "learning_rate=2.0; expected a number between 0 and 1"),
        (dict(objective="fast"), "objective='fast'; expected one of 'auto', 'distil', 'labels', 'both'"),
        (dict(method="attention-sorting"), "method='attention-sorting' takes no reader"),
        (dict(method="pcw(reader=a)"), "has a reader already; name the method without it"),
        (dict(prompt="{documents}"), r"expected a text with \{documents\} and \{question\}, once each"),
    ],
)
def test_a_setting_out_of_range_is_named(settings, message):
    with pytest.raises((ArgumentError, RuntimeError), match=message):
        AdaptSettings(**settings)


def test_a_repeated_question_is_on_one_side(questions):
    training, held_out = _split([*questions, *questions], seed=0)
    assert not {question.question for question in training} & {question.question for question in held_out}
    assert (len(training), len(held_out)) == (64, 8)


def test_examples_keep_the_gold_document_and_use_every_question(lm, questions):
    examples = draw_examples(lm, questions, AdaptSettings(examples=80, documents=3))
    assert len({example.prompt.suffix for example in examples}) > 10
    for example in examples:
        assert 2 <= len(example.prompt.documents) <= 3
        assert example.answers[0] in example.prompt.documents[example.gold]


def test_the_teacher_reads_the_gold_document_alone(lm, questions):
    example = draw_examples(lm, questions, AdaptSettings(examples=8))[0]
    (prompt,) = example.teacher_prompts(3, random.Random(0))
    assert prompt.documents == (example.prompt.documents[example.gold],)
    assert prompt.suffix == example.prompt.suffix
    orders = replace(example, gold=None).teacher_prompts(3, random.Random(0))
    assert [sorted(each.documents) for each in orders] == [sorted(example.prompt.documents)] * 3


def test_without_gold_the_teacher_reads_the_most_similar_one(lm, questions):
    unlabelled = [replace(question, gold=None) for question in questions]
    found = []
    for example in draw_examples(lm, unlabelled, AdaptSettings(examples=40)):
        (prompt,) = example.teacher_prompts(None, random.Random(0))
        if any(example.answers[0] in document for document in example.prompt.documents):
            found.append(example.answers[0] in prompt.documents[0])
    assert len(found) > 20 and sum(found) / len(found) > 0.9


def test_the_most_similar_document_shares_the_rarest_words():
    documents = ["The key is in the red box.", "The lamp is in the blue box.", "It is in the hall with the coat."]
    rarity = rarity_of([*documents, "The box is here.", "The box is there."])
    assert most_similar("Where is the lamp, in the box or the hall?", documents[:2], rarity) == 1
    assert most_similar("Where is the KEY?", documents, rarity) == 0
    assert most_similar("No word of it", documents, rarity) == 2
    assert most_similar("大厅的墙是什么颜色?", documents, rarity) is None


def test_the_target_is_the_teachers_answer_unless_it_is_wrong(lm, questions):
    example = draw_examples(lm, questions, AdaptSettings(examples=8))[0]
    prompts = example.teacher_prompts(1, random.Random(0))
    own = lm.generate(prompts[0], method="none", max_new_tokens=ANSWER_TOKENS)
    end = lm.tokenizer.eos_token_id
    right, wrong, unknown = (
        replace(example, answers=answers) for answers in (("nothing", own.text.split()[0]), ("nothing",), ())
    )
    lessons = make_lessons(lm, [(each, prompts) for each in (right, wrong, unknown)], distil=True)
    targets = [[token for token in lesson.target.tolist() if token != end] for lesson in lessons]
    assert targets == [own.token_ids, lm.token_ids("nothing"), own.token_ids]
    assert [bool(lesson.labelled) for lesson in lessons] == [True, True, False]
    labels = make_lessons(lm, [(right, prompts)], distil=False)[0]
    assert labels.target.tolist() == [*lm.token_ids("nothing"), end] and not labels.tokens.numel()


def test_examples_of_a_question_share_its_lesson(lm, questions, tmp_path):
    settings = AdaptSettings(**{**SHORT, "examples": 70})
    with pytest.raises(InterruptedTrainingError):
        adapt(lm, questions, tmp_path, settings, progress=interrupt_at("Training", 1))
    assert len(list(tmp_path.glob("*/lesson-*"))) == 32  # one per training question


def test_your_prompt_replaces_the_common_ones(lm, questions):
    examples = draw_examples(lm, questions, AdaptSettings(examples=8, prompt="Hear: {documents}Tell: {question}"))
    assert all(example.prompt.prefix.endswith("Hear: ") and "Tell: " in example.prompt.suffix for example in examples)


def test_questions_come_from_files_and_folders(tmp_path):
    words = " ".join(f"word{number}" for number in range(200))
    (tmp_path / "notes.txt").write_text(words + "\n\n" + words.replace("word", "term"))
    rows = [{"question": "Who?", "documents": ["a", "b"]}]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = read_sources([tmp_path / "q.jsonl"], [tmp_path / "notes.txt"], seed=0)
    assert found[0] == Question("Who?", ("a", "b"))
    assert len(found) > 1
    for question in found[1:]:
        assert question.answers[0] in " ".join(question.documents[0].split())
    with pytest.raises(DataError, match="no data: give --questions FILE"):
        read_sources([], [], seed=0)


def test_the_held_out_questions_are_written_for_an_audit(lm, questions, tmp_path):
    adapt(lm, questions, tmp_path, AdaptSettings(**SHORT))
    held_out = read_questions(tmp_path / "held-out.jsonl", labelled=True)
    assert held_out == _split(questions, 0)[1] and len(held_out) == 8


def test_passages_that_are_too_short_are_named(tmp_path):
    (tmp_path / "notes.txt").write_text("A mill.\n\nA wall.")
    with pytest.raises(DataError, match="--documents needs two or more passages, one of them with 28 words"):
        read_sources([], [tmp_path / "notes.txt"], seed=0)
