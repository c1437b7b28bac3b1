"""Find the retrieved documents in a flat prompt. This package needs neither torch nor a framework.

``locate`` takes document texts from ``sources``, searches for them (``matching``), chooses one occurrence of each
(``assignment``) and adds the metadata around it (``metadata_blocks``). Without texts, it uses the ``recognisers``.
``splitting`` cuts the prompt at the documents. ``numbering`` finds the documents' numbers, so that they can be removed.
"""

from ragbias.boundaries.locating import Boundaries, locate
from ragbias.boundaries.recognisers import Segmenter
from ragbias.boundaries.sources import Registry, documents

__all__ = ["Boundaries", "Registry", "Segmenter", "documents", "locate"]
