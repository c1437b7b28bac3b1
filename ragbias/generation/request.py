"""The data of a request: the split prompt, the prepared request, the report, and the answer."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from ragbias.boundaries import Boundaries, Source
from ragbias.errors import PromptTooLongError
from ragbias.methods import JointMethod, Method, NoMethod, VotingMethod
from ragbias.prompt import FlatText, Prompt, TokenisedPrompt


@dataclass(frozen=True)
class SplitPrompt:
    """A prompt that is split at its documents.

    Attributes:
        parts: prefix, documents and suffix of the prompt; without documents if the prompt cannot be split.
        flat: the prompt as the plain model reads it, without the separator that ``Prompt.from_text`` may add.
        boundaries: how the documents were found.
        why_unsplit: why the prompt cannot be split at its documents; empty if it can.
    """

    parts: Prompt
    flat: FlatText
    boundaries: Boundaries
    why_unsplit: str = ""

    def reordered(self, order: Sequence[int]) -> SplitPrompt:
        """Reorder the documents. ``order[i]`` is the old index of the document whose new index is ``i``."""
        parts = self.parts.reordered(order)
        return replace(self, parts=parts, flat=FlatText.of(parts, self.flat.lead))


@dataclass(frozen=True)
class Request:
    """A prepared prompt, the method that runs, and the report.

    Attributes:
        prompt: the split prompt, with the documents in their original order; after ``order_text``, in a new order.
        method_requested: the requested method, as in the report.
        why_plain: why the requested method cannot run, so that the plain model runs; empty if it can.
        method: the method that runs on ``tokens``; if the model runs elsewhere, the requested method.
        tokens: the tokens in the order that the model reads; empty if the model runs elsewhere.
        cancelled: event that stops this answer at the next token. Other answers in the batch continue.
    """

    prompt: SplitPrompt
    method_requested: Method
    why_plain: str
    method: Method
    report: Report
    tokens: TokenisedPrompt = field(default_factory=lambda: TokenisedPrompt([], [], []))
    cancelled: threading.Event | None = field(default=None, compare=False, repr=False)

    def candidates(self) -> list[Request]:
        """Return the requests to run: one per order of a vote, one per prompt of a ``JointMethod``, or this request."""
        method = self.method
        documents = self.tokens.documents
        if isinstance(method, JointMethod):
            return [replace(self, tokens=self.tokens.reordered(indices)) for indices in method.prompts(documents)]
        if isinstance(method, VotingMethod):
            return [self._vote(order) for order in method.candidate_orders(documents)]
        return [self]

    def _vote(self, order: Sequence[int]) -> Request:
        """Return a request to the plain model, with the documents in one order of a vote."""
        tokens = self.tokens.reordered(order)
        report = replace(self.report, spans=tuple(tokens.spans))
        return replace(self, tokens=tokens, method=NoMethod(), report=report)


@dataclass(frozen=True)
class Report:
    """The requested method, the method that ran, and the documents found. A report contains no prompt text.

    Attributes:
        method_requested: name of the requested method.
        method_ran: name of the method that ran; ``"none"`` if the requested method could not run.
        source: how the documents were found: ``"prompt"`` (passed as a ``Prompt``), ``"documents"``, ``"artifact"``,
            ``"run"``, ``"registry"``, ``"segmenter"``, ``"headers"``, or ``"none"``; see ``ragbias.boundaries``.
        spans: ``(begin, end)`` of each document in tokens, ascending. A span includes the separator that
            ``Prompt.from_text`` may add.
        n_expected: number of documents that should be in the prompt, according to the source.
        n_found: number of these documents that occur in the prompt.
        reason: why another method ran, or why documents are missing; empty if everything ran as requested.
        backend: the attention backend: ``"torch"``, ``"triton"``, ``"flash"`` or ``"vllm"``; empty if the method does
            not change attention.
        order: for methods that reorder documents, ``order[i]`` is the original index of the document that the model
            reads at position ``i``; empty for other methods.
        numbering: ``"present"`` if the text around the documents numbers them, which reveals their order to the model;
            ``"stripped"`` if the numbers were removed; empty if there are no numbers.
        n_left_plain: number of retrieved documents in the prompt that are not debiased. They are in quotations, or
            come from earlier turns or other retrievals.
        segmentation_changed: whether the tokens differ from those of the plain model, which tokenises the whole text.
            Methods tokenise each document separately, and may add a separator.
        cached_tokens: number of prompt tokens whose keys and values came from a ``DocumentCache``.
        reader: folder name of the reader adapter that ran with the method; empty if there was none.
    """

    method_requested: str
    method_ran: str
    source: Source
    spans: tuple[tuple[int, int], ...]
    n_expected: int
    n_found: int
    reason: str = ""
    backend: str = ""
    order: tuple[int, ...] = ()
    numbering: Literal["", "present", "stripped"] = ""
    n_left_plain: int = 0
    segmentation_changed: bool = False
    cached_tokens: int = 0
    reader: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON-compatible data."""
        return {**asdict(self), "spans": [list(span) for span in self.spans], "order": list(self.order)}


@dataclass(frozen=True)
class Usage:
    """Token counts of one request, including the EOS token. If a method votes, the counts cover all answers.

    Attributes:
        cached_tokens: number of prompt tokens whose keys and values came from a ``DocumentCache``.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cached_tokens + other.cached_tokens,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the counts with OpenAI's names."""
        counts = asdict(self)
        details = {"cached_tokens": counts.pop("cached_tokens")}
        return {**counts, "prompt_tokens_details": details, "total_tokens": self.total_tokens}


@dataclass(frozen=True)
class Generation:
    """An answer: its text without special tokens and stop strings, its token ids, usage and report.

    Attributes:
        finish_reason: ``"stop"`` at EOS or a stop string; ``"length"`` at the maximum number of tokens.
        logprobs: natural logarithm of each token's probability, if requested. ``repetition_penalty`` and similar
            settings change these probabilities; temperature, ``top_k`` and ``top_p`` do not.
    """

    text: str
    token_ids: list[int]
    usage: Usage
    report: Report
    finish_reason: Literal["stop", "length"]
    logprobs: list[float] | None = None

    @staticmethod
    def from_tokens(
        request: Request,
        text: str,
        ids: Sequence[int],
        eos: Collection[int],
        cached: int,
        finish_reason: Literal["stop", "length"],
        logprobs: Sequence[float] | None = None,
    ) -> Generation:
        """Create the answer to a request from all new tokens ``ids``. The answer omits tokens in ``eos``."""
        kept = [index for index, token in enumerate(ids) if token not in eos]
        return Generation(
            text=text,
            token_ids=[ids[index] for index in kept],
            usage=Usage(len(request.tokens.ids), len(ids), cached),
            report=replace(request.report, cached_tokens=cached),
            finish_reason=finish_reason,
            logprobs=None if logprobs is None else [logprobs[index] for index in kept],
        )


@dataclass(frozen=True)
class Score:
    """The tokens of a continuation, and the natural logarithm of each token's probability."""

    token_ids: list[int]
    logprobs: list[float]
    report: Report

    @property
    def total(self) -> float:
        return sum(self.logprobs)


def longest_prompt(method: Method, tokens: TokenisedPrompt) -> int:
    """Return the number of tokens in the longest prompt that a method runs."""
    if not isinstance(method, JointMethod):
        return len(tokens.ids)
    return max(len(tokens.reordered(indices).ids) for indices in method.prompts(tokens.documents))


def check_length(length: int, window: int, answer: int = 1) -> None:
    """Raise ``PromptTooLongError`` if ``length`` tokens of a prompt and ``answer`` new tokens exceed the window."""
    if length + answer > window:
        needed = "" if answer == 1 else f" of {answer}"
        raise PromptTooLongError(
            f"the prompt has {length} tokens, too many for an answer{needed} in the model's window of {window}; "
            "retrieve fewer or shorter documents"
        )
