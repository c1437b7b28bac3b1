"""Scores of few queries with many segments, against the scores of each segment alone."""

import pytest
import torch

from ragbias.attention import Scoring
from ragbias.attention.keys import Rotary
from ragbias.attention.torch_backend import segment_scores

SCORING = Scoring(Rotary(10000.0 ** -(torch.arange(4) / 4)), 0.3)
EVEN = [(2 + 3 * index, 5 + 3 * index) for index in range(6)]  # more than there are key heads
SEGMENTS = {
    "a run": EVEN,
    "runs and single ones": [(0, 2), *EVEN, (20, 27), (27, 31), (31, 35)],
    "out of order, one empty": [(31, 35), (0, 0), (5, 8), (2, 5), (8, 11)],
}


@pytest.mark.parametrize("segments", SEGMENTS.values(), ids=list(SEGMENTS))
@pytest.mark.parametrize(
    ("dtype", "grad"),
    [(torch.float32, False), (torch.float32, True), (torch.bfloat16, False)],
    ids=["32", "grad", "16"],
)
@pytest.mark.parametrize("queries", [1, 3])
def test_segments_together_score_as_each_by_itself(segments, dtype, grad, queries):
    torch.manual_seed(0)
    query, key = torch.randn(8, queries, 8).to(dtype).requires_grad_(grad), torch.randn(4, 40, 8).to(dtype)
    starts = torch.randint(0, 60, (8, queries, len(segments)))
    positions = torch.arange(50, 50 + queries)
    found = segment_scores(query, key, positions=positions, scoring=SCORING, segments=segments, starts=starts)
    at = 0
    for index, (begin, end) in enumerate(segments):
        each = {"segments": [(begin, end)], "starts": starts[..., index : index + 1]}
        own = segment_scores(query, key, positions=positions, scoring=SCORING, **each)
        tolerance = 1e-5 if dtype == torch.float32 else 2e-2
        torch.testing.assert_close(found[..., at : at + end - begin], own, atol=tolerance, rtol=tolerance)
        at += end - begin
    assert found.shape == (8, queries, at) and found.dtype == torch.float32
