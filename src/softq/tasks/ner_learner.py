"""Training taggers in the loop of `softq.train`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from softq.data.tags import Scheme
from softq.evaluate import exact_match, span_f1, span_precision, span_recall, token_accuracy
from softq.features import FeatureMatrix
from softq.tagging import AdaGrad, ConvergenceWarning, CRFObjective, CRFSettings, References, Tagger, entity_reward, shortfall
from softq.tasks.ner_data import Labelled, Prepared, label, prepare, statistics
from softq.tasks.ner_recipe import NerRecipe, scheme_of
from softq.train import NonFiniteLossError, generator_for
from softq.train.lbfgs import LBFGS

Array = np.ndarray[Any, Any]
_MEASURES = {
    "f1": span_f1,
    "precision": span_precision,
    "recall": span_recall,
    "token_accuracy": token_accuracy,
    "exact_match": exact_match,
}


class Problem(NamedTuple):
    """A recipe with its data: all that training and judging need."""

    recipe: NerRecipe
    prepared: Prepared
    labelled: Labelled

    @classmethod
    def of(cls, recipe: NerRecipe) -> Problem:
        """Read, extract and label, or find it done."""
        annotations, constraints = recipe.annotations, recipe.model.constraints
        mend = constraints in ("target", "model")
        labelled = label(recipe.data, annotations.references, annotations.ties, annotations.weights, mend)
        if annotations.weights != "uniform":
            labels, weights = labelled.references
            sharpened = References(labels, [(share / share.max()) ** annotations.sharpness for share in weights])
            labelled = labelled._replace(references=sharpened)
        return cls(recipe, prepare(recipe.data, recipe.features), labelled)

    @property
    def trained_scheme(self) -> Scheme:
        """The scheme of the model's labels."""
        return scheme_of(self.recipe.data.train_scheme) or self.prepared.corpora.scheme

    @property
    def settings(self) -> CRFSettings:
        """What to train toward."""
        recipe, names = self.recipe, self.labelled.names
        return CRFSettings(
            labels=names,
            objective=recipe.objective.name,
            tau=recipe.objective.tau,
            reward=entity_reward(names, recipe.annotations.entity_weight, recipe.annotations.type_credit),
            scheme=self.trained_scheme,
            constraints=recipe.model.constraints,
            c2=recipe.optimizer.c2,
            all_states=recipe.model.all_possible_states,
            all_transitions=recipe.model.all_possible_transitions,
        )

    def tagger(self, weights: Array, transitions: Array) -> Tagger:
        """The tagger with these weights."""
        return Tagger(self.prepared.index, self.labelled.names, weights, transitions, self.settings.decoding_scheme)

    def notes(self) -> dict[str, Any]:
        """What a tagger's file remembers beside the tagger."""
        corpora, recipe = self.prepared.corpora, self.recipe
        return {
            "file_scheme": corpora.scheme,
            "trained_scheme": self.trained_scheme,
            "decoding": recipe.model.decoding,
            "pos": recipe.features.pos,
        }

    def judge(self, tagger: Tagger, matrix: FeatureMatrix, gold: Sequence[Sequence[str]]) -> Tensor:
        """Counts for each sentence."""
        predicted = tagger.decode(matrix, self.recipe.model.decoding)
        return statistics(gold, predicted, self.prepared.corpora.scheme, self.trained_scheme)

    def training_gold(self, sentences: Sequence[int] | Array) -> list[Sequence[str]]:
        """The heaviest reference of training sentences: what stands for gold where there is no other."""
        labels, weights = self.labelled.references
        names = self.labelled.names
        return [[names[k] for k in labels[i][int(np.argmax(weights[i]))]] for i in sentences]

    def dev(self, tagger: Tagger) -> Tensor:
        """Counts for each development sentence, or training sentence where there is no development part."""
        part = self.prepared.corpora.dev
        if part is not None and self.prepared.dev is not None:
            return self.judge(tagger, self.prepared.dev, part.gold)
        return self._on_training(tagger, self.prepared.train, np.arange(len(self.prepared.train.lengths)))

    def test(self, tagger: Tagger) -> Tensor:
        """Counts for each test sentence; the development part's where there is none."""
        part = self.prepared.corpora.test
        return self.dev(tagger) if part is None or self.prepared.test is None else self.judge(tagger, self.prepared.test, part.gold)

    def _on_training(self, tagger: Tagger, matrix: FeatureMatrix, sentences: Array) -> Tensor:
        predicted = tagger.decode(matrix, self.recipe.model.decoding)
        return statistics(self.training_gold(sentences), predicted, self.trained_scheme, self.trained_scheme)

    def held_out(self, tagger: Tagger, sentences: Array) -> Tensor:
        """Counts for each of these training sentences."""
        return self._on_training(tagger, self.prepared.train.take(sentences), sentences)


class _Judged:
    """What both learners do alike: judge, keep the best, and give it away."""

    cells = 1

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._best: Tagger | None = None

    def _tagger(self) -> Tagger:
        raise NotImplementedError

    def evaluate(self, active: Sequence[bool]) -> list[float]:
        """F1 on the development part."""
        return [float(span_f1(self._problem.dev(self._tagger()).sum(0)))]

    def keep_best(self, improved: Sequence[bool]) -> None:
        """The tagger as it is now."""
        self._best = self._tagger()

    def best(self) -> dict[str, Tensor]:
        """The best tagger, as its file holds it."""
        return self._kept().tensors(self._problem.notes())

    def load_best(self, best: Mapping[str, Tensor]) -> None:
        """Take this for the best one."""
        self._best, _ = Tagger.from_tensors(best)

    def _kept(self) -> Tagger:
        return self._best or self._tagger()

    def _final(self) -> dict[str, float]:
        problem, tagger = self._problem, self._kept()
        dev, test = problem.dev(tagger).sum(0), problem.test(tagger).sum(0)
        measures = {f"{part}_{name}": float(of(sums)) for part, sums in (("dev", dev), ("test", test)) for name, of in _MEASURES.items()}
        return {"test": measures["test_f1"], **measures}


class FoldLearner(_Judged):
    """L-BFGS on all data, after L-BFGS on the complement of each fold where the development score comes from folds."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        recipe = problem.recipe
        self._fits = recipe.data.folds + 1
        self._iterations = recipe.optimizer.iterations
        self.steps = self._fits * self._iterations
        self.examples = self.steps  # a step is a pass over the data: iterations are what is worth counting
        self._fit = -1
        self._search: LBFGS | None = None
        self._objective: CRFObjective | None = None
        self._fold_counts = torch.zeros(recipe.data.folds, 7, dtype=torch.float64)
        self._final_numbers: dict[str, float] = {}

    def _fold(self, number: int) -> Array:
        """The sentences of a fold, every so many-th."""
        return np.arange(number, len(self._problem.prepared.train.lengths), self._problem.recipe.data.folds)

    def _begin(self, fit: int) -> None:
        """Prepare a fit: the complement of fold ``fit``, or after the last fold all data."""
        problem, optimizer = self._problem, self._problem.recipe.optimizer
        references, matrix = problem.labelled.references, problem.prepared.train
        if fit < self._fits - 1:
            rest = np.setdiff1d(np.arange(len(matrix.lengths)), self._fold(fit))
            self._objective = problem.settings.whole(matrix.take(rest), references.take(rest))
        else:
            self._objective = problem.settings.whole(matrix, references, problem.prepared.columns)
        start = torch.zeros(self._objective.layout.size)
        self._search = LBFGS(start, self._objective, tolerance=optimizer.tolerance, memory=optimizer.memory)
        self._fit = fit

    def train(self, epoch: int, first: int, last: int, active: Sequence[bool]) -> None:
        """Iterations first..last-1, of whichever fit they belong to."""
        for step in range(first, last):
            fit, iteration = divmod(step, self._iterations)
            try:
                if fit != self._fit:
                    self._begin(fit)
                search = self._searching()
                if search.status == "going":
                    search.iterate()
            except FloatingPointError as error:
                point = {} if self._search is None else {"point": self._search.point}
                raise NonFiniteLossError(f"iteration {iteration}: {error}", point) from None
            if iteration == self._iterations - 1:
                self._end()

    def _searching(self) -> LBFGS:
        if self._search is None:
            raise RuntimeError("there is no search yet")
        return self._search

    def _end(self) -> None:
        """A fit is over: say so if it has not converged, and judge a fold by it."""
        optimizer = self._problem.recipe.optimizer
        problem = shortfall(self._searching(), optimizer.tolerance, optimizer.iterations)
        if problem is not None:
            where = f"fold {self._fit}: " if self._fit < self._fits - 1 else ""
            warnings.warn(where + problem, ConvergenceWarning, stacklevel=2)
        if self._fit < self._fits - 1:
            self._fold_counts[self._fit] = self._problem.held_out(self._tagger(), self._fold(self._fit)).sum(0)

    def _tagger(self) -> Tagger:
        if self._objective is None:
            self._begin(self._fits - 1)
        assert self._objective is not None  # noqa: S101 -- set by _begin
        return self._problem.tagger(*self._objective.layout.unpack(self._searching().point))

    def end_epoch(self, active: Sequence[bool]) -> dict[str, list[float]]:
        """Cross-entropy and KL to the target, per training sentence, and how far the search got."""
        numbers = self._numbers()
        return {"loss": [numbers["cross_entropy"]], **{name: [value] for name, value in numbers.items() if name != "cross_entropy"}}

    def _numbers(self) -> dict[str, float]:
        if not self._final_numbers:
            search, sentences = self._searching(), len(self._problem.prepared.train.lengths)
            objective = self._objective
            assert objective is not None  # noqa: S101 -- there is a search
            objective(search.point, torch.empty_like(search.point))
            self._final_numbers = {
                "cross_entropy": objective.cross_entropy / sentences,
                "kl": objective.kl / sentences,
                "penalised_loss": search.value,
                "gradient_norm": search.relative_norm,
                "iterations": float(search.iterations),
                "converged": float(search.status == "converged"),
                "parameters": float(objective.layout.size),
            }
        return self._final_numbers

    def evaluate(self, active: Sequence[bool]) -> list[float]:
        """F1 on the development part, or over all folds together."""
        if len(self._fold_counts):
            return [float(span_f1(self._fold_counts.sum(0)))]
        return super().evaluate(active)

    def test(self) -> list[dict[str, float]]:
        """Final measures, and how far the search got."""
        final = self._final() | self._final_numbers
        if len(self._fold_counts):
            sums = self._fold_counts.sum(0)
            final |= {f"dev_{name}": float(of(sums)) for name, of in _MEASURES.items()}
        return [final]

    def state(self) -> dict[str, Tensor]:
        """The search; of one that is over, only what it found."""
        state = {"folds": self._fold_counts, "fit": torch.tensor(self._fit)}
        if self._search is not None:
            kept = self._search.state()
            if self._search.status != "going":
                kept = {name: tensor for name, tensor in kept.items() if name in ("point", "gradient", "numbers", "counts")}
            state |= {f"search.{name}": tensor for name, tensor in kept.items()}
        if self._final_numbers:
            state["final"] = torch.tensor(list(self._final_numbers.values()), dtype=torch.float64)
        return state

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from there."""
        self._fold_counts = state["folds"].clone()
        if int(state["fit"]) >= 0:
            self._begin(int(state["fit"]))
            search = self._searching()
            kept = {name.removeprefix("search."): tensor for name, tensor in state.items() if name.startswith("search.")}
            search.load_state(search.state() | kept)  # of a search that is over, the rest is as good as any
        if "final" in state:
            self._final_numbers = dict(zip(self._numbers(), state["final"].tolist(), strict=True))


class BatchLearner(_Judged):
    """AdaGrad, a batch of sentences at a time."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        recipe = problem.recipe
        self.examples = len(problem.prepared.train.lengths)
        self._size = recipe.training.batch_size
        self.steps = -(-self.examples // self._size)
        self._descent = AdaGrad(problem.settings, problem.prepared.index.size, recipe.optimizer.learning_rate)
        for number in range(self.steps):
            self._descent.count(self._features(number))
        self._loss = torch.zeros(1, dtype=torch.float64)

    def _sentences(self, number: int) -> Array:
        return np.arange(number, self.examples, self.steps)  # every so many-th: like the whole, if the file is in some order

    def _features(self, number: int) -> FeatureMatrix:
        return self._problem.prepared.train.take(self._sentences(number))

    def train(self, epoch: int, first: int, last: int, active: Sequence[bool]) -> None:
        """Batches in an order of the epoch's own."""
        order = torch.randperm(self.steps, generator=generator_for(self._problem.recipe.training.seed, epoch))
        for number in order[first:last].tolist():
            references: References = self._problem.labelled.references.take(self._sentences(number))
            self._loss += self._descent.step(self._features(number), references)
        if not bool(torch.isfinite(self._loss)):
            raise NonFiniteLossError("the loss is not finite", {"weights": torch.from_numpy(self._descent.weights)})

    def _tagger(self) -> Tagger:
        return self._problem.tagger(*self._descent.unpack())

    def end_epoch(self, active: Sequence[bool]) -> dict[str, list[float]]:
        """Cross-entropy per training sentence."""
        mean = float(self._loss) / self.examples
        self._loss.zero_()
        return {"loss": [mean]}

    def test(self) -> list[dict[str, float]]:
        """Final measures."""
        return [self._final()]

    def state(self) -> dict[str, Tensor]:
        """Weights and step sizes."""
        return self._descent.state() | {"loss": self._loss}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from there."""
        self._descent.load_state(state)
        self._loss = state["loss"].clone()
