"""Trained models of sentences as files: parameters, words and settings in one safetensors file."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import torch
from safetensors.torch import save as to_safetensors
from torch import Tensor, nn

from softq.errors import DataError
from softq.formats.file_checks import check_format, notes_in, read_tensors, refusing
from softq.lab.run import write_atomically
from softq.neural.modules.sequence import SequenceModel

M = TypeVar("M", bound=SequenceModel)

_PARAMETERS = "model."  # names of parameters in a file begin so


class SavedModel(ABC):
    """A model of sentences with all that is needed to use it; a subclass is a dataclass with a ``model`` and says what else there is."""

    format: ClassVar[str]
    """What its file says it is."""
    kind: ClassVar[str]
    """What people call it."""
    model: SequenceModel

    @abstractmethod
    def notes(self) -> dict[str, Tensor]:
        """What the file holds beside the parameters, whose names there begin with ``model.``."""

    @classmethod
    @abstractmethod
    def from_notes(cls, about: dict[str, Any], tensors: Mapping[str, Tensor]) -> Self:
        """From what `notes` wrote and the model's parameters (`build_from`); what does not fit raises anything of the usual errors."""

    def to(self, device: torch.device | str) -> Self:
        """The same on another device; the model itself moves."""
        self.model.to(device)
        return self

    def tensors(self) -> dict[str, Tensor]:
        """All of it as tensors."""
        return {
            f"{_PARAMETERS}{name}": value.detach().cpu()
            for name, value in self.model.named_parameters()
        } | self.notes()

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """The model of `tensors`; what is none is a `DataError`."""
        about = notes_in(tensors, "about", cls.kind)
        check_format(about, cls.format)
        with refusing(
            f"expected the settings and words of a {cls.kind}, got what does not fit together"
        ):
            return cls.from_notes(about, tensors)

    def save(self, path: str | PathLike[str]) -> None:
        """Write it to one safetensors file, whole or not at all."""
        write_atomically(
            Path(path),
            to_safetensors({name: value.contiguous() for name, value in self.tensors().items()}),
        )

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """The model of a file of `save`, or of the best model of a run."""
        try:
            return cls.from_tensors(read_tensors(path).tensors)
        except DataError as error:
            raise DataError(
                f"{path} is not a {cls.kind} of softq ({error}); expected a run's best.safetensors or a file of {cls.__name__}.save"
            ) from None


def about_tensor(about: Mapping[str, Any]) -> Tensor:
    """Settings as JSON in a tensor."""
    return torch.from_numpy(np.frombuffer(json.dumps(about).encode(), np.uint8).copy())


def build_from(tensors: Mapping[str, Tensor], layers: int, build: Callable[[], M]) -> M:
    """A model of so many layers with the parameters of a file, which is small where its settings may ask for a large one.

    So their names and shapes are compared before anything of the size that the settings ask for is made.
    """
    parameters = {
        name.removeprefix(_PARAMETERS): value
        for name, value in tensors.items()
        if name.startswith(_PARAMETERS)
    }
    if layers > len(parameters):
        raise DataError(f"expected parameters of {layers} layers, got {len(parameters)} parameters")
    with torch.device("meta"):  # shapes, and nothing in them
        _check_parameters(build(), parameters)
    model = build()
    load_parameters(model, parameters)
    return model.eval()


def load_parameters(model: nn.Module, parameters: Mapping[str, Tensor]) -> None:
    """Give a model the parameters of another of the same architecture; what does not fit is a `DataError`."""
    known = _check_parameters(model, parameters)
    with torch.no_grad():
        for name, value in parameters.items():
            known[name].copy_(value)


def _check_parameters(
    model: nn.Module, parameters: Mapping[str, Tensor]
) -> dict[str, nn.Parameter]:
    """The model's own parameters by all their names."""
    known = dict(
        model.named_parameters(remove_duplicate=False)
    )  # a weight that is tied has two names, and files hold one or both
    missing = sorted(dict(model.named_parameters()).keys() - parameters.keys())
    unknown = sorted(parameters.keys() - known.keys())
    if missing or unknown:
        raise DataError(
            f"expected {f'a parameter {missing[0]}' if missing else f'no parameter {unknown[0]}'}: the model is another one"
        )
    for name, value in parameters.items():
        if known[name].shape != value.shape or known[name].dtype != value.dtype:
            got = f"{value.dtype} {list(value.shape)}"
            raise DataError(
                f"expected the parameter {name} as {known[name].dtype} {list(known[name].shape)}, got {got}"
            )
    return known
