"""Rank documents by a model's attention, for reordering methods and for ``ragbias.rank``."""

from __future__ import annotations

import operator
import re
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ragbias import methods
from ragbias.binding.architectures import window_of
from ragbias.binding.binding import Binding
from ragbias.binding.hooks import attached
from ragbias.checks import check_each_once, check_not_cancelled
from ragbias.display import shown
from ragbias.errors import ArgumentError, MethodError, PromptTooLongError, SpanError, WrongTypeError
from ragbias.generation.attaching import LoadedModel
from ragbias.generation.decoding import memory_errors
from ragbias.methods import DocumentScorer, Method, Ranking, ReorderingMethod
from ragbias.methods.attention_sorting import DocumentAttention
from ragbias.methods.in_context_reranking import QueryContrast
from ragbias.models.control_tokens import encode
from ragbias.prompt import Span, TokenisedPrompt, check_spans

_LABELLED = re.compile(r"\b(?:question|query)[ \t]*:[ \t]*(\S[^\n]*)", re.IGNORECASE)


@dataclass(frozen=True)
class ModelAttention:
    """A ``ragbias.methods.DocumentScorer`` that measures a model's attention to the documents of a prompt."""

    model: PreTrainedModel
    ids: Sequence[int]
    spans: Sequence[Span]  # documents; reordering does not move the tokens between them
    without_query: Callable[[], Sequence[int] | None]  # returns the prompt with "N/A" in place of the query
    cancelled: threading.Event | None = None

    @property
    def _gaps(self) -> list[list[int]]:
        """Tokens between neighbouring documents, in order."""
        return [list(self.ids[left[1] : right[0]]) for left, right in pairwise(self.spans)]

    def __call__(self, order: Sequence[int]) -> list[float]:
        ids = list(self.ids[: self.spans[0][0]])
        pieces: list[Span] = []  # documents and the gaps after them, because spans must be adjacent
        piece_of: dict[int, int] = {}  # index of each document in ``pieces``
        for index, gap in zip(order, [*self._gaps, []], strict=True):
            piece_of[index] = len(pieces)
            begin, end = self.spans[index]
            for part in (self.ids[begin:end], gap):
                if len(part) > 0:
                    pieces.append((len(ids), len(ids) + len(part)))
                    ids += part
        ids += self.ids[self.spans[-1][1] :]
        observer = DocumentAttention(self.cancelled)
        self._run(observer, ids, pieces)
        weights: list[float] = observer.weights[0].mean(0).tolist()
        return [weights[piece_of[index]] for index in range(len(order))]

    def contrast(self) -> list[list[float]]:
        calibration_ids = self.without_query()
        if calibration_ids is None:
            raise MethodError(
                "icr found no query after the documents, but needs one to calibrate the scores; add a question to "
                "the prompt, or pass calibration_ids to ragbias.rank"
            )
        begin = self.spans[-1][1]
        gaps = self._gaps
        separator = gaps[0] if gaps and all(gap == gaps[0] for gap in gaps) else []
        if list(self.ids[begin : begin + len(separator)]) == separator:
            begin += len(separator)  # a separator also follows the last document
        if list(self.ids[:begin]) != list(calibration_ids[:begin]):
            raise ArgumentError(
                f"calibration_ids differ from ids among the first {begin} tokens; expected them to differ only in "
                "the query, after the documents"
            )
        if begin >= min(len(self.ids), len(calibration_ids)):
            raise ArgumentError(
                f"calibration_ids has {len(calibration_ids)} tokens and ids {len(self.ids)}; expected both to continue "
                f"after the documents, which end at {begin}"
            )
        observer = QueryContrast((begin, len(self.ids)), self.cancelled)
        self._run(observer, [*self.ids, *calibration_ids[begin:]], [])
        assert observer.contrast is not None
        return [observer.contrast[first:end].tolist() for first, end in self.spans]

    @torch.no_grad()
    def _run(self, observer: methods.AttentionMethod, ids: Sequence[int], spans: list[Span]) -> None:
        check_not_cancelled(self.cancelled)
        binding = Binding(self.model, observer, [spans], private=True)
        with memory_errors([len(ids)], self.model.device), attached(binding):
            self.model(torch.tensor([list(ids)], device=self.model.device), use_cache=False, logits_to_keep=1)


def model_attention(
    loaded: LoadedModel, tokens: TokenisedPrompt, suffix: str, cancelled: threading.Event | None
) -> ModelAttention:
    """Create the scorer for the documents of a tokenised prompt, which ends with the text ``suffix``."""

    def ids_without_query() -> list[int] | None:
        special = [token.content for token in loaded.tokenizer.added_tokens_decoder.values() if token.special]
        text = without_query(suffix, special)
        return None if text is None else replace(tokens, suffix=encode(text, loaded.tokenizer)).ids

    return ModelAttention(loaded.model, tokens.ids, tokens.spans, ids_without_query, cancelled)


def rank(
    model: PreTrainedModel,
    method: str | Method,
    ids: Sequence[int] | Tensor,
    spans: Sequence[Span],
    calibration_ids: Sequence[int] | Tensor | None = None,
) -> Ranking:
    """Rank the documents of a prompt with a reordering method. Like ``debias``, this takes a transformers model.

    Args:
        model: a causal language model of a supported family.
        method: a name or an instance, e.g. ``"icr"`` or ``AttentionSorting(rounds=2)``.
        ids: the prompt, ``[T]`` or ``[1, T]``.
        spans: ``(begin, end)`` of each document in tokens, ascending. Tokens between spans belong to no document. If
            the same tokens follow every document, they are separators and not part of the query.
        calibration_ids: for ``icr``, the prompt with "N/A" in place of the query.

    Raises:
        UnknownMethodError: no method has this name.
        MethodError: the method does not reorder documents, or needs ``calibration_ids``.
        ArgumentError: ``ids`` or ``calibration_ids`` have a wrong shape, or a token outside the model's vocabulary.
        PromptTooLongError: the prompt is longer than the model's window.
        WrongTypeError: ``model`` is not a transformers model.
        SpanError: spans overlap, are not ascending, lie outside the prompt, or leave no token after the last document.
        EmptyDocumentError: a span is empty.
        UnsupportedModelError: the architecture is not supported.
    """
    if not isinstance(model, PreTrainedModel):
        raise WrongTypeError(f"model={shown(model)}; expected a transformers model, such as DebiasedLM.model")
    resolved = methods.get(method, model.config._name_or_path)
    if not isinstance(resolved, ReorderingMethod):
        names = ", ".join(name for name, cls in methods.METHODS.items() if issubclass(cls, ReorderingMethod))
        raise MethodError(f"{resolved.name} does not reorder documents; rank takes {names}")
    prompt = _id_list("ids", ids, model)
    checked = check_spans(spans, len(prompt))
    if checked != [(operator.index(begin), operator.index(end)) for begin, end in spans]:
        raise SpanError(f"spans={spans!r} are not ascending; order and scores refer to the order in the prompt")
    if not checked or checked[-1][1] == len(prompt):
        raise SpanError(
            f"spans={spans!r} of {len(prompt)} tokens; rank needs a document, and a token after the last document"
        )
    without = None if calibration_ids is None else _id_list("calibration_ids", calibration_ids, model)
    scorer = ModelAttention(model, prompt, checked, lambda: without)
    return ranking_of(resolved, [prompt[begin:end] for begin, end in checked], scorer)


def ranking_of(method: ReorderingMethod, documents: Sequence[Sequence[int]], scorer: DocumentScorer) -> Ranking:
    """Rank documents with a method. Raise ``MethodError`` unless the ranking contains each document once."""
    ranking = method.rank(documents, scorer)
    if not isinstance(ranking, Ranking):
        raise MethodError(f"{method.name}: rank returned {shown(ranking)}; expected a ragbias.methods.Ranking")
    check_each_once(f"{method.name}: order", ranking.order, len(documents))
    return ranking


def without_query(suffix: str, special_tokens: Collection[str]) -> str | None:
    """Replace the query after the documents by "N/A" for in-context re-ranking. Return None if there is no query.

    The query is the rest of the line after the last ``Question:`` or ``Query:``. If neither occurs, the query is the
    longest line.
    """
    border = "|".join(map(re.escape, sorted(special_tokens, key=len, reverse=True)))
    masked = re.sub(border, lambda match: "\n" * len(match[0]), suffix) if border else suffix
    lines = [match.span() for match in re.finditer(r"\S[^\n]*", masked)]
    if labelled := list(_LABELLED.finditer(masked)):
        begin, end = labelled[-1].span(1)
    elif lines:
        begin, end = max(lines, key=lambda span: span[1] - span[0])
    else:
        return None
    end = begin + len(masked[begin:end].rstrip())
    return f"{suffix[:begin]}N/A{suffix[end:]}"


def _id_list(name: str, ids: Sequence[int] | Tensor, model: PreTrainedModel) -> list[int]:
    try:
        tensor = torch.as_tensor(ids)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ArgumentError(f"{name}={shown(ids)}; expected token ids, [T] or [1, T]") from error
    if tensor.dim() == 2 and len(tensor) == 1:
        tensor = tensor[0]
    is_whole = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
    if tensor.dim() != 1 or not is_whole or not len(tensor):
        raise ArgumentError(
            f"{name} of shape {list(tensor.shape)}, {tensor.dtype}; expected whole numbers [T] or [1, T]"
        )
    listed: list[int] = tensor.tolist()
    vocabulary: int = model.config.get_text_config().vocab_size
    if wrong := [token for token in listed if not 0 <= token < vocabulary]:
        raise ArgumentError(f"{name}: token {wrong[0]}; expected a token id from 0 to {vocabulary - 1}")
    window = window_of(model.config)
    if len(listed) > window:
        raise PromptTooLongError(f"{name}: {len(listed)} tokens, but the model's window has {window}; give fewer")
    return listed
