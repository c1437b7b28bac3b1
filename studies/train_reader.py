"""Train readers for parallel windows, and compare them with the plain model.

Unlike `ragbias adapt`, this study trains in batches. Each step draws new distractors and orders, and runs the teacher
again. All readers in --readers are trained one after another, in --minutes altogether. Each reader is evaluated on
unseen questions. NAME:OBJECTIVE:STEPS[:SEED] describes a reader. OBJECTIVE is one of these:

    distil   KL divergence from the plain model with the gold document
             alone, on known answers and on the plain model's answers
    known    like distil, on known answers only
    both     like known, plus the cross-entropy of the known answers
    labels   the cross-entropy of the known answers alone
    free     no labels: KL divergence from the plain model in two orders,
             on the plain model's answers
    ranked   no labels: KL divergence from the plain model with only the
             document that is most similar to the question by TF-IDF, on
             the plain model's answers
    plain    the control: the objective both, for the plain model, which
             reads all documents in order

With --mixture, the readers are for the method "mixture" instead of parallel windows. They also learn to give the
question the highest probability after the document that the teacher reads.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from safetensors.torch import load_file
from safetensors.torch import save as save_tensors
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from ragbias.adaptation.receipt import make_receipt
from ragbias.adaptation.run import MOST_HELD_OUT, held_out_example, write_weights
from ragbias.adaptation.settings import AdaptSettings
from ragbias.adaptation.teacher import FORWARD
from ragbias.adaptation.training import CLIP, WARM_UP, Reader
from ragbias.data.questions import Question, best_subspan_em
from ragbias.extras import require
from ragbias.files import write_atomically
from ragbias.lm import DebiasedLM
from ragbias.methods import get
from ragbias.readers import READER, fingerprint
from studies import arguments_of
from studies.readers import read_cases, show_accuracy, show_scores
from studies.training_prompts import Lesson, Questions
from studies.windows import (
    STATES,
    Row,
    autocast,
    compute_mixture_logprobs,
    compute_target_logits,
    evaluate,
    evaluate_mixture,
    generate_answers,
    pad_right,
)

TOGETHER = 128  # lessons whose answers are generated together
GROUP = 256  # lessons with the same prefix and form
SHORT = 20  # maximum number of documents in a prompt with short passages
OWN_ANSWERS = "distil", "free", "ranked"  # objectives with answers of the teacher


def divergence(teacher: Tensor, student: Tensor, real: Tensor) -> Tensor:
    """Return the mean of a weighted sum of forward and reverse KL divergence, from log-probabilities ``[B, T, V]``."""
    forward = (teacher.exp() * (teacher - student)).sum(-1)
    reverse = (student.exp() * (student - teacher)).sum(-1)
    loss = FORWARD * forward + (1 - FORWARD) * reverse
    return ((loss * real).sum(1) / real.sum(1)).mean()


def gold_alone(row: Row, gold: int) -> Row:
    return Row(row.prefix, [row.windows[gold]], row.suffix, row.target)


def shuffle_windows(row: Row, rng: random.Random) -> Row:
    return Row(row.prefix, rng.sample(row.windows, len(row.windows)), row.suffix, row.target).plain


def make_groups(model: PreTrainedModel, questions: Questions, objective: str, options: Any) -> list[list[Lesson]]:
    """Return groups of lessons, with the teacher's answers if the objective uses them."""
    groups, rng = [], random.Random(1)
    for _ in range(options.groups):
        lessons = questions.lessons(options.group, rng)
        if objective in OWN_ANSWERS:
            set_own_answers(model, questions, lessons, objective, options.documents, rng)
        groups.append(lessons)
    if objective in OWN_ANSWERS:
        rights = [lesson.right for lessons in groups for lesson in lessons]
        print(f"{len(rights)} lessons, {fmean(rights):.2f} answered rightly by the teacher", flush=True)
    return groups


def set_own_answers(
    model: PreTrainedModel,
    questions: Questions,
    lessons: Sequence[Lesson],
    objective: str,
    most: int,
    rng: random.Random,
) -> None:
    """Generate the teacher's answers from the documents that it reads."""
    read = []
    for lesson in lessons:
        documents = questions.documents(lesson, SHORT if lesson.short else most, rng)
        top = questions.most_similar(lesson.entry["question"], documents)
        if objective == "distil":
            top = documents.index(lesson.entry["documents"][0])
        else:
            lesson.row, lesson.top = questions.row_of(lesson, documents), top
        read.append(questions.row_of(lesson, documents if objective == "free" else [documents[top]]).plain)
    answers = []
    with autocast(model):
        for begin in range(0, len(read), TOGETHER):
            answers += generate_answers(model, read[begin : begin + TOGETHER], questions.end)
    for lesson, own in zip(lessons, answers, strict=True):
        lesson.own, lesson.right = own, bool(best_subspan_em(questions.text(own), lesson.entry["answers"]))


def make_rows(
    questions: Questions, lessons: Sequence[Lesson], objective: str, most: int, rng: random.Random
) -> list[tuple[Row, int]]:
    """Return the prompts of a step with their targets, and the index of the document that the teacher reads."""
    count = rng.randint(11, SHORT) if lessons[0].short and rng.random() < 0.5 else rng.randint(2, most)
    drawn = []
    for lesson in lessons:
        if objective == "free" and lesson.row:
            row, read = Row(lesson.prefix, lesson.row.windows, lesson.suffix), 0
        elif lesson.row:
            others = [window for index, window in enumerate(lesson.row.windows) if index != lesson.top]
            windows = [lesson.row.windows[lesson.top], *rng.sample(others, min(count, len(others)) - 1)]
            row, read = Row(lesson.prefix, windows, lesson.suffix), 0
        else:
            row, read = questions.row(lesson, count, rng)
        own = lesson.row or (objective == "distil" and lesson.right and rng.random() < 0.5)
        row.target = lesson.own if own else questions.answer_ids(row.suffix, lesson.entry["answers"][0])
        drawn.append((row, read))
    return drawn


@torch.no_grad()
def compute_teacher(
    model: PreTrainedModel, drawn: Sequence[tuple[Row, int]], objective: str, rng: random.Random
) -> Tensor:
    """Compute the teacher's log-probabilities ``[B, T, V]`` of the targets."""
    if objective == "free":
        orders = [compute_target_logits(model, [shuffle_windows(row, rng) for row, _ in drawn])[0] for _ in range(2)]
        return torch.stack([logits.float().softmax(-1) for logits in orders]).mean(0).log()
    return compute_target_logits(model, [gold_alone(row, gold) for row, gold in drawn])[0].float().log_softmax(-1)


def compute_loss(
    model: PreTrainedModel,
    reader: Reader,
    drawn: Sequence[tuple[Row, int]],
    objective: str,
    rng: random.Random,
    mixture: bool = False,
) -> Tensor:
    """Compute the mean loss of a step."""
    rows = [row for row, _ in drawn]
    if mixture:
        student, real, likelihoods = compute_mixture_logprobs(model, rows, reader)
        shares = [each.log_softmax(0)[read] for each, (_, read) in zip(likelihoods, drawn, strict=True)]
        loss = -torch.stack(shares).mean()
    else:
        logits, real = compute_target_logits(
            model, [shuffle_windows(r, rng) for r in rows] if objective == "plain" else rows, reader
        )
        student, loss = logits.float().log_softmax(-1), 0.0
    if objective != "labels":
        loss = loss + divergence(compute_teacher(model, drawn, objective, rng), student, real)
    if objective in ("both", "labels", "plain"):
        ids, _ = pad_right([row.target for row in rows], student.device)
        loss = loss + cross_entropy(student[real], ids[real])
    return loss


def train(
    model: PreTrainedModel,
    questions: Questions,
    groups: Sequence[Sequence[Lesson]],
    objective: str,
    steps: int,
    seed: int,
    options: Any,
    deadline: float,
) -> tuple[Reader, int]:
    """Train a reader until ``steps`` or the deadline. The learning rate decays towards whichever comes first."""
    reader = Reader(questions.lm, options.rank, seed)
    if options.start:
        reader.load_state_dict({name: weight.float() for name, weight in load_file(options.start).items()})
    optimiser = torch.optim.AdamW(reader.parameters(), lr=options.rate, weight_decay=0.0)
    rng, begun, losses, step = random.Random(seed), time.monotonic(), [], 0
    while step < steps:
        share_done = max(step / steps, (time.monotonic() - begun) / (deadline - begun))
        if share_done >= 1:
            break
        for group in optimiser.param_groups:
            group["lr"] = options.rate * min(1.0, (step + 1) / WARM_UP) * max(0.02, 1 - share_done)
        drawn = make_rows(questions, rng.sample(rng.choice(groups), options.batch), objective, options.documents, rng)
        with autocast(model):
            loss = compute_loss(model, reader, drawn, objective, rng, options.mixture)
        loss.backward()
        nn.utils.clip_grad_norm_(reader.parameters(), CLIP)
        optimiser.step()
        optimiser.zero_grad()
        losses.append(loss.detach())
        step += 1
        if step % 25 == 0:
            save(reader, options.out / "unfinished.safetensors")
        if step % 10 == 0:
            mean = float(torch.stack(losses[-10:]).mean())
            print(f"  {objective} step {step} loss {mean:.3f}, {time.monotonic() - begun:.0f} s", flush=True)
    return reader, step


def save(reader: Reader, file: Path) -> None:
    parameters = {name: weight.detach().to("cpu", torch.bfloat16) for name, weight in reader.named_parameters()}
    write_atomically(file, save_tensors(parameters))


def write_reader(reader: Reader, questions: Questions, options: Any, settings: dict[str, Any]) -> None:
    """Write the folder of a reader, as ``ragbias adapt`` does, with its receipt."""
    lm, method = questions.lm, get("mixture" if options.mixture else "pcw")
    held_out = [Question(**questions.by_length[1][question]) for question in questions.held_out[:MOST_HELD_OUT]]
    compared = [held_out_example(lm, question, AdaptSettings(), labelled=True) for question in held_out]
    used = ("batch", "documents", "rank", "rate", "one_form")
    record = {
        "method": method.name,
        "model": {"name": lm.name, "fingerprint": fingerprint(lm.model), "dtype": str(lm.model.dtype)},
        "data": {"questions": len(questions.training), "held_out": len(held_out)},
        "settings": settings | {name: getattr(options, name) for name in used},
        "versions": {name: version(name) for name in ("torch", "transformers", "peft")},
    }
    folder = options.out / "reader"
    folder.mkdir(exist_ok=True)
    write_weights(require("peft", "adapt"), reader, folder, lm.name)
    write_atomically(folder / READER, json.dumps(record | {"receipt": {"supported": True}}).encode())
    receipt = make_receipt(lm, method, str(folder), compared, lambda done: None)
    write_atomically(folder / READER, (json.dumps(record | {"receipt": receipt}, indent=2) + "\n").encode())
    print(json.dumps(receipt, indent=2))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = arguments_of(__doc__)
    parser.add_argument("training", type=Path, help="nq-open-oracle-training.jsonl.gz")
    parser.add_argument("--evaluation", type=Path, nargs="*", default=[], help="files as for studies.readers")
    parser.add_argument("--out", type=Path, required=True, help="folder of the weights and results")
    parser.add_argument("--readers", nargs="+", required=True, help="NAME:OBJECTIVE:STEPS[:SEED]")
    parser.add_argument("--model", default="smollm2", help="name, folder or file")
    parser.add_argument("--device", default="cuda", help="device of the model")
    parser.add_argument("--questions", type=int, default=240, help="questions of each evaluation")
    parser.add_argument("--minutes", type=float, default=60, help="time for all trainings")
    parser.add_argument("--batch", type=int, default=32, help="examples in a step")
    parser.add_argument("--groups", type=int, default=24, help="groups of lessons")
    parser.add_argument("--group", type=int, default=GROUP, help="lessons in a group")
    parser.add_argument("--documents", type=int, default=10, help="maximum number of documents in a prompt")
    parser.add_argument("--rank", type=int, default=8, help="rank of the LoRA")
    parser.add_argument("--mixture", action="store_true", help='train for "mixture" instead of parallel windows')
    parser.add_argument("--one-form", action="store_true", help="one prefix and format, so that documents are cached")
    parser.add_argument("--start", type=Path, help="weights to start from")
    parser.add_argument("--dtype", default="float32", help="dtype of the model")
    parser.add_argument("--cache", type=float, default=0, help="gigabytes for states of documents")
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate")
    parser.add_argument("--receipt", action="store_true", help="also write the last reader's folder, with a receipt")
    parser.add_argument("--generate", action="store_true", help="also generate answers to the first file")
    options = parser.parse_args(arguments)
    if options.mixture and (refused := [name for name in options.readers if name.split(":")[1] in ("free", "plain")]):
        raise SystemExit(f"{', '.join(refused)}: --mixture needs an objective whose teacher reads one document")
    STATES.left = int(options.cache * 1e9)
    torch.backends.cuda.matmul.allow_tf32 = True
    options.out.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    lm = DebiasedLM.from_pretrained(options.model, "none", dtype=options.dtype, device=options.device)
    model = lm.model
    model.requires_grad_(False)
    questions = Questions(lm, options.training, options.one_form)
    print(f"{len(questions.training)} questions for training; {time.monotonic() - begun:.0f} s", flush=True)
    cases = {file.name.partition(".")[0]: read_cases(file, 10_000, options.questions) for file in options.evaluation}
    results: dict[str, Any] = {file: {"scores": {}, "answers": {}} for file in cases}

    def measure(name: str, reader: Reader | None, plain: bool = False) -> None:
        """Evaluate on all files, and add the results."""
        for index, (file, of_file) in enumerate(cases.items()):
            answers = options.generate and index == 0
            if options.mixture and not plain:
                scores, texts = evaluate_mixture(lm, of_file, reader, answers)
            else:
                scores, texts = evaluate(lm, of_file, reader, plain, answers)
            results[file]["scores"][name] = scores
            results[file]["answers"] |= {name: texts} if answers else {}
        write_atomically(options.out / "results.json", json.dumps(results).encode())

    measure("none", None, plain=True)
    measure("mixture" if options.mixture else "pcw", None)
    print(f"{time.monotonic() - begun:.0f} s", flush=True)
    left, groups = options.readers, {}
    stop = begun + options.minutes * 60
    for index, text in enumerate(left):
        name, objective, steps, seed = [*text.split(":"), "0"][:4]
        weight = int(steps) / sum(int(other.split(":")[2]) for other in left[index:])
        if objective not in groups:
            groups[objective] = make_groups(model, questions, objective, options)
        deadline = time.monotonic() + max(1.0, (stop - time.monotonic()) * weight)
        reader, done = train(model, questions, groups[objective], objective, int(steps), int(seed), options, deadline)
        save(reader, options.out / f"{name}.safetensors")
        if options.receipt:
            write_reader(reader, questions, options, {"objective": objective, "steps": done, "seed": int(seed)})
        print(f"{name}: {done} steps; {time.monotonic() - begun:.0f} s", flush=True)
        measure(name, reader, objective == "plain")
        for file, of_file in cases.items():
            print(file)
            show_scores(results[file]["scores"])
            if results[file]["answers"]:
                show_accuracy(of_file, results[file]["answers"])


if __name__ == "__main__":
    main()
