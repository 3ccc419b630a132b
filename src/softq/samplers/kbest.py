"""The k best outputs of a distribution as candidates, for rewards that do not split over parts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from softq.checks import check_count
from softq.errors import SamplerError, ShapeError
from softq.sentences import MISSING, Sentences
from softq.spaces import Candidates, Distribution


def k_best(
    model: Distribution, refs: Any, size: int, *, ref_weights: Tensor | None = None
) -> tuple[Candidates, Sentences]:
    """The most probable outputs of a model and the references as candidates; the references.

    With these, a chain or tree is trained toward any reward of whole outputs, such as
    `softq.rewards.SpanF1`. Nothing is sampled: the set is the part of the space that the model
    takes for possible, and the references.

    Args:
        model: label sequences or trees of a batch ``[B]``; the set is detached from it.
        refs: outputs ``[B, n]``, or several for each example ``[B, R, n]``.
        size: number of outputs, k; references that are not among them come on top. Where there are
            fewer, the last candidates are missing.
        ref_weights: ``[B, R]``, 0 for a missing reference.

    Returns:
        Candidates ``[B, S, n]`` with the references in front, and the references as targets on
        candidates take them. The model of `softq.cross_entropy` is the distribution itself.

    >>> import softq, torch
    >>> p = softq.ProjectiveTree(torch.randn(1, 5, 5, generator=torch.Generator().manual_seed(0)))
    >>> gold = torch.tensor([[2, 0, 2, 3]])
    >>> cands, refs = k_best(p, gold, size=8)
    >>> target = softq.raml(cands, refs, tau=0.5, reward=softq.rewards.TokenAccuracy())
    >>> softq.cross_entropy(target, p).shape
    torch.Size([1])

    """
    size = check_count("size", size, SamplerError)
    if len(model.batch_shape) != 1 or len(model.event_shape) != 1:
        raise ShapeError(
            "candidates need one batch dimension and outputs of several tokens, got "
            f"{model!r}; classes have exact targets for any reward"
        )
    references = model.references(refs, ref_weights)
    values = references.hard("are no candidates")
    lengths = model.all_lengths().unsqueeze(1)
    true = Sentences(values, torch.where(references.weights > 0, lengths, MISSING))
    best = model.topk(size)
    cands = Candidates(best.outputs, torch.where(best.present, lengths, MISSING))
    return cands.with_references(true), true
