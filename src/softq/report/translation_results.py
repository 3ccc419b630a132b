"""What a sweep of the translation experiment found, as plain data, and what is computed from it for tables and figures alike."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

from softq.evaluate import Interval, PairedTest
from softq.recipe import flag_names
from softq.report import paper
from softq.report.runs import RunSummary
from softq.report.systems import SweepResults, System, Variant, of_tau
from softq.tasks.translation_recipe import Data, TranslationRecipe

TranslationSystem = System[TranslationRecipe]
TranslationVariant = Variant[TranslationRecipe]

Method = Literal["ngram", "importance", "hamming", "other"]
"""A way to candidates and weights that the paper has a table of, or another."""

METHODS: Mapping[Method, str] = {"ngram": "n-gram replacement", "importance": "importance sampling", "hamming": "Hamming reward"}
TABLES: Mapping[Method, int] = {"ngram": 4, "importance": 8, "hamming": 9}
BEST_TAU: Mapping[Method, float] = {
    "ngram": paper.TRANSLATION_BEST_TAU.value,
    "importance": paper.TRANSLATION_IMPORTANCE_BEST_TAU.value,
    "hamming": paper.TRANSLATION_HAMMING_BEST_TAU.value,
}
_CORPUS_BLEU: Mapping[Method, Mapping[float, float]] = {
    "ngram": {tau: row.corpus_bleu for tau, row in paper.TRANSLATION_RAML.items()},
    "importance": paper.TRANSLATION_IMPORTANCE,
    "hamming": paper.TRANSLATION_HAMMING,
}
_PAPERS_CORPUS = re.compile(r"iwslt", re.IGNORECASE)


class Judged(NamedTuple):
    """Test scores by the name of a metric with the 95 % intervals of a bootstrap over test sentences, and the gains over ML, paired."""

    scores: Mapping[str, Interval]
    gains: Mapping[str, PairedTest]  # {} of ML


@dataclass(frozen=True, kw_only=True)
class TranslationResults(SweepResults[TranslationRecipe]):
    """What the experiment found.

    Attributes:
        judged: by the name of a system, for those of `chosen`.
        bayes: scores of the Bayes rule, by the data they are of; the built-in world alone has them.
        runs: of all models, for their learning curves.

    """

    tuned: ClassVar[tuple[str, ...]] = ("learning_rate", "decay", "clip", "dropout")

    judged: Mapping[str, Judged] = field(default_factory=dict)
    bayes: Mapping[Data, Mapping[str, float]] = field(default_factory=dict)
    runs: Sequence[RunSummary] = ()

    @property
    def is_papers_corpus(self) -> bool:
        """Whether the training file is named like IWSLT's."""
        return any(_PAPERS_CORPUS.search(part) for part in Path(self.recipe.data.train).parts[-2:])

    def variants(self) -> list[TranslationVariant]:
        """The same; ML makes no candidates, so that one with other settings of these is the ML of each variant that has none of its own."""
        found = super().variants()
        shared = [
            variant if variant.ml is not None else Variant(variant.settings, _ml_of(variant, found), variant.tuned) for variant in found
        ]
        compared = {variant.ml.name for variant in shared if variant.tuned and variant.ml is not None}
        return [variant for variant in shared if variant.tuned or variant.ml is None or variant.ml.name not in compared]

    def chosen(self) -> list[tuple[TranslationSystem, TranslationSystem | None]]:
        """ML and the best temperature of each objective of each variant, each with the ML it is compared with, None for ML itself."""
        pairs: list[tuple[TranslationSystem, TranslationSystem | None]] = []
        for variant in self.variants():
            if variant.ml is not None and (variant.ml, None) not in pairs:
                pairs.append((variant.ml, None))
            best = [variant.best_of(objective) for objective in variant.objectives]
            pairs += [(system, variant.ml) for system in best if system is not None]
        return pairs

    def bayes_of(self, variant: TranslationVariant) -> Mapping[str, float] | None:
        """Scores of the Bayes rule on the test part of a variant."""
        return self.bayes.get(variant.systems[0].recipe.data) if variant.systems else None

    def score(self, system: TranslationSystem, metric: str) -> Interval | None:
        """A metric on the test part, with its bootstrap interval where there is one, None where it was not measured."""
        judged = self.judged.get(system.name)
        return system.scores.get(f"test_{metric}") if judged is None else judged.scores[metric]

    def gain(self, system: TranslationSystem | None, metric: str) -> PairedTest | None:
        """Of a system over ML by a metric, None where it is not known."""
        judged = None if system is None else self.judged.get(system.name)
        return None if judged is None else judged.gains.get(metric)


def _ml_of(variant: TranslationVariant, others: Sequence[TranslationVariant]) -> TranslationSystem | None:
    """Of variants that differ in their candidates alone, the ML that is best on the development part."""
    candidates = {flag for flag, (section, _, _) in flag_names(TranslationRecipe).items() if section == "candidates"}

    def settings(one: TranslationVariant) -> dict[str, object]:
        return {flag: value for flag, value in one.settings.items() if flag not in candidates}

    found = [other.ml for other in others if other.ml is not None and settings(other) == settings(variant)]
    return max(found, key=lambda system: system.dev, default=None)


# --- the paper's ----------------------------------------------------------------------------------------


def method_of(system: TranslationSystem) -> Method:
    """Where a system's candidates come from and what they are weighed by, if the paper has a table of it."""
    chosen = system.recipe.candidates
    if chosen.reward == "hamming":
        return "hamming"
    if chosen.sampler == "ngram":
        return "ngram"
    return "importance" if chosen.sampler == "hamming" and chosen.estimator in ("importance", "printed") else "other"


def methods_of(variant: TranslationVariant) -> Method:
    """The same of a variant, whose temperatures share their candidates."""
    return method_of(variant.tuned[0]) if variant.tuned else "other"


def papers_corpus_bleu(system: TranslationSystem) -> float | None:
    """Of the table that a system's method has in the paper, at its temperature."""
    if system.objective == "ML":
        return paper.TRANSLATION_ML.corpus_bleu
    found: float | None = of_tau(_CORPUS_BLEU.get(method_of(system), {}), system.tau) if system.objective == "RAML" else None
    return found


def papers_sentence_bleu(system: TranslationSystem) -> float | None:
    """Of Tables 4 and 6; the paper has none of other methods."""
    if system.objective == "ML":
        return paper.TRANSLATION_ML.sentence_bleu
    row = of_tau(paper.TRANSLATION_RAML, system.tau) if system.objective == "RAML" and method_of(system) == "ngram" else None
    return None if row is None else row.sentence_bleu


def papers_gains(method: Method) -> dict[float, float]:
    """What RAML gains over ML in corpus BLEU in the paper, in points, by τ; it prints two digits.

    >>> papers_gains("ngram")[0.4], papers_gains("other")
    (1.11, {})
    """
    return {tau: round(bleu - paper.TRANSLATION_ML.corpus_bleu, 2) for tau, bleu in _CORPUS_BLEU.get(method, {}).items()}


def papers_best(method: Method) -> float | None:
    """Corpus BLEU at the temperature that is best in the paper."""
    return _CORPUS_BLEU[method][BEST_TAU[method]] if method in BEST_TAU else None
