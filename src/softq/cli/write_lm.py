"""What `softq predict` and `softq evaluate` do with models of 🤗 Transformers, such as runs of `softq train lm`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table

import softq
from softq.cli import comparison
from softq.cli.predict_sentences import MethodName, Searching, read_as_they_come
from softq.cli.predict_trees import Part, Parts
from softq.cli.progress import progress_bars
from softq.cli.shared import results_console
from softq.cli.train_lm import TITLES, names_lm
from softq.errors import DataError
from softq.lab.run import RECIPE
from softq.rewards.names import SHORT_NAMES

if TYPE_CHECKING:
    from softq.integrations.transformers.text_model import TextModel, Writing
    from softq.lab.tasks.lm_data import Rows
    from softq.lab.tasks.lm_scores import Scores

BatchSizeOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Of models of Transformers: sources at a time.  [default: the recipe's, or 64]",
        show_default=False,
    ),
]
AgainstMethodOption = Annotated[
    MethodName | None,
    typer.Option(
        help="Of models of Transformers: how the one of --against writes, if not as MODEL; it may be the same one, as in --method mbr "
        "--against MODEL --against-method beam.",
        show_default=False,
    ),
]


def is_lm(path: Path) -> bool:
    """Whether a folder is a run of `softq train lm`, or holds a model as Transformers save it."""
    return path.is_dir() and (names_lm(str(path / RECIPE)) or (path / "config.json").is_file())


class FileLm:
    """A model of Transformers, and how it writes.

    Args:
        path: a run folder, or one of ``save_pretrained``.
        searching: what the command line says.
        batch_size: likewise.

    """

    def __init__(self, path: Path, searching: Searching, batch_size: int | None = None) -> None:
        from softq.lab.tasks.lm import open_text_model  # Transformers take seconds to import

        options = searching.options()
        self.path = path
        self.model: TextModel
        self.how: Writing
        self.model, self.how = open_text_model(str(path))
        changed: dict[str, Any] = {
            name: options[name]
            for name in ("samples", "temperature", "top_p", "length_penalty")
            if name in options
        }
        changed |= {"method": options["method"], "seed": searching.seed or 0}
        if searching.beam is not None:
            changed["beams"] = searching.beam
        if searching.reward is not None:
            changed["reward"] = SHORT_NAMES.get(searching.reward, searching.reward)
            self.model.reward(
                changed["reward"]
            )  # an error if there is none, before anything is written
        if batch_size is not None:
            changed["batch_size"] = batch_size
        self.how = dataclasses.replace(self.how, **changed)

    @property
    def decoding(self) -> str:
        """How texts are chosen."""
        if self.how.method == MethodName.mbr:
            return f"mbr of {self.how.samples}"
        return (
            f"beam of {self.how.beams}" if self.how.method == MethodName.beam else self.how.method
        )


def written(model: FileLm) -> Parts:
    """Files with a text for each line; an empty line stays one."""

    def parts(file: IO[bytes], where: str) -> Iterator[Part]:
        for lines in read_as_they_come(file, where):
            texts = model.model.write(lines, model.how)
            yield Part(
                "".join(f"{text}\n" for text in texts).encode(),
                len(texts),
                sum(len(text.split()) for text in texts),
            )

    return parts


def evaluate_lm(
    model: Path,
    files: Sequence[Path],
    against: Path | None,
    searching: Searching,
    batch_size: int | None,
    against_method: MethodName | None,
    *,
    as_json: bool,
) -> None:
    """Score a model on sources with references, and a second one, or the same one in another way, beside it."""
    from softq.lab.tasks.lm_data import read_rows
    from softq.lab.tasks.lm_scores import LM_METRICS

    if against is not None and not is_lm(against):
        raise DataError(
            f"{model} is a model of Transformers: expected another one after --against, got {against}"
        )
    first, second = (
        (searching, searching)
        if against is None or against_method is None
        else searching.for_two(against_method)
    )
    rows = read_rows(*files)
    found = FileLm(model, first, batch_size)
    scores = _score(found, rows)
    facts: dict[str, Any] = {
        "model": str(model),
        "files": list(map(str, files)),
        "decoding": found.decoding,
    }
    facts["signature"] = found.model.reward(found.how.reward).signature
    facts |= {
        "sentences": len(rows),
        "references": sum(len(row["references"]) for row in rows),
        **scores.as_dict(),
    }
    compared = None
    if against is not None:
        other = FileLm(against, second, batch_size)
        others = _score(other, rows, found)
        compared = comparison.compare(scores.rows, others.rows, LM_METRICS)
        facts["against"] = comparison.as_json(compared, str(against)) | {
            "decoding": other.decoding,
            "seconds": others.seconds,
        }
        facts["against"] |= {f"sacrebleu_{name}": value for name, value in others.corpus.items()}
    if as_json:
        typer.echo(json.dumps({"command": "evaluate", "softq": softq.__version__, **facts}))
        return
    console = results_console()
    heading = f"{', '.join(facts['files'])}: {facts['sentences']:,} sources, {facts['references']:,} references; {found.decoding}"
    console.print(heading, markup=False, highlight=False, soft_wrap=True)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    table.add_column("")
    table.add_column("score", justify="right")
    for name, title in TITLES.items():
        if name in facts:
            table.add_row(
                title, f"{facts[name]:.{2 if name.startswith(('sacrebleu', 'seconds')) else 4}f}"
            )
    console.print(table)
    if compared is not None:
        names = (f"{model}, {found.decoding}", f"{against}, {facts['against']['decoding']}")
        comparison.show_difference(scores.overall, compared, TITLES, *names, console)
        told = [
            f"{TITLES[name]} {value:.2f}"
            for name, value in facts["against"].items()
            if name in TITLES and isinstance(value, float)
        ]
        console.print(
            f"{against}: {', '.join(told)}", markup=False, highlight=False, soft_wrap=True
        )
    console.print(f"reward: {facts['signature']}", markup=False, highlight=False, soft_wrap=True)


def _score(model: FileLm, rows: Rows, judge: FileLm | None = None) -> Scores:
    """Rewards are those of the first model, in its tokens."""
    from softq.lab.tasks.lm_scores import score

    judge = judge or model
    with progress_bars() as watch:
        watcher = watch(str(model.path), unit="sentences")
        watcher.begin(len(rows), 0)
        return score(
            model.model,
            rows,
            model.how,
            judge.how.reward,
            judge.model,
            lambda done: watcher.advance(done, ""),
        )
