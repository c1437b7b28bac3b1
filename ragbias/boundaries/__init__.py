"""Finding the retrieved documents in a flat prompt. Pure Python; knows no framework."""

from ragbias.boundaries.locate import Boundaries, locate
from ragbias.boundaries.sources.known_text import KnownText
from ragbias.boundaries.sources.named import current_documents, documents
from ragbias.boundaries.sources.registry import Registry
from ragbias.boundaries.sources.segmenter import Segmenter
from ragbias.boundaries.splitting.numbering import NumberedHeadersWarning, has_numbering, strip_numbering

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
