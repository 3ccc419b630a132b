"""Grids of small networks on the GPU against the CPU's.

Compiled where there is a GPU, else run by Triton's interpreter.
"""

from __future__ import annotations

import pytest
import torch

# First, because Triton must be told to interpret before a kernel is imported.
from triton_world import (
    DEVICE,
    interpreter_takes_loop_bounds_from_tensors,  # noqa: F401 -- a fixture
    mark_for,
    on_gpu,
)

# isort: split
from test_perceptrons import PAPER, as_double, grid, only, options, part, run

import softq
from softq.kernels import perceptrons
from softq.kernels.perceptrons import cpu, gpu

kernels_run = mark_for(gpu._train)
# it follows no Triton kernel, and makes their interpreter twice as slow
pytestmark = pytest.mark.no_cover

SMALL = (2, 3, 2)


def there(x):
    return x.to(DEVICE) if isinstance(x, torch.Tensor) else x


def train(module, state, data, batch_size=16, decay=0.0):
    """Networks, momentum, total and losses by the kernels of a module."""
    networks, velocity, total = (part.clone() for part in state)
    losses = torch.empty(
        len(networks), -(-len(data["inputs"]) // batch_size), device=networks.device
    )
    rest = [data[name] for name in ("sizes", "inputs", "patterns", "targets", "scales")]
    module.train_steps(networks, velocity, total, losses, *rest, batch_size, 0.1, 0.9, decay)
    return [networks, velocity, total, losses]


def on_device(state, data):
    return [there(part) for part in state], {name: there(value) for name, value in data.items()}


def agree(found, expected, tolerance=1e-5):
    for a, b in zip(found, expected, strict=True):
        assert a.device.type == DEVICE
        torch.testing.assert_close(a.cpu(), b, rtol=tolerance, atol=tolerance)


@kernels_run
@pytest.mark.parametrize("sizes", [SMALL, PAPER, (1, 2), (5, 1), (3, 2, 4, 3)], ids=str)
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_training_kernel(sizes, decay):
    state, data = grid(sizes, models=2, count=40)
    agree(train(gpu, *on_device(state, data), decay=decay), train(cpu, state, data, decay=decay))


@kernels_run
def test_large_scale_keeps_its_digits():
    state, data = grid(SMALL, models=2, count=40, scale=10_001.0)
    data["targets"] = torch.softmax(
        torch.tensor([7.4, 3.0], dtype=torch.float64) * torch.rand(2, 9, 2).double() / 10_001.0, -1
    )
    state[1].zero_()
    # after one step: the gradient
    found = train(gpu, *on_device(state, data), batch_size=40)[1].cpu()
    expected = run(*as_double(state, data), batch_size=40)[1]
    assert ((found - expected).abs().amax(1) / expected.abs().amax(1)).max() < 1e-5


@kernels_run
def test_a_network_does_not_depend_on_its_company():
    state, data = on_device(*grid(SMALL, models=3, count=40))
    together = train(gpu, state, data)
    for m in range(3):
        alone = train(gpu, *only(state, data, slice(m, m + 1)))
        assert all(torch.equal(a[0], b[m]) for a, b in zip(alone, together, strict=True))


@kernels_run
def test_two_halves_are_the_whole():
    state, data = on_device(*grid(SMALL, models=2, count=50))
    whole = train(gpu, state, data)
    *state, first = train(gpu, state, part(data, slice(0, 16)))
    *state, second = train(gpu, state, part(data, slice(16, None)))
    assert all(
        torch.equal(a, b)
        for a, b in zip(whole, [*state, torch.cat([first, second], 1)], strict=True)
    )


@kernels_run
def test_logits():
    (networks, _, _), data = grid(PAPER, models=2, count=150)
    agree(
        [gpu.logits(there(networks), PAPER, there(data["inputs"]))],
        [cpu.logits(networks, PAPER, data["inputs"])],
    )


@kernels_run
@pytest.mark.filterwarnings(
    "ignore:invalid value encountered in cast:RuntimeWarning"
)  # numpy, for the interpreter
def test_a_network_that_diverges_leaves_the_others_alone():
    state, data = on_device(*grid(SMALL, models=2, count=20))
    expected = train(gpu, state, data)
    state[0][1, 2] = torch.nan
    found = train(gpu, state, data)
    assert found[3][1].isnan().all()
    assert all(torch.equal(a[0], b[0]) for a, b in zip(found, expected, strict=True))


@kernels_run
def test_kernels_of_nothing():
    state, data = on_device(*grid(SMALL, models=2))
    assert train(gpu, state, part(data, slice(0)))[3].shape == (2, 0)
    assert gpu.logits(state[0], SMALL, data["inputs"][:0]).shape == (2, 0, 2)


# --- compiled, at full size, through the public entries -------------------------------------------------------------------


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("scale", [1.0, 10_001.0])
def test_many_networks_and_steps(scale):
    state, data = grid(PAPER, models=1325, count=20_500, patterns=286, scale=scale)
    state[1].zero_()
    if scale > 1.0:
        data["targets"] = torch.softmax(data["targets"].log() / scale, -1)
    fast, here = run(*on_device(state, data), batch_size=1000), run(state, data, batch_size=1000)
    agree(fast[3:], here[3:])
    # an input that rounding puts on the other side of a unit's edge shows in some weights
    for a, b in zip(fast[:3], here[:3], strict=True):
        assert (a.cpu() - b).abs().mean() < 1e-5
        assert (a.cpu() - b).abs().max() < 0.05
    inputs, earned = data["inputs"], torch.rand(20_500, 4)
    trained = fast[0].cpu()
    found = perceptrons.mean_earned(
        fast[0], sizes=PAPER, inputs=inputs.cuda(), earned=earned.cuda()
    ).cpu()
    expected = perceptrons.mean_earned(trained, sizes=PAPER, inputs=inputs, earned=earned)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    decided = perceptrons.decisions(fast[0], sizes=PAPER, inputs=inputs.cuda())
    assert (
        decided.cpu() == perceptrons.decisions(trained, sizes=PAPER, inputs=inputs)
    ).double().mean() > 0.999


@pytest.mark.gpu
@on_gpu
def test_company_and_halves_at_full_size():
    state, data = on_device(*grid(PAPER, models=1325, count=10_000, patterns=286))
    whole = run(state, data, batch_size=1000)
    for m in (0, 777, 1324):
        alone = run(*only(state, data, slice(m, m + 1)), batch_size=1000)
        assert all(torch.equal(a[0], b[m]) for a, b in zip(alone, whole, strict=True))
    *state, first = run(state, part(data, slice(0, 3000)), batch_size=1000)
    *state, second = run(state, part(data, slice(3000, None)), batch_size=1000)
    assert all(
        torch.equal(a, b)
        for a, b in zip(whole, [*state, torch.cat([first, second], 1)], strict=True)
    )


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("sizes", [(2, 32, 32, 4), (3, 9, 7, 5)], ids=str)
def test_other_sizes_on_gpu(sizes):
    state, data = grid(sizes, models=4, count=3000)
    agree(
        run(*on_device(state, data), batch_size=1000),
        run(state, data, batch_size=1000),
        tolerance=1e-4,
    )


@pytest.mark.gpu
@on_gpu
def test_plain_path_on_gpu():
    state, data = on_device(*grid(PAPER, count=100))
    fast = run(state, data)
    with softq.backend("reference"):
        plain = run(state, data)
    agree(fast, [x.cpu() for x in plain])
    assert perceptrons.train_steps(*state[:2], None, **data, **options()).is_cuda
