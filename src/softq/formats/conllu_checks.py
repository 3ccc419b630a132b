"""What can be wrong with the lines of one sentence of a CoNLL-U file: columns and numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

NAMES = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")
ID, FORM, HEAD, DEPREL, MISC = map(NAMES.index, ("ID", "FORM", "HEAD", "DEPREL", "MISC"))

_NUMBER = "(0|[1-9][0-9]*)"
RANGE = re.compile(f"{_NUMBER}-{_NUMBER}")
EMPTY_NODE = re.compile(rf"{_NUMBER}\.{_NUMBER}")

Wrong = tuple[int, str]
"""The place of a line after the comments of its sentence, and what is wrong with it."""


def column_faults(rows: Sequence[list[str]], width: int, *, tree: bool) -> Iterator[Wrong]:
    """What is wrong with the columns of lines.

    Those of the tree may be empty where there need be no ``tree``.
    """
    for place, row in enumerate(rows):
        if len(row) == width and "" not in row and row[FORM].strip(" "):
            continue
        if row[ID].startswith("#"):
            yield place, "expected comments before the first word of a sentence, got one inside it"
        elif len(row) != width:
            of_spaces = len(row) == 1 and len(row[0].split()) > 1
            hint = "; columns must be separated by tabs, not spaces" if of_spaces else ""
            expected = f"expected {width} columns, {NAMES[0]} to {NAMES[width - 1]}"
            yield place, f"{expected}, got {len(row)}{hint}"
        elif not row[FORM].strip(" "):
            yield place, "expected a word, got an empty FORM"
        else:
            for k, text in enumerate(row):
                if not text and (tree or k not in (HEAD, DEPREL)):
                    yield (
                        place,
                        f"expected _ where there is nothing to say, got an empty {NAMES[k]}",
                    )


def word_places(ids: Sequence[str], wrong: list[Wrong]) -> list[int]:
    """The lines that hold words, in a sentence that holds other lines too or whose IDs are wrong."""
    places: list[int] = []
    word = node = 0  # the last word, and the last empty node after it
    covered, range_place = 0, 0  # the last word of the last range, and where that range stands
    for place, text in enumerate(ids):
        expected = ""
        if text == str(word + 1):
            word, node = word + 1, 0
            places.append(place)
        elif span := RANGE.fullmatch(text):
            expected = _expected_range(span.groups(), word, covered)
            if not expected:
                covered, range_place = int(span[2]), place
        elif EMPTY_NODE.fullmatch(text):
            node += 1
            if text != f"{word}.{node}":
                expected = f"{word}.{node} as the ID of an empty node here"
        else:
            wrong.append((place, f"expected ID {word + 1}, got {text!r}"))
            number = as_numbers((text,))
            if number and number[0] >= 0:  # so that what follows a gap is not wrong as well
                word, node = number[0], 0
        if expected:
            wrong.append((place, f"expected {expected}, got {text}"))
    if covered > word:
        within = f"expected a range within the {word} words of the sentence"
        wrong.append((range_place, f"{within}, got {ids[range_place]}"))
    if not places and not wrong:
        wrong.append((0, "expected at least one word, got none"))
    return places


def _expected_range(ends: tuple[str, ...], word: int, covered: int) -> str:
    """What should stand in place of a range after these words; empty if nothing else."""
    first, last = as_numbers(ends) or (0, 0)  # more digits than Python reads
    if first != word + 1 or last < first:
        return f"a range that begins with the next word, {word + 1}"
    if first <= covered:
        return f"a range beyond word {covered}, with which the range before it ends"
    return ""


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
