"""Find the retrieved documents in a flat prompt. Plain Python; knows no framework.

``locate`` tries each of the ``sources`` in turn; ``matching`` finds their texts in the prompt and chooses an occurrence
for each; ``splitting`` limits these to this turn's message and separates each document, with its header and metadata,
from the separators. ``ragbias.Prompt.from_text`` cuts there.

Imports run one way: ``locate`` -> ``sources`` -> ``splitting`` -> ``matching`` -> ``known_text``, ``patterns``,
``spans``.
"""

from ragbias.boundaries.known_text import KnownText
from ragbias.boundaries.locate import Boundaries, locate
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
