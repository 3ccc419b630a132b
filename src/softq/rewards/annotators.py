"""The reward with which SQDML's target is the E-step of Dawid and Skene's model."""

from __future__ import annotations

import math

from torch import Tensor

from softq.errors import RewardError, ShapeError
from softq.rewards.parts import PartReward, Parts
from softq.sentences import Sentences


class Annotators(PartReward):
    """Log-probability of what annotators gave: r(y, l_a) = Σ_t log π_a(l_at | y_t).

    With τ = 1 and a model as the prior, ``softq.sqdml`` is the E-step of Dawid and Skene's model
    with that model in the loop: target(y) ∝ model(y) · Π_a π_a(l_a | y). What annotators said adds
    up: SQDML sums their rewards, where it averages others, and ``ref_weights`` are shares of it.

    Args:
        tables: π, probabilities ``[A, K, K]`` (annotator, true label, label given), none 0.
        annotators: who gave each reference, int64 ``[*B, R]``; -1 for nobody, who says nothing.
        parts: ``"labels"`` of sequences, or ``"classes"``.

    >>> import softq, torch
    >>> tables = torch.tensor([[[0.9, 0.1], [0.4, 0.6]], [[0.8, 0.2], [0.3, 0.7]]])
    >>> p = softq.Categorical(torch.tensor([[0.5, 0.5]]).log())
    >>> reward = Annotators(tables, torch.tensor([[0, 1]]), "classes")
    >>> target = softq.sqdml(p, torch.tensor([[0, 1]]), tau=1.0, reward=reward, prior=p)
    >>> target.components.marginals  # 0.9 · 0.2 against 0.4 · 0.7
    tensor([[0.3913, 0.6087]])

    """

    by_reference = True
    bound = math.inf

    def __init__(self, tables: Tensor, annotators: Tensor, parts: Parts = "labels") -> None:
        if tables.dim() != 3 or tables.shape[1] != tables.shape[2]:
            raise ShapeError(
                "tables must have shape [A, K, K] (annotator, true label, label given), got"
                f" {list(tables.shape)}"
            )
        if not bool((tables > 0).all()) or not bool(tables.isfinite().all()):
            raise RewardError("tables must hold positive probabilities")
        self.tables, self.annotators = tables.detach(), annotators
        self.parts = parts  # type: ignore[misc]

    @property
    def signature(self) -> str:
        """Name and size."""
        return f"annotators:{len(self.tables)}"

    def on_parts(self, reference: Tensor) -> Tensor:
        logs = self.tables.log().to(reference)
        present = self.annotators >= 0
        references = reference.shape[: -1 if self.parts == "classes" else -2]
        if references != self.annotators.shape:
            raise ShapeError(
                f"annotators must have shape {list(references)}, one for each reference, got"
                f" {list(self.annotators.shape)}"
            )
        if reference.shape[-1] != logs.shape[-1]:
            raise ShapeError(
                f"tables must be of the {reference.shape[-1]} labels of the space, got"
                f" {logs.shape[-1]} labels"
            )
        if not bool(((self.annotators >= -1) & (self.annotators < len(logs))).all()):
            raise RewardError(f"annotators must be numbers from -1 to {len(logs) - 1}")
        own = logs[self.annotators.clamp(min=0)]  # [*B, R, K, K]
        rows = reference.unsqueeze(-2) if self.parts == "classes" else reference
        found = (rows @ own.mT).reshape(reference.shape)
        return found * present.reshape(present.shape + (1,) * (found.dim() - present.dim()))

    def score(self, candidates: Sentences, references: Sentences) -> Tensor:
        raise RewardError(
            "Annotators is a reward of exact spaces, softq.Chain, softq.Independent or"
            " softq.Categorical; sentences sampled as candidates have none"
        )
