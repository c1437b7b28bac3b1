"""The base class of tasks, their cases and answers, log-probabilities of gold answers, and document orders."""

from __future__ import annotations

import itertools
import math
import random
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, StrictBool, StrictInt
from pydantic.dataclasses import dataclass as pydantic_dataclass
from torch import Tensor

from ragbias import limits
from ragbias.data.retrieval import chat_or_flat
from ragbias.errors import RunError
from ragbias.generation import Report
from ragbias.generation.request import check_length
from ragbias.generation.scoring import continuation_ids, score_continuations
from ragbias.lm import DebiasedLM
from ragbias.methods import Method

T = TypeVar("T")


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, (int, str, Path)) else value


def _split_commas(value: Any) -> Any:
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else _as_list(value)


def _check_distinct(values: tuple[T, ...]) -> tuple[T, ...]:
    if len(set(values)) < len(values):
        raise ValueError(f"one value is given twice, got {values}")
    return values


# types of common fields; a single value becomes a list
Files = Annotated[tuple[Path, ...], BeforeValidator(_as_list)]
Several = Annotated[tuple[T, ...], BeforeValidator(_split_commas), AfterValidator(_check_distinct), Field(min_length=1)]
Documents = Several[Annotated[StrictInt, limits.DOCUMENTS]]
Positions = Several[Annotated[StrictInt, limits.POSITIONS]]
Orders = Annotated[StrictInt, limits.ORDERS]
Limit = Annotated[StrictInt, limits.QUESTIONS]
Seed = Annotated[StrictInt, limits.SEED]
Words = Annotated[StrictInt, limits.WORDS]


@dataclass(frozen=True)
class Case:
    """One prompt: a question with its documents in one order.

    Attributes:
        id: unique in the task, and equal in every run with the same task and seed.
        question: id of the question. Cases with the same ``question``, ``seed`` and number of documents differ only in
            the order of the documents.
        text: the flat prompt, without a chat template.
        documents: the documents as they occur in ``text``, in the same order.
        answers: the accepted answers.
        gold_position: position of the gold document, counted from 0; None without a gold document.
        order: order of the documents other than the gold one: 0 is the order of the data, k the k-th shuffle.
        seed: seed that selected the documents; 0 if the data file lists them.
        group: part of the task, such as a subset of RewardBench.
        contents: the documents without their numbers; empty if ``documents`` have no numbers.
        shorten: each passage was cut to this number of words, around the answer. None: passages are complete.
    """

    id: str
    question: str
    text: str
    documents: tuple[str, ...]
    answers: tuple[str, ...]
    gold_position: int | None
    order: int = 0
    seed: int = 0
    group: str = ""
    contents: tuple[str, ...] = ()
    shorten: int | None = None


@dataclass(frozen=True)
class Answer:
    """A model's answer to a case. ``Task.score`` scores the ``prediction``."""

    prediction: str
    prompt_tokens: int
    completion_tokens: int
    report: Report


@dataclass(frozen=True)
class Task:
    """Base class of tasks. A subclass is a frozen dataclass with the data files and options as fields.

    Attributes:
        name: value of ``--task``.
        max_new_tokens: maximum number of tokens in an answer.
        before_answer: text between the prompt and the answer, unless the prompt ends with white space.
    """

    name: ClassVar[str]
    max_new_tokens: ClassVar[int] = 100
    before_answer: ClassVar[str] = " "

    @property
    def chat(self) -> bool:
        """Whether prompts use the model's chat template, if any. A subclass may replace this with a field ``chat``."""
        return True

    @property
    def answers_at_once(self) -> bool:
        """Whether a gold answer can follow the prompt directly, as the measure ``logprob`` requires."""
        return True

    def cases(self) -> Iterator[Case]:
        """Yield all cases in a fixed order. Cases of the same question follow one another.

        Raises:
            DataError: a file has the wrong format. The message names the file and the line.
        """
        raise NotImplementedError

    def score(self, case: Case, prediction: str) -> float:
        """Score a prediction from 0 to 1."""
        raise NotImplementedError

    def answers(self, lm: DebiasedLM, cases: Sequence[Case], method: Method, batch_size: int) -> list[Answer]:
        """Generate one answer per case, greedily and in padded batches."""
        outputs = lm.batch(
            [self.prompt(lm, case) for case in cases],
            documents=[case.documents for case in cases],
            method=method,
            batch_size=batch_size,
            max_new_tokens=self.max_new_tokens,
        )
        return [
            Answer(output.text, output.usage.prompt_tokens, output.usage.completion_tokens, output.report)
            for output in outputs
        ]

    def continuations(self, prompt: str, case: Case) -> list[str]:
        """Return each gold answer as text that follows the prompt. The measure ``logprob`` scores these texts."""
        return [self.continuation(prompt, answer) for answer in case.answers]

    def continuation(self, prompt: str, text: str) -> str:
        """Put ``before_answer`` before a text that follows the prompt, unless the prompt ends with white space."""
        return text if prompt[-1:].isspace() else self.before_answer + text

    def prompt(self, lm: DebiasedLM, case: Case) -> str:
        """Render the flat prompt, with the chat template if ``chat`` is set and the model has one."""
        return chat_or_flat(lm, case.text) if self.chat else case.text


@dataclass(frozen=True)
class GoldScore:
    """Log-probability of a case's gold answers with one method."""

    logprob: float  # of the most probable gold answer, in nats, summed over its tokens
    tokens: int  # number of tokens of that gold answer
    next_token: Tensor  # log-probabilities of the token after the prompt, float32 ``[V]``
    answer: Answer  # with an empty prediction
    seconds: float


def score_gold(lm: DebiasedLM, task: Task, case: Case, method: Method) -> GoldScore:
    """Compute the log-probability of each gold answer: one pass runs the prompt, then a short pass runs each answer."""
    begin = time.perf_counter()
    prompt = task.prompt(lm, case)
    request = lm.prepare(prompt, documents=case.documents, method=method)
    before = request.prompt.parts.suffix or prompt
    targets = [continuation_ids(lm.tokenizer, before, text) for text in task.continuations(prompt, case)]
    lengths = [len(candidate.tokens.ids) for candidate in request.candidates()]
    check_length(max(lengths), lm.window, max(map(len, targets)))
    scores = score_continuations(lm.loaded, request, targets)
    best = max(range(len(targets)), key=scores.logprobs.__getitem__)
    return GoldScore(
        logprob=scores.logprobs[best],
        tokens=len(targets[best]),
        next_token=scores.next_token,
        answer=Answer("", sum(lengths), 0, request.report),
        seconds=time.perf_counter() - begin,
    )


@pydantic_dataclass(frozen=True)
class FileTask(Task):
    """A task that reads its questions from files.

    Args:
        data: files in the benchmark's official format.
        orders: number of document orders. With gold positions, number of distractor orders for each position.
        limit: maximum number of questions from each file. Default: all.
        seed: seed of shuffles, and of documents that the task draws.
        chat: use the model's chat template, if any. False: use the bare prompt.
    """

    data: Files
    orders: Orders = 1
    limit: Limit | None = None
    seed: Seed = 0
    chat: StrictBool = True


def cut_around_answer(text: str, answers: Sequence[str], words: int | None) -> str:
    """Cut a passage to at most ``words`` words around the first occurrence of an answer.

    The search ignores case. It matches parts of words only if no answer occurs as whole words. If no answer occurs,
    return the first words of the passage.

    Args:
        words: maximum number of words, separated by white space; None returns the complete passage.
    """
    spans = [match.span() for match in re.finditer(r"\S+", text)]
    if words is None or len(spans) <= words:
        return text
    begin, end = _find_answer(text, answers)
    inside = [index for index, (first, last) in enumerate(spans) if last > begin and first < end]
    first = 0
    if inside:
        before = max(0, words - len(inside)) // 2
        first = max(0, min(inside[0] - before, len(spans) - words))
    return text[spans[first][0] : spans[first + words - 1][1]]


def _find_answer(text: str, answers: Sequence[str]) -> tuple[int, int]:
    """Return the span of the first answer in the text, as whole words if possible, or ``(0, 0)`` without an answer."""
    stripped = (answer.strip() for answer in answers)
    pattern = "|".join(sorted((re.escape(answer) for answer in stripped if answer), key=len))
    if not pattern:
        return 0, 0
    whole_words = rf"(?<!\w)(?:{pattern})(?!\w)"
    match = re.search(whole_words, text, re.IGNORECASE) or re.search(pattern, text, re.IGNORECASE)
    return match.span() if match else (0, 0)


def spread_positions(documents: int, count: int) -> list[int]:
    """Return up to ``count`` evenly spread positions from 0 to ``documents - 1``; the middle if ``count`` is 1."""
    if count == 1:
        return [documents // 2]
    return sorted({round(index * (documents - 1) / (count - 1)) for index in range(count)})


def draw_orders(things: Sequence[T], count: int, key: str) -> list[list[T]]:
    """Return ``count`` orders: the input order, then shuffles seeded by ``key``. Raise ``RunError`` if fewer exist."""
    if count > 1 and count > math.factorial(min(len(things), 20)):
        raise RunError(
            f"orders={count}, but {len(things)} documents that can move have {math.factorial(len(things))} orders; "
            "use fewer, or give more documents"
        )
    orders = shuffled_orders([list(range(len(things)))], count, f"orders {key}")
    return [[things[index] for index in order] for order in orders]


def shuffled_orders(first: Sequence[list[int]], count: int, key: str) -> list[list[int]]:
    """Return the orders ``first``, then different shuffles seeded by ``key``, until there are ``count`` orders."""
    rng = random.Random(key)
    orders = list(first)
    while len(orders) < count:
        order = rng.sample(orders[0], len(orders[0]))
        if order not in orders:
            orders.append(order)
    return orders


def place_gold(
    gold: T, others: Sequence[T], positions: Sequence[int], orders: int, key: str
) -> Iterator[tuple[list[T], int, int]]:
    """Yield ``(documents, gold position, index of the order)`` for each order and gold position.

    Positions and indices are counted from 0. The orders of the other documents are the same for all gold positions.
    ``key`` seeds the shuffles.
    """
    for position in positions:
        if position > len(others):
            count = len(others) + 1
            raise RunError(f"position {position} among {count} documents; positions count from 0 to {count - 1}")
    for order, shuffled in enumerate(draw_orders(others, orders, key)):
        for position in positions:
            yield [*shuffled[:position], gold, *shuffled[position:]], position, order


def alphabetical_ranks(contents: Sequence[str], order: Iterable[int]) -> tuple[int, ...]:
    """Return the alphabetical rank of document ``contents[i]`` for each index ``i`` of ``order``.

    Equal documents get consecutive ranks: the one that occurs first in ``order`` gets the lowest rank.
    """
    ranks = {text: itertools.count(rank) for rank, text in reversed(list(enumerate(sorted(contents))))}
    return tuple(next(ranks[contents[index]]) for index in order)
