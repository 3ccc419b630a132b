"""A grid of small networks, trained as one, against the same networks one after another.

The grid is that of the paper's first experiment (§4.1.1): perceptrons 2-8-8-4 for ML, RAML and
SQDML at many temperatures, which see the same inputs in the same order. Contenders take the same
steps from the same weights, alternating; the distance of their results is beside their times. The
plain loop is torch.nn.Sequential, autograd and torch.optim.SGD; batched is softq's plain path, one
matrix product for all.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import subprocess
import time
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

import softq
from memory import peak_bytes
from softq.kernels.perceptrons import mean_earned, train_steps
from softq.lab.recipe import Objective
from softq.lab.tasks.classification import draw
from softq.linear.class_targets import class_targets
from softq.neural.modules.perceptron import first_weights
from timing import by_turns, synchronize

SIZES = (2, 8, 8, 4)
BATCH, RATE, MOMENTUM, REFERENCES = 1000, 0.1, 0.9, 10
SHORT = [round(0.1 * i, 1) for i in range(1, 31)]
LONG = [1.0 + 200.0 * i for i in range(51)]
# The paper's two figures, and the second with temperature_scaled=True.
SETTINGS = [Objective("ml")]
SETTINGS += [
    Objective(name, tau) for taus in (SHORT, LONG) for name in ("raml", "sqdml") for tau in taus
]
SETTINGS += [
    Objective(name, tau, temperature_scaled=True) for name in ("raml", "sqdml") for tau in LONG
]
SEEDS = 5
# How far apart contenders may end, weights after 20 steps. They differ by a few last digits, about
# 1e-7, but where rounding puts an input on the other side of a unit's edge, the unit's weights
# differ by that input's part in a step, of the order of RATE / BATCH = 1e-4 times a derivative: a
# difference of probabilities, or of rewards where logits are divided by τ. There the plain loop
# also rounds probabilities that differ from their targets by 1/τ, and loses τ last digits.
WEIGHTS_APART, LOSSES_APART, LAST_DIGIT = 1e-4, 1e-5, torch.finfo(torch.float32).eps
HIGHEST_REWARD = float(softq.theory.four_class_problem(1).rewards.max())
BARS = {"one after another": 20.0, "seconds per epoch": 3.0}
OPERATIONS = 2 * sum(
    before * after * (3 if layer else 2) for layer, (before, after) in enumerate(pairwise(SIZES))
)  # of one input


class Grid(NamedTuple):
    """What is trained, and on what."""

    networks: Tensor  # [M, P]
    inputs: Tensor  # [N, 2]
    patterns: Tensor  # [N]
    targets: Tensor  # [M, U, 4] float64
    scales: Tensor  # [M]
    earned: Tensor  # [N, 4], mean reward of each decision

    def train(self, networks: Tensor, velocity: Tensor, total: Tensor | None = None) -> Tensor:
        """One epoch, in place; returns the losses."""
        return train_steps(
            networks,
            velocity,
            total,
            sizes=SIZES,
            inputs=self.inputs,
            patterns=self.patterns,
            targets=self.targets,
            scales=self.scales,
            batch_size=BATCH,
            learning_rate=RATE,
            momentum=MOMENTUM,
        )

    def first(self, count: int) -> Grid:
        """The same networks on the first inputs."""
        return self._replace(
            inputs=self.inputs[:count], patterns=self.patterns[:count], earned=self.earned[:count]
        )


def make(models: int, count: int, device: str) -> Grid:
    """The paper's data, and networks of all settings with as many seeds as it takes."""
    data = draw(count, REFERENCES, torch.Generator().manual_seed(0))
    rewards = softq.theory.four_class_problem(1).rewards
    counts, patterns = torch.unique(data.counts, dim=0, return_inverse=True)
    tables = torch.stack(
        [class_targets(one.name, counts, rewards, one.tau) for one in SETTINGS[:models]]
    )
    chosen = torch.arange(models) % len(SETTINGS)
    networks = torch.stack([first_weights(SIZES, seed=m // len(SETTINGS)) for m in range(models)])
    scales = torch.tensor(
        [SETTINGS[i].tau if SETTINGS[i].temperature_scaled else 1.0 for i in chosen.tolist()]
    )
    parts = networks, data.inputs, patterns.int(), tables[chosen], scales, data.earned(rewards)
    return Grid(*(part.to(device) for part in parts))


def module(row: Tensor) -> torch.nn.Sequential:
    """A network as torch has it."""
    layers: list[torch.nn.Module] = []
    for before, after in pairwise(SIZES):
        layers += [torch.nn.Linear(before, after), torch.nn.ReLU()]
    network = torch.nn.Sequential(*layers[:-1]).to(row.device)
    torch.nn.utils.vector_to_parameters(row.clone(), network.parameters())
    return network


def one_after_another(grid: Grid) -> tuple[Tensor, Tensor]:
    """Final weights and losses of every network, trained for itself as one would write it."""
    targets, patterns = grid.targets.float(), grid.patterns.long()
    rows, losses = [], []
    for m, row in enumerate(grid.networks):
        network, scale = module(row), float(grid.scales[m])
        sgd = torch.optim.SGD(network.parameters(), lr=RATE, momentum=MOMENTUM)
        found = []
        for x, pattern in zip(grid.inputs.split(BATCH), patterns.split(BATCH), strict=True):
            answers = network(x) if scale == 1.0 else network(x) / scale
            loss = torch.nn.functional.cross_entropy(answers, targets[m][pattern])
            sgd.zero_grad()
            (loss if scale == 1.0 else scale**2 * loss).backward()
            sgd.step()
            found.append(loss.detach())
        rows.append(torch.nn.utils.parameters_to_vector(network.parameters()).detach())
        losses.append(torch.stack(found))
    return torch.stack(rows), torch.stack(losses)


def together(grid: Grid, backend: softq.kernels.backend.Backend) -> tuple[Tensor, Tensor]:
    """The same by softq."""
    networks = grid.networks.clone()
    with softq.backend(backend):
        losses = grid.train(networks, torch.zeros_like(networks))
    return networks, losses


def check_same(
    name: str, found: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor], scales: Tensor
) -> None:
    """Stop unless weights and losses of all networks are those of softq, up to rounding."""
    weights, losses = ((a - b).abs().amax(1) for a, b in zip(found, wanted, strict=True))  # [M]
    longer = max(wanted[1].shape[1] / 20, 1.0)
    allowed = longer * (WEIGHTS_APART * scales.clamp_max(HIGHEST_REWARD) + LAST_DIGIT * scales)
    right = (weights <= allowed) & (losses <= LOSSES_APART)  # a NaN is not right
    if not bool(right.all()):
        m = int((~right).nonzero()[0])
        raise SystemExit(
            f"{name} and softq do not train the same networks: {int((~right).sum())} of"
            f" {len(right)} differ. In the first, {SETTINGS[m % len(SETTINGS)]}, weights are"
            f" {weights[m]:.1e} apart and losses {losses[m]:.1e}"
        )


def compare(models: int, steps: int, device: str, rounds: int) -> dict[str, object]:
    """Times of all contenders for the same steps, and how far apart they end."""
    grid = make(models, steps * BATCH, device)
    calls = {
        "softq": lambda: together(grid, "fast"),
        "batched": lambda: together(grid, "reference"),
        "one after another": lambda: one_after_another(grid),
    }
    results = {name: call() for name, call in calls.items()}
    apart = {
        name: [float((a - b).abs().max()) for a, b in zip(results["softq"], result, strict=True)]
        for name, result in results.items()
        if name != "softq"
    }
    for name in apart:
        check_same(name, results[name], results["softq"], grid.scales)
    times = by_turns(calls, rounds=rounds, warmup=1)
    faster = {name: times[name] / times["softq"] for name in apart}
    return {
        "models": models,
        "steps": steps,
        "ms_per_step": {name: round(ms / steps, 4) for name, ms in times.items()},
        "times_faster": {name: round(ratio, 2) for name, ratio in faster.items()},
        "bar": BARS["one after another"],
        "reached": faster["one after another"] >= BARS["one after another"],
        "largest_difference": {
            name: {"weights": pair[0], "losses": pair[1]} for name, pair in apart.items()
        },
    }


def scaling(models: int, count: int, device: str, rounds: int) -> dict[str, object]:
    """Milliseconds of an epoch on 1, 2 and 4 times the inputs; every contender is a size."""
    grid = make(models, 4 * count, device)
    networks, velocity = grid.networks.clone(), torch.zeros_like(grid.networks)
    calls = {
        str(times): partial(grid.first(times * count).train, networks, velocity)
        for times in (1, 2, 4)
    }
    found = by_turns(calls, rounds=rounds, warmup=1)
    return {
        "models": models,
        "inputs": [count * int(times) for times in found],
        "ms": [round(ms, 3) for ms in found.values()],
        "ratio": [round(ms / found["1"], 3) for ms in found.values()],
    }


def peak_of(work: tuple[int, int, int, str]) -> int:
    """Most memory that training for some epochs takes beyond its data; on a GPU, of the GPU."""
    epochs, models, count, device = work
    grid = make(models, count, device)
    networks, velocity, total = (
        grid.networks.clone(),
        torch.zeros_like(grid.networks),
        torch.zeros_like(grid.networks),
    )

    def run(grid: Grid) -> None:
        for _ in range(epochs):
            grid.train(networks, velocity, total)
            mean_earned(networks, sizes=SIZES, inputs=grid.inputs, earned=grid.earned)

    run(grid.first(BATCH))  # compiles
    if device == "cpu":
        return peak_bytes(lambda: run(grid))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run(grid)
    return torch.cuda.max_memory_allocated() - before


def memory(models: int, count: int, device: str) -> dict[str, object]:
    """Peak memory of 1, 2 and 4 epochs, each in a process of its own."""
    epochs = [1, 2, 4]
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        peaks = pool.map(peak_of, [(n, models, count, device) for n in epochs], chunksize=1)
    return {
        "models": models,
        "inputs": count,
        "epochs": epochs,
        "peak_mib": [round(peak / 2**20, 2) for peak in peaks],
    }


def throughput(models: int, count: int, device: str) -> dict[str, object]:
    """One epoch and its evaluation on a tenth of the inputs.

    Inputs × networks per second, and the arithmetic of it.
    """
    grid = make(models, count, device)
    networks, velocity = grid.networks.clone(), torch.zeros_like(grid.networks)
    grid.first(10 * BATCH).train(networks, velocity)
    tenth = grid.first(count // 10)
    mean_earned(networks, sizes=SIZES, inputs=tenth.inputs, earned=tenth.earned)
    synchronize()
    start = time.perf_counter()
    grid.train(networks, velocity)
    synchronize()
    trained = time.perf_counter() - start
    start = time.perf_counter()
    mean_earned(networks, sizes=SIZES, inputs=tenth.inputs, earned=tenth.earned)
    synchronize()
    evaluated = time.perf_counter() - start
    speed = models * count / trained
    peak = float32_peak() if device == "cuda" else None
    return {
        "models": models,
        "inputs": count,
        "seconds_per_epoch": round(trained, 4),
        "bar": BARS["seconds per epoch"] if device == "cuda" else None,
        "microseconds_per_step": round(1e6 * trained / -(-count // BATCH), 2),
        "seconds_to_evaluate_a_tenth": round(evaluated, 4),
        "million_inputs_times_models_per_second": round(speed / 1e6, 1),
        "gflops": round(speed * OPERATIONS / 1e9, 1),
        "share_of_float32_peak": None if peak is None else round(speed * OPERATIONS / peak, 4),
    }


def float32_peak() -> float | None:
    """Operations per second of the device at its highest clock: multiprocessors × cores × 2.

    None where no time is measured.
    """
    properties = torch.cuda.get_device_properties(0)
    cores = 64 if (properties.major, properties.minor) in ((7, 0), (7, 5), (8, 0)) else 128
    try:
        asked = ["nvidia-smi", "--query-gpu=clocks.max.sm", "--format=csv,noheader,nounits"]
        clock = float(
            subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()[0]
        )
    except (OSError, subprocess.CalledProcessError, ValueError, IndexError):
        return None
    return properties.multi_processor_count * cores * 2 * clock * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu"
    )
    parser.add_argument(
        "--models", type=int, default=61, help="networks that are also trained one after another"
    )
    parser.add_argument(
        "--steps", type=int, default=20, help="steps of 1,000 inputs in that comparison"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="print the JSON object alone")
    options = parser.parse_args()
    device, gpu = options.device, options.device == "cuda"
    most = len(SETTINGS) * SEEDS if gpu else options.models
    result = {
        "benchmark": "grid",
        "device": device,
        "machine": (
            torch.cuda.get_device_name() if gpu else platform.processor() or platform.machine()
        ),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "sizes": SIZES,
        "batch_size": BATCH,
        "comparison": compare(options.models, options.steps, device, options.rounds),
        "scaling": scaling(most, 250_000 if gpu else 50_000, device, options.rounds),
        "memory": memory(most, 250_000 if gpu else 50_000, device),
        "throughput": throughput(most, 1_000_000 if gpu else 100_000, device),
    }
    if not options.json:
        show(result)
    print(json.dumps(result))


def show(result: dict[str, object]) -> None:
    versus, console = result["comparison"], Console(width=120)
    title = (
        f"{versus['models']} networks {'-'.join(map(str, SIZES))}, {versus['steps']} steps of"
        f" {BATCH:,} inputs, {result['threads']} threads"
    )
    table = Table(title=title, box=box.SIMPLE)
    for column in ("", "ms per step", "softq is faster", "weights apart", "losses apart"):
        table.add_column(column, justify="right" if column else "left")
    for name, ms in versus["ms_per_step"].items():
        apart = versus["largest_difference"].get(name, {})
        ratio = f"{versus['times_faster'][name]:.1f}×" if apart else ""
        table.add_row(
            name,
            f"{ms:.3f}",
            ratio,
            *(f"{apart[what]:.1e}" if apart else "" for what in ("weights", "losses")),
        )
    console.print(table)
    console.print(
        f"bar: {versus['bar']:g}× one after another, {'reached' if versus['reached'] else 'missed'}"
    )
    for name in ("scaling", "memory", "throughput"):
        console.print(
            f"{name}: "
            + ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in result[name].items())
        )


if __name__ == "__main__":
    main()
