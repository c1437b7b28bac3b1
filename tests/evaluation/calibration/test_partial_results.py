"""Files that an unfinished calibration leaves on disk."""

import multiprocessing

import numpy as np
import pytest

from ragbias.errors import ArgumentError, DataError, MethodError
from ragbias_eval.calibration import algorithm
from ragbias_eval.calibration.algorithm import calibrate
from ragbias_eval.calibration.channel_search import NoPositionalChannelError, rank_channels
from ragbias_eval.calibration.partial_results import PartialResults
from ragbias_eval.calibration.samples import CalibrationSettings
from support.concurrency import side_by_side


def test_results_and_states_are_read_again_and_removed(tmp_path):
    out = tmp_path / "profile.json"
    first = PartialResults(out, {"seed": 1})
    first.get_or_measure("loss", lambda: [1.5, 2.5])
    first.states(lambda: np.ones((2, 3)))
    again = PartialResults(out, {"seed": 1})
    assert again.get_or_measure("loss", list) == [1.5, 2.5]
    assert np.array_equal(again.states(list), np.ones((2, 3)))
    again.remove()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY cut off", b"no array"])
def test_damaged_states_are_named_with_the_remedy(tmp_path, content):
    out = tmp_path / "profile.json"
    partial = PartialResults(out, {"seed": 1})
    (tmp_path / "profile.json.partial.npy").write_bytes(content)
    with pytest.raises(MethodError, match=r"partial\.npy cannot be read.*--restart"):
        partial.states(list)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "cannot be read.*--restart"),
        ('{"settings": [], "results": {"loss": [1.5', "cannot be read: .*--restart"),
        ('{"settings": [5], "results": {}}', "cannot be read: .*--restart"),
    ],
)
def test_damaged_results_are_named_with_the_remedy(tmp_path, content, words):
    (tmp_path / "profile.json.partial.json").write_text(content)
    with pytest.raises(MethodError, match=rf"partial\.json:? {words}"):
        PartialResults(tmp_path / "profile.json", {"seed": 1})


def test_other_settings_are_refused_by_name_until_a_restart(tmp_path):
    out = tmp_path / "profile.json"
    PartialResults(out, {"seed": 1, "layers": (1, 2)}).get_or_measure("loss", lambda: [1.0])
    assert PartialResults(out, {"seed": 1, "layers": (1, 2)}).results == {"loss": [1.0]}
    with pytest.raises(MethodError, match="seed was 1 and is 2 now.*--restart"):
        PartialResults(out, {"seed": 2, "layers": (1, 2)})
    assert PartialResults(out, {"seed": 2, "layers": (1, 2)}, restart=True).results == {}


def write_often(out):
    partial = PartialResults(out, {"seed": 1})
    for step in range(300):
        partial.results.pop(f"loss {step % 50}", None)
        partial.get_or_measure(f"loss {step % 50}", lambda: list(range(50)))


def test_two_processes_on_one_output_do_not_disturb_each_other(tmp_path):
    out, fork = tmp_path / "profile.json", multiprocessing.get_context("fork")
    processes = [fork.Process(target=write_often, args=(out,)) for _ in range(2)]
    side_by_side(processes)
    assert [process.exitcode for process in processes] == [0, 0]
    assert len(PartialResults(out, {"seed": 1}).results) == 50


def test_a_refused_calibration_leaves_no_files(tmp_path):
    data = tmp_path / "q.jsonl"
    data.write_text('{"question": "Why?", "documents": ["a", "b"]}\n')
    refusals = [
        ({"data": data}, DataError, "line 1: no 'answer'"),
        ({"documents": 10_000}, ArgumentError, "10000 passages"),
    ]
    for changes, error, words in refusals:
        with pytest.raises(error, match=words):
            calibrate(CalibrationSettings("tiny", strings=1, length=20, **changes), tmp_path / "p.json")
        assert [path.name for path in tmp_path.iterdir()] == ["q.jsonl"]
    with pytest.raises(NoPositionalChannelError, match="none of the 4 channels"):
        search_fails(tmp_path / "p.json")
    assert [path.name for path in tmp_path.iterdir()] == ["q.jsonl"]


def search_fails(out):
    """Run a calibration whose random strings show no channel. Its partial results must not be reused."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            algorithm, "rank_channels", lambda states, top, **settings: rank_channels(np.zeros((3, 20, 4)), top)
        )
        calibrate(CalibrationSettings("tiny", strings=1, length=20, questions=1, documents=2), out)
