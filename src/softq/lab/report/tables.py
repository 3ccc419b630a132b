"""Tables of a sweep, whatever its task; None where there is nothing to show."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from softq.lab.report.content import Column, Table, Value, bare
from softq.lab.report.experiment import Score
from softq.lab.report.loader import SPLITS, split_sources
from softq.lab.report.results import Model, Results, System, Variant
from softq.lab.tasks.base import show_settings
from softq.metrics import Interval

BAYES = "Bayes rule"
MOST_TEMPERATURES = 40  # more of them are in the numbers of the figure
_BOOTSTRAP = "95 % intervals of a bootstrap over test examples"


def splits(results: Results) -> Table:
    """Where the examples come from, and how many there are here and in the paper."""
    sources, theirs = split_sources(results.data), results.experiment.paper_examples
    sizes = results.sizes
    if "test" not in sizes and "dev" in sizes:  # the development set was the test set, too
        sizes = {**sizes, "test": sizes["dev"]}
    right = ", ".join(f"{100 * share:.1f} %" for share in results.facts.get("annotator_scores", ()))
    return Table(
        name="data",
        caption="Data",
        columns=[
            Column("Split"),
            Column("From"),
            Column(f"{results.experiment.unit.capitalize()}s", ",d"),
            Column("In the paper", ",d"),
        ],
        rows=[(one, sources[one], sizes.get(one), theirs.get(one)) for one in SPLITS],
        note="Settings are chosen on the development set; final scores are of the test set."
        + (f" Share of heads that each annotator has right: {right}." if right else ""),
    ).without_empty_columns()


def temperatures(results: Results, variant: Variant) -> Table | None:
    """ML and each temperature, with the paper's numbers beside ours."""
    if not 0 < len(variant.systems) <= MOST_TEMPERATURES:
        return None
    if len(variant.systems) == 1 and len(results.variants) > 1:
        return None  # it has its row among the best
    experiment, gain = results.experiment, results.experiment.gain_score
    shown = [
        (split, one)
        for one in experiment.scores
        for split in ("dev", "test")
        if split == "test" or one.dev
    ]
    tuned = [
        flag for flag in experiment.tuned if any(flag in one.settings for one in variant.systems)
    ]
    paper = paper_name(results)
    columns = [Column("Model")]
    for split, one in shown:
        columns.append(Column(f"{split.capitalize()} {one.heading}", one.format))
        columns.append(Column(f"{split.capitalize()} {one.title}, {paper}", one.format))
    columns.append(Column(f"Gain over {results.against_name} in {gain.title}", f"+{gain.format}"))
    columns.append(Column(f"Gain, {paper}", f"+{gain.format}"))
    columns += [Column(flag) for flag in tuned]
    rows: list[Sequence[Value]] = []
    for system in variant.systems:
        row: list[Value] = [_marked(variant, system)]
        table = results.paper_table(system.recipe)
        for split, one in shown:
            key = f"{split}_{one.name}"
            row.append(bare(one.shown(system.scores.get(key))))
            row.append(table.value(system.objective, system.tau, key))
        row.append(bare(results.gain(system, results.against(variant), gain)))
        row.append(table.gain(system.objective, system.tau, f"test_{gain.name}"))
        rows.append([*row, *(show_settings({"": system.settings.get(flag)})[1:] for flag in tuned)])
    if bayes := _bayes_row(results, shown):
        rows.append([*bayes, *[None] * (len(columns) - len(bayes))])
    sources = {results.paper_table(one.recipe).source for one in variant.systems}
    return Table(
        name="temperatures",
        caption=f"ML and each temperature{variant.which}",
        columns=columns,
        rows=rows,
        note="“Best” is the temperature with the highest development score. Settings beside the temperature are those that are best on "
        f"the development set. Gains are on the test set, with {_BOOTSTRAP}, in pairs.{_seeds_note(results, variant.systems)}"
        f"{_paper_note(results, sources)}",
    ).without_empty_columns()


def scores(results: Results, variant: Variant) -> Table | None:
    """Every score of ML and of the best temperatures on the test set, with intervals."""
    best, table = variant.best, results.paper_table(variant.systems[0].recipe)
    shares = [one for one in results.experiment.scores if f"test_{one.name}" in results.bayes]
    columns = [Column("Model"), Column("Best τ, paper", "g")]
    for one in results.experiment.scores:
        columns.append(Column(f"{one.capital}, %" if one.percent else one.capital, one.format))
        columns.append(Column(f"{one.capital}, {paper_name(results)}", one.format))
    columns += [Column(f"{one.capital}, % of the {BAYES}", ".2f") for one in shares]
    rows: list[Sequence[Value]] = []
    for system in best.values():
        row: list[Value] = [system.label, table.best.get(system.objective)]
        for one in results.experiment.scores:
            row.append(bare(results.score(system, one)))
            row.append(table.at_best(system.objective, f"test_{one.name}"))
        rows.append([*row, *(bare(results.of_bayes(system, f"test_{one.name}")) for one in shares)])
    pairs = [("test", one) for one in results.experiment.scores]
    if bayes := _bayes_row(results, pairs):
        rows.append([bayes[0], None, *bayes[1:], *(100.0 for _ in shares)])
    agreement = next(iter(best.values())).value("test_agreement") if best else None
    if agreement is not None:
        rest = [None] * (len(columns) - 3)
        rows.append(["References against each other", None, 100 * agreement, *rest])
    counted = any(one.name in results.task.metrics for one in results.experiment.scores)
    return Table(
        name="scores",
        caption=f"Scores of ML and of the best temperatures on the test set{variant.which}",
        columns=columns,
        rows=rows,
        note=(f"With {_BOOTSTRAP}, or {results.experiment.spread_note}. " if counted else "")
        + results.experiment.notes
        + _paper_note(results, {table.source}),
    ).without_empty_columns()


def gains(results: Results, variant: Variant) -> Table | None:
    """How much better one objective is than another, each at its best temperature."""
    order = sorted(variant.best.items(), key=lambda pair: ("SQDML", "RAML", "ML").index(pair[0]))
    pairs = list(combinations(order, 2))
    table = results.paper_table(variant.systems[0].recipe)
    judged = list(dict.fromkeys([results.experiment.scores[0], results.experiment.gain_score]))
    if not pairs:
        return None
    columns = [Column("Gain")]
    for one in results.experiment.scores:
        columns.append(Column(one.capital, f"+{one.format}"))
        columns.append(Column(f"{one.capital}, {paper_name(results)}", f"+{one.format}"))
    columns += [Column(f"p, {one.title}", ".3f") for one in judged]
    rows: list[Sequence[Value]] = []
    for (ours, system), (theirs, other) in pairs:
        row: list[Value] = [f"{ours} over {theirs}"]
        for one in results.experiment.scores:
            key = f"test_{one.name}"
            printed = [table.at_best(name, key) for name in (ours, theirs)]
            row.append(bare(results.gain(system, other, one)))
            row.append(None if None in printed else round(printed[0] - printed[1], 2))  # type: ignore[operator]
        rows.append([*row, *(results.p_value(system, other, one) for one in judged)])
    return Table(
        name="gains",
        caption=f"Gains on the test set, each objective at its best temperature{variant.which}",
        columns=columns,
        rows=rows,
        note=f"With {_BOOTSTRAP}, in pairs, and two-sided p-values of the same bootstrap."
        + _paper_note(results, {table.source}),
    ).without_empty_columns()


def methods(results: Results) -> Table | None:
    """Every kind of model at the temperature that is best on the development set; None where there is one kind."""
    chosen = results.chosen
    if len(results.variants) < 2 or len(chosen) < 2:
        return None
    experiment, gain = results.experiment, results.experiment.gain_score
    tuned = [flag for flag in experiment.tuned if any(flag in one.settings for _, one in chosen)]
    first = experiment.scores[0]
    shares = [one for one in experiment.scores if f"test_{one.name}" in results.bayes]
    columns = [
        Column("Method"),
        Column("τ", "g"),
        *(Column(flag) for flag in tuned),
        Column(f"Dev {first.heading}", first.format),
        *(Column(f"Test {one.heading}", one.format) for one in experiment.scores),
        Column(f"Gain over {results.against_name} in {gain.title}", f"+{gain.format}"),
        Column("p", ".3f"),
        Column(f"{gain.capital}, {paper_name(results)}", gain.format),
        Column("Best τ, paper", "g"),
        *(Column(f"{one.capital}, % of the {BAYES}", ".2f") for one in shares),
    ]
    rows: list[Sequence[Value]] = []
    for variant, system in chosen:
        other, table = results.against(variant), results.paper_table(system.recipe)
        printed = table.at_best(system.objective, f"test_{gain.name}")
        rows.append(
            [
                method_name(results, variant, system),
                system.tau,
                *(show_settings({"": system.settings.get(flag)})[1:] for flag in tuned),
                bare(first.shown(system.scores["dev"])),
                *(
                    bare(one.shown(system.scores.get(f"test_{one.name}")))
                    for one in experiment.scores
                ),
                bare(results.gain(system, other, gain)),
                results.p_value(system, other, gain) if system.name in results.resampled else None,
                printed,
                table.best.get(system.objective),
                *(bare(results.of_bayes(system, f"test_{one.name}")) for one in shares),
            ]
        )
    bayes = [results.bayes.get(f"test_{one.name}") for one in experiment.scores]
    if shares:
        values = [
            bare(one.shown(Interval(value))) if value is not None else None
            for one, value in zip(experiment.scores, bayes, strict=True)
        ]
        blank = [None] * (len(columns) - 3 - len(tuned) - len(values) - len(shares))
        rows.append(
            [BAYES, None, *[None] * len(tuned), None, *values, *blank, *(100.0 for _ in shares)]
        )
    sources = {results.paper_table(one.recipe).source for _, one in chosen}
    return Table(
        name="methods",
        caption="Every kind of model at its best temperature",
        columns=columns,
        rows=rows,
        note=f"Chosen on the development set. Gains over {results.against_name} have {_BOOTSTRAP}, in pairs, and two-sided p-values."
        + _paper_note(results, sources),
    ).without_empty_columns()


def training(results: Results) -> Table | None:
    """How training went of every system that tables show."""
    titles = results.experiment.measures
    rows = {
        system.name: [results.name_of(system), *(system.value(name) for name in titles)]
        for variant in results.variants
        for system in variant.systems
    }
    table = Table(
        name="training",
        caption="How training went",
        columns=[Column("Model"), *titles.values()],
        rows=list(rows.values()),
        note="Cross-entropy and KL are in nats per training example." if "kl" in titles else "",
        folded=len(rows) > 20,
    ).without_empty_columns()
    return table if len(table.columns) > 1 else None


def papers(results: Results) -> list[Table]:
    """The paper's own tables."""
    names = {
        f"{split}_{one.name}": f"{split.capitalize()} {one.heading}"
        for one in results.experiment.scores
        for split in ("dev", "test")
    }
    return [
        Table(
            name="paper",
            caption=f"The paper’s {table.source}{f', {method}' if (method := results.experiment.methods.get(key)) else ''}",
            columns=[Column("Model"), *(Column(names[one], ".2f") for one in table.keys)],
            rows=[
                (
                    name if tau is None else f"{name} τ = {tau:g}",
                    *row,
                    *[None] * (len(table.keys) - len(row)),
                )
                for (name, tau), row in table.rows.items()
            ],
            note=f"On {results.experiment.corpus}.",
            folded=True,
        ).without_empty_columns()
        for key, table in results.experiment.paper.items()
        if table.rows
    ]


def models(found: Sequence[Model], *, folded: bool = False) -> Table:
    """Every model, with the command that trains it again or resumes it."""
    return Table(
        name="runs",
        caption="All models" if folded else "Runs at their best epoch on the development set",
        columns=[
            Column("Run"),
            Column("Task"),
            Column("Objective"),
            Column("τ", ",g"),
            Column("Settings"),
            Column("Seed", "d"),
            Column("Metric"),
            Column("Development", ".4f"),
            Column("Epoch", "g"),
            Column("Test", ".4f"),
            Column("Test set"),
            Column("Recipe"),
            Column("Reward"),
            Column("Run it again, or resume it"),
        ],
        rows=[
            (
                one.run.name + ("" if one.finished else " (unfinished)"),
                None if folded else one.task,
                one.objective + (", scaled" if one.scaled else ""),
                one.tau,
                show_settings(one.settings) or None,
                one.seed,
                None if folded else one.metric,
                one.scores.get("dev"),
                one.scores.get("epoch"),
                one.scores.get("test"),
                None if folded else one.test_set,
                one.hash,
                None if folded else one.signature or None,
                one.command,
            )
            for one in found
        ],
        folded=folded,
    ).without_empty_columns()


def differences(results: Results) -> Table | None:
    """What differs from the paper's set-up: key, paper, here."""
    experiment = results.experiment
    rows: dict[tuple[str, str, str], None] = {}
    if experiment.corpus and not is_papers_corpus(results):
        rows["Corpus", experiment.corpus, split_sources(results.data)["train"]] = None
    for split, count in experiment.paper_examples.items():
        ours = results.sizes.get(split)
        if ours is not None and ours != count:
            rows[f"{experiment.unit.capitalize()}s, {split}", f"{count:,}", f"{ours:,}"] = None
    for variant, system in results.chosen:
        table = results.paper_table(system.recipe)
        theirs = table.best.get(system.objective)
        if theirs is not None and system.tau not in (None, theirs):
            rows[
                f"Best τ of {system.objective}{variant.which}", f"{theirs:g}", f"{system.tau:g}"
            ] = None
    for setting in experiment.settings:
        for _, system in results.chosen:
            paper, name = setting.paper, setting.name
            if isinstance(paper, Mapping):
                paper, name = paper.get(system.objective), f"{name}, {system.objective}"
            here = setting.ours(system.recipe)
            if paper is not None and here is not None and _shown(paper) != _shown(here):
                rows[name, _shown(paper), _shown(here)] = None
    if not rows:
        return None
    columns = [Column("Setting"), Column("In the paper"), Column("Here")]
    return Table("differences", "What differs from the paper", columns, list(rows))


# --- shared ---------------------------------------------------------------------------------------------


def method_name(results: Results, variant: Variant, system: System) -> str:
    """What tells a chosen system from the others."""
    names = [_method(results, one) for _, one in results.chosen]
    name = _method(results, system)
    return name + variant.which if names.count(name) > 1 else name


def _method(results: Results, system: System) -> str:
    experiment = results.experiment
    if how := experiment.label(system.recipe):
        return f"{system.objective} on {how}"
    method = experiment.methods.get(experiment.method(system.recipe), "") if system.tau else ""
    return f"{system.objective}, {method}" if method else system.objective


def is_papers_corpus(results: Results) -> bool:
    """Whether the training file is named like the paper's corpus."""
    train = results.data.get("train")
    pattern = results.experiment.known_by
    return bool(pattern and isinstance(train, str) and re.search(pattern, train, re.IGNORECASE))


def paper_name(results: Results) -> str:
    """What columns of the paper's numbers are called, which are of another corpus as a rule."""
    corpus = results.experiment.corpus
    return "paper" if not corpus or is_papers_corpus(results) else f"paper ({corpus.split(',')[0]})"


def _paper_note(results: Results, sources: set[str]) -> str:
    sources = sources - {""}
    if not sources:
        return ""
    other = (
        "."
        if is_papers_corpus(results) or not results.experiment.corpus
        else f", on {results.experiment.corpus}, which is another corpus: compare differences between rows, not heights."
    )
    return f" The paper’s numbers are those of its {' and '.join(sorted(sources))}{other}"


def _seeds_note(results: Results, systems: Sequence[System]) -> str:
    if all(len(system.models) == 1 for system in systems):
        return ""
    return (
        f" Scores are averages over seeds; the small numbers are {results.experiment.spread_note}."
    )


def _marked(variant: Variant, system: System) -> str:
    """A system's label, which says so if it is the best of several temperatures."""
    rivals = [one for one in variant.tuned if one.objective == system.objective]
    best = len(rivals) > 1 and system is variant.best_of(system.objective)
    return f"{system.label} (best)" if best else system.label


def _bayes_row(results: Results, shown: Sequence[tuple[str, Score]]) -> list[Value]:
    """Scores of the Bayes rule, with a blank behind each for the paper's; [] where it has none of these."""
    row: list[Value] = [BAYES]
    for split, one in shown:
        value = results.bayes.get(f"{split}_{one.name}")
        row += [None if value is None else bare(one.shown(Interval(value))), None]
    return row if any(value is not None for value in row[1:]) else []


def _shown(value: Any) -> str:
    if isinstance(value, tuple | list):
        return ", ".join(map(_shown, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return (
        f"{value:,}"
        if isinstance(value, int)
        else f"{value:,g}"
        if isinstance(value, float)
        else str(value)
    )
