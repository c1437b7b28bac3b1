"""Load models: the embedded ``tiny``, short names (``named``), GGUF files (``gguf``), hub models (``loading``)."""

from ragbias.models.named import local_path

__all__ = ["local_path"]
