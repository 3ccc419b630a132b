"""Training: the loop, what it trains, the processes it runs in."""

from softq.lab.training.interrupts import StoppedError
from softq.lab.training.loop import (
    Judgement,
    Learner,
    NonFiniteLossError,
    Outcome,
    Silence,
    Watcher,
    train,
)
from softq.lab.training.torch_learner import TorchLearner, generator_for
from softq.lab.training.workers import OneProcess, Workers, find_device, find_workers

__all__ = [
    "Judgement",
    "Learner",
    "NonFiniteLossError",
    "OneProcess",
    "Outcome",
    "Silence",
    "StoppedError",
    "TorchLearner",
    "Watcher",
    "Workers",
    "find_device",
    "find_workers",
    "generator_for",
    "train",
]
