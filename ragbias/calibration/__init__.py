"""Calibration: find a model's positional channel for channel scaling."""
