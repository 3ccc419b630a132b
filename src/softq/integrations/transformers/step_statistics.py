"""What a training step says of the model's samples, summed up until it is logged."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from softq.neural.target_maker import RewardedCandidates
from softq.spaces import Candidates


def statistics_of(rewarded: RewardedCandidates, sampled: Candidates | None) -> dict[str, Tensor]:
    """Mean and standard deviation of rewards, mean length and share of different texts of each row, ``[B]``.

    They are those of the model's samples, or of all candidates where it has none, without special
    tokens; NaN for a row without any.
    """
    if rewarded.rewards is None:
        return {}
    group, rewards = rewarded.candidates, rewarded.mean_rewards()
    if sampled is not None:
        # a sample is among the candidates, perhaps as a reference
        place = group.equals(sampled.sentences).int().argmax(1)  # [B, S]
        group, rewards = sampled, rewards.gather(1, place)
    there = group.present & ~rewarded.idle.unsqueeze(1)
    count = there.sum(1).double()  # 0 divided by it is NaN

    def mean(values: Tensor) -> Tensor:
        return (values.double() * there).sum(1) / count

    average = mean(rewards)
    spread = mean((rewards - average.nan_to_num().unsqueeze(1)).square()).sqrt()
    return {
        "reward": average,
        "reward_std": spread,
        "completion_length": mean(group.lengths),
        "distinct": mean(~group.repeats()),
    }


class Averages:
    """Means over rows since they were last asked for, over all processes."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}

    def add(self, values: Mapping[str, Tensor]) -> None:
        """Values of rows ``[B]``; NaN counts for nothing."""
        for name, rows in values.items():
            rows = rows.detach().double().cpu()
            found = torch.stack([rows.nansum(), (~rows.isnan()).sum().double()])
            self._sums[name] = self._sums.get(name, torch.zeros_like(found)) + found

    def take(self, names: tuple[str, ...], sum_up: Callable[[Tensor], Tensor]) -> dict[str, float]:
        """The means of those that any process knows, and a new start.

        ``sum_up`` adds a tensor up over processes; all of them ask for the same names.
        """
        nothing = torch.zeros(2, dtype=torch.float64)
        table = sum_up(torch.stack([self._sums.get(name, nothing) for name in names]))
        self._sums = {}
        means = (table[:, 0] / table[:, 1]).tolist()
        return {
            name: value for name, value in zip(names, means, strict=True) if not math.isnan(value)
        }


def effective_share(log_ratios: Tensor, there: Tensor) -> Tensor:
    """(Σ v)² / (n Σ v²) of weights v = exp(log_ratios) ``[B, S]`` of each row, ``[B]``; NaN without any.

    >>> log_ratios = torch.tensor([[0.0, 0.0], [0.0, -40.0]])
    >>> effective_share(log_ratios, torch.ones(2, 2, dtype=torch.bool))
    tensor([1.0000, 0.5000])
    """
    logs = log_ratios.masked_fill(~there, -math.inf)
    log_share = 2 * logs.logsumexp(1) - (2 * logs).logsumexp(1) - there.sum(1).log()
    return log_share.exp()
