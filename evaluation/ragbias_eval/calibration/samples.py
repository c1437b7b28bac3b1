"""The settings and inputs of a calibration: prompts with one gold document, and random strings."""

from __future__ import annotations

import hashlib
import random
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ragbias.data.questions import Question, read_questions
from ragbias.data.retrieval import chat_or_flat
from ragbias.errors import ArgumentError, DataError, MethodError
from ragbias.generation.preparing import split_prompt
from ragbias.generation.scoring import continuation_ids
from ragbias.lm import DebiasedLM
from ragbias.models.tiny import world
from ragbias.prompt import TokenisedPrompt, tokenise
from ragbias_eval.tasks import kv_retrieval
from ragbias_eval.tasks.task import place_gold, spread_positions

DEFAULT_QUESTIONS = {"kv": 100, "data": 100, "tiny": 40}  # 100 as in the paper; 40 take only minutes on one CPU core
MAX_PAIRS = 75  # as in the smallest set of Liu et al., Lost in the Middle, arXiv 2307.03172
RESERVED_TOKENS = 200  # for instruction, question and answer

PromptRenderer = Callable[[DebiasedLM, Sequence[str], Question], tuple[str, str]]


@dataclass(frozen=True)
class CalibrationSettings:
    """Settings of a calibration; see ``ragbias calibrate --help``. An empty value or 0 selects the default."""

    model: str
    task: str = ""
    data: Path | None = None
    strings: int = 500
    length: int = 0
    questions: int = 0
    documents: int | None = None
    depths: int = 5
    seed: int = 0
    batch_size: int = 8
    variant: str = "released"
    dtype: str = "auto"

    def __post_init__(self) -> None:
        if self.data is not None and self.task not in ("", "data"):  # "data" is set by ``plan``
            raise ArgumentError(f"task={self.task!r} draws its own questions; leave out task, or data={self.data}")

    def plan(self, window: int) -> CalibrationSettings:
        """Fill in the defaults that depend on the model and its window. Equal plans give equal results."""
        if self.length > window:
            raise ArgumentError(f"length={self.length}, but the model's window is {window} tokens")
        default = "tiny" if self.model == "tiny" else "kv"
        task = self.task or ("data" if self.data else default)
        length = self.length or min(1000, window)
        questions = self.questions or DEFAULT_QUESTIONS[task]
        return replace(self, task=task, length=length, questions=questions)

    def as_dict(self) -> dict[str, Any]:
        """Return, as JSON data, the settings that affect the results. A data file is given by name and SHA-256."""
        plain = {name: value for name, value in vars(self).items() if name != "batch_size"}
        if self.data is not None:
            plain["data"] = {"file": self.data.name, "sha256": hashlib.sha256(self.data.read_bytes()).hexdigest()}
        return plain


def draw_strings(lm: DebiasedLM, begin: int, end: int, length: int, seed: int) -> Tensor:
    """Draw the random strings ``begin`` to ``end - 1``, as token ids ``[strings, length]``.

    The seed and the index determine a string. Each token is drawn uniformly from the non-special tokens. Each string
    starts with the BOS token, if any.
    """
    tokenizer = lm.tokenizer
    usable = sorted(set(range(len(tokenizer))) - set(tokenizer.all_special_ids))
    strings = np.stack([np.random.default_rng((seed, index)).choice(usable, length) for index in range(begin, end)])
    if tokenizer.bos_token_id is not None:
        strings[:, 0] = tokenizer.bos_token_id
    return torch.tensor(strings, device=lm.model.device)


@dataclass(frozen=True)
class Sample:
    """A tokenised prompt, the token ids of its answer, and the indices of its gold document and question."""

    prompt: TokenisedPrompt
    answer: list[int]
    gold: int
    question: int


def make_samples(lm: DebiasedLM, questions: Iterable[Question], text: PromptRenderer, depths: int) -> list[Sample]:
    """Make samples of each question, with the gold document at up to ``depths`` evenly spread positions.

    ``text`` renders the flat prompt and the answer, from a question and its documents in order.
    """
    samples = []
    for number, question in enumerate(questions):
        assert question.gold is not None  # all calibration questions have a gold document
        others = [document for index, document in enumerate(question.documents) if index != question.gold]
        positions = spread_positions(len(question.documents), depths)
        for documents, position, _ in place_gold(question.documents[question.gold], others, positions, 1, ""):
            samples.append(make_sample(lm, *text(lm, documents, question), documents, position, number))
    return samples


def make_sample(lm: DebiasedLM, text: str, answer: str, documents: Sequence[str], gold: int, question: int) -> Sample:
    """Tokenise a flat prompt and its answer. Raise ``MethodError`` if they exceed the model's window."""
    split = split_prompt(text, documents)
    if split.why_unsplit:
        raise MethodError(f"a prompt cannot be split at its documents: {split.why_unsplit}")
    ids = continuation_ids(lm.tokenizer, split.parts.suffix, answer)
    prompt = tokenise(split.parts, lm.tokenizer)
    length = len(prompt.ids) + len(ids)
    if length > lm.window:
        raise MethodError(
            f"a prompt has {length} tokens with its answer, but the model's window is {lm.window}; use fewer documents"
        )
    return Sample(prompt, ids, gold, question)


def draw_kv_question(rng: random.Random, pairs: int) -> Question:
    """Draw a question of Liu et al.'s key-value retrieval: find the value of a key among random pairs."""
    kv_pairs = [[str(uuid.UUID(int=rng.getrandbits(128), version=4)) for _ in range(2)] for _ in range(pairs)]
    gold_key, answer = kv_pairs[0]
    texts = tuple(f'"{key}": "{value}"' for key, value in kv_pairs)
    return Question(gold_key, texts, (answer,), gold=0)


def kv_prompt(lm: DebiasedLM, documents: Sequence[str], question: Question) -> tuple[str, str]:
    pairs = "{\n" + ",\n".join(documents) + "\n}"
    text = kv_retrieval.TEMPLATE.format(formatted_kv_records=pairs, key=question.question)
    return as_user_message(lm, text, f'"{question.answers[0]}"')


def draw_tiny_question(rng: random.Random, documents: int) -> Question:
    """Draw a question about names from the training data of ``tiny``. Evaluations use other names."""
    entries = world.sample_entries(rng, documents, held_out=False)
    question = world.ask(rng, rng.choice(entries[0].facts), entries[0].passage)
    texts = tuple(entry.passage.document for entry in entries)
    return Question(question.question, texts, (question.answer,), gold=0)


def tiny_prompt(lm: DebiasedLM, documents: Sequence[str], question: Question) -> tuple[str, str]:
    return world.prompt(documents, question.question), question.answers[0]


def data_prompt(lm: DebiasedLM, documents: Sequence[str], question: Question) -> tuple[str, str]:
    context = "\n\n".join(documents)
    text = f"Answer the question using the documents.\n\n{context}\n\nQuestion: {question.question}\nAnswer:"
    return as_user_message(lm, text, question.answers[0])


def as_user_message(lm: DebiasedLM, text: str, answer: str) -> tuple[str, str]:
    """Return the text as a user message, and the answer that follows it.

    Without a chat template, return the text unchanged, and the answer with a space before it.
    """
    return chat_or_flat(lm, text), answer if lm.chat_template else " " + answer


RENDERERS = {"kv": kv_prompt, "tiny": tiny_prompt, "data": data_prompt}


def make_calibration_set(lm: DebiasedLM, plan: CalibrationSettings) -> tuple[list[Sample], list[Sample]]:
    """Draw or read the questions of a calibration. Return two lists of samples, about different questions.

    The first list is for selecting channel, factor and layers. The second list is for checking the selection. The
    second list has two thirds of the questions if they are drawn, or one third if they come from a file.
    """
    if plan.data is None:
        rng = random.Random(f"calibration {plan.task} {plan.seed}")
        if plan.task == "tiny":
            questions = [draw_tiny_question(rng, plan.documents or 20) for _ in range(3 * plan.questions)]
        else:
            pairs = plan.documents or count_kv_pairs(lm)
            questions = [draw_kv_question(rng, pairs) for _ in range(3 * plan.questions)]
        first, second = questions[: plan.questions], questions[plan.questions :]
    else:
        questions = read_questions(plan.data, labelled=True)
        if len(questions) < 3:
            raise DataError(f"{plan.data} contains {len(questions)} questions; expected at least 3, preferably 100")
        first = [question for index, question in enumerate(questions) if index % 3 != 2]
        second = questions[2::3]
    text = RENDERERS[plan.task]
    return make_samples(lm, first, text, plan.depths), make_samples(lm, second, text, plan.depths)


def count_kv_pairs(lm: DebiasedLM) -> int:
    """Return the number of pairs in a prompt: 75 as in the benchmark, or fewer if the window is small."""
    (pair,) = draw_kv_question(random.Random(0), 1).documents
    tokens = len(lm.token_ids(pair + ",\n"))
    return max(2, min(MAX_PAIRS, (lm.window - RESERVED_TOKENS) // tokens))
