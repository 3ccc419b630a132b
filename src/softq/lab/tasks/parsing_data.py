"""Files of trees, or the built-in world, as what a parser is trained on and judged by."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torch import Tensor

from softq.errors import DataError
from softq.formats.conllu import TreeSentence, read_conllu
from softq.lab.tasks.files import halves, once
from softq.lab.tasks.parsing_recipe import Data, Features
from softq.lab.worlds import TreeWorld
from softq.linear.features import ArcCodes, ArcIndex, lacks_tags
from softq.linear.parser_training import Treebank
from softq.linear.parsing import Parse, Trees
from softq.metrics import attachment_statistics


class Corpora(NamedTuple):
    """What a recipe's data section names.

    Attributes:
        train: sentences to learn from; of files with their own trees, of the built-in world with
            the true ones.
        trees: what is learnt of them: the trees of one or several annotators.
        dev: to choose by; None: train itself.
        test: the test set; None: dev again.

    """

    train: Sequence[TreeSentence]
    trees: Trees
    dev: Sequence[TreeSentence] | None
    test: Sequence[TreeSentence] | None


@once(2)
def read_corpora(data: Data) -> Corpora:
    """Read the files, or draw from the built-in world.

    What does not fit is an error with file and line.
    """
    if not data.train:
        return _draw(data)
    train = read_conllu(Path(data.train))
    annotated = [train, *(_read_reference(path, data.train, train) for path in data.references)]
    trees = Trees(
        [
            np.array([sentence.heads for sentence in versions], np.int64)
            for versions in zip(*annotated, strict=True)
        ],
        [
            [sentence.relations for sentence in versions]
            for versions in zip(*annotated, strict=True)
        ],
        [np.ones(len(annotated)) for _ in train],
    )
    dev: Sequence[TreeSentence] | None = read_conllu(Path(data.dev)) if data.dev else None
    test: Sequence[TreeSentence] | None = read_conllu(Path(data.test)) if data.test else None
    if data.halve_dev and dev is not None:
        dev, test = halves(data.dev, dev)
    return Corpora(train, trees, dev, test)


def _draw(data: Data) -> Corpora:
    world = TreeWorld(crossing=data.crossing)
    train, dev, test = (
        world.sample(size, seed=4 * data.seed + part)
        for part, size in enumerate((data.sentences, data.dev_sentences, data.dev_sentences))
    )
    if not data.annotators:
        return Corpora(
            train, Trees.single([s.heads for s in train], [s.relations for s in train]), dev, test
        )
    annotated = world.annotate(
        train, annotators=data.annotators, carelessness=data.carelessness, seed=data.seed
    )
    relations = [
        [_relations(world, sentence, heads) for heads in trees]
        for sentence, trees in zip(train, annotated, strict=True)
    ]
    trees = Trees(
        [np.array(heads, np.int64) for heads in annotated],
        relations,
        [np.ones(data.annotators) for _ in train],
    )
    return Corpora(train, trees, dev, test)


def _relations(world: TreeWorld, sentence: TreeSentence, heads: tuple[int, ...]) -> tuple[str, ...]:
    """Relations of an annotator's tree.

    The true ones where she has the true head, else the likeliest.
    """
    if heads == sentence.heads:
        return sentence.relations
    likeliest = world.relations(sentence, heads)
    return tuple(
        true if head == right else likely
        for head, right, true, likely in zip(
            heads, sentence.heads, sentence.relations, likeliest, strict=True
        )
    )


def _read_reference(
    path: str, train_path: str, train: Sequence[TreeSentence]
) -> list[TreeSentence]:
    """Another annotator's trees of the training sentences."""
    found = read_conllu(Path(path))
    for sentence, other in zip(train, found, strict=False):
        if sentence.forms != other.forms:
            wanted, got = (
                " ".join(forms) for forms in _from_difference(sentence.forms, other.forms)
            )
            raise DataError(
                f"{path}, {_place(other)}: expected the sentence of {train_path},"
                f" {_place(sentence)}, which continues with {wanted!r}, got {got!r}"
            )
    if len(found) != len(train):
        raise DataError(
            f"{path}: expected the {len(train)} sentences of {train_path}, got {len(found)}"
        )
    return found


def _from_difference(
    wanted: tuple[str, ...], got: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """A few words of both from the first that differs; "the end" where one is over.

    >>> _from_difference(("It", "rains"), ("It", "rains", "."))
    (('the end',), ('.',))
    """
    same = next(
        (place for place, (a, b) in enumerate(zip(wanted, got, strict=False)) if a != b),
        min(len(wanted), len(got)),
    )
    return wanted[same : same + 3] or ("the end",), got[same : same + 3] or ("the end",)


def _place(sentence: TreeSentence) -> str:
    return f"line {sentence.line}" + (f" (sentence {sentence.sent_id})" if sentence.sent_id else "")


class Part(NamedTuple):
    """Sentences to be judged by, with their true trees, and their words as numbers."""

    sentences: Sequence[TreeSentence]
    codes: ArcCodes


class Prepared(NamedTuple):
    """All parts as numbers: made once, however many models are trained.

    Attributes:
        treebank: to train on.
        dev: to choose by.
        test: the test set.
        words: of the training sentences.
        nonprojective: training sentences with a tree that crosses, where the model is projective.
        lifted: training trees that crossed and were lifted.
        skipped: training sentences that were left out because a tree of theirs crossed.

    """

    treebank: Treebank
    dev: Part
    test: Part
    words: int
    nonprojective: int
    lifted: int
    skipped: int


@once(2)
def prepare(data: Data, features: Features, spanning: bool) -> Prepared:
    """Read, and number the words.

    For a projective model, lift the trees that cross or leave them out.
    """
    train, trees, dev, test = read_corpora(data)
    lifted = skipped = 0
    possible = trees
    crossing = np.zeros(len(train), bool) if spanning else trees.crossing()
    if crossing.any() and data.nonprojective == "skip":
        kept = np.flatnonzero(~crossing)
        skipped = len(train) - len(kept)
        if not len(kept):
            raise DataError(
                f"{data.train or 'the built-in world'}: expected a training sentence without"
                f" crossing arcs, got none among {len(train)}; choose nonprojective = lift, or"
                " spanning = true"
            )
        train, possible = [train[number] for number in kept.tolist()], trees.take(kept)
        trees = possible
    elif crossing.any():
        possible = trees.projectivised()
        lifted = sum(
            int((a != b).any(1).sum()) for a, b in zip(trees.heads, possible.heads, strict=True)
        )
    index = ArcIndex.fit(
        train,
        features.templates or None,
        features.relation_templates or None,
        min_freq=features.min_freq,
    )
    codes = index.encode(train)
    _check_columns(index, data, dev or (), test or ())
    judged = Part(train, codes) if dev is None else Part(dev, index.encode(dev))
    tested = judged if test is None else Part(test, index.encode(test))
    return Prepared(
        Treebank(index, codes, trees, possible),
        judged,
        tested,
        int(codes.lengths.sum()),
        int(crossing.sum()),
        lifted,
        skipped,
    )


def _check_columns(
    index: ArcIndex, data: Data, dev: Sequence[TreeSentence], test: Sequence[TreeSentence]
) -> None:
    """Files to be judged by must have the columns that the features of the training file look at."""
    judged = {data.dev: [*dev, *test]} if data.halve_dev else {data.dev: dev, data.test: test}
    for path, sentences in judged.items():
        if lacks_tags(index, sentences):
            raise DataError(
                f"{path}: expected words with UPOS or XPOS, as in {data.train}, got _ for every"
                " word; fill this in, or choose templates and relation_templates that do without"
            )


def statistics(gold: Sequence[TreeSentence], parses: Sequence[Parse]) -> Tensor:
    """Counts for each sentence (`softq.metrics.attachment_statistics`)."""
    return attachment_statistics(
        gold, [parse.heads for parse in parses], [parse.relations for parse in parses]
    )


def bayes_statistics(data: Data) -> Tensor:
    """Counts for each test sentence of the built-in world under its Bayes rule.

    The most right heads that the words allow.
    """
    if data.train:
        raise DataError("the Bayes rule is known of the built-in world alone")
    world = TreeWorld(crossing=data.crossing)
    sentences = read_corpora(data).test or ()
    heads = [world.bayes_heads(sentence) for sentence in sentences]
    return statistics(
        sentences,
        [
            Parse(tree, world.relations(sentence, tree))
            for sentence, tree in zip(sentences, heads, strict=True)
        ],
    )
