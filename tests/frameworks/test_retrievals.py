"""Recent retrievals are separate for each context, unless they are process-wide."""

import gc
import weakref
from contextvars import copy_context
from types import SimpleNamespace

from ragbias.frameworks import run_state
from ragbias.frameworks.run_state import FAILURE_AGE, Retrievals

ONE, TWO = ("The gate of the mill is red.",), ("The wall of the hall is blue.",)


def known(retrievals: Retrievals) -> list[tuple[str, ...]]:
    registry = retrievals.registry()
    return [] if registry is None else registry.candidates()


def test_requests_share_earlier_retrievals_but_not_their_own():
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


def test_other_contexts_retrievals_only_show_what_is_unknown():
    retrievals = Retrievals("test")
    retrievals.add(ONE)
    copy_context().run(retrievals.add, TWO)
    registry = retrievals.registry()
    assert registry.everywhere.likely_in(TWO[0]) == set(TWO)
    assert (registry.likely_in(TWO[0]), registry.copy().everywhere) == (set(), registry.everywhere)


def test_a_flood_in_one_context_pushes_nothing_out_of_another():
    retrievals = Retrievals("test")
    retrievals.add(ONE)
    copy_context().run(lambda: [retrievals.add([f"document {number}"]) for number in range(5000)])
    assert known(retrievals) == [ONE]


def test_all_contexts_forget_on_demand():
    retrievals = Retrievals("test")
    retrievals.add(ONE)
    retrievals.fail("it failed")
    other = copy_context()
    other.run(retrievals.add, TWO)
    retrievals.clear()
    assert known(retrievals) == other.run(known, retrievals) == []
    assert retrievals.failure() == other.run(retrievals.failure) == ""


def test_a_failure_is_reported_for_a_while(monkeypatch):
    now = 0.0
    monkeypatch.setattr(run_state, "time", SimpleNamespace(monotonic=lambda: now))
    retrievals = Retrievals("test")
    retrievals.fail("it failed")
    assert retrievals.failure() == "it failed"
    now = FAILURE_AGE
    assert retrievals.failure() == ""


def test_nothing_remains_of_contexts_that_are_gone():
    retrievals = Retrievals("test")
    context = copy_context()
    context.run(retrievals.add, ONE)
    registry = weakref.ref(context.run(retrievals.registry))
    del context
    gc.collect()
    assert registry() is None
