"""Several runs at a time, each in a process of its own.

The processes are new interpreters, never copies of this one, so nothing that is loaded here (threads, a GPU's context) gets in their way.
They are sent runs as lines of JSON and answer each with a line; a task is sent by the name of its class. A process whose input ends stops:
with a checkpoint if it is in the middle of a run. The input ends when the sweep is stopped, when another run has failed, and also when the
process that writes it is killed, so that none is ever left behind.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import operator
import os
import queue
import selectors
import signal
import subprocess
import sys
import threading
import tomllib
import traceback
import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from softq.errors import ConvergenceWarning, RunError, SoftqError
from softq.recipe import to_toml
from softq.sweep.grids import parse_recipe
from softq.tasks.base import Task, show_settings, train_cells
from softq.train import Silence, StoppedError, Watcher, Workers
from softq.train.interrupts import Interrupts

_LOOK_EVERY = 0.1  # seconds between looks at whether to stop


class Run(NamedTuple):
    """A run of a sweep that is to be trained, or gone on with."""

    path: Path
    cells: list[Any]
    settings: dict[str, Any]  # that the sweep varies
    old: bool

    @property
    def name(self) -> str:
        """What to call it while it is trained."""
        if len(self.cells) > 1:
            return " ".join([f"{len(self.cells)} models", *([show_settings(self.settings)] if self.settings else [])])
        (cell,) = self.cells
        return " ".join([str(cell.objective), *([show_settings(self.settings)] if self.settings else []), f"seed {cell.training.seed}"])


def train_in_processes(task: Task, runs: Sequence[Run], jobs: int, out: Path, *, workers: Workers, watcher: Watcher | None = None) -> None:
    """Train runs of one cell each, ``jobs`` of them at a time; ``watcher`` sees finished models, not examples.

    Raises `StoppedError` after Ctrl-C or SIGTERM, and `RunError` with the name of the first run that failed; by then the others have
    stopped, with a checkpoint.
    """
    task_name = _name_of(task)
    waiting, at_work, watcher = deque(runs), dict[int, Run](), watcher or Silence()
    watcher.begin(len(runs), 0)
    with _processes(jobs) as processes, Interrupts(workers) as interrupts, selectors.DefaultSelector() as selector:
        for number, process in enumerate(processes):
            selector.register(_output(process), selectors.EVENT_READ, number)
            at_work[number] = waiting.popleft()
            _order(process, task, task_name, at_work[number])
        while at_work:
            for ready, _ in selector.select(_LOOK_EVERY):
                number = ready.data
                process, run = processes[number], at_work.pop(number)
                _read_reply(process, run)
                watcher.advance(1, f"{len(runs) - len(waiting) - len(at_work)} of {len(runs)}")
                if waiting:
                    at_work[number] = waiting.popleft()
                    _order(process, task, task_name, at_work[number])
                else:
                    selector.unregister(ready.fileobj)
            interrupts.stop_if_asked(lambda: None, f"stopped; {out} can be gone on with: add --resume")


def _name_of(task: Task) -> str:
    """How another process finds the class of a task."""
    kind = type(task)
    if kind.__module__ == "__main__" or "<locals>" in kind.__qualname__:
        raise RunError(f"several jobs need a task that other processes can import, got {kind.__qualname__}: put its class into a module")
    return f"{kind.__module__}:{kind.__qualname__}"


@contextmanager
def _processes(count: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that share the cores, for as long as the block lasts; a second Ctrl-C while they stop kills them."""
    threads = max(1, torch.get_num_threads() // count)
    code = f"import sys; sys.path[:] = {sys.path!r}; from softq.sweep.processes import work; work()"
    started: list[subprocess.Popen[str]] = []
    try:
        for _ in range(count):
            # in a session of its own: Ctrl-C at a terminal is for all of a session, and only this process may tell the others to stop
            process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
            )
            started.append(process)
            _send(process, {"threads": threads, "arguments": sys.argv})
        yield started
    finally:
        try:
            for process in started:
                with contextlib.suppress(BrokenPipeError):  # it has ended already
                    _input(process).close()
            for process in started:
                process.wait()
        finally:
            for process in started:
                process.kill()  # nothing, if it has ended
                process.wait()
                _output(process).close()


def _input(process: subprocess.Popen[str]) -> Any:
    return process.stdin


def _output(process: subprocess.Popen[str]) -> Any:
    return process.stdout


def _send(process: subprocess.Popen[str], message: Mapping[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):  # where there is no answer, `_read_reply` says so
        _input(process).write(json.dumps(message) + "\n")
        _input(process).flush()


def _order(process: subprocess.Popen[str], task: Task, task_name: str, run: Run) -> None:
    (cell,) = run.cells
    recipe = to_toml(cell, task=task.name)
    _send(process, {"task": task_name, "recipe": recipe, "settings": run.settings, "path": str(run.path), "resume": run.old})


def _read_reply(process: subprocess.Popen[str], run: Run) -> None:
    """Return if the run is finished, raise if it is not."""
    line = _output(process).readline()
    reply = json.loads(line) if line else {"failed": f"its process ended with {_ending(process.wait())}"}
    if "stopped" in reply:
        raise StoppedError(reply["stopped"])
    if "failed" in reply:
        raise RunError(f"{run.name}: {reply['failed']} (run {run.path}; what else was under way has stopped, --resume goes on with it)")
    for text in reply.get("warnings", ()):
        warnings.warn(f"{run.name}: {text}", ConvergenceWarning, stacklevel=2)


def _ending(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code}"


# --- in the other process -------------------------------------------------------------------------------


def work() -> None:
    """Train what is asked for, run by run, until there is no more input."""
    first = json.loads(sys.stdin.readline())
    torch.set_num_threads(first["threads"])
    sys.argv = first["arguments"]  # which a run writes down
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a task prints is no reply
    orders: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(orders,), daemon=True).start()
    with contextlib.suppress(BrokenPipeError):  # nobody waits for a reply any more
        while line := orders.get():
            replies.write(json.dumps(_carry_out(json.loads(line))) + "\n")
            replies.flush()


def _listen(orders: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        orders.put(line)
    orders.put("")
    # the training loop takes it as a wish to stop; at any other moment it ends the process, and nothing is lost
    os.kill(os.getpid(), signal.SIGTERM)


def _carry_out(order: Mapping[str, Any]) -> dict[str, Any]:
    try:
        module, _, name = order["task"].partition(":")
        task: Task = operator.attrgetter(name)(importlib.import_module(module))()
        recipe, _ = parse_recipe(task, tomllib.loads(order["recipe"]), order["path"])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ConvergenceWarning)
            train_cells(task, [recipe], Path(order["path"]), settings=order["settings"], resume=order["resume"])
    except StoppedError as stop:
        return {"stopped": str(stop)}
    except SoftqError as error:
        return {"failed": str(error)}
    except Exception as error:  # a fault of the task: its place is worth more than one line
        traceback.print_exc()
        return {"failed": f"{type(error).__name__}: {error}"}
    told = [str(warning.message) for warning in caught if issubclass(warning.category, ConvergenceWarning)]
    for warning in caught:
        if not issubclass(warning.category, ConvergenceWarning):
            warnings.showwarning(warning.message, warning.category, warning.filename, warning.lineno)
    return {"finished": order["path"]} | ({"warnings": told} if told else {})  # the sweep's own process says it, in its own way
