"""A run keeps its retrievals until its end."""

from ragbias.frameworks import Runs
from ragbias.frameworks.run_state import MAX_RUNS

ONE, TWO = ["The gate of the mill is red."], ["The wall of the hall is blue."]


def test_steps_share_the_retrievals_of_their_root():
    runs = Runs("test")
    runs.open("chain", None)
    runs.open("step", "chain")
    runs.add("step", ONE)
    runs.close("step")
    runs.add("chain", [*TWO, *TWO])
    runs.add("chain", ONE, retrieved=False)
    assert runs.get("chain").latest_first() == [[*TWO, *TWO], ONE]
    runs.add("chain", ONE)
    assert runs.get("chain").latest_first() == [ONE, [*TWO, *TWO]]
    runs.close("chain")
    assert (runs.get("chain").latest_first(), runs.get("chain").warn_at_end) == ([], None)
    assert set(runs.retrievals.registry().candidates()) == {tuple(ONE), (*TWO, *TWO)}


def test_warnings_wait_for_the_end_of_a_run_without_retrievals():
    runs, calls = Runs("test"), []
    for id, texts in (("empty", []), ("full", ONE)):
        runs.open(id, None, lambda: lambda: calls.append("ended"))
        runs.get(id).warn_at_end.append(lambda: calls.append("warned"))
        runs.add(id, texts)
        assert not calls
        runs.close(id)
        assert calls == (["ended", "warned"] if id == "empty" else ["ended"])
        calls.clear()


def test_failures_reach_the_run_and_the_context():
    runs = Runs("test")
    runs.open("chain", None)
    runs.fail("it failed", "chain", "unknown")
    assert (runs.get("chain").failure, runs.get(None).failure) == ("it failed", "it failed")
    runs.clear()
    assert (runs.get("chain").failure, runs.get(None).failure) == ("", "")


def test_the_run_that_was_unused_for_longest_is_dropped():
    runs = Runs("test")
    for number in range(MAX_RUNS):
        runs.open(number, None)
    runs.get(0)
    runs.open("another", None)
    assert [runs.get(id).warn_at_end is None for id in (0, 1, "another")] == [False, True, False]
