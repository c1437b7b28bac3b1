"""Compiles the Triton kernels for an H100, which needs no device, and prints their names one by one."""

import os
import tempfile

os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp()  # compile, and do not look up

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from ragbias.attention import triton_kernels as kernels

POINTERS = {
    **dict.fromkeys(("query", "key", "value", "output"), "*bf16"),
    **dict.fromkeys(("lse", "lses", "outputs", "mass", "frequencies", "bias"), "*fp32"),
    **dict.fromkeys(("positions", "starts", "lower", "upper"), "*i64"),
    **dict.fromkeys(("tiles", "pieces", "groups"), "*i32"),
    **dict.fromkeys(("scale", "scaling", "softcap"), "fp32"),
}
SHAPE = dict(DIM=40, DIMS=64, GROUP=4, PRECISION="tf32", UPCAST=False, BLOCK_M=16, BLOCK_N=16)
ROTATED = dict(HALF=12, HALVES=16, REST=16, RESTS=16)
ALL = dict(PACKED=True, INTERLEAVED=True, CAUSAL=False, BOUNDED=True, WINDOWED=True, SOFTCAPPED=True, BIASED=True)
NONE = dict(PACKED=False, INTERLEAVED=False, CAUSAL=True, BOUNDED=False, WINDOWED=False, SOFTCAPPED=False, BIASED=False)


def build(kernel, **constants):
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else POINTERS.get(name, "i32") for name in names}
    indexed = {(names.index(name),): value for name, value in constants.items()}
    compile(ASTSource(kernel, signature, indexed), target=GPUTarget("cuda", 90, 32))
    print(kernel.__name__)


build(kernels.attention, **SHAPE, **ROTATED, **ALL)
build(kernels.attention, **SHAPE, **ROTATED, **NONE)
build(kernels.segment_lse, **SHAPE, PACKED=True, SOFTCAPPED=True)
build(kernels.summed_shares, COLUMNS=20, COLUMN_BLOCK=32, ROWS=32)
build(kernels.merge_splits, DIM=80, DIMS=128, SPLITS=8)
