"""Tables of a sweep, whatever its task; None where there is nothing to show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from softq.lab.report.content import Column, Table, Value, bare
from softq.lab.report.experiment import Score
from softq.lab.report.results import ModelResult, Results, System, Variant
from softq.lab.tasks.base import show_settings
from softq.lab.tasks.files import SPLITS, split_sources
from softq.metrics import Interval

BAYES = "Bayes rule"
SHOWN_SPLITS = ("dev", "test")
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
    systems, experiment = variant.systems, results.experiment
    has_row_elsewhere = len(systems) == 1 and len(results.variants) > 1  # among the best
    if has_row_elsewhere or not 0 < len(systems) <= MOST_TEMPERATURES:
        return None
    shown = [
        (split, one)
        for one in experiment.scores
        for split in SHOWN_SPLITS
        if split == "test" or one.dev
    ]
    objectives = [system.objective for system in variant.tuned]
    best = [variant.best_of(name) for name in objectives if objectives.count(name) > 1]
    rows = [
        _merged(
            {Column("Model"): system.label + (" (best)" if system in best else "")},
            *(_scored(results, system, split, one) for split, one in shown),
            _gained(results, variant, system),
            _tuned_settings(results, system),
        )
        for system in systems
    ]
    rows += _bayes_row(results, shown, shares=False)
    seeds = any(len(system.models) > 1 for system in systems)
    return Table.of(
        "temperatures",
        f"ML and each temperature{variant.which}",
        rows,
        "“Best” is the temperature with the highest development score. Settings beside the"
        " temperature are those that are best on the development set. Gains are on the test set,"
        f" with {_BOOTSTRAP}, in pairs."
        + f" Scores are averages over seeds; small numbers are {experiment.spread_note}." * seeds
        + _paper_note(results, systems),
    )


def scores(results: Results, variant: Variant) -> Table:
    """Every score of ML and of the best temperatures on the test set, with intervals."""
    experiment, paper = results.experiment, results.paper_name
    rows = [
        _merged(
            {Column("Model"): system.label, Column("Best τ, paper", "g"): table.best.get(name)},
            *(
                {
                    one.column(): bare(results.score(system, one)),
                    Column(f"{one.capital}, {paper}", one.format): table.at_best(
                        name, f"test_{one.name}"
                    ),
                }
                for one in experiment.scores
            ),
            _shares(results, system),
        )
        for name, system in variant.best.items()
        for table in [results.paper_table(system.recipe)]
    ]
    rows += _bayes_row(results, [("", one) for one in experiment.scores])
    agreement = variant.systems[0].value("test_agreement")
    if agreement is not None:
        first = experiment.scores[0].column()
        rows.append({Column("Model"): "References against each other", first: 100 * agreement})
    return Table.of(
        "scores",
        f"Scores of ML and of the best temperatures on the test set{variant.which}",
        rows,
        f"With {_BOOTSTRAP}, or {experiment.spread_note}. {experiment.notes}"
        + _paper_note(results, variant.systems),
    )


def gains(results: Results, variant: Variant) -> Table | None:
    """How much better one objective is than another, each at its best temperature."""
    experiment, best = results.experiment, variant.best
    table = results.paper_table(variant.systems[-1].recipe)
    judged = dict.fromkeys([experiment.scores[0], experiment.gain_score])
    pairs = combinations([name for name in ("SQDML", "RAML", "ML") if name in best], 2)
    rows = [
        _merged(
            {Column("Gain"): f"{ours} over {theirs}"},
            *(
                {
                    Column(one.capital, f"+{one.format}"): bare(
                        results.gain(best[ours], best[theirs], one)
                    ),
                    Column(f"{one.capital}, {results.paper_name}", f"+{one.format}"): table.lead(
                        ours, theirs, f"test_{one.name}"
                    ),
                }
                for one in experiment.scores
            ),
            {
                Column(f"p, {one.title}", ".3f"): results.p_value(best[ours], best[theirs], one)
                for one in judged
            },
        )
        for ours, theirs in pairs
    ]
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
    experiment, paper = results.experiment, results.paper_name
    first, gain = experiment.scores[0], experiment.gain_score
    rows = [
        _merged(
            {Column("Method"): name, Column("τ", "g"): system.tau},
            _tuned_settings(results, system),
            {first.column("dev"): bare(first.shown(system.scores["dev"]))},
            {
                one.column("test"): bare(one.shown(system.scores.get(f"test_{one.name}")))
                for one in experiment.scores
            },
            {
                _gain_column(results): bare(results.gain(system, results.against(of), gain)),
                Column("p", ".3f"): results.p_value(system, results.against(of), gain)
                if system.name in results.resampled
                else None,
                Column(f"{gain.capital}, {paper}", gain.format): table.at_best(
                    system.objective, f"test_{gain.name}"
                ),
                Column("Best τ, paper", "g"): table.best.get(system.objective),
            },
            _shares(results, system),
        )
        for name, (of, system) in zip(method_names(results), results.chosen, strict=True)
        for table in [results.paper_table(system.recipe)]
    ]
    rows += _bayes_row(results, [("test", one) for one in experiment.scores], "Method")
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
    rows = {
        system.name: _merged(
            {Column("Model"): results.name_of(system)},
            {title: system.value(name) for name, title in titles.items()},
        )
        for variant in results.variants
        for system in variant.systems
    }
    note = "Cross-entropy and KL are in nats per training example." if "kl" in titles else ""
    folded = len(rows) > 20
    table = Table.of("training", "How training went", list(rows.values()), note, folded=folded)
    return table if len(table.columns) > 1 else None


def papers(results: Results) -> list[Table]:
    """The paper's own tables."""
    experiment = results.experiment
    names = {
        f"{split}_{one.name}": one.column(split)
        for one in experiment.scores
        for split in SHOWN_SPLITS
    }
    return [
        Table.of(
            "paper",
            f"The paper’s {table.source}{f', {name}' if name else ''}",
            [
                _merged(
                    {Column("Model"): objective if tau is None else f"{objective} τ = {tau:g}"},
                    {names[key]: value for key, value in zip(table.keys, row, strict=False)},
                )
                for (objective, tau), row in table.rows.items()
            ],
            f"On {experiment.corpus}.",
            folded=True,
        )
        for method, table in experiment.paper.items()
        for name in [experiment.methods.get(method)]
        if table.rows
    ]


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
    rows = list(
        dict.fromkeys(
            (name, _shown(paper), _shown(here))
            for name, paper, here in (*_other_data(results), *_other_settings(results))
            if paper is not None and here is not None and _shown(paper) != _shown(here)
        )
    )
    if not rows:
        return None
    columns = [Column("Setting"), Column("In the paper"), Column("Here")]
    return Table("differences", "What differs from the paper", columns, rows)


def _other_data(results: Results) -> Iterator[tuple[str, Any, Any]]:
    """Corpus and sizes: a name, the paper's value and ours."""
    experiment = results.experiment
    if experiment.corpus and not results.is_papers_corpus:
        yield "Corpus", experiment.corpus, split_sources(results.data)["train"]
    for split, count in experiment.paper_examples.items():
        yield f"{experiment.unit.capitalize()}s, {split}", count, results.sizes.get(split)


def _other_settings(results: Results) -> Iterator[tuple[str, Any, Any]]:
    """Temperatures and keys of recipes, likewise."""
    for variant, system in results.chosen:
        best = results.paper_table(system.recipe).best.get(system.objective)
        name = f"Best τ of {system.objective}{variant.which}"
        yield name, best and f"{best:g}", system.tau and f"{system.tau:g}"
    for setting in results.experiment.settings:
        for _, system in results.chosen:
            paper, name = setting.paper, setting.name
            if isinstance(paper, Mapping):
                paper, name = paper.get(system.objective), f"{name}, {system.objective}"
            yield name, paper, setting.ours(system.recipe)


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


def _merged(*parts: Mapping[Column, Value]) -> dict[Column, Value]:
    """One row of several parts."""
    return {column: value for part in parts for column, value in part.items()}


def _scored(results: Results, system: System, split: str, one: Score) -> dict[Column, Value]:
    """A score of a system on a split, beside the paper's."""
    key, paper = f"{split}_{one.name}", results.paper_table(system.recipe)
    printed = Column(f"{split.capitalize()} {one.title}, {results.paper_name}", one.format)
    return {
        one.column(split): bare(one.shown(system.scores.get(key))),
        printed: paper.value(system.objective, system.tau, key),
    }


def _gained(results: Results, variant: Variant, system: System) -> dict[Column, Value]:
    """What a system gains in its variant, beside what it gains in the paper."""
    gain, paper = results.experiment.gain_score, results.paper_table(system.recipe)
    return {
        _gain_column(results): bare(results.gain(system, results.against(variant), gain)),
        Column(f"Gain, {results.paper_name}", f"+{gain.format}"): paper.gain(
            system.objective, system.tau, f"test_{gain.name}"
        ),
    }


def _gain_column(results: Results) -> Column:
    gain = results.experiment.gain_score
    return Column(f"Gain over {results.against_name} in {gain.title}", f"+{gain.format}")


def _tuned_settings(results: Results, system: System) -> dict[Column, Value]:
    """The settings that every temperature has its own best values of."""
    known = [flag for flag in results.experiment.tuned if flag in system.settings]
    values = {flag: value for flag in known if (value := system.settings[flag]) is not None}
    shown = {flag: show_settings({"": value})[1:] for flag, value in values.items()}
    return {Column(flag): shown.get(flag, "") for flag in known}


def _shares(results: Results, system: System) -> dict[Column, Value]:
    """Scores in percent of those of the Bayes rule."""
    known = [one for one in results.experiment.scores if f"test_{one.name}" in results.bayes]
    return {_share(one): bare(results.of_bayes(system, f"test_{one.name}")) for one in known}


def _share(score: Score) -> Column:
    return Column(f"{score.capital}, % of the {BAYES}", ".2f")


def _bayes_row(
    results: Results,
    columns: Sequence[tuple[str, Score]],
    title: str = "Model",
    *,
    shares: bool = True,
) -> list[dict[Column, Value]]:
    """The Bayes rule in the columns of these splits ("": test) and scores; [] where it has none."""
    known = [
        (split, one, Interval(value))
        for split, one in columns
        if (value := results.bayes.get(f"{split or 'test'}_{one.name}")) is not None
    ]
    row = _merged(
        *(
            {one.column(split): bare(one.shown(value))} | ({_share(one): 100.0} if shares else {})
            for split, one, value in known
        )
    )
    return [{Column(title): BAYES, **row}] if row else []


def _shown(value: Any) -> str:
    if isinstance(value, tuple | list):
        return ", ".join(map(_shown, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return format(value, {int: ",", float: ",g"}.get(type(value), ""))
