"""Rewards for text that a tokenizer has cut into pieces.

On the pieces, on words, on characters, or any function of strings.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from softq.errors import RewardError
from softq.integrations.transformers.tokens import decode_all
from softq.neural.target_maker import UnknownNeverMatches
from softq.rewards import (
    ExactMatch,
    FromFunction,
    MultiReferenceBLEU,
    NegativeEditDistance,
    NegativeHamming,
    Reward,
    RougeL,
    SentenceBLEU,
    TokenAccuracy,
    named_reward,
)
from softq.rewards.base import RewardWrapper
from softq.rewards.names import REWARDS
from softq.sentences import Sentences

_WORDS = "words:"
# rewards that only compare token ids with each other
_ON_TOKENS = (
    ExactMatch,
    MultiReferenceBLEU,
    NegativeEditDistance,
    NegativeHamming,
    RougeL,
    SentenceBLEU,
    TokenAccuracy,
)
_SOURCES = 2  # their place among the arguments of a function


class OnText(RewardWrapper):
    """A reward on the words, or characters, of decoded text instead of on a tokenizer's pieces.

    Args:
        reward: on token ids; here each different word, or character, has a number.
        tokenizer: with ``decode``.
        unit: ``words`` that stand between white space, or ``characters`` without white space, as
            chrF wants them.

    """

    def __init__(self, reward: Reward, tokenizer: Any, unit: str = "words") -> None:
        super().__init__(reward)
        self.tokenizer, self.unit = tokenizer, unit

    @property
    def signature(self) -> str:
        """That of the reward, after what it is a reward of."""
        return f"{self.unit}:{self.reward.signature}"

    def score(self, candidates: Sentences, references: Sentences) -> Tensor:
        """Rewards of candidates ``[B, S, L]`` against references ``[B, R, M]``, ``[B, S, R]``."""
        numbers: dict[str, int] = {}
        return self.reward(
            *self._numbered(candidates, numbers), *self._numbered(references, numbers)
        )

    def _numbered(self, sentences: Sentences, numbers: dict[str, int]) -> Sentences:
        present, lengths = sentences.present, sentences.lengths
        pairs = zip(sentences.tokens[present].tolist(), lengths[present].tolist(), strict=True)
        texts = decode_all(self.tokenizer, [row[:length] for row, length in pairs])
        units = [
            [numbers.setdefault(unit, len(numbers)) for unit in self._units(text)] for text in texts
        ]
        packed = Sentences.pack(units)
        tokens = packed.tokens.new_zeros(*present.shape, packed.tokens.shape[1])
        tokens[present] = packed.tokens
        return Sentences(tokens, lengths.masked_scatter(present, packed.lengths))

    def _units(self, text: str) -> list[str]:
        return text.split() if self.unit == "words" else [*"".join(text.split())]


def as_text_reward(reward: Any, tokenizer: Any) -> Reward:
    """A reward from its name, from itself, or from a function of two lists of strings, or of three.

    See `with_sources`.

    >>> as_text_reward("rouge-l", None).signature
    'rouge-l:beta=1.0'
    >>> def same_length(candidates, references):
    ...     return [float(len(a) == len(b)) for a, b in zip(candidates, references)]
    >>> as_text_reward(same_length, None).signature
    Traceback (most recent call last):
    softq.errors.RewardError: a function of strings needs a tokenizer to make strings: give the trainer processing_class

    """
    if isinstance(reward, Reward):
        return reward
    if isinstance(reward, str):
        return _named(reward, tokenizer)
    if isinstance(reward, type):
        raise RewardError(
            f"reward must be an object, got the class {reward.__name__}: give {reward.__name__}()"
        )
    if callable(reward):
        if tokenizer is None:
            raise RewardError(
                "a function of strings needs a tokenizer to make strings: give the trainer"
                " processing_class"
            )
        _takes_sources(reward)  # an error at once, if there is one
        # unlike a lambda it can be sent to the workers of a data loader
        decode = partial(tokenizer.decode, skip_special_tokens=True)
        return FromFunction(reward, decode=decode, batched=True)
    raise RewardError(
        "reward must be a name, one of softq.rewards or a function of two lists of strings, got"
        f" {reward!r}"
    )


def unknown_never_matches(reward: Reward, tokenizer: Any, specials: Collection[int]) -> Reward:
    """A reward of softq on token ids, in which an unknown token matches none, as it would not in decoded text.

    Rewards on text, and those of the user's own, are returned as they are; so is every reward where the tokenizer has no unknown token, or
    one with another meaning.
    """
    unknown = getattr(tokenizer, "unk_token_id", None)
    if unknown is None or unknown in specials or not isinstance(reward, _ON_TOKENS):
        return reward
    return UnknownNeverMatches(reward, unknown)


def with_sources(reward: Reward, sources: Sequence[list[int]]) -> Reward:
    """The reward of a batch.

    A function that has a third parameter ``sources`` is given, for each pair, what the model read.
    """
    if not isinstance(reward, FromFunction) or not _takes_sources(reward.function):
        return reward
    if not all(sources):
        raise RewardError(
            f"the reward {reward.name!r} takes sources, which must be text: expected rows with"
            " input_ids"
        )
    return reward.with_values(
        sources if reward.decode is None else [reward.decode(source) for source in sources]
    )


def _takes_sources(function: Callable[..., Any]) -> bool:
    try:
        found = inspect.signature(function).parameters.values()
    except ValueError:  # a function of C, which does not tell
        return False
    names = [
        parameter.name
        for parameter in found
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    free = {
        parameter.name
        for parameter in found
        if parameter.default is not parameter.empty or parameter.kind == parameter.VAR_KEYWORD
    }
    takes = names[_SOURCES : _SOURCES + 1] == ["sources"]
    needed = [
        parameter.name
        for parameter in found
        if parameter.name not in free and parameter.kind != parameter.VAR_POSITIONAL
    ]
    if ("sources" in names and not takes) or not {*needed} <= {*names[: _SOURCES + takes]}:
        every = ", ".join(parameter.name for parameter in found)
        raise RewardError(
            "a reward takes candidates, references and, if asked for by this name, sources, in"
            f" this order, got ({every})"
        )
    return takes


def _named(name: str, tokenizer: Any) -> Reward:
    plain = name.removeprefix(_WORDS)
    if plain not in REWARDS:
        raise RewardError(
            f"reward must be one of {', '.join(REWARDS)}, or with {_WORDS} before it, got {name!r}"
        )
    reward = named_reward(plain)
    if plain != "chrf" and plain == name:
        return reward
    if tokenizer is None:
        raise RewardError(
            f"the reward {name!r} needs a tokenizer to make text: give the trainer processing_class"
        )
    return OnText(reward, tokenizer, "characters" if plain == "chrf" else "words")
