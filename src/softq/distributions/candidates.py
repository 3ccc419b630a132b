"""A finite set or sample of sentences that stands for an output space too large to sum over (paper, Appendix C)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from softq.errors import DtypeError, EstimatorError, ShapeError
from softq.kernels.edits import equal
from softq.kernels.hashing import repeats
from softq.numerics import length_mask
from softq.sentences import MISSING, Sentences, aligned, check_sentences


@dataclass(frozen=True, eq=False, repr=False)
class Candidates:
    """Candidate outputs of each example, and how they were proposed.

    - Set: the sentences of example b are ``tokens[b, s, :lengths[b, s]]``; a length of -1 marks one that is missing, because the
      space was too small for all that were asked for.
    - Proposal: the first ``fixed[b]`` are there for certain (the references); of the rest, each came out of ``draws[b]`` draws with
      probability exp(``log_proposal[b, s]``) per draw. ``log_proposal`` is None where nothing was drawn (beam search, a list of your own);
      importance weights then cannot be had.

    Samplers make these (`softq.samplers`); sentences of your own need only tokens and lengths.

    >>> mine = Candidates(*Sentences.pack([[[4, 5], [4, 6, 7]]]))
    >>> mine
    Candidates(examples=1, size=2, width=3)
    >>> mine.token_mask.int().tolist()
    [[[1, 1, 0], [1, 1, 1]]]
    """

    tokens: Tensor
    """Integer tokens ``[B, S, L]``."""
    lengths: Tensor
    """``[B, S]``; -1: missing."""
    log_proposal: Tensor | None = None
    """Log-probability of each under one draw, float64 ``[B, S]``; 0 for those that are certain."""
    fixed: Tensor | None = None
    """How many at the front are there for certain, ``[B]``; None: none."""
    draws: Tensor | None = None
    """Number of draws behind the rest, ``[B]``; None: one per candidate."""
    log_model: Tensor | None = None
    """Log-probability under the model that made them, ``[B, S]``, where one did."""

    def __post_init__(self) -> None:
        if not isinstance(self.tokens, Tensor) or self.tokens.dim() != 3:
            got = list(self.tokens.shape) if isinstance(self.tokens, Tensor) else type(self.tokens).__name__
            raise ShapeError(f"candidates must be an integer tensor [B, S, L], got {got}")
        checked = check_sentences("candidates", Sentences(self.tokens, self.lengths))
        object.__setattr__(self, "lengths", checked.lengths)
        for name, shape in (("log_proposal", 2), ("log_model", 2), ("fixed", 1), ("draws", 1)):
            value = getattr(self, name)
            if value is not None and value.shape != self.tokens.shape[:shape]:
                raise ShapeError(f"{name} must have shape {list(self.tokens.shape[:shape])}, got {list(value.shape)}")
            if value is not None and shape == 2 and not value.dtype.is_floating_point:
                raise DtypeError(f"{name} must hold floating-point numbers, got {value.dtype}")

    @property
    def sentences(self) -> Sentences:
        """Tokens and lengths."""
        return Sentences(self.tokens, self.lengths)

    @property
    def present(self) -> Tensor:
        """Which candidates are there, bool ``[B, S]``."""
        return self.lengths >= 0

    @property
    def certain(self) -> Tensor:
        """Which were put in rather than drawn, bool ``[B, S]``."""
        if self.fixed is None:
            return torch.zeros_like(self.present)
        return torch.arange(self.tokens.shape[1], device=self.fixed.device) < self.fixed.unsqueeze(1)

    @property
    def token_mask(self) -> Tensor:
        """Which tokens are real, bool ``[B, S, L]``."""
        return length_mask(self.lengths, self.tokens.shape[2])

    def repeats(self) -> Tensor:
        """Which candidates are the same as an earlier one of their example, bool ``[B, S]``."""
        return repeats(self.tokens, self.lengths)

    def equals(self, sentences: Sentences) -> Tensor:
        """Whether candidate s is sentence r of its example, bool ``[B, S, R]``; what is missing equals nothing."""
        mine, other = aligned(self.sentences, sentences)
        return equal(*mine, *other) & mine.present.unsqueeze(2) & other.present.unsqueeze(1)

    def select(self, index: Tensor) -> Candidates:
        """Candidates ``index [B, K]`` of each example, -1 for none, with as few columns as they need.

        What is known of the proposal does not carry over: a choice among draws is no longer a draw.
        """
        rows = index.clamp(min=0)
        lengths = self.lengths.gather(1, rows).masked_fill(index < 0, MISSING)
        width = max(int(lengths.max()), 0) if lengths.numel() else 0
        tokens = self.tokens[..., :width].gather(1, rows.unsqueeze(2).expand(*rows.shape, width))
        return Candidates(tokens, lengths, log_model=None if self.log_model is None else self.log_model.gather(1, rows))

    def with_references(self, references: Sentences) -> Candidates:
        """The same with the references in front, each once, and draws that equal one of them taken out."""
        if bool((self.certain & self.present & ~self.equals(references).any(2)).any()):
            raise EstimatorError(
                "these candidates already have references of their own that are not among the new ones; add references once"
            )
        keep = references.present & ~repeats(*references)
        drawn = self.present & ~self.equals(references).any(2)
        # References first, then draws, then what is missing; stable, so each group keeps its order.
        both = torch.cat([references.lengths.masked_fill(~keep, MISSING), self.lengths.masked_fill(~drawn, MISSING)], 1)
        order = (both < 0).long().argsort(dim=1, stable=True)
        width = max(self.tokens.shape[2], references.tokens.shape[2])
        mine, other = aligned(self.sentences, references)
        padded = [torch.nn.functional.pad(part.tokens, (0, width - part.tokens.shape[2])) for part in (other, mine)]
        tokens = torch.cat(padded, 1).gather(1, order.unsqueeze(2).expand(-1, -1, width))

        def beside(values: Tensor | None, front: float) -> Tensor | None:
            if values is None:
                return None
            head = torch.full(references.lengths.shape, front, dtype=values.dtype, device=values.device)
            return torch.cat([head, values], 1).gather(1, order)

        draws = self.present.sum(1) if self.draws is None else self.draws
        proposal = beside(self.log_proposal, 0.0)
        return Candidates(tokens, both.gather(1, order), proposal, keep.sum(1), draws, beside(self.log_model, float("nan")))

    def beside(self, *others: Candidates) -> Candidates:
        """These and other candidates of the same examples in one set ``[B, S + S' + …, L]``, on the device of these.

        A sentence that several of them hold stays in several places; targets count it once. What is known of the proposals does not
        carry over: a sentence of the one may be likely under the other as well. ``log_model`` is NaN for those that have none.

        >>> one, two = Candidates(*Sentences.pack([[[4, 5]]])), Candidates(*Sentences.pack([[[6], [4, 5, 7]]]))
        >>> one.beside(two).sentences.unpack()
        [[[4, 5], [6], [4, 5, 7]]]
        """
        sets = [self, *(other.to(self.tokens.device) for other in others)]
        for number, each in enumerate(sets):
            if len(each.tokens) != len(self.tokens):
                raise ShapeError(f"candidates must be of the same {len(self.tokens)} examples, set {number} is of {len(each.tokens)}")
        width = max(each.tokens.shape[2] for each in sets)
        tokens = torch.cat([torch.nn.functional.pad(each.tokens, (0, width - each.tokens.shape[2])) for each in sets], 1)
        log_model = None
        if any(each.log_model is not None for each in sets):
            unknown = torch.full((), torch.nan, dtype=torch.float64, device=tokens.device)
            log_model = torch.cat([unknown.expand(each.lengths.shape) if each.log_model is None else each.log_model for each in sets], 1)
        return Candidates(tokens, torch.cat([each.lengths for each in sets], 1), log_model=log_model)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Candidates:
        """The same on another device."""
        return self._map(lambda value: value.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Candidates:
        """The same in page-locked memory, from which a GPU copies without waiting."""
        return self._map(lambda value: value.pin_memory())

    def _map(self, function: Any) -> Candidates:
        names = ("tokens", "lengths", "log_proposal", "fixed", "draws", "log_model")
        return replace(self, **{name: function(getattr(self, name)) for name in names if getattr(self, name) is not None})

    def __repr__(self) -> str:
        batch, size, width = self.tokens.shape
        return f"Candidates(examples={batch}, size={size}, width={width})"
