"""``DocumentCache``: keys and values of documents, in memory and in a folder."""

from ragbias.cache.document_cache import CacheStats, DocumentCache
from ragbias.cache.stores import States

__all__ = ["CacheStats", "DocumentCache", "States"]
