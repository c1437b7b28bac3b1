"""Base class of methods that change the positions and the visibility of documents."""

from __future__ import annotations

from ragbias import attention
from ragbias.methods.base import AttentionMethod, SequenceCall, Tensor


class SegmentMethod(AttentionMethod):
    """Each document sees at least the prefix and itself. Tokens after the documents see all tokens before them.

    The prefix runs as in the plain model. Subclasses determine whether documents also see each other, the positions of
    the documents for each query, and the position of the first token after the documents.

    Attributes:
        sees_others: whether each document sees all tokens of the other documents.
    """

    needs_documents = True
    sees_others: bool = False

    def together_in(self, layer: int) -> bool:
        """Whether documents see each other in this layer."""
        return self.sees_others

    @property
    def follows_query(self) -> bool:
        """Whether the documents' positions differ between heads, or between tokens after the documents."""
        return False

    def document_starts(self, seq: SequenceCall) -> Tensor:
        """Return the starts of the documents for tokens of each document, int64 ``[H or 1, n, n]``.

        Entry ``[h, i, j]`` is the position at which document ``j`` starts for tokens of document ``i`` in head ``h``.
        """
        raise NotImplementedError

    def tail_starts(self, seq: SequenceCall, query: Tensor) -> Tensor:
        """Return the starts of the documents for tokens after the documents, with the queries ``[H, Q, d]``.

        The result is int64 ``[H or 1, Q or 1, n]``. By default, it equals the starts for tokens of the first document.
        """
        return self.document_starts(seq)[:, :1]

    def tail_begin(self, seq: SequenceCall) -> int:
        """Return the position of the first token after the documents."""
        return seq.documents_end

    def document_bias(self, seq: SequenceCall) -> float:
        """Return the number to add to scores between queries after the documents and keys of documents."""
        return 0.0

    def attend_sequence(self, seq: SequenceCall) -> tuple[Tensor, Tensor]:
        if self.follows_query or not seq.scoring.position_in_keys:
            keys = seq.encoded("offsets", lambda new, first: _at_offsets(seq, new, first))
            tail = self.attend_tail(seq, keys, seq.spans, self._starts(seq, seq.query[:, -seq.new_tail :]))
        else:
            keys = _at_offsets(seq, seq.key, 0) if seq.prefill else seq.key  # needed only for queries in documents
            tail = self._tail_of_fixed_documents(seq)
        if not seq.prefill:
            return tail
        parts = [self._documents(seq, keys), tail]
        end = seq.prefix
        if end:
            query, positions = seq.query[:, :end], seq.arange(end)
            prefix = seq.attend(query, keys, positions=positions, segments=[(0, end)], causal=True)
            parts.insert(0, prefix)
        return attention.keys.concatenate(parts)

    def _documents(self, seq: SequenceCall, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Compute attention of the tokens of all documents. Each token sees its own document causally."""
        from torch.nn.functional import pad

        starts = self.document_starts(seq)
        positions = starts[0].diagonal().tolist()
        groups = []
        together = self.together_in(seq.layer)
        for i, span in enumerate(seq.spans):
            others = [j for j in range(len(seq.spans)) if j != i] if together else []
            visible = [*others, i]
            segments = [(0, seq.prefix), *(seq.spans[j] for j in visible)]
            with_prefix = pad(starts[:, i, visible], (1, 0))  # the prefix starts at 0
            groups.append(attention.keys.Group(span, positions[i], segments, with_prefix))
        return attention.primitive.attend_groups(seq.query, keys, seq.value, groups, seq.scoring)

    def _tail_of_fixed_documents(self, seq: SequenceCall) -> tuple[Tensor, Tensor]:
        """Compute attention of the tokens after the documents. Each key is encoded once.

        Documents must have the same positions for all heads and for all of these tokens.
        """

        def at_positions(new: Tensor, first: int) -> Tensor:
            if "starts" not in seq.memory:  # all tokens have the same starts
                seq.memory["starts"] = self._starts(seq, seq.query[:, -1:])[0, 0]
            segment, offset = _segment_and_offset(seq, first, new.shape[1])
            return seq.scoring.encoding(new, seq.memory["starts"][segment] + offset)

        keys = seq.encoded("positions", at_positions)
        return self.attend_tail(seq, keys, [(seq.prefix, seq.documents_end)], None)

    def attend_tail(
        self, seq: SequenceCall, keys: Tensor, documents: attention.keys.Segments, starts: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Compute attention of the tokens after the documents, in the prompt or generated.

        Args:
            keys: ``[G, K, d]``, each encoded at its offset in its segment or, if ``starts`` is None, at its position.
            starts: positions of the ``n + 2`` segments, ``[H or 1, Q or 1, n + 2]``. The segments are the prefix, the
                ``documents`` and the suffix.
        """
        bias = self.document_bias(seq)
        segments = [(0, seq.prefix), *documents, (seq.documents_end, seq.key.shape[1])]
        if starts is None and not bias:
            segments = [(0, seq.key.shape[1])]
        query, positions = seq.query[:, -seq.new_tail :], self.tail_positions(seq)
        biases = [0.0, *[bias] * len(documents), 0.0] if bias else None
        return seq.attend(query, keys, positions=positions, segments=segments, starts=starts, bias=biases, causal=True)

    def _starts(self, seq: SequenceCall, query: Tensor) -> Tensor:
        """Return the starts of prefix, documents and suffix for ``query``: ``[H or 1, Q or 1, n + 2]``."""
        from torch.nn.functional import pad

        with_prefix = pad(self.tail_starts(seq, query), (1, 0))  # the prefix starts at 0
        return pad(with_prefix, (0, 1), value=self.tail_begin(seq))

    def tail_positions(self, seq: SequenceCall) -> Tensor:
        """Return the positions of the queries after the documents: int64 ``[Q]``."""
        last = self.tail_begin(seq) + seq.key.shape[1] - seq.documents_end
        return seq.arange(last - seq.new_tail, last)


def _segment_and_offset(seq: SequenceCall, first: int, count: int) -> tuple[Tensor, Tensor]:
    """Return the segment of each key and its offset in this segment, for ``count`` keys from index ``first``."""
    import torch

    indices = seq.arange(first, first + count)
    if first >= seq.documents_end:  # each step of decoding takes this branch
        return indices.new_full(indices.shape, len(seq.spans) + 1), indices - seq.documents_end
    edges = indices.new_tensor([0, *(begin for begin, _ in seq.spans), seq.documents_end])
    segment = torch.searchsorted(edges, indices, right=True) - 1
    return segment, indices - edges[segment]


def _at_offsets(seq: SequenceCall, keys: Tensor, first: int) -> Tensor:
    """Encode each key at its offset in its segment. The first key has the index ``first``."""
    _, offsets = _segment_and_offset(seq, first, keys.shape[1])
    return seq.scoring.encoding(keys, offsets)


def input_starts(seq: SequenceCall) -> Tensor:
    """Return ``document_starts`` ``[1, n, n]`` for documents at their positions in the prompt."""
    begins = seq.lengths.new_tensor([begin for begin, _ in seq.spans])
    return begins.expand(1, len(begins), -1)


def starts_after_prefix(seq: SequenceCall) -> Tensor:
    """Return ``document_starts`` ``[1, n, n]`` for documents that all start at the end of the prefix."""
    return seq.lengths.new_full((1, len(seq.spans), len(seq.spans)), seq.prefix)


def starts_up_to(end: int, lengths: Tensor, nearest_first: Tensor) -> Tensor:
    """Return the starts of adjacent documents. ``nearest_first`` lists them backwards from position ``end``."""
    starts = end - lengths[nearest_first].cumsum(-1)
    return nearest_first.new_empty(nearest_first.shape).scatter_(-1, nearest_first, starts)
