"""The table of ``ragbias methods``: requirements, guarantees and cost of each method, as it declares them."""

from __future__ import annotations

import inspect
import re
import warnings
from dataclasses import asdict, dataclass
from typing import Any

from ragbias.binding.architectures import ARCHITECTURES, ROTARY
from ragbias.errors import MethodError
from ragbias.methods import METHODS, Method, method_class, method_names

HEADINGS = ("method", "acts on", "spans", "invariant", "layers", "families", "cost beside the plain model", "source")


@dataclass(frozen=True)
class MethodRow:
    """One row of the table.

    Attributes:
        constructor: the class with its parameters and their defaults.
        acts_on: ``"attention"``, ``"order"`` (of the documents), ``"tokens"``, ``"answers"`` or ``"nothing"``.
        needs_spans: whether it needs the documents' tokens.
        layers: where it acts by default.
        families: the architectures it runs on.
        description: one sentence.
        documentation: the docstring of its class.
    """

    name: str
    constructor: str
    acts_on: str
    needs_spans: bool
    invariant: bool
    layers: str
    cost: str
    families: list[str]
    source: str
    description: str
    documentation: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def cells(self) -> tuple[str, ...]:
        """The row in words, in the order of ``HEADINGS``."""
        families = (
            "any" if self.acts_on != "attention" else "all" if set(self.families) == set(ARCHITECTURES) else "rotary"
        )
        spans, invariant = ("yes" if value else "no" for value in (self.needs_spans, self.invariant))
        return self.name, self.acts_on, spans, invariant, self.layers, families, self.cost, self.source


def method_table() -> list[MethodRow]:
    """One row for each method; an unusable one of another distribution is left out with a warning."""
    return [_row(method) for method in map(_usable, method_names()) if method]


def _usable(name: str) -> type[Method] | None:
    try:
        return method_class(name)
    except MethodError as error:
        warnings.warn(str(error), stacklevel=4)
        return None


def family_notes() -> str:
    """The legend of the families' column."""
    others = ", ".join(family for family in ARCHITECTURES if family not in ROTARY)
    return f"families: all = {', '.join(ARCHITECTURES)}; rotary = all but {others}; any = every causal model"


def _row(method: type[Method]) -> MethodRow:
    documentation = inspect.getdoc(method) or ""
    return MethodRow(
        name=method.name,
        constructor=_constructor(method),
        acts_on=method.acts_on,
        needs_spans=method.needs_documents,
        invariant=method.invariant,
        layers=method.default_layers,
        cost=method.cost,
        families=list(ROTARY if method.needs_rotary else ARCHITECTURES),
        source=method.source,
        description=_first_sentence(documentation),
        documentation=documentation,
    )


def _first_sentence(documentation: str) -> str:
    """On one line, without the marks of code."""
    paragraph = " ".join(documentation.partition("\n\n")[0].split()).replace("`", "")
    return re.split(r"(?<=\.) ", paragraph)[0]


def _constructor(method: type[Method]) -> str:
    parameters = [
        name if parameter.default is parameter.empty else f"{name}={parameter.default!r}"
        for name, parameter in inspect.signature(method).parameters.items()
    ]
    return f"{method.__name__}({', '.join(parameters)})"


def as_markdown() -> str:
    """The table of this package's methods in Markdown, sources as links; ``ragbias methods NAME`` shows the cost."""
    shown = [name for name in HEADINGS if not name.startswith("cost")]
    lines = [_line(shown), _line(["---"] * len(shown))]
    for row in map(_row, METHODS.values()):
        cells = dict(zip(HEADINGS, row.cells(), strict=True))
        cells["method"] = f"`{row.name}`"
        cells["source"] = re.sub(r"arXiv (\d+\.\d+)", r"[\1](https://arxiv.org/abs/\1)", row.source)
        lines.append(_line([cells[name] for name in shown]))
    return "\n".join(lines) + "\n"


def _line(cells: tuple[str, ...] | list[str]) -> str:
    return f"| {' | '.join(cells)} |"
