"""Find the retrieved documents in a flat prompt. This package needs neither torch nor a framework.

``locate`` takes document texts from ``sources``, and ``retrievals`` finds those of one source: it searches for the
texts (``matching``), chooses one occurrence of each (``assignment``) and adds the metadata around it
(``metadata_blocks``). Without texts, the ``recognisers`` find documents. ``splitting`` cuts the prompt at the
documents. ``numbering`` finds the documents' numbers, so that they can be removed.
"""

from ragbias.boundaries.locating import locate
from ragbias.boundaries.recognisers import Segmenter
from ragbias.boundaries.retrievals import Boundaries
from ragbias.boundaries.sources import Registry, documents

__all__ = ["Boundaries", "Registry", "Segmenter", "documents", "locate"]
