"""Prepare requests: split the prompt at its documents, choose the method that runs, and create the report."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from transformers import PreTrainedTokenizerBase

from ragbias.binding.architectures import window_of
from ragbias.binding.hooks import backend_of
from ragbias.boundaries import Boundaries, locate
from ragbias.boundaries.numbering import find_numbering
from ragbias.boundaries.sources import document_texts
from ragbias.boundaries.splitting import DocumentNumbers
from ragbias.boundaries.text import join_reasons
from ragbias.checks import check_not_cancelled
from ragbias.display import shown
from ragbias.errors import AmbiguousSegmentsError, ArgumentError, DocumentNotFoundError, WrongTypeError
from ragbias.generation.attaching import LoadedModel
from ragbias.generation.ranking import model_attention, ranking_of
from ragbias.generation.request import Report, Request, SplitPrompt, check_length, longest_prompt
from ragbias.generation.scoring import continuation_logits
from ragbias.methods import AttentionMethod, Method, NoMethod, ReorderingMethod
from ragbias.models.control_tokens import control_tokens
from ragbias.prompt import (
    FlatText,
    Prompt,
    Span,
    TokenisedPrompt,
    shield_documents,
    split_text,
    tokenise,
    tokenise_whole,
)

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


def split_prompt(
    prompt: str | Prompt,
    documents: Sequence[str] | None = None,
    boundaries: Boundaries | None = None,
    strip_numbering: bool = False,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> SplitPrompt:
    """Split a prompt at its documents. Raise ``DocumentNotFoundError`` if one of ``documents`` is missing.

    If a tokenizer is given, control-token strings in the documents are marked as data.
    """
    if boundaries is not None and not isinstance(boundaries, Boundaries):
        raise WrongTypeError(f"boundaries={shown(boundaries)}; expected the result of ragbias.boundaries.locate")
    if isinstance(prompt, Prompt):
        if documents is not None or boundaries is not None:
            raise ArgumentError("documents and boundaries are for a flat prompt; a Prompt contains its documents")
        return _split_parts(prompt, strip_numbering, tokenizer)
    if not isinstance(prompt, str):
        raise ArgumentError(f"a prompt is a string or a ragbias.Prompt, got {type(prompt).__name__}")
    return split_located(prompt, _find_documents(prompt, documents, boundaries), strip_numbering, tokenizer)


def _split_parts(prompt: Prompt, strip_numbering: bool, tokenizer: PreTrainedTokenizerBase | None) -> SplitPrompt:
    prompt = prompt if tokenizer is None else shield_documents(prompt, tokenizer)
    boundaries = Boundaries(tuple(prompt.spans), "prompt", len(prompt.documents), "")
    numbers = DocumentNumbers(doubtful=find_numbering(prompt.text, prompt.spans).reveal_order)
    boundaries = _with_numbering(boundaries, numbers, strip_numbering, PARTS_REMAIN)
    return SplitPrompt(prompt, FlatText.of(prompt), boundaries)


def _find_documents(text: str, documents: Sequence[str] | None, boundaries: Boundaries | None) -> Boundaries:
    """Return ``boundaries``; if None, locate the documents. Raise an error if some of ``documents`` are missing."""
    texts = None if documents is None else document_texts(documents)
    boundaries = boundaries or locate(text, documents=texts)
    found = 0 if boundaries.source == "headers" else boundaries.n_found
    if texts is not None and found < len(texts):
        raise DocumentNotFoundError(
            f"{found} of {len(texts)} documents found in the prompt: {boundaries.reason}; "
            "pass each text exactly as it is in the prompt"
        )
    return boundaries


def split_located(
    text: str,
    boundaries: Boundaries,
    strip_numbering: bool = False,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> SplitPrompt:
    """Split a flat prompt whose documents are located, see ``split_prompt``."""
    if tokenizer is not None:  # marks do not change the length of the text, so the spans stay valid
        text = control_tokens(tokenizer).shield(text, boundaries.spans)
    numbers = find_numbering(text, boundaries.texts or boundaries.spans, boundaries.metadata, boundaries.spans)
    why_unsplit = ""
    try:
        parts, flat = split_text(text, boundaries.spans, strip_numbering, numbers)
    except AmbiguousSegmentsError as error:
        parts, flat = Prompt(text, (), ""), FlatText(text, ())
        why_unsplit = str(error)
        strip_numbering = False
    boundaries = _with_numbering(boundaries, numbers, strip_numbering, OWN_NUMBERS_REMAIN)
    return SplitPrompt(parts, flat, boundaries, why_unsplit)


def _with_numbering(boundaries: Boundaries, numbers: DocumentNumbers, strip: bool, why_left: str) -> Boundaries:
    """Set ``numbering``. If numbers remain although ``strip`` is true, add ``why_left`` to ``boundaries.reason``."""
    if strip and numbers.cuts and not numbers.doubtful:
        return replace(boundaries, numbering="stripped")
    if not numbers.reveal_order:
        return boundaries
    reason = join_reasons(boundaries.reason, why_left if strip else "")
    return replace(boundaries, numbering="present", reason=reason)


def build_request(
    loaded: LoadedModel, prompt: SplitPrompt, requested: Method, cancelled: threading.Event | None = None
) -> Request:
    """Tokenise the prompt, choose the method, order the documents, and create the report.

    Some methods run the model in these steps.
    """
    model, tokenizer = loaded.model, loaded.tokenizer
    parts = tokenise(prompt.parts, tokenizer)
    plain = tokenise_whole(prompt.flat, tokenizer)
    why_plain = reason_for_plain(requested, prompt, parts)
    why_not_ran = why_plain
    ran = NoMethod() if why_plain else requested
    tokens = parts if ran.needs_documents else plain
    check_length(longest_prompt(ran, tokens), window_of(model.config))
    order: tuple[int, ...] = ()
    if isinstance(ran, ReorderingMethod):
        attention = model_attention(loaded, parts, prompt.parts.suffix, cancelled)
        order = ranking_of(ran, parts.documents, attention).order
        tokens = parts.reordered(order)
        plain = tokenise_whole(prompt.reordered(order).flat, tokenizer)
    if isinstance(ran, AttentionMethod) and ran.selective:
        always: AttentionMethod = replace(cast(Any, ran), selective=False)
        ran, why_not_ran = _choose_more_confident(loaded, always, plain, tokens, cancelled)
        tokens = tokens if ran.needs_documents else plain
    report = create_report(
        prompt.boundaries,
        requested,
        why_not_ran,
        spans=tuple(tokens.spans),
        backend=backend_of(model, loaded.backend) if isinstance(ran, AttentionMethod) else "",
        order=order,
        segmentation_changed=tokens.ids != plain.ids,
    )
    method = NoMethod() if isinstance(ran, ReorderingMethod) else ran
    return Request(prompt, requested, why_plain, method, report, tokens)


def reason_for_plain(method: Method, prompt: SplitPrompt, parts: Prompt | TokenisedPrompt) -> str:
    """Return why a method cannot run on a prompt; empty if it can. ``parts`` is the prompt as the model reads it."""
    if not method.needs_documents:
        return ""
    if prompt.why_unsplit:
        return prompt.why_unsplit
    if len(parts.documents) < method.fewest_documents:
        found = "one document" if parts.documents else "no documents"
        return f"{found} found, so there is no order to debias"
    return "" if parts.suffix else "the prompt ends with the documents, so no question follows them"


def _choose_more_confident(
    loaded: LoadedModel,
    method: AttentionMethod,
    plain: TokenisedPrompt,
    tokens: TokenisedPrompt,
    cancelled: threading.Event | None,
) -> tuple[Method, str]:
    """Return the method if it is more confident than the plain model. Otherwise return the plain model and the reason.

    The confidence is the probability of the most likely first token. ``plain`` is the prompt for the plain model, and
    ``tokens`` is the prompt for the method.
    """
    confidence = []
    for candidate, prompt in ((NoMethod(), plain), (method, tokens)):
        check_not_cancelled(cancelled)
        first = continuation_logits(loaded, prompt, candidate, [0])
        confidence.append(first.softmax(-1).amax().item())
    if confidence[0] < confidence[1]:
        return method, ""
    values = ", ".join(f"{value:.3f}" for value in confidence)
    return NoMethod(), f"selective: the plain model is equally or more confident ({values})"


def create_report(
    boundaries: Boundaries,
    requested: Method,
    why_plain: str,
    *,
    spans: tuple[Span, ...] = (),
    backend: str = "",
    order: tuple[int, ...] = (),
    segmentation_changed: bool = False,
) -> Report:
    """Create the report of a request. ``why_plain`` says why the plain model runs instead of the requested method."""
    ran = NoMethod() if why_plain else requested
    missed = boundaries.reason if requested.needs_documents or boundaries.n_expected else ""
    return Report(
        method_requested=requested.name,
        method_ran=ran.name,
        source=boundaries.source,
        spans=spans,
        n_expected=boundaries.n_expected,
        n_found=boundaries.n_found,
        reason=join_reasons(why_plain, missed),
        backend=backend,
        order=order,
        numbering=boundaries.numbering,
        n_left_plain=boundaries.n_left_plain,
        segmentation_changed=segmentation_changed,
        reader=Path(ran.reader).resolve().name if ran.reader else "",
    )
