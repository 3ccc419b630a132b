"""What a sweep of the parsing experiment found, as plain data, and what is computed from it for tables and figures alike."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, NamedTuple

from softq.lab.report.runs import RunSummary
from softq.lab.report.systems import SweepResults, System, Variant
from softq.lab.tasks.parsing_recipe import Data, ParsingRecipe
from softq.metrics import Interval

ParsingSystem = System[ParsingRecipe]
ParsingVariant = Variant[ParsingRecipe]

_PENN_TREEBANK = re.compile(r"(^|[^a-z])(ptb|wsj|penn)", re.IGNORECASE)


class Judged(NamedTuple):
    """Test scores with the 95 % intervals of a bootstrap over test sentences, and the gains over ML, paired."""

    uas: Interval
    las: Interval
    exact_match: Interval
    uas_gain: Interval | None = None
    las_gain: Interval | None = None
    exact_match_gain: Interval | None = None


@dataclass(frozen=True, kw_only=True)
class ParsingResults(SweepResults[ParsingRecipe]):
    """What the experiment found.

    Attributes:
        judged: by the name of a system, for those of `pairs`.
        bayes: scores of the Bayes rule, by the data they are of; the built-in world alone has them.
        annotators: UAS of each annotator's training trees against the true ones, in the built-in world of the sweep's recipe.
        runs: of all models, for their learning curves.

    """

    tuned: ClassVar[tuple[str, ...]] = ("c2", "learning_rate", "relation_learning_rate")

    judged: Mapping[str, Judged] = field(default_factory=dict)
    bayes: Mapping[Data, Mapping[str, float]] = field(default_factory=dict)
    annotators: Sequence[float] = ()
    runs: Sequence[RunSummary] = ()

    @property
    def is_papers_corpus(self) -> bool:
        """Whether the training file is named like the Penn Treebank."""
        return bool(_PENN_TREEBANK.search(Path(self.recipe.data.train).name))

    def bayes_of(self, variant: ParsingVariant) -> Mapping[str, float] | None:
        """Scores of the Bayes rule on the test part of a variant."""
        return self.bayes.get(variant.systems[0].recipe.data) if variant.systems else None

    def gain(self, system: ParsingSystem | None, metric: str) -> Interval | None:
        """Of a system over ML by one of `Judged`'s metrics, None where it is not known."""
        judged = None if system is None else self.judged.get(system.name)
        found: Interval | None = None if judged is None else getattr(judged, f"{metric}_gain")
        return found
