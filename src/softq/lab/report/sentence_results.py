"""What a sweep of models that write sentences found, whatever they write them of: which are chosen, and how sure their scores are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, NamedTuple

from softq.lab.recipe import flag_names
from softq.lab.report.runs import RunSummary
from softq.lab.report.systems import R, SweepResults, System, Variant
from softq.metrics import Interval, PairedTest


class Judged(NamedTuple):
    """Test scores by the name of a metric with the 95 % intervals of a bootstrap over test sentences, and the gains over ML, paired."""

    scores: Mapping[str, Interval]
    gains: Mapping[str, PairedTest]  # {} of ML


@dataclass(frozen=True, kw_only=True)
class SentenceResults(SweepResults[R]):
    """What such an experiment found.

    Attributes:
        judged: by the name of a system, for those of `chosen`.
        runs: of all models, for their learning curves.

    """

    papers_corpus: ClassVar[str]  # what the paper trained on
    known_by: ClassVar[str]  # small letters in the names of its files

    judged: Mapping[str, Judged] = field(default_factory=dict)
    runs: Sequence[RunSummary] = ()

    @property
    def is_papers_corpus(self) -> bool:
        """Whether the training file, or the folder it lies in, is named like the paper's."""
        return any(
            self.known_by in part.lower() for part in Path(self.recipe.data.train).parts[-2:]
        )

    @property
    def candidate_flags(self) -> set[str]:
        """Settings of candidates, which ML has none of."""
        return {
            flag
            for flag, (section, _, _) in flag_names(type(self.recipe)).items()
            if section == "candidates"
        }

    def variants(self) -> list[Variant[R]]:
        """The same; ML makes no candidates, so that one with other settings of these is the ML of each variant that has none of its own."""
        found = super().variants()
        shared = [
            variant
            if variant.ml is not None
            else Variant(variant.settings, self._ml_of(variant, found), variant.tuned)
            for variant in found
        ]
        compared = {
            variant.ml.name for variant in shared if variant.tuned and variant.ml is not None
        }
        return [
            variant
            for variant in shared
            if variant.tuned or variant.ml is None or variant.ml.name not in compared
        ]

    def _ml_of(self, variant: Variant[R], others: Sequence[Variant[R]]) -> System[R] | None:
        """Of variants that differ in their candidates alone, the ML that is best on the development part."""
        candidates = self.candidate_flags

        def settings(one: Variant[R]) -> dict[str, object]:
            return {flag: value for flag, value in one.settings.items() if flag not in candidates}

        found = [
            other.ml
            for other in others
            if other.ml is not None and settings(other) == settings(variant)
        ]
        return max(found, key=lambda system: system.dev, default=None)

    def chosen(self) -> list[tuple[System[R], System[R] | None]]:
        """ML and the best temperature of each objective of each variant, each with the ML it is compared with, None for ML itself."""
        pairs: list[tuple[System[R], System[R] | None]] = []
        for variant in self.variants():
            if variant.ml is not None and (variant.ml, None) not in pairs:
                pairs.append((variant.ml, None))
            best = [variant.best_of(objective) for objective in variant.objectives]
            pairs += [(system, variant.ml) for system in best if system is not None]
        return pairs

    def score(self, system: System[R], metric: str) -> Interval | None:
        """A metric on the test part, with its bootstrap interval where there is one, None where it was not measured."""
        judged = self.judged.get(system.name)
        return system.scores.get(f"test_{metric}") if judged is None else judged.scores[metric]

    def gain(self, system: System[R] | None, metric: str) -> PairedTest | None:
        """Of a system over ML by a metric, None where it is not known."""
        judged = None if system is None else self.judged.get(system.name)
        return None if judged is None else judged.gains.get(metric)
