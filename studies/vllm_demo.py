"""Start vLLM with ragbias's connector beside stock vLLM, and ask both the same questions in several orders.

    make demo-vllm

The embedded model and SmolLM2 answer questions about a small invented world. Then clients send SmolLM2 the same
documents in a new order in each request.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import shorten
from typing import Any, NamedTuple

import httpx
from openai import OpenAI

from ragbias.cli.terminal import console, write_json
from ragbias.data.retrieval import SYSTEM_PROMPT
from ragbias.errors import RunError
from ragbias.models.loading import load_tokenizer
from ragbias.models.named import local_path
from ragbias.models.tiny.world import cases
from ragbias_eval.report.tables import make_table
from studies import arguments_of
from studies.load import LoadCase, make_target
from studies.vllm_load import Requests, measure, print_rows, summarise_warm

MODELS = {"tiny": 1_024, "smollm2": 4_096}  # tokens of the window
DOCUMENTS = 6
ORDERS = 3
STOCK, OURS = "stock vLLM", "pcw in vLLM"
SECONDS = 600  # maximum time for a server to start
# vLLM's defaults take all memory and send statistics
ENVIRONMENT = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_NO_USAGE_STATS": "1",
}


@contextmanager
def run_process(command: Sequence[str], log: Path, address: str, ready: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server during the ``with`` block. The block begins when ``address + ready`` responds with status 200.

    Raises:
        RunError: the server ends, or does not answer in time.
    """
    with log.open("w") as output:
        running = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env={**ENVIRONMENT, **os.environ}, start_new_session=True
        )
        try:
            deadline = time.monotonic() + SECONDS
            while not _is_ready(address + ready):
                if running.poll() is not None or time.monotonic() > deadline:
                    end = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
                    raise RunError(f"{' '.join(command[:4])} ... does not start; the end of its log:\n{end}")
                time.sleep(0.5)
            yield running
        finally:
            running.terminate()
            with suppress(subprocess.TimeoutExpired):
                running.wait(30)
            with suppress(ProcessLookupError):  # no process is left
                os.killpg(running.pid, signal.SIGKILL)  # its own group, because of start_new_session
            running.wait()


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def vllm_command(python: str, model: str, window: int, port: int, connector: dict[str, Any] | None = None) -> list[str]:
    """Return the command that starts vLLM, with the connector if its settings are given."""
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", local_path(model)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", model]
    command += ["--dtype", "float32", "--max-model-len", str(window), "--enforce-eager"]
    command.append("--enable-prompt-tokens-details")  # the proxy needs these details to check streams
    if connector is None:
        return command
    transfer = {
        "kv_connector": "RagBiasConnector",
        "kv_connector_module_path": "ragbias_vllm",
        "kv_role": "kv_both",
        "kv_connector_extra_config": connector,
    }
    return [*command, "--kv-transfer-config", json.dumps(transfer)]


class Servers(NamedTuple):
    """Addresses of the proxy with the connector and of stock vLLM."""

    proxy: str
    stock: str


@contextmanager
def run_servers(python: str, model: str, window: int, folder: Path) -> Iterator[Servers]:
    """Run stock vLLM, vLLM with the connector, and the proxy during the block.

    Args:
        python: the interpreter of the environment with vLLM.
        folder: for logs and stored documents.
    """
    ports = [free_port() for _ in range(3)]
    proxy, stock, upstream = (f"http://127.0.0.1:{port}" for port in ports)
    commands = {
        stock: vllm_command(python, model, window, ports[1]),
        upstream: vllm_command(python, model, window, ports[2], {"folder": str(folder / "documents")}),
        proxy: [
            *(sys.executable, "-m", "ragbias", "proxy", "--upstream", upstream, "--method", "pcw"),
            *("--model", model, "--port", str(ports[0])),
        ],
    }
    with ExitStack() as stack:
        for address, command in commands.items():
            log = folder / f"{model}-{address.rpartition(':')[2]}.log"
            ready = "/ready" if address == proxy else "/health"
            stack.enter_context(run_process(command, log, address, ready))
        yield Servers(proxy, stock)


class Answer(NamedTuple):
    text: str
    cached: int
    first: float


def stream_answer(address: str, model: str, case: LoadCase, more: dict[str, Any] | None = None) -> Answer:
    """Stream one answer. Return it with the number of cached tokens and the seconds to the first text."""
    question, documents = case
    talk = [
        {"role": "system", "content": SYSTEM_PROMPT + "\n\n".join(documents)},
        {"role": "user", "content": question},
    ]
    begin, first, text, cached = time.perf_counter(), None, "", 0
    with OpenAI(base_url=f"{address}/v1", api_key="none", timeout=600, max_retries=0) as client:
        stream = client.chat.completions.create(
            model=model,
            messages=talk,  # type: ignore[arg-type]  # dicts of strings
            max_tokens=24,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
            extra_body=more,
        )
        for event in stream:
            for choice in event.choices:
                if choice.delta.content:
                    first = first or time.perf_counter() - begin
                    text += choice.delta.content
            if event.usage and event.usage.prompt_tokens_details:
                cached = event.usage.prompt_tokens_details.cached_tokens or 0
    return Answer(" ".join(text.split()), cached, first or time.perf_counter() - begin)


def ask_in_several_orders(both: Servers, model: str, questions: int, seed: int) -> None:
    """Print the answers to some questions, with the documents in several orders."""
    rng = random.Random(seed)
    for question, others in cases(DOCUMENTS, questions, seed):
        documents = [passage.document for passage in (question.gold, *others)]
        table = make_table(
            f"{model}: {question.question} (right: {question.answer})",
            *("server", "order", "answer", "cached tokens", "first token"),
        )
        table.columns[2].justify = "left"
        different: dict[str, set[str]] = {STOCK: set(), OURS: set()}
        for number in range(1, ORDERS + 1):
            case = (question.question, tuple(documents))
            for server, address, more in (STOCK, both.stock, None), (OURS, both.proxy, {"documents": documents}):
                text, cached, first = stream_answer(address, model, case, more)
                different[server].add(text)
                table.add_row(server, str(number), shorten(text, 36, placeholder=" ..."), str(cached), f"{first:.2f} s")
            rng.shuffle(documents)
        console.print(table)
        counts = ", ".join(f"{server} {len(texts)}" for server, texts in different.items())
        console.print(f"different answers in {ORDERS} orders: {counts}\n")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = arguments_of(__doc__)
    parser.add_argument("--python", default=sys.executable, help="interpreter with vLLM; default: this one")
    parser.add_argument("--models", required=True, help="models to ask: tiny, smollm2 or both, comma-separated")
    parser.add_argument("--questions", type=int, default=2, help="questions for each model")
    parser.add_argument("--clients", default="1,16", help="numbers of clients, each with one open request")
    parser.add_argument("--requests", type=int, default=1, help="per client")
    parser.add_argument("--kinds", default="warm", help="kinds of requests, see `python -m studies.vllm_load --help`")
    parser.add_argument("--seed", type=int, default=0, help="seed of questions, documents and orders")
    parser.add_argument("--json", type=Path, help="write the measurements to this file as well")
    parsed = parser.parse_args(arguments)
    clients, kinds = [int(each) for each in parsed.clients.split(",")], parsed.kinds.split(",")
    rows: list[dict[str, Any]] = []
    console.print(f"{STOCK}: the plain model with vLLM's prefix cache")
    console.print(f"{OURS}: each document is computed once, and loaded in any order\n")

    async def measured(both: Servers, model: str) -> list[dict[str, Any]]:
        targets = [
            await make_target(OURS, both.proxy, model, "pcw", "", True),
            await make_target(STOCK, both.stock, model, None, "", True),
        ]
        made = Requests(load_tokenizer(model, {}), 20, 100, parsed.seed)
        return await measure(targets, made, kinds, clients, {each: each * parsed.requests for each in clients}, 32)

    with TemporaryDirectory(prefix="ragbias-vllm-") as folder:
        for model in parsed.models.split(","):
            console.print(f"starting vLLM for {model}, with the connector and without (takes minutes) ...")
            with run_servers(parsed.python, model, MODELS[model], Path(folder)) as both:
                ask_in_several_orders(both, model, parsed.questions, parsed.seed)
                if model != "tiny":  # the window of tiny is too short
                    console.print("measuring; every request has the same documents in a new order ...")
                    rows = asyncio.run(measured(both, model))
    if rows:
        print_rows(rows, "SmolLM2, 20 documents of 100 tokens, 32 new tokens; seconds (p50 / p95)")
        console.print("all servers are stopped")
        console.print(summarise_warm(rows, clients[-1]), soft_wrap=True)
    write_json({"results": rows}, parsed.json)


if __name__ == "__main__":
    main()
