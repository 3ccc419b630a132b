"""Checks on what users pass in. Each raises a SoftqError that states what was expected and what came."""

from __future__ import annotations

import math
import numbers

import torch
from torch import Tensor

from softq.errors import DtypeError, LengthError, OutputError, ScoreError, ShapeError, TemperatureError, WeightError

COLDEST, HOTTEST = 1e-18, 1e18  # temperatures whose inverse and square float32 can hold


def check_scores_dtype(name: str, scores: Tensor) -> None:
    """Scores are float32 or float64 tensors."""
    if not isinstance(scores, Tensor):
        raise DtypeError(f"{name} must be a torch.Tensor of float32 or float64, got {type(scores).__name__}")
    if scores.dtype not in (torch.float32, torch.float64):
        raise DtypeError(f"{name} must be float32 or float64, got {scores.dtype}; convert with .float()")


def bad_score(name: str, scores: Tensor, place: tuple[int, ...]) -> ScoreError:
    """Error for scores that hold NaN or +inf at ``place`` (leading dimensions of a flattened batch)."""
    value = "NaN" if bool(torch.isnan(scores[place]).any()) else "+inf"
    return ScoreError(f"{name} must be finite or -inf (which forbids), got {value} at index {place}, batch dimensions flattened")


def check_lengths(lengths: Tensor | None, batch_shape: torch.Size, size: int, device: torch.device) -> Tensor | None:
    """Integer lengths ``[*B]`` in 0..size on ``device``; None stands for "all full"."""
    if lengths is None:
        return None
    if not isinstance(lengths, Tensor) or lengths.dtype not in (torch.int64, torch.int32):
        got = lengths.dtype if isinstance(lengths, Tensor) else type(lengths).__name__
        raise DtypeError(f"lengths must be an int64 tensor, got {got}")
    if lengths.shape != batch_shape:
        raise ShapeError(f"lengths must have shape {list(batch_shape)}, got {list(lengths.shape)}")
    if lengths.numel() and bool(((lengths < 0) | (lengths > size)).any()):
        place = tuple(torch.nonzero((lengths < 0) | (lengths > size))[0].tolist())
        raise LengthError(f"lengths must lie in 0..{size}, got {int(lengths[place])} at index {place}")
    return lengths.to(device=device, dtype=torch.int64)


def check_classes(name: str, outputs: Tensor, count: int, real: Tensor | None) -> None:
    """Class or label numbers (where ``real``) lie in 0..count-1."""
    if real is not None:
        outputs = outputs.masked_fill(~real, 0)
    if not outputs.numel():
        return
    low, high = outputs.aminmax()
    if low < 0 or high >= count:
        bad = (outputs < 0) | (outputs >= count)
        place = tuple(torch.nonzero(bad)[0].tolist())
        raise OutputError(f"every {name} must lie in 0..{count - 1}, got {int(outputs[place])} at index {place}")


def check_tau(tau: float) -> float:
    """A temperature is a positive finite number."""
    if isinstance(tau, Tensor) and tau.numel() == 1:
        tau = float(tau)
    if isinstance(tau, bool) or not isinstance(tau, numbers.Real):
        raise TemperatureError(f"tau must be a positive number, got {type(tau).__name__}")
    if not (0.0 < tau < math.inf):
        raise TemperatureError(f"tau must be positive and finite, got {tau}; as tau goes to 0 RAML becomes softq.ml")
    if not COLDEST <= tau <= HOTTEST:
        raise TemperatureError(
            f"tau must lie between {COLDEST:g} and {HOTTEST:g}, got {tau:g}: beyond, rewards divided by it are no numbers"
        )
    return float(tau)


def check_weights(weights: Tensor, shape: torch.Size) -> Tensor:
    """Reference weights ``[*B,R]``, non-negative with a positive sum per example; returned summing to one."""
    if not isinstance(weights, Tensor) or not weights.dtype.is_floating_point:
        got = weights.dtype if isinstance(weights, Tensor) else type(weights).__name__
        raise DtypeError(f"ref_weights must be a floating-point tensor, got {got}")
    if weights.shape != shape:
        raise ShapeError(f"ref_weights must have shape {list(shape)} (one weight per reference), got {list(weights.shape)}")
    if bool((~(weights >= 0) | (weights == math.inf)).any()):
        raise WeightError("ref_weights must be finite and not negative; give 0 to a missing reference")
    weights = weights.detach().double()  # a sum may be more than its type can hold
    total = weights.sum(-1, keepdim=True)
    if bool((total == math.inf).any()):
        raise WeightError("ref_weights must have a finite sum for each example; divide them by their largest")
    if bool((total <= 0).any()):
        place = tuple(torch.nonzero(total.squeeze(-1) <= 0)[0].tolist())
        raise WeightError(f"ref_weights must sum to a positive number for each example, got 0 at example {place}")
    return weights / total
