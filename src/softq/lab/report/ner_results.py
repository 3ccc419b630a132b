"""What a sweep of the named-entity experiment found, as plain data, and what is computed from it for tables and figures alike."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

from softq.annotators.reliability import AnnotatorRow
from softq.lab.report.systems import SweepResults, System, bare_settings
from softq.lab.tasks.ner_recipe import Data, NerRecipe
from softq.metrics import Interval, KindScores

Kind = Literal["temperatures", "crowd", "world"]
NerSystem = System[NerRecipe]

_METHOD = ("references", "ties", "weights")  # settings that the name of a method tells
_TIES = {
    "entity": "ties to the entity",
    "outside": "ties to O",
    "first": "ties to the first annotator",
    "random": "ties by chance",
}
_WEIGHTS = {
    "uniform": "",
    "one-coin": ", weighted (one coin)",
    "dawid-skene": ", weighted (Dawid–Skene)",
}
_CONLL_2003 = re.compile(r"^eng\.(train|testa|testb)|conll[-_]?(20)?03", re.IGNORECASE)


class Judged(NamedTuple):
    """Test scores with the 95 % intervals of a bootstrap over test sentences, and the gains over a baseline, paired."""

    f1: Interval
    accuracy: Interval
    f1_gain: Interval | None = None
    accuracy_gain: Interval | None = None


class Chosen(NamedTuple):
    """What an objective of a grid gets from the development part; several grids may have chosen the same."""

    label: str  # the method, and where that does not tell it from others the grid
    grids: tuple[str, ...]
    system: NerSystem


@dataclass(frozen=True, kw_only=True)
class NerResults(SweepResults[NerRecipe]):
    """What the experiment found.

    Attributes:
        kind: what to show: ``"temperatures"``, the paper's Table 2; ``"crowd"``, files with annotators; ``"world"``, the built-in one.
        choices: (grid, name of a system): what the sweep has chosen.
        judged: by the name of a system, for those of `pairs`.
        bayes: scores of the Bayes rule, by the data they are of; the built-in world alone has them.
        annotators: how reliable each one seems, where that was estimated, and by which model.
        kinds: scores of each type of entity, of the system ``kinds_of``.

    """

    tuned: ClassVar[tuple[str, ...]] = ("c2",)

    kind: Kind
    choices: Sequence[tuple[str, str]]
    judged: Mapping[str, Judged] = field(default_factory=dict)
    bayes: Mapping[Data, Mapping[str, float]] = field(default_factory=dict)
    annotators: Sequence[AnnotatorRow] = ()
    annotator_model: str = ""
    kinds: Mapping[str, KindScores] = field(default_factory=dict)
    kinds_of: str = ""

    @property
    def is_papers_corpus(self) -> bool:
        """Whether the training file is named like CoNLL-2003's."""
        return bool(_CONLL_2003.search(Path(self.recipe.data.train).name))

    # --- annotators -------------------------------------------------------------------------------------

    def chosen(self) -> list[Chosen]:
        """What the sweep has chosen, each system once, with a label of its own."""
        by_name = {system.name: system for system in self.systems}
        grids: dict[str, list[str]] = {}
        for grid, name in self.choices:
            grids.setdefault(name, []).append(grid)
        methods = [method_of(by_name[name]) for name in grids]
        return [
            Chosen(
                f"{method} ({', '.join(names)})" if methods.count(method) > 1 else method,
                tuple(names),
                by_name[name],
            )
            for (name, names), method in zip(grids.items(), methods, strict=True)
        ]

    @property
    def baseline(self) -> NerSystem | None:
        """ML on the vote that is best on the development part; where there is no vote, any ML."""
        found = [one.system for one in self.chosen() if one.system.recipe.objective.name == "ml"]
        votes = [system for system in found if system.recipe.annotations.references == "vote"]
        return max(votes or found, key=lambda system: system.dev, default=None)

    @property
    def baseline_name(self) -> str:
        """What to call it."""
        voted = self.baseline is not None and self.baseline.recipe.annotations.references == "vote"
        return "the best vote" if voted else "the best ML"

    def best_chosen(self) -> Chosen | None:
        """What is best on the development part."""
        return max(self.chosen(), key=lambda one: one.system.dev, default=None)

    def entity_weights(self) -> list[NerSystem]:
        """SQDML at the best of its choices that varies the entity weight: the same recipe by rising weight."""
        found = [one for one in self.chosen() if one.system.recipe.objective.name == "sqdml"]
        for one in sorted(found, key=lambda one: -one.system.dev):
            alike = [
                system
                for system in self.systems
                if _unweighted(system.recipe) == _unweighted(one.system.recipe)
            ]
            if len(alike) > 1:
                return sorted(alike, key=lambda system: system.recipe.annotations.entity_weight)
        return []

    def of_bayes(self, system: NerSystem) -> float | None:
        """Token accuracy in percent of the Bayes rule's on the same test part."""
        bayes = self.bayes.get(system.recipe.data)
        accuracy = system.scores.get("test_token_accuracy")
        return (
            None
            if bayes is None or accuracy is None
            else 100 * accuracy.value / bayes["token_accuracy"]
        )

    # --- both -------------------------------------------------------------------------------------------

    def pairs(self) -> list[tuple[NerSystem, NerSystem | None]]:
        """The systems that tables show, each with what it is compared with."""
        return (
            super().pairs()
            if self.kind == "temperatures"
            else [(one.system, self.baseline) for one in self.chosen()]
        )

    def name_of(self, system: NerSystem) -> str:
        """What tells a system from others of the sweep."""
        if self.kind == "temperatures":
            return super().name_of(system)
        name = method_of(system) + ("" if system.tau is None else f", τ = {system.tau:g}")
        settings = {flag: value for flag, value in system.settings.items() if flag not in _METHOD}
        return f"{name} ({bare_settings(settings)})" if settings else name


def method_of(system: NerSystem) -> str:
    """How a system uses the annotators, in words."""
    annotations = system.recipe.annotations
    if annotations.references == "vote":
        return f"{system.objective} on the vote, {_TIES[annotations.ties]}"
    if annotations.references == "dawid-skene":
        return f"{system.objective} on the labels that EM finds likeliest (Dawid–Skene)"
    sharpened = f", sharpness {annotations.sharpness:g}" if annotations.sharpness != 1 else ""
    credit = (
        f", type credit {annotations.type_credit:g}"
        if annotations.type_credit and system.tau is not None
        else ""
    )
    return f"{system.objective} on all annotators{_WEIGHTS[annotations.weights]}{sharpened}{credit}"


def _unweighted(recipe: NerRecipe) -> NerRecipe:
    return dataclasses.replace(
        recipe, annotations=dataclasses.replace(recipe.annotations, entity_weight=1.0)
    )
