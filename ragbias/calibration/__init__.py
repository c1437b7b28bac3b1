"""Calibration: find the channel that channel scaling needs for a model."""

from ragbias.methods import Profile

__all__ = ["Profile"]
