"""The model is as it was before and after, however a run ends; threads do not mix."""

import contextvars
import gc
import threading

import pytest
import torch
from torch import nn

import ragbias
from conftest import random_model
from ragbias.errors import (
    BindingError,
    EmptyDocumentError,
    MethodError,
    NoDocumentsError,
    SpanError,
    UnknownMethodError,
    UnsupportedModelError,
)
from ragbias.methods import AttentionSorting, ChannelScaling, NoMethod, Pine, RoToR
from segments import Segments, padded

METHODS = [NoMethod(), Pine(), ChannelScaling(5, 0.0, layers=(1, 2)), ChannelScaling(9, -1.0, layers=(0, 0))]
SEGMENTS = Segments([8, 5, 11, 7])
IDS, SPANS = SEGMENTS.plain


def snapshot(model):
    """Everything a binding could leave behind: hooks, configs, attributes, weights."""
    return {
        name: (
            len(module._forward_hooks),
            len(module._forward_pre_hooks),
            id(getattr(module, "config", None)),
            getattr(getattr(module, "config", None), "_attn_implementation", None),
            sorted(vars(module)),
            sum(float(parameter.detach().double().sum()) for parameter in module.parameters(recurse=False)),
        )
        for name, module in model.named_modules()
    }


@torch.no_grad()
def logits(model, ids=IDS):
    return model(ids).logits


@pytest.fixture
def model():
    return random_model("llama")


class Interrupt(nn.Module):
    def __init__(self, error):
        super().__init__()
        self.error = error

    def forward(self, *_):
        raise self.error


@pytest.mark.parametrize("error", [RuntimeError("in a layer"), KeyboardInterrupt()], ids=["exception", "ctrl-c"])
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_model_is_untouched_after_an_error_inside_a_layer(model, method, error):
    before, expected = snapshot(model), logits(model)
    mlp = model.model.layers[1].mlp
    model.model.layers[1].mlp = Interrupt(error)
    try:
        with pytest.raises(type(error)), ragbias.debias(model, method, SPANS):
            logits(model)
    finally:
        model.model.layers[1].mlp = mlp
    assert snapshot(model) == before
    assert torch.equal(logits(model), expected)


@pytest.mark.parametrize("family", ["mpt", "phi3", "gpt_neox", "gemma3_text"])
@pytest.mark.parametrize("method", [Pine(), ChannelScaling(5, 0.0, layers=(1, 2))], ids=str)
def test_models_with_other_modules_are_untouched_too(family, method):
    model = random_model(family)
    before, expected = snapshot(model), logits(model)
    handle = model.get_output_embeddings().register_forward_pre_hook(Interrupt(KeyboardInterrupt()).forward)
    with pytest.raises(KeyboardInterrupt), ragbias.debias(model, method, SPANS):
        logits(model)
    handle.remove()
    assert snapshot(model) == before
    assert torch.equal(logits(model), expected)


def test_threads_do_not_mix_on_a_model_with_its_own_attention_class():
    model = random_model("mpt")
    alone = {}
    for method in METHODS[:3]:
        with ragbias.debias(model, method, SPANS):
            alone[method] = logits(model)
    results = {method: [] for method in alone}
    barrier = threading.Barrier(len(alone))

    def run(method):
        barrier.wait()
        for _ in range(8):
            with ragbias.debias(model, method, SPANS):
                results[method].append(logits(model))

    threads = [threading.Thread(target=run, args=(method,)) for method in alone]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for method, given in results.items():
        assert len(given) == 8 and all(torch.equal(one, alone[method]) for one in given)


def test_model_is_untouched_after_success_and_by_a_refused_method(model):
    before, expected = snapshot(model), logits(model)
    with ragbias.debias(model, Pine(), SPANS):
        assert not torch.allclose(logits(model)[:, -9:], expected[:, -9:], atol=1e-3)
    with pytest.raises(MethodError):
        ragbias.debias(model, ChannelScaling(1, 0, layers=(0, 99))).__enter__()
    assert snapshot(model) == before
    assert torch.equal(logits(model), expected)


def test_layers_outside_the_range_are_not_touched(model):
    with ragbias.debias(model, ChannelScaling(5, 0.0, layers=(1, 1))):
        attention = [layer.self_attn for layer in model.model.layers]
        assert [bool(module._forward_pre_hooks) for module in attention] == [False, True, False, False]
        assert attention[0].config is attention[2].config is model.config
        assert attention[1].config is not model.config


def test_the_innermost_context_counts(model):
    plain = logits(model)
    with ragbias.debias(model, Pine(), SPANS):
        pine = logits(model)
        with ragbias.debias(model, "none"):
            assert torch.equal(logits(model), plain)
        with ragbias.debias(model, ChannelScaling(5, 0.0, layers=(1, 1))):
            inner = logits(model)
        assert torch.equal(logits(model), pine)
    with ragbias.debias(model, ChannelScaling(5, 0.0, layers=(1, 1))):
        assert torch.equal(logits(model), inner)


def test_several_prompts_in_one_context_and_an_interleaved_decode(model):
    other = Segments([8, 5, 11, 7], seed=9).plain[0]
    with torch.no_grad(), ragbias.debias(model, Pine(), SPANS):
        first, second = model(IDS, use_cache=True), model(other, use_cache=True)
        token = torch.tensor([[5]])
        mixed = [model(token, past_key_values=run.past_key_values).logits for run in (first, second)]
    for ids, expected in zip((IDS, other), mixed, strict=True):
        with torch.no_grad(), ragbias.debias(model, Pine(), SPANS):
            alone = model(token, past_key_values=model(ids, use_cache=True).past_key_values).logits
        assert torch.equal(alone, expected)


# threads


def test_eight_threads_with_different_methods_give_what_they_give_alone(model):
    work = METHODS * 2
    expected = []
    for method in work:
        with ragbias.debias(model, method, SPANS):
            expected.append(logits(model))
    results = [[] for _ in work]
    barrier = threading.Barrier(len(work))

    def run(index):
        barrier.wait()
        for _ in range(8):
            with ragbias.debias(model, work[index], SPANS):
                results[index].append(logits(model))

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for given, wanted in zip(results, expected, strict=True):
        assert len(given) == 8
        assert all(torch.equal(one, wanted) for one in given)
    assert not model.model._forward_pre_hooks


def in_thread(function):
    outcome = []

    def work():
        try:
            outcome.append(function())
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return outcome[0]


def test_a_thread_without_a_context_is_refused_rather_than_run_plain(model):
    with ragbias.debias(model, Pine(), SPANS):
        expected = logits(model)
        assert isinstance(in_thread(lambda: logits(model)), BindingError)
        context = contextvars.copy_context()
        assert torch.equal(in_thread(lambda: context.run(logits, model)), expected)
    assert torch.equal(in_thread(lambda: logits(model)), logits(model))


def test_threads_that_share_a_copied_context_do_not_mix_their_prompts(model):
    rows = [Segments([8, 5, 11, 7], seed=seed).plain[0] for seed in range(4)]
    with ragbias.debias(model, Pine(), SPANS):
        expected = [logits(model, ids) for ids in rows]
        results = [[] for _ in rows]

        def run(index):
            for _ in range(6):
                results[index].append(logits(model, rows[index]))

        threads = [
            threading.Thread(target=contextvars.copy_context().run, args=(run, index)) for index in range(len(rows))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for given, wanted in zip(results, expected, strict=True):
        assert len(given) == 6
        assert all(torch.equal(one, wanted) for one in given)


# what is refused


@pytest.mark.parametrize(
    ("spans", "error", "words"),
    [
        (None, NoDocumentsError, "spans="),
        ([], NoDocumentsError, "spans="),
        ([(5, 9), (8, 12)], SpanError, "overlap"),
        ([(5, 9), (9, 9)], EmptyDocumentError, r"\(9, 9\)"),
        ([(5, 9), (9, 400)], SpanError, "outside"),
        ([(-2, 4), (4, 9)], SpanError, "outside"),
        ([(5, 9), (10, 12)], SpanError, "9 to 10"),
        ([(5, 9), (9, 47)], SpanError, "after the documents"),
        ([[(5, 9), (9, 12)], [(5, 9), (9, 12)]], SpanError, "2 rows"),
        ([(5.5, 9), (9, 12)], SpanError, "whole numbers"),
        ([(5, 9, 3)], SpanError, "pairs"),
        ([5, 9], SpanError, "pairs"),
    ],
)
def test_spans_that_make_no_sense(model, spans, error, words):
    before = snapshot(model)
    with pytest.raises(error, match=words), ragbias.debias(model, Pine(), spans):
        logits(model)
    assert snapshot(model) == before


def test_names_models_and_caches_that_are_refused(model):
    with pytest.raises(UnknownMethodError, match="'pin'"):
        ragbias.debias(model, "pin", SPANS).__enter__()
    with pytest.raises(MethodError, match="DebiasedLM"):
        ragbias.debias(model, AttentionSorting(), SPANS).__enter__()
    with torch.no_grad():
        cache = model(IDS[:, :6], use_cache=True).past_key_values
    with pytest.raises(BindingError, match="6 tokens"), ragbias.debias(model, Pine(), SPANS):
        model(IDS[:, 6:], past_key_values=cache)


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (torch.ones_like(IDS).index_fill(1, torch.tensor([IDS.shape[1] - 1]), 0), "left"),
        (torch.ones(1, 1, IDS.shape[1], IDS.shape[1], dtype=torch.bool).tril(), "2-D"),
    ],
    ids=["right padding", "custom"],
)
def test_right_padding_and_custom_masks_are_refused(model, mask, words):
    with pytest.raises(BindingError, match=words), ragbias.debias(model, Pine(), SPANS), torch.no_grad():
        model(IDS, attention_mask=mask)


@pytest.mark.parametrize("columns", [IDS.shape[1] - 2, IDS.shape[1] + 2])
def test_a_mask_of_another_length_is_refused(model, columns):
    mask = torch.ones(1, columns, dtype=torch.long)
    with pytest.raises(BindingError, match=rf"{columns} columns"), ragbias.debias(model, Pine(), SPANS):
        model(IDS, attention_mask=mask)


def repeated(cache):
    cache.batch_repeat_interleave(2)
    return 4


def dropped(cache):
    cache.batch_select_indices(torch.tensor([1]))
    return 1


def swapped(cache):
    cache.reorder_cache(torch.tensor([1, 0]))
    return 2


@pytest.mark.parametrize("change", [repeated, dropped, swapped])
def test_a_cache_whose_rows_changed_is_refused(model, change):
    ids, mask, spans = padded([SEGMENTS.plain, Segments([6, 9, 4], seed=1).plain])
    with torch.no_grad(), ragbias.debias(model, Pine(), spans):
        cache = model(ids, attention_mask=mask, use_cache=True).past_key_values
        rows = change(cache)
        with pytest.raises(BindingError, match="rows are not those of the 2 prompts"):
            model(torch.full((rows, 1), 5), past_key_values=cache)


def test_a_cache_that_plain_tokens_entered_is_refused(model):
    with torch.no_grad(), ragbias.debias(model, Pine(), SPANS):
        cache = model(IDS, use_cache=True).past_key_values
        cache.crop(-2)
        with ragbias.debias(model, "none"):
            model(IDS[:, -2:], past_key_values=cache)
        with pytest.raises(BindingError, match="did not enter"):
            model(IDS[:, -1:], past_key_values=cache)


def test_positional_arguments_of_the_decoder_are_read(model):
    with torch.no_grad(), ragbias.debias(model, Pine(), SPANS):
        named = model.model(input_ids=IDS, attention_mask=torch.ones_like(IDS)).last_hidden_state
        assert torch.equal(model.model(IDS, torch.ones_like(IDS)).last_hidden_state, named)


def test_a_compiled_model_is_refused_by_name():
    model = random_model("llama")
    model.model.layers[1].compile(backend="eager")
    with pytest.raises(UnsupportedModelError, match=r"torch\.compile"), ragbias.debias(model, Pine(), SPANS):
        pass


def test_embeddings_order_documents_by_content_too_but_have_no_ids_for_a_key(model):
    embed, answers = model.get_input_embeddings(), []
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        ids, spans = SEGMENTS.arranged(order)
        with torch.no_grad(), ragbias.debias(model, RoToR(), spans):
            answers.append(model(inputs_embeds=embed(ids)).logits[:, -9:])
    assert torch.equal(*answers)
    with pytest.raises(MethodError, match="embeddings"), ragbias.debias(model, RoToR(key=len), SPANS):
        model(inputs_embeds=embed(IDS).detach())


@pytest.mark.parametrize("family", ["llama", "phi3", "gpt_neox"])
@pytest.mark.parametrize("last", [1, "all"])
def test_the_users_hooks_on_projections_act_on_what_a_method_projects_again(family, last):
    model = random_model(family)
    for name, module in model.named_modules():
        if name.rpartition(".")[2] in ("q_proj", "k_proj", "qkv_proj", "query_key_value"):
            module.register_forward_hook(lambda module, args, output: output * 1.3 + 0.1)
    with ragbias.debias(model, ChannelScaling(3, 1.0, layers=None, last=last)):
        scaled = logits(model)
    torch.testing.assert_close(scaled, logits(model), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("family", ["llama", "phi3", "gpt_neox", "mpt"])
def test_a_method_runs_with_gradients_on(family):
    model = random_model(family)
    for method in METHODS[1:3]:
        with torch.enable_grad(), ragbias.debias(model, method, SPANS):
            with_gradients = model(IDS).logits
        with ragbias.debias(model, method, SPANS):
            assert torch.equal(with_gradients.detach(), logits(model))


def test_nothing_is_kept_of_a_prompt_after_its_cache_is_gone(model):
    with torch.no_grad(), ragbias.debias(model, Pine(), SPANS):
        logits(model)
        binding = model.model._forward_pre_hooks
        (hook,) = binding.values()
        sessions = hook.__self__._sessions
        gc.collect()
        assert len(sessions) == 0


# equalities


@pytest.mark.parametrize("method", METHODS[1:], ids=str)
def test_eager_and_sdpa_attention_give_the_same(model, method):
    eager, results = random_model("llama", attn_implementation="eager"), []
    for each in (model, eager):
        with ragbias.debias(each, method, SPANS):
            results.append(logits(each))
    assert (model.config._attn_implementation, eager.config._attn_implementation) == ("sdpa", "eager")
    torch.testing.assert_close(*results, atol=1e-4, rtol=0)


def test_beam_search_and_several_sequences_run_with_one_list_of_spans(model):
    with ragbias.debias(model, Pine(), SPANS):
        options = dict(max_new_tokens=6, do_sample=False, pad_token_id=0, attention_mask=torch.ones_like(IDS))
        beams = model.generate(IDS, num_beams=3, num_return_sequences=2, **options)
        moved, moved_spans = SEGMENTS.arranged([3, 1, 0, 2])
    with ragbias.debias(model, Pine(), moved_spans):
        again = model.generate(moved, num_beams=3, num_return_sequences=2, **options)
    assert torch.equal(beams[:, IDS.shape[1] :], again[:, IDS.shape[1] :])


def test_channel_scaling_keeps_one_key_per_token(model):
    with torch.no_grad(), ragbias.debias(model, METHODS[2]):
        cache = model(IDS, use_cache=True).past_key_values
    assert {layer.keys.shape for layer in cache.layers} == {(1, 2, IDS.shape[1], 16)}
