"""The examples run unchanged with the embedded model."""

import asyncio
import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestClient, TestServer
from llama_index.core import Document, VectorStoreIndex
from llama_index.core.embeddings import MockEmbedding
from llama_index.llms.ragbias import RagBiasLLM
from yarl import URL

EXAMPLES = Path(__file__).parents[1] / "examples"
QUESTION = "Which gate is red?"

Run = Callable[..., str]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a script in this process, which has loaded the libraries, and return its output."""

    def run_script(script: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [script, *arguments])
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        runpy.run_path(str(EXAMPLES / script), run_name="__main__")
        return capsys.readouterr().out

    return run_script


def test_all_examples_are_run_here():
    source = Path(__file__).read_text()
    assert [path.name for path in EXAMPLES.glob("*.py") if f'"{path.name}"' not in source] == []


@pytest.fixture
def notes(tmp_path: Path) -> list[str]:
    """A user's text files."""
    for name in ("one", "two"):
        (tmp_path / f"{name}.txt").write_text(f"The gate of house {name} is red.")
    return [str(tmp_path / "one.txt"), str(tmp_path / "two.txt")]


@pytest.mark.parametrize("llm", ["stock", "ragbias"])
def test_llama_index_example_answers_in_both_orders(run, llm):
    output = run("llama_index_faiss_qa.py", "--model", "tiny", "--llm", llm, "--questions", "2", "--top-k", "5")
    assert output.count("reverse order:") == 2
    assert llm == "stock" or "0 of 2 answers changed" in output


def test_llama_index_example_reads_the_users_files(run, notes):
    folder = str(Path(notes[0]).parent)
    output = run("llama_index_faiss_qa.py", "--model", "tiny", "--documents", folder, "--question", QUESTION)
    assert "0 of 1 answers changed" in output
    assert "pine on 2 documents" in output


@pytest.mark.parametrize("llm", ["stock", "ragbias"])
def test_langchain_example_answers_in_both_orders(run, llm):
    output = run("langchain_faiss_qa.py", "--model", "tiny", "--llm", llm, "--top-k", "5")
    assert output.count("reversed") >= 5


def test_the_transformers_example_shows_pines_invariance(run):
    plain, pine = run("transformers_generate.py", "--model", "tiny").split("\nnone: ")[1].split("\npine: ")
    assert "two orders is 0\n" not in plain
    assert "two orders is 0\n" in pine


def test_chat_engine_example_finds_the_documents_on_every_turn(run, notes):
    assert run("chat_engine.py", "--model", "tiny").count("pine on 5 documents") == 4
    output = run("chat_engine.py", "--model", "tiny", "--documents", *notes, "--question", QUESTION, "And whose is it?")
    assert output.count("pine on 2 documents") == 2


def test_agent_example_answers_from_what_it_looks_up(run, notes):
    output = run("agent.py", "--model", "tiny")
    assert output.count("agent: look_up({'query': ") == output.count("pine on 5 documents") == 4
    folder = str(Path(notes[0]).parent)
    output = run("agent.py", "--model", "tiny", "--documents", folder, "--question", QUESTION)
    assert "tool: 2 documents" in output
    assert "pine on 2 documents" in output


def test_in_the_judge_example_only_stock_verdicts_change(run):
    output = run("judge.py", "--model", "tiny", "--pairs", "4")
    assert "judge: 0 of 4 verdicts changed" in output
    assert "stock: 0 of 4 verdicts changed" not in output


def test_the_langchain_judge_example_is_order_invariant(run):
    lines = run("judge_langchain.py", "--model", "tiny").splitlines()
    assert len(lines) == 4 and lines[0] == lines[1]
    assert lines[2] != lines[3]


async def ask(client: TestClient[Any, Any], question: str) -> tuple[str, dict[str, Any]]:
    async with client.get("/ask", params={"question": question}) as response:
        text, report = (await response.text()).strip().rsplit("\n", 1)
        return text, json.loads(report)


async def test_web_example_streams_answers_to_several_clients(run, monkeypatch, capsys):
    served: list[web.Application] = []
    prints: list[Callable[[str], None]] = []
    monkeypatch.setattr(web, "run_app", lambda app, **settings: (served.append(app), prints.append(settings["print"])))
    await asyncio.to_thread(run, "streaming_web.py", "--model", "tiny", "--top-k", "5")
    async with TestClient(TestServer(served[0])) as client:
        answers = await asyncio.gather(*(ask(client, f"What is the colour of {name}?") for name in ("Kiln", "Oak")))
        assert [report["n_found"] for _, report in answers] == [5, 5]
        assert (await client.get("/ask")).status == 400
        prints[0]("")
        address = capsys.readouterr().out.strip().removeprefix("http://127.0.0.1:8080")
        assert (await client.get(URL(address, encoded=True))).status == 200


async def test_the_web_example_stays_responsive_and_stops_on_leaving():
    make_app = runpy.run_path(str(EXAMPLES / "streaming_web.py"))["make_app"]
    llm = RagBiasLLM(model_name="tiny", max_new_tokens=1500, generate_kwargs={"min_new_tokens": 1500})
    index = VectorStoreIndex.from_documents([Document(text="The gate is red.")], embed_model=MockEmbedding(4))
    steps: list[int] = []
    handle = llm.lm.model.register_forward_pre_hook(lambda *_: steps.append(1))
    async with TestServer(make_app(index, llm, 1)) as server, ClientSession() as session:
        response = await session.get(server.make_url("/ask"), params={"question": QUESTION})
        await response.content.readany()
        async with session.get(server.make_url("/health")) as health:
            assert await health.text() == "ok\n"
        assert len(steps) < 1000
        response.close()
        stopped_at = -1
        while len(steps) != stopped_at and len(steps) < 1400:
            stopped_at = len(steps)
            await asyncio.sleep(1)
        assert len(steps) == stopped_at < 1400
    handle.remove()


def test_audit_questions_are_what_the_script_writes(run, tmp_path):
    committed, written = (EXAMPLES / "audit_questions.jsonl").read_text(), tmp_path / "q.jsonl"
    assert f"Written: {written}" in run("audit_questions.py", "--out", str(written))
    assert written.read_text() == committed
    assert len(committed.splitlines()) == 30


def test_audit_questions_overwrite_nothing(run, tmp_path):
    path = tmp_path / "q.jsonl"
    path.write_text("mine")
    with pytest.raises(SystemExit, match="exists; give --out a new file"):
        run("audit_questions.py", "--out", str(path))
    assert path.read_text() == "mine"
