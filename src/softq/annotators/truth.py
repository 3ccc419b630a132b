"""The label sequences behind annotations: a chain per sentence, and what is expected of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from softq.annotators.crowd import Floats, Integers
from softq.formats.tags import Scheme, allowed_transitions
from softq.spaces import Chain

_CELLS = 1 << 18  # scores of one batch of sentences
_LIKELY = 0.01  # probability from which on a label is taken to be seen


class Evidence(Protocol):
    """What is known of the true labels of T tokens."""

    def evidence(self) -> Floats:
        """Log-evidence for each label of each token, ``[T, K]``; -inf: impossible."""

    def update(self, posterior: Floats) -> None:
        """Learn from probabilities of the true labels, ``[T, K]``."""


class TruthScores(NamedTuple):
    """Scores of the label sequences of N sentences with T tokens in all.

    Attributes:
        emissions: of labels, ``[T, K]``.
        transitions: of neighbouring labels (from, to), a table for each group of sentences,
            ``[G, K, K]``.
        groups: the group of each sentence, ``[N]``.
        lengths: tokens of each sentence, ``[N]``.

    """

    emissions: Floats
    transitions: Tensor
    groups: Integers
    lengths: Integers

    def chains(self) -> Iterator[tuple[Integers, Tensor, Chain]]:
        """Sentence numbers ``[B]``, their tokens ``[B, n]`` (-1 on padding), and their chains."""
        starts = np.cumsum(self.lengths) - self.lengths
        scores = torch.from_numpy(self.emissions)
        for group, table in enumerate(self.transitions):
            members = np.flatnonzero((self.groups == group) & (self.lengths > 0))
            members = members[np.argsort(self.lengths[members], kind="stable")]
            while len(members):
                # batches of like lengths, each of about as many scores
                sizes = np.arange(1, len(members) + 1) * self.lengths[members]
                count = max(int(np.searchsorted(sizes, _CELLS // scores.shape[1])), 1)
                batch, members = members[:count], members[count:]
                lengths = self.lengths[batch]
                within = np.arange(lengths[-1])
                tokens = np.where(within < lengths[:, None], starts[batch][:, None] + within, -1)
                chain = Chain(
                    scores[torch.from_numpy(tokens)],
                    table,
                    torch.from_numpy(lengths),
                    validate=False,
                )
                yield batch, torch.from_numpy(tokens), chain

    def decode(self, labels: Sequence[str]) -> list[tuple[str, ...]]:
        """The most probable label sequence of each sentence."""
        found: list[tuple[str, ...]] = [()] * len(self.lengths)
        for batch, _, chain in self.chains():
            for sentence, row in zip(batch.tolist(), chain.mode().tolist(), strict=True):
                found[sentence] = tuple(labels[k] for k in row[: self.lengths[sentence]])
        return found


class Posterior(NamedTuple):
    """What is expected of the true labels.

    Attributes:
        labels: probabilities of the labels of each token, ``[T, K]``.
        pairs: expected neighbours (from, to) of each sentence, ``[N, K, K]``.
        entropy: of each sentence's label sequences in nats, ``[N]``.
        log_z: log-partition of each sentence, ``[N]``.
        lengths: tokens of each sentence, ``[N]``.

    """

    labels: Floats
    pairs: Floats
    entropy: Floats
    log_z: Floats
    lengths: Integers

    @classmethod
    def of(cls, scores: TruthScores) -> Posterior:
        """By forward-backward (Appendix D.2.2)."""
        size, sentences = scores.emissions.shape[1], len(scores.lengths)
        labels = np.empty_like(scores.emissions)
        pairs = np.zeros((sentences, size, size))
        log_z = np.zeros(sentences)
        for batch, tokens, chain in scores.chains():
            unary, neighbours = chain.expectation(chain)
            real = tokens >= 0
            labels[tokens[real].numpy()] = unary[real].numpy()
            pairs[batch] = neighbours.squeeze(1).numpy()
            log_z[batch] = chain.log_partition.numpy()
        return cls(labels, pairs, log_z - _expected(scores, labels, pairs), log_z, scores.lengths)

    def take(self, sentences: Integers) -> Posterior:
        """Those of these sentences."""
        starts = np.cumsum(self.lengths) - self.lengths
        lengths = self.lengths[sentences]
        within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        labels = self.labels[np.repeat(starts[sentences], lengths) + within]
        pairs, entropy, log_z = (
            self.pairs[sentences],
            self.entropy[sentences],
            self.log_z[sentences],
        )
        return Posterior(labels, pairs, entropy, log_z, lengths)

    def shown(self, classes: int) -> Floats:
        """Labels that are likely enough to have features, as `softq.linear.tagging.References` has them."""
        return np.where(self.labels >= _LIKELY, self.labels, 0.0)

    def pairs_shown(self, classes: int) -> Floats:
        """Neighbours that are likely enough, likewise."""
        total: Floats = self.pairs.sum(0)
        return np.where(total >= _LIKELY, total, 0.0)


class TruthFit(Protocol):
    """A model of the truth that was fitted together with what the evidence has learnt."""

    evidence: Evidence
    posterior: Posterior

    @property
    def scores(self) -> TruthScores:
        """Scores of the true label sequences."""

    def best(self) -> Sequence[tuple[str, ...]]:
        """The most probable label sequence of each sentence."""


def _expected(scores: TruthScores, labels: Floats, pairs: Floats) -> Floats:
    """Expected score of each sentence, ``[N]``; what is impossible has the probability 0, not NaN."""
    by_token = (labels * np.where(labels > 0, scores.emissions, 0.0)).sum(1)
    sums = np.concatenate([[0.0], np.cumsum(by_token)])
    ends = np.cumsum(scores.lengths)
    table = scores.transitions.numpy()[scores.groups]
    between = (pairs * np.where(pairs > 0, table, 0.0)).sum((1, 2))
    found: Floats = sums[ends] - sums[ends - scores.lengths] + between
    return found


def predictive(scores: TruthScores, likelihood: Floats) -> float:
    """Log E_q[ exp(Σ_t likelihood_t(y_t)) ] over the truth: how likely labels are that were hidden.

    ``likelihood [T, K]`` is their log-probability for each true label; q is the truth by ``scores``.
    The difference of two log-partitions is exact, since evidence splits over tokens.
    """
    known = scores._replace(emissions=scores.emissions + likelihood)
    both = zip(known.chains(), scores.chains(), strict=True)
    return sum(
        float((with_hidden.log_partition - without.log_partition).sum())
        for (_, _, with_hidden), (_, _, without) in both
    )


class MarkovPrior:
    """The truth as a Markov chain over labels, which keeps to a tag scheme.

    Its tables have Dirichlet priors; the scores are the variational E[log p].
    """

    def __init__(
        self, labels: Sequence[str], scheme: Scheme | None, *, concentration: float = 0.1
    ) -> None:
        """Start from tables that know nothing but the scheme (None: all is allowed)."""
        size = len(labels)
        self._between, self._first = torch.ones(size, size).bool(), torch.ones(size).bool()
        self._last = self._first
        if scheme is not None:
            self._between, self._first, self._last = allowed_transitions(labels, scheme)
        self._concentration = concentration
        self.between, self.first = _forbidding(self._between), _forbidding(self._first)
        self.last = _forbidding(self._last)

    def update(self, posterior: Posterior, starts: Integers) -> None:
        """M-step: from the expected first labels and neighbours."""
        first = torch.from_numpy(posterior.labels[starts].sum(0))
        pairs = torch.from_numpy(posterior.pairs.sum(0))
        self.first = _expected_log(first + self._concentration, self._first)
        self.between = _expected_log(pairs + self._concentration, self._between)

    def scores(self, evidence: Floats, lengths: Integers) -> TruthScores:
        """Of all label sequences, with the evidence ``[T, K]`` for each label."""
        return bordered(
            evidence, self.first, self.last, self.between[None], np.zeros_like(lengths), lengths
        )


def bordered(
    emissions: Floats,
    first: Tensor,
    last: Tensor,
    transitions: Tensor,
    groups: Integers,
    lengths: Integers,
) -> TruthScores:
    """Scores with those of the first and the last label of each sentence added to its emissions."""
    emissions = emissions.copy()
    ends = np.cumsum(lengths)[lengths > 0]
    emissions[ends - lengths[lengths > 0]] += first.numpy()
    emissions[ends - 1] += last.numpy()
    return TruthScores(emissions, transitions, groups, lengths)


def _forbidding(allowed: Tensor) -> Tensor:
    return torch.where(allowed, 0.0, -torch.inf).double()


_LEAST = -20.0  # E[log p] of what has not been seen


def _expected_log(concentration: Tensor, allowed: Tensor) -> Tensor:
    """E[log p] under Dirichlet distributions over what is allowed in each row."""
    alpha = torch.where(allowed, concentration, 0.0)
    mean = torch.digamma(concentration) - torch.digamma(alpha.sum(-1, keepdim=True))
    return torch.where(allowed, mean.clamp(min=_LEAST), -torch.inf)
