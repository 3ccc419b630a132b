"""`softq.CRFTagger` as ``softq train ner`` and ``softq train tag`` train it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from softq.formats.tags import Scheme, convert
from softq.lab.tasks.linear_learner import LinearLearner, Scored
from softq.lab.tasks.ner_data import Labelled, Prepared, label, prepare
from softq.lab.tasks.ner_recipe import NerRecipe, scheme_of
from softq.lab.torch_learner import generator_for
from softq.linear.features import FINKEL, FeatureMatrix
from softq.linear.tagger import CRFTagger
from softq.linear.tagger_training import BatchFit, SearchFit
from softq.linear.tagging import References, entity_reward
from softq.metrics import Metric, span_statistics

Array = np.ndarray[Any, Any]
_SENTENCES_AT_ONCE = 10_000  # whose features are made together where they are not kept


class Problem(NamedTuple):
    """A recipe with its data."""

    recipe: NerRecipe
    prepared: Prepared
    labelled: Labelled

    @classmethod
    def of(cls, recipe: NerRecipe) -> Problem:
        """Read, extract and label, or find it done."""
        options = recipe.annotations
        mend = recipe.model.constraints in ("target", "model")
        labelled = label(recipe.data, options.references, options.ties, options.weights, mend)
        if options.weights != "uniform":
            labels, weights = labelled.references
            shares = [(share / share.max()) ** options.sharpness for share in weights]
            labelled = labelled._replace(references=References(labels, shares))
        in_batches = recipe.optimizer.method == "adagrad"
        return cls(recipe, prepare(recipe.data, recipe.features, in_batches), labelled)

    @property
    def scheme(self) -> Scheme | None:
        """The scheme of the model's labels."""
        return scheme_of(self.recipe.data.train_scheme) or self.prepared.corpora.scheme

    @property
    def sentences(self) -> int:
        """Number of training sentences."""
        return len(self.labelled.references.labels)

    def estimator(self) -> CRFTagger:
        """The estimator with the options of the recipe."""
        recipe = self.recipe
        model, optimizer, training = recipe.model, recipe.optimizer, recipe.training
        weight, credit = recipe.annotations.entity_weight, recipe.annotations.type_credit
        reward = entity_reward(self.labelled.names, weight, credit).table if credit else None
        return CRFTagger(
            algorithm=optimizer.method,
            c2=optimizer.c2,
            min_freq=1.0,
            all_possible_states=model.all_possible_states,
            all_possible_transitions=model.all_possible_transitions,
            max_iterations=optimizer.iterations,
            num_memories=optimizer.memory,
            tolerance=optimizer.tolerance,
            learning_rate=optimizer.learning_rate,
            batch_size=training.batch_size,
            max_epochs=training.epochs,
            objective=recipe.objective.name,
            tau=recipe.objective.tau,
            reward=reward,
            entity_weight=1.0 if credit else weight,
            constraints=model.constraints,
            templates=None if recipe.features.templates == FINKEL else recipe.features.templates,
            hash_bits=recipe.features.hash_bits or None,
            decoding=model.decoding,
            random_state=training.seed,
        )

    def start(self, estimator: CRFTagger, fold: Array | None = None) -> SearchFit | BatchFit:
        """Start training on all sentences, or on those that are not in a fold."""
        prepared, references = self.prepared, self.labelled.references
        rest = (
            np.arange(self.sentences)
            if fold is None
            else np.delete(np.arange(self.sentences), fold)
        )
        count = -(-len(rest) // self.recipe.training.batch_size)
        # at equal distances: representative of the file even if it is sorted
        batches = [np.arange(number, len(rest), count) for number in range(count)]
        seed = self.recipe.training.seed

        def features(batch: Array | None) -> FeatureMatrix:
            if batch is None and fold is None and prepared.whole is not None:
                return prepared.whole.rows
            return prepared.training(rest if batch is None else rest[batch])

        def order(epoch: int) -> list[Array]:
            shuffled = torch.randperm(count, generator=generator_for(seed, epoch))
            return [batches[number] for number in shuffled.tolist()]

        return estimator.start(
            estimator.settings(self.labelled.names, self.scheme),
            prepared.index,
            features,
            references if fold is None else references.take(rest),
            order,
            prepared.whole.columns if fold is None and prepared.whole is not None else None,
        )

    def score(
        self,
        model: CRFTagger,
        matrix: FeatureMatrix,
        gold: Sequence[Sequence[str]],
        scheme: Scheme | None,
    ) -> Scored:
        """A model on sentences whose gold labels follow this scheme."""
        predicted = model.tagger_.decode(matrix, self.recipe.model.decoding)
        if self.scheme is not None and scheme is not None and self.scheme != scheme:
            predicted = [convert(labels, self.scheme, scheme) for labels in predicted]
        return Scored(span_statistics(gold, predicted, scheme).rows, predicted)

    def held_out(self, model: CRFTagger, sentences: Array) -> Scored:
        """A model on training sentences, whose heaviest reference stands for gold."""
        labels, weights = self.labelled.references
        names, parts = self.labelled.names, []
        for some in np.array_split(sentences, -(-len(sentences) // _SENTENCES_AT_ONCE)):
            gold = [[names[k] for k in labels[i][int(np.argmax(weights[i]))]] for i in some]
            parts.append(self.score(model, self.prepared.training(some), gold, self.scheme))
        outputs = [output for part in parts for output in part.outputs]
        return Scored(torch.cat([part.counts for part in parts]), outputs)


class TaggerLearner(LinearLearner[CRFTagger, SearchFit | BatchFit]):
    """Training on all data, after training on the complement of each fold where the development score comes from folds."""

    estimator = CRFTagger

    def __init__(self, problem: Problem, metric: Metric) -> None:
        self._problem, self._estimator = problem, problem.estimator()
        self._folds = problem.recipe.data.folds
        per = {"loss": problem.sentences, "kl": problem.sentences}
        super().__init__(self._begin(0), problem.sentences, per, metric)
        self._fit_steps = self.steps
        self.steps *= self._folds + 1
        if isinstance(self._fit, SearchFit):
            self.examples *= self.steps  # every iteration sees all of them
        # of held-out sentences
        self._counts = torch.zeros(problem.sentences if self._folds else 0, 7, dtype=torch.float64)
        self._converged = torch.zeros(self._folds + 1, dtype=torch.bool)

    def _fold(self, number: int) -> Array:
        """The sentences of a fold, at equal distances."""
        return np.arange(number, self._problem.sentences, self._folds)

    def _begin(self, number: int) -> SearchFit | BatchFit:
        """Start on the complement of a fold, or on all data, which comes last."""
        self._number = number
        fold = self._fold(number) if number < self._folds else None
        return self._problem.start(self._estimator, fold)

    def _step(self, epoch: int, step: int) -> None:
        number, step = divmod(step, self._fit_steps)
        if number != self._number:
            self._fit = self._begin(number)
        self._fit.step(epoch, step)
        if step == self._fit_steps - 1 and isinstance(self._fit, SearchFit):
            self._converged[number] = self._fit.search.converged
            self._fit.search.warn(f"fold {number}: " if number < self._folds else "")
            if number < self._folds:
                fold = self._fold(number)
                scored = self._problem.held_out(self._model(), fold)
                self._counts[fold] = scored.counts.double()

    def _scaled(self, measured: Mapping[str, float]) -> dict[str, float]:
        found = super()._scaled(measured)
        return (
            found | {"converged": float(self._converged.all())} if "converged" in found else found
        )

    def _model(self) -> CRFTagger:
        model = copy.copy(self._estimator)
        model.keep(
            self._fit,
            "pairs" if self._problem.recipe.features.pos else "words",
            self._problem.scheme,
        )
        model.file_scheme_ = self._problem.prepared.corpora.scheme
        model.pos_column_ = self._problem.recipe.features.pos
        return model

    def _dev(self, model: CRFTagger) -> Scored:
        if self._folds:  # the tagger of all data knows their sentences
            return Scored(self._counts, [])
        prepared = self._problem.prepared
        if prepared.corpora.dev is None or prepared.dev is None:
            return self._problem.held_out(model, np.arange(self._problem.sentences))
        gold, scheme = prepared.corpora.dev.gold, prepared.corpora.scheme
        return self._problem.score(model, prepared.dev, gold, scheme)

    def _test(self, model: CRFTagger) -> Scored | None:
        prepared = self._problem.prepared
        if prepared.corpora.test is None or prepared.test is None:
            return None
        gold, scheme = prepared.corpora.test.gold, prepared.corpora.scheme
        return self._problem.score(model, prepared.test, gold, scheme)

    def _measures(self, model: CRFTagger) -> dict[str, float]:
        if isinstance(self._fit, BatchFit):
            return {}
        measured = self._scaled(self._fit.end_epoch())
        return {"cross_entropy" if name == "loss" else name: measured[name] for name in measured}

    def state(self) -> dict[str, Tensor]:
        """The training under way, and what folds have brought."""
        folds = {"folds": self._counts, "converged": self._converged}
        return super().state() | folds | {"fit": torch.tensor(self._number)}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Resume from there."""
        self._counts, self._converged = state["folds"].clone(), state["converged"].clone()
        if int(state["fit"]) != self._number:
            self._fit = self._begin(int(state["fit"]))
        super().load_state(state)
