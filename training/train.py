"""Train the embedded model from scratch: `python -m training.train --out DIR`.

A run is reproducible, because everything depends on steps and seeds. On CPUs, training is much faster if glibc keeps
freed memory: set `MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=100000000000`.
"""

import argparse
import json
import random
import time
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

import torch
from torch.nn.functional import cross_entropy
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from ragbias import DebiasedLM
from ragbias.methods import NoMethod
from ragbias_eval.tasks import TinyQA
from training import tokenizer as tokenizers
from training.batches import QUESTIONS, BatchSettings, TrainingBatch, make_questions, make_repeats
from training.model import initialise_model, make_config, make_generation_config


@dataclass(frozen=True)
class TrainingSettings:
    """Settings that determine a run."""

    steps: int = 9000
    seed: int = 0
    positions: str = "ends"  # positions of the answers: "ends" (90% near either end) or "uniform"
    # `length` and `gap` of each copying lesson before the first questions, see `make_repeats`
    copying: tuple[tuple[int, int], ...] = ((32, 0), (96, 0), (64, 2), (96, 4), (192, 7))
    copy_accuracy: float = 0.9  # accuracy that ends a copying lesson
    raise_at: float = 0.75  # accuracy at which the number of passages is raised
    documents: int = 20
    long_documents: int = 40  # passages in a tenth of the steps, once `documents` is reached
    batch_tokens: int = 4096
    language_weight: float = 0.1
    muon: float = 0.02
    adam: float = 3e-3
    embedding: float = 1e-2
    rate: float = 1.0  # factor of the three learning rates above
    resume: str | None = None  # folder of a model that has finished the first lessons
    first_documents: int = 4  # maximum number of passages in the first questions
    contradicted: bool = False  # passages in the middle often contradict those at the ends


@dataclass
class Progress:
    """Progress of a run, which determines the next batch."""

    step: int = 0
    tokens: int = 0
    accuracy: float = 0.0  # running average, first for repeats, then for questions
    copied: int = 0  # number of finished copying lessons
    copied_steps: int = 0
    simple: bool = True  # first lesson: one kind of fact, one format
    limit: int = 0  # maximum number of passages


def learning_rate_factor(step: int, steps: int) -> float:
    """Return the learning rate factor: 1 for the first half of the steps, then linearly down to 0.05."""
    return 1.0 if step < steps / 2 else 1.0 - 0.95 * (step - steps / 2) / (steps / 2)


def make_optimizers(model: LlamaForCausalLM, settings: TrainingSettings) -> list[torch.optim.Optimizer]:
    """Make optimizers: Muon for the matrices of the layers, AdamW for embeddings, head and norms."""
    named = dict(model.named_parameters())
    hidden = [w for name, w in named.items() if ".layers." in name and w.ndim == 2]
    norms = [w for w in named.values() if w.ndim == 1]
    groups = [
        {"params": [named["model.embed_tokens.weight"]], "lr": settings.embedding},
        {"params": [named["lm_head.weight"], *norms], "lr": settings.adam},
    ]
    return [
        torch.optim.Muon(hidden, lr=settings.muon, weight_decay=0.0),
        torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def compute_logits(model: LlamaForCausalLM, batch: TrainingBatch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return logits [n, vocabulary], targets [n] and answer numbers [n], at the n positions with a target."""
    with torch.autocast("cpu", torch.bfloat16):
        states = model.model(
            batch.ids, attention_mask=batch.visible, position_ids=batch.positions, use_cache=False
        ).last_hidden_state
        chosen = batch.targets != -100
        logits = model.lm_head(states[chosen]).float()
    return logits, batch.targets[chosen], batch.answer[chosen]


def find_exact_matches(logits: torch.Tensor, targets: torch.Tensor, answer: torch.Tensor) -> torch.Tensor:
    """Return, for each answer by number, whether all its tokens have the highest logit."""
    inside = answer >= 0
    right = (logits.argmax(-1) == targets)[inside].float()
    numbers, where = answer[inside].unique(return_inverse=True)
    return torch.ones(len(numbers)).scatter_reduce(0, where, right, "amin")


def make_next_batch(
    rng: random.Random, tokenizer: PreTrainedTokenizerFast, settings: TrainingSettings, progress: Progress
) -> tuple[TrainingBatch, int]:
    """Make the next batch. Return it and its number of passages, which is 0 in the copying phase."""
    if progress.copied < len(settings.copying):
        length, gap = settings.copying[progress.copied]
        return make_repeats(rng, tokenizer, settings.batch_tokens // (2 * length), length, gap), 0
    documents = progress.limit if progress.simple or rng.random() < 0.6 else rng.randint(2, progress.limit)
    if progress.limit == settings.documents and rng.random() < 0.1:
        documents = rng.randint(settings.documents, settings.long_documents)
    count = max(2, settings.batch_tokens // (34 * documents + 60 + 26 * QUESTIONS))
    lesson = BatchSettings(documents, settings.positions == "ends", progress.simple, settings.contradicted)
    return make_questions(rng, tokenizer, lesson, count), documents


def update_progress(progress: Progress, settings: TrainingSettings, documents: int, accuracy: float) -> None:
    """Count a step. If accuracy is high enough, move to the next phase or use more passages."""
    progress.step += 1
    if documents in (0, progress.limit):
        progress.accuracy += 0.05 * (accuracy - progress.accuracy)
    if not documents:
        progress.copied_steps = progress.step
        if progress.accuracy > settings.copy_accuracy:
            progress.copied += 1
            progress.accuracy = 0.0
    elif progress.accuracy > settings.raise_at and progress.simple:
        progress.simple = False
        progress.accuracy = 0.0
    elif progress.accuracy > settings.raise_at and progress.limit < settings.documents:
        progress.limit += 2
        progress.accuracy -= 0.1


def save_model(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write model and tokenizer in float32, in the format that `from_pretrained` reads."""
    model.generation_config = make_generation_config(tokenizer)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def train(settings: TrainingSettings, out: Path) -> LlamaForCausalLM:
    """Run all steps. Write the model to `out` after each tenth of the steps, and `training.json` at the end."""
    began = time.time()
    rng = random.Random(settings.seed)
    tokenizer = tokenizers.build_tokenizer()
    progress, curve, loss_sum = Progress(limit=settings.first_documents), [], 0.0
    if settings.resume:
        model = LlamaForCausalLM.from_pretrained(settings.resume, dtype=torch.float32)
        progress.copied, progress.simple = len(settings.copying), False
    else:
        model = initialise_model(make_config(tokenizer), settings.seed)
    model.train()
    optims = make_optimizers(model, settings)
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(o, lambda s: settings.rate * learning_rate_factor(s, settings.steps))
        for o in optims
    ]
    while progress.step < settings.steps:
        batch, documents = make_next_batch(rng, tokenizer, settings, progress)
        logits, targets, answer = compute_logits(model, batch)
        losses = cross_entropy(logits, targets, reduction="none")
        loss = losses[answer >= 0].mean()
        if (answer < 0).any():
            loss = loss + settings.language_weight * losses[answer < 0].mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optim, schedule in zip(optims, schedules, strict=True):
            optim.step()
            schedule.step()
            optim.zero_grad()
        progress.tokens += batch.ids.numel()
        loss_sum += loss.item()
        update_progress(progress, settings, documents, find_exact_matches(logits, targets, answer).mean().item())
        if progress.step % 50 == 0:
            curve.append({**asdict(progress), "loss": round(loss_sum / 50, 4), "seconds": round(time.time() - began)})
            loss_sum = 0.0
            print(json.dumps(curve[-1]), flush=True)
        if progress.step % max(1, settings.steps // 10) == 0:
            save_model(model, tokenizer, out)
    save_model(model, tokenizer, out)
    record = {"settings": asdict(settings), "threads": torch.get_num_threads(), "torch": torch.__version__}
    record |= {"parameters": model.num_parameters(), "tokens": progress.tokens, "curve": curve}
    record |= {"seconds": round(time.time() - began), "copying_steps": progress.copied_steps}
    (out / "training.json").write_text(json.dumps(record, indent=1) + "\n")
    model.eval()
    return model


def accuracy_by_position(lm: DebiasedLM, task: TinyQA, batch_size: int = 10) -> dict[int, float]:
    """Return the plain model's accuracy with the gold document at each position, counted from 1."""
    cases = list(task.cases())
    scores: dict[int, list[float]] = defaultdict(list)
    for case, answer in zip(cases, task.answers(lm, cases, NoMethod(), batch_size), strict=True):
        assert case.gold_position is not None
        scores[case.gold_position + 1].append(task.score(case, answer.prediction))
    return {position: fmean(at_position) for position, at_position in sorted(scores.items())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--seed", type=int, default=TrainingSettings.seed)
    parser.add_argument("--steps", type=int, default=TrainingSettings.steps)
    parser.add_argument("--positions", choices=("ends", "uniform"), default=TrainingSettings.positions)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--resume", help="folder of a model that has finished the first lessons")
    parser.add_argument(
        "--first-documents", type=int, default=TrainingSettings.first_documents, help="maximum of passages at first"
    )
    parser.add_argument("--contradicted", action="store_true", help="add middle passages that contradict the ends")
    parser.add_argument("--rate", type=float, default=TrainingSettings.rate, help="factor of the learning rates")
    arguments = parser.parse_args()
    options = vars(arguments)
    out, threads = options.pop("out"), options.pop("threads")
    torch.set_num_threads(threads)
    model = train(TrainingSettings(**options), out)
    record = json.loads((out / "training.json").read_text())
    lm = DebiasedLM(model, tokenizers.build_tokenizer(), method="none")
    record["evaluation"] = [
        {"documents": n, "positions": accuracy_by_position(lm, task)}
        for n in (10, 20)
        for task in [TinyQA(documents=(n,), positions=tuple(range(0, n, 3)), limit=50)]
    ]
    (out / "training.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
