"""Features of words as a sparse matrix: from strings to numbers, from keys to columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from softq.checks import check_count
from softq.errors import DataError, RecipeError
from softq.formats.file_checks import Tensors, as_array, check_offsets, check_slots
from softq.kernels.features.words import KeyColumns, number_keys

Array = np.ndarray[Any, Any]


class FeatureMatrix(NamedTuple):
    """Features of the T tokens of N sentences, a row per token.

    The columns of row t are ``indices[offsets[t] : offsets[t + 1]]``.

    Attributes:
        offsets: ``[T + 1]`` int64.
        indices: ``[nnz]`` int32, columns; a column that stands twice in a row counts twice.
        values: ``[nnz]`` float32, or None where every feature has the value 1.
        lengths: ``[N]`` int64, tokens of each sentence; they sum to T.
        size: F, number of columns.

    """

    offsets: Array
    indices: Array
    values: Array | None
    lengths: Array
    size: int

    @property
    def tokens(self) -> int:
        """T, number of rows."""
        return len(self.offsets) - 1

    def take(self, sentences: Array) -> FeatureMatrix:
        """The rows of these sentences (numbers ``[M]``), in this order.

        >>> whole = FeatureMatrix(np.array([0, 1, 3]), np.array([4, 0, 2], np.int32), None, np.array([1, 1]), 5)
        >>> whole.take(np.array([1])).indices
        array([0, 2], dtype=int32)
        """
        starts = np.concatenate([[0], np.cumsum(self.lengths)])
        rows = _ranges(starts[sentences], self.lengths[sentences])
        counts = np.diff(self.offsets)[rows]
        cells = _ranges(self.offsets[rows], counts)
        return FeatureMatrix(
            offsets=np.concatenate([[0], np.cumsum(counts)]),
            indices=self.indices[cells],
            values=None if self.values is None else self.values[cells],
            lengths=self.lengths[sentences],
            size=self.size,
        )


def _ranges(starts: Array, counts: Array) -> Array:
    """``starts[0], …, starts[0] + counts[0] - 1, starts[1], …`` as one array."""
    shifts = np.repeat(starts - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts)
    return shifts + np.arange(len(shifts))


def batches_of_like_lengths(
    lengths: Array, cells: Array, most: int, copies: Array | None = None, *, padded: bool = True
) -> Iterator[Array]:
    """Numbers of sentences that have words, from short to long, in batches of about ``most`` cells.

    Args:
        lengths: of the sentences, ``[N]``.
        cells: of each sentence, which grow with its length.
        most: cells of a batch, unless a single sentence has more.
        copies: how often a sentence has its cells, by which sentences of one length are sorted;
            in a batch all have as many as the one with most. None: once.
        padded: whether in a batch all sentences have as many cells as the longest.

    >>> lengths = np.array([2, 0, 1, 5, 2])
    >>> [batch.tolist() for batch in batches_of_like_lengths(lengths, lengths, 6)]
    [[2, 0, 4], [3]]

    """
    copies = np.ones(len(lengths), np.int64) if copies is None else copies
    order = np.lexsort((copies, lengths))
    order = order[lengths[order] > 0]
    begin = widest = total = 0
    for end, (own, times) in enumerate(zip(cells[order], copies[order], strict=True)):
        widest, total = max(widest, times), total + own
        size = (end + 1 - begin) * own if padded else total
        if end > begin and size * widest > most:
            yield order[begin:end]
            begin, widest, total = end, times, own
    if begin < len(order):
        yield order[begin:]


class Texts(NamedTuple):
    """Strings as code points: text i is ``codes[begins[i] : begins[i] + sizes[i]]``."""

    codes: Array  # [C] uint32
    begins: Array  # [W] int64
    sizes: Array  # [W] int64


def encode(texts: Sequence[str]) -> Texts:
    """Code points of strings, each between the marks ``<`` and ``>``, which belong to none of them.

    >>> encode(["ab", "c"]).codes.tobytes().decode("utf-32-le"), encode(["ab", "c"]).begins
    ('<ab><c>', array([1, 5]))
    """
    joined = "<" + "><".join(texts) + ">" if texts else ""
    sizes = np.fromiter(map(len, texts), np.int64, len(texts))
    begins = 1 + np.cumsum(sizes + 2) - (sizes + 2)
    return Texts(np.frombuffer(joined.encode("utf-32-le"), np.dtype("<u4")), begins, sizes)


def shape_symbols(texts: Iterable[str]) -> Array:
    """What stands in a shape for each code point, as an array over all code points up to the largest of the texts."""
    characters = set("".join(texts))
    symbols = np.arange(max(map(ord, characters), default=0) + 1, dtype=np.uint32)
    for character in characters:
        if character.isupper() or character.istitle():
            symbols[ord(character)] = ord("X")
        elif character.isdigit():
            symbols[ord(character)] = ord("d")
        elif character.isalpha():
            symbols[ord(character)] = ord("x")
    return symbols


class Stream(NamedTuple):
    """A sequence of strings along all tokens.

    Numbers into its distinct strings, which stand in order of first occurrence.
    """

    ids: Array  # [T] int32
    distinct: list[str]


def number_strings(strings: Sequence[str]) -> Stream:
    """Number the distinct strings.

    >>> number_strings(["to", "be", "or", "not", "to", "be"])
    Stream(ids=array([0, 1, 2, 3, 0, 1], dtype=int32), distinct=['to', 'be', 'or', 'not'])
    """
    numbers = {text: number for number, text in enumerate(dict.fromkeys(strings))}
    return Stream(
        np.fromiter(map(numbers.__getitem__, strings), np.int32, len(strings)), list(numbers)
    )


def read_stream(name: str, sentences: Sequence[Sequence[str]]) -> tuple[Stream, Array]:
    """Distinct strings of sentences, and the sentences' lengths ``[N]``.

    ``name`` is what an error calls a string.
    """
    if not hasattr(sentences, "__len__"):
        raise DataError(
            f"sentences must be a sequence of sequences of strings, one {name} per token, got"
            f" {type(sentences).__name__}"
        )
    for number, sentence in enumerate(sentences):
        if isinstance(sentence, (str, bytes)):
            raise DataError(
                f"sentence {number} must be a sequence of strings, one {name} per token, got"
                f" {sentence!r}; split it into tokens first"
            )
    try:
        lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
        stream = number_strings(list(chain.from_iterable(sentences)))
        "".join(stream.distinct).encode()
    except (TypeError, UnicodeEncodeError):
        raise DataError(next(_faults(name, sentences))) from None
    return stream, lengths


def half_character(text: str) -> bool:
    """Whether a text holds a lone surrogate, which UTF-8 cannot write."""
    return any("\ud800" <= character <= "\udfff" for character in text)


def _faults(name: str, sentences: Sequence[Sequence[str]]) -> Iterator[str]:
    for number, sentence in enumerate(sentences):
        if not hasattr(sentence, "__len__"):
            yield (
                f"sentence {number} must be a sequence of strings, one {name} per token, got"
                f" {type(sentence).__name__}"
            )
        for place, text in enumerate(sentence):
            where = f"{name} of token {place} in sentence {number}"
            if not isinstance(text, str):
                yield f"{where}: expected a string, got {text!r} ({type(text).__name__})"
            elif half_character(text):
                yield (
                    f"{where}: expected text, got {text!r}, which holds half of a character (a lone"
                    " surrogate)"
                )


_FORMAT = 1  # of the hashes and the table: tables of another one cannot be read
_LARGEST_BITS = 30
_TENSORS = {
    "slots": (np.int64, 2),
    "names": (np.uint8, 1),
    "name_offsets": (np.int64, 1),
}  # their types and dimensions


class FeatureIndex:
    """Columns of features by their 64-bit keys, with their names.

    Or, hashed, the lowest bits of the key and no table. Its arrays are never written to, and may
    be mapped from a file.

    Attributes:
        size: F, number of columns.
        hash_bits: of a hashed index.

    """

    _kind: ClassVar[str]

    def __init__(self, tensors: Mapping[str, Array], hash_bits: int | None = None) -> None:
        """Columns of a table, its arrays by name; or 2^hash_bits columns and no table."""
        self.hash_bits, self._tensors = hash_bits, dict(tensors)
        if hash_bits is None:
            self.size = len(tensors["name_offsets"]) - 1
            return
        whole = isinstance(hash_bits, int) and not isinstance(hash_bits, bool)
        if not whole or not 1 <= hash_bits <= _LARGEST_BITS:
            raise RecipeError(
                f"hash_bits must be None or a whole number in 1..{_LARGEST_BITS}, got {hash_bits!r}"
            )
        self.size = 2**hash_bits

    @property
    def known(self) -> KeyColumns:
        """The table as kernels read it.

        Always of read-only arrays, so that they are compiled once for all.
        """
        if self.hash_bits is not None:
            return KeyColumns(_read_only(np.zeros((1, 2), np.uint64)), np.uint64(self.size - 1))
        return KeyColumns(_read_only(self._tensors["slots"].view(np.uint64)), np.uint64(0))

    def names(self) -> list[str]:
        """A name for each column."""
        if self.hash_bits is not None:
            raise RecipeError(
                f"a hashed index (hash_bits={self.hash_bits}) keeps no names, because features"
                " share its columns: fit without hash_bits"
            )
        text = self._tensors["names"].tobytes()
        offsets = self._tensors["name_offsets"].tolist()
        try:
            return [text[low:high].decode() for low, high in pairwise(offsets)]
        except UnicodeDecodeError as error:
            raise DataError(
                f"the names of features are damaged: expected UTF-8, got {error}; fit and save the"
                " model again"
            ) from None

    def tensors(self) -> dict[str, Array]:
        """Arrays to save; with `notes`, all there is."""
        return dict(self._tensors)

    def notes(self) -> dict[str, Any]:
        """What else to save: it can stand in JSON."""
        about = {"format": _FORMAT, "size": self.size, "hash_bits": self.hash_bits}
        return {"kind": self._kind, **about}

    @classmethod
    def from_tensors(cls, tensors: Tensors, notes: Mapping[str, Any]) -> Self:
        """The index that was saved; its arrays are used as they are, read-only ones too.

        Kernels trust them, so that they are looked at here.
        """
        if notes.get("kind") != cls._kind:
            raise DataError(
                f"expected the notes of {cls.__name__} (kind {cls._kind!r}), got kind"
                f" {notes.get('kind')!r}"
            )
        if notes.get("format") != _FORMAT:
            raise DataError(
                f"expected an index of features in format {_FORMAT}, got {notes.get('format')!r};"
                " fit it again"
            )
        if notes["hash_bits"] is not None:
            return cls._restored({}, notes)
        size = check_count("size", notes["size"], DataError, least=0)
        missing = _TENSORS.keys() - tensors.keys()
        if missing:
            raise DataError(
                f"expected the tensor {min(missing)!r} of an index of features, got nothing"
            )
        arrays = {
            name: as_array(f"{name} of an index of features", tensors[name], *kind)
            for name, kind in _TENSORS.items()
        }
        count, width = arrays["slots"].shape
        if count & (count - 1) or not count or count < 2 * size or width != 2:
            raise DataError(
                f"slots of an index of {size} features must be [S, 2] with S a power of two and at"
                f" least twice as many, got {[count, width]}"
            )
        check_slots(arrays["slots"], size)
        check_offsets("offsets of names", arrays["name_offsets"], size, len(arrays["names"]))
        return cls._restored(arrays, notes)

    @classmethod
    def _restored(cls, arrays: Mapping[str, Array], notes: Mapping[str, Any]) -> Self:
        return cls(arrays, notes["hash_bits"])


def named_columns(column_keys: Array, names: Array, name_offsets: Array) -> dict[str, Array]:
    """The table of columns 0, 1, … with these keys, and names in UTF-8 one after the other."""
    if len(column_keys) >= 2**31:
        raise DataError(
            f"there are {len(column_keys)} features, more than the 2^31 that can be numbered;"
            " set min_freq or hash_bits"
        )
    slots, _, distinct = number_keys(column_keys)
    if len(distinct) != len(column_keys):
        raise DataError(
            "two features have the same key of 64 bits, by a rare chance: give one of them another"
            " name"
        )
    # Not all readers of files know unsigned numbers of 64 bits.
    return {"slots": slots.view(np.int64), "names": names, "name_offsets": name_offsets}


def check_min_freq(min_freq: int, hash_bits: int | None) -> None:
    """A whole number from 1; a hashed index counts nothing."""
    if isinstance(min_freq, bool) or not isinstance(min_freq, int) or min_freq < 1:
        raise RecipeError(f"min_freq must be a whole number from 1, got {min_freq!r}")
    if min_freq > 1 and hash_bits is not None:
        raise RecipeError(
            f"min_freq={min_freq} and hash_bits={hash_bits} do not go together: a hashed index"
            " drops no feature"
        )


def _read_only(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view
