"""EfficientNet-Lite0 without its classifier: a small network for phones, whose weights come in a package of 17 MB.

Tan and Le, *EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks* (2019); the Lite variant has ReLU6 in place of swish
and no squeeze-and-excitation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor, nn
from torch.nn import functional

SIZE, FEATURES = 224, 1280

# Blocks of a stage, kernel, stride of the first block, expansion, channels out.
_STAGES = ((1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80), (3, 5, 1, 6, 112), (4, 5, 2, 6, 192), (1, 3, 1, 6, 320))
_STEM = 32  # channels
_EPSILON = 1e-3  # of the published batch normalisation


class _Convolution(nn.Module):
    """Convolution and batch normalisation as one, padded as TensorFlow does: the odd pixel of a stride of two goes right and below."""

    def __init__(self, into: int, out: int, kernel: int, stride: int = 1, *, depthwise: bool = False, bounded: bool = True) -> None:
        super().__init__()
        self.conv = nn.Conv2d(into, out, kernel, stride, groups=into if depthwise else 1, padding=kernel // 2 if stride == 1 else 0)
        self.bounded = bounded
        before = (kernel - 2) // 2
        self.padding = (before, kernel - 2 - before) * 2 if stride == 2 else None  # of an even side: left, right, top, bottom

    def forward(self, x: Tensor) -> Tensor:  # [B, into, H, W] -> [B, out, H / stride, W / stride]
        if self.padding is not None:
            x = functional.pad(x, self.padding)
        x = self.conv(x)
        return functional.relu6(x, inplace=True) if self.bounded else x


class _Block(nn.Module):
    """Widen, look around in each channel, narrow; added to its input where shapes allow."""

    def __init__(self, into: int, out: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = into * expansion
        self.layers = nn.Sequential(
            *([_Convolution(into, wide, 1)] if expansion > 1 else []),
            _Convolution(wide, wide, kernel, stride, depthwise=True),
            _Convolution(wide, out, 1, bounded=False),
        )
        self.adds = stride == 1 and into == out

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out + x if self.adds else out


class EfficientNetLite0(nn.Module):
    """Images ``[B, 3, 224, 224]`` to the mean of the last layer over positions, ``[B, 1280]``."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = _Convolution(3, _STEM, 3, 2)
        blocks, into = [], _STEM
        for count, kernel, stride, expansion, out in _STAGES:
            for number in range(count):
                blocks.append(_Block(into, out, kernel, stride if number == 0 else 1, expansion))
                into = out
        self.blocks = nn.Sequential(*blocks)
        self.head = _Convolution(into, FEATURES, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Features of images."""
        found: Tensor = self.head(self.blocks(self.stem(x)))
        return found.mean((2, 3))

    def load_published(self, weights: Mapping[str, Tensor]) -> None:
        """Take over weights under the names of the published PyTorch conversion; normalisations are folded into their convolutions.

        A name that is missing is a KeyError, weights of another shape a RuntimeError; the classifier's are not looked at.
        """
        for layer, (conv, norm) in zip(self._convolutions(), published_names(), strict=True):
            gamma, beta, mean, var = (weights[f"{norm}.{part}"].double() for part in ("weight", "bias", "running_mean", "running_var"))
            scale = gamma / (var + _EPSILON).sqrt()
            kernel = weights[f"{conv}.weight"].double() * scale[:, None, None, None]
            layer.load_state_dict({"weight": kernel.float(), "bias": (beta - mean * scale).float()})

    def _convolutions(self) -> Iterator[nn.Conv2d]:
        return (module for module in self.modules() if isinstance(module, nn.Conv2d))


def published_names() -> Iterator[tuple[str, str]]:
    """Names of each convolution and its normalisation in the published weights, from the stem to the head."""
    yield "_conv_stem", "_bn0"
    number = 0
    for count, _, _, expansion, _ in _STAGES:
        for _ in range(count):
            block = f"_blocks.{number}."
            if expansion > 1:
                yield f"{block}_expand_conv", f"{block}_bn0"
            yield f"{block}_depthwise_conv", f"{block}_bn1"
            yield f"{block}_project_conv", f"{block}_bn2"
            number += 1
    yield "_conv_head", "_bn1"
