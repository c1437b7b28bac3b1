"""Experiments from the papers, speed and load tests, and the scripts behind ``docs/results``; see ``README.md``."""

from __future__ import annotations

import argparse
from textwrap import fill


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Format help: wrap paragraphs, keep indented commands as they are, and show the defaults of options."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(part if part.startswith(" ") else fill(part, width) for part in text.split("\n\n"))

    def _get_help_string(self, action: argparse.Action) -> str | None:
        hidden = action.default is None or action.default is False or "default" in (action.help or "")
        return action.help if hidden else super()._get_help_string(action)


def arguments_of(documentation: str | None) -> argparse.ArgumentParser:
    """Create the argument parser of a study from its module's docstring."""
    text = (documentation or "").strip().replace("``", "")
    return argparse.ArgumentParser(description=text, formatter_class=_Help)
