"""``GenerationSettings``: the generation arguments of one call, validated once and passed on as one object."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from ragbias.checks import check_whole
from ragbias.errors import ArgumentError
from ragbias.generation.arguments import check_arguments, check_names
from ragbias.methods import Method


@dataclass(frozen=True)
class GenerationSettings:
    """How tokens are chosen and when an answer ends; see ``GenerationArguments``.

    Attributes:
        temperature: ``None`` is greedy.
        extra: further arguments of transformers' ``model.generate``.
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

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any], batch_size: int = 8) -> GenerationSettings:
        """Validate ``GenerationArguments``; ``max_tokens`` is another name of ``max_new_tokens``.

        Raises:
            WrongTypeError: a value is of the wrong type.
            ArgumentError: an argument is unknown, out of range, reserved, or given under both names.
        """
        given = {name: value for name, value in arguments.items() if value is not None}
        if "max_tokens" in given and "max_new_tokens" in given:
            raise ArgumentError("max_tokens and max_new_tokens are the same; give one of them")
        check_arguments(arguments)
        check_whole("batch_size", batch_size, 1, ArgumentError)
        if "max_tokens" in given:
            given["max_new_tokens"] = given.pop("max_tokens")
        check_names(given)
        if (do_sample := given.pop("do_sample", None)) is not None:
            given["temperature"] = given.get("temperature", 1.0) if do_sample else None
        if isinstance(stop := given.get("stop", ()), str):
            stop = (stop,)
        given |= {"stop": tuple(stop), "stop_token_ids": tuple(map(int, given.get("stop_token_ids", ())))}
        given["keep_special"] = tuple(given.get("keep_special", ()))
        own = {each.name for each in fields(cls)} & given.keys()
        return cls(**{name: given.pop(name) for name in own}, extra=given, batch_size=batch_size)

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments for the same settings: ``max_new_tokens``, and all that differ from the default."""
        own = [each for each in fields(self) if each.name not in ("max_new_tokens", "extra", "batch_size")]
        changed = {each.name: getattr(self, each.name) for each in own if getattr(self, each.name) != each.default}
        return {"max_new_tokens": self.max_new_tokens, **changed, **self.extra}

    def check_order_free(self, method: Method, suffix: int) -> None:
        """Raise ``ArgumentError`` where a setting makes an order-invariant method depend on the documents' order.

        Such settings read sequences of tokens that cross document borders; ``suffix`` tokens follow the documents.
        """
        if not (method.invariant and method.acts_on == "attention"):
            return  # the documents have one order before the model runs
        for name in ("no_repeat_ngram_size", "encoder_no_repeat_ngram_size"):
            if self.extra.get(name, 0) > 1:
                raise ArgumentError(
                    f"{name}={self.extra[name]!r} with {method.name}: sequences of tokens cross document borders, so "
                    "the answer would depend on the order of the documents; leave it out, or use repetition_penalty, "
                    "which reads single tokens"
                )
        for name in ("bad_words_ids", "sequence_bias"):
            given = self.extra.get(name, ())
            ids = [each[0] if name == "sequence_bias" and not isinstance(given, Mapping) else each for each in given]
            if any(len(each) - 1 > suffix for each in ids):
                raise ArgumentError(
                    f"{name} with {method.name}: a sequence of {max(map(len, ids))} token ids is longer than the "
                    f"{suffix} tokens after the documents, so the answer would depend on the order of the documents; "
                    "give shorter sequences"
                )


def generation_config(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, settings: GenerationSettings, max_new_tokens: int
) -> tuple[GenerationConfig, Sequence[int], dict[str, Any]]:
    """The model's configuration without its sampling, the token ids that end an answer, and arguments beside it."""
    config = copy.deepcopy(model.generation_config)
    eos = config.eos_token_id if config.eos_token_id is not None else tokenizer.eos_token_id
    eos_list = [*(eos if isinstance(eos, list) else [] if eos is None else [eos]), *settings.stop_token_ids]
    config.update(num_beams=1, do_sample=False, temperature=None, top_k=None, top_p=None, max_length=None)
    config.update(eos_token_id=eos_list or None, pad_token_id=pad_token(tokenizer), max_new_tokens=max_new_tokens)
    return config, eos_list, config.update(**settings.extra)


def pad_token(tokenizer: PreTrainedTokenizerBase) -> int:
    """The id to pad with; padding is masked, so any id will do where the tokenizer has none."""
    given = (token for token in (tokenizer.pad_token_id, tokenizer.eos_token_id) if token is not None)
    return int(next(given, 0))
