"""Several runs of a sweep at a time: in processes of this machine, or on a Dask cluster.

Either way each run is one call of `train_run` on an executor of `concurrent.futures`. It writes its
run folder, on a cluster on a file system that all machines share, and resumes it if there is one:
so a run whose worker is lost is simply called again. A run is asked to stop by a file in the sweep
folder, which it looks for between steps, or by the end of the process that started it.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from softq.errors import ConvergenceWarning, DependencyError, RunError, SoftqError, StoppedError
from softq.lab.loop import Watcher
from softq.lab.processes import Interrupts, Workers
from softq.lab.tasks.base import Task, show_settings, train_cells

STOP = ".stop"  # a file of a sweep folder: runs that find it stop, with a checkpoint
_LOOK_EVERY = 0.1  # seconds between looks at whether to stop
_SHOWN = 2  # runs whose names are shown while they are trained


class Run(NamedTuple):
    """A run of a sweep that is to be trained, or resumed."""

    path: Path
    cells: list[Any]
    settings: dict[str, Any]  # that the sweep varies
    old: bool

    @property
    def name(self) -> str:
        """What to call it while it is trained."""
        varied = [show_settings(self.settings)] if self.settings else []
        if len(self.cells) > 1:
            return " ".join([f"{len(self.cells)} models", *varied])
        (cell,) = self.cells
        return " ".join([str(cell.objective), *varied, f"seed {cell.training.seed}"])


def train_runs(
    task: Task,
    runs: Sequence[Run],
    executor: Executor,
    out: Path,
    *,
    workers: Workers,
    watcher: Watcher | None = None,
) -> None:
    """Train runs of one cell each, as many at a time as the executor has workers.

    ``watcher`` sees finished models, not examples.

    Raises `StoppedError` after Ctrl-C or SIGTERM, and `RunError` with the name of the first run
    that failed; by then the others have stopped, with a checkpoint.
    """
    kind, watcher, stop = type(task), watcher or Watcher(), (out / STOP).absolute()
    if kind.__module__ == "__main__" or "<locals>" in kind.__qualname__:
        raise RunError(
            f"several jobs need a task that other processes can import, got {kind.__qualname__}:"
            " put its class into a module"
        )
    stop.unlink(missing_ok=True)
    watcher.begin(len(runs), 0)
    waiting: dict[Future[list[str]], Run] = {}
    with Interrupts(workers) as interrupts:
        interrupts.at_steps()
        try:
            for run in runs:
                at = run._replace(path=run.path.absolute())
                waiting[executor.submit(train_run, task, at, stop, sys.argv)] = run
            for _ in _follow(waiting, watcher):
                if interrupts.asked():
                    raise StoppedError(f"stopped; {out} can be resumed: add --resume")
        except BaseException:
            stop.touch()
            for future in waiting:
                future.cancel()
            wait(waiting)  # until each has written its checkpoint
            stop.unlink()
            raise


def _follow(waiting: dict[Future[list[str]], Run], watcher: Watcher) -> Iterator[None]:
    """Take runs that have ended out of those that are waited for, and say how far all are."""
    total, status = len(waiting), ""
    while waiting:
        done, _ = wait(waiting, _LOOK_EVERY, FIRST_COMPLETED)
        for future in done:
            _conclude(future, waiting.pop(future), list(waiting.values()))
        names = [run.name for future, run in waiting.items() if future.running()]
        shown = ", ".join([f"{total - len(waiting)} of {total}", *names[:_SHOWN]])
        if done or shown != status:
            watcher.advance(len(done), status := shown)
        yield


def _conclude(future: Future[list[str]], run: Run, others: Sequence[Run]) -> None:
    """Pass on the warnings of a run that has ended, or its error."""
    try:
        unconverged = future.result()
    except StoppedError:
        raise
    except BrokenExecutor:
        begun = ", ".join(one.name for one in (run, *others) if one.path.is_dir())
        raise RunError(
            "a process of the sweep ended without a word, killed or out of memory; under way were"
            f" {begun or run.name}: --resume trains them to the end, fewer --jobs need less memory"
        ) from None
    except Exception as error:
        what = str(error) if isinstance(error, SoftqError) else f"{type(error).__name__}: {error}"
        raise RunError(
            f"{run.name}: {what} (run {run.path}; the other runs have stopped, --resume trains them"
            " to the end)"
        ) from error
    for text in unconverged:
        warnings.warn(f"{run.name}: {text}", ConvergenceWarning, stacklevel=2)


# --- executors ------------------------------------------------------------------------------------------


def find_executor(where: Executor | str | None, jobs: int) -> AbstractContextManager[Executor]:
    """An executor as it is, that of a Dask cluster by its address, or ``jobs`` processes here."""
    if isinstance(where, Executor):
        return contextlib.nullcontext(where)
    return dask_cluster(where, jobs) if where else local_processes(jobs)


@contextmanager
def local_processes(jobs: int) -> Iterator[Executor]:
    """``jobs`` processes of this machine, which share its cores."""
    # new interpreters: neither threads nor the context of a GPU are copied into them
    context = multiprocessing.get_context("spawn")
    share = max(1, torch.get_num_threads() // jobs)
    with ProcessPoolExecutor(
        jobs, mp_context=context, initializer=_start_process, initargs=(share, os.getpid())
    ) as executor:
        yield executor


@contextmanager
def dask_cluster(address: str, jobs: int) -> Iterator[Executor]:
    """The workers of a Dask cluster.

    Args:
        address: of its scheduler, ``tcp://host:8786``; or ``slurm``, ``pbs``, ``sge`` or ``lsf``,
            for which dask-jobqueue starts ``jobs`` workers as its own configuration says.
        jobs: see above; the workers of a scheduler are all used.

    """
    try:
        from distributed import Client
    except ImportError:
        raise DependencyError(
            "a sweep on a cluster needs Dask, which is not installed: pip install 'softq[cluster]'"
        ) from None
    queues = {
        "slurm": "SLURMCluster",
        "pbs": "PBSCluster",
        "sge": "SGECluster",
        "lsf": "LSFCluster",
    }
    with contextlib.ExitStack() as stack:
        place: Any = address
        if address in queues:
            try:
                queue = importlib.import_module("dask_jobqueue")
            except ImportError:
                raise DependencyError(
                    f"--cluster {address} needs dask-jobqueue, which is not installed: pip install"
                    " dask-jobqueue"
                ) from None
            place = stack.enter_context(getattr(queue, queues[address])())
            place.scale(jobs=jobs)
        try:
            client = stack.enter_context(Client(place, timeout="30s"))
        except (OSError, ValueError) as error:
            raise RunError(
                f"no Dask scheduler answers at {address}: start one with dask scheduler, and"
                f" workers with dask worker {address} ({error})"
            ) from None
        yield stack.enter_context(
            client.get_executor(pure=False)
        )  # the scheduler gives the run of a lost worker to another one


# --- in the other process -------------------------------------------------------------------------------

_parent: int | None = None  # of a process of this machine
_training = threading.Lock()


def _start_process(threads: int, parent: int) -> None:
    """Prepare a process.

    Its share of the cores, and an end when the process that started it has ended.
    """
    global _parent
    _parent = parent
    torch.set_num_threads(threads)
    # Ctrl-C at a terminal is for all of a session, and only the sweep's own process may tell the
    # others to stop
    os.setsid()

    def end_with_parent() -> None:
        multiprocessing.parent_process().join()  # type: ignore[union-attr]
        with _training:  # a run stops by itself, see `train_run`
            os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


def _stop_asked(stop: Path) -> bool:
    """Whether the file to stop at is there, or the process that started this one is gone."""
    return stop.exists() or (_parent is not None and os.getppid() != _parent)


def train_run(task: Task, run: Run, stop: Path, arguments: list[str]) -> list[str]:
    """Train a run, or resume it; returns warnings of searches that have not converged.

    Args:
        task: of the run.
        run: with one cell.
        stop: the file to stop at.
        arguments: of the sweep's command, which the run writes down.

    """
    with _training, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        if _stop_asked(stop):  # an executor may have had it in hand when it was cancelled
            raise StoppedError(f"{run.path} was not started")
        sys.argv = arguments
        try:
            train_cells(
                task,
                run.cells,
                run.path,
                settings=run.settings,
                resume=True,
                also_stop=lambda: _stop_asked(stop),
            )
        except SoftqError:
            raise
        except Exception:
            traceback.print_exc()  # a fault of the task: its place is worth more than one line
            raise
    unconverged = []
    for warning in caught:
        if issubclass(warning.category, ConvergenceWarning):
            unconverged.append(str(warning.message))
        else:
            warnings.showwarning(
                warning.message, warning.category, warning.filename, warning.lineno
            )
    return unconverged
