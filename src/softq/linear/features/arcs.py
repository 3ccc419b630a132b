"""From words to the integers that features of arcs are made of."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby
from typing import Any, NamedTuple

import numpy as np

from softq.errors import DataError
from softq.formats.conllu import TreeSentence
from softq.formats.file_checks import Tensors, as_array, one_of, string_list
from softq.kernels.features import arcs as kernels
from softq.linear.features.matrix import Array
from softq.linear.features.templates import (
    ARC_TEMPLATES,
    COLUMNS,
    RELATION_TEMPLATES,
    columns_of,
    parse_templates,
    templates_for,
)

_AFFIX = 3
# Columns of open vocabularies, in which a rare string is treated as an unknown one.
_FREQUENT = ("word", "lemma", "prefix", "suffix")
_NOTHING = "_"
_TAGS = ("upos", "xpos")  # a parser that has learnt from parts of speech needs one kind of them


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


def given_columns(sentences: Sequence[TreeSentence]) -> set[str]:
    """The columns in which some word has something."""
    return {
        column
        for column, (attribute, _) in _READ.items()
        if any(
            value != _NOTHING for sentence in sentences for value in getattr(sentence, attribute)
        )
    }


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
    def plan(self) -> kernels.ArcPlan:
        """Templates as the kernels read them."""
        return make_plan(self.templates, tuple(self.strings))

    @cached_property
    def relation_plan(self) -> kernels.ArcPlan:
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
        sentences: Sequence[TreeSentence],
        templates: Sequence[str] | None = None,
        relation_templates: Sequence[str] | None = None,
        *,
        min_freq: int = 2,
    ) -> ArcIndex:
        """Number the strings of sentences.

        Args:
            sentences: to learn from.
            templates: features of arcs; by default those of `ARC_TEMPLATES` that read what the
                sentences have.
            relation_templates: likewise, `RELATION_TEMPLATES`.
            min_freq: words, lemmas and affixes that occur less often are as good as unknown.

        """
        given = given_columns(sentences)
        if not given and None in (templates, relation_templates):
            raise DataError(
                "the sentences have nothing to look at: expected words with at least a FORM or a"
                " part of speech, got '_' alone"
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

    def encode(self, sentences: Sequence[TreeSentence]) -> ArcCodes:
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
                        f"sentence {number}: expected {len(sentence.forms)} {attribute}, one per"
                        f" word, got {len(values)}"
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


def make_plan(templates: Sequence[str], columns: Sequence[str]) -> kernels.ArcPlan:
    """Templates as the kernels read them, for words whose columns stand in this order."""
    parsed = parse_templates(templates, arcs=True)
    # stable: those with a tag between come last
    parsed = tuple(sorted(parsed, key=lambda template: bool(template.of("between"))))
    sides = [template.of(side) for side in ("head", "dep") for template in parsed]
    begins = np.array([0, *accumulate(map(len, sides))], np.int64)
    atoms = [(columns.index(atom.name), atom.first) for side in sides for atom in side]
    tags = [[columns.index(atom.name) for atom in template.of("between")] for template in parsed]
    between = sorted({column for tag in tags for column in tag})
    return kernels.ArcPlan(
        # a crc tells strings apart on every machine, and the product spreads it over 64 bits
        seeds=np.array(
            [zlib.crc32(t.text.encode()) * 0x9E3779B97F4A7C15 % 2**64 for t in parsed], np.uint64
        ),
        atoms_from=np.stack([begins[: len(parsed) + 1], begins[len(parsed) :]]),
        atoms=np.array(atoms, np.int64).reshape(-1, 2),
        between=np.array([between.index(tag[0]) if tag else -1 for tag in tags], np.int64),
        columns=np.array(between, np.int64),
        plain=tags.count([]),
    )


def lacks_tags(
    index: ArcIndex, sentences: Sequence[TreeSentence], *, relations: bool = True
) -> bool:
    """Whether a parser has learnt from parts of speech, and no word of these sentences has one.

    Without them its trees would be poor. Any other column may be missing, and so may one of the
    two kinds of parts of speech: features of what is missing are absent, as those of unknown words
    are.

    >>> tagged = TreeSentence(("dogs",), ("dog",), ("NOUN",), ("NNS",), ("_",))
    >>> index = ArcIndex.fit([tagged], min_freq=1)
    >>> bare = TreeSentence(("cats",), ("_",), ("_",), ("_",), ("_",))
    >>> words_and_upos = TreeSentence(("cats",), ("_",), ("NOUN",), ("_",), ("_",))
    >>> lacks_tags(index, [bare]), lacks_tags(index, [words_and_upos])
    (True, False)
    """
    read = columns_of((*index.templates, *(index.relation_templates if relations else ())))
    learnt = any({*index.strings[name]} - {_NOTHING} for name in _TAGS if name in read)
    words = any(sentence.forms for sentence in sentences)
    return learnt and words and not given_columns(sentences) & {*_TAGS}
