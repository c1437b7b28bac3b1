"""Methods from text: ``pine``, ``attention-sorting(rounds=2)``, ``siw+self-extend``."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

from ragbias.errors import MethodError
from ragbias.methods.base import Method
from ragbias.methods.compose import Compose
from ragbias.methods.registry import method_class

_ENTRY = re.compile(r"([^()\[\]]*)(?:\((.*)\))?", re.DOTALL)
_WORD = re.compile(r"[A-Za-z~./][\w.+/~-]*")
_QUOTED = r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'"""
_TOKEN = re.compile(rf"{_QUOTED}|.", re.DOTALL)  # a quoted string, or one character
# blanks inside a word are part of it: without them it would be another word, or the path of another file
_BLANKS = re.compile(rf"({_QUOTED})|^\s+|\s+$|\s*([()\[\]{{}},=+:])\s*", re.DOTALL)
ByName = Callable[[str, "str | None"], Method]
Named = TypeVar("Named")


def get(method: str | Method, model_name: str | None = None) -> Method:
    """A method from text; an instance is returned unchanged.

    Args:
        method: a name (``"pine"``), one with parameters (``"attention-sorting(rounds=2)"``), two methods that a paper
            combines (``"siw+channel-scaling(profile=p.json)"``), or an instance. Values are Python literals; words and
            paths need no quotes.
        model_name: the model, for methods with a profile per model (``"channel-scaling"``).

    Raises:
        UnknownMethodError: no method has this name.
        MethodError: the text is malformed, a parameter is unknown or out of range, or this model has no profile.
    """
    if isinstance(method, Method):
        return method
    if not isinstance(method, str):
        method_class(method)  # raises the error for this type
    return _parsed(without_blanks(method), model_name, _by_name)


def parse_methods(text: str, model_name: str | None = None, by_name: ByName | None = None) -> dict[str, Method]:
    """The methods of a comma-separated list by label, which is the typed text without white space.

    Args:
        text: methods as in ``get``.
        model_name: see ``get``.
        by_name: makes the method for a name without parameters and ``model_name``.

    Raises:
        UnknownMethodError: no method has this name.
        MethodError: the list is malformed, as in ``get``, or names a method twice.
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
    """Parts between the separators outside of brackets and quotes; errors show ``whole``."""
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
    found, values = class_and_values(label, "method", method_class)
    if not values:
        return by_name(found.name, model_name)
    try:
        return found.from_parameters(values, model_name)
    except MethodError as error:
        raise MethodError(f"method {label!r}: {error}") from error


def _by_name(name: str, model_name: str | None) -> Method:
    return method_class(name).from_parameters({}, model_name)


def class_and_values(label: str, kind: str, find: Callable[[str], Named]) -> tuple[Named, dict[str, Any]]:
    """What ``find`` returns for the name, and the parameters, of ``name(parameter=value,...)`` without blanks.

    Raises:
        MethodError: the text is malformed; ``kind`` names it. Errors of ``find`` pass.
    """
    match = _ENTRY.fullmatch(label)
    if match is None:
        raise MethodError(f"{kind} {label!r}: expected a name, or name(parameter=value,...)")
    name, arguments = match.groups()
    found = find(name)
    values: dict[str, Any] = {}
    for argument in split(arguments, ",", label) if arguments else ():
        parameter, equals, value = argument.partition("=")
        if not equals or not value:
            raise MethodError(f"{kind} {label!r}: {argument!r}; expected parameter=value")
        if parameter in values:
            raise MethodError(f"{kind} {label!r}: {parameter!r} is given twice")
        try:
            values[parameter] = ast.literal_eval(value)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):  # all that literal_eval raises
            if not _WORD.fullmatch(value):
                message = f"{kind} {label!r}: {value!r} is neither a Python literal nor a word"
                raise MethodError(message) from None
            values[parameter] = value
    return found, values


def written(method: Method) -> str:
    """The text from which ``get`` makes this method.

    Raises:
        MethodError: a parameter has no literal, such as a function.
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
        raise MethodError(f"{method!r} cannot be written as text, because a parameter has no literal")
    return text
