"""``kill -9`` in the middle of a bench."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from rich.progress import Progress

from ragbias_eval.bench import run
from ragbias_eval.bench_settings import validate_settings
from ragbias_eval.runs import read_records

ASKED = {"documents": [2], "positions": [0, 1]}
METHODS = "none,canonical-order"
LIMIT = 30  # questions, each with two positions and two methods


def run_here(out):
    """Run the bench of ``command`` in this process."""
    settings = {
        "models": "tiny",
        "methods": METHODS,
        "tasks": [{"name": "tiny", **ASKED}],
        "limit": LIMIT,
        "cost": False,
        "out": out,
    }
    run(validate_settings(settings, "here"), Progress(disable=True))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    out = tmp_path_factory.mktemp("bench") / "whole"
    run_here(out)
    return out


def command(out):
    options = [f"--{name}={','.join(map(str, values))}" for name, values in ASKED.items()]
    bench = [sys.executable, "-m", "ragbias", "bench", "--model=tiny", "--task=tiny", *options, f"--limit={LIMIT}"]
    return [*bench, f"--methods={METHODS}", "--no-cost", f"--out={out}"]


ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def signalled(out, number, records):
    """Start a bench and send it a signal after a number of records. Return exit code and output."""
    file = out / "rows.jsonl"
    process = subprocess.Popen(command(out), env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 200
    while not file.exists() or file.read_bytes().count(b"\n") < records:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(number)
    output, _ = process.communicate()
    return process.returncode, output


@pytest.mark.slow
def test_a_killed_bench_goes_on_and_has_every_example_once(uninterrupted, tmp_path):
    out = tmp_path / "run"
    code, _ = signalled(out, signal.SIGKILL, 20)
    survived = read_records(out / "rows.jsonl")
    assert code == -signal.SIGKILL and 20 <= len(survived) < 120
    run_here(out)
    for name, count in (("rows.jsonl", 120), ("noise.jsonl", 60)):
        records, expected = read_records(out / name), read_records(uninterrupted / name)
        assert len(records) == len({record.key for record in records}) == count
        assert [replace(record, seconds=0) for record in records] == [replace(record, seconds=0) for record in expected]
    assert set(survived) <= set(read_records(out / "rows.jsonl"))  # with their times: not run again


@pytest.mark.slow
def test_an_interrupted_bench_prints_how_to_resume(tmp_path):
    code, output = signalled(tmp_path / "run", signal.SIGINT, 20)
    assert code == 130 and "the same command resumes the run" in " ".join(output.split())
    assert len(read_records(tmp_path / "run" / "rows.jsonl")) >= 20
