"""Projective dependency trees."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from softq.kernels.operator import Decoder, Operator, on_gpu
from softq.kernels.projective import cpu, reference
from softq.kernels.trees import infer


def _cpu(arcs: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
    return infer(cpu.losses, arcs.shape[1] ** 3 // 2, arcs, *given)


OPERATOR = Operator(
    "projective",
    ("arcs",),
    ("multiroot",),
    reference.log_partition,
    _cpu,
    on_gpu("projective.gpu", "infer"),
)

DECODER = Decoder(cpu.mode, cpu.sample, "projective.gpu", root=1)
