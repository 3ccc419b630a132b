"""Trained models of sentences as files: parameters, words and settings in one safetensors file."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_safetensors
from torch import Tensor, nn

from softq.errors import DataError, DependencyError, SoftqError
from softq.models.sequence import SequenceModel
from softq.run import write_atomically

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
        """From what `notes` wrote, with parameters that are still to come; what does not fit raises anything of the usual errors."""

    def to(self, device: torch.device | str) -> Self:
        """The same on another device; the model itself moves."""
        self.model.to(device)
        return self

    def tensors(self) -> dict[str, Tensor]:
        """All of it as tensors."""
        return {f"{_PARAMETERS}{name}": value.detach().cpu() for name, value in self.model.named_parameters()} | self.notes()

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """The model of `tensors`; what is none is a `DataError`."""
        if "about" not in tensors:
            raise DataError(f"expected the tensors of a {cls.kind}, got none of the name 'about'")
        try:
            about = json.loads(tensors["about"].numpy().tobytes())
        except (TypeError, ValueError) as error:
            raise DataError(f"expected JSON in the tensor 'about' of a {cls.kind}, got {error}") from None
        if not isinstance(about, dict) or about.get("format") != cls.format:
            raise DataError(f"expected the format {cls.format!r}, got {about.get('format') if isinstance(about, dict) else about!r}")
        try:
            found = cls.from_notes(about, tensors)
        except DependencyError:
            raise
        except (KeyError, TypeError, AttributeError, ValueError, RuntimeError, SoftqError) as error:  # some are torch's, of sizes
            raise DataError(f"expected the settings and words of a {cls.kind}, got what does not fit together: {error}") from None
        parameters = {name.removeprefix(_PARAMETERS): value for name, value in tensors.items() if name.startswith(_PARAMETERS)}
        load_parameters(found.model, parameters)
        found.model.eval()
        return found

    def save(self, path: str | PathLike[str]) -> None:
        """Write it to one safetensors file, whole or not at all."""
        write_atomically(Path(path), to_safetensors({name: value.contiguous() for name, value in self.tensors().items()}))

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """The model of a file of `save`, or of the best model of a run."""
        try:
            with safe_open(path, "pt") as file:
                return cls.from_tensors({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118 -- not a dict
        except (OSError, SafetensorError, DataError) as error:
            raise DataError(
                f"{path} is not a {cls.kind} of softq ({error}); expected a run's best.safetensors or a file of {cls.__name__}.save"
            ) from None


def about_tensor(about: Mapping[str, Any]) -> Tensor:
    """Settings as JSON in a tensor."""
    return torch.from_numpy(np.frombuffer(json.dumps(about).encode(), np.uint8).copy())


def load_parameters(model: nn.Module, parameters: Mapping[str, Tensor]) -> None:
    """Give a model the parameters of another of the same architecture; what does not fit is a `DataError`."""
    known = dict(model.named_parameters(remove_duplicate=False))  # a weight that is tied has two names, and files hold one or both
    missing = sorted(dict(model.named_parameters()).keys() - parameters.keys())
    unknown = sorted(parameters.keys() - known.keys())
    if missing or unknown:
        raise DataError(f"expected {f'a parameter {missing[0]}' if missing else f'no parameter {unknown[0]}'}: the model is another one")
    for name, value in parameters.items():
        if known[name].shape != value.shape or known[name].dtype != value.dtype:
            got = f"{value.dtype} {list(value.shape)}"
            raise DataError(f"expected the parameter {name} as {known[name].dtype} {list(known[name].shape)}, got {got}")
    with torch.no_grad():
        for name, value in parameters.items():
            known[name].copy_(value)
