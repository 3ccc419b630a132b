"""What a run folder needs of a Trainer.

Its scores as lines, a progress bar, a stop that can be resumed.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from softq.errors import RunError, StoppedError
from softq.lab.loop import Watcher
from softq.lab.processes import Interrupts
from softq.lab.run import METRICS, TIMINGS, TRAINING, RunFolder

_STATE, _ARGUMENTS = "trainer_state.json", "training_args.bin"
# of an evaluation; differ between equal runs
_TIMES = (
    "runtime",
    "samples_per_second",
    "steps_per_second",
    "generation_seconds",
)


class RunCallback(TrainerCallback):  # type: ignore[misc]  # of no type that mypy knows
    """Writes ``metrics.jsonl``, ``training.jsonl`` and ``timings.jsonl``, moves a progress bar, stops when asked or when nothing gets better.

    Args:
        run: the folder.
        best_by: the score that counts, such as ``reward``; ``loss`` is better if it is lower.
        patience: evaluations without a better score before training stops; 0: never.
        watcher: of progress.
        interrupts: of Ctrl-C.
        batch: examples of one step.

    """

    def __init__(
        self,
        run: RunFolder,
        *,
        best_by: str,
        patience: int,
        watcher: Watcher,
        interrupts: Interrupts,
        batch: int,
    ) -> None:
        self.run, self.best_by, self.patience, self.watcher, self.interrupts, self.batch = (
            run,
            best_by,
            patience,
            watcher,
            interrupts,
            batch,
        )
        self.stopped: StoppedError | None = None
        """Set if training was asked to stop."""
        self._loss, self._reward = math.nan, math.nan
        self._began = time.perf_counter()

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Show the bar, and drop lines that came after the checkpoint that training resumes from."""
        self.interrupts.at_steps()
        self.watcher.begin(state.max_steps * self.batch, state.global_step * self.batch)
        for name in (METRICS, TRAINING, TIMINGS):
            if (self.run.path / name).is_file():
                self.run.rewrite_lines(
                    name, [row for row in self.run.lines(name) if row["step"] <= state.global_step]
                )
        self._began = time.perf_counter()

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **more: Any
    ) -> None:
        """Keep the loss, and write a line of what training saw since the last one.

        A loss that is no number ends the run, from whose last checkpoint another one may start.
        """
        if "loss" not in (logs := logs or {}):
            return
        self._loss = logs["loss"]
        if not math.isfinite(self._loss):
            raise RunError(
                f"the loss became {self._loss} before step {state.global_step}: try a lower"
                f" learning_rate; {self.run.path} keeps the checkpoints from before"
            )
        seen = {  # the norm of gradients may overflow
            name: value
            for name, value in logs.items()
            if name != "epoch" and isinstance(value, int | float) and math.isfinite(value)
        }
        self.run.append_line(TRAINING, self._place(state) | seen)

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Move the bar; stop with a checkpoint if that was asked for."""
        seen = [f"loss {self._loss:.3f}"] * (not math.isnan(self._loss)) + [
            f"reward {self._reward:.4f}"
        ] * (not math.isnan(self._reward))
        self.watcher.advance(self.batch, ", ".join(seen))
        if self.interrupts.asked():
            self.stopped = StoppedError(
                f"stopped at step {state.global_step} of {state.max_steps}: add --resume to continue"
            )
            control.should_save = control.should_training_stop = True

    def on_evaluate(
        self,
        args: Any,
        state: Any,
        control: Any,
        metrics: dict[str, Any] | None = None,
        **more: Any,
    ) -> None:
        """Write a line of scores, and one of times."""
        scores = {
            name.removeprefix("eval_"): value
            for name, value in (metrics or {}).items()
            if name.startswith("eval_")
        }
        self._reward = scores.get("reward", math.nan)
        place = self._place(state)
        seconds = time.perf_counter() - self._began
        self._began = time.perf_counter()
        self.run.append_line(
            METRICS,
            place | {f"dev_{name}": value for name, value in scores.items() if name not in _TIMES},
        )
        times = {f"dev_{name}": value for name, value in scores.items() if name in _TIMES}
        self.run.append_line(
            TIMINGS,
            place
            | {"seconds": seconds, "loss": None if math.isnan(self._loss) else self._loss}
            | times,
        )
        if self.patience and self._evaluations_since_best() >= self.patience:
            control.should_training_stop = True

    @staticmethod
    def _place(state: Any) -> dict[str, Any]:
        return {"step": state.global_step, "epoch": round(state.epoch or 0.0, 6)}

    def _evaluations_since_best(self) -> int:
        sign = -1 if self.best_by == "loss" else 1
        scores = [sign * row[f"dev_{self.best_by}"] for row in self.run.lines(METRICS)]
        return len(scores) - 1 - scores.index(max(scores))

    def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Remove what Trainer pickles and nobody reads."""
        for leftover in Path(args.output_dir).glob(f"checkpoint-*/{_ARGUMENTS}"):
            leftover.unlink()


def last_checkpoint(folder: Path) -> Path | None:
    """The last whole checkpoint of Trainer in a folder.

    What a kill has left of a later one is removed.
    """
    found = sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    while found:
        try:
            json.loads((found[-1] / _STATE).read_bytes())  # written last
        except (OSError, ValueError):
            shutil.rmtree(found.pop())
        else:
            return found[-1]
    return None
