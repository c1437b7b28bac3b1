"""Reader adapters act only on the tokens after the documents."""

import copy
import itertools
import json
import threading

import pytest
import torch
from peft import PeftModel

import ragbias
from ragbias import DebiasedLM, DocumentCache, Prompt
from ragbias.errors import MethodError, ReaderError, UnsupportedReaderWarning
from ragbias.generation.attaching import LoadedModel
from ragbias.generation.scoring import continuation_logits
from ragbias.methods import AttentionMethod, format_method, get
from ragbias.prompt import TokenisedPrompt
from ragbias.readers import apply_reader, fingerprint, reader_of
from support.concurrency import side_by_side
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


def logits(model, method, tokens=TOKENS, cache=None):
    with torch.no_grad():
        return continuation_logits(LoadedModel(model, None, "torch", cache), tokens, method, [20, 21, 22])


@pytest.mark.parametrize("family", FAMILIES)
def test_it_changes_the_answer_in_every_family(family, tmp_path):
    model = random_model(family)
    folder = write_reader(tmp_path, model)
    assert not torch.equal(logits(model, get("pcw", None, folder)), logits(model, get("pcw")))


@pytest.mark.parametrize("method", METHODS)
def test_every_order_has_the_same_bits(tiny, method, tmp_path):
    folder = write_reader(tmp_path, tiny.model, method)
    chosen = get(method, None, folder)
    orders = itertools.permutations(range(4))
    scores = {tuple(tiny.score(PROMPT.reordered(order), "dagger it is", method=chosen).logprobs) for order in orders}
    without = tiny.score(PROMPT, "dagger it is", method=method).logprobs
    assert len(scores) == 1 and scores != {tuple(without)}


@pytest.mark.parametrize("method", ["pcw", "ape", "structured-prompting", "mixture"])
def test_cached_batched_and_streamed_it_answers_alike(tiny, method, tmp_path):
    folder = write_reader(tmp_path, tiny.model, method)
    chosen = get(method, None, folder)
    alone = tiny.generate(PROMPT, method=chosen, max_new_tokens=8, logprobs=True)
    cached = DebiasedLM(tiny.model, tiny.tokenizer, method, cache=DocumentCache(), reader=folder)
    for _ in range(2):
        again = cached.generate(PROMPT, max_new_tokens=8, logprobs=True)
        assert (again.token_ids, again.logprobs) == (alone.token_ids, alone.logprobs)
    assert again.report.cached_tokens > 0
    assert "".join(cached.stream(PROMPT, max_new_tokens=8)) == alone.text
    batch = tiny.batch([PROMPT, Prompt("Context:\n\n", DOCUMENTS[:2], "Who?")], method=chosen, max_new_tokens=8)
    assert batch[0].token_ids == alone.token_ids


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_order_generates_the_same_bits(tiny, method, tmp_path):
    """Alone, from an empty and a filled cache, in a batch and as a stream, next to plain methods."""
    folder = write_reader(tmp_path, tiny.model, method)
    chosen, other = get(method, None, folder), Prompt("Context:\n\n", DOCUMENTS[:2], "Who?")
    reusable, settings = get(method).reusable_documents, dict(max_new_tokens=3, logprobs=True)
    cached = DebiasedLM(tiny.model, tiny.tokenizer, method, cache=DocumentCache() if reusable else None, reader=folder)
    base = {each: tiny.generate(PROMPT, method=each, **settings).logprobs for each in ("none", method)}
    alone, stored, batched, streamed = set(), set(), set(), set()
    for order in itertools.permutations(range(4)):
        prompt = PROMPT.reordered(order)
        alone.add(bits(tiny.generate(prompt, method=chosen, **settings)))
        stored.add(bits(again := cached.generate(prompt, **settings)))
        batched.add(bits(tiny.batch([prompt, other], method=chosen, **settings)[0]))
        streamed.add("".join(cached.stream(prompt, max_new_tokens=3)))
    assert len(alone) == len(batched) == len(streamed) == 1 and stored == alone
    assert {tokens for tokens, _ in batched} == {tokens for tokens, _ in alone}
    assert (again.report.cached_tokens > 0) is reusable
    assert base == {each: tiny.generate(PROMPT, method=each, **settings).logprobs for each in base}
    assert base[method] != again.logprobs


def bits(generation):
    return tuple(generation.token_ids), tuple(generation.logprobs)


def test_cache_entries_serve_every_reader_and_none(tiny, tmp_path):
    first, second = (write_reader(tmp_path / str(seed), tiny.model, seed=seed) for seed in (1, 2))
    shared = DebiasedLM(tiny.model, tiny.tokenizer, "pcw", cache=DocumentCache())
    shared.generate(PROMPT, max_new_tokens=1)
    for folder in (first, second):
        warm = shared.generate(PROMPT, method=get("pcw", None, folder), max_new_tokens=4, logprobs=True)
        cold = tiny.generate(PROMPT, method=get("pcw", None, folder), max_new_tokens=4, logprobs=True)
        assert warm.report.cached_tokens > 0 and warm.logprobs == cold.logprobs
    assert shared.cache.stats().misses == 5  # the prefix and four documents, once


def test_the_base_model_is_unchanged_beside_it(tiny, reader):
    plain = tiny.score(PROMPT, "dagger", method="pcw").logprobs
    tiny.score(PROMPT, "dagger", method=get("pcw", None, reader))
    assert tiny.score(PROMPT, "dagger", method="pcw").logprobs == plain
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in tiny.model.modules())


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


def test_threads_with_several_readers_get_what_each_gets_alone(tiny, tmp_path):
    methods = [get("pcw"), *(get("pcw", None, write_reader(tmp_path / str(s), tiny.model, seed=s)) for s in range(3))]
    expected = [tiny.score(PROMPT, "dagger", method=method).logprobs for method in methods]
    wrong = []

    def score(index):
        scores = [tiny.score(PROMPT, "dagger", method=methods[index]).logprobs for _ in range(10)]
        wrong.extend(score for score in scores if score != expected[index])

    side_by_side([threading.Thread(target=score, args=(index,)) for index in range(4)])
    assert not wrong and len({tuple(logprobs) for logprobs in expected}) == 4


def test_without_documents_it_stays_off(tiny, reader):
    assert tiny.generate("Who?", method=get("pcw", None, reader), max_new_tokens=4).report.reader == ""
    first = tiny.score("Who?", "Tom", method=get("pcw", None, reader)).logprobs
    assert first == tiny.score("Who?", "Tom", method="none").logprobs


def test_text_names_it(tiny, reader):
    method = get(f"pcw(reader={reader})")
    assert method == get("pcw", None, reader) and get(format_method(method)) == method
    assert format_method(get("pcw")) == "pcw"
    assert tiny.generate(PROMPT, method=method, max_new_tokens=1).report.reader == "reader"


def test_another_method_or_model_is_refused(tiny, reader):
    with pytest.raises(ReaderError, match=r"for pcw, but the method is ape; use method='pcw' \(--method pcw\)"):
        DebiasedLM(tiny.model, tiny.tokenizer, "ape", reader=reader)
    with pytest.raises(ReaderError, match="was trained for pcw, but the method is mixture; use method='pcw'"):
        tiny.generate(PROMPT, method=f"mixture(reader={reader})")
    other = random_model("llama")
    with pytest.raises(ReaderError, match="was trained for a model, but this model is mine: its weights in "):
        DebiasedLM(other, tiny.tokenizer, "pcw", name="mine", reader=reader)
    with pytest.raises(MethodError, match="attention-sorting takes no reader; use 'none', 'pine', 'pcw' or another"):
        DebiasedLM(tiny.model, tiny.tokenizer, "attention-sorting", reader=reader)


def test_a_context_of_debias_refuses_it(tiny, reader):
    with (
        pytest.raises(MethodError, match="pcw with a reader runs in two phases; use ragbias.DebiasedLM"),
        ragbias.debias(tiny.model, get("pcw", None, reader), [(0, 1), (1, 2)]),
    ):
        pass


def test_damage_is_named(tiny, reader, tmp_path, monkeypatch):
    for folder, reason in (
        (
            tmp_path / "missing",
            "missing' is not a folder; expected 'smollm2-mixture', 'smollm2-pcw', 'smollm2-pine' or a folder with",
        ),
        (tmp_path, "is incomplete; expected .*, reader.json, which `ragbias adapt --out FOLDER` writes"),
    ):
        with pytest.raises(ReaderError, match=reason):
            DebiasedLM(tiny.model, tiny.tokenizer, "pcw", reader=folder)
    (tmp_path / "partial").mkdir()
    with pytest.raises(
        ReaderError, match="contains an unfinished training, which the same `ragbias adapt` command finishes"
    ):
        DebiasedLM(tiny.model, tiny.tokenizer, "pcw", reader=str(tmp_path))
    for content, reason in (("[]", "and adapter_config.json do not describe a reader"), ("{", "cannot be read")):
        (tmp_path / "reader" / "reader.json").write_text(content)
        with pytest.raises(ReaderError, match=f"reader.json {reason} .*; train it again"):
            DebiasedLM(tiny.model, tiny.tokenizer, "pcw", reader=reader)
    write_reader(tmp_path / "reader", tiny.model)
    (tmp_path / "reader" / "adapter_model.safetensors").write_bytes(b"no weights")
    with pytest.raises(ReaderError, match=r"adapter_model.safetensors cannot be read \(.*; train it again"):
        DebiasedLM(tiny.model, tiny.tokenizer, "pcw", reader=reader)
    monkeypatch.setattr("ragbias.readers.SHIPPED", tmp_path)
    with pytest.raises(ReaderError, match=r"adapter_model.safetensors cannot be read \(.*; reinstall ragbias"):
        DebiasedLM(tiny.model, tiny.tokenizer, "pcw", reader=reader)


@pytest.mark.parametrize("name", ["reader.json", "adapter_model.safetensors"])
def test_a_file_that_cannot_be_opened_needs_no_training(tiny, reader, tmp_path, name):
    file = tmp_path / "reader" / name
    file.unlink()
    file.mkdir()
    with pytest.raises(ReaderError, match=rf"{name} cannot be read .*; make the file readable"):
        DebiasedLM(tiny.model, tiny.tokenizer, "pcw", reader=reader)


def test_a_reader_without_a_proven_gain_warns(tiny, tmp_path):
    folder = write_reader(tmp_path, tiny.model, supported=False)
    with pytest.warns(UnsupportedReaderWarning, match="does not show that it improves pcw"):
        DebiasedLM(tiny.model, tiny.tokenizer, "pcw", reader=folder)


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
def test_settings_of_peft_that_do_not_fit_are_named(tiny, reader, tmp_path, change, message):
    file = tmp_path / "reader" / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(ReaderError, match=message):
        DebiasedLM(tiny.model, tiny.tokenizer, "pcw", reader=reader)


def test_methods_of_plugins_keep_their_identity():
    class Mine(AttentionMethod):
        name = "mine"

        def __init__(self, strength):
            self.strength = strength

    assert Mine(1) != Mine(2)


def test_a_folder_that_is_written_again_is_read_again(tiny, reader, tmp_path):
    before = tiny.score(PROMPT, "dagger", method=get("pcw", None, reader)).logprobs
    write_reader(tmp_path / "reader", tiny.model, seed=5)
    assert tiny.score(PROMPT, "dagger", method=get("pcw", None, reader)).logprobs != before


def test_weights_that_change_after_loading_are_refused(tiny, reader):
    lm = DebiasedLM(copy.deepcopy(tiny.model), tiny.tokenizer, "pcw", reader=reader)
    lm.generate(PROMPT, max_new_tokens=1)
    with torch.no_grad():
        next(lm.model.parameters()).mul_(1.5)
    with pytest.raises(ReaderError, match="its weights in torch.float32 have"):
        lm.generate(PROMPT, max_new_tokens=1)


def test_a_pass_runs_while_another_thread_removes_a_hook(tiny, reader):
    decoder = tiny.model.get_decoder()
    with apply_reader(tiny.model, reader_of(tiny.model, get("pcw", None, reader)), [0]):
        for hook in decoder._forward_pre_hooks.values():
            hook(decoder, ())  # torch omits kwargs for a hook that was removed meanwhile
