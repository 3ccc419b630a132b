"""Training on a GPU: recorded, eager and CPU steps agree, and runs go on where they stopped."""

from __future__ import annotations

import pytest
import torch
from test_generation import Verdict, copies

from softq.lab.processes import Workers
from softq.lab.recipe import Objective
from softq.neural.learner import SequenceLearner
from softq.neural.modules.transformer import TransformerTranslator
from softq.neural.modules.translator import AttentionalTranslator
from softq.neural.recipe import CandidateSettings, Optimizer, SequenceTraining
from softq.sentences import Sentences

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU"),
]


def model_of(kind, dropout):
    if kind == "transformer":
        return TransformerTranslator(
            12, 12, size=16, heads=2, layers=2, feed_forward=32, dropout=dropout
        )
    return AttentionalTranslator(
        12, 12, embedding=16, hidden=16, dropout=dropout, layers=2 if kind == "deep" else 1
    )


def learner(
    device,
    kind="lstm",
    dropout=0.0,
    graphs=True,
    precision="float32",
    objective=None,
    model=None,
    smoothing=0.0,
):
    return SequenceLearner(
        model or model_of(kind, dropout),
        copies(50),
        copies(6, seed=1),
        Verdict(copies(6, seed=1)),
        objective=objective or Objective("raml", 0.5),
        candidates=CandidateSettings(size=4),
        optimizer=Optimizer(learning_rate=0.003, label_smoothing=smoothing),
        training=SequenceTraining(batch_size=8, seed=3, graphs=graphs, precision=precision),
        workers=Workers(torch.device(device)),
    )


def losses(trained, epochs=3):
    found = []
    for epoch in range(epochs):
        trained.train(epoch, 0, trained.steps, [True])
        measured = trained.end_epoch([True])
        found += measured["loss"] + measured["dev_perplexity"]
    return torch.tensor(found)


@pytest.mark.parametrize("kind", ["lstm", "deep", "transformer"])
@pytest.mark.parametrize(
    "objective", [Objective("ml"), Objective("raml", 0.5), Objective("sqdml", 0.5)]
)
def test_recorded_eager_and_cpu_steps_agree(kind, objective):
    expected = losses(learner("cpu", kind, objective=objective))
    for graphs in (True, False):
        torch.testing.assert_close(
            losses(learner("cuda", kind, graphs=graphs, objective=objective)),
            expected,
            rtol=2e-3,
            atol=0,
        )


def test_smoothed_labels_agree():
    torch.testing.assert_close(
        losses(learner("cuda", smoothing=0.2)),
        losses(learner("cpu", smoothing=0.2)),
        rtol=2e-3,
        atol=0,
    )


def test_coarse_products_are_near():
    torch.testing.assert_close(
        losses(learner("cuda", precision="bf16")), losses(learner("cpu")), rtol=3e-2, atol=0
    )


@pytest.mark.parametrize("kind", ["lstm", "transformer"])
def test_recorded_dropout_is_that_of_eager_steps(kind):
    recorded, eager = (
        losses(learner("cuda", kind, dropout=0.3, graphs=graphs)) for graphs in (True, False)
    )
    torch.testing.assert_close(recorded, eager, rtol=2e-3, atol=0)


def test_an_interrupted_run_ends_alike():
    whole, broken = learner("cuda", dropout=0.2), learner("cuda", dropout=0.2)
    whole.train(0, 0, whole.steps, [True])
    broken.train(0, 0, 3, [True])
    state = {name: value.cpu() for name, value in broken.state().items()}
    broken = learner("cuda", dropout=0.2)
    broken.load_state(state)
    broken.train(0, 3, broken.steps, [True])
    for name, value in whole.state().items():
        assert torch.equal(value.cpu(), broken.state()[name].cpu()), name


@pytest.mark.parametrize("kind", ["lstm", "transformer"])
def test_translations_are_those_of_the_cpu(kind):
    model = model_of(kind, 0.0).eval()
    source = Sentences.pack([[5, 6, 7], [8], [9, 10, 4, 4]])
    expected = model.generate(source, size=3, max_length=6)
    found = model.cuda().generate(
        Sentences(source.tokens.cuda(), source.lengths.cuda()), size=3, max_length=6
    )
    assert torch.equal(found.tokens.cpu(), expected.tokens)
    torch.testing.assert_close(found.log_model.cpu(), expected.log_model, rtol=1e-3, atol=1e-4)
