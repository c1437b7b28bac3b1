"""``DebiasedLM``: a causal language model and a method, behind one small face."""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteriaList,
)

from ragbias import methods, tiny
from ragbias.binding import attach
from ragbias.boundaries import Boundaries
from ragbias.checks import check_whole
from ragbias.decoding import RequireFinite, Stream, Watch, processors, safe_length, stop_strings, trimmed
from ragbias.errors import MethodError, PromptTooLongError
from ragbias.methods import AttentionMethod, Method, NoMethod, PermutationVote, ReorderingMethod
from ragbias.methods.attention_sorting import DocumentAttention
from ragbias.prompt import Prompt, TokenisedPrompt, tokenise
from ragbias.report import Generation, Report, Score, Usage
from ragbias.request import Request, groups, in_parts, obstacle_in
from ragbias.voting import elect

RESERVED = {  # arguments of ``model.generate`` that are settled here, or would be ignored
    "assistant_model", "attention_mask", "cache_implementation", "eos_token_id", "epsilon_cutoff", "eta_cutoff",
    "generation_config", "guidance_scale", "input_ids", "logits_processor", "max_length", "min_p", "num_beam_groups",
    "num_beams", "num_return_sequences", "output_attentions", "output_hidden_states", "output_logits",
    "output_scores", "pad_token_id", "past_key_values", "prefill_chunk_size", "prompt_lookup_num_tokens",
    "return_dict_in_generate", "stop_strings", "stopping_criteria", "streamer", "top_h", "typical_p", "use_cache",
}  # fmt: skip


class DebiasedLM:
    """A causal language model that runs with a method.

    Args:
        model: of a supported family, see ``ragbias.binding.architectures``.
        tokenizer: its tokenizer.
        method: default method of all requests: a name or an instance.
        name: the model's name, where a method looks up a profile for it; default: the one the model was loaded by.

    One object may be used by several threads at once.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        method: str | Method = "pine",
        name: str | None = None,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.name = name or model.config._name_or_path
        self.method = methods.get(method, self.name)

    @classmethod
    def from_pretrained(
        cls,
        name: str,
        method: str | Method = "pine",
        *,
        tokenizer_kwargs: dict[str, Any] | None = None,
        **model_kwargs: Any,
    ) -> DebiasedLM:
        """Load a model and its tokenizer.

        Args:
            name: a hub name, a path, or ``"tiny"`` for the embedded model.
            method: default method.
            model_kwargs: for ``AutoModelForCausalLM.from_pretrained``, e.g. ``dtype="auto"``, ``device_map="auto"``.
        """
        path = str(tiny.path()) if name == "tiny" else name
        tokenizer = AutoTokenizer.from_pretrained(path, **(tokenizer_kwargs or {}))
        return cls(AutoModelForCausalLM.from_pretrained(path, **model_kwargs), tokenizer, method, name)

    @property
    def window(self) -> int:
        """Number of tokens that prompt and answer may have together."""
        config = self.model.config.get_text_config()
        return int(config.max_seq_len if config.model_type == "mpt" else config.max_position_embeddings)

    def chat_text(self, messages: Sequence[dict[str, Any]], tools: Sequence[Any] | None = None) -> str:
        """The flat prompt for a conversation: the tokenizer's chat template, ready for the model's answer."""
        if self.tokenizer.chat_template is None:
            raise MethodError(f"the tokenizer of {self.name!r} has no chat template; pass a flat prompt instead")
        templated = self.tokenizer.apply_chat_template(
            list(messages), tools=list(tools) if tools else None, tokenize=False, add_generation_prompt=True
        )
        return str(templated)

    def generate(
        self,
        prompt: str | Prompt,
        *,
        documents: Sequence[str] | None = None,
        boundaries: Boundaries | None = None,
        method: str | Method | None = None,
        **settings: Any,
    ) -> Generation:
        """Answer a prompt.

        Args:
            prompt: in parts, or flat.
            documents: for a flat prompt, texts that stand in it verbatim; all must be found.
            boundaries: for a flat prompt, where the documents stand, if that is known already.
            method: instead of the default one.
            max_new_tokens: 256 by default; less where the window ends.
            stop: strings that end the answer and are not part of it.
            temperature, top_k, top_p: sampling; greedy without a temperature. ``do_sample=True`` alone means 1.0.
            seed: makes sampling repeatable, whatever runs beside it.
            settings: the above and any other argument of ``model.generate``.

        A prompt with fewer than two documents runs plain if the method needs documents; the report says so.

        Raises:
            DocumentNotFoundError, PromptTooLongError, EmptyDocumentError, UnknownMethodError, MethodError,
            UnsupportedModelError, NonFiniteLogitsError.
        """
        return self._answers([self._prepare(prompt, documents, boundaries, method)], **settings)[0]

    def stream(
        self,
        prompt: str | Prompt,
        *,
        documents: Sequence[str] | None = None,
        boundaries: Boundaries | None = None,
        method: str | Method | None = None,
        stop: Sequence[str] | None = None,
        **settings: Any,
    ) -> Stream:
        """As ``generate``, piece by piece; the pieces add up to the same text. A vote comes in one piece."""
        request = self._prepare(prompt, documents, boundaries, method)
        stops = stop_strings(stop)

        def job(emit: Callable[[str], None], cancelled: threading.Event) -> Generation:
            def show(ids: list[int]) -> None:
                text, _ = trimmed(self._decode(ids), stops)
                emit(text[: safe_length(text, stops)])

            on_tokens = show if len(request.candidates()) == 1 else None
            return self._answers([request], stop=stops, cancelled=cancelled, on_tokens=on_tokens, **settings)[0]

        return Stream(job)

    def batch(
        self,
        prompts: Sequence[str | Prompt],
        *,
        documents: Sequence[Sequence[str] | None] | None = None,
        boundaries: Sequence[Boundaries | None] | None = None,
        method: str | Method | None = None,
        batch_size: int = 8,
        **settings: Any,
    ) -> list[Generation]:
        """As ``generate`` for several prompts, in padded batches; ``documents`` and ``boundaries``: one entry each."""
        count = len(prompts)
        if isinstance(prompts, str) or any(len(each) != count for each in (documents, boundaries) if each is not None):
            raise MethodError(
                "batch takes a list of prompts, and one entry of documents or boundaries for each of them"
            )
        each = zip(prompts, documents or [None] * count, boundaries or [None] * count, strict=True)
        requests = [self._prepare(prompt, texts, bounds, method) for prompt, texts, bounds in each]
        return self._answers(requests, batch_size, **settings)

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
            MethodError: the continuation has no tokens.
        """
        request = self._prepare(prompt, documents, boundaries, method)
        if isinstance(request.method, PermutationVote):
            raise MethodError("permutation-vote elects an answer and gives no score; pass another method")
        target = self.tokenizer(continuation, add_special_tokens=False)["input_ids"]
        if not target:
            raise MethodError(f"continuation {continuation!r} has no tokens to score")
        self._check_length(len(request.tokens.ids) + len(target) - 1)
        return Score(list(target), self._logprobs(request, target), request.report)

    # from a prompt to a request

    def _resolve(self, method: str | Method | None) -> Method:
        return self.method if method is None else methods.get(method, self.name)

    def _prepare(
        self,
        prompt: str | Prompt,
        documents: Sequence[str] | None,
        boundaries: Boundaries | None,
        method: str | Method | None,
    ) -> Request:
        parts, boundaries, obstacle = in_parts(prompt, documents, boundaries)
        tokens = tokenise(parts, self.tokenizer)
        self._check_length(len(tokens.ids))
        wanted = self._resolve(method)
        ran, reason = wanted, boundaries.reason
        obstacle = obstacle or obstacle_in(tokens)
        if wanted.needs_documents and obstacle:
            ran, reason = NoMethod(), "; ".join(filter(None, (obstacle, reason)))
        if isinstance(ran, ReorderingMethod):
            order = ran.order(tokens.documents, lambda order: self._document_attention(tokens, order))
            tokens = tokens.reordered(order)
        if isinstance(ran, AttentionMethod) and ran.selective:
            ran, reason = self._more_confident(tokens, ran)
        report = Report(
            method_requested=wanted.name,
            method_ran=ran.name,
            source=boundaries.source,
            spans=tuple(tokens.spans),
            n_expected=boundaries.n_expected,
            n_found=boundaries.n_found,
            reason=reason,
        )
        inside = isinstance(ran, (AttentionMethod, PermutationVote))
        return Request(tokens, ran if inside else NoMethod(), report)

    def _check_length(self, length: int) -> None:
        if length >= self.window:
            raise PromptTooLongError(
                f"the prompt has {length} tokens and leaves no room for an answer in the model's window of "
                f"{self.window}; retrieve fewer or shorter documents"
            )

    @torch.no_grad()
    def _document_attention(self, tokens: TokenisedPrompt, order: Sequence[int]) -> list[float]:
        """Attention of the prompt's last token to each document when they stand in this order."""
        arranged, observer = tokens.reordered(order), DocumentAttention()
        with attach(self.model, observer, [arranged.spans], private=True):
            self.model(torch.tensor([arranged.ids], device=self.model.device), use_cache=False, logits_to_keep=1)
        scores = dict(zip(order, observer.scores[0], strict=True))
        return [scores[index] for index in range(len(order))]

    @torch.no_grad()
    def _more_confident(self, tokens: TokenisedPrompt, method: AttentionMethod) -> tuple[Method, str]:
        """Of the plain model and the method, the one that gives its first token the higher probability, and why."""
        plain, other = (self._first_logits(tokens, each)[0].softmax(-1).amax().item() for each in (NoMethod(), method))
        if plain >= other:
            return (
                NoMethod(),
                f"selective: the plain model is as confident of its first token ({plain:.3f}, {other:.3f})",
            )
        return method, ""

    def _first_logits(self, tokens: TokenisedPrompt, method: Method) -> Tensor:
        """Logits float32 ``[1, V]`` of the token after the prompt."""
        ids = torch.tensor([tokens.ids], device=self.model.device)
        with attach(self.model, method, [tokens.spans], private=True):
            logits: Tensor = self.model(ids, use_cache=False, logits_to_keep=1).logits[0].float()
        RequireFinite()(ids, logits)
        return logits

    @torch.no_grad()
    def _logprobs(self, request: Request, target: Sequence[int]) -> list[float]:
        """Log-probability of each token of ``target`` after the prompt."""
        device = self.model.device
        with attach(self.model, request.method, [request.tokens.spans], private=True):
            prompt_ids = torch.tensor([request.tokens.ids], device=device)
            first = self.model(prompt_ids, use_cache=True, logits_to_keep=1)
            logits = [first.logits[0]]
            if len(target) > 1:
                ids = torch.tensor([target[:-1]], device=device)
                logits.append(self.model(ids, past_key_values=first.past_key_values, use_cache=True).logits[0])
        scores = torch.cat(logits).float()
        RequireFinite()(prompt_ids, scores)
        chosen = scores.log_softmax(-1).gather(1, torch.tensor(target, device=device)[:, None])[:, 0]
        values: list[float] = chosen.tolist()
        return values

    # from requests to answers

    def _answers(self, requests: Sequence[Request], batch_size: int = 8, **settings: Any) -> list[Generation]:
        """One answer for each request, in padded batches; where a request is voted over, the elected one."""
        candidates = [request.candidates() for request in requests]
        flat = [candidate for each in candidates for candidate in each]
        answers: dict[int, Generation] = {}
        for together in groups(flat, batch_size):
            results = self._run([flat[index] for index in together], **settings)
            answers.update(zip(together, results, strict=True))
        given = iter(answers[index] for index in range(len(flat)))
        return [self._elected(each, [next(given) for _ in each]) for each in candidates]

    def _elected(self, candidates: Sequence[Request], answers: Sequence[Generation]) -> Generation:
        if len(answers) == 1:
            return answers[0]

        def mean_logprob(index: int) -> float:
            ids = answers[index].token_ids
            return sum(self._logprobs(candidates[index], ids)) / len(ids) if ids else -math.inf

        return elect(answers, mean_logprob)

    def _run(
        self,
        requests: Sequence[Request],
        *,
        max_new_tokens: int = 256,
        stop: Sequence[str] | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        do_sample: bool | None = None,
        cancelled: threading.Event | None = None,
        on_tokens: Callable[[list[int]], None] | None = None,
        **generate_kwargs: Any,
    ) -> list[Generation]:
        """Generate for requests of one method, in one padded batch."""
        check_whole("max_new_tokens", max_new_tokens, 1)
        if refused := RESERVED & generate_kwargs.keys():
            raise MethodError(
                f"{', '.join(sorted(refused))}: not an argument here, DebiasedLM settles it itself; leave it out"
            )
        if do_sample is not None:
            temperature = (1.0 if temperature is None else temperature) if do_sample else None
        prompts = [request.tokens for request in requests]
        width = max(len(prompt.ids) for prompt in prompts)
        ids, mask, spans = self._padded(prompts, width)
        config = copy.deepcopy(self.model.generation_config)
        eos = _as_list(config.eos_token_id if config.eos_token_id is not None else self.tokenizer.eos_token_id)
        config.update(num_beams=1, do_sample=False, temperature=None, top_k=None, top_p=None, max_length=None)
        config.update(eos_token_id=eos or None, pad_token_id=self._pad_token)
        config.update(max_new_tokens=min(max_new_tokens, self.window - width))
        stops = stop_strings(stop)
        watch = Watch(width, self._decode, stops, eos, cancelled or threading.Event(), on_tokens)
        chain = processors(temperature, top_k, top_p, seed, len(prompts), ids.device)
        with attach(self.model, requests[0].method, spans, private=True):
            output: Tensor = self.model.generate(  # type: ignore[operator]
                ids,
                attention_mask=mask,
                generation_config=config,
                logits_processor=chain,
                stopping_criteria=StoppingCriteriaList([watch]),
                **generate_kwargs,
            )
        return [
            self._answer(request, row[: watch.lengths.get(index, len(row))], index in watch.lengths, stops, eos)
            for index, (request, row) in enumerate(zip(requests, output[:, width:].tolist(), strict=True))
        ]

    def _padded(
        self, prompts: Sequence[TokenisedPrompt], width: int
    ) -> tuple[Tensor, Tensor, list[list[tuple[int, int]]]]:
        """Token ids and mask, padded on the left, and the spans moved accordingly."""
        pads = [width - len(prompt.ids) for prompt in prompts]
        ids = [[self._pad_token] * pad + prompt.ids for pad, prompt in zip(pads, prompts, strict=True)]
        mask = [[0] * pad + [1] * (width - pad) for pad in pads]
        spans = [[(b + pad, e + pad) for b, e in prompt.spans] for pad, prompt in zip(pads, prompts, strict=True)]
        device = self.model.device
        return torch.tensor(ids, device=device), torch.tensor(mask, device=device), spans

    @property
    def _pad_token(self) -> int:
        for token in (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id):
            if token is not None:
                return int(token)
        return 0

    def _answer(
        self, request: Request, ids: list[int], ended: bool, stop: Sequence[str], eos: Sequence[int]
    ) -> Generation:
        text, _ = trimmed(self._decode(ids), stop)
        usage = Usage(len(request.tokens.ids), len(ids))
        content = [token for token in ids if token not in eos]
        return Generation(text, content, usage, request.report, "stop" if ended else "length")

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))


def _as_list(value: int | list[int] | None) -> list[int]:
    if value is None:
        return []
    return list(value) if isinstance(value, list) else [value]
