"""Test servers under the load of many clients. A client has one open request at a time.

    python -m studies.load --url http://127.0.0.1:8000 --methods none,pine

The test prints requests per second, and percentiles of the time to the first token and to the whole answer.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from openai import AsyncOpenAI, OpenAIError

from ragbias.cli.terminal import console, progress, write_json
from ragbias.data.questions import read_questions
from ragbias.data.retrieval import SYSTEM_PROMPT
from ragbias.errors import RunError
from ragbias.methods import format_method, parse_methods
from ragbias.models.tiny.world import held_out_corpus
from ragbias_eval.report.tables import make_table
from studies import arguments_of

PERCENTILES = (50, 95, 99)
LoadCase = tuple[str, tuple[str, ...]]  # a question and its documents


@dataclass(frozen=True)
class Target:
    """A server with a model and a method.

    Attributes:
        url: address of the server, ending with ``/v1``.
        method: method to send with the documents; None: the server supports neither methods nor documents.
        streamed: whether answers are streamed. If not, a server can put requests into padded batches.
    """

    label: str
    url: str
    model: str
    method: str | None = None
    key: str = field(default="", repr=False)
    streamed: bool = True

    def client(self) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=self.url, api_key=self.key or "none", timeout=600, max_retries=0)


@dataclass
class Latencies:
    """Waiting times of a target's clients, for one number of clients.

    Attributes:
        seconds: duration of each round.
        first: seconds until the first text of each streamed answer.
        whole: seconds until the end of each answer.
        pieces: number of events with text (about one per token), or of tokens if answers are not streamed.
        errors: number of errors by class.
    """

    seconds: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    pieces: int = 0
    errors: dict[str, int] = field(default_factory=dict)

    def figures(self) -> dict[str, Any]:
        """Compute requests and pieces per second, and percentiles of the times."""
        total = sum(self.seconds)
        return {
            "requests": len(self.whole),
            "requests_per_second": len(self.whole) / total,
            "pieces_per_second": self.pieces / total,
            "first_seconds": _percentiles(self.first),
            "whole_seconds": _percentiles(self.whole),
            "errors": self.errors,
        }


def _percentiles(values: Sequence[float]) -> dict[str, float] | None:
    return {f"p{each}": float(np.percentile(values, each)) for each in PERCENTILES} if values else None


async def load_test(
    targets: Sequence[Target],
    cases: Sequence[LoadCase],
    clients: Sequence[int],
    requests: int,
    rounds: int,
    max_new_tokens: int,
) -> list[dict[str, Any]]:
    """Measure each target with each number of clients. In every round, targets take turns.

    Args:
        cases: questions, used in a cycle.
        requests: number of requests per target, number of clients and round.
        rounds: number of measured rounds. Before them, one request per client warms up.

    Raises:
        RunError: a target answers no request.
    """
    rows = []
    with progress() as bar:
        task = bar.add_task("", total=len(targets) * len(clients) * rounds * requests)
        for count in clients:
            latencies = {target.label: Latencies() for target in targets}
            for target in targets:
                await run_round(target, cases, count, count, max_new_tokens, Latencies())
            for _, target in itertools.product(range(rounds), targets):
                await run_round(target, cases, count, requests, max_new_tokens, latencies[target.label])
                bar.update(task, advance=requests, description=f"{target.label}, {count} clients")
            for target in targets:
                measured = latencies[target.label]
                if not measured.whole:
                    raise RunError(f"{target.label} at {target.url} answers nothing: {', '.join(measured.errors)}")
                rows.append({"target": target.label, "clients": count, **measured.figures()})
    return rows


async def run_round(
    target: Target, cases: Sequence[LoadCase], clients: int, requests: int, most: int, latencies: Latencies
) -> None:
    """Send ``requests`` requests from ``clients`` clients, and add the times to ``latencies``."""
    numbers = iter(range(requests))
    async with target.client() as api:

        async def client() -> None:
            for number in numbers:
                await _count_errors(api, target, cases[number % len(cases)], most, latencies)

        begin = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(clients)))
        latencies.seconds.append(time.perf_counter() - begin)


async def _count_errors(api: AsyncOpenAI, target: Target, case: LoadCase, most: int, latencies: Latencies) -> None:
    """Request an answer. Count errors instead of raising them, so the load continues."""
    try:
        await _request_answer(api, target, case, most, latencies)
    except OpenAIError as error:
        name = type(error).__name__
        latencies.errors[name] = latencies.errors.get(name, 0) + 1


async def _request_answer(api: AsyncOpenAI, target: Target, case: LoadCase, most: int, latencies: Latencies) -> None:
    question, documents = case
    system = SYSTEM_PROMPT + "\n\n".join(documents)
    body: dict[str, Any] = {
        "model": target.model,
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": question}],
        "max_tokens": most,
        "temperature": 0,
        "stream": target.streamed,
    }
    if target.method is not None:
        body["extra_body"] = {"documents": list(documents), "ragbias": {"method": target.method}}
    begin = time.perf_counter()
    first: float | None = None
    answer = await api.chat.completions.create(**body)
    if target.streamed:
        async for event in answer:
            if any(choice.delta.content for choice in event.choices):
                first = first or time.perf_counter() - begin
                latencies.pieces += 1
    else:
        latencies.pieces += answer.usage.completion_tokens if answer.usage else 0
    total = time.perf_counter() - begin
    latencies.whole.append(total)
    if target.streamed:
        latencies.first.append(total if first is None else first)  # the answer may have no text


def _make_cases(questions: Path | None, documents: int, distinct: int, seed: int) -> list[LoadCase]:
    """Return questions from a file, or make questions about invented passages for the embedded model ``tiny``."""
    if questions is not None:
        return [(each.question, each.documents) for each in read_questions(questions)]
    texts = [passage.text for passage in held_out_corpus(documents * distinct, seed)]
    groups = [texts[begin : begin + documents] for begin in range(0, len(texts), documents)]
    return [(f"What is said of {group[0].split()[0]}?", tuple(group)) for group in groups]


async def make_target(label: str, url: str, model: str | None, method: str | None, key: str, streamed: bool) -> Target:
    """Make a target. If ``model`` is None, use the server's only model."""
    url = url.rstrip("/").removesuffix("/v1") + "/v1"
    if model is None:
        async with Target(label, url, "", None, key).client() as api:
            names = [each.id async for each in api.models.list()]
        if len(names) != 1:
            raise RunError(f"{url} serves {', '.join(names)}; name one with --model or --against-model")
        model = names[0]
    return Target(label, url, model, method, key, streamed)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = arguments_of(__doc__)
    parser.add_argument("--url", required=True, help="address of a `ragbias serve` server")
    parser.add_argument("--methods", default="none,pine", help="comma-separated methods, which take turns")
    parser.add_argument("--model", help="model on the server; default: its only model")
    parser.add_argument(
        "--api-key", default=os.environ.get("RAGBIAS_API_KEY", ""), help="key for the servers; default: RAGBIAS_API_KEY"
    )
    parser.add_argument("--against", help="another OpenAI-compatible server, for the same prompts")
    parser.add_argument("--against-model", help="model on that server; default: its only model")
    parser.add_argument("--clients", default="1,4,16", help="numbers of clients, each with one open request")
    parser.add_argument("--requests", type=int, default=48, help="per target, number of clients and round")
    parser.add_argument("--rounds", type=int, default=2, help="number of rounds, in which the targets take turns")
    parser.add_argument("--documents", type=int, default=10, help="documents per prompt")
    parser.add_argument("--questions", type=Path, help="JSON lines with question, documents; default: made up")
    parser.add_argument("--distinct", type=int, default=16, help="number of made-up questions, used in a cycle")
    parser.add_argument("--seed", type=int, default=0, help="seed of the made-up questions")
    parser.add_argument("--no-stream", action="store_true", help="request whole answers, which run in padded batches")
    parser.add_argument("--max-new-tokens", type=int, default=32, help="tokens per answer")
    parser.add_argument("--json", type=Path, help="write the results to this file as well")
    parsed = parser.parse_args(arguments)
    key, streamed = parsed.api_key, not parsed.no_stream

    async def measured() -> tuple[list[Target], list[dict[str, Any]]]:
        targets = [
            await make_target(label, parsed.url, parsed.model, format_method(method), key, streamed)
            for label, method in parse_methods(parsed.methods, parsed.model).items()
        ]
        if parsed.against:
            targets.append(await make_target("against", parsed.against, parsed.against_model, None, key, streamed))
        cases = _make_cases(parsed.questions, parsed.documents, parsed.distinct, parsed.seed)
        clients = [int(each) for each in parsed.clients.split(",")]
        rows = await load_test(targets, cases, clients, parsed.requests, parsed.rounds, parsed.max_new_tokens)
        return targets, rows

    targets, rows = asyncio.run(measured())
    table = make_table(
        f"{parsed.requests * parsed.rounds} requests each; seconds, percentiles 50 / 95 / 99",
        *("target", "clients", "requests/s", "pieces/s", "first token", "whole", "errors"),
        wrap=True,
    )
    for row in rows:
        spread = [
            " / ".join(f"{value:.2f}" for value in (row[name] or {}).values()) or "-"
            for name in ("first_seconds", "whole_seconds")
        ]
        rates = [f"{row['requests_per_second']:.2f}", f"{row['pieces_per_second']:.1f}"]
        table.add_row(row["target"], str(row["clients"]), *rates, *spread, str(sum(row["errors"].values())))
    console.print(table)
    names = ("rounds", "max_new_tokens", "seed", "documents", "requests")
    described = [{name: value for name, value in asdict(target).items() if name != "key"} for target in targets]
    settings = {"targets": described, **{name: getattr(parsed, name) for name in names}}
    write_json({"settings": settings, "results": rows}, parsed.json)


if __name__ == "__main__":
    main()
