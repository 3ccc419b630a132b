"""The translation experiment (§4.2 of the paper, Tables 4, 5, 6, 8 and 9), of files or of the built-in world, as a section of a report."""

from __future__ import annotations

from pathlib import Path

from softq.lab.report import translation_figures as figures
from softq.lab.report import translation_tables as tables
from softq.lab.report.page import Figure, Section, Table, show
from softq.lab.report.paper import TRANSLATION_SENTENCES, TRANSLATION_SETUP
from softq.lab.report.sweep_words import (
    counted,
    file_words,
    judging_words,
    section_of,
    temperature_finding,
)
from softq.lab.report.systems import bare_settings, percent
from softq.lab.report.translation_results import (
    BEST_TAU,
    METHODS,
    TranslationResults,
    TranslationVariant,
    method_of,
    methods_of,
)

__all__ = ["TranslationResults", "section"]

_OBJECTIVES = {
    "ml": "by maximum likelihood (ML)",
    "raml": "by RAML at several temperatures τ, which learns candidates besides the references, weighed by their reward",
    "sqdml": "by SQDML, which takes the mean of what several references reward before it exponentiates (eq. 15)",
}
_METHODS = {
    "ngram": "Candidates by n-gram replacement are references with some of their words replaced, weighed by their sentence BLEU "
    "(Appendix C).",
    "importance": "Importance sampling draws candidates by their Hamming distance from a reference, and divides the weight that their "
    "sentence BLEU gives them by the probability of being drawn (Appendix D.2.4).",
    "hamming": "With the Hamming reward, candidates are drawn by their Hamming distance from a reference, which is the reward itself, so "
    "that all weigh the same (Appendix D.2.4).",
}


def section(results: TranslationResults) -> Section:
    """Everything the report says of a sweep of the experiment."""
    parts: list[Table | Figure | None] = [tables.methods(results)]
    for variant in results.variants():
        parts += [
            tables.temperatures(results, variant),
            figures.temperatures(results, variant),
            tables.metrics(results, variant),
        ]
        parts.append(tables.training(variant))
    parts += [tables.previous_work(results), figures.learning(results)]
    title = (
        "Translation with BLEU as the reward"
        if results.recipe.data.train
        else "Translation where all right translations are known"
    )
    return section_of(
        results, title, [*_problem(results), *_findings(results)], parts, _differences(results)
    )


# --- what was done --------------------------------------------------------------------------------------


def _problem(results: TranslationResults) -> list[str]:
    data, model = results.recipe.data, results.recipe.model
    objectives = {system.recipe.objective.name for system, _ in results.pairs()}
    how = "; ".join(words for objective, words in _OBJECTIVES.items() if objective in objectives)
    what = (
        "A transformer"
        if model.kind == "transformer"
        else "An encoder–decoder of LSTMs with attention"
    )
    count = f"{data.dev_sentences:,}"
    world = None if data.train else (f"{count} further sentences", f"{count} others")
    used = dict.fromkeys(methods_of(variant) for variant in results.variants() if variant.tuned)
    return [
        f"{what} ({model.hidden} units) was trained to translate on {_training_part(results)}: {how} (§4.2 of the paper).",
        *(_METHODS[method] for method in used if method in _METHODS),
        judging_words(
            results, "sentence BLEU", world=world, without_dev="the training sentences themselves"
        ),
    ]


def _training_part(results: TranslationResults) -> str:
    data = results.recipe.data
    if data.train:
        return file_words(results, "train")
    each = (
        "a right translation" if data.references == 1 else f"{data.references} right translations"
    )
    return f"{counted(data.sentences, 'sentence')} of the built-in world, each with {each}"


# --- what was found -------------------------------------------------------------------------------------


def _findings(results: TranslationResults) -> list[str]:
    said = []
    for variant in results.variants():
        if variant.systems:
            test = results.gain(variant.best, "sentence_bleu")
            found = temperature_finding(
                variant, "sentence BLEU", None if test is None else test.gain
            )
            said.append(
                " ".join(
                    filter(None, (found, _by_corpus(results, variant), _by_bayes(results, variant)))
                )
            )
    return said


def _by_corpus(results: TranslationResults, variant: TranslationVariant) -> str:
    """What the corpus says of the best temperature and of ML."""
    best = variant.best
    test = results.gain(best, "corpus_bleu")
    scores = (
        []
        if best is None or variant.ml is None
        else [one.value("test_corpus_bleu") for one in (variant.ml, best)]
    )
    if not scores or test is None or None in scores:
        return ""
    ml, ours = (show(100 * score, ".2f") for score in scores if score is not None)
    gain, low, high = (show(end, "+.2f") for end in percent(test.gain))
    return f"In corpus BLEU these are {ml} and {ours} %, {gain} points ({low} to {high}, p = {test.p_value:.3f})."


def _by_bayes(results: TranslationResults, variant: TranslationVariant) -> str:
    bayes, best = results.bayes_of(variant), variant.best or variant.ml
    expected = None if best is None else best.value("test_expected_reward")
    if bayes is None or expected is None:
        return ""
    most = 100 * bayes["expected_reward"]
    return f"Over all right translations, the reward to be expected of it is {100 * expected:.2f} %, and {most:.2f} % of the Bayes rule."


# --- what differs ---------------------------------------------------------------------------------------


def _differences(results: TranslationResults) -> list[str]:
    recipe, told = results.recipe, []
    theirs = "IWSLT 2014 German–English"
    if not recipe.data.train:
        told.append(f"The corpus is of two made-up languages, where the paper has {theirs}.")
    elif not results.is_papers_corpus:
        told.append(f"The corpus is {Path(recipe.data.train).name}, where the paper has {theirs}.")
    for part, count in results.sentences.items():
        if count != TRANSLATION_SENTENCES[part]:
            told.append(
                f"Sentences of the {part} part: {count:,} here, {TRANSLATION_SENTENCES[part]:,} in the paper."
            )
    return [
        *told,
        *_other_temperatures(results),
        *_other_model(results),
        *_other_candidates(results),
    ]


def _other_temperatures(results: TranslationResults) -> list[str]:
    told = []
    for variant in results.variants():
        best = variant.best_of("RAML")
        theirs = None if best is None else BEST_TAU.get(method_of(best))
        if best is not None and theirs is not None and best.tau != theirs:
            which = f"{METHODS[method_of(best)]}{variant.which}"
            told.append(f"Best τ of RAML, {which}: {best.tau:g} here, {theirs:g} in the paper.")
    return told


def _other_model(results: TranslationResults) -> list[str]:
    recipe, paper, told = results.recipe, TRANSLATION_SETUP, []
    model = recipe.model
    if model.kind == "transformer":
        told.append(
            "The model is a transformer, in the paper LSTMs with attention and input feeding."
        )
    elif (model.embedding, model.hidden) != (paper.embedding, paper.hidden):
        told.append(
            f"Word vectors and states have {model.embedding} and {model.hidden} numbers, in the paper {paper.embedding} each."
        )
    if recipe.vocabulary.kind == "subwords":
        words = f"{paper.source_words:,} and {paper.target_words:,} whole words"
        told.append(
            f"Words are split into up to {recipe.vocabulary.size:,} subwords; the paper has {words}."
        )
    if recipe.decoding.beam != paper.beam:
        told.append(f"The beam holds {recipe.decoding.beam} sentences, in the paper {paper.beam}.")
    if recipe.training.batch_size != paper.batch_ml:
        told.append(
            f"Steps take {recipe.training.batch_size} sentences; in the paper {paper.batch_ml} by ML, and {paper.batch_raml} by RAML."
        )
    if recipe.training.start:
        told.append("Training goes on from another model; the paper’s RAML begins anew.")
    if model.dropout:
        told.append(
            f"In training, {100 * model.dropout:g} % are dropped out; the paper does not say how it regularised."
        )
    if recipe.optimizer.label_smoothing:
        told.append(
            f"Labels are smoothed by {recipe.optimizer.label_smoothing:g}, in the paper not at all."
        )
    return told


def _other_candidates(results: TranslationResults) -> list[str]:
    """Once for each way to draw them."""
    paper, told = TRANSLATION_SETUP, []
    for variant in results.variants():
        if not variant.tuned:
            continue
        chosen, method = variant.tuned[0].recipe.candidates, methods_of(variant)
        who = f"With {bare_settings(variant.settings)}: " if variant.settings else ""
        if method == "ngram" and (chosen.estimator, chosen.size, chosen.k) != (
            "paper",
            paper.candidates,
            paper.used,
        ):
            used = f"{chosen.k} of " if chosen.k else ""
            told.append(
                f"{who}a step uses {used}{chosen.size} candidates that are drawn anew (estimator {chosen.estimator}), in the paper "
                f"{paper.used} of a set of {paper.candidates}."
            )
        elif method in ("importance", "hamming") and chosen.size != paper.used:
            told.append(
                f"{who}{chosen.size} candidates are drawn of a sentence, in the paper {paper.used}."
            )
        if method == "importance" and chosen.estimator == "importance":
            told.append(
                f"{who}weights are divided by the probability of being drawn; the paper prints a formula that leaves out a factor of the "
                "vocabulary’s size."
            )
    return told
