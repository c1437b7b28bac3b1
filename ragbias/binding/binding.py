"""``debias``: a context in which an unmodified transformers model runs with a method."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from functools import partial
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from ragbias.attention import Encoding, Scoring, attend, rotate
from ragbias.attention.backends import check_backend, chosen
from ragbias.binding import hooks
from ragbias.binding.active import Rotation, binding_of, opening
from ragbias.binding.architectures import architecture_of, attention_modules, decoder_of, head_dim
from ragbias.binding.layout import Session, Spans, missing_documents, open_session, spans_by_sequence
from ragbias.errors import BindingError, MethodError, UnsupportedModelError
from ragbias.methods import get
from ragbias.methods.base import AttentionMethod, Method
from ragbias.methods.call import AttentionCall, SequenceLayout
from ragbias.prompt import Span

TRIED = 128  # queries and keys of the call that finds out whether a backend runs


class _Pass(threading.local):
    """The forward pass that a thread is in; threads may share a binding through a copied context."""

    session: Session | None = None
    prefill: bool = True
    noted: tuple[Tensor, Rotation] | None = None
    projecting: bool = False


class Binding:
    """A method on a model, for prompts with documents at given spans.

    Args:
        private: whether other threads may run the model plain meanwhile. If not, a thread without a binding of its own
            is refused while this one is attached, since it cannot be told apart from a helper thread that was meant to
            run with the method.
        backend: what computes attention, see ``ragbias.attention.backends``.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        method: AttentionMethod,
        spans: list[list[Span]],
        private: bool = False,
        backend: str = "auto",
    ) -> None:
        check_backend(backend)
        self.model = model
        self.method = method
        self.backend = backend
        self.architecture = architecture_of(model)
        self.decoder = decoder_of(model, self.architecture)
        modules = attention_modules(self.decoder, self.architecture)
        if any(getattr(module, "_compiled_call_impl", None) for module in (model, *self.decoder.modules())):
            raise UnsupportedModelError("a model compiled by torch.compile is not supported; use the model as loaded")
        self.modules: Collection[nn.Module] = set(modules)
        config = model.config.get_text_config()
        method.validate(config.hidden_size, len(modules))
        if method.needs_rotary and self.architecture.positions != "rotary":
            raise UnsupportedModelError(
                f"{method.name} changes rotary positions, and {type(model).__name__} has {self.architecture.positions}"
            )
        # a sliding layer's cache forgets keys to which a method may assign near positions
        self._slides = getattr(config, "sliding_window", None) is not None
        self._use_cache = config.use_cache
        self.layers: Mapping[nn.Module, int] = {modules[index]: index for index in method.layer_indices(len(modules))}
        self.wants_positions = method.positions == "model"
        self._argument_names = list(inspect.signature(self.decoder.forward).parameters)
        self._private = private
        self._spans = spans
        self._encodings: dict[tuple[object, ...], Encoding] = {}
        self._sessions: WeakKeyDictionary[Any, Session] = WeakKeyDictionary()
        self._now = _Pass()
        self.is_open = True

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Hooks on the decoder and on each layer of the method, removed however the context ends."""
        try:
            with opening(self):
                hooks.attach(self)
                yield
        finally:
            hooks.sweep(self.decoder)

    def resume(self, cache: DynamicCache, layouts: list[SequenceLayout]) -> None:
        """Go on from a cache that holds the beginnings of prompts, with all their documents.

        Args:
            cache: keys as this method's layers leave them: without positions where the method wants none.
            layouts: by sequence, of the whole prompts; their documents in the order in which the cache has them.
        """
        self._sessions[cache] = Session(layouts, int(cache.get_seq_length()), None)

    # one forward pass of the decoder

    def enter(self, decoder: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
        if not self.is_open:  # an interrupt left the hook over
            hooks.sweep(decoder)
            return None
        current = binding_of(decoder)
        if current is None and not self._private:
            raise BindingError(
                "this thread runs a model that another thread opened debias() on; open debias() in this thread too "
                "(method 'none' for a plain run), or start the thread with contextvars.copy_context().run"
            )
        if kwargs is None:
            return None
        kwargs = {**dict(zip(self._argument_names, args, strict=False)), **kwargs}
        if current is not self:
            if (cache := kwargs.get("past_key_values")) is not None:
                self._sessions.pop(cache, None)  # what enters now does not run with this method
            return None
        name = "input_ids" if kwargs.get("input_ids") is not None else "inputs_embeds"
        tokens: Tensor = kwargs[name]
        cache = kwargs.get("past_key_values")
        if getattr(cache, "is_compileable", False):
            raise UnsupportedModelError(f"{type(cache).__name__} is not supported; use the default dynamic cache")
        if self._slides:
            cache = self._with_full_layers(cache, kwargs)
            kwargs = {**kwargs, "past_key_values": cache}
        seen = 0 if cache is None else int(cache.get_seq_length())
        self._now.prefill = seen == 0
        if self._now.prefill:
            self._now.session = open_session(self.method, self._spans, tokens, kwargs.get("attention_mask"))
            if self._now.session.permutation is not None:
                tokens = _gathered(tokens, self._now.session.permutation)
        else:
            self._now.session = self._sessions.get(cache)
            if self._now.session is None or self._now.session.seen != seen:
                raise BindingError(
                    f"the cache holds {seen} tokens that did not enter under this debias(); give the whole prompt in "
                    "one forward pass, without a filled cache and without chunked prefill"
                )
            self._check_sequences(self._now.session, cache, len(tokens))
        self._now.session.seen = seen + tokens.shape[1]
        return (), {**kwargs, name: tokens}

    def copy_session(self, cache: Any, copy: Any) -> None:
        """Let a copy of a cache be continued as the cache itself."""
        if (session := self._sessions.get(cache)) is not None:
            self._sessions[copy] = deepcopy(session)

    def _check_sequences(self, session: Session, cache: Any, batch: int) -> None:
        """Refuse a cache whose sequences were repeated, dropped or moved since the prompt entered."""
        moved = batch != len(session.layouts)
        if not moved and session.fingerprint is not None:
            moved = not torch.allclose(self._fingerprint(cache, session), session.fingerprint, rtol=1e-2, atol=1e-2)
        if moved:
            raise BindingError(
                f"the cache's sequences are not those of the {len(session.layouts)} prompts that entered under this "
                "debias(); give each sequence its own prompt"
            )

    def _fingerprint(self, cache: Any, session: Session) -> Tensor:
        column = session.layouts[0].pad + session.layouts[0].length - 1  # the same in every sequence
        keys: Tensor = cache.layers[max(self.layers.values())].keys
        return keys[:, :, column]

    def _with_full_layers(self, cache: Any, kwargs: dict[str, Any]) -> Any:
        """The cache of this pass, with layers that keep every key."""
        if cache is None:
            use = kwargs.get("use_cache")
            return DynamicCache() if (self._use_cache if use is None else use) else None
        if cache.get_seq_length() == 0:
            cache.layers = [DynamicLayer() if layer.is_sliding else layer for layer in cache.layers]
        return cache

    def leave(self, decoder: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        if binding_of(decoder) is not self or self._now.session is None:
            return None
        session, self._now.session, self._now.noted = self._now.session, None, None
        if isinstance(output, tuple):
            raise BindingError("return_dict=False is not supported; leave it out")
        cache = output.past_key_values
        if cache is not None:
            self._sessions[cache] = session
            if self._now.prefill:
                session.fingerprint = self._fingerprint(cache, session).clone()
        if self._now.prefill and session.permutation is not None:
            back = session.permutation.argsort(1)
            output.last_hidden_state = _gathered(output.last_hidden_state, back)
            if output.get("hidden_states") is not None:
                output["hidden_states"] = tuple(_gathered(state, back) for state in output["hidden_states"])
        return output

    # one attention layer of it

    def note(self, hidden: Tensor, rotation: Rotation) -> None:
        self._now.noted = (hidden, rotation)

    @contextmanager
    def projecting(self) -> Iterator[None]:
        """Inside, projections read what they are given."""
        self._now.projecting = True
        try:
            yield
        finally:
            self._now.projecting = False

    def projection_input(self, module: nn.Module, hidden: Tensor, of: Literal["query", "key"]) -> Tensor:
        if self._now.projecting:
            return hidden
        if of == "query":
            return self.method.query_input(hidden, self.layers[module], self._now.prefill)
        return self.method.key_input(hidden, self.layers[module])

    def attention(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        plain: Callable[..., Tensor],
        scale: float,
        softcap: float | None = None,
        window: int | None = None,
    ) -> Tensor:
        session = self._now.session
        if session is None or self._now.noted is None:
            raise BindingError("an attention layer was called outside its model; call the model")
        if window is not None and session.seen <= window:
            window = None
        hidden, rotation = self._now.noted
        layer = self.layers[module]
        encodings = [self._encoding(module, layout.length) for layout in session.layouts]
        call = AttentionCall(
            layer=layer,
            n_layers=len(self.modules),
            query=query,
            key=key,
            value=value,
            hidden=hidden,
            prefill=self._now.prefill,
            layouts=session.layouts,
            scorings=[Scoring(encoding, scale, softcap, window, self.backend) for encoding in encodings],
            memory_of=lambda index: session.memory.setdefault((layer, index), {}),
            project=partial(self._project, module, query.device),
            rotate=partial(self._rotated, rotation if getattr(module, "use_rope", True) else None),
            plain=plain,
        )
        return self.method.attention(call)

    def _project(self, module: nn.Module, device: torch.device, of: Literal["query", "key"], hidden: Tensor) -> Tensor:
        """Queries or keys ``[batch, heads, T, d]`` of hidden states, without position and without the method."""
        project = self.architecture.project_query if of == "query" else self.architecture.project_key
        with self.projecting():
            return project(module, hidden.to(device))

    def _rotated(self, rotation: Rotation, x: Tensor) -> Tensor:
        if rotation is None:  # the layer rotates nothing
            return x
        cos, sin = (part[..., -x.shape[2] :, :] for part in rotation)
        return rotate(x, cos, sin, self.architecture.interleaved)

    def _encoding(self, module: nn.Module, length: int) -> Encoding:
        """Positions that the queries and keys of this layer do not carry yet."""
        if self.wants_positions and self.architecture.positions == "rotary":
            return Encoding()
        key = self.architecture.encoding_key(self.decoder, module, length)
        if key not in self._encodings:
            self._encodings[key] = self.architecture.encoding(self.decoder, module, length)
        return self._encodings[key]


class PlainBinding:
    """The model as it is, also inside another binding."""

    layers: Mapping[nn.Module, int] = {}

    def __init__(self, model: PreTrainedModel) -> None:
        if not isinstance(model, PreTrainedModel):
            raise UnsupportedModelError(f"expected a transformers model, got {type(model).__name__}")
        self.decoder: nn.Module = model.get_decoder()
        self.modules: Collection[nn.Module] = set(self.decoder.modules())
        self.is_open = True


def _gathered(states: Tensor, columns: Tensor) -> Tensor:
    """``states[b, columns[b]]`` for ``[batch, T]`` or ``[batch, T, hidden]``."""
    index = columns.to(states.device)
    return states.gather(1, index if states.dim() == 2 else index[..., None].expand_as(states))


def backend_of(model: PreTrainedModel, backend: str) -> str:
    """What computes attention on this model: ``"torch"``, ``"triton"`` or ``"flash"``.

    Judged by a small call with heads as in the model's first layer, so that a kernel that cannot be launched is known
    before it is reported.

    Raises:
        BackendError: the backend was named and cannot.
    """
    architecture = architecture_of(model)
    decoder = decoder_of(model, architecture)
    module = attention_modules(decoder, architecture)[0]
    encoding = architecture.encoding(decoder, module, 1)
    scoring = Scoring(encoding, 1.0, backend=backend)
    query = torch.zeros(1, TRIED, head_dim(module), dtype=model.dtype, device=model.device)
    if chosen(query, scoring) != "torch":
        with torch.no_grad():
            attend(query, query, query, positions=torch.arange(TRIED, device=model.device), scoring=scoring)
    return chosen(query, scoring)  # which is "torch" after a failure


def copied_cache(model: PreTrainedModel, cache: DynamicCache) -> DynamicCache:
    """A copy of a cache that was filled in this context, so that a prompt can be continued more than once."""
    copy = deepcopy(cache)
    if isinstance(current := binding_of(model.get_decoder()), Binding):
        current.copy_session(cache, copy)
    return copy


def attach(
    model: PreTrainedModel, method: Method, spans: list[list[Span]], private: bool = False, backend: str = "auto"
) -> AbstractContextManager[None]:
    """As ``debias``, for a method instance and checked spans by sequence; see ``Binding`` for ``private``."""
    if method.acts_on == "nothing":
        return opening(PlainBinding(model))
    if not isinstance(method, AttentionMethod):
        raise MethodError(
            f"{method.name} works on whole prompts, not inside the model; "
            "use ragbias.DebiasedLM(model, tokenizer, method=...)"
        )
    if method.needs_documents and not spans:
        raise missing_documents(method.name)
    return Binding(model, method, spans, private, backend).attached()


@contextmanager
def debias(
    model: PreTrainedModel, method: str | Method, spans: Spans | None = None, backend: str = "auto"
) -> Iterator[PreTrainedModel]:
    """Run a transformers model with a method; the model is as it was when the context ends, however it ends.

    Inside, ``model(...)``, ``model.generate(...)`` and everything built on them run with the method. The whole prompt
    must enter in one forward pass; several prompts may follow each other. Other threads may open contexts of their own
    on the same model at the same time.

    Args:
        model: a causal language model of a supported family.
        method: a name or an instance, e.g. ``"pine"`` or ``Pine()``.
        spans: ``(begin, end)`` of each document in columns of ``input_ids``, padding counted, adjacent to each other;
            or one such list for each sequence of the batch. Sequences that are repeated (beams) need no repeated spans.
        backend: what computes the method's attention: ``"auto"``, ``"torch"``, ``"triton"`` or ``"flash"``, see
            ``ragbias.attention.backends``.

    Raises:
        UnknownMethodError: no method has this name.
        MethodError: the method works on whole prompts, or its parameters do not fit the model.
        NoDocumentsError: the method needs spans.
        SpanError: spans overlap or leave gaps, at once; one is outside the prompt, at the first forward pass.
        EmptyDocumentError: a span is empty.
        UnsupportedModelError: the architecture is not known to be right.
        BackendError: a backend is unknown or not installed, at once; or cannot compute this, at the first forward pass.
        BindingError: a forward pass with a cache that was not filled here, or from a thread without a ``debias``.
    """
    resolved = get(method, getattr(getattr(model, "config", None), "_name_or_path", None))
    if resolved.selective:
        raise MethodError(
            f"selective {resolved.name} compares two runs; use ragbias.DebiasedLM(model, tokenizer, method=...)"
        )
    with attach(model, resolved, spans_by_sequence(spans), backend=backend):
        yield model
