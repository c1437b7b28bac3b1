"""What a request gives back: the answer, its token counts, and the record of what ran on which documents.

``DebiasedLM._settled`` fills a report. Its ``reason`` says what ``ragbias.boundaries.locate`` did not find, what
``request`` says against running the method, or what the method itself decided.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Report:
    """What a request asked for and what was done. Holds no text of the prompt.

    Attributes:
        method_requested: name of the method that was asked for.
        method_ran: name of the method that ran; ``"none"`` where it could not.
        source: how the documents were found: ``"prompt"`` (given as a ``Prompt``), ``"documents"``, ``"artifact"``,
            ``"run"``, ``"registry"``, ``"segmenter"``, ``"headers"``, or ``"none"``; see ``ragbias.boundaries``.
        spans: ``(begin, end)`` of each document, in tokens of the prompt as it ran (see ``Prompt.from_text`` for
            the separator that may be added), ascending.
        n_expected: number of documents that the source named.
        n_found: number of them that occur in the prompt.
        reason: in plain words, why something else ran or fewer documents were found; empty if all went as asked.
        backend: what computed the method's attention: ``"torch"``, ``"triton"`` or ``"flash"``, see
            ``ragbias.attention.backends``; empty where the method that ran computes none inside the model.
        order: where the method that ran puts the documents into an order of its own: ``order[i]`` is the index, as the
            documents came, of the ``i``-th that the model saw; else empty.
        numbering: ``"kept"`` where the text around the documents numbers them, which tells the model their order
            whatever the method; ``"stripped"`` where the numbers were taken out; else empty.
        n_left_plain: number of retrieved documents that are in the prompt but not among those treated: of earlier turns
            or other retrievals, or quoted.
        segmentation_changed: whether the tokens are others than those of the prompt tokenised in one piece, as the
            plain model gets it: no token may reach across the border of a document, and a separator may be added.
        cached_tokens: tokens of the prompt that were not computed, as a ``DocumentCache`` had kept them.
    """

    method_requested: str
    method_ran: str
    source: str
    spans: tuple[tuple[int, int], ...]
    n_expected: int
    n_found: int
    reason: str = ""
    backend: str = ""
    order: tuple[int, ...] = ()
    numbering: Literal["", "kept", "stripped"] = ""
    n_left_plain: int = 0
    segmentation_changed: bool = False
    cached_tokens: int = 0

    def as_dict(self) -> dict[str, Any]:
        """The report as plain data, fit for JSON."""
        return {**asdict(self), "spans": [list(span) for span in self.spans], "order": list(self.order)}


@dataclass(frozen=True)
class PromptTokensDetails:
    """Of the prompt's tokens, those that were not computed, as a ``DocumentCache`` had kept them."""

    cached_tokens: int = 0


@dataclass(frozen=True)
class Usage:
    """Token counts of one request; the token that ends an answer counts too. A vote counts all its answers."""

    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: PromptTokensDetails = PromptTokensDetails()

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: Usage) -> Usage:
        cached = self.prompt_tokens_details.cached_tokens + other.prompt_tokens_details.cached_tokens
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            PromptTokensDetails(cached),
        )

    def as_dict(self) -> dict[str, Any]:
        """The counts by the names that the frameworks use."""
        return {**asdict(self), "total_tokens": self.total_tokens}


@dataclass(frozen=True)
class Generation:
    """An answer: its text without special tokens and stop strings, the ids it was decoded from, and the record.

    Attributes:
        logprobs: natural logarithm of each id's probability, if asked for: what the model gave it, before temperature,
            ``top_k`` and ``top_p`` (a ``repetition_penalty`` and the like count as the model's).
    """

    text: str
    token_ids: list[int]
    usage: Usage
    report: Report
    finish_reason: Literal["stop", "length"]
    logprobs: list[float] | None = None


@dataclass(frozen=True)
class Score:
    """Log-probabilities (natural logarithm) of a continuation's tokens, given the prompt and the tokens before."""

    token_ids: list[int]
    logprobs: list[float]
    report: Report

    @property
    def total(self) -> float:
        return sum(self.logprobs)
