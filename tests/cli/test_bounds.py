"""Every numeric option has a minimum and a maximum, which its error names.

Options and parameters are discovered: a new one without bounds fails here.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any, get_args, get_type_hints

import pytest
import typer
from typer.models import ParameterInfo

from ragbias.checks import Bounds
from ragbias.cli import app
from ragbias.cli.terminal import Integer
from ragbias.errors import MethodError
from ragbias.methods import METHODS, ChannelScaling, get

COMMANDS: dict[str, Callable[..., Any]] = {
    each.name or each.callback.__name__: each.callback for each in app.registered_commands if each.callback
}
NONSENSE = ("1e26", "1" + "0" * 26, "inf", "-inf", "nan", "0x10", "٣", "０", "1_000", "1.5", "", " ", "--", "9" * 5000)  # noqa: RUF001


def parameters() -> Iterator[tuple[str, str, ParameterInfo, Any]]:
    """Return each parameter with its command, its typer settings and its type."""
    for command, function in COMMANDS.items():
        for name, hint in get_type_hints(function, include_extras=True).items():
            for option in getattr(hint, "__metadata__", ()):
                if isinstance(option, ParameterInfo):
                    yield command, name, option, get_args(hint)[0]


NUMERIC = {
    f"{command} {name}": option.parser
    for command, name, option, _ in parameters()
    if isinstance(option.parser, Integer)
}


def test_there_is_no_numeric_option_without_bounds():
    without = [
        f"{command} {name}"
        for command, name, option, kind in parameters()
        if {int, float} & {kind, *get_args(kind)}
        and not isinstance(option.parser, Integer)
        and None in (option.min, option.max)
    ]
    assert without == []
    assert len(NUMERIC) >= 27


def refused(read: Integer, text: str) -> bool:
    try:
        read(text)
    except typer.BadParameter as error:
        return f"from {read.bounds}" in error.message and error.message.endswith(("...", "'"))
    return False


@pytest.mark.parametrize("read", NUMERIC.values(), ids=NUMERIC)
def test_an_option_takes_numbers_at_its_bounds_and_none_beyond(read):
    least, most, _ = read.bounds
    for taken in (least, least + 1, most - 1, most):
        assert read(str(taken)) == ([taken] if read.several else taken)
    for beyond in (least - 1, most + 1, -(10**26), *NONSENSE):
        assert refused(read, str(beyond)), beyond
    assert refused(read, "-0") == (least > 0)


@pytest.mark.parametrize("read", [each for each in NUMERIC.values() if each.several], ids=str)
def test_a_list_is_refused_for_one_number_beyond(read):
    least, most, _ = read.bounds
    assert read(f"{least}, {most}") == [least, most]
    for wrong in (f"{least},{most + 1}", f"{least},,{most}", f"{least},", ","):
        assert refused(read, wrong)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "--orders", "1e26"], "'--orders': must be a whole number from 1 to 1,000, got '1e26'"),
        (["bench", "--documents", "2,99999"], "must be comma-separated whole numbers from 1 to 10,000"),
        (["bench", "--positions", "x"], "'--positions': must be comma-separated whole numbers from 0 to 9,999"),
        (["audit", "--questions", "x", "--orders", "1"], "'--orders': must be a whole number from 2 to 1,000, got '1'"),
        (["calibrate", "--seed", "\x1b[31m"], r"from 0 to 4,294,967,295, got '\x1b[31m'"),
    ],
    ids=lambda each: each[0] if isinstance(each, list) else "",
)  # fmt: skip
def test_the_error_names_the_option_the_bounds_and_the_value(cli, arguments, message):
    code, _, errors = cli(*arguments)
    assert code == 2 and message in errors and errors.count("\n") == 1


def test_help_states_the_bounds(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    code, output, _ = cli("bench", "--help")
    assert code == 0 and "1 to 1,000" in output and "1 to 10,000, ..." in output


def numbers_of_methods() -> Iterator[tuple[str, str]]:
    for name, method in METHODS.items():
        hints = get_type_hints(method.__init__)
        for parameter in inspect.signature(method).parameters:
            if {int, float} & {hints[parameter], *get_args(hints[parameter])}:
                yield name, parameter


def made(name: str, parameter: str, value: float) -> Any:
    required = {"channel": 1, "factor": 0.5, "layers": "None"} if name == ChannelScaling.name else {}
    given = {**required, parameter: value}
    if (name, parameter) == ("ms-poe", "min_ratio"):
        given["max_ratio"] = 1_000_000  # which it must not exceed
    if (name, parameter) == ("ms-poe", "max_ratio"):
        given["min_ratio"] = 0.001
    return get(f"{name}({','.join(f'{key}={each}' for key, each in given.items())})")


@pytest.mark.parametrize(("name", "parameter"), list(numbers_of_methods()), ids=str)
def test_a_number_in_the_text_of_a_method_has_bounds(name, parameter):
    with pytest.raises(MethodError) as raised:
        made(name, parameter, 10**26)
    found = re.search(r"from (\S+) to (\S+)$", str(raised.value))
    assert found and parameter in str(raised.value)
    least, most = (float(each.replace(",", "")) for each in found.groups())
    whole = "whole number" in str(raised.value)
    bounds = Bounds(int(least), int(most)) if whole else Bounds(least, most)
    for taken in (bounds.least, bounds.most):
        assert getattr(made(name, parameter, taken), parameter) == taken
    step = 1 if whole else 0.0005
    for beyond in (
        bounds.least - step,
        bounds.most + step,
        -(10**26),
        1e26,
        "1e999",
        "-1e999",
        "nan",
        "0x" + "f" * 5000,
    ):
        with pytest.raises(MethodError, match=parameter):
            made(name, parameter, beyond)


def test_the_numbers_of_methods_are_found():
    found = set(numbers_of_methods())
    assert {("attention-sorting", "rounds"), ("permutation-vote", "seed"), ("siw", "sigma")} <= found
    assert len(found) >= 13
