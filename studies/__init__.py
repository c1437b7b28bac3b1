"""Experiments of the papers, measurements, and the results of studies on real models (``make results-page``)."""

from __future__ import annotations

import argparse
from textwrap import fill


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Paragraphs fill the terminal, indented commands stay as they are, and options show their defaults."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(part if part.startswith(" ") else fill(part, width) for part in text.split("\n\n"))

    def _get_help_string(self, action: argparse.Action) -> str | None:
        hidden = action.default is None or action.default is False or "default" in (action.help or "")
        return action.help if hidden else super()._get_help_string(action)


def arguments_of(documentation: str | None) -> argparse.ArgumentParser:
    """The parser of a study's arguments; ``documentation`` is its module's docstring."""
    text = (documentation or "").strip().replace("``", "")
    return argparse.ArgumentParser(description=text, formatter_class=_Help)
