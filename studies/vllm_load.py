"""Load test of vLLM with stored documents, behind ``ragbias proxy``, beside stock vLLM with its prefix cache.

    python -m studies.vllm_load --proxy URL --stock URL

Every request has its documents in a new order. There are three kinds of requests. All ``warm`` requests have the same
documents. In ``half`` requests, half of the documents are new. In ``cold`` requests, all documents are new. Both
servers get the same requests and take turns.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from ragbias.cli.terminal import console, write_json
from ragbias.errors import RunError
from ragbias.models.loading import load_tokenizer
from ragbias.models.tiny.world import held_out_corpus
from ragbias_eval.report.tables import make_table
from studies import arguments_of
from studies.load import Latencies, LoadCase, Target, make_target, run_round

NEW = {"warm": 0.0, "half": 0.5, "cold": 1.0}  # share of documents that no request had before
QUESTION = "Tell me in detail, and in many long sentences, all that the context says about each of the places."
Row = dict[str, Any]


@dataclass
class Requests:
    """Make requests with documents of equal length. Each request has a new order.

    Args:
        count: number of documents in a request.
        tokens: number of tokens of a document.
    """

    tokenizer: PreTrainedTokenizerBase
    count: int
    tokens: int
    seed: int = 0

    def __post_init__(self) -> None:
        self._rng = random.Random(f"vllm load {self.seed}")
        self._documents = self._new_documents()
        self._same = [next(self._documents) for _ in range(self.count)]

    def of_kind(self, kind: str, number: int) -> list[LoadCase]:
        """Return ``number`` requests of a kind, which is a key of ``NEW``."""
        n_new, cases = round(NEW[kind] * self.count), []
        for _ in range(number):
            documents = [*self._same[n_new:], *(next(self._documents) for _ in range(n_new))]
            self._rng.shuffle(documents)
            cases.append((QUESTION, tuple(documents)))
        return cases

    def _new_documents(self) -> Iterator[str]:
        sentences = [each.text for each in held_out_corpus(200, self.seed)]
        while True:
            text = " ".join(self._rng.sample(sentences, 40))
            ids = self.tokenizer(text, add_special_tokens=False)["input_ids"][: self.tokens]
            yield self.tokenizer.decode(ids).strip()


async def measure(
    targets: Sequence[Target],
    made: Requests,
    kinds: Sequence[str],
    clients: Sequence[int],
    requests: Mapping[int, int],
    max_new_tokens: int,
) -> list[Row]:
    """Measure each target with each kind of requests and number of clients.

    Args:
        requests: number of requests by number of clients.

    Raises:
        RunError: a target answers no request.
    """
    rows = []
    for target in targets:  # loads the same documents, and compiles what vLLM compiles late
        await run_round(target, made.of_kind("warm", 1), 1, 1, max_new_tokens, Latencies())
    for count in clients:
        for kind in kinds:
            cases = made.of_kind(kind, requests[count])
            for target in targets:
                latencies = Latencies()
                await run_round(target, cases, count, requests[count], max_new_tokens, latencies)
                if not latencies.whole:
                    raise RunError(f"{target.label} at {target.url} answers nothing: {', '.join(latencies.errors)}")
                rows.append({"target": target.label, "clients": count, "documents": kind, **latencies.figures()})
                console.print(_describe_row(rows[-1]), soft_wrap=True)
    return rows


def _describe_row(row: Row) -> str:
    first, errors = row["first_seconds"]["p50"], sum(row["errors"].values())
    return (
        f"{row['target']}, {row['documents']}, clients: {row['clients']}; {row['requests_per_second']:.2f} requests/s, "
        f"first token {first:.2f} s, {errors} errors"
    )


def compare_last_target(rows: Sequence[Row], kind: str, clients: int) -> tuple[float, float]:
    """Return the first target's speed-ups over the last: in time to the first token, and in requests per second."""
    ours, *_, stock = [row for row in rows if row["documents"] == kind and row["clients"] == clients]
    sooner = stock["first_seconds"]["p50"] / ours["first_seconds"]["p50"]
    return sooner, ours["requests_per_second"] / stock["requests_per_second"]


def summarise_warm(rows: Sequence[Row], clients: int) -> str:
    """Return the comparison of warm requests in one line."""
    sooner, more = compare_last_target(rows, "warm", clients)
    return f"first token {sooner:.1f} times sooner, {more:.1f} times the requests per second (warm, {clients} clients)"


def print_rows(rows: Sequence[Row], title: str) -> None:
    """Print the figures as a table."""
    table = make_table(title, "server", "clients", "documents", "requests/s", "first token", "whole", "errors")
    for row in rows:
        times = [f"{row[name]['p50']:.2f} / {row[name]['p95']:.2f}" for name in ("first_seconds", "whole_seconds")]
        figures = [f"{row['requests_per_second']:.2f}", *times, str(sum(row["errors"].values()))]
        table.add_row(row["target"], str(row["clients"]), row["documents"], *figures)
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = arguments_of(__doc__)
    parser.add_argument("--proxy", required=True, help="address of `ragbias proxy --method pcw`")
    parser.add_argument("--stock", required=True, help="address of vLLM without the connector")
    parser.add_argument("--serve", help="address of `ragbias serve` with cached documents, as a third server")
    parser.add_argument("--tokenizer", default="smollm2", help="model whose tokens are counted")
    parser.add_argument("--kinds", default="warm,half,cold", help="kinds of requests")
    parser.add_argument("--clients", default="1,4,16", help="numbers of clients, each with one open request")
    parser.add_argument("--requests", type=int, default=2, help="per client")
    parser.add_argument("--documents", type=int, default=20, help="documents per request")
    parser.add_argument("--document-tokens", type=int, default=100, help="tokens per document")
    parser.add_argument("--max-new-tokens", type=int, default=32, help="tokens per answer")
    parser.add_argument("--seed", type=int, default=0, help="seed of the documents and their orders")
    parser.add_argument("--json", type=Path, help="write the results to this file as well")
    parsed = parser.parse_args(arguments)
    made = Requests(load_tokenizer(parsed.tokenizer, {}), parsed.documents, parsed.document_tokens, parsed.seed)
    clients, kinds = [int(each) for each in parsed.clients.split(",")], parsed.kinds.split(",")

    async def measured() -> list[Row]:
        targets = [
            await make_target("pcw in vLLM", parsed.proxy, None, "pcw", "", True),
            await make_target("stock vLLM", parsed.stock, None, None, "", True),
        ]
        if parsed.serve:
            targets.insert(1, await make_target("ragbias serve", parsed.serve, None, "pcw", "", True))
        requests = {count: count * parsed.requests for count in clients}
        return await measure(targets, made, kinds, clients, requests, parsed.max_new_tokens)

    rows = asyncio.run(measured())
    print_rows(rows, f"{parsed.documents} documents of {parsed.document_tokens} tokens; seconds (p50 / p95)")
    if "warm" in kinds:
        console.print(summarise_warm(rows, clients[-1]), soft_wrap=True)
    settings = {name: getattr(parsed, name) for name in ("documents", "document_tokens", "max_new_tokens", "seed")}
    write_json({"settings": settings, "results": rows}, parsed.json)


if __name__ == "__main__":
    main()
