"""Sequences cut into labelled segments: semi-Markov conditional random fields."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from softq.checks import as_scores, check_count, check_scores, first_true
from softq.errors import DtypeError, OutputError, ShapeError
from softq.kernels import segments as kernel
from softq.kernels.trees import UNLABELLED
from softq.numerics import logsumexp, matmul
from softq.rewards import SegmentAccuracy
from softq.sentences import Sentences
from softq.spaces.base import Component
from softq.spaces.distribution import Distribution
from softq.spaces.recursion import Recursion
from softq.spaces.references import OutputReferences


class Segment(NamedTuple):
    """A segment: its first token, the token after its last, and its label."""

    start: int
    end: int
    label: int


class SemiMarkov(Recursion):
    """A semi-Markov chain: scores of labelled segments, and of neighbouring segments' labels.

    ===========  ==========================================================
    set          all ways to cut n tokens into segments of 1..L tokens, each with a label 0..K-1;
                 each example has its own n
    parts        segments, ``segments[*B, n, L, K]``, where ``[t, d, k]`` begins at token t, has d+1
                 tokens and label k (those that would end behind the last token are padding);
                 labels of neighbouring segments (from, to), ``transitions[K, K]``
    output       ``[*B, n]``: where a segment begins, its length · K + label, and 0 on its other
                 tokens; `pack_segments` and `unpack_segments` translate
    cost         O(n L K + n K²) time; O(n L K) memory
    paper        exact RAML and SQDML toward whole segments: eq. 4 and 15 with appendix eq. 5-6, on
                 the recursion of Sarawagi and Cohen (2004)
    ===========  ==========================================================

    Args:
        segments: scores of segments; `segment_scores` makes them from scores of tokens.
        transitions: scores of neighbouring segments' labels; none if not given.
        lengths: numbers of tokens ``[*B]``; all n if neither these nor a mask is given.
        mask: True on the tokens that count, ``[*B, n]``: the first ones of each row.
        validate: look at scores, lengths and outputs, and raise errors that name what is wrong.

    >>> p = SemiMarkov(torch.zeros(1, 3, 2, 1))  # three tokens, at most two in a segment
    >>> p.log_partition.exp().round().item()  # 1+1+1, 1+2, 2+1
    3.0

    Training toward whole segments, of which those with label 1 count three times as much:

    >>> import softq
    >>> segments = torch.zeros(1, 6, 4, 2, requires_grad=True)
    >>> gold, lengths = pack_segments([[(0, 1, 0), (1, 4, 1), (4, 5, 0), (5, 6, 0)]], labels=2)
    >>> optimizer = torch.optim.Adam([segments], lr=0.1)
    >>> for _ in range(100):
    ...     p = SemiMarkov(segments, lengths=lengths)
    ...     target = softq.raml(p, gold, tau=0.5, reward=SegmentAccuracy([1.0, 3.0]))
    ...     loss = softq.kl(target, p).mean()
    ...     optimizer.zero_grad()
    ...     loss.backward()
    ...     optimizer.step()
    >>> loss.item() < 0.01
    True
    >>> unpack_segments(p.mode(), lengths, labels=2)[0][1]
    Segment(start=1, end=4, label=1)

    """

    natural_reward = SegmentAccuracy
    _operator = kernel.OPERATOR
    _decoder = kernel.DECODER
    _widest_on_gpu = kernel.MOST_ON_GPU

    def __init__(
        self,
        segments: Tensor,
        transitions: Tensor | None = None,
        lengths: Tensor | Sequence[int] | None = None,
        *,
        mask: Tensor | None = None,
        validate: bool = True,
    ) -> None:
        segments = as_scores("segments", segments)
        if segments.dim() < 3 or 0 in segments.shape[-2:]:
            raise ShapeError(
                "segments must have shape [*B, n, L, K] with L >= 1 and K >= 1, "
                f"got {list(segments.shape)}"
            )
        labels = segments.shape[-1]
        none = transitions is None
        transitions = as_scores(
            "transitions", segments.new_zeros(labels, labels) if none else transitions
        )
        if transitions.shape != (labels, labels):
            raise ShapeError(
                f"transitions must have shape {[labels, labels]}, got {list(transitions.shape)}"
            )
        if transitions.dtype != segments.dtype or transitions.device != segments.device:
            wanted, got = (f"{x.dtype} on {x.device}" for x in (segments, transitions))
            raise DtypeError(f"transitions must be like the segments, {wanted}, got {got}")
        self.transitions = transitions
        shape, size = segments.shape[:-3], segments.shape[-3:-2]
        super().__init__(segments, shape, size, lengths, mask, validate=validate, name="segments")
        if validate:
            self._forbids |= check_scores("transitions", transitions)

    @property
    def segments(self) -> Tensor:
        """Segment scores."""
        return self.scores

    @property
    def pair_marginals(self) -> Tensor:
        """Expected number of neighbouring segments with each pair of labels, ``[*B, K, K]``."""
        return self._statistics()[1]

    def given(self) -> tuple[Tensor, ...]:
        return self.scores, self.transitions

    def like(self, *given: Tensor) -> SemiMarkov:
        return SemiMarkov(given[0], given[1], self.lengths, validate=False)

    def with_scores(self, local: Tensor, *others: Tensor) -> SemiMarkov:
        transitions = others[0] if others else torch.zeros_like(self.transitions)
        if self.constrained:
            local = self._keep_forbidden(local)
            forbidden = self.transitions.detach() == -math.inf
            transitions = transitions.masked_fill(forbidden, -math.inf)
        lengths = self._lengths_for(local.shape[:-3])
        return SemiMarkov(local, transitions, lengths, validate=False)

    def expectation(self, model: Distribution) -> tuple[Tensor, ...]:
        return self._statistics()

    def _arguments(self) -> tuple[Tensor, Tensor, Tensor]:
        """Lengths ``[B]``, segments ``[B,n,L,K]``, transitions ``[1,K,K]``."""
        lengths, segments = self.flat(self.all_lengths()), self.flat(self.scores)
        return lengths, segments, self.transitions.unsqueeze(0)

    # --- the values of an output --------------------------------------------------------------

    def by_token(self, table: Tensor) -> Tensor:
        return pad(table.flatten(-2), (table.shape[-1], 0))  # values below K begin no segment

    def by_part(self, choices: Tensor) -> Tensor:
        longest, labels = self.scores.shape[-2:]
        return choices[..., labels:].reshape(*choices.shape[:-1], longest, labels)

    def token_mass(self, table: Tensor) -> Tensor:
        """Sum of a table over the segments that a token is in, wherever they begin, ``[…, n]``."""
        longer = table.sum(-1).flip(-1).cumsum(-1).flip(-1)  # of more than d tokens, by beginning
        return sum_diagonals(longer)

    def indicator(self, outputs: Tensor) -> Tensor:
        longest, labels = self.scores.shape[-2:]
        values = torch.arange((longest + 1) * labels, device=self.device)
        begins = self.zero_padding(outputs).unsqueeze(-1)
        return self.by_part((begins == values).to(self.dtype))

    def possible_parts(self) -> Tensor:
        return (self._last_tokens() < self.all_lengths()[..., None, None]).unsqueeze(-1)

    def _last_tokens(self) -> Tensor:
        """The last token of each segment by its first and its length, ``[n, L]``."""
        size, longest = self.scores.shape[-3:-1]
        first, more = (torch.arange(each, device=self.device) for each in (size, longest))
        return first.unsqueeze(-1) + more

    def score(self, outputs: Tensor) -> Tensor:
        local = super().score(outputs)
        before, label, follows = self._neighbours(outputs)
        table = self.transitions.flatten().expand(*before.shape[:-1], -1)
        pairs = table.gather(-1, before * self.scores.shape[-1] + label)
        return local + pairs.masked_fill(~follows, 0.0).sum(-1)

    def part_counts(self, outputs: Tensor) -> tuple[Tensor, ...]:
        before, label, follows = self._neighbours(outputs)
        count = self.scores.shape[-1]
        first, second = (one_hot(each, count).to(self.dtype) for each in (before, label))
        pairs = matmul((first * follows.unsqueeze(-1)).mT, second)
        return self.indicator(outputs), pairs

    def _neighbours(self, outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Label of the segment before, label, and whether a segment with one before begins here."""
        values = self.zero_padding(outputs).long()
        begins, label = values > 0, values % self.scores.shape[-1]
        places = torch.arange(values.shape[-1], device=values.device)
        latest = torch.where(begins, places, -1).cummax(-1).values if values.numel() else values
        latest = pad(latest, (1, 0), value=-1)[..., : values.shape[-1]]  # before this token
        before = label.gather(-1, latest.clamp(min=0))
        return before, label, begins & (latest >= 0)

    def check_values(self, outputs: Tensor, lengths: Tensor | None, partial: bool) -> bool:
        size, longest, labels = self.scores.shape[-3:]
        missing = outputs == UNLABELLED
        begins = (outputs >= labels) & (outputs < (longest + 1) * labels)
        bad = ~begins & (outputs != 0) & ~(missing & partial)
        if (place := first_true(bad)) is not None:
            raise OutputError(
                f"every value must be 0 or length · {labels} + label of a segment that begins "
                f"there, with a length in 1..{longest} and a label in 0..{labels - 1}"
                + (f" (or be {UNLABELLED}, not labelled)" if partial else "")
                + f", got {int(outputs[place])} at index {place}"
            )
        if not outputs.numel():
            return False
        token = torch.arange(size, device=outputs.device)
        stop = torch.full_like(token, size) if lengths is None else lengths.unsqueeze(-1)
        # The segment that begins here or began last, and the token behind it; the last token before
        # that nobody labelled, at which an unknown segment may begin.
        ends = torch.where(begins, token + outputs // labels, 0).long()
        latest = torch.where(begins, token, 0).cummax(-1).values
        end = ends.gather(-1, latest)
        before = pad(end, (1, 0))[..., :size]
        unknown = torch.where(missing, token, -longest).cummax(-1).values
        covered = (end > token) | ((unknown >= end) & (unknown + longest > token)) | missing
        faults = {
            "begins inside another": begins & (before > token),
            "ends behind the last token": begins & (end > stop),
            "should begin": ~begins & ~covered & (token < stop),
        }
        for fault, wrong in faults.items():
            if (place := first_true(wrong)) is not None:
                row = outputs[place[:-1]][: int(stop.expand_as(outputs)[place])]
                raise OutputError(
                    f"segments must follow each other without gaps, got {row.tolist()} (example "
                    f"{place[:-1]}): a segment {fault} at token {place[-1]}"
                )
        return bool(missing.any())

    def restricted(self, outputs: Tensor) -> SemiMarkov:
        known = self.zero_padding(outputs) != UNLABELLED
        disagrees = known[..., None, None] & (self.indicator(outputs) == 0)
        # A segment that is known to begin at a token is not inside of another.
        begun = (known & (self.zero_padding(outputs) > 0)).cumsum(-1)
        if outputs.numel():
            last = self._last_tokens().clamp(max=outputs.shape[-1] - 1)
            disagrees |= (begun[..., last] > begun.unsqueeze(-1)).unsqueeze(-1)
        return self.like(self.scores.masked_fill(disagrees, -math.inf), self.transitions)

    # --- as a space of targets ----------------------------------------------------------------

    def point_masses(self, references: OutputReferences) -> Component:
        if not references.soft or references.partial:
            return super().point_masses(references)
        # The distribution with these marginals in which what follows a cut does not depend on what
        # stands before it: P(d, k | a segment begins at t) is the score.
        local = references.values.log()
        begins = logsumexp(local.flatten(-2), -1)[..., None, None]
        local = local - begins.masked_fill(begins == -math.inf, 0.0)
        return SemiMarkov(local, None, self._lengths_for(references.weights.shape), validate=False)


def sum_diagonals(table: Tensor) -> Tensor:
    """Σ_d table[…, t - d, d] for each t, ``[…, n]`` from ``[…, n, L]``."""
    size = table.shape[-2]
    return sum(
        (pad(each, (d, 0))[..., :size] for d, each in enumerate(table.unbind(-1))),
        start=table.new_zeros(()),
    )


def segment_scores(tokens: Tensor, longest: int) -> Tensor:
    """Scores of segments ``[*B, n, L, K]`` from those of tokens ``[*B, n, K]``: their sums.

    What depends on whole segments is added to that: ``+ lengths[L, K]`` scores lengths by label,
    and -inf there forbids them.

    Args:
        tokens: score of each label at each token.
        longest: number of tokens L of the longest segments.

    >>> segment_scores(torch.tensor([[1.0], [2.0], [4.0]]), longest=2).squeeze(-1)
    tensor([[1., 3.],
            [2., 6.],
            [4., 4.]])

    """
    tokens = as_scores("tokens", tokens)
    if tokens.dim() < 2:
        raise ShapeError(f"tokens must have shape [*B, n, K], got {list(tokens.shape)}")
    size = tokens.shape[-2]
    made = [tokens]
    for d in range(1, check_count("longest", longest, ShapeError)):
        # s(t, d) = s(t, d - 1) + s(t + d), where differences of cumulative sums would not bear -inf
        made.append(made[-1] + pad(tokens[..., d:, :], (0, 0, 0, min(d, size))))
    return torch.stack(made, -2)


def pack_segments(sentences: Sequence[Iterable[tuple[int, int, int]]], labels: int) -> Sentences:
    """Outputs ``[B, n]`` and lengths ``[B]`` from lists of segments (start, end, label).

    Args:
        sentences: the segments of each sentence, in any order; together they hold every token.
        labels: number of labels K.

    >>> pack_segments([[(0, 1, 0), (1, 3, 1)], [(0, 1, 1)]], labels=2)
    Sentences(tokens=tensor([[2, 5, 0],
            [3, 0, 0]]), lengths=tensor([3, 1]))

    """
    rows: list[list[int]] = []
    for b, sentence in enumerate(sentences):
        row: list[int] = []
        for start, end, label in sorted(sentence):
            if start != len(row) or end <= start or not 0 <= label < labels:
                raise OutputError(
                    f"expected a segment from token {len(row)} on with a label in 0..{labels - 1}, "
                    f"got {(start, end, label)} in sentence {b}"
                )
            row += [(end - start) * labels + label] + [0] * (end - start - 1)
        rows.append(row)
    return Sentences.pack(rows)


def unpack_segments(outputs: Tensor, lengths: Tensor | None, labels: int) -> list[list[Segment]]:
    """Lists of segments from outputs ``[B, n]``, the inverse of `pack_segments`.

    >>> unpack_segments(torch.tensor([[2, 5, 0]]), None, labels=2)
    [[Segment(start=0, end=1, label=0), Segment(start=1, end=3, label=1)]]
    """
    if outputs.dim() != 2:
        raise ShapeError(f"outputs must have shape [B, n], got {list(outputs.shape)}")
    sizes = [outputs.shape[1]] * len(outputs) if lengths is None else lengths.tolist()
    return [
        [
            Segment(t, t + value // labels, value % labels)
            for t, value in enumerate(row[:size])
            if value > 0
        ]
        for row, size in zip(outputs.tolist(), sizes, strict=True)
    ]
