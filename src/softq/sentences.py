"""Sentences of different lengths as one tensor.

The form in which rewards and samplers take references and candidates.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from softq.checks import first_true, type_of
from softq.errors import DtypeError, LengthError, OutputError, ShapeError
from softq.numerics import length_mask

MISSING = -1  # the length of a sentence that is not there

_INTEGERS = (torch.int32, torch.int64)


class Sentences(NamedTuple):
    """Integer tokens ``[..., L]`` and lengths ``[...]``.

    A length of -1 marks a sentence that is not there, such as the third reference of an example
    that has two. What stands behind a length may be anything and never matters.

    >>> refs = Sentences.pack([[[5, 6, 7], [5, 8]], [[9]]])  # two references, then one
    >>> refs.lengths
    tensor([[ 3,  2],
            [ 1, -1]])
    >>> refs.unpack()
    [[[5, 6, 7], [5, 8]], [[9]]]
    """

    tokens: Tensor
    lengths: Tensor

    @classmethod
    def pack(cls, sentences: Sequence[Any], *, pad: int = 0) -> Sentences:
        """Sentences ``[B]`` from lists of token ids, or ``[B, R]`` from lists of such lists."""
        nested = _are_nested(sentences)
        examples = sentences if nested else [[item] for item in sentences]
        for b, rows in enumerate(examples):
            for row in rows:
                if not _is_sentence(row):
                    raise DtypeError(
                        f"a sentence must be a list of whole numbers, got {row!r} in example {b}"
                    )
        width = max((len(row) for rows in examples for row in rows), default=0)
        shape = (len(examples), max(map(len, examples), default=0) if nested else 1)
        tokens = np.full((*shape, width), pad, dtype=np.int64)
        lengths = np.full(shape, MISSING, dtype=np.int64)
        for b, rows in enumerate(examples):
            for r, row in enumerate(rows):
                tokens[b, r, : len(row)] = row
                lengths[b, r] = len(row)
        found = cls(torch.from_numpy(tokens), torch.from_numpy(lengths))
        return found if nested else cls(found.tokens.squeeze(1), found.lengths.squeeze(1))

    def unpack(self) -> list[Any]:
        """Plain lists, without those that are missing."""
        return _unpack(self.tokens.tolist(), self.lengths.tolist())

    @property
    def present(self) -> Tensor:
        """Which sentences are there, bool ``[...]``."""
        return self.lengths >= 0


def aligned(candidates: Sentences, references: Sentences) -> tuple[Sentences, Sentences]:
    """Both with tokens of one type, on the device of the candidates.

    Numbers are never cut to fit.
    """
    device, dtype = candidates.tokens.device, candidates.tokens.dtype
    references = Sentences(references.tokens.to(device), references.lengths.to(device))
    if references.tokens.dtype != dtype:
        real = length_mask(references.lengths, references.tokens.shape[-1])
        if dtype == torch.int32 and bool(
            (real & (references.tokens > torch.iinfo(torch.int32).max)).any()
        ):
            candidates = candidates._replace(tokens=candidates.tokens.long())
        references = references._replace(tokens=references.tokens.to(candidates.tokens.dtype))
    return candidates, references


References: TypeAlias = Sentences | Tensor | Sequence[Any]


def as_references(refs: References, *, vocab: int | None = None) -> Sentences:
    """References ``[B, R, M]`` with lengths ``[B, R]``, checked, from the forms users have them in.

    Args:
        refs: `Sentences`; or an integer tensor ``[B, M]`` or ``[B, R, M]``, padded at the end with
            any negative number (a row of nothing else is a missing reference); or nested lists,
            one or several sentences per example.
        vocab: size of the vocabulary, which token ids must lie below, if given.

    >>> as_references(torch.tensor([[3, 4, 5], [6, -1, -1]])).lengths
    tensor([[3],
            [1]])

    """
    if isinstance(refs, Sentences):
        found = check_sentences("references", refs)
    elif isinstance(refs, Tensor):
        found = _from_padded(refs)
    elif isinstance(refs, Iterable):
        found = Sentences.pack(list(refs))
    else:
        raise DtypeError(
            "references must be Sentences, an integer tensor or nested lists, "
            f"got {type(refs).__name__}"
        )
    if found.tokens.dim() == 2:
        found = Sentences(found.tokens.unsqueeze(1), found.lengths.unsqueeze(1))
    if found.tokens.dim() != 3:
        raise ShapeError(
            f"references must have shape [B, M] or [B, R, M], got {list(found.tokens.shape)}"
        )
    if (nobody := first_true(~found.present.any(1))) is not None:
        raise OutputError(f"every example needs a reference, example {nobody[0]} has none")
    check_tokens("references", found, vocab)
    return found


def check_sentences(name: str, sentences: Sentences) -> Sentences:
    """Sentences whose types, shapes and lengths fit together.

    Lengths come back as int64 on the tokens' device.
    """
    tokens, lengths = sentences
    for what, tensor in (("tokens", tokens), ("lengths", lengths)):
        if not isinstance(tensor, Tensor) or tensor.dtype not in _INTEGERS:
            raise DtypeError(
                f"{what} of {name} must be an int64 or int32 tensor, got {type_of(tensor)}"
            )
    if tokens.dim() == 0 or lengths.shape != tokens.shape[:-1]:
        raise ShapeError(
            f"lengths of {name} must have shape {list(tokens.shape[:-1])}, "
            f"got {list(lengths.shape)}"
        )
    bad = (lengths < MISSING) | (lengths > tokens.shape[-1])
    if (place := first_true(bad)) is not None:
        raise LengthError(
            f"lengths of {name} must lie in 0..{tokens.shape[-1]} or be -1, "
            f"got {int(lengths[place])} at index {place}"
        )
    return Sentences(tokens, lengths.to(device=tokens.device, dtype=torch.int64))


def check_tokens(name: str, sentences: Sentences, vocab: int | None = None) -> None:
    """Raise an error unless token ids within the lengths are in the vocabulary, if one is given."""
    bad = sentences.tokens < 0
    if vocab is not None:
        bad |= sentences.tokens >= vocab
    bad &= length_mask(sentences.lengths, sentences.tokens.shape[-1])
    if (place := first_true(bad)) is not None:
        wanted = "not be negative" if vocab is None else f"lie in 0..{vocab - 1}"
        axes = ("example", *["sentence"] * (len(place) - 2), "position")
        where = ", ".join(f"{axis} {i}" for axis, i in zip(axes, place, strict=True))
        got = int(sentences.tokens[place])
        raise OutputError(f"token ids of {name} must {wanted}, got {got} at {where}")


def _from_padded(tokens: Tensor) -> Sentences:
    if tokens.dtype not in _INTEGERS:
        raise DtypeError(f"references must hold int64 or int32 numbers, got {tokens.dtype}")
    if tokens.dim() not in (2, 3):
        raise ShapeError(
            f"references must have shape [B, M] or [B, R, M], got {list(tokens.shape)}"
        )
    lengths = (tokens >= 0).long().sum(-1)
    if tokens.shape[-1]:
        lengths = lengths.masked_fill(lengths == 0, MISSING)
    return Sentences(tokens, lengths)


def _is_sentence(item: Any) -> bool:
    if type(item) is list and set(map(type, item)) <= {int}:  # nearly all, without a slow loop
        return True
    if isinstance(item, Tensor):
        return item.dim() == 1 and item.dtype in _INTEGERS
    return _is_list(item) and all(
        isinstance(word, (int, np.integer)) and not isinstance(word, bool) for word in item
    )


def _are_nested(examples: Sequence[Any]) -> bool:
    """Whether examples are lists of sentences, of which some may have none."""
    return any(map(_is_list_of_lists, examples)) and all(
        _is_list_of_lists(item) or (_is_list(item) and not len(item)) for item in examples
    )


def _is_list_of_lists(item: Any) -> bool:
    if type(item) is list and item and type(item[0]) is int:
        return False
    return (
        _is_list(item)
        and len(item) > 0
        and all(isinstance(part, Tensor) or _is_list(part) for part in item)
    )


def _is_list(item: Any) -> bool:
    return isinstance(item, Sequence) and not isinstance(item, str)


def _unpack(rows: Any, lengths: Any) -> list[Any]:
    if lengths and isinstance(lengths[0], list):
        return [_unpack(row, length) for row, length in zip(rows, lengths, strict=True)]
    return [row[:length] for row, length in zip(rows, lengths, strict=True) if length >= 0]
