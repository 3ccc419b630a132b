"""Folders as the sections of a page.

What was run, what it found, what is wrong with it, and how to run it again.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path

from softq.formats.file_checks import undamaged
from softq.lab.recipe import read_toml
from softq.lab.report import confidence, figures, tables
from softq.lab.report.content import Part, Section, show
from softq.lab.report.experiment import Experiment, plain_experiment
from softq.lab.report.experiments import EXPERIMENTS
from softq.lab.report.loader import (
    Source,
    read_models,
    read_provenance,
    read_results,
    task_of,
)
from softq.lab.report.results import ModelResult, Results
from softq.lab.run import RECIPE
from softq.lab.sweep import SWEEP
from softq.lab.tasks.files import DEV_AGAIN, TRAIN_AGAIN, split_sources

_TURNED_DOWN = 0.98  # of the best held-out score: what is below has fallen for certain


def read_sections(sources: Sequence[Source]) -> list[Section]:
    """A section for each sweep, and one for all runs that stand alone."""
    sections: list[Section] = []
    for source in (source for source in sources if source.is_sweep):
        found = _sweep_section(source)
        if found.title in {section.title for section in sections}:
            found = dataclasses.replace(found, title=f"{found.title} ({source.path.name})")
        sections.append(found)
    runs = [source.path for source in sources if not source.is_sweep]
    return [*sections, _runs_section(runs)] if runs else sections


# --- runs that stand alone ------------------------------------------------------------------------------


def _runs_section(runs: Sequence[Path]) -> Section:
    models: list[ModelResult] = []
    recipes = []
    for run in runs:
        with undamaged(str(run)):
            models += read_models(run)
            recipes.append(f"# {run}\n{_recipe_text(run / RECIPE)}")
    groups: dict[tuple[str, str], list[ModelResult]] = {}
    for model in models:
        groups.setdefault((model.task, model.metric), []).append(model)
    curves = [
        draw(members, _labels(members))
        for members in groups.values()
        for draw in (figures.learning, figures.toward_a_reward)
    ]
    sure = [
        part
        for members in groups.values()
        for part in confidence.parts(
            [
                confidence.Curved(label, [one])
                for label, one in zip(_labels(members), members, strict=True)
            ]
        )
    ]
    count = f"{len(models)} {'model' if len(models) == 1 else 'models'}"
    return Section(
        title="Runs",
        intro=[f"{count}, each with the recipe and the reward its numbers belong to."],
        parts=[tables.models(models), *sure, *(one for one in curves if one is not None)],
        warnings=[
            *_unfinished([model for model in models if not model.finished]),
            *filter(None, map(_exploits, models)),
            *(
                f"The test set of {', '.join(names)} was {what}."
                for what in (DEV_AGAIN, TRAIN_AGAIN)
                if (names := sorted({one.run.name for one in models if one.test_set == what}))
            ),
        ],
        commands=list(dict.fromkeys(model.command for model in models)),
        recipe="\n".join(recipes),
    )


def _labels(models: Sequence[ModelResult]) -> list[str]:
    """Names, with what tells them apart where one folder holds several models."""
    names = [model.run.name for model in models]
    return [
        (
            name
            if names.count(name) == 1
            else (
                f"{name} {one.objective}{'' if one.tau is None else f' τ = {one.tau:g}'} seed"
                f" {one.seed}"
            )
        )
        for name, one in zip(names, models, strict=True)
    ]


def _exploits(model: ModelResult) -> str:
    """That the reward on the development set still rose when the held-out score had turned down; "" where it is not so."""
    rewards = dict(model.steps.get("dev_reward", ()))
    for name, title in (("dev_chrf", "chrF"), ("dev_bleu", "BLEU")):
        held_out = dict(model.steps.get(name, ()))
        if not held_out or not held_out.keys() <= rewards.keys():
            continue
        best, last = max(held_out, key=held_out.__getitem__), max(held_out)
        if held_out[last] < _TURNED_DOWN * held_out[best] and rewards[last] > rewards[best]:
            return (
                f"{model.run.name} may exploit its reward: from step {best:g} to {last:g} the reward"
                f" rose from {rewards[best]:.4f} to {rewards[last]:.4f} on the development set, and"
                f" {title}, which it was not trained on, fell from {held_out[best]:.2f} to"
                f" {held_out[last]:.2f}."
            )
    return ""


# --- sweeps ---------------------------------------------------------------------------------------------


def _sweep_section(source: Source) -> Section:
    path = source.path / SWEEP
    with undamaged(str(source.path)):
        task = task_of(path)
        declared: Experiment | None = EXPERIMENTS.get(task.name) or getattr(
            task, "experiment", None
        )
        experiment = declared or plain_experiment(task)
        results = read_results(source, task, experiment)
        recipe = _recipe_text(path)
        provenance = read_provenance(source, results) if results.systems else {}
    place = shlex.quote(str(source.path))
    commands = [source.command or f"softq sweep {place}/{SWEEP} --out sweeps/again"]
    warnings = []
    models = [model for system in results.systems for model in system.models]
    if len(models) < results.wanted or results.unfinished:
        commands.append(f"softq sweep {place}/{SWEEP} --out {place} --resume")
        warnings.append(f"{len(models)} of {results.wanted} models are finished.")
    about = [experiment.about] if experiment.about else []
    section = Section(
        title=experiment.title,
        intro=about,
        parts=[],
        warnings=[*warnings, *_unfinished(results.unfinished)],
        commands=commands,
        recipe=recipe,
    )
    if not models:
        return section
    return dataclasses.replace(
        section,
        intro=[*about, *_findings(results)],
        parts=_parts(results, [*models, *results.unfinished]),
        warnings=[*section.warnings, *_doubts(results)],
        differences=tables.differences(results),
        provenance=provenance,
    )


def _parts(results: Results, models: Sequence[ModelResult]) -> list[Part]:
    parts: list[Part | None] = [
        tables.splits(results),
        tables.methods(results),
        figures.methods(results),
    ]
    for variant in results.variants:
        parts += [tables.temperatures(results, variant), figures.temperatures(results, variant)]
        if len(variant.systems) > 1:
            parts += [tables.scores(results, variant), tables.gains(results, variant)]
    parts += [figures.setting_curve(results, flag) for flag in results.experiment.curves]
    parts += confidence.parts(
        [
            confidence.Curved(
                results.name_of(system), sorted(system.models, key=lambda one: -one.scores["dev"])
            )
            for _, system in results.chosen
        ],
        results.experiment.spread,
    )
    parts += [*results.experiment.extras(results), *tables.papers(results)]
    parts += [
        tables.training(results),
        figures.learning_of_results(results),
        tables.models(models, folded=True),
    ]
    return [part for part in parts if part is not None]


def _findings(results: Results) -> list[str]:
    """What each kind of model has on the test set, and what it gains."""
    score, found = results.experiment.scores[0], []
    for variant in results.variants:
        if len(variant.systems) == 1 and len(results.variants) > 1:
            continue
        told = []
        for system in variant.best.values():
            value = score.shown(system.scores.get(f"test_{score.name}") or system.scores["test"])
            gain = results.gain(system, results.against(variant), score)
            words = f"{system.label} has {show(value, score.format)}{' %' if score.percent else ''}"
            if gain is not None:
                value, low, high = (show(end, f"+{score.format}") for end in gain)  # type: ignore[assignment]
                ends = "" if gain.low != gain.low else f" ({low} to {high})"
                words += f", {value} over {results.against_name}{ends}"
            told.append(words)
        which = f"With {variant.name}: on" if variant.name else "On"
        found.append(f"{which} the test set, by {score.title}: {'; '.join(told)}.")
    return found


# --- what is wrong with the numbers -------------------------------------------------------------------


def _unfinished(models: Sequence[ModelResult]) -> list[str]:
    """Which runs have not ended, and how to resume each."""
    return [
        f"Unfinished: {run.name}, after {epochs} epoch{'' if epochs == 1 else 's'}. Resume it:"
        f" {command}"
        for run, epochs, command in dict.fromkeys(
            (model.run, len(model.curve), model.command) for model in models
        )
    ]


def _doubts(results: Results) -> list[str]:
    """That scores are not of held-out examples, and which models have not converged."""
    sources, told = split_sources(results.data), []
    if sources["test"] in (DEV_AGAIN, TRAIN_AGAIN):
        told.append(
            f"The test set was {sources['test']}: its scores are not those of held-out examples."
        )
    if sources["dev"] == TRAIN_AGAIN:
        told.append("The development set was the training file itself: settings may be overfitted.")
    late = [
        results.name_of(system)
        for _, system in results.chosen
        if system.value("converged") not in (None, 1.0)
    ]
    if late:
        told.append(f"Training stopped before it converged: {'; '.join(late)}.")
    return told


def _recipe_text(path: Path) -> str:
    """A recipe with the names of files in place of absolute paths.

    Where they lie is of no use to others.
    """
    text = path.read_text(encoding="utf-8")
    named = [
        name
        for section in read_toml(path).values()
        for value in (section.values() if isinstance(section, dict) else ())
        for name in (value if isinstance(value, list) else [value])
        if isinstance(name, str) and Path(name).is_absolute()
    ]
    for name in sorted(named, key=len, reverse=True):  # one may begin with another
        text = text.replace(name, Path(name).name)
    return text
