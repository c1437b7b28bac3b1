"""What all pictures share."""

from __future__ import annotations


def literal(text: str) -> str:
    """A name as matplotlib draws it letter by letter; between two dollar signs it would read mathematics."""
    return text.replace("$", r"\$")
