"""What runs and sweeps found, as plain data.

Models, systems that differ in nothing but their seed, temperatures of one kind of model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from softq.formats.file_checks import undamaged
from softq.lab.recipe import flag_names
from softq.lab.report.experiment import Experiment, PaperTable, Score
from softq.lab.run import COUNTS, Curves, Facts, RunFolder
from softq.lab.tasks import Task
from softq.lab.tasks.base import show_settings
from softq.metrics import Interval, Metric, PairedTest, paired_test

SCALED = "temperature_scaled"
_MOST_RESAMPLED = 200_000  # examples of all systems together, to have gains of each with intervals


@dataclass(frozen=True)
class ModelResult:
    """One trained model: a cell of a run, finished or not.

    Attributes:
        run: its folder.
        number: its place among the cells of the run.
        task: its name.
        metric: that it was chosen by.
        signature: of the reward.
        hash: of its recipe.
        objective: "ml", "raml" or "sqdml".
        tau: its temperature.
        scaled: whether scores are divided by it.
        seed: of training.
        settings: what else its sweep varied.
        finished: whether training has ended.
        facts: about its data.
        scores: all that was measured.
        curve: (epoch, training loss, development score); None where it was not measured.
        command: trains it again, or resumes it.
        test_set: where the test examples come from.
        steps: for models of `softq train lm`, what was seen by step, under the names of the run's
            files: of training, and of evaluations with ``dev_`` before.
        curves: of calibration, sets, precision and recall, where the run has stored some.

    """

    run: Path
    number: int
    task: str
    metric: str
    signature: str
    hash: str
    objective: str
    tau: float | None
    scaled: bool
    seed: int
    settings: Mapping[str, Any]
    finished: bool
    facts: Facts
    scores: Mapping[str, float]
    curve: Sequence[tuple[int, float | None, float | None]]
    command: str
    test_set: str
    steps: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    curves: Curves | None = None


@dataclass(frozen=True)
class System:
    """Models that differ in their seed alone.

    Attributes:
        models: at least one.
        grids: of the sweep that they belong to.
        recipe: of the first one.
        settings: what the sweep varies, by flags.
        scores: averages over seeds of all that was measured; ``dev`` is what models are chosen by.

    """

    models: Sequence[ModelResult]
    grids: tuple[str, ...]
    recipe: Any
    settings: Mapping[str, Any]
    scores: Mapping[str, Interval]

    @property
    def name(self) -> str:
        """The hash of the first recipe."""
        return self.models[0].hash

    @property
    def objective(self) -> str:
        """As it stands in tables."""
        return self.models[0].objective.upper()

    @property
    def tau(self) -> float | None:
        """Of RAML and SQDML."""
        return self.models[0].tau

    @property
    def dev(self) -> float:
        """The metric on the development set."""
        return self.scores["dev"].value

    @property
    def label(self) -> str:
        """Objective and temperature."""
        scaled = ", scaled" if self.models[0].scaled else ""
        return f"{self.objective}{scaled}" + ("" if self.tau is None else f" τ = {self.tau:,g}")

    def value(self, name: str) -> float | None:
        """The average of a measure, None where it was not measured."""
        return None if name not in self.scores else self.scores[name].value

    def test_counts(self, metric: Metric) -> Tensor:
        """Statistics ``[seeds, examples, D]`` of the test examples, which a metric is a function of."""
        with undamaged(", ".join(str(one.run / COUNTS) for one in self.models)):
            found = [RunFolder(one.run).test_counts().model(one.number) for one in self.models]
            counts = torch.stack(found)
            metric(counts.sum((0, 1)))
        return counts


class Variant(NamedTuple):
    """The temperatures of one kind of model.

    ML and each τ at the settings that are best on the development set.
    """

    name: str  # what sets it apart from other variants of the sweep, "" of the only one
    ml: System | None
    tuned: list[System]

    def best_of(self, objective: str) -> System | None:
        """The temperature with the highest development score, of equals the smallest."""
        found = [system for system in self.tuned if system.objective == objective]
        return max(found, key=lambda system: (system.dev, -(system.tau or 0.0)), default=None)

    @property
    def objectives(self) -> list[str]:
        """Those that have temperatures."""
        return list(dict.fromkeys(system.objective for system in self.tuned))

    @property
    def systems(self) -> list[System]:
        """All of them, ML first."""
        return [*([self.ml] if self.ml is not None else []), *self.tuned]

    @property
    def best(self) -> dict[str, System]:
        """ML and the best temperature of each objective, by objective."""
        tuned = {objective: self.best_of(objective) for objective in self.objectives}
        found = {"ML": self.ml, **tuned}
        return {objective: system for objective, system in found.items() if system is not None}

    @property
    def which(self) -> str:
        """What sets it apart, to stand behind a title."""
        return f" ({self.name})" if self.name else ""


@dataclass(frozen=True, kw_only=True)
class Results:
    """A sweep, or what is finished of it.

    Attributes:
        experiment: what to show of it.
        task: what was trained.
        systems: all that is finished.
        unfinished: models whose training was begun.
        wanted: number of models, begun or not.
        recipe: of the sweep, without its grids.
        data: that section of the recipe as TOML has it, {} where a task has none.
        facts: about the data, as the runs have stored them.
        sizes: number of examples by split.

    """

    experiment: Experiment
    task: Task
    systems: Sequence[System]
    unfinished: Sequence[ModelResult]
    wanted: int
    recipe: Any
    data: Mapping[str, Any]
    facts: Facts
    sizes: Mapping[str, int]
    _tests: dict[tuple[str, str, str], PairedTest | None] = field(default_factory=dict)

    @cached_property
    def variants(self) -> list[Variant]:
        """Systems by what they vary besides objective, temperature and what is tuned.

        Of that, what is best on the development set.

        ML makes no candidates and has no temperature: where a variant has no ML of its own, it has
        that of others which differ in these alone.
        """
        kinds = self._kinds()
        ml, unlike_ml = ("ML", 0.0), [SCALED, *self._candidate_flags]
        alike = {key: _without(json.loads(key[1]), unlike_ml) for key in kinds}
        found = []
        for key, best in kinds.items():
            lent = [
                kinds[other][ml]
                for other in kinds
                if ml in kinds[other] and alike[other] == alike[key]
            ]
            baseline = best.get(ml) or max(lent, key=lambda system: system.dev, default=None)
            tuned = [best[place] for place in sorted(best) if place != ml]
            found.append(Variant(self._kind_name(key, list(kinds)), baseline, tuned))
        used = {one.ml.name for one in found if one.tuned and one.ml}
        return [one for one in found if one.tuned or (one.ml and one.ml.name not in used)]

    def _kinds(self) -> dict[tuple[str, str], dict[tuple[str, float], System]]:
        """The best system of each objective and temperature, by grid and settings (as JSON)."""
        found: dict[tuple[str, str], dict[tuple[str, float], System]] = {}
        for system in self.systems:
            settings = json.dumps(_without(system.settings, self.experiment.tuned))
            place = (system.objective, system.tau or 0.0)
            for grid in system.grids if self.experiment.by_grid else ("",):
                best = found.setdefault((grid, settings), {})
                best[place] = max(best.get(place, system), system, key=lambda one: one.dev)
        return found

    def _kind_name(self, kind: tuple[str, str], kinds: Sequence[tuple[str, str]]) -> str:
        """The grid of a kind, and its settings that others have otherwise; "" of the only one."""
        every = [json.loads(settings) for _, settings in kinds]
        told = {
            flag: value
            for flag, value in json.loads(kind[1]).items()
            if any(other.get(flag) != value for other in every)
        }
        return " ".join(filter(None, (kind[0] if len(kinds) > 1 else "", bare_settings(told))))

    @property
    def _candidate_flags(self) -> list[str]:
        """Keys on candidates, which ML has none of."""
        places = flag_names(type(self.recipe))
        return [flag for flag, (section, _, _) in places.items() if section == "candidates"]

    @cached_property
    def chosen(self) -> list[tuple[Variant, System]]:
        """ML and the best temperature of each objective of each variant, each system once."""
        found = {
            system.name: (variant, system)
            for variant in reversed(self.variants)
            for system in variant.best.values()
        }
        return [
            (variant, system)
            for variant in self.variants
            for system in variant.best.values()
            if found[system.name][0] is variant
        ]

    @property
    def best(self) -> System:
        """The system that is best on the development set."""
        return max((system for _, system in self.chosen), key=lambda system: system.dev)

    @cached_property
    def baseline(self) -> tuple[System, str] | None:
        """What all gains are over, with its name; None where it is ML of each variant."""
        return self.experiment.baseline(self)

    def against(self, variant: Variant) -> System | None:
        """What the systems of a variant are compared with."""
        return variant.ml if self.baseline is None else self.baseline[0]

    @property
    def against_name(self) -> str:
        """The same in words."""
        return "ML" if self.baseline is None else self.baseline[1]

    def paper_table(self, recipe: Any) -> PaperTable:
        """The paper's table of a recipe's method, an empty one where it has none."""
        return self.experiment.paper.get(self.experiment.method(recipe), PaperTable())

    @property
    def is_papers_corpus(self) -> bool:
        """Whether the training file is named like the paper's corpus."""
        train, pattern = self.data.get("train"), self.experiment.known_by
        return bool(pattern and isinstance(train, str) and re.search(pattern, train, re.IGNORECASE))

    @property
    def paper_name(self) -> str:
        """What columns of the paper's numbers are called, which are of another corpus as a rule."""
        corpus = self.experiment.corpus
        same = not corpus or self.is_papers_corpus
        return "paper" if same else f"paper ({corpus.split(',')[0]})"

    @property
    def bayes(self) -> dict[str, float]:
        """Scores of the Bayes rule, where the built-in world has one."""
        known = dict(self.facts.get("bayes", {}))
        ceilings = [one for system in self.systems if (one := system.value("test_ceiling"))]
        if ceilings:
            known["test_expected_reward"] = ceilings[0]
        return known

    def name_of(self, system: System) -> str:
        """What tells a system from others of the sweep."""
        how = self.experiment.label(system.recipe)
        told = bare_settings(system.settings)
        return f"{system.label}{f' on {how}' if how else ''}{f' ({told})' if told else ''}"

    # --- how sure a number is ---------------------------------------------------------------------------

    @cached_property
    def resampled(self) -> set[str]:
        """Names of systems whose gains have intervals.

        All, or where that takes long what tables compare.
        """
        shown = {system.name for variant in self.variants for system in variant.systems}
        few = len(shown) * self.sizes.get("test", 0) <= _MOST_RESAMPLED
        return shown if few else {system.name for _, system in self.chosen}

    def test(self, system: System, other: System | None, score: Score) -> PairedTest | None:
        """How much better a system is than another on the same test examples (paired bootstrap), in the unit of tables.

        With no other it is the score itself. None where examples differ or were not counted for this score.
        """
        key = (system.name, "" if other is None else other.name, score.name)
        if key not in self._tests:
            self._tests[key] = self._test(system, other, score)
        return self._tests[key]

    def _test(self, system: System, other: System | None, score: Score) -> PairedTest | None:
        metric = self.task.metrics.get(score.name)
        if metric is None or other is system:
            return None
        ours = system.test_counts(metric)
        if other is None:  # a system that scores nothing: the gain over it is the score itself
            theirs = torch.zeros_like(ours[:1])
            if bool(metric(theirs[0].sum(0)).isnan()):  # a mean of no examples
                return None
        else:
            theirs, fixed = other.test_counts(metric), list(self.experiment.fixed)
            if ours.shape[1:] != theirs.shape[1:]:
                return None
            if not torch.equal(ours[0][:, fixed], theirs[0][:, fixed]):
                return None
        seed = torch.Generator().manual_seed(0)
        found = paired_test(ours.unsqueeze(0), theirs, metric, generator=seed)[0]
        shown = score.shown(found.gain)
        return None if shown is None else found._replace(gain=shown)

    def score(self, system: System, score: Score) -> Interval | None:
        """A score on the test set, with its bootstrap interval where there is one."""
        test = self.test(system, None, score)
        return score.shown(system.scores.get(f"test_{score.name}")) if test is None else test.gain

    def gain(self, system: System, other: System | None, score: Score) -> Interval | None:
        """A gain on the test set, with its interval where there is one."""
        if other is None or other is system:
            return None
        if system.name in self.resampled and (test := self.test(system, other, score)):
            return test.gain
        ours, theirs = (one.value(f"test_{score.name}") for one in (system, other))
        return None if ours is None or theirs is None else score.shown(Interval(ours - theirs))

    def p_value(self, system: System, other: System | None, score: Score) -> float | None:
        """Of a gain, None where it is not known."""
        test = None if other is None else self.test(system, other, score)
        return None if test is None else test.p_value

    def of_bayes(self, system: System, key: str) -> Interval | None:
        """A measure in percent of that of the Bayes rule."""
        value, bayes = system.scores.get(key), self.bayes.get(key)
        return (
            None if value is None or not bayes else Interval(*(100 * end / bayes for end in value))
        )


def bare_settings(settings: Mapping[str, Any]) -> str:
    """Settings as people write them, files by their names alone.

    >>> bare_settings({"train": "some/where/a.conll", "references": ["some/where/b.conll"], "constraints": "model"})
    'train=a.conll references=b.conll constraints=model'
    """

    def name(value: Any) -> Any:
        if isinstance(value, list):
            return [name(one) for one in value]
        return Path(value).name if isinstance(value, str) and "/" in value else value

    return show_settings({flag: name(value) for flag, value in settings.items()})


def _without(settings: Mapping[str, Any], flags: Sequence[str]) -> dict[str, Any]:
    return {flag: value for flag, value in settings.items() if flag not in flags}
