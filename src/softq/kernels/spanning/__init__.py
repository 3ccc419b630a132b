"""Spanning dependency trees, crossing arcs allowed."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from softq.kernels.operator import Decoder, Operator, on_gpu
from softq.kernels.spanning import arborescence, cpu, reference
from softq.kernels.trees import infer


def _cpu(arcs: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
    operations = arcs.shape[1] ** 3 // 4  # an elimination does four at a time
    return infer(cpu.losses, operations, arcs, *given)


MOST_NODES_ON_GPU = 64  # a tile of float64 lives in registers; beyond this it would not fit


OPERATOR = Operator(
    "spanning",
    ("arcs",),
    ("multiroot",),
    reference.log_partition,
    _cpu,
    on_gpu("spanning.gpu", "infer"),
)

DECODER = Decoder(arborescence.mode, cpu.sample, "spanning.gpu_decoding", root=1)
