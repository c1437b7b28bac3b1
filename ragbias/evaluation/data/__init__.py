"""Evaluation files: questions to read; records of answers and run folders to write."""
