"""Beam search over a batch of sources at once."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from softq.data.vocabulary import END, PAD, START
from softq.decode.sources import Done, NextWords, check_log_probs, check_size, go_on_with, length_limits, select_rows
from softq.distributions import Candidates
from softq.errors import ModelError
from softq.sentences import MISSING


@torch.no_grad()
def beam_search(
    model: NextWords, memory: tuple[Tensor, ...], *, size: int = 5, max_length: int | Tensor, length_penalty: float = 1.0
) -> Candidates:
    """The best sentences that a beam finds, best first.

    The beam holds the ``size`` most probable unfinished sentences of each length. Every one of them may end, and of all that ended the
    ``size`` of the highest log P(y|x) / (|y| + 1)^length_penalty come out, END counted. A sentence of ``max_length`` words can only end.
    A source is done when nothing unfinished could still come among its best: log P only falls, so that log P so far over
    (max_length + 1)^length_penalty is a bound, and stopping early never changes what is found.

    Args:
        model: says the next word.
        memory: what the model keeps of B sources.
        size: K, of the beam and of what comes out.
        max_length: most words of a sentence, END not counted; one number, or ``[B]``.
        length_penalty: from 0 on; 0 ranks by probability, 1 by log-probability per word.

    Returns:
        Tokens ``[B, K, L]`` and lengths without END; ``log_model`` is log P(y|x), END included. Where fewer sentences exist than were asked
        for, the rest is missing, with -inf.

    """
    check_size(size)
    if not 0.0 <= length_penalty < math.inf:
        raise ModelError(f"length_penalty must be a number from 0, got {length_penalty}")
    limits, longest = length_limits(max_length, memory)
    batch, device = len(limits), limits.device
    reach = (limits + 1).double() ** length_penalty  # what the log-probability of the longest sentence is divided by
    sources = torch.arange(batch, device=device)
    tokens = torch.full((batch, 1, longest), PAD, device=device)
    log_probs = torch.zeros((batch, 1), device=device)  # of the unfinished, best first
    words = torch.full((batch,), START, device=device)
    state = model.start(memory, 1)
    ended, done = _Ended.nothing(tokens), Done()
    for length in range(longest + 1 if batch else 0):
        following, state = model.next_log_probs(memory, state, words)
        following = following.reshape(*log_probs.shape, -1)  # [A, K, V]
        ended = ended.with_new(log_probs + following[..., END], tokens, length, length_penalty, size)
        if length == longest:
            break
        # END may be among the best words and is not one to go on with, hence one word more.
        best, word = following.topk(min(size + 1, following.shape[2]))  # [A, K, W]
        closed = (word == END) | (limits <= length).view(-1, 1, 1)
        options = (log_probs.unsqueeze(2) + best).masked_fill_(closed, -math.inf).flatten(1)
        rows = torch.arange(len(sources), device=device).unsqueeze(1) * log_probs.shape[1]
        log_probs, chosen = options.topk(min(size, options.shape[1]))
        parents, word = chosen // best.shape[2], word.flatten(1).gather(1, chosen)
        rows = rows + parents  # [A, K]
        tokens = tokens.gather(1, parents.unsqueeze(2).expand(-1, -1, longest))
        tokens[..., length] = word
        running = log_probs[:, 0] / reach > ended.worst(size)
        kept = go_on_with(running, length)
        if kept is not None:
            if not len(kept):
                break
            done.add(sources[~running], *ended.select(~running).filled(size))
            ended, memory = ended.select(kept), select_rows(memory, kept)
            sources, limits, reach = select_rows((sources, limits, reach), kept)
            tokens, log_probs, word, rows = select_rows((tokens, log_probs, word, rows), kept)
        words, state = word.flatten(), select_rows(state, rows.flatten())
    done.add(sources, *ended.filled(size))
    _, log_model, lengths, tokens = done.in_order()
    check_log_probs(log_model)
    width = max(int(lengths.max()), 0) if lengths.numel() else 0
    tokens = tokens[..., :width].masked_fill(lengths.unsqueeze(2) < 0, PAD)
    return Candidates(tokens, lengths, log_model=log_model)


class _Ended(NamedTuple):
    """The best finished sentences of each source so far, best first."""

    scores: Tensor  # [A, P]
    log_probs: Tensor  # [A, P]
    lengths: Tensor  # [A, P]; -1: nothing
    tokens: Tensor  # [A, P, L]

    @classmethod
    def nothing(cls, tokens: Tensor) -> _Ended:
        """None yet."""
        empty = torch.empty((len(tokens), 0), device=tokens.device)
        return cls(empty, empty, empty.long(), tokens[:, :0])

    def with_new(self, log_probs: Tensor, tokens: Tensor, length: int, penalty: float, size: int) -> _Ended:
        """The best ``size`` of these and of sentences of one length that end now; a probability of 0 ends none."""
        lengths = torch.full_like(log_probs, length, dtype=torch.int64).masked_fill_(log_probs == -math.inf, MISSING)
        scores = torch.cat([self.scores, log_probs / (length + 1) ** penalty], 1)
        scores, best = scores.topk(min(size, scores.shape[1]))
        log_probs = torch.cat([self.log_probs, log_probs], 1).gather(1, best)
        lengths = torch.cat([self.lengths, lengths], 1).gather(1, best)
        tokens = torch.cat([self.tokens, tokens], 1).gather(1, best.unsqueeze(2).expand(-1, -1, tokens.shape[2]))
        return _Ended(scores, log_probs, lengths, tokens)

    def worst(self, size: int) -> Tensor | float:
        """Score that a sentence must exceed to come in, ``[A]``."""
        return self.scores[:, -1] if self.scores.shape[1] == size else -math.inf

    def select(self, rows: Tensor) -> _Ended:
        """Those of some sources, by numbers or by a mask."""
        return _Ended(*(part[rows] for part in self))

    def filled(self, size: int) -> _Ended:
        """The same with missing sentences behind them, ``size`` in all."""
        more = size - self.scores.shape[1]
        scores, log_probs = (pad(part, (0, more), value=-math.inf) for part in self[:2])
        # `pad` of torch 2.6 refuses sentences of no words
        none = self.tokens.new_full((len(self.tokens), more, self.tokens.shape[2]), PAD)
        return _Ended(scores, log_probs, pad(self.lengths, (0, more), value=MISSING), torch.cat([self.tokens, none], 1))
