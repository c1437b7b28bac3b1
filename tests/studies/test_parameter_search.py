"""Search of parameters of APE, SIW and layer-wise interpolation, on the embedded model at a small size."""

import json

import pytest
import torch

import ragbias
from ragbias import methods
from ragbias.methods import AdaptiveParallelEncoding, NoMethod, ParallelContextWindows
from ragbias_eval.calibration.samples import CalibrationSettings, make_calibration_set
from studies import parameter_search
from studies.parameter_search import SPACES, Comparison, SearchSpace, search_parameters

SMALL = dict(questions=1, documents=3, depths=2)


@pytest.fixture
def few(monkeypatch):
    """Two values on each axis of APE."""
    space = SPACES["ape"]
    axes = {"temperature": (0.5, 1.0), "scale": (0.4, 1.0)}
    monkeypatch.setitem(SPACES, "ape", SearchSpace(axes, space.start, space.method, space.by))


def test_the_best_of_what_was_tried_is_written(few, tmp_path):
    out = tmp_path / "ape.json"
    record = search_parameters("ape", CalibrationSettings("tiny", **SMALL), out)
    assert json.loads(out.read_text()) == record
    assert [path.name for path in tmp_path.iterdir()] == ["ape.json"]
    divergences = [each["divergence"] for each in record["tried"]]
    assert divergences == sorted(divergences) and 3 <= len(divergences) <= 4
    best = record["tried"][0]
    assert methods.get(record["method"]) == AdaptiveParallelEncoding(best["temperature"], best["scale"])
    assert record["check"]["plain"]["divergence"] == pytest.approx(0, abs=1e-6)
    for name in ("start", "best"):
        gain = record["check"][name]["loss"] - record["check"]["plain"]["loss"]
        assert record["check"][name]["difference"] == pytest.approx(gain, abs=1e-5)
        assert record["check"][name]["standard_error"] > 0
    assert record["settings"]["method"] == "ape" and record["settings"]["check_samples"] == 4


def test_every_stage_of_a_search_ends_at_its_total(few, tmp_path):
    stages = {}

    def progress(stage, total, done):
        count, _ = stages.get(stage, (0, total))
        stages[stage] = count + done, total

    search_parameters("ape", CalibrationSettings("tiny", **SMALL), tmp_path / "ape.json", progress=progress)
    assert {"sweep 1: temperature", "check"} <= set(stages)
    assert all(count == total for count, total in stages.values())


@pytest.mark.parametrize("name", sorted(SPACES))
def test_a_search_starts_at_values_that_are_tried(name):
    assert all(value in SPACES[name].axes[parameter] for parameter, value in SPACES[name].start.items())


@torch.no_grad()
def test_the_divergence_is_that_of_next_token_distributions():
    lm = ragbias.DebiasedLM.from_pretrained("tiny")
    (sample, *_) = make_calibration_set(lm, CalibrationSettings("tiny", **SMALL).plan(lm.window))[0]
    ids = torch.tensor([sample.prompt.ids])
    plain = lm.model(ids).logits[0, -1].double().softmax(-1)
    with ragbias.debias(lm.model, ParallelContextWindows(), sample.prompt.spans):
        own = lm.model(ids).logits[0, -1].double().softmax(-1)
    comparison = Comparison(lm, [sample])
    parallel = comparison.figures(AdaptiveParallelEncoding(1.0, 1.0))
    (divergence,), (loss,) = parallel["divergence"], parallel["loss"]
    assert divergence == pytest.approx(float((plain * (plain / own).log()).sum()), rel=1e-2, abs=1e-7)
    (same,) = comparison.figures(ParallelContextWindows())["loss"]
    (none,) = comparison.figures(NoMethod())["divergence"]
    assert loss == pytest.approx(same) and none == 0


@pytest.fixture
def scored(monkeypatch):
    """Record the methods whose log-probabilities are computed, once per run of a prompt."""
    logits, names = parameter_search.continuation_logits, []

    def counted(model, tokens, method, *others):
        names.append(method.name)
        return logits(model, tokens, method, *others)

    monkeypatch.setattr(parameter_search, "continuation_logits", counted)
    return names


def test_the_plain_model_runs_each_prompt_once(few, scored, tmp_path):
    record = search_parameters("ape", CalibrationSettings("tiny", **SMALL), tmp_path / "a.json")
    samples, checked = record["settings"]["samples"], record["settings"]["check_samples"]
    assert scored.count("none") == samples + 2 * checked  # of the check it is itself a line
    assert scored.count("ape") == len(record["tried"]) * samples + 2 * checked


def test_a_useless_search_by_loss_reports_it_with_exit_code_1(study, monkeypatch, tmp_path):
    space = SPACES["position-interpolation"]
    only_plain = SearchSpace({"first": (1.0,), "last": (1.0,)}, space.start, space.method, space.by)
    monkeypatch.setitem(SPACES, "position-interpolation", only_plain)
    sizes = [f"--{name}={value}" for name, value in SMALL.items()]
    out = tmp_path / "p.json"
    code, output, _ = study(
        "parameter_search", "--model=tiny", "--method=position-interpolation", f"--out={out}", *sizes
    )
    assert code == 1 and "not clearly better than the plain model" in output
    assert json.loads(out.read_text())["beats_plain"] is False


def test_an_interrupted_search_goes_on(few, tmp_path, monkeypatch):
    settings = CalibrationSettings("tiny", **SMALL)
    logits, calls = parameter_search.continuation_logits, []

    def stopping(*arguments):
        if len(calls) == 5:  # two samples, plain and with the first setting, and one with the second
            raise KeyboardInterrupt
        calls.append(arguments)
        return logits(*arguments)

    monkeypatch.setattr(parameter_search, "continuation_logits", stopping)
    with pytest.raises(KeyboardInterrupt):
        search_parameters("ape", settings, tmp_path / "a.json")
    monkeypatch.setattr(parameter_search, "continuation_logits", logits)
    resumed = search_parameters("ape", settings, tmp_path / "a.json")
    assert resumed == search_parameters("ape", settings, tmp_path / "b.json")


def test_ratios_lie_on_a_line_over_the_layers():
    assert SPACES["position-interpolation"].method({"first": 1.0, "last": 2.0}, 5).ratio == (1.0, 1.25, 1.5, 1.75, 2.0)
    assert SPACES["position-interpolation"].method({"first": 1.2, "last": 2.0}, 1).ratio == (1.2,)


def test_the_command_prints_and_writes_the_best_setting(few, study, tmp_path):
    options = [f"--{name}={value}" for name, value in SMALL.items()]
    code, output, _ = study("parameter_search", "--model=tiny", "--method=ape", "--out", tmp_path / "a.json", *options)
    assert code == 0 and "Best: ape(temperature=" in output
    assert json.loads((tmp_path / "a.json").read_text())["by"] == "divergence"
