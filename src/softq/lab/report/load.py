"""Run and sweep folders as sections of a report."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softq.errors import DataError
from softq.formats.file_checks import undamaged
from softq.lab.recipe import read_toml
from softq.lab.report.captioning import section as captioning_section
from softq.lab.report.captioning_load import captioning_results
from softq.lab.report.classification import section as classification_section
from softq.lab.report.classification_load import classification_results
from softq.lab.report.ner import section as ner_section
from softq.lab.report.ner_load import ner_results
from softq.lab.report.page import Section
from softq.lab.report.parsing import section as parsing_section
from softq.lab.report.parsing_load import parsing_results
from softq.lab.report.runs import RunSummary, runs_section
from softq.lab.report.translation import section as translation_section
from softq.lab.report.translation_load import translation_results
from softq.lab.run import CELLS, METRICS, RECIPE, RunFolder
from softq.lab.sweep import SWEEP, Sweep, read_sweep
from softq.lab.tasks import TASKS, Task
from softq.lab.tasks.base import show_settings
from softq.lab.tasks.lm_recipe import TASK as LM

MOST_COMMANDS = 4  # shown of several runs


@dataclass(frozen=True)
class Source:
    """A folder to report on, and how it was made, where that is known."""

    path: Path
    command: str = ""
    scale: str = ""


def find_sources(paths: Iterable[Path]) -> list[Source]:
    """The sweeps and runs in these folders, at any depth, each once; the runs of a sweep are the sweep's."""
    found: dict[Path, Path] = {}  # folders as they were named, by what they resolve to
    for path in paths:
        files = [*sorted(path.rglob(SWEEP)), *sorted(path.rglob(RECIPE))]
        if not files:
            raise DataError(
                f"{path} holds no run and no sweep (no {RECIPE}, no {SWEEP}); train one first: softq train, softq sweep"
            )
        for file in files:
            found.setdefault(file.parent.resolve(), file.parent)
    sweeps = {folder for folder in found if (folder / SWEEP).is_file()}
    return [
        Source(named)
        for folder, named in found.items()
        if folder in sweeps or not sweeps.intersection(folder.parents)
    ]


def read_sections(sources: Sequence[Source]) -> list[Section]:
    """A section for each sweep, and one for all runs that stand alone."""
    sweeps = [source for source in sources if (source.path / SWEEP).is_file()]
    runs = [RunFolder(source.path) for source in sources if source not in sweeps]
    sections = []
    for source in sweeps:
        with undamaged(str(source.path)):
            sections.append(_sweep_section(source))
    if runs:
        with undamaged(", ".join(str(run.path) for run in runs)):
            sections.append(_runs_alone(runs))
    return sections


def _task_of(path: Path) -> Task:
    return TASKS.find(read_toml(path).get("task"), str(path))


def _measured(path: Path) -> tuple[str, str]:
    """What a run's recipe is of, and what such runs are measured by; those of `softq train lm` are no task of sweeps."""
    if read_toml(path).get("task") == LM:
        return LM, "reward"
    task = _task_of(path)
    return task.name, task.metric


# --- runs -----------------------------------------------------------------------------------------------


def _runs_alone(runs: Sequence[RunFolder]) -> Section:
    """Runs with their recipes, and commands for a few of those that trained one model, as `softq train` does."""
    summaries = [summary for run in runs for summary in _run_summaries(run)]
    recipes = [run.path / RECIPE for run in runs]
    single = [
        recipe for run, recipe in zip(runs, recipes, strict=True) if len(run.lines(CELLS)) == 1
    ][:MOST_COMMANDS]
    ends = [""] if len(single) == 1 else [f"-{number + 1}" for number in range(len(single))]
    commands = [
        f"softq train {shlex.quote(str(recipe))} --out runs/again{end}"
        for recipe, end in zip(single, ends, strict=True)
    ]
    texts = [
        (f"# {recipe}\n" if len(runs) > 1 else "") + recipe.read_text(encoding="utf-8")
        for recipe in recipes
    ]
    return runs_section(summaries, command="\n".join(commands), recipe="\n".join(texts))


def _run_summaries(
    run: RunFolder, settings: Mapping[str, Mapping[str, Any]] | None = None
) -> list[RunSummary]:
    """One for each cell of a run, finished or not; what its sweep says of settings, by hash, is newer than what the run says."""
    name, metric = _measured(run.path / RECIPE)
    loss, dev = ("dev_loss", "dev_reward") if name == LM else ("loss", "dev")
    result, metrics = run.result(), run.lines(METRICS)
    summaries = []
    for number, row in enumerate(run.lines(CELLS)):
        cell = result["cells"][number] if result else row
        curve = [
            (line["epoch"], _of_cell(line.get(loss), number), _of_cell(line.get(dev), number))
            for line in metrics
        ]
        summaries.append(
            RunSummary(
                name=run.path.name,
                task=name,
                objective=row["objective"] + (", scaled" if row["temperature_scaled"] else ""),
                tau=row["tau"],
                seed=row["seed"],
                metric=metric,
                best_dev=cell.get("dev"),
                best_epoch=cell.get("epoch"),
                test=cell.get("test"),
                curve=curve,
                recipe_hash=row["hash"],
                signature=result["signature"] if result else "",
                settings=show_settings((settings or {}).get(row["hash"], row.get("settings", {}))),
            )
        )
    return summaries


def _of_cell(value: Any, number: int) -> float | None:
    found: float | None = value[number] if isinstance(value, list) else value
    return found


# --- sweeps ---------------------------------------------------------------------------------------------


def _sweep_section(source: Source) -> Section:
    """What is finished of a sweep, with its recipe and how to run it again."""
    path = source.path / SWEEP
    task = _task_of(path)
    sweep = read_sweep(task, source.path)
    finished, wanted = len(sweep.cells), sweep.wanted
    if not finished:
        section = Section(
            f"Sweep of {task.name}", [f"Nothing is finished yet, none of {wanted} models."], []
        )
    elif task.name == "classification" and not any(
        member.cell.settings for member in sweep.cells
    ):  # the paper varies nothing else
        section = classification_section(
            classification_results(task, sweep, source.path, source.scale)
        )
    elif task.name == "ner":
        section = ner_section(ner_results(task, sweep, source.path, source.scale))
    elif task.name == "parsing":
        section = parsing_section(
            parsing_results(task, sweep, source.path, source.scale, _sweep_summaries(sweep))
        )
    elif task.name == "translation":
        section = translation_section(
            translation_results(task, sweep, source.path, source.scale, _sweep_summaries(sweep))
        )
    elif task.name == "captioning":
        section = captioning_section(
            captioning_results(task, sweep, source.path, source.scale, _sweep_summaries(sweep))
        )
    else:
        section = runs_section(_sweep_summaries(sweep))
    intro = [f"{finished} of {wanted} models are finished; this page is of these.", *section.intro]
    return dataclasses.replace(
        section,
        intro=intro if 0 < finished < wanted else section.intro,
        command=source.command
        or section.command
        or f"softq sweep {shlex.quote(str(path))} --out sweeps/again",
        recipe=section.recipe or path.read_text(encoding="utf-8"),
    )


def _sweep_summaries(sweep: Sweep) -> list[RunSummary]:
    settings = {member.cell.hash: member.cell.settings for member in sweep.cells}
    return [
        summary
        for run in sorted({member.run for member in sweep.cells})
        for summary in _run_summaries(RunFolder(run), settings)
    ]
