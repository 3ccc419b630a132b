"""How far probabilities agree with what is observed, and one temperature that brings them nearer.

Errors of calibration and proper scores work on tables of probabilities, whatever made them; the
temperature is fitted to any `softq.Distribution`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from softq.errors import ConvergenceWarning, DataError, DataWarning, OutputError, ShapeError
from softq.spaces import Distribution

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Binning = Literal["width", "mass"]

UNKNOWN = -1
"""An output that the model has no probability for, such as a label unseen in training."""

COLDEST, HOTTEST = 0.01, 100.0  # temperatures that are tried
_LEAST, _MOST = math.log(COLDEST), math.log(HOTTEST)
_ROUNDING_NOISE = 1e-12  # relative, of sums of scores
_MOST_STEPS = 100
_ROUNDING = 1e-3  # by which a row of probabilities may miss a sum of one


class Choices(NamedTuple):
    """Probabilities of choices, those of all sentences one below the other.

    A choice is a class, the label of a token or the head of a word.
    """

    probabilities: Floats  # [T, K]; rows of fewer than K options end in zeros
    lengths: Integers  # [N], choices of each sentence; all 1 where a table was given

    @classmethod
    def read(cls, given: Any) -> Choices:
        """A table ``[n, K]``, or a sequence of tables ``[n, K]``, one for each sentence.

        >>> Choices.read([[[0.5, 0.5]], [[0.2, 0.8], [1.0, 0.0]]]).lengths
        array([1, 2])
        """
        whole = getattr(given, "ndim", 0) == 2
        if whole:
            tables, lengths = [_table(given, "probabilities")], np.ones(len(given), np.int64)
        else:
            tables = [_table(one, f"the probabilities of sentence {i}") for i, one in _each(given)]
            lengths = np.array([len(table) for table in tables], np.int64)
        widest = max((table.shape[1] for table in tables), default=0)
        rows = np.cumsum([0, *map(len, tables)])
        found = np.zeros((int(rows[-1]), widest))
        for start, table in zip(rows, tables, strict=False):
            found[start : start + len(table), : table.shape[1]] = table
        # NaN is wrong too
        wrong = ~((found >= -_ROUNDING).all(1) & (np.abs(found.sum(1) - 1.0) <= _ROUNDING))
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            number = int(np.searchsorted(rows, row, side="right")) - 1
            name = "probabilities" if whole else f"the probabilities of sentence {number}"
            raise DataError(
                f"each row of {name} must be probabilities that sum to one, row"
                f" {row - rows[number]} sums to {found[row].sum():g}"
            )
        return cls(found.clip(min=0.0), lengths)  # a rounded 0 may be below it

    def outputs(self, given: Any) -> Integers:
        """The choice that is right in each row, ``[T]``: an array ``[n]``, or one per sentence."""
        parts = [np.atleast_1d(np.asarray(one)) for _, one in _each(given)]
        if len(parts) != len(self.lengths):
            raise ShapeError(
                f"outputs must have an entry for each of the {len(self.lengths)} rows or sentences"
                f" of the probabilities, got {len(parts)}"
            )
        for number, (part, length) in enumerate(zip(parts, self.lengths, strict=True)):
            if part.shape != (length,):
                raise ShapeError(
                    f"outputs must have a choice for each row of the probabilities: entry {number}"
                    f" must be [{length}], got {list(part.shape)}"
                )
        found = np.concatenate(parts or [np.zeros(0, np.int64)])
        if found.dtype.kind not in "iu" and len(found):
            raise OutputError(f"outputs must be whole numbers, got {found.dtype}")
        bad = np.flatnonzero((found < UNKNOWN) | (found >= self.probabilities.shape[1]))
        if len(bad):
            raise OutputError(
                f"outputs must lie in 0..{self.probabilities.shape[1] - 1}, or be {UNKNOWN} where"
                f" the model has no such choice, got {found[bad[0]]} in row {bad[0]}"
            )
        return found.astype(np.int64)

    def of_outputs(self, outputs: Integers) -> Floats:
        """Probability of the right choice in each row, ``[T]``; 0 of one that is unknown."""
        found = np.take_along_axis(self.probabilities, outputs.clip(min=0)[:, None], 1)[:, 0]
        return np.where(outputs == UNKNOWN, 0.0, found)


def _each(given: Any) -> Iterable[tuple[int, Any]]:
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise ShapeError(
            f"expected an array, or an array for each sentence, got {type(given).__name__}"
        )
    return enumerate(given)


def _table(given: Any, name: str) -> Floats:
    """``[n, K]`` float64."""
    table = np.asarray(given, np.float64)
    if table.ndim != 2:
        raise ShapeError(f"{name} must be a table [n, K], got shape {list(table.shape)}")
    return table


# --- how good probabilities are ------------------------------------------------------------------


class ReliabilityBin(NamedTuple):
    """Predictions of like confidence.

    Attributes:
        confidence: Mean probability of the most probable choice.
        accuracy: Share of predictions that are right.
        predictions: How many there are.

    """

    confidence: float
    accuracy: float
    predictions: int


def reliability_diagram(
    probabilities: Any, outputs: Any, *, bins: int = 15, binning: Binning = "width"
) -> list[ReliabilityBin]:
    """The data of a reliability diagram: accuracy against confidence; empty bins are left out.

    Args:
        probabilities: ``[n, K]``, or a sequence of such tables, one for each sentence.
        outputs: the right choices, ``[n]``, or a sequence of such arrays; -1 for an output that the
            model does not know.
        bins: number of bins.
        binning: ``"width"``: bins are equally wide; ``"mass"``: they hold equally many predictions
            (those of one confidence stay together).

    >>> probabilities = np.array([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]])
    >>> reliability_diagram(probabilities, [0, 1, 1], bins=2)
    [ReliabilityBin(confidence=0.766..., accuracy=0.666..., predictions=3)]

    """
    choices = Choices.read(probabilities)
    right = choices.probabilities.argmax(1) == choices.outputs(outputs)
    return _bins(choices.probabilities.max(1, initial=0.0), right, bins, binning)


def _bins(confidence: Floats, right: Any, bins: int, binning: Binning) -> list[ReliabilityBin]:
    inner = np.arange(1, bins) / bins
    if binning == "mass" and len(confidence):
        inner = np.quantile(confidence, inner)
    of = np.searchsorted(inner, confidence, side="left")  # intervals are closed on the right
    return [
        ReliabilityBin(float(confidence[here].mean()), float(right[here].mean()), int(here.sum()))
        for here in (of == one for one in np.unique(of))
    ]


def calibration_error(bins: Sequence[ReliabilityBin]) -> float:
    """Expected calibration error: mean distance of accuracy and confidence of bins.

    >>> calibration_error([ReliabilityBin(0.9, 0.8, 3), ReliabilityBin(0.5, 0.5, 1)])
    0.0749...
    """
    total = sum(one.predictions for one in bins)
    return sum(one.predictions * abs(one.accuracy - one.confidence) for one in bins) / max(total, 1)


class CalibrationScores(NamedTuple):
    """How good probabilities of choices are; the lower, the better.

    Attributes:
        error: Expected calibration error, in bins of equal width.
        error_mass: The same in bins of equal mass.
        brier: Brier score: Σ_k (p_k - [k is right])², the mean over choices, in 0..2.
        nll: Negative log-likelihood: mean of -log p of the right choice, in nats; infinite where
            one has the probability 0.
        choices: Number of classes, tokens or words.

    """

    error: float
    error_mass: float
    brier: float
    nll: float
    choices: int


def calibration_scores(probabilities: Any, outputs: Any, *, bins: int = 15) -> CalibrationScores:
    """Calibration errors and proper scores of probabilities, per choice.

    The arguments are those of `reliability_diagram`.

    >>> scores = calibration_scores(np.array([[0.5, 0.5], [1.0, 0.0]]), [0, 0])
    >>> scores.error, scores.brier, round(scores.nll, 4)
    (0.25, 0.25, 0.3466)
    """
    choices = Choices.read(probabilities)
    right = choices.outputs(outputs)
    if not len(right):
        raise DataError("expected at least one class, token or word, got none")
    p = choices.of_outputs(right)
    hit, confidence = choices.probabilities.argmax(1) == right, choices.probabilities.max(1)
    error, error_mass = (
        calibration_error(_bins(confidence, hit, bins, how)) for how in ("width", "mass")
    )
    with np.errstate(divide="ignore"):
        nll = -np.log(p)
    brier = (choices.probabilities**2).sum(1) - 2.0 * p + 1.0
    return CalibrationScores(error, error_mass, float(brier.mean()), float(nll.mean()), len(right))


# --- temperature scaling -------------------------------------------------------------------------


def batch_of(
    outputs: Sequence[Any] | Mapping[int, Any], numbers: Any, model: Distribution
) -> Tensor:
    """The outputs ``[n]`` of these sentences as a distribution over their batch takes them.

    >>> from softq import Chain
    >>> model = Chain(torch.zeros(2, 2, 3), torch.zeros(3, 3), lengths=[2, 1])
    >>> batch_of([np.array([2]), np.array([0, 1])], np.array([1, 0]), model)
    tensor([[0, 1],
            [2, 0]])
    """
    shape = model.batch_shape + model.event_shape
    found = torch.zeros(shape, dtype=torch.int64).reshape(shape[0], -1)
    for row, number in zip(found, np.asarray(numbers).tolist(), strict=True):
        row[: len(outputs[number])] = torch.as_tensor(outputs[number])
    return found.reshape(shape).to(model.device)


@torch.no_grad()
def fit_temperature(
    models: Iterable[Distribution], outputs: Iterable[Tensor], *, precision: float = 1e-7
) -> float:
    """The temperature T at which the models give the outputs the highest likelihood.

    It minimises - Σ log p(y|x; T) over T, where p(y|x; T) ∝ exp(score(y) / T) is
    ``model.tempered(T)``: the exact likelihood of whole sequences and trees. In 1/T this is convex,
    and its derivative, Σ E_T[score] - score(y), is zero at the minimum. Outputs that -inf scores
    forbid, or that hold a -1, are impossible at any temperature and are left out with a
    `DataWarning`. Where every
    output is the most probable one, or the scores say nothing about the outputs, there is no
    minimum, and the result is the end of the range 0.01..100, with a `ConvergenceWarning`.

    Args:
        models: distributions, each of a batch of inputs.
        outputs: the right outputs of each batch, as its ``log_prob`` takes them; -1 for what the
            model does not know.
        precision: of the logarithm of the temperature.

    >>> from softq import Categorical
    >>> model = Categorical(torch.tensor([[4.0, 0.0]] * 4))
    >>> fit_temperature([model], [torch.tensor([0, 0, 0, 1])])  # log odds of log 3
    3.640...

    """
    batches, left_out, count = [], 0, 0
    for model, right in zip(models, outputs, strict=True):
        exact = model.like(*(scores.double() for scores in model.given()))
        unknown = exact.sum_tokens((exact.zero_padding(right) == UNKNOWN).long()) > 0
        if bool(unknown.any()):
            right = torch.where(
                unknown[(...,) + (None,) * len(exact.event_shape)], exact.mode(), right
            )
        score = exact.score(right)
        possible = (score > -math.inf) & ~unknown
        left_out += int((~possible).sum())
        count += score.numel()
        batches.append((exact, torch.where(possible, score, 0.0).sum(), possible))
    if left_out == count:
        raise DataError(
            f"expected outputs that the model can give, got {count}, all of which are impossible"
        )
    if left_out:
        warnings.warn(
            f"{left_out} of {count} outputs are impossible at any temperature and are left out",
            DataWarning,
            stacklevel=2,
        )

    def slope(log_t: float) -> float:
        """Σ score(y) - E_T[score], the derivative by 1/T with its sign changed: it grows with T."""
        t, total = math.exp(log_t), 0.0
        for exact, score, possible in batches:
            model = exact.tempered(t)
            expected = t * model.expected_score(model.expectation(model))
            total += float(score - torch.where(possible, expected, 0.0).sum())
        return total

    noise = _ROUNDING_NOISE * sum(abs(float(score)) for _, score, _ in batches)
    return math.exp(_zero(slope, noise, precision))


def _zero(slope: Callable[[float], float], noise: float, precision: float) -> float:
    """Where an increasing function is zero: a bracket, then Illinois' regula falsi in it."""
    low = high = 0.0
    at_low = at_high = slope(0.0)
    width, end = 0.25, 0.0
    while end == 0.0 and at_low > -noise:  # the zero is at a lower temperature
        high, at_high, low, width = low, at_low, max(low - width, _LEAST), 2 * width
        at_low = slope(low)
        end = low if low == _LEAST and at_low > -noise else 0.0
    while end == 0.0 and at_high < noise:
        low, at_low, high, width = high, at_high, min(high + width, _MOST), 2 * width
        at_high = slope(high)
        end = high if high == _MOST and at_high < noise else 0.0
    if end != 0.0:
        cold = "every output is the most probable one, or nearly so"
        hot = "the scores say nothing about the outputs, or little"
        warnings.warn(
            f"no temperature in {COLDEST:g}..{HOTTEST:g} is the most likely one:"
            f" {cold if end < 0.0 else hot}; the end of the range is taken",
            ConvergenceWarning,
            stacklevel=3,
        )
        return end
    found, last_side = math.inf, 0
    for _ in range(_MOST_STEPS):
        before, found = found, (low * at_high - high * at_low) / (at_high - at_low)
        value = slope(found)
        if abs(found - before) <= precision or abs(value) <= noise:
            break
        side = 1 if value > 0.0 else -1
        if side > 0:
            high, at_high, at_low = found, value, at_low / (2.0 if last_side == side else 1.0)
        else:
            low, at_low, at_high = found, value, at_high / (2.0 if last_side == side else 1.0)
        last_side = side
    return found
