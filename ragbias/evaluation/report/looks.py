"""How methods are drawn and named in every picture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ragbias.display import printable
from ragbias.evaluation.names import REFERENCE

# the colours that Okabe and Ito found safe for the colour-blind; lines differ in dashes and markers as well
LINES: tuple[tuple[str, Any], ...] = (
    ("#d55e00", "--"),
    ("#0072b2", "-."),
    ("#009e73", ":"),
    ("#cc79a7", (0, (5, 1, 1, 1, 1, 1))),
    ("#56b4e9", (0, (1, 1))),
)
MARKERS = "s^DvP<>p"
FEW = 4  # layers that are listed one by one


@dataclass(frozen=True)
class Look:
    """How one method is drawn."""

    colour: str
    dashes: Any
    marker: str
    filling: str


BLACK = Look("#000000", "-", "o", "#000000")


def looks_of(labels: Iterable[str]) -> dict[str, Look]:
    """One look for each label, the first 17 told apart by marker and filling alone.

    The plain model, or the first label where it is not among them, is black, and none of the others is. Figures that
    are read beside each other take one assignment, made of the labels of all of them.
    """
    plain_first = sorted(dict.fromkeys(labels), key=lambda label: label != REFERENCE)
    looks = dict.fromkeys(plain_first[:1], BLACK)
    for index, label in enumerate(plain_first[1:]):
        colour, dashes = LINES[index % len(LINES)]
        filling = "white" if index // len(MARKERS) % 2 else colour
        looks[label] = Look(colour, dashes, MARKERS[index % len(MARKERS)], filling)
    return looks


def literal(text: str) -> str:
    """A name as matplotlib draws it letter by letter; between two dollar signs it would read mathematics."""
    return printable(text).replace("$", r"\$")


def named_layers(layers: Sequence[int]) -> str:
    """Layers in words, ascending: ``layer 3``, ``layers 2 to 8``, ``layers 2, 5``, ``6 of layers 2 to 9``."""
    first, last = layers[0], layers[-1]
    if first == last:
        return f"layer {first}"
    if len(layers) == last - first + 1:
        return f"layers {first} to {last}"
    return (
        f"layers {', '.join(map(str, layers))}" if len(layers) <= FEW else f"{len(layers)} of layers {first} to {last}"
    )
