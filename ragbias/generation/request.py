"""Prepare requests, pad batches, and record requests for replay."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ragbias.boundaries import Boundaries, locate
from ragbias.boundaries.numbering import find_numbering
from ragbias.boundaries.sources import document_texts
from ragbias.boundaries.splitting import DocumentNumbers
from ragbias.display import shown
from ragbias.errors import (
    AmbiguousSegmentsError,
    ArgumentError,
    DocumentNotFoundError,
    PromptTooLongError,
    WrongTypeError,
)
from ragbias.generation.arguments import GenerationSettings
from ragbias.generation.report import Report
from ragbias.methods import JointMethod, Method, NoMethod
from ragbias.models.control_tokens import control_tokens
from ragbias.prompt import FlatText, Prompt, Span, TokenisedPrompt, shield_documents, split_text, tokenise_whole

PARTS_REMAIN = "the documents are numbered, but a prompt that is passed in parts is not changed"
OWN_NUMBERS_REMAIN = (
    "numbers, letters or words that follow the order of the documents remain, because they may belong to the "
    "documents; remove them from the template"
)


@dataclass(frozen=True)
class Origin:
    """The original prompt of a request, with the documents in their original order, and the requested method.

    Attributes:
        parts: the prompt, split into the text before the documents, the documents, and the text after them.
        tokens: the tokens of each part.
        flat: the prompt as the plain model reads it, without the separator that ``Prompt.from_text`` may add.
        method_requested: the requested method, as in the report.
        boundaries: how the documents were found.
        reason: why the prompt cannot be split at its documents; empty if it can.
    """

    parts: Prompt
    tokens: TokenisedPrompt
    flat: FlatText
    method_requested: Method
    boundaries: Boundaries
    reason: str

    def reordered(self, order: Sequence[int]) -> Origin:
        """Reorder the documents. ``order[i]`` is the old index of document ``i``."""
        parts = self.parts.reordered(order)
        return replace(self, parts=parts, tokens=self.tokens.reordered(order), flat=FlatText.of(parts, self.flat.lead))

    def whole(self, tokenizer: PreTrainedTokenizerBase) -> TokenisedPrompt:
        """Tokenise the prompt in one piece, for the plain model and for methods that need no documents."""
        return tokenise_whole(self.flat.text, self.flat.spans, tokenizer)


@dataclass(frozen=True)
class Request:
    """A prepared prompt: its tokens in the order that the model reads, the method that runs, and the report.

    Attributes:
        cancelled: event that stops this answer at the next token. Other answers in the batch continue.
    """

    tokens: TokenisedPrompt
    method: Method
    report: Report
    origin: Origin
    cancelled: threading.Event | None = field(default=None, compare=False, repr=False)

    @staticmethod
    def longest_prompt(method: Method, tokens: TokenisedPrompt) -> int:
        """Return the number of tokens in the longest prompt that a method runs."""
        if not isinstance(method, JointMethod):
            return len(tokens.ids)
        return max(len(tokens.reordered(indices).ids) for indices in method.prompts(tokens.documents))

    def candidates(self) -> list[Request]:
        """Return the requests to run: one per order of a vote, one per prompt of a ``JointMethod``, or this request."""
        if isinstance(self.method, JointMethod):
            prompts = self.method.prompts(self.tokens.documents)
            return [replace(self, tokens=self.tokens.reordered(indices)) for indices in prompts]
        orders = self.method.candidate_orders(self.tokens.documents)
        arranged = [self.tokens.reordered(order) for order in orders]
        return [
            replace(self, tokens=tokens, method=NoMethod(), report=replace(self.report, spans=tuple(tokens.spans)))
            for tokens in arranged
        ] or [self]


class SplitOutcome(NamedTuple):
    """A prompt split at its documents."""

    parts: Prompt  # has no documents if the prompt cannot be split
    boundaries: Boundaries
    reason: str  # why the prompt cannot be split; empty if it can
    flat: FlatText  # the prompt for the plain model


def split_prompt(
    prompt: str | Prompt,
    documents: Sequence[str] | None,
    boundaries: Boundaries | None,
    strip_numbering: bool = False,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> SplitOutcome:
    """Split a prompt at its documents. Raise ``DocumentNotFoundError`` if one of ``documents`` is missing.

    If a tokenizer is given, control-token strings in the documents are marked as data.
    """
    if boundaries is not None and not isinstance(boundaries, Boundaries):
        raise WrongTypeError(
            f"boundaries={shown(boundaries)}; expected the result of ragbias.boundaries.locate, or no boundaries"
        )
    if isinstance(prompt, Prompt):
        if documents is not None or boundaries is not None:
            raise ArgumentError(
                "documents and boundaries are for a flat prompt; a Prompt already contains its documents"
            )
        prompt = prompt if tokenizer is None else shield_documents(prompt, tokenizer)
        boundaries = Boundaries(tuple(prompt.spans), "prompt", len(prompt.documents), "")
        numbers = DocumentNumbers(doubtful=find_numbering(prompt.text, prompt.spans).reveal_order)
        return SplitOutcome(
            prompt, _with_numbering(boundaries, numbers, strip_numbering, PARTS_REMAIN), "", FlatText.of(prompt)
        )
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
    numbers = find_numbering(prompt, boundaries.texts or boundaries.spans, boundaries.metadata)
    try:
        parts, flat = split_text(prompt, boundaries.spans, strip_numbering, numbers)
    except AmbiguousSegmentsError as error:
        parts, flat = Prompt(prompt, (), ""), FlatText(prompt, ())
        return SplitOutcome(parts, _with_numbering(boundaries, numbers, False), str(error), flat)
    return SplitOutcome(parts, _with_numbering(boundaries, numbers, strip_numbering, OWN_NUMBERS_REMAIN), "", flat)


def _with_numbering(boundaries: Boundaries, numbers: DocumentNumbers, strip: bool, why_left: str = "") -> Boundaries:
    """Set ``numbering`` of the boundaries. If numbers should be stripped but remain, add ``why_left`` to the reason."""
    if strip and numbers.cuts and not numbers.doubtful:
        return replace(boundaries, numbering="stripped")
    if not numbers.reveal_order:
        return boundaries
    reasons = (boundaries.reason, why_left if strip else "")
    return replace(boundaries, numbering="present", reason="; ".join(filter(None, reasons)))


def reason_to_run_plain(tokens: TokenisedPrompt, fewest: int) -> str:
    """Return the reason why a method that needs documents cannot run on these tokens, or an empty string."""
    if len(tokens.documents) < fewest:
        found = "one document" if tokens.documents else "no documents"
        return f"{found} found, so there is no order to debias"
    return "" if tokens.suffix else "the prompt ends with the documents, so no question follows them"


def create_report(origin: Origin) -> Report:
    """Create the report of a request. ``prepare_request`` later adds fields that depend on the run."""
    method, boundaries = origin.method_requested, origin.boundaries
    plain_because = origin.reason or reason_to_run_plain(origin.tokens, method.fewest_documents)
    plain_because = plain_because if method.needs_documents else ""
    missed = boundaries.reason if method.needs_documents or boundaries.n_expected else ""
    return Report(
        method_requested=method.name,
        method_ran=NoMethod.name if plain_because else method.name,
        source=boundaries.source,
        spans=(),
        n_expected=boundaries.n_expected,
        n_found=boundaries.n_found,
        reason="; ".join(filter(None, (plain_because, missed))),
        numbering=boundaries.numbering,
        n_left_plain=boundaries.n_left_plain,
    )


def check_lists(prompts: object, documents: object, boundaries: object) -> None:
    """Raise an error unless prompts, documents and boundaries of a batch are lists of equal length."""
    arguments: list[Any] = [prompts, *(argument for argument in (documents, boundaries) if argument is not None)]
    for argument in arguments:
        if isinstance(argument, (str, bytes)) or not isinstance(argument, Sequence):
            raise WrongTypeError(f"batch takes lists of prompts, documents and boundaries; got {shown(argument)}")
    if len(set(map(len, arguments))) > 1:
        raise ArgumentError("batch takes a list of prompts, and one entry of documents or boundaries for each of them")


def check_length(length: int, window: int, answer: int = 1) -> None:
    """Raise ``PromptTooLongError`` if ``length`` tokens of a prompt and ``answer`` new tokens exceed the window."""
    if length + answer > window:
        needed = "" if answer == 1 else f" of {answer}"
        raise PromptTooLongError(
            f"the prompt has {length} tokens, too many for an answer{needed} in the model's window of {window}; "
            "retrieve fewer or shorter documents"
        )


def group_requests(requests: Sequence[Request], size: int, window: int, new_tokens: int) -> list[list[int]]:
    """Return the indices of the requests in each batch. A batch has one method, and one limit of new tokens.

    With different limits, a long prompt would truncate the answers to shorter prompts in its batch.
    """
    keys = [(request.method, min(new_tokens, window - len(request.tokens.ids))) for request in requests]
    batches: list[list[int]] = []
    for key in (key for index, key in enumerate(keys) if key not in keys[:index]):  # no set: methods may be unhashable
        indices = [index for index, other in enumerate(keys) if other == key]
        batches += [indices[begin : begin + size] for begin in range(0, len(indices), size)]
    return batches


def padded(
    prompts: Sequence[TokenisedPrompt], pad_token: int, device: torch.device
) -> tuple[Tensor, Tensor, list[list[Span]]]:
    """Return left-padded ids and mask, int64 ``[batch, width]``, and the spans of each prompt, shifted by padding."""
    width = max(len(prompt.ids) for prompt in prompts)
    pads = [width - len(prompt.ids) for prompt in prompts]
    ids = [[pad_token] * pad + prompt.ids for pad, prompt in zip(pads, prompts, strict=True)]
    mask = [[0] * pad + [1] * (width - pad) for pad in pads]
    spans = [[(b + pad, e + pad) for b, e in prompt.spans] for pad, prompt in zip(pads, prompts, strict=True)]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device), spans


_lock = threading.Lock()
_open_recordings: list[list[RecordedRequest]] = []


@dataclass(frozen=True)
class RecordedRequest:
    """A request to a ``DebiasedLM``, with the settings of its generation."""

    lm: Any  # a DebiasedLM, which is in a higher layer
    request: Request
    settings: GenerationSettings


@contextmanager
def recording() -> Iterator[list[RecordedRequest]]:
    """Record the requests to all ``DebiasedLM`` objects of the process, from all threads, while the context is open."""
    records: list[RecordedRequest] = []
    with _lock:
        _open_recordings.append(records)
    try:
        yield records
    finally:
        with _lock:
            _open_recordings[:] = [other for other in _open_recordings if other is not records]


def record(lm: object, requests: Sequence[Request], settings: GenerationSettings) -> None:
    """Add requests to all open recordings."""
    with _lock:
        for records in _open_recordings:
            records += [RecordedRequest(lm, request, settings) for request in requests]
