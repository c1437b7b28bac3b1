"""Figures computed from answers: metrics, accuracy by position, consistency and bootstrap intervals."""
