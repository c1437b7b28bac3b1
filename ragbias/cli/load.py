"""``ragbias load``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ragbias import checks as bounds
from ragbias.checks import Bounds
from ragbias.cli.numeric import numbers, whole, wholes
from ragbias.cli.terminal import JsonPath, console, progress, write_json

if TYPE_CHECKING:
    from ragbias.evaluation.load.load_test import LoadCase

CLIENTS = Bounds(1, 10_000)
REQUESTS = Bounds(1, 1_000_000)


def load(
    url: Annotated[str, typer.Option(help="Address of a server of `ragbias serve`.")],
    methods: Annotated[str, typer.Option(help="Asked for in turn, comma-separated.")] = "none,pine",
    model: Annotated[str | None, typer.Option(help="Its name there. Default: the only one.")] = None,
    api_key: Annotated[str, typer.Option(envvar="RAGBIAS_API_KEY", help="The key of the servers.")] = "",
    against: Annotated[
        str | None, typer.Option(help="Another OpenAI-compatible server with the same model; gets the same prompts.")
    ] = None,
    against_model: Annotated[str | None, typer.Option(help="Its name there. Default: the only one.")] = None,
    clients: Annotated[str, wholes(CLIENTS, "Clients at once, each with one request open.")] = "1,4,16",
    requests: Annotated[int, whole(REQUESTS, "Of each target, number of clients and round.")] = 48,
    rounds: Annotated[int, whole(bounds.ROUNDS, "In which the targets take turns.")] = 2,
    documents: Annotated[int, whole(bounds.DRAWN_DOCUMENTS, "In each prompt.")] = 10,
    questions: Annotated[Path | None, typer.Option(help="JSON lines of question and documents, instead.")] = None,
    distinct: Annotated[int, whole(bounds.DRAWN_QUESTIONS, "Questions drawn; they come again and again.")] = 16,
    seed: Annotated[int, whole(bounds.SEED, "Draws them.")] = 0,
    stream: Annotated[bool, typer.Option(help="Ask for streams; whole answers run in padded batches.")] = True,
    max_new_tokens: Annotated[int, whole(bounds.NEW_TOKENS, "Of each answer, at most.")] = 32,
    json_path: JsonPath = None,
) -> None:
    """Measure servers and methods in one run: requests per second, percentiles of the first token and of the whole."""
    from ragbias.adapters.remote.connection import Connection
    from ragbias.evaluation.load.load_test import Target, load_test, settings_of
    from ragbias.evaluation.report.plain_table import plain_table
    from ragbias.methods.parse import parse_methods, written

    cases = _cases(questions, documents, distinct, seed)
    server = Connection(url, api_key, timeout=60, max_retries=2)
    name = model or str(server.model(None)["id"])
    targets = [
        Target(label, server.base_url, name, written(each), api_key, stream)
        for label, each in parse_methods(methods, name).items()
    ]
    if against is not None:
        other = Connection(against, api_key, timeout=60, max_retries=2)
        targets.append(
            Target("against", other.base_url, against_model or str(other.model(None)["id"]), None, api_key, stream)
        )
    counts = numbers(clients) or []
    with progress() as bar:
        task = bar.add_task("", total=len(targets) * len(counts) * rounds * requests)

        def advance(label: str, done: int) -> None:
            bar.update(task, advance=done, description=label)

        found = load_test(targets, cases, counts, requests, rounds, max_new_tokens, advance)
    table = plain_table(
        f"{requests * rounds} requests each; seconds, percentiles 50 / 95 / 99",
        *("target", "clients", "requests/s", "pieces/s", "first token", "whole", "errors"),
        wrap=True,
    )
    for each in found:
        spread = [
            " / ".join(f"{value:.2f}" for value in (each[key] or {}).values()) or "-"
            for key in ("first_seconds", "whole_seconds")
        ]
        rates = [f"{each['requests_per_second']:.2f}", f"{each['pieces_per_second']:.1f}"]
        table.add_row(each["target"], str(each["clients"]), *rates, *spread, str(sum(each["errors"].values())))
    console.print(table)
    settings = {"targets": settings_of(targets), "rounds": rounds, "max_new_tokens": max_new_tokens, "seed": seed}
    write_json({"settings": {**settings, "documents": documents, "requests": requests}, "results": found}, json_path)


def _cases(questions: Path | None, documents: int, distinct: int, seed: int) -> list[LoadCase]:
    """Questions of a file, or about passages of the embedded model's world."""
    from ragbias.evaluation.data.questions import read_questions
    from ragbias.evaluation.load.load_test import LoadCase
    from ragbias.models.tiny.world import held_out_corpus

    if questions is not None:
        return [LoadCase(each.question, tuple(each.documents)) for each in read_questions(questions)]
    texts = [passage.text for passage in held_out_corpus(documents * distinct, seed)]
    groups = [texts[begin : begin + documents] for begin in range(0, len(texts), documents)]
    return [LoadCase(f"What is said of {own[0].split()[0]}?", tuple(own)) for own in groups]
