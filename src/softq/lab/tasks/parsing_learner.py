"""`softq.DependencyParser` as ``softq train parsing`` trains it."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from softq.lab.tasks.linear_learner import LinearLearner, Scored
from softq.lab.tasks.parsing_data import Part, Prepared, prepare, statistics
from softq.lab.tasks.parsing_recipe import ParsingRecipe
from softq.lab.torch_learner import generator_for
from softq.linear.parser import DependencyParser
from softq.linear.parser_training import ParserFit
from softq.metrics import Metric

Array = np.ndarray[Any, Any]


class Problem(NamedTuple):
    """A recipe with its data."""

    recipe: ParsingRecipe
    prepared: Prepared

    @classmethod
    def of(cls, recipe: ParsingRecipe) -> Problem:
        """Read and number, or find it done."""
        return cls(recipe, prepare(recipe.data, recipe.features, recipe.model.spanning))

    def estimator(self) -> DependencyParser:
        """The estimator with the options of the recipe."""
        recipe = self.recipe
        features, optimizer, training = recipe.features, recipe.optimizer, recipe.training
        return DependencyParser(
            objective=recipe.objective.name,
            tau=recipe.objective.tau,
            spanning=recipe.model.spanning,
            decoding=recipe.model.decoding,
            templates=features.templates or None,
            relation_templates=features.relation_templates or None,
            bits=features.bits,
            relation_bits=features.relation_bits,
            min_freq=features.min_freq,
            optimizer=optimizer.method,
            learning_rate=optimizer.learning_rate,
            relation_learning_rate=optimizer.relation_learning_rate,
            epochs=training.epochs,
            batch_size=training.batch_size,
            patience=training.patience,
            c2=optimizer.c2,
            max_iterations=optimizer.iterations,
            tolerance=optimizer.tolerance,
            num_memories=optimizer.memory,
            nonprojective=recipe.data.nonprojective,
            random_state=training.seed,
        )

    def batches(self, epoch: int) -> list[Array]:
        """The sentences of each batch of an epoch, by the seed and the epoch alone."""
        training, count = self.recipe.training, len(self.prepared.treebank)
        order = torch.randperm(count, generator=generator_for(training.seed, epoch)).numpy()
        return np.array_split(order, -(-count // training.batch_size))

    def score(self, model: DependencyParser, part: Part) -> Scored:
        """A model on the sentences of a split."""
        trees = model.parser_.parse_codes(part.codes, self.recipe.model.decoding)
        outputs = [{"heads": list(tree.heads), "relations": list(tree.relations)} for tree in trees]
        return Scored(statistics(part.sentences, trees), outputs)


class ParserLearner(LinearLearner[DependencyParser, ParserFit]):
    """Trees by AdaGrad, or by L-BFGS over all data, whose parser is scored when all of it is over."""

    estimator = DependencyParser

    def __init__(self, problem: Problem, metric: Metric) -> None:
        self._problem, self._estimator = problem, problem.estimator()
        bank, words = problem.prepared.treebank, problem.prepared.words
        fit = self._estimator.start(bank, self._estimator.settings(), problem.batches)
        super().__init__(fit, len(bank), {"loss": len(bank), "relation_loss": words}, metric)
        self.examples *= fit.passes_per_epoch

    def _model(self) -> DependencyParser:
        model = copy.copy(self._estimator)
        model.keep(self._fit)
        model.nonprojective_ = self._problem.prepared.nonprojective
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

    def _dev(self, model: DependencyParser) -> Scored:
        return self._problem.score(model, self._problem.prepared.dev)

    def _test(self, model: DependencyParser) -> Scored | None:
        prepared = self._problem.prepared
        return None if prepared.test is prepared.dev else self._problem.score(model, prepared.test)

    def _measures(self, model: DependencyParser) -> dict[str, float]:
        prepared = self._problem.prepared
        return self._fit.measures(model.parser_) | {
            "sentences": float(len(prepared.treebank)),
            "lifted": float(prepared.lifted),
            "skipped": float(prepared.skipped),
        }
