"""What tasks that write sentences share: which words their models know, and models that they go on from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, Protocol, Self, TypeVar

from softq.errors import RecipeError, RunError
from softq.formats.vocabulary import SPECIALS, SubwordVocabulary, Vocabulary, WordVocabulary
from softq.lab.recipe import at_least, key
from softq.lab.run import BEST

MOST_OF_TRAIN = 1000
"""Training inputs that scores are of, where there is no development part: all would be decoded in every epoch."""

_BYTES = 256


class Corpus(Protocol):
    """Inputs with their references."""

    def __len__(self) -> int:
        """How many inputs."""
        ...

    def take(self, numbers: Sequence[int]) -> Self:
        """Some of them."""
        ...


C = TypeVar("C", bound=Corpus)


@dataclass(frozen=True)
class Parts(Generic[C]):
    """What a recipe's data section names.

    Attributes:
        train: to learn from.
        dev: to choose by; None: some of train.
        test: of the final numbers; None: dev again.

    """

    train: C
    dev: C | None
    test: C | None

    @property
    def judged(self) -> C:
        """Dev, or as many inputs of train as are decoded in little time, at equal distances: files are often sorted."""
        if self.dev is not None:
            return self.dev
        there = len(self.train)
        return (
            self.train
            if there <= MOST_OF_TRAIN
            else self.train.take([place * there // MOST_OF_TRAIN for place in range(MOST_OF_TRAIN)])
        )

    @property
    def tested(self) -> C:
        """Test, or what the development scores are of."""
        return self.judged if self.test is None else self.test


@dataclass(frozen=True)
class VocabularySettings:
    """What counts as a word; vocabularies are of the training sentences alone."""

    kind: Literal["words", "subwords"] = key(
        "words", "whole words, the others unknown; or subwords, which spell any word (BPE)"
    )
    min_freq: int = key(1, "words that occur less often are unknown")
    size: int = key(
        32000,
        "most words or subwords of each language, of which 256 are the bytes that subwords spell with",
    )
    tokenizer: Literal["unicode", "space"] = key(
        "unicode",
        "words end at punctuation; or at white space alone, for text that is split already",
    )
    lowercase: bool = key(False, "read and write everything in small letters")

    def __post_init__(self) -> None:
        """Counts are counts."""
        at_least("min_freq", self.min_freq, 1)
        at_least("vocabulary.size", self.size, 1)
        if self.kind == "subwords" and self.size < _BYTES:
            raise RecipeError(
                f"vocabulary.size must be at least {_BYTES} with kind = subwords, every byte being one, got {self.size}"
            )
        if self.kind == "subwords" and (
            self.min_freq > 1 or self.tokenizer != "unicode" or self.lowercase
        ):
            raise RecipeError(
                "min_freq, tokenizer and lowercase are of whole words: expected min_freq = 1, tokenizer = unicode and lowercase = false "
                f"with kind = subwords, got {self.min_freq}, {self.tokenizer} and {str(self.lowercase).lower()}"
            )

    def fit(self, texts: Sequence[str]) -> Vocabulary:
        """The words of texts."""
        size = SPECIALS + self.size
        if self.kind == "subwords":
            return SubwordVocabulary.fit(texts, size)
        return WordVocabulary.fit(
            texts, self.min_freq, size, tokenizer=self.tokenizer, lowercase=self.lowercase
        )

    def check(self, start: str, vocabulary: Vocabulary) -> None:
        """Refuse a model to start from that has other words than these settings say.

        How many words there are, and how rare, depends on the text that they are from: they may not exceed what a recipe sets, if it does.
        """
        wanted: dict[str, object] = {"kind": self.kind}
        got: dict[str, object] = {
            "kind": "words" if isinstance(vocabulary, WordVocabulary) else "subwords"
        }
        if isinstance(vocabulary, WordVocabulary) and self.kind == "words":
            wanted |= {"tokenizer": self.tokenizer, "lowercase": self.lowercase}
            got |= {"tokenizer": vocabulary.tokenizer, "lowercase": vocabulary.lowercase}
        usual, size, rarest = (
            type(self)(),
            len(vocabulary) - SPECIALS,
            int(vocabulary.frequencies[SPECIALS:].min()),
        )
        if self.size != usual.size and size > self.size:
            wanted["size"], got["size"] = f"at most {self.size}", size
        if self.min_freq != usual.min_freq and rarest < self.min_freq:
            wanted["min_freq"], got["min_freq"] = f"at least {self.min_freq}", rarest
        differ = [name for name in wanted if wanted[name] != got[name]]
        if differ:
            expected, came = (
                ", ".join(f"{name} = {keys[name]}" for name in differ) for keys in (wanted, got)
            )
            raise RunError(
                f"{start} cannot be gone on from, because its words stay: expected the recipe's [vocabulary], {expected}, got {came}; "
                "give the model's own, or start from another one"
            )


def start_file(start: str, task: str) -> str:
    """The file of a model to go on from: the best one of a run folder, or the file itself; "" for none."""
    if not start:
        return ""
    path = Path(start)
    if path.is_dir():
        path /= BEST
    if not path.is_file():
        raise RunError(
            f"{start} cannot be gone on from: there is no {path}; expected a run folder of softq train {task}, or a model. "
            "A run that began there needs it until it is finished: put it back, or let a new run --start from the folder of that run"
        )
    return str(path)


def check_architecture(start: str, wanted: object, got: object, same: bool) -> None:
    """Refuse a model to start from that is built otherwise."""
    if not same:
        raise RunError(
            f"{start} cannot be gone on from: expected a model of the recipe's architecture, {wanted}, got {got}"
        )
