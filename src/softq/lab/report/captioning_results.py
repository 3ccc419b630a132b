"""What a sweep of the captioning experiment found, as plain data, and what is computed from it for tables and figures alike."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from softq.lab.report import paper
from softq.lab.report.figures import Picture
from softq.lab.report.sentence_results import SentenceResults
from softq.lab.report.systems import System, Variant, bare_settings, of_tau
from softq.lab.tasks.captioning import CaptioningRecipe
from softq.metrics import Interval, PairedTest

CaptioningSystem = System[CaptioningRecipe]
CaptioningVariant = Variant[CaptioningRecipe]

OBJECTIVES = ("ML", "RAML", "SQDML")
PAPERS: Mapping[str, Mapping[float, paper.CaptioningScores]] = {
    "RAML": paper.CAPTIONING_RAML,
    "SQDML": paper.CAPTIONING_SQDML,
}
SAMPLERS = {
    "ngram": "n-gram replacement",
    "hamming": "words replaced by their number",
    "model": "the model’s own captions",
    "near": "captions of images that are alike",
    "recombined": "references recombined",
}


class Written(NamedTuple):
    """The caption of an image by a model of an objective, and its reward against each reference, in 0..1."""

    objective: str
    text: str
    rewards: Sequence[float]

    @property
    def mean(self) -> float:
        """The average reward."""
        return statistics.fmean(self.rewards)

    @property
    def most(self) -> float:
        """The maximum reward."""
        return max(self.rewards)


class Shown(NamedTuple):
    """An image with its references, and with the captions of several systems."""

    image: str
    picture: Picture | None
    references: Sequence[str]
    captions: Sequence[Written]


class CaseStudy(NamedTuple):
    """Images on which two systems differ most, by the average rewards of their captions.

    Attributes:
        ours: objective of the one, SQDML if there is one.
        other: objective of what it is compared with, RAML if there is one.
        models: names of all whose captions are shown, in the order of these.
        ahead: images where it leads by most.
        behind: images where it falls behind by most.
        counts: images where it leads, where both earn the same, and where it falls behind.

    """

    ours: str
    other: str
    models: Sequence[str]
    ahead: Sequence[Shown]
    behind: Sequence[Shown]
    counts: tuple[int, int, int]


class CandidateSet(NamedTuple):
    """A way to candidates, and the systems that were trained by it."""

    settings: str  # what tells it from other sets of the same sampler, "" of the only one
    systems: list[CaptioningSystem]

    @property
    def title(self) -> str:
        """In words."""
        samplers = self.systems[0].recipe.candidates.samplers
        return " and ".join(SAMPLERS[name] for name in samplers) + (
            f" ({self.settings})" if self.settings else ""
        )

    def best_of(self, objective: str) -> CaptioningSystem | None:
        """The temperature of an objective that is best on the development part."""
        return Variant({}, None, self.systems).best_of(objective)


@dataclass(frozen=True, kw_only=True)
class CaptioningResults(SentenceResults[CaptioningRecipe]):
    """What the experiment found.

    Attributes:
        over_raml: how far SQDML is above RAML by each metric, by the name of the SQDML system, both being of `chosen`.
        study: the case study.
        no_study: why there is none.

    """

    # beside what every model is tuned by: in how many examples references come, and how many candidates go with these; the paper has
    # other values of both for RAML and for SQDML
    tuned: ClassVar[tuple[str, ...]] = (
        "learning_rate",
        "decay",
        "clip",
        "dropout",
        "batch_size",
        "merge",
        "candidates.size",
        "k",
    )
    unit: ClassVar[str] = "image"
    papers_corpus: ClassVar[str] = "MSCOCO"
    known_by: ClassVar[str] = "coco"

    over_raml: Mapping[str, Mapping[str, PairedTest]] = field(default_factory=dict)
    study: CaseStudy | None = None
    no_study: str = ""

    @property
    def of_world(self) -> bool:
        """Whether all that may be said of an image is known."""
        return not self.recipe.data.train

    def gain_over(
        self, system: CaptioningSystem, other: CaptioningSystem, metric: str
    ) -> PairedTest | None:
        """Of a chosen system over ML or RAML of its variant; None where it is not known."""
        if other.objective == "ML":
            return self.gain(system, metric)
        return self.over_raml.get(system.name, {}).get(metric)

    def candidate_sets(self) -> list[CandidateSet]:
        """Every way to candidates, told apart by all of their settings and by those that are not tuned."""
        told = [
            flag
            for flag in self._varied()
            if flag in self.candidate_flags or flag not in self.tuned
        ]
        groups: dict[str, list[CaptioningSystem]] = {}
        for system in self.systems:
            if system.objective != "ML":
                groups.setdefault(json.dumps([system.settings[flag] for flag in told]), []).append(
                    system
                )
        return [
            CandidateSet(
                bare_settings(
                    {flag: systems[0].settings[flag] for flag in told if flag != "sampler"}
                ),
                systems,
            )
            for systems in groups.values()
        ]

    def _varied(self) -> list[str]:
        """Settings of which RAML and SQDML have several values."""
        values: dict[str, set[str]] = {}
        for system in self.systems:
            if system.objective != "ML":
                for flag, value in system.settings.items():
                    values.setdefault(flag, set()).add(json.dumps(value))
        return [flag for flag, several in values.items() if len(several) > 1]


def best_of_each(variant: CaptioningVariant) -> dict[str, CaptioningSystem]:
    """ML and the best temperature of RAML and of SQDML, as far as they are there, by objective."""
    found = {
        objective: variant.ml if objective == "ML" else variant.best_of(objective)
        for objective in OBJECTIVES
    }
    return {objective: system for objective, system in found.items() if system is not None}


def comparisons(variant: CaptioningVariant) -> list[tuple[CaptioningSystem, CaptioningSystem]]:
    """SQDML with RAML, SQDML with ML, RAML with ML, as far as they are there."""
    best = best_of_each(variant)
    pairs = (("SQDML", "RAML"), ("SQDML", "ML"), ("RAML", "ML"))
    return [(best[ours], best[other]) for ours, other in pairs if ours in best and other in best]


def share_of_ceiling(system: CaptioningSystem) -> Interval | None:
    """The exact expected reward of a system's captions as a share of the highest that there is; None outside the built-in world."""
    expected, ceiling = system.scores.get("test_expected_reward"), system.value("test_ceiling")
    return (
        None if expected is None or not ceiling else Interval(*(end / ceiling for end in expected))
    )


def papers_scores(system: CaptioningSystem) -> paper.CaptioningScores | None:
    """Of Table 1, at a system's temperature.

    >>> from softq.lab.recipe import Objective
    >>> papers_scores(System("", (), CaptioningRecipe(objective=Objective("sqdml", 0.9)), {}, {}))
    CaptioningScores(average_reward=10.91, corpus_bleu=27.54)
    """
    if system.objective == "ML":
        return paper.CAPTIONING_ML
    found: paper.CaptioningScores | None = of_tau(PAPERS[system.objective], system.tau)
    return found


def papers_best(objective: str) -> paper.CaptioningScores:
    """At the temperature that is best in the paper."""
    return (
        paper.CAPTIONING_ML
        if objective == "ML"
        else PAPERS[objective][paper.CAPTIONING_BEST_TAU.value]
    )
