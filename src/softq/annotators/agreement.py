"""How far annotators agree: token by token and span by span, and beyond chance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

from softq.formats.conll import MISSING, Sentence
from softq.formats.tags import Scheme, spans

_NO_SPAN = ""


class Pair(NamedTuple):
    """Two annotators and how far they agree.

    Attributes:
        first: The name of one.
        second: The name of the other.
        tokens: How many tokens both labelled.
        agreement: The share of these with equal labels.
        kappa: Cohen's kappa on these; None where both gave one label only.
        span_kappa: Cohen's kappa on segments; None likewise, and without a tag scheme.

    """

    first: str
    second: str
    tokens: int
    agreement: float
    kappa: float | None
    span_kappa: float | None = None


class Agreement(NamedTuple):
    """How far annotators agree.

    Attributes:
        tokens: Tokens with two labels or more.
        agreement: Share of equal labels among all pairs of labels that two annotators gave one
            token.
        cohen: Mean of Cohen's kappa over pairs of annotators, weighted by the tokens both labelled.
        span_cohen: The same of kappa on segments.
        fleiss: Fleiss' kappa over those tokens, each weighing the same however many labels it has;
            chance goes by the shares of the labels among all of theirs.
        alpha: Krippendorff's alpha over those tokens for nominal labels; a token weighs by its
            number of labels.
        pairs: Every two annotators with a token in common.

    """

    tokens: int
    agreement: float | None
    cohen: float | None
    span_cohen: float | None
    fleiss: float | None
    alpha: float | None
    pairs: list[Pair]


MEASURES = {
    "agreement": "equal labels of two annotators",
    "cohen": "Cohen's kappa, mean over pairs",
    "span_cohen": "Cohen's kappa of entities, mean over pairs",
    "fleiss": "Fleiss' kappa",
    "alpha": "Krippendorff's alpha",
}
"""The measures of `Agreement` in words."""


def agreement(sentences: Iterable[Sentence], scheme: Scheme | None = None) -> Agreement:
    """Agreement of a file's annotators, by name.

    Two sequences of one annotator count as two labels, but not as a pair.

    With a tag scheme, annotators are also compared on *segments*, all stretches of neighbouring
    tokens of a sentence: each is an entity of some type or none. Nearly all are none, so that
    chance agreement is small, and the kappa of two types is close to the F1 of one annotator's
    entities by the other's.

    >>> found = agreement([Sentence(("a", "b"), (("X", "Y"), ("X", "X")), ("1", "2"))])
    >>> found.tokens, found.agreement, found.cohen, round(found.fleiss, 3), found.alpha
    (2, 0.5, 0.0, -0.333, 0.0)
    """
    labels: dict[tuple[str, str], Counter[tuple[str, str]]] = {}
    segments: dict[tuple[str, str], Counter[tuple[str, str]]] = {}
    votes: Counter[tuple[str, ...]] = Counter()
    for sentence in sentences:
        votes.update(zip(*sentence.labels, strict=True))
        entities = [_entities(sentence, row, scheme) for row in range(len(sentence.annotators))]
        by_name = sorted(zip(sentence.annotators, range(len(entities)), strict=True))
        for (first, i), (second, j) in combinations(by_name, 2):
            if first == second:
                continue
            pair = first, second
            left, right = sentence.labels[i], sentence.labels[j]
            labels.setdefault(pair, Counter()).update(zip(left, right, strict=True))
            if scheme is not None:
                table = segments.setdefault(pair, Counter())
                _compare_segments(table, (left, right), (entities[i], entities[j]))
    pairs = []
    for pair, table in sorted(labels.items()):
        tokens, same, kappa = _cohen(table)
        if tokens:
            span_kappa = _cohen(segments[pair])[2] if scheme else None
            pairs.append(Pair(*pair, tokens, same / tokens, kappa, span_kappa))
    tokens, fleiss, alpha = _of_all_votes(votes)
    return Agreement(
        tokens,
        _mean((pair.agreement, pair.tokens) for pair in pairs),
        _mean((pair.kappa, pair.tokens) for pair in pairs),
        _mean((pair.span_kappa, pair.tokens) for pair in pairs),
        fleiss,
        alpha,
        pairs,
    )


def _mean(weighted: Iterable[tuple[float | None, int]]) -> float | None:
    """Weighted mean of the values that there are."""
    known = [(value, weight) for value, weight in weighted if value is not None]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else None


def _entities(sentence: Sentence, row: int, scheme: Scheme | None) -> dict[tuple[int, int], str]:
    """Types of an annotator's entities by their first token and the one after their last."""
    if scheme is None or set(sentence.labels[row]) <= {"O", MISSING}:
        return {}
    alone = replace(sentence, labels=(sentence.labels[row],), annotators=("",))
    return {
        (start + span.start, start + span.end): span.kind
        for _, start, piece in alone.pieces()
        for span in spans(piece, scheme)
    }


def _compare_segments(
    table: Counter[tuple[str, str]],
    labels: tuple[Sequence[str], Sequence[str]],
    entities: tuple[dict[tuple[int, int], str], dict[tuple[int, int], str]],
) -> None:
    """Count the types that two annotators gave each segment of tokens that both labelled."""
    both = [MISSING not in given for given in zip(*labels, strict=True)]
    run = 0
    for known in both:  # segments that end here
        run = run + 1 if known else 0
        table[_NO_SPAN, _NO_SPAN] += run
    for segment in {*entities[0], *entities[1]}:
        if all(both[slice(*segment)]):
            table[_NO_SPAN, _NO_SPAN] -= 1
            table[entities[0].get(segment, _NO_SPAN), entities[1].get(segment, _NO_SPAN)] += 1


def _cohen(table: Counter[tuple[str, str]]) -> tuple[int, int, float | None]:
    """Number of items, how many are equal, and Cohen's kappa, from the counts of pairs of labels."""
    left: Counter[str] = Counter()
    right: Counter[str] = Counter()
    same = 0
    for (a, b), count in table.items():
        if MISSING not in (a, b):
            left[a] += count
            right[b] += count
            same += count * (a == b)
    total = left.total()
    by_chance = sum(left[label] * right[label] for label in left)  # times total²
    if by_chance == total * total:
        return total, same, None
    return total, same, (same * total - by_chance) / (total * total - by_chance)


def _of_all_votes(votes: Counter[tuple[str, ...]]) -> tuple[int, float | None, float | None]:
    """Tokens with two labels or more, and Fleiss' kappa and Krippendorff's alpha on them."""
    tokens = 0
    observed = differing = 0.0
    totals: Counter[str] = Counter()
    for labels, count in votes.items():
        given = Counter(label for label in labels if label != MISSING)
        n = given.total()
        if n < 2:
            continue
        tokens += count
        equal = sum(c * (c - 1) for c in given.values()) / (n * (n - 1))
        observed += count * equal
        differing += count * n * (1 - equal)
        for label, c in given.items():
            totals[label] += c * count
    if len(totals) < 2:
        return tokens, None, None
    n, squares = totals.total(), sum(c * c for c in totals.values())
    by_chance = squares / n**2
    alpha = 1 - differing * (n - 1) / (n**2 - squares)
    return tokens, (observed / tokens - by_chance) / (1 - by_chance), alpha
