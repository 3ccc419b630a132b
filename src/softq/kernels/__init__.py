"""Fast paths (numba on the CPU, Triton on the GPU) and the plain torch reference they are tested against.

Every structure has one entry, ``log_partition(structure, lengths, *scores)``, differentiable to any order:
values and first derivatives come from the fast path, higher ones from differentiating the reference.
"""

from softq.kernels.autograd import Structure, log_partition, marginals
from softq.kernels.backend import backend, current_backend

__all__ = ["Structure", "backend", "current_backend", "log_partition", "marginals"]
