"""Grids of small networks.

Against torch's own layers, optimiser and autograd, and against themselves.
"""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

import softq
from softq.errors import OutputError, ShapeError
from softq.kernels import perceptrons
from softq.kernels.perceptrons import decisions, mean_earned, parameter_count, train_steps

PAPER = (2, 8, 8, 4)
SHAPES = [PAPER, (1, 2), (5, 1), (3, 5, 7, 6, 3), (4, 17, 9)]
shapes = pytest.mark.parametrize("sizes", SHAPES, ids=str)


def grid(sizes, models=3, count=70, patterns=9, seed=0, scale=None):
    """Networks, momentum, a total, and what they train on; float32 as a user would hold it."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    parameters = parameter_count(sizes)
    state = [
        0.5 * normal(models, parameters),
        0.1 * normal(models, parameters),
        normal(models, parameters),
    ]
    data = {
        "sizes": sizes,
        "inputs": normal(count, sizes[0]),
        "patterns": torch.randint(patterns, (count,), generator=generator, dtype=torch.int32),
        "targets": torch.softmax(3.0 * normal(models, patterns, sizes[-1]).double(), -1),
        "scales": (
            torch.linspace(0.5, 3.0, models) if scale is None else torch.full((models,), scale)
        ),
    }
    return state, data


def options(batch_size=16, learning_rate=0.1, momentum=0.9):
    return {"batch_size": batch_size, "learning_rate": learning_rate, "momentum": momentum}


def run(state, data, **kind):
    """Train copies; returns networks, momentum, total and losses."""
    state = [part.clone() for part in state]
    return [*state, train_steps(*state, **data, **options(**kind))]


def as_double(state, data):
    return [part.double() for part in state], data | {"inputs": data["inputs"].double()}


def only(state, data, rows):
    return [part[rows] for part in state], data | {
        "targets": data["targets"][rows],
        "scales": data["scales"][rows],
    }


def part(data, rows):
    return data | {"inputs": data["inputs"][rows], "patterns": data["patterns"][rows]}


def module(sizes, row):
    """The network of a row of parameters as torch would have it."""
    layers = []
    for before, after in pairwise(sizes):
        layers += [torch.nn.Linear(before, after), torch.nn.ReLU()]
    network = torch.nn.Sequential(*layers[:-1]).to(row.dtype)
    torch.nn.utils.vector_to_parameters(row, network.parameters())
    return network


@shapes
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_training_is_that_of_torch(sizes, dtype, decay):
    """Layers, loss and optimiser by their own classes.

    One network after another, one step after another.
    """
    (networks, _, _), data = grid(sizes)
    networks = networks.to(dtype)
    data["inputs"] = data["inputs"].to(dtype)
    start, total = torch.zeros_like(networks), torch.zeros_like(networks)
    found = networks.clone()
    losses = train_steps(found, start, total, **data, **options(), weight_decay=decay)
    for m, row in enumerate(networks):
        network, tau = module(sizes, row.clone()).double(), float(data["scales"][m])
        groups = [
            {"params": [layer.weight for layer in network[::2]], "weight_decay": decay},
            {"params": [layer.bias for layer in network[::2]]},
        ]
        sgd = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
        wanted, mean, summed = [], [], torch.zeros_like(row, dtype=torch.float64)
        for x, pattern in zip(
            data["inputs"].double().split(16), data["patterns"].split(16), strict=True
        ):
            target = softq.Categorical(data["targets"][m, pattern].log())
            model = softq.Categorical(network(x) / tau)
            loss = softq.cross_entropy(target, model).mean()
            sgd.zero_grad()
            (tau**2 * loss).backward()
            sgd.step()
            wanted.append(torch.nn.utils.parameters_to_vector(network.parameters()).detach())
            mean.append(loss.item())
            summed += wanted[-1]
        tolerance = (
            {"rtol": 1e-12, "atol": 1e-12}
            if dtype == torch.float64
            else {"rtol": 1e-5, "atol": 1e-5}
        )
        torch.testing.assert_close(found[m].double(), wanted[-1], **tolerance)
        torch.testing.assert_close(total[m].double(), summed, **tolerance)
        torch.testing.assert_close(losses[m], torch.tensor(mean), rtol=1e-6, atol=1e-6)


def test_scaled_loss_is_the_objective():
    (networks, velocity, _), data = grid(PAPER, models=1, scale=2.5)
    reward = softq.rewards.Matrix(
        torch.diag(torch.tensor([2.0, 1.6, 1.2, 1.1], dtype=torch.float64).exp())
    )
    refs = torch.tensor([[0, 1], [2, 2], [3, 1]])
    target = softq.sqdml(
        softq.Categorical(torch.zeros(3, 4, dtype=torch.float64)), refs, tau=2.5, reward=reward
    )
    data["targets"] = target.components.marginals.unsqueeze(0)
    data["patterns"] = data["patterns"] % 3
    leaf = networks.double().requires_grad_()
    model = softq.Categorical(module(PAPER, leaf[0].detach()).double()(data["inputs"].double()))
    chosen = softq.sqdml(model, refs[data["patterns"].long()], tau=2.5, reward=reward)
    expected = softq.cross_entropy(chosen, model, temperature_scaled=True).mean() / 2.5**2
    losses = train_steps(networks, velocity, None, **data, **options(batch_size=70))
    assert losses.item() == pytest.approx(expected.item(), rel=1e-6)


@shapes
@pytest.mark.parametrize(("batch_size", "count"), [(70, 70), (1, 3), (300, 600), (257, 300)])
def test_fast_path_agrees_with_the_reference(sizes, batch_size, count):
    state, data = grid(sizes, count=count, models=2)
    found = run(state, data, batch_size=batch_size)
    expected = run(*as_double(state, data), batch_size=batch_size)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b.float(), rtol=1e-5, atol=1e-5)
    with softq.backend("reference"):
        for a, b in zip(run(state, data, batch_size=batch_size), expected, strict=True):
            torch.testing.assert_close(a, b.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", ["fast", "reference"])
@pytest.mark.parametrize("scale", [1.0, 100.0, 10_001.0])
def test_gradients_keep_their_digits_at_large_scale(scale, backend):
    rewards = torch.tensor([2.0, 1.6, 1.2, 1.1], dtype=torch.float64).exp()
    (networks, velocity, _), data = grid(PAPER, models=4, scale=scale, count=500)
    shares = torch.rand(4, 9, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    data["targets"] = torch.softmax(shares / shares.sum(-1, keepdim=True) * rewards / scale, -1)
    start = torch.zeros_like(velocity)
    with softq.backend(backend):
        # the momentum after one step: the gradient
        found = run([networks, start, start], data, batch_size=500, momentum=0.0)[1]
    expected = run(*as_double([networks, start, start], data), batch_size=500, momentum=0.0)[1]
    assert expected.abs().amax(1).min() > 0.01
    assert ((found - expected).abs().amax(1) / expected.abs().amax(1)).max() < 2e-6


def test_a_network_does_not_depend_on_its_company():
    state, data = grid(PAPER, models=7)
    together = run(state, data)
    for m in range(7):
        alone = run(*only(state, data, slice(m, m + 1)))
        for a, b in zip(alone, together, strict=True):
            assert torch.equal(a[0], b[m])


def test_threads_do_not_change_results():
    state, data = grid(PAPER, models=5, count=3000)
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(run(state, data, batch_size=1000))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


@pytest.mark.parametrize("backend", ["fast", "reference"])
def test_two_halves_are_the_whole(backend):
    state, data = grid(PAPER, count=90)
    with softq.backend(backend):
        whole = run(state, data)
        *state, first = run(state, part(data, slice(0, 48)))
        *state, second = run(state, part(data, slice(48, None)))
    for a, b in zip(whole, [*state, torch.cat([first, second], 1)], strict=True):
        assert torch.equal(a, b)


def test_total_is_the_sum_over_steps():
    state, data = grid(PAPER)
    networks, velocity, total = (part.clone() for part in state)
    for start in range(0, 70, 16):
        train_steps(networks, velocity, None, **part(data, slice(start, start + 16)), **options())
        total += networks
    assert torch.equal(total, run(state, data)[2])


def test_a_network_that_diverges_leaves_the_others_alone():
    state, data = grid((3, 5, 7, 6, 3), models=4)
    expected = run(state, data)
    state[0][1] = math.inf
    state[0][2, 4] = math.nan
    found = run(state, data)
    assert found[3][1:3].isnan().all()
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a[[0, 3]], b[[0, 3]])


def test_a_network_at_its_target_stays():
    """The loss is then the entropy of the target, and nothing moves."""
    target = torch.tensor([0.5, 0.25, 0.125, 0.125], dtype=torch.float64)
    networks = torch.zeros(1, parameter_count(PAPER))
    networks[0, -4:] = target.log()
    start = networks.clone()
    data = {
        "sizes": PAPER,
        "inputs": torch.randn(64, 2),
        "patterns": torch.zeros(64, dtype=torch.int32),
    }
    data |= {"targets": target.expand(1, 1, 4), "scales": torch.ones(1)}
    losses = train_steps(networks, torch.zeros_like(networks), None, **data, **options())
    torch.testing.assert_close(losses, torch.full((1, 4), 1.75 * math.log(2.0)))
    torch.testing.assert_close(networks, start, rtol=0.0, atol=1e-6)


def test_training_reaches_the_entropy_of_the_targets():
    state, data = grid((2, 8, 3), models=2, patterns=1, count=64, scale=1.0)
    data["targets"] = torch.tensor([[[0.5, 0.3, 0.2]], [[0.2, 0.2, 0.6]]], dtype=torch.float64)
    for _ in range(40):
        losses = train_steps(*state, **data, **options(batch_size=4))
    torch.testing.assert_close(
        losses[:, -1],
        softq.Categorical(data["targets"][:, 0].log()).entropy().float(),
        rtol=1e-4,
        atol=1e-4,
    )


def test_velocity_of_a_dead_unit_becomes_nothing_before_it_becomes_slow():
    state, data = grid(PAPER, models=1, count=160)
    networks = state[0]
    networks[0, :16], networks[0, 16:24] = 0.0, -1.0  # the first layer answers no input
    velocity = torch.full_like(networks, 1e-29)
    train_steps(networks, velocity, None, **data, **options(batch_size=1))
    assert (velocity[0, :24] == 0.0).all()
    assert (velocity[0, -4:] != 0.0).all()


def logits(networks, sizes, inputs):
    return perceptrons._path(networks, sizes).logits(networks, sizes, inputs)


@shapes
def test_logits_and_decisions(sizes):
    (networks, _, _), data = grid(sizes, count=300)
    expected = torch.stack([module(sizes, row)(data["inputs"]) for row in networks]).detach()
    torch.testing.assert_close(
        logits(networks, sizes, data["inputs"]), expected, rtol=1e-5, atol=1e-5
    )
    fast = decisions(networks, sizes=sizes, inputs=data["inputs"])
    assert fast.dtype == torch.uint8
    sure = (
        expected.topk(min(2, sizes[-1]), -1).values.diff(dim=-1).abs().amin(-1) > 1e-5
        if sizes[-1] > 1
        else expected[..., 0] == expected[..., 0]
    )
    assert torch.equal(fast[sure], expected.argmax(-1).byte()[sure])
    with softq.backend("reference"):
        torch.testing.assert_close(
            logits(networks, sizes, data["inputs"]), expected, rtol=1e-5, atol=1e-5
        )
        plain = decisions(networks, sizes=sizes, inputs=data["inputs"])
    assert plain.dtype == torch.uint8
    assert torch.equal(plain[sure], fast[sure])


@pytest.mark.parametrize("backend", ["fast", "reference"])
def test_first_of_equals_decides(backend):
    networks = torch.tensor([[0.0, 0.0, 0.0, 1.0, 2.0, 2.0]])
    with softq.backend(backend):
        assert decisions(networks, sizes=(1, 3), inputs=torch.ones(5, 1)).tolist() == [[1] * 5]
        assert decisions(torch.zeros(1, 6), sizes=(1, 3), inputs=torch.ones(5, 1)).tolist() == [
            [0] * 5
        ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("backend", ["fast", "reference"])
def test_mean_earned(backend, dtype, monkeypatch):
    monkeypatch.setattr(perceptrons, "_INPUTS_AT_ONCE", 64)
    (networks, _, _), data = grid(PAPER, count=300)
    earned = torch.randn(300, 4, dtype=dtype)
    with softq.backend(backend):
        decided = decisions(networks, sizes=PAPER, inputs=data["inputs"])
        found = mean_earned(networks, sizes=PAPER, inputs=data["inputs"], earned=earned)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, earned.double()[torch.arange(300), decided.long()].mean(1))


def test_wide_layers_run_plainly():
    sizes = (2, perceptrons.cpu.WIDEST + 1, 3)
    state, data = grid(sizes, models=2)
    found = run(state, data)
    with softq.backend("reference"):
        assert all(torch.equal(a, b) for a, b in zip(found, run(state, data), strict=True))


def test_inputs_are_not_changed_and_nothing_is_allowed():
    state, data = grid(PAPER)
    copies = {
        name: value.clone() for name, value in data.items() if isinstance(value, torch.Tensor)
    }
    run(state, data)
    assert all(torch.equal(value, data[name]) for name, value in copies.items())
    assert run(state, part(data, slice(0)))[3].shape == (3, 0)
    assert torch.equal(run(state, part(data, slice(0)))[0], state[0])
    assert run(*only(state, data, slice(0)))[3].shape == (0, 5)
    assert decisions(state[0], sizes=PAPER, inputs=torch.zeros(0, 2)).shape == (3, 0)


def test_turned_inputs_and_wide_numbers_are_read_right():
    state, data = grid(PAPER)
    expected = run(state, data)
    turned = data | {"inputs": data["inputs"].T.contiguous().T, "patterns": data["patterns"].long()}
    assert all(torch.equal(a, b) for a, b in zip(run(state, turned), expected, strict=True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sizes": (2, 8, 4)}, r"networks must be \[M, P\] with .*'P': 60.*, got \[3, 132\]"),
        ({"inputs": torch.zeros(70, 3)}, r"inputs must be \[N, D\] with .*'D': 2.*, got \[70, 3\]"),
        ({"patterns": torch.zeros(69, dtype=torch.int32)}, r"patterns must be \[N\] with .*'N':"),
        ({"targets": torch.full((3, 9, 3), 1 / 3)}, r"targets must be \[M, U, K\] with .*'K':"),
        ({"targets": torch.full((3, 4), 1 / 4)}, r"targets must be \[M, U, K\] with .*, got \[3,"),
        ({"scales": torch.ones(2)}, r"scales must be \[M\] with .*'M': 3.*, got \[2\]"),
    ],
)
def test_shapes_must_fit_together(change, message):
    state, data = grid(PAPER)
    with pytest.raises(ShapeError, match=message):
        train_steps(*state, **data | options() | change)


def test_patterns_must_be_in_the_table():
    state, data = grid(PAPER)
    with pytest.raises(OutputError, match=r"every pattern must lie in 0..8, got 9"):
        train_steps(
            *state, **data | options() | {"patterns": torch.full((70,), 9, dtype=torch.int32)}
        )


def test_errors_of_the_state():
    (networks, velocity, _), data = grid(PAPER)
    with pytest.raises(ShapeError, match=r"velocity must be \[M, P\]"):
        train_steps(networks, velocity[:2], None, **data, **options())
    with pytest.raises(ShapeError, match="networks, velocity, total are changed in place and must"):
        train_steps(networks.T.contiguous().T, velocity, None, **data, **options())


def test_errors_of_decisions():
    with pytest.raises(ShapeError, match=r"earned must be \[N, K\] with .*'K': 2.*, got \[3, 3\]"):
        mean_earned(
            torch.zeros(1, 4), sizes=(1, 2), inputs=torch.zeros(3, 1), earned=torch.zeros(3, 3)
        )


# --- e^u - 1 of the CPU's kernel ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("low", [-1e-18, -1e-6, -1e-3, -1.0, -20.0])
def test_expm1_keeps_its_digits(low):
    u = np.linspace(low, 0.0, 500, endpoint=False)
    found = np.array([perceptrons.cpu._expm1(x) for x in u])
    assert np.abs(found / np.expm1(u) - 1.0).max() < 3e-8


def test_expm1_far_out():
    assert perceptrons.cpu._expm1(0.0) == 0.0
    assert math.isnan(perceptrons.cpu._expm1(math.nan))
    assert [np.float32(perceptrons.cpu._expm1(u)) for u in (-20.5, -1e4, -math.inf)] == [
        -1.0,
        -1.0,
        -1.0,
    ]
