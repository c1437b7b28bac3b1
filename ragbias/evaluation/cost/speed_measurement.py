"""``ragbias speed`` as a function: settings in, everything needed to tell and to repeat it out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.progress import Progress
from transformers import PreTrainedConfig, PreTrainedModel

from ragbias import checks as bounds
from ragbias.attention.backends import check_backend
from ragbias.binding import backend_of
from ragbias.binding.architectures import window_of
from ragbias.checks import check_choice, check_whole_between
from ragbias.errors import ArgumentError, MethodError, PromptTooLongError
from ragbias.evaluation.cost import model_shapes, random_prompts
from ragbias.evaluation.cost.arithmetic import lengths_of
from ragbias.evaluation.cost.forward_cost import ForwardCost, measure
from ragbias.evaluation.cost.machine import all_versions, machine
from ragbias.evaluation.cost.random_prompts import PREFIX, SUFFIX
from ragbias.methods import Method, NoMethod
from ragbias.methods.parse import parse_methods


@dataclass(frozen=True)
class SpeedSettings:
    """What to measure, and on what.

    Attributes:
        methods: names separated by commas; without parameters a method acts in every layer.
        shape: of a model with random weights and ``layers`` layers; ``"1b"`` unless there is a ``model``.
        model: ``"tiny"``, a hub name, a folder; or a config file, whose model gets random weights.
        layers: 2 by default; a ``model`` has its own.
        documents: numbers of documents to measure at, one after the other.
        tokens: of each document, 100 by default; or ``total_tokens`` of all documents together.
        ragged: draw the documents' lengths between half and one and a half times that.
        batch: prompts that run together, each with documents of its own.
        rounds, steps: see ``measure``.
        dtype: of the weights; float32 by default, a loaded model's own.
        backend: what computes the methods' attention, see ``ragbias.debias``.
    """

    methods: str = "pine,channel-scaling"
    shape: str | None = None
    model: str | None = None
    layers: int | None = None
    documents: tuple[int, ...] = (20,)
    tokens: int | None = None
    total_tokens: int | None = None
    ragged: bool = False
    batch: int = 1
    rounds: int = 5
    steps: int = 8
    dtype: str | None = None
    device: str = "cpu"
    backend: str = "auto"

    def __post_init__(self) -> None:
        for name in ("layers", "tokens", "total_tokens", "batch", "rounds", "steps"):
            if getattr(self, name) is not None:
                check_whole_between(name, getattr(self, name), getattr(bounds, name.upper()), ArgumentError)
        for count in self.documents:
            check_whole_between("documents", count, bounds.DOCUMENTS, ArgumentError)
        check_backend(self.backend)
        _check_choice("shape", self.shape, model_shapes.SHAPES)
        _check_choice("dtype", self.dtype, model_shapes.DTYPES)
        _check_choice("device", self.device, ("cpu", "cuda"))
        if self.model is not None and (self.shape is not None or self.layers is not None):
            raise ArgumentError(
                "shape and layers are of a built-in model; a model of your own has its own, leave one out"
            )
        if self.tokens is not None and self.total_tokens is not None:
            raise ArgumentError("tokens (of each document) and total_tokens (of all) are both given; give one of them")
        if self.total_tokens is not None and self.total_tokens < max(self.documents):
            raise ArgumentError(
                f"total_tokens={self.total_tokens} for {max(self.documents)} documents; expected at least one for each"
            )
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ArgumentError("device 'cuda': this torch sees no CUDA device; use 'cpu'")
        if self.model is None:  # written down as it runs
            object.__setattr__(self, "shape", self.shape or "1b")
            object.__setattr__(self, "layers", self.layers or 2)
        if self.total_tokens is None:
            object.__setattr__(self, "tokens", self.tokens or 100)


def run(settings: SpeedSettings, progress: Progress) -> dict[str, Any]:
    """Measure at each number of documents.

    Returns:
        plain data: ``settings``, ``model``, ``versions``, ``machine``; and ``results``, one for each number of
        documents: ``documents``, ``lengths`` by sequence, ``prefix``, ``suffix``, and ``methods``: a ``ForwardCost`` by
        label.

    Raises:
        UnknownMethodError, MethodError: no such method, or none that runs inside the model.
        PromptTooLongError: prompt and decoded tokens do not fit into the model's window.
        ArgumentError: there is no such config file.
    """
    methods = parse_methods(settings.methods, settings.model, model_shapes.in_every_layer)
    config = config_for(settings)
    for label, method in methods.items():
        check_method(label, method, config)
    device = torch.device(settings.device)
    for count in settings.documents:
        check_length(count, settings.total_tokens or count * (settings.tokens or 1), settings.steps, config)
    batches = [_batch(settings, count, config, device) for count in settings.documents]
    task = progress.add_task("building the model", total=len(batches) * (settings.rounds + 2) * _runs(methods))
    model = built(settings, config, device)
    backend_of(model, settings.backend)  # raises where this model cannot have it
    results = []
    for count, batch in zip(settings.documents, batches, strict=True):
        progress.update(task, description=f"{count} documents")
        costs = measure(
            model, methods, batch, settings.steps, settings.rounds, settings.backend, lambda: progress.advance(task)
        )
        results.append(_result(count, batch, costs))
    return {
        "settings": asdict(settings),
        "model": described(settings, model),
        "versions": all_versions(),
        "machine": machine(),
        "results": results,
    }


def _check_choice(name: str, value: str | None, choices: Iterable[str]) -> None:
    if value is not None:
        check_choice(name, value, tuple(choices))


def config_for(settings: SpeedSettings) -> PreTrainedConfig:
    if settings.model is not None:
        return model_shapes.config_of(settings.model)
    assert settings.shape is not None and settings.layers is not None  # settled with the settings
    return model_shapes.shaped(settings.shape, settings.layers)


def _runs(methods: Mapping[str, Method]) -> int:
    return len({NoMethod.name, *methods})


def check_method(label: str, method: Method, config: PreTrainedConfig) -> None:
    if method.acts_on == "nothing":
        return
    if method.acts_on != "attention" or method.selective:
        raise MethodError(
            f"{label} needs whole prompts: it decides before or between passes of the model. `ragbias speed` times "
            "what runs inside one pass; `ragbias bench` measures the cost of every method on a task's prompts"
        )
    text = config.get_text_config()
    method.validate(text.hidden_size, text.num_hidden_layers)


def check_length(count: int, total: int, steps: int, config: PreTrainedConfig, prefix: int = PREFIX) -> None:
    """Raise ``PromptTooLongError`` where ``count`` documents of ``total`` tokens leave no room for ``steps`` more."""
    window, needed = window_of(config), prefix + total + SUFFIX + steps
    if needed > window:
        raise PromptTooLongError(
            f"{count} documents make a prompt that needs {needed} tokens with the {steps} decoded ones, and "
            f"the model's window has {window}; take fewer documents or tokens"
        )


def _batch(
    settings: SpeedSettings, count: int, config: PreTrainedConfig, device: torch.device
) -> random_prompts.PromptBatch:
    lengths = random_prompts.document_lengths(count, settings.tokens, settings.total_tokens)
    return random_prompts.draw(lengths, settings.batch, config.get_text_config().vocab_size, device, settings.ragged)


def built(settings: SpeedSettings, config: PreTrainedConfig, device: torch.device) -> PreTrainedModel:
    if settings.model and not model_shapes.is_config(settings.model):
        return model_shapes.loaded(settings.model, settings.dtype, device)
    return model_shapes.with_random_weights(config, settings.dtype, device)


def described(settings: SpeedSettings, model: PreTrainedModel) -> dict[str, Any]:
    return {
        "name": settings.model or f"{settings.shape} shape, {settings.layers} layers",
        "weights": "random" if not settings.model or model_shapes.is_config(settings.model) else "loaded",
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": torch.cuda.get_device_name(model.device) if model.device.type == "cuda" else "cpu",
        "attention": model.config._attn_implementation,
        "backend": backend_of(model, settings.backend),
        "config": model.config.to_dict(),
    }


def _result(count: int, batch: random_prompts.PromptBatch, costs: Mapping[str, ForwardCost]) -> dict[str, Any]:
    return {
        "documents": count,
        "lengths": [list(lengths_of(prompt).documents) for prompt in batch.prompts],
        "prefix": PREFIX,
        "suffix": SUFFIX,
        "methods": {label: cost.as_dict() for label, cost in costs.items()},
    }
