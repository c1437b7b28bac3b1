"""Attaching a method to an unmodified transformers model."""

from ragbias.binding.binding import attach, backend_of, debias

__all__ = ["attach", "backend_of", "debias"]
