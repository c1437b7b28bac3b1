"""Parse a request's parameters for the connector, and compute cache keys and positions of the prompt's parts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, TypeGuard

from ragbias import methods
from ragbias.cache import key_of
from ragbias.errors import RagBiasError
from ragbias.methods import AdaptiveParallelEncoding, Method, ParallelContextWindows, RoToR, SegmentMethod

LONGEST_TEXT = 100  # maximum number of characters of a method
NAMES = ("pcw", "ape", "rotor")
RUNNABLE = "pcw, ape(temperature=1,scale=1), rotor"


class RefusedError(Exception):
    """The connector cannot run a request. ``reason`` is the label in metrics."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class Plan:
    """The parameters ``kv_transfer_params["ragbias"]`` of a request.

    Attributes:
        store: whether the request only computes and stores one document.
        method: the method as text; unused if ``store`` is true.
        lengths: number of tokens of the prefix and of each document.
        scope: text, such as a tenant's digest; only requests with the same scope share entries.
    """

    store: bool
    method: str
    lengths: tuple[int, ...]
    scope: str

    @property
    def end(self) -> int:
        """Number of tokens of prefix and documents together."""
        return sum(self.lengths)

    @property
    def spans(self) -> list[tuple[int, int]]:
        """Begin and end of each document in the prompt, in tokens."""
        return list(pairwise(accumulate(self.lengths)))

    @property
    def is_joint(self) -> bool:
        """Whether documents attend to each other, so that they must be computed together."""
        return not self.store and self.method.partition("(")[0] == RoToR.name

    @property
    def starts(self) -> list[int]:
        """Start positions of prefix and documents, all shifted by the same number, so the suffix starts at ``end``."""
        prefix, *documents = self.lengths
        if self.is_joint:  # the first document is nearest to the suffix
            return [0, *(self.end - length for length in accumulate(documents))]
        begin = self.end - max(documents)  # of all documents
        return [begin - prefix, *[begin] * len(documents)]

    def cache_salt(self, ids: Sequence[int]) -> str:
        """Return the salt that separates requests in vLLM's prefix cache. ``ids`` are the prompt's tokens.

        Requests with equal salts share blocks. Requests that only store a document have one salt per scope, because
        their attention keys are those of the plain model. In other requests, the rotation of keys depends on all
        lengths, so the salt depends on method, scope and lengths. If documents attend to each other, the salt also
        depends on the tokens of prefix and documents.
        """
        parts: list[object] = ["store", self.scope]
        if not self.store:
            parts = [self.method, self.scope, list(self.lengths)]
            parts += [list(ids[: self.end])] if self.is_joint else []
        return hashlib.sha256(json.dumps(["ragbias", *parts]).encode()).hexdigest()


def plan_of(params: Any, tokens: int) -> Plan:
    """Parse the parameters of a prompt with ``tokens`` tokens. Raise ``RefusedError`` if they are invalid."""
    if not isinstance(params, Mapping):
        raise RefusedError("malformed", "kv_transfer_params['ragbias'] is not an object")
    values = {"store": False, "method": "", "lengths": [], "scope": ""} | dict(params)
    store, method, lengths, scope = (values[name] for name in ("store", "method", "lengths", "scope"))
    texts = isinstance(method, str) and isinstance(scope, str)
    if not (texts and isinstance(store, bool) and isinstance(lengths, list)):
        raise RefusedError("malformed", "store, method, lengths or scope has the wrong type")
    integers = all(type(length) is int for length in lengths)
    if not integers or len(lengths) < 2 or lengths[0] < 0 or min(lengths[1:]) < 1:
        raise RefusedError("malformed", f"lengths={lengths}; expected lengths of a prefix and at least one document")
    plan = Plan(store, method, tuple(lengths), scope)
    if store and len(lengths) != 2:
        raise RefusedError("malformed", f"lengths={lengths}; a request stores one document after a prefix")
    if plan.end >= tokens:
        raise RefusedError(
            "malformed",
            f"lengths={lengths} cover all {tokens} tokens of the prompt; expected tokens after the documents",
        )
    if not plan.store:
        method_of(plan.method)
    return plan


def runs_in_vllm(method: Method) -> TypeGuard[SegmentMethod]:
    """Whether vLLM's attention can run a method."""
    plain = not isinstance(method, AdaptiveParallelEncoding) or method.temperature == method.scale == 1
    separate = isinstance(method, ParallelContextWindows) and plain and not method.reader
    return method.name in NAMES and (method == RoToR() or separate)


def method_of(text: str) -> SegmentMethod:
    """Parse a method. Raise ``RefusedError`` for methods that vLLM's attention cannot run."""
    # other methods are not parsed, because their parameters may name files
    if text.partition("(")[0] in NAMES and len(text) <= LONGEST_TEXT:
        try:
            method = methods.get(text)
        except RagBiasError as error:
            raise RefusedError("method", str(error)) from error
        if runs_in_vllm(method):
            return method
    raise RefusedError("method", f"method {text!r} does not run in vLLM's attention; expected one of {RUNNABLE}")


@dataclass
class Part:
    """The prefix or a document of a prompt.

    Attributes:
        key: name of the stored entry.
        begin, end: range of the tokens in the prompt.
        start: positional index of the first token. It differs from ``begin`` if the method moves the part.
    """

    key: str
    begin: int
    end: int
    start: int


def parts_of(identity: str, plan: Plan, ids: Sequence[int]) -> list[Part]:
    """Return the prefix, unless it is empty, and the documents of a prompt. ``identity`` identifies the model."""
    prefix = ids[: plan.lengths[0]]
    starts = plan.starts
    parts = [Part(key_of(identity, [], prefix, plan.scope), 0, len(prefix), starts[0])] if prefix else []
    joint_salt = plan.cache_salt(ids) if plan.is_joint else ""  # contains all documents
    for (begin, end), start in zip(plan.spans, starts[1:], strict=True):
        if joint_salt:
            key = key_of(identity, [], [begin], joint_salt)
        else:
            key = key_of(identity, prefix, ids[begin:end], plan.scope)
        parts.append(Part(key, begin, end, start))
    return parts
