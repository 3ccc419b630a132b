"""The named-entity experiment (§4.2 of the paper, Tables 2 and 6) and the one with several annotators as a section of a report."""

from __future__ import annotations

from pathlib import Path

from softq.features import FINKEL
from softq.report import ner_figures as figures
from softq.report import ner_tables as tables
from softq.report.ner_results import Judged, NerResults, System, Variant, bare_settings, percent
from softq.report.page import Figure, Section, Table, show
from softq.report.paper import NER_BEST_TAU, NER_SENTENCES

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
            parts += [tables.temperatures(results, variant), figures.temperatures(variant), tables.training(variant)]
    else:
        parts += [tables.methods(results), figures.methods(results), figures.accuracy(results), figures.entity_weight(results)]
        parts += [tables.annotators(results), figures.annotators(results)]
    parts.append(tables.kinds(results))
    data = results.recipe.data
    files = dict.fromkeys(Path(path).name for path in (data.train, data.dev, data.test) if path)
    provenance = {
        "Recipe": results.recipe_hash,
        "Reward": ", ".join(results.signatures),
        "Files": ", ".join(files) or "none: the built-in world",
        "Seeds": ", ".join(str(seed) for seed in sorted({seed for system in results.systems for seed in system.seeds})),
        "Scale": results.scale,
        "Training time": f"{results.seconds:,.0f} seconds of training steps",
        "Device": results.device,
        "softq": results.version,
        "Report written": results.date,
    }
    return Section(
        title=_TITLES[results.kind],
        intro=[*_problem(results), *_findings(results), *_warnings(results)],
        parts=[part for part in parts if part is not None],
        command=results.command,
        recipe=results.recipe_text,
        differences=_differences(results),
        provenance={key: value for key, value in provenance.items() if value},
    )


# --- what was done --------------------------------------------------------------------------------------


def _problem(results: NerResults) -> list[str]:
    recipe = results.recipe
    features = (
        "the features of Finkel et al. (2005)" if recipe.features.templates == FINKEL else f"{len(recipe.features.templates)} templates"
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
    return _file(results, "train")


def _judging(results: NerResults) -> str:
    data, sizes = results.recipe.data, results.sentences
    if results.kind == "world":
        choice, final = f"{data.dev_sentences:,} further sentences with the true labels", f"{data.dev_sentences:,} others"
    elif data.halve_dev:
        halves = [f" ({sizes[part]:,})" if part in sizes else "" for part in ("dev", "test")]
        choice, final = f"every other sentence of {Path(data.dev).name}{halves[0]}", f"the remaining ones{halves[1]}"
    else:
        folds = (
            f"{data.folds} folds of the training file, each tagged by a model of the others" if data.folds else "the training file itself"
        )
        choice = _file(results, "dev") if data.dev else folds
        final = _file(results, "test") if data.test else "the development file again" if data.dev else "the training file again"
    return f"Settings were chosen by F1 on the development part, {choice}; the final numbers are of the test part, {final}."


def _file(results: NerResults, part: str) -> str:
    name = Path(getattr(results.recipe.data, part)).name
    return f"{name} ({_sentences(results.sentences[part])})" if part in results.sentences else name


def _sentences(count: int) -> str:
    return f"{count:,} {'sentence' if count == 1 else 'sentences'}"


# --- what was found -------------------------------------------------------------------------------------


def _findings(results: NerResults) -> list[str]:
    if results.kind == "temperatures":
        return [_temperature_finding(results, variant) for variant in results.variants() if variant.systems]
    return _method_findings(results)


def _temperature_finding(results: NerResults, variant: Variant) -> str:
    said = [f"ML has a test F1 of {_of(variant.ml)}"] if variant.ml is not None else []
    best = variant.best
    if best is not None:
        gain = _gain(results.judged.get(best.name)) if variant.ml is not None else ""
        said.append(f"{best.objective} at τ = {best.tau:g}, its best on the development part, has {_of(best)}{gain}")
    which = f"With {bare_settings(variant.settings)}: " if variant.settings else ""
    return which + "; ".join(said) + "."


def _method_findings(results: NerResults) -> list[str]:
    baseline, best = results.baseline, results.best_chosen()
    if best is None:
        return []
    said = []
    if baseline is not None:
        said.append(f"{baseline.method} is {results.baseline_name} on the development part and has a test F1 of {_of(baseline)}")
    if best.system is not baseline:
        at = "" if best.system.tau is None else f" at τ = {best.system.tau:g}"
        gain = _gain(results.judged.get(best.system.name))
        said.append(f"{best.label}{at}, the best of all on the development part, has {_of(best.system)}{gain}")
    else:
        said.append("no other method is better there")
    share = results.of_bayes(best.system)
    if share is not None:
        said.append(f"it has {share:.2f} % as many labels right as the Bayes rule")
    return ["; ".join(said) + "."]


def _of(system: System) -> str:
    return f"{show(percent(system.scores['test']), '.2f')} %"


def _gain(judged: Judged | None) -> str:
    if judged is None or judged.f1_gain is None:
        return ""
    value, low, high = (show(end, "+.2f") for end in percent(judged.f1_gain))
    return f", {value} points ({low} to {high})"


def _warnings(results: NerResults) -> list[str]:
    said = []
    late = [results.name_of(system) for system in results.not_converged()]
    if late:
        which = "This model" if len(late) == 1 else "These models"
        said.append(f"{which} stopped before training had converged, so the numbers are not the optimum’s: {'; '.join(late)}.")
    if results.missing:
        said.append(f"The data cannot be read here ({results.missing}), so intervals and whatever else needs it are left out.")
    return said


# --- what differs ---------------------------------------------------------------------------------------


def _differences(results: NerResults) -> list[str]:
    recipe, told = results.recipe, []
    if results.kind != "temperatures":
        told.append(
            "The paper has no experiment on entities with several annotators; this is the tagger of §4.2 with the targets of eq. 4 and 15."
        )
    elif not results.is_papers_corpus:
        told.append(f"The corpus is {Path(recipe.data.train).name}, where the paper has CoNLL-2003.")
    if results.kind == "temperatures":
        for part, count in results.sentences.items():
            if count != NER_SENTENCES[part]:
                told.append(f"Sentences of the {part} part: {count:,} here, {NER_SENTENCES[part]:,} in the paper.")
        if recipe.data.folds:
            told.append(f"There is no development file: its scores are of {recipe.data.folds} folds of the training file.")
        best = next((variant.best for variant in results.variants() if variant.best is not None), None)
        if best is not None and best.tau != NER_BEST_TAU.value:
            told.append(f"Best τ: {best.tau:g} here, {NER_BEST_TAU.value:g} in the paper.")
    if recipe.features.templates != FINKEL:
        count = len(recipe.features.templates)
        told.append(f"The features are {count} templates of the recipe’s own; the paper has those of Finkel et al. (2005).")
    elif not recipe.features.pos:
        told.append("The features do not look at parts of speech, as those of Finkel et al. (2005) do.")
    chosen = ", c2 being chosen on the development part" if any("c2" in system.settings for system in results.systems) else ""
    told.append(f"The weights have the penalty c2 · ‖weights‖²{chosen}; the paper does not say how it regularised.")
    if not any("constraints" in system.settings for system in results.systems):
        told.append(f"{_CONSTRAINTS[recipe.model.constraints]} The paper does not say.")
    return told
