"""Measure the attention of a prompt's last token, by layer, while a method runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from ragbias.binding.binding import Binding
from ragbias.binding.hooks import attached
from ragbias.data.questions import Question
from ragbias.data.retrieval import stock_prompt
from ragbias.errors import DataError, MethodError
from ragbias.generation import Request
from ragbias.lm import DebiasedLM
from ragbias.methods import AttentionCall, AttentionMethod, JointMethod, Method, VotingMethod
from ragbias.prompt import TokenisedPrompt
from ragbias_eval.calibration.measurements import retrieving_layers
from ragbias_eval.metrics import find_source
from studies.interventions import Intervened, Intervention
from studies.interventions.intervened import PlainAttention
from studies.interventions.reweighting import replace_value

POSITIONS = ("first", "middle", "last")
OTHERS = ("initial token", "prefix", "question")  # parts that are not documents; the question is all text after them


def arrangements(document: int, count: int) -> list[list[int]]:
    """Return orders of ``count`` documents, with ``document`` at each of ``POSITIONS`` and the others in order."""
    others = [other for other in range(count) if other != document]
    return [[*others[:position], document, *others[position:]] for position in view_positions(count)]


def view_positions(count: int) -> tuple[int, int, int]:
    """Return ``POSITIONS`` as numbers counted from 0, for ``count`` documents."""
    return 0, (count - 1) // 2, count - 1


def check_equally_many(questions: Sequence[Question], name: str = "the questions") -> None:
    """Raise ``DataError`` unless all questions have the same number of documents. The message contains ``name``."""
    counts = sorted({len(question.documents) for question in questions})
    if len(counts) != 1:
        raise DataError(
            f"{name} have {', '.join(map(str, counts))} documents, so their positions cannot be averaged; give "
            "questions with the same number of documents"
        )


class AttentionProbe(AttentionMethod):
    """Run another method and read the attention weights of the prompt's last token.

    The output of any method is linear in the values. So if a channel of the values is 1 for the tokens of one document
    and 0 elsewhere, the output in that channel is exactly the method's total weight on the document. Prompts must run
    one at a time, without padding.

    Args:
        norms: whether to multiply the weight on each token by the norm of its value.

    Attributes:
        mass: by layer, ``[H, n + 3]``, each head's weight on the documents in the model's order, then on ``OTHERS``.
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
        for begin in range(0, len(parts), width):  # each part of the prompt uses one channel
            some = parts[begin : begin + width]
            value = torch.zeros_like(call.value)
            for channel, (first, end) in enumerate(some):
                value[:, :, first:end, channel] = weight[:, :, first:end]
            output = self._output(replace_value(call, value))
            masses.append(output[0, -1, :, : len(some)].float().cpu())
        return torch.cat(masses, dim=1)


@torch.no_grad()
def attention_by_head(lm: DebiasedLM, tokens: TokenisedPrompt, method: Method, norms: bool = False) -> Tensor:
    """Measure the attention of a prompt's last token to each document and to ``OTHERS``, by head.

    Args:
        method: method that runs. If it does not act on attention, the plain model runs.
        norms: whether to multiply the weight on each token by the norm of its value.

    Returns:
        float32 ``[n_layers, H, n + 3]``, the documents in the order of ``tokens``.
    """
    watched = AttentionProbe(method if isinstance(method, AttentionMethod) else PlainAttention(), norms)
    with attached(Binding(lm.model, watched, [tokens.spans], private=True, backend=lm.backend)):
        lm.model(torch.tensor([tokens.ids], device=lm.model.device), use_cache=False, logits_to_keep=1)
    order = watched.document_order(tokens.documents)  # the model's order of the documents
    columns = sorted(range(len(order)), key=order.__getitem__)
    return torch.stack(watched.mass)[:, :, [*columns, *range(len(order), len(order) + len(OTHERS))]]


def gold_and_other(mass: Tensor, gold: int) -> Tensor:
    """Reduce ``[n_layers, n]`` to ``[n_layers, 2]``: attention to the gold document, and mean of the others."""
    to_gold = mass[:, gold]
    return torch.stack([to_gold, (mass.sum(1) - to_gold) / (mass.shape[1] - 1)], dim=1)


def attention_by_layer(
    lm: DebiasedLM, request: Request, interventions: Sequence[Intervention] = (), gold: int | None = None
) -> Tensor:
    """Measure the last token's attention to each document with the request's method, averaged over heads.

    Documents are indexed in retrieved order everywhere.

    Args:
        interventions: interventions on top of the method.
        gold: index of the gold document, which interventions may refer to.

    Returns:
        float32 ``[n_layers, n]``.

    Raises:
        MethodError: the method runs several prompts, so it has no single attention.
    """
    check_single_prompt(request.method)
    # retrieved index of each document in the prompt
    retrieved = request.report.order or range(len(request.tokens.documents))
    method = request.method
    if interventions:
        inside = method if isinstance(method, AttentionMethod) else None
        method = Intervened(*(intervention.resolved(gold, retrieved) for intervention in interventions), on=inside)
    mass = attention_by_head(lm, request.tokens, method).mean(1)
    return mass[:, sorted(range(len(retrieved)), key=retrieved.__getitem__)]


@dataclass(frozen=True)
class View:
    """Attention with one method, averaged over questions and heads.

    Attributes:
        attention: ``[n_layers, n]``, attention to the document at each position in retrieved order.
        moved: ``[3, n_layers, n]``, the same with the gold document moved to the first, middle and last position. The
            average is over questions whose gold document is known. None if no gold document is known.
        known: number of questions whose gold document is known.
        before: for a view with interventions, the view without them.
    """

    attention: Tensor
    moved: Tensor | None
    known: int
    before: View | None = None

    @property
    def gold_by_position(self) -> dict[str, list[tuple[float, float]]]:
        """Attention to the gold document and mean attention to the others, by gold position and layer."""
        if self.moved is None:
            return {}
        by_position = {}
        positions = view_positions(self.moved.shape[-1])
        for name, position, mass in zip(POSITIONS, positions, self.moved, strict=True):
            by_position[name] = [(gold, other) for gold, other in gold_and_other(mass, position).tolist()]
        return by_position

    @property
    def gold(self) -> list[tuple[float, float]]:
        """Attention to the gold document and mean attention to the others, by layer, averaged over gold positions."""
        by_position = torch.tensor(list(self.gold_by_position.values()))
        return [(gold, other) for gold, other in by_position.mean(0).tolist()] if len(by_position) else []

    @property
    def retrieval_layers(self) -> list[int]:
        """Layers that retrieve without interventions, see ``retrieving_layers``."""
        if self.before is not None:
            return self.before.retrieval_layers
        return sorted(retrieving_layers(self.gold)) if self.gold else []

    def as_dict(self) -> dict[str, Any]:
        """Return the measurements as plain data for JSON."""
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


def measure_views(
    lm: DebiasedLM,
    questions: Sequence[Question],
    methods: Mapping[str, Method],
    progress: Callable[[str], None] = lambda label: None,
    interventions: Mapping[str, Sequence[Intervention]] = MappingProxyType({}),
) -> dict[str, View]:
    """Measure the attention with each method, in the stock prompt. Return the views by label.

    Each question runs in retrieved order and, if its gold document is known, with that document at each of
    ``POSITIONS``.

    Args:
        interventions: combinations of interventions by label. Each method also runs with each combination.

    Raises:
        DataError: the questions have different numbers of documents, or an intervention refers to a gold document that
            is not known.
        MethodError: a method has no single attention, or does not support an intervention.
    """
    golds = [find_gold(question) for question in questions]
    for label, acting in interventions.items():
        if None in golds and any(intervention.needs_gold for intervention in acting):
            raise DataError(
                f"{label}: the gold document is not known for {golds.count(None)} of {len(golds)} questions, such as "
                f"question {golds.index(None) + 1}; give their answer or gold, or name a document by its index"
            )
    for label, method in methods.items():
        check_single_prompt(method, label)
    check_equally_many(questions)
    views: dict[str, View] = {}
    for label, method in methods.items():
        views[label] = before = _average_view(lm, questions, golds, method, (), partial(progress, label))
        for name, acting in interventions.items():
            after = _average_view(lm, questions, golds, method, acting, partial(progress, f"{label}, {name}"))
            views[f"{label}, {name}"] = replace(after, before=before)
    return views


def _average_view(
    lm: DebiasedLM,
    questions: Sequence[Question],
    golds: Sequence[int | None],
    method: Method,
    interventions: Sequence[Intervention],
    done: Callable[[], None],
) -> View:
    """Average the attention over questions. An invariant method runs once, as positions do not matter."""
    once = method.invariant and not (method.selective or interventions)
    masses, moved = [], []
    for question, gold in zip(questions, golds, strict=True):
        retrieved = list(range(len(question.documents)))
        orders = [retrieved, *([] if gold is None else arrangements(gold, len(retrieved)))]
        found: list[Tensor] = []
        for index, order in enumerate(orders):
            if order in orders[:index]:
                found.append(found[orders.index(order)])
            elif found and once:
                found.append(found[0][:, order])
            else:
                documents = [question.documents[document] for document in order]
                prompt = stock_prompt(lm, documents, question.question)
                request = lm.prepare(prompt, documents=documents, method=method)
                position = None if gold is None else order.index(gold)
                found.append(attention_by_layer(lm, request, interventions, position))
        masses.append(found[0])
        if gold is not None:
            moved.append(torch.stack(found[1:]))
        done()
    return View(torch.stack(masses).mean(0), torch.stack(moved).mean(0) if moved else None, len(moved))


def check_single_prompt(method: Method, label: str = "") -> None:
    """Raise ``MethodError`` for a method that runs several prompts, because it has no single attention."""
    if isinstance(method, JointMethod | VotingMethod):
        raise MethodError(f"{label or method.name} runs several prompts, so it has no single attention; leave it out")


def find_gold(question: Question) -> int | None:
    """Return the index of the gold document: ``question.gold``, or the only document that contains an answer."""
    if question.gold is not None:
        return question.gold
    sources = {find_source(answer, question.documents, question.question) for answer in question.answers} - {None}
    return sources.pop() if len(sources) == 1 else None
