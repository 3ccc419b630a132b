"""Which settings of a model of annotators are best: by labels that are hidden from it, or by true ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from softq.annotators.choice import hidden_likelihood
from softq.annotators.crowd import Crowd
from softq.annotators.reliability import Reliability, reliability_of
from softq.annotators.sequential import SequentialFit
from softq.annotators.tables import AnnotatorTables
from softq.annotators.truth import Posterior, TruthScores
from softq.errors import DataError
from softq.formats.conll import Sentence
from softq.formats.tags import Scheme
from softq.linear.features import FeatureMatrix
from softq.linear.truth_loop import LoopOptions, TruthLoop, TruthModel
from softq.metrics.spans import span_f1, span_statistics, token_accuracy


class FittedTruth(NamedTuple):
    """The truth as a model of annotators finds it.

    Attributes:
        scores: of the true label sequences.
        posterior: what is expected of them.
        tables: of the annotators.
        best: the most probable labels of each sentence.

    """

    scores: TruthScores
    posterior: Posterior
    tables: AnnotatorTables
    best: Sequence[tuple[str, ...]]

    def reliability(self, model: TruthModel) -> Reliability:
        """The annotators as this truth shows them."""
        return reliability_of(self.tables, model, self.posterior.labels, self.best)


@dataclass(frozen=True)
class TruthChoice:
    """Compares settings on the same annotations.

    Attributes:
        sentences: with annotators.
        labels: names of the K labels.
        model: of the annotators.
        scheme: what label sequences must keep to; None: nothing.
        matrix: features of the sentences, for a tagger in the loop; None: there is no tagger, and
            of the settings, ``alone`` and ``priors`` count.

    >>> rows = (("B-PER", "O"), ("B-PER", "O"), ("O", "O"))
    >>> crowd = [Sentence(("Ann", "ran"), rows, ("1", "2", "3")) for name in ("Ann", "Bob")] * 10
    >>> choice = TruthChoice(crowd, ("B-PER", "O"), "sequential", "bio")
    >>> choice.by_hidden_labels(LoopOptions(alone=0.01)) < choice.by_hidden_labels(LoopOptions())
    True
    >>> choice.by_true_labels(LoopOptions(), {0: ("B-PER", "O")})
    1.0

    """

    sentences: Sequence[Sentence]
    labels: Sequence[str]
    model: TruthModel
    scheme: Scheme | None
    matrix: FeatureMatrix | None = None

    def fit(
        self, options: LoopOptions, *, tell: Callable[[str], None] = lambda text: None
    ) -> FittedTruth:
        """The truth with these settings; ``tell`` takes a line for each round of the loop."""
        return self._fit(self._crowd(), options, tell)

    def by_hidden_labels(self, options: LoopOptions, *, share: float = 0.2, seed: int = 0) -> float:
        """Mean log-probability of labels that were hidden, see `softq.annotators.choice`."""

        def fit(rest: Crowd) -> tuple[TruthScores, AnnotatorTables]:
            found = self._fit(rest, options)
            return found.scores, found.tables

        return hidden_likelihood(self._crowd(), fit, share=share, seed=seed)

    def by_true_labels(self, options: LoopOptions, gold: Mapping[int, Sequence[str]]) -> float:
        """F1 of the most likely labels of some sentences; without a scheme, the share that is right.

        ``gold`` has the true labels of sentences by their indices.
        """
        if not gold:
            raise DataError("expected the true labels of one sentence or more, got none")
        best = self.fit(options).best
        found = [best[sentence] for sentence in gold]
        sums = span_statistics([*gold.values()], found, self.scheme).rows.sum(0)
        return float((span_f1 if self.scheme else token_accuracy)(sums))

    def _crowd(self) -> Crowd:
        return Crowd.read(self.sentences, self.labels, previous=self.model == "sequential")

    def _fit(
        self,
        crowd: Crowd,
        options: LoopOptions,
        tell: Callable[[str], None] = lambda text: None,
    ) -> FittedTruth:
        tables = AnnotatorTables(crowd, options.priors)
        if self.matrix is None:
            alone = SequentialFit(
                tables, self.labels, crowd.lengths, self.scheme, temper=options.alone
            )
            return FittedTruth(alone.scores(), alone.posterior, tables, alone.best())
        loop = TruthLoop(self.matrix, self.labels, tables, self.scheme, options, tell=tell)
        return FittedTruth(loop.scores, loop.posterior, tables, loop.best())
