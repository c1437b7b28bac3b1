"""The demo on a small scale."""

import json

from ragbias.evaluation.demo import demo_run as demo
from ragbias.evaluation.demo.outcome import save


def test_tiny_has_a_bias_and_pine_removes_it(tmp_path):
    """The demo on 16 questions: margins far from what was measured on hundreds."""
    prepared = demo.Demo(demo.DemoSettings(questions=16, documents=(20,), positions=5, corpus=120, seed=5))
    outcome = demo.run(prepared, lambda name, count: None)
    none, pine = (outcome["results"]["20"][name] for name in ("none", "pine"))
    assert none["gap"] >= 0.15
    assert max(none["accuracy_by_position"].values()) >= 0.75
    assert (pine["gap"], pine["flip_rate"]) == (0, 0)
    assert pine["mean"] >= none["mean"] - 0.03
    assert pine["mean"] >= none["worst"] + 0.05
    save(outcome, demo.figure(outcome), tmp_path)
    written = json.loads((tmp_path / "results.json").read_text())
    assert set(written) == {"settings", "results"}
    assert set(written["results"]["20"]["pine"]) == {
        "accuracy_by_position", "mean", "worst", "gap", "flip_rate", "prefill_ratio"
    }  # fmt: skip
    assert (tmp_path / "bias.png").read_bytes().startswith(b"\x89PNG")
