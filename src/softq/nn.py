"""Layers that train toward a metric, with the interface that users of PyTorch know."""

from __future__ import annotations

from typing import Any, cast, get_args

import torch
from torch import Tensor, nn

from softq.checks import as_scores, first_true
from softq.errors import LengthError, ShapeError, TemperatureError
from softq.objectives import cross_entropy
from softq.options import check_choice
from softq.spaces import Chain, left_align
from softq.targets import ObjectiveName, target_of

_REDUCTIONS = ("none", "sum", "mean", "token_mean")


class CRF(nn.Module):
    """A linear-chain CRF layer: pytorch-crf's module, parameters and methods, and three objectives.

    With the default objective it is that module, faster: ``from softq.nn import CRF`` in the place
    of ``from torchcrf import CRF`` changes no result, and state dicts can be exchanged. Beyond it:

    - ``objective="raml"`` or ``"sqdml"`` with ``tau=`` trains toward a reward over labels. What is
      returned is then -H(target, model) in the place of the log-likelihood.
    - Tags of several annotators, one more dimension behind the sequence's.
    - A tag of -100 is not labelled, as in `torch.nn.CrossEntropyLoss`. Float tags are soft: the
      probabilities of each token's tags.
    - A mask may have holes: masked tokens are removed before the chain is built.

    Args:
        num_tags: number of tags K.
        batch_first: whether batches come as ``[B, n, …]`` instead of ``[n, B, …]``.
        objective: "ml", "raml" or "sqdml".
        tau: temperature of RAML and SQDML.
        reward: of `softq.rewards`, over labels; token accuracy if None.

    Attributes:
        start_transitions: scores of the first tag ``[K]``.
        end_transitions: scores of the last tag ``[K]``.
        transitions: scores of neighbouring tags ``[K, K]``, from and to.

    >>> crf = CRF(5, batch_first=True)
    >>> emissions, tags = torch.randn(2, 3, 5), torch.tensor([[0, 1, 4], [2, 3, -100]])
    >>> mask = torch.tensor([[True, True, True], [True, True, False]])
    >>> loss = -crf(emissions, tags, mask=mask, reduction="token_mean")
    >>> [len(best) for best in crf.decode(emissions, mask=mask)]
    [3, 2]

    Three annotators, the last of whom did not label the second sentence:

    >>> crf = CRF(5, batch_first=True, objective="sqdml", tau=0.5)
    >>> tags = torch.randint(5, (2, 3, 3))  # [B, n, R]
    >>> weights = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]])
    >>> crf(emissions, tags, ref_weights=weights).shape
    torch.Size([])

    """

    def __init__(
        self,
        num_tags: int,
        batch_first: bool = False,
        *,
        objective: ObjectiveName = "ml",
        tau: float | None = None,
        reward: Any = None,
    ) -> None:
        if num_tags <= 0:
            raise ShapeError(f"num_tags must be positive, got {num_tags}")
        check_choice("objective", objective, get_args(ObjectiveName), ValueError)
        if (tau is None) != (objective == "ml"):
            wanted = "takes no tau" if objective == "ml" else "needs a temperature, such as tau=0.5"
            raise TemperatureError(f'objective="{objective}" {wanted}, got tau={tau}')
        super().__init__()
        self.num_tags, self.batch_first = num_tags, batch_first
        self.objective, self.tau, self.reward = objective, tau, reward
        self.start_transitions = nn.Parameter(torch.empty(num_tags))
        self.end_transitions = nn.Parameter(torch.empty(num_tags))
        self.transitions = nn.Parameter(torch.empty(num_tags, num_tags))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters uniformly between -0.1 and 0.1."""
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.1, 0.1)

    def extra_repr(self) -> str:
        """What ``print(model)`` shows."""
        how = "" if self.objective == "ml" else f", objective={self.objective!r}, tau={self.tau:g}"
        return f"num_tags={self.num_tags}{how}"

    def forward(
        self,
        emissions: Tensor,
        tags: Tensor,
        mask: Tensor | None = None,
        reduction: str = "sum",
        *,
        ref_weights: Tensor | None = None,
    ) -> Tensor:
        """The log-likelihood of tags, or -H(target, model) of another objective: maximise it.

        Args:
            emissions: scores of tags, ``[n, B, K]``, or ``[B, n, K]`` with ``batch_first``.
            tags: ``[n, B]`` or ``[B, n]``; of R annotators ``[n, B, R]`` or ``[B, n, R]``; soft
                ones with one more dimension of size K at the end.
            mask: which tokens count, shaped like the tags of one annotator; all if None.
            reduction: "sum", "mean" over sequences, "token_mean" over tokens, or "none": ``[B]``.
            ref_weights: weights of annotators ``[B, R]``, 0 for one who is missing.

        """
        check_choice("reduction", reduction, _REDUCTIONS, ValueError)
        several = tags.dim() - tags.dtype.is_floating_point - 2  # whether there are R annotators
        if several not in (0, 1) or tags.shape[:2] != emissions.shape[:2]:
            sizes = list(emissions.shape[:2])
            raise ShapeError(f"tags must be {sizes} or [*{sizes}, R], got {list(tags.shape)}")
        model, tags = self._model(emissions, mask, tags)
        refs = tags.movedim(2, 1) if several else tags  # [B, R, n], or [B, n]
        target = target_of(
            self.objective, model, refs, self.tau, self.reward, ref_weights=ref_weights
        )
        found: Tensor = -cross_entropy(target, model)
        if reduction == "none":
            return found
        if reduction == "token_mean":
            return found.sum() / cast(Tensor, model.all_lengths().sum())
        return found.mean() if reduction == "mean" else found.sum()

    def decode(self, emissions: Tensor, mask: Tensor | None = None) -> list[list[int]]:
        """The best tags of each sequence; shapes as for `forward`."""
        model = self.distribution(emissions, mask)
        pairs = zip(model.mode().tolist(), model.all_lengths().tolist(), strict=True)
        return [tags[:length] for tags, length in pairs]

    def distribution(self, emissions: Tensor, mask: Tensor | None = None) -> Chain:
        """The model's distribution over tag sequences: marginals, samples, entropy, decoding.

        >>> crf = CRF(4, batch_first=True)
        >>> crf.distribution(torch.randn(2, 3, 4)).marginals.sum(-1).round().tolist()
        [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
        """
        (model,) = self._model(emissions, mask)
        return cast(Chain, model)

    def _model(self, emissions: Tensor, mask: Tensor | None, *tags: Tensor) -> tuple[Any, ...]:
        """The chain, and tags ``[B, n, …]``, without the tokens that do not count."""
        if emissions.dim() != 3 or emissions.shape[2] != self.num_tags:
            want = "[B, n, K]" if self.batch_first else "[n, B, K]"
            raise ShapeError(
                f"emissions must be {want} with K = {self.num_tags}, got {list(emissions.shape)}"
            )
        if mask is not None and mask.shape != emissions.shape[:2]:
            raise ShapeError(f"mask must be {list(emissions.shape[:2])}, got {list(mask.shape)}")
        given = [as_scores("emissions", emissions), *tags]
        if not self.batch_first:
            given = [each.transpose(0, 1) for each in given]
            mask = None if mask is None else mask.transpose(0, 1)
        lengths = None
        if mask is not None:
            lengths, *given = left_align(mask, *given)
            if (place := first_true(lengths == 0)) is not None:
                raise LengthError(f"every sequence needs a token that counts, {place[0]} has none")
        model = Chain(
            given[0],
            self.transitions.to(given[0].dtype),
            lengths,
            start=self.start_transitions,
            end=self.end_transitions,
        )
        return model, *given[1:]
