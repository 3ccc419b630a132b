"""Labels that are known in part: a missing one, some that are allowed, or probabilities.

In a column, or as strings in ``y``:

- ``?``: nobody labelled the token;
- ``B-PER|B-ORG``: one of these labels;
- ``B-PER=0.7|O=0.3``: labels with their probabilities, others have none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from softq.errors import DataError
from softq.formats.conll import MISSING, Sentence


def alternatives(label: str) -> dict[str, float]:
    """The labels that may be right, and their weights; none for a missing label.

    >>> alternatives("O"), alternatives("B-PER|O"), alternatives("B-PER=0.7|O=0.3"), alternatives("?")
    ({'O': 1.0}, {'B-PER': 1.0, 'O': 1.0}, {'B-PER': 0.7, 'O': 0.3}, {})

    """
    if label == MISSING:
        return {}
    found: dict[str, float] = {}
    parts = [part.rpartition("=") if "|" in label else ("", "", part) for part in label.split("|")]
    for name, sign, last in parts:
        try:
            weight = float(last) if sign else 1.0
        except ValueError:
            weight = math.nan
        name = name if sign else last
        if not (0 <= weight <= 1 and name) or name in found or sign != parts[0][1]:
            raise DataError(
                "expected a label, ? for a missing one, different labels such as B-PER|O, or"
                f" labels with probabilities such as B-PER=0.7|O=0.3, got {label!r}"
            )
        found[name] = weight
    if not sum(found.values()) > 0:
        raise DataError(f"expected a probability above 0, got {label!r}")
    return found


def spelled(label: object) -> str:
    """The same as a string: a label, None, a list of labels, or a dict of their probabilities.

    >>> spelled(None), spelled(["B-PER", "O"]), spelled({"B-PER": 0.7, "O": 0.3})
    ('?', 'B-PER|O', 'B-PER=0.7|O=0.3')

    """
    if label is None:
        return MISSING
    if isinstance(label, Mapping):
        share = "={}" if len(label) > 1 else ""
        return "|".join(f"{name}{share.format(weight)}" for name, weight in label.items())
    if isinstance(label, (list, tuple, set, frozenset)):
        return "|".join(sorted(map(str, label)))
    return str(label)


def certain(sentence: Sentence) -> Sentence:
    """The same with ``?`` for every label that leaves a choice, as annotators leave labels out.

    What judges tags passes over them.

    >>> list(certain(Sentence(("a", "b", "c"), (("O", "B-PER|O", "O"),))).pieces())
    [('', 0, ('O',)), ('', 2, ('O',))]

    """
    rows = [
        tuple(label if len(alternatives(label)) == 1 else MISSING for label in row)
        for row in sentence.labels
    ]
    return replace(sentence, labels=tuple(rows), annotators=("",) * len(rows))
