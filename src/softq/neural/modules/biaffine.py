"""Biaffine scores of arcs and relations (Dozat and Manning 2017)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from softq.checks import as_scores

Views = tuple[Tensor, Tensor]
"""Each position as head and as dependent of a relation, ``[B, n+1, relation_size]`` both."""


class Biaffine(nn.Module):
    """Vectors of the root and the words of sentences to scores of arcs, and of relations.

    A layer sees each position in four ways: as head and as dependent, of an arc and of a relation.
    A biaffine form scores each arc, another one every relation between a word and its head. Both
    begin at 0: every tree is as good as another.

    Args:
        inputs: size of a vector.
        relations: how many there are, K; 0: arcs alone are scored.
        arc_size: of the views that arcs are scored by.
        relation_size: of those that relations are scored by.

    >>> biaffine = Biaffine(6, relations=4, arc_size=8, relation_size=3)
    >>> arcs, views = biaffine.arcs(biaffine(torch.zeros(2, 5 + 1, 6)))
    >>> arcs.shape, biaffine.relation_scores(views, torch.zeros(2, 5, dtype=torch.int64)).shape
    (torch.Size([2, 6, 6]), torch.Size([2, 5, 4]))

    """

    def __init__(self, inputs: int, relations: int, arc_size: int, relation_size: int) -> None:
        super().__init__()
        self.relations = relations
        self.sizes = [arc_size, arc_size, *[relation_size if relations else 0] * 2]
        self.views = nn.Linear(inputs, sum(self.sizes))
        self.arc = nn.Linear(arc_size, arc_size)
        rows = relations * (relation_size + 1)
        self.relation = nn.Linear(relation_size, rows) if relations else None
        self.begin()

    def begin(self) -> None:
        """Forms of 0."""
        nn.init.zeros_(self.arc.weight)
        if self.relation is not None:
            nn.init.zeros_(self.relation.weight)

    def forward(self, vectors: Tensor) -> Tensor:
        """The four views of each position side by side, from vectors ``[…, inputs]``."""
        return functional.leaky_relu(self.views(vectors), 0.1)

    def arcs(self, seen: Tensor) -> tuple[Tensor, Views]:
        """Scores ``[B, head, dependent]`` from views ``[B, n+1, …]``; the views of relations."""
        head, dependent, *rest = torch.split(seen, self.sizes, -1)
        return head @ self.arc(dependent).transpose(1, 2), (rest[0], rest[1])

    def relation_scores(self, views: Views, heads: Tensor) -> Tensor:
        """Scores of every relation between each word and its head ``[B, n]``, ``[B, n, K]``."""
        head, dependent = views
        if self.relation is None:
            return head.new_zeros(*heads.shape, 0)
        size = head.shape[-1]
        # an embedding's gradient is summed in one order on a GPU, that of `gather` in any
        first = torch.arange(len(heads), device=heads.device).unsqueeze(1) * head.shape[1]
        head = functional.embedding(heads + first, head.flatten(0, 1))
        rows = self.relation(dependent[:, 1:])
        matrices = rows.view(*heads.shape, self.relations, size + 1)  # [B, n, K, size + 1]
        with_one = functional.pad(head, (0, 1), value=1.0).unsqueeze(-1)
        scores: Tensor = (matrices @ with_one).squeeze(-1)
        return scores

    def relation_losses(self, views: Views, heads: Tensor, relations: Tensor) -> Tensor:
        """Cross-entropies of the relations of words to their heads, summed over a sentence, ``[B]``.

        A word without a relation, -100, has no loss; ``heads`` and ``relations`` are ``[B, n]``.
        """
        scores = as_scores("relations", self.relation_scores(views, heads))
        losses = functional.cross_entropy(scores.transpose(1, 2), relations, reduction="none")
        return losses.sum(1)
