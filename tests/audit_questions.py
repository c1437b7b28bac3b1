"""Questions about the embedded model's world, as a user of the audit would bring them."""

from __future__ import annotations

import json
import random
from pathlib import Path

from ragbias.tiny.evaluate import cases


def question_lines(questions: int, documents: int = 20, seed: int = 1, labels: bool = True) -> list[dict[str, object]]:
    """Held-out questions, the document with the answer at a random place."""
    rng, lines = random.Random(seed), []
    for question, passages in cases(documents, questions, seed):
        place = rng.randrange(documents)
        passages.insert(place, question.gold)
        line: dict[str, object] = {
            "question": question.question,
            "documents": [f"{passage.title}\n{passage.text}" for passage in passages],
        }
        lines.append({**line, "answer": question.answer, "gold": place} if labels else line)
    return lines


def write(path: Path, lines: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
