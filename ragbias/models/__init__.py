"""Loading models (``loading``): the embedded ``tiny``, real ones in PyPI packages (``named``), and ``gguf`` files."""

from ragbias.models.named import local_path

__all__ = ["local_path"]
