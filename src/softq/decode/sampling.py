"""One token after the other: greedy search and ancestral sampling."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

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
from softq.spaces import Candidates

# From log-probabilities [A, S, V], the sources [A] and the length so far: tokens [A, S] and the
# log-probabilities of choosing them.
_Choice = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]


@torch.no_grad()
def greedy(
    model: AutoregressiveModel, memory: tuple[Tensor, ...], *, max_length: int | Tensor
) -> Candidates:
    """Take the most probable token at each step: one sentence per source, tokens ``[B, 1, L]``.

    ``log_model`` is log P(y|x), with the end token, in float64. After ``max_length`` tokens, a
    number or ``[B]``, the sentence ends.
    """

    def most_probable(log_probs: Tensor, _sources: Tensor, _length: int) -> tuple[Tensor, Tensor]:
        best, tokens = log_probs.max(2)
        return tokens, best

    limits, longest = length_limits(max_length, memory)
    tokens, lengths, log_model, _ = _generate(model, memory, 1, limits, longest, most_probable)
    return Candidates(tokens, lengths, log_model=log_model)


@torch.no_grad()
def sample(
    model: AutoregressiveModel,
    memory: tuple[Tensor, ...],
    *,
    size: int,
    max_length: int | Tensor,
    temperature: float = 1.0,
    top_p: float | None = None,
    generator: torch.Generator | Sequence[torch.Generator] | None = None,
) -> Candidates:
    """Independent samples from the model, ``size`` per source: tokens ``[B, size, L]``.

    Args:
        model: gives the log-probabilities of the next token.
        memory: what the model keeps of B sources.
        size: samples per source.
        max_length: after so many tokens a sentence ends; one number, or ``[B]``.
        temperature: log-probabilities are divided by it, and normalised again.
        top_p: sample from the smallest set of tokens whose probability (at this temperature) is at
            least p, normalised again.
        generator: on any device; its numbers are drawn in advance, ``[max_length + 1, B, size]``.
            Or B generators on the CPU, one for each source, whose samples then do not depend on the
            other sources: that of b gives ``[max_length[b] + 1, size]`` numbers.

    Returns:
        Candidates whose ``log_model`` is log P(y|x), with the end token, and whose ``log_proposal``
        is the log-probability of having been sampled, to which the end after ``max_length`` tokens
        adds nothing. Both in float64.

    """
    check_count("size", size, ModelError)
    if not 0.0 < temperature < math.inf:
        raise ModelError(f"temperature must be positive and finite, got {temperature}")
    if top_p is not None and not 0.0 < top_p <= 1.0:
        raise ModelError(f"top_p must lie in (0, 1], got {top_p}")
    limits, longest = length_limits(max_length, memory)
    numbers = _uniform(limits, longest, size, generator)

    def sampled(log_probs: Tensor, sources: Tensor, length: int) -> tuple[Tensor, Tensor]:
        if temperature != 1.0:
            log_probs = (log_probs / temperature).log_softmax(2)
        return _sample_tokens(log_probs, numbers[length, sources], top_p)

    tokens, lengths, log_model, log_proposal = _generate(
        model, memory, size, limits, longest, sampled
    )
    return Candidates(tokens, lengths, log_proposal, log_model=log_model)


def _uniform(
    limits: Tensor,
    longest: int,
    size: int,
    generator: torch.Generator | Sequence[torch.Generator] | None,
) -> Tensor:
    """Numbers in [0, 1), float64 ``[longest + 1, B, size]``; those beyond a limit are not used."""
    shape = (longest + 1, len(limits), size)
    if generator is None or isinstance(generator, torch.Generator):
        device = generator.device if generator else limits.device
        numbers = torch.rand(shape, dtype=torch.float64, generator=generator, device=device)
        return numbers.to(limits.device)
    if len(generator) != len(limits):
        raise ModelError(
            f"expected one generator, or one for each of {len(limits)} sources, "
            f"got {len(generator)}"
        )
    numbers = torch.zeros(shape, dtype=torch.float64)
    for source, (limit, own) in enumerate(zip(limits.tolist(), generator, strict=True)):
        numbers[: limit + 1, source] = torch.rand(
            (limit + 1, size), dtype=torch.float64, generator=own
        )
    return numbers.to(limits.device)


def _sample_tokens(
    log_probs: Tensor, numbers: Tensor, top_p: float | None
) -> tuple[Tensor, Tensor]:
    """Tokens ``[A, S]`` and their log-probabilities by uniform numbers ``[A, S]`` in [0, 1)."""
    if top_p is not None:
        log_probs, order = log_probs.sort(dim=2, descending=True)
    # In float64, so that a rare token among many is not lost.
    sums = log_probs.double().exp().cumsum(2)
    if top_p is None:
        total = sums[..., -1:]
    else:
        # The token with which the sum reaches top_p is the last one of the set; where rounding
        # keeps the sum below top_p, the very last.
        last = (sums < top_p).sum(2, keepdim=True).clamp_(max=sums.shape[2] - 1)
        total = sums.gather(2, last)
    # The first token whose sum exceeds the number: never one of probability 0. Numbers stay below 1
    # and so these below the total.
    place = torch.searchsorted(sums, numbers.unsqueeze(2) * total, right=True)
    place = place.clamp_(max=sums.shape[2] - 1)  # where all is NaN
    log_chosen = log_probs.gather(2, place).double() - total.log()
    token = place if top_p is None else order.gather(2, place)
    return token.squeeze(2), log_chosen.squeeze(2)


def _generate(
    model: AutoregressiveModel,
    memory: tuple[Tensor, ...],
    copies: int,
    limits: Tensor,
    longest: int,
    choose: _Choice,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sentences made token by token: ``[B, S, L]``, their lengths and log-probabilities ``[B, S]``.

    The log-probabilities are those under the model and those of the choice.
    """
    shape, device, end = (len(limits), copies), limits.device, model.end_token
    sources = torch.arange(len(limits), device=device)
    tokens = torch.full((*shape, longest), model.pad_token, device=device)
    lengths = torch.zeros(shape, dtype=torch.int64, device=device)
    log_model = torch.zeros(shape, dtype=torch.float64, device=device)
    log_choice = torch.zeros_like(log_model)
    unfinished = torch.ones(shape, dtype=torch.bool, device=device)
    token = torch.full(shape, model.start_token, device=device)
    state, finished = model.start(memory, copies), Finished()
    for length in range(longest + 1 if len(limits) else 0):
        log_probs, state = model.next_log_probs(memory, state, token.flatten())
        log_probs = log_probs.reshape(*token.shape, -1)
        token, log_chosen = choose(log_probs, sources, length)
        must_end = (limits <= length).unsqueeze(1)
        token = token.masked_fill(must_end, end)
        log_next = log_probs.gather(2, token.unsqueeze(2)).squeeze(2)
        log_model += log_next.masked_fill(~unfinished, 0.0)
        log_choice += log_chosen.masked_fill(must_end | ~unfinished, 0.0)
        unfinished = unfinished & (token != end)
        if length == longest:
            break
        lengths += unfinished
        tokens[..., length] = token.masked_fill(~unfinished, model.pad_token)
        running = unfinished.any(1)
        kept = rows_to_keep(running, length)
        if kept is not None:
            if not len(kept):
                break
            results = sources, tokens, lengths, log_model, log_choice
            finished.add(*(part[~running] for part in results))
            sources, tokens, lengths, log_model, log_choice = select_rows(results, kept)
            rows = kept.unsqueeze(1) * copies + torch.arange(copies, device=device)
            memory, state = select_rows(memory, kept), select_rows(state, rows.flatten())
            limits, unfinished, token = select_rows((limits, unfinished, token), kept)
    finished.add(sources, tokens, lengths, log_model, log_choice)
    tokens, lengths, log_model, log_choice = finished.in_order()
    check_log_probs(log_model)
    width = int(lengths.max()) if lengths.numel() else 0
    return tokens[..., :width].contiguous(), lengths, log_model, log_choice
