"""From words to the integers that features of arcs are made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple, Protocol

import numpy as np

from softq.errors import DataError
from softq.formats.file_checks import Tensors, as_array, one_of, string_list
from softq.kernels.features import arcs as kernels
from softq.linear.features.arc_templates import (
    ARC_TEMPLATES,
    COLUMNS,
    RELATION_TEMPLATES,
    columns_of,
    make_plan,
    templates_for,
)

Array = np.ndarray[Any, Any]

_AFFIX = 3
_FREQUENT = (
    "word",
    "lemma",
    "prefix",
    "suffix",
)  # columns of open vocabularies, where what is rare is as good as unknown
_NOTHING = "_"
_TELLING = (
    "lemma",
    "upos",
    "xpos",
)  # columns that every word has, if any has; there may be no morphology to tell of


class TaggedWords(Protocol):
    """A sentence whose words have what CoNLL-U gives them, "_" where it gives nothing (`softq.formats.conllu.TreeSentence` is one)."""

    @property
    def forms(self) -> Sequence[str]:
        """The words."""
        ...

    @property
    def lemmas(self) -> Sequence[str]:
        """Their lemmas."""
        ...

    @property
    def upos(self) -> Sequence[str]:
        """Universal parts of speech."""
        ...

    @property
    def xpos(self) -> Sequence[str]:
        """The treebank's own."""
        ...

    @property
    def feats(self) -> Sequence[str]:
        """Morphological features."""
        ...


def shape(form: str) -> str:
    """X for a capital, d for a digit, x for another letter, else the character; one for each run.

    >>> shape("U.S.-based"), shape("2026")
    ('X.X.-x', 'd')
    """
    symbols = (
        "X" if c.isupper() or c.istitle() else "d" if c.isdigit() else "x" if c.isalpha() else c
        for c in form
    )
    return "".join(symbol for symbol, _ in groupby(symbols))


_READ: dict[str, tuple[str, Callable[[str], str]]] = {
    "word": ("forms", str.lower),
    "lemma": ("lemmas", str),
    "upos": ("upos", str),
    "xpos": ("xpos", str),
    "feats": ("feats", str),
    "prefix": ("forms", lambda form: form.lower()[:_AFFIX]),
    "suffix": ("forms", lambda form: form.lower()[-_AFFIX:]),
    "shape": ("forms", shape),
}


class ArcCodes(NamedTuple):
    """The words of N sentences as numbers, each sentence beginning with its root.

    Attributes:
        codes: ``[columns, words and roots]`` int32.
        starts: ``[N + 1]`` int64, where sentences begin.

    """

    codes: Array
    starts: Array

    @property
    def lengths(self) -> Array:
        """Words of each sentence, without the root."""
        return np.diff(self.starts) - 1

    def take(self, sentences: Array) -> ArcCodes:
        """Those of these sentences (numbers ``[M]``), in this order."""
        sizes = self.starts[sentences + 1] - self.starts[sentences]
        starts = np.concatenate([[0], np.cumsum(sizes)])
        places = np.arange(starts[-1]) + np.repeat(self.starts[sentences] - starts[:-1], sizes)
        return ArcCodes(np.ascontiguousarray(self.codes[:, places]), starts)


def given_columns(sentences: Sequence[TaggedWords]) -> set[str]:
    """The columns in which some word has something."""
    found = set()
    for column, (attribute, _) in _READ.items():
        if any(
            value != _NOTHING for sentence in sentences for value in getattr(sentence, attribute)
        ):
            found.add(column)
    return found


@dataclass(frozen=True)
class ArcIndex:
    """Templates of arcs and of their relations, and a number for each string that training has shown often enough.

    Attributes:
        templates: features of arcs, as in `softq.linear.features.arc_templates`.
        relation_templates: features of an arc's relation.
        strings: for each column that they read, its known strings; the first has the number `FIRST`.

    """

    templates: tuple[str, ...]
    relation_templates: tuple[str, ...]
    strings: Mapping[str, tuple[str, ...]]

    @cached_property
    def plan(self) -> kernels.Plan:
        """Templates as the kernels read them."""
        return make_plan(self.templates, tuple(self.strings))

    @cached_property
    def relation_plan(self) -> kernels.Plan:
        """Templates of relations likewise."""
        return make_plan(self.relation_templates, tuple(self.strings))

    @cached_property
    def _numbers(self) -> dict[str, dict[str, int]]:
        return {
            name: {text: k for k, text in enumerate(known, kernels.FIRST)}
            for name, known in self.strings.items()
        }

    @classmethod
    def fit(
        cls,
        sentences: Sequence[TaggedWords],
        templates: Sequence[str] | None = None,
        relation_templates: Sequence[str] | None = None,
        *,
        min_freq: int = 2,
    ) -> ArcIndex:
        """Number the strings of sentences.

        Args:
            sentences: to learn from.
            templates: features of arcs; by default those of `ARC_TEMPLATES` that read what the sentences have.
            relation_templates: likewise, `RELATION_TEMPLATES`.
            min_freq: words, lemmas and affixes that occur less often are as good as unknown.

        """
        given = given_columns(sentences)
        if not given and None in (templates, relation_templates):
            raise DataError(
                "the sentences have nothing to look at: expected words with at least a FORM or a part of speech, got '_' alone"
            )
        arcs = tuple(templates) if templates is not None else templates_for(ARC_TEMPLATES, given)
        relations = (
            tuple(relation_templates)
            if relation_templates is not None
            else templates_for(RELATION_TEMPLATES, given)
        )
        columns = columns_of((*arcs, *relations))
        for plan in (arcs, relations):
            make_plan(plan, columns)  # what is wrong with them is told now
        strings = {}
        for column in columns:
            attribute, read = _READ[column]
            counts: Counter[str] = Counter()
            for text, count in Counter(
                value for sentence in sentences for value in getattr(sentence, attribute)
            ).items():
                counts[read(text)] += count
            least = min_freq if column in _FREQUENT else 1
            strings[column] = tuple(
                sorted(text for text, count in counts.items() if count >= least)
            )
        return cls(arcs, relations, strings)

    def encode(self, sentences: Sequence[TaggedWords]) -> ArcCodes:
        """Numbers of the words of sentences."""
        sizes = [len(sentence.forms) + 1 for sentence in sentences]
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        roots = np.zeros(int(starts[-1]), bool)
        roots[starts[:-1]] = True
        codes = np.full((len(self.strings), int(starts[-1])), kernels.ROOT, np.int32)
        for row, (column, known) in zip(codes, self._numbers.items(), strict=True):
            attribute, read = _READ[column]
            memory: dict[str, int] = {}
            found = []
            for number, sentence in enumerate(sentences):
                values = getattr(sentence, attribute)
                if len(values) != len(sentence.forms):
                    raise DataError(
                        f"sentence {number}: expected {len(sentence.forms)} {attribute}, one per word, got {len(values)}"
                    )
                for value in values:
                    if value not in memory:
                        memory[value] = known.get(read(value), kernels.UNKNOWN)
                    found.append(memory[value])
            row[~roots] = found
        return ArcCodes(codes, starts)

    # --- on the disk ------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Array]:
        """Known strings, one per line; a form may hold anything but the line's end."""
        return {
            name: np.frombuffer("\n".join(strings).encode(), np.uint8)
            for name, strings in self.strings.items()
        }

    def notes(self) -> dict[str, Any]:
        """The rest, as JSON can hold it."""
        return {
            "templates": list(self.templates),
            "relation_templates": list(self.relation_templates),
            "columns": list(self.strings),
        }

    @classmethod
    def from_tensors(cls, tensors: Tensors, notes: Mapping[str, Any]) -> ArcIndex:
        """The index of `tensors` and `notes`; what templates read is there."""
        columns = [
            one_of("a column", name, COLUMNS) for name in string_list("columns", notes["columns"])
        ]
        texts = {
            name: as_array(name, tensors[name], np.uint8, 1).tobytes().decode() for name in columns
        }
        known = {name: tuple(text.split("\n")) if text else () for name, text in texts.items()}
        found = cls(
            string_list("templates", notes["templates"]),
            string_list("relation_templates", notes["relation_templates"]),
            known,
        )
        found.plan, found.relation_plan  # noqa: B018 -- made here, so that what is wrong with them is told when a file is opened
        return found


def tag_columns(index: ArcIndex, *, relations: bool = True) -> list[str]:
    """The columns beside FORM that templates read and training had, by their CoNLL-U names.

    Args:
        index: of a parser.
        relations: whether it has relations; without them what their templates read does not matter.

    """
    read = columns_of((*index.templates, *(index.relation_templates if relations else ())))
    return [
        name.upper()
        for name in (*_TELLING, "feats")
        if name in read and {*index.strings[name]} - {_NOTHING}
    ]


def lacking_columns(
    index: ArcIndex, sentences: Sequence[TaggedWords], *, relations: bool = True
) -> list[str]:
    """Those of `tag_columns` that none of these sentences has; [] if they are fine, or have no words.

    FEATS is not among them: there may be no morphology to tell of. Nor is LEMMA where every FORM is "_", whose lemma is "_" as well.
    Ask it once for a whole file, or for enough of its words: a few of them may lack a column for good reasons.

    >>> from softq.formats.conllu import TreeSentence
    >>> index = ArcIndex.fit([TreeSentence(("dogs",), ("dog",), ("NOUN",), ("_",), ("_",))], ["dep.upos"], ["dep.lemma"], min_freq=1)
    >>> bare = TreeSentence(("cats",), ("_",), ("_",), ("_",), ("_",))
    >>> lacking_columns(index, [bare]), lacking_columns(index, [bare], relations=False)
    (['LEMMA', 'UPOS'], ['UPOS'])
    """
    given = given_columns(sentences)
    if "word" not in given:
        given.add("lemma")
    wanted = [name for name in tag_columns(index, relations=relations) if name.lower() in _TELLING]
    return (
        [name for name in wanted if name.lower() not in given]
        if any(sentence.forms for sentence in sentences)
        else []
    )
