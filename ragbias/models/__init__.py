"""Load models: the embedded model ``tiny``, models with a short name, GGUF files, folders, and models of the hub."""

from ragbias.models.named import local_path

__all__ = ["local_path"]
