"""The arguments of a generation: their types and ranges, and what ``model.generate`` is told."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from torch import Tensor
from transformers import GenerationConfig
from transformers.generation.configuration_utils import BaseWatermarkingConfig
from typing_extensions import TypedDict

from ragbias.display import did_you_mean
from ragbias.errors import ArgumentError, WrongTypeError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from ragbias.methods import Method


class SamplingArguments(TypedDict, total=False):
    """How tokens are chosen, as every framework's users know it; ``None`` counts as not given."""

    max_new_tokens: int
    """The most tokens an answer may have, >= 1; 256 by default, less where the model's window ends."""
    temperature: float | None
    """>= 0; 0 is greedy, and so is an answer without a temperature."""
    top_k: int | None
    """Sample from the ``top_k`` most probable tokens only, >= 1."""
    top_p: float | None
    """Sample from the most probable tokens whose probabilities add up to ``top_p`` only, > 0 and <= 1."""
    seed: int | None
    """Makes sampling repeatable, whatever runs beside it; a whole number of 64 bits."""
    repetition_penalty: float | None
    """Divides the logits of tokens that occur in the prompt or answer already, > 0; above 1 against repetitions."""


class DecodingArguments(SamplingArguments, total=False):
    """The above and what transformers' ``model.generate`` takes besides; token ids are the tokenizer's."""

    stop: str | Sequence[str] | None
    """Strings that end the answer and are not part of it."""
    do_sample: bool | None
    """``True`` without a temperature means a temperature of 1.0; ``False`` means greedy, whatever the temperature."""
    min_new_tokens: int | None
    """The fewest tokens an answer has, >= 0: until then nothing but a stop string ends it."""
    max_time: float | None
    """Seconds after which an answer ends where it is, > 0."""
    no_repeat_ngram_size: int | None
    """No sequence of so many tokens occurs twice in prompt and answer, >= 1; 0 allows all. Above 1 not with a
    method that is invariant inside the model, as sequences reach across the borders of documents."""
    bad_words_ids: Sequence[Sequence[int]] | None
    """Sequences of token ids that are never generated."""
    suppress_tokens: Sequence[int] | None
    """Token ids that are never generated."""
    begin_suppress_tokens: Sequence[int] | None
    """Token ids that the answer does not begin with."""
    sequence_bias: Mapping[tuple[int, ...], float] | Sequence[tuple[Sequence[int], float]] | None
    """What is added to the logit of the last token of each sequence of token ids, where the others precede it."""
    exponential_decay_length_penalty: tuple[int, float] | None
    """``(start, factor)``: after ``start`` new tokens each makes the end likelier, if the factor is > 1."""
    prefix_allowed_tokens_fn: Callable[[int, Tensor], Sequence[int]] | None
    """From a sequence's index in the batch and its token ids ``[T]`` to the ids that may come next."""
    watermarking_config: Mapping[str, Any] | BaseWatermarkingConfig | None
    """A watermark for the answer, as transformers has it."""


class GenerationArguments(DecodingArguments, total=False):
    """The keyword arguments of ``DebiasedLM.generate``, ``stream`` and ``batch`` that concern generation."""

    stop_token_ids: Sequence[int]
    """Tokens that end the answer, beside the model's own."""
    logprobs: bool
    """Give ``Generation.logprobs``."""
    keep_special: Sequence[str]
    """Special tokens to leave in the text, e.g. ``["[TOOL_CALLS]"]``; all others are removed."""


KNOWN = frozenset(GenerationArguments.__annotations__)
SETTLED = {  # arguments of ``model.generate`` that are settled here, or would fail or be ignored
    "assistant_model", "attention_mask", "cache_implementation", "constraints", "dola_layers", "eos_token_id",
    "epsilon_cutoff", "eta_cutoff", "force_words_ids", "generation_config", "guidance_scale", "input_ids",
    "is_assistant", "logits_processor", "max_length", "min_p", "num_beam_groups", "num_beams", "num_return_sequences",
    "output_attentions", "output_hidden_states", "output_logits", "output_scores", "pad_token_id", "past_key_values",
    "penalty_alpha", "prefill_chunk_size", "prompt_lookup_num_tokens", "return_dict_in_generate", "stop_strings",
    "stopping_criteria", "streamer", "token_healing", "top_h", "typical_p", "use_cache",
}  # fmt: skip

NUMBERS: dict[str, tuple[type, str, Callable[[Any], bool]]] = {
    "max_new_tokens": (Integral, "a whole number >= 1", lambda value: value >= 1),
    "max_tokens": (Integral, "a whole number >= 1", lambda value: value >= 1),  # the frameworks' name for it
    "min_new_tokens": (Integral, "a whole number >= 0", lambda value: value >= 0),
    "temperature": (Real, "a number >= 0 (0 is greedy)", lambda value: 0 <= value < math.inf),
    "top_k": (Integral, "a whole number >= 1", lambda value: value >= 1),
    "top_p": (Real, "a number > 0 and <= 1", lambda value: 0 < value <= 1),
    "repetition_penalty": (Real, "a number > 0", lambda value: 0 < value < math.inf),
    "max_time": (Real, "a number of seconds > 0", lambda value: value > 0),
    "no_repeat_ngram_size": (Integral, "a whole number >= 0", lambda value: value >= 0),
    "seed": (Integral, "a whole number of 64 bits", lambda value: -(2**63) <= value < 2**64),
}
_DEFAULTS = GenerationConfig()  # its fields are arguments of ``model.generate`` as well
SWITCHES = ("do_sample", "logprobs")


def _are_ids(value: Any) -> bool:
    ids = isinstance(value, Collection) and not isinstance(value, (str, bytes, Mapping))
    return ids and all(isinstance(each, Integral) and not isinstance(each, bool) for each in value)


def _are_texts(value: Any) -> bool:
    return isinstance(value, Collection) and all(isinstance(each, str) for each in value)


OBJECTS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("stop_token_ids", "suppress_tokens", "begin_suppress_tokens"), ("a list of token ids", _are_ids)),
    "bad_words_ids": (
        "a list of lists of token ids",
        lambda value: isinstance(value, Collection) and len(value) > 0 and all(map(_are_ids, value)),
    ),
    "sequence_bias": (
        "a dict from tuples of token ids to numbers, or a list of such pairs",
        lambda value: (
            isinstance(value, (Mapping, list, tuple))
            and len(value) > 0
            and all(isinstance(each, (list, tuple)) for each in value)
        ),
    ),
    "keep_special": ("a list of special tokens, as text", _are_texts),
    "prefix_allowed_tokens_fn": ("a function of a sequence's index in the batch and its token ids", callable),
    "watermarking_config": (
        "a dict or a transformers.WatermarkingConfig",
        lambda value: isinstance(value, (Mapping, BaseWatermarkingConfig)),
    ),
    "exponential_decay_length_penalty": (
        "a pair (start, factor) of a whole number and a number",
        lambda value: (
            isinstance(value, (list, tuple))
            and len(value) == 2
            and isinstance(value[0], Integral)
            and isinstance(value[1], Real)
        ),
    ),
}


_INTERNAL = ("cancelled", "on_tokens")  # of the callers here


def check_names(arguments: Mapping[str, Any]) -> None:
    """Raise ``ArgumentError`` for a name that neither this module nor ``model.generate`` knows."""
    if unknown := [
        name
        for name in arguments
        if not (name in KNOWN or name in _INTERNAL or name in vars(_DEFAULTS) or name in SETTLED)
    ]:
        hint = did_you_mean(unknown[0], KNOWN)
        raise ArgumentError(f"unknown argument {unknown[0]!r}; {hint}arguments: {', '.join(sorted(KNOWN))}")


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """Check the types and ranges of those that are known here; ``None`` counts as not given.

    Raises:
        WrongTypeError: a value is of the wrong type.
        ArgumentError: a value is out of range, or not the caller's to set.
    """
    if refused := SETTLED & arguments.keys():
        raise ArgumentError(
            f"{', '.join(sorted(refused))}: not an argument here, DebiasedLM settles it itself; leave it out"
        )
    for name, value in arguments.items():
        if value is None:
            continue
        if name in NUMBERS:
            kind, expected, fits = NUMBERS[name]
            if isinstance(value, bool) or not isinstance(value, kind):
                raise WrongTypeError(f"{name}={value!r}; expected {expected}")
            if not fits(value):
                raise ArgumentError(f"{name}={value!r}; expected {expected}")
        elif name in SWITCHES and not isinstance(value, bool):
            raise WrongTypeError(f"{name}={value!r}; expected True or False")
        elif name in OBJECTS:
            expected, is_one = OBJECTS[name]
            if not is_one(value):
                raise WrongTypeError(f"{name}={value!r}; expected {expected}")
        elif name == "stop":
            _check_stop(value)


def check_order_free(method: Method, suffix: int, arguments: Mapping[str, Any]) -> None:
    """Refuse, for a method whose answers do not depend on the order of the documents, what would bring the order back.

    Args:
        method: that runs.
        suffix: number of tokens after the documents.

    Raises:
        ArgumentError: an argument looks at sequences of tokens that reach across the borders of documents.
    """
    if not (method.invariant and method.acts_on == "attention"):
        return  # an order that is settled before the model runs is the same for all of them
    for name in ("no_repeat_ngram_size", "encoder_no_repeat_ngram_size"):
        if (arguments.get(name) or 0) > 1:
            raise ArgumentError(
                f"{name}={arguments[name]!r} with {method.name}: sequences of tokens reach across the borders of "
                "documents, so the answer would depend on their order again; leave it out, or use repetition_penalty, "
                "which looks at single tokens"
            )
    for name in ("bad_words_ids", "sequence_bias"):
        given = arguments.get(name) or ()
        ids = [each[0] if name == "sequence_bias" and not isinstance(given, Mapping) else each for each in given]
        if any(len(each) - 1 > suffix for each in ids):
            raise ArgumentError(
                f"{name} with {method.name}: a sequence of {max(map(len, ids))} token ids reaches over the {suffix} "
                "after the documents into them, so the answer would depend on their order again; give shorter sequences"
            )


def _check_stop(stop: Any) -> None:
    words = [stop] if isinstance(stop, str) else stop
    if not isinstance(words, Sequence) or not all(isinstance(word, str) for word in words):
        raise WrongTypeError(f"stop={stop!r}; expected a string or a list of them, as a stop string is text")
    if not all(words):
        raise ArgumentError(f"stop={stop!r}; a stop string is not empty")


def generation_config(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, new_tokens: int, stop_token_ids: Sequence[int]
) -> tuple[GenerationConfig, list[int]]:
    """The model's own configuration without its sampling, and what ends an answer: its own tokens and those given."""
    config = copy.deepcopy(model.generation_config)
    eos = config.eos_token_id if config.eos_token_id is not None else tokenizer.eos_token_id
    eos_list = [*(eos if isinstance(eos, list) else [] if eos is None else [eos]), *map(int, stop_token_ids)]
    config.update(num_beams=1, do_sample=False, temperature=None, top_k=None, top_p=None, max_length=None)
    config.update(eos_token_id=eos_list or None, pad_token_id=pad_token(tokenizer), max_new_tokens=new_tokens)
    return config, eos_list


def pad_token(tokenizer: PreTrainedTokenizerBase) -> int:
    """The id to pad with; it is masked, so any will do where the tokenizer has none."""
    for token in (tokenizer.pad_token_id, tokenizer.eos_token_id):
        if token is not None:
            return int(token)
    return 0
