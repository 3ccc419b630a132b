"""Rewards of completions without references, such as a reward model, and several rewards as one."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from softq.checks import check_count
from softq.errors import RewardError
from softq.neural.generation import evaluating
from softq.rewards import Reward
from softq.sentences import Sentences

Decode = Callable[[list[int]], str]


class CompletionReward(Reward):
    """A function of completions, and of their prompts, that needs no references.

    Args:
        function: takes a list of completions, called ``completions`` or ``candidates``, and, if it
            has a parameter ``prompts`` or ``sources``, a list with the prompt of each; returns as
            many numbers.
        decode: turns token ids into a text.
        columns: what it takes, in its own names: ``{"completions": "completions"}``, or also
            ``{"prompts": "prompts"}``.

    """

    pairwise = False
    uses_references = False
    bound = math.inf

    def __init__(
        self, function: Callable[..., Any], decode: Decode, columns: Mapping[str, str]
    ) -> None:
        self.function, self.decode, self.columns = function, decode, columns
        self.name = getattr(function, "__qualname__", type(function).__name__)
        self._prompts: list[str] = []

    @property
    def signature(self) -> str:
        """The function's name."""
        return f"callable:{self.name}"

    @property
    def uses_prompts(self) -> bool:
        """Whether the function takes prompts."""
        return "prompts" in self.columns

    def with_prompts(self, prompts: Sequence[list[int]]) -> CompletionReward:
        """The same reward for a batch with these prompts, token ids."""
        found = copy.copy(self)
        found._prompts = [self.decode(prompt) for prompt in prompts]
        return found

    def score(self, candidates: Sentences, references: Sentences) -> Tensor:
        """Rewards ``[B, S, 1]``; references are not looked at."""
        there = candidates.present
        found = torch.zeros(there.shape, dtype=torch.float64)
        owners = there.nonzero()[:, 0].tolist()
        if not owners:
            return found.unsqueeze(2)
        pairs = zip(candidates.tokens[there].tolist(), candidates.lengths[there], strict=True)
        given = {"completions": [self.decode(tokens[:length]) for tokens, length in pairs]}
        if self.uses_prompts:
            given["prompts"] = [self._prompts[owner] for owner in owners]
        found[there] = torch.tensor(self._call(given, owners), dtype=torch.float64)
        return found.unsqueeze(2)

    def _call(self, given: Mapping[str, list[str]], owners: Sequence[int]) -> list[float]:
        texts = given["completions"]
        try:
            values = self.function(**{self.columns[name]: given[name] for name in given})
        except Exception as error:
            raise RewardError(
                f"the reward {self.name!r} raised {type(error).__name__}: {error}; it was given"
                f" {len(texts)} completions, the first is {texts[0]!r}"
            ) from error
        try:
            numbers = [float(value) for value in values]
        except (TypeError, ValueError) as error:
            raise RewardError(f"the reward {self.name!r} must return numbers: {error}") from error
        if len(numbers) != len(texts):
            raise RewardError(
                f"the reward {self.name!r} must return one number per completion, got"
                f" {len(numbers)} for {len(texts)} completions"
            )
        for value, text, owner in zip(numbers, texts, owners, strict=True):
            if not math.isfinite(value):
                raise RewardError(
                    f"the reward {self.name!r} must return finite numbers, got {value} for the"
                    f" completion {text!r} of row {owner} of the batch"
                )
        return numbers


class SumOfRewards(Reward):
    """Several rewards of one output, added up with weights.

    Args:
        rewards: at least one.
        weights: a number for each.

    >>> from softq.rewards import ExactMatch, NegativeHamming
    >>> both = SumOfRewards([ExactMatch(), NegativeHamming()], [1.0, 0.5])
    >>> both(*Sentences.pack([[[7, 8], [7, 9]]]), *Sentences.pack([[[7, 8]]])).flatten().tolist()
    [1.0, -0.5]

    """

    def __init__(self, rewards: Sequence[Reward], weights: Sequence[float]) -> None:
        if not rewards or len(rewards) != len(weights):
            raise RewardError(
                f"reward_weights must have a number for each of {len(rewards)} rewards, got"
                f" {list(weights)}"
            )
        self.rewards, self.weights = list(rewards), [float(weight) for weight in weights]

    @property
    def pairwise(self) -> bool:  # type: ignore[override]  # as its parts have it
        """Whether any has a value per reference; the others count against each."""
        return any(reward.pairwise for reward in self.rewards)

    @property
    def uses_references(self) -> bool:  # type: ignore[override]
        """Whether references matter to any."""
        return any(reward.uses_references for reward in self.rewards)

    @property
    def signature(self) -> str:
        """Weights and signatures of all."""
        pairs = zip(self.weights, self.rewards, strict=True)
        return "+".join(f"{weight:g}*{reward.signature}" for weight, reward in pairs)

    @property
    def bound(self) -> float:
        """The sum of those of all."""
        pairs = zip(self.weights, self.rewards, strict=True)
        return sum(abs(weight) * reward.bound for weight, reward in pairs if weight)

    def score(self, candidates: Sentences, references: Sentences) -> Tensor:
        """Rewards ``[B, S, R]``."""
        width = references.lengths.shape[1] if self.pairwise else 1
        found = torch.zeros(
            *candidates.lengths.shape, width, dtype=torch.float64, device=candidates.lengths.device
        )
        for weight, reward in zip(self.weights, self.rewards, strict=True):
            found += weight * reward.checked_score(candidates, references)
        return found


class RewardModel:
    """A reward of completions and prompts by a model that classifies text.

    Args:
        model: an ``AutoModelForSequenceClassification``, on the device where it is to run. With one
            output the reward is this output, with several the log-probability of ``label``.
        tokenizer: of the model.
        batch_size: texts at a time.
        template: what the model reads, with ``{prompt}`` and ``{completion}``; if None, prompt and
            completion are a pair of texts, as for models that estimate quality.
        label: which output is the good one, of a model with several.

    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        batch_size: int = 32,
        *,
        template: str | None = "{prompt} {completion}",
        label: int | None = None,
    ) -> None:
        outputs = getattr(getattr(model, "config", None), "num_labels", None)
        if outputs is None or not callable(tokenizer):
            raise RewardError(
                "a RewardModel needs a model for sequence classification and its tokenizer, got"
                f" {type(model).__name__} and {type(tokenizer).__name__}"
            )
        if outputs > 1 and (label is None or not 0 <= label < outputs):
            raise RewardError(
                f"the reward model has {outputs} outputs: give label, the number of the good one,"
                f" in 0..{outputs - 1}, got {label}"
            )
        if template is not None and "{completion}" not in template:
            raise RewardError(f"template must contain {{completion}}, got {template!r}")
        self.model, self.tokenizer, self.template, self.label = model, tokenizer, template, label
        self.batch_size = check_count("batch_size", batch_size, RewardError)
        self.outputs = outputs
        self.__qualname__ = f"RewardModel({getattr(model.config, 'name_or_path', '') or 'model'})"

    def __call__(self, completions: Sequence[str], prompts: Sequence[str]) -> list[float]:
        """A number for each pair."""
        order = sorted(
            range(len(completions)), key=lambda place: len(prompts[place]) + len(completions[place])
        )
        found = [0.0] * len(completions)
        for first in range(0, len(order), self.batch_size):
            places = order[first : first + self.batch_size]
            pairs = [(prompts[place], completions[place]) for place in places]
            for place, value in zip(places, self._scores(pairs), strict=True):
                found[place] = value
        return found

    def _filled(self, prompt: str, completion: str) -> str:
        """The template with both, which may hold such places themselves."""
        values = {"{prompt}": prompt, "{completion}": completion}
        return re.sub(
            r"\{(prompt|completion)\}", lambda place: values[place[0]], self.template or ""
        )

    def _scores(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        if self.template is None:
            texts = [[prompt for prompt, _ in pairs], [completion for _, completion in pairs]]
        else:
            texts = [[self._filled(prompt, completion) for prompt, completion in pairs]]
        side = getattr(self.tokenizer, "truncation_side", "right")
        self.tokenizer.truncation_side = "left"  # what is too long loses the prompt's beginning
        try:
            inputs = self.tokenizer(*texts, padding=True, truncation=True, return_tensors="pt")
        finally:
            self.tokenizer.truncation_side = side
        with evaluating(self.model):
            logits = self.model(**inputs.to(self.model.device)).logits.float()  # [N, outputs]
        scores = logits[:, 0] if self.outputs == 1 else logits.log_softmax(1)[:, self.label]
        return scores.tolist()  # type: ignore[no-any-return]
