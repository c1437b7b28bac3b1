"""Compare methods with and without a reader, on questions that are not in the training data.

FILE has questions in the official multi-document format, with the gold document first, or in MuSiQue's format. The
plain model runs with the gold document first, in the middle and last. --generate also generates answers and prints the
share that contains an accepted answer. An interrupted study resumes. Other settings need another --out.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from ragbias.data.intervals import Interval, share
from ragbias.data.questions import best_subspan_em
from ragbias.files import write_atomically
from ragbias.lm import DebiasedLM
from ragbias.methods import parse_methods
from ragbias.prompt import Prompt
from ragbias_eval.bench_settings import hash_readers
from studies import arguments_of

INSTRUCTION = "Answer the question using the documents below.\n\n"
MARK = "{documents}"
ENDINGS = {"chat": "\nQuestion: {question}\nAnswer in a few words.", "bare": "\nQuestion: {question}\nAnswer:"}
EVERY = 5  # number of questions between two writes of the results
ANSWER_TOKENS = 40  # maximum


class Case(NamedTuple):
    """A question, its accepted answers and documents. ``gold`` is the index of the gold document, if known."""

    question: str
    answers: list[str]
    documents: list[str]
    gold: int | None


def read_cases(file: Path, words: int, count: int) -> list[Case]:
    """Read questions. Cut the gold document to ``words`` words around the answer, others to their first words."""
    text = (gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()).decode()
    rows = [json.loads(line) for line in text.splitlines()] if ".jsonl" in file.name else json.loads(text)
    cases = []
    for row in random.Random(11).sample(rows, len(rows)):
        answers = row["answers"] if isinstance(row["answers"][0], str) else row["answers"][0]
        gold = 0 if row["ctxs"][0].get("isgold") else None
        texts = [
            _cut_text(ctx["text"], words, answers[0] if index == gold else "") for index, ctx in enumerate(row["ctxs"])
        ]
        if all(texts):
            documents = [f"Document (Title: {c['title']}) {t}\n" for c, t in zip(row["ctxs"], texts, strict=True)]
            cases.append(Case(row["question"], answers, documents, gold))
    return cases[:count]


def _cut_text(text: str, words: int, answer: str) -> str:
    """Return the first words of a text, or the words around an answer. Return "" if the answer does not occur."""
    parts, at = text.split(), text.lower().find(answer.lower())
    begin = max(0, len(text[:at].split()) - words // 2) if answer and at >= 0 else 0
    return "" if at < 0 else " ".join(parts[begin : begin + words])


def render_prompt(lm: DebiasedLM, documents: Sequence[str], question: str, kind: str) -> Prompt:
    """Render the prompt, with or without the chat template."""
    text = INSTRUCTION + MARK + ENDINGS[kind].format(question=question)
    flat = str(lm.chat_text([{"role": "user", "content": text}])) if kind == "chat" else text
    prefix, suffix = flat.split(MARK)
    return Prompt(prefix, documents, suffix)


def document_orders(case: Case) -> list[list[str]]:
    """Return orders with the gold document first, in the middle and last, or two random orders if there is none."""
    if case.gold is None:
        return [random.Random(seed).sample(case.documents, len(case.documents)) for seed in range(2)]
    others = case.documents[:]
    gold = others.pop(case.gold)
    return [[*others[:at], gold, *others[at:]] for at in (0, len(others) // 2, len(others))]


def load_results(out: Path, settings: dict[str, Any], readers: dict[str, str]) -> dict[str, Any]:
    """Read the results in a file, if any. Exit if the settings differ, or if readers were trained again."""
    if not out.exists():
        return {"settings": settings, "readers": readers, "scores": {}}
    results: dict[str, Any] = {"settings": {}, "readers": {}, **json.loads(out.read_text())}
    changed = [name for name, value in settings.items() if results["settings"].get(name) != value]
    changed += [name for name, digest in readers.items() if results["readers"].get(name, digest) != digest]
    if changed:
        raise SystemExit(f"{out} contains results with another {', '.join(changed)}; give another --out")
    results["readers"] |= readers
    return results


def measure(
    lm: DebiasedLM, cases: Sequence[Case], methods: dict[str, Any], kind: str, results: dict[str, Any], out: Path
) -> dict[str, list[list[float]]]:
    """Measure the answers' log-probabilities ``[question][order]``, by method."""

    def score(prompt: Prompt, case: Case, method: Any) -> float:
        answer = case.answers[0] if kind == "chat" else f" {case.answers[0]}"
        return lm.score(prompt, answer, method=method).total

    return _run_all_orders(lm, cases, methods, kind, results, "scores", score, out)


def generate(
    lm: DebiasedLM, cases: Sequence[Case], methods: dict[str, Any], kind: str, results: dict[str, Any], out: Path
) -> dict[str, list[list[str]]]:
    """Generate answers ``[question][order]``, by method."""

    def answer(prompt: Prompt, case: Case, method: Any) -> str:
        return lm.generate(prompt, method=method, max_new_tokens=ANSWER_TOKENS).text

    return _run_all_orders(lm, cases, methods, kind, results, "answers", answer, out)


def _run_all_orders(
    lm: DebiasedLM,
    cases: Sequence[Case],
    methods: dict[str, Any],
    kind: str,
    results: dict[str, Any],
    part: str,
    run: Callable[[Prompt, Case, Any], Any],
    out: Path,
) -> dict[str, list[list[Any]]]:
    """Run the questions that ``results[part]`` lacks, in every order. Invariant methods run in one order."""
    for name, method in {"none": "none", **methods}.items():
        values = results.setdefault(part, {}).setdefault(name, [])
        for case in cases[len(values) :]:
            orders = document_orders(case)
            seen = orders[:1] if getattr(method, "invariant", False) else orders
            values.append([run(render_prompt(lm, documents, case.question, kind), case, method) for documents in seen])
            if len(values) % EVERY == 0 or len(values) == len(cases):
                write_atomically(out, json.dumps(results).encode())
    return {name: results[part][name][: len(cases)] for name in ("none", *methods)}


def compare(results: dict[str, list[list[float]]]) -> dict[str, tuple[float, Interval, Interval]]:
    """Return each method's mean, and its differences from the plain model's mean and best position."""
    plain = results["none"]
    best = max(range(len(plain[0])), key=lambda position: fmean(scores[position] for scores in plain))
    table = {}
    for name, scores in results.items():
        means = [fmean(values) for values in scores]
        pairs = list(zip(means, plain, strict=True))
        table[name] = (
            fmean(means),
            share({f"{index:05}": mean - fmean(values) for index, (mean, values) in enumerate(pairs)}),
            share({f"{index:05}": mean - values[best] for index, (mean, values) in enumerate(pairs)}),
        )
    return table


def accuracy(cases: Sequence[Case], answers: list[list[str]]) -> tuple[list[list[float]], float]:
    """Return whether each answer ``[question][order]`` contains an accepted answer, and the mean number of words."""
    found = [
        [best_subspan_em(text, case.answers) for text in texts] for case, texts in zip(cases, answers, strict=True)
    ]
    return found, fmean(len(text.split()) for texts in answers for text in texts)


def show_scores(scores: dict[str, list[list[float]]]) -> None:
    """Print each method's log-probability and its differences from the plain model."""
    print(f"{len(scores['none'])} questions, log-probability of the answer in nats")
    for name, (mean, minus_mean, minus_best) in compare(scores).items():
        print(
            f"{name}: {mean:.2f}; minus the plain mean {minus_mean.estimate:+.2f} ({minus_mean.low:+.2f} to "
            f"{minus_mean.high:+.2f}), minus its best position {minus_best.estimate:+.2f} ({minus_best.low:+.2f} to "
            f"{minus_best.high:+.2f})",
            flush=True,
        )


def show_accuracy(cases: Sequence[Case], answers: dict[str, list[list[str]]]) -> None:
    """Print each method's share of answers that contain an accepted one."""
    print("share of generated answers that contain an accepted one, by order of the documents")
    for name, texts in answers.items():
        found, length = accuracy(cases, texts)
        means = share({f"{index:05}": fmean(values) for index, values in enumerate(found)})
        orders = ", ".join(f"{fmean(values):.3f}" for values in zip(*found, strict=True))
        print(
            f"{name}: {orders}; mean {means.estimate:.3f} ({means.low:.3f} to {means.high:.3f}); {length:.1f} words",
            flush=True,
        )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = arguments_of(__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="file of the results")
    parser.add_argument("--methods", required=True, help="as for `ragbias bench`")
    parser.add_argument("--model", default="smollm2", help="name or folder")
    parser.add_argument("--dtype", default="auto", help="dtype of the weights")
    parser.add_argument("--questions", type=int, default=100, help="number of questions")
    parser.add_argument("--words", type=int, default=10_000, help="words of each passage")
    parser.add_argument("--prompt", choices=ENDINGS, default="chat", help="with the chat template, or without it")
    parser.add_argument("--generate", action="store_true", help="also generate answers")
    parsed = parser.parse_args(arguments)
    digest = hashlib.sha256(parsed.file.read_bytes()).hexdigest()
    settings = {name: getattr(parsed, name) for name in ("model", "dtype", "words", "prompt")} | {"file": digest}
    readers = hash_readers(parsed.methods).get("readers", {})
    results = load_results(parsed.out, settings, readers)
    lm = DebiasedLM.from_pretrained(parsed.model, "none", dtype=parsed.dtype)
    cases = read_cases(parsed.file, parsed.words, parsed.questions)
    methods = parse_methods(parsed.methods, lm.name)
    scores = measure(lm, cases, dict(methods), parsed.prompt, results, parsed.out)
    show_scores(scores)
    if parsed.generate:
        show_accuracy(cases, generate(lm, cases, dict(methods), parsed.prompt, results, parsed.out))


if __name__ == "__main__":
    main()
