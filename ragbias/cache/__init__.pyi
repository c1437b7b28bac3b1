from .document_cache import CacheStats as CacheStats
from .document_cache import DocumentCache as DocumentCache
from .identity import identity_of as identity_of
from .identity import key_of as key_of
from .stores import States as States
