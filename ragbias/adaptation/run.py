"""Train a reader adapter and write it to a folder, with a receipt. An interrupted training can be resumed."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save

from ragbias.adaptation.examples import Example, draw_examples, prompt_of
from ragbias.adaptation.receipt import make_receipt
from ragbias.adaptation.settings import AdaptSettings
from ragbias.adaptation.teacher import BATCH, Lesson, make_lessons
from ragbias.adaptation.training import RESTART, Reader, damage_errors, train
from ragbias.cache import DocumentCache
from ragbias.data.questions import Question
from ragbias.errors import DataError, PromptTooLongError, ReaderError
from ragbias.extras import require
from ragbias.files import write_atomically
from ragbias.lm import DebiasedLM
from ragbias.methods import get
from ragbias.models.named import PACKAGED
from ragbias.readers import PARTIAL, PEFT, READER, WEIGHTS, fingerprint

FEWEST_QUESTIONS = 20  # including held-out questions
HELD_OUT = 0.2  # share of the questions
FEWEST_HELD_OUT, MOST_HELD_OUT = 5, 40
FEWEST_EXAMPLES, MOST_EXAMPLES = 300, 800  # bounds of the default
HELD_OUT_FILE = "held-out.jsonl"
SETTINGS = "settings.json"  # file of an unfinished training
CHECKPOINT_STEPS = 10  # steps between checkpoints
CACHE_MEMORY = "6GB"  # for states of documents
Progress = Callable[[str, int, int], None]  # phase, finished steps, all steps


def adapt(
    lm: DebiasedLM,
    questions: Sequence[Question],
    out: str | Path,
    settings: AdaptSettings | None = None,
    *,
    restart: bool = False,
    progress: Progress = lambda name, done, total: None,
) -> dict[str, Any]:
    """Train a reader adapter for a method, and write it to a folder.

    To resume an interrupted training, call this function again with the same arguments.

    Args:
        lm: the model. Training uses the model's dtype and does not change the model's weights.
        questions: questions with documents and, if known, answers and gold documents. A fifth of the questions, at
            least 5 and at most 40, is held out for the receipt.
        out: the folder for the reader.
        settings: method and training settings.
        restart: first delete an interrupted training or a finished reader in this folder.
        progress: called with the name of the phase, the number of finished steps, and the number of all steps.

    Returns:
        the receipt, which ``reader.json`` also contains.

    Raises:
        DataError: there are too few questions, or the objective needs answers and some questions have none.
        ReaderError: the folder contains a finished reader, other files, or an unfinished training that is damaged or
            has other settings.
        MissingExtraError: peft is not installed.
    """
    peft = require("peft", "adapt")
    plan = plan_of(questions, out, settings or AdaptSettings(), restart)
    options, training, held_out = plan.settings, plan.training, plan.held_out
    method = get(options.method, lm.name)
    identity = {"name": lm.name, "fingerprint": fingerprint(lm.model), "dtype": str(lm.model.dtype)}
    labelled = all(question.answers for question in held_out)
    compared = [held_out_example(lm, question, options, labelled) for question in held_out]  # raises if too long
    examples = draw_examples(lm, training, options)
    prompts = [lm.prepare(example.prompt, method="none").tokens for example in examples]
    partial = _open_training(plan, identity, restart)
    lessons = _load_or_make_targets(lm, examples, options, partial, progress)
    reader = Reader(lm, options.rank, options.seed)
    cache = DocumentCache(memory=CACHE_MEMORY)

    def after_step(step: int, loss: float) -> None:
        progress(f"Training (loss {loss:.2f})", step, options.steps)

    checkpoint = partial / "checkpoint.pt"
    train(lm, method, reader, prompts, lessons, options, cache, checkpoint, CHECKPOINT_STEPS, after_step)
    record = {
        "method": options.method,
        "model": identity,
        "data": {"sha256": plan.data, "questions": len(training), "held_out": len(held_out), "examples": len(examples)},
        "settings": asdict(options),
        "versions": {name: version(name) for name in ("torch", "transformers", "peft")},
    }
    scratch = partial / "reader"
    scratch.mkdir(exist_ok=True)
    write_weights(peft, reader, scratch, lm.name)
    unmeasured = {"receipt": {"supported": True}}  # prevents a warning during the measurement
    (scratch / READER).write_text(json.dumps(record | unmeasured))
    receipt = make_receipt(
        lm, method, str(scratch), compared, lambda done: progress("Held-out questions", done, len(held_out))
    )
    _finish(plan.folder, scratch, record | {"receipt": receipt}, held_out)
    shutil.rmtree(partial)
    return receipt


class AdaptPlan(NamedTuple):
    """The validated settings, questions and folder of a training run."""

    settings: AdaptSettings  # with resolved defaults: no "auto", and a number of examples
    training: Sequence[Question]
    held_out: Sequence[Question]
    folder: Path
    data: str  # digest of all questions


def plan_of(questions: Sequence[Question], out: str | Path, settings: AdaptSettings, restart: bool) -> AdaptPlan:
    """Resolve the settings, split the questions and create the folder. For errors, see ``adapt``.

    No model is needed.
    """
    folder = Path(out).expanduser()
    usable = [question for question in questions if len(question.documents) >= 2]
    training, held_out = _split(usable, settings.seed)
    unlabelled = sum(not question.answers for question in training)
    if settings.objective == "labels" and unlabelled:
        raise DataError(f"objective='labels', but {unlabelled} questions have no answer; use objective='distil'")
    if settings.objective == "auto":
        settings = replace(settings, objective="distil" if unlabelled else "both")
    examples = settings.examples or min(MOST_EXAMPLES, max(FEWEST_EXAMPLES, len(training)))
    settings = replace(settings, examples=examples)
    finished, unfinished = (folder / READER).exists(), (folder / PARTIAL / SETTINGS).exists()
    if not finished and not unfinished and any(path.is_file() for path in folder.rglob("*")):
        raise ReaderError(f"{str(folder)!r} contains files, but no reader; name a new or empty folder")
    if finished and not restart:
        shutil.rmtree(folder / PARTIAL, ignore_errors=True)  # left by a training that was killed in its last step
        raise ReaderError(f"{str(folder)!r} contains a finished reader; name another folder, or add {RESTART}")
    (folder / PARTIAL).mkdir(parents=True, exist_ok=True)
    data = hashlib.sha256(json.dumps([asdict(question) for question in usable]).encode()).hexdigest()[:16]
    return AdaptPlan(settings, training, held_out, folder, data)


def _open_training(plan: AdaptPlan, model: dict[str, str], restart: bool) -> Path:
    """Create or open the folder of an unfinished training. Raise ``ReaderError`` if its settings differ."""
    partial = plan.folder / PARTIAL
    if restart:
        shutil.rmtree(partial)
        for name in (PEFT, WEIGHTS, HELD_OUT_FILE, READER):  # READER last: without it, ``plan_of`` rejects the folder
            (plan.folder / name).unlink(missing_ok=True)
        partial.mkdir()
    expected = {"settings": asdict(plan.settings), "data": plan.data, "model": model}
    file = partial / SETTINGS
    with damage_errors(file):
        before = json.loads(file.read_text()) if file.exists() else expected
        changed = sorted(key for key in expected if before.get(key) != expected[key])
    if changed:
        raise ReaderError(
            f"{str(plan.folder)!r} contains an unfinished training with other {', '.join(changed)}; rerun its command "
            f"to finish it, name another folder, or add {RESTART}"
        )
    write_atomically(file, json.dumps(expected).encode())
    return partial


def _split(questions: Sequence[Question], seed: int) -> tuple[list[Question], list[Question]]:
    """Return training and held-out questions. Questions with the same text are never split between the two."""
    by_text: dict[str, list[Question]] = {}
    for question in questions:
        by_text.setdefault(question.question.strip().casefold(), []).append(question)
    if len(by_text) < FEWEST_QUESTIONS:
        enough = f"give at least {FEWEST_QUESTIONS}, better 200"
        raise DataError(f"{len(by_text)} different questions with two or more documents; {enough}")
    texts = random.Random(seed).sample(sorted(by_text), len(by_text))
    held = max(FEWEST_HELD_OUT, min(MOST_HELD_OUT, int(HELD_OUT * len(texts))))
    held_out = [by_text[text][0] for text in texts[:held]]
    return [question for text in texts[held:] for question in by_text[text]], held_out


def _load_or_make_targets(
    lm: DebiasedLM, examples: Sequence[Example], options: AdaptSettings, folder: Path, progress: Progress
) -> list[Lesson]:
    """Load each example's lesson from its file, or compute and write it. Equal examples share a file."""
    prompts = [example.teacher_prompts(options.orders, random.Random(index)) for index, example in enumerate(examples)]
    files = []
    for example, texts in zip(examples, prompts, strict=True):
        digest = hashlib.sha256(repr((texts, example.answers)).encode()).hexdigest()[:16]
        files.append(folder / f"lesson-{digest}.safetensors")
    index_of = {file: index for index, file in enumerate(files)}
    distinct = list(index_of)
    for begin in range(0, len(distinct), BATCH):
        chunk = distinct[begin : begin + BATCH]
        if all(file.exists() for file in chunk):
            continue
        chosen = [(examples[index_of[file]], prompts[index_of[file]]) for file in chunk]
        for file, lesson in zip(chunk, make_lessons(lm, chosen, options.objective != "labels"), strict=True):
            write_atomically(file, save(vars(lesson)))
        progress("Plain model's answers", begin + len(chunk), len(distinct))
    lessons = {}
    for file in distinct:
        with damage_errors(file):
            lessons[file] = Lesson(**load_file(file))
    return [lessons[file] for file in files]


def held_out_example(
    lm: DebiasedLM, question: Question, options: AdaptSettings, labelled: bool
) -> tuple[Example, Lesson]:
    """Return a held-out example and its lesson.

    The lesson's target is the known answer if ``labelled`` is set, otherwise the plain model's answer.
    """
    documents, gold = question.documents[: options.documents], question.gold
    if gold is not None and gold >= len(documents):
        documents = (*documents[:-1], question.documents[gold])
        gold = len(documents) - 1
    prompt = prompt_of(lm, documents, question.question, options.prompt)
    example = Example(prompt, gold, tuple(question.answers) if labelled else ())
    try:
        return example, make_lessons(lm, [(example, [prompt])], distil=False)[0]
    except PromptTooLongError as error:
        raise PromptTooLongError(f"question {question.question!r}: {error}; or use fewer documents") from error


def write_weights(peft: Any, reader: Reader, folder: Path, base: str) -> None:
    """Write the weights (in bfloat16) and the configuration in peft's format. ``base`` is the name of the model."""
    tensors = {}
    for path, (down, up) in reader.lora.weights.items():
        for half, weight in (("A", down), ("B", up)):
            tensors[f"base_model.model.{path}.lora_{half}.weight"] = weight.detach().to("cpu", torch.bfloat16)
    write_atomically(folder / WEIGHTS, save(tensors, {"format": "pt"}))
    names = sorted({path.rpartition(".")[2] for path in reader.paths})
    config = peft.LoraConfig(
        r=reader.rank, lora_alpha=reader.rank, target_modules=names, task_type="CAUSAL_LM", inference_mode=True
    )
    config.base_model_name_or_path = PACKAGED[base].hub if base in PACKAGED else base
    config.save_pretrained(folder)


def _finish(folder: Path, scratch: Path, record: dict[str, Any], held_out: Sequence[Question]) -> None:
    """Write the record and the held-out questions, and move all files to the reader's folder."""
    write_atomically(scratch / READER, (json.dumps(record, indent=2) + "\n").encode())
    write_atomically(scratch / HELD_OUT_FILE, "".join(json.dumps(asdict(each)) + "\n" for each in held_out).encode())
    for name in (WEIGHTS, PEFT, HELD_OUT_FILE, READER):  # the last file completes the reader
        (scratch / name).replace(folder / name)
