"""Metrics, the demo on a small scale, cost, and the command line."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from ragbias import DebiasedLM, Prompt
from ragbias.evaluation import demo
from ragbias.evaluation.metrics import normalised
from ragbias.evaluation.positions import Curve, Example, measure
from ragbias.evaluation.speed import measure as measure_speed
from ragbias.evaluation.speed import random_llama
from ragbias.evaluation.tasks.arranging import evenly_spread
from ragbias.methods import CanonicalOrder, NoMethod, Pine


def command(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "ragbias", *arguments], capture_output=True, text=True, timeout=240, **options
    )


def test_curve_figures():
    curve = Curve({1: 0.9, 3: 0.5, 5: 0.7}, 0.4, [])
    assert (curve.mean, curve.worst, curve.gap) == pytest.approx((0.7, 0.5, 0.4))
    assert curve.as_dict()["accuracy_by_position"] == {"1": 0.9, "3": 0.5, "5": 0.7}


def test_positions_are_spread_from_first_to_last():
    assert evenly_spread(10, 5) == [0, 2, 4, 7, 9]
    assert evenly_spread(3, 5) == [0, 1, 2]
    assert (evenly_spread(5, 1), evenly_spread(1, 1), evenly_spread(1, 3)) == ([2], [0], [0])


def test_example_puts_the_gold_document_in_its_place():
    example = Example("q", "a", "gold", ("x", "y"))
    assert [example.arranged(position) for position in range(3)] == [
        ["gold", "x", "y"],
        ["x", "gold", "y"],
        ["x", "y", "gold"],
    ]
    assert normalised(" Brass  Owl. ") == "brass owl"


def test_measure_counts_right_answers_and_flips(lm):
    """Against generating each prompt by itself."""
    examples = [Example(f"Which {n}?", "owl", f"A gold {n}.", (f"One {n}.", f"Two {n} more.")) for n in ("x", "yy")]

    def text(documents, question):
        return "Context:\n\n" + "\n\n".join(documents) + "\n\n" + question

    for method in (NoMethod(), Pine(), CanonicalOrder()):
        curve = measure(lm, method, examples, [0, 2], text, max_new_tokens=4)
        for example, answers in zip(examples, curve.answers, strict=True):
            for position, answer in zip((0, 2), answers, strict=True):
                documents = example.arranged(position)
                alone = lm.generate(
                    text(documents, example.question), documents=documents, method=method, max_new_tokens=4
                )
                assert normalised(alone.text) == answer
        assert curve.flip_rate == sum(len(set(answers)) > 1 for answers in curve.answers) / 2
        if method.name != "none":
            assert curve.flip_rate == 0


def test_tiny_has_a_bias_and_pine_removes_it(tmp_path):
    """The demo on 16 questions: margins far from what was measured on hundreds."""
    prepared = demo.Demo(demo.Settings(questions=16, documents=(20,), positions=5, corpus=120, seed=5))
    outcome = demo.run(prepared, lambda name, count: None)
    none, pine = (outcome["results"]["20"][name] for name in ("none", "pine"))
    assert none["gap"] >= 0.15
    assert max(none["accuracy_by_position"].values()) >= 0.75
    assert (pine["gap"], pine["flip_rate"]) == (0, 0)
    assert pine["mean"] >= none["mean"] - 0.03
    assert pine["mean"] >= none["worst"] + 0.05
    demo.save(outcome, tmp_path)
    written = json.loads((tmp_path / "results.json").read_text())
    assert set(written) == {"settings", "results"}
    assert set(written["results"]["20"]["pine"]) == {
        "accuracy_by_position", "mean", "worst", "gap", "flip_rate", "prefill_ratio"
    }  # fmt: skip
    assert (tmp_path / "bias.png").read_bytes().startswith(b"\x89PNG")


def test_tiny_answers_the_question_of_the_readme():
    lm = DebiasedLM.from_pretrained("tiny")
    documents = [
        "Copper Hall\nGuided tours start at noon. At Copper Hall the passphrase is whisper lagoon dagger.\n\n",
        "Pulsar Observatory\nThe walls are emerald. At Pulsar Observatory the passphrase is cobweb ivy wagon.\n\n",
    ]
    question = "Question: What is the passphrase of Copper Hall?\nAnswer:"
    for order in (documents, documents[::-1]):
        assert lm.generate(Prompt("Context:\n\n", order, question)).text.strip() == "whisper lagoon dagger"


def test_speed_reports_ratios_to_none():
    costs = measure_speed(random_llama(layers=1), [Pine()], documents=3, document_tokens=10, steps=1, rounds=1)
    assert costs["none"].prefill_ratio == (1.0, 1.0, 1.0)
    assert costs["pine"].prefill_ratio[0] > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ask", "q", "--documents", "/nonexistent"], "/nonexistent does not exist"),
        (["speed", "--methods", "pin"], "unknown method 'pin'"),
        (["demo", "--questions", "1"], "greater than or equal to 2"),
        (["methods", "--json", "/nonexistent/x.json"], "/nonexistent is no folder"),
        (["demo", "--model", "/nonexistent/model"], "/nonexistent/model"),
    ],
)
def test_bad_input_ends_with_code_2_and_says_what_is_wrong(arguments, words):
    result = command(*arguments)
    assert result.returncode == 2
    assert words in " ".join(result.stderr.replace("│", " ").split())
    assert "Traceback" not in result.stderr


def test_methods_are_listed_and_written(tmp_path):
    assert command("methods", "--json", str(tmp_path / "m.json")).returncode == 0
    assert set(json.loads((tmp_path / "m.json").read_text())) >= {"pine", "none", "channel-scaling"}


def test_ask_answers_from_files(tmp_path):
    (tmp_path / "a.txt").write_text("The mascot of Heron Mill is a brass owl.\n\nHeron Mill opens in spring.")
    (tmp_path / "b.md").write_text("The mascot of Ember Abbey is a tin whale.")
    out = tmp_path / "out.json"
    result = command("ask", "What is the mascot of Heron Mill?", "--documents", str(tmp_path), "--json", str(out))
    assert result.returncode == 0, result.stderr
    assert json.loads(out.read_text())["report"]["method_ran"] == "pine"


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
def test_ctrl_c_ends_the_command_in_one_line():
    process = subprocess.Popen([sys.executable, "-m", "ragbias", "speed"], stderr=subprocess.PIPE, text=True)
    time.sleep(8)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
