"""The name of the key-value cache in the calls and outputs of a model; transformers 5.24 renamed it."""

from collections.abc import Mapping
from typing import Any

import transformers
from packaging.version import Version

OLD_NAME = "past_key_values"  # version 5.24 still accepts it as an argument
KV_CACHE = "cache" if Version(transformers.__version__) >= Version("5.24") else OLD_NAME


def kv_cache_of(arguments: Mapping[str, Any]) -> Any:
    """Return the cache that a model is called with, under its new or old name, or None."""
    return arguments.get(KV_CACHE, arguments.get(OLD_NAME))
