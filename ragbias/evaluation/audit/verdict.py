"""The verdict and the recommendation of an audit, in plain words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from ragbias.evaluation.audit.outcomes import WORTH, Audit, Outcome
from ragbias.evaluation.measures.bootstrap import Interval
from ragbias.methods import NoMethod

LOSS = 0.02  # maximum loss of accuracy, at the interval's low end, of a recommended method
UNKNOWN = "Accuracy was not measured; add right answers to the questions to see whether the method improves it."
OF_ANSWERS = (
    "A flip: the answer means something else in another order. 'Paris' and 'Lyon' are a flip; 'Paris' and 'It is "
    "Paris.' are not, because one contains the other."
)
OF_RIGHTNESS = (
    "A flip: the answer is right in one order and wrong in another. If 'Paris' is right, 'It is Paris.' and 'Lyon' are "
    "a flip; 'Lyon' and 'Rome' are not, because both are wrong."
)


class Verdict(Enum):
    """Whether answers depend on the order of the documents."""

    PROBLEM = "problem"
    NO_PROBLEM = "no problem"
    TOO_FEW = "too few examples"


def verdict(outcome: Outcome) -> Verdict:
    """Return the verdict for the excess ``x`` (flips minus noise floor) with 95% interval ``[low, high]``.

    - ``NO_PROBLEM``: ``high < 10%``, or ``x <= 0`` with an invariant method that ran on every question.
    - ``PROBLEM``: ``x >= 10%`` and ``low > 0``.
    - ``TOO_FEW``: otherwise. More questions are needed.
    """
    excess = outcome.headline.excess
    if excess.high < WORTH or (outcome.method.invariant and outcome.ran == 1 and excess.estimate <= 0):
        return Verdict.NO_PROBLEM
    return Verdict.PROBLEM if excess.estimate >= WORTH and excess.low > 0 else Verdict.TOO_FEW


@dataclass(frozen=True)
class Recommendation:
    """The result of an audit. ``method`` is None if no method is recommended."""

    verdict: Verdict
    method: str | None
    text: str
    headline: str


def definition(audit: Audit) -> str:
    """Define a flip in this audit, with two examples."""
    return OF_RIGHTNESS if audit.labelled else OF_ANSWERS


def recommendation(audit: Audit, time_ratios: Mapping[str, float], consistent: bool = False) -> Recommendation:
    """Return the verdict on the unchanged pipeline, and recommend a method.

    A method helps if its verdict is ``NO_PROBLEM``. It also helps if it at least halves the pipeline's excess of flips,
    and the interval of its excess is below that of the pipeline. Of these methods, the one with the largest gain in
    accuracy is recommended, then the one with the fewest flips. Methods that ``may_lose`` accuracy are excluded. With
    ``consistent``, accuracy is ignored and no method is excluded.
    """
    label = audit.as_it_is
    now = audit.outcomes[label]
    decision = verdict(now)
    if decision is Verdict.NO_PROBLEM:
        running = "" if now.method.name == NoMethod.name else f" with {now.method.name}"
        return Recommendation(decision, None, _no_problem(audit, now), decision.value + running)
    if decision is Verdict.TOO_FEW:
        return Recommendation(decision, None, _too_few(audit, now), decision.value)
    problem = f"You have the problem: {_share_of_flips(now)}."
    outcomes = audit.outcomes.items()
    others = {name: other for name, other in outcomes if name != label and other.method.acts_on != "nothing"}
    helpful = {name: other for name, other in others.items() if _helps(other, now)}
    safe = {name: other for name, other in helpful.items() if consistent or not may_lose(other)}
    if not safe:
        text = f"{problem} None of the methods tried helps enough (tried: {', '.join(others) or 'none'})."
        if helpful:
            text = f"{problem} No method is recommended: {_losses(helpful)} --consistency ignores accuracy."
        return Recommendation(decision, None, text, decision.value)

    def rank(name: str) -> tuple[float, float, bool, float]:
        outcome = safe[name]
        gain = 0.0 if consistent or outcome.better is None else outcome.better.estimate
        return -gain, outcome.headline.flips.estimate, outcome.method.acts_on == "order", time_ratios.get(name, 1.0)

    best = min(safe, key=rank)
    text = f"{problem} {_advice(best, safe[best], time_ratios.get(best))}"
    return Recommendation(decision, best, text, decision.value)


def may_lose(outcome: Outcome) -> bool:
    """Whether the estimated accuracy decreases, or may decrease by more than ``LOSS``. False if unknown."""
    return outcome.better is not None and (outcome.better.estimate < 0 or outcome.better.low < -LOSS)


def _helps(outcome: Outcome, now: Outcome) -> bool:
    remaining, current = outcome.headline.excess, now.headline.excess
    fewer = remaining.estimate <= current.estimate / 2 and remaining.high < current.estimate
    return verdict(outcome) is Verdict.NO_PROBLEM or fewer


def _losses(outcomes: Mapping[str, Outcome]) -> str:
    changes = (
        f"{name} leaves {outcome.headline.flips.estimate:.0%} and changes the share of right answers by "
        f"{_points(outcome.better)}"
        for name, outcome in outcomes.items()
        if outcome.better is not None
    )
    more = any(outcome.better is not None and outcome.better.estimate >= 0 for outcome in outcomes.values())
    remedy = " Give more questions to narrow the intervals." if more else ""
    return f"{'; '.join(changes)}, and a method must not lose more than {100 * LOSS:.0f} points.{remedy}"


def _share_of_flips(outcome: Outcome) -> str:
    headline, flips = outcome.headline, outcome.headline.flips
    what = "get another answer" if outcome.rightness is None else "turn from right to wrong, or back,"
    return (
        f"{flips.estimate:.0%} ({flips.low:.0%} to {flips.high:.0%}) of your questions {what} when only the order of "
        "the documents changes; "
        f"repetition in the same order changes {headline.floor.estimate:.0%}"
    )


def _no_problem(audit: Audit, now: Outcome) -> str:
    """Explain the verdict ``NO_PROBLEM`` for the plain model, or for the pipeline's current method."""
    at_most = (
        f"beyond what repetition changes, at most {max(0.0, now.headline.excess.high):.0%} of the answers depend on "
        "the order of the documents"
    )
    name = now.method.name
    if name == NoMethod.name:
        return f"You do not have this problem: {at_most}. No method is worth its cost here."
    if now.method.invariant and now.ran == 1:
        at_most = "its answers do not depend on the order, and it ran on every question"
    text = f"With {name}, which your pipeline already uses, you do not have this problem: {at_most}."
    plain = next((outcome for outcome in audit.outcomes.values() if outcome.method.name == NoMethod.name), None)
    if plain is None:
        return (
            f"{text} Whether you could drop {name} is unknown: the plain model was not measured; add none to --methods."
        )
    return f"{text} Without it, {_share_of_flips(plain)} (verdict: {verdict(plain).value})."


def _too_few(audit: Audit, now: Outcome) -> str:
    excess = now.headline.excess
    return (
        f"Too few examples to tell: with {audit.questions} questions, anything from {max(0.0, excess.low):.0%} to "
        f"{excess.high:.0%} of your answers may depend on the order of the documents. It is a problem from {WORTH:.0%} "
        "on. Give more questions."
    )


def _advice(label: str, outcome: Outcome, ratio: float | None) -> str:
    costs = "" if ratio is None else f" and takes {ratio:.2f} times as long to the first token"
    text = (
        f"{label} brings this to {outcome.headline.flips.estimate:.0%}, changes {outcome.changed.estimate:.0%} of the "
        f"current answers{costs}."
    )
    if outcome.method.acts_on == "order":
        text += (
            " It only fixes the order: answers are consistent, but the model still overlooks documents at the "
            "positions that it neglects."
        )
    if outcome.better is None:
        return f"{text} {UNKNOWN}"
    better = outcome.better
    if better.low > 0:
        return f"{text} It is right more often, by {_points(better)}."
    if may_lose(outcome):
        return f"{text} It may be right less often: {_points(better)}."
    return f"{text} The share of right answers does not clearly change: {_points(better)}."


def _points(interval: Interval) -> str:
    low, high = 100 * interval.low, 100 * interval.high
    return f"{100 * interval.estimate:+.0f} points ({low:+.0f} to {high:+.0f})"
