"""Write training questions for ``ragbias adapt`` from questions with only their gold passage.

The distractors of a question are the most similar other passages by TF-IDF that do not contain an answer.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sklearn.feature_extraction.text import TfidfVectorizer

from studies import arguments_of

DISTRACTORS = 19
LONGEST = 120  # words of a passage


def examples(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield questions with up to twenty documents, the gold document first."""
    rows = [row for row in rows if len(row["ctxs"][0]["text"].split()) <= LONGEST]
    passages = [(row["ctxs"][0]["title"], row["ctxs"][0]["text"]) for row in rows]
    vectors = TfidfVectorizer(stop_words="english")
    matrix = vectors.fit_transform([f"{title} {text}" for title, text in passages])
    similar = vectors.transform([row["question"] for row in rows]) @ matrix.T
    for index, row in enumerate(rows):
        gold = " ".join(passages[index]).lower()
        row["answers"].sort(key=lambda answer: answer.lower() not in gold)  # one that can be copied first
        answers = [answer.lower() for answer in row["answers"]]
        chosen: list[tuple[str, str]] = []
        scores = similar[index]
        for other in scores.indices[scores.data.argsort()[::-1]]:
            text = " ".join(passages[other]).lower()
            if passages[other] not in [*chosen, passages[index]] and not any(answer in text for answer in answers):
                chosen.append(passages[other])
            if len(chosen) == DISTRACTORS:
                break
        documents = [f"Document (Title: {title}) {text}" for title, text in [passages[index], *chosen]]
        if len(documents) > 1:
            yield {"question": row["question"], "documents": documents, "answers": row["answers"], "gold": 0}


def main() -> None:
    parser = arguments_of(__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--questions", type=int, default=400, help="number of questions")
    parser.add_argument("--seed", type=int, default=0, help="seed of the drawn questions")
    arguments = parser.parse_args()
    with gzip.open(arguments.file, "rt") as lines:
        rows = [json.loads(line) for line in lines]
    found = list(examples(rows))
    drawn = random.Random(arguments.seed).sample(found, min(arguments.questions, len(found)))
    arguments.out.write_text("".join(json.dumps(example) + "\n" for example in drawn))
    print(f"{len(drawn)} of {len(found)} questions written to {arguments.out}")


if __name__ == "__main__":
    main()
