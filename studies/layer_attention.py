"""Attention of a prompt's last token under a method, by layer, read from the method's own attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from ragbias.binding import attach
from ragbias.calibration.measurements import retrieving_layers
from ragbias.errors import DataError, MethodError
from ragbias.evaluation.data.questions import Question
from ragbias.evaluation.measures.metrics import source
from ragbias.evaluation.prompts import stock_prompt
from ragbias.generation.request import Request
from ragbias.lm import DebiasedLM
from ragbias.methods import AttentionMethod, Method
from ragbias.methods.base import AttentionCall
from ragbias.prompt import TokenisedPrompt
from studies.interventions import Intervened, Intervention
from studies.interventions.intervened import PlainAttention
from studies.interventions.reweighting import with_value

POSITIONS = ("first", "middle", "last")
OTHERS = ("initial token", "prefix", "question")  # parts of a prompt beside the documents: the last is all after them


def arrangements(document: int, count: int) -> list[list[int]]:
    """Orders of ``count`` documents with one put at each of ``POSITIONS``, the others left in their order."""
    others = [other for other in range(count) if other != document]
    return [[*others[:position], document, *others[position:]] for position in positions_of(count)]


def positions_of(count: int) -> tuple[int, int, int]:
    """``POSITIONS`` among ``count`` documents, counted from 0."""
    return 0, (count - 1) // 2, count - 1


def check_equally_many(questions: Sequence[Question], name: str = "the questions") -> None:
    """Raise ``DataError``, which calls the questions ``name``, unless all have the same number of documents."""
    counts = sorted({len(question.documents) for question in questions})
    if len(counts) != 1:
        raise DataError(
            f"{name} have {', '.join(map(str, counts))} documents, and positions among different numbers cannot be "
            "averaged; give questions with equally many"
        )


class Watched(AttentionMethod):
    """Runs another method and reads the weights of the prompt's last token.

    Whatever a method does to queries, keys, positions and weights, its output is linear in the values. So the attention
    of values that are 1 in one channel for the tokens of one document, and 0 elsewhere, is the weight on that document
    in that channel, exactly as the method weighs. For prompts without padding, one at a time.

    Args:
        norms: weigh each token by the norm of its value too.

    Attributes:
        mass: by layer, ``[H, n + 3]``, each head's weight on the documents in the model's order, then on the
            ``OTHERS``.
    """

    needs_documents = True

    def __init__(self, method: AttentionMethod, norms: bool = False) -> None:
        self._method = method
        self._norms = norms
        self.mass: list[Tensor] = []
        self.name = method.name
        self.invariant = method.invariant
        self.positions = method.positions
        self.needs_rotary = method.needs_rotary

    def validate(self, hidden_size: int, n_layers: int) -> None:
        self._method.validate(hidden_size, n_layers)

    def document_order(self, documents: Sequence[Sequence[int]]) -> list[int]:
        return self._method.document_order(documents) if self.invariant else list(range(len(documents)))

    def query_input(self, hidden: Tensor, layer: int, prefill: bool) -> Tensor:
        return self._method.query_input(hidden, layer, prefill)

    def key_input(self, hidden: Tensor, layer: int) -> Tensor:
        return self._method.key_input(hidden, layer)

    def attention(self, call: AttentionCall) -> Tensor:
        self.mass.append(self._mass(call))
        return self._output(call)

    def _output(self, call: AttentionCall) -> Tensor:
        if call.layer in self._method.layer_indices(call.n_layers):
            return self._method.attention(call)
        if self.positions == "model":
            return call.plain(call.query, call.key)
        return call.plain(call.rotate(call.query), call.rotate(call.key))

    def _mass(self, call: AttentionCall) -> Tensor:
        (sequence,) = call.sequences()
        width, initial = call.value.shape[-1], min(1, sequence.prefix)
        others = [(0, initial), (initial, sequence.prefix), (sequence.documents_end, sequence.key.shape[1])]
        parts = [*sequence.spans, *others]
        weight = call.value.norm(dim=-1) if self._norms else torch.ones_like(call.value[..., 0])
        masses = []
        for begin in range(0, len(parts), width):  # one channel for each part
            some = parts[begin : begin + width]
            value = torch.zeros_like(call.value)
            for channel, (first, end) in enumerate(some):
                value[:, :, first:end, channel] = weight[:, :, first:end]
            output = self._output(with_value(call, value))
            masses.append(output[0, -1, :, : len(some)].float().cpu())
        return torch.cat(masses, dim=1)


@torch.no_grad()
def attention_by_head(lm: DebiasedLM, tokens: TokenisedPrompt, method: Method, norms: bool = False) -> Tensor:
    """Each head's attention of a prompt's last token to each document under a method, and to the ``OTHERS``.

    Args:
        method: the plain model's attention is read for one that leaves attention alone.
        norms: weigh each token by the norm of its value too.

    Returns:
        float32 ``[n_layers, H, n + 3]``, the documents in the order of ``tokens``.
    """
    watched = Watched(method if isinstance(method, AttentionMethod) else PlainAttention(), norms)
    with attach(lm.model, watched, [tokens.spans], private=True, backend=lm.backend):
        lm.model(torch.tensor([tokens.ids], device=lm.model.device), use_cache=False, logits_to_keep=1)
    order = watched.document_order(tokens.documents)  # of the documents inside the model
    columns = sorted(range(len(order)), key=order.__getitem__)
    return torch.stack(watched.mass)[:, :, [*columns, *range(len(order), len(order) + len(OTHERS))]]


def gold_and_other(mass: Tensor, gold: int) -> Tensor:
    """``[n_layers, 2]`` from ``[n_layers, n]``: attention to the gold document, and to the average other one."""
    own = mass[:, gold]
    return torch.stack([own, (mass.sum(1) - own) / (mass.shape[1] - 1)], dim=1)


def attention_by_layer(
    lm: DebiasedLM, request: Request, interventions: Sequence[Intervention] = (), gold: int | None = None
) -> Tensor:
    """Attention of the prompt's last token to each document under the request's method, averaged over heads.

    Args:
        interventions: on top of the method; documents are meant as they came.
        gold: index of the document with the answer as they came, where an intervention names it.

    Returns:
        float32 ``[n_layers, n]``, the documents as they came.

    Raises:
        MethodError: the method votes over several prompts, so there is no one attention.
    """
    check_asks_once(request.method)
    came = request.report.order or range(len(request.tokens.documents))  # of each document in the prompt
    method = request.method
    if interventions:
        inside = method if isinstance(method, AttentionMethod) else None
        method = Intervened(*(each.resolved(gold, came) for each in interventions), on=inside)
    mass = attention_by_head(lm, request.tokens, method).mean(1)
    return mass[:, sorted(range(len(came)), key=came.__getitem__)]


@dataclass(frozen=True)
class View:
    """Attention under one method, averaged over the questions.

    Attributes:
        attention: ``[n_layers, n]``, to the document at each position of the retriever's order, averaged over heads.
        moved: ``[3, n_layers, n]``, the same with the gold document, the one that holds the answer, put first, in the
            middle and last, the others left in their order; over the questions where it is known, None if it never is.
        known: number of these questions.
        before: the view without the interventions, if this is one with them.
    """

    attention: Tensor
    moved: Tensor | None
    known: int
    before: View | None = None

    @property
    def gold_by_position(self) -> dict[str, list[tuple[float, float]]]:
        """By the gold document's position and by layer: attention to it and to the average other one."""
        if self.moved is None:
            return {}
        found = {}
        positions = positions_of(self.moved.shape[-1])
        for name, position, mass in zip(POSITIONS, positions, self.moved, strict=True):
            found[name] = [(gold, other) for gold, other in gold_and_other(mass, position).tolist()]
        return found

    @property
    def gold(self) -> list[tuple[float, float]]:
        """By layer, attention to the gold document and to the average other one, averaged over the three positions."""
        by_position = torch.tensor(list(self.gold_by_position.values()))
        return [(gold, other) for gold, other in by_position.mean(0).tolist()] if len(by_position) else []

    @property
    def retrieval_layers(self) -> list[int]:
        """The layers that retrieve, see ``retrieving_layers``, without the interventions."""
        if self.before is not None:
            return self.before.retrieval_layers
        return sorted(retrieving_layers(self.gold)) if self.gold else []

    def as_dict(self) -> dict[str, Any]:
        """The figures as plain data, fit for JSON."""
        return {
            "attention": self.attention.tolist(),
            "gold": [gold for gold, _ in self.gold],
            "another": [other for _, other in self.gold],
            "gold_by_position": {
                position: {"gold": [gold for gold, _ in layers], "another": [other for _, other in layers]}
                for position, layers in self.gold_by_position.items()
            },
            "questions_with_gold": self.known,
            "retrieval_layers": self.retrieval_layers,
        }


def inspect(
    lm: DebiasedLM,
    questions: Sequence[Question],
    methods: Mapping[str, Method],
    progress: Callable[[str], None] = lambda label: None,
    interventions: Mapping[str, Sequence[Intervention]] = MappingProxyType({}),
) -> dict[str, View]:
    """The view of each method, by label; with the stock prompt.

    Each question runs in the given order and, if its gold document is known, with that at each of ``POSITIONS``.

    Args:
        interventions: by label, those that act together; each makes one more view of each method.

    Raises:
        DataError: the questions have different numbers of documents, or the gold document of one is not known and an
            intervention names it.
        MethodError: the attention of a method cannot be read, or an intervention does not go with it.
    """
    golds = [gold_of(question) for question in questions]
    for label, acting in interventions.items():
        if None in golds and any(each.needs_gold for each in acting):
            raise DataError(
                f"{label}: the gold document is not known for {golds.count(None)} of {len(golds)} questions, the first "
                f"of them question {golds.index(None) + 1}; give their answer or gold, or name a document by its index"
            )
    for label, method in methods.items():
        check_asks_once(method, label)
    check_equally_many(questions)
    views: dict[str, View] = {}
    for label, method in methods.items():
        views[label] = before = _view(lm, questions, golds, method, (), partial(progress, label))
        for more, acting in interventions.items():
            after = _view(lm, questions, golds, method, acting, partial(progress, f"{label}, {more}"))
            views[f"{label}, {more}"] = replace(after, before=before)
    return views


def _view(
    lm: DebiasedLM,
    questions: Sequence[Question],
    golds: Sequence[int | None],
    method: Method,
    interventions: Sequence[Intervention],
    done: Callable[[], None],
) -> View:
    def mass(question: str, documents: Sequence[str], gold: int | None) -> Tensor:
        request = lm.prepare(stock_prompt(lm, documents, question), documents=documents, method=method)
        return attention_by_layer(lm, request, interventions, gold)

    masses, moved = [], []
    for question, gold in zip(questions, golds, strict=True):
        masses.append(mass(question.question, question.documents, gold))
        if gold is not None:
            orders = arrangements(gold, len(question.documents))
            each = [
                mass(question.question, [question.documents[index] for index in order], order.index(gold))
                for order in orders
            ]
            moved.append(torch.stack(each))
        done()
    return View(torch.stack(masses).mean(0), torch.stack(moved).mean(0) if moved else None, len(moved))


def check_asks_once(method: Method, label: str = "") -> None:
    """Raise ``MethodError`` for a method that asks several prompts, whose attention is not one."""
    if method.runs_several:
        raise MethodError(f"{label or method.name} runs several prompts, so it has no single attention; leave it out")


def gold_of(question: Question) -> int | None:
    """Index of the document that holds the answer: as the question says, else the only one that holds one of them."""
    if question.gold is not None:
        return question.gold
    found = {source(answer, question.documents, question.question) for answer in question.answers} - {None}
    return found.pop() if len(found) == 1 else None
