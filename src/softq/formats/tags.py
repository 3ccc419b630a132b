"""Tag schemes: named entities as one label per word, and back.

A label is ``O`` (outside every entity) or a prefix, a dash and a type, such as ``B-PER``. Three
schemes are known:

* ``iob1``: ``I-`` on every word of an entity, but ``B-`` on the first word of one that directly
  follows another of its own type (CoNLL-2003 as it was released);
* ``bio``: ``B-`` on the first word of every entity, ``I-`` on the others (also called IOB2);
* ``bioes``: as ``bio``, but ``E-`` on the last word, and ``S-`` on the only word of an entity.

No two schemes write any entity alike: a sentence without a fault in two of them has no entities.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, get_args

import torch
from torch import Tensor

from softq.errors import DataError, OutputError
from softq.options import Scheme as Scheme

OUTSIDE = "O"

_PREFIXES: dict[Scheme, str] = {"iob1": "BI", "bio": "BI", "bioes": "BIES"}
# What may follow a label: outside an entity, and inside one (after B or I) prefixes of any type and
# prefixes of the entity's own type.
_FOLLOWING: dict[Scheme, tuple[tuple[str, str], tuple[str, str]]] = {
    "iob1": (("OI", ""), ("OI", "B")),
    "bio": (("OB", ""), ("OB", "I")),
    "bioes": (("OBS", ""), ("", "IE")),
}


class Span(NamedTuple):
    """An entity: its type, its first word, and the word after its last."""

    kind: str
    start: int
    end: int


class Transitions(NamedTuple):
    """What a scheme allows among K labels, as booleans.

    ``between [K, K]`` (from, to), ``first [K]`` and ``last [K]``.
    """

    between: Tensor
    first: Tensor
    last: Tensor


class _Tag(NamedTuple):
    prefix: str
    kind: str


# In every scheme, what stands beside either end of a sentence is what stands beside an O.
_EDGE = _Tag(OUTSIDE, "")


def spans(labels: Sequence[str], scheme: Scheme) -> list[Span]:
    """Entities of a sentence, from left to right, by conlleval's lenient reading of sequences that break the scheme.

    ``I-X`` and ``E-X`` continue an entity if the word before has ``B-X`` or ``I-X``, and else start one, as ``B-X`` and ``S-X``
    always do. An entity lasts as long as it is continued: one that no ``E-`` closes is an entity too. So every word but those with O
    belongs to one entity, and the schemes differ only in the prefixes they have; a label that is no tag of the scheme is an error.

    >>> spans(["B-PER", "I-PER", "O", "I-LOC", "B-LOC"], "bio")
    [Span(kind='PER', start=0, end=2), Span(kind='LOC', start=3, end=4), Span(kind='LOC', start=4, end=5)]
    """
    found: list[Span] = []
    start = 0
    before = _EDGE
    for position, tag in enumerate([*_tags(labels, scheme), _EDGE]):
        if tag.prefix in ("I", "E") and before.prefix in ("B", "I") and tag.kind == before.kind:
            before = tag
            continue
        if before.prefix != OUTSIDE:
            found.append(Span(before.kind, start, position))
        start, before = position, tag
    return found


def faults(labels: Sequence[str], scheme: Scheme) -> list[tuple[int, str]]:
    """Where a sentence breaks its scheme.

    Positions, ascending, each with what was expected there and what came.

    A label that is no tag of the scheme is one fault, and the label after it is not judged by it. A
    last label that is wrong both after the one before it and at the end is two.

    >>> faults(["O", "I-PER", "B-LOC"], "bio")
    [(1, 'expected O or B-* after O, got I-PER')]
    >>> faults(["S-PER", "B-LOC"], "bioes")
    [(1, 'expected O, E-* or S-* at the end, got B-LOC')]
    >>> faults(["B"], "bio")
    [(0, "expected O, or a type after B- or I-, such as B-PER, got 'B'")]
    """
    prefixes = _prefixes(scheme)
    found: list[tuple[int, str]] = []
    before: _Tag | None = _EDGE
    for position, label in enumerate(labels):
        tag = _parse(label, prefixes)
        if tag is None:
            found.append((position, _no_tag(label, scheme)))
        elif before is not None and not _allowed(before, tag, scheme):
            place = f"after {labels[position - 1]}" if position else "at the start"
            found.append((position, f"expected {_expected(before, scheme)} {place}, got {label}"))
        before = tag
    # only an entity of bioes can be left open
    if before is not None and not _allowed(before, _EDGE, scheme):
        found.append((len(labels) - 1, f"expected O, E-* or S-* at the end, got {labels[-1]}"))
    return found


def convert(labels: Sequence[str], source: Scheme, target: Scheme) -> list[str]:
    """The entities that ``labels`` hold by the source scheme (see `spans`), written by the target scheme.

    With ``source == target`` it mends what breaks the scheme.

    >>> convert(["I-PER", "I-PER", "B-PER", "O"], "iob1", "bioes")
    ['B-PER', 'E-PER', 'S-PER', 'O']
    """
    _prefixes(target)
    return _write(spans(labels, source), len(labels), target)


def segments_of_tags(
    labels: Sequence[str], scheme: Scheme, kinds: Sequence[str]
) -> list[tuple[int, int, int]]:
    """Segments (start, end, kind) that hold every word: entities (see `spans`), and each ``O`` alone.

    ``kinds`` lists the types of entities, and ``O``; a segment has the index of its own. These are
    the segments that `softq.pack_segments` takes.

    >>> segments_of_tags(["B-PER", "I-PER", "O", "O"], "bio", ["O", "LOC", "PER"])
    [(0, 2, 2), (2, 3, 0), (3, 4, 0)]
    """
    number = {kind: k for k, kind in enumerate(kinds)}
    found, at = [], 0
    for span in [*spans(labels, scheme), Span(OUTSIDE, len(labels), len(labels))]:
        for kind in (OUTSIDE, span.kind):
            if kind not in number:
                raise DataError(f"a segment has kind {kind!r}, which is none of {', '.join(kinds)}")
        found += [(word, word + 1, number[OUTSIDE]) for word in range(at, span.start)]
        found += [(span.start, span.end, number[span.kind])] if span.end > span.start else []
        at = span.end
    return found


def tags_of_segments(
    segments: Sequence[tuple[int, int, int]], scheme: Scheme, kinds: Sequence[str]
) -> list[str]:
    """Labels of the words that segments (start, end, kind) hold, the inverse of `segments_of_tags`.

    >>> tags_of_segments([(0, 2, 2), (2, 3, 0), (3, 4, 0)], "bioes", ["O", "LOC", "PER"])
    ['B-PER', 'E-PER', 'O', 'O']
    """
    _prefixes(scheme)
    entities = [Span(kinds[kind], start, end) for start, end, kind in segments]
    size = max((span.end for span in entities), default=0)
    return _write([span for span in entities if span.kind != OUTSIDE], size, scheme)


def _write(entities: Sequence[Span], size: int, scheme: Scheme) -> list[str]:
    """Labels of `size` words with these entities, from left to right."""
    written = [OUTSIDE] * size
    before = Span("", -1, -1)
    for span in entities:
        written[span.start : span.end] = [f"I-{span.kind}"] * (span.end - span.start)
        if scheme != "iob1" or (before.kind, before.end) == (span.kind, span.start):
            written[span.start] = f"B-{span.kind}"
        if scheme == "bioes":
            written[span.end - 1] = f"{'E' if span.end - span.start > 1 else 'S'}-{span.kind}"
        before = span
    return written


def every_tag(labels: Iterable[str], scheme: Scheme) -> tuple[str, ...]:
    """``O``, and all tags that a scheme has for the types of these labels, sorted.

    >>> every_tag(["O", "I-PER"], "bio")
    ('B-PER', 'I-PER', 'O')
    """
    kinds = {tag.kind for tag in _tags([*labels], scheme)} - {_EDGE.kind}
    return tuple(sorted({OUTSIDE, *(f"{p}-{k}" for p in _prefixes(scheme) for k in kinds)}))


def allowed_transitions(labels: Sequence[str], scheme: Scheme) -> Transitions:
    """Which of an inventory of K labels may follow which, come first and come last.

    Exactly the sequences without `faults` are allowed.

    >>> allowed = allowed_transitions(["O", "B-PER", "I-PER"], "bio")
    >>> allowed.between.int().tolist()
    [[1, 1, 0], [1, 1, 1], [1, 1, 1]]
    >>> allowed.first.tolist(), allowed.last.tolist()
    ([True, True, False], [True, True, True])
    """
    tags = _tags(labels, scheme)
    between = [[_allowed(before, after, scheme) for after in tags] for before in tags]
    first = [_allowed(_EDGE, tag, scheme) for tag in tags]
    last = [_allowed(tag, _EDGE, scheme) for tag in tags]
    return Transitions(
        torch.tensor(between, dtype=torch.bool).view(len(tags), len(tags)),
        torch.tensor(first, dtype=torch.bool),
        torch.tensor(last, dtype=torch.bool),
    )


def _following(before: _Tag, scheme: Scheme) -> tuple[str, str]:
    """Prefixes that may follow a tag: with any type, and with its own type."""
    return _FOLLOWING[scheme][before.prefix in ("B", "I")]


def _allowed(before: _Tag, after: _Tag, scheme: Scheme) -> bool:
    anything, same = _following(before, scheme)
    return after.prefix in anything or (after.prefix in same and after.kind == before.kind)


def _expected(before: _Tag, scheme: Scheme) -> str:
    """What `_allowed` lets follow, in words."""
    anything, same = _following(before, scheme)
    tags = [OUTSIDE if prefix == OUTSIDE else f"{prefix}-*" for prefix in anything]
    *others, final = tags + [f"{prefix}-{before.kind}" for prefix in same]
    return f"{', '.join(others)} or {final}"


def _tags(labels: Sequence[str], scheme: Scheme) -> list[_Tag]:
    prefixes = _prefixes(scheme)
    tags = []
    for position, label in enumerate(labels):
        tag = _parse(label, prefixes)
        if tag is None:
            raise OutputError(f"label {position} is no tag of {scheme}: {_no_tag(label, scheme)}")
        tags.append(tag)
    return tags


def _parse(label: str, prefixes: str) -> _Tag | None:
    if label == OUTSIDE:
        return _EDGE
    prefix, _, kind = label.partition("-")
    return _Tag(prefix, kind) if kind and prefix in tuple(prefixes) else None


def _no_tag(label: str, scheme: Scheme) -> str:
    *others, final = (f"{prefix}-" for prefix in _PREFIXES[scheme])
    return (
        f"expected O, or a type after {', '.join(others)} or {final}, such as B-PER, got {label!r}"
    )


def _prefixes(scheme: Scheme) -> str:
    if scheme not in _PREFIXES:
        raise DataError(
            f"unknown tag scheme: expected one of {', '.join(get_args(Scheme))}, got {scheme!r}"
        )
    return _PREFIXES[scheme]
