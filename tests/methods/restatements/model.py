"""A reference model: slow, dense, in float64, and independent of the package under test.

A full sequence (a prompt and the tokens generated after it) runs through a Llama or Qwen2 model. Every attention layer
gets its weights from a *rule*; most rules come from a *view*: for a query, which keys it sees and at which positions.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor


@dataclass
class Decision:
    """The outcome of a rule in one layer, and the relative margin of its nearest tie."""

    outcome: tuple
    margin: float


@dataclass
class Sequence:
    """Token ids, of which the first ``prompt_length`` are the prompt, with the spans of its documents."""

    ids: list[int]
    prompt_length: int
    spans: list[tuple[int, int]] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)

    def document(self, token: int) -> int | None:
        for index, (begin, end) in enumerate(self.spans):
            if begin <= token < end:
                return index
        return None

    @property
    def lengths(self) -> list[int]:
        return [end - begin for begin, end in self.spans]

    @property
    def begin(self) -> int:
        return self.spans[0][0]

    @property
    def end(self) -> int:
        return self.spans[-1][1]


# By the key's index: position of the query, position of the key, what is added to the score.
Seen = dict[int, tuple[float, float, float]]
View = Callable[[int], Seen]  # of the query's index


@dataclass
class AttentionLayer:
    """One attention layer with its normalised input states."""

    layer: int
    layers: int
    heads: int
    key_heads: int
    module: torch.nn.Module
    hidden: Tensor
    frequencies: Tensor

    def key_head(self, head: int) -> int:
        return head // (self.heads // self.key_heads)

    def split(self, projected: Tensor, heads: int) -> Tensor:
        return projected.view(projected.shape[0], heads, -1).transpose(0, 1)

    def query_key(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries and keys without position, ``[heads, T, d]`` each. Key heads repeat for their query heads."""
        query = self.split(linear(self.module.q_proj, hidden), self.heads)
        key = self.split(linear(self.module.k_proj, hidden), self.key_heads)
        return query, torch.stack([key[self.key_head(head)] for head in range(self.heads)])

    def value(self) -> Tensor:
        value = self.split(linear(self.module.v_proj, self.hidden), self.key_heads)
        return torch.stack([value[self.key_head(head)] for head in range(self.heads)])


Rule = Callable[[AttentionLayer], Tensor]  # the weights [heads, T, T]


# the model


def linear(module: torch.nn.Module, x: Tensor) -> Tensor:
    y = x @ module.weight.double().T
    return y if module.bias is None else y + module.bias.double()


def rms_norm(module: torch.nn.Module, x: Tensor) -> Tensor:
    return module.weight.double() * x / torch.sqrt((x * x).mean(-1, keepdim=True) + module.variance_epsilon)


def rotate(x: Tensor, positions: Tensor, frequencies: Tensor) -> Tensor:
    """Apply RoPE to the rows of ``x``. Component c of the first half is paired with component c of the second half."""
    angle = positions[:, None] * frequencies
    cos, sin = angle.cos(), angle.sin()
    first, second = x[:, : x.shape[1] // 2], x[:, x.shape[1] // 2 :]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=1)


@torch.no_grad()
def restated_logits(model: torch.nn.Module, sequence: Sequence, rule: Rule) -> Tensor:
    """Return float64 logits ``[T, V]`` of all tokens, prompt and generated."""
    config, core = model.config, model.model
    heads, key_heads = config.num_attention_heads, config.num_key_value_heads
    width = core.layers[0].self_attn.head_dim
    theta = config.rope_parameters["rope_theta"]
    frequencies = torch.tensor([theta ** (-2 * c / width) for c in range(width // 2)], dtype=torch.float64)
    x = core.embed_tokens.weight.double()[torch.tensor(sequence.ids)]
    for index, layer in enumerate(core.layers):
        h = rms_norm(layer.input_layernorm, x)
        attn = AttentionLayer(index, len(core.layers), heads, key_heads, layer.self_attn, h, frequencies)
        weights, value = rule(attn), attn.value()
        mixed = torch.cat([weights[head] @ value[head] for head in range(heads)], dim=1)
        x = x + linear(layer.self_attn.o_proj, mixed)
        h = rms_norm(layer.post_attention_layernorm, x)
        gate = linear(layer.mlp.gate_proj, h)
        x = x + linear(layer.mlp.down_proj, gate / (1 + torch.exp(-gate)) * linear(layer.mlp.up_proj, h))
    return linear(model.lm_head, rms_norm(core.norm, x))


def attention(
    attn: AttentionLayer, query: Tensor, key: Tensor, views: list[View], rows: list[int] | None = None
) -> Tensor:
    """Return weights ``[heads, T, T]`` with one view per head. Rows that are not requested stay zero."""
    tokens = query.shape[1]
    weights = torch.zeros(attn.heads, tokens, tokens, dtype=torch.float64)
    for head in range(attn.heads):
        for i in range(tokens) if rows is None else rows:
            seen = views[head](i)
            scores = scores_of(attn, query[head, i], key[head], seen)
            exponentials = torch.exp(scores - scores.max())
            weights[head, i, list(seen)] = exponentials / exponentials.sum()
    return weights


def scores_of(attn: AttentionLayer, query: Tensor, key: Tensor, seen: Seen) -> Tensor:
    """Return the scores of one query ``[d]`` with its visible keys ``[T, d]``."""
    keys = list(seen)
    at_query, at_key, bias = torch.tensor([seen[j] for j in keys], dtype=torch.float64).T
    q = rotate(query.expand(len(keys), -1), at_query, attn.frequencies)
    k = rotate(key[keys], at_key, attn.frequencies)
    return (q * k).sum(1) / math.sqrt(q.shape[1]) + bias


def by_view(view: View) -> Rule:
    view = cache(view)  # it is asked for every layer and head

    def rule(attn: AttentionLayer) -> Tensor:
        return attention(attn, *attn.query_key(attn.hidden), [view] * attn.heads)

    return rule


def within(window: int, view: View) -> View:
    """Restrict a view to keys whose position is less than ``window`` before the query's."""

    def near(i: int) -> Seen:
        return {j: (q, k, bias) for j, (q, k, bias) in view(i).items() if q - k < window}

    return near
