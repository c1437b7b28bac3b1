"""Loading models (``loading``) by name: the embedded ``tiny``, real ones of PyPI packages (``named``), files (``gguf``)."""

from ragbias.models.named import local_path

__all__ = ["local_path"]
