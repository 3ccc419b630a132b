"""The named-entity experiment (§4.2 of the paper, Tables 2 and 6) and the one with several annotators as a section of a report."""

from __future__ import annotations

from pathlib import Path

from softq.lab.report import ner_figures as figures
from softq.lab.report import ner_tables as tables
from softq.lab.report.ner_results import NerResults, NerSystem, method_of
from softq.lab.report.page import Figure, Section, Table
from softq.lab.report.paper import NER_BEST_TAU, NER_SENTENCES
from softq.lab.report.sweep_words import (
    file_words,
    gain_words,
    judging_words,
    score_words,
    section_of,
    temperature_finding,
)
from softq.linear.features import FINKEL
from softq.metrics import Interval

__all__ = ["NerResults", "section"]

_TITLES = {
    "temperatures": "Named entities: temperatures",
    "crowd": "Named entities from several annotators",
    "world": "Named entities from several annotators whose errors are known",
}
_TEMPERATURES = {
    "ml": "by maximum likelihood (ML)",
    "raml": "by RAML at several temperatures τ, with the number of right labels as the reward",
    "sqdml": "by SQDML, which with one reference is RAML",
}
_METHODS = {
    "ml": "by maximum likelihood (ML)",
    "raml": "by RAML, with each annotator a reference of its own",
    "sqdml": "by SQDML, which takes the mean of what they reward before it exponentiates (eq. 15)",
}
_CONSTRAINTS = {
    "none": "Any sequence of labels may come out, also one that breaks the tag scheme.",
    "decode": "Decoding keeps to the tag scheme; training does not know of it.",
    "target": "Targets and decoding keep to the tag scheme.",
    "model": "Targets, model and decoding keep to the tag scheme.",
}


def section(results: NerResults) -> Section:
    """Everything the report says of a sweep of the experiment: the parts that its kind has."""
    parts: list[Table | Figure | None] = []
    if results.kind == "temperatures":
        for variant in results.variants():
            parts += [
                tables.temperatures(results, variant),
                figures.temperatures(variant),
                tables.training(variant),
            ]
    else:
        parts += [
            tables.methods(results),
            figures.methods(results),
            figures.accuracy(results),
            figures.entity_weight(results),
        ]
        parts += [tables.annotators(results), figures.annotators(results)]
    parts.append(tables.kinds(results))
    return section_of(
        results,
        _TITLES[results.kind],
        [*_problem(results), *_findings(results)],
        parts,
        _differences(results),
    )


# --- what was done --------------------------------------------------------------------------------------


def _problem(results: NerResults) -> list[str]:
    recipe = results.recipe
    features = (
        "the features of Finkel et al. (2005)"
        if recipe.features.templates == FINKEL
        else f"{len(recipe.features.templates)} templates"
    )
    tagger = f"A tagger of named entities, a conditional random field with {features}, was trained on {_training_part(results)}"
    objectives = {system.recipe.objective.name for system, _ in results.pairs()}
    ways = _TEMPERATURES if results.kind == "temperatures" else _METHODS
    how = "; ".join(words for objective, words in ways.items() if objective in objectives)
    if results.kind == "temperatures":
        exact = " The objectives are computed exactly, over all sequences of labels (§4.2 of the paper)."
    else:
        exact = " Several annotators labelled the same sentences, and do not agree."
    return [f"{tagger}: {how}.{exact}", _judging(results)]


def _training_part(results: NerResults) -> str:
    data = results.recipe.data
    if results.kind == "world":
        return f"{data.sentences:,} sentences of the built-in world, each labelled by three to seven annotators whose errors are known"
    return file_words(results, "train")


def _judging(results: NerResults) -> str:
    data = results.recipe.data
    count = f"{data.dev_sentences:,}"
    return judging_words(
        results,
        "F1",
        world=(f"{count} further sentences with the true labels", f"{count} others")
        if results.kind == "world"
        else None,
        without_dev=f"{data.folds} folds of the training file, each tagged by a model of the others"
        if data.folds
        else "the training file itself",
    )


# --- what was found -------------------------------------------------------------------------------------


def _findings(results: NerResults) -> list[str]:
    if results.kind == "temperatures":
        return [
            temperature_finding(one, "F1", _f1_gain(results, one.best))
            for one in results.variants()
            if one.systems
        ]
    return _method_findings(results)


def _method_findings(results: NerResults) -> list[str]:
    baseline, best = results.baseline, results.best_chosen()
    if best is None:
        return []
    said = []
    if baseline is not None:
        said.append(
            f"{method_of(baseline)} is {results.baseline_name} on the development part and has a test F1 of {score_words(baseline)}"
        )
    if best.system is not baseline:
        at = "" if best.system.tau is None else f" at τ = {best.system.tau:g}"
        gain = gain_words(_f1_gain(results, best.system))
        said.append(
            f"{best.label}{at}, the best of all on the development part, has {score_words(best.system)}{gain}"
        )
    else:
        said.append("no other method is better there")
    share = results.of_bayes(best.system)
    if share is not None:
        said.append(f"it has {share:.2f} % as many labels right as the Bayes rule")
    return ["; ".join(said) + "."]


def _f1_gain(results: NerResults, system: NerSystem | None) -> Interval | None:
    judged = None if system is None else results.judged.get(system.name)
    return None if judged is None else judged.f1_gain


# --- what differs ---------------------------------------------------------------------------------------


def _differences(results: NerResults) -> list[str]:
    recipe, told = results.recipe, []
    if results.kind != "temperatures":
        told.append(
            "The paper has no experiment on entities with several annotators; this is the tagger of §4.2 with the targets of eq. 4 and 15."
        )
    elif not results.is_papers_corpus:
        told.append(
            f"The corpus is {Path(recipe.data.train).name}, where the paper has CoNLL-2003."
        )
    if results.kind == "temperatures":
        for part, count in results.sentences.items():
            if count != NER_SENTENCES[part]:
                told.append(
                    f"Sentences of the {part} part: {count:,} here, {NER_SENTENCES[part]:,} in the paper."
                )
        if recipe.data.folds:
            told.append(
                f"There is no development file: its scores are of {recipe.data.folds} folds of the training file."
            )
        best = next(
            (variant.best for variant in results.variants() if variant.best is not None), None
        )
        if best is not None and best.tau != NER_BEST_TAU.value:
            told.append(f"Best τ: {best.tau:g} here, {NER_BEST_TAU.value:g} in the paper.")
    if recipe.features.templates != FINKEL:
        count = len(recipe.features.templates)
        told.append(
            f"The features are {count} templates of the recipe’s own; the paper has those of Finkel et al. (2005)."
        )
    elif not recipe.features.pos:
        told.append(
            "The features do not look at parts of speech, as those of Finkel et al. (2005) do."
        )
    chosen = (
        ", c2 being chosen on the development part"
        if any("c2" in system.settings for system in results.systems)
        else ""
    )
    told.append(
        f"The weights have the penalty c2 · ‖weights‖²{chosen}; the paper does not say how it regularised."
    )
    if not any("constraints" in system.settings for system in results.systems):
        told.append(f"{_CONSTRAINTS[recipe.model.constraints]} The paper does not say.")
    return told
