"""Finding the retrieved documents in a flat prompt. Pure Python; knows no framework."""

from ragbias.boundaries.context import current_documents, documents
from ragbias.boundaries.known_text import KnownText
from ragbias.boundaries.locate import Boundaries, locate
from ragbias.boundaries.numbering import NumberedHeadersWarning, has_numbering, strip_numbering
from ragbias.boundaries.registry import Registry
from ragbias.boundaries.segmenting import Segmenter

__all__ = [
    "Boundaries",
    "KnownText",
    "NumberedHeadersWarning",
    "Registry",
    "Segmenter",
    "current_documents",
    "documents",
    "has_numbering",
    "locate",
    "strip_numbering",
]
