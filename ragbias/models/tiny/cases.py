"""Held-out questions with their distractors, and the prompt format that the embedded model is measured with."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ragbias.models.tiny.world import Passage, WorldQuestion, held_out_questions, sample_entries


@dataclass(frozen=True)
class PromptFormat:
    """A prompt: ``prefix``, documents with ``separator`` between them, ``suffix`` with ``{q}`` for the question."""

    prefix: str
    document: Callable[[int, Passage], str]
    separator: str
    suffix: str

    def documents(self, passages: Sequence[Passage]) -> list[str]:
        """The passages as text, each but the last with the separator after it."""
        texts = [self.document(i, passage) for i, passage in enumerate(passages)]
        return [text + self.separator for text in texts[:-1]] + texts[-1:]

    def prompt(self, passages: Sequence[Passage], question: str) -> str:
        """The whole prompt as one string."""
        return self.prefix + "".join(self.documents(passages)) + self.suffix.format(q=question)


def titled(index: int, passage: Passage) -> str:
    """The passage below a line with its title."""
    return f"{passage.title}\n{passage.text}"


FORMAT = PromptFormat("<s>Context:\n", titled, "\n\n", "\n\nQuestion: {q}\nAnswer:")


def cases(documents: int, count: int, seed: int) -> list[tuple[WorldQuestion, list[Passage]]]:
    """``count`` questions, each with ``documents - 1`` distractors that mostly state the same kinds of facts."""
    rng = random.Random(f"evaluation {seed}")
    made: list[tuple[WorldQuestion, list[Passage]]] = []
    while len(made) < count:
        corpus = [entry.passage for entry in sample_entries(rng, documents, held_out=True)]
        question = held_out_questions(corpus, 1, rng.randrange(2**32))[0]
        made.append((question, [passage for passage in corpus if passage is not question.gold]))
    return made
