"""How `DependencyParser` trains: trees by AdaGrad over batches of sentences or by L-BFGS over all of them, relations by AdaGrad."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from softq.errors import ScoreError
from softq.linear.lbfgs import LBFGS, shortfall
from softq.linear.options import Random
from softq.linear.parsing import Descent, Parser, ParserObjective, ParserSettings, Treebank

Array = np.ndarray[Any, Any]
Judge = Callable[[Parser], float]
"""The score of a parser on held-out sentences."""


class Schedule(NamedTuple):
    """Options of AdaGrad."""

    learning_rate: float
    relation_learning_rate: float
    batch_size: int
    epochs: int
    patience: int  # epochs without a better score on held-out sentences, 0: all epochs

    def batches(self, sentences: int, random: Random) -> Iterator[Array]:
        """One epoch: every sentence once, in random batches."""
        order = random.permutation(sentences)
        for first in range(0, sentences, self.batch_size):
            yield order[first : first + self.batch_size]


class Stopping(NamedTuple):
    """Options of L-BFGS."""

    c2: float
    max_iterations: int
    tolerance: float


class Trained(NamedTuple):
    """A parser, and how it was found.

    Attributes:
        parser: the best one on held-out sentences, or the last.
        losses: of trees, at the start and after each iteration, or of each epoch.
        relation_losses: of relations, of each epoch.
        scores: on held-out sentences, of each epoch; of a search, of its result.
        kept: the epoch, or the iteration, of the parser.
        kl: KL(target ‖ model) of trees, summed over sentences.
        converged: None where nothing is tested.
        problem: what to warn of.

    """

    parser: Parser
    losses: list[float]
    relation_losses: list[float]
    scores: list[float]
    kept: int
    kl: float
    converged: bool | None
    problem: str | None


def by_batches(
    bank: Treebank,
    settings: ParserSettings,
    schedule: Schedule,
    *,
    random: Random,
    judge: Judge | None,
    verbose: bool,
) -> Trained:
    """AdaGrad from weights of 0; the parser has the mean of the weights of all steps."""
    descent = Descent(bank, settings, schedule.learning_rate, schedule.relation_learning_rate)
    entropy = descent.entropy(np.arange(len(bank)))
    losses: list[float] = []
    relation_losses: list[float] = []
    scores: list[float] = []
    best, kept = None, 0
    for epoch in range(1, schedule.epochs + 1):
        loss, relation_loss = _pass(descent, schedule.batches(len(bank), random), epoch, schedule)
        losses.append(loss)
        relation_losses.append(relation_loss)
        told = f"epoch {epoch}: cross-entropy of trees {loss:.6g}, of relations {relation_loss:.6g}"
        if judge is None:
            _tell(verbose, told)
            continue
        parser = descent.parser()
        scores.append(judge(parser))
        _tell(verbose, f"{told}, UAS on X_dev {scores[-1]:.4f}")
        if best is None or scores[-1] > scores[kept - 1]:
            best, kept = parser, epoch
        elif schedule.patience and epoch - kept >= schedule.patience:
            break
    if best is None:
        best, kept = descent.parser(), len(losses)
    return Trained(
        best, losses, relation_losses, scores, kept, losses[kept - 1] - entropy, None, None
    )


def by_search(
    bank: Treebank,
    settings: ParserSettings,
    schedule: Schedule,
    stopping: Stopping,
    *,
    random: Random,
    judge: Judge | None,
    verbose: bool,
) -> Trained:
    """L-BFGS from weights of 0 for trees; relations, which have far more weights, by AdaGrad."""
    descent = Descent(
        bank, settings, schedule.learning_rate, schedule.relation_learning_rate, trees=False
    )
    relation_losses = []
    for epoch in range(1, schedule.epochs + 1) if bank.relations else ():
        relation_losses.append(
            _pass(descent, schedule.batches(len(bank), random), epoch, schedule)[1]
        )
        _tell(verbose, f"epoch {epoch}: cross-entropy of relations {relation_losses[-1]:.6g}")
    objective = ParserObjective(bank, settings, stopping.c2)
    try:
        search = LBFGS(torch.zeros(objective.size), objective, tolerance=stopping.tolerance)
        losses = [search.value]
        while search.status == "going" and search.iterations < stopping.max_iterations:
            search.iterate()
            if search.iterations == len(losses):  # else it begins again without memory
                losses.append(search.value)
                _tell(
                    verbose,
                    f"iteration {search.iterations}: loss {search.value:.6g}, norm of the gradient {search.norm:.2g}",
                )
        objective(search.point, torch.empty_like(search.point))
    except FloatingPointError as error:
        raise ScoreError(f"training diverged: {error}; raise c2 ({stopping.c2:g})") from None
    parser = descent.parser(search.point.numpy())
    scores = [] if judge is None else [judge(parser)]
    if scores:
        _tell(verbose, f"UAS on X_dev {scores[0]:.4f}")
    problem = shortfall(search, stopping.tolerance, stopping.max_iterations)
    return Trained(
        parser,
        losses,
        relation_losses,
        scores,
        search.iterations,
        objective.kl,
        problem is None,
        problem,
    )


def _pass(
    descent: Descent, batches: Iterator[Array], epoch: int, schedule: Schedule
) -> tuple[float, float]:
    """One epoch; cross-entropies of trees and of relations, each batch's before its step, summed."""
    trees, relations = map(sum, zip(*(descent.step(batch) for batch in batches), strict=True))
    if not math.isfinite(trees + relations):
        raise ScoreError(
            f"training diverged in epoch {epoch}: the cross-entropy of trees is {trees}, of relations {relations}; lower learning_rate "
            f"({schedule.learning_rate:g}) or relation_learning_rate ({schedule.relation_learning_rate:g})"
        )
    return trees, relations


def _tell(verbose: bool, text: str) -> None:
    if verbose:
        print(text, flush=True)  # noqa: T201 -- what verbose asks for
