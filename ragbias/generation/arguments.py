"""Validate the keyword arguments of a generation, and convert them to ``GenerationSettings``."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase, WatermarkingConfig
from transformers.generation.configuration_utils import BaseWatermarkingConfig
from typing_extensions import TypedDict

from ragbias import limits
from ragbias.checks import FLOAT32_MAX, check_whole, is_number, is_whole
from ragbias.display import did_you_mean, shown
from ragbias.errors import ArgumentError, WrongTypeError
from ragbias.methods import AttentionMethod, JointMethod, Method


class SamplingArguments(TypedDict, total=False):
    """Sampling arguments that all integrations accept. ``None`` selects the default."""

    max_new_tokens: int
    """Maximum number of new tokens, >= 1; 256 by default. The model's window limits it further."""
    temperature: float | None
    """Temperature, >= 0. Decoding is greedy with temperature 0 or without a temperature."""
    top_k: int | None
    """Sample only from the ``top_k`` most probable tokens, >= 1."""
    top_p: float | None
    """Sample only from the most probable tokens that together have the probability ``top_p``, > 0 and <= 1."""
    seed: int | None
    """Seed for repeatable sampling, a 64-bit integer. The answer does not depend on other prompts of the batch."""
    repetition_penalty: float | None
    """Penalty for tokens that occur in the prompt or answer, > 0. Values above 1 reduce repetition."""


class DecodingArguments(SamplingArguments, total=False):
    """Sampling arguments, stop strings, and further arguments of transformers' ``model.generate``."""

    stop: str | Sequence[str] | None
    """Strings at which the answer ends. The answer does not include them."""
    do_sample: bool | None
    """``True`` sets a missing temperature to 1.0. ``False`` is greedy and ignores the temperature."""
    min_new_tokens: int | None
    """Minimum number of new tokens, >= 0. A stop string may still end the answer earlier."""
    max_time: float | None
    """Maximum time for an answer in seconds, > 0."""
    no_repeat_ngram_size: int | None
    """Length of token sequences that must not occur twice in prompt and answer; 0 forbids none. Two kinds of methods
    do not support values above 1. In methods that are order-invariant inside the model, sequences would cross document
    borders. In methods with one prompt per document, each prompt would forbid different sequences."""
    bad_words_ids: Sequence[Sequence[int]] | None
    """Sequences of token ids that are never generated."""
    suppress_tokens: Sequence[int] | None
    """Token ids that are never generated."""
    begin_suppress_tokens: Sequence[int] | None
    """Token ids that never begin the answer."""
    sequence_bias: Mapping[tuple[int, ...], float] | Sequence[tuple[Sequence[int], float]] | None
    """A bias for each sequence of token ids. It is added to the last token's logit if the other tokens precede it."""
    exponential_decay_length_penalty: tuple[int, float] | None
    """``(start, factor)``: after ``start`` new tokens, a factor above 1 makes the end of the answer more probable."""
    prefix_allowed_tokens_fn: Callable[[int, Tensor], Sequence[int]] | None
    """Function that returns the allowed next ids. It gets a sequence's index in the batch and its token ids ``[T]``."""
    watermarking_config: Mapping[str, Any] | BaseWatermarkingConfig | None
    """Settings for a watermark in the answer, see ``transformers.WatermarkingConfig``."""


class GenerationArguments(DecodingArguments, total=False):
    """Arguments of ``DebiasedLM.generate``, ``stream`` and ``batch`` that control generation."""

    stop_token_ids: Sequence[int]
    """Tokens that end the answer, in addition to the EOS tokens of the model."""
    logprobs: bool
    """Whether to return ``Generation.logprobs``."""
    keep_special: Sequence[str]
    """Special tokens to keep in the text, e.g. ``["[TOOL_CALLS]"]``. All others are removed."""


SAMPLING = tuple(name for name in SamplingArguments.__annotations__ if name != "max_new_tokens")
KNOWN = frozenset(GenerationArguments.__annotations__)
UNSUPPORTED = (  # settings of a model's generation config that change ``generate`` and that no argument resets
    "assistant_early_exit", "cache_implementation", "dola_layers", "guidance_scale", "is_assistant", "penalty_alpha",
    "prefill_chunk_size", "prompt_lookup_num_tokens", "stop_strings", "token_healing", "use_mtp",
)  # fmt: skip
RESERVED = {  # arguments of ``model.generate`` that DebiasedLM sets, or that are not supported
    *UNSUPPORTED, "assistant_model", "attention_mask", "cache", "constraints", "eos_token_id", "epsilon_cutoff",
    "eta_cutoff", "force_words_ids", "generation_config", "input_ids", "logits_processor", "max_length", "min_p",
    "num_beam_groups", "num_beams", "num_return_sequences", "output_attentions", "output_hidden_states",
    "output_logits", "output_scores", "pad_token_id", "past_key_values", "return_dict_in_generate", "stopping_criteria",
    "streamer", "top_h", "typical_p", "use_cache",
}  # fmt: skip
GREEDY = 1e-6  # lower temperatures would overflow the logits; their samples are the argmax
FLOATS = ("temperature", "top_p", "repetition_penalty")  # transformers rejects integers and NumPy's floats here
_OF_TRANSFORMERS = vars(GenerationConfig()).keys()


class Check(NamedTuple):
    """The valid values of an argument: a description, a check of the type, and a check of the range."""

    expected: str
    is_type: Callable[[Any], bool]
    is_in_range: Callable[[Any], bool] = lambda value: True


def _is_list(value: Any) -> bool:
    return isinstance(value, Collection) and not isinstance(value, (str, bytes, Mapping))


def _are_ids(value: Any) -> bool:
    return _is_list(value) and all(is_whole(token) and 0 <= token < 2**63 for token in value)


def _are_texts(value: Any) -> bool:
    return _is_list(value) and all(isinstance(text, str) for text in value)


def _is_bias(value: Any) -> bool:
    return is_number(value) and (value == -math.inf or abs(value) <= FLOAT32_MAX)


def _is_biased_sequence(pair: Any) -> bool:
    return isinstance(pair, (list, tuple)) and len(pair) == 2 and _are_ids(pair[0]) and _is_bias(pair[1])


def _are_biases(value: Any) -> bool:
    pairs = value.items() if isinstance(value, Mapping) else value
    return _is_list(pairs) and len(pairs) > 0 and all(map(_is_biased_sequence, pairs))


def _is_decay(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == 2 and is_whole(value[0]) and _is_bias(value[1])


def _is_watermark(value: Any) -> bool:
    with suppress(TypeError, ValueError):
        config = WatermarkingConfig(**value) if isinstance(value, Mapping) else value
        config.validate()
        return True
    return False


_AT_LEAST_ONE = Check("a whole number >= 1, below 2**63", is_whole, limits.POSITIVE_INT64.include)
_AT_LEAST_ZERO = Check("a whole number >= 0, below 2**63", is_whole, lambda value: 0 <= value < 2**63)
_IDS = Check("a list of token ids >= 0", _are_ids)
_SWITCH = Check("True or False", lambda value: isinstance(value, bool))
CHECKS = {
    "max_new_tokens": _AT_LEAST_ONE,
    "max_tokens": _AT_LEAST_ONE,  # the frameworks' name for ``max_new_tokens``
    "min_new_tokens": _AT_LEAST_ZERO,
    "temperature": Check("a number >= 0 (0 is greedy), at most 3.4e38", is_number, limits.TEMPERATURE.include),
    "top_k": _AT_LEAST_ONE,
    "top_p": Check("a number > 0 and <= 1", is_number, limits.TOP_P.include),
    "repetition_penalty": Check("a number > 0, at most 3.4e38", is_number, limits.REPETITION_PENALTY.include),
    "max_time": Check("a number of seconds > 0", is_number, lambda value: value > 0),
    "no_repeat_ngram_size": _AT_LEAST_ZERO,
    "seed": Check("a 64-bit integer", is_whole, limits.SAMPLING_SEED.include),
    "do_sample": _SWITCH,
    "logprobs": _SWITCH,
    "stop": Check(
        "a stop string that is not empty, or a list of them",
        lambda value: isinstance(value, str) or _are_texts(value),
        lambda value: "" not in ([value] if isinstance(value, str) else value),
    ),
    "stop_token_ids": _IDS,
    "suppress_tokens": _IDS,
    "begin_suppress_tokens": _IDS,
    "bad_words_ids": Check(
        "a list of lists of token ids",
        lambda value: isinstance(value, Collection) and len(value) > 0 and all(map(_are_ids, value)),
    ),
    "sequence_bias": Check("a dict from tuples of token ids to numbers, or a list of such pairs", _are_biases),
    "keep_special": Check("a list of special tokens, as text", _are_texts),
    "prefix_allowed_tokens_fn": Check("a function of a sequence's index in the batch and its token ids", callable),
    "watermarking_config": Check(
        "a transformers.WatermarkingConfig, or a dict of its arguments",
        lambda value: isinstance(value, (Mapping, BaseWatermarkingConfig)),
        _is_watermark,
    ),
    "exponential_decay_length_penalty": Check("a pair (start, factor) of a whole number and a number", _is_decay),
}


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """Raise ``WrongTypeError`` or ``ArgumentError`` for reserved arguments, wrong types and values out of range."""
    if refused := RESERVED & arguments.keys():
        raise ArgumentError(f"{', '.join(sorted(refused))}: DebiasedLM sets this itself; leave it out")
    for name, value in arguments.items():
        check = CHECKS.get(name)
        if value is None or check is None:
            continue
        if not check.is_type(value):
            raise WrongTypeError(f"{name}={shown(value)}; expected {check.expected}")
        if not check.is_in_range(value):
            raise ArgumentError(f"{name}={shown(value)}; expected {check.expected}")


def rename_max_tokens(arguments: dict[str, Any], name: str = "max_new_tokens") -> None:
    """Rename ``max_tokens`` or ``max_new_tokens`` to ``name``. Raise ``ArgumentError`` if both are given."""
    names = arguments.keys() & {"max_tokens", "max_new_tokens"}
    if len(names) > 1:
        raise ArgumentError("max_tokens and max_new_tokens are the same argument; pass one of them")
    for other in names:
        arguments[name] = arguments.pop(other)


@dataclass(frozen=True)
class GenerationSettings:
    """Validated settings of a generation, see ``GenerationArguments``.

    Attributes:
        temperature: sampling temperature; ``None`` is greedy.
        extra: additional arguments of transformers' ``model.generate``.
        batch_size: maximum number of prompts in a padded batch.
    """

    max_new_tokens: int = 256
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    logprobs: bool = False
    keep_special: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    batch_size: int = 8

    @property
    def is_greedy(self) -> bool:
        return self.temperature is None or self.temperature < GREEDY

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any], batch_size: int = 8) -> GenerationSettings:
        """Create settings from ``GenerationArguments``. Raise ``ArgumentError`` for invalid or unknown arguments."""
        check_arguments(arguments)
        check_whole("batch_size", batch_size, 1, ArgumentError)
        values: dict[str, Any] = {name: value for name, value in arguments.items() if value is not None}
        values |= {name: int(value) for name, value in values.items() if is_whole(value)}  # NumPy's too
        rename_max_tokens(values)
        if unknown := values.keys() - KNOWN - _OF_TRANSFORMERS:
            name = min(unknown)
            hint = did_you_mean(name, KNOWN)
            raise ArgumentError(f"unknown argument {name!r}; {hint}arguments: {', '.join(sorted(KNOWN))}")
        do_sample = values.pop("do_sample", None)
        if do_sample is not None:
            values["temperature"] = values.get("temperature", 1.0) if do_sample else None
        stop = values.get("stop", ())
        values["stop"] = (stop,) if isinstance(stop, str) else tuple(stop)
        values["stop_token_ids"] = tuple(map(int, values.get("stop_token_ids", ())))
        values["keep_special"] = tuple(values.get("keep_special", ()))
        values |= {name: float(values[name]) for name in FLOATS if values.get(name)}
        if biases := values.get("sequence_bias"):
            pairs = biases.items() if isinstance(biases, Mapping) else biases
            values["sequence_bias"] = {tuple(ids): float(bias) for ids, bias in pairs}
        names = {setting.name for setting in fields(cls)} & values.keys()
        return cls(**{name: values.pop(name) for name in names}, extra=values, batch_size=int(batch_size))

    def arguments(self) -> dict[str, Any]:
        """Return ``max_new_tokens`` and all settings that differ from the default, as keyword arguments."""
        optional = [f for f in fields(self) if f.name not in ("max_new_tokens", "extra", "batch_size")]
        changed = {f.name: getattr(self, f.name) for f in optional if getattr(self, f.name) != f.default}
        return {"max_new_tokens": self.max_new_tokens, **changed, **self.extra}

    def check_fits(self, method: Method, model: PreTrainedModel, suffix: int) -> None:
        """Raise ``ArgumentError`` if the settings, or the model's default settings, do not fit the model or the method.

        Token ids must be in the vocabulary. Settings for token sequences, such as ``no_repeat_ngram_size``, must have
        the same effect in all orders of the documents, and in all prompts of a ``JointMethod``. ``suffix`` is the
        number of tokens after the documents.
        """
        extra = {**vars(model.generation_config), **self.extra}
        for name in UNSUPPORTED:
            if extra.get(name) not in (None, False, "hybrid"):
                value = shown(extra[name])
                raise ArgumentError(f"model.generation_config.{name}={value} is not supported; set it to None")
        vocabulary = model.config.get_text_config().vocab_size
        order_free = method.invariant and isinstance(method, AttentionMethod)  # other invariant methods fix the order
        joint = isinstance(method, JointMethod)
        reason = "sequences of tokens cross document borders, so the answer would depend on the order of the documents"
        if joint:
            reason = "each document's prompt would forbid different sequences"
        for name in ("no_repeat_ngram_size", "encoder_no_repeat_ngram_size"):
            if (order_free or joint) and (extra.get(name) or 0) > 1:
                raise ArgumentError(
                    f"{name}={extra[name]!r} with {method.name}: {reason}; pass {name}=0, or use repetition_penalty, "
                    "which reads single tokens"
                )
        for name in ("bad_words_ids", "sequence_bias"):
            setting = extra.get(name) or ()
            are_ids = name == "bad_words_ids" or isinstance(setting, Mapping)
            sequences = list(setting) if are_ids else [ids for ids, _ in setting]
            if any(token >= vocabulary for ids in sequences for token in ids):
                raise ArgumentError(f"{name}={shown(extra[name])}; expected token ids below {vocabulary}")
            longest = max(map(len, sequences), default=0)
            if order_free and longest - 1 > suffix:
                raise ArgumentError(
                    f"{name} with {method.name}: a sequence of {longest} token ids is longer than the {suffix} tokens "
                    "after the documents, so the answer would depend on the order of the documents; pass shorter "
                    "sequences"
                )


def generation_config(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, settings: GenerationSettings, max_new_tokens: int
) -> tuple[GenerationConfig, Sequence[int], dict[str, Any]]:
    """Return a config, the EOS ids, and the extra arguments that are not part of a config.

    The config is for greedy decoding, because sampling is done by ``GumbelNoise``.
    """
    config = copy.deepcopy(model.generation_config)
    eos = config.eos_token_id if config.eos_token_id is not None else tokenizer.eos_token_id
    eos_list = eos if isinstance(eos, list) else [eos]
    eos_list = [token for token in (*eos_list, *settings.stop_token_ids) if token is not None]
    config.update(
        num_beams=1,
        num_return_sequences=1,
        do_sample=False,
        temperature=None,
        top_k=None,
        top_p=None,
        max_length=None,
        return_dict_in_generate=False,
    )
    config.update(eos_token_id=eos_list or None, pad_token_id=pad_token(tokenizer), max_new_tokens=max_new_tokens)
    return config, eos_list, config.update(**settings.extra)


def pad_token(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the token id for padding. Padding is masked, so any id will do if the tokenizer has no padding token."""
    ids = (token for token in (tokenizer.pad_token_id, tokenizer.eos_token_id) if token is not None)
    return int(next(ids, 0))
