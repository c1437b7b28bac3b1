"""Create methods from text such as ``pine`` or ``siw+self-extend``, and convert methods to text.

Other distributions can add methods with the entry point group ``ragbias.methods``::

    [project.entry-points."ragbias.methods"]
    my-method = "my_package:MyMethod"
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from ragbias import methods  # METHODS is incomplete during this import
from ragbias.display import did_you_mean
from ragbias.errors import MethodError, UnknownMethodError
from ragbias.methods.base import Method
from ragbias.methods.compose import Compose

_ENTRY = re.compile(r"([^()\[\]]*)(?:\((.*)\))?", re.DOTALL)
_WORD = re.compile(r"[A-Za-z~./][\w.+/~-]*")
_QUOTED = r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'"""
_TOKEN = re.compile(rf"{_QUOTED}|.", re.DOTALL)  # a quoted string, or one character
# this does not match blanks inside words, because they may be part of a path
_BLANKS = re.compile(rf"({_QUOTED})|^\s+|\s+$|\s*([()\[\]{{}},=+:])\s*", re.DOTALL)
DECLARED = ("acts_on", "cost", "source")  # attributes that every method declares besides its name
Named = TypeVar("Named")


def method_names() -> list[str]:
    """Return the names of all methods. The methods of this package come first."""
    return [*methods.METHODS, *_entry_points()]


def method_class(name: str) -> type[Method]:
    """Return the class of the method with this name. Raise ``UnknownMethodError`` if there is none."""
    if name in methods.METHODS:
        return methods.METHODS[name]
    if name in _entry_points():
        return _load_entry_point(name)
    names = method_names()
    raise UnknownMethodError(f"unknown method {name!r}; {did_you_mean(name, names)}known methods: {', '.join(names)}")


@cache
def _entry_points() -> dict[str, EntryPoint]:
    """Return the entry points of other distributions by name. Skip names of methods in this package."""
    return {entry.name: entry for entry in entry_points(group="ragbias.methods") if entry.name not in methods.METHODS}


@cache
def _load_entry_point(name: str) -> type[Method]:
    entry = _entry_points()[name]
    distribution = entry.dist.name if entry.dist else "another distribution"
    described = f"method {name!r} of {distribution} ({entry.value})"
    try:
        cls = entry.load()
    except (Exception, SystemExit) as error:  # imports raise errors of any class
        raise MethodError(f"{described} cannot be imported: {type(error).__name__}: {error}") from error
    if not (isinstance(cls, type) and issubclass(cls, Method)):
        raise MethodError(f"{described} is {cls!r}; expected a class derived from ragbias.methods.Method")
    if getattr(cls, "name", None) != name:
        raise MethodError(f"{described} has the name {getattr(cls, 'name', None)!r}; expected the entry point's name")
    if undeclared := [name for name in DECLARED if not isinstance(getattr(cls, name, None), str)]:
        raise MethodError(f"{described} declares no {', '.join(undeclared)}; see ragbias.methods.Method")
    return cls


def get(
    method: str | Method | None, model_name: str | None = None, reader: str | os.PathLike[str] | None = None
) -> Method:
    """Create a method from text, or return the given instance. If there is a ``reader``, add it to the method.

    Args:
        method: a name (``"pine"``), a name with parameters (``"attention-sorting(rounds=2)"``), a combination of two
            methods (``"siw+channel-scaling(profile=p.json)"``), or an instance. Values are Python literals, but words
            and paths need no quotes. ``None`` selects ``default_method(model_name)``.
        model_name: name of the model, for its default method and for methods with a profile per model.
        reader: folder or name of a reader adapter for the method, as in ``"pcw(reader=folder)"``; may be empty.

    Raises:
        UnknownMethodError: no method has this name.
        MethodError: the text is malformed, a parameter is unknown or out of range, or this model has no profile.
    """
    if method is None:
        method = methods.default_method(model_name)
    if isinstance(method, str):
        method = _parse(without_blanks(method), model_name)
    if not isinstance(method, Method):
        raise UnknownMethodError(
            f"method={method!r}; expected a name such as 'pine', or an instance such as Pine(); "
            "'none' runs the plain model"
        )
    if reader is not None and not isinstance(reader, (str, os.PathLike)):
        raise MethodError(f"reader={reader!r}; expected the path of a folder")
    method = replace(method, reader=os.fspath(reader)) if reader else method
    if method.reader and not method.takes_reader:
        raise MethodError(f"{method.name} takes no reader; use 'none', 'pine', 'pcw' or another attention method")
    return method


def parse_methods(text: str, model_name: str | None = None) -> dict[str, Method]:
    """Create the methods in a comma-separated list. The keys are their texts without blanks."""
    parsed: dict[str, Method] = {}
    for label in split_outside_brackets(without_blanks(text), ",", text):
        method = _parse(label, model_name)
        for other, same in parsed.items():
            if method == same:
                raise MethodError(f"methods {text!r}: {label!r} is the same as {other!r}; name each method once")
        parsed[label] = method
    return parsed


def without_blanks(text: str) -> str:
    """Remove white space at the ends of a text, and around brackets and separators."""
    return _BLANKS.sub(lambda match: match.group(1) or match.group(2) or "", text)


def split_outside_brackets(text: str, separator: str, whole: str) -> list[str]:
    """Split a text at separators outside of brackets and quotes. Error messages quote ``whole``."""
    parts = [""]
    depth = 0
    for token in _TOKEN.findall(text):
        if token in "([{":
            depth += 1
        elif token in ")]}":
            depth -= 1
        if depth < 0:
            break
        if token == separator and depth == 0:
            parts.append("")
        else:
            parts[-1] += token
    if depth != 0:
        raise MethodError(f"{whole!r}: the brackets do not match; expected e.g. 'attention-sorting(rounds=2)'")
    if not all(parts):
        raise MethodError(f"{whole!r}: nothing before or after {separator!r}; expected e.g. 'a{separator}b'")
    return parts


def _parse(label: str, model_name: str | None) -> Method:
    labels = split_outside_brackets(label, "+", label) if "+" in label else [label]
    parts = [_parse_single(part, model_name) for part in labels]
    return parts[0] if len(parts) == 1 else Compose(*parts)


def _parse_single(label: str, model_name: str | None) -> Method:
    cls, values = parse_call(label, "method", method_class)
    try:
        return cls.from_parameters(values, model_name)
    except MethodError as error:
        if not values:
            raise
        raise MethodError(f"method {label!r}: {error}") from error


def parse_call(label: str, kind: str, find: Callable[[str], Named]) -> tuple[Named, dict[str, Any]]:
    """Parse a label such as ``name(parameter=value,...)``. Return ``find(name)`` and the parameters."""
    match = _ENTRY.fullmatch(label)
    if match is None:
        raise MethodError(f"{kind} {label!r}: expected a name, or name(parameter=value,...)")
    name, arguments = match.groups()
    found = find(name)
    values: dict[str, Any] = {}
    assignments = split_outside_brackets(arguments, ",", label) if arguments else []
    for argument in assignments:
        parameter, equals, value = argument.partition("=")
        if not equals or not value:
            raise MethodError(f"{kind} {label!r}: {argument!r}; expected parameter=value")
        if parameter in values:
            raise MethodError(f"{kind} {label!r}: {parameter!r} is given twice")
        try:
            values[parameter] = ast.literal_eval(value)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):  # literal_eval raises all these
            if not _WORD.fullmatch(value):
                message = f"{kind} {label!r}: {value!r} is neither a Python literal nor a word"
                raise MethodError(message) from None
            values[parameter] = value
    return found, values


def format_method(method: Method) -> str:
    """Return text from which ``get`` creates the method. Raise ``MethodError`` if a parameter has no literal."""
    if isinstance(method, Compose):
        return "+".join(format_method(getattr(method, part.name)) for part in fields(method) if part.name != "reader")
    values = {field.name: getattr(method, field.name) for field in fields(method) if field.init}
    parameters = [f"{name}={value!r}" for name, value in values.items() if name != "reader" or value]
    text = f"{method.name}({','.join(parameters)})" if parameters else method.name
    try:
        same = get(text) == method
    except MethodError:
        same = False
    if not same:
        raise MethodError(f"{method!r} cannot be written as text, because a parameter has no literal")
    return text
