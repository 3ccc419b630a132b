"""What candidates have in common with references, for all pairs of an example at once.

Candidates are ``[B, S, L]``, references ``[B, R, M]``; a length of -1 marks one that is missing,
and its values are 0.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from softq.kernels.jit import as_array, jit, run_batch
from softq.kernels.text.bit_parallel import (
    EDITS,
    LANES,
    NGRAMS,
    SUBSEQUENCE,
    UNION,
    count_parts,
    read_long,
    read_short,
)
from softq.kernels.text.bleu import SMOOTHING, Formula, bleu_of_counts
from softq.kernels.text.sets import as_rows
from softq.kernels.text.words import ONE, ZERO, count_bits, same_positions
from softq.numerics import length_mask

_LARGEST_TABLE = 1 << 21
_PER_SHARE = 256


def edit_distance(
    candidates: Tensor, lengths: Tensor, references: Tensor, ref_lengths: Tensor
) -> Tensor:
    """Levenshtein distance of each candidate to each reference, int32 ``[B, S, R]``."""
    if references.shape[1] > candidates.shape[1] and not bool((candidates < 0).any()):
        # It is symmetric, and a table of one side pays the more often it is used.
        return edit_distance(references, ref_lengths, candidates, lengths).transpose(1, 2)
    return _run(EDITS, candidates, lengths, references, ref_lengths).squeeze(3)


def common_subsequence(
    candidates: Tensor, lengths: Tensor, references: Tensor, ref_lengths: Tensor
) -> Tensor:
    """Length of the longest common subsequence, int32 ``[B, S, R]``."""
    return _run(SUBSEQUENCE, candidates, lengths, references, ref_lengths).squeeze(3)


def equal_positions(
    candidates: Tensor, lengths: Tensor, references: Tensor, ref_lengths: Tensor
) -> Tensor:
    """Number of positions at which both have the same token, int32 ``[B, S, R]``."""
    out = np.zeros((*lengths.shape, references.shape[1]), np.int32)
    pairs = as_rows(candidates, lengths), as_rows(references, ref_lengths)
    run_batch(_equal_kernel, len(out), candidates.numel() * references.shape[1], *pairs, out)
    return torch.from_numpy(out).to(candidates.device)


def equal(candidates: Tensor, lengths: Tensor, references: Tensor, ref_lengths: Tensor) -> Tensor:
    """Whether candidate and reference are the same, bool ``[B, S, R]``."""
    same_length = lengths.unsqueeze(2) == ref_lengths.unsqueeze(1)
    positions = equal_positions(candidates, lengths, references, ref_lengths)
    return same_length & (positions == lengths.unsqueeze(2))


def ngram_matches(
    candidates: Tensor,
    lengths: Tensor,
    references: Tensor,
    ref_lengths: Tensor,
    order: int,
    *,
    union: bool,
) -> Tensor:
    """Clipped matches of orders 1..order, int32 ``[B, S, R, order]``.

    With ``union`` they are clipped over all references together, ``[B, S, 1, order]``.
    """
    measure = UNION if union else NGRAMS
    return _run(measure, candidates, lengths, references, ref_lengths, order)


def sentence_bleu(
    candidates: Tensor,
    lengths: Tensor,
    references: Tensor,
    ref_lengths: Tensor,
    order: int,
    rule: str,
    brevity: bool,
    effective: bool,
) -> Tensor:
    """BLEU of each candidate against each reference, float64 ``[B, S, R]``."""
    formula = _formula(rule, brevity, effective, candidates.shape[2])
    pairs = candidates, lengths, references, ref_lengths
    return _run(NGRAMS, *pairs, order, formula).squeeze(3)


def bleu_from_matches(
    matches: Tensor, lengths: Tensor, ref_lengths: Tensor, rule: str, brevity: bool, effective: bool
) -> Tensor:
    """BLEU from clipped matches ``[B, S, R, order]`` and lengths ``[B, S, R]``."""
    *shape, order = matches.shape
    ours, theirs = as_array(lengths.reshape(-1)), as_array(ref_lengths.reshape(-1))
    formula = _formula(rule, brevity, effective, int(ours.max(initial=0)))
    out = np.empty(len(ours))
    bleu_of_counts(as_array(matches.reshape(-1, order)), ours, theirs, formula, out)
    return torch.from_numpy(out).reshape(shape).to(matches.device)


@lru_cache(maxsize=64)
def _formula(rule: str, brevity: bool, effective: bool, longest: int) -> Formula:
    logs = np.log(np.maximum(np.arange(longest + 1), 1))
    return Formula(SMOOTHING[rule], brevity, effective, logs)


def _run(
    measure: int,
    candidates: Tensor,
    lengths: Tensor,
    references: Tensor,
    ref_lengths: Tensor,
    order: int = 1,
    formula: Formula | None = None,
) -> Tensor:
    """Counts ``[B, S, R, ·]`` as int32, or BLEU by a formula.

    Work is split among threads by examples and, where there are few, by their candidates.
    """
    batch, size, _ = candidates.shape
    words = max(1, (references.shape[2] + 63) // 64)
    largest = max(0, int(references.max())) if references.numel() else 0
    if (largest + 2) * words > _LARGEST_TABLE:
        candidates, references, largest = _renumber(candidates, references, ref_lengths)
    count = 1 if measure == UNION else references.shape[1]
    dtype = np.int32 if formula is None else np.float64
    out = np.zeros((batch, size, count, order if formula is None else 1), dtype)
    # A few shares per thread even where there are few examples, of whole blocks of sixteen.
    wanted = -(-batch * size // (4 * torch.get_num_threads()))
    per_share = 16 * -(-max(1, min(_PER_SHARE, wanted, size)) // 16)
    operations = candidates.numel() * references.shape[1] * words * max(order, 2)
    pairs = as_rows(candidates, lengths), as_rows(references, ref_lengths), per_share
    options = largest + 2, words, measure, order, formula
    run_batch(_pair_kernel, batch * -(-size // per_share), operations, *pairs, *options, out)
    return torch.from_numpy(out).to(candidates.device)


def _renumber(
    candidates: Tensor, references: Tensor, ref_lengths: Tensor
) -> tuple[Tensor, Tensor, int]:
    """The same with small token ids, for a table with an entry for each; also the largest."""
    references = references.masked_fill(~length_mask(ref_lengths, references.shape[2]), 0)
    known: Tensor = references.unique()  # type: ignore[no-untyped-call]
    places = torch.searchsorted(known, candidates).clamp_(max=len(known) - 1)
    candidates = torch.where(known[places] == candidates, places, len(known))
    return candidates, torch.searchsorted(known, references), len(known) - 1


@jit
def _equal_kernel(first: int, stride: int, candidates: Any, references: Any, out: Any) -> None:
    (tokens, lengths), (refs, ref_lengths) = candidates, references
    batch, size, count = out.shape
    for b in range(first, batch, stride):
        for s in range(size):
            for r in range(count):
                length = max(0, min(lengths[b, s], ref_lengths[b, r]))
                out[b, s, r] = same_positions(tokens, b * size + s, refs, b * count + r, length)


@jit
def _pair_kernel(
    first: int,
    stride: int,
    candidates: Any,
    references: Any,
    per_share: int,
    entries: int,
    words: int,
    measure: int,
    order: int,
    formula: Any,
    out: Any,
) -> None:
    """Counts into ``out [B, S, R, ·]``, or BLEU if there is a ``formula``.

    There is no branch on what matches: tokens are looked up in a table of all of them, in which
    most have no position.
    """
    (tokens, lengths), (refs, ref_lengths) = candidates, references
    size, count = lengths.shape[1], ref_lengths.shape[1]
    shares = -(-size // per_share)
    table = np.zeros((entries, words), np.uint64)
    short = words == 1 and (measure == EDITS or (measure == NGRAMS and order == 4))
    orders = np.uint64(order)
    parts = count_parts(measure, orders)
    state = np.empty(np.uint64(words if short else words + 1) * parts * LANES, np.uint64)
    ends, ref_ends = np.empty(LANES, np.uint64), np.empty(LANES, np.int64)
    counts, values = np.empty((order, 16), np.uint64), np.empty(LANES)
    flat_table, flat_counts = table.reshape(table.size), counts.reshape(counts.size)
    seen = np.zeros((per_share if measure == UNION else 0, order, tokens.shape[1]), np.bool_)
    for share in range(first, lengths.shape[0] * shares, stride):
        b = share // shares
        start = (share % shares) * per_share
        end = min(start + per_share, size)
        seen[:] = False
        for r in range(count):
            ref, ref_length = b * count + r, ref_lengths[b, r]
            if ref_length < 0:
                continue
            for t in range(ref_length):
                table[np.uint64(refs[ref, t]), t >> 6] |= ONE << np.uint64(t & 63)
            used, top = np.uint64(max(1, (ref_length + 63) >> 6)), np.uint64((ref_length - 1) & 63)
            ref_ends[:] = ref_length
            for block in range(start, end, 16):
                row: Any = np.uint64(b * size + block)
                last: Any = np.uint64(min(16, end - block) - 1)
                state[:] = ZERO
                longest = ZERO
                for k in range(LANES):
                    ends[k] = np.uint64(max(lengths[b, block + np.int64(min(k, last))], 0))
                    longest = max(longest, ends[k])
                for w in range(used):
                    for k in range(LANES):
                        state[(w * parts + ONE) * LANES + k] = ends[k]
                if short and measure == EDITS:
                    read_short(tokens, row, last, longest, flat_table, top, state)
                elif short:
                    read_short(tokens, row, last, longest, flat_table, None, state)
                elif measure == UNION:
                    there = seen[block - start :]
                    read_long(
                        tokens, row, last, longest, table, top, state, used, measure, orders, there
                    )
                else:
                    read_long(
                        tokens, row, last, longest, table, top, state, used, measure, orders, None
                    )
                counts[:] = ZERO
                if measure == EDITS:
                    at = ((used - ONE) * parts + np.uint64(6)) * LANES
                    for k in range(LANES):
                        distance = state[at + k] + np.uint64(ref_length)
                        counts[0, k] = distance if ref_length > 0 else ends[k]
                else:
                    for w in range(used):
                        at = (w * parts + orders + np.uint64(4)) * LANES
                        for k in range(orders * LANES):
                            flat_counts[k] += count_bits(state[at + k])
                if formula is not None:
                    bleu_of_counts(counts.T, ends, ref_ends, formula, values)
                for n in range(out.shape[3] if measure != UNION else 0):
                    for s in range(block, min(block + 16, end)):
                        if formula is not None:
                            out[b, s, r, n] = values[s - block]
                        elif lengths[b, s] >= 0:
                            out[b, s, r, n] = counts[n, s - block]
            for t in range(ref_length):
                table[np.uint64(refs[ref, t])] = ZERO
        if measure == UNION:
            # An n-gram's k-th occurrence finds a position where a reference has k of them: the
            # count is clipped at the largest of any reference.
            for s in range(start, end):
                for n in range(order):
                    out[b, s, 0, n] = seen[s - start, n].sum()
