"""Evaluation files: questions, records of answers, and run folders."""
