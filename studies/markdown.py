"""Write Markdown tables."""

from __future__ import annotations

from collections.abc import Sequence

from ragbias.display import printable


def markdown_table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    rows = [head, ["---"] + ["---:"] * (len(head) - 1), *body]
    return "\n".join(f"| {' | '.join(escape_markdown(cell) for cell in row)} |" for row in rows)


def escape_markdown(text: str) -> str:
    """Escape text for a single line of Markdown."""
    text = " ".join(printable(text).split())
    for character in "\\|<>[]`*":
        text = text.replace(character, "\\" + character)
    return text.replace("_", "\\_")
