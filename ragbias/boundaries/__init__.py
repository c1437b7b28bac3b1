"""Find the retrieved documents in a flat prompt. This package needs neither torch nor a framework.

``locate`` tries each of the ``sources``, then the ``recognisers``. ``matching`` finds document texts in the prompt,
``assignment`` chooses one occurrence per document, and ``metadata_blocks`` adds the metadata around it. ``numbering``
and ``splitting`` separate the documents for ``ragbias.Prompt.from_text``.
"""

from ragbias.boundaries.locating import Boundaries, locate
from ragbias.boundaries.recognisers import Segmenter
from ragbias.boundaries.sources import Registry, documents

__all__ = ["Boundaries", "Registry", "Segmenter", "documents", "locate"]
