"""The task ``kv-retrieval``: the key-value retrieval of Lost in the Middle.

Source: Liu et al., Lost in the Middle: How Language Models Use Long Contexts, arXiv 2307.03172. Prompt and
measure are from the released code.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from ragbias.data.jsonl import Line, NonBlank, Row, numbered_lines
from ragbias.errors import RunError
from ragbias.evaluation.measures.metrics import value_in_answer
from ragbias.evaluation.tasks.task import Case, Documents, FileTask, Positions, place_gold

TEMPLATE = (
    "Extract the value corresponding to the specified key in the JSON object below.\n\n"
    'JSON data:\n{formatted_kv_records}\n\nKey: "{key}"\nCorresponding value:'
)
Pair = tuple[str, str]


class _Row(Row):
    ordered_kv_records: Annotated[tuple[Pair, ...], Field(min_length=1)]
    key: str
    value: NonBlank


@dataclass(frozen=True)
class KVRetrieval(FileTask):
    """Find the value of a key in a JSON object, from the official files ``kv-retrieval-{75,140,300}_keys.jsonl.gz``.

    The documents are the pairs ``"key": "value"``. A comma and a line break separate the pairs. For methods that need
    documents, ``Prompt.from_text`` also puts this separator before the first pair. Therefore the segment of each pair
    has the same text in any order.

    Args:
        documents: numbers of pairs, including the gold pair. The seed selects the other pairs. Default: all pairs.
        positions: positions of the gold pair, counted from 0. Default: its position in the file.
    """

    documents: Documents | None = None
    positions: Positions | None = None

    name = "kv-retrieval"

    def cases(self) -> Iterator[Case]:
        for question, line in numbered_lines(self.data, self.limit, _Row):
            yield from self._cases_of(line, question)

    def score(self, case: Case, prediction: str) -> float:
        return value_in_answer(prediction, case.answers[0])

    def _cases_of(self, line: Line[_Row], question: str) -> Iterator[Case]:
        pairs, gold = line.row.ordered_kv_records, (line.row.key, line.row.value)
        if gold not in pairs:
            raise line.error(f"the pair {gold} of 'key' and 'value' is not among 'ordered_kv_records'; repair the line")
        for count in (len(pairs),) if self.documents is None else self.documents:
            drawn = count < len(pairs)
            others, file_position = self._draw_pairs(line, pairs, pairs.index(gold), count, question)
            positions = [file_position] if self.positions is None else self.positions
            for chosen, position, order in place_gold(gold, others, positions, self.orders, f"{self.seed} {question}"):
                documents = [f'"{key}": "{value}"' for key, value in chosen]
                yield Case(
                    id=f"{question}/{count}/{position}/{order}" + (f"/{self.seed}" if drawn or order else ""),
                    question=question,
                    text=TEMPLATE.format(formatted_kv_records="{" + ",\n ".join(documents) + "}", key=gold[0]),
                    documents=tuple(documents),
                    answers=(gold[1],),
                    gold_position=position,
                    order=order,
                    seed=self.seed if drawn else 0,
                )

    def _draw_pairs(
        self, line: Line[_Row], pairs: Sequence[Pair], gold: int, count: int, question: str
    ) -> tuple[list[Pair], int]:
        """Draw ``count - 1`` other pairs, in file order. Return them and the gold pair's position in the file order."""
        if count > len(pairs):
            raise RunError(f"documents={count}, but {line.where}, has {len(pairs)} pairs; use fewer")
        rest = [index for index in range(len(pairs)) if index != gold]
        rng = random.Random(f"pairs {self.seed} {question}")
        chosen = sorted(rng.sample(rest, len(rest))[: count - 1])
        return [pairs[index] for index in chosen], sum(index < gold for index in chosen)
