"""What a sweep over a corpus found, whatever the task: its systems, the temperatures of each kind of model, where the numbers come from."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from softq.lab.report.page import Value
from softq.lab.tasks.base import Recipe, show_settings
from softq.lab.tasks.files import NamesFiles
from softq.metrics import Interval

_PARTS = ("train", "dev", "test")
_FILES = (
    "references",
    "start",
    *_PARTS,
    *(f"{part}_{more}" for part in _PARTS for more in ("references", "features")),
)  # may name files


class CorpusData(NamesFiles, Protocol):
    """What the data sections of recipes share whose experiments read files."""

    @property
    def train(self) -> str:
        """The training file, "" for the built-in world."""
        ...

    @property
    def dev(self) -> str:
        """The development file."""
        ...

    @property
    def test(self) -> str:
        """The test file."""
        ...

    @property
    def halve_dev(self) -> bool:
        """Whether the test part is every other sentence of the development file."""
        ...


class CorpusRecipe(Recipe, Protocol):
    """A recipe of such data."""

    @property
    def data(self) -> CorpusData:
        """The section."""
        ...


R = TypeVar("R", bound=CorpusRecipe)


@dataclass(frozen=True)
class System(Generic[R]):
    """Models that differ in their seed alone.

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
    recipe: R
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
        """The metric on the development part."""
        return self.scores["dev"].value

    @property
    def label(self) -> str:
        """Objective and temperature."""
        return self.objective if self.tau is None else f"{self.objective} τ = {self.tau:g}"

    def percent(self, name: str) -> Interval | None:
        """A score in percent, None where it was not measured."""
        return None if name not in self.scores else percent(self.scores[name])

    def value(self, name: str) -> float | None:
        """The mean of a measure, None where it was not measured."""
        return None if name not in self.scores else self.scores[name].value


class Variant(NamedTuple, Generic[R]):
    """The temperatures of one kind of model: ML and each τ at the settings that are best on the development part."""

    settings: Mapping[
        str, Any
    ]  # what sets it apart from other variants of the sweep, {} of the only one
    ml: System[R] | None
    tuned: list[System[R]]

    @property
    def best(self) -> System[R] | None:
        """The temperature with the highest development score, of equals the smallest."""
        return max(self.tuned, key=lambda system: (system.dev, -(system.tau or 0.0)), default=None)

    def best_of(self, objective: str) -> System[R] | None:
        """The same of one objective."""
        return Variant(
            {}, None, [system for system in self.tuned if system.objective == objective]
        ).best

    @property
    def objectives(self) -> list[str]:
        """Those that have temperatures."""
        return list(dict.fromkeys(system.objective for system in self.tuned))

    @property
    def systems(self) -> list[System[R]]:
        """All of them, ML first."""
        return [*([self.ml] if self.ml is not None else []), *self.tuned]

    @property
    def which(self) -> str:
        """What sets it apart, to stand behind a title: " (constraints=model)", "" of the only one."""
        return f" ({bare_settings(self.settings)})" if self.settings else ""

    def marked(self, system: System[R]) -> str:
        """A system's label, which says so if it is the best of its objective."""
        return (
            f"{system.label} (best)" if system is self.best_of(system.objective) else system.label
        )


@dataclass(frozen=True, kw_only=True)
class SweepResults(Generic[R]):
    """What a sweep found.

    Attributes:
        systems: all that is finished.
        recipe: of the sweep, without its grids.
        sentences: how many each part has of its unit ("train", "dev", "test"), as far as there are such parts.
        signatures: rewards that training aimed at.
        recipe_hash: of the recipe with its grids.
        recipe_text: the same as TOML, without the places of files.
        command: runs it again.
        scale: of `softq reproduce`.
        seconds: of training.
        device: it ran on.
        version: of softq.
        date: of the report.
        missing: why parts that need the data are not here, "" if they are.

    """

    tuned: ClassVar[tuple[str, ...]]  # settings that every temperature has its own best values of
    unit: ClassVar[str] = "sentence"  # what parts are counted in

    systems: Sequence[System[R]]
    recipe: R
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
    missing: str = ""

    def variants(self) -> list[Variant[R]]:
        """The systems by what they vary besides objective, temperature and what is tuned; of that, what is best on the development part."""
        groups: dict[str, list[System[R]]] = {}
        for system in self.systems:
            others = {
                flag: value for flag, value in system.settings.items() if flag not in self.tuned
            }
            groups.setdefault(json.dumps(others), []).append(system)
        values: dict[str, set[str]] = {}
        for key in groups:
            for flag, value in json.loads(key).items():
                values.setdefault(flag, set()).add(json.dumps(value))
        found = []
        for key, members in groups.items():
            best: dict[tuple[str, float], System[R]] = {}
            for system in members:
                place = (system.objective, system.tau or 0.0)
                if place not in best or system.dev > best[place].dev:
                    best[place] = system
            told = {flag: value for flag, value in json.loads(key).items() if len(values[flag]) > 1}
            found.append(
                Variant(told, best.pop(("ML", 0.0), None), [best[place] for place in sorted(best)])
            )
        return found

    def pairs(self) -> list[tuple[System[R], System[R] | None]]:
        """The systems that tables show, each with what it is compared with."""
        return [(system, variant.ml) for variant in self.variants() for system in variant.systems]

    @property
    def best(self) -> System[R] | None:
        """The system shown that is best on the development part."""
        return max(
            (system for system, _ in self.pairs()), key=lambda system: system.dev, default=None
        )

    def name_of(self, system: System[R]) -> str:
        """What tells a system from others of the sweep."""
        return (
            f"{system.label} ({bare_settings(system.settings)})"
            if system.settings
            else system.label
        )

    def provenance(self) -> dict[str, str]:
        """Where the numbers come from, as far as that is known."""
        known = {
            "Recipe": self.recipe_hash,
            "Reward": ", ".join(self.signatures),
            "Files": ", ".join(
                dict.fromkeys(Path(path).name for path in self.recipe.data.files if path)
            )
            or "none: the built-in world",
            "Seeds": ", ".join(
                str(seed)
                for seed in sorted({seed for system in self.systems for seed in system.seeds})
            ),
            "Scale": self.scale,
            "Training time": f"{self.seconds:,.0f} seconds of training steps",
            "Device": self.device,
            "softq": self.version,
            "Report written": self.date,
        }
        return {key: value for key, value in known.items() if value}


def percent(interval: Interval) -> Interval:
    """Shares as percentages."""
    return Interval(*(100 * end for end in interval))


def bare(value: float | Interval | None) -> Value:
    """An interval without ends, such as the mean of one seed, is a plain number, which takes one column of a CSV file."""
    return value.value if isinstance(value, Interval) and np.isnan(value.low) else value


def bare_settings(settings: Mapping[str, Any]) -> str:
    """Settings as people write them, files by their names alone.

    >>> bare_settings({"train": "some/where/a.conll", "references": ["some/where/b.conll"], "constraints": "model"})
    'train=a.conll references=b.conll constraints=model'
    """

    def name(value: Any) -> Any:
        if isinstance(value, list):
            return [Path(path).name for path in value]
        return (
            Path(value).name if isinstance(value, str) else value
        )  # a number of references is not a file of them

    return show_settings(
        {flag: name(value) if flag in _FILES else value for flag, value in settings.items()}
    )


def of_tau(points: Mapping[float, Any], tau: float | None) -> Any:
    """The value at τ, None where there is none."""
    return next(
        (
            value
            for at, value in points.items()
            if tau is not None and math.isclose(at, tau, rel_tol=1e-9)
        ),
        None,
    )
