"""Sentences and trees as users have them.

Read, checked, and turned into what parsers are made of.
"""

from __future__ import annotations

import numbers
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Literal

import numpy as np

from softq.errors import DataError, DtypeError, OutputError, ShapeError
from softq.formats.conllu import TreeSentence
from softq.formats.trees import tree_faults
from softq.linear.estimator_inputs import (
    check_sequence,
    common_kind,
    held_out_data,
    may_be_annotator,
    read_annotations,
    read_sequences,
    shown,
)
from softq.linear.features import ArcIndex, lacks_tags
from softq.linear.parsing import Parse, Trees

Array = np.ndarray[Any, Any]
Kind = Literal["words", "pairs", "triples", "dicts"]
"""What words are: strings; (form, upos); (form, upos, xpos); dicts."""

_KEYS = ("form", "lemma", "upos", "xpos", "feats")  # of a word that is a dict
_NAMES: dict[Kind, str] = {
    "words": "a word (a string)",
    "pairs": "a (form, upos) tuple of strings",
    "triples": "a (form, upos, xpos) tuple of strings",
    "dicts": f"a dict with strings for 'form' and perhaps {', '.join(map(repr, _KEYS[1:]))}",
}
_NOT_GIVEN = "_"
_SURROGATE = re.compile("[\ud800-\udfff]")


def read_sentences(given: Any) -> list[TreeSentence]:
    """X as sentences with columns."""
    sentences = read_sequences(given, "a TreeSentence or a sequence of words")
    if any(isinstance(sentence, TreeSentence) for sentence in sentences):
        for number, sentence in enumerate(sentences):
            if not isinstance(sentence, TreeSentence):
                raise DataError(
                    f"sentence {number} of X must be a TreeSentence, as others are, got"
                    f" {shown(sentence)}"
                )
    else:
        for number, sentence in enumerate(sentences):
            check_sequence(sentence, number, "word")
        common_kind(sentences, _kind, _NAMES, "word")
        columns: list[Any] = [list(zip(*map(_columns, words), strict=True)) for words in sentences]
        sentences = [TreeSentence(*(rows or [()] * len(_KEYS))) for rows in columns]
    _check_texts(sentences)
    return sentences


def _kind(word: Any) -> Kind | None:
    if isinstance(word, str):
        return "words"
    parts: Iterable[Any] = ()
    kind: Kind | None = None
    if isinstance(word, tuple) and len(word) in (2, 3):
        parts, kind = word, "pairs" if len(word) == 2 else "triples"
    elif isinstance(word, Mapping) and "form" in word and set(word) <= set(_KEYS):
        parts, kind = word.values(), "dicts"
    return kind if all(isinstance(part, str) for part in parts) else None


def _columns(word: Any) -> tuple[str, ...]:
    """Form, lemma, upos, xpos and feats of a word."""
    if isinstance(word, str):
        return word, *[_NOT_GIVEN] * 4
    if isinstance(word, tuple):
        form, upos, xpos = (*word, _NOT_GIVEN)[:3]
        return form, _NOT_GIVEN, upos, xpos, _NOT_GIVEN
    return tuple(word.get(key, _NOT_GIVEN) for key in _KEYS)


def _check_texts(sentences: list[TreeSentence]) -> None:
    """The file of a parser has a string per line, in UTF-8, so none may be empty, hold a line's end or half a character.

    What was read from a file is sound.
    """
    for number, sentence in enumerate(sentences):
        if not sentence.lines:
            for text in chain(
                sentence.forms, sentence.lemmas, sentence.upos, sentence.xpos, sentence.feats
            ):
                if not text or "\n" in text:
                    raise DataError(
                        f"sentence {number}: expected text without line ends, or '_' for nothing,"
                        f" got {text!r}"
                    )
                if _SURROGATE.search(text):
                    raise DataError(
                        f"sentence {number}: expected text that UTF-8 can write, got half a"
                        f" character (a surrogate) in {text!r}"
                    )


def check_tags(index: ArcIndex, sentences: Sequence[TreeSentence], *, relations: bool) -> None:
    """An error where a parser has learnt from parts of speech and sentences have none."""
    if lacks_tags(index, sentences, relations=relations):
        raise DataError(
            "each word of X must have its upos or its xpos, as in fit, got X without any"
        )


def read_trees(sentences: Sequence[TreeSentence], given: Any, ref_weights: Any = None) -> Trees:
    """The trees of y, checked against the sentences.

    Those of the sentences themselves if y is None.

    Annotators that are missing, or have the weight 0, are left out.
    """
    if given is None:
        given = _own_trees(sentences)
    lengths = [len(sentence.forms) for sentence in sentences]
    heads, relations, weights = [], [], []
    first = None  # tree that has a word
    read = read_annotations(given, lengths, ref_weights, _annotations, _check_tree, "tree")
    for number, (length, (trees, shares, *_)) in enumerate(zip(lengths, read, strict=True)):
        for tree in trees if length else ():
            first = first or tree
            if bool(tree.relations) != bool(first.relations):
                this, others = ("with", "without") if tree.relations else ("without", "with")
                raise DataError(
                    f"expected relations with all trees or with none, got a tree {this} them in"
                    f" sentence {number} and others {others}"
                )
        heads.append(np.array([tree.heads for tree in trees], np.int64).reshape(len(trees), length))
        relations.append([tree.relations for tree in trees])
        weights.append(shares)
    return Trees(heads, relations if first and first.relations else [], weights)


def _own_trees(sentences: Sequence[TreeSentence]) -> list[TreeSentence]:
    """Sentences that all have a tree of their own."""
    for number, sentence in enumerate(sentences):
        if sentence.forms and not sentence.heads:
            raise DataError(
                "without y, each sentence of X must be a TreeSentence with its tree, sentence"
                f" {number} has none"
            )
    return list(sentences)


def _annotations(entry: Any, number: int) -> list[Parse | None]:
    """One tree, or those of several annotators.

    Heads are integers and relations strings, so that the two cannot be confused.
    """
    wanted = (
        f"the tree of sentence {number} must be heads (whole numbers), a (heads, relations) tuple"
        " or a TreeSentence, or a list of such trees (or None), one per annotator"
    )
    tree = _as_tree(entry)
    if tree is not None or entry is None:
        return [tree]
    if isinstance(entry, (str, bytes, Mapping)) or not hasattr(entry, "__len__"):
        raise DataError(f"{wanted}, got {shown(entry)}")
    found = [_as_tree(one) for one in entry]
    for one, tree in zip(entry, found, strict=True):
        if one is not None and tree is None:
            raise DtypeError(
                f"{wanted}, got {shown(one)}{' among them' if may_be_annotator(one) else ''}"
            )
    return found


def _as_tree(entry: Any) -> Parse | None:
    """A single tree; None if it is none."""
    if isinstance(entry, (TreeSentence, Parse)):
        return Parse(entry.heads, entry.relations)
    heads = _as_heads(entry)
    if heads is not None or not (isinstance(entry, (tuple, list)) and len(entry) == 2):
        return None if heads is None else Parse(heads)
    heads, names = _as_heads(entry[0]), entry[1]
    relations = _values([] if names is None else names)
    if heads is None or relations is None:
        return None
    if not relations:  # in a list they are an annotator who is missing
        return Parse(heads) if isinstance(entry, tuple) else None
    texts = all(isinstance(name, str) for name in relations)
    return Parse(heads, tuple(map(str, relations))) if texts else None


def _as_heads(entry: Any) -> tuple[int, ...] | None:
    values = _values(entry)
    if values is None or not all(
        isinstance(value, numbers.Integral) and not isinstance(value, bool) for value in values
    ):
        return None
    return tuple(map(int, values))


def _values(entry: Any) -> list[Any] | None:
    """What a list, tuple, array or tensor of one dimension holds."""
    if isinstance(entry, (list, tuple)):
        return list(entry)
    return entry.tolist() if getattr(entry, "ndim", 0) == 1 and hasattr(entry, "tolist") else None


def _check_tree(tree: Parse, words: int, who: str) -> None:
    if len(tree.heads) != words:
        raise ShapeError(
            f"y must have a head for each word: {who} has {len(tree.heads)} heads for {words} words"
        )
    if tree.relations and len(tree.relations) != words:
        raise ShapeError(
            f"y must have a relation for each word or none: {who} has {len(tree.relations)}"
            f" relations for {words} words"
        )
    for name in tree.relations:
        if _SURROGATE.search(name):
            raise DataError(
                f"{who}: expected relations that UTF-8 can write, got half a character (a"
                f" surrogate) in {name!r}"
            )
    faults = tree_faults(tree.heads)
    if faults:
        word, message = faults[0]
        raise OutputError(f"{who}{f', word {word} (from 1)' if word else ''}: {message}")


def read_held_out(given: Any, trees: Any) -> tuple[list[TreeSentence], Trees] | None:
    """Sentences to be scored; what is wrong with them is told before training, not after it."""
    if given is None:
        if trees is not None:
            raise DataError(
                "X_dev and y_dev go together: expected both or neither, got y_dev alone"
            )
        return None
    with held_out_data():
        sentences = read_sentences(given)
        return sentences, read_trees(sentences, trees)


def attachment_score(parses: Sequence[Parse], trees: Trees) -> float:
    """Share of words with the right head (UAS).

    Where annotators disagree, a head is as right as they are many.
    """
    right = 0.0
    for parse, heads, weights in zip(parses, trees.heads, trees.weights, strict=True):
        right += float((heads == np.array(parse.heads, np.int64)).sum(1) @ weights / weights.sum())
    return right / max(sum(len(parse.heads) for parse in parses), 1)
