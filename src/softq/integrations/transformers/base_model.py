"""The model that training started from, as a prior and as what the trained model is compared with."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from softq.neural.generation import evaluating


class BaseModel:
    """The model without its adapters, or else a frozen copy, made once.

    Args:
        model: as training starts with it, perhaps with adapters.
        core: the Transformers model inside.

    """

    def __init__(self, model: Any, core: nn.Module) -> None:
        self._frozen: nn.Module | None = None
        if not has_adapters(model):
            self._frozen = copy.deepcopy(core).requires_grad_(False).eval()

    @contextmanager
    def of(self, model: Any, core: nn.Module) -> Iterator[nn.Module]:
        """The base of a model, to be run within the block, without gradients."""
        if self._frozen is None:
            with model.disable_adapter(), evaluating(core):
                yield core
        else:
            device = next(core.parameters()).device
            with evaluating(self._frozen.to(device)):
                yield self._frozen


def has_adapters(model: Any) -> bool:
    """Whether a model has adapters that can be switched off."""
    return callable(getattr(model, "disable_adapter", None))


def is_deterministic(core: Any) -> bool:
    """Whether a model computes the same in training as in evaluation: nothing is dropped out."""
    dropped = any(
        isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0
        for module in core.modules()
    )
    settings = core.config.to_dict()
    return not dropped and not any(
        isinstance(value, (int, float)) and value > 0
        for name, value in settings.items()
        if "drop" in name
    )
