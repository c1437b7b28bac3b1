"""Parity with the authors' own implementations."""

import itertools

import pytest
import torch

import ragbias
from ragbias.methods import (
    AdaptiveParallelEncoding,
    AttentionSorting,
    ChannelScaling,
    InContextReranking,
    MsPoE,
    NoInterDocumentAttention,
    ParallelContextWindows,
    Pine,
    SelfExtend,
)
from support.golden_cases import case_names, load_case, run

ATOL = 2e-4
SCORE_ATOL = 2e-6
STEPS = 8


def assert_equal_to_reference(case, method, spans=None, input_ids=None):
    """Compare the last logits of the prefill, the decoding logits and the generated ids."""
    with ragbias.debias(case.model, method, spans):
        prefill, decoded, ids = run(case.model, case.tensors["input_ids"] if input_ids is None else input_ids, STEPS)
    suffix = case.tensors["suffix_logits"]
    torch.testing.assert_close(prefill[-len(suffix) :], suffix, atol=ATOL, rtol=0)
    torch.testing.assert_close(decoded, case.tensors["decode_logits"], atol=ATOL, rtol=0)
    assert ids == case.tensors["generated_ids"].tolist()


@pytest.mark.parametrize("name", case_names("pine"))
def test_pine(name):
    case = load_case("pine", name)
    assert_equal_to_reference(case, Pine(), case.spans)


# other folders (RAGBIAS_GOLDEN) may contain cases with one document, which has no permutations
@pytest.mark.parametrize("name", [name for name in case_names("pine") if "1doc" not in name])
def test_pine_for_permuted_documents(name):
    case = load_case("pine", name)
    ids = case.tensors["input_ids"]
    prefix, suffix = ids[: case.spans[0][0]], ids[case.spans[-1][1] :]
    for order, expected in zip(case.tensors["perms"].tolist(), case.tensors["perm_suffix_logits"], strict=True):
        documents = [ids[slice(*case.spans[index])] for index in order]
        ends = [len(prefix), *itertools.accumulate(map(len, documents), initial=len(prefix))][1:]
        with ragbias.debias(case.model, Pine(), list(itertools.pairwise(ends))):
            prefill, _, _ = run(case.model, torch.cat([prefix, *documents, suffix]), 1)
        torch.testing.assert_close(prefill[-len(suffix) :], expected, atol=ATOL, rtol=0)


@pytest.mark.parametrize("name", case_names("channel_scaling"))
def test_channel_scaling(name):
    case = load_case("channel_scaling", name)
    settings = case.info["method_params"]
    (channel,), layers = settings["dims"], settings["layers"]
    # the released MPT code recomputes all queries, whatever it is told
    all_rows = case.info["config"]["model_type"] == "mpt" and not name.endswith("_PATCHED")
    last = "all" if all_rows else settings["last_recompute_tokens"]
    method = ChannelScaling(channel, settings["factor"], layers=(layers[0], layers[-1]), last=last)
    assert_equal_to_reference(case, method)
    with torch.no_grad(), ragbias.debias(case.model, method):
        cache = case.model(case.tensors["input_ids"][None], use_cache=True).past_key_values
    torch.testing.assert_close(cache.layers[2].keys[0], case.tensors["prefill_cache_k_layer2"], atol=ATOL, rtol=0)


@pytest.mark.parametrize("name", case_names("ms_poe"))
def test_ms_poe(name):
    case = load_case("ms_poe", name)
    settings = case.info["method_params"]
    method = MsPoE(
        settings["compress_ratio_min"],
        settings["compress_ratio_max"],
        layers=(settings["apply_layers"][0], settings["apply_layers"][-1]),
        variant="ranked" if name.endswith("RANK_PATCHED") else "released",
        heads="reversed" if settings["head_type"] == "normal" else "by-awareness",
    )
    assert_equal_to_reference(case, method)


@pytest.mark.parametrize("name", case_names("self_extend"))
def test_self_extend(name):
    case = load_case("self_extend", name)
    settings = case.info["method_params"]
    assert_equal_to_reference(case, SelfExtend(settings["group_size"], settings["window"]))


@pytest.mark.parametrize("name", case_names("pcw"))
def test_parallel_context_windows(name):
    case = load_case("pcw", name)
    begin = torch.tensor([case.info["segments"]["bos"]])
    ends = itertools.accumulate(case.tensors["window_lens"].tolist(), initial=1)
    ids = torch.cat([begin, case.tensors["window_ids"], case.tensors["suffix_ids"]])
    assert_equal_to_reference(case, ParallelContextWindows(), list(itertools.pairwise(ends)), ids)


@pytest.mark.parametrize("name", case_names("attention_sorting"))
def test_attention_sorting(name):
    case = load_case("attention_sorting", name)
    ids = case.tensors["input_ids"]
    for rounds, (order, scores) in enumerate(zip(case.tensors["orders"], case.tensors["doc_scores"], strict=True), 1):
        found = ragbias.rank(case.model, AttentionSorting(rounds), ids, case.spans)
        assert list(found.order) == order.tolist()
        torch.testing.assert_close(torch.tensor(found.scores), scores, atol=SCORE_ATOL, rtol=0)


@pytest.mark.parametrize("name", case_names("icr"))
def test_in_context_reranking(name):
    case = load_case("icr", name)
    without_query = case.tensors["calibration_input_ids"]
    found = ragbias.rank(case.model, InContextReranking(), case.tensors["input_ids"], case.spans, without_query)
    assert list(found.order) == case.tensors["order"].tolist()
    torch.testing.assert_close(torch.tensor(found.scores), case.tensors["doc_scores"], atol=SCORE_ATOL, rtol=0)


@pytest.mark.parametrize("name", case_names("set_based"))
def test_parallel_context_windows_are_set_based_prompting(name):
    case = load_case("set_based", name)
    positions = case.info["method_params"]["edit_position"]
    assert_equal_to_reference(case, ParallelContextWindows() if positions else NoInterDocumentAttention(), case.spans)


@pytest.mark.parametrize("name", case_names("ape"))
def test_adaptive_parallel_encoding(name):
    case = load_case("ape", name)
    settings = case.info["method_params"]
    assert_equal_to_reference(case, AdaptiveParallelEncoding(settings["temperature"], settings["scale"]), case.spans)
