"""What was retrieved lately: each context's own, unless it is asked for by all."""

from __future__ import annotations

import gc
import threading
from contextvars import copy_context

from ragbias.adapters.retrievals import FAILURE_AGE, MAX_AGE, SWEEP, Retrievals

ONE, TWO = ("The gate of the mill is red.",), ("The wall of the hall is blue.",)


def known(retrievals: Retrievals) -> list[tuple[str, ...]]:
    registry = retrievals.registry()
    return [] if registry is None else registry.candidates()


def test_two_requests_see_nothing_of_each_other_and_both_what_was_before():
    retrievals = Retrievals("test")
    retrievals.add(ONE)
    first, second = copy_context(), copy_context()
    first.run(retrievals.add, TWO)
    first.run(retrievals.fail, "it failed")
    assert (first.run(known, retrievals), second.run(known, retrievals), known(retrievals)) == (
        [TWO, ONE],
        [ONE],
        [ONE],
    )
    assert (first.run(retrievals.failure), second.run(retrievals.failure)) == ("it failed", "")


def test_a_flood_in_one_context_pushes_nothing_out_of_another():
    retrievals = Retrievals("test")
    retrievals.add(ONE)
    copy_context().run(lambda: [retrievals.add([f"document {number}"]) for number in range(5000)])
    assert known(retrievals) == [ONE]


def test_process_wide_everybody_sees_everything():
    retrievals = Retrievals("test", process_wide=True)
    thread = threading.Thread(target=retrievals.add, args=(ONE,))
    thread.start()
    thread.join()
    assert known(retrievals) == [ONE]
    retrievals.clear()
    assert known(retrievals) == []


def test_all_contexts_forget_on_demand():
    retrievals = Retrievals("test")
    retrievals.add(ONE)
    retrievals.fail("it failed")
    other = copy_context()
    other.run(retrievals.add, TWO)
    retrievals.clear()
    assert known(retrievals) == other.run(known, retrievals) == []
    assert retrievals.failure() == other.run(retrievals.failure) == ""


def test_the_old_is_forgotten_also_where_nothing_happens_any_more():
    now = 0.0
    retrievals = Retrievals("test", clock=lambda: now)
    waiting = copy_context()
    waiting.run(retrievals.add, ONE)
    waiting.run(retrievals.fail, "it failed")
    registry = waiting.run(retrievals.registry)
    now = FAILURE_AGE
    assert waiting.run(retrievals.failure) == ""
    now = MAX_AGE + SWEEP
    retrievals.add(TWO)
    assert registry._retrievals == {}


def test_nothing_is_kept_of_contexts_that_are_gone():
    retrievals = Retrievals("test")
    for number in range(1000):
        copy_context().run(retrievals.add, [f"document {number}"])
    gc.collect()
    assert len(retrievals._all) == 0
