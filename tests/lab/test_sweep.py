"""Sweeps: what is trained and what is not, how temperatures are chosen, what a gain is."""

import json
import math

import pytest
import torch

from small_runs import ToyRecipe, ToyTask, recipe, snapshot
from softq.errors import DataError, RecipeError, RunError
from softq.lab.run import CELLS, COUNTS, RESULT, RunFolder
from softq.lab.sweep import (
    RUNS,
    SUMMARY,
    SWEEP,
    Grid,
    expand,
    parse_recipe,
    read_sweep,
    run_sweep,
    sweep_toml,
)
from softq.lab.tasks import TASKS
from softq.lab.tasks.base import cell_recipe
from softq.lab.tasks.classification import GridLearner
from softq.lab.torch_learner import generator_for
from softq.metrics import mean_interval

EXAMPLES = 200
TASK = TASKS["classification"]


def dev(cell):
    """Best at τ = 2, if seeds are averaged; single seeds disagree."""
    tau, seed = cell.objective.tau, cell.training.seed
    if tau is None:
        return 0.0
    return -abs(math.log2(tau) - 1) + (1.4 if (tau, seed) == (4.0, 0) else 0.0) - seed


def earned(cell):
    """RAML earns 0.3 more than ML on every example but for noise, SQDML 0.2 less.

    Τ = 4 would earn most of all.
    """
    name, seed = cell.objective.name, cell.training.seed
    noise = torch.randn(EXAMPLES, generator=generator_for(seed, 1))
    own = torch.randn(EXAMPLES, generator=generator_for(seed, 2, len(name)))
    gain = {"ml": 0.0, "raml": 0.3, "sqdml": -0.2}[name]
    return (noise + 0.1 * own + gain + 5.0 * (cell.objective.tau == 4.0)).tolist()


def toy():
    return ToyTask(dev, earned)


GRID = Grid("main", ("ml", "raml", "sqdml"), "1,2,4", "0:1")


def by_name(sweep):
    return {(choice.grid, choice.objective): choice for choice in sweep.choices}


def test_temperatures_are_chosen_by_the_mean_development_score(tmp_path):
    sweep = run_sweep(toy(), ToyRecipe(), [GRID], tmp_path)
    choices = by_name(sweep)
    assert (
        choices["main", "raml"].tau == choices["main", "sqdml"].tau == 2.0
    )  # τ = 4 leads for one seed, and on the test set
    assert choices["main", "ml"].tau is None
    cells = [member.cell for member in sweep.cells]
    chosen = [cell for cell in cells if (cell.objective, cell.tau) == ("raml", 2.0)]
    assert [cell.seed for cell in chosen] == [0, 1]
    assert choices["main", "raml"].seeds == 2
    assert choices["main", "raml"].dev == mean_interval([cell.dev for cell in chosen])
    assert choices["main", "raml"].test == mean_interval([cell.test for cell in chosen])


def test_gains_have_the_right_sign_and_size(tmp_path):
    choices = by_name(run_sweep(toy(), ToyRecipe(), [GRID], tmp_path))
    assert choices["main", "ml"].gain is None
    for name, size in (("raml", 0.3), ("sqdml", -0.2)):
        value, low, high = choices["main", name].gain
        assert low < size < high
        assert low * high > 0
        # pairs share most of their noise: the mean of two seeds' differences has an error of
        # 0.1·√2/√2/√200
        assert high - low == pytest.approx(2 * 1.96 * 0.1 / math.sqrt(EXAMPLES), rel=0.3)
        assert value == pytest.approx(
            choices["main", name].test.value - choices["main", "ml"].test.value
        )


def test_no_gain_without_ml(tmp_path):
    sweep = run_sweep(toy(), ToyRecipe(), [Grid("main", ("raml",), "1,2", "0")], tmp_path)
    (choice,) = sweep.choices
    assert choice.gain is None
    raml_at_2 = {"objective": "raml", "tau": 2.0, "temperature_scaled": False, "seed": 0}
    score = dev(cell_recipe(ToyRecipe(), raml_at_2))
    assert choice.as_json()["dev"] == {"value": score, "low": None, "high": None}


def test_grids_with_other_numbers_of_seeds(tmp_path):
    grids = [Grid("few", ("ml", "raml"), "2", "0"), Grid("many", ("raml", "sqdml"), "2", "0:2")]
    choices = by_name(run_sweep(toy(), ToyRecipe(), grids, tmp_path))
    assert {name: choice.seeds for name, choice in choices.items()} == {
        ("few", "ml"): 1, ("few", "raml"): 1, ("many", "raml"): 3, ("many", "sqdml"): 3
    }  # fmt: skip
    assert choices["many", "raml"].gain.value == pytest.approx(
        choices["many", "raml"].test.value - choices["few", "ml"].test.value
    )


def test_what_is_written_down(tmp_path):
    sweep = run_sweep(toy(), ToyRecipe(), [GRID], tmp_path)
    rows = RunFolder(tmp_path).lines(CELLS)
    assert [(row["objective"], row["tau"], row["seed"], row["test"]) for row in rows] == [
        (member.cell.objective, member.cell.tau, member.cell.seed, member.cell.test)
        for member in sweep.cells
    ]
    assert all(
        (tmp_path / row["run"] / RESULT).is_file() and row["grids"] == ["main"] for row in rows
    )
    summary = json.loads((tmp_path / SUMMARY).read_text())
    choices = [choice.as_json() for choice in sweep.choices]
    head = {"task": "toy", "metric": "score", "signature": "toy", "cells": 14}
    assert summary == head | {"choices": choices}
    assert read_sweep(toy(), tmp_path) == sweep


def test_what_is_finished_is_not_trained_again(tmp_path):
    first = run_sweep(toy(), ToyRecipe(), [GRID], tmp_path)
    before = snapshot(tmp_path / RUNS)
    again = toy()
    assert run_sweep(again, ToyRecipe(), [GRID], tmp_path, resume=True) == first
    assert again.trained == []
    assert snapshot(tmp_path / RUNS) == before
    with pytest.raises(RunError, match="already holds a sweep: add --resume to continue it"):
        run_sweep(again, ToyRecipe(), [GRID], tmp_path)


@pytest.mark.parametrize(
    "grid", [GRID, Grid("main", ("ml", "raml"), "1,2", "0:1")], ids=["the same", "a smaller one"]
)
def test_conclusions_stay_where_they_cannot_be_drawn_again(tmp_path, grid):
    run_sweep(toy(), ToyRecipe(), [GRID], tmp_path)
    for run in (tmp_path / RUNS).iterdir():
        (run / COUNTS).unlink()
    before = snapshot(tmp_path)
    with pytest.raises(
        RunError, match=r"has no counts.safetensors: it was trained by an older version"
    ):
        run_sweep(toy(), ToyRecipe(), [grid], tmp_path, resume=True)
    assert snapshot(tmp_path) == before


def test_old_conclusions_go_where_there_is_more_to_train(tmp_path, monkeypatch):
    run_sweep(toy(), ToyRecipe(), [GRID], tmp_path)
    task, larger = toy(), Grid("main", ("ml", "raml", "sqdml"), "1,2,4,8", "0:1")

    def no_data(*_):
        raise DataError("cannot read train.conll")

    monkeypatch.setattr(task, "learner", no_data)
    with pytest.raises(DataError, match="cannot read"):
        run_sweep(task, ToyRecipe(), [larger], tmp_path, resume=True)
    assert not (tmp_path / SUMMARY).exists()
    found = read_sweep(task, tmp_path)
    assert (len(found.cells), found.wanted) == (14, 18)


# --- cells that are trained together ------------------------------------------------------------------


@pytest.fixture
def learners(monkeypatch):
    """The recipes of every grid that is made."""
    made = []
    real = TASK.learner

    def learner(cells, workers):
        made.append([(str(cell.objective), cell.training.seed) for cell in cells])
        return real(cells, workers)

    monkeypatch.setattr(TASK, "learner", learner)
    return made


class AccidentError(Exception):
    """No error of softq."""


def test_a_broken_sweep_goes_on(tmp_path, monkeypatch, learners):
    grids = [Grid("a", ("ml", "raml"), "1,2", "0:1")]
    base = recipe("--checkpoint-every", 1)
    whole = run_sweep(TASK, base, grids, tmp_path / "whole")
    assert [len(cells) for cells in learners] == [6]  # all at once
    steps, real = [], GridLearner.train

    def train(self, epoch, first, last, active):
        steps.append((epoch, first))
        if len(steps) == 5:
            raise AccidentError
        real(self, epoch, first, last, active)

    monkeypatch.setattr(GridLearner, "train", train)
    with pytest.raises(AccidentError):
        run_sweep(TASK, base, grids, tmp_path / "broken")
    again = run_sweep(TASK, base, grids, tmp_path / "broken", resume=True)
    assert steps[4] == steps[5] == (1, 1)  # where it stopped
    assert len(steps) == 9 + 1
    assert [member.cell for member in again.cells] == [member.cell for member in whole.cells]
    assert again.choices == whole.choices
    assert (tmp_path / "broken" / SUMMARY).read_bytes() == (
        tmp_path / "whole" / SUMMARY
    ).read_bytes()


def test_an_extended_grid_keeps_its_models(tmp_path, learners):
    small, large = Grid("a", ("ml", "raml"), "1", "0"), Grid("a", ("ml", "raml"), "1,2", "0:1")
    base = recipe()
    run_sweep(TASK, base, [small], tmp_path / "grown")
    before = snapshot(tmp_path / "grown" / RUNS)
    grown = run_sweep(TASK, base, [large], tmp_path / "grown", resume=True)
    assert learners[1] == [("raml τ=2", 0), ("ml", 1), ("raml τ=1", 1), ("raml τ=2", 1)]
    assert before.items() <= snapshot(tmp_path / "grown" / RUNS).items()
    at_once = run_sweep(TASK, base, [large], tmp_path / "at once")
    assert [member.cell for member in grown.cells] == [member.cell for member in at_once.cells]
    assert (
        grown.choices == at_once.choices
    )  # gains too: a cell does not know what it was trained with
    more = [large, Grid("b", ("sqdml",), "3", "0")]
    one_more = run_sweep(TASK, base, more, tmp_path / "grown", resume=True)
    assert learners[3] == [("sqdml τ=3", 0)]
    assert {member.run.name.split("-")[0] for member in one_more.cells} == {"grid", "sqdml"}


def test_a_sweep_goes_on_with_the_recipe_it_began_with(tmp_path, learners):
    grid = Grid("a", ("ml",), "1", "0")
    run_sweep(TASK, recipe(), [grid], tmp_path)
    before = snapshot(tmp_path)
    with pytest.raises(RunError, match="started with another recipe"):
        run_sweep(TASK, recipe("--inputs", 400), [grid], tmp_path, resume=True)
    assert snapshot(tmp_path) == before
    of_grids = recipe("--seed", 3, "--objective", "raml", "--tau", 2, "--device", "cpu")
    run_sweep(TASK, of_grids, [grid], tmp_path, resume=True)
    assert len(learners) == 1


def test_a_sweep_keeps_others_out(tmp_path):
    grid = Grid("a", ("ml",), "1", "0")
    run_sweep(TASK, recipe(), [grid], tmp_path)
    before = snapshot(tmp_path)
    with RunFolder(tmp_path).locked(), pytest.raises(RunError, match="another process"):
        run_sweep(TASK, recipe(), [Grid("a", ("ml",), "1", "0:1")], tmp_path, resume=True)
    assert snapshot(tmp_path) == before


def test_reading_a_sweep_writes_nothing(tmp_path):
    run_sweep(TASK, recipe(), [GRID], tmp_path)
    summary = read_sweep(TASK, tmp_path)
    (tmp_path / SUMMARY).unlink()
    before = snapshot(tmp_path)
    assert read_sweep(TASK, tmp_path) == summary
    assert snapshot(tmp_path) == before


def test_grids_need_names_of_their_own():
    with pytest.raises(RecipeError, match="a name of its own, got sweep, sweep"):
        parse_recipe(TASK, {"sweep": [{}, {"tau": "9"}]}, "x.toml")


def test_who_watches_is_told_what_is_trained(tmp_path):
    labels, grids = [], [Grid("a", ("ml", "raml"), "2", "0")]
    run_sweep(toy(), ToyRecipe(), grids, tmp_path / "alone", watch=labels.append)
    assert labels == ["ml seed 0 (1 of 2)", "raml τ=2 seed 0 (2 of 2)"]
    run_sweep(TASK, recipe(), grids, tmp_path / "together", watch=labels.append)
    assert labels[2:] == ["2 models"]


def test_an_unfinished_sweep_has_no_cells(tmp_path):
    task = toy()
    RunFolder(tmp_path).write(SWEEP, sweep_toml(task, ToyRecipe(), [GRID]))
    assert read_sweep(task, tmp_path)[3:] == ([], [], len(expand(task, ToyRecipe(), [GRID])))
