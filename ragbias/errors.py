"""Every error that ragbias raises on purpose, in one small hierarchy.

All of them are ``RuntimeError``s: LlamaIndex's response synthesizers swallow ``ValueError`` and ``TypeError`` and
answer "Empty Response" instead, which would hide a wrong set-up. Only ``WrongTypeError`` is a ``TypeError`` as well.
"""


class RagBiasError(RuntimeError):
    """Base of all errors of this library."""


class ArgumentError(RagBiasError):
    """An argument is unknown, out of range, or does not go with the others. Of methods, see ``MethodError``."""


class WrongTypeError(ArgumentError, TypeError):
    """An argument of the wrong type. Also a ``TypeError``, for callers who catch that."""


class EmptyDocumentError(RagBiasError):
    """A document without any text, or without a single token."""


class SpanError(RagBiasError):
    """Document spans that overlap, leave gaps, lie outside the prompt, or leave nothing after the documents."""


class AmbiguousSegmentsError(SpanError):
    """The text between the documents cannot be assigned to them without depending on their order."""


class SegmenterError(SpanError):
    """A ``segmenter`` that is neither separator, pattern nor function, that failed, or that gave spans of no sense."""


class DocumentNotFoundError(RagBiasError):
    """A document that was named explicitly does not occur in the prompt."""


class NoDocumentsError(RagBiasError):
    """A method that needs document spans was given none."""


class PromptTooLongError(RagBiasError):
    """The prompt does not fit into the model's window."""


class UnknownMethodError(RagBiasError):
    """No method has this name."""


class MethodError(RagBiasError):
    """A method's parameters are out of range, do not fit the model, or the method cannot run here."""


class UnsupportedModelError(RagBiasError):
    """The architecture, its configuration or its cache is not known to give right results."""


class ModelFileError(RagBiasError):
    """A model's file is not there, damaged or incomplete, or its dequantised copy cannot be written."""


class BackendError(RagBiasError):
    """A backend that was asked for by name is unknown, not installed, or cannot compute this case."""


class BindingError(RagBiasError):
    """A forward pass does not belong to the prompt, or the thread, that ``debias`` was opened for."""


class CancelledError(RagBiasError):
    """A request was cancelled while its documents were being put in order, or its method chosen."""


class NonFiniteLogitsError(RagBiasError):
    """The model produced NaN or infinite logits."""


class OutOfMemoryError(RagBiasError, MemoryError):
    """A request needs more memory than the device or the process has. Also a ``MemoryError``."""


class DataError(RagBiasError):
    """A file of questions or results is not of the expected format; names the file, and the line."""


class RunError(RagBiasError):
    """A run's settings contradict each other, or its folder holds another run."""


class ServerError(RagBiasError):
    """A server that a model is behind does not answer, refuses, or is of another kind."""


class MissingExtraError(RagBiasError, ImportError):
    """A package of an optional extra is not installed; names the command that installs it. Also an ``ImportError``."""


def first_line(error: BaseException) -> str:
    """The first line of what an error says, or its type where it says nothing."""
    return next(iter(str(error).splitlines()), type(error).__name__)
