"""Training-free removal of position bias for retrieval-augmented generation with Hugging Face models."""

from ragbias.binding import debias
from ragbias.boundaries import documents
from ragbias.lm import DebiasedLM
from ragbias.prompt import Prompt

__all__ = ["DebiasedLM", "Prompt", "debias", "documents"]
__version__ = "0.1.0"
