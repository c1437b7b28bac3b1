"""Calibration: find the channel of a model's hidden state that encodes position, for channel scaling."""
