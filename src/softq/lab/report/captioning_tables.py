"""Tables of the captioning experiment; None where the results hold nothing to show."""

from __future__ import annotations

from collections.abc import Sequence

from softq.lab.report import paper
from softq.lab.report.captioning_results import (
    PAPERS,
    CandidateSet,
    CaptioningResults,
    CaptioningSystem,
    CaptioningVariant,
    best_of_each,
    comparisons,
    papers_best,
    papers_scores,
    share_of_ceiling,
)
from softq.lab.report.page import Column, Table, Value
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
from softq.lab.report.systems import bare, percent
from softq.metrics import Interval, PairedTest

CIDER = "cider_d"
METRICS = {  # by name: title, and what the bootstrap judges
    "average_reward": "Average reward",
    "max_reward": "Maximum reward",
    "corpus_bleu": "Corpus BLEU-4",
    "rouge_l": "ROUGE-L",
    CIDER: "CIDEr-D",
    "exact_match": "Exact match",
}
_WHAT = (
    "The average reward of a caption is the mean over references of its smoothed sentence BLEU against one of them, the maximum reward the "
    "highest of these; corpus BLEU-4 is multi-bleu’s, against all references together."
)


def temperatures(results: CaptioningResults, variant: CaptioningVariant) -> Table | None:
    """The paper's Table 1, a row for each model, with the paper's own where it has that temperature."""
    if not variant.systems:
        return None
    theirs, rows = paper_title(results), list[Sequence[Value]]()
    for system in variant.systems:
        printed = papers_scores(system)
        reward, bleu = (None, None) if printed is None else printed
        gain = (
            None
            if printed is None or system.objective == "ML"
            else round(printed.average_reward - paper.CAPTIONING_ML.average_reward, 2)
        )
        rows.append(
            (
                variant.marked(system),
                bare(system.percent("dev_average_reward")),
                bare(system.percent("test_average_reward")),
                reward,
                bare(system.percent("test_corpus_bleu")),
                bleu,
                gain_over_ml(results, variant, system, "average_reward"),
                gain,
            )
        )
    return Table(
        name="temperatures",
        caption=f"ML and each temperature, at what else was best on the development part{variant.which}",
        columns=[
            Column("Model"),
            Column("Dev average reward", ".2f"),
            Column("Test average reward", ".2f"),
            Column(f"Average reward, {theirs}", ".2f"),
            Column("Test corpus BLEU", ".2f"),
            Column(f"Corpus BLEU, {theirs}", ".2f"),
            Column("Gain over ML in average reward", "+.2f"),
            Column(f"Gain, {theirs}", "+.2f"),
        ],
        rows=rows,
        note="In percent. “Best” is the temperature of an objective with the highest average reward on the development part; its gain has "
        f"the 95 % interval of a paired bootstrap over test images. {_WHAT}{seeds_note(variant)} Columns “paper” are its Table 1"
        f"{other_corpus(results)}",
    )


def papers_table() -> Table:
    """The paper's Table 1, facts."""
    ml, raml, sqdml = paper.CAPTIONING_ML, paper.CAPTIONING_RAML, paper.CAPTIONING_SQDML
    return Table(
        name="paper-table-1",
        caption="The paper’s Table 1: average reward and corpus BLEU on MSCOCO",
        columns=[
            Column("τ", ".2f"),
            *(Column(f"{name}, average reward", ".2f") for name in ("ML", "RAML", "SQDML")),
            *(Column(f"{name}, corpus BLEU", ".2f") for name in ("ML", "RAML", "SQDML")),
        ],
        rows=[
            (tau, *(one[field] for field in range(2) for one in (ml, raml[tau], sqdml[tau])))
            for tau in raml
        ],
        note=f"In percent; ML has no temperature. Both RAML and SQDML are best at τ = {paper.CAPTIONING_BEST_TAU.value:g}.",
    )


def scores(results: CaptioningResults, variant: CaptioningVariant) -> Table | None:
    """Every score of what is best on the development part, what can be reached, and how far references agree."""
    best = best_of_each(variant).values()
    if not best:
        return None
    exact = measured(variant, "test_expected_reward")
    rows: list[Sequence[Value]] = []
    for system in best:
        found = [_score(results.score(system, name), name) for name in METRICS]
        known = (
            [points(system.scores.get("test_expected_reward")), points(share_of_ceiling(system))]
            if exact
            else []
        )
        rows.append((system.label, *found, *known))
    ceiling = next(
        (value for system in best if (value := system.value("test_ceiling")) is not None), None
    )
    if exact and ceiling is not None:
        rows.append(("Consensus", *(None for _ in METRICS), 100 * ceiling, 100.0))
    agreement = next(
        (value for system in best if (value := system.value("test_agreement")) is not None), None
    )
    if agreement is not None:
        rows.append(
            ("References", 100 * agreement, *(None for _ in range(len(METRICS) - 1 + 2 * exact)))
        )
    bounds = (
        " The expected reward is exact, over all that may be said of a scene; its ceiling is that of the consensus captions, which have "
        "the highest expected reward of all that people say of their scenes. Under both is the range over seeds, if there are several."
        if exact
        else ""
    )
    return Table(
        name="scores",
        caption=f"All scores of ML and of the best temperatures on the test part{variant.which}",
        columns=[
            Column("Model"),
            *(
                Column(title if name == CIDER else f"{title}, %", ".3f" if name == CIDER else ".2f")
                for name, title in METRICS.items()
            ),
            *(
                [Column("Expected reward, %", ".2f"), Column("Share of the ceiling, %", ".1f")]
                if exact
                else []
            ),
        ],
        rows=rows,
        note=f"With 95 % intervals of a bootstrap over test images, where the data are at hand. {_WHAT} CIDEr-D goes from 0 to 10.{bounds}"
        " The reward of references is how far they agree: the mean sentence BLEU of one against another of the same image, "
        f"{paper.CAPTIONING_AGREEMENT.value} % in the paper.",
    )


def gains(results: CaptioningResults, variant: CaptioningVariant) -> Table | None:
    """SQDML against RAML and both against ML, by every metric."""
    pairs = comparisons(variant)
    if not pairs:
        return None
    theirs, rows = paper_title(results), list[Sequence[Value]]()
    for system, other in pairs:
        tests = {name: results.gain_over(system, other, name) for name in METRICS}
        printed = [papers_best(one.objective) for one in (system, other)]
        rows.append(
            (
                f"{system.objective} over {other.objective}",
                *(_gain(tests[name], difference(system, other, name), name) for name in METRICS),
                *(
                    None if (test := tests[name]) is None else test.p_value
                    for name in ("average_reward", "corpus_bleu")
                ),
                *(round(ours - its, 2) for ours, its in zip(*printed, strict=True)),
            )
        )
    return Table(
        name="gains",
        caption=f"Gains on the test part, each objective at its best temperature{variant.which}",
        columns=[
            Column("Gain"),
            *(
                Column(title, "+.3f" if name == CIDER else "+.2f")
                for name, title in METRICS.items()
            ),
            Column("p, average reward", ".3f"),
            Column("p, corpus BLEU", ".3f"),
            Column(f"Average reward, {theirs}", "+.2f"),
            Column(f"Corpus BLEU, {theirs}", "+.2f"),
        ],
        rows=rows,
        note="In points of percent, CIDEr-D as it is; with 95 % intervals and two-sided p-values of a paired bootstrap over test images. "
        f"Columns “paper” are of its Table 1 at τ = {paper.CAPTIONING_BEST_TAU.value:g}{other_corpus(results)}",
    )


def candidate_sets(results: CaptioningResults) -> Table | None:
    """Which candidates served which objective best; None where each has one kind alone."""
    sets = results.candidate_sets()
    if all(sum(one.best_of(objective) is not None for one in sets) < 2 for objective in PAPERS):
        return None
    exact = any("test_expected_reward" in system.scores for one in sets for system in one.systems)
    rows: list[Sequence[Value]] = []
    for objective in PAPERS:
        found = [(one, system) for one in sets if (system := one.best_of(objective)) is not None]
        best = max((system.dev for _, system in found), default=0.0)
        rows += [
            _set_row(results, one, system, system.dev == best and len(found) > 1, exact)
            for one, system in found
        ]
    return Table(
        name="candidate-sets",
        caption="Which candidates served which objective best, each at its best temperature",
        columns=[
            Column("Objective and candidates"),
            Column("τ", "g"),
            Column("Dev average reward", ".2f"),
            Column("Test average reward", ".2f"),
            Column("Gain over ML", "+.2f"),
            Column("Test corpus BLEU", ".2f"),
            *([Column("Share of the ceiling, %", ".1f")] if exact else []),
        ],
        rows=rows,
        note="In percent. “Best” are the candidates with which an objective has the highest average reward on the development part. Gains "
        "are in average reward on the test part, with 95 % intervals of a paired bootstrap over test images where they were computed.",
    )


def _set_row(
    results: CaptioningResults,
    one: CandidateSet,
    system: CaptioningSystem,
    is_best: bool,
    exact: bool,
) -> Sequence[Value]:
    variant = next(
        (variant for variant in results.variants() if system in variant.tuned), None
    )  # a set of another size may be in none
    return (
        f"{system.objective}, {one.title}{' (best)' if is_best else ''}",
        system.tau,
        bare(system.percent("dev_average_reward")),
        bare(system.percent("test_average_reward")),
        None if variant is None else gain_over_ml(results, variant, system, "average_reward"),
        bare(system.percent("test_corpus_bleu")),
        *([points(share_of_ceiling(system))] if exact else []),
    )


def training(variant: CaptioningVariant) -> Table | None:
    """What else was measured of each model of `temperatures`."""
    titles = {
        "epoch": Column("Best epoch", ",g"),
        "cross_entropy": Column("Cross-entropy", ".4f"),
        "dev_perplexity": Column("Dev perplexity", ".3f"),
        "test_perplexity": Column("Test perplexity", ".3f"),
        "test_sentence_bleu": Column("Sentence BLEU, all references", ".4f"),
        "test_length_ratio": Column("Length ratio", ".3f"),
        "examples": Column("Training examples", ",.0f"),
        "left_out": Column("Captions left out", ",.0f"),
        "parameters": Column("Weights", ",.0f"),
    }
    return training_table(
        variant,
        titles,
        "Perplexities are of the references, by word. Sentence BLEU is against all references together. The length ratio is of words of "
        "the captions to those of the closest references.",
    )


# --- shared ---------------------------------------------------------------------------------------------


def _score(score: Interval | None, metric: str) -> Value:
    return bare(score) if metric == CIDER else points(score)


def _gain(test: PairedTest | None, plain: float | None, metric: str) -> Value:
    """With its interval where there is one, else the plain difference, which is in points."""
    if test is not None:
        return test.gain if metric == CIDER else percent(test.gain)
    return plain / 100 if metric == CIDER and plain is not None else plain
