"""The loop that every run goes through: epochs, development scores, early stopping, checkpoints.

What is trained is a `Learner`: one model, or many that are trained together (the cells of a sweep).
The loop knows nothing of models; it decides when to evaluate, keep, stop and write. It can be
interrupted at any step and killed at any moment: what `Learner.state` returns and the counters
beside it determine the rest of the run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from softq.errors import RunError, SoftqError, StoppedError
from softq.lab.processes import Interrupts, Workers
from softq.lab.recipe import Training, build
from softq.lab.run import BEST, LAST, METRICS, NEXT_BEST, TIMINGS, Curves, RunFolder, damaged
from softq.lab.tensorboard import EventWriter
from softq.metrics.counts import ExampleCounts

NONFINITE = "nonfinite.safetensors"  # the batch whose loss is not finite
_LOOKS_PER_EPOCH = 20  # how often progress is reported and Ctrl-C noticed, at least
_LOOK_EVERY = 2.0  # seconds, at most, where steps are shorter than that
_LONG = 2 * 3600  # seconds that are worth a hint


class NonFiniteLossError(SoftqError):
    """The loss became NaN or infinite; carries the batch it happened on."""

    def __init__(self, message: str, batch: Mapping[str, Tensor]) -> None:
        super().__init__(message)
        self.batch = batch


class Evaluation(NamedTuple):
    """Scores of the best models of a run on the development and test sets.

    Attributes:
        counts: statistics of each example by split, ``dev`` and ``test``; there is no ``test``
            where the development set is the test set, too.
        measures: what else was measured, for each model.
        outputs: predictions for the examples of the test set, as JSON can hold them; none where a
            run has several models.
        curves: small tables for figures of the report (softq.lab.tasks.curves), of one model.

    """

    counts: Mapping[str, ExampleCounts]
    measures: Sequence[Mapping[str, float]]
    outputs: Sequence[Any] = ()
    curves: Curves | None = None


class Learner(Protocol):
    """What a task brings to the loop. Lists have one entry per cell.

    Scores are better when higher.
    """

    cells: int
    steps: int  # in one epoch
    examples: int  # in one epoch

    def train(self, epoch: int, first: int, last: int, active: Sequence[bool]) -> None:
        """Take steps first..last-1 of an epoch with the active cells.

        Raise NonFiniteLossError before training on one.

        Where the loop divides an epoch into calls must not change the result.
        """

    def end_epoch(self, active: Sequence[bool]) -> dict[str, list[float]]:
        """Return and reset what was measured in this epoch, such as ``loss``.

        NaN for cells that are not active.
        """

    def evaluate(self, active: Sequence[bool]) -> list[float]:
        """Development scores of the current models; NaN for cells that are not active."""

    def keep_best(self, improved: Sequence[bool]) -> None:
        """Make the current models of these cells their best ones."""

    def evaluate_best(self) -> Evaluation:
        """Scores of the best models on the development and test sets."""

    def state(self) -> dict[str, Tensor]:
        """Everything that training needs to resume."""

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Resume from there."""

    def best(self) -> dict[str, Tensor]:
        """The best models."""

    def load_best(self, best: Mapping[str, Tensor]) -> None:
        """Make these the best models."""


class Watcher:
    """Follows the progress of training. This one shows nothing.

    A progress bar or a log overrides its methods.
    """

    def begin(self, examples: int, done: int) -> None:
        """Training will see so many examples at most, of which some were seen before it was resumed."""

    def advance(self, examples: int, status: str) -> None:
        """So many more examples were seen, possibly 0 where only the status changes.

        Called every few seconds, except while one step or one evaluation takes longer.
        """

    def note(self, text: str) -> None:
        """A line that the user should read now, such as a hint that training will take hours."""


_NOTE: ContextVar[Callable[[str], None]] = ContextVar("softq_note", default=lambda text: None)


@contextmanager
def telling(watcher: Watcher | None) -> Iterator[None]:
    """In this block, have a watcher note what `tell` is told."""
    token = _NOTE.set((watcher or Watcher()).note)
    try:
        yield
    finally:
        _NOTE.reset(token)


def tell(text: str) -> None:
    """A line for the user of the run that is being prepared: what takes long before its training."""
    _NOTE.get()(text)


@dataclass
class Progress:
    """Where a run stands: the notes of its last checkpoint."""

    epoch: int  # whole epochs
    step: int  # of the epoch under way
    best_scores: list[float | None]
    best_epochs: list[int]


class Outcome(NamedTuple):
    """The end of a run.

    The epoch (from 1) of each model's best development score, that score, and how the best models
    score.
    """

    epochs: list[int]
    dev: list[float]
    evaluation: Evaluation


def train(
    learner: Learner,
    run: RunFolder,
    training: Training,
    *,
    workers: Workers,
    interrupts: Interrupts,
    cell_names: Sequence[str],
    watcher: Watcher | None = None,
) -> Outcome:
    """Train to the end, from the last checkpoint if there is one.

    Args:
        learner: what to train.
        run: the folder, which the caller has locked.
        training: how long.
        workers: the processes that call this function together.
        interrupts: entered by the caller.
        cell_names: what TensorBoard calls the models.
        watcher: of progress.

    """
    loop = _Loop(learner, run, training, workers, interrupts, watcher or Watcher())
    loop.train(cell_names)
    best, progress = run.load(BEST), loop.progress
    scores = [score for score in progress.best_scores if score is not None]
    if best is None or len(scores) < learner.cells:
        raise RunError(
            f"a model in {run.path} has no best epoch, because none of its development scores is a"
            f" number; look at {METRICS} there"
        )
    learner.load_best(best.tensors)
    loop.watcher.advance(0, "scoring the best model")
    return Outcome(progress.best_epochs, scores, learner.evaluate_best())


class _Loop:
    def __init__(
        self,
        learner: Learner,
        run: RunFolder,
        training: Training,
        workers: Workers,
        interrupts: Interrupts,
        watcher: Watcher,
    ) -> None:
        self.learner, self.run, self.training, self.workers = learner, run, training, workers
        self.interrupts, self.watcher = interrupts, watcher
        self.progress = self._resume()
        self._piece = 1  # steps between two looks
        self._hinted = workers.device.type != "cpu"
        # epochs whose scores do not count; that of the last one always does
        self._burn_in = min(training.burn_in, training.epochs - 1)

    def train(self, cell_names: Sequence[str]) -> None:
        """Train until every cell has run out of epochs or patience."""
        learner, progress, epochs = self.learner, self.progress, self.training.epochs
        self._stop_if_asked()  # a library may have lost the exception
        self.interrupts.at_steps()
        if self.workers.is_main:  # a line per epoch; those after the checkpoint are written again
            for name in (METRICS, TIMINGS):
                self.run.rewrite_lines(name, self.run.lines(name, progress.epoch))
        self._total, self._seen = epochs * learner.examples, self._examples(progress.step)
        self._seen += progress.epoch * learner.examples
        self._began: float | None = None
        self.watcher.begin(self._total, self._seen)
        folder = self.run.path if self.workers.is_main else None
        events = EventWriter(folder, cell_names, progress.epoch)
        while progress.epoch < epochs and any(active := self._active()):
            began, first = time.perf_counter(), progress.step
            self._train_epoch(active)
            seconds = time.perf_counter() - began
            self.watcher.advance(0, f"epoch {progress.epoch + 1}/{epochs}, scoring dev")
            measured = learner.end_epoch(active) | {"dev": learner.evaluate(active)}
            if progress.epoch >= self._burn_in:
                self._note_best(measured["dev"])
            progress.epoch, progress.step = progress.epoch + 1, 0
            if self.workers.is_main:
                place = {"epoch": progress.epoch}
                rate = (learner.examples - self._examples(first)) / seconds
                self.run.append_line(
                    METRICS, place | {name: _one_or_all(row) for name, row in measured.items()}
                )
                self.run.append_line(
                    TIMINGS, place | {"seconds": seconds, "examples_per_second": rate}
                )
                events.write(progress.epoch, measured)
            self._save()
            if self.workers.is_main:
                self.run.promote(NEXT_BEST, BEST)
            self._stop_if_asked()
        self.interrupts.at_steps(False)
        self.workers.any(False)  # wait for the main process to have written

    def _resume(self) -> Progress:
        """Load the last checkpoint, or start."""
        run, learner = self.run, self.learner
        last = run.load(LAST)
        progress = Progress(0, 0, [None] * learner.cells, [0] * learner.cells)
        if last is not None:
            progress = self._read_progress(last.notes)
        # a kill may have come before the new best model was in place
        if self.workers.is_main and (waiting := run.load(NEXT_BEST)) is not None:
            if waiting.notes.get("epochs") == progress.best_epochs:
                run.promote(NEXT_BEST, BEST)
            else:
                (run.path / NEXT_BEST).unlink()
        self.workers.any(False)  # wait for that
        if last is None:
            return progress
        best = run.load(BEST)
        try:
            learner.load_state(last.tensors)
            if best is not None:
                learner.load_best(best.tensors)
        except RunError as error:  # a learner knows better what does not fit
            raise RunError(f"{run.path} cannot be resumed: {error}") from None
        except (KeyError, RuntimeError) as error:
            raise RunError(
                f"the checkpoint in {run.path} does not fit: it was written by another kind of"
                " training, such as one process instead of several; resume the run as it was"
                f" started ({str(error).splitlines()[0]})"
            ) from None
        return progress

    def _read_progress(self, notes: Mapping[str, Any]) -> Progress:
        where = f"the checkpoint {self.run.path / LAST}"
        with damaged(where):
            progress = build(Progress, notes, "its notes")
        cells = (len(progress.best_scores), len(progress.best_epochs))
        if cells != (self.learner.cells,) * 2 or not 0 <= progress.step <= self.learner.steps:
            raise RunError(
                f"{where} does not fit: it is at step {progress.step} of {cells[0]} models,"
                f" expected at most step {self.learner.steps} of {self.learner.cells}; resume the"
                " run as it was started"
            )
        return progress

    def _active(self) -> list[bool]:
        """Which cells have not run out of patience."""
        patience, progress = self.training.patience, self.progress
        return [
            patience == 0 or progress.epoch - max(best, self._burn_in) < patience
            for best in progress.best_epochs
        ]

    def _train_epoch(self, active: Sequence[bool]) -> None:
        """The rest of an epoch, in pieces short enough for a progress bar, with checkpoints where they are due."""
        learner, progress, every = self.learner, self.progress, self.training.checkpoint_every
        while progress.step < learner.steps:
            first, began = progress.step, time.perf_counter()
            due = (first // every + 1) * every if every else learner.steps
            last = min(first + self._piece, due, learner.steps)
            try:
                learner.train(progress.epoch, first, last, active)
            except NonFiniteLossError as error:
                if self.workers.is_main:
                    notes = {"epoch": progress.epoch, "steps": [first, last]}
                    self.run.save(NONFINITE, error.batch, notes)
                raise RunError(
                    f"{error}; training stopped, the batch is in {self.run.path / NONFINITE}"
                ) from None
            progress.step = last
            self._report(self._examples(last) - self._examples(first))
            self._adapt_piece(last - first, time.perf_counter() - began)
            if last == due < learner.steps:
                self._save()
            self._stop_if_asked()

    def _adapt_piece(self, steps: int, seconds: float) -> None:
        """As many steps as take about `_LOOK_EVERY` seconds.

        The same number in all processes, which have to meet.
        """
        seconds = float(self.workers.total(torch.tensor(seconds, device=self.workers.device)))
        wanted = int(steps * _LOOK_EVERY * self.workers.size / max(seconds, 1e-9))
        self._piece = max(1, min(wanted, self.learner.steps // _LOOKS_PER_EPOCH))

    def _report(self, examples: int) -> None:
        """Show progress, and say once where training on a CPU will take hours."""
        self._seen += examples
        self.watcher.advance(examples, f"epoch {self.progress.epoch + 1}/{self.training.epochs}")
        now = time.perf_counter()
        if self._began is None:  # until now kernels may have been compiled, which is no measure
            self._began, self._seen_before = now, self._seen
        seconds = now - self._began
        if self._hinted or seconds < 10:
            return
        left = seconds * (self._total - self._seen) / max(1, self._seen - self._seen_before)
        if left > _LONG:
            self._hinted = True
            self.watcher.note(
                f"training takes about {left / 3600:.0f} hours more on this CPU; neural models train"
                " faster on a GPU, and recipes/*-small.toml in minutes"
            )

    def _note_best(self, scores: Sequence[float]) -> None:
        """Keep and write the models that are better than any before.

        A score that is not a number is never better.
        """
        progress = self.progress
        improved = [
            math.isfinite(score) and (best is None or score > best)
            for score, best in zip(scores, progress.best_scores, strict=True)
        ]
        if not any(improved):
            return
        self.learner.keep_best(improved)
        for cell, better in enumerate(improved):
            if better:
                progress.best_scores[cell] = scores[cell]
                progress.best_epochs[cell] = progress.epoch + 1
        if self.workers.is_main:
            # beside the last best until the checkpoint that knows of it is in place
            notes = {"epochs": progress.best_epochs, "dev": progress.best_scores}
            self.run.save(NEXT_BEST, self.learner.best(), notes)

    def _save(self) -> None:
        state = (
            self.learner.state()
        )  # by all processes: some may have to bring their parts together
        if self.workers.is_main:
            self.run.save(LAST, state, vars(self.progress))

    def _stop_if_asked(self) -> None:
        if not self.interrupts.asked():
            return
        progress, epochs = self.progress, self.training.epochs
        if progress.step:
            self._save()
            place = f"in epoch {progress.epoch + 1} of {epochs} at step {progress.step}"
        else:  # the checkpoint of that epoch is in place
            place = (
                f"after epoch {progress.epoch} of {epochs}" if progress.epoch else "before epoch 1"
            )
        raise StoppedError(f"stopped {place}; add --resume to continue {self.run.path}")

    def _examples(self, step: int) -> int:
        """Examples in the first steps of an epoch."""
        return self.learner.examples * step // self.learner.steps


def _one_or_all(values: list[float]) -> Any:
    """A run of one model logs numbers, a run of many logs lists. JSON has no NaN.

    Null stands for it.
    """
    plain = [value if math.isfinite(value) else None for value in values]
    return plain[0] if len(plain) == 1 else plain
