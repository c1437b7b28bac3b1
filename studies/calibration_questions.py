"""Questions to calibrate by, which no study of ``docs/results/real`` asks: those of the benchmark after the first 120.

    python -m studies.calibration_questions BENCHMARK.jsonl.gz questions.jsonl

Passages are cut as in the studies. ``ragbias calibrate --data`` reads what is written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from ragbias.evaluation.data.jsonl import read_lines
from ragbias.evaluation.tasks.mdqa import MdqaRow, Passage
from ragbias.evaluation.tasks.task import shortened
from ragbias.files import write_atomically
from studies import arguments_of

ASKED_BY_STUDIES = 120  # the first ones
QUESTIONS = 60
WORDS = 40


def questions(data: Path) -> Iterator[str]:
    """A JSON line for each question, with its first answer; the documents are in the file's order."""
    for line in islice(read_lines(data, MdqaRow), ASKED_BY_STUDIES, ASKED_BY_STUDIES + QUESTIONS):
        row = line.row
        asked = {
            "question": row.question,
            "documents": [
                Passage(title, shortened(text, row.answers, WORDS)).document() for title, text in row.passages
            ],
            "answer": row.answers[0],
            "gold": row.gold,
        }
        yield json.dumps(asked) + "\n"


def main() -> None:
    parser = arguments_of(__doc__)
    parser.add_argument("data", type=Path, help="a file of multi-document QA, as its authors publish it")
    parser.add_argument("out", type=Path, help="the file of JSON lines to write")
    given = parser.parse_args()
    write_atomically(given.out, "".join(questions(given.data)).encode())


if __name__ == "__main__":
    main()
