"""Cost-sensitive classification.

Data, targets and training against plain Python, plain torch and the population.
"""

import dataclasses
import itertools
import math

import pytest
import scipy.stats
import torch

import oracle
from small_runs import CPU, recipe
from softq.errors import RecipeError, RunError
from softq.kernels import perceptrons
from softq.lab.recipe import Objective
from softq.lab.run import BEST, METRICS, RunFolder
from softq.lab.tasks import TASKS, train_cells
from softq.lab.tasks.classification import (
    ClassificationData,
    GridLearner,
    Labelled,
    draw,
    make_data,
    torch_learner,
    visiting_order,
)
from softq.lab.torch_learner import generator_for
from softq.linear.class_targets import class_targets
from softq.metrics import mean_of_first
from softq.theory import bayes_rule, four_classes_at

TASK = TASKS["classification"]
RARE = 1e-6  # how often a test of samples would fail by chance, if its seed were not fixed

pytestmark = pytest.mark.usefixtures("one_thread")


# --- data ---------------------------------------------------------------------------------------------


def test_inputs_are_uniform_on_the_square():
    x = draw(50_000, 1, generator_for(0)).inputs
    assert float(x.abs().max()) <= 1
    bins = ((x + 1) * 5).long().clamp(max=9)
    counts = torch.bincount(bins[:, 0] * 10 + bins[:, 1], minlength=100)
    assert scipy.stats.chisquare(counts.numpy()).pvalue > RARE


@pytest.mark.parametrize("outputs", [200, 300])  # counts of one byte, and of more
def test_labels_follow_their_probabilities(outputs):
    data = draw(60, outputs, generator_for(1))
    assert data.counts.sum(-1).tolist() == [outputs] * 60
    corners = [(1, 1), (1, -1), (-1, -1), (-1, 1)]
    statistic = 0.0
    for point, counts in zip(data.inputs.tolist(), data.counts.tolist(), strict=True):
        p = oracle.probabilities([-math.dist(point, corner) for corner in corners])
        statistic += sum(
            (count - outputs * q) ** 2 / (outputs * q) for count, q in zip(counts, p, strict=True)
        )
    assert scipy.stats.chi2.sf(statistic, 60 * 3) > RARE
    assert scipy.stats.chi2.cdf(statistic, 60 * 3) > RARE  # nor better than chance


def test_the_bayes_rule_earns_what_theory_says():
    data = draw(300_000, 1, generator_for(2))
    rewards = four_classes_at(data.inputs[:1]).rewards
    decided = bayes_rule(four_classes_at(data.inputs).p, rewards)
    earned = data.earned(rewards).gather(1, decided.unsqueeze(1)).squeeze(1)
    error = earned.std().item() / math.sqrt(len(earned))
    assert data.bayes_reward(rewards) == pytest.approx(earned.mean().item())
    assert data.bayes_reward(rewards) == pytest.approx(
        2.31555, abs=5 * error
    )  # fails once in two million
    likely = data.earned(rewards).gather(1, four_classes_at(data.inputs).p.argmax(-1, keepdim=True))
    assert float(likely.mean()) == pytest.approx(2.18019, abs=5 * error)


def test_what_a_decision_earns():
    rewards = torch.tensor([[1.0, 0.0], [0.25, 2.0]], dtype=torch.float64)  # [decided, right]
    earned = Labelled(torch.zeros(2, 2), torch.tensor([[3, 1], [0, 4]], dtype=torch.uint8)).earned(
        rewards
    )
    assert earned.tolist() == [[0.75, 0.75 * 0.25 + 0.25 * 2.0], [0.0, 2.0]]


def test_sets_do_not_depend_on_each_others_sizes():
    small, large = (
        make_data(ClassificationData(100, 3, 50, 60)),
        make_data(ClassificationData(200, 3, 70, 60)),
    )
    assert torch.equal(small.test.inputs, large.test.inputs)
    assert torch.equal(small.test.counts, large.test.counts)
    assert not torch.equal(small.dev.inputs[:50], small.test.inputs[:50])
    assert not torch.equal(
        small.test.inputs, make_data(ClassificationData(100, 3, 50, 60, seed=1)).test.inputs
    )


def test_epochs_visit_every_input_in_another_order():
    orders = [visiting_order(ClassificationData(100), epoch) for epoch in range(3)]
    for order in orders:
        assert sorted(order.tolist()) == list(range(100))
    assert all(not torch.equal(a, b) for a, b in itertools.combinations(orders, 2))
    assert torch.equal(orders[1], visiting_order(ClassificationData(100), 1))
    assert not torch.equal(orders[1], visiting_order(ClassificationData(100, seed=1), 1))


# --- targets ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tau", [0.1, 1.0, 2.4, 1000.0])
def test_targets_are_those_of_the_paper(tau):
    table = [
        [math.exp(power) if z == y else 0.1 * z for z in range(4)]
        for y, power in enumerate([2.0, 1.6, 1.2, 1.1])
    ]
    patterns = [pattern for pattern in itertools.product(range(5), repeat=4) if sum(pattern) == 4]
    counts, rewards = (
        torch.tensor(patterns, dtype=torch.uint8),
        torch.tensor(table, dtype=torch.float64),
    )
    ml, raml, sqdml = (
        class_targets(objective.name, counts, rewards, objective.tau)
        for objective in (Objective(), Objective("raml", tau), Objective("sqdml", tau))
    )
    assert raml.dtype == torch.float64
    for row, pattern in enumerate(patterns):
        references = [y for y, count in enumerate(pattern) for _ in range(count)]
        assert ml[row].tolist() == pytest.approx(
            [references.count(y) / 4 for y in range(4)]
        )  # eq. 2
        payoffs = [
            oracle.probabilities([table[y][reference] / tau for y in range(4)])
            for reference in references
        ]
        assert raml[row].tolist() == pytest.approx(
            [math.fsum(payoff[y] for payoff in payoffs) / 4 for y in range(4)]
        )  # eq. 16-18
        means = [math.fsum(table[y][reference] for reference in references) / 4 for y in range(4)]
        assert sqdml[row].tolist() == pytest.approx(
            oracle.probabilities([mean / tau for mean in means])
        )  # eq. 15


# --- training -----------------------------------------------------------------------------------------

OBJECTIVES = [
    Objective(),
    Objective("raml", 2.4),
    Objective("sqdml", 1.1),
    Objective("raml", 40.0, temperature_scaled=True),
    Objective("sqdml", 3.0, temperature_scaled=True),
]


def cells(*flags, seeds=(0, 1)):
    base = recipe(*flags)
    pairs = itertools.product(OBJECTIVES, seeds)
    return [
        dataclasses.replace(
            base, objective=each, training=dataclasses.replace(base.training, seed=seed)
        )
        for each, seed in pairs
    ]


def run_epochs(learner, epochs):
    """Losses and development scores, ``[epochs][cells]``."""
    active = [True] * learner.cells
    found = []
    for epoch in range(epochs):
        learner.train(epoch, 0, learner.steps, active)
        found.append((learner.end_epoch(active)["loss"], learner.evaluate(active)))
    return [list(part) for part in zip(*found, strict=True)]


@pytest.mark.parametrize("flags", [[], ["--no-average", "--inputs", 250, "--hidden", "5"]])
def test_the_grid_trains_what_plain_torch_trains(flags):
    grid = cells("--dev", 2000, *flags)
    losses, dev = run_epochs(GridLearner(grid, CPU.device), 2)
    for number, cell in enumerate(grid):
        alone, judged = run_epochs(torch_learner(cell, CPU), 2)
        assert [row[number] for row in losses] == pytest.approx(
            [row[0] for row in alone], rel=2e-5
        ), cell.objective
        # an input on the edge between two classes may fall either way: one in 2000, worth at most
        # e²
        assert [row[number] for row in dev] == pytest.approx(
            [row[0] for row in judged], abs=math.exp(2) / 2000 + 1e-6
        ), cell.objective


@pytest.fixture(scope="module")
def grid_and_alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("grid")
    many = cells("--patience", 1, "--epochs", 5, "--inputs", 350, "--learning-rate", 0.4)
    together = train_cells(TASK, many, folder / "grid", workers=CPU)
    alone = [
        train_cells(TASK, [cell], folder / f"cell{number}", workers=CPU)
        for number, cell in enumerate(many)
    ]
    return folder, together, alone


def test_a_cell_alone_is_the_cell_in_a_grid(grid_and_alone):
    folder, together, alone = grid_and_alone
    grid = RunFolder(folder / "grid")
    for number, result in enumerate(alone):
        assert result["cells"] == [together["cells"][number]]
        run = RunFolder(folder / f"cell{number}")
        assert torch.equal(
            run.load(BEST).tensors["networks"][0], grid.load(BEST).tensors["networks"][number]
        )
        for ours, theirs in zip(run.lines(METRICS), grid.lines(METRICS), strict=False):
            assert (ours["loss"], ours["dev"]) == (theirs["loss"][number], theirs["dev"][number])


def test_cells_stop_early_each_at_its_own_time(grid_and_alone):
    folder, _, alone = grid_and_alone
    rows = RunFolder(folder / "grid").lines(METRICS)
    lengths = [
        len(RunFolder(folder / f"cell{number}").lines(METRICS)) for number in range(len(alone))
    ]
    assert len(set(lengths)) > 1, "the test needs cells that stop at different times"
    assert len(rows) == max(lengths)
    for epoch, row in enumerate(rows):
        for name in ("loss", "dev"):
            assert [value is None for value in row[name]] == [epoch >= length for length in lengths]


def test_results_and_statistics_agree(grid_and_alone):
    folder, together, _ = grid_and_alone
    many = cells("--patience", 1, "--epochs", 5, "--inputs", 350, "--learning-rate", 0.4)
    counts = RunFolder(folder / "grid").test_counts()
    assert counts.model(7).shape == (200, 2)
    assert counts.row_of.dtype == torch.uint8
    assert mean_of_first(counts.sums()).tolist() == [cell["test"] for cell in together["cells"]]
    networks, splits = (
        RunFolder(folder / "grid").load(BEST).tensors["networks"],
        make_data(many[0].data),
    )
    earned = splits.test.earned(splits.rewards)
    means = perceptrons.mean_earned(
        networks, sizes=many[0].model.sizes, inputs=splits.test.inputs, earned=earned
    )
    assert mean_of_first(counts.sums()).tolist() == pytest.approx(means.tolist())
    assert (together["task"], together["metric"], together["signature"]) == (
        "classification",
        "reward",
        TASK.signature(many[0]),
    )


def test_a_run_goes_on_with_its_own_recipe_only(tmp_path):
    train_cells(TASK, [recipe()], tmp_path / "run", workers=CPU)
    for other in (recipe("--seed", 1), recipe("--inputs", 400)):
        with pytest.raises(RunError, match="was started with another recipe"):
            train_cells(TASK, [other], tmp_path / "run", resume=True, workers=CPU)
    with pytest.raises(RunError, match="already holds a run"):
        train_cells(TASK, [recipe()], tmp_path / "run", workers=CPU)
    again = train_cells(
        TASK,
        [recipe("--checkpoint-every", 2, "--device", "cpu")],
        tmp_path / "run",
        resume=True,
        workers=CPU,
    )
    assert again == RunFolder(tmp_path / "run").result()


def test_several_processes_train_one_cell():
    class Two:
        size, device = 2, CPU.device

    with pytest.raises(
        RecipeError, match="several processes train one model at a time, got 2 cells"
    ):
        TASK.learner(cells()[:2], Two())


def test_tasks_are_known_by_their_names():
    for name, task in TASKS.items():
        assert task.name == name
        assert dataclasses.is_dataclass(task.recipe_type())
