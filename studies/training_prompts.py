"""Prompts for ``studies.train_reader``: questions, similar distractors, and several forms of the prompt."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sklearn.feature_extraction.text import TfidfVectorizer

from ragbias.generation.scoring import continuation_ids
from ragbias.lm import DebiasedLM
from ragbias.models.control_tokens import encode
from studies.reader_questions import make_examples
from studies.windows import Row

PREFIXES = (
    "Answer the question using the documents below.\n\n",
    "Here are some passages. Use them to answer the question at the end.\n\n",
    "Use this context to answer. If the answer is not in it, say so.\n\nContext:\n",
    "",
)
WEIGHTS = 6, 1, 1, 1  # relative frequencies of the prefixes
ENDINGS = (
    "\nQuestion: {question}\nAnswer in a few words.",
    "\nQuestion: {question}\nAnswer:",
    "\nUse the passages above to answer this question in a few words: {question}",
    "\n{question}",
    "\nQuestion: {question}",
    "\nAnswer the question from the documents only, as briefly as you can.\nQuestion: {question}",
)
BARE = 0.15  # share of prompts without the chat template
WORDS = 40, 120  # words in short and in long passages
HELD_OUT, FEWEST = 150, 50  # questions that are held out, and minimum for training


@dataclass
class Lesson:
    """A training example: a question, the form of its prompt, and the teacher's answer.

    Without labels, ``row`` is the prompt, and ``top`` is the index of the document most similar to the question.
    """

    entry: dict[str, Any]
    prefix: list[int]
    suffix: list[int]
    short: bool
    style: float
    own: list[int] = field(default_factory=list)
    right: bool = False
    row: Row | None = None
    top: int = 0


class Questions:
    """Training questions with gold documents and similar distractors, and their prompts."""

    def __init__(self, lm: DebiasedLM, file: Path, one_form: bool = False) -> None:
        self.one_form = one_form
        self.lm, self.end = lm, lm.tokenizer.eos_token_id
        with gzip.open(file, "rt") as lines:
            rows = [json.loads(line) for line in lines]
        random.Random(0).shuffle(rows)
        self.by_length = [{each["question"]: each for each in make_examples(deepcopy(rows), words)} for words in WORDS]
        both = [row["question"] for row in rows if all(row["question"] in part for part in self.by_length)]
        self.held_out = both[:HELD_OUT]
        held = {self.title(question) for question in self.held_out}
        self.training = [question for question in both[HELD_OUT:] if self.title(question) not in held]
        if len(self.training) < FEWEST:
            raise SystemExit(f"{file}: {len(self.training)} questions for training; expected at least {FEWEST}")
        self._encoded: dict[str, list[int]] = {}
        self._words = TfidfVectorizer(stop_words="english").fit(
            self.by_length[1][question]["documents"][0] for question in self.training
        )

    def ids(self, text: str) -> list[int]:
        if text not in self._encoded:
            self._encoded[text] = encode(text, self.lm.tokenizer)
        return self._encoded[text]

    def lessons(self, count: int, rng: random.Random) -> list[Lesson]:
        """Draw lessons of different questions, with the same prefix and form."""
        prefix = rng.choices(PREFIXES, WEIGHTS)[0]
        bare, short, style = rng.random() < BARE, rng.random() < 0.5, rng.random()
        if self.one_form:
            prefix, bare, short, style = PREFIXES[0], False, False, 0.0
        drawn = []
        for question in rng.sample(self.training, min(count, len(self.training))):
            text = prefix + "\0" + rng.choice(ENDINGS).format(question=question)
            flat = text if bare else str(self.lm.chat_text([{"role": "user", "content": text}]))
            before, after = flat.split("\0")
            entry = self.by_length[0 if short else 1][question]
            drawn.append(Lesson(entry, self.ids(before or "\n"), self.ids(after), short, style))
        return drawn

    def row(self, lesson: Lesson, count: int, rng: random.Random) -> tuple[Row, int]:
        """Return a prompt with ``count`` documents in random order, and the index of the gold document."""
        documents = self.documents(lesson, count, rng)
        return self.row_of(lesson, documents), documents.index(lesson.entry["documents"][0])

    def documents(self, lesson: Lesson, count: int, rng: random.Random) -> list[str]:
        """Draw ``count`` documents in random order, one of them the gold document."""
        entry, spare = lesson.entry, self.by_length[0 if lesson.short else 1]
        gold, others = entry["documents"][0], entry["documents"][1:]
        documents = [gold, *rng.sample(others, min(count - 1, len(others)))]
        while len(documents) < count:
            other = spare[rng.choice(self.training)]["documents"][0]
            if other not in documents and not any(answer.lower() in other.lower() for answer in entry["answers"]):
                documents.append(other)
        rng.shuffle(documents)
        return documents

    def row_of(self, lesson: Lesson, documents: Sequence[str]) -> Row:
        windows = [self.ids(format_document(document, lesson.style)) for document in documents]
        return Row(lesson.prefix, windows, lesson.suffix)

    def most_similar(self, question: str, documents: Sequence[str]) -> int:
        """Return the index of the document that is most similar to the question by TF-IDF."""
        scores = self._words.transform([question]) @ self._words.transform(documents).T
        return int(scores.toarray()[0].argmax())

    def title(self, question: str) -> str:
        """Return the title of the gold document."""
        return split_title(self.by_length[1][question]["documents"][0])[0]

    def text(self, ids: list[int]) -> str:
        """Decode tokens, without control tokens."""
        return str(self.lm.tokenizer.decode(ids, skip_special_tokens=True))

    def answer_ids(self, suffix: list[int], answer: str) -> list[int]:
        after = self.text(suffix[-4:])
        return [*continuation_ids(self.lm.tokenizer, after, f" {answer}" if after.endswith(":") else answer), self.end]


def split_title(document: str) -> tuple[str, str]:
    """Return title and text of a document that ``studies.reader_questions`` wrote."""
    title, _, text = document.removeprefix("Document (Title: ").partition(") ")
    return title, text


def format_document(document: str, style: float) -> str:
    """Format a document: title and text in one line, title above the text, or text alone."""
    title, text = split_title(document)
    return f"{document}\n" if style < 0.6 else f"{title}\n{text}\n\n" if style < 0.8 else f"{text}\n"
