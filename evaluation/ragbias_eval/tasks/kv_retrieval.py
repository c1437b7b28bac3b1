"""The task ``kv-retrieval``: the key-value retrieval of Lost in the Middle.

Source: Liu et al., Lost in the Middle: How Language Models Use Long Contexts, arXiv 2307.03172. Prompt and
measure are from the released code.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from ragbias.data.jsonl import NonBlank, Row, numbered_lines
from ragbias_eval.tasks.task import Case, FileTask, Positions, place_gold

TEMPLATE = (
    "Extract the value corresponding to the specified key in the JSON object below.\n\n"
    'JSON data:\n{formatted_kv_records}\n\nKey: "{key}"\nCorresponding value:'
)


class _Row(Row):
    ordered_kv_records: Annotated[tuple[tuple[str, str], ...], Field(min_length=1)]
    key: str
    value: NonBlank


@dataclass(frozen=True)
class KVRetrieval(FileTask):
    """Find the value of a key in a JSON object, from the official files ``kv-retrieval-{75,140,300}_keys.jsonl.gz``.

    The documents are the pairs ``"key": "value"``. A comma and a line break separate the pairs.

    Args:
        positions: positions of the gold pair, counted from 0. Default: its position in the file.
    """

    positions: Positions | None = None

    name = "kv-retrieval"

    def cases(self) -> Iterator[Case]:
        for question, line in numbered_lines(self.data, self.limit, _Row):
            pairs = line.row.ordered_kv_records
            gold = (line.row.key, line.row.value)
            if gold not in pairs:
                raise line.error(f"the pair {gold} of 'key' and 'value' is not among 'ordered_kv_records'; repair it")
            index = pairs.index(gold)
            others = [*pairs[:index], *pairs[index + 1 :]]
            positions = self.positions or [index]
            for chosen, position, order in place_gold(gold, others, positions, self.orders, f"{self.seed} {question}"):
                documents = [f'"{key}": "{value}"' for key, value in chosen]
                suffix = f"/{self.seed}" if order else ""
                yield Case(
                    id=f"{question}/{len(pairs)}/{position}/{order}{suffix}",
                    question=question,
                    text=TEMPLATE.format(formatted_kv_records="{" + ",\n ".join(documents) + "}", key=gold[0]),
                    documents=tuple(documents),
                    answers=(gold[1],),
                    gold_position=position,
                    order=order,
                )

    def score(self, case: Case, prediction: str) -> float:
        return float(case.answers[0].lower() in prediction.lower())  # as in Lost in the Middle
