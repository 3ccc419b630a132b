"""Small learners of translators and captioners, and what they learn from."""

from __future__ import annotations

import numpy as np
import torch

from softq.lab.loop import Evaluation
from softq.lab.processes import Workers
from softq.lab.recipe import Objective
from softq.neural import AttentionalTranslator, ImageCaptioner, TransformerTranslator
from softq.neural.examples import Examples, Vectors
from softq.neural.learner import SequenceLearner
from softq.neural.neighbours import NeighbourReferences
from softq.neural.recipe import CandidateSettings, Optimizer, SequenceTraining

VOCAB, SIZE = 12, 5  # tokens of sentences, features of images
OPTIMIZER = Optimizer(learning_rate=0.01)
TRAINING = SequenceTraining(batch_size=8, seed=3)


def captions(count, seed=0):
    """Vectors, and sentences that follow from them."""
    random = np.random.default_rng(seed)
    vectors = random.normal(size=(count, SIZE)).astype(np.float32)
    words = [(4 + np.abs(vector * 3).astype(int) % (VOCAB - 4)).tolist() for vector in vectors]
    several = [[one, one[:-1]] if i % 3 == 0 else [one[: 2 + i % 3]] for i, one in enumerate(words)]
    return Examples(Vectors(vectors), several)


def copies(count, seed=0):
    """Sentences that are translated as they are, some of them also backwards."""
    random = np.random.default_rng(seed)
    sources = [random.integers(4, VOCAB, random.integers(1, 5)).tolist() for _ in range(count)]
    several = [[one, one[::-1]] if i % 3 == 0 else [one] for i, one in enumerate(sources)]
    return Examples(sources, several)


def model_of(kind, hidden=6, dropout=0.1, seed=0):
    """A small model; kinds are ``captioner``, ``translator``, both also ``deep``, ``transformer``."""
    if kind == "transformer":
        sizes = {"size": hidden, "heads": 2, "layers": 2, "feed_forward": 2 * hidden}
        return TransformerTranslator(VOCAB, VOCAB, **sizes, dropout=dropout, seed=seed)
    sizes = {"embedding": hidden, "hidden": hidden, "layers": 2 if "deep" in kind else 1}
    sizes |= {"dropout": dropout, "seed": seed}
    if "captioner" in kind:
        return ImageCaptioner(SIZE, VOCAB, **sizes)
    return AttentionalTranslator(VOCAB, VOCAB, **sizes)


class Verdict:
    """A judge that prefers high probabilities."""

    def __init__(self, examples):
        self.examples = examples

    def score(self, model):
        index = torch.arange(len(self.examples))
        inputs, references = self.examples.take_inputs(index), self.examples.take_references(index)
        return float(model.log_prob(inputs, references).mean())

    def judge(self, model):
        return Evaluation({}, [{"score": self.score(model)}])

    def notes(self, model):
        return {"about": torch.zeros(1)}


def learner(
    kind,
    objective=None,
    *,
    model=None,
    device="cpu",
    count=30,
    data=None,
    near=None,
    optimizer=OPTIMIZER,
    training=TRAINING,
    **candidates,
):
    """A learner; the images after each are near to it."""
    examples = captions if "captioner" in kind else copies
    data, dev = data or examples(count), examples(6, seed=1)
    index = torch.arange(len(data))
    if near is None:
        near = NeighbourReferences(data, torch.stack([index.roll(-1), index.roll(-2)], 1))
    return SequenceLearner(
        model or model_of(kind),
        data,
        dev,
        Verdict(dev),
        objective=objective or Objective("raml", 0.5),
        candidates=CandidateSettings(**{"size": 4} | candidates),
        optimizer=optimizer,
        training=training,
        near=near,
        workers=Workers(torch.device(device)),
    )


def train_epochs(trained, count):
    """Train some epochs; what was measured after each."""
    measured = []
    for epoch in range(count):
        trained.train(epoch, 0, trained.steps, [True])
        measured.append(trained.end_epoch([True]))
    return measured
