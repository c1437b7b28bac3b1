"""The methods' formulas as views or rules of ``model``, independent of the package under test."""

import itertools
import math
from collections.abc import Callable
from functools import cache

import torch
from methods.restatements.model import (
    AttentionLayer,
    Decision,
    Rule,
    Seen,
    Sequence,
    View,
    attention,
    by_view,
    scores_of,
)
from torch import Tensor

# views: the same in all layers


def vanilla(i: int) -> Seen:
    return {j: (i, j, 0.0) for j in range(i + 1)}


def position_interpolation(ratio: float) -> View:
    return lambda i: {j: (i / ratio, j / ratio, 0.0) for j in range(i + 1)}


def layerwise_interpolation(ratios: list[float]) -> Rule:
    return lambda attn: by_view(position_interpolation(ratios[attn.layer]))(attn)


def self_extend(group: int, window: int) -> View:
    def pair(i: int, j: int) -> tuple[float, float, float]:
        return (i, j, 0.0) if i - j < window else (i // group + window - window // group, j // group, 0.0)

    return lambda i: {j: pair(i, j) for j in range(i + 1)}


def pine_at_input_positions(sequence: Sequence) -> View:
    """All documents see each other, and positions are unchanged."""

    def visible(i: int, j: int) -> bool:
        if sequence.document(i) is None:
            return j <= i
        return j < sequence.end and (sequence.document(j) != sequence.document(i) or j <= i)

    return lambda i: {j: (i, j, 0.0) for j in range(len(sequence.ids)) if visible(i, j)}


def pine_in_canonical_order(sequence: Sequence) -> View:
    texts = [tuple(sequence.ids[begin:end]) for begin, end in sequence.spans]
    canonical = sorted(range(len(texts)), key=texts.__getitem__)

    def position(token: int, nearest_last: list[int]) -> int:
        document = sequence.document(token)
        if document is None:
            return token
        before = nearest_last[: nearest_last.index(document)]
        return sequence.begin + sum(sequence.lengths[m] for m in before) + token - sequence.spans[document][0]

    def view(i: int) -> Seen:
        own = sequence.document(i)
        order = canonical if own is None else [m for m in canonical if m != own] + [own]
        visible = pine_at_input_positions(sequence)(i)
        return {j: (position(i, order), position(j, order), 0.0) for j in visible}

    return view


def pine_in_canonical_order_with_documents_alone(sequence: Sequence, first: int, last: int) -> Rule:
    """Outside the given layers, a document sees only the prefix and itself, and starts right after the prefix."""
    together = pine_in_canonical_order(sequence)

    def apart(i: int) -> Seen:
        if sequence.document(i) is None:
            return together(i)
        shift = sequence.begin - sequence.spans[sequence.document(i)][0]
        own = [j for j in range(i + 1) if alone(sequence, i, j)]
        return {j: (i + shift, j if j < sequence.begin else j + shift, 0.0) for j in own}

    return lambda attn: by_view(together if first <= attn.layer <= last else apart)(attn)


def alone(sequence: Sequence, i: int, j: int) -> bool:
    """Whether i sees j if documents do not see each other."""
    if j > i:
        return False
    if sequence.document(i) is None or j < sequence.begin:
        return True
    return sequence.document(i) == sequence.document(j)


def no_inter_document_attention(sequence: Sequence) -> View:
    return lambda i: {j: (i, j, 0.0) for j in range(i + 1) if alone(sequence, i, j)}


def parallel_windows(sequence: Sequence, document_bias: float = 0.0) -> View:
    """``document_bias`` is added to scores of tokens after the documents with document tokens."""

    def position(token: int) -> int:
        document = sequence.document(token)
        if document is not None:
            return sequence.begin + token - sequence.spans[document][0]
        if token < sequence.begin:
            return token
        return sequence.begin + max(sequence.lengths) + token - sequence.end

    def view(i: int) -> Seen:
        seen: Seen = {}
        for j in [j for j in range(i + 1) if alone(sequence, i, j)]:
            biased = i >= sequence.end and sequence.document(j) is not None
            seen[j] = (position(i), position(j), document_bias if biased else 0.0)
        return seen

    return view


def structured_prompting(sequence: Sequence) -> View:
    return parallel_windows(sequence, -math.log(len(sequence.spans)))


def rotor(sequence: Sequence, key: Callable | None = None) -> View:
    texts = [tuple(sequence.ids[begin:end]) for begin, end in sequence.spans]
    count = len(texts)
    canonical = sorted(range(count), key=lambda m: (0 if key is None else key(texts[m]), texts[m]))

    def starts(nearest_first: list[int]) -> dict[int, int]:
        result, end = {}, sequence.end
        for document in nearest_first:
            end -= sequence.lengths[document]
            result[document] = end
        return result

    def position(token: int, start: dict[int, int]) -> int:
        document = sequence.document(token)
        return token if document is None else start[document] + token - sequence.spans[document][0]

    def view(i: int) -> Seen:
        own = sequence.document(i)
        if own is None:
            start = starts(canonical)
            return {j: (i, position(j, start), 0.0) for j in range(i + 1)}
        rank = canonical.index(own)
        start = starts([canonical[(rank + step) % count] for step in range(count)])
        visible = [j for j in range(sequence.end) if sequence.document(j) != own or j <= i]
        return {j: (position(i, start), position(j, start), 0.0) for j in visible}

    return view


# rules: some layers only, or decided from a layer's attention


def ms_poe(
    sequence: Sequence,
    min_ratio: float = 1.2,
    max_ratio: float = 1.8,
    layers: tuple[int, int | None] = (2, None),
    heads: str = "by-awareness",
    alpha: float = 3.0,
) -> Rule:
    prompt, last = sequence.prompt_length, sequence.prompt_length - 1

    def by_awareness(attn: AttentionLayer) -> list[int]:
        """Key heads, most position-aware first."""
        weights = attention(attn, *attn.query_key(attn.hidden), [vanilla] * attn.heads, [last])[:, last, :prompt]
        threshold = alpha * (1 / prompt)
        scores = []
        for key_head in range(attn.key_heads):
            rows = [weights[head] for head in range(attn.heads) if attn.key_head(head) == key_head]
            scores.append(int((torch.cat(rows) > threshold).sum()) / (prompt * len(rows)))
        sequence.decisions.append(Decision(tuple(scores), float(((weights - threshold).abs() / threshold).min())))
        return sorted(range(attn.key_heads), key=lambda key_head: (-scores[key_head], key_head))

    def by_entropy(attn: AttentionLayer) -> list[int]:
        """Key heads, sorted by how few keys their query heads attend to."""
        weights = attention(attn, *attn.query_key(attn.hidden), [vanilla] * attn.heads, [last])[:, last, :prompt]
        entropy = [-float((row * row.log()).sum()) for row in weights]
        of_key_head = [
            sum(entropy[head] for head in range(attn.heads) if attn.key_head(head) == key_head)
            for key_head in range(attn.key_heads)
        ]
        ascending = sorted(of_key_head)
        margin = min(b - a for a, b in itertools.pairwise(ascending)) / ascending[-1]
        sequence.decisions.append(Decision(tuple(of_key_head), margin))
        return sorted(range(attn.key_heads), key=of_key_head.__getitem__)

    def rule(attn: AttentionLayer) -> Tensor:
        query, key = attn.query_key(attn.hidden)
        if not layers[0] <= attn.layer <= (attn.layers - 1 if layers[1] is None else layers[1]):
            return attention(attn, query, key, [vanilla] * attn.heads)
        in_order = list(range(attn.key_heads))
        smallest_first = (
            by_awareness(attn)
            if heads == "by-awareness"
            else by_entropy(attn)
            if heads == "entropy"
            else in_order
            if heads == "sequential"
            else in_order[::-1]
        )
        views = []
        for head in range(attn.heads):
            rank = smallest_first.index(attn.key_head(head))
            ratio = min_ratio + (max_ratio - min_ratio) * rank / (attn.key_heads - 1)
            views.append(position_interpolation(ratio))
        return attention(attn, query, key, views)

    return rule


def adaptive_parallel_encoding(sequence: Sequence, temperature: float = 0.9, scale: float = 0.9) -> Rule:
    """A document's key weighs ``exp(s / T) Z^(S T - 1)``, where Z sums over all of them; others weigh ``exp(s)``."""
    view = cache(parallel_windows(sequence))

    def rule(attn: AttentionLayer) -> Tensor:
        query, key = attn.query_key(attn.hidden)
        weights = attention(attn, query, key, [view] * attn.heads, list(range(sequence.end)))
        for head in range(attn.heads):
            for i in range(sequence.end, len(sequence.ids)):
                keys, scores = list(view(i)), scores_of(attn, query[head, i], key[head], view(i))
                in_documents = torch.tensor([sequence.document(j) is not None for j in keys])
                z = torch.exp(scores[in_documents] / temperature).sum()
                own = torch.exp(scores)
                own[in_documents] = torch.exp(scores[in_documents] / temperature) * z ** (scale * temperature - 1)
                weights[head, i, keys] = own / own.sum()
        return weights

    return rule


def siw(
    sequence: Sequence,
    dense: float = 0.9,
    sparse: float = 1.1,
    sigma: float = 1.0,
    layers: tuple[int, int] | None = None,
    view: View = vanilla,
    outside: str = "sparse",
) -> Rule:
    """The paper's three steps in each middle layer, for the tokens 1 to n of the prompt, n the last one.

    ``outside="keep"`` is not the paper's: only tokens of documents are sparse.
    """
    n = sequence.prompt_length - 1

    def dense_tokens(last_row: list[float]) -> set[int]:
        # 1. the 30% of the prompt's tokens with the highest weight from token n, counted in each document
        best_first, n_top = sorted(range(n + 1), key=lambda token: -last_row[token]), max(1, int(0.3 * (n + 1)))
        counts = [sum(1 for t in best_first[:n_top] if sequence.document(t) == m) for m in range(len(sequence.spans))]
        # 2. the documents that hold more of them than sigma times the mean are dense
        mean = sum(counts) / len(counts)
        found = [m for m, count in enumerate(counts) if count > sigma * mean]
        edge, beyond = last_row[best_first[n_top - 1]], last_row[best_first[n_top]]
        sequence.decisions.append(Decision(tuple(m in found for m in range(len(counts))), (edge - beyond) / edge))
        return {i for i in range(1, n + 1) if sequence.document(i) in found}

    def rule(attn: AttentionLayer) -> Tensor:
        weights = by_view(view)(attn)
        first, last = layers or (attn.layers // 4, attn.layers - attn.layers // 4 - 1)
        if not first <= attn.layer <= last:
            return weights
        chosen = dense_tokens(weights[:, n, : n + 1].mean(0).tolist())
        # 3. the weight on token 0 of every token in (0, n]: dense, or else sparse, which is (0, n] without the dense
        for i in range(1, n + 1):
            if outside == "sparse" or sequence.document(i) is not None:
                weights[:, i, 0] *= dense if i in chosen else sparse
        return weights

    return rule


def channel_scaling(
    sequence: Sequence,
    channel: int | list[int],
    factor: float,
    layers: tuple[int, int],
    last: int = 1,
    plain: Rule | None = None,
) -> Rule:
    """``plain`` returns the queries that are not replaced: those of the prompt except its last ones."""

    def rule(attn: AttentionLayer) -> Tensor:
        weights = (plain or by_view(vanilla))(attn)
        if layers[0] <= attn.layer <= layers[1]:
            scaled = attn.hidden.clone()
            scaled[:, channel] *= factor
            rows = list(range(sequence.prompt_length - last, len(sequence.ids)))
            replaced = attention(attn, *attn.query_key(scaled), [vanilla] * attn.heads, rows)
            weights[:, rows] = replaced[:, rows]
        return weights

    return rule
