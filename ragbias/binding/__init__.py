"""Attach a method to an unmodified transformers model."""
