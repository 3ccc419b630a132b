"""What can be wrong with the lines of one sentence of a CoNLL-U file: columns and numbers."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

NAMES = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")
ID, FORM, HEAD, DEPREL, MISC = map(NAMES.index, ("ID", "FORM", "HEAD", "DEPREL", "MISC"))

_NUMBER = "(0|[1-9][0-9]*)"
RANGE = re.compile(f"{_NUMBER}-{_NUMBER}")
EMPTY_NODE = re.compile(rf"{_NUMBER}\.{_NUMBER}")

Report = Callable[[int, str], None]
"""Takes the place of a line in its sentence and what is wrong with it."""


def judge_columns(row: list[str], width: int, place: int, report: Report, *, tree: bool) -> None:
    """Report what is wrong with the columns of a line.

    Those of the tree may be empty where there need be no ``tree``.
    """
    if row[ID].startswith("#"):
        report(place, "expected comments before the first word of a sentence, got one inside it")
    elif len(row) != width:
        spaces = (
            "; columns must be separated by tabs, not spaces"
            if len(row) == 1 and len(row[0].split()) > 1
            else ""
        )
        report(
            place,
            f"expected {width} columns, {NAMES[0]} to {NAMES[width - 1]}, got {len(row)}{spaces}",
        )
    else:
        for k, text in enumerate(row):
            if not (text.strip(" ") if k == FORM else text) and (tree or k not in (HEAD, DEPREL)):
                report(
                    place,
                    (
                        f"expected _ where there is nothing to say, got an empty {NAMES[k]}"
                        if k != FORM
                        else _EMPTY_FORM
                    ),
                )


_EMPTY_FORM = "expected a word, got an empty FORM"


def judge_numbers(ids: tuple[str, ...], comments: int, report: Report) -> list[int]:
    """Places of the lines that hold words, in sentences that hold other lines too or whose IDs are wrong."""
    places: list[int] = []
    word = node = 0  # the last word, and the last empty node after it
    covered, range_place = 0, 0  # the last word of the last range, and where that range stands
    for place, text in enumerate(ids, start=comments):
        span = RANGE.fullmatch(text)
        if text == str(word + 1):
            word, node = word + 1, 0
            places.append(place)
        elif span:
            ends = as_numbers((span[1], span[2]))  # None: more digits than Python reads
            if ends is None or ends[0] != word + 1 or ends[1] < ends[0]:
                report(
                    place,
                    f"expected a range that begins with the next word, {word + 1}, got {text}",
                )
            elif ends[0] <= covered:
                report(
                    place,
                    f"expected a range beyond word {covered}, with which the range before it ends,"
                    f" got {text}",
                )
            else:
                covered, range_place = ends[1], place
        elif EMPTY_NODE.fullmatch(text):
            node += 1
            if text != f"{word}.{node}":
                report(place, f"expected {word}.{node} as the ID of an empty node here, got {text}")
        else:
            report(place, f"expected ID {word + 1}, got {text!r}")
            number = as_numbers((text,))
            if (
                number is not None and number[0] >= 0
            ):  # so that what follows a gap is not wrong as well
                word, node = number[0], 0
    if covered > word:
        report(
            range_place,
            f"expected a range within the {word} words of the sentence, got"
            f" {ids[range_place - comments]}",
        )
    return places


def as_numbers(texts: tuple[str, ...]) -> tuple[int, ...] | None:
    """The numbers that these are, None if one is none, or is not written as Python would."""
    try:
        numbers = tuple(map(int, texts))
    except ValueError:
        return None
    return numbers if tuple(map(str, numbers)) == texts else None


@lru_cache(maxsize=1024)
def first_numbers(n: int) -> tuple[str, ...]:
    """The IDs of a sentence of n words and nothing else."""
    return tuple(map(str, range(1, n + 1)))
