"""Questions with one gold document among others, made ready to run with that at several positions."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ragbias.errors import MethodError
from ragbias.evaluation.data.jsonl import Line, read_lines
from ragbias.evaluation.data.questions import Question, question_of
from ragbias.evaluation.tasks import kv_retrieval
from ragbias.evaluation.tasks.orders import arranged, evenly_spread
from ragbias.generation.request import in_parts
from ragbias.generation.scoring import continuation_ids
from ragbias.lm import DebiasedLM
from ragbias.models.tiny.cases import FORMAT
from ragbias.models.tiny.world import ask, sample_entries
from ragbias.prompt import TokenisedPrompt, tokenise

DATA_FIELDS = "question (text), documents (list of texts), answer (text), gold (index of the document that holds it)"
Texts = Callable[[DebiasedLM, Sequence[str], Question], tuple[str, str]]


@dataclass(frozen=True)
class Sample:
    """One prompt: its tokens, those of the right answer, and the gold document's position.

    Attributes:
        gold: index into ``prompt.documents``.
        question: index of the question; it is the same for all positions of the gold document.
    """

    prompt: TokenisedPrompt
    answer: list[int]
    gold: int
    question: int


def samples_of(lm: DebiasedLM, questions: Iterable[Question], text: Texts, depths: int) -> list[Sample]:
    """Each question with its gold document at ``depths`` positions, evenly spread; at every one where there are fewer.

    Args:
        questions: with gold document and answer.
        text: of documents in their order and their question: the flat prompt and the answer that follows it.

    Raises:
        MethodError: a prompt is longer than the model's window, or cannot be split at its documents.
    """
    samples = []
    for index, question in enumerate(questions):
        assert question.gold is not None  # all sources give it
        others = [each for at, each in enumerate(question.documents) if at != question.gold]
        positions = evenly_spread(len(question.documents), depths)
        for documents, position, _ in arranged(question.documents[question.gold], others, positions, 1, ""):
            samples.append(sample_of(lm, *text(lm, documents, question), documents, position, index))
    return samples


def sample_of(lm: DebiasedLM, text: str, answer: str, documents: Sequence[str], gold: int, question: int) -> Sample:
    """One flat prompt, made ready; errors as of ``samples_of``."""
    parts, _, reason, _ = in_parts(text, documents, None)
    if reason:
        raise MethodError(f"a prompt cannot be split at its documents: {reason}")
    ids = continuation_ids(lm.tokenizer, parts.suffix, answer)
    prompt = tokenise(parts, lm.tokenizer)
    length = len(prompt.ids) + len(ids)
    if length > lm.window:
        raise MethodError(
            f"a prompt has {length} tokens with its answer, but the model's window is {lm.window}; use fewer documents"
        )
    return Sample(prompt, ids, gold, question)


def labelled_questions(path: Path) -> list[Question]:
    """The questions of a file, each with an answer and its gold document; errors name file, line and field."""
    return [_labelled(line) for line in read_lines(path)]


def _labelled(line: Line) -> Question:
    question = question_of(line)
    if not question.answers or question.gold is None:
        missing = "answer" if not question.answers else "gold"
        raise line.error(f"no {missing!r}; each line needs {DATA_FIELDS}")
    return question


def kv_question(rng: random.Random, pairs: int) -> Question:
    """JSON key-value retrieval of Liu et al.: random identifiers, one of which is asked for."""
    drawn = [[str(uuid.UUID(int=rng.getrandbits(128), version=4)) for _ in range(2)] for _ in range(pairs)]
    (asked, answer), texts = drawn[0], tuple(f'"{key}": "{value}"' for key, value in drawn)
    return Question(asked, texts, (answer,), gold=0)


def kv_text(lm: DebiasedLM, documents: Sequence[str], question: Question) -> tuple[str, str]:
    pairs = "{\n" + ",\n".join(documents) + "\n}"
    text = kv_retrieval.TEMPLATE.format(formatted_kv_records=pairs, key=question.question)
    return as_user_message(lm, text, f'"{question.answers[0]}"')


def tiny_question(rng: random.Random, documents: int) -> Question:
    """A question as ``tiny`` was trained on: names of the training split, which no evaluation of its answers uses."""
    entries = sample_entries(rng, documents, held_out=False)
    drawn = ask(rng, rng.choice(entries[0].facts), entries[0].passage)
    texts = tuple(FORMAT.document(0, entry.passage) for entry in entries)
    return Question(drawn.question, texts, (drawn.answer,), gold=0)


def tiny_text(lm: DebiasedLM, documents: Sequence[str], question: Question) -> tuple[str, str]:
    text = FORMAT.prefix + FORMAT.separator.join(documents) + FORMAT.suffix.format(q=question.question)
    return text, question.answers[0]


def data_text(lm: DebiasedLM, documents: Sequence[str], question: Question) -> tuple[str, str]:
    context = "\n\n".join(documents)
    text = f"Answer the question using the documents.\n\n{context}\n\nQuestion: {question.question}\nAnswer:"
    return as_user_message(lm, text, question.answers[0])


def as_user_message(lm: DebiasedLM, text: str, answer: str) -> tuple[str, str]:
    """As one user message where the model has a chat template; without one the answer follows after a space."""
    if lm.tokenizer.chat_template is None:
        return text, " " + answer
    return lm.chat_text([{"role": "user", "content": text}]), answer
