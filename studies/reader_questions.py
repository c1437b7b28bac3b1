"""Write training questions for ``ragbias adapt``, from questions that have only a gold passage.

Passages are cut into chunks. A question's gold document is the chunk around its answer. Its distractors are the other
chunks without an answer that are most similar to the question by TF-IDF. Many distractors are from the same passage.
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
SHORTEST = 15  # words of a chunk


def cut_chunks(text: str, answers: list[str], words: int) -> list[str]:
    """Cut a text into chunks of at most ``words`` words. The first chunk is around the first answer that occurs."""
    parts, lower = text.split(), text.lower()
    at = next((lower.find(answer.lower()) for answer in answers if answer.lower() in lower), 0)
    begin = max(0, min(len(text[:at].split()) - words // 2, len(parts) - words))
    starts = [begin, *range(begin + words, len(parts), words), *range(begin - words, -words, -words)]
    cut = [parts[max(0, start) : start + words] for start in starts]
    return [" ".join(each) for index, each in enumerate(cut) if index == 0 or len(each) >= SHORTEST]


def make_examples(rows: list[dict[str, Any]], words: int) -> Iterator[dict[str, Any]]:
    """Yield questions with up to twenty documents, the gold document first."""
    documents: list[str] = []
    gold = []
    for row in rows:
        gold.append(len(documents))
        title = row["ctxs"][0]["title"]
        cut = cut_chunks(row["ctxs"][0]["text"], row["answers"], words)
        documents += [f"Document (Title: {title}) {chunk}" for chunk in cut]
    vectors = TfidfVectorizer(stop_words="english")
    matrix = vectors.fit_transform(documents)
    similar = vectors.transform([row["question"] for row in rows]) @ matrix.T
    for row, index, scores in zip(rows, gold, similar, strict=True):
        text = documents[index].lower()
        row["answers"].sort(key=lambda answer: answer.lower() not in text)  # first those in the gold chunk
        answers = [answer.lower() for answer in row["answers"]]
        ranked = (documents[other] for other in scores.indices[scores.data.argsort()[::-1]])
        others = dict.fromkeys(other for other in ranked if not any(answer in other.lower() for answer in answers))
        others.pop(documents[index], None)
        chosen = list(others)[:DISTRACTORS]
        if chosen and answers[0] in text:
            yield {
                "question": row["question"],
                "documents": [documents[index], *chosen],
                "answers": row["answers"],
                "gold": 0,
            }


def main() -> None:
    parser = arguments_of(__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--questions", type=int, default=400, help="number of questions")
    parser.add_argument("--words", type=int, default=40, help="words of a chunk")
    parser.add_argument("--seed", type=int, default=0, help="seed of the drawn questions")
    arguments = parser.parse_args()
    with gzip.open(arguments.file, "rt") as lines:
        rows = [json.loads(line) for line in lines]
    drawn = random.Random(arguments.seed).sample(rows, min(arguments.questions, len(rows)))
    found = list(make_examples(drawn, arguments.words))
    arguments.out.write_text("".join(json.dumps(example) + "\n" for example in found))
    print(f"{len(found)} of {len(rows)} questions written to {arguments.out}")


if __name__ == "__main__":
    main()
