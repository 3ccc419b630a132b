"""What neural taggers have in common, whatever reads the words: distributions, predictions, files."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, get_args, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from softq.formats.file_checks import one_of
from softq.formats.tags import allowed_transitions
from softq.linear.features.matrix import batches_of_like_lengths
from softq.linear.segment_tags import SegmentTags
from softq.linear.tagging import label_marginals, written
from softq.neural.generation import evaluating
from softq.neural.saved_module import SavedModule
from softq.neural.words import Array
from softq.options import Constraints, LabelDecoding, Scheme
from softq.rewards import PartReward
from softq.spaces import Chain, Independent, SemiMarkov

LabelDistribution = Chain | Independent | SemiMarkov

_AT_ONCE = {"cpu": 1 << 13, "cuda": 1 << 16}  # words of a batch to predict for, padding too


@runtime_checkable
class SentenceBatch(Protocol):
    """B sentences as a model reads them."""

    @property
    def lengths(self) -> Tensor:
        """Words of each sentence, ``[B]``."""

    def to(self, device: torch.device | str) -> Any:
        """The same on another device."""


class EncodedSentences(Protocol):
    """N sentences as a model reads them."""

    @property
    def lengths(self) -> Array:
        """Words of each sentence, ``[N]``."""

    def batch(self, sentences: Array | Sequence[int]) -> Any:
        """A `SentenceBatch` of these sentences, each of a word or more."""


def as_batch(encode: Callable[[Any], EncodedSentences], sentences: Any) -> Any:
    """A batch of encoded sentences, which these may be already."""
    if isinstance(sentences, SentenceBatch):
        return sentences
    encoded = encode(sentences)
    return encoded.batch(np.arange(len(encoded.lengths)))


class NeuralTagger(SavedModule):
    """Sentences to a distribution over label sequences.

    A subclass encodes sentences, and scores labels and perhaps neighbouring ones.

    Attributes:
        labels: K names.
        scheme: tag scheme of the labels; None: they follow none.
        constraints: where label sequences that break the scheme are forbidden: ``"none"``;
            ``"decode"`` (or ``"target"``), in evaluation mode; ``"model"``, always.
        decoding: how `predict` chooses labels unless it is told.
        file_scheme: the tag scheme in which ``softq predict`` writes labels; ``scheme`` if None.
        segments: what labels spell where the distribution is one over segments; None: a chain.

    """

    labels: tuple[str, ...]
    scheme: Scheme | None
    constraints: Constraints
    segments: SegmentTags | None = None

    def __init__(self) -> None:
        super().__init__()
        self.decoding: LabelDecoding = "viterbi"
        self.file_scheme: Scheme | None = None

    def encode(self, sentences: Sequence[Sequence[str]]) -> EncodedSentences:
        """Sentences as the model reads them."""
        raise NotImplementedError

    def scores(self, batch: Any) -> Tensor:
        """Scores of labels ``[B, n, K]`` of a batch of encoded sentences, 0 on padding."""
        raise NotImplementedError

    def neighbour_scores(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Scores that are learnt of neighbours ``[K, K]``, and of first and last labels ``[K]``."""
        raise NotImplementedError

    def _forbid(self) -> None:
        """Scores of 0 and -inf by the scheme."""
        forbids = self.constraints != "none" and self.segments is None
        allowed = allowed_transitions(self.labels, self.scheme) if forbids and self.scheme else ()
        self._forbidden = ("between", "first", "last")[: len(allowed)]
        for name, table in zip(self._forbidden, allowed, strict=True):
            scores = torch.zeros(table.shape, device=self.device)
            scores = scores.masked_fill(~table.to(scores.device), -math.inf)
            self.register_buffer(name, scores, persistent=False)

    def forward(self, sentences: SentenceBatch | Sequence[Sequence[str]]) -> LabelDistribution:
        """The distribution over the label sequences of sentences, each of a word or more."""
        batch = as_batch(self.encode, sentences).to(self.device)
        return self.distribution(self.scores(batch), batch.lengths)

    def distribution(self, scores: Tensor, lengths: Tensor) -> LabelDistribution:
        """The distribution with these scores of labels."""
        tables = list(self.neighbour_scores())
        if self.segments is not None and tables[0] is not None:
            return self.segments.distribution(scores, tables[0], lengths)
        if self.constraints == "model" or not self.training:
            for place, name in enumerate(self._forbidden):
                forbidden, learnt = self.get_buffer(name).to(scores), tables[place]
                tables[place] = forbidden if learnt is None else forbidden + learnt
        between, first, last = tables
        # in training a loss that is not finite is noticed, and to look at scores waits for a GPU
        validate = not self.training
        if between is None:
            return Independent(scores, lengths, validate=validate)
        return Chain(scores, between, lengths, start=first, end=last, validate=validate)

    # --- predictions ------------------------------------------------------------------------------

    def predict(
        self,
        sentences: Sequence[Sequence[str]],
        decoding: LabelDecoding | None = None,
        *,
        reward: PartReward | None = None,
    ) -> list[list[str]]:
        """Labels of each sentence, one of which may be empty.

        By default the most probable sequence (``"viterbi"``); ``"mbr"``, the most right labels to
        be expected. With a reward over labels, or segments, those that are expected to earn most of
        it.
        """
        return self.decode(self.encode(sentences), decoding or self.decoding, reward)

    def predict_marginals(self, sentences: Sequence[Sequence[str]]) -> list[list[dict[str, float]]]:
        """Probabilities of all labels at each token of each sentence."""
        return [
            [dict(zip(self.labels, row, strict=True)) for row in table.tolist()]
            for table in self.marginals(self.encode(sentences))
        ]

    def decode(
        self,
        encoded: EncodedSentences,
        decoding: LabelDecoding,
        reward: PartReward | None = None,
    ) -> list[list[str]]:
        """Labels of each sentence of `encode`; with a reward, those that earn most."""
        lengths = torch.from_numpy(encoded.lengths)
        found: list[list[str]] = [[] for _ in lengths]
        for batch, p in self.distributions(encoded):
            searched = decoding == "viterbi" and reward is None
            best = p.mode() if searched else p.mbr(reward)
            names = written(best, lengths[batch], self.labels, self.segments)
            for sentence, row in zip(batch.tolist(), names, strict=True):
                found[sentence] = row
        return found

    def marginals(self, encoded: EncodedSentences) -> list[Array]:
        """Probabilities of labels ``[n, K]`` for each sentence of `encode`."""
        lengths = encoded.lengths
        found = [np.zeros((0, len(self.labels)), np.float32) for _ in lengths]
        for batch, p in self.distributions(encoded):
            tables = label_marginals(p, self.segments).cpu().numpy()
            for sentence, row in zip(batch.tolist(), tables, strict=True):
                found[sentence] = row[: lengths[sentence]]
        return found

    def distributions(self, encoded: EncodedSentences) -> Iterator[tuple[Array, Any]]:
        """Sentences in batches of like length, and their distributions."""
        lengths, most = encoded.lengths, _AT_ONCE.get(self.device.type, _AT_ONCE["cpu"])
        with evaluating(self):
            for batch in batches_of_like_lengths(lengths, lengths, most):
                yield batch, self(encoded.batch(batch))

    # --- on the disk ------------------------------------------------------------------------------

    def about(self) -> dict[str, Any]:
        """How labels are predicted and written."""
        return {"file_scheme": self.file_scheme, "decoding": self.decoding}

    def take_about(self, about: Mapping[str, Any]) -> None:
        """What `about` of this class says."""
        schemes = (None, *get_args(Scheme))
        self.file_scheme = one_of("file_scheme", about["file_scheme"], schemes)
        self.decoding = one_of("decoding", about["decoding"], get_args(LabelDecoding))
