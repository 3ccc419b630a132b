"""Decoders of sentences: attention, and log-probabilities over a large vocabulary."""

from __future__ import annotations

from types import ModuleType

from torch import Tensor

from softq.kernels.backend import use_kernels


def steps_on(like: Tensor) -> ModuleType:
    """The functions of a decoder's steps, for tensors like this one."""
    if like.is_cuda and use_kernels():
        from softq.kernels.decoder import gpu  # Triton is only there with a GPU

        return gpu
    from softq.kernels.decoder import reference

    return reference
