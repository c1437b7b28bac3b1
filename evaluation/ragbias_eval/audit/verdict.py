"""Decide and explain the verdict and the recommended method of an audit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from ragbias.data.intervals import Interval
from ragbias.methods import NoMethod, ReorderingMethod
from ragbias_eval.audit.outcomes import THRESHOLD, Audit, Outcome

MAX_LOSS = 0.02  # a recommended method may lose this much accuracy, at the low end of its interval
ANSWER_FLIP = (
    "A flip: the answer has another meaning in another order. 'Paris' and 'Lyon' are a flip; 'Paris' and 'It is "
    "Paris.' are not, because one contains the other."
)
RIGHTNESS_FLIP = (
    "A flip: the answer is right in one order and wrong in another. If 'Paris' is right, 'It is Paris.' and 'Lyon' are "
    "a flip; 'Lyon' and 'Rome' are not, because both are wrong."
)
NEVER_RIGHT = (
    "Changes between right and wrong are not counted, because no answer is right in any order: check that the "
    "documents contain the right answers from your file."
)


class Verdict(Enum):
    """Whether answers depend on the order of the documents."""

    PROBLEM = "problem"
    NO_PROBLEM = "no problem"
    TOO_FEW = "too few examples"


def decide_verdict(outcome: Outcome) -> Verdict:
    """Decide from the excess ``x`` (flips minus noise floor) and its 95% interval ``[low, high]``.

    - ``NO_PROBLEM``: ``high < 10%``, or ``x <= 0`` with an invariant method that ran on every question.
    - ``PROBLEM``: ``x >= 10%`` and ``low > 0``.
    - ``TOO_FEW``: otherwise. More questions are needed.
    """
    excess = outcome.headline.excess
    if excess.high < THRESHOLD or (outcome.method.invariant and outcome.ran == 1 and excess.estimate <= 0):
        return Verdict.NO_PROBLEM
    return Verdict.PROBLEM if excess.estimate >= THRESHOLD and excess.low > 0 else Verdict.TOO_FEW


@dataclass(frozen=True)
class Recommendation:
    """The verdict on the unchanged pipeline, and the recommended method (None: no method is recommended)."""

    verdict: Verdict
    method: str | None
    text: str


def define_flip(audit: Audit) -> str:
    """Define a flip in this audit, with two examples."""
    if audit.uses_accepted_answers:
        return RIGHTNESS_FLIP
    accuracies = [outcome.accuracy_by_order for outcome in audit.outcomes.values() if outcome.accuracy_by_order]
    return f"{ANSWER_FLIP} {NEVER_RIGHT}" if accuracies and not any(map(any, accuracies)) else ANSWER_FLIP


def recommend_method(audit: Audit, time_ratios: Mapping[str, float], consistent: bool = False) -> Recommendation:
    """Return the verdict on the unchanged pipeline and, if it is ``PROBLEM``, the best method that helps.

    A method helps if one of these conditions holds:

    - Its own verdict is ``NO_PROBLEM``.
    - Its excess of flips is at most half of the pipeline's, and the interval of its excess ends below the pipeline's
      excess.

    Methods that ``may_lose`` accuracy are excluded. The best method has the largest gain in accuracy or, if gains are
    equal, the fewest flips.

    Args:
        time_ratios: times relative to the plain model, by label.
        consistent: ignore accuracy.
    """
    label = audit.unchanged_label
    unchanged = audit.outcomes[label]
    decision = decide_verdict(unchanged)
    if decision is Verdict.NO_PROBLEM:
        return Recommendation(decision, None, _explain_no_problem(audit, unchanged))
    if decision is Verdict.TOO_FEW:
        return Recommendation(decision, None, _explain_too_few(audit, unchanged))
    problem = f"You have the problem: {_describe_flips(unchanged)}."
    outcomes = audit.outcomes.items()
    others = {name: other for name, other in outcomes if name != label and not other.method.is_plain}
    helpful = {name: other for name, other in others.items() if _reduces_flips(other, unchanged)}
    safe = {name: other for name, other in helpful.items() if consistent or not may_lose(other)}
    if not safe:
        text = f"{problem} None of the methods tried helps enough (tried: {', '.join(others) or 'none'})."
        if helpful:
            text = f"{problem} No method is recommended: {_describe_losses(helpful)} --consistency ignores accuracy."
        return Recommendation(decision, None, text)

    def rank(name: str) -> tuple[float, float, bool, float]:
        outcome = safe[name]
        gain = 0.0 if consistent or outcome.better is None else outcome.better.estimate
        only_order = isinstance(outcome.method, ReorderingMethod)
        return -gain, outcome.headline.flips.estimate, only_order, time_ratios.get(name, 1.0)

    best = min(safe, key=rank)
    text = f"{problem} {_describe_method(best, safe[best], time_ratios.get(best))}"
    return Recommendation(decision, best, text)


def may_lose(outcome: Outcome) -> bool:
    """Whether accuracy decreases, or its interval includes a loss above ``MAX_LOSS``. False if not measured."""
    return outcome.better is not None and (outcome.better.estimate < 0 or outcome.better.low < -MAX_LOSS)


def _reduces_flips(outcome: Outcome, unchanged: Outcome) -> bool:
    remaining, current = outcome.headline.excess, unchanged.headline.excess
    fewer = remaining.estimate <= current.estimate / 2 and remaining.high < current.estimate
    return decide_verdict(outcome) is Verdict.NO_PROBLEM or fewer


def _describe_losses(outcomes: Mapping[str, Outcome]) -> str:
    changes = (
        f"{name} reduces this share to {outcome.headline.flips.estimate:.0%} and changes the share of right answers by "
        f"{_format_points(outcome.better)}"
        for name, outcome in outcomes.items()
        if outcome.better is not None
    )
    return (
        f"{'; '.join(changes)}, and a method must not lose more than {100 * MAX_LOSS:.0f} points. More questions give "
        "narrower intervals."
    )


def _describe_flips(outcome: Outcome) -> str:
    headline, flips = outcome.headline, outcome.headline.flips
    change = "get another answer" if outcome.rightness is None else "change between right and wrong"
    return (
        f"{flips.estimate:.0%} ({flips.low:.0%} to {flips.high:.0%}) of your questions {change} when only the order "
        f"of the documents changes; repeating the same order changes {headline.floor.estimate:.0%}"
    )


def _explain_no_problem(audit: Audit, unchanged: Outcome) -> str:
    at_most = (
        f"apart from random changes, at most {max(0.0, unchanged.headline.excess.high):.0%} of the answers depend on "
        "the order of the documents"
    )
    name = unchanged.method.name
    if name == NoMethod.name:
        return f"You do not have this problem: {at_most}. No method is worth its cost here."
    if unchanged.method.invariant and unchanged.ran == 1:
        at_most = "its answers do not depend on the order, and it ran on every question"
    text = f"With {name}, which your pipeline already uses, you do not have this problem: {at_most}."
    plain = next((outcome for outcome in audit.outcomes.values() if outcome.method.name == NoMethod.name), None)
    if plain is None:
        return f"{text} To learn whether you still need {name}, add none to --methods, which measures the plain model."
    return f"{text} Without it, {_describe_flips(plain)} (verdict: {decide_verdict(plain).value})."


def _explain_too_few(audit: Audit, unchanged: Outcome) -> str:
    excess = unchanged.headline.excess
    return (
        f"Too few examples to tell: with {audit.questions} questions, anything from {max(0.0, excess.low):.0%} to "
        f"{excess.high:.0%} of your answers may depend on the order of the documents. It is a problem if the share "
        f"is at least {THRESHOLD:.0%}. Give more questions."
    )


def _describe_method(label: str, outcome: Outcome, ratio: float | None) -> str:
    costs = "" if ratio is None else f" and takes {ratio:.2f} times as long to the first token"
    text = (
        f"{label} reduces this share to {outcome.headline.flips.estimate:.0%}, but changes "
        f"{outcome.changed.estimate:.0%} of the current answers{costs}."
    )
    if isinstance(outcome.method, ReorderingMethod):
        text += (
            " It only fixes the order: answers are consistent, but the model still overlooks documents at some "
            "positions."
        )
    if outcome.better is None:
        return f"{text} Accuracy was not measured; add right answers to the questions to measure it."
    better = outcome.better
    if better.low > 0:
        return f"{text} It is right more often, by {_format_points(better)}."
    if may_lose(outcome):
        return f"{text} It may be right less often: {_format_points(better)}."
    return f"{text} The share of right answers does not clearly change: {_format_points(better)}."


def _format_points(interval: Interval) -> str:
    low, high = 100 * interval.low, 100 * interval.high
    return f"{100 * interval.estimate:+.0f} points ({low:+.0f} to {high:+.0f})"
