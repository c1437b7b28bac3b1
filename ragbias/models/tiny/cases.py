"""Held-out questions with their distractors, and the prompt format that the embedded model is measured with."""

import random

from ragbias.models.tiny.formats import BOS, PromptFormat, titled
from ragbias.models.tiny.world import Passage, WorldQuestion, held_out_questions, sample_entries

FORMAT = PromptFormat(f"{BOS}Context:\n", titled, "\n\n", "\n\nQuestion: {q}\nAnswer:")


def cases(documents: int, count: int, seed: int) -> list[tuple[WorldQuestion, list[Passage]]]:
    """`count` questions, each with `documents` - 1 distractors that mostly state the same kinds of facts."""
    rng = random.Random(f"evaluation {seed}")
    made: list[tuple[WorldQuestion, list[Passage]]] = []
    while len(made) < count:
        corpus = [entry.passage for entry in sample_entries(rng, documents, held_out=True)]
        question = held_out_questions(corpus, 1, rng.randrange(2**32))[0]
        made.append((question, [passage for passage in corpus if passage is not question.gold]))
    return made
