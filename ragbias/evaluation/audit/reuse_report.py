"""What the gate of reuse says: a table, a recommendation in plain words, and plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from ragbias.evaluation.audit.reuse_gate import LESS_PROBABLE, ReuseGate
from ragbias.evaluation.audit.verdict import WORTH
from ragbias.evaluation.measures.bootstrap import Interval
from ragbias.evaluation.report.plain_table import plain_table

TITLE = "May documents be computed once? The next token against what runs without reuse"
HEADINGS = ("against", "agrees (%)", "KL", "reversed (%)", "KL", "known answers", "kept", "again", "reuse")
WARNING = (
    "Documents that are computed by themselves do not see each other. Questions that join several of them lose the "
    "most, and a judge cannot compare what it is shown: do not reuse documents there."
)
PAIRS = "Each prompt holds two documents; if this is a judge that compares them, leave reuse alone."


def reuse_table(gates: Mapping[str, ReuseGate]) -> Table:
    """The table for the terminal."""
    made = plain_table(TITLE, "method", *HEADINGS, wrap=True)
    made.columns[0].min_width = max(map(len, gates))
    for label, cells in rows(gates).items():
        made.add_row(label, *cells)
    return made


def rows(gates: Mapping[str, ReuseGate]) -> dict[str, list[str]]:
    """One line for each method."""
    return {
        label: [
            gate.against,
            _percent(gate.agreement),
            f"{gate.divergence.estimate:.3f}",
            _percent(gate.reversed_agreement),
            f"{gate.reversed_divergence.estimate:.3f}",
            _nats(gate.known) if gate.known else "-",
            f"{gate.kept:.0%}",
            f"{gate.again:.0%}",
            gate.verdict,
        ]
        for label, gate in gates.items()
    }


def advice(gates: Mapping[str, ReuseGate]) -> str:
    """What to do, in plain words."""
    told = [_told(label, gate) for label, gate in gates.items()]
    return " ".join([*told, *([PAIRS] if any(gate.pairs for gate in gates.values()) else []), WARNING])


def as_dict(gates: Mapping[str, ReuseGate]) -> dict[str, Any]:
    return {"text": advice(gates), "methods": {label: gate.as_dict() for label, gate in gates.items()}}


def _told(label: str, gate: ReuseGate) -> str:
    if gate.known is None:
        found = (
            f"its next token agrees with that of {gate.against} on {_percent(gate.agreement)}% of {gate.questions} "
            f"questions, and reversing the documents leaves {gate.reversed_agreement.estimate:.0%}"
        )
    else:
        found = f"the known answers' log-probability changes by {_nats(gate.known)} nats against {gate.against}"
    saved = f"A request whose documents are kept computes {1 - gate.kept:.0%} of its tokens."
    if gate.verdict == "for":
        return f"Reuse pays with {label}: {found}. {saved}"
    if gate.verdict == "against":
        return f"Do not reuse documents with {label}: {found}."
    bearable = f"{WORTH:.0%} less agreement" if gate.known is None else f"{LESS_PROBABLE} nats"
    return f"Too few examples to tell of {label}: {found}, and {bearable} would matter. Give more questions. {saved}"


def _percent(interval: Interval) -> str:
    return f"{100 * interval.estimate:.0f} [{100 * interval.low:.0f}, {100 * interval.high:.0f}]"


def _nats(interval: Interval) -> str:
    return f"{interval.estimate:+.2f} [{interval.low:+.2f}, {interval.high:+.2f}]"
