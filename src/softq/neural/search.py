"""What models of sentences say: the searches that users may choose from, and sentences as people and as metrics read them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from softq.decode import mbr
from softq.errors import ModelError
from softq.formats.vocabulary import Vocabulary
from softq.lab.recipe import at_least, at_most, key
from softq.neural.modules.sequence import Inputs, SequenceModel
from softq.rewards import Reward, SentenceBLEU

SearchName = Literal["beam", "greedy", "sample", "mbr"]
"""The best of a beam; the best word after each; a draw; the draw that is best on average if any of them might be right."""

_WIDEST_BEAM, _LARGEST_PENALTY = (
    1000,
    10.0,
)  # of a model's own settings, which come with a file; `Search` may ask for more
_BATCH, _BATCH_ON_GPU = 64, 512  # inputs at a time, unless told
_DRAWS = 32  # of which minimum Bayes risk chooses, unless told


class Said(NamedTuple):
    """What a model said of an input.

    Attributes:
        text: as people write it.
        words: as metrics count them; what the model has no word for is ``"<unk>"``.
        log_prob: log P(y|x) of the model.
        expected_reward: the mean reward of the choice against all draws, for minimum Bayes risk; else None.

    """

    text: str
    words: tuple[str, ...]
    log_prob: float
    expected_reward: float | None = None


@dataclass(frozen=True)
class BeamSettings:
    """How a beam is searched, if nobody says otherwise."""

    beam: int = key(5, "unfinished sentences that are gone on with at a time")
    length_penalty: float = key(1.0, "sentences are ranked by log P / length^this; 0: by log P")

    def __post_init__(self) -> None:
        """Beams hold something."""
        at_least("beam", self.beam, 1)
        at_most("beam", self.beam, _WIDEST_BEAM)
        at_least("length_penalty", self.length_penalty, 0)
        at_most("length_penalty", self.length_penalty, _LARGEST_PENALTY)


@dataclass(frozen=True)
class Search:
    """How to choose what a model says.

    Attributes:
        method: see `SearchName`.
        beam: for ``"beam"``; the model's own if None.
        length_penalty: for ``"beam"``; the model's own if None.
        samples: draws of which ``"mbr"`` chooses one.
        temperature: of draws.
        top_p: of draws.
        reward: that ``"mbr"`` expects, between words of the vocabulary; sentence BLEU if None.
        generator: of draws; or one for each input, on the CPU, and then it does not matter what else is said.
        batch_size: inputs at a time; 64 if None, and 512 on a GPU.

    """

    method: SearchName = "beam"
    beam: int | None = None
    length_penalty: float | None = None
    samples: int = _DRAWS
    temperature: float = 1.0
    top_p: float | None = None
    reward: Reward | None = None
    generator: torch.Generator | Sequence[torch.Generator] | None = None
    batch_size: int | None = None

    def __post_init__(self) -> None:
        if self.method not in get_args(SearchName):
            raise ModelError(
                f"method must be one of {', '.join(get_args(SearchName))}, got {self.method!r}"
            )

    def at_a_time(self, model: SequenceModel) -> int:
        """Inputs of a batch."""
        return self.batch_size or (_BATCH_ON_GPU if model.output.weight.is_cuda else _BATCH)

    def say(
        self,
        model: SequenceModel,
        inputs: Inputs,
        vocabulary: Vocabulary,
        usual: BeamSettings,
        max_length: int | Tensor,
        numbers: Sequence[int],
    ) -> list[Said]:
        """One sentence for each of a batch of inputs on the model's device, which have these ``numbers`` among all inputs."""
        if self.method in ("beam", "greedy"):
            penalty = usual.length_penalty if self.length_penalty is None else self.length_penalty
            how: Literal["beam", "greedy"] = "beam" if self.method == "beam" else "greedy"
            found = model.generate(
                inputs,
                method=how,
                size=self.beam or usual.beam,
                max_length=max_length,
                length_penalty=penalty,
            )
        else:
            own = (
                [self.generator[number] for number in numbers]
                if isinstance(self.generator, Sequence)
                else self.generator
            )
            found = model.generate(
                inputs,
                method="sample",
                size=self.samples if self.method == "mbr" else 1,
                max_length=max_length,
                temperature=self.temperature,
                top_p=self.top_p,
                generator=own,
            )
        chosen, expected = [0] * len(numbers), [None] * len(numbers)
        if self.method == "mbr":
            best = mbr(found, self.reward or SentenceBLEU())
            chosen, expected = best.index.tolist(), best.expected_reward.tolist()
        best_of_each = found.select(torch.tensor(chosen, device=found.tokens.device).unsqueeze(1))
        log_probs = (
            best_of_each.log_model.squeeze(1).tolist() if best_of_each.log_model is not None else []
        )
        return [
            Said(vocabulary.decode(words), tuple(vocabulary.words(words)), log_prob, gain)
            for (words,), log_prob, gain in zip(
                best_of_each.sentences.unpack(), log_probs, expected, strict=True
            )
        ]


def on_device(inputs: Inputs, model: nn.Module) -> Inputs:
    """Inputs where a model is."""
    device = next(model.parameters()).device
    return tuple(part.to(device) for part in inputs)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """A model without dropout for a while."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
