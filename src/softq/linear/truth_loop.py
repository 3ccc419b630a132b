"""The truth behind annotations with a tagger in the loop, which sees the words.

Annotations say what is likely to be true, the tagger what the words make likely:

    q(y) ∝ P_tagger(y | x)^weight · exp( temper · evidence(y) )

is the target of DESIGN's formula with the tagger as the prior and the annotators' log-probabilities
as the reward. Rounds alternate between taggers trained exactly toward q and the q that they imply.
A tagger would believe what it has learnt by heart, so each sentence gets the scores of one that was
trained on other folds (cross-fitting).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from softq.annotators.truth import MarkovPrior, Posterior, TruthScores, bordered
from softq.errors import DataError
from softq.formats.tags import Scheme
from softq.kernels.features import crf as kernels
from softq.linear.features import FeatureMatrix
from softq.linear.lbfgs import LBFGS
from softq.linear.tagger_training import CRFObjective, Layout
from softq.linear.tagging import CorpusTarget, Forbidden

Array = np.ndarray[Any, Any]

_SEEN = 0.01  # a feature and a label have a weight where the first posterior gives this to both


class Evidence(Protocol):
    """What is known of the true labels beside the words."""

    def evidence(self) -> Array:
        """Log-evidence for each label of each token, ``[T, K]``; -inf: impossible."""

    def update(self, posterior: Array) -> None:
        """Learn from probabilities of the true labels, ``[T, K]``."""


@dataclass(frozen=True)
class LoopOptions:
    """How tagger and annotators are brought together.

    Attributes:
        rounds: times that taggers are trained.
        folds: parts of the sentences; each is scored by a tagger of the others.
        steps: E-steps and updates of the annotators' tables per round.
        temper: power of the annotators' evidence; below 1 since they err together.
        weight: power of the tagger.
        c2: penalty of the taggers.
        tolerance: where the training of a tagger ends, as part of the first gradient's norm.
        iterations: of a training, at most.
        seed: of the folds.

    """

    rounds: int = 3
    folds: int = 3
    steps: int = 5
    temper: float = 0.5
    weight: float = 1.0
    c2: float = 1.0
    tolerance: float = 3e-3
    iterations: int = 60
    seed: int = 0


class TruthLoop:
    """Cross-fitted taggers and the truth that they and the evidence make likely.

    Attributes:
        scores: of the true label sequences, after the last round.
        posterior: what is expected of them.

    """

    def __init__(
        self,
        matrix: FeatureMatrix,
        labels: Sequence[str],
        evidence: Evidence,
        first: Posterior,
        scheme: Scheme | None,
        options: LoopOptions | None = None,
        *,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Run the rounds.

        Args:
            matrix: features of the N sentences.
            labels: names of the K labels.
            evidence: of annotators, or of labels that are known in part.
            first: the truth as the evidence alone makes it likely.
            scheme: what label sequences must keep to; None: nothing.
            options: of the loop.
            tell: takes a line for each round.

        """
        self._options = options = options or LoopOptions()
        if len(matrix.lengths) < options.folds:
            raise DataError(
                f"expected {options.folds} sentences or more, one for each fold of the loop, got"
                f" {len(matrix.lengths)}"
            )
        self._matrix, self._evidence, self.posterior = matrix, evidence, first
        self._prior = MarkovPrior(labels, scheme)  # for what the scheme forbids
        self._forbidden = Forbidden.by(None, labels)
        random = np.random.default_rng(options.seed)
        self._groups = random.permutation(len(matrix.lengths)) % options.folds
        self._token_groups = np.repeat(self._groups, matrix.lengths)
        self._folds = [
            _Fold(
                matrix.take(np.flatnonzero(self._groups != fold)), first.labels[self._others(fold)]
            )
            for fold in range(options.folds)
        ]
        for number in range(options.rounds):
            before = self.posterior.labels.argmax(1)
            self._round()
            changed = float((self.posterior.labels.argmax(1) != before).mean())
            tell(f"round {number + 1}: {changed:.2%} of the tokens have another label")

    def _others(self, fold: int) -> Array:
        return np.flatnonzero(self._token_groups != fold)

    def _round(self) -> None:
        """Taggers toward the posterior, then E-steps and M-steps with their scores."""
        options = self._options
        emissions = np.empty_like(self.posterior.labels)
        tables = []
        for number, fold in enumerate(self._folds):
            sentences = self._groups != number
            target = CorpusTarget(
                self.posterior.labels[self._others(number)].astype(np.float32),
                self.posterior.pairs[sentences].sum(0),
                float(self.posterior.entropy[sentences].sum()),
            )
            weights, transitions = fold.train(target, self._forbidden, options)
            held_out = self._matrix.take(np.flatnonzero(~sentences))
            emissions[self._token_groups == number] = kernels.emissions(
                held_out.offsets, held_out.indices, held_out.values, weights, emissions.shape[1]
            )
            tables.append(torch.from_numpy(transitions))
        emissions *= options.weight
        between = options.weight * torch.stack(tables) + self._prior.between
        for _ in range(options.steps):
            self.scores = self._scored(emissions, between)
            self.posterior = Posterior.of(self.scores)
            self._evidence.update(self.posterior.labels)

    def _scored(self, emissions: Array, between: Tensor) -> TruthScores:
        known = emissions + self._options.temper * self._evidence.evidence()
        prior = self._prior
        return bordered(known, prior.first, prior.last, between, self._groups, self._matrix.lengths)


class _Fold:
    """The tagger of all sentences but one fold's, which starts from its last weights."""

    def __init__(self, matrix: FeatureMatrix, seen: Array) -> None:
        self._matrix = matrix
        self._columns = kernels.transpose(
            matrix.offsets, matrix.indices, matrix.values, matrix.size
        )
        labels = seen.shape[1]
        padded = np.zeros(kernels.padded(seen.size), np.float32)
        padded[: seen.size] = (seen >= _SEEN).reshape(-1)
        counts = np.zeros(kernels.padded(matrix.size * labels), np.float32)
        kernels.multiply(self._columns._replace(values=None), padded, labels, counts)
        states = torch.from_numpy(np.flatnonzero(counts[: matrix.size * labels] > 0))
        self._layout = Layout(matrix.size, labels, states, None)
        self._point = torch.zeros(self._layout.size)
        self._norm = 0.0  # of the first gradient

    def train(
        self, target: CorpusTarget, forbidden: Forbidden, options: LoopOptions
    ) -> tuple[Array, Array]:
        """Weights of features and of neighbouring labels."""
        objective = CRFObjective(
            self._matrix,
            target,
            self._layout,
            c2=options.c2,
            forbidden=forbidden,
            columns=self._columns,
        )
        search = LBFGS(self._point, objective, tolerance=0.0)
        self._norm = self._norm or search.scale
        while search.status == "going" and search.iterations < options.iterations:
            search.iterate()
            if search.norm <= options.tolerance * self._norm:
                break
        self._point = search.point
        return self._layout.unpack(search.point)
