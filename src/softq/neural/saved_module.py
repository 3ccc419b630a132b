"""Models that are one safetensors file: parameters, and the rest as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from safetensors.torch import save as to_safetensors
from torch import Tensor, nn

from softq.errors import DataError
from softq.formats.file_checks import (
    check_format,
    mapping,
    notes_in,
    read_tensors,
    refusing,
    starting_with,
)
from softq.lab.run import BEST, write_atomically
from softq.neural.text_generator import load_parameters

_PARAMETERS = "model."  # names of parameters in a file begin so


class SavedModule(nn.Module):
    """A module that is one file. Subclasses say what it is, and what there is beside the parameters."""

    noun: ClassVar[str]
    format: ClassVar[str]
    option: ClassVar[str] = "neural"  # of ``softq train --model``

    @property
    def device(self) -> torch.device:
        """That of the parameters."""
        return next(self.parameters()).device

    def about(self) -> dict[str, Any]:
        """What the file holds beside the parameters, as JSON can hold it; ``settings`` among it."""
        raise NotImplementedError

    @classmethod
    def from_about(cls, about: Mapping[str, Any]) -> Self:
        """The model of `about`, with any parameters."""
        raise NotImplementedError

    def take_about(self, about: Mapping[str, Any]) -> None:
        """Take how outputs are predicted and written, as `about` says it."""
        raise NotImplementedError

    @classmethod
    def layer_count(cls, about: Mapping[str, Any]) -> int:
        """How many layers `about` asks for, each of which has parameters."""
        return int(mapping("settings", about["settings"]).get("layers", 1))

    def notes(self) -> Tensor:
        """`about` and the format as bytes."""
        written = json.dumps({"format": self.format, **self.about()}, ensure_ascii=False).encode()
        return torch.from_numpy(np.frombuffer(written, np.uint8).copy())

    def tensors(self) -> dict[str, Tensor]:
        """All that a file holds."""
        parameters = self.state_dict().items()
        found = {f"{_PARAMETERS}{name}": p.detach().cpu() for name, p in parameters}
        return found | {"about": self.notes()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """The model of `tensors`, in evaluation mode; what is none, or damaged, is a `DataError`."""
        about = notes_in(tensors, "about", cls.noun)
        check_format(about, cls.format)
        parameters = starting_with(_PARAMETERS, tensors)
        with refusing(f"expected the settings and parameters of a {cls.noun}"):
            if (layers := cls.layer_count(about)) > len(parameters):
                raise DataError(f"expected parameters of {layers} layers, got {len(parameters)}")
            with torch.device("meta"):  # shapes are compared before memory is asked for
                load_parameters(cls.from_about(about), parameters)
            model = cls.from_about(about)
            load_parameters(model, parameters)
        return model.eval()

    def save(self, path: str | PathLike[str]) -> None:
        """Write it to one safetensors file, whole or not at all; nothing is pickled.

        ``softq predict`` and ``softq evaluate`` read it, too.
        """
        tensors = {name: tensor.contiguous() for name, tensor in self.tensors().items()}
        write_atomically(Path(path), to_safetensors(tensors))

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """The model of a file of `save`, or the best one of a run of ``softq train``."""
        try:
            place = Path(path) / BEST if Path(path).is_dir() else path
            return cls.from_tensors(read_tensors(place).tensors)
        except DataError as error:
            raise DataError(
                f"{path} is not a {cls.noun} of softq ({error}); expected a file of"
                f" {cls.__name__}.save or a run of softq train with --model"
                f" {cls.option}"
            ) from None


def saved_format(path: Path) -> str:
    """What a file says that it is, "" if nothing; whoever reads it will say what is wrong with it."""
    try:
        found = notes_in(read_tensors(path).tensors, "about", "model").get("format")
    except DataError:
        return ""
    return found if isinstance(found, str) else ""
