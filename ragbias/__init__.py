"""Training-free removal of position bias for retrieval-augmented generation with Hugging Face models."""

from ragbias.binding import debias

__all__ = ["debias"]
__version__ = "0.1.0"
