"""``DocumentCache``: a cache of the keys and values of documents, in memory and in a folder."""

from ragbias.cache.document_cache import CacheStats, DocumentCache

__all__ = ["CacheStats", "DocumentCache"]
