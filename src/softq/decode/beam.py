"""Beam search over a batch of sources at once."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from softq.checks import check_count
from softq.decode.autoregressive import (
    AutoregressiveModel,
    Finished,
    check_log_probs,
    length_limits,
    rows_to_keep,
    select_rows,
)
from softq.errors import ModelError
from softq.sentences import MISSING
from softq.spaces import Candidates


@torch.no_grad()
def beam_search(
    model: AutoregressiveModel,
    memory: tuple[Tensor, ...],
    *,
    size: int = 5,
    max_length: int | Tensor,
    length_penalty: float = 1.0,
) -> Candidates:
    """The best sentences that a beam search finds, best first.

    The beam holds the ``size`` most probable unfinished hypotheses of each length. Every one of
    them may end; finished hypotheses leave the beam, and of all of them the ``size`` of the highest
    log P(y|x) / (|y| + 1)^length_penalty are returned (the end token counts). A hypothesis of
    ``max_length`` tokens can only end. The search of a source stops when no unfinished hypothesis
    could still be among its best: log P only falls, so that log P so far over
    (max_length + 1)^length_penalty is a bound, and stopping early never changes the result.

    Args:
        model: gives the log-probabilities of the next token.
        memory: what the model keeps of B sources.
        size: K, the beam size and the number of sentences returned.
        max_length: most tokens of a sentence, without the end token; one number, or ``[B]``.
        length_penalty: from 0; 0 ranks by probability, 1 by log-probability per token.

    Returns:
        Tokens ``[B, K, L]`` and lengths, without the end token; ``log_model`` is log P(y|x), with
        the end token. Where fewer sentences exist than were asked for, the rest is missing, with
        -inf.

    """
    check_count("size", size, ModelError)
    if not 0.0 <= length_penalty < math.inf:
        raise ModelError(f"length_penalty must be a number from 0, got {length_penalty}")
    limits, longest = length_limits(max_length, memory)
    batch, device, end = len(limits), limits.device, model.end_token
    # What log P of the longest sentence is divided by.
    largest_divisor = (limits + 1).double() ** length_penalty
    sources = torch.arange(batch, device=device)
    prefixes = torch.full((batch, 1, longest), model.pad_token, device=device)
    log_probs = torch.zeros((batch, 1), device=device)  # of unfinished hypotheses, best first
    token = torch.full((batch,), model.start_token, device=device)
    state = model.start(memory, 1)
    ended, finished = _Ended.nothing(prefixes, size), Finished()
    for length in range(longest + 1 if batch else 0):
        following, state = model.next_log_probs(memory, state, token)
        following = following.reshape(*log_probs.shape, -1)  # [A, K, V]
        ended = ended.with_new(log_probs + following[..., end], prefixes, length, length_penalty)
        if length == longest:
            break
        # The end token may be among the best tokens and continues nothing, hence one token more.
        best, token = following.topk(min(size + 1, following.shape[2]))  # [A, K, W]
        closed = (token == end) | (limits <= length).view(-1, 1, 1)
        options = (log_probs.unsqueeze(2) + best).masked_fill_(closed, -math.inf).flatten(1)
        rows = torch.arange(len(sources), device=device).unsqueeze(1) * log_probs.shape[1]
        log_probs, chosen = options.topk(min(size, options.shape[1]))
        parents, token = chosen // best.shape[2], token.flatten(1).gather(1, chosen)
        # A place of the beam that nothing fills is an ended hypothesis to the model.
        token = token.masked_fill(log_probs == -math.inf, end)
        rows = rows + parents  # [A, K]
        prefixes = prefixes.gather(1, parents.unsqueeze(2).expand(-1, -1, longest))
        prefixes[..., length] = token
        unfinished = log_probs[:, 0] / largest_divisor > ended.scores[:, -1]
        kept = rows_to_keep(unfinished, length)
        if kept is not None:
            if not len(kept):
                break
            finished.add(sources[~unfinished], *ended.select(~unfinished))
            ended, memory = ended.select(kept), select_rows(memory, kept)
            sources, limits, largest_divisor, prefixes, log_probs, token, rows = select_rows(
                (sources, limits, largest_divisor, prefixes, log_probs, token, rows), kept
            )
        token, state = token.flatten(), select_rows(state, rows.flatten())
    finished.add(sources, *ended)
    _, log_model, lengths, tokens = finished.in_order()
    check_log_probs(log_model)
    width = max(int(lengths.max()), 0) if lengths.numel() else 0
    tokens = tokens[..., :width].masked_fill(lengths.unsqueeze(2) < 0, model.pad_token)
    return Candidates(tokens, lengths, log_model=log_model)


class _Ended(NamedTuple):
    """The best finished hypotheses of each source so far, best first."""

    scores: Tensor  # [A, P]
    log_probs: Tensor  # [A, P]
    lengths: Tensor  # [A, P]; -1: missing, as far as fewer have ended
    tokens: Tensor  # [A, P, L]

    @classmethod
    def nothing(cls, tokens: Tensor, size: int) -> _Ended:
        """None yet: all ``size`` are missing."""
        scores = torch.full((len(tokens), size), -math.inf, device=tokens.device)
        missing = torch.full_like(scores, MISSING, dtype=torch.int64)
        return cls(scores, scores, missing, tokens[:, :1].expand(-1, size, -1))

    def with_new(self, log_probs: Tensor, tokens: Tensor, length: int, penalty: float) -> _Ended:
        """The best of these and of hypotheses of one length that end now, as many as before.

        One of probability 0 is missing.
        """
        lengths = torch.full_like(log_probs, length, dtype=torch.int64)
        lengths = lengths.masked_fill_(log_probs == -math.inf, MISSING)
        scores = torch.cat([self.scores, log_probs / (length + 1) ** penalty], 1)
        scores, best = scores.topk(self.scores.shape[1])
        log_probs = torch.cat([self.log_probs, log_probs], 1).gather(1, best)
        lengths = torch.cat([self.lengths, lengths], 1).gather(1, best)
        tokens = torch.cat([self.tokens, tokens], 1)
        tokens = tokens.gather(1, best.unsqueeze(2).expand(-1, -1, tokens.shape[2]))
        return _Ended(scores, log_probs, lengths, tokens)

    def select(self, rows: Tensor) -> _Ended:
        """Those of some sources, by rows or by a mask."""
        return _Ended(*(part[rows] for part in self))
