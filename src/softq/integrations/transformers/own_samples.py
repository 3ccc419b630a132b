"""The model's own samples as candidates, for one step or for several in succession."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Sampler

from softq.integrations.transformers.arguments import RewardAugmentedArguments
from softq.integrations.transformers.candidates import Row
from softq.integrations.transformers.generation import Writer
from softq.integrations.transformers.rows import RewardAugmentedCollator
from softq.integrations.transformers.step_statistics import effective_share
from softq.integrations.transformers.step_target import PreparedStep, StepTarget, add_ends
from softq.sentences import MISSING
from softq.spaces import Candidates

LogProbs = Callable[..., Tensor]


class Drawn(NamedTuple):
    """Samples of the model for the rows of a batch."""

    texts: Candidates
    """``[B, S]``; ``log_proposal`` are log-probabilities at sampling time, where they are needed."""
    exact: Tensor
    """Bool ``[B, S]``: ended by the model itself."""
    fresh: bool
    """Whether they are the samples of this step's model."""


class OwnSamples:
    """Makes the targets of batches with samples of the model.

    Args:
        args: how many, how they are weighed, for how many steps they are used.
        writer: generates them.
        collator: makes targets of them.
        own_log_probs: called with a model, what it reads and candidates; log-probabilities under
            the model as it is ``[B, K]``, on the CPU.
        base_log_probs: likewise under the model that training started from; None: not known.

    """

    def __init__(
        self,
        args: RewardAugmentedArguments,
        writer: Writer,
        collator: RewardAugmentedCollator,
        *,
        own_log_probs: LogProbs,
        base_log_probs: LogProbs | None,
    ) -> None:
        self.args, self.writer, self.collator = args, writer, collator
        self._own, self._base = own_log_probs, base_log_probs
        self._kept = KeptSteps(args.reuse_samples, args.gradient_accumulation_steps)

    def __call__(
        self, model: Any, core: Any, rows: Sequence[Row], given: Mapping[str, Any]
    ) -> tuple[StepTarget | PreparedStep, Drawn]:
        """What a step is trained toward with new samples, or with those of a step before."""
        found = self._kept.find(rows)
        if found is not None:
            return found[0], found[1]._replace(fresh=False)
        drawn = self.draw(model, core, rows, given)
        step = self.collator.make(rows, drawn.texts)
        self._kept.keep(rows, (step, drawn))
        return step, drawn

    def draw(self, model: Any, core: Any, rows: Sequence[Row], given: Mapping[str, Any]) -> Drawn:
        """New samples, with their probabilities where these are needed."""
        found = self.writer.samples(core, given, self.args.candidate_size)
        weighed = self.args.estimator == "importance"
        texts = found.finished() if weighed else found.texts
        # those of a server are the ones it sampled by, but not the model's own
        proposal, own = texts.log_model, None
        if proposal is None and (weighed or self.args.reuse_samples > 1):
            scored = add_ends(texts.sentences, self.collator.targets.ends(rows))
            own = proposal = self._own(model, given, scored).double()
        if proposal is not None:
            draws = torch.full((len(proposal),), self.args.candidate_size)
            texts = replace(texts, log_proposal=proposal, log_model=own, draws=draws)
        return Drawn(texts, found.exact, True)

    def look_at(
        self, model: Any, rows: Sequence[Row], given: Mapping[str, Any], drawn: Drawn
    ) -> dict[str, Tensor]:
        """Entropy of the model and KL to its base, estimated by its finished samples, in nats ``[B]``.

        And of samples that are used again their effective share.
        """
        texts, there = drawn.texts, drawn.texts.present & drawn.exact
        if not bool(there.any()):
            return {}
        kept = texts.sentences._replace(lengths=texts.lengths.masked_fill(~there, MISSING))
        scored = add_ends(kept, self.collator.targets.ends(rows))
        known = texts.log_model if drawn.fresh else None
        now = self._own(model, given, scored) if known is None else known
        count = there.sum(1)  # 0 divided by it is NaN
        found = {"entropy": -(now * there).sum(1) / count}
        if self._base is not None:
            ratio = now - self._base(model, given, scored)
            found["kl_base"] = (ratio * there).sum(1) / count
        if not drawn.fresh and texts.log_proposal is not None:
            found["ess_reused"] = effective_share(now - texts.log_proposal, there)
        return found


class KeptSteps:
    """What was made of the samples for the last batches, until it has been used often enough.

    Args:
        times: how often it is used.
        batches: of one optimizer step.

    """

    def __init__(self, times: int, batches: int) -> None:
        self.times, self.batches = times, batches
        self._found: OrderedDict[tuple[Any, ...], tuple[Any, int]] = OrderedDict()

    def find(self, rows: Sequence[Row]) -> Any:
        """What was kept for these rows; None if there is nothing or it is used up."""
        value, left = self._found.pop(_key(rows), (None, 0))
        if left > 1:
            self._found[_key(rows)] = value, left - 1
        return value

    def keep(self, rows: Sequence[Row], value: Any) -> None:
        """For as many uses as are still to come."""
        if self.times == 1:
            return
        self._found[_key(rows)] = value, self.times - 1
        while len(self._found) > self.batches:
            self._found.popitem(last=False)


def _key(rows: Sequence[Row]) -> tuple[Any, ...]:
    return tuple((*row.source, -1, *(tuple(text) for text in row.references)) for row in rows)


class RepeatedBatches(Sampler[int]):
    """The numbers of another sampler, each ``size`` of them ``times`` times in succession.

    Those at the end that are less than ``size`` come once.

    >>> list(RepeatedBatches([5, 6, 7, 8, 9], 2, 2))
    [5, 6, 5, 6, 7, 8, 7, 8, 9]

    """

    def __init__(self, sampler: Any, size: int, times: int) -> None:
        self.sampler, self.size, self.times = sampler, size, times

    def __iter__(self) -> Iterator[int]:
        """The numbers of rows."""
        found: list[int] = []
        for number in self.sampler:
            found.append(number)
            if len(found) == self.size:
                yield from found * self.times
                found = []
        yield from found

    def __len__(self) -> int:
        """How many there are."""
        whole, rest = divmod(len(self.sampler), self.size)
        return whole * self.size * self.times + rest
