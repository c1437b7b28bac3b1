"""The notes for the demo of a real model."""

from ragbias_eval.demo import read_notes


def test_every_note_answers_its_own_question_only():
    found = read_notes()
    assert len(found) == 30
    for note in found:
        holding = [each.title for each in found if note.answer.lower() in each.text.lower()]
        assert holding == [note.title]
