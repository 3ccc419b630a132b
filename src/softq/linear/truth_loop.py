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
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from softq.annotators.crowd import Crowd
from softq.annotators.known import KnownLabels
from softq.annotators.sequential import SequentialFit
from softq.annotators.tables import AnnotatorTables, TablePriors
from softq.annotators.truth import (
    Evidence,
    MarkovPrior,
    Posterior,
    TruthFit,
    TruthScores,
    bordered,
)
from softq.errors import DataError
from softq.formats.conll import Sentence
from softq.formats.tags import Scheme
from softq.kernels.features import crf as kernels
from softq.linear.features import FeatureMatrix
from softq.linear.lbfgs import LBFGS
from softq.linear.tagger_training import CRFObjective, CRFSettings, seen_layout
from softq.options import ObjectiveName

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class LoopOptions:
    """How tagger and annotators are brought together.

    Attributes:
        rounds: times that taggers are trained.
        folds: parts of the sentences, at most as many as there are; each is scored by a tagger of
            the others.
        steps: E-steps and updates of the annotators' tables per round.
        temper: power of the annotators' evidence; below 1 since they err together.
        alone: the same before there is a tagger.
        weight: power of the tagger.
        c2: penalty of the taggers.
        tolerance: where the training of a tagger ends, as part of the first gradient's norm.
        iterations: of a training, at most.
        seed: of the folds.
        priors: of the annotators' tables.

    """

    rounds: int = 5
    folds: int = 5
    steps: int = 5
    temper: float = 0.5
    alone: float = 0.85
    weight: float = 1.0
    c2: float = 1.0
    tolerance: float = 3e-3
    iterations: int = 60
    seed: int = 0
    priors: TablePriors = field(default_factory=TablePriors)


TruthModel = Literal["dawid-skene", "sequential"]
"""Models of annotators, see `softq.annotators.reliability.estimate`."""


def find_truth(
    sentences: Sequence[Sentence],
    matrix: FeatureMatrix,
    labels: Sequence[str],
    model: TruthModel | None,
    scheme: Scheme | None,
    options: LoopOptions | None = None,
    *,
    tell: Callable[[str], None] = lambda text: None,
) -> TruthLoop:
    """The truth behind labels of annotators, or behind labels that are known in part.

    Args:
        sentences: with annotators; or without, each with one sequence of labels as in
            `softq.annotators.known`.
        matrix: features of them.
        labels: names of the K labels.
        model: of the annotators; None: there are none.
        scheme: what label sequences must keep to; None: nothing.
        options: of the loop; without annotators, evidence is not tempered.
        tell: takes a line for each round.

    >>> from softq.linear.features import TemplateIndex
    >>> words = [("Ann", "ran"), ("Bob", "ran"), ("she", "ran")]
    >>> labels = [("B-PER", "O"), ("?", "O"), ("B-PER=0.1|O=0.9", "O")]
    >>> known = [Sentence(*one) for one in zip(words, [(row,) for row in labels])]
    >>> index, matrix = TemplateIndex.fit(words, ["shape[0]", "word[0]"])
    >>> find_truth(known, matrix, ("B-PER", "O"), None, "bio", LoopOptions(c2=0.1)).best()
    [('B-PER', 'O'), ('B-PER', 'O'), ('O', 'O')]

    """
    options = options or LoopOptions()
    if model is None:
        options = replace(options, temper=1.0, alone=1.0)
        known = KnownLabels([sentence.labels[0] for sentence in sentences], labels)
        return TruthLoop(matrix, labels, known, scheme, options, tell=tell)
    crowd = Crowd.read(sentences, labels, previous=model == "sequential")
    tables = AnnotatorTables(crowd, options.priors)
    return TruthLoop(matrix, labels, tables, scheme, options, tell=tell)


def fit_truth(
    tables: AnnotatorTables,
    scheme: Scheme | None,
    options: LoopOptions,
    matrix: FeatureMatrix | None = None,
    *,
    tell: Callable[[str], None] = lambda text: None,
) -> TruthFit:
    """The truth behind annotators' labels, with a tagger in the loop or without.

    Args:
        tables: of the annotators, which are fitted.
        scheme: what label sequences must keep to; None: nothing.
        options: of the loop; without a tagger, ``alone`` counts.
        matrix: features of the sentences; None: there is no tagger.
        tell: takes a line for each round.

    >>> rows = (("B-PER", "O"), ("B-PER", "O"), ("O", "O"))
    >>> crowd = Crowd.read([Sentence(("Ann", "ran"), rows, ("1", "2", "3"))])
    >>> fit_truth(AnnotatorTables(crowd), "bio", LoopOptions()).best()
    [('B-PER', 'O')]

    """
    crowd = tables.crowd
    if matrix is None:
        return SequentialFit(tables, crowd.labels, crowd.lengths, scheme, temper=options.alone)
    return TruthLoop(matrix, crowd.labels, tables, scheme, options, tell=tell)


class TruthLoop:
    """Cross-fitted taggers and the truth that they and the evidence make likely.

    Attributes:
        labels: names of the K labels.
        evidence: what was given, with what it has learnt.
        scores: of the true label sequences, after the last round.
        posterior: what is expected of them.

    """

    def __init__(
        self,
        matrix: FeatureMatrix,
        labels: Sequence[str],
        evidence: Evidence,
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
            scheme: what label sequences must keep to; None: nothing.
            options: of the loop.
            tell: takes a line for each round.

        """
        self._options = options = options or LoopOptions()
        lengths = np.asarray(matrix.lengths, np.int64)
        if len(lengths) < 2:
            raise DataError(
                "a tagger in the loop scores sentences that it has not seen: expected 2 sentences or"
                f" more, got {len(lengths)}"
            )
        folds = min(options.folds, len(lengths))
        self.labels, self.evidence, self._matrix = labels, evidence, matrix
        alone = SequentialFit(evidence, labels, lengths, scheme, temper=options.alone)
        self.scores, self.posterior = alone.scores, alone.posterior
        self._prior = MarkovPrior(labels, scheme)  # for what the scheme forbids
        random = np.random.default_rng(options.seed)
        self._groups = random.permutation(len(lengths)) % folds
        token_groups = np.repeat(self._groups, lengths)
        self._tokens = [np.flatnonzero(token_groups == fold) for fold in range(folds)]
        self._folds: list[_Fold] = []
        for number in range(options.rounds):
            before = self.posterior.labels.argmax(1)
            self._round()
            changed = float((self.posterior.labels.argmax(1) != before).mean())
            tell(f"round {number + 1}: {changed:.2%} of the tokens have another label")
        self._folds.clear()  # their features are large, and the loop may be kept

    def best(self) -> Sequence[tuple[str, ...]]:
        """The most probable label sequence of each sentence."""
        return self.scores.decode(self.labels)

    def toward(self, objective: ObjectiveName, tau: float | None) -> Posterior:
        """What a tagger is trained toward.

        With ML the posterior of the loop. With SQDML what the evidence alone says, at a
        temperature: target(y) ∝ exp( evidence(y) / τ ) on the sequences of the scheme, which is
        `softq.sqdml` with the annotators' log-probabilities as the reward.
        """
        if objective == "ml" or tau is None:
            return self.posterior
        evidence = self.evidence.evidence() / tau
        return Posterior.of(self._prior.scores(evidence, self.posterior.lengths))

    def _round(self) -> None:
        """Taggers toward the posterior, then E-steps and M-steps with their scores."""
        options = self._options
        emissions = np.empty_like(self.posterior.labels)
        tables = []
        for number, tokens in enumerate(self._tokens):
            others = np.flatnonzero(self._groups != number)
            truth = self.posterior.take(others)
            if number == len(self._folds):
                self._folds.append(_Fold(self._matrix.take(others), truth))
            weights, transitions = self._folds[number].train(truth, self.labels, options)
            held_out = self._matrix.take(np.flatnonzero(self._groups == number))
            emissions[tokens] = kernels.emissions(
                held_out.offsets, held_out.indices, held_out.values, weights, emissions.shape[1]
            )
            tables.append(torch.from_numpy(transitions))
        emissions *= options.weight
        between = options.weight * torch.stack(tables) + self._prior.between
        for _ in range(options.steps):
            self.scores = self._scored(emissions, between)
            self.posterior = Posterior.of(self.scores)
            self.evidence.update(self.posterior.labels)

    def _scored(self, emissions: Array, between: Tensor) -> TruthScores:
        known = emissions + self._options.temper * self.evidence.evidence()
        prior, lengths = self._prior, self.posterior.lengths
        return bordered(known, prior.first, prior.last, between, self._groups, lengths)


class _Fold:
    """The tagger of all sentences but one fold's, which starts from its last weights."""

    def __init__(self, matrix: FeatureMatrix, first: Posterior) -> None:
        self._matrix, classes = matrix, first.labels.shape[1]
        self._columns = kernels.transpose(
            matrix.offsets, matrix.indices, matrix.values, matrix.size
        )
        self._layout = seen_layout(
            matrix, first, classes, all_states=False, all_transitions=True, columns=self._columns
        )
        self._point = torch.zeros(self._layout.size)
        self._norm = 0.0  # of the first gradient

    def train(
        self, truth: Posterior, labels: Sequence[str], options: LoopOptions
    ) -> tuple[Array, Array]:
        """Weights of features and of neighbouring labels."""
        settings = CRFSettings(tuple(labels), c2=options.c2)
        objective = CRFObjective(
            self._matrix,
            settings.target(truth),
            self._layout,
            c2=options.c2,
            forbidden=settings.forbidden,
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
