"""Labels of words, named entities above all (paper §4.2, Tables 2 and 6, Appendix D.2.2).

A feature CRF trained exactly by ML, RAML and SQDML.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from softq.lab.loop import Learner
from softq.lab.processes import Workers
from softq.lab.tasks.base import Task
from softq.lab.tasks.facts import ner_facts
from softq.lab.tasks.linear_learner import refuse_processes
from softq.lab.tasks.ner_learner import Problem, TaggerLearner
from softq.lab.tasks.ner_recipe import NerRecipe, TagRecipe
from softq.metrics import SPAN_METRICS, Metric


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
        """One tagger, by the optimizer that the recipe names."""
        refuse_processes(self.name, workers)
        return TaggerLearner(Problem.of(cells[0]), self.metrics[self.chosen_by])

    def facts(self, recipe: NerRecipe, outputs: Sequence[Any]) -> dict[str, Any]:
        """What a report says of the data."""
        return ner_facts(recipe, outputs)

    def signature(self, recipe: NerRecipe) -> str:
        """The reward that training aims at."""
        weight, credit = recipe.annotations.entity_weight, recipe.annotations.type_credit
        if recipe.objective.name == "ml" or (weight, credit) == (1, 0):  # ML has no use for it
            return "token-accuracy"
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
