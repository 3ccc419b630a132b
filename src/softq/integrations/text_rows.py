"""Rows of text: a source, references, and perhaps candidates with rewards, checked.

Nothing here imports Transformers, so that files of rows can be read without.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from numbers import Real
from typing import Any

import numpy as np
from torch import Tensor

from softq.errors import DataError

_NEAR = 0.7  # share of letters in common from which a name is taken for another one misspelt

TEXT_COLUMNS = ("source", "references", "candidates", "candidate_rewards")


def text_row(row: Any, *, references: bool = True) -> dict[str, Any]:
    """The columns of a row that are known, those that it has, as plain lists.

    A column that is called nearly like one that is missing is an error; ``references`` says whether
    these are needed, and an empty text is none.

    >>> text_row({"source": "a", "references": "b", "number": 7})
    {'source': 'a', 'references': ['b']}
    """
    if not isinstance(row, Mapping):
        raise DataError(
            f"a row must be a mapping with 'source' and 'references', got {type(row).__name__}"
        )
    check_columns(row, TEXT_COLUMNS)
    found = {name: plain(row.get(name)) for name in TEXT_COLUMNS}
    if isinstance(found["references"], str):
        found["references"] = [found["references"]] if found["references"] else []
    wanted = references or isinstance(row.get("references"), str)
    _check_texts(found, row, ("source", "references") if wanted else ("source",))
    rewards = found["candidate_rewards"]
    reward_lists(rewards, len(found["candidates"] or []), len(found["references"] or []))
    return {name: value for name, value in found.items() if value}


def check_columns(row: Mapping[str, Any], known: Sequence[str]) -> None:
    """An error if a column that is not known is called nearly like one that is, and that is missing.

    >>> check_columns({"labels": [1], "candidate_scores": [0.5]}, ("labels", "candidate_rewards"))
    Traceback (most recent call last):
    softq.errors.DataError: a row has no column 'candidate_rewards', but one called 'candidate_scores': rename it, or remove it
    """
    missing = [name for name in known if row.get(name) is None]
    for name in row:
        near = get_close_matches(str(name), missing, 1, _NEAR) if name not in known else []
        if near:
            raise DataError(
                f"a row has no column {near[0]!r}, but one called {name!r}: rename it, or remove it"
            )


def _check_texts(found: Mapping[str, Any], row: Mapping[str, Any], needed: Sequence[str]) -> None:
    for name in ("references", "candidates"):
        texts = found[name] or []
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise DataError(f"{name!r} of a row must be a list of texts, got {found[name]!r}")
    for name in needed:
        if not found[name] or not str(found[name]).strip():
            raise DataError(f"a row needs {name!r}, got {sorted(row)}")
    if not all(text.strip() for text in found["references"] or []):
        raise DataError(
            "a reference is empty, which leaves nothing to generate: remove it from the row of"
            f" source {found['source']!r}"
        )


def reward_lists(given: Any, candidates: int, references: int) -> list[list[float]] | None:
    """Rewards of each candidate, against each reference or, in one number, against all; None of None.

    >>> reward_lists([0.5, [1, 2]], 2, 2)
    [[0.5], [1.0, 2.0]]
    """
    if given is None:
        return None
    if not isinstance(given, list) or len(given) != candidates:
        raise DataError(
            f"candidate_rewards must have a value for each of {candidates} candidates, got {given}"
        )
    listed = [value if isinstance(value, list) else [value] for value in given]
    if not all(is_number(value) for values in listed for value in values):
        raise DataError(f"candidate_rewards must be finite numbers, got {given}")
    for values in listed:
        if len(values) not in (1, references):
            raise DataError(
                f"candidate_rewards must give one number, or one for each of {references}"
                f" references, got {len(values)}"
            )
    return [[float(value) for value in values] for values in listed]


def plain(value: Any) -> Any:
    """Tensors, arrays and tuples as lists, and lists of them."""
    if isinstance(value, (Tensor, np.ndarray)):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        nested = any(isinstance(part, (Tensor, np.ndarray, list, tuple)) for part in value[:1])
        return [plain(part) for part in value] if nested else list(value)
    return value


def is_number(value: Any) -> bool:
    """Whether this is a finite number."""
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
