"""String features on the CPU: hashes of texts, a table from 64-bit keys to columns, and the rows of tokens.

A *stream* is a sequence of strings along the tokens: the words, or a further column such as parts of speech. Its distinct strings are
its *entries*, followed by one for each end of the sentence. An atom of a template turns an entry into *elements*, pieces of text with a
hash each: one (the word, its shape) or several (its n-grams). The key of a feature is a mix of its template's salt and its elements'
hashes, 64 bits wide: among ten million features, the chance that any two share a key is about three in a million, so nothing looks for it.

Whatever depends on one entry only is looked up once per entry; per token, it is copied.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from softq.kernels.hashing import enter, table_size
from softq.kernels.jit import jit, run_batch
from softq.kernels.words import ONE, ZERO, Array

PREFIX, SUFFIX, NGRAMS = range(3)

_SEED = np.uint64(0x243F6A8885A308D3)
_ODD = np.uint64(0x9E3779B97F4A7C15)
UNKNOWN = -1


class Elements(NamedTuple):
    """Texts that atoms make of entries; ``starts`` and ``counts`` say which elements are an entry's, one block of entries per atom."""

    codes: Array  # [C] uint32, code points
    begins: Array  # [E] int64, where the text of an element begins in codes
    sizes: Array  # [E] int64, its length
    hashes: Array  # [E] uint64
    starts: Array  # [Σ entries] int64
    counts: Array  # [Σ entries] int64


class Plan(NamedTuple):
    """K templates of P atoms together, as numbers."""

    salts: Array  # [K] uint64
    joint: Array  # [K] bool: one element from each of several places (or none), not all elements of one place or window
    atoms: Array  # [K + 1] int64: atoms of template k are atoms[k] .. atoms[k + 1] - 1
    lows: Array  # [P] int64, place relative to the token
    highs: Array  # [P] int64, the last place of a window
    streams: Array  # [P] int64
    entries: Array  # [P] int64, entries of the stream without the two for the ends
    blocks: Array  # [P] int64, where the atom's entries begin in starts and counts
    shifts: Array  # [K] int64: columns[shift + element] of Resolved, or joint[token, shift]
    rows: Array  # [K] int64: sizes[row + entry] of Resolved


class Tokens(NamedTuple):
    """T tokens of N sentences."""

    ids: Array  # [streams, T] int32, entries
    offsets: Array  # [N + 1] int64, first token of each sentence


class Known(NamedTuple):
    """From keys to columns: a table, at least half empty; or one empty slot, and a mask of the lowest bits of a key."""

    slots: Array  # [S, 2] uint64: key and column side by side, in one line of the cache; key 0 where free
    mask: np.uint64


class Resolved(NamedTuple):
    """Columns, -1 where there is none: of elements, one block per template that is not joint, and of joint templates, by token."""

    columns: Array  # [R] int32
    sizes: Array  # [Σ entries] int64: how many of an entry's columns are in use, from its first on
    joint: Array  # [T, joint] int32


# --- hashes -------------------------------------------------------------------------------------------------


@jit
def mix(value: Any) -> Any:
    """Spread 64 bits over 64 bits, one to one (the finalizer of splitmix64)."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@jit
def feature_key(salt: Any, value: Any) -> Any:
    """Key of a feature, never 0; that of a joint one takes its hashes one after the other."""
    key = mix(salt ^ value)
    return key if key != ZERO else ONE


@jit
def _step(value: Any, code: Any) -> Any:
    value = (value ^ (np.uint64(code) + ONE)) * _ODD
    return value ^ (value >> np.uint64(29))


@jit
def _hash_texts(first: int, stride: int, codes: Any, begins: Any, sizes: Any, out: Any) -> None:
    for text in range(first, len(begins), stride):
        value = _SEED
        begin = np.uint64(begins[text])
        for i in range(np.uint64(sizes[text])):
            value = _step(value, codes[begin + i])
        out[text] = mix(value)


def hash_texts(codes: Array, begins: Array, sizes: Array) -> Array:
    """64-bit hashes of the texts ``codes[begin : begin + size]``."""
    out = np.empty(len(begins), np.uint64)
    run_batch(_hash_texts, len(begins), len(codes), codes, begins, sizes, out)
    return out


def text_keys(codes: Array, begins: Array, sizes: Array) -> Array:
    """Keys of features that are a text each, of no template."""
    keys = np.empty(len(begins), np.uint64)
    _text_keys(hash_texts(codes, begins, sizes), keys)
    return keys


@jit
def _text_keys(hashes: Any, keys: Any) -> None:
    for i in range(len(hashes)):
        keys[i] = feature_key(ZERO, hashes[i])


# --- pieces of words ----------------------------------------------------------------------------------------


@jit
def _shapes(first: int, stride: int, codes: Any, begins: Any, sizes: Any, symbols: Any, longest: int, out: Any, lengths: Any) -> None:
    for word in range(first, len(begins), stride):
        length, run, last = 0, 0, symbols[0]
        for i in range(begins[word], begins[word] + sizes[word]):
            symbol = symbols[np.uint64(codes[i])]
            run = run + 1 if symbol == last else 1
            last = symbol
            if run <= longest:
                out[begins[word] + length] = symbol
                length += 1
        lengths[word] = length


def shapes(codes: Array, begins: Array, sizes: Array, symbols: Array, longest: int) -> tuple[Array, Array]:
    """Words with ``symbols[code]`` for each character and runs of a symbol cut to ``longest``: codes (same begins) and sizes."""
    out, lengths = np.empty_like(codes), np.empty_like(sizes)
    run_batch(_shapes, len(begins), len(codes), codes, begins, sizes, symbols, longest, out, lengths)
    return out, lengths


@jit
def _pieces(first: int, stride: int, kind: int, low: int, high: int, codes: Any, begins: Any, sizes: Any, room: Any, out: Elements) -> None:
    table = np.empty(16, np.uint64)
    for word in range(first, len(begins), stride):
        begin, size = begins[word], sizes[word]
        at = out.starts[word]
        if kind != NGRAMS:
            for length in range(low, min(high, size) + 1):
                at = _put(out, at, begin if kind == PREFIX else begin + size - length, length, _SEED)
        else:
            wanted = table_size(room[word])
            if len(table) < wanted:
                table = np.empty(wanted, np.uint64)
            seen = table[:wanted]
            seen[:] = ZERO
            for i in range(begin - 1, begin + size + 1):  # with a mark before the word and one behind it
                value = _SEED
                for length in range(1, min(high, begin + size + 1 - i) + 1):
                    value = _step(value, codes[np.uint64(i + length - 1)])
                    alone = length == 1 and (i < begin or i == begin + size)  # a mark by itself says nothing
                    if length >= low and not alone and enter(seen, feature_key(ZERO, value)):
                        out.begins[at], out.sizes[at], out.hashes[at] = i, length, mix(value)
                        at += 1
        out.counts[word] = at - out.starts[word]


@jit
def _put(out: Elements, at: int, begin: int, size: int, value: Any) -> int:
    for i in range(np.uint64(begin), np.uint64(begin + size)):
        value = _step(value, out.codes[i])
    out.begins[at], out.sizes[at], out.hashes[at] = begin, size, mix(value)
    return at + 1


def pieces(kind: int, low: int, high: int, codes: Array, begins: Array, sizes: Array) -> Elements:
    """Affixes or n-grams of ``low`` to ``high`` characters of each word, an entry each; for n-grams, ``codes`` has a mark on either side.

    A piece that stands twice in a word is one element. There may be unused elements between those of one entry and of the next.
    """
    if kind == NGRAMS:
        room = np.zeros_like(sizes)
        for length in range(low, min(high, int(sizes.max(initial=0)) + 2) + 1):
            room += np.maximum(sizes + 3 - length, 0) if length > 1 else sizes
    else:
        room = np.maximum(np.minimum(sizes, high) - low + 1, 0)
    ends = np.cumsum(room)
    total = int(ends[-1]) if len(ends) else 0
    out = Elements(
        codes, np.zeros(total, np.int64), np.zeros(total, np.int64), np.zeros(total, np.uint64), ends - room, np.empty_like(sizes)
    )
    run_batch(_pieces, len(begins), 3 * total, kind, low, high, codes, begins, sizes, room, out)
    return out


# --- the table ----------------------------------------------------------------------------------------------


@jit
def slot_of(slots: Any, key: Any) -> Any:
    """Slot that holds the key, or the free one where it belongs."""
    last = np.uint64(len(slots) - 1)
    slot = key & last
    while slots[slot, 0] != key and slots[slot, 0] != ZERO:
        slot = (slot + ONE) & last
    return slot


@jit
def touch(slots: Any, keys: Any, size: int, firsts: Any) -> None:
    """The key in the first slot of each key. Tables are larger than caches: so the processor waits for many slots at a time."""
    last = np.uint64(len(slots) - 1)
    for i in range(np.uint64(size)):
        firsts[i] = slots[keys[i] & last, 0]


@jit
def _find(known: Known, keys: Any, size: int, firsts: Any, out: Any, start: int) -> None:
    """Columns of ``keys[:size]``, to ``out[start:]``; ``firsts`` is scratch."""
    begin = np.uint64(start)
    if known.mask != ZERO:
        for i in range(np.uint64(size)):
            out[begin + i] = np.int32(keys[i] & known.mask)
        return
    touch(known.slots, keys, size, firsts)
    last = np.uint64(len(known.slots) - 1)
    for i in range(np.uint64(size)):
        slot = keys[i] & last
        if firsts[i] != keys[i]:
            slot = slot_of(known.slots, keys[i])
        out[begin + i] = np.int32(known.slots[slot, 1]) if known.slots[slot, 0] == keys[i] else np.int32(UNKNOWN)


@jit
def fill_table(column_keys: Any, size: int, count: int) -> Any:
    """A table of ``count`` slots with the first ``size`` keys."""
    slots = np.zeros((count, 2), np.uint64)
    for column in range(size):
        slot = slot_of(slots, column_keys[column])
        slots[slot, 0] = column_keys[column]
        slots[slot, 1] = column
    return slots


def make_table(column_keys: Array) -> Array:
    """Slots ``[S, 2]`` for the distinct keys of columns 0, 1, …; see `Known`."""
    slots: Array = fill_table(column_keys, len(column_keys), table_size(len(column_keys)))
    return slots


def columns_of(known: Known, keys: Array) -> Array:
    """Column of each key, -1 where there is none, int32."""
    out = np.empty(len(keys), np.int32)
    _find(known, keys, len(keys), np.empty(len(keys), np.uint64), out, 0)
    return out


# --- from tokens to columns ---------------------------------------------------------------------------------


@jit
def entry_at(plan: Plan, atom: Any, tokens: Tokens, token: int, begin: int, end: int) -> Any:
    """Entry of an atom's stream at a token, which may lie outside of the sentence ``begin .. end - 1``."""
    if token < begin:
        return plan.entries[atom]
    if token >= end:
        return plan.entries[atom] + 1
    return np.int64(tokens.ids[np.uint64(plan.streams[atom]), np.uint64(token)])


@jit
def window_entry(plan: Plan, atom: Any, tokens: Tokens, token: int, place: int, begin: int, end: int) -> Any:
    """Entry at this place of a window, or -1 if it stands at an earlier one as well."""
    entry = entry_at(plan, atom, tokens, token + place, begin, end)
    for earlier in range(plan.lows[atom], place):
        if entry_at(plan, atom, tokens, token + earlier, begin, end) == entry:
            return np.int64(-1)
    return entry


@jit
def joint_key(plan: Plan, elements: Elements, tokens: Tokens, k: int, token: int, begin: int, end: int) -> Any:
    """Key of a joint feature: of as many hashes as it has atoms, one after the other."""
    key = feature_key(plan.salts[k], ZERO)
    for atom in range(plan.atoms[k], plan.atoms[k + 1]):
        entry = entry_at(plan, atom, tokens, token + plan.lows[atom], begin, end)
        key = feature_key(key, elements.hashes[np.uint64(elements.starts[np.uint64(plan.blocks[atom] + entry)])])
    return key


@jit
def _find_elements(first: int, stride: int, plan: Plan, elements: Elements, known: Known, longest: int, resolved: Resolved) -> None:
    keys, firsts = np.empty(longest, np.uint64), np.empty(longest, np.uint64)
    places, found = np.empty(longest, np.int64), np.empty(longest, np.int32)
    for entry in range(first, plan.entries.max() + 2, stride):
        size = 0
        for k in range(len(plan.joint)):
            atom = plan.atoms[k]
            if not plan.joint[k] and entry < plan.entries[atom] + 2:
                start = elements.starts[plan.blocks[atom] + entry]
                for e in range(start, start + elements.counts[plan.blocks[atom] + entry]):
                    keys[size] = feature_key(plan.salts[k], elements.hashes[e])
                    places[size] = plan.shifts[k] + e
                    size += 1
        _find(known, keys, size, firsts, found, 0)
        for i in range(size):
            resolved.columns[places[i]] = found[i]


@jit
def _find_joint(first: int, stride: int, plan: Plan, elements: Elements, tokens: Tokens, known: Known, longest: int, found: Any) -> None:
    count = found.shape[1]
    keys, firsts = np.empty(longest * count, np.uint64), np.empty(longest * count, np.uint64)
    for s in range(first, len(tokens.offsets) - 1, stride):
        begin, end = tokens.offsets[s], tokens.offsets[s + 1]
        for k in range(len(plan.joint)):
            if plan.joint[k]:
                for token in range(begin, end):
                    keys[(token - begin) * count + plan.shifts[k]] = joint_key(plan, elements, tokens, k, token, begin, end)
        _find(known, keys, (end - begin) * count, firsts, found.reshape(-1), begin * count)


def look_up(plan: Plan, elements: Elements, tokens: Tokens, known: Known, resolved: Resolved) -> None:
    """Fill in the columns, and drop the unknown ones of entries."""
    if len(resolved.columns):
        size, longest = int(plan.entries.max()) + 2, len(plan.joint) * int(elements.counts.max())
        run_batch(_find_elements, size, 20 * len(resolved.columns), plan, elements, known, longest, resolved)
    if resolved.joint.size:
        size, longest = len(tokens.offsets) - 1, int(np.diff(tokens.offsets).max())
        run_batch(_find_joint, size, 20 * resolved.joint.size, plan, elements, tokens, known, longest, resolved.joint)
    drop_unknown(plan, elements, resolved)


def drop_unknown(plan: Plan, elements: Elements, resolved: Resolved) -> None:
    """Move the known columns of each entry to its front, so that rows can copy them."""
    if len(resolved.columns):
        run_batch(_drop_unknown, int(plan.entries.max()) + 2, len(resolved.columns), plan, elements, resolved)


@jit
def _drop_unknown(first: int, stride: int, plan: Plan, elements: Elements, resolved: Resolved) -> None:
    for entry in range(first, plan.entries.max() + 2, stride):
        for k in range(len(plan.joint)):
            atom = plan.atoms[k]
            if not plan.joint[k] and entry < plan.entries[atom] + 2:
                start = plan.shifts[k] + elements.starts[plan.blocks[atom] + entry]
                kept = start
                for i in range(start, start + resolved.sizes[plan.rows[k] + entry]):
                    if resolved.columns[i] != UNKNOWN:
                        resolved.columns[kept] = resolved.columns[i]
                        kept += 1
                resolved.sizes[plan.rows[k] + entry] = kept - start


@jit
def _write_rows(
    first: int, stride: int, plan: Plan, elements: Elements, tokens: Tokens, resolved: Resolved, offsets: Any, indices: Any
) -> None:
    """Columns of every token, in the order of the templates; where ``indices`` is None, their number only, to offsets[token + 1]."""
    for s in range(first, len(tokens.offsets) - 1, stride):
        begin, end = tokens.offsets[s], tokens.offsets[s + 1]
        for token in range(begin, end):
            at = np.uint64(0 if indices is None else offsets[token])
            for k in range(len(plan.joint)):
                if plan.joint[k]:
                    column = resolved.joint[np.uint64(token), np.uint64(plan.shifts[k])]
                    if column != UNKNOWN:
                        if indices is not None:
                            indices[at] = column
                        at += ONE
                    continue
                atom = plan.atoms[k]
                for place in range(plan.lows[atom], plan.highs[atom] + 1):
                    entry = window_entry(plan, atom, tokens, token, place, begin, end)
                    if entry >= 0:
                        size = np.uint64(resolved.sizes[np.uint64(plan.rows[k] + entry)])
                        if indices is not None:
                            start = np.uint64(plan.shifts[k] + elements.starts[np.uint64(plan.blocks[atom] + entry)])
                            for i in range(size):
                                indices[at + i] = resolved.columns[start + i]
                        at += size
            if indices is None:
                offsets[token + 1] = at


def write_rows(plan: Plan, elements: Elements, tokens: Tokens, resolved: Resolved) -> tuple[Array, Array]:
    """Offsets ``[T + 1]`` int64 and columns int32 of the rows."""
    size, count = len(tokens.offsets) - 1, tokens.ids.shape[1]
    offsets = np.zeros(count + 1, np.int64)
    run_batch(_write_rows, size, 100 * count, plan, elements, tokens, resolved, offsets, None)
    np.cumsum(offsets, out=offsets)
    indices = np.empty(int(offsets[-1]), np.int32)
    run_batch(_write_rows, size, 100 * count, plan, elements, tokens, resolved, offsets, indices)
    return offsets, indices
