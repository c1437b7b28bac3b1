"""``kill -9`` at random moments of a training."""

import multiprocessing
import random
import time

import pytest

from support.trainings import CHECKPOINT, LONGER, train

KILLS = 50

processes = multiprocessing.get_context("forkserver")  # each process starts with torch and peft imported
processes.set_forkserver_preload(["peft", "support.killed_training"])


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def lines(log, phase):
    """Return the numbers of one phase in a log."""
    return [int(line.split()[1]) for line in log.read_text().splitlines() if line.startswith(phase)]


def life(out, log, seconds):
    """Train until the end, or until a kill after so many seconds. Return whether it ended, and its time."""
    process = processes.Process(target=train, args=(out, log))
    process.start()
    deadline = time.monotonic() + 60
    while not log.exists() or not log.read_text():
        assert process.exitcode is None and time.monotonic() < deadline
        time.sleep(0.002)
    loaded = time.monotonic()
    process.join(seconds)
    process.kill()
    process.join()
    assert process.exitcode in (0, -9)
    return process.exitcode == 0, time.monotonic() - loaded


@pytest.mark.slow
@pytest.mark.timeout(600)  # a minute on an idle core
def test_fifty_kills_lose_at_most_the_last_checkpoint(tmp_path):
    ended, seconds = life(tmp_path / "whole", tmp_path / "whole.log", None)
    whole = contents(tmp_path / "whole")
    assert whole.keys() == {"adapter_config.json", "adapter_model.safetensors", "held-out.jsonl", "reader.json"}
    rng, kills, trainings, phases = random.Random(0), 0, 0, set()
    reached, ended = {"Plain": 0, "Training": 0}, False
    while kills < KILLS or not ended:
        log = tmp_path / f"{trainings}-{kills}.log"
        moment = rng.uniform(0, seconds / 4) if kills < KILLS else None
        ended, _ = life(tmp_path / str(trainings), log, moment)
        phases.add(log.read_text().split()[-2])
        for phase, kept in (("Plain", 1), ("Training", CHECKPOINT)):
            if numbers := lines(log, phase):
                assert numbers == [*range(numbers[0], numbers[-1] + 1)]
                assert reached[phase] - kept < numbers[0] - 1 <= reached[phase] + 1
                reached[phase] = numbers[-1]
        kills += not ended
        if ended:
            assert contents(tmp_path / str(trainings)) == whole
            assert reached["Training"] == LONGER["steps"]
            trainings, reached = trainings + 1, {"Plain": 0, "Training": 0}
    assert {"loaded", "Training", "Held-out"} <= phases
