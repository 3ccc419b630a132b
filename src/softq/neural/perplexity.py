"""How well a model of sentences foretells the words of references."""

from __future__ import annotations

import math

import torch

from softq.neural.examples import Examples
from softq.neural.generation import evaluating, on_device
from softq.neural.modules.sequence import SequenceModel
from softq.sentences import Sentences

_WORDS = 1 << 14  # of a batch
_MOST = 700.0  # nats a word whose exponential is still a number


@torch.no_grad()
def perplexity(model: SequenceModel, examples: Examples) -> float:
    """The exponential of minus the mean log-probability of a word of the references, ends of sentences included."""
    total = 0.0
    order = torch.from_numpy(examples.inputs.lengths).argsort(stable=True)
    width = (int(examples.references.lengths.max(initial=0)) + 1) * int(
        examples.counts.max(initial=1)
    )
    with evaluating(model):
        for numbers in torch.split(order, max(1, _WORDS // width)):
            inputs, references = (
                on_device(examples.take_inputs(numbers), model),
                on_device(examples.take_references(numbers), model),
            )
            total += float(model.log_prob(inputs, Sentences(*references)).double().sum())
    return math.exp(min(-total / examples.words, _MOST))
