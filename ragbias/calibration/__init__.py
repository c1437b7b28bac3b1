"""Profiles for channel scaling: which channel carries the position in which model."""
