"""Templates of arcs: short strings that say which features an arc between a head and a dependent has.

A template is one or more atoms joined by ``|``. An atom is ``head``, ``dep`` or ``between``, a dot, and a column; in brackets a place
relative to that word may follow. A place before the sentence, one behind it and the root have values of their own.

| atom | value |
| --- | --- |
| ``head.word`` | the head's form, in lower case |
| ``dep.lemma`` | the dependent's lemma |
| ``head.upos[1]`` | the universal part of speech of the word right of the head |
| ``dep.xpos[-1]`` | the treebank's own part of speech, of the word left of the dependent |
| ``dep.feats`` | the morphological features |
| ``head.prefix``, ``head.suffix`` | the first and last three characters of the form, in lower case |
| ``dep.shape`` | X for a capital, d for a digit, x for another letter, else the character; one for each run |
| ``between.upos`` | a part of speech between head and dependent: a feature for each one that occurs; at most one such atom in a template |

Every feature is there twice: alone, and together with the direction and the length of the arc.
"""

from __future__ import annotations

import difflib
import re
import zlib
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from softq.errors import RecipeError
from softq.kernels.features.arcs import Plan

COLUMNS = ("word", "lemma", "upos", "xpos", "feats", "prefix", "suffix", "shape")
"""What is known of a word."""

_ATOM = re.compile(r"(head|dep|between)\.([a-z]+)(?:\[([+-]?\d{1,2})\])?")


class ArcTemplate(NamedTuple):
    """A template that was read: atoms (column, place) of the head and of the dependent, and the column between, if there is one."""

    text: str
    head: tuple[tuple[str, int], ...]
    dependent: tuple[tuple[str, int], ...]
    between: str | None

    @property
    def columns(self) -> set[str]:
        """The columns it reads."""
        return {column for column, _ in self.head + self.dependent} | (
            {self.between} if self.between else set()
        )

    @property
    def features(self) -> tuple[object, ...]:
        """What tells its features from those of other templates, however it is written."""
        return tuple(sorted(self.head)), tuple(sorted(self.dependent)), self.between


def _tags(tag: str) -> tuple[str, ...]:
    """Parts of speech of an arc, of the words around its ends and of those between (McDonald, Crammer and Pereira 2005)."""
    h, d = f"head.{tag}", f"dep.{tag}"
    return (
        h,
        d,
        f"{h}|{d}",
        f"{h}|{h}[1]|{d}[-1]|{d}",
        f"{h}[-1]|{h}|{d}[-1]|{d}",
        f"{h}|{h}[1]|{d}|{d}[1]",
        f"{h}[-1]|{h}|{d}|{d}[1]",
        f"{h}|{d}[-1]|{d}",
        f"{h}|{d}|{d}[1]",
        f"{h}|{h}[1]|{d}",
        f"{h}[-1]|{h}|{d}",
        f"{h}|{d}[-1]|{d}|{d}[1]",
        f"{h}[-1]|{h}|{h}[1]|{d}",
        f"{h}|{d}[-2]|{d}[-1]|{d}",
        f"{h}|{d}|{d}[1]|{d}[2]",
        f"{h}|{h}[1]|{h}[2]|{d}",
        f"{h}[-2]|{h}[-1]|{h}|{d}",
        f"{h}|between.{tag}|{d}",
    )


def _words(word: str, tag: str) -> tuple[str, ...]:
    """Words and parts of speech of the two ends (McDonald, Crammer and Pereira 2005)."""
    hw, dw, ht, dt = f"head.{word}", f"dep.{word}", f"head.{tag}", f"dep.{tag}"
    return (
        hw,
        dw,
        f"{hw}|{ht}",
        f"{dw}|{dt}",
        f"{hw}|{dw}",
        f"{hw}|{dt}",
        f"{ht}|{dw}",
        f"{hw}|{ht}|{dt}",
        f"{ht}|{dw}|{dt}",
        f"{hw}|{ht}|{dw}",
        f"{hw}|{dw}|{dt}",
        f"{hw}|{ht}|{dw}|{dt}",
    )


ARC_TEMPLATES = (
    *_tags("xpos"),
    *_tags("upos"),
    *_words("word", "xpos"),
    "head.word|dep.upos",
    "head.upos|dep.word",
    "head.lemma",
    "dep.lemma",
    "head.lemma|dep.lemma",
    "head.lemma|dep.upos",
    "head.upos|dep.lemma",
    "head.lemma|dep.xpos",
    "head.xpos|dep.lemma",
    "head.lemma|head.xpos|dep.lemma|dep.xpos",
    "head.feats|dep.feats",
    "head.upos|head.feats|dep.upos|dep.feats",
    "head.feats|dep.upos",
    "head.upos|dep.feats",
    "head.feats|dep.xpos",
    "head.xpos|dep.feats",
    "head.suffix|dep.suffix",
    "head.suffix|dep.upos",
    "head.upos|dep.suffix",
    "head.suffix|dep.xpos",
    "head.xpos|dep.suffix",
    "head.suffix|head.xpos",
    "dep.suffix|dep.xpos",
    "head.prefix|dep.upos",
    "head.upos|dep.prefix",
    "head.word|dep.upos[-1]|dep.upos",
    "head.word|dep.upos|dep.upos[1]",
    "head.upos[-1]|head.upos|dep.word",
    "head.upos|head.upos[1]|dep.word",
    "dep.word[-1]|dep.upos",
    "dep.word[1]|dep.upos",
    "head.word[1]|head.upos|dep.upos",
    "head.word[-1]|head.upos|dep.upos",
    "head.upos|dep.word[-1]|dep.upos",
    "head.upos|dep.word[1]|dep.upos",
    "head.word|head.word[1]|dep.upos",
    "head.upos|dep.word[-1]|dep.word",
)
"""Features of arcs after McDonald, Crammer and Pereira (2005), and lemmas, morphology, affixes and neighbouring words beside them."""

RELATION_TEMPLATES = (
    "head.upos|dep.upos",
    "head.xpos|dep.xpos",
    "dep.word",
    "dep.lemma",
    "dep.xpos",
    "dep.suffix",
    "dep.feats",
    "head.word",
    "head.lemma",
    "head.feats",
    "head.word|dep.word",
    "head.lemma|dep.lemma",
    "head.lemma|dep.upos",
    "head.upos|dep.lemma",
    "head.word|dep.xpos",
    "head.xpos|dep.word",
    "head.feats|dep.feats",
    "head.suffix|dep.suffix",
    "head.xpos|dep.suffix",
    "head.upos|dep.upos|dep.upos[1]",
    "head.upos|dep.upos[-1]|dep.upos",
    "head.upos[-1]|head.upos|dep.upos",
    "head.upos|head.upos[1]|dep.upos",
    "head.upos|dep.upos[-1]|dep.upos|dep.upos[1]",
    "dep.word[-1]|dep.upos",
    "dep.word[1]|dep.upos",
    "head.upos|dep.word[-1]|dep.upos",
    "head.upos|dep.word[1]|dep.upos",
    "head.lemma|dep.word[-1]",
    "head.lemma|dep.word[1]",
    "head.upos|between.upos|dep.upos",
)
"""Features of an arc's relation: its two words, and what stands around them."""


def templates_for(templates: Sequence[str], given: Collection[str]) -> tuple[str, ...]:
    """Those of these templates that read nothing but the columns that are given.

    Where one kind of parts of speech is missing, the other takes its place.

    >>> templates_for(["head.upos|dep.upos", "head.xpos|dep.xpos", "head.word|dep.xpos", "dep.lemma"], given={"word", "upos"})
    ('head.upos|dep.upos', 'head.word|dep.upos')
    """
    instead = {
        column: other
        for column, other in (("upos", "xpos"), ("xpos", "upos"))
        if column not in given and other in given
    }
    found: dict[tuple[object, ...], str] = {}
    for text in templates:
        for column, other in instead.items():
            text = text.replace(f".{column}", f".{other}")
        template = parse_arc_template(text)
        if template.columns <= set(given):
            found.setdefault(template.features, text)
    return tuple(found.values())


def parse_arc_template(text: str) -> ArcTemplate:
    """Read one template.

    >>> parse_arc_template("head.upos|dep.word[-1]").dependent
    (('word', -1),)
    """
    if not isinstance(text, str):
        raise RecipeError(
            f"a template of arcs must be a string such as 'head.upos|dep.word', got {text!r}"
        )
    sides: dict[str, list[tuple[str, int]]] = {"head": [], "dep": [], "between": []}
    for atom in text.split("|"):
        found = _ATOM.fullmatch(atom.strip())
        if found is None:
            raise RecipeError(
                f"template {text!r}: expected atoms such as head.word, dep.upos[-1] or between.upos, joined by |, got {atom.strip()!r}"
            )
        side, column, place = found.groups()
        if column not in COLUMNS:
            near = difflib.get_close_matches(column, COLUMNS, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise RecipeError(
                f"template {text!r}: expected one of the columns {', '.join(COLUMNS)}, got {column!r}{hint}"
            )
        sides[side].append((column, int(place or 0)))
    if len(sides["between"]) > 1 or any(place for _, place in sides["between"]):
        raise RecipeError(
            f"template {text!r}: expected at most one atom between, without a place, got {text.count('between.')}"
        )
    between = sides["between"][0][0] if sides["between"] else None
    return ArcTemplate(text, tuple(sides["head"]), tuple(sides["dep"]), between)


def columns_of(templates: Sequence[str]) -> tuple[str, ...]:
    """The columns that templates read."""
    read = set().union(*(parse_arc_template(text).columns for text in templates))
    return tuple(column for column in COLUMNS if column in read)


def make_plan(templates: Sequence[str], columns: Sequence[str]) -> Plan:
    """Templates as the kernels read them, for words whose columns stand in this order."""
    if isinstance(templates, str) or not templates:
        raise RecipeError(
            f"templates must be a sequence of at least one template, such as ('head.upos|dep.upos',), got {templates!r}"
        )
    parsed = [parse_arc_template(text) for text in templates]
    same: dict[tuple[object, ...], str] = {}
    for template in parsed:
        if template.features in same:
            other = same[template.features]
            raise RecipeError(
                f"templates {other!r} and {template.text!r} would give an arc the same features: leave one out"
            )
        same[template.features] = template.text
    parsed.sort(
        key=lambda template: template.between is not None
    )  # stable: those with a tag between come last
    between = sorted({columns.index(template.between) for template in parsed if template.between})
    numbers = [
        -1 if template.between is None else between.index(columns.index(template.between))
        for template in parsed
    ]
    atoms_from, atoms = _ragged(
        [
            [(columns.index(c), place) for c, place in side]
            for side in (*(t.head for t in parsed), *(t.dependent for t in parsed))
        ]
    )
    return Plan(
        # a crc tells strings apart on every machine, and the product spreads it over 64 bits
        seeds=np.array(
            [zlib.crc32(t.text.encode()) * 0x9E3779B97F4A7C15 % 2**64 for t in parsed], np.uint64
        ),
        atoms_from=np.stack([atoms_from[: len(parsed) + 1], atoms_from[len(parsed) :]]),
        atoms=atoms,
        between=np.array(numbers, np.int64),
        columns=np.array(between, np.int64),
        plain=numbers.count(-1),
    )


def _ragged(rows: Sequence[Sequence[tuple[int, int]]]) -> tuple[np.ndarray, np.ndarray]:
    """Where each row begins, and all rows one after another ``[A, 2]``."""
    begins = np.cumsum([0, *(len(row) for row in rows)])
    return begins.astype(np.int64), np.array(
        [pair for row in rows for pair in row], np.int64
    ).reshape(-1, 2)
