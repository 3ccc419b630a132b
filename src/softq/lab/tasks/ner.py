"""Labels of words, named entities above all (paper §4.2, Tables 2 and 6, Appendix D.2.2).

A feature CRF, `softq.CRFTagger`, a neural tagger, `softq.neural.SequenceTagger`, or an encoder of
Transformers, trained exactly by ML, RAML and SQDML.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from softq.formats.tags import Scheme, convert
from softq.lab.loop import Learner
from softq.lab.processes import Workers
from softq.lab.run import Curves
from softq.lab.tasks.base import Task, named_scores
from softq.lab.tasks.curves import Tagged, tagger_curves
from softq.lab.tasks.linear_learner import LinearLearner, ScoredSplit, refuse_processes
from softq.lab.tasks.ner_data import bayes_statistics, gold, prepare, read_corpora
from softq.lab.tasks.ner_labels import label
from softq.lab.tasks.ner_neural import NeuralTaggerLearner
from softq.lab.tasks.ner_recipe import NerRecipe, TagRecipe, trained_scheme
from softq.lab.torch_learner import generator_for
from softq.linear.features import FINKEL, FeatureMatrix
from softq.linear.tagger import CRFTagger
from softq.linear.tagger_training import BatchFit, SearchFit
from softq.linear.tagging import entity_reward
from softq.metrics import SPAN_METRICS, Metric, SpanScores, span_statistics

Array = np.ndarray[Any, Any]
_SENTENCES_AT_ONCE = 10_000  # whose features are made together where they are not kept


class Ner(Task):
    """Named entities, scored by F1."""

    name: ClassVar[str] = "ner"
    recipe_type: ClassVar[type[NerRecipe]] = NerRecipe
    metrics: ClassVar[Mapping[str, Metric]] = SPAN_METRICS
    titles: ClassVar[Mapping[str, str]] = {
        "f1": "F1",
        "token_accuracy": "token accuracy",
        "exact_match": "exact match",
    }

    def learner(self, cells: Sequence[NerRecipe], workers: Workers) -> Learner:
        """One tagger: a neural one, or a linear one by the optimizer that the recipe names."""
        refuse_processes(self.name, workers)
        if cells[0].model.kind != "linear":
            return NeuralTaggerLearner(cells[0], self.metrics[self.chosen_by], workers)
        return _TaggerLearner(cells[0], self.metrics[self.chosen_by])

    def facts(self, recipe: NerRecipe, outputs: Sequence[Any]) -> dict[str, Any]:
        """Scores by type, annotators, and the Bayes rule of the built-in world."""
        corpora = read_corpora(recipe.data)
        facts: dict[str, Any] = {"examples": {"train": len(corpora.train)}}
        judged = corpora.test or corpora.dev
        if corpora.scheme and judged is not None and len(outputs) == len(judged):
            scores = SpanScores.of(span_statistics(gold(judged), outputs, corpora.scheme))
            facts["types"] = {name: one._asdict() for name, one in scores.kinds.items()}
        reliability = label(recipe).reliability
        if reliability is not None:
            facts["annotators"] = [row._asdict() for row in reliability.annotators]
            facts["annotator_model"] = reliability.model
        if not recipe.data.train:
            facts["bayes"] = named_scores(SPAN_METRICS, bayes_statistics(recipe.data))
        return facts

    def signature(self, recipe: NerRecipe) -> str:
        """The reward that training aims at."""
        weight, credit = recipe.annotations.entity_weight, recipe.annotations.type_credit
        model = recipe.annotations.annotator_model
        if recipe.objective.name != "ml" and model != "none":
            return f"annotators-log-probability:{model}"
        whole = recipe.max_segment is not None
        if recipe.objective.name == "ml" or (weight, credit) == (1, 0):  # ML has no use for it
            return "segment-accuracy" if whole else "token-accuracy"
        if whole:
            return f"segment-accuracy:entity-weight={weight:g}"
        of_types = f":type-credit={credit:g}" if credit else ""
        return f"token-reward:entity-weight={weight:g}{of_types}"


class Tag(Ner):
    """Labels of any kind, such as parts of speech, scored by token accuracy."""

    name: ClassVar[str] = "tag"
    recipe_type: ClassVar[type[NerRecipe]] = TagRecipe
    titles: ClassVar[Mapping[str, str]] = {
        "token_accuracy": "token accuracy",
        "exact_match": "exact match",
    }
    metrics: ClassVar[Mapping[str, Metric]] = {
        name: SPAN_METRICS[name] for name in ("token_accuracy", "exact_match")
    }


class _TaggerLearner(LinearLearner[CRFTagger, SearchFit | BatchFit]):
    """Training on all data, after training on the complement of each fold where the development score comes from folds."""

    estimator = CRFTagger

    def __init__(self, recipe: NerRecipe, metric: Metric) -> None:
        self._recipe, self._labelled, self._prepared = recipe, label(recipe), prepare(recipe)
        corpora = self._prepared.corpora
        spelled = recipe.max_segment is not None
        self._scheme = trained_scheme(recipe.data, corpora.scheme, spelled=spelled)
        self._folds, self._sentences = recipe.data.folds, len(corpora.train)
        weight, credit = recipe.annotations.entity_weight, recipe.annotations.type_credit
        names, templates = self._labelled.names, recipe.features.templates
        model = recipe.annotations.annotator_model
        self._estimator = self.make(
            recipe,
            algorithm=recipe.optimizer.method,
            max_epochs=recipe.training.epochs,
            min_freq=1.0,
            reward=entity_reward(names, weight, credit).table if credit else None,
            entity_weight=1.0 if credit else weight,
            templates=None if templates == FINKEL else templates,
            hash_bits=recipe.features.hash_bits or None,
            annotators=None if model == "none" else model,
            partial_labels=recipe.data.partial_labels,
        )
        per = {"loss": self._sentences, "kl": self._sentences}
        super().__init__(self._begin(0), self._sentences, per, metric)
        self._fit_steps = self.steps
        self.steps *= self._folds + 1
        if isinstance(self._fit, SearchFit):
            self.examples *= self.steps  # every iteration sees all of them
        # of held-out sentences
        self._counts = torch.zeros(self._sentences if self._folds else 0, 7, dtype=torch.float64)
        self._converged = torch.zeros(self._folds + 1, dtype=torch.bool)

    def _fold(self, number: int) -> Array:
        """The sentences of a fold, at equal distances."""
        return np.arange(number, self._sentences, self._folds)

    def _begin(self, number: int) -> SearchFit | BatchFit:
        """Start on the complement of a fold, or on all data, which comes last."""
        self._number = number
        prepared, references = self._prepared, self._labelled.references
        everything, rest = number == self._folds, np.arange(self._sentences)
        if not everything:
            rest = np.delete(rest, self._fold(number))
        training = self._recipe.training
        count = -(-len(rest) // training.batch_size)
        # at equal distances: representative of the file even if it is sorted
        batches = [np.arange(number, len(rest), count) for number in range(count)]

        def features(batch: Array | None) -> FeatureMatrix:
            if batch is None and everything and prepared.train is not None:
                return prepared.train
            return prepared.training(rest if batch is None else rest[batch])

        def order(epoch: int) -> list[Array]:
            shuffled = torch.randperm(count, generator=generator_for(training.seed, epoch))
            return [batches[number] for number in shuffled.tolist()]

        return self._estimator.start(
            self._estimator.settings(self._labelled.names, self._scheme),
            prepared.index,
            features,
            references if everything else references.take(rest),
            order,
            prepared.columns if everything else None,
        )

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
                self._counts[fold] = self._held_out(self._model(), fold).counts.double()

    def _scaled(self, measured: Mapping[str, float]) -> dict[str, float]:
        found = super()._scaled(measured)
        if "converged" in found:
            found["converged"] = float(self._converged.all())
        return found

    def _model(self) -> CRFTagger:
        model, pos = copy.copy(self._estimator), self._recipe.features.pos
        model.keep(self._fit, "pairs" if pos else "words", self._scheme)
        model.file_scheme_, model.pos_column_ = self._prepared.corpora.scheme, pos
        return model

    def _score(
        self,
        model: CRFTagger,
        matrix: FeatureMatrix,
        true: Sequence[Sequence[str]],
        scheme: Scheme | None,
    ) -> ScoredSplit:
        """A model on sentences whose true labels follow this scheme."""
        predicted = model.tagger_.decode(matrix, self._recipe.model.decoding)
        if self._scheme is not None and scheme is not None and self._scheme != scheme:
            predicted = [convert(labels, self._scheme, scheme) for labels in predicted]
        return ScoredSplit(span_statistics(true, predicted, scheme).rows, predicted)

    def _held_out(self, model: CRFTagger, sentences: Array) -> ScoredSplit:
        """A model on training sentences."""
        parts = []
        for some in np.array_split(sentences, -(-len(sentences) // _SENTENCES_AT_ONCE)):
            true = [self._labelled.best(i) for i in some]
            parts.append(self._score(model, self._prepared.training(some), true, self._scheme))
        outputs = [output for part in parts for output in part.outputs]
        return ScoredSplit(torch.cat([part.counts for part in parts]), outputs)

    def _evaluate_split(self, model: CRFTagger, split: str) -> ScoredSplit | None:
        corpora = self._prepared.corpora
        sentences, matrix = getattr(corpora, split), getattr(self._prepared, split)
        if sentences is not None:
            return self._score(model, matrix, gold(sentences), corpora.scheme)
        if split == "test":
            return None
        if self._folds:  # the tagger of all data knows their sentences
            return ScoredSplit(self._counts, [])
        return self._held_out(model, np.arange(self._sentences))

    def _measures(self, model: CRFTagger) -> dict[str, float]:
        if isinstance(self._fit, BatchFit):
            return {}
        measured = self._scaled(self._fit.end_epoch())
        return {"cross_entropy" if name == "loss" else name: measured[name] for name in measured}

    def _curves(self, model: CRFTagger) -> Curves | None:
        corpora, tagger = self._prepared.corpora, model.tagger_

        def tagged(split: str) -> Tagged | None:
            sentences, matrix = getattr(corpora, split), getattr(self._prepared, split)
            return sentences and Tagged(list(tagger.chains(matrix)), gold(sentences))

        dev = tagged("dev")
        if not dev:
            return None
        return tagger_curves(
            tagger.labels, self._scheme, corpora.scheme, dev, tagged("test"), tagger.segments
        )

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
