"""Time and memory of methods when they answer given prompts, beside the plain model's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ragbias.evaluation.cost.measuring import Spread, figures, interleaved, now, peak_bytes
from ragbias.lm import DebiasedLM
from ragbias.methods import Method
from ragbias.prompt import Prompt

DECODED = 8  # tokens after the first one, in each round


@dataclass(frozen=True)
class GenerationCost:
    """The cost of one method; each ``(median, lowest, highest)`` over the rounds.

    Attributes:
        prefill_seconds: until the first token, with all work of the method before it.
        decode_seconds: for each token after it.
        peak_bytes: the most memory in use at once, beside the model.
        prefill_ratio, decode_ratio, peak_ratio: to ``none`` on the same prompt in the same round.
    """

    prefill_seconds: Spread
    decode_seconds: Spread
    peak_bytes: Spread
    prefill_ratio: Spread
    decode_ratio: Spread
    peak_ratio: Spread

    def as_dict(self) -> dict[str, list[float]]:
        return {name: list(spread) for name, spread in asdict(self).items()}


def measure_costs(
    lm: DebiasedLM, prompts: Sequence[str | Prompt], methods: Mapping[str, Method], rounds: int = 5
) -> dict[str, GenerationCost]:
    """The cost of each method by its label, greedily, on one prompt after the other.

    Args:
        prompts: ``DECODED`` tokens and one more fit into the model's window after each.
        methods: ``none`` runs beside them, whether it is among them or not.
        rounds: counted ones; a round before them warms up. Memory does not vary and is measured in one more.
    """
    chosen = [prompts[index % len(prompts)] for index in range(rounds)]
    times = interleaved(methods, [chosen[0], *chosen], lambda prompt, method: _times(lm, prompt, method))

    def peak(prompt: str | Prompt, method: Method) -> tuple[float]:
        return (peak_bytes(lm.model.device, lambda: _generate(lm, prompt, method)),)

    peaks = interleaved(methods, chosen[:1], peak)
    found: dict[str, GenerationCost] = {}
    for label in methods:
        spreads = [figures(times, label, 0, 1), figures(times, label, 1, 1), figures(peaks, label, 0, 0)]
        found[label] = GenerationCost(*(own for own, _ in spreads), *(ratio for _, ratio in spreads))
    return found


def _generate(lm: DebiasedLM, prompt: str | Prompt, method: Method) -> None:
    lm.generate(prompt, method=method, max_new_tokens=DECODED + 1, min_new_tokens=DECODED + 1)


def _times(lm: DebiasedLM, prompt: str | Prompt, method: Method) -> tuple[float, float]:
    """Seconds of the prefill and of one token after it.

    Decoding lasts from the end of each forward pass to the end of the next, where that has one token. All else counts
    as prefill: what a method runs before and between, and a vote afterwards.
    """
    device, decoding = lm.model.device, 0.0
    begin = last = now(device)

    def hook(module: Any, arguments: Any, named: dict[str, Any], output: Any) -> None:
        nonlocal decoding, last
        end = now(device)
        ids = arguments[0] if arguments else named["input_ids"]
        if ids.shape[1] == 1:
            decoding += end - last
        last = end

    attached = lm.model.register_forward_hook(hook, with_kwargs=True)
    try:
        begin = now(device)
        _generate(lm, prompt, method)
        total = now(device) - begin
    finally:
        attached.remove()
    return total - decoding, decoding / DECODED
