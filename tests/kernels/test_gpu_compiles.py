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
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from softq.kernels.{module} import gpu

kernel = getattr(gpu, {name!r})
constants, types = {constants!r}, iter({types!r})
signature = {{name: "constexpr" if name in constants else next(types) for name in kernel.arg_names}}
places = {{(kernel.arg_names.index(name),): value for name, value in constants.items()}}
source = ASTSource(kernel, signature, places)
made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={{"num_warps": {warps}}})
sys.exit("cubin" not in made.asm)
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
KERNELS = {
    "recursions": (
        "chain",
        "_recursions",
        CHAIN,
        {"SHARED": True, "PEAKED": True, "WEIGHTED": False, "BLOCK": 16, "TILE": 16},
        1,
    ),
    "marginals": (
        "chain",
        "_marginals",
        [*CHAIN, FLOAT, FLOAT, FLOAT, SIZE],
        {"SHARED": False, "PEAKED": True, "WEIGHTED": True, "BLOCK": 16, "TILE": 16},
        1,
    ),
    "projective": (
        "projective",
        "_inside_outside",
        [FLOAT, *[SIZE] * 3, LONG, FLOAT, FLOAT, DOUBLE, DOUBLE, LONG, DOUBLE, *[SIZE] * 3],
        {
            "MULTIROOT": False,
            "WANT": True,
            "WEIGHTED": False,
            "NODES": 16,
            "SPANS": 16,
            "SPLITS": 16,
        },
        2,
    ),
    "spanning": (
        "spanning",
        "_matrix_tree",
        [FLOAT, *[SIZE] * 3, LONG, FLOAT, FLOAT, INT, DOUBLE, LONG, DOUBLE, *[SIZE] * 2],
        {"MULTIROOT": False, "WANT": True, "WEIGHTED": True, "NODES": 16},
        2,
    ),
}


@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_compile_for_a_gpu(kernel, tmp_path):
    module, name, types, constants, warps = KERNELS[kernel]
    program = COMPILE.format(
        module=module, name=name, types=types, constants=constants, warps=warps
    )
    environment = {
        k: v for k, v in os.environ.items() if k not in ("TRITON_INTERPRET", "NUMBA_DISABLE_JIT")
    }
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
