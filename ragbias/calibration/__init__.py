"""Calibration: find a method's parameters for a model."""

from ragbias.methods.profiles import Profile

__all__ = ["Profile"]
