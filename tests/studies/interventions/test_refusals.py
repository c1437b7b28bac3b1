"""Invalid interventions, as objects and as text: errors name the value and the expectation."""

import math

import pytest
import torch

import ragbias
from ragbias import DebiasedLM, Prompt
from ragbias.errors import MethodError, NoDocumentsError, SpanError
from ragbias.methods import SIW, AttentionSorting, Pine, RoToR
from studies.interventions import (
    AddToChannel,
    HideKeys,
    Intervened,
    ScaleAttention,
    ScaleChannel,
    ScaleInitialToken,
    ShiftPositions,
    parse_interventions,
)
from support.segments import Segments

IDS, SPANS = Segments([8, 6], prefix=0).plain  # documents 0-8-14, question 14-23


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: HideKeys((10, 20), (5, 11)), r"hide: queries=\(10, 20\) and keys=\(5, 11\) overlap"),
        (lambda: ScaleAttention(2, 2, 2.0), "scale-attention: queries=2 and keys=2 overlap"),
        (lambda: HideKeys((10, None), (50, 60)), "overlap"),
        (lambda: HideKeys("question", (5, 5)), r"hide: keys=\(5, 5\); expected a span .* 0 <= begin < end"),
        (lambda: HideKeys("question", (-3, 5)), r"hide: keys=\(-3, 5\); expected a span"),
        (lambda: HideKeys("answer", 1), "hide: queries='answer'; expected .* 'question', 'gold'"),
        (lambda: HideKeys("question", -1), "hide: keys=-1; expected"),
        (lambda: HideKeys("question", (1.0, 2.0)), r"hide: keys=\(1.0, 2.0\); expected"),
        (lambda: ShiftPositions((1, 2, 3), 1), r"shift: span=\(1, 2, 3\); expected"),
        (lambda: ShiftPositions((1, 2), 1.5), "shift: by=1.5; expected a whole number from -10,000,000 to 10,000,000"),
        (lambda: ScaleAttention(0, 1, math.inf), "scale-attention: factor=inf; expected a number from 0 to 1,000"),
        (lambda: ScaleAttention(0, 1, math.nan), "factor=nan; expected"),
        (lambda: ScaleAttention(0, 1, -1.0), "factor=-1.0; expected a number from 0 to 1,000"),
        (lambda: ScaleAttention(0, 1, 2, renormalise="no"), "renormalise='no'; expected True or False"),
        (lambda: ScaleChannel(3, math.inf), "scale-channel: factor=inf; expected a number from -1,000,000 to"),
        (lambda: AddToChannel(3, math.nan), "add-to-channel: amount=nan; expected a number"),
        (lambda: AddToChannel(-1, 1.0), "add-to-channel: channel=-1; expected a whole number from 0"),
        (lambda: ScaleChannel(3, 1.0, of="value"), "of='value'; expected one of 'both', 'query', 'key'"),
        (lambda: ScaleInitialToken((1, 1)), r"documents=\(1, 1\); expected different indices"),
        (lambda: ScaleInitialToken(()), r"documents=\(\); expected different indices"),
        (lambda: ScaleInitialToken("prefix"), "document='prefix'; expected a whole number"),
        (lambda: ScaleInitialToken(0, token=-1), "token=-1; expected a whole number"),
        (lambda: SIW(outside="none"), "siw: outside='none'; expected one of 'sparse', 'keep'"),
        (lambda: Intervened(), "no intervention; pass at least one"),
        (lambda: Intervened(HideKeys(1, 2), on="icr"), "icr: interventions act inside"),
        (lambda: Intervened(Pine()), r"Pine\(.*\) is not an intervention; expected"),
        (lambda: Intervened(HideKeys(1, 2), on=AttentionSorting()), "attention-sorting: interventions act inside"),
        (lambda: Intervened(HideKeys(1, 2), on=RoToR(selective=True)), "rotor: interventions act inside"),
    ],
)
def test_parameters_out_of_range_are_named(build, message):
    with pytest.raises(MethodError, match=message):
        build()


@pytest.mark.parametrize(
    ("intervention", "error", "message"),
    [
        (ScaleChannel(64, 2.0), MethodError, "channel=64, but the hidden state has 64 channels; expected 0 to 63"),
        (HideKeys((20, 23), (0, 3), layers=(1, 9)), MethodError, r"hide: layers=\(1, 9\) do not fit a model of 4"),
        (HideKeys("question", "gold"), MethodError, "hide: 'gold' is unknown here; pass the index"),
        (ScaleInitialToken("gold"), MethodError, "'gold' is unknown here"),
        (HideKeys("question", 2), SpanError, "hide: keys=2: the prompt has 2 documents; expected 0 to 1"),
        (HideKeys("documents", 1), SpanError, "hide: queries='documents' and keys=1 overlap"),
        (HideKeys("question", (10, 15)), SpanError, "overlap; expected disjoint spans"),
        (HideKeys("question", "prefix"), SpanError, "keys='prefix': the prompt has no tokens before"),
        (HideKeys((20, 24), (0, 3)), SpanError, r"queries=\(20, 24\) lies outside the prompt of 23 tokens, 0 to 23"),
        (ShiftPositions((23, None), 1), SpanError, r"span=\(23, None\) lies outside the prompt of 23 tokens"),
        (ShiftPositions(1, -9), SpanError, "by=-9 puts token 8 at position -1; expected by >= -8"),
        (ScaleInitialToken(0, token=40), SpanError, r"token=\(40, 41\) lies outside the prompt of 23 tokens"),
        (ScaleInitialToken((0, 7)), SpanError, "document=7: the prompt has 2 documents"),
    ],
)
def test_what_does_not_fit_model_or_prompt_is_named(llama, intervention, error, message):
    with pytest.raises(error, match=message), torch.no_grad(), ragbias.debias(llama, Intervened(intervention), SPANS):
        llama(IDS)


def test_names_of_parts_need_documents_and_token_numbers_do_not(llama):
    with (
        pytest.raises(NoDocumentsError, match=r"none\+hide needs to know which tokens are documents"),
        ragbias.debias(llama, Intervened(HideKeys("question", (0, 3)))),
    ):
        pass
    with torch.no_grad(), ragbias.debias(llama, Intervened(HideKeys((10, 20), (0, 3)))):
        llama(IDS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hid(queries=1,keys=2)", "unknown intervention 'hid'; did you mean 'hide'.*known interventions: hide, shift"),
        ("hide(queries=question)", r"'hide\(queries=question\)': keys missing; give all of queries, keys"),
        ("hide", "intervention 'hide': queries, keys missing"),
        ("hide(queries=1,key=2)", "unknown parameter 'key'; parameters of 'hide': queries, keys, layers"),
        ("hide(queries=1,keys=(5,2))", r"intervention 'hide\(queries=1,keys=\(5,2\)\)': hide: keys=\(5, 2\); expected"),
        ("shift(span=gold,by=3", "the brackets do not match"),
        ("shift(span=gold,by=1)+", r"nothing before or after '\+'"),
        ("", "expected e.g."),
    ],
)
def test_text_that_is_no_intervention_is_named(text, message):
    with pytest.raises(MethodError, match=message):
        parse_interventions(text)


def test_interventions_from_text():
    text = "hide(queries = question, keys=gold) + shift(span=(400,None),by=-200)+scale-initial-token(documents=(2,3))"
    assert parse_interventions(text) == (
        HideKeys("question", "gold"),
        ShiftPositions((400, None), -200),
        ScaleInitialToken((2, 3)),
    )
    assert parse_interventions("add-to-channel(channel=7,amount=-1.5,layers=(1,2))") == (
        AddToChannel(7, -1.5, layers=(1, 2)),
    )


def test_documents_are_found_where_a_method_put_them():
    order = [2, 0, 1]
    assert HideKeys("question", "gold").resolved(0, order) == HideKeys("question", 1)
    assert ScaleInitialToken((0, 2), within=0.5).resolved(None, order) == ScaleInitialToken((1, 0), within=0.5)
    assert ShiftPositions((3, 9), 1).resolved(None, order) == ShiftPositions((3, 9), 1)
    with pytest.raises(MethodError, match="gold: the gold document is unknown"):
        HideKeys("question", "gold").resolved(None, order)
    with pytest.raises(MethodError, match="document 3: the prompt has 3 documents; expected 0 to 2"):
        HideKeys("question", 3).resolved(None, order)


def test_an_intervention_runs_as_a_method_of_a_language_model(llama, byte_tokenizer):
    lm = DebiasedLM(llama, byte_tokenizer, method="none")
    prompt = Prompt("Read:\n", ["A tin owl sits.\n", "Two brass whales.\n"], "Who sits?")
    method = Intervened(HideKeys("question", "documents"), on=Pine())
    found = lm.generate(prompt, method=method, max_new_tokens=4)
    assert found.report.method_ran == "pine+hide"
    assert found.token_ids != lm.generate(prompt, method="pine", max_new_tokens=4).token_ids
    score, plain = (lm.score(prompt, " owl", method=each) for each in (method, Pine()))
    assert score != plain
