"""Heads as trees: faults, projectivity against its definitions, lifting against its laws."""

import itertools
import random

import numpy as np
import pytest
import torch

from softq.errors import DtypeError, OutputError
from softq.formats.trees import (
    crossing_arcs,
    is_projective,
    projectivise,
    tree_depth,
    tree_faults,
)


def ancestors(heads, word):
    """Heads above a word, up to 0; None if they never end."""
    above = []
    while word != 0:
        word = heads[word - 1]
        if word in above:
            return None
        above.append(word)
    return above


def is_tree(heads):
    return all(ancestors(heads, word) is not None for word in range(1, len(heads) + 1))


def all_trees(n):
    return filter(is_tree, itertools.product(range(n + 1), repeat=n))


def random_tree(n, rng):
    order = rng.sample(range(1, n + 1), n)
    heads = [0] * n
    for place, word in enumerate(order[1:], start=1):
        heads[word - 1] = order[rng.randrange(place)]
    return tuple(heads)


def crossing_by_definition(heads):
    count = 0
    for word, head in enumerate(heads, start=1):
        between = range(min(word, head) + 1, max(word, head))
        count += any(head not in ancestors(heads, other) for other in between)
    return count


def subtrees_are_contiguous(heads):
    for top in range(1, len(heads) + 1):
        below = [
            word
            for word in range(1, len(heads) + 1)
            if word == top or top in ancestors(heads, word)
        ]
        if below != list(range(below[0], below[-1] + 1)):
            return False
    return True


@pytest.mark.parametrize("n", range(6))
def test_every_small_tree(n):
    trees = list(all_trees(n))
    assert len(trees) == (n + 1) ** max(n - 1, 0)  # Cayley: trees on n + 1 nodes, hung up at 0
    for heads in trees:
        assert crossing_arcs(heads) == crossing_by_definition(heads)
        assert is_projective(heads) == subtrees_are_contiguous(heads)
        assert tree_depth(heads) == max(
            (len(ancestors(heads, word)) for word in range(1, n + 1)), default=0
        )
        assert not tree_faults(heads, multiroot=True)
        assert (not tree_faults(heads)) == (heads.count(0) == min(n, 1))


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_every_small_list_of_heads_that_is_no_tree(n):
    for heads in itertools.product(range(-1, n + 2), repeat=n):
        good = all(0 <= head <= n for head in heads) and is_tree(heads)
        assert (not tree_faults(heads, multiroot=True)) == good
        assert (not tree_faults(heads)) == (good and heads.count(0) == 1)
        if not good:
            for function in (is_projective, crossing_arcs, projectivise, tree_depth):
                with pytest.raises(OutputError, match="expected"):
                    function(heads)


def lift_by_the_book(heads):
    """Nivre and Nilsson's procedure, word for word."""
    heads = list(heads)
    while True:
        crossing = []
        for word, head in enumerate(heads, start=1):
            between = range(min(word, head) + 1, max(word, head))
            if any(head not in ancestors(heads, other) for other in between):
                crossing.append((abs(head - word), word))
        if not crossing:
            return heads
        _, word = min(crossing)
        heads[word - 1] = heads[heads[word - 1] - 1]


@pytest.mark.parametrize(
    "heads_of",
    [lambda: all_trees(5), lambda: (random_tree(n, random.Random(n)) for n in range(6, 40))],
)
def test_projectivise_lifts_and_nothing_else(heads_of):
    for heads in heads_of():
        lifted = projectivise(heads)
        assert lifted.dtype == np.int64
        assert is_projective(lifted)
        if is_projective(heads):
            assert lifted.tolist() == list(heads)
        for word, head in enumerate(lifted.tolist(), start=1):
            assert head in ancestors(heads, word)
        if heads.count(0) == 1:
            assert not tree_faults(lifted)
        assert lifted.tolist() == lift_by_the_book(heads)


def test_inputs_of_every_kind_are_left_alone():
    heads = [3, 4, 0, 3]
    for given in (heads, tuple(heads), np.array(heads, dtype=np.int32), torch.tensor(heads)):
        assert projectivise(given).tolist() == [3, 3, 0, 3]
        assert list(map(int, given)) == heads
        assert crossing_arcs(given) == 1
        assert not tree_faults(given)
    assert projectivise(()).shape == (0,)


@pytest.mark.parametrize(
    ("heads", "expected"),
    [
        ((2, 0, 2), []),
        ((), []),
        ((0, 5), [(2, "expected a head in 0..2, got 5")]),
        ((-1, 0), [(1, "expected a head in 0..2, got -1")]),
        ((0, 2), [(2, "expected another word or 0 as the head of word 2, got the word itself")]),
        ((0, 0), [(2, "expected one root, got a second one (the first is word 1)")]),
        (
            (2, 1),
            [
                (0, "expected a root, a word with head 0, got none"),
                (1, "expected a tree, got the cycle 1 -> 2 -> 1"),
            ],
        ),
        ((0, 3, 4, 3), [(3, "expected a tree, got the cycle 3 -> 4 -> 3")]),
        (
            (0, 3, 2, 5, 4),
            [
                (2, "expected a tree, got the cycle 2 -> 3 -> 2"),
                (4, "expected a tree, got the cycle 4 -> 5 -> 4"),
            ],
        ),
        (
            (0, *range(3, 13), 2),
            [(2, "expected a tree, got the cycle 2 -> 3 -> 4 -> 5 -> 6 -> 7 -> 8 -> … -> 2")],
        ),
    ],
)
def test_faults_are_told(heads, expected):
    assert tree_faults(heads) == expected


def test_errors_name_the_word():
    with pytest.raises(OutputError, match=r"word 2: expected a head in 0\.\.2, got 5"):
        projectivise((0, 5))
    with pytest.raises(OutputError, match="got none"):
        is_projective((2, 1))
    with pytest.raises(OutputError, match="got 1000000000000000000000"):
        is_projective((0, 10**21))
    for wrong in ((0.0, 1.0), 3, ((0, 1), (0, 1)), ("1", "0")):
        with pytest.raises(DtypeError, match="expected one integer per word"):
            tree_faults(wrong)


def test_long_chains_are_no_trouble():
    n = 20_000
    assert crossing_arcs(range(n)) == 0
    assert not tree_faults([*range(2, n + 1), 0])
