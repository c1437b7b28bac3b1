"""Fill a document cache before the first request, with the prompts that the user's template renders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeVar

from tqdm.auto import tqdm

from ragbias.errors import ArgumentError, SpanError
from ragbias.frameworks.remote import LanguageModel
from ragbias.generation.preparing import split_prompt

T = TypeVar("T")
DOCUMENTS_PER_PROMPT = 16  # number of documents in one prompt


def warm(
    lm: LanguageModel,
    documents: Sequence[T],
    get_text: Callable[[T], str],
    render: Callable[[Sequence[T]], str],
    progress: Callable[[int], None] | bool = False,
) -> int:
    """Compute the documents' keys and values and store them in the model's cache. Cached documents are skipped.

    Args:
        get_text: a function that returns the text of a document as it occurs in prompts.
        render: a function that returns a flat prompt with some documents and any question.
        progress: a function that is called with the number of finished documents; ``True`` shows a progress bar.

    Returns:
        the number of computed documents.

    Raises:
        ArgumentError: the model has no cache or runs on a server, or there are fewer than two documents.
        DocumentNotFoundError: the prompt does not contain a document's text.
        SpanError: the prompt cannot be split at its documents.
    """
    count = len(documents)
    if count < 2:
        raise ArgumentError(f"{count} documents to warm; pass at least two, so that the prompt shows their separator")
    edges = [*range(0, count - 1, DOCUMENTS_PER_PROMPT), count]  # each group has at least two documents
    computed = 0
    with tqdm(total=count, desc="documents", disable=progress is not True) as bar:
        for begin, end in pairwise(edges):

            def done(number: int, begin: int = begin) -> None:
                bar.update(begin + number - bar.n)
                if callable(progress):
                    progress(begin + number)

            group = documents[begin:end]
            texts = [get_text(document) for document in group]
            prompt = split_prompt(render(group), texts, strip_numbering=lm.strip_numbering)
            if prompt.why_unsplit:
                raise SpanError(f"the prompt cannot be split at its documents: {prompt.why_unsplit}")
            computed += lm.warm(prompt.parts.prefix, prompt.parts.documents, progress=done)
    return computed
