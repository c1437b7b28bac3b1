"""What a method costs: prefill and decoding against plain sdpa, interleaved in one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from ragbias.binding import debias
from ragbias.methods import SIW, ChannelScaling, Method, MsPoE, NoMethod, get

LLAMA_1B: dict[str, Any] = dict(
    hidden_size=2048, intermediate_size=8192, num_attention_heads=32, num_key_value_heads=8, head_dim=64
)


@dataclass(frozen=True)
class Cost:
    """Times of one method and their ratios to plain attention in the same round; each ``(median, lowest, highest)``.

    Attributes:
        prefill_seconds, decode_seconds: for the prompt, and for one token after it.
    """

    prefill_seconds: float
    decode_seconds: float
    prefill_ratio: tuple[float, float, float]
    decode_ratio: tuple[float, float, float]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def random_llama(layers: int = 2, vocabulary: int = 4096, **shape: Any) -> PreTrainedModel:
    """A Llama of few layers at the shape of a 1B model, with random weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary, num_hidden_layers=layers, max_position_embeddings=131072, **{**LLAMA_1B, **shape}
    )
    model: PreTrainedModel = LlamaForCausalLM(config)
    model.eval()
    return model


def in_every_layer(name: str) -> Method:
    """The method of this name, acting in every layer, so that a model of few layers shows its cost."""
    everywhere = {
        ChannelScaling.name: ChannelScaling(0, 0.0, layers=None),
        MsPoE.name: MsPoE(layers=None),
        SIW.name: SIW(layers=(0, None)),
    }
    return everywhere.get(name) or get(name)


@torch.no_grad()
def measure(
    model: PreTrainedModel,
    methods: Sequence[Method],
    documents: int = 20,
    document_tokens: int = 100,
    steps: int = 8,
    rounds: int = 5,
    progress: Callable[[str], None] = lambda name: None,
) -> dict[str, Cost]:
    """Time the methods, and ``none`` beside them in each round, on random tokens.

    Args:
        documents, document_tokens: shape of the prompt; 20 tokens stand before and 30 after the documents.
        steps: decoded tokens per round.
        rounds: repetitions; a first one is not counted.
        progress: called with the method's name after each timing, ``(rounds + 1) * (len(methods) + 1)`` times.
    """
    end = 20 + documents * document_tokens
    spans = [(begin, begin + document_tokens) for begin in range(20, end, document_tokens)]
    ids = torch.randint(3, model.config.vocab_size, (1, end + 30), generator=torch.Generator().manual_seed(0))
    ids = ids.to(model.device)
    contestants = [NoMethod(), *methods]
    times: dict[str, list[tuple[float, float]]] = {method.name: [] for method in contestants}
    for round_ in range(rounds + 1):
        for method in contestants:
            taken = _once(model, method, ids, spans, steps)
            if round_:
                times[method.name].append(taken)
            progress(method.name)
    base = times[NoMethod.name]
    return {name: _cost(taken, base) for name, taken in times.items()}


def _once(
    model: PreTrainedModel, method: Method, ids: torch.Tensor, spans: list[tuple[int, int]], steps: int
) -> tuple[float, float]:
    """Seconds of the prefill and of one decoding step."""
    with debias(model, method, spans):
        begin = _now(model)
        output = model(ids, use_cache=True, logits_to_keep=1)
        middle = _now(model)
        for _ in range(steps):
            output = model(ids[:, -1:], past_key_values=output.past_key_values, use_cache=True)
        return middle - begin, (_now(model) - middle) / steps


def _now(model: PreTrainedModel) -> float:
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)
    return time.perf_counter()


def _cost(taken: list[tuple[float, float]], base: list[tuple[float, float]]) -> Cost:
    def spread(index: int) -> tuple[float, float, float]:
        ratios = [own[index] / plain[index] for own, plain in zip(taken, base, strict=True)]
        return statistics.median(ratios), min(ratios), max(ratios)

    return Cost(
        statistics.median(prefill for prefill, _ in taken),
        statistics.median(decode for _, decode in taken),
        spread(0),
        spread(1),
    )
