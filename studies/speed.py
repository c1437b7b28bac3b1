"""Compare methods with plain attention in time and memory, on random prompts in padded batches.

Methods and plain attention take turns. The limit is the smallest ratio that the arithmetic allows, see
``studies.arithmetic``.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress
from rich.table import Table
from transformers import PreTrainedConfig, PreTrainedModel

from ragbias import debias, limits
from ragbias.attention.primitive import check_backend
from ragbias.binding.architectures import KV_CACHE, window_of
from ragbias.binding.hooks import backend_of
from ragbias.checks import Bounds, check_choice, check_whole_between
from ragbias.cli.terminal import console, progress, quiet_libraries, write_json
from ragbias.errors import ArgumentError, MethodError, PromptTooLongError, RagBiasError
from ragbias.files import writing
from ragbias.methods import DEFAULT_METHOD, AttentionMethod, JointMethod, Method, NoMethod
from ragbias_eval.cost import (
    Spread,
    describe_machine,
    interleave,
    peak_memory,
    spreads,
    synchronized_time,
    versions,
)
from ragbias_eval.report.tables import make_table
from studies import arguments_of
from studies import speed_inputs as inputs
from studies.arithmetic import decode_limit, lengths_of, prefill_limit, shape_of
from studies.scaling_plot import plot_scaling
from studies.speed_inputs import PREFIX, SUFFIX, PromptBatch, draw_prompts

BOUNDS = {
    "layers": Bounds(1, 1_000),
    "tokens": Bounds(1, 1_000_000),
    "total_tokens": Bounds(1, 10_000_000),
    "batch": limits.BATCH,
    "rounds": Bounds(1, 1_000),
    "steps": Bounds(1, 10_000),
}
MIB = 2**20


@dataclass(frozen=True)
class SpeedSettings:
    """Methods, model and prompts to measure.

    Attributes:
        methods: comma-separated names. A method without parameters acts in every layer.
        shape: size of a model with random weights and ``layers`` layers. Default: ``"1b"`` if ``model`` is not set.
        model: ``"tiny"``, a hub name, a folder, or a config file, whose model gets random weights.
        layers: number of layers for a ``shape``. Default: 2.
        documents: numbers of documents, measured one after the other.
        tokens: tokens per document. Default: 100.
        total_tokens: tokens of all documents together, instead of ``tokens``.
        ragged: draw the length of each document between 0.5 and 1.5 times its nominal length.
        batch: number of prompts that run together.
        rounds, steps: see ``measure``.
        dtype: dtype of the weights. Default: as stored, or float32 for random weights.
        backend: attention backend, see ``ragbias.debias``.
    """

    methods: str
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
        for name, bounds in BOUNDS.items():
            if (value := getattr(self, name)) is not None:
                check_whole_between(name, value, bounds, ArgumentError)
        for count in self.documents:
            check_whole_between("documents", count, limits.DOCUMENTS, ArgumentError)
        check_backend(self.backend)
        check_choice("device", self.device, ("cpu", "cuda"))
        if self.shape is not None:
            check_choice("shape", self.shape, tuple(inputs.SHAPES))
        if self.dtype is not None:
            check_choice("dtype", self.dtype, tuple(inputs.DTYPES))
        if self.model is not None and (self.shape is not None or self.layers is not None):
            raise ArgumentError("shape and layers apply to random models, but model is given; leave out one of them")
        if self.tokens is not None and self.total_tokens is not None:
            raise ArgumentError("tokens (of each document) and total_tokens (of all) are both given; give one of them")
        if self.total_tokens is not None and self.total_tokens < max(self.documents):
            raise ArgumentError(
                f"total_tokens={self.total_tokens} for {max(self.documents)} documents; expected at least one for each"
            )
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ArgumentError("device 'cuda': this torch sees no CUDA device; use 'cpu'")
        if self.model is None:  # the results record the values that are used
            object.__setattr__(self, "shape", self.shape or "1b")
            object.__setattr__(self, "layers", self.layers or 2)
        if self.total_tokens is None:
            object.__setattr__(self, "tokens", self.tokens or 100)


@dataclass(frozen=True)
class ForwardCost:
    """Cost of one method: times, and ratios to plain attention in the same round, as ``(median, lowest, highest)``.

    Attributes:
        prefill_seconds: forward pass over the prompts, up to the logits of the first token.
        first_token_seconds: prefill, plus attaching the method and reading the token.
        decode_seconds: decoding of one token per sequence, after the first.
        peak_bytes: peak memory in addition to the model, measured once.
        prefill_limit, decode_limit: smallest possible ratios, see ``studies.arithmetic``; None: unknown.
    """

    prefill_seconds: Spread
    first_token_seconds: Spread
    decode_seconds: Spread
    prefill_ratio: Spread
    first_token_ratio: Spread
    decode_ratio: Spread
    peak_bytes: float
    peak_ratio: float
    prefill_limit: float | None
    decode_limit: float | None


def format_range(spread: Sequence[float]) -> str:
    """Format a median with the lowest and the highest value."""
    median, low, high = spread
    return f"{median:.2f} ({low:.2f}-{high:.2f})"


def run(settings: SpeedSettings, bar: Progress) -> dict[str, Any]:
    """Measure the methods at each number of documents.

    Returns:
        plain data: ``settings``, ``model``, ``versions``, ``machine``, and a list of ``results``. A result has
        ``documents``, ``lengths`` by sequence, ``prefix``, ``suffix``, and ``methods``: a ``ForwardCost`` by label.

    Raises:
        MethodError, PromptTooLongError, ArgumentError: raised before the measurement if possible.
    """
    methods, config = prepare_methods(settings)
    batches = []
    for count in settings.documents:
        lengths = inputs.document_lengths(count, settings.tokens or 0, settings.total_tokens)
        check_length(count, sum(lengths), settings.steps, config)
        vocabulary, device = config.get_text_config().vocab_size, torch.device(settings.device)
        batches.append(draw_prompts(lengths, settings.batch, vocabulary, device, settings.ragged))
    runs = len(batches) * (settings.rounds + 1) * len({NoMethod.name, *methods})
    task = bar.add_task("building the model", total=runs)
    model = build_model(settings, config)
    results = []
    for count, batch in zip(settings.documents, batches, strict=True):
        bar.update(task, description=f"{count} documents")
        costs = measure(
            model, methods, batch, settings.steps, settings.rounds, settings.backend, lambda: bar.advance(task)
        )
        result = {
            "documents": count,
            "lengths": [list(lengths_of(prompt).documents) for prompt in batch.prompts],
            "prefix": PREFIX,
            "suffix": SUFFIX,
            "methods": {label: asdict(cost) for label, cost in costs.items()},
        }
        results.append(result)
    return {"settings": asdict(settings), **describe_conditions(settings, model), "results": results}


def prepare_methods(settings: SpeedSettings, joint: bool = False) -> tuple[dict[str, Method], PreTrainedConfig]:
    """Return the methods by label and the model's config. Refuse methods that need several passes.

    ``joint`` allows methods that run several prompts as one batch.
    """
    methods = inputs.methods_in_every_layer(settings.methods, settings.model)
    if settings.model is None:
        config = inputs.make_config(settings.shape or "", settings.layers or 0)
    else:
        config = inputs.load_config(settings.model)
    text = config.get_text_config()
    for label, method in methods.items():
        if method.is_plain or (joint and isinstance(method, JointMethod)):
            continue
        if not isinstance(method, AttentionMethod) or method.selective:
            raise MethodError(
                f"{label} needs several passes, but this study times single passes; use `ragbias bench`, which "
                "measures the cost of every method on a task's prompts"
            )
        method.validate(text.hidden_size, text.num_hidden_layers)
    return methods, config


def check_length(count: int, total: int, steps: int, config: PreTrainedConfig) -> None:
    """Raise ``PromptTooLongError`` if documents with ``total`` tokens and ``steps`` new tokens exceed the window."""
    window, needed = window_of(config), PREFIX + total + SUFFIX + steps
    if needed > window:
        raise PromptTooLongError(
            f"a prompt with {count} documents and {steps} decoded tokens needs {needed} tokens, but the model's "
            f"window has {window}; use fewer documents or tokens"
        )


def build_model(settings: SpeedSettings, config: PreTrainedConfig) -> PreTrainedModel:
    """Build the model on its device. Raise an error if the backend does not support it."""
    model = inputs.make_model(config, settings.model, settings.dtype, torch.device(settings.device))
    backend_of(model, settings.backend)
    return model


def describe_conditions(settings: SpeedSettings, model: PreTrainedModel) -> dict[str, Any]:
    """Describe the model, the versions and the machine as plain data."""
    described = {
        "name": settings.model or f"{settings.shape} shape, {settings.layers} layers",
        "weights": "random" if not settings.model or inputs.is_config(settings.model) else "loaded",
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": torch.cuda.get_device_name(model.device) if model.device.type == "cuda" else "cpu",
        "attention": model.config._attn_implementation,
        "backend": backend_of(model, settings.backend),
        "config": model.config.to_dict(),
    }
    return {"model": described, "versions": versions(), "machine": describe_machine()}


@torch.no_grad()
def measure(
    model: PreTrainedModel,
    methods: Mapping[str, Method],
    batch: PromptBatch,
    steps: int = 8,
    rounds: int = 5,
    backend: str = "auto",
    progress: Callable[[], None] = lambda: None,
) -> dict[str, ForwardCost]:
    """Measure the cost of each method and of the plain model, which has the label ``none``.

    An extra round before the others measures memory and warms up. ``progress`` is called after each run.
    """
    methods = {NoMethod.name: NoMethod(), **methods}

    def times(batch: PromptBatch, method: Method) -> tuple[float, ...]:
        taken = _measure_times(model, method, batch, steps, backend)
        progress()
        return taken

    def peak(batch: PromptBatch, method: Method) -> tuple[float]:
        return (peak_memory(model.device, lambda: times(batch, method)),)

    peaks = interleave(methods, [batch], peak)
    timed = interleave(methods, [batch] * rounds, times)
    shape, layouts = shape_of(model.config), [lengths_of(prompt) for prompt in batch.prompts]
    costs: dict[str, ForwardCost] = {}
    for label, method in methods.items():
        (prefill, prefill_ratio), (first, first_ratio), (decode, decode_ratio) = (
            spreads(timed, label, index) for index in range(3)
        )
        (highest, *_), (peak_ratio, *_) = spreads(peaks, label, 0)
        required = prefill_limit(shape, layouts, method), decode_limit(shape, layouts, method)
        ratios = prefill_ratio, first_ratio, decode_ratio
        costs[label] = ForwardCost(prefill, first, decode, *ratios, highest, peak_ratio, *required)
    return costs


def _measure_times(
    model: PreTrainedModel, method: Method, batch: PromptBatch, steps: int, backend: str
) -> tuple[float, float, float]:
    """Time the prefill, the first token, and one decoding step, in seconds."""
    begin = synchronized_time(model.device)
    with debias(model, method, batch.spans, backend):
        attached = synchronized_time(model.device)
        output = model(batch.ids, use_cache=True, logits_to_keep=1, **batch.inputs(0))
        prefilled = synchronized_time(model.device)
        token = _next_tokens(output)
        first = synchronized_time(model.device)
        for step in range(1, steps + 1):
            cache = output[KV_CACHE]
            output = model(token, use_cache=True, **{KV_CACHE: cache}, **batch.inputs(step))
            token = _next_tokens(output)
        return prefilled - attached, first - begin, (synchronized_time(model.device) - first) / steps


def _next_tokens(output: Any) -> torch.Tensor:
    """Return the next tokens ``[batch, 1]``. Copy them to the CPU, as generation does."""
    token: torch.Tensor = output.logits[:, -1:].argmax(-1)
    token.tolist()
    return token


def _make_tables(result: Mapping[str, Any]) -> list[Table]:
    """Make two tables that fit a terminal: costs up to the first token, and after the first token."""
    lengths = [length for row in result["lengths"] for length in row]
    of = str(lengths[0]) if len(set(lengths)) == 1 else f"{min(lengths)} to {max(lengths)}"
    title = f"{result['documents']} documents of {of} tokens"
    prompt = make_table(title, "method", "prefill s", "ratio (range)", "limit", "first token s", "ratio")
    after = make_table("", "method", "decode ms", "ratio (range)", "limit", "peak MiB", "ratio")
    for label, cost in result["methods"].items():
        prompt.add_row(
            label,
            f"{cost['prefill_seconds'][0]:.3f}",
            format_range(cost["prefill_ratio"]),
            _format_limit(cost["prefill_limit"]),
            f"{cost['first_token_seconds'][0]:.3f}",
            f"{cost['first_token_ratio'][0]:.2f}",
        )
        after.add_row(
            label,
            f"{1000 * cost['decode_seconds'][0]:.2f}",
            format_range(cost["decode_ratio"]),
            _format_limit(cost["decode_limit"]),
            f"{cost['peak_bytes'] / MIB:.1f}",
            f"{cost['peak_ratio']:.2f}",
        )
    return [prompt, after]


def _format_limit(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def numbers(text: str) -> tuple[int, ...]:
    """Parse an option with whole numbers, such as ``2,20,100``."""
    return tuple(map(int, text.split(",")))


def add_options(parser: ArgumentParser) -> None:
    """Add the options of the model and of the measurement, see ``SpeedSettings``, and ``--json``."""
    parser.add_argument("--shape", help="1b or 8b: a Llama of that shape with random weights; default: 1b")
    parser.add_argument("--model", help="a model's name or folder, or a config.json for random weights")
    parser.add_argument("--layers", type=int, help="layers of a --shape; default: 2")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, after a warm-up round")
    parser.add_argument("--steps", type=int, default=8, help="decoded tokens in each round")
    parser.add_argument("--dtype", help="float32, bfloat16 or float16; default: as stored, else float32")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--backend", default="auto", help="auto, torch, triton or flash")
    parser.add_argument("--json", type=Path, help="also write the results to this file")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = arguments_of(__doc__)
    parser.add_argument(
        "--methods", default=f"{DEFAULT_METHOD},channel-scaling", help="without parameters, methods act in every layer"
    )
    parser.add_argument("--documents", type=numbers, default=(20,), help="numbers of documents, e.g. 2,20,100")
    parser.add_argument("--tokens", type=int, help="tokens per document; default: 100")
    parser.add_argument("--total-tokens", type=int, help="tokens of all documents together, instead of --tokens")
    parser.add_argument("--ragged", action="store_true", help="draw lengths between 0.5 and 1.5 times --tokens")
    parser.add_argument("--batch", type=int, default=1, help="prompts in one padded batch")
    parser.add_argument("--plot", type=Path, help="draw the ratios against the number of documents")
    add_options(parser)
    options = vars(parser.parse_args(arguments))
    plot, out = options.pop("plot"), options.pop("json")
    quiet_libraries()
    try:
        if plot is not None and len(set(options["documents"])) < 2:
            raise ArgumentError("--plot needs several numbers of documents, e.g. --documents 2,20,100")
        settings = SpeedSettings(**options)
        with progress() as bar:
            outcome = run(settings, bar)
    except RagBiasError as error:
        parser.exit(2, f"{error}\n")
    about = outcome["model"]
    console.print(
        f"{about['name']}, {about['weights']} weights, {about['dtype']}, {about['device']}, backend "
        f"{about['backend']}, {outcome['machine']['threads']} threads. Batch of {settings.batch}. Ratios to none in "
        f"the same round: median (range) of {settings.rounds} rounds; limit: the ratio that the arithmetic requires.",
        highlight=False,
    )
    for result in outcome["results"]:
        for table in _make_tables(result):
            console.print()
            console.print(table)
    write_json(outcome, out)
    if plot is not None:
        with writing(plot):
            plot_scaling(outcome, plot)
        console.print(f"Written: {plot}")


if __name__ == "__main__":
    main()
