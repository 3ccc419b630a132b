"""Words as the subwords that an encoder reads, in windows where a sentence is longer than its limit."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from softq.checks import check_count
from softq.errors import DataError, ModelError
from softq.integrations.transformers.tokens import TokenIds

NOWHERE = (-1, -1, -1)
"""The place of a word that has no subword."""

_UNLIMITED = 10**9  # tokenizers without a limit have a larger one


class Subwords(NamedTuple):
    """A sentence as an encoder reads it.

    Attributes:
        windows: token ids, special ones included; one window unless the sentence is too long.
        words: the place of each word: its window, its first subword, and the one after its last;
            `NOWHERE` of one without a subword.

    """

    windows: list[TokenIds]
    words: list[tuple[int, int, int]]


class WordTokenizer:
    """Turns words into subwords and keeps track of them.

    A sentence longer than ``max_length`` is cut into windows that overlap. A word is read in the
    window that has most of its subwords, and among those in the one where the nearer border is
    farthest away.

    Args:
        tokenizer: a fast one, which knows the word of each subword.
        max_length: most subwords that the encoder reads at once, special tokens included; None: the
            tokenizer's own limit, if it has one.
        stride: subwords that a window shares with the one before; None: a quarter of what it holds.

    """

    def __init__(
        self, tokenizer: Any, *, max_length: int | None = None, stride: int | None = None
    ) -> None:
        if not getattr(tokenizer, "is_fast", False):
            raise ModelError(
                "expected a fast tokenizer, which knows the word of each subword, got"
                f" {type(tokenizer).__name__}: load it with AutoTokenizer.from_pretrained(…,"
                " use_fast=True)"
            )
        self.tokenizer = with_prefix_space(tokenizer)
        limits = [max_length, tokenizer.model_max_length]
        known = [limit for limit in limits if limit is not None and limit < _UNLIMITED]
        self.max_length = min(known, default=None)
        if self.max_length is None:
            self._how: dict[str, Any] = {}
            return
        room = self.max_length - tokenizer.num_special_tokens_to_add()
        check_count("max_length less the special tokens", room, DataError)
        self.stride = room // 4 if stride is None else check_count("stride", stride, DataError, 0)
        if self.stride >= room:
            raise DataError(
                f"stride must be less than the {room} subwords of a window, got {self.stride}"
            )
        self._how = {
            "truncation": True,
            "max_length": self.max_length,
            "stride": self.stride,
            "return_overflowing_tokens": True,
        }

    def __call__(self, sentences: Sequence[Sequence[str]]) -> list[Subwords]:
        """The subwords of sentences, each a sequence of words, which may be empty."""
        if not sentences:
            return []
        found = self.tokenizer(
            [list(words) for words in sentences],
            is_split_into_words=True,
            return_attention_mask=False,
            return_token_type_ids=False,
            **self._how,
        )
        rows = list(map(list, found["input_ids"]))
        owners = found.get("overflow_to_sample_mapping", range(len(rows)))
        made: list[Subwords] = []
        for owner, numbers in groupby(range(len(rows)), key=lambda number: owners[number]):
            windows = list(numbers)
            words = [found.word_ids(window) for window in windows]
            made.append(Subwords([rows[w] for w in windows], _places(words, len(sentences[owner]))))
        return made


def with_prefix_space(tokenizer: Any) -> Any:
    """A tokenizer that tells words apart: itself, or a copy that puts a space before each word.

    Byte-level tokenizers (RoBERTa, ModernBERT) read a word with and without a space before it as
    different subwords. Words that come one by one have none, but they had one in the text that the
    encoder was trained on.
    """
    state = _pre_tokenizer_state(tokenizer.backend_tokenizer)
    steps = list(_byte_level_steps(state))
    if all(step["add_prefix_space"] for step in steps) or not steps:
        return tokenizer
    for step in steps:
        step["add_prefix_space"] = True
    copied = copy.deepcopy(tokenizer)
    changed = copied.backend_tokenizer.pre_tokenizer
    changed.__setstate__(json.dumps(state).encode())
    copied.backend_tokenizer.pre_tokenizer = changed
    copied.add_prefix_space = True  # by which some classes tell that they can read words
    return copied


def _pre_tokenizer_state(backend: Any) -> Any:
    return (
        None if backend.pre_tokenizer is None else json.loads(backend.pre_tokenizer.__getstate__())
    )


def _byte_level_steps(state: Any) -> Iterator[dict[str, Any]]:
    for step in (state or {}).get("pretokenizers", [state] if state else []):
        if step.get("type") == "ByteLevel":
            yield step


def _places(windows: Sequence[Sequence[int | None]], count: int) -> list[tuple[int, int, int]]:
    """Where each of ``count`` words is read, from the word of each subword of each window.

    >>> _places([[None, 0, 1, 1, None], [None, 1, 1, 3, None]], 4)  # word 2 has no subword
    [(0, 1, 2), (0, 2, 4), (-1, -1, -1), (1, 3, 4)]
    """
    best: list[tuple[tuple[int, int], tuple[int, int, int]]] = [((0, 0), NOWHERE)] * count
    for window, words in enumerate(windows):
        real = [place for place, word in enumerate(words) if word is not None]
        for word, run in groupby(real, key=words.__getitem__):
            places = list(run)
            place = window, places[0], places[-1] + 1
            rank = len(places), min(places[0] - real[0], real[-1] - places[-1])
            if word is not None and rank > best[word][0]:
                best[word] = rank, place
    return [place for _, place in best]
