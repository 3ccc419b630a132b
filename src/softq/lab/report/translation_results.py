"""What a sweep of the translation experiment found, as plain data, and what is computed from it for tables and figures alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from softq.lab.report import paper
from softq.lab.report.sentence_results import Judged, SentenceResults
from softq.lab.report.systems import System, Variant, of_tau
from softq.lab.tasks.translation import TranslationData, TranslationRecipe

__all__ = [
    "BEST_TAU",
    "METHODS",
    "TABLES",
    "Judged",
    "Method",
    "TranslationResults",
    "TranslationSystem",
    "TranslationVariant",
    "method_of",
    "methods_of",
    "papers_best",
    "papers_corpus_bleu",
    "papers_gains",
    "papers_sentence_bleu",
]

TranslationSystem = System[TranslationRecipe]
TranslationVariant = Variant[TranslationRecipe]

Method = Literal["ngram", "importance", "hamming", "other"]
"""A way to candidates and weights that the paper has a table of, or another."""

METHODS: Mapping[Method, str] = {
    "ngram": "n-gram replacement",
    "importance": "importance sampling",
    "hamming": "Hamming reward",
}
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


@dataclass(frozen=True, kw_only=True)
class TranslationResults(SentenceResults[TranslationRecipe]):
    """What the experiment found.

    Attributes:
        bayes: scores of the Bayes rule, by the data they are of; the built-in world alone has them.

    """

    tuned: ClassVar[tuple[str, ...]] = ("learning_rate", "decay", "clip", "dropout")
    papers_corpus: ClassVar[str] = "IWSLT 2014"
    known_by: ClassVar[str] = "iwslt"

    bayes: Mapping[TranslationData, Mapping[str, float]] = field(default_factory=dict)

    def bayes_of(self, variant: TranslationVariant) -> Mapping[str, float] | None:
        """Scores of the Bayes rule on the test part of a variant."""
        return self.bayes.get(variant.systems[0].recipe.data) if variant.systems else None


def method_of(system: TranslationSystem) -> Method:
    """Where a system's candidates come from and what they are weighed by, if the paper has a table of it."""
    chosen = system.recipe.candidates
    if chosen.reward == "hamming":
        return "hamming"
    if chosen.sampler == "ngram":
        return "ngram"
    return (
        "importance"
        if chosen.sampler == "hamming" and chosen.estimator in ("importance", "printed")
        else "other"
    )


def methods_of(variant: TranslationVariant) -> Method:
    """The same of a variant, whose temperatures share their candidates."""
    return method_of(variant.tuned[0]) if variant.tuned else "other"


def papers_corpus_bleu(system: TranslationSystem) -> float | None:
    """Of the table that a system's method has in the paper, at its temperature."""
    if system.objective == "ML":
        return paper.TRANSLATION_ML.corpus_bleu
    found: float | None = (
        of_tau(_CORPUS_BLEU.get(method_of(system), {}), system.tau)
        if system.objective == "RAML"
        else None
    )
    return found


def papers_sentence_bleu(system: TranslationSystem) -> float | None:
    """Of Tables 4 and 6; the paper has none of other methods."""
    if system.objective == "ML":
        return paper.TRANSLATION_ML.sentence_bleu
    row = (
        of_tau(paper.TRANSLATION_RAML, system.tau)
        if system.objective == "RAML" and method_of(system) == "ngram"
        else None
    )
    return None if row is None else row.sentence_bleu


def papers_gains(method: Method) -> dict[float, float]:
    """What RAML gains over ML in corpus BLEU in the paper, in points, by τ; it prints two digits.

    >>> papers_gains("ngram")[0.4], papers_gains("other")
    (1.11, {})
    """
    return {
        tau: round(bleu - paper.TRANSLATION_ML.corpus_bleu, 2)
        for tau, bleu in _CORPUS_BLEU.get(method, {}).items()
    }


def papers_best(method: Method) -> float | None:
    """Corpus BLEU at the temperature that is best in the paper."""
    return _CORPUS_BLEU[method][BEST_TAU[method]] if method in BEST_TAU else None
