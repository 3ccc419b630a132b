"""Training parsers in `softq.lab.loop`."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from softq.errors import ConvergenceWarning
from softq.lab.loop import NonFiniteLossError
from softq.lab.tasks.judged import Judged, Scored
from softq.lab.tasks.parsing_data import Part, Prepared, prepare, statistics
from softq.lab.tasks.parsing_recipe import ParsingRecipe
from softq.lab.tasks.searches import load_search, search_state
from softq.lab.torch_learner import generator_for
from softq.linear.lbfgs import LBFGS, shortfall
from softq.linear.parsing import Descent, Parser, ParserObjective, ParserSettings
from softq.metrics import ATTACHMENT_METRICS

Array = np.ndarray[Any, Any]


class Problem(NamedTuple):
    """A recipe with its data: all that training and judging need."""

    recipe: ParsingRecipe
    prepared: Prepared

    @classmethod
    def of(cls, recipe: ParsingRecipe) -> Problem:
        """Read and number, or find it done."""
        return cls(recipe, prepare(recipe.data, recipe.features, recipe.model.spanning))

    @property
    def settings(self) -> ParserSettings:
        """What to train toward, and how large a parser."""
        recipe = self.recipe
        objective, features = recipe.objective, recipe.features
        return ParserSettings(
            objective.name,
            objective.tau,
            recipe.model.spanning,
            features.bits,
            features.relation_bits,
        )

    @property
    def sentences(self) -> int:
        """Number of training sentences."""
        return len(self.prepared.treebank)

    def notes(self) -> dict[str, Any]:
        """What a parser's file remembers beside the parser."""
        return {"decoding": self.recipe.model.decoding}

    def judge(self, parser: Parser, part: Part) -> Scored:
        """The sentences of a split."""
        trees = parser.parse_codes(part.codes, self.recipe.model.decoding)
        outputs = [{"heads": list(tree.heads), "relations": list(tree.relations)} for tree in trees]
        return Scored(statistics(part.sentences, trees), outputs)

    def dev(self, parser: Parser, /) -> Scored:
        """The development split, or the training sentences where there is none."""
        return self.judge(parser, self.prepared.dev)

    def test(self, parser: Parser, /) -> Scored | None:
        """The test set; None where there is none."""
        return (
            None
            if self.prepared.test is self.prepared.dev
            else self.judge(parser, self.prepared.test)
        )

    def batches(self) -> int:
        """Steps of one pass over the training sentences."""
        return -(-self.sentences // self.recipe.training.batch_size)

    def order(self, epoch: int) -> list[Array]:
        """The sentences of each batch of an epoch, by the seed and the epoch alone."""
        order = torch.randperm(
            self.sentences, generator=generator_for(self.recipe.training.seed, epoch)
        ).numpy()
        return np.array_split(order, self.batches())


class _ParserLearner(Judged[Parser]):
    """What both learners do alike: relations beside the trees, and the measures of the end."""

    metrics = ATTACHMENT_METRICS
    metric = "uas"

    def __init__(self, problem: Problem, *, trees: bool) -> None:
        super().__init__(problem)
        self._problem = problem
        optimizer = problem.recipe.optimizer
        self._descent = Descent(
            problem.prepared.treebank,
            problem.settings,
            optimizer.learning_rate,
            optimizer.relation_learning_rate,
            trees=trees,
        )
        self._loss = self._relation_loss = 0.0  # of this epoch so far, summed

    def _read(self, tensors: Mapping[str, Tensor]) -> Parser:
        return Parser.from_tensors(tensors)[0]

    def _step(self, sentences: Array) -> None:
        """One batch."""
        losses = self._descent.step(sentences)
        if not all(map(math.isfinite, losses)):
            codes = self._problem.prepared.treebank.codes.take(sentences)
            batch = {
                "sentences": sentences,
                "codes": codes.codes,
                "starts": codes.starts,
                "weights": self._descent.weights,
            }
            raise NonFiniteLossError(
                f"the loss is not finite: {losses[0]:g} of trees, {losses[1]:g} of relations",
                {name: torch.from_numpy(array) for name, array in batch.items()},
            )
        self._loss += losses[0]
        self._relation_loss += losses[1]

    def _take_losses(self) -> tuple[float, float]:
        """What the epoch's steps found, of trees per sentence and of relations per word; then forget it."""
        means = (
            self._loss / self._problem.sentences,
            self._relation_loss / self._problem.prepared.words,
        )
        self._loss = self._relation_loss = 0.0
        return means

    def _objective(self) -> ParserObjective:
        raise NotImplementedError

    def _measures(self) -> dict[str, float]:
        """How near the best parser comes to the targets of the training sentences, and what was trained on.

        ``kl`` is the cross-entropy less the target's entropy, KL(target ‖ model). RAML of several trees is a mixture, whose own entropy
        nobody can sum up: the mean of its components' is subtracted, so that ``kl`` is the mean of KL(component ‖ model), one component
        for each tree.
        """
        problem, parser, objective = self._problem, self._kept(), self._objective()
        objective(torch.from_numpy(parser.weights))
        return {
            "cross_entropy": objective.cross_entropy / problem.sentences,
            "kl": objective.kl / problem.sentences,
            "relation_loss": sum(
                self._descent.relation_loss(batch, parser) for batch in problem.order(0)
            )
            / problem.prepared.words,
            "sentences": float(problem.sentences),
            "lifted": float(problem.prepared.lifted),
            "skipped": float(problem.prepared.skipped),
            "parameters": float(parser.weights.size + parser.relation_weights.size),
        }

    def state(self) -> dict[str, Tensor]:
        """Weights, step sizes and sums of weights."""
        return self._descent.state() | {
            "losses": torch.tensor([self._loss, self._relation_loss], dtype=torch.float64)
        }

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from there."""
        self._descent.load_state(state)
        self._loss, self._relation_loss = state["losses"].tolist()


class DescentLearner(_ParserLearner):
    """AdaGrad for trees and relations, a batch of sentences at a time, in new batches every epoch."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem, trees=True)
        self.examples, self.steps = problem.sentences, problem.batches()

    def train(self, epoch: int, first: int, last: int, active: Sequence[bool]) -> None:
        """Batches first..last-1 of the epoch's own."""
        for batch in self._problem.order(epoch)[first:last]:
            self._step(batch)

    def _model(self) -> Parser:
        return self._descent.parser()

    def _objective(self) -> ParserObjective:
        return ParserObjective(self._problem.prepared.treebank, self._problem.settings, once=True)

    def end_epoch(self, active: Sequence[bool]) -> dict[str, list[float]]:
        """Cross-entropies of trees per sentence and of relations per word, each batch's before its step."""
        loss, of_relations = self._take_losses()
        return {"loss": [loss], "relation_loss": [of_relations]}


class SearchLearner(_ParserLearner):
    """L-BFGS for trees, on all data at once, and AdaGrad for relations: an epoch is its share of the iterations, and a pass of AdaGrad.

    The parser is judged when all of it is over: development scores of epochs before are NaN, which makes no parser the best one.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem, trees=False)
        recipe = problem.recipe
        self._iterations = recipe.optimizer.iterations
        self._share = -(-self._iterations // recipe.training.epochs)
        self.steps = self._share + problem.batches()
        self.examples = (self._share + 1) * problem.sentences  # every iteration sees all of them
        self._known: tuple[ParserObjective, LBFGS] | None = None

    def _begun(self) -> tuple[ParserObjective, LBFGS]:
        if self._known is None:
            optimizer = self._problem.recipe.optimizer
            objective = ParserObjective(
                self._problem.prepared.treebank, self._problem.settings, optimizer.c2
            )
            search = LBFGS(
                torch.zeros(objective.size),
                objective,
                tolerance=optimizer.tolerance,
                memory=optimizer.memory,
            )
            self._known = objective, search
        return self._known

    def train(self, epoch: int, first: int, last: int, active: Sequence[bool]) -> None:
        """Steps first..last-1: iterations, then batches of relations."""
        batches = self._problem.order(epoch)
        for step in range(first, last):
            if step >= self._share:
                self._step(batches[step - self._share])
            elif epoch * self._share + step < self._iterations:
                self._iterate(epoch * self._share + step)
        if last == self.steps and self._over():
            problem = shortfall(
                self._begun()[1], self._problem.recipe.optimizer.tolerance, self._iterations
            )
            if problem is not None:
                warnings.warn(problem, ConvergenceWarning, stacklevel=2)

    def _iterate(self, iteration: int) -> None:
        try:
            self._begun()[1].iterate()
        except FloatingPointError as error:
            point = {} if self._known is None else {"point": self._known[1].point}
            raise NonFiniteLossError(f"iteration {iteration}: {error}", point) from None

    def _over(self) -> bool:
        """Whether the last pass of relations is done, and with it everything."""
        return self._descent.steps == self._problem.batches() * self._problem.recipe.training.epochs

    def _model(self) -> Parser:
        return self._descent.parser(self._begun()[1].point.numpy())

    def _objective(self) -> ParserObjective:
        return self._begun()[0]

    def evaluate(self, active: Sequence[bool]) -> list[float]:
        """UAS on the development part, when training is over."""
        return super().evaluate(active) if self._over() else [math.nan]

    def end_epoch(self, active: Sequence[bool]) -> dict[str, list[float]]:
        """Cross-entropy of trees per sentence at this point, of relations per word before each step, and how far the search got."""
        _, search = self._begun()
        penalty = self._problem.recipe.optimizer.c2 * float(search.point.double().square().sum())
        _, of_relations = self._take_losses()
        found = {
            "loss": (search.value - penalty) / self._problem.sentences,
            "relation_loss": of_relations,
        } | self._reached()
        return {name: [value] for name, value in found.items()}

    def _reached(self) -> dict[str, float]:
        _, search = self._begun()
        return {
            "penalised_loss": search.value,
            "gradient_norm": search.relative_norm,
            "iterations": float(search.iterations),
            "converged": float(search.status == "converged"),
        }

    def _measures(self) -> dict[str, float]:
        return super()._measures() | self._reached()

    def state(self) -> dict[str, Tensor]:
        """The search as well."""
        return super().state() | search_state(self._begun()[1])

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from there."""
        super().load_state(state)
        load_search(self._begun()[1], state)
