"""Methods with their parameters, as typed in one line: ``none,pine,attention-sorting(rounds=2)``."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any

from ragbias.errors import MethodError
from ragbias.methods import Method, get, method_class

_ENTRY = re.compile(r"([^()\[\]]*)(?:\((.*)\))?", re.DOTALL)
_WORD = re.compile(r"[A-Za-z][\w.+-]*")


def parse_methods(
    text: str, model_name: str | None = None, by_name: Callable[[str, str | None], Method] = get
) -> dict[str, Method]:
    """The methods of a list, each under its label: the text it was typed as, without white space.

    Args:
        text: names separated by commas, each with parameters in brackets where they are not the default; values are
            Python literals, or bare words for strings.
        model_name: where a method has a profile per model (``"channel-scaling"``), the model it is for.
        by_name: gives the method for a name without parameters, and ``model_name``.

    Raises:
        UnknownMethodError: no method has this name.
        MethodError: the text is no such list, a parameter is unknown or out of range, or a method stands twice.
    """
    found: dict[str, Method] = {}
    for label in _split("".join(text.split()), text):
        method = _parse(label, model_name, by_name)
        for other, same in found.items():
            if method == same:
                raise MethodError(f"methods {text!r}: {label!r} is the same as {other!r}; name each method once")
        found[label] = method
    return found


def _split(text: str, whole: str) -> list[str]:
    """Parts between the commas that stand outside of brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if depth < 0:
            break
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    if depth != 0:
        raise MethodError(f"{whole!r}: the brackets do not match; expected e.g. 'attention-sorting(rounds=2)'")
    if not all(parts):
        raise MethodError(f"{whole!r}: nothing stands before or after a comma; expected e.g. 'none,pine'")
    return parts


def _parse(label: str, model_name: str | None, by_name: Callable[[str, str | None], Method]) -> Method:
    match = _ENTRY.fullmatch(label)
    if match is None:
        raise MethodError(f"method {label!r}: expected a name, or name(parameter=value,...)")
    name, arguments = match.groups()
    found = method_class(name)
    if not arguments:
        return by_name(name, model_name)
    known = [each for each in fields(found) if each.init]  # type: ignore[arg-type]  # every method is a dataclass
    values: dict[str, Any] = {}
    for argument in _split(arguments, label):
        parameter, equals, value = argument.partition("=")
        if not equals or not value:
            raise MethodError(f"method {label!r}: {argument!r}; expected parameter=value")
        if parameter not in (each.name for each in known):
            has = ", ".join(each.name for each in known) or "none"
            raise MethodError(f"method {label!r}: unknown parameter {parameter!r}; parameters of {name!r}: {has}")
        if parameter in values:
            raise MethodError(f"method {label!r}: {parameter!r} is given twice")
        values[parameter] = _value(value, label)
    missing = [each.name for each in known if each.default is MISSING and each.name not in values]
    if missing:
        raise MethodError(f"method {label!r}: {', '.join(missing)} missing; give all of them, or {name!r} alone")
    return found(**values)


def _value(text: str, label: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        if _WORD.fullmatch(text):
            return text
        raise MethodError(f"method {label!r}: {text!r} is neither a Python literal nor a word") from None
