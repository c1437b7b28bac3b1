"""The whole search on the embedded model at a small size: results, resumption, the command line."""

import json

import pytest

from ragbias.errors import ArgumentError
from ragbias.methods import ChannelScaling, Profile
from ragbias_eval.calibration import algorithm as calibrate
from ragbias_eval.calibration import measurements
from ragbias_eval.calibration.algorithm import is_clear_gain, round_floats
from ragbias_eval.calibration.channel_search import NoPositionalChannelError
from ragbias_eval.calibration.samples import CalibrationSettings

SMALL = dict(strings=12, length=64, questions=2, documents=4, depths=2, batch_size=4)
OPTIONS = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A profile made without interruption."""
    out = tmp_path_factory.mktemp("whole") / "p.json"
    return calibrate.calibrate(CalibrationSettings("tiny", **SMALL), out), out


def test_the_profile_is_written_with_everything_measured(whole):
    profile, out = whole
    assert Profile.load(out) == profile
    assert [path.name for path in out.parent.iterdir()] == ["p.json"]  # nothing partial is left
    found = profile.measured
    assert (profile.model, profile.hidden_size, profile.n_layers) == ("tiny", 128, 4)
    assert found["settings"]["task"] == "tiny"
    assert found["settings"]["strings"] == 12 and found["settings"]["samples"] == 4
    tried = {(each["channel"], each["factor"]) for each in found["losses"]}
    best = {channel for channel, factor in tried if factor == -1}
    assert len(best) == min(3, len(found["channel_search"]["tried"]))
    assert {(channel, factor) for channel in best for factor in (0.5, 0, -0.5, -1)} <= tried
    chosen = min(found["losses"], key=lambda each: each["loss"])
    assert (profile.channel, profile.factor, list(profile.layers)) == (
        chosen["channel"],
        chosen["factor"],
        chosen["layers"],
    )
    assert found["layer_search"]["ranges"]["the paper's"] == [1, 3]
    assert len(found["curve"]["by_layer"]) == 4


def test_a_calibration_computes_in_the_given_dtype(whole, tmp_path):
    settings = CalibrationSettings("tiny", **SMALL, dtype="bfloat16")
    found = calibrate.calibrate(settings, tmp_path / "p.json").measured
    assert found["settings"]["dtype"] == "bfloat16"
    exact, rough = (each["choice"]["plain"]["loss"] for each in (whole[0].measured, found))
    assert rough != exact and rough == pytest.approx(exact, rel=0.05)


def test_the_papers_variant_skips_fewer_positions(tmp_path):
    settings = CalibrationSettings("tiny", **SMALL, variant="paper")
    found = calibrate.calibrate(settings, tmp_path / "p.json").measured
    assert found["settings"]["variant"] == "paper"
    assert found["channel_search"]["windows"]["skip_fit"] == 30 * 64 // 1000


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--dtype=int8", "'int8' is not one of 'auto', 'float32'"),
        ("--variant=draft", "'draft' is not one of 'released', 'paper'"),
        ("--task=qa", "Invalid value for '--task': 'qa' is not one of 'kv', 'tiny'"),
        ("--data=none.jsonl", "Invalid value for '--data': file 'none.jsonl' does not exist"),
        ("--out=p.png", "p.png does not end with .json"),
    ],
)
def test_an_option_of_another_kind_is_refused(cli, tmp_path, option, message):
    code, _, errors = cli("calibrate", "--model", "tiny", "--out", tmp_path / "p.json", option)
    assert code == 2 and message in " ".join(errors.split())


def test_every_number_of_the_record_has_six_significant_digits(whole):
    assert round_floats({"a": (1 / 3, 2e-9 / 3, 123456.78), "b": [True, 1000000, "c", None]}) == {
        "a": [0.333333, 6.66667e-10, 123457.0],
        "b": [True, 1000000, "c", None],
    }
    assert round_floats(whole[0].measured) == whole[0].measured


def test_an_interrupted_run_goes_on_and_gives_the_same_profile(whole, tmp_path, monkeypatch):
    """Interrupt during the random strings, which start again, then during the losses, which do not."""
    expected, original = whole
    out, calls = tmp_path / "p.json", {"strings": 0, "losses": 0}
    states, measure = measurements.sum_states, calibrate.measure_losses

    def counted(name, function, stop):
        def run(*arguments, **settings):
            if calls[name] == stop:
                raise KeyboardInterrupt
            calls[name] += 1
            return function(*arguments, **settings)

        return run

    def run(stop_strings=-1, stop_losses=-1):
        monkeypatch.setattr(measurements, "sum_states", counted("strings", states, stop_strings))
        monkeypatch.setattr(calibrate, "measure_losses", counted("losses", measure, stop_losses))
        return calibrate.calibrate(CalibrationSettings("tiny", **SMALL), out)

    for stop in ({"stop_strings": 2}, {"stop_losses": 3}):
        with pytest.raises(KeyboardInterrupt):
            run(**stop)
        assert not out.exists() and (tmp_path / "p.json.partial.json").exists() == ("stop_losses" in stop)
    assert run() == expected
    assert calls["strings"] == 2 + 3  # batches of 4 in 12 strings
    settings = expected.measured["settings"]
    # channels, factors, layers, each with all their settings at once; and the check
    assert calls["losses"] == 3 * settings["samples"] + settings["check_samples"]
    assert out.read_text() == original.read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["p.json"]


def test_a_task_and_a_file_exclude_each_other(tmp_path):
    file = tmp_path / "x.jsonl"
    file.write_text("")
    with pytest.raises(ArgumentError, match="task='kv' draws its own questions; leave out task, or data="):
        CalibrationSettings("tiny", task="kv", data=file)
    assert CalibrationSettings("tiny").plan(100).task == "tiny"
    assert CalibrationSettings("other/model").plan(100).task == "kv"
    assert CalibrationSettings("tiny", data=file).plan(100).task == "data"
    assert (CalibrationSettings("m").plan(512).length, CalibrationSettings("m").plan(4096).length) == (512, 1000)
    with pytest.raises(ArgumentError, match="length=600, but the model's window is 512"):
        CalibrationSettings("m", length=600).plan(512)


def test_the_command_writes_a_profile_and_a_plot(cli, tmp_path):
    out = tmp_path / "mine.json"
    code, output, _ = cli("calibrate", "--model", "tiny", "--out", out, "--json", tmp_path / "same.json", *OPTIONS)
    profile = Profile.load(out)
    assert code == (0 if profile.measured["beats_plain"] else 1)
    assert output.startswith("Model: tiny\n") and ("not clearly better" in output) == (code == 1)
    assert (tmp_path / "mine.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "same.json").read_text()) == json.loads(out.read_text())
    assert ChannelScaling.from_profile(out).channel == profile.channel  # the profile has one


def test_the_command_ends_with_code_1_if_no_channel_is_found(cli, tmp_path, monkeypatch):
    def nothing(*arguments, **settings):
        raise NoPositionalChannelError("none of the 128 channels is monotone")

    monkeypatch.setattr(calibrate, "rank_channels", nothing)
    code, output, _ = cli("calibrate", "--model", "tiny", "--out", tmp_path / "p.json", *OPTIONS)
    assert code == 1 and "No profile is written: none of the 128 channels" in " ".join(output.split())
    assert not (tmp_path / "p.json").exists()


def test_a_stopped_run_resumes_only_with_the_same_settings(cli, tmp_path, monkeypatch):
    def stopped(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(calibrate, "measure_losses", stopped)
    arguments = ("calibrate", "--model", "tiny", "--out", tmp_path / "p.json", *OPTIONS)
    code, *_ = cli(*arguments)
    assert code == 130
    code, _, errors = cli(*arguments, "--seed=1")
    assert code == 2 and "seed was 0 and is 1 now" in errors
    monkeypatch.undo()
    assert (tmp_path / "p.json.partial.npy").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "/no/such/model", "--out", "{tmp}/p.json"], "/no/such/model"),
        (["--model", "tiny", "--out", "{tmp}/none/p.json"], "is not a folder; create it first"),
        (
            ["--model", "tiny", "--out", "{tmp}/p.json", "--strings=0"],
            "must be a whole number from 1 to 1,000,000, got '0'",
        ),
    ],
)
def test_bad_input_ends_with_code_2_and_one_line(cli, tmp_path, arguments, message):
    code, _, errors = cli("calibrate", *(argument.format(tmp=tmp_path) for argument in arguments))
    assert code == 2
    assert len(errors.strip().splitlines()) == 1 and message in errors
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("difference", "error", "clear"), [(-0.21, 0.1, True), (-0.19, 0.1, False), (0.3, 0.1, False), (-1.0, 0.0, False)]
)
def test_a_clear_gain_is_two_standard_errors_over_questions(difference, error, clear):
    assert is_clear_gain({"difference": difference, "standard_error": error}) is clear
