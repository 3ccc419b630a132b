"""Tables of the translation experiment; None where the results hold nothing to show."""

from __future__ import annotations

from collections.abc import Sequence

from softq.lab.report.page import Column, Table, Value
from softq.lab.report.paper import (
    TRANSLATION_EXACT_MATCH_ML,
    TRANSLATION_EXACT_MATCH_RAML,
    TRANSLATION_ML,
    TRANSLATION_OTHERS,
    TRANSLATION_RAML,
)
from softq.lab.report.sentence_tables import (
    difference,
    gain_over_ml,
    measured,
    other_corpus,
    paper_title,
    points,
    seeds_note,
    training_table,
)
from softq.lab.report.systems import bare, of_tau, percent
from softq.lab.report.translation_results import (
    BEST_TAU,
    METHODS,
    TABLES,
    TranslationResults,
    TranslationSystem,
    TranslationVariant,
    method_of,
    methods_of,
    papers_best,
    papers_corpus_bleu,
    papers_gains,
    papers_sentence_bleu,
)

METRICS = {
    "sentence_bleu": "Sentence BLEU",
    "corpus_bleu": "Corpus BLEU",
    "average_reward": "Average reward",
    "exact_match": "Exact match",
}
_BAYES = "Bayes rule"
_WHAT = (
    "Sentence BLEU is the mean over sentences of smoothed BLEU against all references together, corpus BLEU is multi-bleu’s, without "
    "smoothing, both in percent. The average reward is the mean over references of smoothed BLEU against one; with one reference it is "
    "sentence BLEU."
)


def temperatures(results: TranslationResults, variant: TranslationVariant) -> Table | None:
    """The paper's Table 4, 8 or 9, whichever a variant is of, with ours beside it."""
    if not variant.systems:
        return None
    method, paper, bayes = methods_of(variant), paper_title(results), results.bayes_of(variant)
    with_sentences = method == "ngram"  # the paper's other tables are of corpus BLEU alone
    rows: list[Sequence[Value]] = []
    for system in variant.systems:
        raml = system.objective == "RAML"
        rows.append(
            (
                variant.marked(system),
                bare(system.percent("dev_sentence_bleu")),
                bare(system.percent("test_sentence_bleu")),
                *([papers_sentence_bleu(system)] if with_sentences else []),
                bare(system.percent("test_corpus_bleu")),
                papers_corpus_bleu(system),
                gain_over_ml(results, variant, system, "corpus_bleu"),
                of_tau(papers_gains(method), system.tau) if raml else None,
                bare(system.percent("test_average_reward")),
                bare(system.percent("test_exact_match")),
            )
        )
    if bayes is not None:
        sentences, corpus, *others = (100 * bayes[name] for name in METRICS)
        rows.append(
            (
                _BAYES,
                None,
                sentences,
                *([None] if with_sentences else []),
                corpus,
                None,
                None,
                None,
                *others,
            )
        )
    of_paper = (
        f" Columns “paper” are its Table {TABLES[method]}{other_corpus(results)}"
        if method in TABLES
        else ""
    )
    return Table(
        name="temperatures",
        caption=f"ML and each temperature{_by(variant)}, at what else was best on the development part{variant.which}",
        columns=[
            Column("Model"),
            Column("Dev sentence BLEU", ".2f"),
            Column("Test sentence BLEU", ".2f"),
            *([Column(f"Sentence BLEU, {paper}", ".2f")] if with_sentences else []),
            Column("Test corpus BLEU", ".2f"),
            Column(f"Corpus BLEU, {paper}", ".2f"),
            Column("Gain over ML in corpus BLEU", "+.2f"),
            Column(f"Gain, {paper}", "+.2f"),
            Column("Average reward, %", ".2f"),
            Column("Exact match, %", ".2f"),
        ],
        rows=rows,
        note="“Best” is the temperature of an objective with the highest sentence BLEU on the development part; its gain has the 95 % "
        f"interval of a paired bootstrap over test sentences. {_WHAT}{seeds_note(variant)}"
        + (
            " The Bayes rule writes the right translation of the highest expected reward."
            if bayes is not None
            else ""
        )
        + of_paper,
    )


def metrics(results: TranslationResults, variant: TranslationVariant) -> Table | None:
    """The translation columns of the paper's Table 6: ML and what is best on the development part, by each metric."""
    best = [
        system
        for objective in variant.objectives
        if (system := variant.best_of(objective)) is not None
    ]
    if variant.ml is None or not best:
        return None
    rows: list[Sequence[Value]] = []
    for name, title in METRICS.items():
        for system in best:
            test = results.gain(system, name)
            ml, raml = _papers_at_best(system, name)
            rows.append(
                (
                    f"{title}, {system.label}",
                    *(points(results.score(one, name)) for one in (variant.ml, system)),
                    gain_over_ml(results, variant, system, name),
                    None if test is None else test.p_value,
                    ml,
                    raml,
                    None if ml is None or raml is None else round(raml - ml, 2),
                )
            )
    paper = paper_title(results)
    return Table(
        name="metrics",
        caption=f"ML and the best temperature{_by(variant)} under each metric, on the test part{variant.which}",
        columns=[
            Column("Metric"),
            Column("ML", ".2f"),
            Column("Best temperature", ".2f"),
            Column("Gain", "+.2f"),
            Column("p", ".3f"),
            Column(f"ML, {paper}", ".2f"),
            Column(f"RAML, {paper}", ".2f"),
            Column(f"Gain, {paper}", "+.2f"),
        ],
        rows=rows,
        note="In percent, with 95 % intervals of a bootstrap over test sentences, of gains in pairs; p-values are two-sided, of the same "
        f"bootstrap. {_WHAT} Columns “paper” are the translation columns of its Table 6, RAML by n-gram replacement at "
        f"τ = {BEST_TAU['ngram']:g}{other_corpus(results)}",
    )


def methods(results: TranslationResults) -> Table | None:
    """The best temperature of each way to candidates, as at the foot of the paper's Tables 8 and 9; None of one alone."""
    variants = [variant for variant in results.variants() if variant.tuned]
    if len(variants) < 2:
        return None
    rows: list[Sequence[Value]] = []
    for ml in dict.fromkeys(variant.ml.name for variant in variants if variant.ml is not None):
        variant = next(
            variant for variant in variants if variant.ml is not None and variant.ml.name == ml
        )
        if variant.ml is not None:
            rows.append(
                ("ML", None, *_scores(variant.ml), None, None, TRANSLATION_ML.corpus_bleu, None)
            )
    for variant in variants:
        for objective in variant.objectives:
            system = variant.best_of(objective)
            if system is None:
                continue
            test, method = results.gain(system, "corpus_bleu"), method_of(system)
            papers = (
                (papers_best(method), BEST_TAU.get(method)) if objective == "RAML" else (None, None)
            )
            rows.append(
                (
                    f"{objective}, {METHODS.get(method, 'other candidates')}{variant.which}",
                    system.tau,
                    *_scores(system),
                    gain_over_ml(results, variant, system, "corpus_bleu"),
                    None if test is None else test.p_value,
                    *papers,
                )
            )
    paper = paper_title(results)
    return Table(
        name="methods",
        caption="Each way to candidates at the temperature that is best on the development part",
        columns=[
            Column("Method"),
            Column("τ", "g"),
            Column("Dev sentence BLEU", ".2f"),
            Column("Test sentence BLEU", ".2f"),
            Column("Test corpus BLEU", ".2f"),
            Column("Gain over ML in corpus BLEU", "+.2f"),
            Column("p", ".3f"),
            Column(f"Corpus BLEU, {paper}", ".2f"),
            Column(f"Its τ, {paper}", "g"),
        ],
        rows=rows,
        note="Gains have 95 % intervals and two-sided p-values of a paired bootstrap over test sentences. Columns “paper” are the best of "
        f"its Tables 4, 8 and 9{other_corpus(results)}",
    )


def previous_work(results: TranslationResults) -> Table:
    """The paper's Table 5, facts, with ours as its last row."""
    rows: list[Sequence[Value]] = [
        (work.name, work.ml, work.proposed, round(work.proposed - work.ml, 2))
        for work in TRANSLATION_OTHERS
    ]
    pairs = [
        (ml, system)
        for system, ml in results.chosen()
        if ml is not None and system.objective == "RAML"
    ]
    if pairs:
        ml, best = max(pairs, key=lambda pair: pair[1].dev)
        scores = [points(system.scores.get("test_corpus_bleu")) for system in (ml, best)]
        test = results.gain(best, "corpus_bleu")
        gain = difference(best, ml, "corpus_bleu") if test is None else percent(test.gain)
        rows.append((f"Here, {results.name_of(best)}", *scores, gain))
    where = (
        "on that corpus"
        if results.is_papers_corpus
        else "on another corpus, so that only gains compare"
    )
    ours = f" The last row is ours, {where}."
    return Table(
        name="previous-work",
        caption="Corpus BLEU of ML and of what is proposed instead, by the paper and those before it",
        columns=[
            Column("Work"),
            Column("ML", ".2f"),
            Column("Proposed", ".2f"),
            Column("Gain", "+.2f"),
        ],
        rows=rows,
        note="The paper’s Table 5, on IWSLT 2014 German–English; all but the paper begin with a model trained by ML."
        + (ours if pairs else ""),
    )


def training(variant: TranslationVariant) -> Table | None:
    """What else was measured of each model of `temperatures`."""
    titles = {
        "epoch": Column("Best epoch", ",g"),
        "cross_entropy": Column("Cross-entropy", ".4f"),
        "dev_perplexity": Column("Dev perplexity", ".3f"),
        "test_perplexity": Column("Test perplexity", ".3f"),
        "test_sacrebleu": Column("Test sacreBLEU", ".2f"),
        "test_length_ratio": Column("Length ratio", ".3f"),
        "test_expected_reward": Column("Expected reward", ".4f"),
        "examples": Column("Training examples", ",.0f"),
        "left_out": Column("Left out", ",.0f"),
        "parameters": Column("Weights", ",.0f"),
    }
    exact = (
        " The expected reward is exact: over all right translations."
        if measured(variant, "test_expected_reward")
        else ""
    )
    return training_table(
        variant,
        titles,
        "Perplexities are of the references, by word. sacreBLEU is corpus BLEU on plain text, tokenised by itself, in percent. The "
        f"length ratio is of words of the translations to those of the closest references.{exact}",
    )


# --- shared ---------------------------------------------------------------------------------------------


def _scores(system: TranslationSystem) -> list[Value]:
    return [
        bare(system.percent(name))
        for name in ("dev_sentence_bleu", "test_sentence_bleu", "test_corpus_bleu")
    ]


def _papers_at_best(system: TranslationSystem, metric: str) -> tuple[float | None, float | None]:
    """ML and RAML of Table 6, whatever temperature is best here; of other methods than its own, the paper has no such numbers."""
    if system.objective != "RAML" or method_of(system) != "ngram":
        return None, None
    if metric == "exact_match":
        return TRANSLATION_EXACT_MATCH_ML.value, TRANSLATION_EXACT_MATCH_RAML.value
    if metric == "average_reward":
        return None, None
    return getattr(TRANSLATION_ML, metric), getattr(TRANSLATION_RAML[BEST_TAU["ngram"]], metric)


def _by(variant: TranslationVariant) -> str:
    method = METHODS.get(methods_of(variant))
    return "" if method is None else f", {method}"
