"""What only fitting needs: columns in order of first occurrence, and their names. Compiled, as are the kernels it builds on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from softq.kernels.features import (
    UNKNOWN,
    Elements,
    Plan,
    Resolved,
    Tokens,
    drop_unknown,
    entry_at,
    feature_key,
    fill_table,
    joint_key,
    slot_of,
    touch,
    window_entry,
)
from softq.kernels.hashing import table_size
from softq.kernels.jit import jit, run_batch
from softq.kernels.words import ZERO, Array


class Learned(NamedTuple):
    """Columns in order of first occurrence, and for each an example: a template and an element, or a token of a joint one."""

    keys: Array  # [F] uint64
    templates: Array  # [F] int32
    examples: Array  # [F] int64


class _Scratch(NamedTuple):
    """The features of one sentence that have no column yet, as far as is known."""

    keys: Array
    firsts: Array
    templates: Array
    examples: Array


def learn(plan: Plan, elements: Elements, tokens: Tokens, resolved: Resolved) -> Learned:
    """Give every feature a column, and fill in the columns as `softq.kernels.features.look_up` does.

    In one thread, because the order of first occurrence is the order of the tokens.
    """
    resolved.columns[:] = UNKNOWN
    learned, size = _learn(plan, elements, tokens, resolved)
    drop_unknown(plan, elements, resolved)
    return Learned(*(field[:size] for field in learned))


@jit
def _learn(plan: Plan, elements: Elements, tokens: Tokens, resolved: Resolved) -> Any:
    size = 0
    slots = np.zeros((16, 2), np.uint64)
    learned = Learned(np.zeros(8, np.uint64), np.zeros(8, np.int32), np.zeros(8, np.int64))
    scratch = _scratch(16)
    for s in range(len(tokens.offsets) - 1):
        most = _most_features(plan, elements, tokens, s)
        if most > len(scratch.keys):
            scratch = _scratch(2 * most)
        count = table_size(size + most)
        if count > len(slots):
            slots = fill_table(learned.keys, size, 2 * count)
            more = len(slots) // 2 - len(learned.keys)
            learned = Learned(
                np.concatenate((learned.keys, np.zeros(more, np.uint64))),
                np.concatenate((learned.templates, np.zeros(more, np.int32))),
                np.concatenate((learned.examples, np.zeros(more, np.int64))),
            )
        found = _gather(plan, elements, tokens, s, resolved, scratch)
        touch(slots, scratch.keys, found, scratch.firsts)
        size = _enter(plan, scratch, found, slots, learned, size, resolved)
    return learned, size


@jit
def _scratch(size: int) -> _Scratch:
    return _Scratch(np.empty(size, np.uint64), np.empty(size, np.uint64), np.empty(size, np.int32), np.empty(size, np.int64))


@jit
def _most_features(plan: Plan, elements: Elements, tokens: Tokens, s: int) -> int:
    """The features of a sentence, were they all different."""
    begin, end = tokens.offsets[s], tokens.offsets[s + 1]
    total = 0
    for k in range(len(plan.joint)):
        if plan.joint[k]:
            total += end - begin
            continue
        atom = plan.atoms[k]
        window = plan.highs[atom] - plan.lows[atom] + 1
        for token in range(begin + plan.lows[atom], end + plan.highs[atom]):
            total += window * elements.counts[plan.blocks[atom] + entry_at(plan, atom, tokens, token, begin, end)]
    return total


@jit
def _gather(plan: Plan, elements: Elements, tokens: Tokens, s: int, resolved: Resolved, scratch: _Scratch) -> int:
    """Put the features of a sentence whose columns are not known into the scratch, in order; their number."""
    begin, end = tokens.offsets[s], tokens.offsets[s + 1]
    size = 0
    for token in range(begin, end):
        for k in range(len(plan.joint)):
            if plan.joint[k]:
                scratch.keys[size] = joint_key(plan, elements, tokens, k, token, begin, end)
                scratch.templates[size] = k
                scratch.examples[size] = token
                size += 1
                continue
            atom = plan.atoms[k]
            for place in range(plan.lows[atom], plan.highs[atom] + 1):
                entry = window_entry(plan, atom, tokens, token, place, begin, end)
                if entry < 0:
                    continue
                start = elements.starts[plan.blocks[atom] + entry]
                count = elements.counts[plan.blocks[atom] + entry]
                if count == 0 or resolved.columns[plan.shifts[k] + start] != UNKNOWN:  # an entry gets its columns all at once
                    continue
                for e in range(start, start + count):
                    scratch.keys[size] = feature_key(plan.salts[k], elements.hashes[e])
                    scratch.templates[size] = k
                    scratch.examples[size] = e
                    size += 1
    return size


@jit
def _enter(plan: Plan, scratch: _Scratch, found: int, slots: Any, learned: Learned, size: int, resolved: Resolved) -> int:
    """Enter what was gathered into a table with room enough; the number of columns after it."""
    last = np.uint64(len(slots) - 1)
    for i in range(found):
        key, k, example = scratch.keys[i], scratch.templates[i], scratch.examples[i]
        slot = key & last
        if scratch.firsts[i] != key:
            slot = slot_of(slots, key)
        if slots[slot, 0] == ZERO:
            slots[slot, 0] = key
            slots[slot, 1] = size
            learned.keys[size] = key
            learned.templates[size] = k
            learned.examples[size] = example
            size += 1
        if plan.joint[k]:
            resolved.joint[example, plan.shifts[k]] = slots[slot, 1]
        else:
            resolved.columns[plan.shifts[k] + example] = slots[slot, 1]
    return size


# --- names --------------------------------------------------------------------------------------------------


def render_names(
    plan: Plan, elements: Elements, tokens: Tokens, templates: Array, examples: Array, labels: Sequence[str]
) -> tuple[Array, Array]:
    """Names of columns from their examples, such as ``word[0]=Paris``: UTF-8 one after the other, and offsets ``[F + 1]``."""
    encoded = [label.encode() for label in labels]
    heads = np.frombuffer(b"".join(encoded), np.uint8)
    bounds = np.concatenate([[0], np.cumsum([len(label) for label in encoded], dtype=np.int64)])
    offsets = np.zeros(len(examples) + 1, np.int64)
    arrays = plan, elements, tokens, templates, examples, heads, bounds, offsets
    run_batch(_render, len(examples), 50 * len(examples), *arrays, None)
    np.cumsum(offsets, out=offsets)
    names = np.empty(int(offsets[-1]), np.uint8)
    run_batch(_render, len(examples), 50 * len(examples), *arrays, names)
    return names, offsets


@jit
def _render(
    first: int,
    stride: int,
    plan: Plan,
    elements: Elements,
    tokens: Tokens,
    templates: Any,
    examples: Any,
    heads: Any,
    bounds: Any,
    offsets: Any,
    out: Any,
) -> None:
    """Write the names; where ``out`` is None, their lengths only, to offsets[column + 1]."""
    for column in range(first, len(examples), stride):
        k, example = templates[column], examples[column]
        at = 0 if out is None else offsets[column]
        for i in range(bounds[k], bounds[k + 1]):
            at = _put_byte(out, at, heads[i])
        if not plan.joint[k]:
            at = _put_byte(out, at, ord("="))
            at = _put_text(out, at, elements, example)
        else:
            s = np.searchsorted(tokens.offsets, example, side="right") - 1
            for atom in range(plan.atoms[k], plan.atoms[k + 1]):
                at = _put_byte(out, at, ord("=") if atom == plan.atoms[k] else ord("|"))
                place = example + plan.lows[atom]
                entry = entry_at(plan, atom, tokens, place, tokens.offsets[s], tokens.offsets[s + 1])
                at = _put_text(out, at, elements, elements.starts[plan.blocks[atom] + entry])
        if out is None:
            offsets[column + 1] = at


@jit
def _put_byte(out: Any, at: int, byte: Any) -> int:
    if out is not None:
        out[at] = byte
    return at + 1


@jit
def _put_text(out: Any, at: int, elements: Elements, element: int) -> int:
    """Code points as UTF-8."""
    for i in range(elements.begins[element], elements.begins[element] + elements.sizes[element]):
        code = np.int64(elements.codes[i])
        if code < 0x80:
            at = _put_byte(out, at, code)
        elif code < 0x800:
            at = _put_byte(out, at, 0xC0 | (code >> 6))
            at = _put_byte(out, at, 0x80 | (code & 0x3F))
        elif code < 0x10000:
            at = _put_byte(out, at, 0xE0 | (code >> 12))
            at = _put_byte(out, at, 0x80 | ((code >> 6) & 0x3F))
            at = _put_byte(out, at, 0x80 | (code & 0x3F))
        else:
            at = _put_byte(out, at, 0xF0 | (code >> 18))
            at = _put_byte(out, at, 0x80 | ((code >> 12) & 0x3F))
            at = _put_byte(out, at, 0x80 | ((code >> 6) & 0x3F))
            at = _put_byte(out, at, 0x80 | (code & 0x3F))
    return at
