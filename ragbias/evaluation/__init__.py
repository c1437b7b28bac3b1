"""Measuring bias, quality and cost."""
