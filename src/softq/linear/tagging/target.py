"""What a tagger is trained toward.

Exact ML, RAML and SQDML targets of a whole corpus, reduced to the parts that a chain scores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from softq.errors import OutputError
from softq.formats.tags import OUTSIDE, Scheme, allowed_transitions
from softq.rewards import PartReward, TokenAccuracy, TokenReward
from softq.spaces import Chain
from softq.targets import ObjectiveName, target_of

Array = np.ndarray[Any, Any]

_CELLS = 1 << 21  # numbers of one batch of targets, in float64: some 16 MiB


class Forbidden(NamedTuple):
    """What a tag scheme forbids, as scores of 0 and -inf, float64.

    ``between [K, K]`` (from, to), ``first [K]``, ``last [K]``.
    """

    between: Tensor
    first: Tensor
    last: Tensor

    @classmethod
    def by(cls, scheme: Scheme | None, labels: Sequence[str]) -> Forbidden:
        """By a scheme among these labels; None forbids nothing.

        >>> Forbidden.by("bio", ["O", "B-PER", "I-PER"]).first
        tensor([0., 0., -inf], dtype=torch.float64)
        """
        if scheme is None:
            count = len(labels)
            return cls(
                *(
                    torch.zeros(shape, dtype=torch.float64)
                    for shape in ((count, count), (count,), (count,))
                )
            )
        return cls(
            *(
                torch.where(allowed, 0.0, -torch.inf).double()
                for allowed in allowed_transitions(labels, scheme)
            )
        )

    def space(self, count: int, lengths: Tensor) -> Chain:
        """The label sequences of ``count`` sentences that are allowed, all with the score 0."""
        return self.chain(
            torch.zeros(count, int(lengths.max()), len(self.first), dtype=torch.float64), lengths
        )

    def chain(self, emissions: Tensor, lengths: Tensor, transitions: Tensor | None = None) -> Chain:
        """The chain with these scores, in float64 or float32, in which only what is allowed is possible; emissions are written to."""
        if bool((self.first == -torch.inf).any()) or bool((self.last == -torch.inf).any()):
            emissions[:, 0] += self.first.to(emissions)
            emissions[torch.arange(len(lengths)), lengths - 1] += self.last.to(emissions)
        between = self.between.to(emissions)
        return Chain(
            emissions,
            between if transitions is None else between + transitions.to(emissions),
            lengths,
            validate=False,
        )


class References(NamedTuple):
    """One or several label sequences for each of N sentences.

    Attributes:
        labels: ``[N]`` arrays ``[R, n]`` of label ids.
        weights: ``[N]`` arrays ``[R]`` of weights, of any positive sum.

    """

    labels: Sequence[Array]
    weights: Sequence[Array]

    def take(self, sentences: Array) -> References:
        """Those of these sentences."""
        return References([self.labels[i] for i in sentences], [self.weights[i] for i in sentences])


class CorpusTarget(NamedTuple):
    """All that the cross-entropy of a chain asks of the targets of N sentences with T tokens.

    Attributes:
        labels: ``[T, K]`` float32, the expectation of each label at each token.
        pairs: ``[K, K]`` float64, the expected number of neighbours (from, to) in the corpus.
        entropy: of the target, summed over sentences, in nats. For RAML with several references it
            is the weighted mean of the entropies of its components, the constant between eq. 4 and
            eq. 6: cross-entropy less this is a mean of KL divergences.

    """

    labels: Array
    pairs: Array
    entropy: float


def corpus_target(
    objective: ObjectiveName,
    references: References,
    forbidden: Forbidden,
    tau: float | None = None,
    reward: PartReward | None = None,
) -> CorpusTarget:
    """The exact target of a corpus (eq. 2, 16 or 15), on the label sequences that are not forbidden.

    Without forbidden neighbours the targets of RAML and SQDML factorise over tokens; with them they are chains, and their expectations come
    from forward-backward (Appendix D.2.2). Both are `softq.ml`, `softq.raml` and `softq.sqdml` themselves, in batches of like lengths.

    >>> references = References([np.array([[0, 1]])], [np.ones(1)])
    >>> corpus_target("raml", references, Forbidden.by(None, ["O", "B-PER"]), tau=1.0).labels.round(2)  # e / (e + 1) = 0.73
    array([[0.73, 0.27],
           [0.27, 0.73]], dtype=float32)
    """
    classes = len(forbidden.first)
    lengths = np.array([labels.shape[1] for labels in references.labels], np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    unary = np.empty((int(starts[-1]), classes), np.float32)
    pairs = torch.zeros(classes, classes, dtype=torch.float64)
    entropy = 0.0
    for batch in _batches(references, classes):
        sizes = torch.from_numpy(lengths[batch])
        refs, weights = _padded(references, batch, int(sizes.max()))
        _check_range(refs, weights, classes, batch)
        space = forbidden.space(len(batch), sizes)
        if objective == "ml":
            _check_allowed(space, refs, weights, batch)
        target = target_of(
            objective, space, refs, tau, reward or TokenAccuracy(), ref_weights=weights
        )
        labels, neighbours = target.expected_parts(space)
        entropy += float(
            target.component_entropy().sum() if objective != "ml" else target.entropy().sum()
        )
        pairs += neighbours.sum((0, 1))
        for row, sentence in enumerate(batch):
            unary[starts[sentence] : starts[sentence + 1]] = labels[
                row, : lengths[sentence]
            ].numpy()
    return CorpusTarget(unary, pairs.numpy(), entropy)


def _batches(references: References, classes: int) -> Iterator[Array]:
    """Sentences of like lengths and numbers of references.

    A batch's padded arrays hold about `_CELLS` numbers.
    """
    shapes = np.array([labels.shape for labels in references.labels], np.int64).reshape(-1, 2)
    order = np.lexsort((shapes[:, 0], shapes[:, 1]))
    order = order[shapes[order, 1] > 0]
    start = 0
    while start < len(order):
        # Sorted by length, so the last one is the longest; the number of references may be
        # anyone's.
        end = start + 1
        most = shapes[order[start], 0]
        while end < len(order):
            most = max(most, shapes[order[end], 0])
            if (end + 1 - start) * most * shapes[order[end], 1] * classes > _CELLS:
                break
            end += 1
        yield order[start:end]
        start = end


def _padded(references: References, batch: Array, longest: int) -> tuple[Tensor, Tensor]:
    """References ``[B, R, n]`` and their weights ``[B, R]``, 0 where there is none.

    What has no weight may be anything, and is 0.
    """
    most = max(len(references.labels[i]) for i in batch)
    refs = np.zeros((len(batch), most, longest), np.int64)
    weights = np.zeros((len(batch), most))
    for row, sentence in enumerate(batch):
        labels = references.labels[sentence]
        weights[row, : labels.shape[0]] = references.weights[sentence]
        refs[row, : labels.shape[0], : labels.shape[1]] = np.where(
            weights[row, : labels.shape[0], None] != 0, labels, 0
        )
    return torch.from_numpy(refs), torch.from_numpy(weights)


def _check_range(refs: Tensor, weights: Tensor, classes: int, batch: Array) -> None:
    """Label ids index tables: one that is out of range would find another label, or nothing."""
    bad = ((refs < 0) | (refs >= classes)).any(-1) & (weights != 0)
    if bool(bad.any()):
        row, which = bad.nonzero()[0].tolist()
        raise OutputError(
            f"reference {which} of sentence {int(batch[row])} (counted from 0): expected label"
            f" ids in 0..{classes - 1}, got"
            f" {int(refs[row, which].min())}..{int(refs[row, which].max())}"
        )


def _check_allowed(space: Chain, refs: Tensor, weights: Tensor, batch: Array) -> None:
    """ML cannot be trained toward what is forbidden: its loss would be infinite."""
    scores = space.score(refs.movedim(1, 0)).T  # [B, R]: 0 or -inf
    bad = (scores == -torch.inf) & (weights > 0)
    if bool(bad.any()):
        row, which = bad.nonzero()[0].tolist()
        raise OutputError(
            f"reference {which} of sentence {int(batch[row])} (counted from 0) breaks the tag"
            " scheme, and ML gives all its mass to it; mend it (softq.formats.tags.convert), or"
            " let constraints reach decoding only"
        )


def entity_reward(
    labels: Sequence[str], entity_weight: float = 1.0, type_credit: float = 0.0
) -> TokenReward:
    """Token accuracy in which entities count more than what lies outside them.

    Args:
        labels: K tags, ``O`` among them or not; a tag's type is what follows its dash.
        entity_weight: what a right entity tag earns; a right ``O`` earns 1.
        type_credit: share of it that a tag of the right type with the wrong prefix earns, such as
            ``I-PER`` for ``B-PER``.

    >>> entity_reward(["O", "B-PER", "I-PER"], 3.0, 0.5).table
    tensor([[1.0000, 0.0000, 0.0000],
            [0.0000, 3.0000, 1.5000],
            [0.0000, 1.5000, 3.0000]], dtype=torch.float64)

    """
    kinds = [label.partition("-")[2] for label in labels]
    table = torch.zeros(len(labels), len(labels), dtype=torch.float64)
    for i, said in enumerate(labels):
        for j, right in enumerate(labels):
            if said == right:
                table[i, j] = 1.0 if said == OUTSIDE else entity_weight
            elif kinds[i] and kinds[i] == kinds[j]:
                table[i, j] = entity_weight * type_credit
    return TokenReward(table)
