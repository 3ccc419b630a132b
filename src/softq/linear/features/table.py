"""From keys of features to columns of the matrix.

What `TemplateIndex` and `AttributeIndex` share.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from softq.checks import check_count
from softq.errors import DataError, RecipeError
from softq.formats.file_checks import Tensors, as_array, check_offsets, check_slots
from softq.kernels.features.words import Known, number_keys
from softq.linear.features.matrix import Array

_FORMAT = 1  # of the hashes and the table: tables of another one cannot be read
_LARGEST_BITS = 30
_TENSORS = {
    "slots": (np.int64, 2),
    "names": (np.uint8, 1),
    "name_offsets": (np.int64, 1),
}  # their types and dimensions


class ColumnTable:
    """Columns of features by their 64-bit keys, with their names.

    Or, hashed, the lowest bits of the key and no table.

    Its arrays are never written to, and may be mapped from a file.
    """

    def __init__(self, tensors: Mapping[str, Array], size: int, hash_bits: int | None) -> None:
        self.size = size
        self.hash_bits = hash_bits
        self._tensors = dict(tensors)

    @classmethod
    def make(cls, column_keys: Array, names: Array, name_offsets: Array) -> ColumnTable:
        """Columns 0, 1, … with these keys, and names in UTF-8 one after the other."""
        if len(column_keys) >= 2**31:
            raise DataError(
                f"there are {len(column_keys)} features, more than the 2^31 that can be numbered;"
                " set min_freq or hash_bits"
            )
        slots, _, distinct = number_keys(column_keys)
        if len(distinct) != len(column_keys):
            raise DataError(
                "two features have the same key of 64 bits, by a rare chance: give one of them"
                " another name"
            )
        # Not all readers of files know unsigned numbers of 64 bits.
        tensors = {"slots": slots.view(np.int64), "names": names, "name_offsets": name_offsets}
        return cls(tensors, len(column_keys), None)

    @classmethod
    def hashed(cls, bits: int) -> ColumnTable:
        """2^bits columns and no table."""
        if isinstance(bits, bool) or not isinstance(bits, int) or not 1 <= bits <= _LARGEST_BITS:
            raise RecipeError(
                f"hash_bits must be None or a whole number in 1..{_LARGEST_BITS}, got {bits!r}"
            )
        return cls({}, 2**bits, bits)

    @property
    def known(self) -> Known:
        """The table as kernels read it.

        Always of read-only arrays, so that they are compiled once for all.
        """
        if self.hash_bits is not None:
            return Known(_read_only(np.zeros((1, 2), np.uint64)), np.uint64(self.size - 1))
        return Known(_read_only(self._tensors["slots"].view(np.uint64)), np.uint64(0))

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
        """Arrays to save."""
        return dict(self._tensors)

    def notes(self) -> dict[str, Any]:
        """What else to save: it can stand in JSON."""
        return {"format": _FORMAT, "size": self.size, "hash_bits": self.hash_bits}

    @classmethod
    def from_tensors(cls, tensors: Tensors, notes: Mapping[str, Any]) -> ColumnTable:
        """What was saved, without copying it. Kernels trust it, so that it is looked at here."""
        if notes.get("format") != _FORMAT:
            raise DataError(
                f"expected an index of features in format {_FORMAT}, got {notes.get('format')!r};"
                " fit it again"
            )
        if notes["hash_bits"] is not None:
            return cls.hashed(notes["hash_bits"])
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
        return cls(arrays, size, None)


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
