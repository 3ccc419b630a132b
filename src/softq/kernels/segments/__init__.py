"""Segmentations: sequences cut into labelled segments."""

from __future__ import annotations

from torch import Tensor

from softq.kernels.operator import Expected, Operator, by_autograd
from softq.kernels.segments import cpu, reference


def _gpu(
    segments: Tensor, transitions: Tensor, lengths: Tensor, target: Expected, gradient: bool
) -> tuple[Tensor, ...]:
    return by_autograd(reference.log_partition, lengths, (segments, transitions), target)


OPERATOR = Operator(
    "segments", ("segments", "transitions"), (), reference.log_partition, cpu.infer, _gpu
)
