"""Captioning (paper §4.1.2, Table 1, Appendix C): images with several captions each, where SQDML and RAML differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from softq.evaluate import average_reward
from softq.generation.candidates import target_signature
from softq.generation.captioner import Captioner
from softq.generation.learner import SequenceLearner
from softq.generation.saved import load_parameters
from softq.generation.steps import matrix_precision
from softq.rewards import SentenceBLEU
from softq.tasks.captioning_data import number_test
from softq.tasks.captioning_judge import CaptioningJudge, statistics
from softq.tasks.captioning_recipe import CaptioningRecipe
from softq.train import Learner, Workers, find_device


class Captioning:
    """The task."""

    name: ClassVar[str] = "captioning"
    recipe_type: ClassVar[type[CaptioningRecipe]] = CaptioningRecipe
    metric: ClassVar[str] = "average reward"
    together: ClassVar[bool] = False

    def learner(self, cells: Sequence[CaptioningRecipe], workers: Workers) -> Learner:
        """One captioner."""
        recipe = cells[0]
        judge = CaptioningJudge.of(recipe)
        prepared, candidates = judge.prepared, recipe.candidates
        model = recipe.model.build(prepared.features, len(prepared.vocabulary), recipe.training.seed)
        if prepared.start is not None:
            load_parameters(model, dict(prepared.start.model.named_parameters()))
        wants_near = recipe.objective.name != "ml" and "near" in candidates.samplers
        return SequenceLearner(
            model,
            prepared.train,
            prepared.dev.examples,
            judge,
            objective=recipe.objective,
            candidates=candidates,
            optimizer=recipe.optimizer,
            training=recipe.training,
            frequencies=prepared.vocabulary.frequencies,
            near=prepared.near(candidates.neighbours, workers.device) if wants_near else None,
            workers=workers,
        )

    def signature(self, recipe: CaptioningRecipe) -> str:
        """The sentence BLEU that captions are scored by against each reference, and what training aimed at."""
        return f"average of {SentenceBLEU().signature}; target {target_signature(recipe.objective, recipe.candidates)}"

    def test_statistics(self, cells: Sequence[CaptioningRecipe], best: Mapping[str, Tensor], chosen: Sequence[int]) -> Tensor:
        """Statistics of each test image's caption; the words are the best model's own, wherever its training started."""
        training = cells[0].training
        captioner = Captioner.from_tensors(best).to(find_device(training.device))
        found = []
        with matrix_precision(training.precision):
            for number in chosen:
                part = number_test(cells[number].data, captioner.vocabulary)
                found.append(statistics(part, captioner.caption(part.captioned.features)))
        return torch.stack(found)

    def metric_of(self, sums: Tensor) -> Tensor:
        """Mean over images and their references of sentence BLEU."""
        return average_reward(sums)
