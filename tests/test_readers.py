"""Reader adapters act only on the tokens after the documents."""

import copy
import itertools
import json
import threading

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file

import ragbias
from ragbias import DebiasedLM, DocumentCache, Prompt
from ragbias.errors import MethodError, ReaderError, UnsupportedReaderWarning
from ragbias.generation.scoring import continuation_logits
from ragbias.methods import AttentionMethod, format_method, get
from ragbias.models.named import PACKAGED
from ragbias.prompt import TokenisedPrompt
from ragbias.readers import SHIPPED, check_readers, fingerprint, reader_of, reading, shipped
from support.live_server import serving
from support.random_models import FAMILIES, random_model
from support.readers import write_reader

METHODS = ("pcw", "ape", "structured-prompting", "rotor", "pine", "mixture")
DOCUMENTS = (
    "Copper Hall\nThe passphrase is dagger.\n\n",
    "Iron Gate\nThe keeper is Tom.\n\n",
    "A mill.\n\n",
    "A wall.\n\n",
)
PROMPT = Prompt("Context:\n\n", DOCUMENTS, "What is the passphrase?")
TOKENS = TokenisedPrompt([3, 4, 5], [[6, 7, 8], [9, 10], [11, 12, 13, 14]], [15, 16, 17])


@pytest.fixture(scope="module")
def lm():
    return DebiasedLM.from_pretrained("tiny", "none")


@pytest.fixture
def reader(lm, tmp_path):
    return write_reader(tmp_path / "reader", lm.model)


def logits(model, method, tokens=TOKENS, cache=None):
    with torch.no_grad():
        return continuation_logits(model, tokens, method, [20, 21, 22], "torch", cache)


@pytest.mark.parametrize("family", FAMILIES)
def test_it_changes_the_answer_in_every_family(family, tmp_path):
    model = random_model(family)
    folder = write_reader(tmp_path, model)
    assert not torch.equal(logits(model, get("pcw", None, folder)), logits(model, get("pcw")))


@pytest.mark.parametrize("method", METHODS)
def test_every_order_has_the_same_bits(lm, method, tmp_path):
    folder = write_reader(tmp_path, lm.model, method)
    chosen = get(method, None, folder)
    orders = itertools.permutations(range(4))
    scores = {tuple(lm.score(PROMPT.reordered(order), "dagger it is", method=chosen).logprobs) for order in orders}
    without = lm.score(PROMPT, "dagger it is", method=method).logprobs
    assert len(scores) == 1 and scores != {tuple(without)}


@pytest.mark.parametrize("method", ["pcw", "ape", "structured-prompting", "mixture"])
def test_cached_batched_and_streamed_it_answers_alike(lm, method, tmp_path):
    folder = write_reader(tmp_path, lm.model, method)
    chosen = get(method, None, folder)
    alone = lm.generate(PROMPT, method=chosen, max_new_tokens=8, logprobs=True)
    cached = DebiasedLM(lm.model, lm.tokenizer, method, cache=DocumentCache(), reader=folder)
    for _ in range(2):
        again = cached.generate(PROMPT, max_new_tokens=8, logprobs=True)
        assert (again.token_ids, again.logprobs) == (alone.token_ids, alone.logprobs)
    assert again.report.cached_tokens > 0
    assert "".join(cached.stream(PROMPT, max_new_tokens=8)) == alone.text
    batch = lm.batch([PROMPT, Prompt("Context:\n\n", DOCUMENTS[:2], "Who?")], method=chosen, max_new_tokens=8)
    assert batch[0].token_ids == alone.token_ids


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_order_generates_the_same_bits(lm, method, tmp_path):
    """Alone, from an empty and a filled cache, in a batch and as a stream, next to plain methods."""
    folder = write_reader(tmp_path, lm.model, method)
    chosen, other = get(method, None, folder), Prompt("Context:\n\n", DOCUMENTS[:2], "Who?")
    reusable, settings = get(method).reusable_documents, dict(max_new_tokens=3, logprobs=True)
    cached = DebiasedLM(lm.model, lm.tokenizer, method, cache=DocumentCache() if reusable else None, reader=folder)
    base = {each: lm.generate(PROMPT, method=each, **settings).logprobs for each in ("none", method)}
    alone, stored, batched, streamed = set(), set(), set(), set()
    for order in itertools.permutations(range(4)):
        prompt = PROMPT.reordered(order)
        alone.add(bits(lm.generate(prompt, method=chosen, **settings)))
        stored.add(bits(again := cached.generate(prompt, **settings)))
        batched.add(bits(lm.batch([prompt, other], method=chosen, **settings)[0]))
        streamed.add("".join(cached.stream(prompt, max_new_tokens=3)))
    assert len(alone) == len(batched) == len(streamed) == 1 and stored == alone
    assert {tokens for tokens, _ in batched} == {tokens for tokens, _ in alone}
    assert (again.report.cached_tokens > 0) is reusable
    assert base == {each: lm.generate(PROMPT, method=each, **settings).logprobs for each in base}
    assert base[method] != again.logprobs


def bits(generation):
    return tuple(generation.token_ids), tuple(generation.logprobs)


def test_cache_entries_serve_every_reader_and_none(lm, tmp_path):
    first, second = (write_reader(tmp_path / str(seed), lm.model, seed=seed) for seed in (1, 2))
    shared = DebiasedLM(lm.model, lm.tokenizer, "pcw", cache=DocumentCache())
    shared.generate(PROMPT, max_new_tokens=1)
    for folder in (first, second):
        warm = shared.generate(PROMPT, method=get("pcw", None, folder), max_new_tokens=4, logprobs=True)
        cold = lm.generate(PROMPT, method=get("pcw", None, folder), max_new_tokens=4, logprobs=True)
        assert warm.report.cached_tokens > 0 and warm.logprobs == cold.logprobs
    assert shared.cache.stats().misses == 5  # the prefix and four documents, once


def test_the_base_model_is_unchanged_beside_it(lm, reader):
    plain = lm.score(PROMPT, "dagger", method="pcw").logprobs
    lm.score(PROMPT, "dagger", method=get("pcw", None, reader))
    assert lm.score(PROMPT, "dagger", method="pcw").logprobs == plain
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in lm.model.modules())


def test_the_adapter_is_that_of_peft(tmp_path):
    """Without documents, all tokens count as after the documents: the plain model with peft's adapter."""
    model = random_model("llama")
    folder = write_reader(tmp_path, model, "none")
    documents_end = TokenisedPrompt([], [[3], [4]], [5, 6, 7])
    ours = logits(model, get("none", None, folder), documents_end)
    ids = torch.tensor([[3, 4, 5, 6, 7, 20, 21]])
    with torch.no_grad():
        past = model(ids[:, :2], use_cache=True).past_key_values
        theirs = PeftModel.from_pretrained(random_model("llama"), folder)(ids[:, 2:], past_key_values=past).logits[
            0, 2:
        ]
    torch.testing.assert_close(ours, theirs.float(), atol=1e-5, rtol=1e-5)


def test_threads_with_several_readers_get_what_each_gets_alone(lm, tmp_path):
    methods = [get("pcw"), *(get("pcw", None, write_reader(tmp_path / str(s), lm.model, seed=s)) for s in range(3))]
    expected = [lm.score(PROMPT, "dagger", method=method).logprobs for method in methods]
    wrong = []

    def score(index):
        scores = [lm.score(PROMPT, "dagger", method=methods[index]).logprobs for _ in range(10)]
        wrong.extend(score for score in scores if score != expected[index])

    threads = [threading.Thread(target=score, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len({tuple(logprobs) for logprobs in expected}) == 4


def test_without_documents_it_stays_off(lm, reader):
    assert lm.generate("Who?", method=get("pcw", None, reader), max_new_tokens=4).report.reader == ""
    first = lm.score("Who?", "Tom", method=get("pcw", None, reader)).logprobs
    assert first == lm.score("Who?", "Tom", method="none").logprobs


def test_text_names_it(lm, reader):
    method = get(f"pcw(reader={reader})")
    assert method == get("pcw", None, reader) and get(format_method(method)) == method
    assert format_method(get("pcw")) == "pcw"
    assert lm.generate(PROMPT, method=method, max_new_tokens=1).report.reader == "reader"


def test_another_method_or_model_is_refused(lm, reader):
    with pytest.raises(ReaderError, match=r"for pcw, and the method is ape; use method='pcw' \(--method pcw\)"):
        DebiasedLM(lm.model, lm.tokenizer, "ape", reader=reader)
    with pytest.raises(ReaderError, match="was trained for pcw, and the method is mixture; use method='pcw'"):
        lm.generate(PROMPT, method=f"mixture(reader={reader})")
    other = random_model("llama")
    with pytest.raises(ReaderError, match="was trained for a model, and this model is mine: its weights in "):
        DebiasedLM(other, lm.tokenizer, "pcw", name="mine", reader=reader)
    with pytest.raises(MethodError, match="attention-sorting takes no reader; expected none, pine, pcw or another"):
        DebiasedLM(lm.model, lm.tokenizer, "attention-sorting", reader=reader)


def test_a_context_of_debias_refuses_it(lm, reader):
    with (
        pytest.raises(MethodError, match="pcw with a reader runs in two phases; use ragbias.DebiasedLM"),
        ragbias.debias(lm.model, get("pcw", None, reader), [(0, 1), (1, 2)]),
    ):
        pass


def test_damage_is_named(lm, reader, tmp_path, monkeypatch):
    for folder, reason in (
        (tmp_path / "missing", "missing' is not a folder; expected 'smollm2-mixture', 'smollm2-pcw' or a folder with"),
        (tmp_path, "is incomplete; expected .*, reader.json, which `ragbias adapt --out FOLDER` writes"),
    ):
        with pytest.raises(ReaderError, match=reason):
            DebiasedLM(lm.model, lm.tokenizer, "pcw", reader=str(folder))
    (tmp_path / "partial").mkdir()
    with pytest.raises(ReaderError, match="contains an unfinished training, which the same `ragbias adapt` finishes"):
        DebiasedLM(lm.model, lm.tokenizer, "pcw", reader=str(tmp_path))
    for content, reason in (("[]", "and adapter_config.json do not describe a reader"), ("{", "cannot be read")):
        (tmp_path / "reader" / "reader.json").write_text(content)
        with pytest.raises(ReaderError, match=f"reader.json {reason} .*; train it again"):
            DebiasedLM(lm.model, lm.tokenizer, "pcw", reader=reader)
    write_reader(tmp_path / "reader", lm.model)
    (tmp_path / "reader" / "adapter_model.safetensors").write_bytes(b"no weights")
    with pytest.raises(ReaderError, match=r"adapter_model.safetensors cannot be read \(.*; train it again"):
        DebiasedLM(lm.model, lm.tokenizer, "pcw", reader=reader)
    monkeypatch.setattr("ragbias.readers.SHIPPED", tmp_path)
    with pytest.raises(ReaderError, match=r"adapter_model.safetensors cannot be read \(.*; reinstall ragbias"):
        DebiasedLM(lm.model, lm.tokenizer, "pcw", reader=reader)


@pytest.mark.parametrize("name", ["reader.json", "adapter_model.safetensors"])
def test_a_file_that_cannot_be_opened_needs_no_training(lm, reader, tmp_path, name):
    file = tmp_path / "reader" / name
    file.unlink()
    file.mkdir()
    with pytest.raises(ReaderError, match=rf"{name} cannot be read .*; make the file readable"):
        DebiasedLM(lm.model, lm.tokenizer, "pcw", reader=reader)


def test_a_reader_without_a_proven_gain_warns(lm, tmp_path):
    folder = write_reader(tmp_path, lm.model, supported=False)
    with pytest.warns(UnsupportedReaderWarning, match="does not show that pcw with it is better than without"):
        DebiasedLM(lm.model, lm.tokenizer, "pcw", reader=folder)


def test_the_fingerprint_is_of_the_weights():
    model = random_model("llama")
    before = fingerprint(model)
    assert fingerprint(model.to(torch.bfloat16)) == before
    with torch.no_grad():
        next(model.parameters()).mul_(1.1)
    assert fingerprint(model) != before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(r="Infinity"), "do not describe a reader"),
        (dict(r=3), "with rank 3"),
        (dict(lora_alpha=float("nan")), "no finite scaling"),
        (dict(use_rslora=True), "use_rslora, which is not supported"),
    ],
)
def test_settings_of_peft_that_do_not_fit_are_named(lm, reader, tmp_path, change, message):
    file = tmp_path / "reader" / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(ReaderError, match=message):
        DebiasedLM(lm.model, lm.tokenizer, "pcw", reader=reader)


def test_weights_that_are_not_finite_are_named(lm, reader, tmp_path):
    file = tmp_path / "reader" / "adapter_model.safetensors"
    tensors = load_file(file)
    save_file({name: tensor * float("nan") for name, tensor in tensors.items()}, file)
    with pytest.raises(ReaderError, match="contains numbers for 'model.layers.0.* that are not finite"):
        DebiasedLM(lm.model, lm.tokenizer, "pcw", reader=reader)
    save_file({}, file)
    with pytest.raises(ReaderError, match="contains no tensors"):
        DebiasedLM(lm.model, lm.tokenizer, "pcw", reader=reader)


def test_methods_of_plugins_keep_their_identity():
    class Mine(AttentionMethod):
        name = "mine"

        def __init__(self, strength):
            self.strength = strength

    assert Mine(1) != Mine(2)


def test_a_folder_that_is_written_again_is_read_again(lm, reader, tmp_path):
    before = lm.score(PROMPT, "dagger", method=get("pcw", None, reader)).logprobs
    write_reader(tmp_path / "reader", lm.model, seed=5)
    assert lm.score(PROMPT, "dagger", method=get("pcw", None, reader)).logprobs != before


def test_weights_that_change_after_loading_are_refused(lm, reader):
    lm = DebiasedLM(copy.deepcopy(lm.model), lm.tokenizer, "pcw", reader=reader)
    lm.generate(PROMPT, max_new_tokens=1)
    with torch.no_grad():
        next(lm.model.parameters()).mul_(1.5)
    with pytest.raises(ReaderError, match="its weights in torch.float32 are"):
        lm.generate(PROMPT, max_new_tokens=1)


def test_a_pass_runs_while_another_thread_removes_a_hook(lm, reader):
    decoder = lm.model.get_decoder()
    with reading(lm.model, reader_of(lm.model, get("pcw", None, reader)), [0]):
        for hook in decoder._forward_pre_hooks.values():
            hook(decoder, ())  # torch omits kwargs for a hook that was removed meanwhile


DOCS = ["Copper Hall. The passphrase is dagger.", "Iron Gate. The keeper is Tom.", "A mill by the river."]
TEXT = "Context:\n\n{}\n\nQuestion: What is the passphrase?\nAnswer:"


@pytest.mark.parametrize("shared", [False, True], ids=["loaded", "given"])
def test_langchain_runs_it_in_every_order(lm, reader, shared):
    from langchain_ragbias import ChatRagBias

    model = dict(lm=lm) if shared else dict(model_id="tiny")
    llm = ChatRagBias(**model, method="pcw", reader=reader, max_tokens=8)
    answers = [llm.invoke(TEXT.format("\n\n".join(docs)), documents=docs) for docs in (DOCS, DOCS[::-1])]
    assert [answer.response_metadata["ragbias"]["reader"] for answer in answers] == ["reader"] * 2
    assert answers[0].content == answers[1].content
    with pytest.raises(ReaderError, match="was trained for pcw, and the method is ape"):
        llm.invoke(TEXT.format("\n\n".join(DOCS)), documents=DOCS, method=f"ape(reader={reader})")


def test_llama_index_runs_it_in_every_order(reader):
    from llama_index.llms.ragbias import RagBiasLLM

    llm = RagBiasLLM(model_name="tiny", method="pcw", reader=reader, max_new_tokens=8)
    answers = [llm.complete(TEXT.format("\n\n".join(docs)), documents=docs) for docs in (DOCS, DOCS[::-1])]
    assert [answer.raw["ragbias"]["reader"] for answer in answers] == ["reader"] * 2
    assert answers[0].text == answers[1].text


def test_a_client_of_the_server_cannot_name_a_folder(reader):
    from ragbias.serving.prompts import client_method

    with pytest.raises(Exception, match="a request cannot name a file; start the server with this method"):
        client_method("pcw(reader=reader)", get("pcw"))
    for name in shipped():
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
        code == 2 and "expected 'smollm2-mixture', 'smollm2-pcw' or a folder with adapter_model.safetensors" in errors
    )


def test_bench_refuses_a_reader_of_another_model_before_it_runs(tmp_path, cli):
    folder = write_reader(tmp_path / "reader", random_model("llama"))
    code, _, errors = cli(*command_with("bench", folder, tmp_path))
    assert code == 2 and "was trained for a model, and this model is tiny" in errors
    assert not (tmp_path / "run").exists()


def test_a_shipped_reader_is_used_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in shipped():
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


def test_clients_without_a_method_run_the_default_of_the_server(lm, reader):
    from langchain_ragbias import ChatRagBias

    served = DebiasedLM(lm.model, lm.tokenizer, "pcw", name="tiny", reader=reader)
    reports = []
    with serving({"tiny": served}) as address:
        for options in ({}, {"method": "pcw"}, {"method": "rotor"}):
            llm = ChatRagBias(base_url=address, max_tokens=2, **options)
            answer = llm.invoke(TEXT.format("\n\n".join(DOCS)), documents=DOCS)
            reports.append(answer.response_metadata["ragbias"])
    assert [report["method_ran"] for report in reports] == ["pcw", "pcw", "rotor"]
    assert [report["reader"] for report in reports] == ["reader", "", ""]
