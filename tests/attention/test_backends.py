"""Choice of backends, unsupported cases, and the layout that flash-attn receives."""

import importlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import ragbias
from ragbias import DebiasedLM, Prompt, attention
from ragbias.attention import Encoding, Scoring, attend, primitive
from ragbias.attention.keys import Alibi, Group, Rotary
from ragbias.attention.primitive import attend_groups, check_backend, choose_backend
from ragbias.errors import BackendError, BackendFallbackWarning
from support.random_models import random_model
from support.segments import Segments

triton_backend = pytest.importorskip("ragbias.attention.triton_backend")

HEADS, GROUPS, DIM = 4, 2, 8
ROTARY = Rotary(10.0 ** -torch.arange(0, 1, 2 / DIM))
PROMPT = Prompt("Read. ", ("Ada was born in 1815. ", "Alan was born in 1912. "), "Who is older?")


def on_cuda(dtype=torch.bfloat16, dim=64):
    """A stand-in for a query on CUDA, with the attributes that the choice of a backend reads."""
    return SimpleNamespace(device=torch.device("cuda"), dtype=dtype, shape=(4, dim), requires_grad=False)


def scoring(backend="auto", encoding=ROTARY, **extras):
    return Scoring(encoding, 1.0, backend=backend, **extras)


def test_auto_is_torch_on_cpu_and_triton_on_cuda_where_it_can(monkeypatch):
    monkeypatch.setattr(primitive, "_reasons_against_triton", {})
    monkeypatch.setattr(primitive, "describe_difference", lambda *case: "")
    assert choose_backend(torch.zeros(4, DIM), scoring()) == "torch"
    assert choose_backend(on_cuda(), scoring()) == "triton"
    assert choose_backend(on_cuda(), scoring("torch")) == "torch"
    assert choose_backend(on_cuda(torch.float64), scoring()) == "torch"
    assert choose_backend(on_cuda(), scoring(encoding=Alibi(torch.ones(4)))) == "torch"
    monkeypatch.setattr(primitive, "_reasons_against_triton", {})
    monkeypatch.setattr(primitive, "_import_error", lambda backend: "is not there")
    with pytest.warns(BackendFallbackWarning, match="is not there"):
        assert choose_backend(on_cuda(), scoring()) == "torch"


@pytest.mark.parametrize(
    ("query", "how", "reason"),
    [
        (on_cuda(torch.float64), scoring("triton"), "'triton' computes in float16, bfloat16, float32, not in float64"),
        (on_cuda(dim=512), scoring("triton"), "up to 256 dimensions, not of 512"),
        (on_cuda(), scoring("triton", Alibi(torch.ones(4))), "does not support ALiBi"),
        (torch.zeros(4, 8, requires_grad=True), scoring("triton"), "computes no gradients"),
        (on_cuda(torch.float32), scoring("flash"), "'flash' computes in float16, bfloat16, not in float32"),
        (on_cuda(), scoring("flash", window=8), "sliding windows"),
        (torch.zeros(4, 8).half(), scoring("flash"), "runs on CUDA, but the tensors are on 'cpu'"),
    ],
)
def test_a_named_backend_that_cannot_raises_and_says_why(query, how, reason, monkeypatch):
    monkeypatch.setattr(primitive, "_import_error", lambda backend: "")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(triton_backend, "INTERPRETED", True)
    with pytest.raises(BackendError, match=reason):
        choose_backend(query, how)


def test_triton_runs_on_cpu_tensors_in_its_interpreter_only(monkeypatch):
    for interpreted in (True, False):
        monkeypatch.setattr(triton_backend, "INTERPRETED", interpreted)
        if interpreted:
            assert choose_backend(torch.zeros(4, DIM), scoring("triton")) == "triton"
        else:
            with pytest.raises(BackendError, match="runs on CUDA"):
                choose_backend(torch.zeros(4, DIM), scoring("triton"))


def test_unknown_and_missing_backends_are_refused_at_once(llama, byte_tokenizer):
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
def test_answers_and_scores_come_from_the_named_backend(byte_tokenizer, monkeypatch):
    calls, model = [], random_model("llama", num_hidden_layers=1)
    real = triton_backend.compute_groups
    monkeypatch.setattr(triton_backend, "compute_groups", lambda *args: calls.append(1) or real(*args))
    lm, plain = (DebiasedLM(model, byte_tokenizer, "nia", backend=backend) for backend in ("triton", "torch"))
    answer = lm.generate(PROMPT, max_new_tokens=1)
    assert answer.report.backend == "triton" and len(calls) == 1
    assert answer.token_ids == plain.generate(PROMPT, max_new_tokens=1).token_ids
    assert lm.score(PROMPT, "A").total == pytest.approx(plain.score(PROMPT, "A").total, abs=1e-4)
    assert len(calls) == 2


@pytest.fixture
def flash(monkeypatch):
    """The flash backend on a stand-in for flash-attn. Only the check of the device is disabled."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "stand_ins"))
    monkeypatch.delitem(sys.modules, "flash_attn", raising=False)
    monkeypatch.delitem(sys.modules, "ragbias.attention.flash_backend", raising=False)
    monkeypatch.setattr(primitive, "_unsupported_device", lambda backend, device: "")
    primitive._import_error.cache_clear()
    yield importlib.import_module("ragbias.attention.flash_backend")
    del sys.modules["flash_attn"], sys.modules["ragbias.attention.flash_backend"]
    del attention.flash_backend
    primitive._import_error.cache_clear()


@pytest.fixture
def exact(flash, monkeypatch):
    """Also allow float32, which flash-attn does not support, so that only the layout can cause differences."""
    monkeypatch.setitem(primitive.DTYPES, "flash", (torch.float32,))
    return flash


@torch.no_grad()
def test_a_model_in_half_precision_runs_on_flash_attention(byte_tokenizer, flash, monkeypatch):
    calls, real = [], flash.flash_attn_varlen_func
    monkeypatch.setattr(
        flash, "flash_attn_varlen_func", lambda *args, **kwargs: calls.append(1) or real(*args, **kwargs)
    )
    model = random_model("llama", num_hidden_layers=1).bfloat16()
    fast, slow = (DebiasedLM(model, byte_tokenizer, "pine", backend=backend) for backend in ("flash", "torch"))
    assert fast.prepare(PROMPT).report.backend == "flash"
    calls.clear()
    (ids, spans), logits = Segments([9, 4, 6]).plain, []
    for backend in ("flash", "torch"):
        with ragbias.debias(model, "pine", spans, backend=backend):
            logits.append(model(ids).logits.float())
    assert calls
    torch.testing.assert_close(*logits, atol=0.03 * float(logits[1].abs().max()), rtol=0)
    assert fast.score(PROMPT, "A").total == pytest.approx(slow.score(PROMPT, "A").total, abs=0.2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_flash_is_as_close_to_float32_as_torch(dtype, flash):
    query, key, value = (x.to(dtype) for x in inputs(7, 30))
    arguments = dict(positions=torch.arange(40, 47), segments=[(20, 30), (2, 9)], starts=torch.tensor([[[3, 20]]]))
    exact, *halves = (
        attend(*(x.to(kind) for x in (query, key, value)), scoring=scoring(backend), causal=True, **arguments)
        for backend, kind in (("torch", torch.float32), ("torch", dtype), ("flash", dtype))
    )
    torch_error, flash_error = (float((output.float() - exact[0]).abs().max()) for output, _ in halves)
    assert halves[1][0].dtype == dtype and halves[1][1].dtype == torch.float32
    assert flash_error <= 2 * torch_error + torch.finfo(dtype).eps


def test_a_failing_flash_kernel_is_a_backend_error(flash, monkeypatch):
    def refuses(*_, **__):
        raise RuntimeError("FlashAttention only supports Ampere GPUs or newer.")

    monkeypatch.setattr(flash, "flash_attn_varlen_func", refuses)
    query, key, value = (x.half() for x in inputs(4, 9))
    with pytest.raises(BackendError, match="'flash' failed with RuntimeError: .*Ampere"):
        attend(query, key, value, positions=torch.arange(9, 13), scoring=scoring("flash"))


BROKEN_TRITON = """
import sys, warnings
import torch
from types import SimpleNamespace
import ragbias.lm  # with all of transformers, parts of which fail without a working triton
for name in [name for name in sys.modules if name.partition(".")[0] == "triton"]:
    del sys.modules[name]
sys.path.insert(0, sys.argv[1])
from ragbias.attention import Scoring
from ragbias.attention.keys import Rotary
from ragbias.attention.primitive import check_backend, choose_backend
from ragbias.errors import BackendError, BackendFallbackWarning

query = SimpleNamespace(device=torch.device("cuda"), dtype=torch.bfloat16, shape=(4, 64), requires_grad=False)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        print(choose_backend(query, Scoring(Rotary(torch.ones(4)), 1.0)))
for each in caught:
    print(f"{each.category.__name__}: {each.message}")
named = Scoring(Rotary(torch.ones(4)), 1.0, backend="triton")
for refused in (lambda: choose_backend(query, named), lambda: check_backend("triton")):
    try:
        refused()
    except BackendError as error:
        print(error)
"""


def test_missing_triton_warns_once_in_auto_and_fails_by_name(tmp_path):
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "__init__.py").write_text("raise OSError('libcuda.so.1 is missing')")
    command = [sys.executable, "-c", BROKEN_TRITON, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    refusal = "backend 'triton' cannot import triton: OSError: libcuda.so.1 is missing"
    warning = f"BackendFallbackWarning: backend 'auto' computes with 'torch': {refusal}"
    assert done.stdout.splitlines() == ["torch", "torch", warning, refusal, refusal]


def inputs(queries, keys):
    shapes = ((HEADS, queries, DIM), (GROUPS, keys, DIM), (GROUPS, keys, DIM))
    return tuple(torch.randn(shape) for shape in shapes)


@pytest.mark.parametrize("heads", [1, HEADS])
def test_flash_groups_equal_torch(heads, exact):
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
def test_flash_equals_torch_also_where_it_leaves_the_case_to_it(seen, starts, extras, exact, monkeypatch):
    calls, real = [], exact.flash_attn_varlen_func
    monkeypatch.setattr(
        exact, "flash_attn_varlen_func", lambda *args, **kwargs: calls.append(1) or real(*args, **kwargs)
    )
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


def test_values_repeated_already_meet_keys_that_are_not(exact):
    query, key, value = inputs(4, 9)
    repeated = value.repeat_interleave(HEADS // GROUPS, dim=0)
    output, _ = attend(query, key, repeated, positions=torch.arange(9, 13), scoring=scoring("flash", Encoding()))
    expected, _ = attend(query, key, value, positions=torch.arange(9, 13), scoring=scoring("torch", Encoding()))
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)
