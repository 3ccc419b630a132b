"""Tags as the words of labelled segments: what a semi-Markov tagger scores, reads and writes.

A segment's score is the sum of its words' tag scores and a score of its length,

    s(t, d, type) = Σ_{i = t .. t+d} score(i, tag of word i in such an entity) + length[d, type],

so that everything known of a model or a target is what it expects of tags, of neighbouring types
and of lengths (Sarawagi and Cohen 2004): sparse features score tags, as those of a chain do.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from softq.calibration import UNKNOWN
from softq.errors import DataError, DataWarning
from softq.formats.tags import OUTSIDE, Scheme, every_tag, segments_of_tags, tags_of_segments
from softq.rewards import SegmentAccuracy
from softq.spaces import SemiMarkov, pack_segments, unpack_segments

Array = np.ndarray[Any, Any]


class ExpectedTags(NamedTuple):
    """What is expected of a batch's segments.

    Attributes:
        tags: of each word, ``[B, n, K]``.
        table: expected numbers of neighbouring types (from, to), ``[C, C]``, and below them of
            lengths by type, ``[L, C]``.

    """

    tags: Tensor
    table: Tensor


@dataclass(frozen=True)
class SegmentTags:
    """The segments that tags spell: entities of up to L words, and every ``O`` alone.

    Attributes:
        labels: K tags: ``O``, and all that the scheme has for each type.
        scheme: ``"bio"`` or ``"bioes"``. In IOB1 the tag of a word depends on the segment before.
        longest: L.

    >>> spelled = SegmentTags(("B-PER", "I-PER", "O"), "bio", longest=2)
    >>> scores, table = torch.zeros(1, 3, 3), torch.zeros(spelled.table_shape)
    >>> p = spelled.distribution(scores, table, torch.tensor([3]))
    >>> p.log_partition.exp().round().item()  # 2 · 2 · 2 of one word each, 2 + 2 with two in one
    12.0
    >>> spelled.written(p.mode(), p.all_lengths())[0]
    ['O', 'O', 'O']

    """

    labels: tuple[str, ...]
    scheme: Scheme
    longest: int

    def __post_init__(self) -> None:
        if self.scheme not in ("bio", "bioes"):
            raise DataError(
                f"segments need tags of bio or bioes, got {self.scheme}: convert them"
                " (softq.formats.tags.convert; softq train ner does so by itself)"
            )
        if OUTSIDE in self.kinds[1:]:
            raise DataError(f"segments of type {OUTSIDE} are outside of entities: rename the type")
        missing = {*every_tag(self.labels, self.scheme)} - {*self.labels}
        if missing:
            raise DataError(
                f"expected all tags of {self.scheme} for the types of the labels, got none that is"
                f" {min(missing)}"
            )

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """C types of segments, ``O`` first."""
        return OUTSIDE, *sorted({label[2:] for label in self.labels if label != OUTSIDE})

    @property
    def table_shape(self) -> tuple[int, int]:
        """Shape of the scores of neighbouring types with those of lengths below, ``[C + L, C]``."""
        return len(self.kinds) + self.longest, len(self.kinds)

    @property
    def cells(self) -> int:
        """Numbers that a distribution has for each token."""
        return self.longest * len(self.kinds)

    @cached_property
    def _columns(self) -> Tensor:
        """The tags of a first, inner, last and only word of each type, ``[4, C]``."""
        prefixes = "BIIB" if self.scheme == "bio" else "BIES"
        place = self.labels.index
        rows = [[place(f"{each}-{kind}") for kind in self.kinds[1:]] for each in prefixes]
        return torch.tensor([[place(OUTSIDE), *row] for row in rows])

    def scores(self, tags: Tensor, lengths: Tensor) -> Tensor:
        """Scores of segments ``[B, n, L, C]`` from those of tags and lengths.

        Tags are ``[B, n, K]``, lengths ``[L, C]``. An ``O`` of more than one word has -inf.
        """
        columns = self._columns.to(tags.device)
        run, inner, last, only = (tags[..., row] for row in columns)
        made = [only]
        for d in range(1, self.longest):
            ahead = [0, 0, 0, min(d, tags.shape[1])]
            made.append(run + pad(last[:, d:], ahead))
            run = run + pad(inner[:, d:], ahead)
        allowed = torch.zeros_like(lengths)
        allowed[1:, 0] = -torch.inf
        return torch.stack(made, -2) + (lengths + allowed)

    def distribution(self, tags: Tensor, table: Tensor, lengths: Tensor) -> SemiMarkov:
        """The distribution with scores of tags ``[B, n, K]``, types and lengths ``[C + L, C]``."""
        kinds, table = len(self.kinds), table.to(tags)
        segments = self.scores(tags, table[kinds:])
        return SemiMarkov(segments, table[:kinds], lengths, validate=False)

    def space(self, count: int, lengths: Tensor) -> SemiMarkov:
        """The segmentations of ``count`` sentences, all with the score 0."""
        tags = torch.zeros(count, int(lengths.max()), len(self.labels), dtype=torch.float64)
        return self.distribution(tags, tags.new_zeros(self.table_shape), lengths)

    def expected(self, segments: Tensor, pairs: Tensor) -> ExpectedTags:
        """Tags, types and lengths in expected segments ``[B, n, L, C]`` and pairs ``[B, C, C]``."""
        tags = segments.new_zeros(*segments.shape[:2], len(self.labels), requires_grad=True)
        sizes = segments.sum((0, 1))
        with torch.enable_grad():  # the adjoint of a linear map is its gradient
            made = self.scores(tags, torch.zeros_like(sizes))
        (found,) = torch.autograd.grad(made, tags, segments)
        return ExpectedTags(found, torch.cat([pairs.sum(0), sizes]))

    def reward(self, entity_weight: float = 1.0) -> SegmentAccuracy:
        """What an exact segment earns: 1 for ``O``, the weight for an entity."""
        return SegmentAccuracy([1.0, *[entity_weight] * (len(self.kinds) - 1)])

    # --- sentences ----------------------------------------------------------------------------

    def read(self, references: Tensor, lengths: Tensor) -> Tensor:
        """Outputs ``[B, R, n]`` from ids of labels ``[B, R, n]``.

        Labels are read as `softq.formats.tags.spans` reads them; an entity of more than L words is
        cut from its first word on into segments of L words, the rest last.
        """
        rows = [
            [
                (at, min(at + self.longest, end), kind)
                for start, end, kind in self.entities(reference[:length])
                for at in range(start, end, self.longest)
            ]
            for found, length in zip(references.tolist(), lengths.tolist(), strict=True)
            for reference in found
        ]
        return pack_segments(rows, len(self.kinds)).tokens.reshape(references.shape)

    def output(self, labels: Array) -> Array:
        """The output of the ids ``[n]`` of a sentence's labels; all -1 where one is unknown."""
        if (labels == UNKNOWN).any():
            return np.full_like(labels, UNKNOWN)
        sizes = torch.tensor([len(labels)])
        found: Array = self.read(torch.from_numpy(labels)[None, None], sizes)[0, 0].numpy()
        return found

    def warn_of_cuts(self, references: Sequence[Array], weights: Sequence[Array]) -> None:
        """Warn of entities in references ``[R, n]`` that are longer than a segment."""
        cut = sum(
            end - start > self.longest
            for found, shares in zip(references, weights, strict=True)
            for labels, share in zip(found, shares, strict=True)
            if share > 0
            for start, end, _ in self.entities([k for k in labels.tolist() if k >= 0])
        )
        if cut:
            warnings.warn(
                f"{cut} entities of more than {self.longest} words (max_segment) are cut into"
                " segments of so many words",
                DataWarning,
                stacklevel=4,
            )

    def entities(self, labels: Sequence[int]) -> list[tuple[int, int, int]]:
        """Segments (start, end, type) of any length from ids of the labels of a sentence."""
        names = [self.labels[k] for k in labels]
        return segments_of_tags(names, self.scheme, self.kinds)

    def written(self, outputs: Tensor, lengths: Tensor) -> list[list[str]]:
        """Labels of outputs ``[B, n]``."""
        found = unpack_segments(outputs, lengths, len(self.kinds))
        return [tags_of_segments(one, self.scheme, self.kinds) for one in found]
