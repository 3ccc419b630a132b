"""Dependency parsing (paper §4.2, Tables 3 and 6, Appendix D.2.3).

A feature-based parser, `softq.DependencyParser`, a neural one, `softq.neural.BiaffineParser`, or an
encoder of Transformers, trained exactly by ML, RAML and SQDML.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from softq.errors import DataError
from softq.formats.conllu import TreeSentence, read_conllu
from softq.lab.loop import Learner
from softq.lab.processes import Workers
from softq.lab.run import Curves
from softq.lab.tasks.base import Task, named_scores
from softq.lab.tasks.curves import Believed, uncertainty
from softq.lab.tasks.files import once, read_splits
from softq.lab.tasks.linear_learner import LinearLearner, ScoredSplit, refuse_processes
from softq.lab.tasks.parsing_recipe import ParsingData, ParsingFeatures, ParsingRecipe
from softq.lab.torch_learner import generator_for
from softq.lab.worlds import TreeWorld
from softq.linear.features import ArcCodes, ArcIndex, lacks_tags
from softq.linear.parser import DependencyParser
from softq.linear.parser_training import EncodedTreebank, ParserFit
from softq.linear.parsing import Parse, Trees
from softq.metrics import ATTACHMENT_METRICS, Metric, attachment_statistics
from softq.rewards import Attachment

Array = np.ndarray[Any, Any]


class Parsing(Task):
    """The task."""

    name: ClassVar[str] = "parsing"
    recipe_type: ClassVar[type[ParsingRecipe]] = ParsingRecipe
    metrics: ClassVar[Mapping[str, Metric]] = ATTACHMENT_METRICS
    titles: ClassVar[Mapping[str, str]] = {"uas": "UAS", "las": "LAS", "exact_match": "exact match"}

    def learner(self, cells: Sequence[ParsingRecipe], workers: Workers) -> Learner:
        """One parser: a neural one, or a linear one by the optimizer that the recipe names."""
        refuse_processes(self.name, workers)
        if cells[0].model.kind != "linear":
            from softq.lab.tasks.parsing_neural import NeuralParserLearner

            return NeuralParserLearner(cells[0], self.metrics[self.chosen_by], workers)
        return _ParserLearner(cells[0], self.metrics[self.chosen_by])

    def facts(self, recipe: ParsingRecipe, outputs: Sequence[Any]) -> dict[str, Any]:
        """How far annotators are right, and the Bayes rule, in the built-in world."""
        corpora = read_corpora(recipe.data)
        facts: dict[str, Any] = {"examples": {"train": len(corpora.train)}}
        if recipe.data.train:
            return facts
        facts["bayes"] = named_scores(ATTACHMENT_METRICS, bayes_statistics(recipe.data))
        pairs = zip(corpora.train, corpora.trees.heads, strict=True)
        right = np.sum([(trees == one.heads).sum(1) for one, trees in pairs], 0)
        words = sum(len(sentence.heads) for sentence in corpora.train)
        if (right < words).any():
            facts["annotator_scores"] = (right / words).tolist()
        return facts

    def notes(self, measures: Mapping[str, Any]) -> list[str]:
        """What became of training trees that cross where a parser has none such.

        >>> Parsing().notes({"sentences": 90.0, "lifted": 0.0, "skipped": 10.0})
        ['crossing arcs: 10 of 100 training sentences were skipped']
        """
        sentences, skipped = measures.get("sentences", 0.0), measures.get("skipped", 0.0)
        if measures.get("lifted"):
            return [
                f"crossing arcs: {measures['lifted']:.0f} trees of {sentences:.0f} training"
                " sentences were lifted"
            ]
        told = f"crossing arcs: {skipped:.0f} of {sentences + skipped:.0f} training sentences"
        return [f"{told} were skipped"] if skipped else []

    def signature(self, recipe: ParsingRecipe) -> str:
        """The reward that training aims at."""
        return Attachment().signature


# --- data -------------------------------------------------------------------------------------------


class _Corpora(NamedTuple):
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
def read_corpora(data: ParsingData) -> _Corpora:
    """Read the files, or draw from the built-in world.

    What does not fit is an error with file and line.
    """
    world = TreeWorld(crossing=data.crossing)
    train, dev, test = read_splits(
        data,
        lambda split: read_conllu(Path(getattr(data, split))),
        lambda _, size, seed: world.sample(size, seed=seed),
    )
    heads, relations = _annotations(data, world, train)
    arrays = [np.array(trees, np.int64) for trees in heads]
    trees = Trees(arrays, relations, [np.ones(len(trees)) for trees in arrays])
    return _Corpora(train, trees, dev, test)


def _annotations(
    data: ParsingData, world: TreeWorld, train: Sequence[TreeSentence]
) -> tuple[list[list[tuple[int, ...]]], list[list[tuple[str, ...]]]]:
    """Heads and relations of each training sentence by each annotator, or the true ones alone."""
    if data.annotators and not data.train:
        heads = world.annotate(
            train, annotators=data.annotators, carelessness=data.carelessness, seed=data.seed
        )
        return heads, [
            [_relations(world, sentence, tree) for tree in trees]
            for sentence, trees in zip(train, heads, strict=True)
        ]
    others = [_read_reference(path, data.train, train) for path in data.references]
    annotated = list(zip(train, *others, strict=True))
    return (
        [[one.heads for one in versions] for versions in annotated],
        [[one.relations for one in versions] for versions in annotated],
    )


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


class _EvaluationSplit(NamedTuple):
    """Sentences to evaluate on, with their true trees, and their words as numbers."""

    sentences: Sequence[TreeSentence]
    codes: ArcCodes


class _Prepared(NamedTuple):
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

    treebank: EncodedTreebank
    dev: _EvaluationSplit
    test: _EvaluationSplit
    words: int
    nonprojective: int
    lifted: int
    skipped: int


def prepare(recipe: ParsingRecipe) -> _Prepared:
    """Read and number, or find it done."""
    return _prepare(recipe.data, recipe.features, recipe.model.spanning)


@once(2)
def _prepare(data: ParsingData, features: ParsingFeatures, spanning: bool) -> _Prepared:
    """Read, and number the words."""
    _, _, dev, test = read_corpora(data)
    train, trees, possible, nonprojective, lifted, skipped = learnable(data, spanning)
    index = ArcIndex.fit(
        train,
        features.templates or None,
        features.relation_templates or None,
        min_freq=features.min_freq,
    )
    codes = index.encode(train)
    check_columns(partial(lacks_tags, index), data, dev or (), test or ())
    judged = (
        _EvaluationSplit(train, codes) if dev is None else _EvaluationSplit(dev, index.encode(dev))
    )
    tested = judged if test is None else _EvaluationSplit(test, index.encode(test))
    return _Prepared(
        EncodedTreebank(index, codes, trees, possible),
        judged,
        tested,
        int(codes.lengths.sum()),
        nonprojective,
        lifted,
        skipped,
    )


class Learnable(NamedTuple):
    """What a parser can learn of the training sentences.

    Attributes:
        sentences: those that are not left out.
        trees: of them, as they are.
        possible: the same, lifted where they cross and the model is projective.
        nonprojective: sentences with a tree that crosses, where the model is projective.
        lifted: trees that were lifted.
        skipped: sentences that were left out.

    """

    sentences: Sequence[TreeSentence]
    trees: Trees
    possible: Trees
    nonprojective: int
    lifted: int
    skipped: int


def learnable(data: ParsingData, spanning: bool) -> Learnable:
    """For a projective model, lift the trees that cross or leave them out."""
    train, trees, _, _ = read_corpora(data)
    crossing = np.zeros(len(train), bool) if spanning else trees.crossing()
    skipped = int(crossing.sum()) if data.nonprojective == "skip" else 0
    if skipped:
        train, trees = _keep(np.flatnonzero(~crossing), train, trees, data)
    possible = trees.projectivised() if crossing.any() and not skipped else trees
    lifted = sum(
        int((a != b).any(1).sum()) for a, b in zip(trees.heads, possible.heads, strict=True)
    )
    return Learnable(train, trees, possible, int(crossing.sum()), lifted, skipped)


def _keep(
    kept: Array, train: Sequence[TreeSentence], trees: Trees, data: ParsingData
) -> tuple[Sequence[TreeSentence], Trees]:
    """Training sentences whose trees do not cross."""
    if not len(kept):
        raise DataError(
            f"{data.train or 'the built-in world'}: expected a training sentence without"
            f" crossing arcs, got none among {len(train)}; choose nonprojective = lift, or"
            " spanning = true"
        )
    return [train[number] for number in kept.tolist()], trees.take(kept)


def check_columns(
    lacks: Callable[[Sequence[TreeSentence]], bool],
    data: ParsingData,
    dev: Sequence[TreeSentence],
    test: Sequence[TreeSentence],
) -> None:
    """Files to evaluate on must have the columns of the training file that a parser looks at."""
    judged = {data.dev: [*dev, *test]} if data.halve_dev else {data.dev: dev, data.test: test}
    for path, sentences in judged.items():
        if lacks(sentences):
            raise DataError(
                f"{path}: expected words with UPOS or XPOS, as in {data.train}, got _ for every"
                " word; fill this in, or choose templates and relation_templates that do without"
            )


def parse_statistics(gold: Sequence[TreeSentence], parses: Sequence[Parse]) -> Tensor:
    """Counts of right heads and relations for each sentence."""
    heads = [parse.heads for parse in parses]
    return attachment_statistics(gold, heads, [parse.relations for parse in parses])


@once(2)
def bayes_statistics(data: ParsingData) -> Tensor:
    """Counts for each test sentence of the built-in world under its Bayes rule.

    The most right heads that the words allow.
    """
    world, sentences = TreeWorld(crossing=data.crossing), read_corpora(data).test or ()
    heads = [world.bayes_heads(sentence) for sentence in sentences]
    parses = [
        Parse(tree, world.relations(sentence, tree))
        for sentence, tree in zip(sentences, heads, strict=True)
    ]
    return parse_statistics(sentences, parses)


# --- training ---------------------------------------------------------------------------------------


class _ParserLearner(LinearLearner[DependencyParser, ParserFit]):
    """Trees by AdaGrad, or by L-BFGS over all data, whose parser is scored when all of it is over."""

    estimator = DependencyParser

    def __init__(self, recipe: ParsingRecipe, metric: Metric) -> None:
        self._recipe, self._prepared = recipe, prepare(recipe)
        features, bank = recipe.features, self._prepared.treebank
        self._estimator = self.make(
            recipe,
            optimizer=recipe.optimizer.method,
            nonprojective=recipe.data.nonprojective,
            templates=features.templates or None,
            relation_templates=features.relation_templates or None,
        )
        fit = self._estimator.start(bank, self._estimator.settings(), self.batches)
        per = {"loss": len(bank), "relation_loss": self._prepared.words}
        super().__init__(fit, len(bank), per, metric)
        self.examples *= fit.passes_per_epoch

    def batches(self, epoch: int) -> list[Array]:
        """The sentences of each batch of an epoch, by the seed and the epoch alone."""
        training, count = self._recipe.training, len(self._prepared.treebank)
        order = torch.randperm(count, generator=generator_for(training.seed, epoch)).numpy()
        return np.array_split(order, -(-count // training.batch_size))

    def _model(self) -> DependencyParser:
        model = copy.copy(self._estimator)
        model.keep(self._fit)
        model.nonprojective_ = self._prepared.nonprojective
        return model

    def end_epoch(self, active: Sequence[bool]) -> dict[str, list[float]]:
        """Cross-entropies of trees per sentence and of relations per word, and how far L-BFGS got."""
        if self._fit.search is not None and self._fit.over:
            self._fit.search.warn()
        return super().end_epoch(active)

    def evaluate(self, active: Sequence[bool]) -> list[float]:
        """UAS on the development set.

        NaN, which makes no parser the best one, before L-BFGS is over.
        """
        unfinished = self._fit.search is not None and not self._fit.over
        return [math.nan] if unfinished else super().evaluate(active)

    def _evaluate_split(self, model: DependencyParser, split: str) -> ScoredSplit | None:
        judged: _EvaluationSplit = getattr(self._prepared, split)
        if split == "test" and judged is self._prepared.dev:
            return None
        trees = model.parser_.parse_codes(judged.codes, self._recipe.decoding)
        outputs = [{"heads": list(tree.heads), "relations": list(tree.relations)} for tree in trees]
        return ScoredSplit(parse_statistics(judged.sentences, trees), outputs)

    def _curves(self, model: DependencyParser) -> Curves | None:
        _, _, dev, test = read_corpora(self._recipe.data)

        def believed(split: _EvaluationSplit) -> Believed:
            trees = list(model.parser_.trees(split.codes))
            return Believed(trees, [np.array(one.heads) for one in split.sentences])

        if dev is None:
            return None
        tested = None if test is None else believed(self._prepared.test)
        return uncertainty("heads", believed(self._prepared.dev), tested)

    def _measures(self, model: DependencyParser) -> dict[str, float]:
        prepared = self._prepared
        return self._fit.measures(model.parser_) | {
            "sentences": float(len(prepared.treebank)),
            "lifted": float(prepared.lifted),
            "skipped": float(prepared.skipped),
        }
