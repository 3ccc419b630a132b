"""One word after the other: the most probable ones, or draws."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from softq.data.vocabulary import END, PAD, START
from softq.decode.sources import Done, NextWords, check_log_probs, check_size, go_on_with, length_limits, select_rows
from softq.distributions import Candidates
from softq.errors import ModelError

# From log-probabilities [A, S, V], the sources [A] and the length so far: words [A, S] and the log-probabilities of choosing them
_Choice = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]


@torch.no_grad()
def greedy(model: NextWords, memory: tuple[Tensor, ...], *, max_length: int | Tensor) -> Candidates:
    """The most probable word after every word, until it is END: one sentence per source, tokens ``[B, 1, L]``.

    ``log_model`` is log P(y|x), END included, in float64. After ``max_length`` words, a number or ``[B]``, END follows.
    """

    def most_probable(log_probs: Tensor, sources: Tensor, length: int) -> tuple[Tensor, Tensor]:
        del sources, length
        best, words = log_probs.max(2)
        return words, best

    limits, longest = length_limits(max_length, memory)
    tokens, lengths, log_model, _ = _say(model, memory, 1, limits, longest, most_probable)
    return Candidates(tokens, lengths, log_model=log_model)


@torch.no_grad()
def sample(
    model: NextWords,
    memory: tuple[Tensor, ...],
    *,
    size: int,
    max_length: int | Tensor,
    temperature: float = 1.0,
    top_p: float | None = None,
    generator: torch.Generator | Sequence[torch.Generator] | None = None,
) -> Candidates:
    """Independent draws, ``size`` per source: tokens ``[B, size, L]``.

    Args:
        model: says the next word.
        memory: what the model keeps of B sources.
        size: draws per source.
        max_length: after so many words END follows for certain; one number, or ``[B]``.
        temperature: log-probabilities are divided by it, and normalised again, before a word is drawn.
        top_p: words are drawn from the smallest set that holds this much of the (tempered) probability, normalised again.
        generator: on any device; the numbers from it are drawn in advance, ``[max_length + 1, B, size]``. Or B generators on the CPU, one
            for each source, whose draws then do not depend on the other sources: b gives ``[max_length[b] + 1, size]``.

    Returns:
        Candidates whose ``log_model`` is log P(y|x), END included, and whose ``log_proposal`` is the log-probability of what was drawn,
        in which the END after ``max_length`` words counts nothing. Both in float64.

    """
    check_size(size)
    if not 0.0 < temperature < math.inf:
        raise ModelError(f"temperature must be positive and finite, got {temperature}")
    if top_p is not None and not 0.0 < top_p <= 1.0:
        raise ModelError(f"top_p must lie in (0, 1], got {top_p}")
    limits, longest = length_limits(max_length, memory)
    numbers = _uniform(limits, longest, size, generator)

    def drawn(log_probs: Tensor, sources: Tensor, length: int) -> tuple[Tensor, Tensor]:
        tempered = log_probs if temperature == 1.0 else (log_probs / temperature).log_softmax(2)
        return _draw(tempered, numbers[length, sources], top_p)

    tokens, lengths, log_model, log_proposal = _say(model, memory, size, limits, longest, drawn)
    return Candidates(tokens, lengths, log_proposal, log_model=log_model)


def _uniform(limits: Tensor, longest: int, size: int, generator: torch.Generator | Sequence[torch.Generator] | None) -> Tensor:
    """Numbers in [0, 1), float64 ``[longest + 1, B, size]`` on the device of ``limits``; of those behind a source's limit none counts."""
    shape = (longest + 1, len(limits), size)
    if generator is None or isinstance(generator, torch.Generator):
        device = generator.device if generator else limits.device
        return torch.rand(shape, dtype=torch.float64, generator=generator, device=device).to(limits.device)
    if len(generator) != len(limits):
        raise ModelError(f"expected one generator, or one for each of {len(limits)} sources, got {len(generator)}")
    numbers = torch.zeros(shape, dtype=torch.float64)
    for source, (limit, own) in enumerate(zip(limits.tolist(), generator, strict=True)):
        numbers[: limit + 1, source] = torch.rand((limit + 1, size), dtype=torch.float64, generator=own)
    return numbers.to(limits.device)


def _draw(log_probs: Tensor, numbers: Tensor, top_p: float | None) -> tuple[Tensor, Tensor]:
    """Words ``[A, S]`` from log-probabilities ``[A, S, V]`` by uniform numbers ``[A, S]`` in [0, 1), and how probable they were."""
    if top_p is not None:
        log_probs, order = log_probs.sort(dim=2, descending=True)
    sums = log_probs.double().exp().cumsum(2)  # in float64, so that a rare word among many is not lost
    if top_p is None:
        total = sums[..., -1:]
    else:
        # The word with which the sum reaches top_p is the last that may be drawn; where rounding keeps the sum from that, the very last.
        last = (sums < top_p).sum(2, keepdim=True).clamp_(max=sums.shape[2] - 1)
        total = sums.gather(2, last)
    # The first word whose sum exceeds the number: never one of probability 0. Numbers stay below 1 and so these below the total.
    place = torch.searchsorted(sums, numbers.unsqueeze(2) * total, right=True)
    place = place.clamp_(max=sums.shape[2] - 1)  # where all is NaN
    log_chosen = log_probs.gather(2, place).double() - total.log()
    word = place if top_p is None else order.gather(2, place)
    return word.squeeze(2), log_chosen.squeeze(2)


def _say(
    model: NextWords, memory: tuple[Tensor, ...], copies: int, limits: Tensor, longest: int, choose: _Choice
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Tokens ``[B, S, L]``, lengths, log-probabilities under the model and under the choice, ``[B, S]``, of sentences made word by word."""
    shape, device = (len(limits), copies), limits.device
    sources = torch.arange(len(limits), device=device)
    tokens = torch.full((*shape, longest), PAD, device=device)
    lengths = torch.zeros(shape, dtype=torch.int64, device=device)
    log_model = torch.zeros(shape, dtype=torch.float64, device=device)
    log_choice = torch.zeros_like(log_model)
    goes_on = torch.ones(shape, dtype=torch.bool, device=device)
    words = torch.full(shape, START, device=device)
    state, done = model.start(memory, copies), Done()
    for length in range(longest + 1 if len(limits) else 0):
        log_probs, state = model.next_log_probs(memory, state, words.flatten())
        log_probs = log_probs.reshape(*words.shape, -1)
        words, log_chosen = choose(log_probs, sources, length)
        must_end = (limits <= length).unsqueeze(1)
        words = words.masked_fill(must_end, END)
        log_model += log_probs.gather(2, words.unsqueeze(2)).squeeze(2).masked_fill(~goes_on, 0.0)
        log_choice += log_chosen.masked_fill(must_end | ~goes_on, 0.0)
        goes_on = goes_on & (words != END)
        if length == longest:
            break
        lengths += goes_on
        tokens[..., length] = words.masked_fill(~goes_on, PAD)
        running = goes_on.any(1)
        kept = go_on_with(running, length)
        if kept is not None:
            if not len(kept):
                break
            done.add(*(part[~running] for part in (sources, tokens, lengths, log_model, log_choice)))
            rows = kept.unsqueeze(1) * copies + torch.arange(copies, device=device)
            memory, state = select_rows(memory, kept), select_rows(state, rows.flatten())
            sources, tokens, lengths, log_model, log_choice = select_rows((sources, tokens, lengths, log_model, log_choice), kept)
            limits, goes_on, words = select_rows((limits, goes_on, words), kept)
    done.add(sources, tokens, lengths, log_model, log_choice)
    tokens, lengths, log_model, log_choice = done.in_order()
    check_log_probs(log_model)
    width = int(lengths.max()) if lengths.numel() else 0
    return tokens[..., :width].contiguous(), lengths, log_model, log_choice
