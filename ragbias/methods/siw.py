"""SIW scales the attention weight of the initial token, Qiang et al., arXiv 2512.13109."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ragbias import attention
from ragbias.checks import Bounds, check_between, check_choice
from ragbias.methods.base import AttentionCall, AttentionMethod, LayerRange, SequenceCall, Tensor, attend_each

HIGHEST = 0.3  # share of tokens in step 1 of SIW

# (sequence, query [H, Q, d], its positions [Q], K) -> scores for the first K keys, float32 [H, Q, K]
Scores = Callable[["SequenceCall", "Tensor", "Tensor", int], "Tensor"]


@dataclass(frozen=True)
class SIW(AttentionMethod):
    """Multiply the attention weight of token ``i`` on token 0 by ``alpha_i``, without renormalisation.

    ``out_i += (alpha_i - 1) exp(q_i k_0 / sqrt(d) - lse_i) v_0`` for prompt tokens ``0 < i <= n``. In each layer:

    1. Average the attention weights of the prompt's last token ``n`` over heads. Select the 30% of tokens with the
       highest weights, and count the selected tokens in each document.
    2. Documents with more than ``sigma`` times the mean count are dense.
    3. ``alpha`` is ``dense`` for tokens of dense documents and ``sparse`` for all other tokens, including the last
       token. With ``outside="keep"``, our addition, ``alpha`` is 1 before and after the documents.

    Token 0 does not change, and generated tokens attend as in the plain model. The paper does not specify
    ``alpha``, ``sigma``, the mean over heads or the rounding of 30%. These choices are ours.

    Args:
        dense, sparse: values of ``alpha``, 0.001 to 1,000,000. Usually ``dense`` < 1 < ``sparse``.
        sigma: documents with more than this multiple of the mean count are dense, 0.001 to 1,000,000.
        layers: first and last layer, both included; ``None`` for the middle half.
        outside: ``"sparse"`` or ``"keep"``, for tokens outside the documents, see step 3.
    """

    dense: float = 0.9
    sparse: float = 1.1
    sigma: float = 1.0
    layers: LayerRange | None = None
    outside: Literal["sparse", "keep"] = "sparse"

    name = "siw"
    needs_documents = True
    positions = "model"
    default_layers = "middle half"
    cost = "the scores of one query and of one key in the prefill; none in decoding"
    source = "Qiang et al., arXiv 2512.13109"

    def __post_init__(self) -> None:
        for name in ("dense", "sparse", "sigma"):
            check_between(f"siw: {name}", getattr(self, name), Bounds(0.001, 1_000_000))
        check_choice("siw: outside", self.outside, ("sparse", "keep"))

    def layer_indices(self, n_layers: int) -> Sequence[int]:
        if self.layers is None:
            return range(n_layers // 4, n_layers - n_layers // 4)
        return super().layer_indices(n_layers)

    def attention(self, call: AttentionCall) -> Tensor:
        if call.prefill:
            return self.reweighted_plain(call, call.query, call.key)
        return call.plain(call.query, call.key)

    def reweighted_plain(self, call: AttentionCall, query: Tensor, key: Tensor) -> Tensor:
        """Compute attention with changed weights, ``[batch, Q, H, d]``, from encoded queries and keys of a prompt."""

        def rule(seq: SequenceCall) -> Tensor:
            plain = seq.attend(seq.query, seq.key, positions=seq.arange(seq.key.shape[1]), causal=True)
            return self.corrected(seq, *plain, _scores)

        return attend_each(replace(call, query=query, key=key), rule)

    def corrected(self, seq: SequenceCall, output: Tensor, lse: Tensor, scores: Scores) -> Tensor:
        """Correct the attention output ``[H, T, d]`` of a prompt for the changed weights of token 0.

        ``lse`` is ``[H, T]``. ``scores(seq, query, positions, count)`` computes the scores of the first ``count`` keys.
        """
        count = seq.key.shape[1]
        positions = seq.arange(count)
        weights = scores(seq, seq.query[:, -1:], positions[-1:], count).softmax(-1).mean((0, 1))
        alpha = self._alpha(seq, weights)
        share = (scores(seq, seq.query, positions, 1)[..., 0] - lse).exp()  # weight of each token on token 0, [H, T]
        first = seq.value[:, 0].repeat_interleave(output.shape[0] // seq.value.shape[0], dim=0)
        return output + (((alpha - 1) * share)[..., None] * first[:, None]).to(output.dtype)

    def _alpha(self, seq: SequenceCall, weights: Tensor) -> Tensor:
        """Return ``alpha`` of each token, float32 ``[T]``, from the last token's weights ``[T]``."""
        import torch

        counts = count_highest(weights, seq.spans)
        alpha = weights.new_full(weights.shape, self.sparse if self.outside == "sparse" else 1.0)
        for (begin, end), dense in zip(seq.spans, counts > self.sigma * counts.mean(), strict=True):
            alpha[begin:end] = torch.where(dense, self.dense, self.sparse)
        alpha[0] = 1
        return alpha


def count_highest(weights: Tensor, spans: Sequence[tuple[int, int]]) -> Tensor:
    """Return how many tokens of each document ``[n]`` are among the 30% with the highest ``weights`` ``[T]``."""
    import torch

    highest = weights.new_zeros(len(weights))
    count = max(1, int(HIGHEST * len(weights)))
    highest[weights.topk(count).indices] = 1
    return torch.stack([highest[begin:end].sum() for begin, end in spans])


def _scores(seq: SequenceCall, query: Tensor, positions: Tensor, count: int) -> Tensor:
    return attention.segment_scores(query, seq.key[:, :count], positions=positions, scoring=seq.scoring)
