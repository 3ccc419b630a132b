"""Captioners on a GPU.

Recorded, eager and CPU steps agree, candidates of the model and of near images train, captions are
the CPU's.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from test_candidate_learners import SIZE, VOCAB, Verdict, examples
from test_text_generator import FEATURES, make

from softq.lab.processes import Workers
from softq.lab.recipe import Objective
from softq.neural import neighbours
from softq.neural.learner import SequenceLearner
from softq.neural.modules.captioner import ImageCaptioner
from softq.neural.neighbours import NeighbourReferences, nearest
from softq.neural.recipe import CandidateSettings, Optimizer, SequenceTraining

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU"),
]


def learner(
    device,
    objective=None,
    *,
    layers=1,
    dropout=0.0,
    graphs=True,
    precision="float32",
    seed=0,
    **candidates,
):
    data = examples(50)
    return SequenceLearner(
        ImageCaptioner(
            SIZE, VOCAB, embedding=16, hidden=16, layers=layers, dropout=dropout, seed=seed
        ),
        data,
        examples(6, seed=1),
        Verdict(examples(6, seed=1)),
        objective=objective or Objective("sqdml", 0.5),
        candidates=CandidateSettings(**{"size": 4} | candidates),
        optimizer=Optimizer(learning_rate=0.003),
        training=SequenceTraining(batch_size=8, seed=3, graphs=graphs, precision=precision),
        near=NeighbourReferences(data, nearest(torch.from_numpy(data.inputs.table), 3)),
        workers=Workers(torch.device(device)),
    )


def losses(trained, epochs=3):
    found = []
    for epoch in range(epochs):
        trained.train(epoch, 0, trained.steps, [True])
        measured = trained.end_epoch([True])
        found += measured["loss"] + measured["dev_perplexity"]
    return torch.tensor(found)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize(
    "objective",
    [Objective("ml"), Objective("raml", 0.5), Objective("sqdml", 0.5)],
    ids=lambda each: each.name,
)
def test_recorded_eager_and_cpu_steps_agree(objective, layers):
    expected = losses(learner("cpu", objective, layers=layers))
    for graphs in (True, False):
        found = losses(learner("cuda", objective, layers=layers, graphs=graphs))
        torch.testing.assert_close(found, expected, rtol=2e-3, atol=0)


@pytest.mark.parametrize("sampler", ["near", "recombined", "near+recombined+ngram"])
def test_steps_on_mixtures_agree(sampler):
    expected, found = (
        losses(learner(device, sampler=sampler, size=9)) for device in ("cpu", "cuda")
    )
    torch.testing.assert_close(found, expected, rtol=2e-3, atol=0)


def test_coarse_products_are_near():
    torch.testing.assert_close(
        losses(learner("cuda", precision="bf16")), losses(learner("cpu")), rtol=3e-2, atol=0
    )


@pytest.mark.parametrize("layers", [1, 2])
def test_recorded_dropout_is_that_of_eager_steps(layers):
    recorded, eager = (
        losses(learner("cuda", dropout=0.3, layers=layers, graphs=graphs))
        for graphs in (True, False)
    )
    torch.testing.assert_close(recorded, eager, rtol=2e-3, atol=0)


@pytest.mark.parametrize("graphs", [True, False], ids=["recorded", "eager"])
@pytest.mark.parametrize("sampler", ["model", "model+near"])
@pytest.mark.parametrize("refresh", ["epoch", "step"])
def test_samples_from_the_model_train_it(refresh, sampler, graphs):
    trained = learner("cuda", graphs=graphs, sampler=sampler, refresh=refresh, size=6)
    found = losses(trained, epochs=8).view(-1, 2)
    assert bool(found.isfinite().all())
    assert found[-1, 0] < found[0, 0]
    assert found[-1, 1] < found[0, 1]
    assert "samples.tokens" not in trained.state()  # every epoch begins with others
    trained.train(8, 0, trained.steps, [True])
    state = trained.state()
    assert ("samples.tokens" in state) == (refresh == "epoch")
    if refresh == "epoch":
        assert state["samples.tokens"].device.type == "cpu"
        assert state["samples.lengths"].shape == (50, 6 // len(sampler.split("+")))


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize(
    "candidates",
    [{}, {"sampler": "model+near", "refresh": "epoch"}, {"sampler": "model", "refresh": "step"}],
)
def test_an_interrupted_run_ends_alike(candidates, layers):
    options = {"dropout": 0.2, "layers": layers, **candidates}
    whole, broken = learner("cuda", **options), learner("cuda", **options)
    for epoch in range(2):
        whole.train(epoch, 0, whole.steps, [True])
    broken.train(0, 0, broken.steps, [True])
    broken.train(1, 0, 3, [True])
    state = {name: value.cpu().clone() for name, value in broken.state().items()}
    broken = learner("cuda", seed=9, **options)
    broken.load_state(state)
    broken.train(1, 3, broken.steps, [True])
    found = broken.state()
    for name, value in whole.state().items():
        assert torch.equal(value.cpu(), found[name].cpu()), name


@pytest.mark.parametrize("layers", [1, 2])
def test_beams_are_those_of_the_cpu(layers):
    model = ImageCaptioner(SIZE, VOCAB, embedding=16, hidden=16, layers=layers, init=0.7).eval()
    vectors = torch.randn(9, SIZE, generator=torch.Generator().manual_seed(0))
    for method in ("beam", "greedy"):
        expected = model.cpu().generate((vectors,), method=method, size=4, max_length=6)
        found = model.cuda().generate((vectors.cuda(),), method=method, size=4, max_length=6)
        assert torch.equal(found.tokens.cpu(), expected.tokens)
        torch.testing.assert_close(found.log_model.cpu(), expected.log_model, rtol=1e-3, atol=1e-4)


def test_captions_are_those_of_the_cpu():
    made = make("captioner")
    # in float64, whose rounding decides between no two words
    encode = made.model.double().encode
    made.model.encode = lambda inputs: encode((inputs[0].double(),))
    options = [{"method": "beam"}, {"method": "greedy"}, {"method": "beam", "batch_size": 2}]
    own = [{"method": "sample"}, {"method": "mbr", "samples": 5}]

    def generated():
        generators = [torch.Generator().manual_seed(number) for number in range(len(FEATURES))]
        return [made.generate(FEATURES.astype(np.float16), **each) for each in options] + [
            made.generate(FEATURES, generator=generators, **each) for each in own
        ]

    expected = generated()
    made.to("cuda")
    for found, wanted in zip(generated(), expected, strict=True):
        assert [one.words for one in found] == [one.words for one in wanted]
        assert [one.log_prob for one in found] == pytest.approx(
            [one.log_prob for one in wanted], rel=1e-3, abs=1e-3
        )
    assert all(value.device.type == "cpu" for value in made.tensors().values())


@pytest.mark.parametrize("scores", [1 << 25, 700 * 64], ids=["at once", "in blocks"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_neighbours_are_those_of_the_cpu(dtype, scores, monkeypatch):
    vectors = torch.randn(
        700, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    ).to(dtype)
    expected = nearest(vectors, 7)
    monkeypatch.setattr(neighbours, "_SCORES", scores)
    for found in (nearest(vectors, 7, device="cuda"), nearest(vectors.cuda(), 7)):
        assert found.device.type == "cpu"
        same = found == expected  # but where two are as near as rounding can tell
        assert float(same.double().mean()) > 0.999
        units = torch.nn.functional.normalize(vectors.double())
        cosines = [(units.unsqueeze(1) * units[each]).sum(2) for each in (found, expected)]
        torch.testing.assert_close(*cosines, rtol=0, atol=1e-5)


def test_neighbours_that_are_not_there_and_vectors_without_direction():
    vectors = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 0.0]])
    for found in (nearest(vectors, 4), nearest(vectors, 4, device="cuda")):
        assert found[:2].tolist() == [[1, 2, -1, -1], [0, 2, -1, -1]]
        assert sorted(found[2].tolist()) == [-1, -1, 0, 1]  # as near to the one as to the other


def test_neighbours_do_not_lose_precision_to_fast_products():
    generator = torch.Generator().manual_seed(1)
    base = torch.randn(1, 64, generator=generator)
    vectors = base + 1e-2 * torch.randn(
        200, 64, generator=generator
    )  # cosines that differ in the fourth place
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        found = nearest(vectors, 1, device="cuda")[:, 0]
    finally:
        torch.set_float32_matmul_precision(before)
    exact = nearest(vectors.double(), 1)[:, 0]
    assert float((found == exact).double().mean()) > 0.98
