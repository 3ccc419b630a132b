"""Dependency trees as heads.

What is wrong with them, whether arcs cross, and the nearest projective tree by lifting arcs.

The head of word d = 1..n stands at ``heads[d - 1]``; 0 is the root. Functions take tuples, lists,
and one-dimensional arrays or tensors. An arc from head h to dependent d is projective if every word
strictly between them is a descendant of h; a tree is, if all its arcs are. Everything is a
descendant of the root, so the arc of a root is always projective.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, SupportsIndex

import numpy as np

from softq.errors import DtypeError, OutputError
from softq.kernels.jit import jit

Heads = Sequence[int] | Iterable[SupportsIndex]
"""One head for each word: a tuple, a list, a one-dimensional array or tensor of integers."""

_SHOWN = 8  # words of a cycle that a message names


def tree_faults(heads: Heads, *, multiroot: bool = False) -> list[tuple[int, str]]:
    """Everything that keeps ``heads`` from being a tree, in order.

    The word (from 1; 0 is the sentence) and what is wrong.

    Heads outside 0..n, words that are their own head, roots after the first unless ``multiroot``, a
    missing root, and cycles, each at its first word.

    >>> tree_faults((0, 4, 5, 3, 4, 0, 9))  # doctest: +NORMALIZE_WHITESPACE
    [(3, 'expected a tree, got the cycle 3 -> 5 -> 4 -> 3'),
     (6, 'expected one root, got a second one (the first is word 1)'),
     (7, 'expected a head in 0..7, got 9')]
    """
    known = _as_list(heads)
    n = len(known)
    roots = [word for word, head in enumerate(known, start=1) if head == 0]
    found = []
    if n and not roots:
        found.append((0, "expected a root, a word with head 0, got none"))
    if len(roots) > 1 and not multiroot:
        second = f"expected one root, got a second one (the first is word {roots[0]})"
        found += [(word, second) for word in roots[1:]]
    for word, head in enumerate(known, start=1):
        if not 0 <= head <= n:
            found.append((word, f"expected a head in 0..{n}, got {head}"))
        elif head == word:
            expected = f"expected another word or 0 as the head of word {word}"
            found.append((word, f"{expected}, got the word itself"))
    return sorted([*found, *_cycles(known)])


def _cycles(heads: list[int]) -> Iterator[tuple[int, str]]:
    """The first word of each cycle of two or more, and the message."""
    n = len(heads)
    reached = [0] * (n + 1)  # by the walk that began at this word, 0 by none yet
    for start in range(1, n + 1):
        node = start
        while 0 < node <= n and not reached[node]:
            reached[node] = start
            node = heads[node - 1]
        if 0 < node <= n and reached[node] == start and heads[node - 1] != node:
            yield _describe_cycle(heads, node)


def _describe_cycle(heads: list[int], inside: int) -> tuple[int, str]:
    cycle = [inside]
    while heads[cycle[-1] - 1] != inside:
        cycle.append(heads[cycle[-1] - 1])
    place = cycle.index(min(cycle))
    cycle = cycle[place:] + cycle[:place]
    shown = cycle if len(cycle) <= _SHOWN else [*cycle[: _SHOWN - 1], "…"]
    return cycle[0], f"expected a tree, got the cycle {' -> '.join(map(str, [*shown, cycle[0]]))}"


def is_projective(heads: Heads) -> bool:
    """Whether no arcs cross when all are drawn above the words, those of the roots included.

    >>> is_projective((2, 0, 2)), is_projective((3, 4, 0, 3))
    (True, False)
    """
    return crossing_arcs(heads) == 0


def crossing_arcs(heads: Heads) -> int:
    """Words whose arc is not projective.

    Some word strictly between head and dependent is not a descendant of the head.

    >>> crossing_arcs((3, 4, 0, 3))  # 4 -> 2 passes over 3
    1
    """
    return int(_count_crossing(_as_tree(heads)))


def tree_depth(heads: Heads) -> int:
    """Words on the longest way down from the root; 1 if every word is a root, 0 without words.

    >>> tree_depth((2, 0, 2)), tree_depth((2, 3, 0))
    (2, 3)
    """
    parents = np.insert(_as_tree(heads), 0, 0)
    ancestors, depth = np.arange(len(parents)), 0
    while ancestors.any():
        ancestors, depth = parents[ancestors], depth + 1
    return depth


def projectivise(heads: Heads) -> np.ndarray[Any, np.dtype[np.int64]]:
    """A projective tree near this one, ``[n]``.

    Arcs are lifted until none is left to lift (Nivre and Nilsson 2005).

    A lift gives a word the head of its head. The shortest arc that is not projective goes first,
    the leftmost among equals. Projective trees come back as they are, and a tree of one root keeps
    it: no arc of the root word can cross. Each lift takes O(n²) steps times the tree's depth.

    >>> projectivise((3, 4, 0, 3)).tolist()
    [3, 3, 0, 3]
    """
    lifted = _as_tree(heads).copy()
    _lift(lifted)
    return lifted


def _as_list(heads: Heads) -> list[int]:
    try:
        return list(map(operator.index, heads))
    except TypeError as error:
        raise DtypeError(
            f"expected one integer per word as heads, got {type(heads).__name__}: {error}"
        ) from error


def _as_tree(heads: Heads) -> np.ndarray[Any, np.dtype[np.int64]]:
    for word, message in tree_faults(heads, multiroot=True):
        raise OutputError(f"word {word}: {message}" if word else message)
    return np.array(_as_list(heads), dtype=np.int64)


@jit
def _crosses(heads: Any, word: int) -> bool:
    """Whether the arc to a word passes over one that is not below its head."""
    head = heads[word - 1]
    for between in range(min(word, head) + 1, max(word, head)):
        node = between
        while node not in (0, head):
            node = heads[node - 1]
        if node != head:
            return True
    return False


@jit
def _count_crossing(heads: Any) -> int:
    count = 0
    for word in range(1, len(heads) + 1):
        count += _crosses(heads, word)
    return count


@jit
def _lift(heads: Any) -> None:
    while True:
        lowest, shortest = 0, len(heads) + 1
        for word in range(1, len(heads) + 1):
            length = abs(heads[word - 1] - word)
            if length < shortest and _crosses(heads, word):
                lowest, shortest = word, length
        if lowest == 0:
            return
        heads[lowest - 1] = heads[heads[lowest - 1] - 1]
