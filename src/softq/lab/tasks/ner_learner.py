"""Training taggers in `softq.lab.loop`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from softq.formats.tags import Scheme, convert
from softq.lab.loop import Evaluation, NonFiniteLossError
from softq.lab.tasks.judged import Judged, Scored
from softq.lab.tasks.ner_data import Labelled, Prepared, label, prepare
from softq.lab.tasks.ner_recipe import NerRecipe, scheme_of
from softq.lab.tasks.searches import load_search, search_state
from softq.lab.torch_learner import generator_for
from softq.linear.features import FeatureMatrix
from softq.linear.lbfgs import LBFGS, shortfall
from softq.linear.tagging import (
    AdaGrad,
    ConvergenceWarning,
    CRFObjective,
    CRFSettings,
    References,
    Tagger,
    entity_reward,
)
from softq.metrics import SPAN_METRICS, span_f1, span_statistics

Array = np.ndarray[Any, Any]
_SENTENCES_AT_ONCE = 10_000  # whose features are made together where they are not kept


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
        labelled = label(
            recipe.data, annotations.references, annotations.ties, annotations.weights, mend
        )
        if annotations.weights != "uniform":
            labels, weights = labelled.references
            sharpened = References(
                labels, [(share / share.max()) ** annotations.sharpness for share in weights]
            )
            labelled = labelled._replace(references=sharpened)
        return cls(
            recipe,
            prepare(recipe.data, recipe.features, recipe.optimizer.method == "adagrad"),
            labelled,
        )

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
            reward=entity_reward(
                names, recipe.annotations.entity_weight, recipe.annotations.type_credit
            ),
            scheme=self.trained_scheme,
            constraints=recipe.model.constraints,
            c2=recipe.optimizer.c2,
            all_states=recipe.model.all_possible_states,
            all_transitions=recipe.model.all_possible_transitions,
        )

    def tagger(self, weights: Array, transitions: Array) -> Tagger:
        """The tagger with these weights."""
        return Tagger(
            self.prepared.index,
            self.labelled.names,
            weights,
            transitions,
            self.settings.decoding_scheme,
        )

    def notes(self) -> dict[str, Any]:
        """What a tagger's file remembers beside the tagger."""
        corpora, recipe = self.prepared.corpora, self.recipe
        return {
            "file_scheme": corpora.scheme,
            "trained_scheme": self.trained_scheme,
            "decoding": recipe.model.decoding,
            "pos": recipe.features.pos,
        }

    def judge(self, tagger: Tagger, matrix: FeatureMatrix, gold: Sequence[Sequence[str]]) -> Scored:
        """The sentences of a file, in its scheme."""
        predicted = tagger.decode(matrix, self.recipe.model.decoding)
        scheme = self.prepared.corpora.scheme
        if self.trained_scheme != scheme:
            predicted = [convert(labels, self.trained_scheme, scheme) for labels in predicted]
        return Scored(
            span_statistics(gold, predicted, scheme).rows, [list(labels) for labels in predicted]
        )

    def training_gold(self, sentences: Sequence[int] | Array) -> list[Sequence[str]]:
        """The heaviest reference of training sentences: what stands for gold where there is no other."""
        labels, weights = self.labelled.references
        names = self.labelled.names
        return [[names[k] for k in labels[i][int(np.argmax(weights[i]))]] for i in sentences]

    def dev(self, tagger: Tagger) -> Scored:
        """The development split, or the training sentences where there is none."""
        part = self.prepared.corpora.dev
        if part is not None and self.prepared.dev is not None:
            return self.judge(tagger, self.prepared.dev, part.gold)
        return self.held_out(tagger, np.arange(self.sentences))

    def test(self, tagger: Tagger) -> Scored | None:
        """The test set; None where there is none."""
        part = self.prepared.corpora.test
        return (
            None
            if part is None or self.prepared.test is None
            else self.judge(tagger, self.prepared.test, part.gold)
        )

    def held_out(self, tagger: Tagger, sentences: Array) -> Scored:
        """These training sentences, in the scheme that is trained."""
        predicted: list[list[str]] = []
        for some in np.array_split(sentences, -(-len(sentences) // _SENTENCES_AT_ONCE)):
            predicted += tagger.decode(self.prepared.training(some), self.recipe.model.decoding)
        return Scored(
            span_statistics(self.training_gold(sentences), predicted, self.trained_scheme).rows,
            predicted,
        )

    @property
    def sentences(self) -> int:
        """Number of training sentences."""
        return len(self.labelled.references.labels)


_FINAL = (
    "cross_entropy",
    "kl",
    "penalised_loss",
    "gradient_norm",
    "iterations",
    "converged",
    "parameters",
)


class _TaggerLearner(Judged[Tagger]):
    """What both learners do alike."""

    metrics = SPAN_METRICS
    metric = "f1"

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._problem = problem

    def _read(self, tensors: Mapping[str, Tensor]) -> Tagger:
        return Tagger.from_tensors(tensors)[0]


class _Fit(NamedTuple):
    """One minimisation: of the complement of a fold, or of all data, which comes last."""

    number: int
    objective: CRFObjective
    search: LBFGS


class FoldLearner(_TaggerLearner):
    """L-BFGS on all data, after L-BFGS on the complement of each fold where the development score comes from folds."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        recipe = problem.recipe
        self._folds, self._iterations = recipe.data.folds, recipe.optimizer.iterations
        self.steps = (self._folds + 1) * self._iterations
        self.examples = self.steps * problem.sentences  # every iteration sees all of them
        self._fit: _Fit | None = None
        self._fold_counts = torch.zeros(
            problem.sentences if self._folds else 0, 7, dtype=torch.float64
        )  # of held-out sentences
        self._converged = torch.zeros(self._folds + 1, dtype=torch.bool)
        self._final_numbers: dict[str, float] = {}

    def _fold(self, number: int) -> Array:
        """The sentences of a fold, every so many-th."""
        return np.arange(number, self._problem.sentences, self._folds)

    def _begin(self, number: int) -> _Fit:
        """Prepare a fit."""
        problem, optimizer = self._problem, self._problem.recipe.optimizer
        references, whole = problem.labelled.references, problem.prepared.whole
        if number == self._folds and whole is not None:
            objective = problem.settings.whole(whole.rows, references, whole.columns)
        else:
            rest = np.setdiff1d(np.arange(problem.sentences), self._fold(number))
            objective = problem.settings.whole(
                problem.prepared.training(rest), references.take(rest)
            )
        start = torch.zeros(objective.layout.size)
        self._fit = _Fit(
            number,
            objective,
            LBFGS(start, objective, tolerance=optimizer.tolerance, memory=optimizer.memory),
        )
        return self._fit

    def train(self, epoch: int, first: int, last: int, active: Sequence[bool]) -> None:
        """Iterations first..last-1, of whichever fit they belong to."""
        for step in range(first, last):
            number, iteration = divmod(step, self._iterations)
            try:
                fit = (
                    self._fit
                    if self._fit is not None and self._fit.number == number
                    else self._begin(number)
                )
                fit.search.iterate()
            except FloatingPointError as error:
                point = {} if self._fit is None else {"point": self._fit.search.point}
                raise NonFiniteLossError(f"iteration {iteration}: {error}", point) from None
            if iteration == self._iterations - 1:
                self._end(fit)

    def _end(self, fit: _Fit) -> None:
        """A fit is over: say so if it has not converged, and judge a fold by it."""
        optimizer = self._problem.recipe.optimizer
        problem = shortfall(fit.search, optimizer.tolerance, optimizer.iterations)
        self._converged[fit.number] = problem is None
        if problem is not None:
            where = f"fold {fit.number}: " if fit.number < self._folds else ""
            warnings.warn(where + problem, ConvergenceWarning, stacklevel=2)
        if fit.number < self._folds:
            fold = self._fold(fit.number)
            self._fold_counts[fold] = self._problem.held_out(self._model(), fold).counts.double()

    def _model(self) -> Tagger:
        fit = self._fit or self._begin(self._folds)
        return self._problem.tagger(*fit.objective.layout.unpack(fit.search.point))

    def end_epoch(self, active: Sequence[bool]) -> dict[str, list[float]]:
        """Cross-entropy and KL to the target, per training sentence, and how far the search got."""
        fit, sentences = self._fit or self._begin(self._folds), self._problem.sentences
        fit.objective(fit.search.point, torch.empty_like(fit.search.point))
        found = (
            fit.objective.cross_entropy / sentences,
            fit.objective.kl / sentences,
            fit.search.value,
            fit.search.relative_norm,
            float(fit.search.iterations),
            float(self._converged.all()),
            float(fit.objective.layout.size),
        )
        self._final_numbers = dict(zip(_FINAL, found, strict=True))
        return {
            "loss" if name == "cross_entropy" else name: [value]
            for name, value in self._final_numbers.items()
        }

    def evaluate(self, active: Sequence[bool]) -> list[float]:
        """F1 on the development part, or over all folds together."""
        if self._folds:
            return [float(span_f1(self._fold_counts.sum(0)))]
        return super().evaluate(active)

    def evaluate_best(self) -> Evaluation:
        """The best tagger on both splits; folds stand for a development split, for the tagger of all data knows their sentences."""
        if not self._folds:
            return super().evaluate_best()
        return self._judged(Scored(self._fold_counts, []), self._problem.test(self._kept()))

    def _measures(self) -> dict[str, float]:
        """How far the search got."""
        return self._final_numbers

    def state(self) -> dict[str, Tensor]:
        """The search; of one that is over, only what it found."""
        state = {"folds": self._fold_counts, "converged": self._converged}
        if self._fit is not None:
            state |= {"fit": torch.tensor(self._fit.number), **search_state(self._fit.search)}
        return state | {
            f"final.{name}": torch.tensor(value, dtype=torch.float64)
            for name, value in self._final_numbers.items()
        }

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from there."""
        self._fold_counts, self._converged = state["folds"].clone(), state["converged"].clone()
        if "fit" in state:
            load_search(self._begin(int(state["fit"])).search, state)
        named = {
            name.removeprefix("final."): float(tensor)
            for name, tensor in state.items()
            if name.startswith("final.")
        }
        self._final_numbers = {name: named[name] for name in _FINAL if name in named}


class BatchLearner(_TaggerLearner):
    """AdaGrad, a batch of sentences at a time; their features are made when it is their turn, and not kept."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        recipe = problem.recipe
        self.examples = problem.sentences
        self._size = recipe.training.batch_size
        self.steps = -(-self.examples // self._size)
        self._descent = AdaGrad(
            problem.settings, problem.prepared.index.size, recipe.optimizer.learning_rate
        )
        for number in range(self.steps):
            self._descent.count(self._features(number))
        self._loss = torch.zeros(1, dtype=torch.float64)

    def _sentences(self, number: int) -> Array:
        return np.arange(
            number, self.examples, self.steps
        )  # every so many-th: like the whole, if the file is in some order

    def _features(self, number: int) -> FeatureMatrix:
        return self._problem.prepared.training(self._sentences(number))

    def train(self, epoch: int, first: int, last: int, active: Sequence[bool]) -> None:
        """Batches in an order of the epoch's own."""
        order = torch.randperm(
            self.steps, generator=generator_for(self._problem.recipe.training.seed, epoch)
        )
        for number in order[first:last].tolist():
            references: References = self._problem.labelled.references.take(self._sentences(number))
            self._loss += self._descent.step(self._features(number), references)
        if not bool(torch.isfinite(self._loss)):
            raise NonFiniteLossError(
                "the loss is not finite", {"weights": torch.from_numpy(self._descent.weights)}
            )

    def _model(self) -> Tagger:
        return self._problem.tagger(*self._descent.unpack())

    def end_epoch(self, active: Sequence[bool]) -> dict[str, list[float]]:
        """Cross-entropy per training sentence."""
        mean = float(self._loss) / self.examples
        self._loss.zero_()
        return {"loss": [mean]}

    def state(self) -> dict[str, Tensor]:
        """Weights and step sizes."""
        return self._descent.state() | {"loss": self._loss}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from there."""
        self._descent.load_state(state)
        self._loss = state["loss"].clone()
