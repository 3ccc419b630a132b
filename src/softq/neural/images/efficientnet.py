"""EfficientNet-Lite0 without its classifier: a small network whose weights come in a package.

Tan and Le, *EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks* (2019); the
Lite variant has ReLU6 in place of swish and no squeeze-and-excitation.
"""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_eval

SIZE = 224

# Blocks of a stage, kernel, stride of the first block, expansion, channels out.
_STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
_STEM, _HEAD = 32, 1280  # channels after the first convolution, and after the last one
_EPSILON = 1e-3  # of the published batch normalisation


class _Convolution(nn.Conv2d):
    """A convolution padded as in TensorFlow: with stride 2 the odd pixel goes right and below."""

    def __init__(self, into: int, out: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        padding = kernel // 2 if stride == 1 else 0
        super().__init__(into, out, kernel, stride, padding, groups=groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:  # [B, into, H, W] -> [B, out, H / stride, W / stride]
        if self.stride == (2, 2):
            before = (self.kernel_size[0] - 2) // 2
            x = functional.pad(x, (before, self.kernel_size[0] - 2 - before) * 2)
        return super().forward(x)


class _Block(nn.Module):
    """Widen, convolve each channel by itself, narrow; added to the input where shapes allow."""

    def __init__(self, into: int, out: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = into * expansion
        if expansion > 1:
            self._expand_conv, self._bn0 = _Convolution(into, wide, 1), _norm(wide)
        self._depthwise_conv, self._bn1 = (
            _Convolution(wide, wide, kernel, stride, wide),
            _norm(wide),
        )
        self._project_conv, self._bn2 = _Convolution(wide, out, 1), _norm(out)
        self.expands, self.adds = expansion > 1, stride == 1 and into == out

    def forward(self, x: Tensor) -> Tensor:
        out = x
        if self.expands:
            out = functional.relu6(self._bn0(self._expand_conv(out)), inplace=True)
        out = functional.relu6(self._bn1(self._depthwise_conv(out)), inplace=True)
        narrow: Tensor = self._bn2(self._project_conv(out))
        return narrow + x if self.adds else narrow


class EfficientNetLite0(nn.Module):
    """Images ``[B, 3, 224, 224]`` to the mean of the last layer over positions, ``[B, 1280]``.

    Its modules have the names of the published PyTorch weights.
    """

    def __init__(self) -> None:
        super().__init__()
        blocks, into = [], _STEM
        for count, kernel, stride, expansion, out in _STAGES:
            for number in range(count):
                blocks.append(_Block(into, out, kernel, stride if number == 0 else 1, expansion))
                into = out
        self._conv_stem, self._bn0 = _Convolution(3, _STEM, 3, 2), _norm(_STEM)
        self._blocks = nn.Sequential(*blocks)
        self._conv_head, self._bn1 = _Convolution(into, _HEAD, 1), _norm(_HEAD)

    def forward(self, x: Tensor) -> Tensor:
        """Features of images."""
        x = functional.relu6(self._bn0(self._conv_stem(x)), inplace=True)
        x = functional.relu6(self._bn1(self._conv_head(self._blocks(x))), inplace=True)
        return x.mean((2, 3))


def _norm(channels: int) -> nn.Module:
    return nn.BatchNorm2d(channels, _EPSILON)


def fold_norms(network: nn.Module) -> None:
    """Fold every batch normalisation into the convolution before it, in place; for inference."""
    network.eval().double()
    for parent in list(network.modules()):
        for (name, conv), (norm_name, norm) in pairwise(list(parent.named_children())):
            if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                setattr(parent, name, fuse_conv_bn_eval(conv, norm))
                setattr(parent, norm_name, nn.Identity())
    network.float()
