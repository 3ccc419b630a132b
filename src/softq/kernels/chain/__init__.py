"""Linear chains."""

from __future__ import annotations

from softq.kernels.chain import cpu, reference
from softq.kernels.operator import Decoder, Operator, on_gpu

MOST_LABELS_ON_GPU = 64  # a [K, K] tile lives in registers; beyond this it would not fit

OPERATOR = Operator(
    "chain",
    ("emissions", "transitions"),
    (),
    reference.log_partition,
    cpu.infer,
    on_gpu("chain.gpu", "infer"),
)

DECODER = Decoder(cpu.mode, cpu.sample, "chain.gpu", widest=MOST_LABELS_ON_GPU)
