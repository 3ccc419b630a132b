"""Several annotators of dependency trees: how reliable each is, and the trees behind their heads.

An annotator finds the head of a word with a probability that depends on where it is, and otherwise
takes one of the other words to the left, to the right, or the root, each with a probability of its
own, all words of one side alike. (A side without other words keeps its share, so that M-steps stay
counts.) So the log-probability of the heads that were given is a sum over
the arcs of the true tree, r(arc) = Σ_a log π_a(given head | true head), and E-steps are exact:
q(tree) ∝ prior(tree) · exp(Σ r(arc)).
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from softq.checks import check_count
from softq.errors import DataError, ShapeError
from softq.spaces import ProjectiveTree, SpanningTree
from softq.spaces.trees import DependencyTree

HeadModel = Literal["one-coin", "direction"]
"""Whether an annotator's errors are alike everywhere, or have a table by the direction of arcs."""

_DIRECTIONS, _RIGHT = 3, 3  # root, left, right; and the outcome that the head is the true one


class HeadReliability(NamedTuple):
    """What EM found over A annotators of B sentences.

    Attributes:
        tables: probabilities ``[A, 3, 4]``: where the true head is (root, left, right); what the
            annotator gave: another head there (root, left, right), or the true one.
        accuracy: share of right heads of each annotator, ``[A]``, in expectation; NaN for one who
            gave none.
        posterior: the distribution over the true trees, with its ``marginals`` and ``mode()``.
        objective: log-likelihood of the heads given, and of the smoothing, per iteration.

    """

    tables: Tensor
    accuracy: Tensor
    posterior: DependencyTree
    objective: tuple[float, ...]


def estimate_heads(
    heads: Tensor,
    annotators: Tensor,
    lengths: Tensor,
    model: HeadModel = "direction",
    *,
    prior: DependencyTree | None = None,
    projective: bool = True,
    smoothing: float = 1.0,
    iterations: int = 50,
    tolerance: float = 1e-6,
) -> HeadReliability:
    """Reliability of annotators of trees, and the trees, by EM.

    Args:
        heads: int64 ``[B, R, n]``, values 0..n; -100 where an annotator gave none, and on padding.
        annotators: int64 ``[B, R]``, who gave them, from 0; -1 for nobody.
        lengths: ``[B]``.
        model: ``"one-coin"``, or ``"direction"``: a table by where the true head is.
        prior: of the trees, such as a parser of other sentences; None: all trees alike.
        projective: whether arcs of the true trees may not cross, where there is no prior.
        smoothing: heads that each annotator is taken to have given beforehand, in each cell.
        iterations: at most so many.
        tolerance: ends when the objective rises by less than this per word.

    >>> import torch
    >>> heads = torch.tensor([[[2, 0, 2], [2, 0, 2], [0, 1, 1]]])  # the third errs
    >>> found = estimate_heads(heads.expand(9, -1, -1), torch.arange(3).expand(9, -1), torch.full((9,), 3))
    >>> found.posterior.mode()[0].tolist(), found.accuracy.round(decimals=1).tolist()
    ([2, 0, 2], [1.0, 1.0, 0.0])

    """
    if heads.dim() != 3 or annotators.shape != heads.shape[:2] or len(lengths) != len(heads):
        raise ShapeError(
            "expected heads [B, R, n], annotators [B, R] and lengths [B], got"
            f" {list(heads.shape)}, {list(annotators.shape)} and {list(lengths.shape)}"
        )
    if model not in get_args(HeadModel):
        raise DataError(
            f"unknown model of annotators of trees: expected one of"
            f" {', '.join(get_args(HeadModel))}, got {model!r}"
        )
    if not smoothing > 0:
        raise DataError(f"smoothing must be a positive number, got {smoothing}")
    check_count("iterations", iterations, DataError)
    size = heads.shape[2]
    if prior is None:
        kind = ProjectiveTree if projective else SpanningTree
        prior = kind(torch.zeros(len(heads), size + 1, size + 1, dtype=torch.float64), lengths)
    elif prior.batch_shape != heads.shape[:1] or not bool((prior.all_lengths() == lengths).all()):
        raise ShapeError(
            f"the prior must be of {len(heads)} trees of these lengths, got {prior!r} of the"
            f" lengths {prior.all_lengths().tolist()}"
        )
    elif prior.event_shape != heads.shape[2:]:
        raise ShapeError(
            f"the prior must have room for {size} words, as heads have, got {prior.event_shape[0]}"
        )
    words = torch.arange(1, size + 1)
    real = words <= lengths[:, None]
    known = (heads >= 0) & real[:, None] & (annotators >= 0).unsqueeze(-1)
    example, _, place = known.nonzero(as_tuple=True)  # M heads that were given
    given, who = heads[known], annotators.unsqueeze(-1).expand(heads.shape)[known]
    if bool((given > lengths[example]).any()) or bool((given == place + 1).any()):
        raise DataError("heads must be other words of the sentence, or 0 for the root")
    # [M, n + 1]: direction of each possible true head, and the outcome if it were the true one
    candidates = torch.arange(size + 1)
    true_direction = _direction(candidates, place[:, None] + 1)
    outcome = _direction(given, place + 1).unsqueeze(1).expand_as(true_direction).clone()
    outcome[candidates == given[:, None]] = _RIGHT
    # words that an error of this outcome could have hit: those of its side but the true head
    sides = torch.stack([torch.ones_like(place), place, lengths[example] - place - 1], 1)
    others = sides.gather(1, outcome.clamp(max=_RIGHT - 1))
    others -= (true_direction == outcome).long()
    spread = torch.where(outcome == _RIGHT, 1, others.clamp(min=1)).double().log()
    cell = (who[:, None] * _DIRECTIONS + true_direction) * (_RIGHT + 1) + outcome
    count = int(annotators.max()) + 1
    arc = (example[:, None] * (size + 1) + candidates) * (size + 1) + place[:, None] + 1
    tables = torch.full((count, _DIRECTIONS, _RIGHT + 1), 0.1, dtype=torch.float64)
    tables[..., _RIGHT] = 0.7
    objective: list[float] = []
    local = prior.given()[0].detach().double()
    for _ in range(iterations):
        reward = torch.zeros(local.numel(), dtype=torch.float64)
        reward.index_add_(0, arc.reshape(-1), (tables.log().reshape(-1)[cell] - spread).reshape(-1))
        posterior = prior.like(local + reward.reshape(local.shape))
        value = float((posterior.log_partition - prior.log_partition.detach()).sum())
        objective.append(value + smoothing * float(tables.log().sum()))
        weights = posterior.marginals.reshape(-1)[arc]
        counts = torch.zeros(tables.numel(), dtype=torch.float64)
        counts.index_add_(0, cell.reshape(-1), weights.reshape(-1))
        expected = counts.reshape(tables.shape) + smoothing
        if model == "one-coin":
            expected = expected.sum(1, keepdim=True).expand_as(expected)
        if len(objective) > 1 and objective[-1] - objective[-2] < tolerance * int(lengths.sum()):
            break
        tables = expected / expected.sum(-1, keepdim=True)
    plain = counts.reshape(tables.shape).sum(1)
    return HeadReliability(tables, plain[:, _RIGHT] / plain.sum(1), posterior, tuple(objective))


def _direction(head: Tensor, word: Tensor) -> Tensor:
    """Where a head is from a word: 0 the root, 1 to the left, 2 to the right."""
    return torch.where(head == 0, 0, torch.where(head < word, 1, 2))
