"""The demo on a small scale."""

import json
from functools import partial

from rich.progress import Progress

from ragbias.methods import NoMethod, Pine
from ragbias_eval import demo

FIGURES = ("mean", "worst", "gap", "flip_rate")


def test_tiny_has_a_bias_and_pine_removes_it():
    """16 questions at three positions. The margins are far below those measured on hundreds of questions."""
    prepared = demo.TinyDemo(questions=16, positions=3, corpus=120, seed=5)
    prepared.methods = {"none": NoMethod(), "pine": Pine()}
    rows = prepared.answer(Progress(disable=True), ("accuracy",), 10)
    none, pine = ({name: rows[label][name][0] for name in FIGURES} for label in ("none", "pine"))
    assert none["gap"] >= 0.15
    assert max(point[0] for point in rows["none"]["accuracy_by_position"].values()) >= 0.75
    assert (pine["gap"], pine["flip_rate"]) == (0, 0)
    assert pine["mean"] >= none["mean"] - 0.03
    assert pine["mean"] >= none["worst"] + 0.05


def test_the_command_measures_every_method_and_draws(tmp_path, monkeypatch, cli):
    monkeypatch.setattr(demo, "COST_ROUNDS", 1)
    monkeypatch.setattr(demo, "TinyDemo", partial(demo.TinyDemo, documents=5, positions=2, corpus=30))
    code, printed, _ = cli("demo", "--model", "tiny", "--questions", "5", "--out", str(tmp_path))
    assert (
        code == 0
        and "5 documents: accuracy with the answer in document" in printed
        and "may be off by up to" in printed
    )
    written = json.loads((tmp_path / "results.json").read_text())
    assert set(written) == {"settings", "results"}
    assert list(written["results"]) == demo.TINY_METHODS.split(",")
    assert set(written["results"]["pine"]) == {
        "accuracy_by_position", "mean", "worst", "gap", "flip_rate", "prefill_ratio"
    }  # fmt: skip
    assert (tmp_path / "bias.png").read_bytes().startswith(b"\x89PNG")
