"""Too little disk or memory, or a closed pipe: one line that names the file, and no partial output."""

import resource
import signal
import subprocess
import sys
import time

import pytest

RAGBIAS = [sys.executable, "-m", "ragbias"]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sets limits as Linux has them")


def limited(kind, size):
    """Return a function that sets this limit for a process. Python ignores the signal for files that are too large."""
    return lambda: resource.setrlimit(kind, (size, size))


def run(*arguments, limit=None, **changes):
    return subprocess.run(
        [*RAGBIAS, *map(str, arguments)], preexec_fn=limit, capture_output=True, text=True, timeout=120, **changes
    )


@pytest.mark.parametrize("size", [0, 100])
def test_a_full_disk_names_the_file_and_leaves_no_part(tmp_path, size):
    ended = run("methods", "--json", tmp_path / "m.json", limit=limited(resource.RLIMIT_FSIZE, size))
    assert (ended.returncode, ended.stderr) == (2, f"ragbias: {tmp_path / 'm.json'}: File too large\n")
    assert list(tmp_path.iterdir()) == []


def test_a_bench_that_fills_the_disk_names_the_file_and_resumes(tmp_path, cli):
    out = tmp_path / "run"
    bench = [
        "bench", "--model=tiny", "--task=tiny", "--methods=none", "--documents=2", "--limit=3", "--no-cost",
        f"--out={out}",
    ]  # fmt: skip
    ended = run(*bench, limit=limited(resource.RLIMIT_FSIZE, 2000))  # enough for the settings
    assert ended.returncode == 2 and ended.stderr.endswith(": File too large\n")
    assert str(out) in ended.stderr and "settings" not in ended.stderr
    assert cli(*bench)[0] == 0
    assert len((out / "rows.jsonl").read_text().splitlines()) == 6


def test_a_full_disk_below_standard_output_is_reported():
    with open("/dev/full", "w") as full:
        ended = subprocess.run([*RAGBIAS, "methods"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert (ended.returncode, ended.stderr) == (2, "ragbias: standard output: No space left on device\n")


def test_a_reader_that_is_gone_ends_the_command_quietly():
    process = subprocess.Popen([*RAGBIAS, "methods"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    assert (process.stderr.read(), process.wait(60)) == ("", 1)


@pytest.mark.parametrize("mebibytes", [900, 1600])
def test_too_little_memory_is_reported_in_one_line(tmp_path, mebibytes):
    limit = limited(resource.RLIMIT_AS, mebibytes * 2**20)
    ended = run(
        "calibrate",
        "--model=tiny",
        "--out=p.json",
        "--strings=1024",
        "--batch-size=1024",
        "--length=2000",
        limit=limit,
        cwd=tmp_path,
    )
    assert ended.returncode == 2 and ended.stderr.count("\n") == 1
    assert ended.stderr.startswith("ragbias: out of memory (")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seconds", [0.02, 0.05, 0.1, 0.2, 0.4, 0.8])
def test_ctrl_c_in_the_first_moments_ends_in_one_line(seconds):
    """The interpreter itself has already started."""
    program = "import os; os.write(1, b'!'); from ragbias.__main__ import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", program, "bench", "--model=tiny", "--task=tiny", "--methods=none"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.stdout.read(1)
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT) and errors == "ragbias: interrupted\n"
