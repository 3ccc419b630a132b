"""Training: the loop, what it trains, the processes it runs in."""

from softq.train.interrupts import StoppedError
from softq.train.loop import (
    Judgement,
    Learner,
    NonFiniteLossError,
    Outcome,
    Silence,
    Watcher,
    train,
)
from softq.train.torch_learner import TorchLearner, generator_for
from softq.train.workers import OneProcess, Workers, find_device, find_workers

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
