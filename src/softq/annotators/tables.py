"""Models of annotators: the probability of each label that they give, by the true one.

An annotator's table is a reward, r(y, l) = log π_a(l | y): what E-steps multiply a prior by, and
what SQDML is trained toward (see `softq.annotators.truth` and docs/annotators.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch

from softq.annotators.crowd import Crowd, Floats
from softq.errors import DataError, ShapeError
from softq.spaces import Distribution


@dataclass(frozen=True)
class TablePriors:
    """Dirichlet priors of annotators' tables.

    Attributes:
        right: labels that an annotator is taken to have given rightly beforehand, of each kind.
        wrong: likewise for each wrong label in the place of each right one.
        backoff: how many labels an annotator's own plain table is worth where their previous label
            counts as well.
        floor: the lowest expected log-probability, so that one label cannot decide alone.

    """

    right: float = 3.0
    wrong: float = 0.2
    backoff: float = 10.0
    floor: float = -12.0

    def __post_init__(self) -> None:
        for name in ("right", "wrong", "backoff"):
            if not getattr(self, name) > 0:
                raise DataError(f"{name} must be a positive number, got {getattr(self, name)}")


class AnnotatorTables:
    """P(label given | true label, the annotator's previous label), for each annotator.

    The previous label is observed, so that the evidence for the truth still splits over tokens and
    inference stays exact. Where it does not count (see `Crowd.read`) this is Dawid and Skene's
    model with Dirichlet priors.

    Attributes:
        concentrations: parameters of the tables' Dirichlet posteriors, ``[A, C, K, K]``.

    """

    def __init__(self, crowd: Crowd, priors: TablePriors | None = None) -> None:
        """Start from the priors alone."""
        self.crowd, self.priors = crowd, priors or TablePriors()
        self.update(np.zeros((len(crowd.patterns), len(crowd.labels))))

    def update(self, posterior: Floats) -> None:
        """M-step, from probabilities of the true labels ``[T, K]``."""
        size, priors = len(self.crowd.labels), self.priors
        counts = self.crowd.counts(posterior)
        beforehand = np.where(np.eye(size, dtype=bool), priors.right, priors.wrong)
        plain = counts.sum(1) + beforehand  # [A, K, K]
        self.confusions = plain / plain.sum(-1, keepdims=True)
        if self.crowd.contexts == 1:
            self.concentrations = plain[:, None]
        else:
            self.concentrations = counts + priors.backoff * self.confusions[:, None]
        self._evidence: Floats | None = None

    def evidence(self) -> Floats:
        """Σ_a E[log π_a(l_a | y)] of each true label of each token, ``[T, K]``."""
        if self._evidence is not None:
            return self._evidence
        alpha = torch.from_numpy(self.concentrations)
        expected = torch.digamma(alpha) - torch.digamma(alpha.sum(-1, keepdim=True))
        tables = expected.clamp(min=self.priors.floor).numpy()
        self._evidence = self.crowd.evidence(tables)[self.crowd.patterns]
        return self._evidence

    def likelihood(self, crowd: Crowd) -> Floats:
        """Σ_a log of the mean π_a(l_a | y), ``[T, K]``, of other labels of the same tokens."""
        tables = self.concentrations / self.concentrations.sum(-1, keepdims=True)
        return crowd.evidence(np.log(tables))[crowd.patterns]

    def target(
        self,
        model: Distribution,
        sentences: Sequence[int],
        *,
        temper: float = 0.5,
        weight: float = 1.0,
    ) -> Distribution:
        """E-step with a model in the loop: model^weight · exp(temper · evidence), detached.

        It is the target of ``softq.cross_entropy(target, model)``. After an epoch, give its
        ``marginals`` to `update`. Take a model that was not trained on these sentences: the one
        that was believes what it has learnt by heart.

        Args:
            model: a distribution over the labels of a batch: `softq.Chain`, `softq.Independent`, or
                `softq.Categorical` where a sentence has one token.
            sentences: the batch, as indices of the crowd's sentences.
            temper: power of the evidence; below 1 since annotators err together.
            weight: power of the model.

        >>> from softq import Chain, cross_entropy
        >>> from softq.formats.conll import Sentence
        >>> rows = (("B-PER", "O"), ("B-PER", "O"), ("O", "O"))
        >>> crowd = Crowd.read([Sentence(("Ann", "ran"), rows, ("1", "2", "3"))], previous=True)
        >>> tables = AnnotatorTables(crowd)
        >>> p = Chain(torch.zeros(1, 2, 2, requires_grad=True), torch.zeros(2, 2), lengths=[2])
        >>> target = tables.target(p, [0])
        >>> cross_entropy(target, p).backward()
        >>> tables.update(target.marginals[0].double().numpy())  # of all tokens, once an epoch
        >>> [crowd.labels[k] for k in target.mode()[0]]
        ['B-PER', 'O']

        """
        evidence, starts = self.evidence(), np.cumsum(self.crowd.lengths) - self.crowd.lengths
        local = model.given()[0]
        if model.batch_shape != (len(sentences),):
            raise ShapeError(
                f"expected a model of {len(sentences)} sentences, got {list(model.batch_shape)}"
            )
        known = torch.zeros(local.shape, dtype=local.dtype)
        rows = known.unsqueeze(1) if known.dim() == 2 else known
        sizes = model.all_lengths().tolist() if model.event_shape else [1] * len(rows)
        for row, size, sentence in zip(rows, sizes, sentences, strict=True):
            length = int(self.crowd.lengths[sentence])
            if length != size or len(self.crowd.labels) != row.shape[1]:
                raise ShapeError(
                    f"expected a model of {len(self.crowd.labels)} labels and {length} tokens for"
                    f" sentence {sentence}, got {row.shape[1]} labels and {size} tokens"
                )
            start = int(starts[sentence])
            row[:length] = torch.from_numpy(evidence[start : start + length])
        return cast(Distribution, model.gibbs(known.to(local.device), 1.0 / temper, model, weight))
