"""Triton kernels through the compiler of a real GPU, which needs none.

The interpreter takes more than it does.
"""

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

COMPILE = """
import sys
from importlib import import_module
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

gpu = import_module("softq.kernels.{module}")
for name, given, constants, warps in {kernels!r}:
    kernel, types = getattr(gpu, name), iter(given)
    signature = {{n: "constexpr" if n in constants else next(types) for n in kernel.arg_names}}
    assert next(types, None) is None, name
    places = {{(kernel.arg_names.index(n),): value for n, value in constants.items()}}
    target, options = GPUTarget("cuda", 90, 32), {{"num_warps": warps}}
    made = triton.compile(ASTSource(kernel, signature, places), target=target, options=options)
    assert "cubin" in made.asm, name
"""
FLOAT, DOUBLE, LONG, INT, SIZE = "*fp32", "*fp64", "*i64", "*i32", "i32"
CHAIN = [
    FLOAT,
    *[SIZE] * 3,
    FLOAT,
    *[SIZE] * 4,
    LONG,
    LONG,
    DOUBLE,
    DOUBLE,
    SIZE,
    SIZE,
    FLOAT,
    DOUBLE,
    *[SIZE] * 3,
]
SEGMENTS = [FLOAT, *[SIZE] * 4, FLOAT, *[SIZE] * 3, LONG, DOUBLE, DOUBLE, *[SIZE] * 4]
ARCS = [FLOAT, *[SIZE] * 3, LONG]
LABELS, TILES = {"LABELS": 16, "ROWS": 8}, {"NODES": 16, "SPANS": 16, "SPLITS": 16}
KERNELS = {
    "chain.gpu": [
        (
            "_recursions",
            CHAIN,
            {"SHARED": True, "PEAKED": True, "WEIGHTED": False, "BLOCK": 16, "KIND": 1, "TILE": 16},
            1,
        ),
        (
            "_marginals",
            [*CHAIN, FLOAT, FLOAT, FLOAT, SIZE],
            {"SHARED": False, "PEAKED": True, "WEIGHTED": True, "BLOCK": 16, "TILE": 16},
            1,
        ),
        *[
            (
                "_trace",
                [DOUBLE, DOUBLE, *[SIZE] * 4, LONG, LONG, LONG, *[SIZE] * 3],
                {"SHARED": not sample, "SAMPLE": sample, "BLOCK": 16},
                1,
            )
            for sample in (False, True)
        ],
    ],
    "segments.gpu": [
        *[("_recursions", SEGMENTS, LABELS | {"KIND": kind}, 4) for kind in (1, 2)],
        (
            "_marginals",
            [*SEGMENTS, LONG, DOUBLE, SIZE, DOUBLE, FLOAT, FLOAT, SIZE],
            LABELS | {"WEIGHTED": True},
            4,
        ),
        *[
            ("_trace", [*SEGMENTS, LONG, LONG], LABELS | {"SAMPLE": sample}, 1)
            for sample in (False, True)
        ],
    ],
    "projective.gpu": [
        (
            "_inside_outside",
            [*ARCS, FLOAT, FLOAT, DOUBLE, DOUBLE, LONG, DOUBLE, *[SIZE] * 3],
            {"MULTIROOT": False, "WANT": True, "WEIGHTED": False, **TILES},
            2,
        ),
        *[
            (
                "_charts",
                [*ARCS, DOUBLE, DOUBLE, SIZE, SIZE],
                {"KIND": kind, "MULTIROOT": kind == 1, **TILES},
                2,
            )
            for kind in (1, 2)
        ],
        *[
            (
                "_trace",
                [DOUBLE, DOUBLE, LONG, LONG, LONG, INT, *[SIZE] * 3],
                {"MULTIROOT": sample, "SAMPLE": sample, "NODES": 16},
                1,
            )
            for sample in (False, True)
        ],
    ],
    "spanning.gpu": [
        (
            "_matrix_tree",
            [*ARCS, FLOAT, FLOAT, INT, DOUBLE, LONG, DOUBLE, *[SIZE] * 2],
            {"MULTIROOT": False, "WANT": True, "WEIGHTED": True, "NODES": 16},
            2,
        ),
    ],
    "spanning.gpu_decoding": [
        (
            "_best_trees",
            [*ARCS, LONG, DOUBLE, INT, SIZE],
            {"MULTIROOT": False, "NODES": 16, "GROUPS": 32},
            1,
        ),
        *[
            (
                "_walk",
                [FLOAT, *[SIZE] * 3, DOUBLE, LONG, LONG, LONG, LONG, SIZE, SIZE],
                {"PATIENCE": 50, "MULTIROOT": multiroot, "NODES": 16},
                1,
            )
            for multiroot in (False, True)
        ],
    ],
}


@pytest.mark.parametrize("module", KERNELS)
def test_kernels_compile_for_a_gpu(module, tmp_path):
    program = COMPILE.format(module=module, kernels=KERNELS[module])
    environment = {
        k: v for k, v in os.environ.items() if k not in ("TRITON_INTERPRET", "NUMBA_DISABLE_JIT")
    }
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
