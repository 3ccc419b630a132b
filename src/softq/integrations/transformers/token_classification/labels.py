"""What is known of the labels of a row: certain, missing, soft, or one of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any, NamedTuple

from softq.errors import DataError, OutputError
from softq.formats.conll import MISSING, Sentence
from softq.formats.partial_labels import alternatives
from softq.integrations.text_rows import plain
from softq.integrations.transformers.tokens import IGNORED
from softq.integrations.transformers.words.annotators import read_annotations

_ROUNDING = 1e-3  # by how much probabilities may not sum to one


class RowLabels(NamedTuple):
    """What is known of the labels of n words.

    Attributes:
        references: label ids, a sequence ``[n]`` of each of R annotators; -100: not labelled.
        weights: of the annotators.
        places: of the annotators among those of the row.
        probabilities: ``[n, K]``, in the place of references; all 0: not labelled.
        allowed: label ids of which one is right, for each word, in the place of references.

    """

    references: list[list[int]]
    weights: list[float]
    places: list[int]
    probabilities: list[list[float]] | None = None
    allowed: list[list[int]] | None = None

    @property
    def kind(self) -> str:
        """What losses depend on; ``"partial"`` where an annotator left out a word."""
        if self.probabilities is not None:
            return "probabilities"
        if self.allowed is not None:
            return "allowed"
        return "partial" if any(IGNORED in row for row in self.references) else "references"

    def sentence(self, labels: Sequence[str]) -> Sentence:
        """The same as models of annotators read it."""
        if self.probabilities is not None or self.allowed is not None:
            raise DataError(
                "a model of annotators wants labels of annotators: expected a column 'annotations',"
                " got labels that are soft, or of which several are allowed"
            )
        rows = [
            tuple(labels[number] if number >= 0 else MISSING for number in row)
            for row in self.references
        ]
        count = len(rows[0]) if rows else 0
        return Sentence(("",) * count, tuple(rows), tuple(map(str, self.places)))


class LabelReader:
    """Reads labels of rows, by the names of the K labels.

    A label is an id or a name; None, -100 or ``"?"`` where nobody labelled the word; a list (or
    ``"B-PER|B-ORG"``) of labels of which one is right; or a dict of probabilities, a list of K
    floats, or ``"B-PER=0.7|O=0.3"``.

    >>> read = LabelReader(["O", "B-PER"])
    >>> read({"ner_tags": [1, "O", None]}, 3).references
    [[1, 0, -100]]
    >>> read({"ner_tags": [["O", "B-PER"], 0]}, 2).allowed
    [[0, 1], [0]]
    >>> read({"ner_tags": [{"O": 0.25, "B-PER": 0.75}, 0]}, 2).probabilities
    [[0.25, 0.75], [1.0, 0.0]]
    >>> read({"annotations": [[0, 1], None, [0, 0]], "weights": [1, 1, 2]}, 2)
    RowLabels(references=[[0, 1], [0, 0]], weights=[1.0, 2.0], places=[0, 2], probabilities=None, allowed=None)

    """

    def __init__(self, labels: Sequence[str]) -> None:
        self.labels = tuple(labels)
        self._ids = {name: number for number, name in enumerate(self.labels)}

    def __call__(self, row: Mapping[str, Any], count: int) -> RowLabels | None:
        """Of a row with ``count`` words; None if it has no labels at all."""
        given, several = plain(row.get("ner_tags")), row.get("annotations")
        if given is not None and several is not None:
            raise DataError("a row has 'ner_tags' or 'annotations', got both")
        if several is not None:
            return self._annotations(several, row.get("weights"), count)
        if given is None:
            return None
        known = [self._label(entry) for entry in _sized("ner_tags", given, count)]
        if any(shares is not None for _, shares in known):
            return RowLabels([], [], [], probabilities=[self._shares(*entry) for entry in known])
        if any(len(ids) > 1 for ids, _ in known):
            every = list(range(len(self.labels)))
            return RowLabels([], [], [], allowed=[ids or every for ids, _ in known])
        return RowLabels([_hard(known)], [1.0], [0])

    def _annotations(self, given: Any, weights: Any, count: int) -> RowLabels:
        """Labels of several annotators, None for one who is missing."""

        def read(sequence: Any) -> list[int]:
            known = [self._label(one) for one in _sized("annotations", sequence, count)]
            if any(shares is not None or len(ids) > 1 for ids, shares in known):
                raise DataError(
                    "labels of annotators are certain, or missing (None): put soft labels, and"
                    " lists of those that are allowed, into 'ner_tags'"
                )
            return _hard(known)

        found = read_annotations(given, weights, read, noun="labels", each="label sequences")
        places, shares, references = map(list, zip(*found, strict=True))
        return RowLabels(references, shares, places)

    def _label(self, entry: Any) -> tuple[list[int], list[float] | None]:
        """Ids that may be right, none for a missing label; and probabilities, if there are any."""
        entry = plain(entry)
        if entry is None:
            return [], None
        if isinstance(entry, str):
            if entry in self._ids:
                return [self._ids[entry]], None
            weights = alternatives(entry)
            soft = "=" in entry and len(weights) > 1
            return self._several(weights, list(weights.values()) if soft else None)
        if isinstance(entry, Mapping):
            return self._several(entry, [_share(weight) for weight in entry.values()])
        if isinstance(entry, list | set | frozenset):
            if any(isinstance(part, float) for part in entry):
                shares = [_share(part) for part in entry]
                return self._several(range(len(shares)), shares)
            if not entry:
                raise DataError("expected one label or more of which one is right, got none")
            return self._several(entry, None)
        if isinstance(entry, Integral) and not isinstance(entry, bool):
            return ([], None) if entry == IGNORED else ([self._id(entry)], None)
        raise DataError(
            "expected a label as an id or a name, None for a missing one, a list of those that are"
            f" allowed, or a dict of probabilities, got {entry!r}"
        )

    def _several(self, labels: Any, shares: list[float] | None) -> tuple[list[int], Any]:
        ids = [self._id(label) for label in labels]
        if shares is None:
            return sorted(set(ids)), None
        if len(shares) != len(self.labels) and not isinstance(labels, Mapping):
            raise DataError(
                f"expected probabilities of {len(self.labels)} labels, got {len(shares)} of them"
            )
        total = sum(shares)
        if not abs(total - 1) <= _ROUNDING:
            raise DataError(f"probabilities of a label must sum to 1, got {total:g}")
        return ids, [share / total for share in shares]

    def _id(self, label: Any) -> int:
        if isinstance(label, str) and label in self._ids:
            return self._ids[label]
        if (
            isinstance(label, Integral)
            and not isinstance(label, bool)
            and 0 <= int(label) < len(self.labels)
        ):
            return int(label)
        raise OutputError(
            f"expected one of the labels {', '.join(self.labels)}, or an id in"
            f" 0..{len(self.labels) - 1}, got {label!r}"
        )

    def _shares(self, ids: list[int], shares: list[float] | None) -> list[float]:
        """A row of probabilities."""
        if shares is None and len(ids) > 1:
            raise DataError(
                "a sentence has soft labels, or lists of those that are allowed, got both: write"
                " the lists as probabilities"
            )
        row = [0.0] * len(self.labels)
        for number, share in zip(ids, shares or [1.0] * len(ids), strict=True):
            row[number] = share
        return row


def _hard(known: Sequence[tuple[list[int], Any]]) -> list[int]:
    return [ids[0] if ids else IGNORED for ids, _ in known]


def _sized(name: str, given: Any, count: int) -> list[Any]:
    if not isinstance(given, list) or len(given) != count:
        got = len(given) if isinstance(given, list) else type(given).__name__
        raise DataError(f"{name!r} must have a label for each of the {count} words, got {got}")
    return given


def _share(value: Any) -> float:
    if not isinstance(value, Real) or not 0 <= float(value) <= 1 + _ROUNDING:
        raise DataError(f"expected a probability from 0 to 1, got {value!r}")
    return float(value)
