"""A trained model of sentences with all that it needs.

From texts or features of images to text, and one file on the disk.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save as to_safetensors
from torch import Tensor, nn

from softq.checks import check_count
from softq.errors import DataError
from softq.formats.file_checks import check_format, notes_in, read_tensors, refusing, starting_with
from softq.formats.vocabulary import Vocabulary
from softq.lab.recipe import build
from softq.lab.run import write_atomically
from softq.neural.examples import Array, Examples, Ragged, Vectors
from softq.neural.generation import DecodingOptions, GeneratedText, evaluating, on_device
from softq.neural.modules.captioner import ImageCaptioner
from softq.neural.modules.sequence import SequenceModel
from softq.neural.recipe import (
    CaptionDecoding,
    CaptionerSettings,
    Decoding,
    NetworkSettings,
    TranslationDecoding,
    TranslatorSettings,
)

_PARAMETERS = "model."  # names of parameters in a file begin so
_EMPTY = GeneratedText("", (), 0.0)  # of an empty text, for certain


_KINDS: dict[str, tuple[type[NetworkSettings], type[Decoding]]] = {
    "translator": (TranslatorSettings, TranslationDecoding),
    "captioner": (CaptionerSettings, CaptionDecoding),
}


@dataclass(frozen=True)
class TextGenerator:
    """A translator or a captioner: a model of sentences with its vocabularies.

    Attributes:
        model: log P(y|x).
        settings: of its network.
        vocabulary: of its outputs.
        source: vocabulary of its inputs; None where these are vectors.
        decoding: how it generates by default.
        encoder: what made the features of images, a name of `softq.neural.images.load_encoder`; ""
            if unknown.

    """

    model: SequenceModel
    settings: NetworkSettings
    vocabulary: Vocabulary
    source: Vocabulary | None
    decoding: Decoding
    encoder: str = ""

    @property
    def kind(self) -> str:
        """``translator`` or ``captioner``."""
        return "captioner" if self.source is None else "translator"

    @property
    def inputs(self) -> int:
        """The number of tokens of inputs, or of features of an image."""
        if isinstance(self.model, ImageCaptioner):
            return self.model.features
        return 0 if self.source is None else len(self.source)

    def to(self, device: torch.device | str) -> TextGenerator:
        """The same on another device; the model itself moves."""
        self.model.to(device)
        return self

    def generate(self, inputs: Sequence[str] | Array, **options: Any) -> list[GeneratedText]:
        """A text for each source text, or for each image with features ``[N, D]``.

        Inputs of similar length are batched together. An empty source has an empty output.
        ``options`` are those of `softq.neural.generation.DecodingOptions`; samples are from seed 0 unless
        there is a ``generator``.
        """
        search = DecodingOptions(**{"generator": torch.Generator().manual_seed(0)} | options)
        found = [_EMPTY] * len(inputs)
        encoded = self._encode(inputs)
        order = encoded.lengths.argsort(kind="stable")
        if self.source is not None:
            order = order[encoded.lengths[order] > 0]
        with evaluating(self.model):
            for begin in range(0, len(order), search.batch(self.model)):
                index = order[begin : begin + search.batch(self.model)]
                batch = on_device(encoded.take(index), self.model)
                texts = search.generate(
                    self.model, batch, self.vocabulary, self.decoding, index.tolist()
                )
                for place, text in zip(index, texts, strict=True):
                    found[place] = text
        return found

    def examples(
        self, inputs: Sequence[str] | Array, references: Sequence[Sequence[str]]
    ) -> Examples:
        """Inputs and reference texts as token ids, such as for `softq.neural.perplexity.perplexity`."""
        tokens = [[self.vocabulary.encode(text) for text in several] for several in references]
        return Examples(self._encode(inputs), tokens)

    def _encode(self, inputs: Sequence[str] | Array) -> Ragged | Vectors:
        if self.source is not None:
            return Ragged([self.source.encode(text) for text in inputs])
        features = np.asarray(inputs)
        if features.ndim != 2 or features.shape[1] != self.inputs:
            of = f" of {self.encoder}" if self.encoder else ""
            raise DataError(
                f"expected features{of} of {self.inputs} numbers for each image, got"
                f" {list(features.shape)}"
            )
        return Vectors(features)

    def notes(self) -> dict[str, Tensor]:
        """What the file holds beside the parameters: settings and vocabularies."""
        about = {
            "format": _format(self.kind),
            "model": dataclasses.asdict(self.settings),  # type: ignore[call-overload]
            "decoding": dataclasses.asdict(self.decoding),
            "encoder": self.encoder,
            "features": self.inputs,
        }
        written = np.frombuffer(json.dumps(about).encode(), np.uint8).copy()
        found = {"about": torch.from_numpy(written), **self.vocabulary.tensors("target.")}
        return found if self.source is None else found | self.source.tensors("source.")

    def tensors(self) -> dict[str, Tensor]:
        """All of it as tensors."""
        parameters = self.model.named_parameters()
        return {f"{_PARAMETERS}{name}": p.detach().cpu() for name, p in parameters} | self.notes()

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], kind: str = "") -> TextGenerator:
        """The translator or captioner of `tensors`, of this ``kind`` if it is given.

        Anything else is a `DataError`.
        """
        about = notes_in(tensors, "about", kind or "translator or captioner")
        kind = kind or str(about.get("format")).removeprefix("softq ").partition(" ")[0]
        check_format(about, _format(kind if kind in _KINDS else "translator"))
        with refusing(
            f"expected the settings and vocabularies of a {kind}, got what does not fit together"
        ):
            network, decoding = _KINDS[kind]
            settings = build(network, about["model"], "model")
            vocabulary = Vocabulary.from_tensors(tensors, "target.")
            source = Vocabulary.from_tensors(tensors, "source.") if kind == "translator" else None
            features = check_count("features", about["features"], DataError)
            return cls(
                _build(
                    settings,
                    features if source is None else len(source),
                    len(vocabulary),
                    starting_with(_PARAMETERS, tensors),
                ),
                settings,
                vocabulary,
                source,
                build(decoding, about["decoding"], "decoding"),
                str(about["encoder"]),
            )

    def save(self, path: str | PathLike[str]) -> None:
        """Write it to one safetensors file, whole or not at all."""
        tensors = {name: value.contiguous() for name, value in self.tensors().items()}
        write_atomically(Path(path), to_safetensors(tensors))

    @classmethod
    def load(cls, path: str | PathLike[str], kind: str = "") -> TextGenerator:
        """The model of a file of `save`, or of the best model of a run."""
        try:
            return cls.from_tensors(read_tensors(path).tensors, kind)
        except DataError as error:
            raise DataError(
                f"{path} is not a {kind or 'translator or captioner'} of softq ({error}); expected"
                " a run's best.safetensors or a file of TextGenerator.save"
            ) from None


def _format(kind: str) -> str:
    return f"softq {kind} 2"


def _build(
    settings: NetworkSettings, inputs: int, outputs: int, parameters: Mapping[str, Tensor]
) -> SequenceModel:
    """A model with the parameters of a file, which is small where its settings may ask for a large one.

    Names and shapes are compared before anything of the size that the settings ask for is allocated.
    """
    if settings.layers > len(parameters):
        raise DataError(
            f"expected parameters of {settings.layers} layers, got {len(parameters)} parameters"
        )
    with torch.device("meta"):  # shapes without memory
        _check_parameters(settings.build(inputs, outputs), parameters)
    model = settings.build(inputs, outputs)
    load_parameters(model, parameters)
    return model.eval()


def load_parameters(model: nn.Module, parameters: Mapping[str, Tensor]) -> None:
    """Give a model the parameters of another of the same architecture.

    What does not fit is a `DataError`.
    """
    known = _check_parameters(model, parameters)
    with torch.no_grad():
        for name, value in parameters.items():
            known[name].copy_(value)


def _check_parameters(model: nn.Module, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The model's own parameters, and what it keeps beside them, by all their names."""
    # a weight that is tied has two names, and files hold one or both
    known = model.state_dict(keep_vars=True)
    missing = sorted(dict(model.named_parameters()).keys() - parameters.keys())
    unknown = sorted(parameters.keys() - known.keys())
    if missing or unknown:
        raise DataError(
            f"expected {f'a parameter {missing[0]}' if missing else f'no parameter {unknown[0]}'}:"
            " the model is another one"
        )
    for name, value in parameters.items():
        if known[name].shape != value.shape or known[name].dtype != value.dtype:
            raise DataError(
                f"expected the parameter {name} as {known[name].dtype} {list(known[name].shape)},"
                f" got {value.dtype} {list(value.shape)}"
            )
    return known
