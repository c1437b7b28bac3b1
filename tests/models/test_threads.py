"""Commands use as many threads as there are idle cores, unless the user sets a number."""

import os
import sys

import pytest

from ragbias.models import threads


@pytest.mark.parametrize(
    ("given", "idle", "expected", "message"),
    [
        (None, 1, "1", "1 of 4 cores are idle, so torch uses 1 thread; set OMP_NUM_THREADS"),
        (None, 4, None, ""),
        ("3", 1, "3", ""),
    ],
)
def test_threads_are_as_many_as_idle_cores(monkeypatch, capsys, given, idle, expected, message):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(4), raising=False)
    monkeypatch.setattr(threads, "idle_cores", lambda cores: idle)
    monkeypatch.setenv("OMP_NUM_THREADS", given or "")
    threads.use_idle_cores()
    assert os.environ["OMP_NUM_THREADS"] == (expected or "")
    printed = capsys.readouterr().err
    assert message in printed and bool(message) == bool(printed)


def test_the_probe_finds_at_least_one_core():
    assert threads.idle_cores(1) == 1 and 1 <= threads.idle_cores(2) <= 2


def test_commands_probe_before_they_run_a_model(cli, monkeypatch):
    monkeypatch.setattr("ragbias_eval.commands.audit.use_idle_cores", lambda: pytest.fail("probed"))
    assert cli("audit", "--help")[0] == 0 and cli("methods")[0] == 0
    probes = []
    monkeypatch.setattr(sys.modules["ragbias.cli.ask"], "use_idle_cores", lambda: probes.append(1))
    asked = ("ask", "Which?", "--documents", "/nowhere", "--model", "tiny")
    assert cli(*asked)[0] == 2 and probes == [1]
    assert cli(*asked, "--cache", "/nowhere")[0] == 2 and probes == [1]  # cached states depend on the threads
