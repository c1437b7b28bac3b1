"""What ``model.generate`` is told, beside sampling and stopping."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ragbias.errors import MethodError

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

SETTLED = {  # arguments of ``model.generate`` that are settled here, or would be ignored
    "attention_mask", "cache_implementation", "eos_token_id", "epsilon_cutoff", "eta_cutoff", "generation_config",
    "input_ids", "logits_processor", "max_length", "min_p", "num_beam_groups", "num_beams", "num_return_sequences",
    "output_attentions", "output_hidden_states", "output_logits", "output_scores", "pad_token_id", "past_key_values",
    "prefill_chunk_size", "return_dict_in_generate", "stop_strings", "stopping_criteria", "streamer", "top_h",
    "typical_p", "use_cache",
}  # fmt: skip


def refuse_settled(arguments: Mapping[str, object]) -> None:
    """``MethodError`` if one of these arguments of ``model.generate`` is not the caller's to set."""
    if refused := SETTLED & arguments.keys():
        raise MethodError(
            f"{', '.join(sorted(refused))}: not an argument here, DebiasedLM settles it itself; leave it out"
        )


def generation_config(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, new_tokens: int
) -> tuple[GenerationConfig, list[int]]:
    """The model's own configuration without its sampling, and the tokens that end an answer."""
    config = copy.deepcopy(model.generation_config)
    eos = config.eos_token_id if config.eos_token_id is not None else tokenizer.eos_token_id
    eos_list = eos if isinstance(eos, list) else [] if eos is None else [eos]
    config.update(num_beams=1, do_sample=False, temperature=None, top_k=None, top_p=None, max_length=None)
    config.update(eos_token_id=eos_list or None, pad_token_id=pad_token(tokenizer), max_new_tokens=new_tokens)
    return config, eos_list


def pad_token(tokenizer: PreTrainedTokenizerBase) -> int:
    """The id to pad with; it is masked, so any will do where the tokenizer has none."""
    for token in (tokenizer.pad_token_id, tokenizer.eos_token_id):
        if token is not None:
            return int(token)
    return 0
