"""Rewards for text that a tokenizer has cut into pieces.

On the pieces, on words, on characters, or any function of strings.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from softq.errors import RewardError
from softq.integrations.text_rows import is_number
from softq.integrations.transformers.completion_rewards import CompletionReward, SumOfRewards
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
# what a function without references may call what it takes
_COMPLETION_NAMES = {
    "completions": ("candidates", "completions"),
    "prompts": ("sources", "prompts"),
}


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
    """A reward from its name, from itself, or from a function of lists of strings.

    By the names of its parameters a function takes candidates, references and perhaps sources, in
    this order, or completions and perhaps prompts, and then needs no references (`with_sources`).

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
        # unlike a lambda it can be sent to the workers of a data loader
        decode = partial(tokenizer.decode, skip_special_tokens=True)
        columns = _completion_columns(reward)
        if columns:
            return CompletionReward(reward, decode, columns)
        _takes_sources(reward)  # an error at once, if there is one
        return FromFunction(reward, decode=decode, batched=True)
    raise RewardError(
        "reward must be a name, one of softq.rewards or a function of two lists of strings, got"
        f" {reward!r}"
    )


def as_reward(given: Any, weights: Sequence[float] | None, tokenizer: Any) -> Reward:
    """A reward from one, as `as_text_reward` takes it, or from several.

    These are a list, with a weight for each, or a dict of weights.

    >>> as_reward({"bleu": 1.0, "exact": 0.5}, None, None).uses_references
    True
    """
    if isinstance(given, Mapping):
        if weights is not None:
            raise RewardError("the rewards have weights already: leave out reward_weights")
        given, weights = list(given), list(given.values())
        if not all(is_number(weight) for weight in weights):
            raise RewardError(f"weights of rewards must be finite numbers, got {weights}")
    if not isinstance(given, (list, tuple)):
        if weights is not None:
            raise RewardError("reward_weights is for a list of rewards, got one reward")
        return as_text_reward(given, tokenizer)
    made = [as_text_reward(each, tokenizer) for each in given]
    return SumOfRewards(made, weights or [1.0] * len(made))


def unknown_never_matches(reward: Reward, tokenizer: Any, specials: Collection[int]) -> Reward:
    """A reward of softq on token ids, in which an unknown token matches none, as it would not in decoded text.

    Rewards on text, and those of the user's own, are returned as they are; so is every reward where the tokenizer has no unknown token, or
    one with another meaning.
    """
    if isinstance(reward, SumOfRewards):
        parts = [unknown_never_matches(each, tokenizer, specials) for each in reward.rewards]
        return SumOfRewards(parts, reward.weights)
    unknown = getattr(tokenizer, "unk_token_id", None)
    if unknown is None or unknown in specials or not isinstance(reward, _ON_TOKENS):
        return reward
    return UnknownNeverMatches(reward, unknown)


def with_sources(reward: Reward, sources: Sequence[list[int]]) -> Reward:
    """The reward of a batch.

    A function that has a third parameter ``sources``, or one of completions that has ``prompts``,
    is given, for each pair, what the model read.
    """
    if isinstance(reward, SumOfRewards):
        return SumOfRewards(
            [with_sources(each, sources) for each in reward.rewards], reward.weights
        )
    if isinstance(reward, CompletionReward) and reward.uses_prompts:
        _check_sources(reward.name, sources)
        return reward.with_prompts(sources)
    if not isinstance(reward, FromFunction) or not _takes_sources(reward.function):
        return reward
    _check_sources(str(reward.name), sources)
    return reward.with_values(
        sources if reward.decode is None else [reward.decode(source) for source in sources]
    )


def _check_sources(name: str, sources: Sequence[list[int]]) -> None:
    if not all(sources):
        raise RewardError(
            f"the reward {name!r} takes sources, which must be text: expected rows with input_ids"
        )


def _completion_columns(function: Callable[..., Any]) -> dict[str, str]:
    """What a function without references takes, by the names of its parameters; nothing if it has others."""
    try:
        found = inspect.signature(function).parameters.values()
    except ValueError:  # a function of C, which does not tell
        return {}
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    named = {parameter.name for parameter in found if parameter.kind in by_name}
    needed = {
        parameter.name
        for parameter in found
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }
    columns = {
        column: name
        for column, names in _COMPLETION_NAMES.items()
        for name in names
        if name in named
    }
    return columns if "completions" in columns and needed <= {*columns.values()} else {}


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
            f" this order, got ({every}); one without references takes completions and prompts, by"
            " these names"
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
