"""How far annotators agree: token by token, and beyond chance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import combinations
from typing import NamedTuple

from softq.formats.conll import MISSING, Sentence


class Pair(NamedTuple):
    """Two annotators, the tokens both labelled, the share they agree on, and Cohen's kappa (None where both gave one label only)."""

    first: str
    second: str
    tokens: int
    agreement: float
    kappa: float | None


class Agreement(NamedTuple):
    """How far annotators agree, token by token.

    Attributes:
        tokens: Tokens with two labels or more.
        agreement: Share of equal labels among all pairs of labels that two annotators gave one
            token.
        cohen: Mean of Cohen's kappa over pairs of annotators, weighted by the tokens both labelled.
        fleiss: Fleiss' kappa over those tokens, each weighing the same however many labels it has;
            chance goes by the shares of the labels among all of theirs.
        pairs: Every two annotators with a token in common.

    """

    tokens: int
    agreement: float | None
    cohen: float | None
    fleiss: float | None
    pairs: list[Pair]


def agreement(sentences: Iterable[Sentence]) -> Agreement:
    """Agreement of a file's annotators, by name.

    Two sequences of one annotator count as two labels, but not as a pair.

    >>> agreement([Sentence(("a", "b"), (("X", "Y"), ("X", "X")), ("1", "2"))])
    Agreement(tokens=2, agreement=0.5, cohen=0.0, fleiss=-0.333..., pairs=[Pair(first='1', second='2', tokens=2, agreement=0.5, kappa=0.0)])
    """
    both: dict[tuple[str, str], Counter[tuple[str, str]]] = {}
    votes: Counter[tuple[str, ...]] = Counter()
    for sentence in sentences:
        votes.update(zip(*sentence.labels, strict=True))
        by_name = sorted(zip(sentence.annotators, sentence.labels, strict=False))
        for (first, left), (second, right) in combinations(by_name, 2):
            if first != second:
                both.setdefault((first, second), Counter()).update(zip(left, right, strict=True))
    pairs = [pair for names, table in sorted(both.items()) if (pair := _compare(*names, table))]
    compared = sum(pair.tokens for pair in pairs)
    weighted = [(pair.kappa, pair.tokens) for pair in pairs if pair.kappa is not None]
    tokens, fleiss = _fleiss(votes)
    return Agreement(
        tokens,
        sum(pair.agreement * pair.tokens for pair in pairs) / compared if compared else None,
        (
            sum(kappa * weight for kappa, weight in weighted)
            / sum(weight for _, weight in weighted)
            if weighted
            else None
        ),
        fleiss,
        pairs,
    )


def _compare(first: str, second: str, table: Counter[tuple[str, str]]) -> Pair | None:
    """Agreement and Cohen's kappa from how often each pair of labels was given."""
    left: Counter[str] = Counter()
    right: Counter[str] = Counter()
    same = 0
    for (a, b), count in table.items():
        if MISSING not in (a, b):
            left[a] += count
            right[b] += count
            same += count * (a == b)
    total = left.total()
    if not total:
        return None
    by_chance = sum(left[label] * right[label] for label in left)  # times total²
    kappa = (
        (same * total - by_chance) / (total * total - by_chance)
        if by_chance < total * total
        else None
    )
    return Pair(first, second, total, same / total, kappa)


def _fleiss(votes: Counter[tuple[str, ...]]) -> tuple[int, float | None]:
    """Tokens with two labels or more, and Fleiss' kappa on them."""
    tokens = 0
    observed = 0.0
    totals: Counter[str] = Counter()
    for labels, count in votes.items():
        given = Counter(label for label in labels if label != MISSING)
        n = given.total()
        if n < 2:
            continue
        tokens += count
        observed += count * sum(c * (c - 1) for c in given.values()) / (n * (n - 1))
        for label, c in given.items():
            totals[label] += c * count
    if len(totals) < 2:
        return tokens, None
    by_chance = sum(c * c for c in totals.values()) / totals.total() ** 2
    return tokens, (observed / tokens - by_chance) / (1 - by_chance)
