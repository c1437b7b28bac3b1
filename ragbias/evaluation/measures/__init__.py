"""Figures computed from answers: metrics, accuracy by position, consistency, bootstrap intervals."""
