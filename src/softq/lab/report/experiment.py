"""How an experiment declares what its section of a report shows.

Everything else is written once, for all of them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from softq.lab.report.content import Column, Part
from softq.lab.report.drawing import Series
from softq.metrics import Interval

if TYPE_CHECKING:
    from softq.lab.report.results import Results, System, Variant
    from softq.lab.tasks import Task


@dataclass(frozen=True)
class Score:
    """A measure of ``result.json`` as tables show it.

    Attributes:
        name: ``test_NAME`` in ``result.json``; it has intervals where the task has a metric of this
            name.
        title: its heading.
        percent: whether it is shown times 100.
        digits: behind the point.
        dev: whether tables show it on the development set, too.
        plotted: whether it is drawn against the temperature.

    """

    name: str
    title: str
    percent: bool = True
    digits: int = 2
    dev: bool = False
    plotted: bool = False

    def column(self, split: str = "") -> Column:
        """The column of its values on a split, with the unit in its title."""
        title = f"{split.capitalize()} {self.title}" if split else self.capital
        return Column(f"{title}, %" if self.percent else title, self.format)

    @property
    def capital(self) -> str:
        """The title at the beginning of a heading."""
        return self.title[0].upper() + self.title[1:]

    @property
    def format(self) -> str:
        """Of its values."""
        return f".{self.digits}f"

    def shown(self, value: Interval | None) -> Interval | None:
        """A value in the unit of tables."""
        if value is None or not self.percent:
            return value
        return Interval(*(100 * end for end in value))


@dataclass(frozen=True)
class PaperTable:
    """Numbers that the paper prints, in the unit of our tables.

    Attributes:
        source: where they stand.
        keys: the measures of the columns, such as ``test_f1``.
        rows: by objective and temperature; a row may be shorter than ``keys``.
        best: the temperature of each objective that is best there.

    """

    source: str = ""
    keys: Sequence[str] = ()
    rows: Mapping[tuple[str, float | None], Sequence[float | None]] = field(default_factory=dict)
    best: Mapping[str, float] = field(default_factory=dict)

    def value(self, objective: str, tau: float | None, key: str) -> float | None:
        """The number of an objective at a temperature, None where the paper has none.

        >>> table = PaperTable("Table 3", ("test_uas",), {("ML", None): (90.7,), ("RAML", 0.3): (91.1,)}, {"RAML": 0.3})
        >>> table.value("RAML", 0.3, "test_uas"), table.gain("RAML", 0.3, "test_uas"), table.value("RAML", 0.2, "test_uas")
        (91.1, 0.4, None)
        """
        for (name, at), row in self.rows.items():
            same = at == tau or (at and tau and math.isclose(at, tau, rel_tol=1e-9))
            if name == objective and same and key in self.keys[: len(row)]:
                return row[self.keys.index(key)]
        return None

    def at_best(self, objective: str, key: str) -> float | None:
        """The same at the temperature that is best in the paper."""
        return self.value(objective, self.best.get(objective), key)

    def lead(self, objective: str, other: str, key: str) -> float | None:
        """What an objective gains over another, both at their best."""
        return _difference(self.at_best(objective, key), self.at_best(other, key))

    def gain(self, objective: str, tau: float | None, key: str) -> float | None:
        """What an objective gains over ML, in points."""
        ml = None if objective == "ML" else self.value("ML", None, key)
        return _difference(self.value(objective, tau, key), ml)


def _difference(high: float | None, low: float | None) -> float | None:
    return None if high is None or low is None else round(high - low, 2)


class Setting(NamedTuple):
    """A setting of the paper: it is listed among the differences where ours is another.

    Attributes:
        name: a key of the recipe, ``section.key``, or what ``here`` computes, in words.
        paper: its value in the paper; a mapping has one for each objective.
        here: ours, from a recipe, if it is not the value of the key.

    """

    name: str
    paper: Any
    here: Callable[[Any], Any] | None = None

    def ours(self, recipe: Any) -> Any:
        """The value in a recipe."""
        if self.here is not None:
            return self.here(recipe)
        section, _, key = self.name.partition(".")
        return getattr(getattr(recipe, section), key)


def mean_and_range(values: Sequence[float]) -> Interval:
    """Mean over seeds between the least and the largest; a single value has no range.

    >>> mean_and_range([0.5, 0.75, 1.0])
    Interval(value=0.75, low=0.5, high=1.0)
    """
    mean = statistics.fmean(values)
    return Interval(mean, min(values), max(values)) if len(values) > 1 else Interval(mean)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """What the section of a task shows. Only ``title`` and ``scores`` must be declared.

    Attributes:
        title: of the section.
        scores: what tables show; models are chosen by the first.
        gain_in: the score that gains are told of, if it is not the first.
        about: what was trained, in a sentence or two.
        notes: what the scores mean.
        unit: what splits are counted in.
        tuned: settings that every temperature has its own best values of.
        by_grid: whether each grid of a sweep is shown by itself.
        spread: of several seeds; what the bands and the small numbers under scores are.
        spread_note: the same in words.
        measures: columns of the table on training, by the names of measures.
        corpus: the paper's.
        known_by: pattern of the names of training files that are the paper's corpus.
        paper_examples: the sizes of the paper's splits.
        paper: its tables, by method.
        method: the method of a recipe, where the paper has several tables.
        methods: the names of methods.
        settings: of the paper.
        curves: numeric settings whose effect is drawn.
        label: how a recipe learns, where settings alone would not tell it to people.
        baseline: what gains are over, if it is not ML with the same settings, and its name.
        fixed: columns of statistics that the test set alone decides: they differ where test sets
            do.
        exact: exact curves of a score of a variant, where there are any.
        extras: tables, figures and galleries of this experiment alone.

    """

    title: str
    scores: Sequence[Score]
    gain_in: str = ""
    about: str = ""
    notes: str = ""
    unit: str = "example"
    tuned: tuple[str, ...] = ()
    by_grid: bool = False
    spread: Callable[[Sequence[float]], Interval] = mean_and_range
    spread_note: str = "the range over seeds"
    measures: Mapping[str, Column] = field(default_factory=dict)
    corpus: str = ""
    known_by: str = ""
    paper_examples: Mapping[str, int] = field(default_factory=dict)
    paper: Mapping[str, PaperTable] = field(default_factory=dict)
    method: Callable[[Any], str] = lambda recipe: ""
    methods: Mapping[str, str] = field(default_factory=dict)
    settings: Sequence[Setting] = ()
    curves: Sequence[str] = ()
    label: Callable[[Any], str] = lambda recipe: ""
    baseline: Callable[[Results], tuple[System, str] | None] = lambda results: None
    fixed: tuple[int, ...] = ()
    exact: Callable[[Results, Variant, str], Sequence[Series]] = lambda results, variant, key: ()
    extras: Callable[[Results], Sequence[Part | None]] = lambda results: ()

    @property
    def gain_score(self) -> Score:
        """The score that gains are told of."""
        return next((one for one in self.scores if one.name == self.gain_in), self.scores[0])


def plain_experiment(task: Task) -> Experiment:
    """What a task gets that declares metrics alone."""
    names = [task.chosen_by, *(name for name in task.metrics if name != task.chosen_by)]
    titles = {name: name.replace("_", " ") for name in names} | dict(task.titles)
    scores = [Score(name, titles[name], False, 4, dev=True, plotted=True) for name in names]
    return Experiment(title=f"Sweep of {task.name}", scores=scores)
