"""Loading models by name (``loading``): the embedded ``tiny``, real ones of PyPI packages (``named``), GGUF files (``gguf``)."""

from ragbias.models.named import local_path

__all__ = ["local_path"]
