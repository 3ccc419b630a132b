"""Token ids: which are text and which are not, and rows of them as one tensor."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from softq.errors import ModelError

TokenIds = list[int]

IGNORED = -100  # label of a position that has none

_NAMES = ("pad_token_id", "eos_token_id", "bos_token_id", "decoder_start_token_id")


class SpecialTokens(NamedTuple):
    """The token ids that a model and its tokenizer use for something else than text."""

    ids: frozenset[int]
    """Those that are no text: an unknown word is text, unless its token has another meaning too, as
    in GPT-2."""
    unwritable: frozenset[int]
    """Those that no sampler may write: all of them and that of an unknown word."""
    ends: frozenset[int]
    """Those that end a text."""
    pad: int
    """The one that fills rows up."""


def special_tokens(tokenizer: Any, core: Any) -> SpecialTokens:
    """Those that a tokenizer names, and those that the model's settings name."""
    by_name = {
        name: _ids_by_name(name, tokenizer, core.generation_config, core.config) for name in _NAMES
    }
    of_tokenizer, ends = special_by_tokenizer(tokenizer), frozenset(by_name["eos_token_id"])
    pad = next(iter(by_name["pad_token_id"]), min(ends, default=None))
    if pad is None:
        raise ModelError(
            "neither tokenizer nor model names a padding token: set pad_token_id in"
            " model.generation_config"
        )
    ids = of_tokenizer - {getattr(tokenizer, "unk_token_id", None)}
    ids = ids.union(*by_name.values())
    return SpecialTokens(ids, ids | of_tokenizer, ends, pad)


def special_by_tokenizer(tokenizer: Any) -> frozenset[int]:
    """The special tokens of a tokenizer, that of an unknown word among them."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    marked = (number for number, token in added.items() if token.special)
    return frozenset((*getattr(tokenizer, "all_special_ids", ()), *marked))


def _ids_by_name(name: str, *holders: Any) -> list[int]:
    given = [getattr(holder, name, None) for holder in holders]
    listed = [value if isinstance(value, (list, tuple)) else [value] for value in given]
    return [number for numbers in listed for number in numbers if number is not None]


class Ends(NamedTuple):
    """The special tokens around a text."""

    before: TokenIds
    after: TokenIds


def usual_ends(tokenizer: Any, special: SpecialTokens, *, causal: bool) -> Ends:
    """The special tokens around a text that a model generates, as its tokenizer puts them."""
    if callable(tokenizer) and not causal:
        return strip_specials(tokenizer(text_target="a")["input_ids"], special.ids)[1]
    end = getattr(tokenizer, "eos_token_id", None)
    return Ends([], sorted(special.ends)[:1] if end is None else [end])


def strip_specials(tokens: Sequence[int], specials: Collection[int]) -> tuple[TokenIds, Ends]:
    """A text without the special tokens at its ends, and these.

    >>> strip_specials([0, 8, 9, 1, 9, 1], {0, 1})
    ([8, 9, 1, 9], Ends(before=[0], after=[1]))
    """
    first, last = 0, len(tokens)
    while first < last and tokens[first] in specials:
        first += 1
    while last > first and tokens[last - 1] in specials:
        last -= 1
    return list(tokens[first:last]), Ends(list(tokens[:first]), list(tokens[last:]))


def decode_all(tokenizer: Any, rows: list[TokenIds]) -> list[str]:
    """Texts of many rows, without special tokens."""
    return tokenizer.batch_decode(rows, skip_special_tokens=True) if rows else []


def padded(
    rows: Sequence[TokenIds],
    fill: int,
    side: Literal["left", "right"] = "right",
    multiple: int | None = None,
) -> Tensor:
    """Rows of token ids as one tensor ``[B, L]``, filled up in front or behind, to a multiple of a length.

    >>> padded([[5], [6, 7]], 0, multiple=4).tolist()
    [[5, 0, 0, 0], [6, 7, 0, 0]]
    """
    tensors = [torch.tensor(row, dtype=torch.int64) for row in rows]
    found = pad_sequence(tensors, batch_first=True, padding_value=fill, padding_side=side)
    more = -found.shape[1] % (multiple or 1)
    return pad(found, (more, 0) if side == "left" else (0, more), value=fill)


def padded_inputs(
    rows: Sequence[TokenIds],
    fill: int,
    side: Literal["left", "right"] = "right",
    multiple: int | None = None,
) -> dict[str, Tensor]:
    """What a model reads, and the mask of what it is to see of that."""
    mask = padded([[1] * len(row) for row in rows], 0, side, multiple)
    return {"input_ids": padded(rows, fill, side, multiple), "attention_mask": mask}
