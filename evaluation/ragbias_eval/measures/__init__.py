"""Compute metrics, accuracy by position, consistency and bootstrap intervals from answers."""
