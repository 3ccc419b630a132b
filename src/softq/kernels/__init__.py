"""Recursions and small networks: numba on the CPU, Triton on a GPU, plain torch as reference.

A folder for each: ``reference.py``, ``cpu.py`` and ``gpu.py``. Those behind exact distributions are
torch operators (`softq.kernels.operator`).
"""

from softq.kernels.backend import backend, use_kernels

__all__ = ["backend", "use_kernels"]
