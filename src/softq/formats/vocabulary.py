"""Token ids of text and text of token ids.

Whole words with a frequency cut-off (the paper, Appendix D.2.4), or subwords.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from softq.errors import DataError, DependencyError
from softq.formats.file_checks import check_format, in_one_line, notes_in, one_of, string_list
from softq.formats.tokens import detokenize, tokenize, tokens_of_chunk, without_marks
from softq.options import check_conflicts

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PAD, START, END, UNKNOWN = range(4)
"""Special tokens.

Padding behind a sentence, its start, its end, and any word that is not in the vocabulary.
"""

SPECIALS = 4
"""The number of special tokens, and so the token id of the first word."""

UNKNOWN_WORD = "<unk>"
"""How `UNKNOWN` is written."""

Tokenization = Literal["unicode", "space"]
"""Words as `softq.formats.tokens` finds them, or whatever stands between spaces, for text that has been tokenized already."""

_FORMAT = "softq vocabulary 2"
_BYTES = 256  # of which subwords are made
_PARTS = {
    "pre_tokenizer": "ByteLevel",
    "decoder": "ByteLevel",
    "model": "BPE",
}  # of a tokenizer of subwords
_CACHED = 1 << 19  # stretches of text whose token ids are kept


class Vocabulary:
    """The token ids of one language: whole words, or subwords by byte-pair encoding (🤗 tokenizers).

    Texts are single lines; runs of white space count as one space. Token ids of sentences hold no
    `START` and no `END`.

    Words are ordered by frequency, and those of equal frequency by their spelling. Subwords spell
    every text, so that none is unknown, and each text comes back as it was; a subword that begins a
    word holds the space before it. Metrics count whole words in either case.

    Args:
        types: the words from token id 4 on, with marks (`softq.formats.tokens`) unless
            ``tokenizer`` is ``"space"``; or a tokenizer of 🤗 tokenizers, whose id i is token id i +
            4 here.
        frequencies: how often each token is in the training text, int64 ``[V]``; 0 for special
            tokens.
        tokenizer: what a word is.
        lowercase: whether all text is read in lower case.

    >>> vocabulary = Vocabulary.fit_words(["Yes, I do.", "No, I do not."], min_freq=2)
    >>> len(vocabulary), vocabulary.types
    (8, ['I', 'do', '￭,', '￭.'])
    >>> vocabulary.encode("I do sing, too.")
    [4, 5, 3, 6, 3, 7]
    >>> vocabulary.decode(_), vocabulary.words(_), vocabulary.plain("I do sing.")
    ('I do <unk>, <unk>.', ['I', 'do', '<unk>', ',', '<unk>', '.'], ['I', 'do', 'sing', '.'])

    """

    def __init__(
        self,
        types: Sequence[str] | Tokenizer,
        frequencies: Tensor,
        *,
        tokenizer: Tokenization = "unicode",
        lowercase: bool = False,
    ) -> None:
        self.frequencies, self.lowercase = frequencies, lowercase
        self.tokenizer: Tokenization = tokenizer
        self._subwords = None if isinstance(types, Sequence) else types
        self.types = list(types) if isinstance(types, Sequence) else []
        self._written = ["", "", "", UNKNOWN_WORD, *self.types]
        self._bare = self._written if tokenizer == "space" else without_marks(self._written)
        self._ids = {word: token for token, word in enumerate(self.types, start=SPECIALS)}
        self._cache: dict[str, tuple[int, ...]] = {}

    @classmethod
    def fit_words(
        cls,
        texts: Iterable[str],
        min_freq: int = 1,
        max_size: int | None = None,
        *,
        tokenizer: Tokenization = "unicode",
        lowercase: bool = False,
    ) -> Vocabulary:
        """The words of texts.

        Args:
            texts: one line each.
            min_freq: words that are rarer are unknown.
            max_size: the largest vocabulary, special tokens included; the most frequent words stay.
            tokenizer: ``"unicode"``, or ``"space"`` for text whose words are separated by spaces
                already.
            lowercase: read all text in lower case.

        """
        check_conflicts(
            (
                (
                    tokenizer not in get_args(Tokenization),
                    f"expected a tokenizer of {' or '.join(get_args(Tokenization))}, got {tokenizer!r}",
                ),
                (
                    min_freq < 1,
                    f"expected a smallest frequency of 1 or more, got {min_freq}",
                ),
                (
                    max_size is not None and max_size <= SPECIALS,
                    f"expected a vocabulary of more than {SPECIALS}, the special tokens, got {max_size}",
                ),
            ),
            DataError,
        )
        counts: Counter[str] = Counter()
        for chunk, count in _chunks(texts).items():
            for word in _cut(chunk, tokenizer, lowercase):
                counts[word] += count
        counts.pop(UNKNOWN_WORD, None)  # text that was tokenized elsewhere may have it
        kept = sorted(
            (word for word, count in counts.items() if count >= min_freq),
            key=lambda word: (-counts[word], word),
        )
        kept = kept[: None if max_size is None else max_size - SPECIALS]
        if not kept:
            raise DataError(
                f"expected text with words that come at least {min_freq} times, got {len(counts)}"
                " words and none so often"
            )
        frequencies = torch.tensor([0] * SPECIALS + [counts[word] for word in kept])
        return cls(kept, frequencies, tokenizer=tokenizer, lowercase=lowercase)

    @classmethod
    def fit_subwords(cls, texts: Iterable[str], size: int) -> Vocabulary:
        """The subwords of texts.

        ``size`` tokens, the four special ones and 256 bytes included, or fewer for little text.

        Raises DependencyError without 🤗 tokenizers.
        """
        if size < SPECIALS + _BYTES:
            raise DataError(
                f"expected a vocabulary of at least {SPECIALS + _BYTES} (every byte is a token),"
                f" got {size}"
            )
        tokenizers = _tokenizers()
        chunks = _chunks(texts)
        if not chunks:
            raise DataError("expected text to make subwords of, got none")
        tokenizer: Tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = tokenizers.decoders.ByteLevel()
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=size - SPECIALS,
            initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        tokenizer.train_from_iterator((" " + chunk for chunk in chunks.elements()), trainer)
        frequencies = np.zeros(SPECIALS + tokenizer.get_vocab_size(), np.int64)
        vocabulary = cls(tokenizer, torch.from_numpy(frequencies))
        for chunk, count in chunks.items():
            np.add.at(frequencies, vocabulary.encode(chunk), count)
        return vocabulary

    def __len__(self) -> int:
        """The number of tokens, special ones included."""
        return len(self.frequencies)

    @property
    def kind(self) -> Literal["words", "subwords"]:
        """Which tokens these are."""
        return "words" if self._subwords is None else "subwords"

    def encode(self, text: str) -> list[int]:
        """The token ids of a text."""
        found: list[int] = []
        for chunk in text.split():
            known = self._cache.get(chunk)
            if known is None:
                if len(self._cache) >= _CACHED:
                    self._cache.clear()
                known = self._cache[chunk] = self._encode_chunk(chunk)
            found += known
        return found

    def _encode_chunk(self, chunk: str) -> tuple[int, ...]:
        if self._subwords is None:
            cut = _cut(chunk, self.tokenizer, self.lowercase)
            return tuple(self._ids.get(word, UNKNOWN) for word in cut)
        # subwords never reach over a space, so that chunks one by one have the token ids of the
        # whole text
        return tuple(token + SPECIALS for token in self._subwords.encode(" " + chunk).ids)

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of token ids, one line; `PAD`, `START` and `END` are left out."""
        if self._subwords is not None:
            return " ".join(UNKNOWN_WORD.join(self._between_unknown(tokens)).split())
        written = [self._written[token] for token in tokens if token >= UNKNOWN]
        return " ".join(written) if self.tokenizer == "space" else detokenize(written)

    def words(self, tokens: Iterable[int]) -> list[str]:
        """The words of token ids, as metrics count them: whole, and punctuation apart.

        Unknown ones are ``"<unk>"``.
        """
        if self._subwords is None:
            return [self._bare[token] for token in tokens if token >= UNKNOWN]
        first, *others = self._between_unknown(tokens)
        return self.plain(first) + [
            word for stretch in others for word in (UNKNOWN_WORD, *self.plain(stretch))
        ]

    def plain(self, text: str) -> list[str]:
        """The words of a text, such as a reference, in the same form.

        Unknown ones stay as they are.
        """
        text = text.lower() if self.lowercase else text
        return text.split() if self.tokenizer == "space" else without_marks(tokenize(text))

    def _between_unknown(self, tokens: Iterable[int]) -> list[str]:
        """The texts between unknown tokens: no text has them, but a model may generate them."""
        stretches: list[list[int]] = [[]]
        for token in tokens:
            if token == UNKNOWN:
                stretches.append([])
            elif token >= SPECIALS:
                stretches[-1].append(token - SPECIALS)
        return [self._subwords.decode(stretch) for stretch in stretches] if self._subwords else []

    def tensors(self, prefix: str = "") -> dict[str, Tensor]:
        """The vocabulary as tensors whose names begin with ``prefix``.

        `from_tensors` reads them.
        """
        about = {
            "format": _FORMAT,
            "kind": self.kind,
            "types": self.types,
            "tokenizer": self.tokenizer,
            "lowercase": self.lowercase,
        }
        found = {
            f"{prefix}about": _as_bytes(json.dumps(about, ensure_ascii=False)),
            f"{prefix}frequencies": self.frequencies.clone(),
        }
        if self._subwords is not None:
            found[f"{prefix}tokenizer"] = _as_bytes(self._subwords.to_str())
        return found

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], prefix: str = "") -> Vocabulary:
        """The vocabulary of `tensors`; other tensors are ignored.

        What is no vocabulary is a `DataError`.
        """
        about = notes_in(tensors, f"{prefix}about", "vocabulary")
        check_format(about, _FORMAT)
        kind = one_of("the kind of a vocabulary", about.get("kind"), ("words", "subwords"))
        tokenizer: Tokenization = one_of(
            f"the tokenizer in {prefix}about", about.get("tokenizer"), get_args(Tokenization)
        )
        frequencies = tensors.get(f"{prefix}frequencies")
        if frequencies is None or frequencies.dtype != torch.int64 or frequencies.dim() != 1:
            raise DataError(
                f"expected {prefix}frequencies of torch.int64 [V], got"
                f" {None if frequencies is None else frequencies.dtype}"
            )
        types: Any = string_list(f"types in {prefix}about", about.get("types"))
        size = len(types)
        if kind == "subwords":
            where = f"{prefix}tokenizer"
            types = _read_subwords(notes_in(tensors, where, "vocabulary"), where)
            size = types.get_vocab_size()
        if len(frequencies) != SPECIALS + size:
            raise DataError(
                f"expected {prefix}frequencies for {SPECIALS + size} tokens, got {len(frequencies)}"
            )
        return cls(types, frequencies, tokenizer=tokenizer, lowercase=bool(about.get("lowercase")))


def _chunks(texts: Iterable[str]) -> Counter[str]:
    """Counts of what stands between spaces."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text.split())
    return counts


def _cut(chunk: str, tokenizer: Tokenization, lowercase: bool) -> tuple[str, ...]:
    chunk = chunk.lower() if lowercase else chunk
    return (chunk,) if tokenizer == "space" else tokens_of_chunk(chunk)


def _as_bytes(text: str) -> Tensor:
    return torch.from_numpy(np.frombuffer(text.encode(), np.uint8).copy())


def _read_subwords(notes: Mapping[str, Any], where: str) -> Tokenizer:
    """The tokenizer of `Vocabulary.fit_subwords` from its JSON.

    Others may do anything to a text, and are refused.
    """
    parts = {
        name: part.get("type") if isinstance(part, dict) else part
        for name, part in notes.items()
        if name != "version"
    }
    if {name: part for name, part in parts.items() if part} != _PARTS:
        raise DataError(
            f"expected a tokenizer of bytes and byte pairs in {where}, got {in_one_line(parts)}"
        )
    library = _tokenizers()
    try:
        made: Tokenizer = library.Tokenizer.from_str(json.dumps(notes))
    except Exception as error:  # tokenizers has no class of its own for what it raises
        raise DataError(f"expected a tokenizer in {where}, got {in_one_line(error)}") from None
    if sorted(made.get_vocab().values()) != list(range(made.get_vocab_size())):
        raise DataError(
            f"expected the ids 0 to {made.get_vocab_size() - 1} for the subwords of {where}, got"
            " others"
        )
    return made


def _tokenizers() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise DependencyError(
            "subwords need 🤗 tokenizers, which is not installed: pip install 'softq[translation]'"
        ) from None
    return tokenizers
