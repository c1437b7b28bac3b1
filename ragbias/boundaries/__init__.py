"""Finding the retrieved documents in a flat prompt. Pure Python; knows no framework."""

from ragbias.boundaries.context import current_documents, documents
from ragbias.boundaries.locate import Boundaries, locate
from ragbias.boundaries.registry import Registry

__all__ = ["Boundaries", "Registry", "current_documents", "documents", "locate"]
