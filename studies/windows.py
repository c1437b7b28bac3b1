"""Parallel windows in batches: log-probabilities, greedy answers, and logits with gradients for a reader's weights.

The results equal those of the method ``pcw``, or of the plain model for prompts with a single window. Functions with
``mixture`` in their names give the results of the method ``mixture``, with one window per document.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from ragbias.adaptation.training import Reader
from ragbias.binding.architectures import KV_CACHE
from ragbias.generation.decoding import sequence_logprobs
from ragbias.generation.scoring import continuation_ids, fuse_logits
from ragbias.lm import DebiasedLM
from ragbias.methods import Mixture
from studies.readers import Case, document_orders, render_prompt

ANSWER_TOKENS = 32
MIXTURE = Mixture()
CHUNK = 24  # sequences of an evaluation that run together
WINDOWS = 64  # windows whose states are computed together


@dataclass
class Row:
    """A prompt as token ids. A window sees only the prefix and itself; the plain model has one window."""

    prefix: list[int]
    windows: list[list[int]]
    suffix: list[int]
    target: list[int] = field(default_factory=list)

    @property
    def plain(self) -> Row:
        return Row(self.prefix, [[token for window in self.windows for token in window]], self.suffix, self.target)

    @property
    def experts(self) -> list[Row]:
        return [Row(self.prefix, [window], self.suffix, self.target) for window in self.windows]


@contextmanager
def applied_reader(model: PreTrainedModel, reader: Reader | None) -> Iterator[None]:
    """Apply a reader to all tokens."""
    with ExitStack() as hooks:
        for path, pair in (reader.lora.weights if reader else {}).items():
            hooks.callback(model.get_submodule(path).register_forward_hook(partial(_add_reader, pair)).remove)
        yield


def _add_reader(pair: tuple[Tensor, Tensor], module: nn.Module, args: tuple[Tensor], output: Tensor) -> Tensor:
    down, up = (half.T.to(args[0].dtype) for half in pair)
    return output + args[0] @ down @ up


def pad_right(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return ids ``[rows, longest]``, padded with zeros on the right, and a mask of the tokens that are not padding."""
    lengths = torch.tensor([len(row) for row in rows])
    width = max(1, int(lengths.max()))
    ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], device=device)
    return ids, (torch.arange(width) < lengths[:, None]).to(device)


@dataclass
class Context:
    """The state after prefix and windows, with ``C`` columns for their tokens and padding.

    Attributes:
        layers: for each layer, keys and values ``[B, heads, C, D]``.
        seen: bool ``[B, C]``, false for padding.
        position: ``[B]``, position of the next token.
        mask: ``[B, T, C + T]``, mask of the current run.
        mass: ``[B, C]``, sum of the attention to each column; None: attention is not measured.
    """

    layers: list[tuple[Tensor, Tensor]]
    seen: Tensor
    position: Tensor
    mask: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.bool))
    mass: Tensor | None = None

    def copy(self) -> Context:
        return Context(self.layers[:], self.seen, self.position)


def attend_context(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: object,
    scaling: float,
    *,
    context: Context,
    **_: Any,
) -> tuple[Tensor, None]:
    """Compute attention to a context and to the tokens of the run. No gradient flows into the context.

    Query heads of a group are stacked as rows, so that keys and values are neither repeated nor joined. Without
    gradients, the keys and values of the run extend the context.
    """
    batch, groups, width, size = key.shape
    keys, values = context.layers[module.layer_idx]
    rows = (query * scaling).reshape(batch, groups, -1, size)
    scores = torch.cat([rows @ keys.mT, rows @ key.mT], dim=-1).view(batch, groups, -1, width, context.mask.shape[-1])
    weights = scores.masked_fill_(~context.mask[:, None, None], float("-inf")).softmax(-1).flatten(2, 3)
    output = weights[..., : keys.shape[2]] @ values + weights[..., keys.shape[2] :] @ value
    if context.mass is not None:
        context.mass += weights[..., : keys.shape[2]].float().sum((1, 2))
    if not torch.is_grad_enabled():
        context.layers[module.layer_idx] = torch.cat([keys, key], dim=2), torch.cat([values, value], dim=2)
    return output.view(batch, -1, width, size).transpose(1, 2), None


AttentionInterface.register("windows", attend_context)


class States:
    """Cache keys and values of windows ``[layers, 2, heads, T, D]`` by prefix and window, up to a number of bytes."""

    def __init__(self, size: int) -> None:
        self.left, self.known = size, dict[tuple[tuple[int, ...], tuple[int, ...]], Tensor]()

    @torch.no_grad()
    def of(self, model: PreTrainedModel, prefix: Sequence[int], windows: Sequence[Sequence[int]]) -> list[Tensor]:
        """Return the states of the prefix, then the states of each window after the prefix."""
        keys = [(tuple(prefix), tuple(window)) for window in ((), *windows)]
        missing = sorted((key for key in dict.fromkeys(keys) if key not in self.known), key=lambda key: len(key[1]))
        found = {key: self.known[key] for key in keys if key in self.known}
        for begin in range(0, len(missing), WINDOWS):
            part = missing[begin : begin + WINDOWS]
            ids, _ = pad_right([[*before, *window] for before, window in part], model.device)
            layers = model.model(ids, use_cache=True)[KV_CACHE].layers
            joined = torch.stack([torch.stack([layer.keys, layer.values]) for layer in layers])
            for index, (before, window) in enumerate(part):
                first = len(before) if window else 0
                states = joined[:, :, index, :, first : len(before) + len(window)].clone()
                found[before, window] = states
                if states.nbytes <= self.left:
                    self.left -= states.nbytes
                    self.known[before, window] = states
        return [found[key] for key in keys]


STATES = States(0)


@torch.no_grad()
def compute_context(model: PreTrainedModel, rows: Sequence[Row]) -> Context:
    """Compute each window after its prefix. All rows have the same prefix."""
    prefix = rows[0].prefix
    first, *states = STATES.of(model, prefix, [window for row in rows for window in row.windows])
    lengths = [len(prefix) + sum(map(len, row.windows)) for row in rows]
    layers, halves, heads, _, size = first.shape
    joined = first.new_zeros(layers, halves, len(rows), heads, max(lengths), size)
    of_window = iter(states)
    for index, row in enumerate(rows):
        parts = [first, *(next(of_window) for _ in row.windows)]
        joined[:, :, index, :, : lengths[index]] = torch.cat(parts, dim=3)
    seen = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    longest = torch.tensor([max(map(len, row.windows)) for row in rows])
    return Context(
        [(keys, values) for keys, values in joined], seen.to(model.device), len(prefix) + longest.to(model.device)
    )


def compute_hidden(model: PreTrainedModel, context: Context, tails: Sequence[Sequence[int]]) -> Tensor:
    """Run ``tails`` ``[B, T]`` after a context and extend it. Return hidden states ``[B, T, D]``."""
    ids, real = pad_right(tails, model.device)
    width = ids.shape[1]
    causal = torch.ones(width, width, dtype=torch.bool, device=ids.device).tril()
    context.mask = torch.cat([context.seen[:, None].expand(-1, width, -1), causal & real[:, None]], dim=2)
    hidden = run_tokens(model, context, ids, context.position[:, None] + torch.arange(width, device=ids.device))
    context.seen = torch.cat([context.seen, real], dim=1)
    context.position = context.position + real.sum(1)
    return hidden


def run_tokens(model: PreTrainedModel, context: Context, ids: Tensor, positions: Tensor) -> Tensor:
    """Run tokens ``[B, T]`` at ``positions``, with ``context.mask``."""
    usual = model.config._attn_implementation
    model.config._attn_implementation = "windows"
    try:
        hidden: Tensor = model.model(ids, position_ids=positions, use_cache=False, context=context).last_hidden_state
    finally:
        model.config._attn_implementation = usual
    return hidden


def compute_target_logits(
    model: PreTrainedModel, rows: Sequence[Row], reader: Reader | None = None, context: Context | None = None
) -> tuple[Tensor, Tensor]:
    """Return logits ``[B, longest target, V]`` that predict the targets, and a mask of those that are not padding."""
    context = context or compute_context(model, rows)
    with applied_reader(model, reader):
        hidden = compute_hidden(model, context, [[*row.suffix, *row.target[:-1]] for row in rows])
    columns, real = pad_right(
        [range(len(r.suffix) - 1, len(r.suffix) + len(r.target) - 1) for r in rows], hidden.device
    )
    picked = hidden.gather(1, columns[..., None].expand(-1, -1, hidden.shape[2]))
    return model.lm_head(picked), real


def compute_mixture_logprobs(
    model: PreTrainedModel, rows: Sequence[Row], reader: Reader | None = None, context: Context | None = None
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Return log-probabilities ``[B, longest target, V]`` under a mixture, and a mask of those that are not padding.

    Also return, for each row, the log-probability of the suffix after each window. The first token is excluded.
    """
    experts = [expert for row in rows for expert in row.experts]
    context = context or compute_context(model, experts)
    with applied_reader(model, reader):
        hidden = compute_hidden(model, context, [[*row.suffix, *row.target[:-1]] for row in experts])
    mixed, likelihoods, first = [], [], 0
    for row in rows:
        of_row = hidden[first : first + len(row.windows), : len(row.suffix) + len(row.target) - 1]
        first += len(row.windows)
        suffix, answer = model.lm_head(of_row).float().split([len(row.suffix) - 1, len(row.target)], dim=1)
        likelihoods.append(sequence_logprobs(suffix, torch.tensor(row.suffix[1:], device=hidden.device)))
        mixed.append(fuse_logits(MIXTURE, likelihoods[-1], answer, row.target))
    real = pad_right([row.target for row in rows], hidden.device)[1]
    return nn.utils.rnn.pad_sequence(mixed, batch_first=True), real, likelihoods


@torch.no_grad()
def generate_mixture(
    model: PreTrainedModel, row: Row, end: int, reader: Reader | None = None, context: Context | None = None
) -> list[int]:
    """Return the greedy answer of a mixture with its EOS token, or ``ANSWER_TOKENS`` tokens."""
    context, count = context or compute_context(model, row.experts), len(row.windows)
    with applied_reader(model, reader):
        logits = model.lm_head(compute_hidden(model, context, [row.suffix] * count)).float()
        suffix = torch.tensor(row.suffix[1:], device=logits.device)
        memory: dict[str, Any] = {"likelihoods": sequence_logprobs(logits[:, :-1], suffix)}
        answer = [int(MIXTURE.combine_logits(logits[:, -1], memory, None).argmax())]
        while len(answer) < ANSWER_TOKENS and answer[-1] != end:
            logits = model.lm_head(compute_hidden(model, context, [answer[-1:]] * count)).float()
            answer.append(int(MIXTURE.combine_logits(logits[:, -1], memory, answer[-1]).argmax()))
    return answer


@torch.no_grad()
def generate_answers(
    model: PreTrainedModel, rows: Sequence[Row], end: int, reader: Reader | None = None, context: Context | None = None
) -> list[list[int]]:
    """Return greedy answers with their EOS token, or ``ANSWER_TOKENS`` tokens."""
    context = context or compute_context(model, rows)
    with applied_reader(model, reader):
        hidden = compute_hidden(model, context, [row.suffix for row in rows])
        last = torch.tensor([len(row.suffix) - 1 for row in rows], device=hidden.device)
        tokens = [model.lm_head(hidden[torch.arange(len(rows)), last]).argmax(-1)]
        while len(tokens) < ANSWER_TOKENS:
            step = compute_hidden(model, context, tokens[-1][:, None].tolist())
            tokens.append(model.lm_head(step[:, -1]).argmax(-1))
            if len(tokens) % 8 == 0 and all(end in row for row in torch.stack(tokens, 1).tolist()):
                break
    answers = torch.stack(tokens, 1).tolist()
    return [answer[: answer.index(end) + 1] if end in answer else answer for answer in answers]


@torch.no_grad()
def compute_logprobs(
    model: PreTrainedModel, rows: Sequence[Row], reader: Reader | None = None, context: Context | None = None
) -> list[float]:
    """Return the log-probabilities of the targets, in nats."""
    logits, real = compute_target_logits(model, rows, reader, context)
    return _sum_logprobs(logits.float().log_softmax(-1), real, rows)


def _sum_logprobs(logprobs: Tensor, real: Tensor, rows: Sequence[Row]) -> list[float]:
    """Return the log-probability of each row's target, given the log-probabilities of all tokens ``[B, T, V]``."""
    ids, _ = pad_right([row.target for row in rows], logprobs.device)
    chosen = logprobs.gather(2, ids[..., None])[..., 0]
    return [float(total) for total in (chosen * real).sum(1)]


def autocast(model: PreTrainedModel) -> torch.autocast:
    """Compute in bfloat16 on accelerators."""
    device = str(model.device).partition(":")[0]
    return torch.autocast(device, torch.bfloat16, enabled=device != "cpu")


@torch.no_grad()
def evaluate(
    lm: DebiasedLM, cases: Sequence[Case], reader: Reader | None, plain: bool, answers: bool
) -> tuple[list[list[float]], list[list[str]]]:
    """Return log-probabilities and, if requested, answers ``[question][order]``. Parallel windows run in one order."""
    model, end = lm.model, lm.tokenizer.eos_token_id
    scores: list[list[float]] = []
    texts: list[list[str]] = []
    for begin in range(0, len(cases), CHUNK):
        by_order = zip(*(make_case_rows(lm, case) for case in cases[begin : begin + CHUNK]), strict=True)
        runs = [[row.plain for row in rows] for rows in by_order] if plain else [list(next(by_order))]
        with autocast(model):
            scores += map(list, zip(*(compute_logprobs(model, rows, reader) for rows in runs), strict=True))
            if answers:
                made = [generate_answers(model, rows, end, reader) for rows in runs]
                decoded = [lm.tokenizer.batch_decode(of_order, skip_special_tokens=True) for of_order in made]
                texts += map(list, zip(*decoded, strict=True))
    return scores, texts


@torch.no_grad()
def evaluate_mixture(
    lm: DebiasedLM, cases: Sequence[Case], reader: Reader | None, answers: bool
) -> tuple[list[list[float]], list[list[str]]]:
    """Return the results of ``evaluate`` for a mixture. A mixture runs in one order."""
    scores, texts = [], []
    for case in cases:
        row = make_case_rows(lm, case)[0]
        with autocast(lm.model):
            context = compute_context(lm.model, row.experts)
            mixed, real, _ = compute_mixture_logprobs(lm.model, [row], reader, context.copy())
            scores.append(_sum_logprobs(mixed, real, [row]))
            if answers:
                ids = generate_mixture(lm.model, row, lm.tokenizer.eos_token_id, reader, context)
                texts.append([str(lm.tokenizer.decode(ids, skip_special_tokens=True))])
    return scores, texts


def make_case_rows(lm: DebiasedLM, case: Case) -> list[Row]:
    """Return the rows of a question, one per order."""
    rows = []
    for documents in document_orders(case):
        prompt = render_prompt(lm, documents, case.question, "chat")
        tokens = lm.prepare(prompt, method="none").tokens
        target = continuation_ids(lm.tokenizer, prompt.suffix, case.answers[0])
        rows.append(Row(list(tokens.prefix), [list(part) for part in tokens.documents], list(tokens.suffix), target))
    return rows
