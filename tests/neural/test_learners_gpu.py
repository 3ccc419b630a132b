"""Training and generation on a GPU.

Recorded, eager and CPU steps agree, interrupted runs end alike, texts are the CPU's.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from test_text_generator import FEATURES, make

from sequence_learners import SIZE, learner, model_of, train_epochs
from softq.lab.recipe import Objective
from softq.neural import neighbours
from softq.neural.neighbours import nearest
from softq.neural.recipe import Optimizer, SequenceTraining
from softq.sentences import Sentences

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU"),
]
KINDS = ["captioner", "deep captioner", "translator", "deep translator", "transformer"]
kinds = pytest.mark.parametrize("kind", KINDS)


def begin(kind, device="cuda", objective=None, *, dropout=0.0, seed=0, smoothing=0.0, **options):
    training = {name: options.pop(name) for name in ("graphs", "precision") if name in options}
    return learner(
        kind,
        objective or Objective("sqdml", 0.5),
        model=model_of(kind, hidden=16, dropout=dropout, seed=seed),
        device=device,
        count=50,
        optimizer=Optimizer(learning_rate=0.003, label_smoothing=smoothing),
        training=SequenceTraining(batch_size=8, seed=3, **{"precision": "float32"} | training),
        **options,
    )


def losses(trained, epochs=3):
    measured = train_epochs(trained, epochs)
    return torch.tensor([row["loss"] + row["dev_perplexity"] for row in measured])


@kinds
@pytest.mark.parametrize(
    "objective", [Objective("ml"), Objective("raml", 0.5), Objective("sqdml", 0.5)], ids=str
)
def test_recorded_eager_and_cpu_steps_agree(kind, objective):
    expected = losses(begin(kind, "cpu", objective))
    for graphs in (True, False):
        found = losses(begin(kind, "cuda", objective, graphs=graphs))
        torch.testing.assert_close(found, expected, rtol=2e-3, atol=0)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("captioner", {"sampler": "near"}),
        ("captioner", {"sampler": "recombined"}),
        ("captioner", {"sampler": "near+recombined+ngram", "size": 9}),
        ("translator", {"smoothing": 0.2}),
    ],
)
def test_other_targets_agree(kind, options):
    expected, found = (losses(begin(kind, device, **options)) for device in ("cpu", "cuda"))
    torch.testing.assert_close(found, expected, rtol=2e-3, atol=0)


@pytest.mark.parametrize("kind", ["captioner", "translator"])
def test_coarse_products_are_near(kind):
    found, expected = losses(begin(kind, precision="bf16")), losses(begin(kind, "cpu"))
    torch.testing.assert_close(found, expected, rtol=3e-2, atol=0)


@kinds
def test_recorded_dropout_is_that_of_eager_steps(kind):
    recorded, eager = (losses(begin(kind, dropout=0.3, graphs=graphs)) for graphs in (True, False))
    torch.testing.assert_close(recorded, eager, rtol=2e-3, atol=0)


@pytest.mark.parametrize("graphs", [True, False], ids=["recorded", "eager"])
@pytest.mark.parametrize("sampler", ["model", "model+near"])
@pytest.mark.parametrize("refresh", ["epoch", "step"])
def test_samples_from_the_model_train_it(refresh, sampler, graphs):
    trained = begin("captioner", graphs=graphs, sampler=sampler, refresh=refresh, size=6)
    found = losses(trained, epochs=8)
    assert bool(found.isfinite().all())
    assert bool((found[-1] < found[0]).all())
    assert "samples.tokens" not in trained.state()  # every epoch begins with others
    trained.train(8, 0, trained.steps, [True])
    state = trained.state()
    assert ("samples.tokens" in state) == (refresh == "epoch")
    if refresh == "epoch":
        assert state["samples.tokens"].device.type == "cpu"
        assert state["samples.lengths"].shape == (50, 6 // len(sampler.split("+")))


@pytest.mark.parametrize("kind", ["captioner", "deep captioner", "translator"])
@pytest.mark.parametrize(
    "candidates",
    [{}, {"sampler": "model+near", "refresh": "epoch"}, {"sampler": "model", "refresh": "step"}],
)
def test_an_interrupted_run_ends_alike(kind, candidates):
    whole, broken = (begin(kind, dropout=0.2, **candidates) for _ in range(2))
    for epoch in range(2):
        whole.train(epoch, 0, whole.steps, [True])
    broken.train(0, 0, broken.steps, [True])
    broken.train(1, 0, 3, [True])
    state = {name: value.cpu().clone() for name, value in broken.state().items()}
    broken = begin(kind, dropout=0.2, seed=9, **candidates)
    broken.load_state(state)
    broken.train(1, 3, broken.steps, [True])
    found = broken.state()
    for name, value in whole.state().items():
        assert torch.equal(value.cpu(), found[name].cpu()), name


@kinds
def test_generated_sentences_are_those_of_the_cpu(kind):
    """In float64, whose rounding decides between no two words."""
    model = model_of(kind, hidden=16, dropout=0.0).double().eval()
    inputs = Sentences.pack([[5, 6, 7], [8], [9, 10, 4, 4]])
    if "captioner" in kind:
        generator = torch.Generator().manual_seed(0)
        inputs = (torch.randn(9, SIZE, dtype=torch.float64, generator=generator),)
    moved = [part.cuda() for part in inputs]
    for method in ("beam", "greedy"):
        options = {"method": method, "size": 4, "max_length": 6}
        expected = model.cpu().generate(inputs, **options)
        on_gpu = Sentences(*moved) if isinstance(inputs, Sentences) else tuple(moved)
        found = model.cuda().generate(on_gpu, **options)
        assert torch.equal(found.tokens.cpu(), expected.tokens)
        torch.testing.assert_close(found.log_model.cpu(), expected.log_model, rtol=1e-3, atol=1e-4)


def test_captions_are_those_of_the_cpu():
    """In float64, whose rounding decides between no two words."""
    made = make("captioner")
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
        log_probs = [[one.log_prob for one in several] for several in (found, wanted)]
        assert log_probs[0] == pytest.approx(log_probs[1], rel=1e-3, abs=1e-3)
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
    # cosines that differ in the fourth place
    vectors = base + 1e-2 * torch.randn(200, 64, generator=generator)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        found = nearest(vectors, 1, device="cuda")[:, 0]
    finally:
        torch.set_float32_matmul_precision(before)
    exact = nearest(vectors.double(), 1)[:, 0]
    assert float((found == exact).double().mean()) > 0.98
