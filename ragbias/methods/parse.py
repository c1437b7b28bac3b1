"""Methods from text, the same everywhere: ``pine``, ``attention-sorting(rounds=2)``, ``siw+self-extend``."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from ragbias.errors import MethodError
from ragbias.methods.base import Method
from ragbias.methods.compose import Compose
from ragbias.methods.registry import method_class

_ENTRY = re.compile(r"([^()\[\]]*)(?:\((.*)\))?", re.DOTALL)
_WORD = re.compile(r"[A-Za-z~./][\w.+/~-]*")
_QUOTED = r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'"""
_TOKEN = re.compile(rf"{_QUOTED}|.", re.DOTALL)  # a string in quotes, or one character outside of them
# blanks inside a word are part of it: without them it would be another word, or the path of another file
_BLANKS = re.compile(rf"({_QUOTED})|^\s+|\s+$|\s*([()\[\]{{}},=+:])\s*", re.DOTALL)
ByName = Callable[[str, "str | None"], Method]


def get(method: str | Method, model_name: str | None = None) -> Method:
    """A method as typed; an instance is returned as it is.

    Args:
        method: a name (``"pine"``), one with parameters (``"attention-sorting(rounds=2)"``), two methods that a paper
            combines (``"siw+channel-scaling(profile=p.json)"``), or an instance. Values are Python literals; strings
            that are words or paths need no quotes.
        model_name: where a method has a profile per model (``"channel-scaling"``), the model it is for.

    Raises:
        UnknownMethodError: no method has this name.
        MethodError: the text is no method, a parameter is unknown or out of range, or this model has no profile.
    """
    if isinstance(method, Method):
        return method
    if not isinstance(method, str):
        method_class(method)  # says what was expected
    return _parsed(without_blanks(method), model_name, _by_name)


def parse_methods(text: str, model_name: str | None = None, by_name: ByName | None = None) -> dict[str, Method]:
    """The methods of a list with commas, each under its label: the text it was typed as, without white space.

    Args:
        text: methods as ``get`` takes them.
        model_name: as of ``get``.
        by_name: gives the method for a name without parameters, and ``model_name``.

    Raises:
        UnknownMethodError: no method has this name.
        MethodError: the text is no such list, or as of ``get``, or a method is named twice.
    """
    found: dict[str, Method] = {}
    for label in split(without_blanks(text), ",", text):
        method = _parsed(label, model_name, by_name or _by_name)
        for other, same in found.items():
            if method == same:
                raise MethodError(f"methods {text!r}: {label!r} is the same as {other!r}; name each method once")
        found[label] = method
    return found


def without_blanks(text: str) -> str:
    """The text without the white space around its brackets, separators and ends."""
    return _BLANKS.sub(lambda match: match.group(1) or match.group(2) or "", text)


def split(text: str, at: str, whole: str) -> list[str]:
    """Parts between the separators that are outside of brackets and quotes; ``whole`` is what an error shows."""
    parts, depth = [""], 0
    for token in _TOKEN.findall(text):
        depth += (token in "([{") - (token in ")]}")
        if depth < 0:
            break
        if token == at and depth == 0:
            parts.append("")
        else:
            parts[-1] += token
    if depth != 0:
        raise MethodError(f"{whole!r}: the brackets do not match; expected e.g. 'attention-sorting(rounds=2)'")
    if not all(parts):
        raise MethodError(f"{whole!r}: nothing before or after {at!r}; expected e.g. 'a{at}b'")
    return parts


def _parsed(label: str, model_name: str | None, by_name: ByName) -> Method:
    if "+" not in label:
        return _single(label, model_name, by_name)
    parts = [_single(part, model_name, by_name) for part in split(label, "+", label)]
    return parts[0] if len(parts) == 1 else Compose(*parts)


def _single(label: str, model_name: str | None, by_name: ByName) -> Method:
    name, values = name_and_values(label, "method", method_class)
    found = method_class(name)
    if not values:
        return by_name(name, model_name)
    try:
        return found.from_parameters(values, model_name)
    except MethodError as error:
        raise MethodError(f"method {label!r}: {error}") from error


def _by_name(name: str, model_name: str | None) -> Method:
    return method_class(name).from_parameters({}, model_name)


def name_and_values(label: str, what: str, known: Callable[[str], object]) -> tuple[str, dict[str, Any]]:
    """The name and the parameters of ``name(parameter=value,...)``.

    Args:
        label: the text, without blanks.
        what: it is, for errors.
        known: raises for a name that is not known, before the parameters are looked at.
    """
    match = _ENTRY.fullmatch(label)
    if match is None:
        raise MethodError(f"{what} {label!r}: expected a name, or name(parameter=value,...)")
    name, arguments = match.groups()
    known(name)
    values: dict[str, Any] = {}
    for argument in split(arguments, ",", label) if arguments else ():
        parameter, equals, value = argument.partition("=")
        if not equals or not value:
            raise MethodError(f"{what} {label!r}: {argument!r}; expected parameter=value")
        if parameter in values:
            raise MethodError(f"{what} {label!r}: {parameter!r} is given twice")
        values[parameter] = _value(value, f"{what} {label!r}")
    return name, values


def _value(text: str, label: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):  # all that literal_eval raises
        if _WORD.fullmatch(text):
            return text
        raise MethodError(f"{label}: {text!r} is neither a Python literal nor a word") from None


def written(method: Method) -> str:
    """The text that ``get`` makes this method of.

    Raises:
        MethodError: a parameter is an object that cannot be written, as a function.
    """
    if isinstance(method, Compose):
        return "+".join(written(getattr(method, each.name)) for each in fields(method))
    given = {each.name: getattr(method, each.name) for each in fields(method) if each.init}  # type: ignore[arg-type]
    text = f"{method.name}({','.join(f'{name}={value!r}' for name, value in given.items())})" if given else method.name
    try:
        same = get(text) == method
    except MethodError:
        same = False
    if not same:
        raise MethodError(
            f"{method!r} cannot be written as text, as it has a parameter that is an object of this program"
        )
    return text
