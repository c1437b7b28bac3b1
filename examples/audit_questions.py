"""Write questions about the embedded model's world, for ``ragbias audit``.

    python examples/audit_questions.py --out my_questions.jsonl --questions 100

With ``--out`` alone it writes ``audit_questions.jsonl``. The entities are held out from the model's training, and the
document with the answer is at a random position.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path

from ragbias.models.tiny.world import cases


def question_lines(questions: int = 30, documents: int = 20, seed: int = 0) -> list[dict[str, object]]:
    """Return a dict for each question. ``gold`` is the index of the document with the answer."""
    rng, lines = random.Random(seed), []
    for question, passages in cases(documents, questions, seed):
        position = rng.randrange(documents)
        passages.insert(position, question.gold)
        texts = [f"{passage.title}\n{passage.text}" for passage in passages]
        lines.append({"question": question.question, "documents": texts, "answer": question.answer, "gold": position})
    return lines


def write(path: Path, lines: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description="Write questions for ragbias audit.")
    parser.add_argument("--out", type=Path, default=Path("questions.jsonl"), help="a new file (default: %(default)s)")
    parser.add_argument("--questions", type=int, default=30)
    parser.add_argument("--documents", type=int, default=20, help="for each question")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.out.exists():
        sys.exit(f"{options.out} exists; give --out a new file")
    lines = question_lines(options.questions, options.documents, options.seed)
    print(f"Written: {write(options.out, lines)}")


if __name__ == "__main__":
    main()
