"""Documents' keys and values, computed once and kept: in memory, in a folder, or both.

For users: ``DocumentCache`` and what it reports. ``ragbias.generation.reuse`` computes what is kept, and uses it.
"""

from ragbias.cache.document_cache import CacheStats as CacheStats
from ragbias.cache.document_cache import DocumentCache as DocumentCache
from ragbias.cache.document_cache import DocumentCacheWarning as DocumentCacheWarning
