"""Checks on what users pass in.

Each raises a SoftqError: what was expected, what came, what to do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from softq.errors import (
    DtypeError,
    LengthError,
    OutputError,
    ScoreError,
    ShapeError,
    SoftqError,
    WeightError,
)
from softq.numerics import can_inspect, length_mask
from softq.options import check_tau as check_tau

_INTEGERS = (torch.int64, torch.int32)


def type_of(value: Any) -> Any:
    """How an error names what came: the dtype of a tensor, or the type of anything else."""
    return value.dtype if isinstance(value, Tensor) else type(value).__name__


def extremes(values: Tensor) -> tuple[float, float]:
    """Smallest and largest value, NaN if there is one, without waking torch's threads for it."""
    if values.is_cpu:
        array = values.numpy(force=True)
        return array.min(), array.max()
    low, high = torch.stack(torch.aminmax(values.detach())).tolist()
    return low, high


def first_true(wrong: Tensor) -> tuple[int, ...] | None:
    """Index of the first place that is True; None if there is none, or if nobody may look."""
    if not can_inspect(wrong) or not bool(wrong.any()):
        return None
    return tuple(wrong.nonzero()[0].tolist())


def as_scores(name: str, scores: Any) -> Tensor:
    """Scores in float32 or float64; half precision is computed in float32."""
    if not isinstance(scores, Tensor) or not scores.dtype.is_floating_point:
        raise DtypeError(f"{name} must be a torch.Tensor of floats, got {type_of(scores)}")
    return scores if scores.dtype in (torch.float32, torch.float64) else scores.float()


def check_scores(
    name: str, scores: Tensor, real: Callable[[], Tensor | None] = lambda: None
) -> bool:
    """Raise an error where a score that counts is NaN or +inf; returns whether any is -inf.

    ``real()`` is a mask that broadcasts to the scores, of those that count; None: all. While a
    graph is traced nothing is looked at, and the answer is that there may be.
    """
    if not can_inspect(scores):
        return True
    if scores.is_cuda and math.isfinite(scores.detach().sum().item()):
        return False  # one kernel and one number to wait for; a sum too large is looked at below
    low, high = extremes(scores) if scores.numel() else (0.0, 0.0)
    if high < math.inf:  # NaN compares false
        return bool(low == -math.inf)
    counts, bad = real(), ~(scores.detach() < math.inf)
    if (place := first_true(bad if counts is None else bad & counts)) is not None:
        value = "NaN" if bool(scores[place].isnan()) else "+inf"
        raise ScoreError(
            f"{name} must be finite or -inf (which forbids), got {value} at index {place}"
        )
    return bool((scores.detach() == -math.inf).any())


def check_lengths(
    lengths: Any, mask: Any, batch_shape: torch.Size, size: int, device: torch.device
) -> Any:
    """Integer lengths ``[*B]`` in 0..size on ``device``, as given or from a mask ``[*B, n]``.

    None stands for "all full".
    """
    if mask is not None:
        if lengths is not None:
            raise LengthError("give lengths or a mask, not both")
        lengths = _lengths_of_mask(mask, torch.Size((*batch_shape, size)))
    if lengths is None:
        return None
    if not isinstance(lengths, Tensor):
        try:
            lengths = torch.as_tensor(lengths)
        except (TypeError, ValueError, RuntimeError) as error:
            raise DtypeError(
                f"lengths must be whole numbers {list(batch_shape)}, got {lengths!r}"
            ) from error
    if lengths.dtype not in _INTEGERS:
        hint = f"; pass a mask as mask=mask or lengths=mask.sum({len(batch_shape)})"
        raise DtypeError(
            f"lengths must be an int64 tensor {list(batch_shape)}, got {lengths.dtype} "
            f"{list(lengths.shape)}{hint if lengths.dtype == torch.bool else ''}"
        )
    if lengths.shape != batch_shape:
        raise ShapeError(f"lengths must have shape {list(batch_shape)}, got {list(lengths.shape)}")
    check_range("length", lengths, size + 1, error=LengthError)
    return lengths.to(device=device, dtype=torch.int64)


def _lengths_of_mask(mask: Tensor, shape: torch.Size) -> Tensor:
    if not isinstance(mask, Tensor) or mask.dtype.is_floating_point or mask.dtype.is_complex:
        raise DtypeError(f"mask must be a bool tensor {list(shape)}, got {type_of(mask)}")
    if mask.shape != shape:
        raise ShapeError(f"mask must have shape {list(shape)}, got {list(mask.shape)}")
    mask = mask.bool()
    lengths = mask.sum(-1)
    holes = (mask != length_mask(lengths, shape[-1])).any(-1)
    if (place := first_true(holes)) is not None:
        raise LengthError(
            f"mask must be True and then False along each row, got a hole in row {place}; "
            "move what counts to the front with softq.left_align(mask, emissions, labels)"
        )
    return lengths


def check_range(
    name: str,
    outputs: Tensor,
    count: int,
    missing: int | None = None,
    error: type[SoftqError] = OutputError,
) -> bool:
    """Integers lie in 0..count-1, or are ``missing``; returns whether any is missing."""
    if not can_inspect(outputs) or not outputs.numel():
        return False
    low, high = extremes(outputs)
    if low >= 0 and high < count:
        return False
    bad = (outputs < 0) | (outputs >= count)
    if (place := first_true(bad if missing is None else bad & (outputs != missing))) is not None:
        raise error(
            f"every {name} must lie in 0..{count - 1}"
            + ("" if missing is None else f" (or be {missing}, not labelled)")
            + f", got {int(outputs[place])} at index {place}"
        )
    return True


def check_count(name: str, value: Any, error: type[SoftqError], least: int = 1) -> int:
    """A whole number from ``least``; what is not raises ``error``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise error(f"{name} must be a whole number from {least}, got {value!r}")
    return value


def check_weights(weights: Tensor, shape: torch.Size) -> Tensor:
    """Reference weights ``[*B,R]``, non-negative with a positive sum, normalised to sum to one."""
    if not isinstance(weights, Tensor) or not weights.dtype.is_floating_point:
        raise DtypeError(f"ref_weights must be a floating-point tensor, got {type_of(weights)}")
    if weights.shape != shape:
        raise ShapeError(
            f"ref_weights must have shape {list(shape)} (one weight per reference), "
            f"got {list(weights.shape)}"
        )
    weights = weights.detach().double()  # a sum may be more than its type can hold
    total = weights.sum(-1, keepdim=True)
    rules = {
        "be finite and not negative (0 if one is missing)": weights.isfinite() & (weights >= 0),
        "have a finite sum for each example (divide them by their largest)": total < math.inf,
        "sum to a positive number for each example": total > 0,
    }
    for rule, kept in rules.items():
        if (place := first_true(~kept)) is not None:
            got = f"got {weights[place[:-1]].tolist()} at example {place[:-1]}"
            raise WeightError(f"ref_weights must {rule}, {got}")
    return weights / total
