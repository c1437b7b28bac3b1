"""Prepared requests: batching, plain runs, and errors."""

import pytest

from ragbias import DebiasedLM, Prompt
from ragbias import prompt as prompt_module
from ragbias.boundaries import locate, locating, numbering
from ragbias.errors import (
    ArgumentError,
    DocumentNotFoundError,
    EmptyDocumentError,
    MethodError,
    PromptTooLongError,
    UnknownMethodError,
    UnsupportedModelError,
    WrongTypeError,
)
from ragbias.generation import GenerationSettings, preparing
from ragbias.methods import ChannelScaling, Pine
from support.prompts import ANIMALS, PROMPT
from support.random_models import random_model


def test_a_batch_takes_prompts_made_ready(lm):
    ready = [lm.prepare(PROMPT), lm.prepare(PROMPT.text, method="none")]
    answers = lm.batch(ready, max_new_tokens=8)
    assert [answer.report.method_ran for answer in answers] == ["pine", "none"]
    assert answers[0].text == lm.generate(PROMPT, max_new_tokens=8).text


def test_prepared_requests_are_answered_with_settings(lm):
    request, settings = lm.prepare(PROMPT), GenerationSettings(max_new_tokens=8)
    expected = lm.generate(PROMPT, max_new_tokens=8)
    assert lm.answer([request, request], settings)[1].text == expected.text
    assert "".join(lm.stream_answer(request, settings)) == expected.text


@pytest.mark.parametrize("segmenter", [None, "\n\n"])
def test_numbering_is_computed_once(lm, monkeypatch, segmenter):
    calls = []

    def counted(*arguments):
        calls.append(arguments)
        return numbering.find_numbering(*arguments)

    for module in (locating, preparing, prompt_module):
        monkeypatch.setattr(module, "find_numbering", counted)
    control = lm.tokenizer.all_special_tokens[0]
    documents = [f"[{number}] {text} {control} is data." for number, text in enumerate(("Owls", "Whales", "Cats"), 1)]
    text = "Context:\n\n" + "\n\n".join(documents) + "\n\nWho?"
    boundaries = locate(text, documents=documents, segmenter=segmenter)
    assert lm.prepare(text, boundaries=boundaries).report.n_found == 3
    assert len(calls) == 1


def test_a_prompt_near_the_window_does_not_shorten_the_others(lm):
    long = "a" * (lm.window - 4)
    short, cut = lm.batch(["hello", long], method="none", max_new_tokens=9)
    assert short.text == lm.generate("hello", method="none", max_new_tokens=9).text
    assert cut.usage.completion_tokens <= 3


def test_one_document_or_none_runs_plain_with_a_reason(lm):
    for count, words in ((0, "no documents"), (1, "one document")):
        prompt = Prompt("Context:\n", ANIMALS[:count], "Q:")
        answer = lm.generate(prompt, max_new_tokens=4)
        assert (answer.report.method_requested, answer.report.method_ran) == ("pine", "none")
        assert words in answer.report.reason
        assert answer.text == lm.generate(prompt, method="none", max_new_tokens=4).text


def test_documents_at_the_end_run_plain_with_a_reported_reason(lm):
    answer = lm.generate(Prompt("Context:\n", ANIMALS, ""), max_new_tokens=3)
    assert answer.report.method_ran == "none"
    assert "ends with the documents" in answer.report.reason


def test_documents_with_footers_run_plain_with_a_reason(lm):
    text = "Context:\n" + "\n\n".join(f"{body.strip()}\nSource: {body[:3]}" for body in ANIMALS) + "\n\nQ:"
    answer = lm.generate(text, documents=[body.strip() for body in ANIMALS], max_new_tokens=4)
    assert (answer.report.method_ran, answer.report.n_found) == ("none", 4)
    assert "footer" in answer.report.reason
    assert answer.text == lm.generate(text, method="none", max_new_tokens=4).text


def test_numbered_footers_need_strip_numbering(lm):
    bodies = [body.strip() for body in ANIMALS]
    text = "Context:\n" + "\n\n".join(f"{body}\nSource: {i}" for i, body in enumerate(bodies)) + "\n\nQ:"
    report = lm.generate(text, documents=bodies, max_new_tokens=1).report
    assert (report.method_ran, report.n_found) == ("none", 4)
    assert "strip_numbering=True removes the numbers from the headers" in report.reason
    stripping = DebiasedLM(lm.model, lm.tokenizer, method="pine", strip_numbering=True)
    report = stripping.generate(text, documents=bodies, max_new_tokens=1).report
    assert (report.method_ran, report.n_found, report.numbering, report.reason) == ("pine", 4, "stripped", "")


def test_a_prepared_request_takes_no_documents_or_method(lm):
    request = lm.prepare(PROMPT)
    answer = lm.generate(PROMPT, max_new_tokens=2)
    assert lm.generate(request, max_new_tokens=2).token_ids == answer.token_ids
    for call in (
        lambda: lm.generate(request, method="none"),
        lambda: lm.stream(request, documents=ANIMALS),
        lambda: lm.batch([request], method="none"),
    ):
        with pytest.raises(
            ArgumentError, match="the request is prepared already; leave out documents, boundaries and method"
        ):
            call()


def test_batch_takes_lists(lm):
    with pytest.raises(ArgumentError, match="lists of prompts"):
        lm.batch("abc")
    with pytest.raises(ArgumentError, match="one entry"):
        lm.batch([PROMPT, PROMPT], documents=[None])


def test_errors_have_their_own_class(lm):
    with pytest.raises(EmptyDocumentError, match="document 1 of 2"):
        Prompt("a", ["x", " \n"], "b")
    with pytest.raises(UnknownMethodError, match="'pines'.*pine"):
        lm.generate(PROMPT, method="pines")
    with pytest.raises(DocumentNotFoundError, match="1 of 2"):
        lm.generate(PROMPT.text, documents=[ANIMALS[0], "This is nowhere."])
    with pytest.raises(PromptTooLongError, match=r"\d+ tokens.*4096"):
        lm.generate(Prompt("", ["word " * 900, "another " * 500], "?"))
    with pytest.raises(MethodError, match="ragbias calibrate"):
        lm.generate(PROMPT, method="channel-scaling")
    with pytest.raises(MethodError, match="channel=64"):
        lm.generate(PROMPT, method=ChannelScaling(64, 0, layers=(0, 1)))
    with pytest.raises(MethodError, match="layers"):
        lm.generate(PROMPT, method=Pine(layers=(2, 9)))


def test_an_unsupported_architecture_is_named_but_runs_plain(byte_tokenizer):
    model = random_model("stablelm")
    with pytest.raises(UnsupportedModelError, match=r"stablelm.*llama"):
        DebiasedLM(model, byte_tokenizer, method="pine").generate(PROMPT)
    assert (
        DebiasedLM(model, byte_tokenizer, method="none").generate(PROMPT, max_new_tokens=2).usage.completion_tokens == 2
    )


def test_an_unhashable_parameter_is_refused_as_any_other(lm):
    with pytest.raises(MethodError, match="expected a tuple"):
        lm.generate(PROMPT, method="pine(layers=[1,2])", max_new_tokens=1)


@pytest.mark.parametrize("wrong", [5, object(), PROMPT, b"x"], ids=lambda each: type(each).__name__)
def test_a_batch_of_no_list_is_refused(lm, wrong):
    for prompts in (wrong, None):
        with pytest.raises(ArgumentError, match="batch takes"):
            lm.batch(prompts)
    with pytest.raises(ArgumentError, match="batch takes"):
        lm.batch(["a question"], documents=wrong)


@pytest.mark.parametrize("wrong", [0, "", False])
def test_an_empty_value_is_no_list_of_a_batch(lm, wrong):
    for name in ("documents", "boundaries"):
        with pytest.raises(WrongTypeError, match=f"batch takes lists of prompts, documents .*; got {wrong!r}"):
            lm.batch(["a question"], **{name: wrong})
