"""Batches of rows: what a parser reads, and what it is trained toward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from softq.integrations.transformers.dependency_parsing.trees import RowTrees, TreeReader, as_row
from softq.integrations.transformers.tokens import IGNORED
from softq.integrations.transformers.words.annotators import (
    one_hot,
    padded_references,
    padded_weights,
)
from softq.integrations.transformers.words.rows import TARGETS, WordCollator


class DependencyCollator(WordCollator):
    """Makes batches of rows.

    A row has ``tokens``, a list of words, ``heads`` and ``deprels`` (see `TreeReader`); or
    ``annotations``, a list of trees, each a list of heads or a dict of ``heads`` and ``deprels``,
    None for an annotator who is missing, and perhaps their ``weights``. Sentences of
    `softq.formats.read_conllu` are rows, too. A row without a tree can be predicted.

    Args:
        tokenizer: a fast one.
        relations: names of the relations; none: trees without them.
        spanning: arcs may cross; if not, trees in which some do are lifted
            (`softq.formats.trees.projectivise`), and what was lifted has no relation to learn.
        max_length: most subwords that the model reads at once.
        stride: subwords that windows of a longer sentence share; None: a quarter.

    """

    columns = "'heads' or 'annotations'"

    def __init__(
        self,
        tokenizer: Any,
        relations: Sequence[str],
        *,
        spanning: bool = False,
        max_length: int | None = None,
        stride: int | None = None,
    ) -> None:
        super().__init__(tokenizer, max_length=max_length, stride=stride)
        self.trees = TreeReader(relations, spanning=spanning)

    def __call__(self, rows: Sequence[Any]) -> dict[str, Any]:
        """What a model reads of these rows, and what it is trained toward; see `WordCollator`."""
        return super().__call__([as_row(row) for row in rows])

    def known(self, row: Any) -> RowTrees | None:
        """What is known of the tree of a row, without a look at the words."""
        found: RowTrees | None = super().known(as_row(row))
        return found

    def read(self, row: Mapping[str, Any], count: int) -> RowTrees | None:
        """What is known of the tree of a row."""
        return self.trees(row, count)

    def targets(self, known: Sequence[RowTrees], width: int) -> dict[str, Any]:
        """The same of a batch as tensors.

        ``labels [B, n]`` are the head of most weight of each word, -100 where none is known; the
        ``gold`` of the targets are those, and the relations of those who have that head.
        """
        weights = padded_weights([row.weights for row in known])
        heads, relations, possible = (
            padded_references([[getattr(tree, name) for tree in row.trees] for row in known], width)
            for name in ("heads", "relations", "possible")
        )
        gold = _most(heads, weights, width + 1)
        agreed = relations.masked_fill(heads != gold.unsqueeze(1), IGNORED)
        named = _most(agreed, weights, len(self.trees.names))
        made: dict[str, Any] = {"gold": (gold, named)}
        learnt = (heads == possible) & (heads >= 0) & (relations < len(self.trees.relations))
        relations = relations.masked_fill(~learnt, IGNORED)
        for kind, partial in (("references", False), ("partial", True)):
            rows = torch.tensor([i for i, row in enumerate(known) if row.partial == partial])
            if len(rows):
                made[kind] = {
                    "rows": rows,
                    "heads": possible[rows],
                    "relations": relations[rows],
                    "weights": weights[rows],
                }
        return {"labels": gold, TARGETS: made}


def _most(values: Tensor, weights: Tensor, classes: int) -> Tensor:
    """Of references ``[B, R, n]`` what has most weight, ``[B, n]``, -100 where there is none."""
    if values.shape[1] == 1:
        return values[:, 0]
    votes = (one_hot(values, classes) * weights[:, :, None, None]).sum(1)
    return votes.argmax(-1).masked_fill(votes.sum(-1) == 0, IGNORED)
