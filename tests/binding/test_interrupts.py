"""After an interrupt at any line of attaching or detaching, the model runs as before."""

import signal
import sys
import threading

import pytest
import torch

import ragbias
from ragbias.binding import hooks
from ragbias.errors import RagBiasError
from ragbias.methods import Pine
from support.bound_models import IDS, SPANS, snapshot
from support.random_models import random_model

METHOD_EVERY = 5  # interrupts the method runs again; the plain model does after each


@pytest.fixture(autouse=True)
def a_lock_of_its_own(monkeypatch):
    """Replace the lock. An exception from a tracer at the end of a ``with`` block leaves it held; a signal does not."""
    monkeypatch.setattr(hooks, "_lock", threading.RLock())


@torch.no_grad()
def first_logits(model):
    return model(IDS, logits_to_keep=1).logits


def interrupted(model, at):
    """Open and close ``debias`` with Ctrl-C at the ``at``-th executed line. Return whether that line was reached."""
    lines = 0

    def trace(frame, event, argument):
        nonlocal lines
        lines += event in ("call", "line")
        if lines == at and event in ("call", "line"):
            signal.raise_signal(signal.SIGINT)
        return trace

    try:
        sys.settrace(trace)
        with ragbias.debias(model, Pine(), SPANS):
            sys.settrace(None)
            sys.settrace(trace)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


def left_over(family, step):
    """Interrupt at every ``step``-th line. Return the failures and the number of interrupts."""
    model = random_model(family)
    before, plain = snapshot(model), first_logits(model)
    with ragbias.debias(model, Pine(), SPANS):
        expected = first_logits(model)
    wrong, at = [], 1
    while interrupted(model, at):
        try:
            if not torch.equal(first_logits(model), plain):
                wrong.append((at, "the plain model"))
            if at // step % METHOD_EVERY == 0:
                with ragbias.debias(model, Pine(), SPANS):
                    if not torch.equal(first_logits(model), expected):
                        wrong.append((at, "the method"))
        except RagBiasError as error:
            wrong.append((at, type(error).__name__))
        if snapshot(model) != before:
            wrong.append((at, "left over"))
            model = random_model(family)
            before = snapshot(model)
        at += step
    return wrong, at // step


@pytest.mark.parametrize("family", ["llama", "phi3", "mpt"])
def test_an_interrupt_while_attaching_or_detaching_cleans_up(family):
    wrong, count = left_over(family, step=151)
    assert not wrong and count > 30


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_thousand_attach_and_detach_interrupts_clean_up():
    wrong, count = left_over("llama", step=9)
    assert not wrong and count >= 1000


def test_a_context_ended_in_another_thread_is_closed_everywhere(model):
    plain = first_logits(model)
    opened = ragbias.debias(model, Pine(), SPANS)
    opened.__enter__()
    errors = []

    def leave():
        try:
            opened.__exit__(None, None, None)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=leave)
    thread.start()
    thread.join()
    assert not errors
    assert torch.equal(first_logits(model), plain)
