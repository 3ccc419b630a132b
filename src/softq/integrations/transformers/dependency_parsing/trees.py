"""What is known of the tree of a row: heads and relations, by one annotator or several."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch

from softq.errors import DataError, OutputError
from softq.formats.conllu import TreeSentence
from softq.formats.trees import projectivise, tree_faults
from softq.integrations.text_rows import plain
from softq.integrations.transformers.tokens import IGNORED
from softq.integrations.transformers.words.annotators import read_annotations
from softq.kernels.trees import CROSSING, find_bad_tree
from softq.metrics.attachment import CONTENT_RELATIONS, universal

_NOTHING = "_"  # as CoNLL-U writes that there is none


class KnownTree(NamedTuple):
    """A tree, or a part of one.

    Attributes:
        heads: of each word, from 1; 0 is the root; -100: not known.
        relations: ids of them; -100: not known.
        possible: the heads, lifted where arcs cross and the model is projective.

    """

    heads: list[int]
    relations: list[int]
    possible: list[int]


class RowTrees(NamedTuple):
    """Trees of annotators, and their weights."""

    trees: list[KnownTree]
    weights: list[float]

    @property
    def partial(self) -> bool:
        """Whether an annotator left out the head of a word."""
        return any(IGNORED in tree.heads for tree in self.trees)

    @property
    def lifted(self) -> bool:
        """Whether a tree has crossing arcs that were lifted."""
        return any(tree.possible != tree.heads for tree in self.trees)


class TreeReader:
    """Reads the trees of rows, by the names of the K relations.

    A head is the number of a word, from 1, or 0 for the root; None, -100 or ``"_"`` where it is not
    known. A relation is a name or an id; None, -100 or ``"_"`` likewise. A relation that is not one
    of the K has an id above theirs, for scores; see `names`.

    >>> read = TreeReader(["root", "nsubj"], spanning=False)
    >>> read({"heads": [2, 0], "deprels": ["nsubj", "root"]}, 2)
    RowTrees(trees=[KnownTree(heads=[2, 0], relations=[1, 0], possible=[2, 0])], weights=[1.0])
    >>> read({"annotations": [[0, 1], None, {"heads": [None, 0]}], "weights": [1, 1, 2]}, 2).weights
    [1.0, 2.0]

    """

    def __init__(self, relations: Sequence[str], *, spanning: bool) -> None:
        self.relations, self.spanning = tuple(relations), spanning
        self._ids = {name: number for number, name in enumerate(self.names)}

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Of relations by their ids: the K, and those that stand for all others.

        ``nmod:?`` has the universal relation of some other ``nmod:…``, by which LAS counts.
        """
        kinds = sorted({*map(universal, self.relations), *CONTENT_RELATIONS})
        return (*self.relations, *(f"{kind}:?" for kind in kinds), "?")

    def __call__(self, row: Mapping[str, Any], count: int) -> RowTrees | None:
        """Of a row with ``count`` words; None if it has no heads at all."""
        given, several = row.get("heads"), row.get("annotations")
        if given is not None and several is not None:
            raise DataError("a row has 'heads' or 'annotations', got both")
        if several is not None:
            found = read_annotations(
                several,
                row.get("weights"),
                lambda one: self._tree(one if isinstance(one, Mapping) else {"heads": one}, count),
                noun="trees",
                each="heads, or of dicts with 'heads' and 'deprels'",
            )
            return RowTrees([tree for _, _, tree in found], [weight for _, weight, _ in found])
        return None if given is None else RowTrees([self._tree(row, count)], [1.0])

    def _tree(self, given: Mapping[str, Any], count: int) -> KnownTree:
        heads = [_head(value) for value in _sized("heads", given.get("heads"), count)]
        relations = [IGNORED] * count
        if self.relations and given.get("deprels") is not None:
            names = _sized("deprels", given["deprels"], count)
            relations = [self._relation(value) for value in names]
        return KnownTree(heads, relations, self._possible(heads))

    def _possible(self, heads: list[int]) -> list[int]:
        """The heads of a tree that the model can have."""
        partial = IGNORED in heads
        known = [0 if head == IGNORED else head for head in heads]
        faults = tree_faults(known, multiroot=partial)
        roots = [word for word, head in enumerate(heads, start=1) if head == 0]
        if partial and len(roots) > 1:
            faults.append((roots[1], f"expected one root, got a second one (the first is {roots})"))
        if faults:
            word, message = faults[0]
            raise OutputError(f"word {word} (from 1): {message}" if word else message)
        if self.spanning or not _cross(heads):
            return heads
        if partial:
            raise OutputError(
                f"expected no crossing arcs, which a projective model has none of, got {heads}; they"
                " are lifted where all heads are known: leave out those that cross, or take"
                " spanning=True"
            )
        return [int(head) for head in projectivise(heads)]

    def _relation(self, value: Any) -> int:
        if value is None or value in (IGNORED, _NOTHING):
            return IGNORED
        if isinstance(value, str):
            return self._ids.get(value, self._ids.get(f"{universal(value)}:?", len(self.names) - 1))
        number = _whole(value)
        if number is None or not 0 <= number < len(self.relations):
            raise OutputError(
                f"expected the name of a relation, or an id in 0..{len(self.relations) - 1}, got"
                f" {value!r}"
            )
        return number


def as_row(given: Any) -> Any:
    """A sentence of `softq.formats.read_conllu` as a row; a row as it is.

    >>> as_row(TreeSentence(("Hi",), ("hi",), ("INTJ",), ("_",), ("_",), (0,), ("root",)))
    {'tokens': ['Hi'], 'heads': [0], 'deprels': ['root']}
    """
    if not isinstance(given, TreeSentence):
        return given
    row: dict[str, Any] = {"tokens": list(given.forms)}
    if len(given.heads) == len(given.forms):
        row["heads"] = list(given.heads)
    if given.relations:
        row["deprels"] = list(given.relations)
    return row


def _cross(heads: Sequence[int]) -> bool:
    """Whether arcs cross; those of words whose head is not known do not."""
    lengths, row = torch.tensor([len(heads)]), torch.tensor([heads], dtype=torch.int64)
    _, _, fault = find_bad_tree(lengths, row, multiroot=False, projective=True, partial=True)
    return fault == CROSSING


def _head(value: Any) -> int:
    if value is None or value == _NOTHING:
        return IGNORED
    number = int(value) if isinstance(value, str) and value.isdecimal() else _whole(value)
    if number is None:
        raise DataError(
            "expected a head as the number of a word, 0 for the root, None where it is not known,"
            f" got {value!r}"
        )
    return number


def _whole(value: Any) -> int | None:
    if isinstance(value, (bool, str)) or not hasattr(value, "__index__"):
        return None
    return operator.index(value)


def _sized(name: str, given: Any, count: int) -> list[Any]:
    values = plain(given)
    if not isinstance(values, list) or len(values) != count:
        got = len(values) if isinstance(values, list) else type(values).__name__
        raise DataError(f"{name!r} must have an entry for each of the {count} words, got {got}")
    return values
