"""Fast paths (numba on the CPU, Triton on the GPU) and the plain torch reference they are tested against.

Every structure has one entry, ``log_partition(structure, lengths, *scores)``, differentiable to any order:
values and first derivatives come from the fast path, higher ones from differentiating the reference.
"""

from softq.kernels.autograd import Structure, cross_entropy, log_partition, marginals, sum_of_inner
from softq.kernels.backend import backend, current_backend

__all__ = ["Structure", "backend", "cross_entropy", "current_backend", "log_partition", "marginals", "sum_of_inner"]
