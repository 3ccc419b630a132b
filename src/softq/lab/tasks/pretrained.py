"""Encoders of Transformers in runs: what their recipes ask for, and what trains them."""

from __future__ import annotations

from typing import Any

import torch

from softq.errors import RunError
from softq.lab.tasks.encoder_recipe import EncoderSettings


def model_options(settings: EncoderSettings) -> dict[str, Any]:
    """Options of `SavedEncoder.from_encoder` that a recipe names."""
    names = ("pooling", "max_length", "stride", "lora")
    return {name: getattr(settings, name) for name in names} | {"dropout": settings.head_dropout}


def finetuner(
    model: Any, settings: EncoderSettings, rate: float, device: torch.device
) -> torch.optim.AdamW:
    """Make a `SavedEncoder` ready to be trained on a device: AdamW with rates for encoder and head.

    Biases and norms do not shrink.
    """
    if settings.bf16 and device.type == "cuda" and not torch.cuda.is_bf16_supported():
        raise RunError("this GPU does not compute in bfloat16: leave out bf16")
    model.bf16 = settings.bf16
    if settings.gradient_checkpointing:
        model.core.gradient_checkpointing_enable({"use_reentrant": False})
    head = {id(weight) for weight in model.core.head_parameters()}
    groups: dict[tuple[bool, bool], list[torch.nn.Parameter]] = {}
    for weight in model.parameters():
        if weight.requires_grad:
            groups.setdefault((id(weight) in head, weight.dim() > 1), []).append(weight)
    return torch.optim.AdamW(
        [
            {
                "params": weights,
                "lr": settings.head_learning_rate if of_head else rate,
                "weight_decay": settings.weight_decay if shrinks else 0.0,
            }
            for (of_head, shrinks), weights in groups.items()
        ],
        fused=True,
    )
