"""Parse or run commands from the docs in this process."""

import argparse
import runpy
import sys
from typing import Any

import pytest
import typer

from ragbias.cli import app


def parse_command(words: list[str]) -> dict[str, Any]:
    """Parse a ``ragbias`` command, with or without a group, and return its parameters."""
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        command, *words = command.commands[words[0]], *words[1:]
    return dict(command.make_context(command.name, words).params)


class ParsedError(Exception):
    """Raised when the arguments of a script are valid."""


def run_script(words: list[str], only_parse: bool = False) -> dict[str, Any]:
    """Run ``python FILE ...`` or ``python -m MODULE ...``, or only parse and return its arguments."""
    as_module = words[0] == "-m"
    script, arguments = words[as_module], words[as_module + 1 :]
    parse = argparse.ArgumentParser.parse_args
    parsed: dict[str, Any] = {}

    def parse_and_stop(parser: argparse.ArgumentParser, *given: Any) -> Any:
        parsed.update(vars(parse(parser, *given)))
        raise ParsedError

    with pytest.MonkeyPatch.context() as patches:
        if only_parse:
            patches.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)
        patches.setattr(sys, "argv", [script, *arguments])
        try:
            (runpy.run_module if as_module else runpy.run_path)(script, run_name="__main__")
        except ParsedError:
            pass
        except SystemExit as ended:
            if ended.code:
                pytest.fail(f"{script} ended with {ended.code}")
    return parsed
