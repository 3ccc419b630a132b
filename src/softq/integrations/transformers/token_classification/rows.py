"""Batches of rows: what a tagger reads, and what it is trained toward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from softq.errors import DataError
from softq.integrations.text_rows import plain
from softq.integrations.transformers.token_classification.labels import LabelReader, RowLabels
from softq.integrations.transformers.tokens import IGNORED
from softq.integrations.transformers.words.annotators import (
    one_hot,
    padded_references,
    padded_weights,
)
from softq.integrations.transformers.words.rows import TARGETS, WordCollator
from softq.integrations.transformers.words.subwords import Subwords
from softq.options import Pooling

SENTENCE = "softq_sentence"


class TokenClassificationCollator(WordCollator):
    """Makes batches of rows.

    A row has ``tokens``, a list of words, and ``ner_tags``, a label for each (see `LabelReader`);
    or ``annotations``, a list of such sequences of certain labels, None for an annotator who is
    missing, and perhaps their ``weights``. Without either it can be predicted.

    A row that was tokenised before has ``input_ids`` in the place of ``tokens``, and ``labels`` of
    subwords, -100 on all but the first of each word. With ``word_ids``, a number for each subword
    and None for special tokens, a word may be without a label, and any pooling will do.

    Args:
        tokenizer: a fast one.
        labels: names of the labels.
        pooling: of the model.
        max_length: most subwords that the model reads at once.
        stride: subwords that windows of a longer sentence share; None: a quarter.

    """

    columns = "'ner_tags' or 'annotations'"

    def __init__(
        self,
        tokenizer: Any,
        labels: Sequence[str],
        *,
        pooling: Pooling = "first",
        max_length: int | None = None,
        stride: int | None = None,
    ) -> None:
        super().__init__(tokenizer, max_length=max_length, stride=stride)
        self.labels, self.pooling = LabelReader(labels), pooling

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """What a model reads of these rows, and what it is trained toward; see `WordCollator`."""
        batch = super().__call__(rows)
        if TARGETS in batch and SENTENCE in rows[0]:
            batch[TARGETS][SENTENCE] = torch.tensor([row[SENTENCE] for row in rows])
        return batch

    def read(self, row: Mapping[str, Any], count: int) -> RowLabels | None:
        """What is known of the labels of a row."""
        return self.labels(row, count)

    def targets(self, known: Sequence[RowLabels], width: int) -> dict[str, Any]:
        """The same of a batch; see `targets`."""
        return targets(known, width, len(self.labels.labels))

    def tokenised(self, row: Mapping[str, Any]) -> tuple[Subwords, RowLabels | None]:
        """A row that has subwords and labels of subwords."""
        ids, labels, owners = (plain(row.get(name)) for name in ("input_ids", "labels", "word_ids"))
        if ids is None:
            return super().tokenised(row)
        if owners is None and labels is not None and self.pooling == "first":
            owners = [None if label == IGNORED else place for place, label in enumerate(labels)]
        if owners is None:
            raise DataError(
                "a row with input_ids does not say where its words begin: give 'tokens' and"
                " 'ner_tags' instead, or 'word_ids' beside them (tokenizer(…).word_ids())"
            )
        for name, column in (("labels", labels), ("word_ids", owners)):
            if column is not None and len(column) != len(ids):
                raise DataError(
                    f"{name!r} must have an entry for each of {len(ids)} input_ids, got {len(column)}"
                )
        seen = plain(row.get("attention_mask")) or [1] * len(ids)
        kept = [place for place, shown in enumerate(seen) if shown]
        if self.words.max_length is not None and len(kept) > self.words.max_length:
            raise DataError(
                f"a row has {len(kept)} input_ids, and the model reads {self.words.max_length} at"
                " once: give 'tokens' and 'ner_tags', which are read in windows"
            )
        at = {place: number for number, place in enumerate(kept)}  # where padding is on the left
        runs = [
            list(run) for word, run in groupby(kept, key=owners.__getitem__) if word is not None
        ]
        words = [(0, at[run[0]], at[run[-1]] + 1) for run in runs]
        subwords = Subwords([[ids[place] for place in kept]], words)
        if labels is None:
            return subwords, None
        tags = [next((labels[p] for p in run if labels[p] != IGNORED), IGNORED) for run in runs]
        return subwords, self.labels({"ner_tags": tags}, len(words))


def targets(rows: Sequence[RowLabels], width: int, classes: int) -> dict[str, Any]:
    """Labels of a batch as tensors.

    ``labels [B, n]`` are the label of most weight of each word, -100 where nothing is known of it:
    by them Trainer counts words. ``gold`` leaves out those of which several are allowed.
    Rows of one kind are one entry of the targets, with their places in the batch.
    """
    kinds = [row.kind for row in rows]
    labels = torch.full((len(rows), width), IGNORED)
    gold = labels.clone()
    made: dict[str, Any] = {"gold": gold}
    for kind in sorted(set(kinds)):
        places = [place for place, one in enumerate(kinds) if one == kind]
        some = [rows[place] for place in places]
        made[kind] = {"rows": torch.tensor(places)}
        if kind in ("references", "partial"):
            values = padded_references([row.references for row in some], width)
            weights = padded_weights([row.weights for row in some])
            made[kind]["weights"] = weights
            known = (one_hot(values, classes) * weights[:, :, None, None]).sum(1)  # [b, n, K]
        else:
            known = values = _tables([getattr(row, kind) for row in some], width, classes)
        made[kind]["values"] = values
        count = (known > 0).sum(-1)
        unknown = (count == 0) | ((count == classes) & (kind == "allowed"))
        best = known.argmax(-1)
        labels[places] = best.masked_fill(unknown, IGNORED)
        gold[places] = best.masked_fill(unknown | ((count > 1) & (kind == "allowed")), IGNORED)
    return {"labels": labels, TARGETS: made}


def _tables(rows: Sequence[Any], width: int, classes: int) -> Tensor:
    """Probabilities ``[b, n, K]``; or 1 for each label that is allowed, from lists of ids."""
    values = torch.zeros(len(rows), width, classes, dtype=torch.float64)
    for place, row in enumerate(rows):
        for word, entry in enumerate(row):
            if entry and isinstance(entry[0], float):
                values[place, word] = torch.tensor(entry, dtype=torch.float64)
            else:
                values[place, word, entry] = 1.0
    return values
