"""Find the retrieved documents in a flat prompt. This package needs neither torch nor a framework.

1. ``locating``: ``locate`` tries one source of document texts after another. ``sources`` stores the texts.
2. ``retrievals`` finds the texts of one source: ``matching`` searches for them, and ``assignment`` chooses the message
   and one occurrence of each text. ``metadata_blocks`` extends each text to the title and other metadata around it.
3. ``recognisers``: without known texts, a segmenter or numbered headers show where the documents are.
4. ``numbering`` finds the documents' numbers, so that they can be removed.
5. ``splitting`` cuts the prompt into the text before, the documents with their separators, and the text after.

If a step has several possible results, none of them is used: no documents are found, or the prompt is not split. The
result then contains a reason.
``text`` contains the patterns that several steps use.
"""

from ragbias.boundaries.locating import locate
from ragbias.boundaries.recognisers import Segmenter
from ragbias.boundaries.retrievals import Boundaries, Source
from ragbias.boundaries.sources import Registry, current_documents, document_texts, documents
from ragbias.boundaries.text import join_reasons

__all__ = [
    "Boundaries",
    "Registry",
    "Segmenter",
    "Source",
    "current_documents",
    "document_texts",
    "documents",
    "join_reasons",
    "locate",
]
