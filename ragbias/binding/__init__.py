"""Attaching a method to an unmodified transformers model."""

from ragbias.binding.binding import attach, debias

__all__ = ["attach", "debias"]
