"""Segmentations: sequences cut into labelled segments."""

from __future__ import annotations

from softq.kernels.operator import Decoder, Operator, on_gpu
from softq.kernels.segments import cpu, reference

MOST_ON_GPU = 64  # labels, and tokens of a segment: tiles of them live in registers

OPERATOR = Operator(
    "segments",
    ("segments", "transitions"),
    (),
    reference.log_partition,
    cpu.infer,
    on_gpu("segments.gpu", "infer"),
)

DECODER = Decoder(cpu.mode, cpu.sample, "segments.gpu", widest=MOST_ON_GPU)
