"""Calibration: find a model's positional channel for channel scaling."""

from ragbias.methods import Profile

__all__ = ["Profile"]
