"""The parsing experiment (§4.2 of the paper, Tables 3 and 6), of files or of the built-in world, as a section of a report."""

from __future__ import annotations

from pathlib import Path

from softq.lab.report import parsing_figures as figures
from softq.lab.report import parsing_tables as tables
from softq.lab.report.page import Figure, Section, Table
from softq.lab.report.paper import PARSING_BEST_TAU, PARSING_SENTENCES
from softq.lab.report.parsing_results import ParsingResults, ParsingSystem
from softq.lab.report.sweep_words import (
    counted,
    file_words,
    judging_words,
    section_of,
    temperature_finding,
)
from softq.lab.report.systems import bare_settings

__all__ = ["ParsingResults", "section"]

_METHODS = {
    "ml": "by maximum likelihood (ML)",
    "raml": "by RAML at several temperatures τ, with the number of right heads as the reward",
    "sqdml": "by SQDML, which takes the mean of what several trees reward before it exponentiates (eq. 15)",
}
_KEPT = "The other parts keep theirs."


def section(results: ParsingResults) -> Section:
    """Everything the report says of a sweep of the experiment."""
    parts: list[Table | Figure | None] = []
    for variant in results.variants():
        parts += [
            tables.temperatures(results, variant),
            figures.temperatures(results, variant),
            tables.metrics(results, variant),
        ]
        parts.append(tables.training(variant))
    parts.append(figures.learning(results))
    title = (
        "Dependency parsing: temperatures"
        if results.recipe.data.train
        else "Dependency parsing where the right trees are known"
    )
    return section_of(
        results,
        title,
        [*_problem(results), *_crossing(results), *_findings(results)],
        parts,
        _differences(results),
    )


# --- what was done --------------------------------------------------------------------------------------


def _problem(results: ParsingResults) -> list[str]:
    data = results.recipe.data
    objectives = {system.recipe.objective.name for system, _ in results.pairs()}
    how = "; ".join(words for objective, words in _METHODS.items() if objective in objectives)
    count = f"{data.dev_sentences:,}"
    world = (
        None
        if data.train
        else (f"{count} further sentences with the true trees", f"{count} others")
    )
    return [
        f"A dependency parser that scores each arc on its own was trained on {_training_part(results)}: {how}. The objectives are computed "
        "exactly, over all trees (§4.2 of the paper).",
        judging_words(results, "UAS, the share of words with the right head,", world=world),
    ]


def _training_part(results: ParsingResults) -> str:
    data = results.recipe.data
    if data.train:
        others = len(data.references)
        beside = (
            f", with the trees of {others} further {'annotator' if others == 1 else 'annotators'} beside it"
            if others
            else ""
        )
        return file_words(results, "train") + beside
    sentences = f"{counted(data.sentences, 'sentence')} of the built-in world"
    if not data.annotators:
        return f"{sentences}, with their true trees"
    one = data.annotators == 1
    right = [f"{100 * share:.1f}" for share in results.annotators]
    known = (
        f"{' and '.join(filter(None, (', '.join(right[:-1]), *right[-1:])))} % of the heads right"
        if right
        else ""
    )
    who = "an annotator who has " if one else f"{data.annotators} annotators who have "
    return f"{sentences}, each parsed by {who}{known or 'some of the heads wrong'}"


def _crossing(results: ParsingResults) -> list[str]:
    """What became of trees with crossing arcs, once for all variants of which the same can be said."""
    said: dict[str, list[str]] = {}
    for variant in results.variants():
        if variant.systems:
            said.setdefault(_crossing_of(variant.systems[0]), []).append(
                bare_settings(variant.settings)
            )
    if len(said) == 1:
        return list(said)
    return [
        f"With {' or with '.join(which)}: {words[0].lower()}{words[1:]}"
        for words, which in said.items()
    ]


def _crossing_of(system: ParsingSystem) -> str:
    recipe = system.recipe
    if recipe.model.spanning:
        return "The parser has all trees, also those with crossing arcs, so that it learns every training tree as it is."
    lift = recipe.data.nonprojective == "lift"
    count = system.value("lifted" if lift else "skipped")
    start = "The parser has only trees without crossing arcs"
    if count == 0:
        return f"{start}, and no training tree has any."
    what = ("tree" if lift else "sentence") + ("" if count == 1 else "s")
    number = "" if count is None else f"{count:,.0f} "
    were = f"{number}{what} with such arcs {'was' if count == 1 else 'were'}"
    if lift:
        return f"{start}; in training, {were} lifted: one of the arcs after another went to the head’s head, until none crossed. {_KEPT}"
    return f"{start}; {were} left out of training. {_KEPT}"


# --- what was found -------------------------------------------------------------------------------------


def _findings(results: ParsingResults) -> list[str]:
    said = []
    for variant in results.variants():
        if variant.systems:
            found = temperature_finding(variant, "UAS", results.gain(variant.best, "uas"))
            bayes = results.bayes_of(variant)
            said.append(
                found
                if bayes is None
                else f"{found} The Bayes rule, which knows the world, has {100 * bayes['uas']:.2f} %."
            )
    return said


# --- what differs ---------------------------------------------------------------------------------------


def _differences(results: ParsingResults) -> list[str]:
    recipe, told = results.recipe, []
    theirs = "the Penn Treebank as basic Stanford dependencies"
    if not recipe.data.train:
        told.append(f"The corpus is a made-up language, where the paper has {theirs}.")
    elif not results.is_papers_corpus:
        told.append(f"The corpus is {Path(recipe.data.train).name}, where the paper has {theirs}.")
    for part, count in results.sentences.items():
        if count != PARSING_SENTENCES[part]:
            told.append(
                f"Sentences of the {part} part: {count:,} here, {PARSING_SENTENCES[part]:,} in the paper."
            )
    best = next(
        (best for variant in results.variants() if (best := variant.best_of("RAML")) is not None),
        None,
    )
    if best is not None and best.tau != PARSING_BEST_TAU.value:
        told.append(f"Best τ of RAML: {best.tau:g} here, {PARSING_BEST_TAU.value:g} in the paper.")
    if recipe.data.references or (not recipe.data.train and recipe.data.annotators > 1):
        told.append(
            "Training sentences have the trees of several annotators, in the paper one each."
        )
    if not recipe.data.dev and recipe.data.train:
        told.append(
            "There is no development file: settings were chosen on the training file itself."
        )
    spanning = {system.recipe.model.spanning for system, _ in results.pairs()}
    if True in spanning:
        who = "With spanning=true the parser" if False in spanning else "The parser"
        told.append(
            f"{who} has all trees, by the matrix-tree theorem; the paper computes its objective by inside-outside."
        )
    if recipe.model.decoding == "mbr":
        told.append(
            "What is decoded is the tree of the most right heads to be expected, in the paper the most probable one."
        )
    own = (
        f"{len(recipe.features.templates)} templates of the recipe’s own"
        if recipe.features.templates
        else "softq’s own"
    )
    told.append(f"The features are {own}, hashed; the paper has those of Ma and Zhao (2015).")
    if recipe.optimizer.method == "adagrad":
        told.append(
            "Weights are found by AdaGrad and averaged over its steps; the paper does not say how it found them."
        )
    else:
        told.append(
            "The weights of arcs have the penalty c2 · ‖weights‖²; the paper does not say how it regularised."
        )
    told.append("Every word counts, punctuation too; the paper does not say whether it does there.")
    return told
