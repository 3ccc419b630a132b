"""What translation and captioning share.

Their learner, and a judge that scores generated texts by metrics with names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from softq.lab.loop import Evaluation, Learner
from softq.lab.processes import Workers
from softq.lab.tasks.base import Task
from softq.lab.tasks.sequence_data import EvaluationSplit, SequenceData, Splits, prepare
from softq.metrics import (
    TRANSLATION_METRICS,
    reference_rewards,
    translation_statistics,
)
from softq.metrics.counts import ExampleCounts
from softq.neural.generation import GeneratedText
from softq.neural.learner import SequenceLearner
from softq.neural.modules.sequence import SequenceModel
from softq.neural.perplexity import perplexity
from softq.neural.target_maker import target_signature
from softq.neural.text_generator import TextGenerator, load_parameters
from softq.rewards import SentenceBLEU


class SequenceTask(Task):
    """A task whose outputs are sentences.

    Subclasses name their metrics, read and prepare the data of a recipe, and may measure more than
    the metrics.
    """

    kind: ClassVar[str]  # of its models, see `softq.neural.text_generator.TextGenerator`

    def read(self, data: Any) -> Splits:
        """The splits that a section of data names."""
        raise NotImplementedError

    def prepare(self, recipe: Any) -> SequenceData:
        """The data of a recipe as token ids, or find it done."""
        return prepare(recipe, self.name, self.kind, self.read)

    def statistics(self, split: EvaluationSplit, found: Sequence[GeneratedText]) -> Tensor:
        """Statistics of texts, one row each, of which `metrics` are functions."""
        return translation_statistics([text.words for text in found], split.references)

    def encoder(self, recipe: Any) -> str:
        """What made the features of images; "" where there are none."""
        return ""

    def measures(
        self, recipe: Any, split: EvaluationSplit, found: Sequence[GeneratedText]
    ) -> dict[str, float]:
        """What is measured on the test split beside the metrics."""
        raise NotImplementedError

    def facts(self, recipe: Any, outputs: Sequence[Any]) -> dict[str, Any]:
        """The number of training inputs."""
        return {"examples": {"train": len(self.read(recipe.data).train)}}

    def notes(self, measures: Mapping[str, Any]) -> list[str]:
        """How many references the model was not trained on."""
        if not measures.get("left_out"):
            return []
        return [
            f"longer than max_length: {measures['left_out']:.0f} training references, or their"
            " inputs, were left out"
        ]

    def scored_by(self) -> str:
        """The signature of the reward that outputs are scored by."""
        raise NotImplementedError

    def signature(self, recipe: Any) -> str:
        """The reward that outputs are scored by, and the target of training."""
        return f"{self.scored_by()}; target {target_signature(recipe.objective, recipe.candidates)}"

    def learner(self, cells: Sequence[Any], workers: Workers) -> Learner:
        """One model."""
        recipe = cells[0]
        judge = SequenceJudge.of(self, recipe)
        data, candidates = judge.data, recipe.candidates
        model = recipe.model.build(data.inputs, len(data.target), recipe.training.seed)
        if data.start is not None:
            load_parameters(model, dict(data.start.model.named_parameters()))
        from_neighbours = recipe.objective.name != "ml" and "near" in candidates.samplers
        return SequenceLearner(
            model,
            data.train,
            data.dev.examples,
            judge,
            objective=recipe.objective,
            candidates=candidates,
            optimizer=recipe.optimizer,
            training=recipe.training,
            frequencies=data.target.frequencies,
            near=(
                data.neighbours(candidates.neighbours, workers.device) if from_neighbours else None
            ),
            workers=workers,
        )


def expected_reward(world: Any, inputs: Sequence[Any], found: Sequence[GeneratedText]) -> float:
    """The mean sentence BLEU of texts over all right outputs of a built-in world."""
    rewards = [
        world.expected_reward(one, text.words, SentenceBLEU())
        for one, text in zip(inputs, found, strict=True)
    ]
    return math.fsum(rewards) / len(rewards)


@dataclass(frozen=True)
class SequenceJudge:
    """Scores models by the texts that they generate for the development and test splits of a recipe."""

    task: SequenceTask
    recipe: Any
    data: SequenceData

    @classmethod
    def of(cls, task: SequenceTask, recipe: Any) -> SequenceJudge:
        """With the data of a recipe."""
        return cls(task, recipe, task.prepare(recipe))

    def generator(self, model: SequenceModel) -> TextGenerator:
        """A model with its vocabularies."""
        encoder = self.task.encoder(self.recipe)
        recipe, data = self.recipe, self.data
        return TextGenerator(
            model, recipe.model, data.target, data.source, recipe.decoding, encoder
        )

    def generate(
        self, model: SequenceModel, split: EvaluationSplit, beam: int | None = None
    ) -> list[GeneratedText]:
        """Outputs for the inputs of a split."""
        features = split.corpus.features
        return self.generator(model).generate(
            split.corpus.inputs if features is None else features,
            method="greedy" if beam == 1 else "beam",
            beam=beam,
        )

    def score(self, model: SequenceModel) -> float:
        """The task's metric on the development split, by the quick search that epochs are compared by."""
        found = self.generate(model, self.data.dev, self.recipe.decoding.dev_beam)
        rows = translation_statistics([text.words for text in found], self.data.dev.references)
        return float(TRANSLATION_METRICS[self.task.chosen_by](rows.sum(0)))

    def judge(self, model: SequenceModel) -> Evaluation:
        """Statistics of the outputs of both splits, and what else the task measures on the test split."""
        splits = {"dev": self.data.dev}
        if self.data.test is not self.data.dev:
            splits["test"] = self.data.test
        found = {name: self.generate(model, split) for name, split in splits.items()}
        counts = {
            name: ExampleCounts.of(self.task.statistics(split, found[name])[None])
            for name, split in splits.items()
        }
        test, outputs = self.data.test, found.get("test", found["dev"])
        measures = {
            **self.task.measures(self.recipe, test, outputs),
            "test_perplexity": perplexity(model, test.examples),
            "examples": float(len(self.data.train)),
            "left_out": float(self.data.left_out),
            "parameters": float(sum(parameter.numel() for parameter in model.parameters())),
        }
        rewards = reference_rewards([text.words for text in outputs], test.references)
        rows = [
            {"text": text.text, "rewards": earned}
            for text, earned in zip(outputs, rewards, strict=True)
        ]
        if test.corpus.features is not None:  # reports show images with their captions
            named = zip(test.corpus.inputs, test.corpus.references, rows, strict=True)
            rows = [{"image": image, "references": list(refs), **row} for image, refs, row in named]
        return Evaluation(counts, [measures], rows)

    def notes(self, model: SequenceModel) -> dict[str, Tensor]:
        """What a model's file holds beside its parameters."""
        return self.generator(model).notes()
