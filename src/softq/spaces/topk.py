"""The k most probable outputs: what is returned, and how any distribution with a mode has them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from softq.numerics import can_inspect

if TYPE_CHECKING:
    from softq.spaces.distribution import Distribution


class TopK(NamedTuple):
    """The k most probable outputs of each example, best first, no two the same.

    Where an example has fewer, the last ones are missing: of log-probability -inf, and all 0.

    >>> import softq
    >>> best = softq.Categorical(torch.tensor([1.0, 3.0, 0.0]).log()).topk(3)
    >>> best.outputs, best.log_probs.exp(), best.present
    (tensor([1, 0, 0]), tensor([0.7500, 0.2500, 0.0000]), tensor([ True,  True, False]))
    """

    outputs: Tensor
    """``[*B, k, *E]``."""
    log_probs: Tensor
    """``[*B, k]``, detached; `Distribution.log_prob` of the outputs has gradients."""

    @property
    def present(self) -> Tensor:
        """Which of them are there, bool ``[*B, k]``."""
        return self.log_probs > -math.inf


@torch.no_grad()
def by_partition(space: Distribution, k: int) -> tuple[Tensor, Tensor]:
    """See `Distribution._topk`; by the modes of k times n sets of outputs.

    The outputs of a set other than its best one, y, fall into n sets: those that agree with y on
    tokens 1..t-1 and not on token t. The next best output is the best of one of them (Lawler 1972).
    """
    batch, event = len(space.batch_shape), space.event_shape
    tokens = event.numel()  # 1 for a class
    local, *others = space.given()
    choices = torch.arange(space.by_token(local).shape[-1], device=space.device)
    place = torch.arange(tokens, device=space.device)
    earlier = place < place.unsqueeze(-1)  # [t, token]
    here = torch.eye(tokens, dtype=torch.bool, device=space.device)

    mode = space.mode()
    best = mode.reshape(*space.batch_shape, 1, tokens)  # of each set, [*B, sets, token]
    value = space.score(mode).unsqueeze(-1)  # their scores, [*B, sets]; -inf once taken
    free = torch.zeros_like(value, dtype=torch.int64)  # token from which on a set chooses
    barred = torch.zeros(*value.shape, len(choices), dtype=torch.bool, device=space.device)
    found: list[Tensor] = []
    scores: list[Tensor] = []
    while len(found) < k:
        top = value.argmax(-1, keepdim=True)
        scores.append(value.gather(-1, top))
        value = value.scatter(-1, top, -math.inf)
        y, start, left_out = (_row(each, top) for each in (best, free.unsqueeze(-1), barred))
        found.append(y)
        more = scores[-1] > -math.inf
        if len(found) == k or (can_inspect(more) and not bool(more.any())):
            break
        chosen = y.unsqueeze(-1) == choices  # [*B, token, K]
        # Padding chooses nothing, nor do tokens inside of a segment.
        output = y.reshape(space.batch_shape + event)
        chooses = space.by_token(space.indicator(output)).sum(-1).reshape(y.shape) > 0
        # what set t leaves out of tokens before t, and of token t: [*B, t, token, K]
        before = earlier.unsqueeze(-1) & ~chosen.unsqueeze(batch)
        first = (place == start).unsqueeze(-1) & left_out.unsqueeze(-2)  # [*B, t, K]
        out = (chosen | first).unsqueeze(-2)
        wrong = space.by_part(_events(before | (here.unsqueeze(-1) & out), event))
        given = local.unsqueeze(batch)
        sets = space.with_scores(given.masked_fill(wrong, -math.inf), *others)
        new = (
            (scores[-1] > -math.inf) & chooses & (place >= start) & (sets.log_partition > -math.inf)
        )
        # An empty set has no mode; that of all outputs is not looked at.
        used = new.reshape(*new.shape, *[1] * (given.dim() - new.dim()))
        modes = space.with_scores(given.masked_fill(wrong & used, -math.inf), *others).mode()
        score = space.score(modes.movedim(batch, 0)).movedim(0, -1)
        best = torch.cat([best, modes.reshape(*new.shape, tokens)], batch)
        value = torch.cat([value, score.masked_fill(~new, -math.inf)], -1)
        free = torch.cat([free, place.expand(new.shape)], -1)
        barred = torch.cat([barred, chosen | first], batch)
    missing = (0, k - len(found))
    outputs = pad(torch.stack(found, -1), missing).movedim(-1, batch)
    losses = pad(scores[0] - torch.cat(scores, -1), missing, value=math.inf)
    return outputs.reshape(*space.batch_shape, k, *event), losses


def _row(values: Tensor, index: Tensor) -> Tensor:
    """Row ``index [*B, 1]`` of ``values [*B, rows, width]``, as ``[*B, width]``."""
    return values.take_along_dim(index.unsqueeze(-1), -2).squeeze(-2)


def _events(choices: Tensor, event: torch.Size) -> Tensor:
    """``[…, token, K]`` as tables of choices: without the dimension of tokens for a class."""
    return choices if event else choices.squeeze(-2)
