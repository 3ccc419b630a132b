"""Generation with models of sentences: how to search, and the texts that are found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from torch import nn

from softq.decode import mbr
from softq.errors import ModelError
from softq.formats.vocabulary import Vocabulary
from softq.neural.modules.sequence import Inputs, SequenceModel
from softq.neural.recipe import Decoding
from softq.options import check_choice
from softq.rewards import Reward, SentenceBLEU
from softq.sentences import Sentences
from softq.spaces import Candidates

SearchName = Literal["beam", "greedy", "sample", "mbr"]
"""Beam search, greedy search, a sample, or the sample of minimum Bayes risk."""

_BATCH, _BATCH_ON_GPU = 64, 512  # default batch sizes


class GeneratedText(NamedTuple):
    """The output of a model for one input.

    Attributes:
        text: as people write it.
        words: as metrics count them; unknown ones are ``"<unk>"``.
        log_prob: log P(y|x) of the model.
        expected_reward: the mean reward of the output against all samples, for minimum Bayes risk;
            else None.

    """

    text: str
    words: tuple[str, ...]
    log_prob: float
    expected_reward: float | None = None


@dataclass(frozen=True)
class DecodingOptions:
    """How to generate.

    Attributes:
        method: see `SearchName`.
        beam: beam size; the model's own if None.
        length_penalty: of beam search; the model's own if None.
        samples: the number of samples for ``"mbr"``.
        temperature: of samples.
        top_p: sample from the smallest set of tokens whose probability is at least this.
        reward: that ``"mbr"`` expects, on token ids; sentence BLEU if None.
        generator: of samples; or one for each input, on the CPU, so that samples do not depend on
            the other inputs.
        batch_size: inputs at a time; 64 if None, and 512 on a GPU.

    """

    method: SearchName = "beam"
    beam: int | None = None
    length_penalty: float | None = None
    samples: int = 32
    temperature: float = 1.0
    top_p: float | None = None
    reward: Reward | None = None
    generator: torch.Generator | Sequence[torch.Generator] | None = None
    batch_size: int | None = None

    def __post_init__(self) -> None:
        check_choice("method", self.method, get_args(SearchName), ModelError)

    def batch(self, model: SequenceModel) -> int:
        """Inputs at a time."""
        return self.batch_size or (_BATCH_ON_GPU if model.output.weight.is_cuda else _BATCH)

    def generate(
        self,
        model: SequenceModel,
        inputs: Inputs,
        vocabulary: Vocabulary,
        default: Decoding,
        index: Sequence[int],
    ) -> list[GeneratedText]:
        """One text for each of a batch of inputs on the model's device.

        ``index`` are their places among all inputs.
        """
        found = self._hypotheses(model, inputs, default, index)
        expected: list[float | None] = [None] * len(index)
        best = torch.zeros(len(index), dtype=torch.int64, device=found.tokens.device)
        if self.method == "mbr":
            choice = mbr(found, self.reward or SentenceBLEU())
            best, expected = choice.index, choice.expected_reward.tolist()
        found = found.select(best.unsqueeze(1))
        log_probs = [] if found.log_model is None else found.log_model.squeeze(1).tolist()
        return [
            GeneratedText(vocabulary.decode(tokens), tuple(vocabulary.words(tokens)), *numbers)
            for (tokens,), *numbers in zip(
                found.sentences.unpack(), log_probs, expected, strict=True
            )
        ]

    def _hypotheses(
        self, model: SequenceModel, inputs: Inputs, default: Decoding, index: Sequence[int]
    ) -> Candidates:
        sizes = {"beam": self.beam or default.beam, "mbr": self.samples}
        penalty, own = self.length_penalty, self.generator
        return model.generate(
            inputs,
            method="sample" if self.method == "mbr" else self.method,
            size=sizes.get(self.method, 1),
            max_length=default.max_length(inputs),
            length_penalty=default.length_penalty if penalty is None else penalty,
            temperature=self.temperature,
            top_p=self.top_p,
            generator=[own[place] for place in index] if isinstance(own, Sequence) else own,
        )


def on_device(inputs: Inputs, model: nn.Module) -> Inputs:
    """Inputs on the device of a model."""
    device = next(model.parameters()).device
    moved = tuple(part.to(device) for part in inputs)
    return Sentences(*moved) if isinstance(inputs, Sentences) else moved


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """A model without dropout and without gradients until the block ends."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)
        torch.clear_autocast_cache()  # which would hold weights that were cast without gradients
