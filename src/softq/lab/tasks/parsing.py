"""Dependency parsing (paper §4.2, Tables 3 and 6, Appendix D.2.3).

A feature-based parser trained exactly by ML, RAML and SQDML.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from softq.lab.loop import Learner
from softq.lab.processes import Workers
from softq.lab.tasks.base import Task
from softq.lab.tasks.facts import parsing_facts
from softq.lab.tasks.linear_learner import refuse_processes
from softq.lab.tasks.parsing_learner import ParserLearner, Problem
from softq.lab.tasks.parsing_recipe import ParsingRecipe
from softq.metrics import ATTACHMENT_METRICS, Metric
from softq.rewards import Attachment


class Parsing(Task):
    """The task."""

    name: ClassVar[str] = "parsing"
    recipe_type: ClassVar[type[ParsingRecipe]] = ParsingRecipe
    metrics: ClassVar[Mapping[str, Metric]] = ATTACHMENT_METRICS
    titles: ClassVar[Mapping[str, str]] = {"uas": "UAS", "las": "LAS", "exact_match": "exact match"}

    def learner(self, cells: Sequence[ParsingRecipe], workers: Workers) -> Learner:
        """One parser, by the optimizer that the recipe names."""
        refuse_processes(self.name, workers)
        return ParserLearner(Problem.of(cells[0]), self.metrics[self.chosen_by])

    def facts(self, recipe: ParsingRecipe, outputs: Sequence[Any]) -> dict[str, Any]:
        """What a report says of the data."""
        return parsing_facts(recipe, outputs)

    def signature(self, recipe: ParsingRecipe) -> str:
        """The reward that training aims at."""
        return Attachment().signature
