"""The loss of each sentence of a batch: H(target, model) of its trees, and of their relations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from softq.integrations.transformers.dependency_parsing.model import DependencyModel, TreeScores
from softq.integrations.transformers.words.annotators import fill
from softq.integrations.transformers.words.losses import Rows, WordLosses, unlabelled
from softq.spaces import Distribution


@dataclass(frozen=True)
class TreeLosses(WordLosses):
    """Losses of sentences: of their trees, toward the target of the objective, and of relations.

    Where an annotator left out heads, ML sums over the trees that agree with the others; for RAML
    and SQDML such a word has the heads of the other annotators, and where nobody knows its head,
    the model is the prior of that sentence, which then decides it. The loss of relations is the
    cross-entropy of those of each reference, by its weight.
    """

    kinds: ClassVar = ("references", "partial")

    def take(self, scores: TreeScores, rows: Rows) -> TreeScores:
        """Scores of some sentences."""
        head, dependent = scores.views
        return TreeScores(scores.arcs[rows], (head[rows], dependent[rows]))

    def of(
        self,
        kind: str,
        model: DependencyModel,
        scores: TreeScores,
        lengths: Tensor,
        part: Mapping[str, Any],
    ) -> Tensor:
        """Losses of sentences of which all heads are known, or some."""
        heads, weights, by_model = part["heads"], part["weights"], None
        partial = kind == "partial"

        def distributions(rows: Rows) -> tuple[Distribution, Distribution]:
            # trees were checked when they were read; to look at values waits for a GPU
            some = self.take(scores, rows)
            p = model.distribution(some, lengths[rows], validate=partial)
            return p, p

        values = heads
        if partial and self.objective != "ml":
            by_model = unlabelled(heads >= 0, lengths)
            table = fill(heads, weights, heads.shape[2] + 1, hard=False)  # [b, R, n, head]
            values = model.distribution(scores, lengths).by_part(table)
        losses = self.toward(distributions, values, weights, by_model)
        if not model.config.relations:
            return losses
        shares = (weights / weights.sum(1, keepdim=True)).to(losses)
        for r, share in enumerate(shares.unbind(1)):
            known, relations = heads[:, r].clamp(min=0), part["relations"][:, r]
            named = model.biaffine.relation_losses(scores.views, known, relations)
            losses = losses + share * named.to(losses)
        return losses
