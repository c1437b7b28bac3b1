"""Occurrences of known texts in a prompt, and the choice of one for each document."""
