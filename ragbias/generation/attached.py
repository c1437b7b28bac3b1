"""Attach a method and its reader adapter to the model for a batch of prompts, and fill the cache with documents."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from ragbias.binding import attach
from ragbias.binding.architectures import architecture_of, attention_modules, decoder_of
from ragbias.binding.hooks import hooked
from ragbias.cache import DocumentCache
from ragbias.errors import OutOfMemoryError, first_line, out_of_memory
from ragbias.generation.request import padded
from ragbias.generation.reuse import DocumentStates, start_from_states
from ragbias.methods import JointMethod, Method, NoMethod
from ragbias.prompt import Span, TokenisedPrompt
from ragbias.readers import Lora, reader_of, reading

PIECE = 16  # tokens of a suffix whose logits are computed together


@contextmanager
def memory_errors(lengths: Sequence[int], device: torch.device) -> Iterator[None]:
    """Raise ``OutOfMemoryError`` if memory runs out. ``lengths`` are the prompts' numbers of tokens."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        raise OutOfMemoryError(
            f"no memory left on {device} for {len(lengths)} prompts of up to {max(lengths)} tokens "
            f"({first_line(error)}); make batch_size smaller, retrieve fewer or shorter documents, or load the model "
            "with a dtype of fewer bytes"
        ) from error


class PreparedCache(NamedTuple):
    """The initial cache of a generation, or None, and the number of reused tokens of each prompt."""

    cache: DynamicCache | None
    reused: Sequence[int]


@contextmanager
def prepared_model(
    model: PreTrainedModel,
    method: Method,
    prompts: Sequence[TokenisedPrompt],
    spans: list[list[Span]],
    backend: str,
    cache: DocumentCache | None = None,
    cancelled: threading.Event | None = None,
    lora: Lora | None = None,
) -> Iterator[PreparedCache]:
    """Attach a method for a batch of prompts, padded on the left. ``spans`` are the documents' columns, with padding.

    ``lora`` is a reader in training; default: the method's reader.
    """
    if lora is None and method.reader:
        lora = reader_of(model, method)
    after = [columns[-1][1] if columns else sys.maxsize for columns in spans]  # no documents: no reader
    reader = nullcontext() if lora is None else reading(model, lora, after)
    with memory_errors([len(prompt.ids) for prompt in prompts], model.device):
        if not computes_documents_separately(model, method, prompts):
            if cache is not None and method.reusable_documents:
                cache.warn_unused(
                    method.name,
                    "the prompt is longer than the model's rotary frequencies allow, or has no text before or after "
                    "its documents",
                )
            rule = NoMethod() if isinstance(method, JointMethod) else method
            with attach(model, rule, spans, private=True, backend=backend), reader:
                yield PreparedCache(None, [0] * len(prompts))
            return
        states = DocumentStates(model, backend, cache, cancelled)
        binding, filled, reused = start_from_states(model, method, prompts, states, backend, lora)
        with hooked(binding), reader:
            yield PreparedCache(filled, reused)


def computes_documents_separately(model: PreTrainedModel, method: Method, prompts: Sequence[TokenisedPrompt]) -> bool:
    """Whether documents are computed in separate passes. This excludes rotary frequencies that depend on the length."""
    if not method.reusable_documents or not all(p.suffix and (p.prefix or p.documents) for p in prompts):
        return False
    longest = max(len(prompt.ids) for prompt in prompts)
    architecture = architecture_of(model)
    decoder = decoder_of(model, architecture)
    return all(
        architecture.encoding_key(decoder, module, longest) == architecture.encoding_key(decoder, module, 1)
        for module in attention_modules(decoder, architecture)
    )


@torch.no_grad()
def suffix_likelihoods(
    model: PreTrainedModel, method: Method, prompts: Sequence[TokenisedPrompt], cache: DynamicCache | None
) -> Tensor | None:
    """Return the log-probability of the suffix, without its first token, in each prompt, float32 ``[prompts]``.

    The prompts have the same suffix. ``cache``, if any, has their documents, and is extended by the suffix without its
    last token. None for methods that do not need likelihoods.
    """
    if not (isinstance(method, JointMethod) and method.needs_likelihoods):
        return None
    suffix = torch.tensor(prompts[0].suffix, device=model.device)
    if cache is None:
        ids, mask, _ = padded(prompts, 0, model.device)
        logits = model(ids, attention_mask=mask, use_cache=False, logits_to_keep=len(suffix)).logits
        return sequence_logprobs(logits[:, :-1], suffix[1:])
    likelihoods = torch.zeros(len(prompts), device=model.device)
    for begin in range(0, len(suffix) - 1, PIECE):
        piece = suffix[begin : begin + PIECE + 1]
        logits = model(piece[:-1].expand(len(prompts), -1), past_key_values=cache, use_cache=True).logits
        likelihoods += sequence_logprobs(logits, piece[1:])
    return likelihoods


def sequence_logprobs(logits: Tensor, ids: Tensor) -> Tensor:
    """Return the log-probability ``[prompts]`` of ``ids`` ``[T]`` under logits ``[prompts, T, V]``."""
    logits = logits.float()
    chosen = logits.gather(2, ids.expand(len(logits), -1)[..., None])[..., 0]
    return (chosen - logits.logsumexp(2)).sum(1)
