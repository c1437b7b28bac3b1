"""Prepare requests: split the prompt at its documents, choose the method that runs, and create the report."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ragbias.binding.architectures import window_of
from ragbias.binding.hooks import backend_of
from ragbias.boundaries import Boundaries, locate
from ragbias.boundaries.numbering import find_numbering
from ragbias.boundaries.sources import document_texts
from ragbias.boundaries.splitting import DocumentNumbers
from ragbias.checks import check_not_cancelled
from ragbias.display import shown
from ragbias.errors import AmbiguousSegmentsError, ArgumentError, DocumentNotFoundError, WrongTypeError
from ragbias.generation.ranking import model_attention, ranking_of
from ragbias.generation.request import Origin, Report, Request, check_length, longest_prompt
from ragbias.generation.scoring import continuation_logits
from ragbias.methods import AttentionMethod, Method, NoMethod, ReorderingMethod
from ragbias.models.control_tokens import control_tokens
from ragbias.prompt import FlatText, Prompt, Span, TokenisedPrompt, shield_documents, split_text, tokenise

PARTS_REMAIN = "the documents are numbered, but a prompt that is passed in parts is not changed"
OWN_NUMBERS_REMAIN = (
    "numbers, letters or words that follow the order of the documents remain, because they may belong to the "
    "documents; remove them from the template"
)


def check_lists(prompts: object, documents: object, boundaries: object) -> None:
    """Raise an error unless prompts, documents and boundaries of a batch are lists of equal length."""
    arguments: list[Any] = [prompts, *(argument for argument in (documents, boundaries) if argument is not None)]
    for argument in arguments:
        if isinstance(argument, (str, bytes)) or not isinstance(argument, Sequence):
            raise WrongTypeError(f"batch takes lists of prompts, documents and boundaries; got {shown(argument)}")
    if len(set(map(len, arguments))) > 1:
        raise ArgumentError("batch takes a list of prompts, and one entry of documents or boundaries for each of them")


def find_origin(
    prompt: str | Prompt,
    documents: Sequence[str] | None,
    boundaries: Boundaries | None,
    strip_numbering: bool = False,
    tokenizer: PreTrainedTokenizerBase | None = None,
    method: Method | None = None,
) -> Origin:
    """Split a prompt at its documents, and tokenise it. Raise ``DocumentNotFoundError`` if a document is missing.

    If a tokenizer is given, control-token strings in the documents are marked as data. Default method: ``NoMethod``.
    """
    if boundaries is not None and not isinstance(boundaries, Boundaries):
        raise WrongTypeError(f"boundaries={shown(boundaries)}; expected the result of ragbias.boundaries.locate")
    requested = method or NoMethod()
    if isinstance(prompt, Prompt):
        if documents is not None or boundaries is not None:
            raise ArgumentError("documents and boundaries are for a flat prompt; a Prompt contains its documents")
        prompt = prompt if tokenizer is None else shield_documents(prompt, tokenizer)
        boundaries = Boundaries(tuple(prompt.spans), "prompt", len(prompt.documents), "")
        numbers = DocumentNumbers(doubtful=find_numbering(prompt.text, prompt.spans).reveal_order)
        boundaries = _with_numbering(boundaries, numbers, strip_numbering, PARTS_REMAIN)
        return Origin(prompt, _tokenise(prompt, tokenizer), FlatText.of(prompt), requested, boundaries, "")
    if not isinstance(prompt, str):
        raise ArgumentError(f"a prompt is a string or a ragbias.Prompt, got {type(prompt).__name__}")
    if documents is not None:
        documents = document_texts(documents)
    if boundaries is None:
        boundaries = locate(prompt, documents=documents)
    found = 0 if boundaries.source == "headers" else boundaries.n_found
    if documents is not None and found < len(documents):
        raise DocumentNotFoundError(
            f"{found} of {len(documents)} documents found in the prompt: {boundaries.reason}; "
            "pass each text exactly as it is in the prompt"
        )
    if tokenizer is not None:  # marks do not change the length of the text, so the spans stay valid
        prompt = control_tokens(tokenizer).shield(prompt, boundaries.spans)
    numbers = find_numbering(prompt, boundaries.texts or boundaries.spans, boundaries.metadata, boundaries.spans)
    why_unsplit = ""
    try:
        parts, flat = split_text(prompt, boundaries.spans, strip_numbering, numbers)
    except AmbiguousSegmentsError as error:
        parts, flat, why_unsplit, strip_numbering = Prompt(prompt, (), ""), FlatText(prompt, ()), str(error), False
    boundaries = _with_numbering(boundaries, numbers, strip_numbering, OWN_NUMBERS_REMAIN)
    return Origin(parts, _tokenise(parts, tokenizer), flat, requested, boundaries, why_unsplit)


def _tokenise(parts: Prompt, tokenizer: PreTrainedTokenizerBase | None) -> TokenisedPrompt:
    if tokenizer is not None:
        return tokenise(parts, tokenizer)
    texts = (parts.prefix, *parts.documents, parts.suffix)
    prefix, *documents, suffix = (list(text.encode("utf-8", "replace")) for text in texts)
    return TokenisedPrompt(prefix, documents, suffix)


def _with_numbering(boundaries: Boundaries, numbers: DocumentNumbers, strip: bool, why_left: str) -> Boundaries:
    """Set ``numbering`` of the boundaries. If numbers should be stripped but remain, add ``why_left`` to the reason."""
    if strip and numbers.cuts and not numbers.doubtful:
        return replace(boundaries, numbering="stripped")
    if not numbers.reveal_order:
        return boundaries
    reasons = (boundaries.reason, why_left if strip else "")
    return replace(boundaries, numbering="present", reason="; ".join(filter(None, reasons)))


def build_request(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    origin: Origin,
    backend: str,
    cancelled: threading.Event | None = None,
) -> Request:
    """Choose the method, order the documents, and create the report. Some methods run the model in these steps."""
    ran, why_plain = origin.method, origin.why_plain
    plain = origin.whole(tokenizer)
    tokens = origin.tokens if ran.needs_documents else plain
    check_length(longest_prompt(ran, tokens), window_of(model.config))
    order: tuple[int, ...] = ()
    if isinstance(ran, ReorderingMethod):
        attention = model_attention(model, tokenizer, origin, cancelled)
        order = ranking_of(ran, tokens.documents, attention).order
        in_order = origin.reordered(order)
        tokens, plain = in_order.tokens, in_order.whole(tokenizer)
    if isinstance(ran, AttentionMethod) and ran.selective:
        always: AttentionMethod = replace(cast(Any, ran), selective=False)
        ran, why_plain = _choose_more_confident(model, always, plain, tokens, backend, cancelled)
        tokens = tokens if ran.needs_documents else plain
    report = create_report(
        origin,
        ran,
        why_plain,
        spans=tuple(tokens.spans),
        backend=backend_of(model, backend) if isinstance(ran, AttentionMethod) else "",
        order=order,
        segmentation_changed=tokens.ids != plain.ids,
    )
    return Request(tokens, NoMethod() if isinstance(ran, ReorderingMethod) else ran, report, origin)


def _choose_more_confident(
    model: PreTrainedModel,
    method: AttentionMethod,
    plain: TokenisedPrompt,
    tokens: TokenisedPrompt,
    backend: str,
    cancelled: threading.Event | None,
) -> tuple[Method, str]:
    """Return the method if it is more confident than the plain model. Otherwise return the plain model and the reason.

    The confidence is the probability of the most likely first token. ``plain`` is the prompt for the plain model, and
    ``tokens`` is the prompt for the method.
    """
    confidence = []
    for candidate, prompt in ((NoMethod(), plain), (method, tokens)):
        check_not_cancelled(cancelled)
        first = continuation_logits(model, prompt, candidate, [0], backend)
        confidence.append(first.softmax(-1).amax().item())
    if confidence[0] < confidence[1]:
        return method, ""
    values = ", ".join(f"{value:.3f}" for value in confidence)
    return NoMethod(), f"selective: the plain model is equally or more confident ({values})"


def create_report(
    origin: Origin,
    ran: Method,
    why_plain: str,
    *,
    spans: tuple[Span, ...] = (),
    backend: str = "",
    order: tuple[int, ...] = (),
    segmentation_changed: bool = False,
) -> Report:
    """Create the report of a request. ``ran`` is the method that runs.

    ``why_plain`` is the reason why the plain model replaces the requested method; empty if it does not.
    """
    requested, boundaries = origin.method_requested, origin.boundaries
    missed = boundaries.reason if requested.needs_documents or boundaries.n_expected else ""
    return Report(
        method_requested=requested.name,
        method_ran=ran.name,
        source=boundaries.source,
        spans=spans,
        n_expected=boundaries.n_expected,
        n_found=boundaries.n_found,
        reason="; ".join(filter(None, (why_plain, missed))),
        backend=backend,
        order=order,
        numbering=boundaries.numbering,
        n_left_plain=boundaries.n_left_plain,
        segmentation_changed=segmentation_changed,
        reader=Path(ran.reader).resolve().name if ran.reader else "",
    )
