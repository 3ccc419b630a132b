"""From text to numbers and back: whole words with a frequency cut-off (the paper, Appendix D.2.4), or subwords."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from softq.errors import DataError, DependencyError
from softq.formats.file_checks import check_format, in_one_line, notes_in, one_of, string_list
from softq.formats.tokens import detokenize, tokenize, tokens_of_chunk, without_marks

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PAD, START, END, UNKNOWN = range(4)
"""Numbers that are no words: behind a sentence in a batch, before its first word, after its last, and for a word that is not known."""

SPECIALS = 4
"""How many these are, and so the first number of a word."""

UNKNOWN_WORD = "<unk>"
"""How `UNKNOWN` is written."""

Tokenization = Literal["unicode", "space"]
"""Words as `softq.formats.tokens` finds them, or whatever stands between spaces, for text that has been cut into words already."""

_FORMAT = "softq vocabulary 1"
_BYTES = 256  # of which subwords are made
_PARTS = {
    "pre_tokenizer": "ByteLevel",
    "decoder": "ByteLevel",
    "model": "BPE",
}  # of their tokenizer
_REMEMBERED = 1 << 19  # pieces of text whose numbers are kept


class Vocabulary(ABC):
    """What gives the words of one language their numbers; `WordVocabulary` or `SubwordVocabulary`.

    Texts are single lines; runs of white space count as one space. Numbers of sentences hold no `START` and no `END`.

    Attributes:
        frequencies: How often each number is in the training text, int64 ``[V]``; 0 for those that are no words.

    """

    def __init__(self, frequencies: Tensor) -> None:
        self.frequencies = frequencies
        self._remembered: dict[str, tuple[int, ...]] = {}

    def __len__(self) -> int:
        """How many numbers there are, the special ones among them."""
        return len(self.frequencies)

    def encode(self, text: str) -> list[int]:
        """The numbers of a text."""
        remembered = self._remembered
        numbers: list[int] = []
        for chunk in text.split():
            known = remembered.get(chunk)
            if known is None:
                if len(remembered) >= _REMEMBERED:
                    remembered.clear()
                known = remembered[chunk] = self._numbers_of(chunk)
            numbers += known
        return numbers

    @abstractmethod
    def decode(self, numbers: Iterable[int]) -> str:
        """The text of numbers, as people write it; `PAD`, `START` and `END` say nothing."""

    @abstractmethod
    def words(self, numbers: Iterable[int]) -> list[str]:
        """The words of numbers, as metrics count them: whole, and punctuation apart; what is not known is ``"<unk>"``."""

    @abstractmethod
    def plain(self, text: str) -> list[str]:
        """The words of a text, such as a reference, in the same form; those that are not known stay as they are."""

    @abstractmethod
    def tensors(self, prefix: str = "") -> dict[str, Tensor]:
        """All of it as tensors whose names begin with ``prefix``: `vocabulary_from_tensors` reads them."""

    @abstractmethod
    def _numbers_of(self, chunk: str) -> tuple[int, ...]:
        """The numbers of a text without white space, which must not depend on what stands around it."""

    def _tensors(self, prefix: str, kind: str, about: Mapping[str, Any]) -> dict[str, Tensor]:
        text = json.dumps({"format": _FORMAT, "kind": kind, **about}, ensure_ascii=False)
        return {f"{prefix}about": _as_bytes(text), f"{prefix}frequencies": self.frequencies.clone()}


class WordVocabulary(Vocabulary):
    """Whole words, the most frequent first; those of equal frequency by their spelling.

    Args:
        types: The words from number 4 on; with marks (`softq.formats.tokens`) unless ``tokenizer`` is ``"space"``.
        frequencies: How often each number is in the training text, int64 ``[V]``.
        tokenizer: What a word is.
        lowercase: All text is lower case.

    >>> vocabulary = WordVocabulary.fit(["Yes, I do.", "No, I do not."], min_freq=2)
    >>> len(vocabulary), vocabulary.types
    (8, ['I', 'do', '￭,', '￭.'])
    >>> vocabulary.encode("I do sing, too.")
    [4, 5, 3, 6, 3, 7]
    >>> vocabulary.decode(_), vocabulary.words(_), vocabulary.plain("I do sing.")
    ('I do <unk>, <unk>.', ['I', 'do', '<unk>', ',', '<unk>', '.'], ['I', 'do', 'sing', '.'])

    """

    def __init__(
        self,
        types: Sequence[str],
        frequencies: Tensor,
        *,
        tokenizer: Tokenization = "unicode",
        lowercase: bool = False,
    ) -> None:
        super().__init__(frequencies)
        self.types = list(types)
        self.tokenizer: Tokenization = tokenizer
        self.lowercase = lowercase
        self._written = ["", "", "", UNKNOWN_WORD, *self.types]
        self._bare = self._written if tokenizer == "space" else without_marks(self._written)
        self._number = {word: number for number, word in enumerate(self.types, start=SPECIALS)}

    @classmethod
    def fit(
        cls,
        texts: Iterable[str],
        min_freq: int = 1,
        max_size: int | None = None,
        tokenizer: Tokenization = "unicode",
        *,
        lowercase: bool = False,
    ) -> WordVocabulary:
        """The words of texts.

        Args:
            texts: One sentence or more each.
            min_freq: Words that come less often are left out.
            max_size: Numbers there may be, the four special ones among them: the most frequent words stay.
            tokenizer: ``"unicode"``, or ``"space"`` for text whose words are separated by spaces already.
            lowercase: Take all text in lower case.

        """
        if tokenizer not in get_args(Tokenization):
            raise DataError(
                f"expected a tokenizer of {' or '.join(get_args(Tokenization))}, got {tokenizer!r}"
            )
        if min_freq < 1:
            raise DataError(f"expected a smallest frequency of 1 or more, got {min_freq}")
        if max_size is not None and max_size <= SPECIALS:
            raise DataError(
                f"expected a vocabulary of more than {SPECIALS}, the numbers that are no words, got {max_size}"
            )
        counts: Counter[str] = Counter()
        for chunk, count in _chunks(texts).items():
            for word in _cut(chunk, tokenizer, lowercase):
                counts[word] += count
        counts.pop(UNKNOWN_WORD, None)  # text cut elsewhere may have it
        kept = sorted(
            (word for word, count in counts.items() if count >= min_freq),
            key=lambda word: (-counts[word], word),
        )
        kept = kept[: None if max_size is None else max_size - SPECIALS]
        if not kept:
            raise DataError(
                f"expected text with words that come at least {min_freq} times, got {len(counts)} words and none so often"
            )
        frequencies = torch.tensor([0] * SPECIALS + [counts[word] for word in kept])
        return cls(kept, frequencies, tokenizer=tokenizer, lowercase=lowercase)

    def _numbers_of(self, chunk: str) -> tuple[int, ...]:
        return tuple(
            self._number.get(word, UNKNOWN) for word in _cut(chunk, self.tokenizer, self.lowercase)
        )

    def decode(self, numbers: Iterable[int]) -> str:
        """The text of numbers."""
        written = [self._written[number] for number in numbers if number >= UNKNOWN]
        return " ".join(written) if self.tokenizer == "space" else detokenize(written)

    def words(self, numbers: Iterable[int]) -> list[str]:
        """The words of numbers."""
        return [self._bare[number] for number in numbers if number >= UNKNOWN]

    def plain(self, text: str) -> list[str]:
        """The words of a text."""
        text = text.lower() if self.lowercase else text
        return text.split() if self.tokenizer == "space" else without_marks(tokenize(text))

    def tensors(self, prefix: str = "") -> dict[str, Tensor]:
        """All of it as tensors."""
        return self._tensors(
            prefix,
            "words",
            {"types": self.types, "tokenizer": self.tokenizer, "lowercase": self.lowercase},
        )


class SubwordVocabulary(Vocabulary):
    """Pieces of words, made of bytes by byte-pair encoding (🤗 tokenizers): no text is unknown, and each comes back as it was.

    A piece that begins a word has the space before it. Metrics count whole words all the same, those of `softq.formats.tokens`.

    Args:
        tokenizer: Of 🤗 tokenizers; its number i is i + 4 here.
        frequencies: How often each number is in the training text, int64 ``[V]``.

    """

    def __init__(self, tokenizer: Tokenizer, frequencies: Tensor) -> None:
        super().__init__(frequencies)
        self._tokenizer = tokenizer

    @classmethod
    def fit(cls, texts: Iterable[str], size: int) -> SubwordVocabulary:
        """Pieces of the words of texts: ``size`` numbers, the four special ones and 256 bytes among them, or fewer for little text.

        Raises DependencyError without 🤗 tokenizers.
        """
        if size < SPECIALS + _BYTES:
            raise DataError(
                f"expected a vocabulary of at least {SPECIALS + _BYTES} (every byte has a number), got {size}"
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
        vocabulary = cls(
            tokenizer, torch.zeros(SPECIALS + tokenizer.get_vocab_size(), dtype=torch.int64)
        )
        frequencies = np.zeros(len(vocabulary), np.int64)
        for chunk, count in chunks.items():
            np.add.at(frequencies, list(vocabulary._numbers_of(chunk)), count)
        vocabulary.frequencies = torch.from_numpy(frequencies)
        return vocabulary

    def _numbers_of(self, chunk: str) -> tuple[int, ...]:
        # Pieces never reach over a space, so that chunks one by one have the numbers of the whole text.
        return tuple(number + SPECIALS for number in self._tokenizer.encode(" " + chunk).ids)

    def decode(self, numbers: Iterable[int]) -> str:
        """The text of numbers: one line, whatever bytes a model may give, with runs of white space as one space."""
        return " ".join(UNKNOWN_WORD.join(self._stretches(numbers)).split())

    def words(self, numbers: Iterable[int]) -> list[str]:
        """The words of numbers."""
        first, *others = self._stretches(numbers)
        return self.plain(first) + [
            word for stretch in others for word in (UNKNOWN_WORD, *self.plain(stretch))
        ]

    def plain(self, text: str) -> list[str]:
        """The words of a text."""
        return without_marks(tokenize(text))

    def _stretches(self, numbers: Iterable[int]) -> list[str]:
        """The texts between numbers that are not known: no text has them, but a model may give them."""
        stretches: list[list[int]] = [[]]
        for number in numbers:
            if number == UNKNOWN:
                stretches.append([])
            elif number >= SPECIALS:
                stretches[-1].append(number - SPECIALS)
        return [self._tokenizer.decode(stretch) for stretch in stretches]

    def tensors(self, prefix: str = "") -> dict[str, Tensor]:
        """All of it as tensors."""
        return self._tensors(prefix, "subwords", {}) | {
            f"{prefix}tokenizer": _as_bytes(self._tokenizer.to_str())
        }


def vocabulary_from_tensors(tensors: Mapping[str, Tensor], prefix: str = "") -> Vocabulary:
    """The vocabulary of `Vocabulary.tensors`; tensors of other names are not looked at. What is no vocabulary is a `DataError`."""
    about = notes_in(tensors, f"{prefix}about", "vocabulary")
    check_format(about, _FORMAT)
    kind = one_of("the kind of a vocabulary", about.get("kind"), ("words", "subwords"))
    frequencies = tensors.get(f"{prefix}frequencies")
    if frequencies is None or frequencies.dtype != torch.int64 or frequencies.dim() != 1:
        raise DataError(
            f"expected {prefix}frequencies of torch.int64 [V], got {None if frequencies is None else frequencies.dtype}"
        )
    found: Vocabulary
    if kind == "words":
        types = string_list(f"types in {prefix}about", about.get("types"))
        tokenizer: Tokenization = one_of(
            f"the tokenizer in {prefix}about", about.get("tokenizer"), get_args(Tokenization)
        )
        found = WordVocabulary(
            types, frequencies, tokenizer=tokenizer, lowercase=bool(about.get("lowercase"))
        )
        size = SPECIALS + len(types)
    else:
        made = _read_tokenizer(
            notes_in(tensors, f"{prefix}tokenizer", "vocabulary"), f"{prefix}tokenizer"
        )
        found = SubwordVocabulary(made, frequencies)
        size = SPECIALS + made.get_vocab_size()
    if len(frequencies) != size:
        raise DataError(f"expected {prefix}frequencies for {size} numbers, got {len(frequencies)}")
    return found


def _chunks(texts: Iterable[str]) -> Counter[str]:
    """How often what stands between spaces is there."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text.split())
    return counts


def _cut(chunk: str, tokenizer: Tokenization, lowercase: bool) -> tuple[str, ...]:
    chunk = chunk.lower() if lowercase else chunk
    return (chunk,) if tokenizer == "space" else tokens_of_chunk(chunk)


def _as_bytes(text: str) -> Tensor:
    return torch.from_numpy(np.frombuffer(text.encode(), np.uint8).copy())


def _read_tokenizer(notes: Mapping[str, Any], where: str) -> Tokenizer:
    """The tokenizer that `SubwordVocabulary.fit` makes, from its JSON; others may do anything to a text, and are refused."""
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
            f"expected the numbers 0 to {made.get_vocab_size() - 1} for the pieces of {where}, got others"
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
