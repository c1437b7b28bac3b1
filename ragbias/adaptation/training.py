"""The training loop of a reader adapter. It resumes from a checkpoint, if there is one."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from ragbias.adaptation.settings import AdaptSettings
from ragbias.adaptation.teacher import Lesson
from ragbias.binding.architectures import KV_CACHE
from ragbias.cache import DocumentCache
from ragbias.errors import MethodError, ReaderError, find_memory_error, first_line
from ragbias.files import replacing
from ragbias.generation.attaching import LoadedModel, attached_batch
from ragbias.generation.decoding import padded, sequence_logprobs
from ragbias.generation.scoring import fuse_logits
from ragbias.lm import DebiasedLM
from ragbias.methods import JointMethod, Method, NoMethod
from ragbias.methods.segments import SegmentMethod
from ragbias.prompt import TokenisedPrompt
from ragbias.readers import Lora, target_layers

WARM_UP = 20  # number of steps in which the learning rate increases, but at most a tenth of all steps
CLIP = 1.0  # maximum norm of the gradient
BACKEND = "torch"  # the other backends compute no gradients
RESTART = "restart=True (--restart on the command line), which deletes it"


def dtype_of(name: str) -> torch.dtype | str:
    """Return the dtype for training. ``"auto"`` is bfloat16 if the hardware supports it, otherwise float32."""
    if name != "auto":
        return name
    native = torch.accelerator.is_available() or torch.cpu._is_avx512_bf16_supported()
    return torch.bfloat16 if native else torch.float32


class Reader(nn.Module):
    """The weights of a reader adapter, in float32. ``lora`` applies them to the model."""

    def __init__(self, lm: DebiasedLM, rank: int, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        layers = target_layers(lm.model)
        self.paths = list(layers)
        self.rank = rank
        self.weights = nn.ParameterList()  # A and B of the first layer, A and B of the second, and so on
        for layer in layers.values():
            bound = 1 / math.sqrt(layer.in_features)
            down = torch.empty(rank, layer.in_features).uniform_(-bound, bound, generator=generator)
            up = torch.zeros(layer.out_features, rank)
            self.weights.extend(half.to(layer.weight.device) for half in (down, up))

    @property
    def lora(self) -> Lora:
        pairs = zip(self.weights[::2], self.weights[1::2], strict=True)
        return Lora(dict(zip(self.paths, pairs, strict=True)), scaling=1.0)


def student_logits(
    lm: DebiasedLM, method: Method, lora: Lora, prompt: TokenisedPrompt, target: Sequence[int], cache: DocumentCache
) -> Tensor:
    """Return logits ``[len(target), V]`` that predict the target, with gradients for the weights of ``lora``.

    Most methods need two passes. The first pass ends one token after the documents and computes no gradients. The
    second pass runs the remaining tokens and computes gradients.
    """
    loaded = LoadedModel(lm.model, lm.tokenizer, BACKEND, cache)
    if isinstance(method, JointMethod):
        return _joint_logits(loaded, lm.name, method, lora, prompt, target)
    ids = torch.tensor([[*prompt.ids, *target[:-1]]], device=lm.model.device)
    with attached_batch(loaded, method, [prompt], [prompt.spans], lora=lora) as start:
        states = start.cache
        if states is None and len(prompt.suffix) > 1 and isinstance(method, SegmentMethod | NoMethod):
            begin = prompt.spans[-1][1] + 1  # at least one token must follow the documents in their pass
            with torch.no_grad():
                states = lm.model(ids[:, :begin], use_cache=True, logits_to_keep=1)[KV_CACHE]
        seen = 0 if states is None else states.get_seq_length()
        output = lm.model(ids[:, seen:], use_cache=True, logits_to_keep=len(target), **{KV_CACHE: states})
    logits: Tensor = output.logits[0]
    return logits


def _joint_logits(
    loaded: LoadedModel, name: str, method: JointMethod, lora: Lora, prompt: TokenisedPrompt, target: Sequence[int]
) -> Tensor:
    model = loaded.model
    prompts = [prompt.reordered(indices) for indices in method.prompts(prompt.documents)]
    _, _, spans = padded(prompts, 0, model.device)
    after = torch.tensor([*prompt.suffix, *target], device=model.device)
    with attached_batch(loaded, method, prompts, spans, lora=lora) as start:
        if start.cache is None:
            raise MethodError(
                f"{method.name}: no reader can be trained for {name!r}, because its rotary frequencies depend on "
                "the prompt's length; use another model"
            )
        ids = after[:-1].expand(len(prompts), -1)
        logits = model(ids, use_cache=True, **{KV_CACHE: start.cache}).logits.float()
    suffix, answer = logits.split([len(prompt.suffix) - 1, len(target)], dim=1)
    likelihoods = sequence_logprobs(suffix, after[1 : len(prompt.suffix)])
    return fuse_logits(method, likelihoods, answer, target)


def rate(step: int, settings: AdaptSettings) -> float:
    """Return the learning rate of a step, counted from 0."""
    rising = (step + 1) / max(1, min(WARM_UP, settings.steps // 10))
    return settings.learning_rate * min(1.0, rising) * max(0.02, 1 - step / settings.steps)


def loss_of(lesson: Lesson, logits: Tensor, objective: str) -> Tensor:
    """Return the loss of an example: divergence from the teacher, cross-entropy of the answer, or their sum."""
    loss = logits.new_zeros((), dtype=torch.float32)
    if objective in ("distil", "both"):
        loss = loss + lesson.divergence(logits)
    if objective in ("labels", "both") and lesson.labelled:
        loss = loss + lesson.cross_entropy(logits)
    return loss


def train(
    lm: DebiasedLM,
    method: Method,
    reader: Reader,
    prompts: Sequence[TokenisedPrompt],
    lessons: Sequence[Lesson],
    settings: AdaptSettings,
    cache: DocumentCache,
    checkpoint: Path,
    every: int,
    after_step: Callable[[int, float], None],
) -> None:
    """Train ``reader`` in place. Write ``checkpoint`` at each multiple of ``every`` steps and at the end.

    ``after_step`` receives the number of finished steps and the loss.
    """
    optimiser = torch.optim.AdamW(reader.parameters(), lr=settings.learning_rate, weight_decay=0.0)
    done = _restore(reader, optimiser, checkpoint)
    lora = reader.lora
    with _frozen(lm.model):
        for step in range(done, settings.steps):
            for group in optimiser.param_groups:
                group["lr"] = rate(step, settings)
            total = 0.0
            for index in _batch(step, len(lessons), settings):
                logits = student_logits(lm, method, lora, prompts[index], lessons[index].target.tolist(), cache)
                loss = loss_of(lessons[index], logits, settings.objective) / settings.batch
                loss.backward()
                total += loss.item()
            nn.utils.clip_grad_norm_(reader.parameters(), CLIP)
            optimiser.step()
            optimiser.zero_grad()
            if (step + 1) % every == 0 or step + 1 == settings.steps:
                state = {"reader": reader.state_dict(), "optimiser": optimiser.state_dict(), "step": step + 1}
                with replacing(checkpoint) as temporary:
                    torch.save(state, temporary)
            after_step(step + 1, total)


@contextmanager
def _frozen(model: nn.Module) -> Iterator[None]:
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    model.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trainable:
            parameter.requires_grad_(True)


def _batch(step: int, count: int, settings: AdaptSettings) -> list[int]:
    """Return the indices of the examples in a step. Each epoch contains every example once, in a different order."""
    chosen = []
    for position in range(step * settings.batch, (step + 1) * settings.batch):
        epoch, offset = divmod(position, count)
        chosen.append(random.Random(f"{settings.seed} {epoch}").sample(range(count), count)[offset])
    return chosen


def _restore(reader: Reader, optimiser: torch.optim.Optimizer, file: Path) -> int:
    """Load the checkpoint, if there is one, and return the number of finished steps."""
    if not file.exists():
        return 0
    with damage_errors(file):
        state = torch.load(file, map_location="cpu", weights_only=True)
        reader.load_state_dict(state["reader"])
        optimiser.load_state_dict(state["optimiser"])
        return int(state["step"])


@contextmanager
def damage_errors(file: Path) -> Iterator[None]:
    """Convert errors in reading a file of an unfinished training to ``ReaderError``."""
    try:
        yield
    except Exception as error:  # damaged files raise errors of any class
        if find_memory_error(error):
            raise
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise ReaderError(f"{str(file)!r} of an unfinished training is damaged ({reason}); add {RESTART}") from error
