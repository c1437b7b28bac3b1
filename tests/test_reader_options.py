"""Integrations, commands and the server take reader adapters."""

import json

import pytest

from ragbias import DebiasedLM
from ragbias.errors import ReaderError
from ragbias.methods import get
from ragbias.models.named import PACKAGED
from ragbias.readers import SHIPPED, check_readers, shipped_readers
from support.live_server import serving
from support.random_models import random_model
from support.readers import write_reader

DOCS = ["Copper Hall. The passphrase is dagger.", "Iron Gate. The keeper is Tom.", "A mill by the river."]
TEXT = "Context:\n\n{}\n\nQuestion: What is the passphrase?\nAnswer:"


@pytest.mark.parametrize("shared", [False, True], ids=["loaded", "given"])
def test_langchain_runs_it_in_every_order(tiny, reader, shared):
    from langchain_ragbias import ChatRagBias

    model = dict(lm=tiny) if shared else dict(model_id="tiny")
    llm = ChatRagBias(**model, method="pcw", reader=reader, max_tokens=8)
    answers = [llm.invoke(TEXT.format("\n\n".join(docs)), documents=docs) for docs in (DOCS, DOCS[::-1])]
    assert [answer.response_metadata["ragbias"]["reader"] for answer in answers] == ["reader"] * 2
    assert answers[0].content == answers[1].content
    with pytest.raises(ReaderError, match="was trained for pcw, but the method is ape"):
        llm.invoke(TEXT.format("\n\n".join(DOCS)), documents=DOCS, method=f"ape(reader={reader})")


@pytest.mark.parametrize("given", ["name", "model", "lm"])
@pytest.mark.parametrize("framework", ["langchain", "llama_index"])
def test_a_missing_reader_is_refused_at_construction(tiny, framework, given):
    from llama_index.llms.ragbias import RagBiasLLM

    from langchain_ragbias import ChatRagBias

    model = {
        "name": {"model": "tiny"},
        "model": {"model": tiny.model, "tokenizer": tiny.tokenizer},
        "lm": {"lm": tiny},
    }[given]
    with pytest.raises(ReaderError, match="reader 'nope' is not a folder; expected 'smollm2-mixture'"):
        {"langchain": ChatRagBias, "llama_index": RagBiasLLM}[framework](**model, method="pcw", reader="nope")


def test_a_reader_joins_the_method_of_a_given_model(tiny, reader):
    from langchain_ragbias import ChatRagBias

    lm = DebiasedLM(tiny.model, tiny.tokenizer, method="pcw")
    assert ChatRagBias(lm=lm, reader=reader).method == get("pcw", reader=reader)


def test_llama_index_runs_it_in_every_order(reader):
    from llama_index.llms.ragbias import RagBiasLLM

    llm = RagBiasLLM(model_name="tiny", method="pcw", reader=reader, max_new_tokens=8)
    answers = [llm.complete(TEXT.format("\n\n".join(docs)), documents=docs) for docs in (DOCS, DOCS[::-1])]
    assert [answer.raw["ragbias"]["reader"] for answer in answers] == ["reader"] * 2
    assert answers[0].text == answers[1].text


def test_a_client_of_the_server_cannot_name_a_folder():
    from ragbias.serving.prompts import client_method

    with pytest.raises(Exception, match="a request cannot name a file; start the server with this method"):
        client_method("pcw(reader=reader)", get("pcw"))
    for name in shipped_readers():
        named = f"{name.removeprefix('smollm2-')}(reader={name})"
        assert client_method(named, get("pcw")) == get(named)


def command_with(command, reader, folder, model="tiny"):
    """Return the arguments of a command with a reader."""
    (folder / "notes.txt").write_text("\n\n".join(text * 20 for text in DOCS))
    rows = [{"question": f"What is passphrase {n}?", "documents": DOCS, "answer": "dagger"} for n in range(5)]
    (folder / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    named, notes = f"pcw(reader={reader})", str(folder / "notes.txt")
    arguments = {
        "ask": ["Who?", "--documents", notes, "--method", "pcw", "--reader", reader],
        "audit": ["--questions", str(folder / "q.jsonl"), "--methods", named, "--orders", "2"],
        "bench": ["--task", "tiny", "--methods", f"none,{named}", "--limit", "1", "--no-cost", "--documents", "3"],
        "serve": ["--method", "pcw", "--reader", reader],
    }[command]
    return [command, "--model", model, *arguments, *(["--out", str(folder / "run")] if command == "bench" else [])]


@pytest.mark.parametrize("command", ["ask", "audit", "bench"])
def test_commands_take_it(reader, command, tmp_path, cli):
    code, output, errors = cli(*command_with(command, reader, tmp_path))
    assert code in (0, 1), errors
    assert "pcw" in output and (command != "ask" or "pcw with the reader 'reader' over" in output)


@pytest.mark.parametrize("command", ["ask", "audit", "bench", "serve"])
def test_a_missing_reader_is_named_before_the_model_is_loaded(command, tmp_path, cli):
    code, _, errors = cli(*command_with(command, str(tmp_path / "none"), tmp_path, "no/such-model"))
    assert (
        code == 2
        and "expected 'smollm2-mixture', 'smollm2-pcw', 'smollm2-pine' or a folder with adapter_model.safetensors"
        in errors
    )


def test_bench_refuses_a_reader_of_another_model_before_it_runs(tmp_path, cli):
    folder = write_reader(tmp_path / "reader", random_model("llama"))
    code, _, errors = cli(*command_with("bench", folder, tmp_path))
    assert code == 2 and "was trained for a model, but this model is tiny" in errors
    assert not (tmp_path / "run").exists()


def test_a_shipped_reader_is_used_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in shipped_readers():
        check_readers([get(name.removeprefix("smollm2-"), None, name)])
    (tmp_path / "smollm2-pcw").mkdir()
    with pytest.raises(ReaderError, match="reader 'smollm2-pcw' is incomplete"):
        check_readers([get("pcw", None, "smollm2-pcw")])


def test_a_named_model_runs_with_the_method_and_reader_measured():
    assert get(None, "smollm2") == get("mixture(reader=smollm2-mixture)")
    assert get(None, "smollm2", "mine").reader == "mine"
    assert get(None, "tiny") == get(None, "my/model") == get(None) == get("pine")
    for name in PACKAGED:
        reader = get(None, name).reader
        record = json.loads((SHIPPED / reader / "reader.json").read_text()) if reader else None
        assert record is None or (record["model"]["name"] == name and record["receipt"]["supported"])


@pytest.mark.slow
def test_every_class_runs_the_default_of_the_model():
    from llama_index.llms.ragbias import RagBiasLLM

    from langchain_ragbias import ChatRagBias

    lm = DebiasedLM.from_pretrained("smollm2")
    assert lm.method == get("mixture(reader=smollm2-mixture)")
    assert ChatRagBias(model_id="smollm2").lm.method == lm.method == RagBiasLLM(model_name="smollm2").lm.method


def test_clients_without_a_method_run_the_default_of_the_server(tiny, reader):
    from langchain_ragbias import ChatRagBias

    served = DebiasedLM(tiny.model, tiny.tokenizer, "pcw", name="tiny", reader=reader)
    reports = []
    with serving({"tiny": served}) as address:
        for options in ({}, {"method": "pcw"}, {"method": "rotor"}):
            llm = ChatRagBias(base_url=address, max_tokens=2, **options)
            answer = llm.invoke(TEXT.format("\n\n".join(DOCS)), documents=DOCS)
            reports.append(answer.response_metadata["ragbias"])
    assert [report["method_ran"] for report in reports] == ["pcw", "pcw", "rotor"]
    assert [report["reader"] for report in reports] == ["reader", "", ""]
