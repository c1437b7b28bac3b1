"""The errors and warnings of ragbias.

All errors are ``RuntimeError``s. None is a ``ValueError``, and only ``WrongTypeError`` is a ``TypeError``, because
LlamaIndex's response synthesizers catch these two and answer "Empty Response".
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator

# error messages of torch, C++ allocators, the dynamic linker, numpy and the operating system
_NO_MEMORY = re.compile(
    r"can't allocate memory|cannot allocate memory|out of memory|not enough memory|bad_alloc|bad allocation"
    r"|failed to map segment|can't start new thread|resource temporarily unavailable"
    r"|array is too big|unable to allocate",
    re.IGNORECASE,
)


class RagBiasError(RuntimeError):
    """Base of all errors of this library."""


class ArgumentError(RagBiasError):
    """An argument is unknown, out of range, or contradicts another one. See ``MethodError`` for methods' parameters."""


class WrongTypeError(ArgumentError, TypeError):
    """An argument has the wrong type. This is also a ``TypeError``, for callers that catch ``TypeError``."""


class UnsupportedToolsError(ArgumentError, NotImplementedError):
    """The model's chat template does not support tools, or writes tool calls in an unknown format.

    This is also a ``NotImplementedError``, the error that LangChain's ``bind_tools`` raises.
    """


class EmptyDocumentError(RagBiasError):
    """A document has no text, or no tokens."""


class SpanError(RagBiasError):
    """Document spans overlap, leave gaps, lie outside the prompt, or leave nothing after the documents."""


class AmbiguousSegmentsError(SpanError):
    """The text between the documents cannot be split into headers, footers and separators."""


class SegmenterError(SpanError):
    """A ``segmenter`` has the wrong type, fails, or returns invalid spans."""


class DocumentNotFoundError(RagBiasError):
    """A document that was passed explicitly does not occur in the prompt."""


class ChatTemplateError(RagBiasError):
    """The tokenizer's chat template fails on a conversation."""


class NoDocumentsError(RagBiasError):
    """A method needs documents, and none were found or passed."""


class PromptTooLongError(RagBiasError):
    """The prompt is too long for the model's window."""


class UnknownMethodError(RagBiasError):
    """No method has this name."""


class MethodError(RagBiasError):
    """A method's parameters are out of range or do not fit the model, or a function does not support the method."""


class ReaderError(RagBiasError):
    """A reader adapter is missing or damaged, or belongs to another method or model."""


class UnsupportedModelError(RagBiasError):
    """The model's architecture, configuration or cache is not supported."""


class ModelFileError(RagBiasError):
    """A model does not exist, its files are damaged, or its dequantised copy cannot be written."""


class BackendError(RagBiasError):
    """The requested backend is unknown, not installed, does not support the input, or fails."""


class BindingError(RagBiasError):
    """A forward pass runs in a thread that did not open ``debias``, or ``debias`` does not support its input."""


class CancelledError(RagBiasError):
    """A request was cancelled."""


class NonFiniteLogitsError(RagBiasError):
    """The model produced NaN or infinite logits."""


class OutOfMemoryError(RagBiasError, MemoryError):
    """A request needs more memory than the device or the process has. This is also a ``MemoryError``."""


class DataError(RagBiasError):
    """A file of questions or results has an unexpected format. The message names the file and the line."""


class RunError(RagBiasError):
    """The settings of a bench or training run contradict each other, or its folder contains another run."""


class ServerError(RagBiasError):
    """A model server does not answer, rejects the request, or has an unexpected API."""


class MissingExtraError(RagBiasError, ImportError):
    """An optional package is not installed. The message says how to install it. This is also an ``ImportError``."""


class MissingDocumentsWarning(UserWarning):
    """Documents that a method needs are missing from the prompt."""


class NumberedHeadersWarning(UserWarning):
    """The text around the documents numbers them, so the model can see their order."""


class BackendFallbackWarning(UserWarning):
    """``backend="auto"`` uses ``torch`` because Triton cannot be imported, fails, or computes wrong results."""


class DocumentCacheWarning(UserWarning):
    """The document cache cannot be used, or cannot store a document. Answers do not change."""


class UnsupportedReaderWarning(UserWarning):
    """Measurements of a reader adapter do not show that it improves the method."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type if the message is empty."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def causes_of(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, its cause, the cause of that error, and so on."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def find_memory_error(error: BaseException) -> BaseException | None:
    """Search an error and its causes. Return the first one that reports exhausted memory, or None."""
    for cause in causes_of(error):
        if isinstance(cause, MemoryError) or getattr(cause, "errno", None) == errno.ENOMEM:
            return cause
        if isinstance(cause, (RuntimeError, ImportError, OSError, ValueError)) and _NO_MEMORY.search(str(cause)):
            return cause
    return None
