"""``kill -9`` in the middle of a bench."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from rich.progress import Progress

from ragbias.evaluation.bench.run import run
from ragbias.evaluation.bench.settings import checked
from ragbias.evaluation.rows import read_rows

ASKED = {"documents": [2], "positions": [0, 1]}
METHODS = "none,canonical-order"
LIMIT = 125


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    out = tmp_path_factory.mktemp("bench") / "whole"
    whole = {"methods": METHODS, "tasks": [{"name": "tiny", **ASKED}], "limit": LIMIT, "cost": False, "out": out}
    run(checked(whole, "here"), Progress(disable=True))
    return out


def lines(file):
    return file.read_bytes().count(b"\n") if file.exists() else 0


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", "ray"])
def test_a_killed_bench_goes_on_and_has_every_example_once(uninterrupted, tmp_path, engine):
    out = tmp_path / "run"
    asked = [f"--{name}={','.join(map(str, values))}" for name, values in ASKED.items()]
    command = [sys.executable, "-m", "ragbias", "bench", "--task=tiny", *asked, f"--limit={LIMIT}"]
    command += [f"--methods={METHODS}", "--no-cost", f"--engine={engine}", f"--out={out}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while lines(out / "rows.jsonl") < 100:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    survived = read_rows(out / "rows.jsonl")
    assert 100 <= len(survived) < 500
    command.append("--engine=local")  # another engine is no other run
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True, timeout=200)
    for name, count in (("rows.jsonl", 500), ("noise.jsonl", 100)):
        rows, expected = read_rows(out / name), read_rows(uninterrupted / name)
        assert len(rows) == len({row.key for row in rows}) == count
        assert [replace(row, seconds=0) for row in rows] == [replace(row, seconds=0) for row in expected]
    assert set(survived) <= set(read_rows(out / "rows.jsonl"))  # with their times: not run again
