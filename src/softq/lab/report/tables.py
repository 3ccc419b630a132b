"""Tables of a sweep, whatever its task; None where there is nothing to show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from softq.lab.report.content import Column, Table, Value, bare
from softq.lab.report.experiment import Score
from softq.lab.report.loader import SPLITS, split_sources
from softq.lab.report.results import ModelResult, Results, System, Variant
from softq.lab.tasks.base import show_settings
from softq.metrics import Interval

BAYES = "Bayes rule"
MOST_TEMPERATURES = 40  # more of them are in the numbers of the figure
_BOOTSTRAP = "95 % intervals of a bootstrap over test examples"


def splits(results: Results) -> Table:
    """Where the examples come from, and how many there are here and in the paper."""
    experiment, sources = results.experiment, split_sources(results.data)
    sizes = results.sizes
    if "test" not in sizes and "dev" in sizes:  # the development set was the test set, too
        sizes = {**sizes, "test": sizes["dev"]}
    right = ", ".join(f"{100 * share:.1f} %" for share in results.facts.get("annotator_scores", ()))
    return Table.of(
        "data",
        "Data",
        [
            {
                Column("Split"): split,
                Column("From"): sources[split],
                Column(f"{experiment.unit.capitalize()}s", ",d"): sizes.get(split),
                Column("In the paper", ",d"): experiment.paper_examples.get(split),
            }
            for split in SPLITS
        ],
        "Settings are chosen on the development set; final scores are of the test set."
        + (f" Share of heads that each annotator has right: {right}." if right else ""),
    )


def temperatures(results: Results, variant: Variant) -> Table | None:
    """ML and each temperature, with the paper's numbers beside ours."""
    systems = variant.systems
    if not 0 < len(systems) <= MOST_TEMPERATURES:
        return None
    if len(systems) == 1 and len(results.variants) > 1:
        return None  # it has its row among the best
    gain, paper = results.experiment.gain_score, results.paper_name
    over = Column(f"Gain over {results.against_name} in {gain.title}", f"+{gain.format}")
    shown = _shown_scores(results)
    rows: list[dict[Column, Value]] = []
    for system in systems:
        table = results.paper_table(system.recipe)
        rivals = [one for one in variant.tuned if one.objective == system.objective]
        best = len(rivals) > 1 and system is variant.best_of(system.objective)
        row: dict[Column, Value] = {Column("Model"): f"{system.label}{' (best)' if best else ''}"}
        for split, one in shown:
            key = f"{split}_{one.name}"
            row[one.column(split)] = bare(one.shown(system.scores.get(key)))
            printed = table.value(system.objective, system.tau, key)
            row[Column(f"{split.capitalize()} {one.title}, {paper}", one.format)] = printed
        row[over] = bare(results.gain(system, results.against(variant), gain))
        printed = table.gain(system.objective, system.tau, f"test_{gain.name}")
        row[Column(f"Gain, {paper}", f"+{gain.format}")] = printed
        rows.append(row | _tuned_settings(results, system))
    columns = {one.column(split): (split, one) for split, one in shown}
    rows += _bayes_row(results, columns, shares=False)
    seeds = any(len(system.models) > 1 for system in systems)
    return Table.of(
        "temperatures",
        f"ML and each temperature{variant.which}",
        rows,
        "“Best” is the temperature with the highest development score. Settings beside the"
        " temperature are those that are best on the development set. Gains are on the test set,"
        f" with {_BOOTSTRAP}, in pairs."
        + (
            f" Scores are averages over seeds; small numbers are {results.experiment.spread_note}."
            if seeds
            else ""
        )
        + _paper_note(results, systems),
    )


def scores(results: Results, variant: Variant) -> Table:
    """Every score of ML and of the best temperatures on the test set, with intervals."""
    rows: list[dict[Column, Value]] = []
    for system in variant.best.values():
        table = results.paper_table(system.recipe)
        row: dict[Column, Value] = {Column("Model"): system.label}
        row[Column("Best τ, paper", "g")] = table.best.get(system.objective)
        for one in results.experiment.scores:
            row[one.column()] = bare(results.score(system, one))
            printed = table.at_best(system.objective, f"test_{one.name}")
            row[Column(f"{one.capital}, {results.paper_name}", one.format)] = printed
        rows.append(row | _shares(results, system))
    columns = {one.column(): ("test", one) for one in results.experiment.scores}
    rows += _bayes_row(results, columns)
    agreement = variant.systems[0].value("test_agreement")
    if agreement is not None:
        first = next(iter(columns))
        rows.append({Column("Model"): "References against each other", first: 100 * agreement})
    return Table.of(
        "scores",
        f"Scores of ML and of the best temperatures on the test set{variant.which}",
        rows,
        f"With {_BOOTSTRAP}, or {results.experiment.spread_note}. {results.experiment.notes}"
        + _paper_note(results, variant.systems),
    )


def gains(results: Results, variant: Variant) -> Table | None:
    """How much better one objective is than another, each at its best temperature."""
    order = sorted(variant.best.items(), key=lambda pair: ("SQDML", "RAML", "ML").index(pair[0]))
    table = results.paper_table(variant.systems[-1].recipe)
    judged = dict.fromkeys([results.experiment.scores[0], results.experiment.gain_score])
    rows: list[dict[Column, Value]] = []
    for (ours, system), (theirs, other) in combinations(order, 2):
        row: dict[Column, Value] = {Column("Gain"): f"{ours} over {theirs}"}
        for one in results.experiment.scores:
            row[Column(one.capital, f"+{one.format}")] = bare(results.gain(system, other, one))
            high, low = (table.at_best(name, f"test_{one.name}") for name in (ours, theirs))
            printed = None if high is None or low is None else round(high - low, 2)
            row[Column(f"{one.capital}, {results.paper_name}", f"+{one.format}")] = printed
        for one in judged:
            row[Column(f"p, {one.title}", ".3f")] = results.p_value(system, other, one)
        rows.append(row)
    if not rows:
        return None
    return Table.of(
        "gains",
        f"Gains on the test set, each objective at its best temperature{variant.which}",
        rows,
        f"With {_BOOTSTRAP}, in pairs, and two-sided p-values of the same bootstrap."
        + _paper_note(results, variant.systems),
    )


def methods(results: Results) -> Table | None:
    """Every kind of model at the temperature that is best on the development set.

    None where there is one kind.
    """
    if len(results.variants) < 2 or len(results.chosen) < 2:
        return None
    first, gain = results.experiment.scores[0], results.experiment.gain_score
    over = Column(f"Gain over {results.against_name} in {gain.title}", f"+{gain.format}")
    tests = {one.column("test"): ("test", one) for one in results.experiment.scores}
    rows: list[dict[Column, Value]] = []
    for name, (variant, system) in zip(method_names(results), results.chosen, strict=True):
        other, table = results.against(variant), results.paper_table(system.recipe)
        row: dict[Column, Value] = {Column("Method"): name}
        row[Column("τ", "g")] = system.tau
        row |= _tuned_settings(results, system)
        row[first.column("dev")] = bare(first.shown(system.scores["dev"]))
        for column, (_, one) in tests.items():
            row[column] = bare(one.shown(system.scores.get(f"test_{one.name}")))
        row[over] = bare(results.gain(system, other, gain))
        resampled = system.name in results.resampled
        row[Column("p", ".3f")] = results.p_value(system, other, gain) if resampled else None
        printed = table.at_best(system.objective, f"test_{gain.name}")
        row[Column(f"{gain.capital}, {results.paper_name}", gain.format)] = printed
        row[Column("Best τ, paper", "g")] = table.best.get(system.objective)
        rows.append(row | _shares(results, system))
    rows += _bayes_row(results, tests, "Method")
    return Table.of(
        "methods",
        "Every kind of model at its best temperature",
        rows,
        f"Chosen on the development set. Gains over {results.against_name} have {_BOOTSTRAP}, in"
        " pairs, and two-sided p-values."
        + _paper_note(results, [system for _, system in results.chosen]),
    )


def training(results: Results) -> Table | None:
    """How training went of every system that tables show."""
    titles = results.experiment.measures
    rows: dict[str, dict[Column, Value]] = {}
    for system in (system for variant in results.variants for system in variant.systems):
        measured: dict[Column, Value] = {titles[name]: system.value(name) for name in titles}
        rows[system.name] = {Column("Model"): results.name_of(system), **measured}
    note = "Cross-entropy and KL are in nats per training example." if "kl" in titles else ""
    folded = len(rows) > 20
    table = Table.of("training", "How training went", list(rows.values()), note, folded=folded)
    return table if len(table.columns) > 1 else None


def papers(results: Results) -> list[Table]:
    """The paper's own tables."""
    names = {
        f"{split}_{one.name}": one.column(split)
        for one in results.experiment.scores
        for split in ("dev", "test")
    }
    found = []
    for method, table in results.experiment.paper.items():
        name = results.experiment.methods.get(method)
        rows = [
            {
                Column("Model"): objective if tau is None else f"{objective} τ = {tau:g}",
                **{names[key]: value for key, value in zip(table.keys, row, strict=False)},
            }
            for (objective, tau), row in table.rows.items()
        ]
        caption = f"The paper’s {table.source}{f', {name}' if name else ''}"
        note = f"On {results.experiment.corpus}."
        found += [Table.of("paper", caption, rows, note, folded=True)] if rows else []
    return found


def models(found: Sequence[ModelResult], *, folded: bool = False) -> Table:
    """Every model, with the command that trains it again or resumes it.

    A folded table is of one sweep.
    """
    rows: list[dict[Column, Value]] = [
        {
            Column("Run"): one.run.name + ("" if one.finished else " (unfinished)"),
            Column("Task"): None if folded else one.task,
            Column("Objective"): one.objective + (", scaled" if one.scaled else ""),
            Column("τ", ",g"): one.tau,
            Column("Settings"): show_settings(one.settings) or None,
            Column("Seed", "d"): one.seed,
            Column("Metric"): None if folded else one.metric,
            Column("Development", ".4f"): one.scores.get("dev"),
            Column("Epoch", "g"): one.scores.get("epoch"),
            Column("Test", ".4f"): one.scores.get("test"),
            Column("Test set"): None if folded else one.test_set,
            Column("Recipe"): one.hash,
            Column("Reward"): None if folded else one.signature or None,
            Column("Run it again, or resume it"): one.command,
        }
        for one in found
    ]
    caption = "All models" if folded else "Runs at their best epoch on the development set"
    return Table.of("runs", caption, rows, folded=folded)


def differences(results: Results) -> Table | None:
    """What differs from the paper's set-up: key, paper, here."""
    experiment = results.experiment
    rows: dict[tuple[str, str, str], None] = {}
    if experiment.corpus and not results.is_papers_corpus:
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


def method_names(results: Results) -> list[str]:
    """What tells each chosen system from the others."""
    experiment, names = results.experiment, []
    for _, system in results.chosen:
        how = experiment.label(system.recipe)
        method = experiment.methods.get(experiment.method(system.recipe), "") if system.tau else ""
        told = f" on {how}" if how else f", {method}" if method else ""
        names.append(system.objective + told)
    pairs = zip(names, results.chosen, strict=True)
    return [name + one.which if names.count(name) > 1 else name for name, (one, _) in pairs]


def _paper_note(results: Results, systems: Sequence[System]) -> str:
    """Where the paper's numbers beside these systems stand."""
    sources = sorted({results.paper_table(system.recipe).source for system in systems} - {""})
    if not sources:
        return ""
    same = results.is_papers_corpus or not results.experiment.corpus
    other = (
        f", on {results.experiment.corpus}, which is another corpus: compare differences between"
        " rows, not heights"
    )
    return f" The paper’s numbers are those of its {' and '.join(sources)}{'' if same else other}."


def _shown_scores(results: Results) -> list[tuple[str, Score]]:
    """Each score with the splits that tables show it of."""
    splits = ("dev", "test")
    return [(s, one) for one in results.experiment.scores for s in splits if s == "test" or one.dev]


def _tuned_settings(results: Results, system: System) -> dict[Column, Value]:
    """The settings that every temperature has its own best values of."""
    tuned = [flag for flag in results.experiment.tuned if flag in system.settings]
    return {Column(flag): show_settings({"": system.settings[flag]})[1:] for flag in tuned}


def _shares(results: Results, system: System) -> dict[Column, Value]:
    """Scores in percent of those of the Bayes rule."""
    known = [one for one in results.experiment.scores if f"test_{one.name}" in results.bayes]
    return {_share(one): bare(results.of_bayes(system, f"test_{one.name}")) for one in known}


def _share(score: Score) -> Column:
    return Column(f"{score.capital}, % of the {BAYES}", ".2f")


def _bayes_row(
    results: Results,
    columns: Mapping[Column, tuple[str, Score]],
    title: str = "Model",
    *,
    shares: bool = True,
) -> list[dict[Column, Value]]:
    """Scores of the Bayes rule in these columns; [] where it has none of them."""
    row: dict[Column, Value] = {}
    for column, (split, one) in columns.items():
        value = results.bayes.get(f"{split}_{one.name}")
        if value is not None:
            row[column] = bare(one.shown(Interval(value)))
            row |= {_share(one): 100.0} if shares else {}
    return [{Column(title): BAYES, **row}] if row else []


def _shown(value: Any) -> str:
    if isinstance(value, tuple | list):
        return ", ".join(map(_shown, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return format(value, {int: ",", float: ",g"}.get(type(value), ""))
