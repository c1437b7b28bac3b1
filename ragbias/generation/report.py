"""The results of a generation: the answer, token counts, and a report."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal


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
        backend: the attention backend: ``"torch"``, ``"triton"`` or ``"flash"``, see ``ragbias.attention.backends``, or
            ``"vllm"``; empty if the method does not change attention.
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
    source: str
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


@dataclass(frozen=True)
class Score:
    """The tokens of a continuation, and the natural logarithm of each token's probability."""

    token_ids: list[int]
    logprobs: list[float]
    report: Report

    @property
    def total(self) -> float:
        return sum(self.logprobs)
