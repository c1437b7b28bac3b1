"""Make the inputs of a calibration: prompts with one gold document, and random strings."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ragbias.data.questions import Question
from ragbias.errors import MethodError
from ragbias.generation.preparing import find_origin
from ragbias.generation.scoring import continuation_ids
from ragbias.lm import DebiasedLM
from ragbias.models.tiny import world
from ragbias.prompt import TokenisedPrompt, tokenise
from ragbias_eval.tasks import kv_retrieval
from ragbias_eval.tasks.task import place_gold, spread_positions

PromptRenderer = Callable[[DebiasedLM, Sequence[str], Question], tuple[str, str]]


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
    origin = find_origin(text, documents, None)
    if origin.why_unsplit:
        raise MethodError(f"a prompt cannot be split at its documents: {origin.why_unsplit}")
    ids = continuation_ids(lm.tokenizer, origin.parts.suffix, answer)
    prompt = tokenise(origin.parts, lm.tokenizer)
    length = len(prompt.ids) + len(ids)
    if length > lm.window:
        raise MethodError(
            f"a prompt has {length} tokens with its answer, but the model's window is {lm.window}; use fewer documents"
        )
    return Sample(prompt, ids, gold, question)


def draw_kv_question(rng: random.Random, pairs: int) -> Question:
    """Draw a question of Liu et al.'s key-value retrieval: find the value of a key among random pairs."""
    kv_pairs = [[str(uuid.UUID(int=rng.getrandbits(128), version=4)) for _ in range(2)] for _ in range(pairs)]
    (gold_key, answer), texts = kv_pairs[0], tuple(f'"{key}": "{value}"' for key, value in kv_pairs)
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
    if lm.tokenizer.chat_template is None:
        return text, " " + answer
    return lm.chat_text([{"role": "user", "content": text}]), answer


RENDERERS = {"kv": kv_prompt, "tiny": tiny_prompt, "data": data_prompt}
