"""What a temperature means.

Expected reward, mass on the references, entropy and edits of a target, as functions of τ.

A temperature says little by itself: at one τ a reward may leave nearly all mass on the reference or
nearly none, by the reward's scale and the number of sentences. Look before you sweep, and choose
the range by the mass you want to leave on the references (`suggest`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from softq.checks import check_count, check_tau
from softq.errors import DtypeError, LengthError, TemperatureError
from softq.kernels.text.pairs import edit_distance
from softq.rewards import Precomputed
from softq.sentences import References, aligned, as_references
from softq.spaces import Candidates
from softq.targets import raml, sqdml

_COLDEST, _HOTTEST = 1e-4, 1e4
_SCAN = 160  # steps between them in search of a mass


class TemperaturePoint(NamedTuple):
    """A target at one temperature, as means over examples."""

    tau: float
    expected_reward: float
    """E[r], r the mean reward over the example's references."""
    reference_mass: float
    """q(references)."""
    entropy: float
    """In nats; for RAML the mean over references of the entropy of q(·|y_i)."""
    expected_edits: float
    """E[edits to the nearest reference].

    Of a `HammingCurve`, E[words that differ from the reference in their place].
    """
    effective_sample_size: float
    """Of the weights; infinite where nothing is sampled."""


class TemperatureCurve(ABC):
    """A target as a function of its temperature."""

    @abstractmethod
    def at(self, tau: float) -> TemperaturePoint:
        """The target at one temperature."""

    def curve(self, taus: Iterable[float]) -> list[TemperaturePoint]:
        """The target at each of several temperatures."""
        return [self.at(tau) for tau in taus]

    def suggest(self, mass: float) -> float:
        """The temperature that leaves this mass on the references, on average over examples.

        The highest, if there are several.

        With several references SQDML need not favour any of them, so that the mass may rise and
        fall again with τ. Raises TemperatureError if no temperature between 1e-4 and 1e4 leaves it.
        """
        if not 0.0 < mass < 1.0:
            raise TemperatureError(f"mass must lie between 0 and 1, got {mass}")
        logs = np.linspace(math.log(_COLDEST), math.log(_HOTTEST), _SCAN + 1)
        beyond = np.array([self.at(math.exp(log)).reference_mass for log in logs]) - mass
        crossings = np.flatnonzero((beyond[:-1] * beyond[1:] <= 0) & (beyond[:-1] != beyond[1:]))
        if not len(crossings):
            low, high = beyond.min() + mass, beyond.max() + mass
            raise TemperatureError(
                f"no temperature leaves a mass of {mass:g} on the references: it lies between "
                f"{low:.4g} and {high:.4g}"
            )
        last = crossings[-1]
        cold, hot = logs[last : last + 2]
        rising = beyond[last + 1] > beyond[last]
        while hot - cold > 1e-12:
            middle = (cold + hot) / 2
            if (self.at(math.exp(middle)).reference_mass > mass) != rising:
                cold = middle
            else:
                hot = middle
        return math.exp((cold + hot) / 2)


class CandidateCurve(TemperatureCurve):
    """RAML or SQDML on candidates, for any reward; rewards are computed once for all temperatures.

    Args:
        cands: candidates, such as `softq.samplers.NgramReplacement` makes.
        refs: references of each example.
        reward: any of `softq.rewards`, or a function of two token lists.
        objective: ``"raml"`` or ``"sqdml"``.
        estimator: ``"set"``: the values of the target on the set; ``"importance"``: estimates for
            all sentences.
        ref_weights: ``[B, R]``; equal if not given.

    >>> import softq
    >>> refs = [[4, 5, 6, 7, 8]]
    >>> sampler = softq.samplers.NgramReplacement(1000, size=100)
    >>> cands = sampler(refs, generator=torch.Generator().manual_seed(0))
    >>> curve = CandidateCurve(cands, refs, softq.rewards.SentenceBLEU())
    >>> tau = curve.suggest(mass=0.5)
    >>> round(curve.at(tau).reference_mass, 6)
    0.5

    """

    def __init__(
        self,
        cands: Candidates,
        refs: References,
        reward: Any,
        *,
        objective: Literal["raml", "sqdml"] = "raml",
        estimator: Literal["set", "importance"] = "set",
        ref_weights: Tensor | None = None,
    ) -> None:
        if estimator not in ("set", "importance"):
            raise TemperatureError(f'estimator must be "set" or "importance", got {estimator!r}')
        if objective not in ("raml", "sqdml"):
            raise TemperatureError(f'objective must be "raml" or "sqdml", got {objective!r}')
        self.objective = objective
        self._cands = cands.measure(estimator)
        self._refs = as_references(refs)
        self._ref_weights = ref_weights
        reward = cands.reward_or_natural(reward)
        references, weights = cands.references(refs, ref_weights)
        mine, other = aligned(cands.sentences, references)
        values = reward.checked_score(mine, other)  # [B, S, R]
        self._reward = Precomputed(reward, values)
        weights = weights if reward.pairwise else torch.ones_like(weights[:, :1])
        self._mean_reward = torch.einsum("br,bsr->bs", weights, values)
        distance = edit_distance(*mine, *other).double()
        self._edits = distance.masked_fill(~references.present.unsqueeze(1), math.inf).amin(2)
        self.at(1.0)  # what does not fit together is said here

    def at(self, tau: float) -> TemperaturePoint:
        """The target at one temperature."""
        make = raml if self.objective == "raml" else sqdml
        target = make(self._cands, self._refs, tau, self._reward, ref_weights=self._ref_weights)
        weights = target.weights
        return TemperaturePoint(
            check_tau(tau),
            float((weights * self._mean_reward).sum(1).mean()),
            float(target.reference_mass().mean()),
            float(target.component_entropy().mean()),
            float((weights * self._edits).sum(1).mean()),
            float(target.effective_sample_size().mean()),
        )


class HammingCurve(TemperatureCurve):
    """RAML with minus the Hamming distance over all V^L sentences of the reference's length.

    In closed form (paper, Appendix D.2.4).

    Each word changes by itself with odds (V-1) e^{-1/τ}. Values are means over references, each
    with its own q(·|y_i).

    Args:
        vocab: number of words V.
        lengths: lengths of the references.
        rescale: use τ / (1 + log(V-1)), the paper's footnote.

    >>> round(HammingCurve(22821, [20]).at(0.85).expected_edits, 3)  # nearly all noise
    19.997
    >>> round(HammingCurve(22821, [20], rescale=True).at(0.85).expected_edits, 3)
    0.997

    """

    def __init__(
        self, vocab: int, lengths: Sequence[int] | Tensor, *, rescale: bool = False
    ) -> None:
        self.vocab = check_count("vocab", vocab, DtypeError, 2)
        self.lengths = torch.as_tensor(lengths, dtype=torch.float64).reshape(-1)
        if not len(self.lengths) or bool(
            (~(self.lengths >= 0) | (self.lengths != self.lengths.round())).any()
        ):
            raise LengthError(
                "lengths must hold at least one length, whole numbers and none of them negative"
            )
        self.rescale = rescale

    def at(self, tau: float) -> TemperaturePoint:
        """The target at one temperature."""
        used = check_tau(tau) / (1.0 + math.log(self.vocab - 1)) if self.rescale else check_tau(tau)
        log_odds = math.log(self.vocab - 1) - 1.0 / used
        log_z = float(np.logaddexp(0.0, log_odds))  # per token
        changed = math.exp(log_odds - log_z)
        edits = float((self.lengths * changed).mean())
        entropy = float(self.lengths.mean()) * log_z + edits / used
        mass = float((-self.lengths * log_z).exp().mean())
        return TemperaturePoint(tau, -edits, mass, entropy, edits, math.inf)
