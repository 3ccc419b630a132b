"""A run folder.

Everything one training leaves behind, written so that it can be killed at any moment.

======================  ====================================================================================
``recipe.toml``         the resolved recipe; it reads back with ``softq train RUN/recipe.toml``
``cells.jsonl``         a line per model that is trained: objective, temperature, seed
``environment.json``    versions, device and command: what else a result may depend on
``metrics.jsonl``       one line per epoch, and nothing in it that differs between two equal runs
``timings.jsonl``       seconds and examples per second of each epoch
``training.jsonl``      of ``softq train lm``: loss, reward, KL and others, means over some steps each
``events.out…``         the same numbers for TensorBoard, where it is installed
``last.safetensors``    everything needed to resume: weights, optimizer, counters
``best.safetensors``    the model of the best development score
``counts.safetensors``  statistics of every example of dev and test, which metrics are functions of
``curves.json``         calibration, sets with a guarantee, precision and recall, of tasks that have them
``outputs.jsonl``       predictions of the best model for the examples of the test set
``result.json``         the final scores; a run that has it is finished
======================  ====================================================================================

Files are replaced as a whole: written beside their place, flushed to the disk, renamed. Lines are
appended, and ``last.safetensors`` says how many of them belong to it, so that a resumed run can
drop those that came after it. Nothing is pickled: tensors are safetensors, the rest is JSON and
TOML. A folder may be a stranger's, or damaged: every file is checked against a type when it is
read, and an error names the file and the line.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, cast

import numba
import numpy as np
import torch
from safetensors.torch import save as to_safetensors
from torch import Tensor

from softq.errors import DataError, RecipeError, RunError
from softq.formats.file_checks import read_object, read_tensors
from softq.lab.recipe import typed
from softq.metrics.counts import ExampleCounts

RECIPE, CELLS, ENVIRONMENT, METRICS, TIMINGS, TRAINING = (
    "recipe.toml",
    "cells.jsonl",
    "environment.json",
    "metrics.jsonl",
    "timings.jsonl",
    "training.jsonl",
)
LAST, BEST, NEXT_BEST, COUNTS, CURVES, OUTPUTS, RESULT = (
    "last.safetensors",
    "best.safetensors",
    "best.next.safetensors",
    "counts.safetensors",
    "curves.json",
    "outputs.jsonl",
    "result.json",
)


class CellRow(TypedDict):
    """A line of ``cells.jsonl``: what tells a model from the others of its run or sweep."""

    hash: str
    objective: str
    tau: float | None
    temperature_scaled: bool
    seed: int
    settings: dict[str, Any]  # keys that its sweep varies, by their flags


class MetricsRow(TypedDict):
    """A line of ``metrics.jsonl``; every other key is a metric.

    A number, null for NaN, a list if there are several models.
    """

    epoch: int | float


class TimingRow(TypedDict):
    """A line of ``timings.jsonl``."""

    epoch: int | float
    seconds: float


class OutputRow(TypedDict):
    """A line of ``outputs.jsonl``."""

    output: Any


class _Tested(TypedDict, total=False):
    test: float  # not of a run without a test set


class ResultRow(CellRow, _Tested):
    """A model in ``result.json``; every other key is a score of it."""

    epoch: int | float
    dev: float


class Facts(TypedDict, total=False):
    """What a run says of its data; see softq.lab.tasks.Task.facts."""

    examples: dict[str, int]
    bayes: dict[str, float]
    types: dict[str, dict[str, int | float]]
    annotators: list[dict[str, int | float | str]]
    annotator_model: str
    annotator_scores: list[float]


class _Facts(TypedDict, total=False):
    facts: Facts


class ResultTable(_Facts):
    """``result.json``."""

    task: str
    metric: str
    signature: str  # of the reward
    cells: list[ResultRow]


class ReliabilityRow(TypedDict):
    """Predictions of like confidence: `softq.calibration.ReliabilityBin`."""

    confidence: float
    accuracy: float
    predictions: int


class Reliability(TypedDict):
    """How far probabilities agree with what is right; see `softq.calibration`."""

    error: float
    error_mass: float
    brier: float
    bins: list[ReliabilityRow]


class SetsRow(TypedDict):
    """Sets with a guarantee for this share of tokens, or of sentences; see `softq.conformal`."""

    level: float
    unit: str
    coverage: float
    size: float  # mean


class WeightPoint(TypedDict):
    """What decoding with an entity weight has on the test set, and its F1 on the development set."""

    weight: float
    precision: float | None  # of no prediction
    recall: float | None
    f1: float
    dev_f1: float


class PrecisionRecall(TypedDict):
    """Points by entity weights, and that of the best F1 on the development set."""

    chosen: WeightPoint
    points: list[WeightPoint]


class _PrecisionRecall(TypedDict, total=False):
    precision_recall: PrecisionRecall  # of taggers of entities


class Curves(_PrecisionRecall):
    """``curves.json``: of one model, on the test set; see softq.lab.tasks.curves."""

    choices: str  # what it chooses: labels, heads or classes
    temperature: float  # fitted on the development set
    before: Reliability  # temperature scaling
    after: Reliability
    sets: list[SetsRow]


class EnvironmentTable(TypedDict):
    """``environment.json``."""

    device: str
    threads: int
    gpu: str | None


_Scores = list[float | None] | float | None
# the type of each file, or of each of its lines, and that of keys which the type does not name
_TYPES: dict[str, tuple[Any, Any]] = {
    CELLS: (CellRow, Any),
    METRICS: (MetricsRow, _Scores),
    TIMINGS: (TimingRow, _Scores),
    TRAINING: (MetricsRow, _Scores),
    OUTPUTS: (OutputRow, Any),
    CURVES: (Curves, Any),
    RESULT: (ResultTable, Any),
    ENVIRONMENT: (EnvironmentTable, Any),
}


class Checkpoint(NamedTuple):
    """Tensors by name, and what goes with them as JSON."""

    tensors: dict[str, Tensor]
    notes: dict[str, Any]


class RunFolder:
    """Reads and writes the files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)

    def begin(self, recipe: str, cells: Sequence[Mapping[str, Any]], device: str) -> None:
        """Write the resolved recipe, its cells and the environment.

        A folder that holds a run already is an error.

        The caller holds the lock from before this call until training has ended: of two processes
        that start at once, one would otherwise leave its recipe beside the other's model.
        """
        self.refuse_existing()
        self.write(ENVIRONMENT, as_json(environment() | {"device": device}))
        self.rewrite_lines(CELLS, cells)
        self.write(RECIPE, recipe)  # last: a folder with a recipe is a run

    def exists(self) -> bool:
        """Whether the folder holds a run, finished or not."""
        return (self.path / RECIPE).is_file()

    def refuse_existing(self) -> None:
        """An error where the folder holds a run already."""
        if self.exists():
            raise RunError(
                f"{self.path} already holds a run: add --resume to continue it, or choose "
                "another --out"
            )

    def is_fresh(self, cells: Sequence[Mapping[str, Any]], *, resume: bool) -> bool:
        """Whether training begins anew, else it is resumed; an error where there is another run.

        ``cells`` are the rows that `begin` would write.
        """
        if not (resume and self.exists()):
            self.refuse_existing()
            return True
        if [row["hash"] for row in self.cells()] != [row["hash"] for row in cells]:
            raise RunError(
                f"{self.path} was started with another recipe (see {RECIPE} there): resume it with"
                " the same one, or choose another --out"
            )
        return False

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder if there is none, and keep a second process out.

        The lock goes with the process, however it ends.
        """
        with explain_write_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunError(
                    f"another process is training {self.path}: wait for it to end, or stop it"
                ) from None
            for leftover in self.path.glob(".*.tmp"):  # of a process that was killed while it wrote
                leftover.unlink()
            yield
        finally:
            os.close(handle)

    def write(self, name: str, text: str) -> None:
        """Put a text file in place, whole or not at all."""
        with explain_write_errors(self.path):
            write_atomically(self.path / name, text.encode())

    def save(self, name: str, tensors: Mapping[str, Tensor], notes: Mapping[str, Any]) -> None:
        """Put a checkpoint in place, whole or not at all."""
        plain = {key: value.detach().to("cpu").contiguous() for key, value in tensors.items()}
        with explain_write_errors(self.path):
            write_atomically(
                self.path / name, to_safetensors(plain, {"softq": as_json(notes, indent=None)})
            )

    def load(self, name: str) -> Checkpoint | None:
        """A checkpoint, or None where there is none."""
        path = self.path / name
        if not path.is_file():
            return None
        try:
            tensors, metadata = read_tensors(path)
            return Checkpoint(tensors, read_object(metadata.get("softq", ""), "its notes"))
        except DataError as error:
            raise RunError(
                f"{path} is not a checkpoint of softq ({error}); delete it to start the run again"
            ) from None

    def save_counts(self, counts: Mapping[str, ExampleCounts]) -> None:
        """Write the statistics of each example, by split."""
        self.save(
            COUNTS,
            {
                key: tensor
                for split, of in counts.items()
                for key, tensor in of.tensors(split).items()
            },
            {},
        )

    def test_counts(self) -> ExampleCounts:
        """Statistics of the test examples of a finished run.

        Of the development examples, where there is no test set.
        """
        checkpoint = self.load(COUNTS)
        if checkpoint is None:
            raise RunError(
                f"{self.path} has no {COUNTS}: it was trained by an older version of softq, train"
                " it again"
            )
        try:
            for split in ("test", "dev"):
                counts = ExampleCounts.from_tensors(checkpoint.tensors, split)
                if counts is not None:
                    return counts
            raise DataError("it has counts of neither split")
        except DataError as error:
            raise RunError(
                f"{self.path / COUNTS} is damaged ({error}); train the run again"
            ) from None

    def curves(self) -> Curves | None:
        """What a run keeps for figures; None where its task has none, or an older version ran."""
        path = self.path / CURVES
        return cast(Curves, read_json(path)) if path.is_file() else None

    def promote(self, name: str, to: str) -> None:
        """Move a file to the place of another, if it is there."""
        if (self.path / name).is_file():
            with explain_write_errors(self.path):
                os.replace(self.path / name, self.path / to)

    def rewrite_lines(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Put a JSON-lines file in place, whole or not at all."""
        self.write(name, "".join(as_json(row, indent=None) + "\n" for row in rows))

    def append_line(self, name: str, row: Mapping[str, Any]) -> None:
        """Add a line; one that a kill has cut short is dropped by `lines`."""
        with (
            explain_write_errors(self.path),
            (self.path / name).open("a", encoding="utf-8") as file,
        ):
            file.write(as_json(row, indent=None) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def lines(self, name: str, most: int | None = None) -> list[dict[str, Any]]:
        """The rows of a JSON-lines file, or the first of them; [] where there is none."""
        path = self.path / name
        if not path.is_file():
            return []
        # the last line is empty, or half a line that a kill has left
        lines = path.read_bytes().split(b"\n")[:-1]
        return [
            _parse(line, name, f"line {number} of {path}")
            for number, line in enumerate(lines[:most], 1)
        ]

    def cells(self) -> list[CellRow]:
        """The models of the run, finished or not."""
        return cast(list[CellRow], self.lines(CELLS))

    def save_outputs(self, outputs: Sequence[Any]) -> None:
        """Write what a model predicts for the test set, a line for each example."""
        self.rewrite_lines(OUTPUTS, [{"output": output} for output in outputs])

    def outputs(self) -> list[Any]:
        """Predictions for the test examples of a finished run."""
        return [row["output"] for row in self.lines(OUTPUTS)]

    def result(self) -> ResultTable | None:
        """The final scores of a finished run, None of one that is not."""
        path = self.path / RESULT
        return cast(ResultTable, read_json(path)) if path.is_file() else None


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file as a whole, so that a reader or a crash sees the old one or the new one and nothing between."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the rename itself must reach the disk too
    finally:
        os.close(folder)


@contextmanager
def explain_write_errors(folder: Path) -> Iterator[None]:
    """Turn a full disk or an unwritable folder into an error that says what is safe."""
    try:
        yield
    except OSError as error:
        if (folder / LAST).is_file():
            kept = "the last checkpoint in it is intact: make room and add --resume"
        elif (folder / RECIPE).is_file():
            kept = "it has no checkpoint yet: make room and add --resume to begin again"
        else:
            kept = "nothing was begun there"
        raise RunError(f"cannot write to {folder}: {error.strerror or error}; {kept}") from error


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file of a run or sweep folder."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror}") from None
    return _parse(content, path.name, str(path))


def _parse(text: bytes, name: str, where: str) -> dict[str, Any]:
    """A JSON object of the type that files of this name have."""
    kind, others = _TYPES.get(name, (dict[str, Any], Any))
    with damaged(where):
        row: dict[str, Any] = typed(read_object(text, "it"), kind, "it")
        as_json(row, indent=None)  # refuses NaN and inf
        declared = getattr(kind, "__annotations__", {})
        return {
            key: value if key in declared else typed(value, others, key)
            for key, value in row.items()
        }


@contextmanager
def damaged(where: str) -> Iterator[None]:
    """Turn what does not fit the type of a file into an error that names the file."""
    try:
        yield
    except RunError:
        raise
    except (DataError, RecipeError, ValueError) as error:
        raise RunError(f"{where} is damaged ({error}); delete it, or the folder") from None


def as_json(value: Mapping[str, Any], indent: int | None = 2) -> str:
    """JSON with a final newline where it is a file of its own.

    NaN and inf are errors, since JSON has none.
    """
    return json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False) + (
        "\n" if indent else ""
    )


def environment() -> dict[str, Any]:
    """What a result may depend on besides its recipe."""
    try:
        version = importlib.metadata.version("softq")
    except importlib.metadata.PackageNotFoundError:
        version = "0+source"
    return {
        "softq": version,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numba": numba.__version__,
        "numpy": np.__version__,
        "platform": f"{platform.system()} {platform.machine()}",
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "arguments": sys.argv[1:],
    }
