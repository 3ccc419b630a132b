"""Several imperfect annotators of the same sentences.

Votes, how reliable each one is, and how much each should weigh.

Everything here is counted token by token. Reliability is estimated without the truth, by EM over
what all annotators said of all tokens (Dawid and Skene, 1979): who agrees with the others is
trusted more, and the truth is what those say who are trusted.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from softq.annotators.crowd import Crowd, Floats, check_named
from softq.annotators.sequential import SequentialFit
from softq.annotators.tables import AnnotatorTables
from softq.annotators.truth import TruthFit
from softq.errors import DataError, ShapeError
from softq.formats.conll import MISSING, Sentence, find_scheme
from softq.formats.tags import OUTSIDE
from softq.options import Ties as Ties

Model = Literal["one-coin", "dawid-skene", "sequential"]
"""What an annotator's errors are like; see `estimate`."""

WeightModel = Literal["one-coin", "dawid-skene"]
"""Those of `reference_weights` for references of all tokens."""


LEAST_WEIGHT = 0.05
"""Of an annotator who does no better than chance.

Small, so that a sentence which nobody else labelled still has references.
"""


def vote(sentence: Sentence, ties: Ties, *, seed: int = 0) -> tuple[str, ...]:
    """The label that most annotators gave, token by token; a missing label is no vote.

    The votes of neighbouring tokens may break the tag scheme; `softq.formats.tags.convert` mends
    them.

    Args:
        sentence: With the labels of one annotator or more for every token.
        ties: Who wins where several labels have the most votes. ``"first"``: the label of the
            annotator who stands first among those who gave one of them. ``"entity"``: a label other
            than O, of several the one that ``"first"`` takes. ``"outside"``: O if it is among them,
            else the one that ``"first"`` takes. ``"random"``: each alike.
        seed: For ``"random"``. Chance depends on it, the tokens and the place of the token alone:
            not on other sentences, nor on the order of the annotators.

    >>> sentence = Sentence(("Ann", "ran"), (("O", "O"), ("B-PER", "O")), ("w1", "w2"))
    >>> vote(sentence, "first"), vote(sentence, "entity")
    (('O', 'O'), ('B-PER', 'O'))

    """
    if ties not in get_args(Ties):
        raise DataError(
            f"unknown rule for ties: expected one of {', '.join(get_args(Ties))}, got {ties!r}"
        )
    chances = _chances(sentence, seed) if ties == "random" else []
    winners = []
    for place, given in enumerate(zip(*sentence.labels, strict=True)):
        votes = Counter(
            label for label in given if label != MISSING
        )  # in the order of the annotators
        if not votes:
            raise DataError(
                f"{sentence.where(place)}: expected a label of one annotator or more, got none"
                f" for {sentence.tokens[place]!r}"
            )
        most = max(votes.values())
        tied = [label for label, count in votes.items() if count == most]
        if ties == "random":
            tied = [sorted(tied)[int(chances[place] * len(tied))]]
        elif ties == "entity":
            tied = [label for label in tied if label != OUTSIDE] or tied
        elif ties == "outside" and OUTSIDE in tied:
            tied = [OUTSIDE]
        winners.append(tied[0])
    return tuple(winners)


def _chances(sentence: Sentence, seed: int) -> list[float]:
    """A number in [0, 1) for each token, from the seed and the tokens."""
    text = "\0".join([str(seed), *sentence.tokens])
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    return list(np.random.default_rng(int.from_bytes(digest, "big")).random(len(sentence.tokens)))


class AnnotatorRow(NamedTuple):
    """How reliable an annotator seems, in expectation over the estimated truth.

    Attributes:
        name: As it stands in the sentences.
        tokens: How many labels the annotator gave.
        accuracy: Share of them that are right. Most tokens are O, so it is high for anyone who
            marks little.
        precision: Share of the labels other than O that are right, 0 where there are none.
        recall: Share of the tokens of entities that got the right label, 0 where there are none.
        weight: How much the annotator should count, positive: see `estimate`.

    """

    name: str
    tokens: int
    accuracy: float
    precision: float
    recall: float
    weight: float


@dataclass(frozen=True)
class Reliability:
    """What EM found, over K labels and A annotators.

    Attributes:
        model: What the annotators' errors were taken to be like.
        labels: The labels, O first if it occurs, the others sorted: the order of all arrays.
        prior: ``[K]``, the share of each label in the truth.
        annotators: A row for each, sorted by name.
        confusions: ``[A, K, K]``, the chance that an annotator gives a label (last) where another
            is right (second).
        objective: Log-likelihood of all labels, plus the log-density of the smoothing, before each
            iteration and after the last; it never falls.
        posteriors: ``[n, K]`` for each sentence, the probability of each label to be the right one
            of each token.
        best: The most probable labels of each sentence: token by token, or for ``"sequential"`` the
            most probable sequence.

    """

    model: Model
    labels: tuple[str, ...]
    prior: Floats
    annotators: tuple[AnnotatorRow, ...]
    confusions: Floats
    objective: tuple[float, ...]
    posteriors: tuple[Floats, ...]
    best: tuple[tuple[str, ...], ...]


def estimate(
    sentences: Sequence[Sentence],
    model: Model = "dawid-skene",
    *,
    smoothing: float = 0.1,
    iterations: int = 100,
    tolerance: float = 1e-6,
) -> Reliability:
    """How reliable each annotator is, and the truth as far as they tell it, by EM over all tokens.

    Args:
        sentences: With annotators; missing labels count for nothing.
        model: ``"one-coin"``: an annotator is right with one probability whatever the truth, and
            any wrong label is as likely as any other. ``"dawid-skene"``: for each right label, an
            annotator has a distribution of their own over what they write. ``"sequential"``: that
            distribution also depends on the annotator's previous label, the truth is a Markov chain
            that keeps to the tag scheme, and all tables have Dirichlet priors (variational EM, see
            `softq.annotators.sequential`, which has its settings). For classes there is
            `estimate_classes`.
        smoothing: Labels that each annotator is taken to have given beforehand, in each cell of a
            confusion; likewise for the prior. Not of ``"sequential"``.
        iterations: At most so many.
        tolerance: Ends when the objective rises by less than this in an iteration, per token.

    Where most tokens are O, one coin says little: an O that should not be counts as much against an
    annotator as an entity that is none, so the estimated truth loses entities much as a vote does.
    Prefer ``"dawid-skene"`` wherever one label outnumbers the others, and ``"sequential"`` for
    entities.

    The weight of an annotator is the log-odds of the balanced accuracy, log(b / (1 - b)) with b =
    (recall + specificity) / 2: the share of right labels on the tokens of entities, and on the
    others, with half a label right and half a label wrong added to each; `LEAST_WEIGHT` where it
    would be less. Where no label is O, b is the share of right labels. The target of SQDML
    multiplies exp(w_i r(y, y_i) / τ) over annotators (eq. 15) as Bayes' theorem multiplies their
    odds, so a weight is a log-odds; balanced, because plain accuracy is that on O.

    >>> sentence = Sentence(("Ann", "ran", "home"), (("B-PER", "O", "O"), ("B-PER", "O", "O"), ("O", "B-PER", "O")), ("w1", "w2", "w3"))
    >>> found = estimate([sentence] * 10)
    >>> [row.name for row in found.annotators if row.weight > LEAST_WEIGHT]
    ['w1', 'w2']
    >>> estimate([sentence] * 10, "sequential").best[0]
    ('B-PER', 'O', 'O')

    """
    if model not in get_args(Model):
        raise DataError(
            f"unknown model of annotators: expected one of {', '.join(get_args(Model))}, got"
            f" {model!r}"
        )
    crowd = Crowd.read(sentences, previous=model == "sequential")
    if model == "sequential":
        tables, scheme = AnnotatorTables(crowd), find_scheme(sentences)
        fit = SequentialFit(tables, crowd.labels, crowd.lengths, scheme, iterations=iterations)
        return reliability_of(fit, fit.objective)
    return _by_em(crowd, model, smoothing, iterations, tolerance)


def estimate_classes(
    labels: Any,
    names: Sequence[str] | None = None,
    model: WeightModel = "dawid-skene",
    *,
    smoothing: float = 0.1,
    iterations: int = 100,
    tolerance: float = 1e-6,
) -> Reliability:
    """The same of annotators of classes, such as the ``y`` of `softq.RewardClassifier`.

    Args:
        labels: classes ``[n, m]`` that m annotators gave n items; None or NaN where one is missing.
        names: of the annotators; None: their columns, from 0.
        model: see `estimate`, likewise the rest.
        smoothing: likewise.
        iterations: likewise.
        tolerance: likewise.

    The result has a sentence of one token for each item, and names of classes as strings, sorted as
    the classes are. Column k of its probabilities is class k of ``numpy.unique``.

    >>> y = [[0, 0, 1], [1, None, 0], [1, 1, 1], [0, 0, 1], [1, 1, 0], [2, 2, 2]]
    >>> found = estimate_classes(y, names=("ann", "bob", "cy"))
    >>> [label for (label,) in found.best]
    ['0', '1', '1', '0', '1', '2']
    >>> [(row.name, row.tokens, round(row.accuracy, 1)) for row in found.annotators]
    [('ann', 6, 1.0), ('bob', 5, 1.0), ('cy', 6, 0.3)]

    """
    if model not in get_args(WeightModel):
        raise DataError(
            f"unknown model of annotators of classes: expected one of"
            f" {', '.join(get_args(WeightModel))}, got {model!r}"
        )
    table = np.asarray(labels, dtype=object)
    if table.ndim != 2:
        raise ShapeError(f"labels must have shape [n, m], got {list(table.shape)}")
    names = tuple(map(str, range(table.shape[1]) if names is None else names))
    if len(set(names)) != table.shape[1]:
        raise ShapeError(
            f"expected {table.shape[1]} different names, one for each annotator, got {list(names)}"
        )
    # NaN is the one value that differs from itself
    known = np.frompyfunc(lambda label: label is not None and label == label, 1, 1)(table)
    items, who = np.nonzero(known.astype(bool))
    try:
        classes, given = np.unique(table[items, who], return_inverse=True)
    except TypeError as error:
        raise DataError(f"classes must be of one type, numbers or strings: {error}") from error
    if len(classes) < 2:
        raise DataError(f"expected two different classes or more, got {classes.tolist()}")
    every = np.arange(len(table))
    crowd = Crowd(
        names,
        tuple(map(str, classes)),
        np.ones_like(every),
        every,
        every,
        items,
        who,
        np.zeros_like(who),
        given.astype(np.int64),
        contexts=1,
    )
    return _by_em(crowd, model, smoothing, iterations, tolerance)


def _by_em(
    crowd: Crowd, model: Model, smoothing: float, iterations: int, tolerance: float
) -> Reliability:
    """Dawid and Skene's model or one coin, where previous labels do not count."""
    if not smoothing > 0:
        raise DataError(f"smoothing must be a positive number, got {smoothing}")
    tokens = np.bincount(crowd.patterns, minlength=len(crowd.sentence)).astype(np.float64)
    posterior = _vote_shares(crowd)
    objective: list[float] = []
    for _ in range(max(iterations, 1)):
        counts = crowd.counts(posterior[crowd.patterns])[:, 0]
        prior = posterior.T @ tokens + smoothing
        prior /= prior.sum()
        confusions = (
            _one_coin(counts, smoothing) if model == "one-coin" else _normalised(counts + smoothing)
        )
        free = confusions[:, :1] if model == "one-coin" else confusions
        scores = crowd.evidence(np.log(confusions)[:, None]) + np.log(prior)
        log_z = np.logaddexp.reduce(scores, axis=1)
        posterior = np.exp(scores - log_z[:, None])
        likelihood = float(tokens @ log_z)
        objective.append(likelihood + smoothing * float(np.log(free).sum() + np.log(prior).sum()))
        if len(objective) > 1 and objective[-1] - objective[-2] < tolerance * len(crowd.patterns):
            break
    labels = posterior[crowd.patterns]
    names = np.array(crowd.labels, dtype=object)[labels.argmax(1)]
    best = [tuple(row) for row in np.split(names, np.cumsum(crowd.lengths)[:-1])]
    counts = crowd.counts(labels).sum(1)
    posteriors = np.split(labels, np.cumsum(crowd.lengths)[:-1])
    return Reliability(
        model,
        crowd.labels,
        prior,
        _rows(crowd, counts),
        confusions,
        tuple(objective),
        tuple(posteriors),
        tuple(best),
    )


def reliability_of(fit: TruthFit, objective: Sequence[float] = ()) -> Reliability:
    """What a fit of annotators' tables says of the annotators.

    Args:
        fit: a `softq.annotators.sequential.SequentialFit`, or a
            `softq.linear.truth_loop.TruthLoop`.
        objective: of each iteration.

    """
    if not isinstance(fit.evidence, AnnotatorTables):
        raise DataError("expected labels of annotators, got labels that are known in part")
    crowd, posterior = fit.evidence.crowd, fit.posterior.labels
    return Reliability(
        "sequential" if crowd.contexts > 1 else "dawid-skene",
        crowd.labels,
        posterior.mean(0),
        _rows(crowd, crowd.counts(posterior).sum(1)),
        fit.evidence.confusions,
        tuple(objective),
        tuple(np.split(posterior, np.cumsum(crowd.lengths)[:-1])),
        tuple(fit.best()),
    )


def _vote_shares(crowd: Crowd) -> Floats:
    """``[P, K]``: where EM starts; a token without labels starts uniform."""
    size = len(crowd.labels)
    votes = np.bincount(crowd.pattern * size + crowd.label, minlength=len(crowd.sentence) * size)
    return _normalised(votes.reshape(-1, size).astype(np.float64) + 1e-3)


def _one_coin(counts: Floats, smoothing: float) -> Floats:
    """Confusions of annotators who are right with one probability each."""
    size = counts.shape[-1]
    right = np.trace(counts, axis1=1, axis2=2) + smoothing
    accuracy = (right / (counts.sum((1, 2)) + size * smoothing))[:, None, None]
    confusions: Floats = np.where(np.eye(size, dtype=bool), accuracy, (1 - accuracy) / (size - 1))
    return confusions


def _normalised(counts: Floats) -> Floats:
    shares: Floats = counts / counts.sum(-1, keepdims=True)
    return shares


def _ratio(part: float, whole: float) -> float:
    return float(part / whole) if whole > 0 else 0.0


def _rows(crowd: Crowd, counts: Floats) -> tuple[AnnotatorRow, ...]:
    inside = np.asarray([label != OUTSIDE for label in crowd.labels])
    rows = []
    for name, table in zip(crowd.annotators, counts, strict=True):
        right = np.diag(table)
        rows.append(
            AnnotatorRow(
                name,
                tokens=round(table.sum()),
                accuracy=_ratio(right.sum(), table.sum()),
                precision=_ratio(right[inside].sum(), table[:, inside].sum()),
                recall=_ratio(right[inside].sum(), table[inside].sum()),
                weight=_weight(table, inside),
            )
        )
    return tuple(rows)


def _weight(table: Floats, inside: NDArray[np.bool_]) -> float:
    """Log-odds of the balanced accuracy, from the counts ``[K, K]`` of an annotator (right label, given label)."""
    right = np.diag(table)
    # Half a label right and half a label wrong beforehand, so that who never erred does not weigh
    # without bound.
    balanced = np.mean(
        [
            (right[which].sum() + 0.5) / (table[which].sum() + 1.0)
            for which in (inside, ~inside)
            if which.any()  # classes have no O: nothing is said of it
        ]
    )
    return max(float(np.log(balanced / (1 - balanced))), LEAST_WEIGHT)


def reference_weights(sentence: Sentence, reliability: Reliability) -> tuple[float, ...]:
    """How much each sequence of labels of a sentence should count, summing to 1.

    ``ref_weights`` of `softq.raml` and `softq.sqdml`.

    In proportion to its annotator's weight (see `estimate`); 0 for a sequence without a label,
    which is no reference.

    >>> sentence = Sentence(("Ann", "ran"), (("B-PER", "O"), ("?", "?"), ("B-PER", "O")), ("w1", "w2", "w3"))
    >>> reference_weights(sentence, estimate([sentence]))
    (0.5, 0.0, 0.5)
    """
    check_named(sentence)
    weights = {row.name: row.weight for row in reliability.annotators}
    unknown = [name for name in sentence.annotators if name not in weights]
    if unknown:
        raise DataError(
            f"{sentence.where()}: expected annotators whose reliability was estimated, got"
            f" {unknown[0]!r}, who is not among them"
        )
    counted = [
        weights[name] * (set(labels) != {MISSING})
        for name, labels in zip(sentence.annotators, sentence.labels, strict=True)
    ]
    total = sum(counted)
    if not total:
        raise DataError(
            f"{sentence.where()}: expected one annotator or more who labelled a token of the"
            " sentence, got none"
        )
    return tuple(weight / total for weight in counted)
