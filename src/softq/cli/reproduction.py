"""What `softq report` and `softq reproduce` do: runs and sweeps as one page, and the paper's experiments as sweeps."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import typer

from softq.cli.guides import GUIDES
from softq.cli.progress import progress_bars
from softq.cli.recipes import RECIPES, Wanted, find_recipe, show_choices, split_flags
from softq.cli.report_command import Scale
from softq.cli.shared import results_console
from softq.cli.sweep_command import sweep_json
from softq.errors import DependencyError, RecipeError
from softq.lab.report import Source, find_sources, read_sections, write_report
from softq.lab.sweep import local_processes, run_sweep
from softq.lab.tasks import TASKS


class _Corpus(NamedTuple):
    """A corpus of the paper, the flags that name its files, and how files end in a folder of `--data`."""

    name: str
    flags: str
    ending: str

    def called(self, split: str) -> str:
        """How messages call the file of a split in a folder."""
        return f"{split}{self.ending} or …-{split}{self.ending} (or .gz, .xz)"

    def find(self, folder: Path, split: str) -> str:
        """The file of a split in a folder, "" if there is none."""
        name = re.compile(rf"([^.].*[-_.])?{split}{re.escape(self.ending)}(\.gz|\.xz)?")
        found = [path for path in folder.iterdir() if name.fullmatch(path.name) and path.is_file()]
        if len(found) > 1:
            names = ", ".join(sorted(path.name for path in found))
            raise RecipeError(
                f"--data: expected one file {self.called(split)} in {folder}, got {names}; name"
                f" files one by one instead, {self.flags}"
            )
        return str(found[0]) if found else ""


_CORPORA = {
    "ner": _Corpus("CoNLL-2003", "--train eng.train --test eng.testb", ".conll"),
    "parsing": _Corpus(
        "the Penn Treebank as dependencies",
        "--train train.conllu --dev dev.conllu --test test.conllu",
        ".conllu",
    ),
    "translation": _Corpus(
        "German-English of IWSLT 2014",
        "--train train.tsv --dev dev.tsv --test test.tsv",
        ".tsv",
    ),
    "captioning": _Corpus(
        "MSCOCO in Karpathy's splits",
        "--train coco.json --dev coco.json --test coco.json",
        ".captions.tsv",
    ),
}


def write_page(runs: Sequence[Path], out: Path, *, as_json: bool) -> None:
    """Write the page of runs and sweeps, and tell where."""
    files = write_report(read_sections(find_sources(runs)), out)
    if as_json:
        typer.echo(json.dumps({"page": str(out), "files": [str(path) for path in files]}))
    else:
        typer.echo(
            f"{out}, and {len(files) - 1} pictures and numbers in {out.stem}_files beside it"
        )


def run_experiments(
    task: str | None,
    arguments: Sequence[str],
    scale: Scale,
    data: Path | None,
    jobs: int,
    out: Path | None,
    *,
    as_json: bool,
) -> None:
    """Run the experiment of a task, or all, and write the page after each."""
    task, flags = split_flags(task, arguments)
    folder_flags = [] if data is None else ["--data", str(data)]
    experiments = _find_experiments(task, scale, data, flags)
    out = out or Path("reproduction") / scale
    found, sources = {}, []
    page, title = out / "report.html", "softq: the paper’s experiments, run again"
    same = ["--scale", scale, *folder_flags, *flags]
    say: Callable[[str], object] = (lambda _: None) if as_json else typer.echo
    say(f"page: {page}, with each experiment as soon as it is finished")
    with local_processes(jobs) as executor:  # one set of processes for all experiments
        # all recipes are known to be sound before the first is trained
        for number, (name, wanted) in enumerate(experiments.items(), 1):
            folder = out / name
            say(f"{name} ({number} of {len(experiments)})")
            with progress_bars() as watch:
                sweep = run_sweep(
                    *wanted, folder, resume=True, jobs=jobs, executor=executor, watch=watch
                )
            found[folder] = sweep
            command = shlex.join(["softq", "reproduce", name, *same])
            sources.append(Source(folder, command=command, scale=scale))
            write_report(read_sections(sources), page, title=title)
            if not as_json:
                show_choices(sweep, wanted.recipe, results_console())
    say(f"page: {page}")
    if as_json:
        told = [sweep_json(sweep, folder) for folder, sweep in found.items()]
        typer.echo(json.dumps({"page": str(page), "experiments": told}))


def _find_experiments(
    task: str | None, scale: Scale, data: Path | None, flags: Sequence[str]
) -> dict[str, Wanted]:
    """The recipe of a task's experiment, or of each."""
    known = [name for name in TASKS if name in GUIDES and GUIDES[name].reproduce]
    if task is not None and task not in known:
        raise RecipeError(f"the experiments are {', '.join(known)}, got {task!r}")
    if importlib.util.find_spec("matplotlib") is None:  # before hours of training, not after
        raise DependencyError(
            "the report needs matplotlib, which is not installed: pip install 'softq[plot]'"
        )
    named = _flags_of_folder(task, data) if data is not None else []
    return {
        name: _find_experiment(name, scale, [*named, *flags], alone=task is not None)
        for name in ([task] if task else known)
    }


def _flags_of_folder(task: str | None, folder: Path) -> list[str]:
    """The flags that name the splits of a corpus in a folder."""
    if task not in _CORPORA:
        raise RecipeError(
            f"--data is a folder of one experiment's files, and that is {' or '.join(_CORPORA)},"
            f" got {task or 'all of them'}"
        )
    if not folder.is_dir():
        raise RecipeError(f"--data: there is no folder {folder}")
    corpus = _CORPORA[task]
    train, dev, test = (corpus.find(folder, split) for split in ("train", "dev", "test"))
    of_folds = task == "ner"  # folds of train can be the dev split of a tagger
    if not train or not (dev or (of_folds and test)):
        missing = corpus.called("dev" if train else "train")
        raise RecipeError(
            f"--data: there is no file {missing} in {folder}; name files one by one instead,"
            f" {corpus.flags}"
        )
    found = ["--train", train, "--dev", dev, "--test", test]
    found += ["--folds", "0"] if of_folds and dev else []
    return found if test else [*found, "--halve-dev"]


def _find_experiment(name: str, scale: Scale, flags: Sequence[str], *, alone: bool) -> Wanted:
    """The recipe of an experiment with flags laid over it."""
    try:
        wanted = find_recipe(str(RECIPES / f"{name}-{scale}.toml"), flags, sweep=True)
    except RecipeError as error:
        if alone or not flags:
            raise
        raise RecipeError(
            f"{name}: {error}; flags of one experiment need its name: softq reproduce TASK"
            f" {shlex.join(flags)}"
        ) from None
    if scale == "paper" and name in _CORPORA:
        corpus, named, _ = _CORPORA[name]
        for path in filter(None, wanted.recipe.data.files):
            if not Path(path).is_file():
                raise RecipeError(
                    f"{name} at the paper's scale is trained on {corpus}, which does not come with"
                    f" softq, and there is no file {path}: name your copy, softq reproduce {name}"
                    f" --scale paper {named}, or its folder, --data DIR"
                )
    return wanted
