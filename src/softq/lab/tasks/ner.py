"""Named entities (paper §4.2, Tables 2 and 6, Appendix D.2.2): a feature CRF trained exactly by ML, RAML and SQDML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from softq.lab.loop import Learner
from softq.lab.processes import Workers
from softq.lab.tasks.base import Task
from softq.lab.tasks.facts import ner_facts
from softq.lab.tasks.judged import refuse_processes
from softq.lab.tasks.ner_learner import BatchLearner, FoldLearner, Problem
from softq.lab.tasks.ner_recipe import NerRecipe
from softq.metrics import SPAN_METRICS, Metric


class Ner(Task):
    """The task."""

    name: ClassVar[str] = "ner"
    recipe_type: ClassVar[type[NerRecipe]] = NerRecipe
    metrics: ClassVar[Mapping[str, Metric]] = SPAN_METRICS
    titles: ClassVar[Mapping[str, str]] = {
        "f1": "F1",
        "token_accuracy": "token accuracy",
        "exact_match": "exact match",
    }

    def learner(self, cells: Sequence[NerRecipe], workers: Workers) -> Learner:
        """One tagger, by the optimizer that the recipe names."""
        refuse_processes(self.name, workers)
        problem = Problem.of(cells[0])
        return (
            FoldLearner(problem) if cells[0].optimizer.method == "lbfgs" else BatchLearner(problem)
        )

    def facts(self, recipe: NerRecipe, outputs: Sequence[Any]) -> dict[str, Any]:
        """What a report says of the data."""
        return ner_facts(recipe, outputs)

    def signature(self, recipe: NerRecipe) -> str:
        """The reward that training aims at."""
        weight, credit = recipe.annotations.entity_weight, recipe.annotations.type_credit
        if recipe.objective.name == "ml" or (weight, credit) == (
            1,
            0,
        ):  # ML has no use for a reward
            return "token-accuracy"
        return f"token-reward:entity-weight={weight:g}" + (
            f":type-credit={credit:g}" if credit else ""
        )
