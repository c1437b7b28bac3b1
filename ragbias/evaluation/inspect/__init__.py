"""The attention that each document gets, by layer, measured and drawn."""
