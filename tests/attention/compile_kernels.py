"""Compile the Triton kernels for a GPU and check their shared memory. No GPU is needed.

``TRITON_INTERPRET=0 python compile_kernels.py 86`` compiles for compute capability 8.6, in the largest block sizes that
are chosen there for heads of 128 and 256 dimensions, and prints each kernel with the KiB that it takes. Only some
shapes have both values of the other parameters. ``--all`` compiles all block sizes that can be chosen, with both
values, for heads of 64 dimensions and in float16 too, which takes minutes.
"""

import os
import sys
import tempfile

os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp()  # compile, and do not look up

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from ragbias.attention import triton_kernels as kernels
from ragbias.attention.triton_backend import _block_size, _Sizes, fit_sizes

CAPABILITY = int(sys.argv[1])
ALL_SIZES = "--all" in sys.argv
MEMORY = {80: 163, 86: 99, 89: 99, 90: 227}[CAPABILITY] * 1024  # that a program may opt in to
HEADS = [(64, 32), (128, 64), (256, 128)]  # dimensions of a head, pairs of them that are rotated
PARTIAL = [(128, 16), (40, 12)]
VARIED = [(128, 64, "bf16"), (256, 128, "fp32"), (40, 12, "bf16")]  # shapes for both values of the other parameters
ITEMSIZE = {"bf16": 2, "fp16": 2, "fp32": 4}
FLOATS = ("lse", "lses", "outputs", "mass", "frequencies", "bias")
ALL = dict(INTERLEAVED=True, CAUSAL=False, BOUNDED=True, WINDOWED=True, SOFTCAPPED=True, BIASED=True)
NONE = dict(INTERLEAVED=False, CAUSAL=True, BOUNDED=False, WINDOWED=False, SOFTCAPPED=False, BIASED=False)


def build(kernel, dtype="fp32", warps=4, stages=3, **constants):
    types = {
        **dict.fromkeys(("query", "key", "value", "output"), f"*{dtype}"),
        **dict.fromkeys(FLOATS, "*fp32"),
        **dict.fromkeys(("positions", "starts", "lower", "upper"), "*i64"),
        **dict.fromkeys(("tiles", "pieces", "groups"), "*i32"),
        **dict.fromkeys(("scale", "scaling", "softcap"), "fp32"),
    }
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in names}
    indexed = {(names.index(name),): value for name, value in constants.items()}
    # as for tensors whose vectors begin at multiples of 16 bytes, which alone are read ahead in a pipeline
    aligned = [i for i, name in enumerate(names) if signature[name][0] == "*" or name[:2] in ("q_", "k_", "v_", "o_")]
    source = ASTSource(kernel, signature, indexed, {(i,): [["tt.divisibility", 16]] for i in aligned})
    options = dict(num_warps=warps, num_stages=stages)
    shared = compile(source, target=GPUTarget("cuda", CAPABILITY, 32), options=options).metadata.shared
    about = " ".join(f"{name}={constants[name]}" for name in ("DIM", "BLOCK_M", "BLOCK_N") if name in constants)
    print(kernel.__name__, dtype, about, f"stages={stages}", shared / 1024, flush=True)
    assert shared <= MEMORY


def chosen_sizes(dim, half, dtype):
    """Return the block sizes that the backend can choose, largest first."""
    small = dim > 128 or dtype == "fp32"
    found = {
        fit_sizes(_Sizes(False, rows, keys, 2 if small else 3), half, dim, ITEMSIZE[dtype], MEMORY, CAPABILITY < 90)
        for rows in (16, 32, 64, *([] if small else [128]))
        for keys in (32, *([] if dtype == "fp32" else [64]))
    }
    return sorted(found, reverse=True)


for dim, half in (HEADS if ALL_SIZES else HEADS[1:]) + PARTIAL:
    for dtype in ITEMSIZE if ALL_SIZES else ["bf16"] if (dim, half) in PARTIAL else ["bf16", "fp32"]:
        precision = "ieee" if dtype == "fp32" else "tf32"
        shape = dict(DIM=dim, DIMS=_block_size(dim), GROUP=4, PRECISION=precision, UPCAST=False)
        rest = dim - 2 * half
        rotated = dict(HALF=half, HALVES=_block_size(half), REST=rest, RESTS=_block_size(rest))
        sizes = chosen_sizes(dim, half, dtype)
        # fp16 takes what bf16 takes
        for each in sizes if ALL_SIZES and dtype != "fp16" and (dim, half) in HEADS else sizes[:1]:
            blocks = dict(warps=each.warps, stages=each.stages, BLOCK_M=each.rows, BLOCK_N=each.keys)
            build(kernels.attention, dtype, **shape, **rotated, **blocks, **NONE, PACKED=False)
        largest = max((each for each in sizes if each.rows <= 64), key=lambda each: each.rows * each.keys)
        blocks = dict(warps=largest.warps, stages=largest.stages, BLOCK_M=largest.rows, BLOCK_N=largest.keys)
        if dtype != "fp16" and (ALL_SIZES or (dim, half, dtype) in VARIED):
            build(kernels.attention, dtype, **shape, **rotated, **blocks, **ALL, PACKED=True)
        if ALL_SIZES or (dim, half, dtype) in VARIED:
            build(kernels.segment_lse, dtype, **shape, **blocks, PACKED=True, SOFTCAPPED=True)
build(kernels.sum_shares, COLUMNS=20, COLUMN_BLOCK=32, ROWS=32)
build(kernels.merge_splits, DIM=80, DIMS=128, SPLITS=8)
