"""A learner for any torch module and optimizer, in one process or several."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from softq.formats.file_checks import starting_with
from softq.lab.loop import Evaluation, NonFiniteLossError
from softq.lab.processes import Workers


class TorchLearner:
    """Trains one module on batches of example numbers.

    The order of an epoch and the randomness of a step follow from seeds, the epoch and the step
    alone, so there is nothing of them to save. Each process takes its share of every batch, and the
    loss is a mean over the whole batch: the number of processes changes rounding only.

    Args:
        model: called with a tensor of example numbers, it returns their losses, one each.
        optimizer: over the model's parameters.
        examples: how many there are.
        batch_size: of one step, over all processes.
        order: the numbers 0..examples-1 in the order in which an epoch visits them.
        seed: of dropout and the like.
        average: evaluate and keep the mean of the parameters over the epoch's steps instead of the
            last ones.
        loss_unit: what logged losses are divided by, such as τ² where the loss is
            temperature-scaled.
        evaluate: development score; the module is in evaluation mode and nothing is differentiated.
        evaluate_best: scores of the best model, likewise.
        workers: the processes.

    """

    cells = 1

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        examples: int,
        batch_size: int,
        order: Callable[[int], Tensor],
        seed: int,
        average: bool = False,
        loss_unit: float = 1.0,
        evaluate: Callable[[], float],
        evaluate_best: Callable[[], Evaluation],
        workers: Workers,
    ) -> None:
        self._module = model.to(workers.device)
        self._model, self._optimizer = workers.prepare(self._module, optimizer)
        self._evaluate, self._evaluate_best, self._workers = evaluate, evaluate_best, workers
        self._batch_size, self._order, self._seed = batch_size, order, seed
        self._loss_unit = loss_unit
        self._visited: tuple[int, Tensor] = (-1, torch.empty(0))
        self.examples = examples
        self.steps = math.ceil(examples / batch_size)
        self._loss = torch.zeros(2, dtype=torch.float64)  # sum over the epoch so far, examples
        self._best: dict[str, Tensor] = {}
        averaged = self._module.parameters() if average else ()
        self._sums = [torch.zeros_like(parameter) for parameter in averaged]

    def train(self, epoch: int, first: int, last: int, active: Sequence[bool]) -> None:
        """Take steps first..last-1 of an epoch."""
        if self._visited[0] != epoch:
            self._visited = (epoch, self._order(epoch))
        order = self._visited[1]
        self._model.train()
        if first == 0:
            for so_far in self._sums:
                so_far.zero_()
        cuda = [self._workers.device] if self._workers.device.type == "cuda" else []
        with torch.random.fork_rng(cuda):  # dropout draws from torch's own generators
            for step in range(first, last):
                torch.manual_seed(
                    generator_for(self._seed, epoch, step, self._workers.rank).initial_seed()
                )
                self._step(
                    order[step * self._batch_size : (step + 1) * self._batch_size], epoch, step
                )

    def _step(self, batch: Tensor, epoch: int, step: int) -> None:
        share = batch[self._workers.rank :: self._workers.size]
        self._optimizer.zero_grad()
        losses = self._model(share)
        # gradients are averaged over processes, so that each share is weighed by how many there are
        self._workers.backward(losses.sum() * (self._workers.size / len(batch)))
        total = float(self._workers.total(losses.detach().double().sum()))
        if not math.isfinite(total):
            raise NonFiniteLossError(
                f"the loss of epoch {epoch + 1}, step {step} is {total}", {"examples": batch}
            )
        self._optimizer.step()
        self._loss += torch.tensor([total, len(batch)], dtype=torch.float64)
        with torch.no_grad():
            for so_far, parameter in zip(
                self._sums, self._module.parameters(), strict=bool(self._sums)
            ):
                so_far += parameter

    def end_epoch(self, active: Sequence[bool]) -> dict[str, list[float]]:
        """Mean loss over the epoch's examples."""
        total, count = self._loss.tolist()
        self._loss.zero_()
        return {"loss": [total / count / self._loss_unit]}

    @torch.no_grad()
    def evaluate(self, active: Sequence[bool]) -> list[float]:
        """Development score."""
        self._module.eval()
        with self._averaged():
            return [self._evaluate()]

    def keep_best(self, improved: Sequence[bool]) -> None:
        """Remember the parameters."""
        if improved[0]:
            with self._averaged():
                self._best = {
                    name: value.detach().clone()
                    for name, value in self._module.state_dict().items()
                }

    @contextmanager
    def _averaged(self) -> Iterator[None]:
        """The model with the means of its parameters, where they are wanted, until the block ends."""
        if not self._sums:
            yield
            return
        with torch.no_grad():
            present = [parameter.clone() for parameter in self._module.parameters()]
            for so_far, parameter in zip(self._sums, self._module.parameters(), strict=True):
                parameter.copy_(so_far / self.steps)
            yield
            for before, parameter in zip(present, self._module.parameters(), strict=True):
                parameter.copy_(before)

    @torch.no_grad()
    def evaluate_best(self) -> Evaluation:
        """Scores of the best model, which is the current one from here on."""
        self._module.load_state_dict(self._best)
        self._module.eval()
        return self._evaluate_best()

    def state(self) -> dict[str, Tensor]:
        """Parameters, the optimizer's tensors, and the loss so far."""
        parameters = {f"model.{name}": x for name, x in self._module.state_dict().items()}
        sums = {f"sums.{number}": so_far for number, so_far in enumerate(self._sums)}
        return parameters | {"loss": self._loss} | optimizer_state(self._optimizer) | sums

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Resume from there."""
        self._module.load_state_dict(starting_with("model.", state))
        self._loss = state["loss"].clone()
        for number, so_far in enumerate(self._sums):
            so_far.copy_(state[f"sums.{number}"])
        load_optimizer(self._optimizer, state)

    def best(self) -> dict[str, Tensor]:
        """Parameters of the best model."""
        return self._best

    def load_best(self, best: Mapping[str, Tensor]) -> None:
        """Make these the best ones."""
        self._best = {name: value.to(self._workers.device) for name, value in best.items()}


def generator_for(seed: int, *place: int) -> torch.Generator:
    """A generator of its own for each place of a run, such as an epoch, or a step of one.

    >>> torch.equal(torch.randperm(9, generator=generator_for(0, 1)), torch.randperm(9, generator=generator_for(0, 1)))
    True
    """
    mixed = seed
    for number in place:  # splitmix64's step: neighbouring places have unrelated seeds
        mixed = (mixed + 0x9E3779B97F4A7C15 * (number + 1)) % 2**64
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) % 2**64
        mixed ^= mixed >> 31
    return torch.Generator().manual_seed(mixed % 2**63)


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """An optimizer's tensors, by names of a checkpoint."""
    tensors = {}
    for number, slots in optimizer.state_dict()["state"].items():
        for name, value in slots.items():
            if value is not None:  # SGD notes a momentum it does not have
                tensors[f"optimizer.{number}.{name}"] = torch.as_tensor(value)
    return tensors


def load_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Tensor]) -> None:
    """Resume from the tensors of `optimizer_state`, with the settings that the optimizer has."""
    slots: dict[int, dict[str, Any]] = {}
    for path, value in starting_with("optimizer.", state).items():
        slot, name = path.split(".", 1)
        slots.setdefault(int(slot), {})[name] = value
    optimizer.load_state_dict(optimizer.state_dict() | {"state": slots})
