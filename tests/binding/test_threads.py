"""Threads with different bindings on one model do not interfere."""

import contextvars
import threading

import pytest
import torch

import ragbias
from ragbias.errors import BindingError
from ragbias.methods import Pine
from support.bound_models import METHODS, SPANS, logits
from support.concurrency import side_by_side
from support.random_models import random_model
from support.segments import Segments


@pytest.mark.parametrize(("family", "work"), [("mpt", METHODS[:3]), ("llama", METHODS * 2)], ids=["mpt", "llama"])
def test_threads_with_different_methods_do_not_mix(family, work):
    model, expected = random_model(family), []
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

    side_by_side([threading.Thread(target=run, args=(index,)) for index in range(len(work))])
    for given, wanted in zip(results, expected, strict=True):
        assert len(given) == 8
        assert all(torch.equal(one, wanted) for one in given)
    assert not model.base_model._forward_pre_hooks


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


def test_a_thread_without_a_context_is_refused_not_run_plain(model):
    with ragbias.debias(model, Pine(), SPANS):
        expected = logits(model)
        assert isinstance(in_thread(lambda: logits(model)), BindingError)
        context = contextvars.copy_context()
        assert torch.equal(in_thread(lambda: context.run(logits, model)), expected)
    assert torch.equal(in_thread(lambda: logits(model)), logits(model))


def test_threads_on_a_copied_context_do_not_mix_prompts(model):
    rows = [Segments([8, 5, 11, 7], seed=seed).plain[0] for seed in range(4)]
    with ragbias.debias(model, Pine(), SPANS):
        expected = [logits(model, ids) for ids in rows]
        results = [[] for _ in rows]

        def run(index):
            for _ in range(6):
                results[index].append(logits(model, rows[index]))

        side_by_side(
            [threading.Thread(target=contextvars.copy_context().run, args=(run, index)) for index in range(len(rows))]
        )
    for given, wanted in zip(results, expected, strict=True):
        assert len(given) == 6
        assert all(torch.equal(one, wanted) for one in given)
