"""The task ``tiny``: questions for the embedded model ``tiny``, about invented facts outside its training data."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic.dataclasses import dataclass

from ragbias.models.tiny.world import cases as held_out_cases
from ragbias.models.tiny.world import prompt
from ragbias_eval.metrics import exact_match
from ragbias_eval.tasks.task import Case, Documents, Limit, Orders, Positions, Seed, Task, place_gold, spread_positions

DEFAULT_POSITIONS = 5


@dataclass(frozen=True)
class TinyQA(Task):
    """Questions for the model ``tiny``, with the prompts of ``ragbias.models.tiny.world``.

    Args:
        documents: numbers of documents in a prompt. For each number, there are ``limit`` questions.
        positions: positions of the gold document, counted from 0. Default: five, evenly spread.
        orders: number of orders of the distractors, for each position of the gold document.
    """

    documents: Documents = (10, 20)
    positions: Positions | None = None
    orders: Orders = 1
    limit: Limit = 100
    seed: Seed = 0

    name = "tiny"
    max_new_tokens = 8
    chat = False
    before_answer = ""  # the model's answers do not begin with a space

    def cases(self) -> Iterator[Case]:
        for count in self.documents:
            positions = self.positions or spread_positions(count, DEFAULT_POSITIONS)
            for index, (drawn, others) in enumerate(held_out_cases(count, self.limit, self.seed)):
                question = f"tiny/{index}/{count}/{self.seed}"
                for passages, position, order in place_gold(drawn.gold, others, positions, self.orders, question):
                    documents = tuple(passage.document for passage in passages)
                    yield Case(
                        id=f"tiny/{index}/{count}/{position}/{order}/{self.seed}",
                        question=question,
                        text=prompt(documents, drawn.question),
                        documents=documents,
                        answers=(drawn.answer,),
                        gold_position=position,
                        order=order,
                        seed=self.seed,
                    )

    def score(self, case: Case, prediction: str) -> float:
        return exact_match(prediction, case.answers)
