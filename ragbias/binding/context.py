"""``debias``: a context manager that runs an unmodified transformers model with a method."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy

import torch
from torch import nn
from transformers import DynamicCache, PreTrainedModel

from ragbias.attention import Scoring
from ragbias.attention.backends import chosen
from ragbias.binding.architectures import architecture_of, attention_modules, decoder_of, head_dim
from ragbias.binding.binding import Binding, PlainBinding, binding_of, opening
from ragbias.binding.hooks import attached
from ragbias.binding.layout import Spans, missing_documents, spans_by_sequence
from ragbias.errors import MethodError, UnsupportedModelError
from ragbias.methods import get
from ragbias.methods.base import AttentionMethod, Method
from ragbias.prompt import Span


def backend_of(model: PreTrainedModel, backend: str) -> str:
    """The backend that computes attention on this model: ``"torch"``, ``"triton"`` or ``"flash"``.

    Raises:
        BackendError: the backend was named and does not support the model.
    """
    architecture = architecture_of(model)
    decoder = decoder_of(model, architecture)
    module = attention_modules(decoder, architecture)[0]
    scoring = Scoring(architecture.encoding(decoder, module, 1), 1.0, backend=backend)
    return chosen(torch.empty(0, head_dim(module), dtype=model.dtype, device=model.device), scoring)


def copied_cache(model: PreTrainedModel, cache: DynamicCache) -> DynamicCache:
    """A copy of a cache that was filled in this context, to continue a prompt more than once."""
    copy = deepcopy(cache)
    current = binding_of(model.get_decoder())
    if isinstance(current, Binding) and (session := current._sessions.get(cache)) is not None:
        current._sessions[copy] = deepcopy(session)
    return copy


def attach(
    model: PreTrainedModel, method: Method, spans: list[list[Span]], private: bool = False, backend: str = "auto"
) -> AbstractContextManager[None]:
    """``debias`` for a method instance and checked spans by sequence; see ``Binding`` for ``private``."""
    if method.acts_on == "nothing":
        if not isinstance(model, PreTrainedModel):
            raise UnsupportedModelError(f"expected a transformers model, got {type(model).__name__}")
        decoder: nn.Module = model.get_decoder()
        return opening(PlainBinding(decoder, set(decoder.modules())))
    if not isinstance(method, AttentionMethod):
        raise MethodError(
            f"{method.name} acts on whole prompts, not inside the model; "
            "use ragbias.DebiasedLM(model, tokenizer, method=...)"
        )
    if method.needs_documents and not spans:
        raise missing_documents(method.name)
    return attached(Binding(model, method, spans, private, backend))


@contextmanager
def debias(
    model: PreTrainedModel, method: str | Method, spans: Spans | None = None, backend: str = "auto"
) -> Iterator[PreTrainedModel]:
    """Run a transformers model with a method; the model is restored when the context ends, however it ends.

    Inside, ``model(...)``, ``model.generate(...)`` and everything built on them run with the method. Each prompt must
    enter in one forward pass; several prompts may follow each other. Other threads may open their own contexts on the
    same model at the same time.

    Args:
        model: a causal language model of a supported family.
        method: a name or an instance, e.g. ``"pine"`` or ``Pine()``.
        spans: ``(begin, end)`` of each document in columns of ``input_ids``, padding counted, adjacent to each other;
            or one such list for each sequence of the batch. Sequences that are repeated (beams) need no repeated spans.
        backend: ``"auto"``, ``"torch"``, ``"triton"`` or ``"flash"``, see ``ragbias.attention.backends``.

    Raises:
        UnknownMethodError: no method has this name.
        MethodError: the method acts on whole prompts, or its parameters do not fit the model.
        NoDocumentsError: the method needs spans.
        SpanError: spans overlap or leave gaps; at the first forward pass, a span is outside the prompt.
        EmptyDocumentError: a span is empty.
        UnsupportedModelError: the architecture is not supported.
        BackendError: the backend is unknown or not installed; at the first forward pass, it does not support the case.
        BindingError: a forward pass with a cache that was not filled here, or from a thread without ``debias``.
    """
    resolved = get(method, getattr(getattr(model, "config", None), "_name_or_path", None))
    if resolved.selective:
        raise MethodError(
            f"selective {resolved.name} compares two runs; use ragbias.DebiasedLM(model, tokenizer, method=...)"
        )
    with attach(model, resolved, spans_by_sequence(spans), backend=backend):
        yield model
