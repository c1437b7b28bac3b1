"""``DocumentCache``: keys and values of documents, in memory and in a folder; used by ``generation.reuse``."""

from ragbias.cache.document_cache import CacheStats as CacheStats
from ragbias.cache.document_cache import DocumentCache as DocumentCache
