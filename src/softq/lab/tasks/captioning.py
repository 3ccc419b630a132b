"""Captioning (paper §4.1.2, Table 1, Appendix C): images with several captions each, where SQDML and RAML differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from softq.lab.loop import Learner
from softq.lab.processes import Workers
from softq.lab.tasks.base import Task
from softq.lab.tasks.captioning_judge import CaptioningJudge
from softq.lab.tasks.captioning_recipe import CaptioningRecipe
from softq.lab.tasks.facts import captioning_facts
from softq.metrics import CAPTION_METRICS, Metric
from softq.neural.candidates import target_signature
from softq.neural.learner import SequenceLearner
from softq.neural.saved_model import load_parameters
from softq.rewards import SentenceBLEU


class Captioning(Task):
    """The task."""

    name: ClassVar[str] = "captioning"
    recipe_type: ClassVar[type[CaptioningRecipe]] = CaptioningRecipe
    metrics: ClassVar[Mapping[str, Metric]] = CAPTION_METRICS
    titles: ClassVar[Mapping[str, str]] = {
        "average_reward": "average reward",
        "corpus_bleu": "corpus BLEU",
        "cider_d": "CIDEr-D",
        "exact_match": "exact match",
    }

    def learner(self, cells: Sequence[CaptioningRecipe], workers: Workers) -> Learner:
        """One captioner."""
        recipe = cells[0]
        judge = CaptioningJudge.of(recipe)
        prepared, candidates = judge.prepared, recipe.candidates
        model = recipe.model.build(
            prepared.features, len(prepared.vocabulary), recipe.training.seed
        )
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

    def facts(self, recipe: CaptioningRecipe, outputs: Sequence[Any]) -> dict[str, Any]:
        """What a report says of the data."""
        return captioning_facts(recipe, outputs)

    def signature(self, recipe: CaptioningRecipe) -> str:
        """The sentence BLEU that captions are scored by against each reference, and what training aimed at."""
        return f"average of {SentenceBLEU().signature}; target {target_signature(recipe.objective, recipe.candidates)}"
