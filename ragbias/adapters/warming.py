"""Documents computed before anyone asks for them, as the user's own template will show them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeVar

from tqdm.auto import tqdm

from ragbias.adapters.remote import RemoteLM
from ragbias.errors import ArgumentError, SpanError
from ragbias.generation.request import in_parts
from ragbias.lm import DebiasedLM

T = TypeVar("T")
TOGETHER = 16  # documents put into one prompt to see how it shows them; what parts them is the same for any


def warm(
    lm: DebiasedLM | RemoteLM,
    documents: Sequence[T],
    text: Callable[[T], str],
    prompt: Callable[[Sequence[T]], str],
    progress: Callable[[int], None] = lambda done: None,
) -> int:
    """Compute documents for the model's cache; those that it has are left, so that this goes on where it was stopped.

    Args:
        text: what of a document stands in a prompt, verbatim.
        prompt: the flat prompt with some documents, chat template included, and whatever question.
        progress: called with the number of documents that are done.

    Returns:
        how many had to be computed.

    Raises:
        ArgumentError: the model has no cache, or is at a server; or there are fewer than two documents.
        DocumentNotFoundError: the prompt does not hold a document's text.
        SpanError: the prompt cannot be split at its documents.
    """
    if isinstance(lm, RemoteLM):
        raise ArgumentError(
            f"the model is at {lm.base_url}, which keeps documents itself; warm a folder with a local model, and "
            "serve it there with --cache"
        )
    if len(documents) < 2:
        raise ArgumentError(f"{len(documents)} documents to warm; give two or more, to show what parts them")
    computed = 0
    for begin, end in pairwise(_borders(len(documents))):
        some = documents[begin:end]
        parts, _, reason = in_parts(prompt(some), [text(each) for each in some], None, lm.strip_numbering)
        if reason:
            raise SpanError(f"the prompt cannot be split at its documents: {reason}")
        computed += lm.warm(parts.prefix, parts.documents, progress=_after(begin, progress))
    return computed


def warm_with_bar(
    lm: DebiasedLM | RemoteLM,
    documents: Sequence[T],
    text: Callable[[T], str],
    prompt: Callable[[Sequence[T]], str],
    shown: bool,
) -> int:
    """As ``warm``, with a progress bar if ``shown``."""
    with tqdm(total=len(documents), desc="documents", disable=not shown) as bar:
        return warm(lm, documents, text, prompt, lambda done: bar.update(done - bar.n))


def _after(begin: int, progress: Callable[[int], None]) -> Callable[[int], None]:
    return lambda done: progress(begin + done)


def _borders(count: int) -> list[int]:
    """Where groups begin, and the end; the last group has two at least."""
    borders = [*range(0, count, TOGETHER), count]
    if borders[-1] - borders[-2] == 1:
        borders[-2] -= 1
    return borders
