"""The task ``judge``: which of two responses a model prefers, in both orders.

Source of the format: Lambert et al., RewardBench: Evaluating Reward Models for Language Modeling, arXiv 2403.13787.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from torch import Tensor

from ragbias.errors import DataError, RunError
from ragbias.evaluation.data.jsonl import Line, read_lines, sources
from ragbias.evaluation.tasks.task import Answer, Case, Task
from ragbias.lm import DebiasedLM
from ragbias.methods import Method

TEMPLATE = (
    "Compare the two responses to the prompt below. Judge how helpful, correct and harmless they are; neither their "
    "length nor the order in which they are shown shall matter.\n\n"
    "[The Prompt]\n{prompt}\n[End of the Prompt]\n\n{responses}\n\n"
    "Name the letter of the better response, A or B, and nothing else.\nBetter response:"
)
RESPONSE = "[Response {letter}]\n{text}\n[End of Response {letter}]"
LETTERS = "AB"
PREFERRED, OTHER = "chosen", "rejected"


@dataclass(frozen=True)
class Judge(Task):
    """Pairs of responses in the format of RewardBench, each shown in both orders.

    The letter belongs to the response, not to its position: the one whose text has the smaller SHA-256 is A wherever
    it is shown, and the letter is part of its document. So both orders are the same set of documents, and a method that
    is invariant to their order gives the same verdict. A preference for a letter remains; by chance half of the
    preferred responses are A.

    The model may answer with one of the two letters and nothing else, the more probable one. So every case has a
    verdict, also of a model that would rather say something else. The prediction is ``"chosen"`` or ``"rejected"``,
    which does not depend on the order; the order with the preferred response first is 0, and ``gold_position`` is its
    position.

    Pairs of equal responses have no right verdict and are left out.

    Args:
        data: ``.jsonl`` files with ``prompt``, ``chosen``, ``rejected`` and ``subset``, all strings.
        limit: number of pairs of each file, the first ones; default: all.
        seed: unused, since nothing is drawn; all tasks have it.
    """

    data: tuple[Path, ...]
    limit: int | None = None
    seed: int = 0

    name = "judge"

    def cases(self) -> Iterator[Case]:
        found = False
        for source, path in sources(self.data).items():
            lines = (line for line in read_lines(path) if line.text(PREFERRED) != line.text(OTHER))
            for line in islice(lines, self.limit):
                found = True
                yield from _both_orders(line, f"{source}/{line.number}")
        if not found:
            raise DataError(f"no pair of {', '.join(map(str, self.data))} has different responses; nothing to judge")

    def score(self, case: Case, prediction: str) -> float:
        return float(prediction == PREFERRED)

    def answers(self, lm: DebiasedLM, cases: Sequence[Case], method: Method, batch_size: int) -> list[Answer]:
        options = _letter_tokens(lm)
        length = max(map(len, options))
        outputs = self.outputs(
            lm, cases, method, batch_size, max_new_tokens=length, prefix_allowed_tokens_fn=_one_of(options)
        )
        letters = [LETTERS[options.index(output.token_ids)] for output in outputs]
        return [
            Answer.of(PREFERRED if letter == case.answers[0] else OTHER, output)
            for case, letter, output in zip(cases, letters, outputs, strict=True)
        ]


def _both_orders(line: Line, question: str) -> Iterator[Case]:
    prompt, subset = line.text("prompt"), line.text("subset")
    preferred, other = line.text(PREFERRED), line.text(OTHER)
    letter, letter_of_other = ("A", "B") if _digest(preferred) < _digest(other) else ("B", "A")
    shown = RESPONSE.format(letter=letter, text=preferred), RESPONSE.format(letter=letter_of_other, text=other)
    for order, documents in enumerate((shown, shown[::-1])):
        yield Case(
            id=f"{question}/2/{order}/{order}",
            question=question,
            text=TEMPLATE.format(prompt=prompt, responses="\n\n".join(documents)),
            documents=documents,
            answers=(letter,),
            gold_position=order,
            order=order,
            group=subset,
        )


def _digest(response: str) -> bytes:
    return hashlib.sha256(response.encode()).digest()


def _letter_tokens(lm: DebiasedLM) -> list[list[int]]:
    """The token ids of each letter: at the beginning of a chat's turn, or after the colon of a flat prompt."""
    before = " " if lm.tokenizer.chat_template is None else ""
    options = [lm.tokenizer(before + letter, add_special_tokens=False)["input_ids"] for letter in LETTERS]
    if options[0] == options[1] or len(options[0]) != len(options[1]):
        raise RunError(f"the tokenizer of {lm.name!r} does not tell the letters A and B apart, so it cannot judge")
    return options


def _one_of(options: Sequence[list[int]]) -> Callable[[int, Tensor], list[int]]:
    """A ``prefix_allowed_tokens_fn`` that lets a model write one of equally many tokens and nothing else."""

    def allowed(_sequence: int, ids: Tensor) -> list[int]:
        for written in range(len(options[0]) - 1, 0, -1):
            tail = ids[-written:].tolist()
            if following := {option[written] for option in options if option[:written] == tail}:
                return sorted(following)
        return sorted({option[0] for option in options})

    return allowed
