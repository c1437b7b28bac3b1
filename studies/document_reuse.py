"""Measure whether documents can be computed once and reused: the effect on answers, and the tokens saved.

A method with reusable documents gives bit-identical answers with and without the cache. Accuracy can suffer, because
documents cannot attend to each other. So the method is compared with a method without reuse: the pipeline's method, or
the plain model if the pipeline's method has reusable documents or runs several prompts.

--questions and --pipeline are the same as for ``ragbias audit``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group
from torch import Tensor

from ragbias.cli.terminal import console, progress, quiet_libraries, write_json
from ragbias.data.intervals import MIN_QUESTIONS, Interval, share
from ragbias.data.questions import read_questions
from ragbias.errors import RagBiasError, RunError
from ragbias.generation import Request
from ragbias.generation.request import check_length, longest_prompt
from ragbias.generation.scoring import continuation_ids, score_continuations
from ragbias.lm import DebiasedLM
from ragbias.methods import JointMethod, Method, NoMethod, VotingMethod, parse_methods
from ragbias_eval.audit.audit_report import format_percent
from ragbias_eval.audit.cases import AuditCase, from_questions
from ragbias_eval.audit.outcomes import THRESHOLD, estimate_mean
from ragbias_eval.audit.pipeline import from_pipeline, load_pipeline
from ragbias_eval.report.tables import Grid, as_terminal_tables
from studies import arguments_of

LESS_PROBABLE = 0.10  # nats that a known answer may lose, about a tenth of its probability
APART = (
    "Documents that are computed separately cannot attend to each other. Do not reuse documents for questions that "
    "combine several documents, or for a judge that compares them."
)
PAIRS = "Each prompt contains two documents; do not reuse documents if a judge compares them."
HEADINGS = ("method", "against", "agrees", "reversed", "known answers", "cached", "reuse")
LEGEND = (
    "Agrees: questions with the same most probable next token as without reuse. Reversed: the same, if the "
    "documents are reversed instead of reused. Known answers: change of the answers' log-probability. Cached: share "
    "of prompt tokens that need no computation once the documents are cached."
)


@dataclass(frozen=True)
class ReuseGate:
    """Compare a method that reuses documents with a method that does not, by the token after the prompt.

    Attributes:
        against: name of the method without reuse.
        questions: number of questions on which the method with reuse ran. Other questions are not counted.
        agreement: share of questions for which both methods have the same most probable token.
        reversed_agreement: share of questions for which the method without reuse has the same most probable token if
            the documents are reversed.
        margin: ``agreement - reversed_agreement``, paired by question.
        known: change of a known answer's log-probability in nats; None: too few questions have a known answer.
        cacheable: share of prompt tokens that need no computation if the documents are cached.
        pairs: whether all prompts have two documents, as for a judge.
    """

    against: str
    questions: int
    agreement: Interval
    reversed_agreement: Interval
    margin: Interval
    known: Interval | None
    cacheable: float
    pairs: bool

    @property
    def verdict(self) -> str:
        """The verdict on reuse: ``"for"``, ``"against"`` or ``"too few examples"``.

        It depends on ``known`` if enough answers are known, else on ``margin``. ``"for"`` means that the interval rules
        out a loss of ``LESS_PROBABLE`` or ``THRESHOLD``. ``"against"`` means that the interval lies below 0.
        """
        change, tolerated = (self.margin, THRESHOLD) if self.known is None else (self.known, LESS_PROBABLE)
        if change.low > -tolerated:
            return "for"
        return "against" if change.high < 0 else "too few examples"

    def as_dict(self) -> dict[str, Any]:
        """Return the fields and the verdict as plain data. Intervals are ``[estimate, low, high]``."""
        plain = {name: value.as_list() if isinstance(value, Interval) else value for name, value in vars(self).items()}
        return {**plain, "verdict": self.verdict}


def measure(
    cases: Sequence[AuditCase], method: Method, progress: Callable[[int], None] = lambda done: None
) -> ReuseGate:
    """Compare each question's next token with reuse, without reuse, and without reuse in reversed order."""
    agrees: list[float] = []
    reversed_agrees: list[float] = []
    known: dict[str, float] = {}
    total = cacheable = 0
    for case in cases:
        request = case.request(None, method)
        if request.report.method_ran == method.name:
            base, base_known = _next_token(case, case.request(None, _method_without_reuse(case)))
            backwards = case.request(range(len(case.prompt.documents))[::-1], _method_without_reuse(case))
            reused, reused_known = _next_token(case, request)
            agrees.append(float(reused.argmax() == base.argmax()))
            reversed_agrees.append(float(_next_token(case, backwards)[0].argmax() == base.argmax()))
            if reused_known is not None and base_known is not None:
                known[str(len(agrees))] = reused_known - base_known
            for prompt in request.candidates():
                total += len(prompt.tokens.ids)
                cacheable += len(prompt.tokens.ids) - len(prompt.tokens.suffix)
        progress(1)
    if len(agrees) < MIN_QUESTIONS:
        raise RunError(f"{method.name} ran on {len(agrees)} questions; measuring reuse needs {MIN_QUESTIONS}")
    return ReuseGate(
        against=_method_without_reuse(cases[0]).name,
        questions=len(agrees),
        agreement=estimate_mean(agrees),
        reversed_agreement=estimate_mean(reversed_agrees),
        margin=estimate_mean(
            [agree - reverse for agree, reverse in zip(agrees, reversed_agrees, strict=True)], least=-1
        ),
        known=share(known) if len(known) >= MIN_QUESTIONS else None,
        cacheable=cacheable / total,
        pairs={len(case.prompt.documents) for case in cases} == {2},
    )


def _method_without_reuse(case: AuditCase) -> Method:
    """Return the pipeline's method. If it reuses documents or runs several prompts, return the plain model's."""
    method = case.recorded.request.method_requested
    runs_several = isinstance(method, JointMethod | VotingMethod)
    return NoMethod() if method.reusable_documents or runs_several else method


def _next_token(case: AuditCase, request: Request) -> tuple[Tensor, float | None]:
    """Return the next token's log-probabilities ``[V]`` and the highest log-probability of a known answer."""
    lm = case.recorded.lm
    before = request.prompt.parts.suffix
    targets = [continuation_ids(lm.tokenizer, before, text) for text in case.question.answers]
    longest = max(map(len, targets), default=1)
    check_length(longest_prompt(request.method, request.tokens), lm.window, longest)
    scores = score_continuations(lm.loaded, request, targets)
    return scores.next_token, max(scores.logprobs, default=None)


def advise(gates: Mapping[str, ReuseGate]) -> str:
    """Advise in plain words whether to compute documents once and reuse them."""
    sentences = [_describe_gate(label, gate) for label, gate in gates.items()]
    return " ".join([*sentences, *([PAIRS] if any(gate.pairs for gate in gates.values()) else []), APART])


def _describe_gate(label: str, gate: ReuseGate) -> str:
    if gate.known is None:
        agreement = gate.agreement
        found = (
            f"its next token agrees with that of {gate.against} on {100 * agreement.estimate:.0f} "
            f"[{100 * agreement.low:.0f}, {100 * agreement.high:.0f}]% of {gate.questions} questions; with the "
            f"documents reversed, {gate.reversed_agreement.estimate:.0%} agree"
        )
    else:
        found = f"the known answers' log-probability changes by {_format_nats(gate.known)} nats against {gate.against}"
    saved = f"A request whose documents are cached computes {1 - gate.cacheable:.0%} of its tokens."
    if gate.verdict == "for":
        return f"Reuse pays with {label}: {found}. {saved}"
    if gate.verdict == "against":
        return f"Do not reuse documents with {label}: {found}."
    bearable = f"{THRESHOLD:.0%} less agreement" if gate.known is None else f"{LESS_PROBABLE} nats"
    return f"Too few examples for {label}: {found}, and {bearable} would matter. Give more questions. {saved}"


def _format_nats(interval: Interval) -> str:
    """Format an interval in nats, e.g. ``-0.02 [-0.10, +0.05]``."""
    return f"{interval.estimate:+.2f} [{interval.low:+.2f}, {interval.high:+.2f}]"


def _make_table(gates: Mapping[str, ReuseGate]) -> Group:
    rows = [
        [
            label,
            gate.against,
            format_percent(gate.agreement),
            format_percent(gate.reversed_agreement),
            _format_nats(gate.known) if gate.known else "-",
            f"{gate.cacheable:.0%}",
            gate.verdict,
        ]
        for label, gate in gates.items()
    ]
    return as_terminal_tables(Grid("Next token compared with no reuse", HEADINGS, rows, columns=4))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = arguments_of(__doc__)
    parser.add_argument("--questions", type=Path, required=True, help="JSON lines, as for ragbias audit")
    parser.add_argument("--model", help="name or folder, with the audit's prompt")
    parser.add_argument("--pipeline", help="module:object, instead of a model")
    parser.add_argument("--methods", default="ape", help="methods with reusable documents, comma-separated")
    parser.add_argument("--json", type=Path, help="file of the results")
    parsed = parser.parse_args(arguments)
    if (parsed.model is None) == (parsed.pipeline is None):
        parser.error("give --model or --pipeline")
    quiet_libraries()
    try:
        questions = list(dict.fromkeys(read_questions(parsed.questions, documents=parsed.pipeline is None)))
        if parsed.pipeline is None:
            cases = from_questions(DebiasedLM.from_pretrained(parsed.model, "none"), questions)
        else:
            cases = from_pipeline(load_pipeline(parsed.pipeline), questions)
        methods = parse_methods(parsed.methods, parsed.model)
        if refused := [label for label, method in methods.items() if not method.reusable_documents]:
            raise RunError(f"{', '.join(refused)}: documents depend on each other; use e.g. pcw or ape")
        with progress() as bar:
            task = bar.add_task("reuse of documents", total=len(cases) * len(methods))
            gates = {
                label: measure(cases, method, lambda done: bar.update(task, advance=done))
                for label, method in methods.items()
            }
    except RagBiasError as error:
        parser.exit(2, f"{error}\n")
    console.print(_make_table(gates))
    for line in (LEGEND, "", advise(gates)):
        console.print(line, highlight=False)
    by_method = {label: gate.as_dict() for label, gate in gates.items()}
    write_json({"text": advise(gates), "methods": by_method}, parsed.json)


if __name__ == "__main__":
    main()
