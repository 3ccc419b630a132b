"""String features on the CPU: hashes of texts, a table from 64-bit keys to columns, rows of tokens.

A *stream* is a sequence of strings along the tokens: the words, or a further column such as parts
of speech. Its distinct strings are its *entries*, followed by one for each end of the sentence. An
atom of a template turns an entry into *elements*, pieces of text with a hash each: one (the word,
its shape) or several (its n-grams). The key of a feature is a mix of its template's salt and its
elements' hashes, 64 bits wide: among ten million features, the chance that any two share a key is
about three in a million, so nothing looks for it.

Whatever depends on one entry only is looked up once per entry; per token, it is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numba
import numpy as np

from softq.kernels.jit import jit, run_batch
from softq.kernels.random import mix
from softq.kernels.text.hashing import enter, table_size
from softq.kernels.text.words import ONE, ZERO, Array

_SEED = np.uint64(0x243F6A8885A308D3)
_ODD = np.uint64(0x9E3779B97F4A7C15)
_KEYS = 1024  # looked up together
UNKNOWN = -1


class Elements(NamedTuple):
    """Texts that atoms make of entries, one block of entries per atom."""

    codes: Array  # [C] uint32, code points
    begins: Array  # [E] int64, where the text of an element begins in codes
    sizes: Array  # [E] int64, its length
    hashes: Array  # [E] uint64
    offsets: Array  # [Σ entries + 1] int64: entry i has elements offsets[i] .. offsets[i + 1] - 1


class WordPlan(NamedTuple):
    """K templates of P atoms together, as numbers.

    A *joint* template takes one element from each of several places (or none); others take all
    elements of one place or window.
    """

    salts: Array  # [K] uint64
    joint: Array  # [K] bool
    atoms: Array  # [K + 1] int64: atoms of template k are atoms[k] .. atoms[k + 1] - 1
    rows: Array  # [K] int64: its first row of Resolved, or its column of Resolved.joint
    lows: Array  # [P] int64, place relative to the token
    highs: Array  # [P] int64, the last place of a window
    streams: Array  # [P] int64
    entries: Array  # [P] int64, entries of the stream without the two for the ends
    blocks: Array  # [P] int64, where the atom's entries begin in Elements


class Tokens(NamedTuple):
    """T tokens of N sentences."""

    ids: Array  # [streams, T] int32, entries
    offsets: Array  # [N + 1] int64, first token of each sentence


class KeyColumns(NamedTuple):
    """From keys to columns: a table, at least half empty; or a mask of the lowest bits of a key."""

    slots: Array  # [S, 2] uint64: key and column, in one line of the cache; key 0 where free
    mask: np.uint64  # 0 where there is a table


class Resolved(NamedTuple):
    """Columns: the known ones of each template's entries, a row each, and joint ones of tokens."""

    offsets: Array  # [rows + 1] int64
    columns: Array  # [R] int32
    joint: Array  # [T, joint] int32, -1 where there is none


# --- hashes ---------------------------------------------------------------------------------------


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


@jit
def feature_key(salt: Any, value: Any) -> Any:
    """Key of a feature, never 0; that of a joint one takes its hashes one after the other."""
    return max(mix(salt ^ value), ONE)


@jit
def feature_keys(salt: Any, hashes: Any) -> Any:
    """Keys of features of one template, or with salt 0 of none."""
    keys = np.empty_like(hashes)
    for i in range(len(hashes)):
        keys[i] = feature_key(salt, hashes[i])
    return keys


# --- pieces of words ------------------------------------------------------------------------------


def shapes(
    codes: Array, begins: Array, sizes: Array, symbols: Array, longest: int
) -> tuple[Array, Array, Array]:
    """Texts with ``symbols[code]`` for each character, and runs of a symbol cut to ``longest``."""
    # there may be no symbols for the marks between words
    changed = symbols.take(codes, mode="clip")
    places = np.arange(len(codes))
    starts = np.ones(len(codes), np.bool_)  # of runs, which do not go beyond a word
    starts[1:] = changed[1:] != changed[:-1]
    starts[begins] = True
    kept = places - np.maximum.accumulate(np.where(starts, places, 0)) < longest
    before = np.concatenate([[0], np.cumsum(kept)])
    return changed[kept], before[begins], before[begins + sizes] - before[begins]


def affixes(
    codes: Array, begins: Array, sizes: Array, low: int, high: int, *, at_end: bool
) -> Elements:
    """The first ``low`` to ``high`` characters of each word, an entry; ``at_end`` the last."""
    counts = np.maximum(np.minimum(sizes, high) - low + 1, 0)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    lengths = low + np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
    starts = np.repeat(begins + sizes, counts) - lengths if at_end else np.repeat(begins, counts)
    return Elements(codes, starts, lengths, hash_texts(codes, starts, lengths), offsets)


def ngrams(codes: Array, begins: Array, sizes: Array, low: int, high: int) -> Elements:
    """The distinct runs of ``low`` to ``high`` characters of each word, an entry.

    The marks that ``codes`` has on either side of a word belong to it, but for a mark alone.
    """
    room = (sizes + 2) * np.minimum(sizes + 2, high)  # at most
    offsets = np.concatenate([[0], np.cumsum(room)])
    found = tuple(np.zeros(offsets[-1], kind) for kind in (np.int64, np.int64, np.uint64))
    counts = np.empty_like(sizes)
    texts = codes, begins, sizes, low, high, offsets
    run_batch(_ngrams, len(begins), 3 * int(offsets[-1]), *texts, *found, counts)
    used = np.flatnonzero(found[1])
    starts, lengths, hashes = (field[used] for field in found)
    return Elements(codes, starts, lengths, hashes, np.concatenate([[0], np.cumsum(counts)]))


@jit
def _ngrams(
    first: int,
    stride: int,
    codes: Any,
    begins: Any,
    sizes: Any,
    low: int,
    high: int,
    offsets: Any,
    found_begins: Any,
    found_sizes: Any,
    hashes: Any,
    counts: Any,
) -> None:
    for word in range(first, len(begins), stride):
        at, begin, end = offsets[word], begins[word], begins[word] + sizes[word]
        seen = np.zeros(table_size(offsets[word + 1] - at), np.uint64)
        for i in range(begin - 1, end + 1):
            value = _SEED
            for length in range(1, min(high, end + 1 - i) + 1):
                value = _step(value, codes[np.uint64(i + length - 1)])
                is_mark = length == 1 and (i < begin or i == end)
                if length >= low and not is_mark and enter(seen, feature_key(ZERO, value)):
                    found_begins[at], found_sizes[at], hashes[at] = i, length, mix(value)
                    at += 1
        counts[word] = at - offsets[word]


# --- the table ------------------------------------------------------------------------------------


@jit
def slot_of(slots: Any, key: Any) -> Any:
    """Slot that holds the key, or the free one where it belongs."""
    last = np.uint64(len(slots) - 1)
    slot = key & last
    while slots[slot, 0] != key and slots[slot, 0] != ZERO:
        slot = (slot + ONE) & last
    return slot


def number_keys(keys: Array) -> tuple[Array, Array, Array]:
    """Number distinct keys in order of first occurrence.

    Returns their table (see `KeyColumns`), the number of each key, and where the distinct ones are.
    """
    slots = np.zeros((table_size(len(keys)), 2), np.uint64)
    numbers = np.empty(len(keys), np.int32)
    return slots, numbers, _number_keys(keys, slots, numbers)


@jit
def _number_keys(keys: Any, slots: Any, numbers: Any) -> Any:
    firsts = np.empty(len(keys), np.int64)
    size = 0
    for i in range(len(keys)):
        slot = slot_of(slots, keys[i])
        if slots[slot, 0] == ZERO:
            slots[slot, 0] = keys[i]
            slots[slot, 1] = size
            firsts[size] = i
            size += 1
        numbers[i] = slots[slot, 1]
    return firsts[:size]


def columns_of(known: KeyColumns, keys: Array) -> Array:
    """Column of each key, -1 where there is none, int32."""
    if known.mask:
        return np.asarray(keys & known.mask, np.int32)
    out = np.empty(len(keys), np.int32)
    run_batch(_find, -(-len(keys) // _KEYS), 20 * len(keys), known.slots, keys, out)
    return out


@jit
def _find(first: int, stride: int, slots: Any, keys: Any, out: Any) -> None:
    last = np.uint64(len(slots) - 1)
    firsts = np.empty(_KEYS, np.uint64)
    for begin in range(first * _KEYS, len(keys), stride * _KEYS):
        start, size = np.uint64(begin), np.uint64(min(_KEYS, len(keys) - begin))
        # Tables are larger than caches: so the processor waits for many slots at a time.
        for i in range(size):
            firsts[i] = slots[keys[start + i] & last, 0]
        for i in range(size):
            key = keys[start + i]
            slot = key & last if firsts[i] == key else slot_of(slots, key)
            is_known = slots[slot, 0] == key
            out[start + i] = np.int32(slots[slot, 1]) if is_known else np.int32(UNKNOWN)


# --- from tokens to columns -----------------------------------------------------------------------


@jit
def entry_at(plan: WordPlan, atom: Any, tokens: Tokens, token: int, begin: int, end: int) -> Any:
    """Entry of an atom's stream at a token, inside of the sentence begin .. end - 1 or not."""
    if token < begin:
        return plan.entries[atom]
    if token >= end:
        return plan.entries[atom] + 1
    return np.int64(tokens.ids[np.uint64(plan.streams[atom]), np.uint64(token)])


@jit
def element_at(
    plan: WordPlan, elements: Elements, tokens: Tokens, atom: Any, token: int, begin: int, end: int
) -> Any:
    """The only element of an atom of a joint template at a token."""
    entry = entry_at(plan, atom, tokens, token + plan.lows[atom], begin, end)
    return np.uint64(elements.offsets[np.uint64(plan.blocks[atom] + entry)])


@jit
def _is_repeated(
    plan: WordPlan,
    atom: Any,
    tokens: Tokens,
    token: int,
    place: int,
    begin: int,
    end: int,
    entry: Any,
) -> bool:
    """Whether the entry at this place of a window stands at an earlier one as well."""
    for earlier in range(plan.lows[atom], place):
        if entry_at(plan, atom, tokens, token + earlier, begin, end) == entry:
            return True
    return False


def template_elements(plan: WordPlan, elements: Elements, k: int) -> tuple[Array, slice]:
    """How many elements each entry has for template k, which is not joint, and where all are."""
    atom = plan.atoms[k]
    first, count = plan.blocks[atom], plan.entries[atom] + 2
    offsets = elements.offsets[first : first + count + 1]
    return np.diff(offsets), slice(offsets[0], offsets[-1])


def template_keys(plan: WordPlan, elements: Elements, tokens: Tokens, k: int) -> Array:
    """Keys of all elements of template k; of all tokens if it is joint."""
    if not plan.joint[k]:
        _, found = template_elements(plan, elements, k)
        return np.asarray(feature_keys(plan.salts[k], elements.hashes[found]))
    keys = np.empty(tokens.ids.shape[1], np.uint64)
    sentences, atoms = len(tokens.offsets) - 1, plan.atoms[k + 1] - plan.atoms[k]
    run_batch(_joint_keys, sentences, 10 * atoms * len(keys), plan, elements, tokens, k, keys)
    return keys


@jit
def _joint_keys(
    first: int, stride: int, plan: WordPlan, elements: Elements, tokens: Tokens, k: int, keys: Any
) -> None:
    """Keys of joint features: of as many hashes as there are atoms, one after the other."""
    for s in range(first, len(tokens.offsets) - 1, stride):
        begin, end = tokens.offsets[s], tokens.offsets[s + 1]
        for token in range(begin, end):
            key = feature_key(plan.salts[k], ZERO)
            for atom in range(plan.atoms[k], plan.atoms[k + 1]):
                element = element_at(plan, elements, tokens, atom, token, begin, end)
                key = feature_key(key, elements.hashes[element])
            keys[token] = key


def resolve(
    plan: WordPlan, elements: Elements, tokens: Tokens, columns: Sequence[Array]
) -> Resolved:
    """Columns of each template's keys (see `template_keys`) as rows can be copied from."""
    single, together = (np.flatnonzero(plan.joint == which).tolist() for which in (False, True))
    sizes = [template_elements(plan, elements, k)[0] for k in single]
    offsets = np.cumsum(np.concatenate([[0], *sizes]))
    found = np.concatenate([np.zeros(0, np.int32), *(columns[k] for k in single)])
    joint = np.empty((tokens.ids.shape[1], len(together)), np.int32)
    for k in together:
        joint[:, plan.rows[k]] = columns[k]
    return Resolved(*drop_unknown(offsets, found), joint)


def look_up(plan: WordPlan, elements: Elements, tokens: Tokens, known: KeyColumns) -> Resolved:
    """Known columns of all entries and tokens."""
    columns = [
        columns_of(known, template_keys(plan, elements, tokens, k)) for k in range(len(plan.joint))
    ]
    return resolve(plan, elements, tokens, columns)


def drop_unknown(offsets: Array, columns: Array) -> tuple[Array, Array]:
    """Rows ``columns[offsets[i] : offsets[i + 1]]`` without columns that are unknown."""
    known = columns != UNKNOWN
    if known.all():
        return offsets, columns
    return np.concatenate([[0], np.cumsum(known)])[offsets], columns[known]


def write_ragged(
    kernel: Callable[..., None], size: int, operations: int, rows: int, kind: Any, *args: Any
) -> tuple[Array, Array]:
    """Offsets ``[rows + 1]`` int64 and contents of rows that a kernel writes, after counting them.

    It is given the offsets and what to write to. Where that is None, it writes how many entries
    row i has to offsets[i + 1].
    """
    offsets = np.zeros(rows + 1, np.int64)
    run_batch(kernel, size, operations, *args, offsets, None)
    np.cumsum(offsets, out=offsets)
    contents = np.empty(int(offsets[-1]), kind)
    run_batch(kernel, size, operations, *args, offsets, contents)
    return offsets, contents


@numba.njit(
    inline="always"
)  # the compiler leaves it a call otherwise, which takes 1.4 times as long
def put(source: Any, begin: Any, end: Any, out: Any, at: Any) -> Any:
    """Copy ``source[begin:end]`` to ``out`` if there is one; the place behind the copy."""
    if out is not None:
        for i in range(end - begin):
            out[at + i] = source[begin + i]
    return at + (end - begin)


def write_rows(
    plan: WordPlan, elements: Elements, tokens: Tokens, resolved: Resolved
) -> tuple[Array, Array]:
    """Offsets ``[T + 1]`` int64 and columns int32 of the rows of tokens."""
    size, count = len(tokens.offsets) - 1, tokens.ids.shape[1]
    return write_ragged(_write_rows, size, 100 * count, count, np.int32, plan, tokens, resolved)


@jit
def _write_rows(
    first: int,
    stride: int,
    plan: WordPlan,
    tokens: Tokens,
    resolved: Resolved,
    offsets: Any,
    indices: Any,
) -> None:
    """Columns of every token, in the order of the templates; see `write_ragged`."""
    for s in range(first, len(tokens.offsets) - 1, stride):
        begin, end = tokens.offsets[s], tokens.offsets[s + 1]
        for token in range(begin, end):
            at = np.uint64(0 if indices is None else offsets[token])
            for k in range(len(plan.joint)):
                if plan.joint[k]:
                    column = resolved.joint[np.uint64(token), np.uint64(plan.rows[k])]
                    if column != UNKNOWN:
                        if indices is not None:
                            indices[at] = column
                        at += ONE
                    continue
                atom = plan.atoms[k]
                for place in range(plan.lows[atom], plan.highs[atom] + 1):
                    entry = entry_at(plan, atom, tokens, token + place, begin, end)
                    if not _is_repeated(plan, atom, tokens, token, place, begin, end, entry):
                        row = np.uint64(plan.rows[k] + entry)
                        start = np.uint64(resolved.offsets[row])
                        stop = np.uint64(resolved.offsets[row + ONE])
                        at = put(resolved.columns, start, stop, indices, at)
            if indices is None:
                offsets[token + 1] = at
