"""``DebiasedLM``: generate, stream, batch and score agree with each other and with transformers."""

import itertools
import threading
import warnings

import pytest
import torch

import ragbias
from ragbias import DebiasedLM, Prompt, documents, methods
from ragbias.errors import ArgumentError, CancelledError, DocumentNotFoundError, MethodError, WrongTypeError
from ragbias.generation.preparing import build_request
from ragbias.methods import AttentionSorting, ChannelScaling, NoMethod, Ranking, ReorderingMethod, RoToR
from ragbias.prompt import tokenise
from support.concurrency import side_by_side
from support.integrations import assert_warned_at_their_lines
from support.prompts import ANIMALS, PROMPT, numbered
from support.random_models import FAMILIES, random_model

METHODS = [ChannelScaling(5, 0.0, layers=(1, 2)), *(name for name in methods.METHODS if name != "channel-scaling")]


def name(method):
    return method if isinstance(method, str) else method.name


@pytest.mark.parametrize("method", METHODS, ids=name)
def test_stream_and_batch_give_what_generate_gives(lm, method):
    alone = lm.generate(PROMPT, method=method, max_new_tokens=12)
    assert "".join(lm.stream(PROMPT, method=method, max_new_tokens=12)) == alone.text
    short = Prompt("Context:\n", ANIMALS[:2], "Q:")
    first, second = lm.batch([PROMPT, short], method=method, max_new_tokens=12)
    assert first.text == alone.text
    assert second.text == lm.generate(short, method=method, max_new_tokens=12).text
    assert alone.report.method_requested == alone.report.method_ran == name(method)


def test_none_equals_transformers(lm):
    ids = lm.tokenizer(PROMPT.text, return_tensors="pt").input_ids
    expected = lm.model.generate(ids, max_new_tokens=12, do_sample=False)[0, ids.shape[1] :].tolist()
    got = lm.generate(PROMPT, method="none", max_new_tokens=12)
    assert got.token_ids == [token for token in expected if token != 2]
    assert got.usage.prompt_tokens == ids.shape[1]
    assert got.usage.total_tokens == got.usage.prompt_tokens + got.usage.completion_tokens


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_pine_text_is_order_invariant_streamed_or_not(byte_tokenizer, dtype):
    lm = DebiasedLM(random_model("llama").to(dtype), byte_tokenizer)
    expected = lm.generate(PROMPT, max_new_tokens=10)
    for order in itertools.permutations(range(4)):
        prompt = PROMPT.reordered(order)
        assert lm.generate(prompt, max_new_tokens=10).token_ids == expected.token_ids
        assert "".join(lm.stream(prompt, max_new_tokens=10)) == expected.text
        assert lm.score(prompt, " the owl").logprobs == lm.score(PROMPT, " the owl").logprobs


def test_flat_prompt_with_documents_equals_the_prompt_in_parts(lm):
    flat = lm.generate(PROMPT.text, documents=[text.strip() for text in ANIMALS], max_new_tokens=8)
    assert flat.text == lm.generate(PROMPT, max_new_tokens=8).text
    assert (flat.report.source, flat.report.n_expected, flat.report.n_found) == ("documents", 4, 4)
    assert flat.report.spans == lm.generate(PROMPT, max_new_tokens=1).report.spans


def test_the_report_holds_the_order_that_a_method_makes(lm):
    tokens = lm.prepare(PROMPT, method="none").tokens
    request = lm.prepare(PROMPT, method="canonical-order")
    assert sorted(request.report.order) == list(range(len(PROMPT.documents)))
    assert request.tokens.documents == [tokens.documents[index] for index in request.report.order]
    assert request.report.as_dict()["order"] == list(request.report.order)
    for method in ("none", "pine", "permutation-vote"):
        assert lm.prepare(PROMPT, method=method).report.order == ()


def test_a_plain_prompt_in_another_order_equals_that_text():
    lm = DebiasedLM.from_pretrained("tiny")
    texts = ["The gate is red.", "An owl sleeps.", "The wall is blue."]

    def prompt(order):
        return "Context: {} {} {}\nWhich?".format(*(texts[index] for index in order))

    came = lm.prepare(prompt([0, 1, 2]), documents=texts, method="none")
    moved = build_request(lm.loaded, came.prompt.reordered([2, 0, 1]), NoMethod())
    assert moved.tokens.ids == lm.tokenizer(prompt([2, 0, 1]))["input_ids"]
    assert moved.tokens.ids == lm.prepare(prompt([2, 0, 1]), documents=texts, method="none").tokens.ids
    segmented, pine = (lm.prepare(prompt([0, 1, 2]), documents=texts, method=name) for name in ("segmented", "pine"))
    assert segmented.report.segmentation_changed and not came.report.segmentation_changed
    assert segmented.tokens == pine.tokens == tokenise(came.prompt.parts, lm.tokenizer)


@pytest.mark.parametrize("order", [[0, 0, 1, 2], [1], [0, 1, 2, 4], "0123"])
def test_an_order_that_is_none_is_refused(lm, order):
    with pytest.raises(ArgumentError, match="each index below 4 once"):
        lm.prepare(PROMPT).prompt.reordered(order)


def test_numbered_headers_are_found_and_numbers_can_be_stripped(lm):
    numbered = [f"[{number}] {text}" for number, text in enumerate(ANIMALS, 1)]
    text = "<context>\n" + "".join(numbered) + "</context>\nQuestion: who sleeps?\nAnswer:"
    found = lm.generate(text, max_new_tokens=1)
    assert (found.report.source, found.report.method_ran, found.report.n_found) == ("headers", "pine", 4)
    with pytest.raises(DocumentNotFoundError, match="0 of 1"):
        lm.generate(text, documents=["not there"])
    bare = DebiasedLM(lm.model, lm.tokenizer, strip_numbering=True)
    without = lm.generate(
        Prompt("<context>\n", ANIMALS, "</context>\nQuestion: who sleeps?\nAnswer:"), max_new_tokens=4
    )
    stripped = bare.generate(text, max_new_tokens=4)
    assert stripped.usage.prompt_tokens == without.usage.prompt_tokens
    assert stripped.text == without.text


def test_documents_block_names_the_documents(lm):
    with documents(ANIMALS):
        assert lm.generate(PROMPT.text, max_new_tokens=2).report.n_found == 4
    assert lm.generate(PROMPT.text, max_new_tokens=2).report.method_ran == "none"


def test_score_is_the_log_probability_of_generation(lm):
    for method in METHODS:
        answer = lm.generate(PROMPT, method=method, max_new_tokens=4)
        assert len(answer.token_ids) == 4
        text = lm.tokenizer.decode(answer.token_ids)
        if lm.tokenizer(text, add_special_tokens=False).input_ids != answer.token_ids:
            continue
        best = lm.score(PROMPT, text, method=method)
        worse = lm.score(PROMPT, text[:-1] + ("a" if text[-1] != "a" else "b"), method=method)
        assert best.total > worse.total
        assert max(best.logprobs) <= 0


def test_score_agrees_with_one_forward_pass_of_the_plain_model(lm):
    score = lm.score(PROMPT, " an owl", method="none")
    ids = lm.tokenizer(PROMPT.text, return_tensors="pt").input_ids
    both = torch.cat([ids, torch.tensor([score.token_ids])], dim=1)
    with torch.no_grad():
        logprobs = lm.model(both).logits[0].log_softmax(-1)[ids.shape[1] - 1 : -1]
    expected = logprobs.gather(1, both[0, ids.shape[1] :, None])[:, 0]
    torch.testing.assert_close(torch.tensor(score.logprobs), expected, atol=1e-4, rtol=0)


def test_eight_threads_with_different_methods_do_not_mix(lm):
    work = [(method, Prompt("Context:\n", ANIMALS[i:] + ANIMALS[:i], "Q:")) for i, method in enumerate(METHODS[:4])]
    work += [(method, PROMPT.reordered([2, 0, 3, 1])) for method in METHODS[:4]]
    expected = [lm.generate(prompt, method=method, max_new_tokens=10).token_ids for method, prompt in work]
    results: dict[tuple[int, int], list[int]] = {}
    barrier = threading.Barrier(len(work))

    def run(index):
        method, prompt = work[index]
        barrier.wait()
        for round_ in range(3):
            results[index, round_] = lm.generate(prompt, method=method, max_new_tokens=10).token_ids

    side_by_side([threading.Thread(target=run, args=(index,)) for index in range(len(work))])
    assert results == {(index, round_): ids for index, ids in enumerate(expected) for round_ in range(3)}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_answers_the_same_in_any_order(byte_tokenizer, family):
    lm = DebiasedLM(random_model(family), byte_tokenizer)
    texts = {lm.generate(PROMPT.reordered(order), max_new_tokens=5).text for order in ((0, 1, 2, 3), (3, 1, 0, 2))}
    assert len(texts) == 1


def test_numbers_warn_once_per_call_site_and_can_be_stripped(llama, byte_tokenizer):
    lm, flat = DebiasedLM(llama, byte_tokenizer), numbered([0, 1, 2])
    places = [
        lambda: lm.prepare(flat).report.as_dict(),
        lambda: lm.prepare(flat).report.as_dict(),  # another line of code
    ]
    assert_warned_at_their_lines(places)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stripping = DebiasedLM(llama, byte_tokenizer, strip_numbering=True)
        assert stripping.prepare(flat).report.numbering == "stripped"


def test_numbers_are_reported_without_document_spans_too(lm):
    cut = "Context:\n1. One falcon.\n(of x)\n2. Two owls.\n(of y)\n"  # the prompt ends with its documents
    for text, method in ((cut, "pine"), (f"{cut}\nWho?", "none"), (f"{cut}\nWho?", "ms-poe")):
        report = lm.prepare(text, documents=["One falcon.", "Two owls."], method=method).report
        assert (report.numbering, report.n_found) == ("present", 2)
        assert report.method_ran == ("none" if method == "pine" else method)


@pytest.mark.parametrize("method", [AttentionSorting(rounds=50), RoToR(selective=True)], ids=name)
def test_preparing_runs_the_model_and_can_be_cancelled_there(lm, method):
    cancelled = threading.Event()
    assert lm.prepare(PROMPT, method=method, cancelled=cancelled).report.method_requested == method.name
    passes = []

    def cancel(*_):
        passes.append(1)
        cancelled.set()

    handle = lm.model.model.layers[0].register_forward_hook(cancel)
    try:
        with pytest.raises(CancelledError, match="cancelled before its answer began"):
            lm.prepare(PROMPT, method=method, cancelled=cancelled)
        assert len(passes) == 1
        with pytest.raises(CancelledError, match="cancelled before its answer began"):
            lm.batch([PROMPT], method=method, cancelled=cancelled)
    finally:
        handle.remove()


@pytest.mark.parametrize("cancelled", [True, "now", object()])
@pytest.mark.parametrize("method", ["none", "attention-sorting"])
def test_what_cannot_tell_of_a_cancellation_is_refused(lm, method, cancelled):
    with pytest.raises(WrongTypeError, match="expected a threading.Event"):
        lm.prepare(PROMPT, method=method, cancelled=cancelled)
    with pytest.raises(WrongTypeError, match="expected a threading.Event"):
        lm.batch([lm.prepare(PROMPT, method=method)], cancelled=cancelled)


@pytest.mark.parametrize("given", [[0, 0, 1], [0], range(5), None], ids=repr)
def test_an_order_that_omits_or_repeats_documents_is_refused(lm, given):
    class Given(ReorderingMethod):
        name, cost, source = "given", "none", "a test"

        def rank(self, documents, scorer):
            return Ranking(given)

    with pytest.raises(MethodError, match=f"given: order=.*; expected each index below {len(ANIMALS)} once"):
        lm.prepare(PROMPT, method=Given())


def test_a_method_that_returns_no_ranking_is_refused(lm):
    class Listed(ReorderingMethod):
        name, cost, source = "listed", "none", "a test"

        def rank(self, documents, scorer):
            return list(range(len(documents)))

    with pytest.raises(MethodError, match=r"listed: rank returned \[0, .*; expected a ragbias.methods.Ranking"):
        lm.prepare(PROMPT, method=Listed())


def test_methods_without_documents_do_not_report_their_lack(lm):
    method = ChannelScaling(5, 0.0, layers=(1, 2))
    assert lm.generate("Just a question.", method=method, max_new_tokens=1).report.reason == ""
    assert "no documents were given" in lm.generate("Just a question.", method="pine", max_new_tokens=1).report.reason


def test_the_representation_names_model_and_method(lm):
    assert (
        repr(DebiasedLM(lm.model, lm.tokenizer, "rotor", name="my-model")) == "DebiasedLM('my-model', method='rotor')"
    )


def test_errors_are_public_and_checks_are_not():
    assert ragbias.errors.ArgumentError is ArgumentError
    assert "errors" in dir(ragbias) and "checks" not in dir(ragbias)


def test_results_and_their_base_error_are_public(lm):
    generation, score = lm.generate(PROMPT, max_new_tokens=1), lm.score(PROMPT, " a")
    assert isinstance(generation, ragbias.Generation) and isinstance(score, ragbias.Score)
    assert isinstance(score.report, ragbias.Report) and issubclass(ArgumentError, ragbias.RagBiasError)
