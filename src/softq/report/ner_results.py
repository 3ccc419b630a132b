"""What a sweep of the named-entity experiment found, as plain data, and what is computed from it for tables and figures alike."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from softq.data.annotators import AnnotatorRow
from softq.evaluate import Interval, KindScores
from softq.tasks.base import show_settings
from softq.tasks.ner_recipe import Data, NerRecipe

Kind = Literal["temperatures", "crowd", "world"]

TUNED = "c2"  # the setting that every temperature has its own best value of
_METHOD = ("references", "ties", "weights")  # settings that the name of a method tells
_FILES = ("train", "dev", "test")
_TIES = {"entity": "ties to the entity", "outside": "ties to O", "first": "ties to the first annotator", "random": "ties by chance"}
_WEIGHTS = {"uniform": "", "one-coin": ", weighted (one coin)", "dawid-skene": ", weighted (Dawid–Skene)"}
_CONLL_2003 = re.compile(r"^eng\.(train|testa|testb)|conll[-_]?(20)?03", re.IGNORECASE)


class Judged(NamedTuple):
    """Test scores with the 95 % intervals of a bootstrap over test sentences, and the gains over a baseline, paired."""

    f1: Interval
    accuracy: Interval
    f1_gain: Interval | None = None
    accuracy_gain: Interval | None = None


@dataclass(frozen=True)
class System:
    """Taggers that differ in their seed alone.

    Attributes:
        name: the hash of the first one's recipe.
        grids: of the sweep that it belongs to.
        recipe: of the first one.
        settings: what the sweep varies, by flags.
        scores: means over seeds of all that ``result.json`` holds of a model, shares in 0..1; ``dev`` is what is chosen by.
        seeds: of all of them.

    """

    name: str
    grids: tuple[str, ...]
    recipe: NerRecipe
    settings: Mapping[str, Any]
    scores: Mapping[str, Interval]
    seeds: tuple[int, ...] = (0,)

    @property
    def objective(self) -> str:
        """As it stands in tables."""
        return self.recipe.objective.name.upper()

    @property
    def tau(self) -> float | None:
        """Of RAML and SQDML."""
        return self.recipe.objective.tau

    @property
    def dev(self) -> float:
        """F1 on the development part."""
        return self.scores["dev"].value

    @property
    def label(self) -> str:
        """Objective and temperature."""
        return self.objective if self.tau is None else f"{self.objective} τ = {self.tau:g}"

    @property
    def method(self) -> str:
        """How it uses the annotators, in words."""
        annotations = self.recipe.annotations
        if annotations.references == "vote":
            return f"{self.objective} on the vote, {_TIES[annotations.ties]}"
        if annotations.references == "dawid-skene":
            return f"{self.objective} on the labels that EM finds likeliest (Dawid–Skene)"
        sharpened = f", sharpness {annotations.sharpness:g}" if annotations.sharpness != 1 else ""
        credit = f", type credit {annotations.type_credit:g}" if annotations.type_credit and self.tau is not None else ""
        return f"{self.objective} on all annotators{_WEIGHTS[annotations.weights]}{sharpened}{credit}"

    def percent(self, name: str) -> Interval | None:
        """A score in percent, None where it was not measured."""
        return None if name not in self.scores else percent(self.scores[name])


class Variant(NamedTuple):
    """The temperatures of one kind of model: ML and each τ at the c2 that is best on the development part."""

    settings: Mapping[str, Any]  # what sets it apart from other variants of the sweep, {} of the only one
    ml: System | None
    tuned: list[System]

    @property
    def best(self) -> System | None:
        """The temperature with the highest development score, of equals the smallest."""
        return max(self.tuned, key=lambda system: (system.dev, -(system.tau or 0.0)), default=None)

    @property
    def systems(self) -> list[System]:
        """All of them, ML first."""
        return [*([self.ml] if self.ml is not None else []), *self.tuned]


class Chosen(NamedTuple):
    """What an objective of a grid gets from the development part; several grids may have chosen the same."""

    label: str  # the method, and where that does not tell it from others the grid
    grids: tuple[str, ...]
    system: System


@dataclass(frozen=True)
class NerResults:
    """What the experiment found.

    Attributes:
        kind: what to show: ``"temperatures"``, the paper's Table 2; ``"crowd"``, files with annotators; ``"world"``, the built-in one.
        systems: all that is finished.
        choices: (grid, name of a system): what the sweep has chosen.
        recipe: of the sweep, without its grids.
        sentences: how many each part has ("train", "dev", "test"), as far as there are such parts.
        signatures: rewards that training aimed at.
        recipe_hash: of the recipe with its grids.
        recipe_text: the same as TOML, without the places of files.
        command: runs it again.
        judged: by the name of a system, for those of `pairs`.
        bayes: scores of the Bayes rule, by the data they are of; the built-in world alone has them.
        annotators: how reliable each one seems, where that was estimated, and by which model.
        kinds: scores of each type of entity, of the system ``kinds_of``.
        missing: why parts that need the data are not here, "" if they are.
        seconds: of training.
        device: it ran on.
        version: of softq.
        date: of the report.

    """

    kind: Kind
    systems: Sequence[System]
    choices: Sequence[tuple[str, str]]
    recipe: NerRecipe
    sentences: Mapping[str, int]
    signatures: Sequence[str]
    recipe_hash: str
    recipe_text: str
    command: str
    scale: str
    seconds: float
    device: str
    version: str
    date: str
    judged: Mapping[str, Judged] = field(default_factory=dict)
    bayes: Mapping[Data, Mapping[str, float]] = field(default_factory=dict)
    annotators: Sequence[AnnotatorRow] = ()
    annotator_model: str = ""
    kinds: Mapping[str, KindScores] = field(default_factory=dict)
    kinds_of: str = ""
    missing: str = ""

    # --- temperatures -----------------------------------------------------------------------------------

    def variants(self) -> list[Variant]:
        """The systems by what they vary besides objective, temperature and c2; of the c2 of each, the best on the development part."""
        groups: dict[str, list[System]] = {}
        for system in self.systems:
            others = {flag: value for flag, value in system.settings.items() if flag != TUNED}
            groups.setdefault(json.dumps(others), []).append(system)
        values: dict[str, set[str]] = {}
        for key in groups:
            for flag, value in json.loads(key).items():
                values.setdefault(flag, set()).add(json.dumps(value))
        found = []
        for key, members in groups.items():
            best: dict[tuple[str, float], System] = {}
            for system in members:
                place = (system.objective, system.tau or 0.0)
                if place not in best or system.dev > best[place].dev:
                    best[place] = system
            told = {flag: value for flag, value in json.loads(key).items() if len(values[flag]) > 1}
            found.append(Variant(told, best.pop(("ML", 0.0), None), [best[place] for place in sorted(best)]))
        return found

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
        methods = [by_name[name].method for name in grids]
        return [
            Chosen(f"{method} ({', '.join(names)})" if methods.count(method) > 1 else method, tuple(names), by_name[name])
            for (name, names), method in zip(grids.items(), methods, strict=True)
        ]

    @property
    def baseline(self) -> System | None:
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

    def entity_weights(self) -> list[System]:
        """SQDML at the best of its choices that varies the entity weight: the same recipe by rising weight."""
        found = [one for one in self.chosen() if one.system.recipe.objective.name == "sqdml"]
        for one in sorted(found, key=lambda one: -one.system.dev):
            alike = [system for system in self.systems if _unweighted(system.recipe) == _unweighted(one.system.recipe)]
            if len(alike) > 1:
                return sorted(alike, key=lambda system: system.recipe.annotations.entity_weight)
        return []

    def of_bayes(self, system: System) -> float | None:
        """Token accuracy in percent of the Bayes rule's on the same test part."""
        bayes = self.bayes.get(system.recipe.data)
        accuracy = system.scores.get("test_token_accuracy")
        return None if bayes is None or accuracy is None else 100 * accuracy.value / bayes["token_accuracy"]

    # --- both -------------------------------------------------------------------------------------------

    def pairs(self) -> list[tuple[System, System | None]]:
        """The systems that tables show, each with what it is compared with."""
        if self.kind == "temperatures":
            return [(system, variant.ml) for variant in self.variants() for system in variant.systems]
        return [(one.system, self.baseline) for one in self.chosen()]

    @property
    def best(self) -> System | None:
        """The system shown that is best on the development part."""
        return max((system for system, _ in self.pairs()), key=lambda system: system.dev, default=None)

    def name_of(self, system: System) -> str:
        """What tells a system from others of the sweep."""
        if self.kind == "temperatures":
            name, settings = system.label, system.settings
        else:
            name = system.method + ("" if system.tau is None else f", τ = {system.tau:g}")
            settings = {flag: value for flag, value in system.settings.items() if flag not in _METHOD}
        return f"{name} ({bare_settings(settings)})" if settings else name

    def not_converged(self) -> list[System]:
        """Those shown whose training stopped before the gradient was small enough."""
        return [system for system, _ in self.pairs() if "converged" in system.scores and system.scores["converged"].value < 1]


def percent(interval: Interval) -> Interval:
    """Shares as percentages."""
    return Interval(*(100 * end for end in interval))


def bare_settings(settings: Mapping[str, Any]) -> str:
    """Settings as people write them, files by their names alone.

    >>> bare_settings({"train": "some/where/a.conll", "constraints": "model"})
    'train=a.conll constraints=model'
    """
    return show_settings({flag: Path(value).name if flag in _FILES else value for flag, value in settings.items()})


def of_tau(points: Mapping[float, Any], tau: float | None) -> Any:
    """The value at τ, None where there is none."""
    return next((value for at, value in points.items() if tau is not None and math.isclose(at, tau, rel_tol=1e-9)), None)


def _unweighted(recipe: NerRecipe) -> NerRecipe:
    return dataclasses.replace(recipe, annotations=dataclasses.replace(recipe.annotations, entity_weight=1.0))
