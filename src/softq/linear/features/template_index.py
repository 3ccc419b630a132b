"""Features of words by templates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from softq.errors import DataError
from softq.formats.file_checks import string_list
from softq.kernels.features.columns import learn, number_by_occurrence, render_names
from softq.kernels.features.words import (
    UNKNOWN,
    Elements,
    Tokens,
    WordPlan,
    affixes,
    drop_unknown,
    hash_texts,
    look_up,
    ngrams,
    shapes,
    write_rows,
)
from softq.linear.features.matrix import (
    Array,
    FeatureIndex,
    FeatureMatrix,
    Stream,
    Texts,
    check_min_freq,
    encode,
    named_columns,
    read_stream,
    shape_symbols,
)
from softq.linear.features.templates import (
    Atom,
    Template,
    check_columns,
    default_templates,
    parse_templates,
)

Sentences = Sequence[Sequence[str]]

_LONGEST_RUN = {"shape": 4, "type": 1}
_ENDS = ("<s>", "</s>")
_END_HASHES = np.array(
    [0x13198A2E03707344, 0xA4093822299F31D0], np.uint64
)  # of no text: a word "<s>" is another value than the end


class TemplateIndex(FeatureIndex):
    """Columns of the features that templates give to tokens.

    See `softq.linear.features.templates` for the language.

    Made by `fit`; numbers of columns are in order of first occurrence. Features are told apart by
    64-bit keys, which are not expected to collide, and looked up in a table that can be mapped from
    a file. Results do not depend on the number of threads.

    >>> index, matrix = TemplateIndex.fit([["In", "Paris"]], ["word[0]", "word[-1]|word[0]", "suffix[0]{1:2}"])
    >>> index.names()
    ['word[0]=In', 'word[-1]|word[0]=<s>|In', 'suffix[0]=n', 'suffix[0]=In',
     'word[0]=Paris', 'word[-1]|word[0]=In|Paris', 'suffix[0]=s', 'suffix[0]=is']
    >>> index.transform([["Paris", "n"]]).indices  # the second word is new, but not its last character
    array([4, 6, 7, 2], dtype=int32)
    """

    _kind = "templates"

    def __init__(
        self,
        templates: Sequence[str],
        tensors: Mapping[str, Array],
        hash_bits: int | None = None,
    ) -> None:
        super().__init__(tensors, hash_bits)
        self._templates = parse_templates(templates)

    @classmethod
    def fit(
        cls,
        sentences: Sentences,
        templates: Sequence[str] | None = None,
        *,
        columns: Mapping[str, Sentences] | None = None,
        min_freq: int = 1,
        hash_bits: int | None = None,
    ) -> tuple[TemplateIndex, FeatureMatrix]:
        """Number the features of sentences; the index, and the features as a matrix.

        Args:
            sentences: Words.
            templates: What features there are; by default `default_templates` of the columns given.
            columns: Further strings along the words, such as parts of speech, by the name templates
                have for them.
            min_freq: Features on fewer tokens are dropped.
            hash_bits: Keep no table: the column is the lowest bits of the key, and features may
                share it.

        """
        check_min_freq(min_freq, hash_bits)
        if templates is None:
            templates = default_templates(columns or ())
        if hash_bits is not None:
            index = cls(templates, {}, hash_bits)
            return index, index.transform(sentences, columns)
        parsed = parse_templates(templates)
        work = _Extraction.of(parsed, sentences, columns)
        learned, resolved = learn(*work)
        offsets, indices = write_rows(*work, resolved)
        learned = learned.take(number_by_occurrence(indices, len(learned.keys)))
        if min_freq > 1:
            frequent = (
                np.bincount(indices, minlength=len(learned.keys)) >= min_freq
            )  # a row has a column at most once
            numbers = np.where(frequent, np.cumsum(frequent) - 1, UNKNOWN).astype(np.int32)
            offsets, indices = drop_unknown(offsets, numbers[indices])
            learned = learned.take(frequent)
        matrix = FeatureMatrix(offsets, indices, None, work.lengths, len(learned.keys))
        names = render_names(*work, learned, [template.label for template in parsed])
        return cls(templates, named_columns(learned.keys, *names)), matrix

    def transform(
        self, sentences: Sentences, columns: Mapping[str, Sentences] | None = None
    ) -> FeatureMatrix:
        """Features of sentences; those that `fit` has not met (or not kept) are left out."""
        work = _Extraction.of(self._templates, sentences, columns)
        rows = write_rows(*work, look_up(*work, self.known))
        return FeatureMatrix(*rows, None, work.lengths, self.size)

    @property
    def templates(self) -> tuple[str, ...]:
        """The templates, as they were given."""
        return tuple(template.text for template in self._templates)

    def notes(self) -> dict[str, Any]:
        """What else to save: it can stand in JSON."""
        return super().notes() | {"templates": list(self.templates)}

    @classmethod
    def _restored(cls, arrays: Mapping[str, Array], notes: Mapping[str, Any]) -> TemplateIndex:
        templates = string_list("templates", notes["templates"])
        return cls(templates, arrays, notes["hash_bits"])


class _Extraction(NamedTuple):
    """Templates over sentences, as kernels want them."""

    plan: WordPlan
    elements: Elements
    tokens: Tokens

    @classmethod
    def of(
        cls,
        templates: Sequence[Template],
        sentences: Sentences,
        columns: Mapping[str, Sentences] | None,
    ) -> _Extraction:
        columns = columns or {}
        needed = check_columns(templates, columns)
        words, lengths = read_stream("word", sentences)
        streams: dict[str | None, Stream] = {None: words}
        for name in needed:
            streams[name], others = read_stream(f"column {name!r}", columns[name])
            _check_lengths(name, lengths, others)
        atoms = _AtomBlocks(streams, [atom for template in templates for atom in template.atoms])
        elements = atoms.elements()
        plan = _plan(templates, atoms)
        tokens = Tokens(
            np.stack([stream.ids for stream in streams.values()]),
            np.concatenate([[0], np.cumsum(lengths)]),
        )
        return cls(plan, elements, tokens)

    @property
    def lengths(self) -> Array:
        """Tokens of each sentence."""
        return np.diff(self.tokens.offsets)


class _AtomBlocks:
    """Elements of each atom for every entry of its stream, one block after the other.

    Atoms at several places share one.
    """

    def __init__(self, streams: Mapping[str | None, Stream], atoms: Sequence[Atom]) -> None:
        self.streams = {name: number for number, name in enumerate(streams)}
        self._distinct = {name: stream.distinct for name, stream in streams.items()}
        self._texts: dict[str | None, Texts] = {}
        self._blocks: dict[tuple[str, int, int], tuple[int, int]] = {}
        self._parts: list[Elements] = []
        self._codes = self._elements = self._entries = 0
        for key, atom in {self._key(atom): atom for atom in atoms}.items():
            self._add(key, atom)

    def _add(self, key: tuple[str, int, int], atom: Atom) -> None:
        made = self._make(atom)
        ends = encode(_ENDS)
        count = len(made.begins)
        part = Elements(
            np.concatenate([made.codes, ends.codes]),
            np.concatenate([made.begins, len(made.codes) + ends.begins]) + self._codes,
            np.concatenate([made.sizes, ends.sizes]),
            np.concatenate([made.hashes, _END_HASHES]),
            np.concatenate([made.offsets, [count + 1]])
            + self._elements,  # the end of the last is the next one's start
        )
        self._blocks[key] = self._entries, len(part.offsets)
        self._parts.append(part)
        self._codes += len(part.codes)
        self._elements += len(part.begins)
        self._entries += len(part.offsets)

    def block(self, atom: Atom) -> tuple[int, int]:
        """Where the entries of an atom begin, and how many these are."""
        return self._blocks[self._key(atom)]

    def elements(self) -> Elements:
        if not self._parts:  # the bias and nothing else
            empty = np.zeros(0, np.int64)
            return Elements(
                np.zeros(0, np.uint32), empty, empty, empty.view(np.uint64), np.zeros(1, np.int64)
            )
        joined = Elements(*(np.concatenate(fields) for fields in zip(*self._parts, strict=True)))
        return joined._replace(offsets=np.append(joined.offsets, self._elements))

    @staticmethod
    def _key(atom: Atom) -> tuple[str, int, int]:
        return "word" if atom.name == "bag" else atom.name, atom.low, atom.high

    def _make(self, atom: Atom) -> Elements:
        distinct = self._distinct[atom.column]
        if atom.name == "lower":
            return _one_each(encode([word.lower() for word in distinct]))
        if atom.column not in self._texts:
            self._texts[atom.column] = encode(distinct)
        texts = self._texts[atom.column]
        if atom.name == "ngrams":
            return ngrams(*texts, atom.low, atom.high)
        if atom.name in ("prefix", "suffix"):
            return affixes(*texts, atom.low, atom.high, at_end=atom.name == "suffix")
        if atom.name in _LONGEST_RUN:
            symbols = shape_symbols(distinct)
            return _one_each(Texts(*shapes(*texts, symbols, _LONGEST_RUN[atom.name])))
        return _one_each(texts)


def _one_each(texts: Texts) -> Elements:
    return Elements(*texts, hash_texts(*texts), np.arange(len(texts.begins) + 1))


def _plan(templates: Sequence[Template], blocks: _AtomBlocks) -> WordPlan:
    """Templates as numbers."""
    joint = np.array([len(template.atoms) != 1 for template in templates])
    sizes = np.array(
        [
            0 if len(template.atoms) != 1 else blocks.block(template.atoms[0])[1]
            for template in templates
        ]
    )
    atoms = [atom for template in templates for atom in template.atoms]
    return WordPlan(
        salts=hash_texts(*encode([template.label for template in templates])),
        joint=joint,
        atoms=np.concatenate(
            [[0], np.cumsum([len(template.atoms) for template in templates], dtype=np.int64)]
        ),
        lows=np.array([atom.first for atom in atoms], np.int64),
        highs=np.array([atom.last for atom in atoms], np.int64),
        streams=np.array([blocks.streams[atom.column] for atom in atoms], np.int64),
        entries=np.array([blocks.block(atom)[1] - 2 for atom in atoms], np.int64),
        blocks=np.array([blocks.block(atom)[0] for atom in atoms], np.int64),
        rows=np.where(joint, np.cumsum(joint) - joint, np.cumsum(sizes) - sizes),
    )


def _check_lengths(name: str, lengths: Array, others: Array) -> None:
    if len(lengths) != len(others):
        raise DataError(
            f"column {name!r} must have as many sentences as there are, {len(lengths)}, got"
            f" {len(others)}"
        )
    wrong = np.flatnonzero(lengths != others)
    if len(wrong):
        first = wrong[0]
        raise DataError(
            f"column {name!r} must have a string for each of the {lengths[first]} tokens of"
            f" sentence {first}, got {others[first]}"
        )
