"""Spanning dependency trees, crossing arcs allowed."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from softq.kernels.operator import Operator
from softq.kernels.spanning import cpu, reference
from softq.kernels.trees import infer


def _cpu(arcs: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
    operations = arcs.shape[1] ** 3 // 4  # an elimination does four at a time
    return infer(cpu.losses, operations, arcs, *given)


MOST_NODES_ON_GPU = 64  # a tile of float64 lives in registers; beyond this it would not fit


def _gpu(*given: Any) -> tuple[Tensor, ...]:
    from softq.kernels.spanning import gpu  # Triton is only there with a GPU

    return gpu.infer(*given)


OPERATOR = Operator("spanning", ("arcs",), ("multiroot",), reference.log_partition, _cpu, _gpu)
