"""What only fitting needs: columns in order of first occurrence, and their names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from softq.kernels.features.words import (
    UNKNOWN,
    Elements,
    Resolved,
    Tokens,
    WordPlan,
    element_at,
    number_keys,
    put,
    resolve,
    template_elements,
    template_keys,
    write_ragged,
)
from softq.kernels.jit import jit
from softq.kernels.text.words import Array


class Learned(NamedTuple):
    """Columns, and for each an example: a template and an element, or a token of a joint one."""

    keys: Array  # [F] uint64
    templates: Array  # [F] int64
    examples: Array  # [F] int64

    def take(self, columns: Array) -> Learned:
        """These columns in this order."""
        return Learned(*(field[columns] for field in self))


def learn(plan: WordPlan, elements: Elements, tokens: Tokens) -> tuple[Learned, Resolved]:
    """Give every feature that the templates could make a column, in no order, and fill in rows.

    Keys of two templates are different: each template has a table of its own.
    """
    found: list[Learned] = []
    columns: list[Array] = []
    size = 0
    for k in range(len(plan.joint)):
        keys = template_keys(plan, elements, tokens, k)
        _, numbers, firsts = number_keys(keys)
        numbers += size
        columns.append(numbers)
        size += len(firsts)
        start = 0 if plan.joint[k] else template_elements(plan, elements, k)[1].start
        found.append(Learned(keys[firsts], np.full(len(firsts), k), start + firsts))
    learned = Learned(*(np.concatenate(fields) for fields in zip(*found, strict=True)))
    return learned, resolve(plan, elements, tokens, columns)


@jit
def number_by_occurrence(indices: Any, size: int) -> Any:
    """Number the columns ``indices`` of rows anew, in order of first occurrence and in place.

    Returns the numbers that they had, without those of columns that do not occur.
    """
    numbers = np.full(size, UNKNOWN, np.int32)
    order = np.empty(size, np.int64)
    count = 0
    for i in range(np.uint64(len(indices))):
        column = np.uint64(indices[i])
        if numbers[column] == UNKNOWN:
            numbers[column] = count
            order[count] = column
            count += 1
        indices[i] = numbers[column]
    return order[:count]


# --- names ----------------------------------------------------------------------------------------


def render_names(
    plan: WordPlan, elements: Elements, tokens: Tokens, learned: Learned, labels: Sequence[str]
) -> tuple[Array, Array]:
    """Names of columns, such as ``word[0]=Paris``: all in UTF-8, and their offsets ``[F + 1]``."""
    joined = elements.codes.tobytes().decode("utf-32-le") + "".join(labels) + "=|"
    text = np.frombuffer(joined.encode(), np.uint8)
    places = np.append(np.flatnonzero(text & 0xC0 != 0x80), len(text))  # of characters
    begins, ends = places[elements.begins], places[elements.begins + elements.sizes]
    bounds = places[np.cumsum([len(elements.codes), *map(len, labels)])]
    elements = elements._replace(codes=text, begins=begins, sizes=ends - begins)
    size, work = len(learned.keys), (plan, elements, tokens, learned, bounds)
    offsets, names = write_ragged(_render, size, 50 * size, size, np.uint8, *work)
    return names, offsets


@jit
def _render(
    first: int,
    stride: int,
    plan: WordPlan,
    elements: Elements,
    tokens: Tokens,
    learned: Learned,
    bounds: Any,
    offsets: Any,
    out: Any,
) -> None:
    """Write the names; see `write_ragged`.

    ``elements`` are in UTF-8, and behind them come labels, from ``bounds[k]`` on, and two signs.
    """
    text = elements.codes
    for column in range(first, len(learned.keys), stride):
        k, element = learned.templates[column], learned.examples[column]
        at = put(
            text, bounds[k], bounds[k + 1], out, np.int64(0) if out is None else offsets[column]
        )
        for atom in range(plan.atoms[k], plan.atoms[k + 1]):
            sign = bounds[-1] + int(atom > plan.atoms[k])
            at = put(text, sign, sign + 1, out, at)
            if plan.joint[k]:
                element = _example(plan, elements, tokens, atom, learned.examples[column])
            begin = elements.begins[element]
            at = put(text, begin, begin + elements.sizes[element], out, at)
        if out is None:
            offsets[column + 1] = at


@jit
def _example(plan: WordPlan, elements: Elements, tokens: Tokens, atom: int, token: int) -> Any:
    """Element of an atom of a joint feature that stands at this token."""
    s = np.searchsorted(tokens.offsets, token, side="right") - 1
    begin, end = tokens.offsets[s], tokens.offsets[s + 1]
    return np.int64(element_at(plan, elements, tokens, atom, token, begin, end))
