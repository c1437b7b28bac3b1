"""``ragbias.rank``."""

import pytest
import torch

import ragbias
from ragbias.errors import (
    ArgumentError,
    EmptyDocumentError,
    MethodError,
    PromptTooLongError,
    SpanError,
    UnknownMethodError,
    WrongTypeError,
)
from ragbias.generation.ranking import ModelAttention
from ragbias.methods import AttentionSorting, CanonicalOrder, InContextReranking
from ragbias.prompt import tokenise
from support.random_models import FAMILIES, random_model
from support.segments import Segments

SEGMENTS = Segments([8, 5, 11, 7], prefix=6, suffix=10, seed=3)
IDS, SPANS = SEGMENTS.plain
BEGIN = SPANS[-1][1]  # of the tokens after the documents
WITHOUT = torch.cat([IDS[:, : BEGIN + 3], torch.tensor([[40, 41]]), IDS[:, -3:]], dim=1)
SEPARATOR = [77, 78]


@torch.no_grad()
def eager_weights(family, ids):
    """Return the weights of transformers' eager attention, float64 ``[layers, heads, T, T]``."""
    model = random_model(family, attn_implementation="eager")
    return torch.cat(model(ids, output_attentions=True).attentions).double()


def separated():
    """Return the documents with a separator after each. The spans exclude separators."""
    ids, spans = list(SEGMENTS.prefix), []
    for document in SEGMENTS.documents:
        spans.append((len(ids), len(ids) + len(document)))
        ids += [*document, *SEPARATOR]
    return ids + SEGMENTS.suffix, spans


def restated_contrast(family, ids, without, spans, begin):
    """Compute the paper's score of each document from the weights of two whole prompts."""
    query, content_free = (eager_weights(family, each)[:, :, begin:].mean(2).sum((0, 1)) for each in (ids, without))
    x = query[:begin] - content_free[:begin]
    return [float(x[b:e][x[b:e] > x[b:e].mean() - 2 * x[b:e].std()].sum()) for b, e in spans]


@pytest.mark.parametrize("family", FAMILIES)
def test_icr_in_one_pass_equals_two_prompts_of_the_eager_model(family):
    expected = restated_contrast(family, IDS, WITHOUT, SPANS, BEGIN)
    found = ragbias.rank(random_model(family), "icr", IDS, SPANS, WITHOUT)
    assert found.scores == pytest.approx(expected, abs=2e-5)
    assert list(found.order) == sorted(range(4), key=lambda index: -found.scores[index])


@pytest.mark.parametrize("family", FAMILIES)
def test_attention_sorting_sums_the_last_tokens_attention(family):
    mass = eager_weights(family, IDS)[:, :, -1].mean((0, 1))
    sums = [float(mass[b:e].sum()) for b, e in SPANS]
    model = random_model(family)
    found = ragbias.rank(model, "attention-sorting", IDS, SPANS)
    assert found.scores == pytest.approx(sums, abs=2e-6)
    assert list(found.order) == sorted(range(4), key=sums.__getitem__)
    per_token = ragbias.rank(model, AttentionSorting(score="mean"), IDS[0].tolist(), SPANS)
    lengths = [e - b for b, e in SPANS]
    assert per_token.scores == pytest.approx([each / n for each, n in zip(sums, lengths, strict=True)], abs=2e-6)


def test_a_second_round_looks_at_the_prompt_of_the_first(llama):
    first = ragbias.rank(llama, AttentionSorting(), IDS, SPANS)
    ids, spans = SEGMENTS.arranged(first.order)
    again = ragbias.rank(llama, AttentionSorting(), ids, spans)
    second = ragbias.rank(llama, AttentionSorting(rounds=2), IDS, SPANS)
    assert second.order == tuple(first.order[index] for index in again.order)
    assert [second.scores[index] for index in first.order] == list(again.scores)


def test_separators_between_documents_are_no_part_of_the_query():
    ids, spans = separated()
    begin = len(ids) - len(SEGMENTS.suffix)
    without = [*ids[: begin + 3], 40, 41]
    model = random_model("llama")
    expected = restated_contrast("llama", torch.tensor([ids]), torch.tensor([without]), spans, begin)
    assert ragbias.rank(model, InContextReranking(), ids, spans, without).scores == pytest.approx(expected, abs=2e-5)
    order = ragbias.rank(model, AttentionSorting(), ids, spans).order
    moved = [*SEGMENTS.prefix, *(token for index in order for token in SEGMENTS.documents[index] + SEPARATOR)]
    mass = eager_weights("llama", torch.tensor([moved + SEGMENTS.suffix]))[:, :, -1].mean((0, 1))
    second = ragbias.rank(model, AttentionSorting(rounds=2), ids, spans).scores
    at = len(SEGMENTS.prefix)
    for index in order:
        end = at + len(SEGMENTS.documents[index])
        assert second[index] == pytest.approx(float(mass[at:end].sum()), abs=2e-6)
        at = end + len(SEPARATOR)


def test_a_document_of_one_token_is_scored_by_it(llama):
    found = ragbias.rank(llama, "icr", IDS, [(6, 7), (7, BEGIN)], WITHOUT)
    assert found.scores[0] != 0 and found.scores[0] == found.scores[0]


def test_the_prompt_without_a_query_is_for_the_contrast_only(llama):
    made = []

    def without_query():
        made.append("once")
        return WITHOUT[0].tolist()

    scorer = ModelAttention(llama, IDS[0].tolist(), SPANS, without_query)
    scorer(range(len(SPANS)))
    assert made == []
    scorer.contrast()
    assert made == ["once"]


def test_methods_that_measure_nothing_have_no_scores(llama):
    found = ragbias.rank(llama, CanonicalOrder(), IDS, SPANS)
    assert found.scores is None and sorted(found.order) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("method", "given", "error", "reason"),
    [
        ("pine", {}, MethodError, "pine does not reorder documents; rank takes attention-sorting, icr"),
        ("permutation-vote", {}, MethodError, "does not reorder"),
        ("rerank", {}, UnknownMethodError, "unknown method 'rerank'"),
        ("icr", {}, MethodError, "calibration_ids"),
        ("icr", {"calibration_ids": IDS[:, 1:]}, ArgumentError, f"differ from ids among the first {BEGIN} tokens"),
        ("icr", {"calibration_ids": IDS[:, :BEGIN]}, ArgumentError, "expected both to continue after the documents"),
        ("attention-sorting", {"ids": IDS[0].float()}, ArgumentError, "float32; expected whole numbers"),
        ("attention-sorting", {"ids": IDS.repeat(2, 1)}, ArgumentError, r"ids of shape \[2, 47\]"),
        ("attention-sorting", {"ids": "abc"}, ArgumentError, "ids='abc'; expected token ids"),
        ("attention-sorting", {"ids": [[1, 2], [3]]}, ArgumentError, "expected token ids"),
        ("attention-sorting", {"ids": [True] * 47}, ArgumentError, "torch.bool; expected whole numbers"),
        ("attention-sorting", {"ids": [-5] * 47}, ArgumentError, "token -5; expected a token id from 0 to 299"),
        ("attention-sorting", {"ids": [5] * 5000}, PromptTooLongError, "5000 tokens, but the model's window has 4096"),
        ("icr", {"calibration_ids": [300] * 47}, ArgumentError, "calibration_ids: token 300"),
        ("attention-sorting", {"spans": []}, SpanError, "needs a document"),
        ("attention-sorting", {"spans": [(6, 47)]}, SpanError, "a token after the last document"),
        ("attention-sorting", {"spans": [(14, 19), (6, 14)]}, SpanError, "not ascending"),
        ("attention-sorting", {"spans": [(6, 14), (13, 19)]}, SpanError, "overlap"),
        ("attention-sorting", {"spans": [(6, 60)]}, SpanError, "outside the prompt of length 47"),
        ("attention-sorting", {"spans": [(6, 6)]}, EmptyDocumentError, "is empty"),
    ],
)
def test_what_cannot_be_ranked_is_refused(llama, method, given, error, reason):
    with pytest.raises(error, match=reason):
        ragbias.rank(llama, method, **{"ids": IDS, "spans": SPANS, **given})


DOCUMENTS = ["A tin owl sits.\n", "Two brass whales, far away.\n", "Old boats.\n", "One more cat there.\n"]


@pytest.mark.parametrize("model", ["tiny", None, torch.nn.Linear(2, 2)], ids=["name", "none", "layer"])
def test_what_is_no_model_is_named(model):
    with pytest.raises(WrongTypeError, match="expected a transformers model"):
        ragbias.rank(model, "attention-sorting", IDS, SPANS)


def test_the_model_answers_on_documents_in_the_order_of_icr(byte_tokenizer):
    lm = ragbias.DebiasedLM(random_model("llama"), byte_tokenizer, method="icr")
    prompt = ragbias.Prompt("Read:\n", DOCUMENTS, "Question: Who sits?\nAnswer:")
    request = lm.prepare(prompt)
    retrieved = tokenise(request.prompt.parts, byte_tokenizer)
    without = [
        *retrieved.ids[: retrieved.spans[-1][1]],
        *byte_tokenizer("Question: N/A\nAnswer:", add_special_tokens=False)["input_ids"],
    ]
    expected = ragbias.rank(lm.model, "icr", retrieved.ids, retrieved.spans, without)
    assert request.report.order == expected.order
    assert request.tokens.documents == [retrieved.documents[index] for index in expected.order]
    assert lm.generate(prompt, max_new_tokens=2).report.method_ran == "icr"


def test_a_prompt_without_a_query_is_refused_by_icr(byte_tokenizer):
    lm = ragbias.DebiasedLM(random_model("llama"), byte_tokenizer, method="icr")
    with pytest.raises(MethodError, match="no query after the documents"):
        lm.prepare(ragbias.Prompt("Read:\n", DOCUMENTS, "\n"))
