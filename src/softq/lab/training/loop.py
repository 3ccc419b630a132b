"""The loop every run goes through: epochs, development scores, early stopping, checkpoints.

What is trained is a `Learner`: one model, or many that are trained together (the cells of a sweep). The loop knows nothing of models; it
decides when to evaluate, keep, stop and write. It can be interrupted at any step and killed at any moment: what `Learner.state` holds, with
the counters beside it, is all there is to know.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from softq.errors import RunError, SoftqError
from softq.lab.recipe import Training
from softq.lab.run import (
    BEST,
    LAST,
    METRICS,
    NEXT_BEST,
    OUTPUTS,
    RESULT,
    TIMINGS,
    RunFolder,
    as_json,
)
from softq.lab.training.events import EventWriter
from softq.lab.training.interrupts import Interrupts
from softq.lab.training.workers import Workers
from softq.metrics.counts import ExampleCounts

_LOOKS_PER_EPOCH = 20  # how often the progress bar moves and Ctrl-C is noticed, at least


class NonFiniteLossError(SoftqError):
    """The loss became NaN or infinite; carries the batch it happened on."""

    def __init__(self, message: str, batch: Mapping[str, Tensor]) -> None:
        super().__init__(message)
        self.batch = batch


class Judgement(NamedTuple):
    """What the best models of a run make of the development and test splits.

    Attributes:
        counts: statistics of each example by split, ``dev`` and ``test``; there is no ``test`` where the development split is the test set, too.
        measures: what else was measured, for each model.
        outputs: predictions for the examples of the test set, as JSON can hold them; none where a run has several models.

    """

    counts: Mapping[str, ExampleCounts]
    measures: Sequence[Mapping[str, float]]
    outputs: Sequence[Any] = ()


class Learner(Protocol):
    """What a task brings to the loop. Lists have one entry per cell; scores are better when higher."""

    cells: int
    steps: int  # in one epoch
    examples: int  # in one epoch

    def train(self, epoch: int, first: int, last: int, active: Sequence[bool]) -> None:
        """Take steps first..last-1 of an epoch with the active cells; raise NonFiniteLossError rather than go on from one."""
        ...

    def end_epoch(self, active: Sequence[bool]) -> dict[str, list[float]]:
        """What was measured in the epoch that ends here, such as ``loss``, and forget it; NaN for cells that are not active."""
        ...

    def evaluate(self, active: Sequence[bool]) -> list[float]:
        """Development scores of the models as they are; NaN for cells that are not active."""
        ...

    def keep_best(self, improved: Sequence[bool]) -> None:
        """Make the present models of these cells their best ones."""
        ...

    def judge(self) -> Judgement:
        """What the best models make of the development and test splits."""
        ...

    def state(self) -> dict[str, Tensor]:
        """Everything that training goes on from."""
        ...

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from there."""
        ...

    def best(self) -> dict[str, Tensor]:
        """The best models."""
        ...

    def load_best(self, best: Mapping[str, Tensor]) -> None:
        """Take these for the best models."""
        ...


class Watcher(Protocol):
    """Who looks on: a progress bar, or nobody."""

    def begin(self, examples: int, done: int) -> None:
        """Training will see so many examples at most, and has seen some of them before."""
        ...

    def advance(self, examples: int, status: str) -> None:
        """So many examples more were seen."""
        ...


class Silence:
    """A watcher that shows nothing."""

    def begin(self, examples: int, done: int) -> None:
        """Show nothing."""

    def advance(self, examples: int, status: str) -> None:
        """Show nothing."""


@dataclass
class _Progress:
    """Where a run stands: the counters of its last checkpoint."""

    epoch: int
    step: int
    best_scores: list[float | None]
    best_epochs: list[int]

    def active(self, training: Training) -> list[bool]:
        """Which cells have not run out of patience after ``epoch`` whole epochs."""
        patience = training.patience
        return [
            patience == 0 or self.epoch - max(best, _burn_in(training)) < patience
            for best in self.best_epochs
        ]


class Outcome(NamedTuple):
    """The end of a run: for each model the epoch (from 1) of its best development score and that score, and how the best models were judged."""

    epochs: list[int]
    dev: list[float]
    judgement: Judgement


def train(
    learner: Learner,
    run: RunFolder,
    training: Training,
    *,
    workers: Workers,
    cell_names: Sequence[str],
    finish: Callable[[Outcome], Mapping[str, Any]],
    watcher: Watcher | None = None,
) -> dict[str, Any]:
    """Train to the end, from the last checkpoint if there is one; what ``finish`` makes of the outcome is written and returned."""
    watcher = watcher or Silence()
    progress = _start(learner, run, workers)
    with Interrupts(workers) as interrupts:
        if workers.is_main:
            for name in (
                METRICS,
                TIMINGS,
            ):  # a line per epoch; those after the checkpoint are written again
                run.rewrite_lines(name, run.lines(name, progress.epoch))
        done = progress.epoch * learner.examples + learner.examples * progress.step // learner.steps
        watcher.begin(training.epochs * learner.examples, done)
        events = EventWriter(run.path if workers.is_main else None, cell_names, progress.epoch)
        while progress.epoch < training.epochs and any(progress.active(training)):
            began, first = time.perf_counter(), progress.step
            active = progress.active(training)
            _train_epoch(learner, run, training, progress, active, watcher, workers, interrupts)
            seconds = time.perf_counter() - began
            measured = learner.end_epoch(active) | {"dev": learner.evaluate(active)}
            if progress.epoch >= _burn_in(training):
                _note_best(learner, run, progress, measured["dev"], workers)
            progress.epoch, progress.step = progress.epoch + 1, 0
            if workers.is_main:
                row = {"epoch": progress.epoch} | {
                    name: _one_or_all(values) for name, values in measured.items()
                }
                run.append_line(METRICS, row)
                seen = learner.examples * (learner.steps - first) // learner.steps
                run.append_line(
                    TIMINGS,
                    {
                        "epoch": progress.epoch,
                        "seconds": seconds,
                        "examples_per_second": seen / seconds,
                    },
                )
                events.write(progress.epoch, measured)
            _save(learner, run, progress, workers)
            if workers.is_main:
                run.promote(NEXT_BEST, BEST)
            interrupts.stop_if_asked(lambda: None, _place(run, progress))
    workers.any(False)  # wait for the main process to have written
    best = run.load(BEST)
    scores = [score for score in progress.best_scores if score is not None]
    if best is None or len(scores) < learner.cells:
        raise RunError(
            f"a model in {run.path} is never the best, because no development score of it is a number; look at {METRICS} there"
        )
    learner.load_best(best.tensors)
    outcome = Outcome(progress.best_epochs, scores, learner.judge())
    result = dict(finish(outcome))
    if workers.is_main:
        run.save_counts(outcome.judgement.counts)
        run.rewrite_lines(OUTPUTS, [{"output": output} for output in outcome.judgement.outputs])
        run.write(RESULT, as_json(result))  # last: a run that has it is finished
    return result


def _burn_in(training: Training) -> int:
    """Epochs whose scores do not count; that of the last epoch always does."""
    return min(training.burn_in, training.epochs - 1)


def _start(learner: Learner, run: RunFolder, workers: Workers) -> _Progress:
    """Load the last checkpoint, or begin."""
    last = run.load(LAST)
    progress = (
        _Progress(0, 0, [None] * learner.cells, [0] * learner.cells)
        if last is None
        else _Progress(**last.notes)
    )
    if (
        workers.is_main and (waiting := run.load(NEXT_BEST)) is not None
    ):  # a kill came before it was in place
        if waiting.notes["epochs"] == progress.best_epochs:
            run.promote(NEXT_BEST, BEST)
        else:
            run.discard(NEXT_BEST)
    workers.any(False)  # wait for that
    if last is None:
        return progress
    best = run.load(BEST)
    try:
        learner.load_state(last.tensors)
        if best is not None:
            learner.load_best(best.tensors)
    except RunError as error:  # a learner knows better what does not fit
        raise RunError(f"{run.path} cannot go on: {error}") from None
    except (KeyError, RuntimeError) as error:
        raise RunError(
            f"the checkpoint in {run.path} does not fit: it was written by another kind of training, such as one process instead of "
            f"several; go on as it was begun ({str(error).splitlines()[0]})"
        ) from None
    return progress


def _train_epoch(
    learner: Learner,
    run: RunFolder,
    training: Training,
    progress: _Progress,
    active: Sequence[bool],
    watcher: Watcher,
    workers: Workers,
    interrupts: Interrupts,
) -> None:
    """The rest of an epoch, in pieces small enough for a progress bar, with checkpoints where they are due."""
    piece = max(1, learner.steps // _LOOKS_PER_EPOCH)
    while progress.step < learner.steps:
        last = min(progress.step + piece, learner.steps)
        due = (
            training.checkpoint_every
            and (progress.step // training.checkpoint_every + 1) * training.checkpoint_every
        )
        if due and due < learner.steps:
            last = min(last, due)
        try:
            learner.train(progress.epoch, progress.step, last, active)
        except NonFiniteLossError as error:
            if workers.is_main:
                run.save(
                    "nonfinite.safetensors",
                    error.batch,
                    {"epoch": progress.epoch, "steps": [progress.step, last]},
                )
            raise RunError(
                f"{error}; training stopped, the batch is in {run.path / 'nonfinite.safetensors'}"
            ) from None
        seen = (
            learner.examples * last // learner.steps
            - learner.examples * progress.step // learner.steps
        )
        progress.step = last
        watcher.advance(seen, f"epoch {progress.epoch + 1}/{training.epochs}")
        if last == due and last < learner.steps:
            _save(learner, run, progress, workers)
        interrupts.stop_if_asked(
            lambda: _save(learner, run, progress, workers), _place(run, progress)
        )


def _note_best(
    learner: Learner, run: RunFolder, progress: _Progress, scores: Sequence[float], workers: Workers
) -> None:
    """Keep and write the models that are better than any before. A score that is not a number is never better."""
    improved = [
        math.isfinite(score) and (best is None or score > best)
        for score, best in zip(scores, progress.best_scores, strict=True)
    ]
    if not any(improved):
        return
    learner.keep_best(improved)
    for cell, better in enumerate(improved):
        if better:
            progress.best_scores[cell], progress.best_epochs[cell] = (
                scores[cell],
                progress.epoch + 1,
            )
    if workers.is_main:
        # beside the last best until the checkpoint that knows of it is in place
        run.save(
            NEXT_BEST, learner.best(), {"epochs": progress.best_epochs, "dev": progress.best_scores}
        )


def _save(learner: Learner, run: RunFolder, progress: _Progress, workers: Workers) -> None:
    state = learner.state()  # by all processes: some may have to bring their parts together
    if workers.is_main:
        run.save(LAST, state, vars(progress))


def _place(run: RunFolder, progress: _Progress) -> str:
    return f"stopped in epoch {progress.epoch + 1} at step {progress.step}; {run.path} can be gone on with: add --resume"


def _one_or_all(values: list[float]) -> Any:
    """A run of one model logs numbers, a run of many logs lists. JSON has no NaN: null stands for it."""
    plain = [value if math.isfinite(value) else None for value in values]
    return plain[0] if len(plain) == 1 else plain
