"""Linear chains."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from softq.kernels.chain import cpu, reference
from softq.kernels.operator import Operator

MOST_LABELS_ON_GPU = 64  # a [K, K] tile lives in registers; beyond this it would not fit


def _gpu(*given: Any) -> tuple[Tensor, ...]:
    from softq.kernels.chain import gpu  # Triton is only there with a GPU

    return gpu.infer(*given)


OPERATOR = Operator(
    "chain", ("emissions", "transitions"), (), reference.log_partition, cpu.infer, _gpu
)
