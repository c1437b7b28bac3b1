"""Which backend computes what, what each refuses, and the layout that flash-attn is given."""

from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

import ragbias
from ragbias import DebiasedLM, Prompt
from ragbias.attention import Alibi, Encoding, Group, Rotary, Scoring, attend, attend_groups, backends, flash_backend
from ragbias.attention.backends import check_backend, chosen
from ragbias.errors import BackendError
from support.random_models import random_model
from support.segments import Segments

triton_backend = pytest.importorskip("ragbias.attention.triton_backend")

HEADS, GROUPS, DIM = 4, 2, 8
ROTARY = Rotary(10.0 ** -torch.arange(0, 1, 2 / DIM))
PROMPT = Prompt("Read. ", ("Ada was born in 1815. ", "Alan was born in 1912. "), "Who is older?")


def on_cuda(dtype=torch.bfloat16, dim=64):
    """What the choice reads of a query on a device that need not be here."""
    return SimpleNamespace(device=torch.device("cuda"), dtype=dtype, shape=(4, dim), requires_grad=False)


def scoring(backend="auto", encoding=ROTARY, **extras):
    return Scoring(encoding, 1.0, backend=backend, **extras)


def test_auto_is_torch_on_cpu_and_triton_on_cuda_where_it_can(monkeypatch):
    assert chosen(torch.zeros(4, DIM), scoring()) == "torch"
    assert chosen(on_cuda(), scoring()) == "triton"
    assert chosen(on_cuda(), scoring("torch")) == "torch"
    assert chosen(on_cuda(torch.float64), scoring()) == "torch"
    assert chosen(on_cuda(), scoring(encoding=Alibi(torch.ones(4)))) == "torch"
    monkeypatch.setattr(backends, "_installed", lambda backend: False)
    assert chosen(on_cuda(), scoring()) == "torch"


@pytest.mark.parametrize(
    ("query", "how", "reason"),
    [
        (on_cuda(torch.float64), scoring("triton"), "'triton' computes in float16, bfloat16, float32, not in float64"),
        (on_cuda(dim=512), scoring("triton"), "up to 256 dimensions, not of 512"),
        (on_cuda(), scoring("triton", Alibi(torch.ones(4))), "does not know ALiBi"),
        (torch.zeros(4, 8, requires_grad=True), scoring("triton"), "computes no gradients"),
        (on_cuda(torch.float32), scoring("flash"), "'flash' computes in float16, bfloat16, not in float32"),
        (on_cuda(), scoring("flash", window=8), "sliding windows"),
        (torch.zeros(4, 8).half(), scoring("flash"), "runs on CUDA, and the tensors are on 'cpu'"),
    ],
)
def test_a_named_backend_that_cannot_raises_and_says_why(query, how, reason, monkeypatch):
    monkeypatch.setattr(backends, "_installed", lambda backend: True)
    monkeypatch.setattr(triton_backend, "INTERPRETED", True)
    with pytest.raises(BackendError, match=reason):
        chosen(query, how)


def test_triton_runs_on_cpu_tensors_in_its_interpreter_only(monkeypatch):
    for interpreted in (True, False):
        monkeypatch.setattr(triton_backend, "INTERPRETED", interpreted)
        if interpreted:
            assert chosen(torch.zeros(4, DIM), scoring("triton")) == "triton"
        else:
            with pytest.raises(BackendError, match="runs on CUDA"):
                chosen(torch.zeros(4, DIM), scoring("triton"))


def test_unknown_and_missing_backends_are_refused_at_once(llama, byte_tokenizer, monkeypatch):
    monkeypatch.setattr(backends, "_installed", lambda backend: False)
    with pytest.raises(BackendError, match=r"needs flash_attn; pip install 'ragbias\[flash\]'"):
        check_backend("flash")
    with pytest.raises(BackendError, match="unknown backend 'cuda'; expected one of auto, torch, triton, flash"):
        DebiasedLM(llama, byte_tokenizer, backend="cuda")
    with pytest.raises(BackendError, match="unknown"), ragbias.debias(llama, "pine", [(1, 2)], backend="cuda"):
        pass


def test_a_model_that_a_named_backend_cannot_compute_is_refused():
    model, (ids, spans) = random_model("llama", num_hidden_layers=1).double(), Segments([3, 4]).plain
    backend = ragbias.debias(model, "pine", spans, backend="triton")
    with torch.no_grad(), backend, pytest.raises(BackendError, match="float64"):
        model(ids)


def test_the_report_names_the_backend(llama, byte_tokenizer):
    lm = DebiasedLM(llama, byte_tokenizer)
    assert lm.prepare(PROMPT).report.backend == "torch"
    assert lm.prepare(PROMPT).report.as_dict()["backend"] == "torch"
    for method in ("none", "long-context-reorder", "permutation-vote"):
        assert lm.prepare(PROMPT, method=method).report.backend == ""


@pytest.mark.skipif(not triton_backend.INTERPRETED, reason="the model is on a CPU")
def test_an_answer_and_its_score_come_from_the_backend_that_was_named(byte_tokenizer, monkeypatch):
    calls, model = [], random_model("llama", num_hidden_layers=1)
    real = triton_backend.attend_groups
    monkeypatch.setattr(triton_backend, "attend_groups", lambda *args: calls.append(1) or real(*args))
    lm, plain = (DebiasedLM(model, byte_tokenizer, "nia", backend=backend) for backend in ("triton", "torch"))
    answer = lm.generate(PROMPT, max_new_tokens=1)
    assert answer.report.backend == "triton" and len(calls) == 1
    assert answer.token_ids == plain.generate(PROMPT, max_new_tokens=1).token_ids
    assert lm.score(PROMPT, "A").total == pytest.approx(plain.score(PROMPT, "A").total, abs=1e-4)
    assert len(calls) == 2


def stand_in(query, key, value, query_edges, key_edges, longest, scale, causal, softcap):
    """What flash-attn promises, sequence by sequence in float32."""
    output, lse = torch.zeros_like(query), torch.zeros(query.shape[1], query.shape[0])
    lengths = []
    for (a, b), (c, d) in zip(pairwise(query_edges.tolist()), pairwise(key_edges.tolist()), strict=True):
        lengths.append((b - a, d - c))
        keys, values = (x[c:d].repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in (key, value))
        scores = torch.einsum("qhd,khd->hqk", query[a:b], keys) * scale
        if softcap:
            scores = softcap * (scores / softcap).tanh()
        if causal:
            scores = scores.masked_fill(~torch.ones(b - a, d - c).tril(d - c - (b - a)).bool(), -torch.inf)
        output[a:b] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values)
        lse[:, a:b] = scores.logsumexp(-1)
    assert longest == tuple(max(each) for each in zip(*lengths, strict=True))
    return output, lse


@pytest.fixture
def flash(monkeypatch):
    """Flash layouts on a CPU: the kernel is the one thing that cannot run here."""
    monkeypatch.setattr(flash_backend, "varlen", stand_in)
    monkeypatch.setattr(backends, "_installed", lambda backend: True)
    monkeypatch.setattr(backends, "_obstacle", lambda *_: "")


def inputs(queries, keys):
    shapes = ((HEADS, queries, DIM), (GROUPS, keys, DIM), (GROUPS, keys, DIM))
    return tuple(torch.randn(shape) for shape in shapes)


@pytest.mark.parametrize("together", [2**16, 30], ids=["one call", "several calls"])
@pytest.mark.parametrize("heads", [1, HEADS])
def test_flash_groups_equal_torch(heads, together, flash, monkeypatch):
    monkeypatch.setattr(flash_backend, "TOGETHER", together)
    query, key, value = inputs(25, 25)
    spans = [(5, 14), (14, 15), (15, 25)]
    groups = [
        Group(span, 30, [(0, 5), *(other for other in spans if other != span), span], torch.randint(0, 20, (heads, 4)))
        for span in spans
    ]
    fast, slow = (attend_groups(query, key, value, groups, scoring(backend)) for backend in ("flash", "torch"))
    torch.testing.assert_close(fast, slow, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("extras", [{}, dict(softcap=0.7)], ids=str)
@pytest.mark.parametrize("starts", [(1, 1), (HEADS, 1), (HEADS, 7)], ids=["shared", "by head", "by query"])
@pytest.mark.parametrize("seen", ["all", "causal", "bounds"])
def test_flash_equals_torch_also_where_it_leaves_the_case_to_it(seen, starts, extras, flash, monkeypatch):
    calls = []
    monkeypatch.setattr(flash_backend, "varlen", lambda *args: calls.append(1) or stand_in(*args))
    query, key, value = inputs(7, 30)
    segments = [(20, 30), (0, 0), (2, 9), (9, 18)]
    arguments = dict(positions=torch.arange(40, 47), segments=segments, starts=torch.randint(0, 40, (*starts, 4)))
    arguments |= dict(causal=seen == "causal")
    if seen == "bounds":
        arguments |= dict(bounds=(torch.zeros(7, dtype=torch.long), torch.arange(1, 8)))
    fast, slow = (
        attend(query, key, value, scoring=scoring(backend, **extras), **arguments) for backend in ("flash", "torch")
    )
    torch.testing.assert_close(fast, slow, atol=1e-5, rtol=1e-5)
    assert len(calls) == (starts[1] == 1 and seen != "bounds")


def test_values_that_are_repeated_already_meet_keys_that_are_not(flash):
    query, key, value = inputs(4, 9)
    repeated = value.repeat_interleave(HEADS // GROUPS, dim=0)
    output, _ = attend(query, key, repeated, positions=torch.arange(9, 13), scoring=scoring("flash", Encoding()))
    expected, _ = attend(query, key, value, positions=torch.arange(9, 13), scoring=scoring("torch", Encoding()))
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)
