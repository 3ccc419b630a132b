"""Taggers with string features: the targets they are trained toward, and the trained model.

The targets are the exact ML, RAML and SQDML targets of a whole corpus, reduced to the parts that a
chain scores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from softq.checks import check_count
from softq.errors import DataError, OutputError, ScoreError, ShapeError
from softq.formats.file_checks import as_array, mapping, one_of, starting_with, string_list
from softq.formats.tags import OUTSIDE, Scheme, allowed_transitions
from softq.kernels.features import crf as kernels
from softq.linear.features import AttributeIndex, FeatureMatrix, TemplateIndex
from softq.linear.features.matrix import batches_of_like_lengths
from softq.linear.segment_tags import ExpectedTags, SegmentTags
from softq.linear.tempering import at_temperature, read_temperature
from softq.options import Constraints, ObjectiveName
from softq.options import LabelDecoding as Decoding
from softq.rewards import PartReward, TokenReward
from softq.spaces import Chain, Distribution, SemiMarkov
from softq.targets import target_of

__all__ = [
    "Constraints",
    "CorpusTarget",
    "Decoding",
    "Forbidden",
    "References",
    "Tagger",
    "corpus_target",
    "entity_reward",
    "token_batches",
]


Array = np.ndarray[Any, Any]


_TARGET_CELLS = 1 << 21  # numbers of one batch of targets, in float64: some 16 MiB


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
        allowed = (
            allowed_transitions(labels, scheme)
            if scheme is not None
            else (torch.ones(len(labels), len(labels)), *torch.ones(2, len(labels)))
        )
        return cls(*(torch.where(table.bool(), 0.0, -torch.inf).double() for table in allowed))

    @property
    def table_shape(self) -> tuple[int, int]:
        """Shape of the scores of neighbouring labels, ``[K, K]``."""
        return len(self.first), len(self.first)

    @property
    def cells(self) -> int:
        """Numbers that a distribution has for each token."""
        return len(self.first)

    def read(self, references: Tensor, lengths: Tensor) -> Tensor:
        """Outputs of chains are ids of labels."""
        return references

    def expected(self, labels: Tensor, pairs: Tensor) -> ExpectedTags:
        """What a corpus needs of expected labels ``[B, n, K]`` and neighbours of each token."""
        return ExpectedTags(labels, pairs.sum((0, 1)))

    def space(self, count: int, lengths: Tensor) -> Chain:
        """The label sequences of ``count`` sentences that are allowed, all with the score 0."""
        return self.chain(
            torch.zeros(count, int(lengths.max()), len(self.first), dtype=torch.float64), lengths
        )

    def distribution(self, tags: Tensor, table: Tensor, lengths: Tensor) -> Chain:
        """`chain`, as `SegmentTags` has it."""
        return self.chain(tags, lengths, table)

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


UNLABELLED = -100
"""The label id of a token that an annotator left out."""


class References(NamedTuple):
    """One or several label sequences for each of N sentences.

    Attributes:
        labels: ``[N]`` arrays ``[R, n]`` of label ids; `UNLABELLED` for a token that the annotator
            left out and another one labelled.
        weights: ``[N]`` arrays ``[R]`` of weights, of any positive sum.

    """

    labels: Sequence[Array]
    weights: Sequence[Array]

    @property
    def lengths(self) -> Array:
        """Tokens of each sentence."""
        return np.array([sentence.shape[1] for sentence in self.labels], np.int64)

    def take(self, sentences: Array) -> References:
        """Those of these sentences."""
        return References([self.labels[i] for i in sentences], [self.weights[i] for i in sentences])

    def best(self, sentence: int) -> Array:
        """The heaviest reference of a sentence; others where it has no label."""
        found = np.full(self.labels[sentence].shape[1], UNLABELLED)
        for reference in np.argsort(-self.weights[sentence], kind="stable"):
            found = np.where(found < 0, self.labels[sentence][reference], found)
        return found

    def shown(self, classes: int) -> Array:
        """Weights ``[T, K]`` of labels as part of the heaviest of their sentence, 0 where no reference has them."""
        seen = np.zeros((int(self.lengths.sum()), classes), np.float32)
        start = 0
        for sentence, weights in zip(self.labels, self.weights, strict=True):
            for sequence, weight in zip(sentence, weights / np.max(weights), strict=True):
                known = np.flatnonzero(sequence >= 0) if weight > 0 else np.empty(0, np.int64)
                cells = start + known, sequence[known]
                seen[cells] = np.maximum(seen[cells], weight)
            start += sentence.shape[1]
        return seen

    def pairs_shown(self, classes: int) -> Array:
        """How many references have each two neighbouring labels, ``[K, K]``."""
        pairs = np.zeros(classes * classes)
        for sentence, weights in zip(self.labels, self.weights, strict=True):
            before, after = sentence[weights > 0, :-1], sentence[weights > 0, 1:]
            known = (before >= 0) & (after >= 0)
            pairs += np.bincount(before[known] * classes + after[known], minlength=len(pairs))
        return pairs.reshape(classes, classes)


class CorpusTarget(NamedTuple):
    """All that the cross-entropy of a chain, or of segments, asks of the targets of N sentences.

    Attributes:
        labels: ``[T, K]`` float32, the expectation of each label at each of their T tokens.
        pairs: ``[K, K]`` float64, the expected number of neighbours (from, to) in the corpus; of
            segments those of types and lengths, ``[C + L, C]`` (see `SegmentTags`).
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
    allowed: Forbidden | SegmentTags,
    tau: float | None = None,
    reward: PartReward | None = None,
) -> CorpusTarget:
    """The exact target of a corpus (eq. 2, 16 or 15), on the label sequences that are not forbidden.

    Or on all ways to cut the sentences into segments. There a label that one of several annotators
    left out is the one that has most of the weight.

    Without forbidden neighbours the targets of RAML and SQDML factorise over tokens; with them they are chains, and their expectations come
    from forward-backward (Appendix D.2.2). Both are `softq.ml`, `softq.raml` and `softq.sqdml` themselves, in batches of like lengths.

    >>> references = References([np.array([[0, 1]])], [np.ones(1)])
    >>> corpus_target("raml", references, Forbidden.by(None, ["O", "B-PER"]), tau=1.0).labels.round(2)  # e / (e + 1) = 0.73
    array([[0.73, 0.27],
           [0.27, 0.73]], dtype=float32)
    """
    classes = len(allowed.first) if isinstance(allowed, Forbidden) else len(allowed.labels)
    lengths = np.array([labels.shape[1] for labels in references.labels], np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    unary = np.empty((int(starts[-1]), classes), np.float32)
    hard = objective == "ml" or isinstance(allowed, SegmentTags)
    pairs = torch.zeros(allowed.table_shape, dtype=torch.float64)
    entropy = 0.0
    copies = np.array([len(labels) for labels in references.labels], np.int64)
    for batch in batches_of_like_lengths(lengths, lengths * allowed.cells, _TARGET_CELLS, copies):
        sizes = torch.from_numpy(lengths[batch])
        refs, weights = _padded(references, batch, int(sizes.max()))
        _check_range(refs, weights, classes, batch)
        space = allowed.space(len(batch), sizes)
        if bool((refs == UNLABELLED).any()):
            refs = _filled(refs, weights, classes, hard=hard)
        refs = allowed.read(refs, sizes)
        if objective == "ml":
            _check_allowed(space, refs, weights, batch)
        target = target_of(objective, space, refs, tau, reward, ref_weights=weights)
        labels, table = allowed.expected(*target.expected_parts(space))
        entropy += float(
            target.component_entropy().sum() if objective != "ml" else target.entropy().sum()
        )
        pairs += table
        for row, sentence in enumerate(batch):
            unary[starts[sentence] : starts[sentence + 1]] = labels[
                row, : lengths[sentence]
            ].numpy()
    return CorpusTarget(unary, pairs.numpy(), entropy)


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


def _filled(refs: Tensor, weights: Tensor, classes: int, *, hard: bool) -> Tensor:
    """References in which a label that is left out is as those of the others.

    They are soft, ``[B, R, n, K]``: the mean over references is, at each token, that over those who
    labelled it. Or ``hard``, ``[B, R, n]``, with the label that has most of the weight.
    """
    given = one_hot(refs.clamp(min=0), classes).double() * (refs >= 0).unsqueeze(-1)
    mean = (weights[..., None, None] * given).sum(1, keepdim=True)
    if hard:
        return torch.where(refs == UNLABELLED, mean.argmax(-1), refs)
    mean = mean / mean.sum(-1, keepdim=True).clamp(min=torch.finfo(mean.dtype).tiny)
    return torch.where((refs == UNLABELLED).unsqueeze(-1), mean, given)


def _check_range(refs: Tensor, weights: Tensor, classes: int, batch: Array) -> None:
    """Label ids index tables: one that is out of range would find another label, or nothing."""
    bad = (((refs < 0) & (refs != UNLABELLED)) | (refs >= classes)).any(-1) & (weights != 0)
    if bool(bad.any()):
        row, which = bad.nonzero()[0].tolist()
        raise OutputError(
            f"reference {which} of sentence {int(batch[row])} (counted from 0): expected label"
            f" ids in 0..{classes - 1}, got"
            f" {int(refs[row, which].min())}..{int(refs[row, which].max())}"
        )


def _check_allowed(space: Distribution, refs: Tensor, weights: Tensor, batch: Array) -> None:
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


def token_batches(lengths: Array, cells: Array, most: int) -> Iterator[tuple[Array, Array, Array]]:
    """Batches of sentences of like length.

    Their numbers ``[B]``, the places of their tokens in the corpus ``[B, n]``, 0 on padding, and
    which of them are real.
    """
    starts = np.concatenate([[0], np.cumsum(lengths)])
    for batch in batches_of_like_lengths(lengths, cells, most):
        within = np.arange(int(lengths[batch].max()))
        real = within < lengths[batch][:, None]
        yield batch, np.where(real, starts[batch][:, None] + within, 0), real


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
    table = torch.zeros(len(labels), len(labels), dtype=torch.float64)
    for (i, predicted), (j, right) in product(enumerate(labels), repeat=2):
        kind = predicted.partition("-")[2]
        if predicted == right:
            table[i, j] = 1.0 if right == OUTSIDE else entity_weight
        elif kind and kind == right.partition("-")[2]:
            table[i, j] = entity_weight * type_credit
    return TokenReward(table)


_BATCH_CELLS = 1 << 20  # scores of one batch of sentences


def segments_for(
    labels: Sequence[str], scheme: Scheme | None, longest: int | None
) -> SegmentTags | None:
    """The segments of up to so many words that tags of a scheme spell; None for a chain."""
    if longest is None:
        return None
    if scheme is None:
        raise DataError("segments need a tag scheme, bio or bioes, got none")
    return SegmentTags(tuple(labels), scheme, longest)


def written(
    outputs: Tensor, lengths: Tensor, labels: Sequence[str], segments: SegmentTags | None
) -> list[list[str]]:
    """Names of the labels of outputs ``[B, n]`` of a chain, or of segments."""
    if segments is not None:
        return segments.written(outputs, lengths)
    names = np.array(labels, dtype=object)[outputs.cpu().numpy()]
    return [row[:size].tolist() for row, size in zip(names, lengths.tolist(), strict=True)]


def label_marginals(model: Any, segments: SegmentTags | None) -> Tensor:
    """Probabilities of labels ``[B, n, K]``."""
    if segments is None:
        found: Tensor = model.marginals
        return found
    return segments.expected(model.marginals, model.pair_marginals).tags


@dataclass(frozen=True)
class Tagger:
    """Weights of features and labels, of neighbouring labels, and what gives words their features.

    Attributes:
        index: from words, or from the user's own features, to columns.
        labels: K label names.
        weights: flat ``[F, K]`` float32, padded as `softq.kernels.features.crf` needs it.
        transitions: ``[K, K]`` float64 (from, to).
        scheme: forbid label sequences that break this tag scheme; None: all are possible.
        temperature: scores are divided by it, which changes probabilities and not the mode.
        max_segment: words L of the longest segment of a semi-Markov tagger, whose ``transitions``
            are those of types and lengths, ``[C + L, C]``; None: a chain.

    """

    index: TemplateIndex | AttributeIndex
    labels: tuple[str, ...]
    weights: Array
    transitions: Array
    scheme: Scheme | None
    temperature: float = 1.0
    max_segment: int | None = None

    @cached_property
    def segments(self) -> SegmentTags | None:
        """The segments that labels spell; None: a chain."""
        return segments_for(self.labels, self.scheme, self.max_segment)

    def chains(self, matrix: FeatureMatrix) -> Iterator[tuple[Array, Chain | SemiMarkov]]:
        """Distributions over label sequences, or segments, in batches of sentences of like length.

        Their numbers, and the distribution.
        """
        if matrix.size != self.index.size:
            raise ShapeError(
                f"expected features of the tagger's own index, which has {self.index.size} columns,"
                f" got {matrix.size}"
            )
        space = self.segments or Forbidden.by(self.scheme, self.labels)
        transitions = torch.from_numpy(self.transitions)
        scores = kernels.emissions(
            matrix.offsets, matrix.indices, matrix.values, self.weights, len(self.labels)
        )
        if not np.isfinite(scores).all():  # kernels would find no label that is best
            raise ScoreError(
                "the scores of labels are not finite: the weights of the tagger, or values of"
                " features, are too large or damaged"
            )
        cells = matrix.lengths * space.cells
        for batch, places, real in token_batches(matrix.lengths, cells, _BATCH_CELLS):
            lengths = torch.from_numpy(matrix.lengths[batch])
            emissions = torch.from_numpy(np.where(real[..., None], scores[places], np.float32(0.0)))
            found = space.distribution(emissions, transitions, lengths)
            yield batch, at_temperature(found, self.temperature)

    def decode(
        self,
        matrix: FeatureMatrix,
        decoding: Decoding = "viterbi",
        reward: PartReward | None = None,
    ) -> list[list[str]]:
        """Labels of each sentence; where a reward is given, those expected to earn most of it."""
        found: list[list[str]] = [[] for _ in matrix.lengths]
        for batch, model in self.chains(matrix):
            searched = decoding == "viterbi" and reward is None
            best = model.mode() if searched else model.mbr(reward)
            lengths = torch.from_numpy(matrix.lengths[batch])
            for sentence, labels in zip(
                batch.tolist(), written(best, lengths, self.labels, self.segments), strict=True
            ):
                found[sentence] = labels
        return found

    def marginals(self, matrix: FeatureMatrix) -> list[Array]:
        """Probabilities of labels ``[n, K]`` for each sentence."""
        found = [np.zeros((0, len(self.labels)), np.float32) for _ in matrix.lengths]
        for batch, model in self.chains(matrix):
            tables = label_marginals(model, self.segments).numpy()
            for sentence, row, length in zip(
                batch.tolist(), tables, matrix.lengths[batch].tolist(), strict=True
            ):
                found[sentence] = row[:length]
        return found

    # --- on the disk ------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Array]:
        """Its arrays, by name."""
        index = {f"index.{name}": array for name, array in self.index.tensors().items()}
        return index | {"weights": self.weights, "transitions": self.transitions}

    def notes(self) -> dict[str, Any]:
        """The rest of it, as JSON can hold it."""
        return {
            "labels": list(self.labels),
            "scheme": self.scheme,
            "temperature": self.temperature,
            "max_segment": self.max_segment,
            "index": type(self.index).__name__,
            "index_notes": self.index.notes(),
        }

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], notes: Mapping[str, Any]) -> Tagger:
        """The tagger of `tensors` and `notes`; nothing large is copied.

        Kernels trust its indices and sizes, so that they are checked here.
        """
        indices = {kind.__name__: kind for kind in (TemplateIndex, AttributeIndex)}
        kind: Any = indices[one_of("index", notes["index"], tuple(indices))]
        index = kind.from_tensors(
            starting_with("index.", tensors), mapping("index_notes", notes["index_notes"])
        )
        labels = string_list("labels", notes["labels"])
        count = len(labels)
        if not count or len(set(labels)) != count:
            raise DataError(
                f"expected at least one label, and each once, got {count} with {len(set(labels))}"
                " distinct ones"
            )
        scheme = one_of("scheme", notes["scheme"], (None, *get_args(Scheme)))
        Forbidden.by(scheme, labels)  # they may be no tags of the scheme
        longest = notes.get("max_segment")  # files of before there were segments have none
        if longest is not None:
            check_count("max_segment", longest, DataError)
        segments = segments_for(labels, scheme, longest)
        weights = as_array("weights", tensors["weights"], np.float32, 1)
        transitions = as_array("transitions", tensors["transitions"], np.float64, 2)
        table = segments.table_shape if segments else (count, count)
        expected = (kernels.padded(index.size * count),), table
        if (weights.shape, transitions.shape) != expected:
            raise DataError(
                f"expected weights {list(expected[0])} and transitions {list(expected[1])} for"
                f" {index.size} features and {count} labels, got {list(weights.shape)} and"
                f" {list(transitions.shape)}"
            )
        if not bool((transitions < np.inf).all()):
            raise DataError("expected transitions that are numbers, got NaN or inf")
        temperature = read_temperature(notes)
        return cls(index, labels, weights, transitions, scheme, temperature, longest)
