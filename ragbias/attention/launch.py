"""What it means that a backend's kernel could not be compiled or launched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from ragbias.attention.keys import Scoring
from ragbias.errors import BackendError


class LaunchError(BackendError):
    """A backend's kernel could not be compiled or launched.

    Attributes:
        case: of the query, see ``case_of``.
        named: whether the backend was asked for by name, and not chosen by ``auto``.
    """

    def __init__(self, backend: str, query: Tensor, scoring: Scoring, cause: Exception) -> None:
        super().__init__(f"backend {backend!r} failed with {type(cause).__name__}: {cause}")
        self.case = case_of(query)
        self.named = scoring.backend != "auto"


def case_of(query: Tensor) -> tuple[object, ...]:
    """What a failure holds for: a kernel may fail for large heads and run for small ones."""
    return query.device, query.dtype, query.shape[-1]


@contextmanager
def launching(backend: str, query: Tensor, scoring: Scoring, *errors: type[Exception]) -> Iterator[None]:
    """Inside, a kernel that cannot be compiled or launched raises ``LaunchError``; a lack of memory does not.

    Args:
        errors: what the backend raises in this case beside ``RuntimeError``.
    """
    refusals: tuple[type[Exception], ...] = (RuntimeError, *errors)
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except refusals as error:
        raise LaunchError(backend, query, scoring, error) from error
