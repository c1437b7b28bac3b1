"""The Triton kernels equal the PyTorch code: in Triton's interpreter, or on CUDA with ``TRITON_INTERPRET=0``."""

import os
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import ragbias
from ragbias.attention import Encoding, Scoring, attend, primitive
from ragbias.attention.keys import Group, Rotary
from ragbias.attention.primitive import attend_groups, document_mass, segment_mass
from ragbias.errors import BackendError, BackendFallbackWarning
from support.random_models import random_model
from support.segments import Segments, padded

triton_backend = pytest.importorskip("ragbias.attention.triton_backend")
OutOfResources = pytest.importorskip("triton").OutOfResources

DEVICE = "cpu" if triton_backend.INTERPRETED else "cuda"
HEADS, GROUPS, DIM = 4, 2, 24
SCALE = DIM**-0.5
FREQUENCIES = 10.0 ** -torch.arange(0, 1, 2 / DIM)
ENCODINGS = {
    "rotary": Rotary(FREQUENCIES),
    "interleaved": Rotary(FREQUENCIES, interleaved=True),
    "partial": Rotary(FREQUENCIES[:5], scaling=1.2),
    "none": Encoding(),
}
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
SEGMENTS = [(41, 60), (0, 0), (2, 3), (3, 40), (66, 70), (70, 79)]  # ragged, shuffled, one empty
ORDERS = [(0, 1, 2), (2, 0, 1)]


def inputs(queries, keys, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((HEADS, queries, DIM), (GROUPS, keys, DIM), (GROUPS, keys, DIM))
    return tuple(torch.randn(shape, generator=generator).to(DEVICE, dtype) for shape in shapes)


def both(operation, *tensors, scoring, **arguments):
    return tuple(
        operation(*tensors, scoring=replace(scoring, backend=backend), **arguments) for backend in ("triton", "torch")
    )


def assert_same(fast, slow, tolerance=1e-5):
    for left, right in zip(fast, slow, strict=True):
        assert left.dtype == right.dtype
        torch.testing.assert_close(left, right, atol=tolerance, rtol=tolerance)


def band(queries):
    """Key bounds for a last segment of 9 keys. One query sees none of its keys."""
    lower = torch.arange(queries, device=DEVICE) % 9
    return lower, lower + torch.arange(queries, device=DEVICE) % 4


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, torch.float32) for name in ENCODINGS), ("partial", torch.float16), ("rotary", torch.bfloat16)],
    ids=str,
)
@pytest.mark.parametrize("starts", ["shared", "by head", "by query"])
def test_attention_in_every_dtype_encoding_and_kind_of_start(name, starts, dtype):
    queries = 21
    query, key, value = inputs(queries, 80, dtype=dtype)
    heads, rows = {"shared": (1, 1), "by head": (HEADS, 1), "by query": (HEADS, queries)}[starts]
    fast, slow = both(
        attend,
        query,
        key,
        value,
        scoring=Scoring(ENCODINGS[name], SCALE),
        positions=torch.arange(90, 90 + queries, device=DEVICE),
        segments=SEGMENTS,
        starts=torch.randint(0, 80, (heads, rows, len(SEGMENTS)), device=DEVICE),
        causal=True,
    )
    assert_same(fast, slow, TOLERANCE[dtype])


@pytest.mark.parametrize(("queries", "splits"), [(1, 4), (19, 1), (40, 1)])  # of 40, tiles hold one head
@pytest.mark.parametrize("seen", ["all", "causal", "bounds"])
@pytest.mark.parametrize("extras", [dict(softcap=0.7), dict(window=60)], ids=str)
def test_attention_with_softcap_window_bias_and_hidden_keys(extras, seen, splits, queries, monkeypatch):
    monkeypatch.setattr(triton_backend, "KEYS_PER_PIECE", 7)
    monkeypatch.setattr(triton_backend, "PROGRAMS", 1 if splits == 1 else 1000)
    monkeypatch.setattr(triton_backend, "SPLITS", splits)
    triton_backend._tables.cache_clear()
    query, key, value = inputs(queries, 80, seed=1)
    fast, slow = both(
        attend,
        query,
        key,
        value,
        scoring=Scoring(ENCODINGS["rotary"], SCALE, **extras),
        positions=torch.arange(90, 90 + queries, device=DEVICE),
        segments=SEGMENTS,
        starts=torch.randint(0, 80, (HEADS, 1, len(SEGMENTS)), device=DEVICE),
        bias=[0.3, 0.0, -1.0, 0.7, 0.1, 0.2],
        causal=seen == "causal",
        bounds=band(queries) if seen == "bounds" else None,
    )
    triton_backend._tables.cache_clear()
    assert_same(fast, slow)


@pytest.mark.parametrize("queries", [3, 40])
def test_a_query_that_sees_no_key_gets_zeros_and_minus_infinity(queries):
    query, key, value = inputs(queries, 6)
    scoring = Scoring(Encoding(), SCALE, window=5, backend="triton")
    positions = torch.arange(30, 30 + queries, device=DEVICE)
    output, lse = attend(query, key, value, positions=positions, scoring=scoring)
    assert torch.equal(output, torch.zeros_like(query)) and (lse == -torch.inf).all()


def test_slices_of_larger_tensors():
    query, key, value = inputs(60, 90, seed=4)
    sliced = query[:, 3:50], key[:, 10:], value[:, 10:]
    positions = torch.arange(100, 147, device=DEVICE)
    fast, slow = both(attend, *sliced, scoring=Scoring(ENCODINGS["rotary"], SCALE), positions=positions, causal=True)
    assert_same(fast, slow)


SPANS = [(5, 40), (40, 41), (41, 60)]


def document_groups(heads):
    starts = torch.randint(5, 60, (heads, 3, 4), device=DEVICE)
    starts[..., 0] = 0
    others = [[(0, 5), *(span for j, span in enumerate(SPANS) if j != i), own] for i, own in enumerate(SPANS)]
    return [
        Group(span, 61, segments, starts[:, i]) for i, (span, segments) in enumerate(zip(SPANS, others, strict=True))
    ]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("heads", [1, HEADS])
def test_groups_of_queries_with_segments_of_their_own(heads, dtype):
    query, key, value = inputs(70, 70, seed=2, dtype=dtype)
    scoring = Scoring(ENCODINGS["rotary"], SCALE)
    fast, slow = both(attend_groups, query, key, value, groups=document_groups(heads), scoring=scoring)
    assert fast[0].shape == (HEADS, 55, DIM)
    assert_same(fast, slow, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("total", [False, True])
@pytest.mark.parametrize("queries", [1, 21, 40])
def test_masses_of_segments(queries, total, dtype):
    query, key, _ = inputs(queries, 80, seed=3, dtype=dtype)
    for softcap in (None, 0.7):
        scoring = Scoring(Encoding(), SCALE, softcap)
        fast, slow = both(segment_mass, query, key, scoring=scoring, segments=SEGMENTS, total=total)
        torch.testing.assert_close(fast, slow, atol=1e-5, rtol=1e-5)  # scores are float32 in both


@pytest.mark.parametrize("scratch", [2**25, 100], ids=["all heads at once", "one key head after the other"])
def test_masses_of_documents(scratch, monkeypatch):
    monkeypatch.setattr(triton_backend, "MAX_LSES", scratch)
    query, key, _ = inputs(70, 70, seed=3)
    for spans in (SPANS, SPANS[:1]):
        fast, slow = both(document_mass, query, key, scoring=Scoring(Encoding(), SCALE), spans=spans)
        torch.testing.assert_close(fast, slow, atol=1e-5, rtol=1e-5)


def test_two_runs_are_equal_to_the_bit():
    query, key, value = inputs(70, 70, seed=2)
    scoring, groups = Scoring(ENCODINGS["rotary"], SCALE, backend="triton"), document_groups(1)
    first, second = (attend_groups(query, key, value, groups, scoring) for _ in range(2))
    assert all(torch.equal(left, right) for left, right in zip(first, second, strict=True))
    masses = [document_mass(query, key, SPANS, scoring) for _ in range(2)]
    assert torch.equal(*masses)


@torch.no_grad()
def generated(model, method, ids, spans, backend, mask=None):
    """Generated ids and their logits ``[steps, batch, V]``."""
    mask = torch.ones_like(ids) if mask is None else mask
    with ragbias.debias(model, method, spans, backend=backend):
        output = model.generate(
            ids.to(DEVICE),
            attention_mask=mask.to(DEVICE),
            max_new_tokens=2,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            return_dict_in_generate=True,
            output_logits=True,
        )
    return output.sequences[:, ids.shape[1] :], torch.stack(output.logits)


def assert_close(left, right):
    torch.testing.assert_close(left, right, atol=1e-5 * max(1.0, float(right.abs().max())), rtol=0)


@pytest.fixture(scope="module")
def llama_on_device():
    return random_model("llama", num_hidden_layers=2).to(DEVICE)


@pytest.mark.parametrize("method", ["pine", "rotor"])
def test_a_model_is_invariant_to_the_bit_and_as_on_torch(llama_on_device, method):
    segments = Segments([9, 4, 6], prefix=3, suffix=4, seed=3)
    first, other = (generated(llama_on_device, method, *segments.arranged(order), "triton") for order in ORDERS)
    assert torch.equal(first[0], other[0]) and torch.equal(first[1], other[1])
    expected = generated(llama_on_device, method, *segments.plain, "torch")
    assert torch.equal(first[0], expected[0])
    assert_close(first[1], expected[1])


def test_a_padded_batch_with_softcap_and_windows_is_as_on_torch():
    model = random_model("gemma2", num_hidden_layers=1).to(DEVICE)
    ids, mask, spans = padded([Segments([6, 20], suffix=3, seed=4).plain, Segments([12, 3], suffix=3, seed=5).plain])
    fast, slow = (generated(model, "pine", ids, spans, backend, mask) for backend in ("triton", "torch"))
    assert torch.equal(fast[0], slow[0])
    assert_close(fast[1], slow[1])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_kernels_compile_and_fit_the_least_shared_memory():
    """The interpreter accepts what the compiler refuses, such as variables that change their shape in a loop.

    Compute capability 8.6 has the least shared memory. The weekly run compiles for 9.0 and in all sizes.
    """
    command = [sys.executable, str(Path(__file__).parent / "compile_kernels.py"), "86"]
    done = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "0"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    compiled = {line.split()[0] for line in done.stdout.splitlines()}
    assert compiled == {"attention", "segment_lse", "sum_shares", "merge_splits"}


@pytest.mark.parametrize(
    ("dim", "itemsize", "memory", "unread", "expected"),
    [
        (128, 2, 99, 1, (128, 64, 3)),  # 8.6 and 8.9
        (256, 2, 99, 1, (64, 32, 2)),
        (256, 4, 99, 1, (32, 16, 2)),
        (256, 2, 163, 1, (64, 64, 2)),  # 8.0
        (256, 4, 163, 1, (64, 32, 2)),
        (256, 2, 227, 0, (64, 64, 2)),  # 9.0
        (256, 4, 227, 0, (64, 32, 2)),
    ],
)
def test_block_sizes_shrink_only_where_shared_memory_is_short(dim, itemsize, memory, unread, expected):
    small = dim > 128
    preferred = triton_backend._Sizes(False, 64 if small else 128, 64 if itemsize == 2 else 32, 2 if small else 3)
    fitted = triton_backend.fit_sizes(preferred, dim // 2, dim, itemsize, memory * 1024, unread)
    assert (fitted.rows, fitted.keys, fitted.stages) == expected


def test_a_launch_queries_the_shared_memory_of_the_device(monkeypatch):
    monkeypatch.setattr(triton_backend, "_shared_memory", lambda device: (8 * 1024, 1))
    query, key, value = inputs(60, 60)
    sizes = triton_backend._sizes(query, key, Scoring(ENCODINGS["rotary"], SCALE), False)
    assert (sizes.rows, sizes.keys) == (16, 16)
    fast, slow = both(
        attend,
        query,
        key,
        value,
        scoring=Scoring(ENCODINGS["rotary"], SCALE),
        positions=torch.arange(60, device=DEVICE),
        causal=True,
    )
    assert_same(fast, slow)


class Unlaunchable:
    """A kernel that needs more shared memory than there is."""

    def __getitem__(self, grid):
        def launch(*args, **kwargs):
            raise OutOfResources(106496, 101376, "shared memory")

        return launch


@pytest.fixture
def auto(monkeypatch):
    """Scoring whose backend ``auto`` considers Triton for the tensors here, before any self-check."""
    monkeypatch.setattr(primitive, "_auto_device", DEVICE)
    monkeypatch.setattr(primitive, "_reasons_against_triton", {})
    return Scoring(ENCODINGS["rotary"], SCALE)


def test_a_kernel_that_cannot_be_launched_is_a_backend_error(monkeypatch):
    monkeypatch.setattr(triton_backend.kernels, "attention", Unlaunchable())
    monkeypatch.setattr(triton_backend.kernels, "segment_lse", Unlaunchable())
    query, key, value = inputs(9, 9)
    named = Scoring(ENCODINGS["rotary"], SCALE, backend="triton")
    with pytest.raises(BackendError, match="'triton' failed with OutOfResources: .*shared memory.*use backend='torch'"):
        attend(query, key, value, positions=torch.arange(9, device=DEVICE), scoring=named, causal=True)
    with pytest.raises(BackendError, match="OutOfResources"):
        segment_mass(query, key, [(0, 9)], named)


def test_auto_is_triton_after_a_self_check_that_runs_once(auto, monkeypatch):
    checked, real = [], primitive.describe_difference
    monkeypatch.setattr(primitive, "describe_difference", lambda *case: checked.append(case) or real(*case))
    query = inputs(9, 9)[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [primitive.choose_backend(query, auto) for _ in range(3)] == ["triton"] * 3
        assert primitive.choose_backend(query[..., :8], auto) == "triton"
    assert checked == [("triton", query.device, torch.float32, dim) for dim in (DIM, 8)]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_the_self_check_passes_triton_in_every_dtype(dtype):
    assert primitive.describe_difference("triton", torch.device(DEVICE), dtype, 64) == ""


def wrong(operation):
    """The operation with its first result off by 1 in the last query."""

    def computed(*args):
        first, *others = operation(*args)
        first = first.clone()
        first[:, -1] += 1
        return first, *others

    return computed


@pytest.mark.parametrize(
    ("name", "replacement", "reason"),
    [
        (
            "compute_attention",
            wrong,
            "plain attention with an error of 1 in float32 with head dimension 24 on .*0.002 is allowed",
        ),
        ("compute_groups", wrong, "computes attention of documents with an error of 1 in float32"),
        ("document_mass", lambda real: lambda *args: real(*args) * float("nan"), "documents with an error of inf"),
        ("segment_mass", lambda real: lambda *args: 1 - real(*args), "importances for a token with an error of"),
    ],
)
def test_auto_computes_with_torch_where_triton_is_wrong(name, replacement, reason, auto, monkeypatch):
    monkeypatch.setattr(triton_backend, name, replacement(getattr(triton_backend, name)))
    assert_auto_falls_back(auto, reason)


def test_auto_uses_torch_where_triton_cannot_be_launched(auto, monkeypatch):
    monkeypatch.setattr(triton_backend.kernels, "attention", Unlaunchable())
    assert_auto_falls_back(auto, "fails its self-check with OutOfResources: .*shared memory")


def assert_auto_falls_back(auto, reason):
    query, key, value = inputs(9, 9)
    arguments = dict(positions=torch.arange(9, device=DEVICE), causal=True)
    with pytest.warns(
        BackendFallbackWarning, match=f"'auto' computes with 'torch': backend 'triton' .*{reason}"
    ) as caught:
        first = attend(query, key, value, scoring=auto, **arguments)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        second = attend(query, key, value, scoring=auto, **arguments)
        mass = segment_mass(query, key, [(0, 9)], auto)
    torch_alone = replace(auto, backend="torch")
    expected = attend(query, key, value, scoring=torch_alone, **arguments)
    assert all(torch.equal(*pair) for result in (first, second) for pair in zip(result, expected, strict=True))
    assert torch.equal(mass, segment_mass(query, key, [(0, 9)], torch_alone))
    assert primitive.choose_backend(query, auto) == "torch"
