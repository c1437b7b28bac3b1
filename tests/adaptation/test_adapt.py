"""Training of reader adapters: results, written files, and resumed training."""

import json
from contextlib import nullcontext as nothing
from dataclasses import asdict, replace

import pytest
import torch
from safetensors.torch import load_file

from ragbias import DebiasedLM, DocumentCache, Prompt, adapt
from ragbias.adaptation import AdaptSettings
from ragbias.adaptation.training import Reader, student_logits
from ragbias.errors import DataError, MethodError, ReaderError, UnsupportedReaderWarning
from ragbias.generation.attaching import attached_batch
from ragbias.methods import get
from ragbias.prompt import TokenisedPrompt
from ragbias.readers import Lora
from support.random_models import FAMILIES, random_model
from support.trainings import SHORT, InterruptedTrainingError, interrupt_at


def test_labels_teach_new_answers_in_every_order(lm, questions, tmp_path):
    """Tiny reads its own documents perfectly, so the answers are changed to one that it never gives."""
    changed = [replace(question, answers=("nobody knows",)) for question in questions]
    settings = dict(steps=8, batch=2, examples=16, documents=2, learning_rate=5e-3)
    receipt = adapt(lm, changed, tmp_path, AdaptSettings(method="pcw", objective="labels", **settings))
    assert receipt["supported"] and receipt["reader_minus_method"][1] > 5
    assert receipt["reader_minus_plain_best_position"][1] > 5
    assert receipt["invariant"] is True


def test_the_folder_holds_a_reader_of_peft_and_its_receipt(lm, questions, tmp_path):
    receipt = adapt(lm, questions, tmp_path, AdaptSettings(**SHORT))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
        "held-out.jsonl",
        "reader.json",
    ]
    record = json.loads((tmp_path / "reader.json").read_text())
    assert record["receipt"] == json.loads(json.dumps(receipt))
    assert record["method"] == "pcw" and record["settings"]["objective"] == "both"
    assert record["data"]["questions"] == 32 and record["data"]["held_out"] == 8
    assert json.loads((tmp_path / "adapter_config.json").read_text())["r"] == 2
    with nothing() if receipt["supported"] else pytest.warns(UnsupportedReaderWarning, match="does not show"):
        reading = DebiasedLM(lm.model, lm.tokenizer, "pcw", reader=str(tmp_path))
    assert reading.generate(Prompt("", ["A wall. ", "A mill. "], "Who?"), max_new_tokens=2).report.reader


@pytest.mark.parametrize("method", ["ape", "structured-prompting", "rotor", "pine", "mixture", "none"])
def test_every_method_with_documents_can_be_trained(lm, questions, method, tmp_path):
    receipt = adapt(lm, questions, tmp_path, AdaptSettings(method=method, **{**SHORT, "steps": 2, "examples": 8}))
    assert receipt["invariant"] is (None if method == "none" else True)


@pytest.mark.parametrize(("phase", "count"), [("Plain", 4), ("Training", 3), ("Held-out", 4)])
def test_an_interrupted_training_ends_with_the_same_weights(lm, questions, phase, count, tmp_path, monkeypatch):
    monkeypatch.setattr("ragbias.adaptation.run.CHECKPOINT_STEPS", 2)
    monkeypatch.setattr("ragbias.adaptation.run.BATCH", 4)
    adapt(lm, questions, tmp_path / "whole", AdaptSettings(**SHORT))
    with pytest.raises(InterruptedTrainingError):
        adapt(lm, questions, tmp_path / "parts", AdaptSettings(**SHORT), progress=interrupt_at(phase, count))
    adapt(lm, questions, tmp_path / "parts", AdaptSettings(**SHORT))
    whole, parts = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("whole", "parts"))
    assert whole.keys() == parts.keys() and all(bool((whole[key] == parts[key]).all()) for key in whole)


def test_without_answers_it_learns_from_the_model_itself(lm, questions, tmp_path):
    unlabelled = [replace(question, answers=(), gold=None) for question in questions]
    receipt = adapt(lm, unlabelled, tmp_path, AdaptSettings(**SHORT))
    assert receipt["measure"] == "log-probability of the plain model's answer, nats"
    assert receipt["plain"]["best_position"] is None
    with pytest.raises(DataError, match="objective='labels', but 32 questions have no answer; use objective='distil'"):
        adapt(lm, unlabelled, tmp_path / "other", AdaptSettings(objective="labels", **SHORT))


def test_another_training_in_the_folder_is_refused(lm, questions, tmp_path):
    with pytest.raises(InterruptedTrainingError):
        adapt(lm, questions, tmp_path, AdaptSettings(**SHORT), progress=interrupt_at("Plain", 8))
    with pytest.raises(ReaderError, match="contains an unfinished training with other settings; rerun its command"):
        adapt(lm, questions, tmp_path, AdaptSettings(**{**SHORT, "seed": 1}))
    with pytest.raises(ReaderError, match="contains an unfinished training with other data"):
        adapt(lm, questions[:-1], tmp_path, AdaptSettings(**SHORT))
    adapt(lm, questions, tmp_path, AdaptSettings(**{**SHORT, "seed": 1}), restart=True)
    with pytest.raises(ReaderError, match="contains a finished reader; name another folder, or add restart=True"):
        adapt(lm, questions, tmp_path, AdaptSettings(**SHORT))


def test_a_damaged_file_is_named_with_the_remedy(lm, questions, tmp_path, monkeypatch):
    monkeypatch.setattr("ragbias.adaptation.run.CHECKPOINT_STEPS", 2)
    with pytest.raises(InterruptedTrainingError):
        adapt(lm, questions, tmp_path, AdaptSettings(**SHORT), progress=interrupt_at("Training", 3))
    names = ("settings.json", "lesson-*.safetensors", "checkpoint.pt")
    files = [next((tmp_path / "partial").glob(name)) for name in names]
    damages = [(file, file.read_bytes()[:-7]) for file in files]
    for file, content in [*damages, (files[0], b"[]")]:
        whole = file.read_bytes()
        file.write_bytes(content)
        with pytest.raises(ReaderError, match=rf"{file.name}' of an unfinished .* is damaged .*; add restart=True"):
            adapt(lm, questions, tmp_path, AdaptSettings(**SHORT))
        file.write_bytes(whole)
    adapt(lm, questions, tmp_path, AdaptSettings(**SHORT), restart=True)


def test_files_of_others_are_left(lm, questions, tmp_path):
    (tmp_path / "adapter_model.safetensors").write_bytes(b"of another program")
    for restart in (False, True):
        with pytest.raises(ReaderError, match="contains files, but no reader; name a new or empty folder"):
            adapt(lm, questions, tmp_path, AdaptSettings(**SHORT), restart=restart)
    assert (tmp_path / "adapter_model.safetensors").read_bytes() == b"of another program"


def test_wrong_data_leaves_a_finished_reader(lm, questions, tmp_path):
    adapt(lm, questions, tmp_path, AdaptSettings(**SHORT))
    unlabelled = [replace(question, answers=()) for question in questions]
    with pytest.raises(DataError, match="32 questions have no answer"):
        adapt(lm, unlabelled, tmp_path, AdaptSettings(objective="labels", **SHORT), restart=True)
    assert (tmp_path / "reader.json").exists()
    assert all(not parameter.requires_grad for parameter in lm.model.parameters()) is False


def test_parameters_of_the_method_are_kept(lm, questions, tmp_path):
    adapt(lm, questions, tmp_path, AdaptSettings(method="ape(temperature=0.5)", **{**SHORT, "steps": 1}))
    with pytest.raises(ReaderError, match="was trained for ape.*0.5.*, but the method is ape"):
        DebiasedLM(lm.model, lm.tokenizer, "ape", reader=str(tmp_path))


def test_frequencies_that_depend_on_the_length_are_refused(byte_tokenizer):
    rope = dict(rope_type="dynamic", rope_theta=10000.0, factor=2.0)
    model = random_model("llama", rope_parameters=rope, max_position_embeddings=24)
    lm, prompt = DebiasedLM(model, byte_tokenizer, name="mine"), TokenisedPrompt([5], [[6] * 12, [7] * 12], [8] * 4)
    with pytest.raises(MethodError, match="mixture: no reader can be trained for 'mine', .*; use another model"):
        student_logits(lm, get("mixture"), Lora({}, 1.0), prompt, [9], DocumentCache())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", ["pcw", "pine", "mixture"])
def test_every_family_gets_gradients(family, method, byte_tokenizer):
    model = random_model(family).requires_grad_(False)
    lm = DebiasedLM(model, byte_tokenizer)
    reader = Reader(lm, 2, 0)
    prompt = TokenisedPrompt([3, 4], [[5, 6], [7, 8, 9]], [10, 11])
    student_logits(lm, get(method), reader.lora, prompt, [12, 13], DocumentCache()).float().sum().backward()
    gradients = [parameter.grad for parameter in reader.weights[1::2]]
    assert all(gradient is not None and bool(gradient.isfinite().all()) for gradient in gradients)
    assert sum(float(gradient.abs().sum()) for gradient in gradients) > 0


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", ["pine", "rotor", "none"])
def test_training_in_two_passes_equals_one_pass(family, method, byte_tokenizer):
    model = random_model(family).requires_grad_(False)
    lm = DebiasedLM(model, byte_tokenizer)
    reader = Reader(lm, 2, 0)
    for parameter in reader.weights[1::2]:
        parameter.data.normal_(0, 0.1, generator=torch.Generator().manual_seed(1))
    prompt, target = TokenisedPrompt([3, 4], [[5, 6], [7, 8, 9]], [10, 11, 12]), [13, 14]
    twice = student_logits(lm, get(method), reader.lora, prompt, target, DocumentCache())
    ids = torch.tensor([[*prompt.ids, *target[:-1]]])
    with attached_batch(lm.loaded, get(method), [prompt], [prompt.spans], lora=reader.lora):
        once = model(ids, logits_to_keep=len(target)).logits[0]
    torch.testing.assert_close(twice, once, rtol=1e-3, atol=1e-4)
    assert twice.requires_grad


def written(file, questions):
    """Write a file of questions in the format of the audit."""
    file.write_text("".join(json.dumps(asdict(question)) + "\n" for question in questions))
    return file


@pytest.mark.slow
def test_the_command_prints_its_plan_and_the_receipt(questions, tmp_path, cli):
    file, out = written(tmp_path / "q.jsonl", questions), tmp_path / "reader"
    options = ["--steps", "6", "--examples", "8", "--max-documents", "4", "--json", tmp_path / "receipt.json"]
    code, output, errors = cli("adapt", "--model", "tiny", "--questions", file, "--out", out, *options)
    assert code in (0, 1), errors
    for line in (
        "32 questions to train on, 8 held out",
        "Objective both, 8 examples, 6 steps of 4",
        "8 held-out questions, log-probability of the answer, nats:",
        "with the reader minus the plain model's best position: ",
        "same answers in every order: yes",
    ):
        assert line in output
    assert output.count("Training ...") == 1
    assert json.loads((tmp_path / "receipt.json").read_text())["questions"] == 8


def test_the_command_finds_mistakes_before_it_loads_the_model(questions, tmp_path, cli):
    unlabelled = [replace(question, answers=()) for question in questions]
    good, few, bare = (
        written(tmp_path / f"{name}.jsonl", rows)
        for name, rows in (("good", questions), ("few", questions[:19]), ("bare", unlabelled))
    )
    (tmp_path / "finished").mkdir()
    (tmp_path / "finished" / "reader.json").write_text("{}")
    (tmp_path / "latin.txt").write_bytes(b"\xff {documents} {question}")
    for file, out, options, message in (
        (few, "a", (), "19 different questions with two or more documents"),
        (bare, "a", ("--objective", "labels"), "32 questions have no answer"),
        (good, "finished", (), "contains a finished reader"),
        (good, "good.jsonl/reader", (), "good.jsonl/reader/partial: Not a directory"),
        (good, "a", ("--prompt", tmp_path / "latin.txt"), "is not UTF-8 text"),
        (good, "a", ("--method", "attention-sorting"), "takes no reader"),
    ):
        code, _, errors = cli(
            "adapt", "--model", "no/such-model", "--questions", file, "--out", tmp_path / out, *options
        )
        assert code == 2 and message in errors
