"""Write calibration questions that no study of ``docs/results/real`` uses: 60 after the benchmark's first 120.

    python -m studies.calibration_questions BENCHMARK.jsonl.gz questions.jsonl

Passages are cut as in the studies. ``ragbias calibrate --data`` reads the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from ragbias.data.jsonl import read_lines
from ragbias.files import write_atomically
from ragbias_eval.tasks.mdqa import MdqaRow
from studies import arguments_of

USED_BY_STUDIES = 120  # number of questions at the beginning of the file
QUESTIONS = 60
WORDS = 40


def question_lines(data: Path) -> Iterator[str]:
    """Yield a JSON line per question with its first answer. Documents are in the order of the file."""
    for line in islice(read_lines(data, MdqaRow), USED_BY_STUDIES, USED_BY_STUDIES + QUESTIONS):
        row = line.row
        asked = {
            "question": row.question,
            "documents": [passage.shortened(row.answers, WORDS).document() for passage in row.ctxs],
            "answer": row.answers[0],
            "gold": row.gold,
        }
        yield json.dumps(asked) + "\n"


def main() -> None:
    parser = arguments_of(__doc__)
    parser.add_argument("data", type=Path, help="a file of multi-document QA in the official format")
    parser.add_argument("out", type=Path, help="JSON lines file to write")
    parsed = parser.parse_args()
    write_atomically(parsed.out, "".join(question_lines(parsed.data)).encode())


if __name__ == "__main__":
    main()
