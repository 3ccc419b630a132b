"""Sweeps over any key of a recipe."""

import dataclasses
import itertools
import json
import shutil
import tomllib

import pytest
from rich.console import Console

from over_task import OverRecipe, OverTask, Penalty
from small_runs import CPU, contents, recipe, single_thread, snapshot, softq
from softq.cli.recipes import show_choices
from softq.errors import RecipeError
from softq.lab.recipe import read_toml
from softq.lab.report import find_sources, read_sections
from softq.lab.run import RECIPE, RESULT, RunFolder
from softq.lab.sweep import (
    RUNS,
    Grid,
    expand,
    lay_over,
    parse_recipe,
    read_sweep,
    run_sweep,
    sweep_toml,
)
from softq.lab.tasks import TASKS, train_cells
from softq.lab.tasks.base import cell_recipe, describe_cell, settings_of

TASK = TASKS["classification"]
GRID = Grid("main", ("ml", "raml"), "1,2", "0:1", over=("c2=0.1,0.3,1", "entity-weight=1,2"))

# --- axes -----------------------------------------------------------------------------------------------


def test_the_cells_of_a_grid_are_a_product():
    cells = [recipe for recipe, _ in expand(OverTask(), OverRecipe(), [GRID]).values()]
    objectives = [("ml", None), ("raml", 1.0), ("raml", 2.0)]
    expected = set(itertools.product(objectives, (0.1, 0.3, 1.0), (1, 2), (0, 1)))
    found = []
    for cell in cells:
        place, penalty = (cell.objective.name, cell.objective.tau), cell.penalty
        found.append((place, penalty.c2, penalty.entity_weight, cell.training.seed))
    assert len(found) == len(expected) == 36
    assert set(found) == expected
    assert {cell.penalty.ties for cell in cells} == {"token"}


def test_a_cell_comes_back_from_its_description():
    grid = dataclasses.replace(GRID, over=("weights=1,2;3", "c2=0.1", "penalty.ties=entity,token"))
    axes = grid.axes(OverRecipe)
    assert axes == {"weights": [[1, 2], [3]], "c2": [0.1], "ties": ["entity", "token"]}
    for cell, _ in expand(OverTask(), OverRecipe(), [grid]).values():
        described = json.loads(
            json.dumps(describe_cell(OverTask().name, cell, settings_of(cell, axes)))
        )
        assert list(described["settings"]) == list(axes)
        assert cell_recipe(OverRecipe(), described) == cell
        assert cell.penalty.weights in ((1, 2), (3,))
    assert describe_cell(OverTask().name, OverRecipe())["settings"] == {}


def test_grids_with_axes_are_written_and_read():
    text = sweep_toml(OverTask(), OverRecipe(), [GRID, Grid("b")])
    assert 'over = ["c2=0.1,0.3,1", "entity-weight=1,2"]' in text
    assert parse_recipe(OverTask(), tomllib.loads(text), "again") == (
        OverRecipe(),
        [GRID, Grid("b")],
    )


@pytest.mark.parametrize(
    ("over", "text"),
    [
        ("c3=1", "over 'c3=1': there is no flag --c3, did you mean --c2?"),
        ("ties=entiti", "did you mean 'entity'?"),
        ("c2=0.1,x", "--c2 must be a number, got 'x'"),
        ("c2=inf", "values must be finite"),
        ("entity_weight=1.5", "must be a whole number"),
        ("c2", "over expects a key and its values, such as c2=0.1,0.3,1"),
        ("c2=1,,2", "over expects a key and its values"),
        ("c2=", "over expects a key and its values"),
        ("=1", "over expects a key and its values"),
        ("tau=1", "objectives, temperatures and seeds are axes of their own"),
        ("objective=ml", "axes of their own"),
        ("temperature-scaled=true", "axes of their own"),
        ("seed=1", "axes of their own"),
        ("training.seed=1", "axes of their own"),
        ("device=cpu", "device cannot change a result, set it for the whole sweep by --device"),
    ],
)
def test_axes_that_make_no_sense(over, text):
    with pytest.raises(RecipeError, match=text.replace("?", r"\?")):
        expand(OverTask(), OverRecipe(), [Grid(over=(over,))])
    with pytest.raises(RecipeError, match=r"x\.toml, \[\[sweep\]\]: over"):
        parse_recipe(OverTask(), {"sweep": [{"over": [over]}]}, "x.toml")


def test_grids_that_make_no_sense(tmp_path):
    with pytest.raises(RecipeError, match="over names c2 twice"):
        expand(OverTask(), OverRecipe(), [Grid(over=("c2=1", "penalty.c2=2"))])
    with pytest.raises(
        RecipeError, match=r"the grid 'g' at c2=-1, \[penalty\]: c2 must not be negative, got -1\.0"
    ):
        run_sweep(OverTask(), OverRecipe(), [Grid("g", over=("c2=0.1,-1",))], tmp_path / "x")
    assert not (tmp_path / "x").exists()
    many = "c2=" + ",".join(map(str, range(1, 101)))
    most = Grid(objective=("ml",), seed="0:99", over=(many,))
    assert len(expand(OverTask(), OverRecipe(), [most])) == 10_000
    with pytest.raises(
        RecipeError, match="grid 'sweep' must have at most 10,000 cells, got 10,100"
    ):
        expand(OverTask(), OverRecipe(), [dataclasses.replace(most, seed="0:100")])


def test_flags_take_the_place_of_a_grids_entries():
    changed = lay_over(OverRecipe, GRID, ["penalty.c2=5", "ties=entity"])
    assert changed.over == ("penalty.c2=5", "entity-weight=1,2", "ties=entity")
    assert dataclasses.replace(changed, over=GRID.over) == GRID


# --- conclusions ----------------------------------------------------------------------------------------


def test_settings_are_chosen_by_the_mean_development_score(tmp_path):
    task = OverTask()
    sweep = run_sweep(task, OverRecipe(), [GRID], tmp_path)
    assert [(c.objective, c.tau, c.settings, c.seeds) for c in sweep.choices] == [
        ("ml", None, {"c2": 0.3, "entity_weight": 1}, 2),
        ("raml", 2.0, {"c2": 0.3, "entity_weight": 1}, 2),
    ]
    ml, raml = sweep.choices
    assert raml.gain.value == pytest.approx(raml.test.value - ml.test.value) == pytest.approx(1.0)
    assert read_sweep(task, tmp_path) == sweep
    for cell in (member.cell for member in sweep.cells):
        assert cell.measures["recall"] == cell.settings["c2"] / 10
    names = {member.run.name.rpartition("-")[0] for member in sweep.cells}
    assert {"ml-c2=0.1-entity_weight=1-seed0", "raml-tau2-c2=0.3-entity_weight=2-seed1"} < names
    again = OverTask()
    assert run_sweep(again, OverRecipe(), [GRID], tmp_path, resume=True) == sweep
    assert again.trained == []


def test_the_gain_is_over_ml_of_the_same_grid(tmp_path):
    grids = [
        Grid("token", ("ml", "raml"), "2", "0:1"),
        Grid("entity", ("ml", "raml"), "2", "0:1", over=("ties=entity",)),
        Grid("no ml", ("sqdml",), "2", "0:1", over=("ties=entity",)),
    ]
    sweep = run_sweep(OverTask(), OverRecipe(), grids, tmp_path)
    gains = {(c.grid, c.objective): c.gain and round(c.gain.value, 6) for c in sweep.choices}
    assert gains == {
        ("token", "ml"): None, ("token", "raml"): 1.0, ("entity", "ml"): None, ("entity", "raml"): 1.0, ("no ml", "sqdml"): 12.0
    }  # fmt: skip
    # cells of a sweep are told apart by the same keys, whatever grid they are of
    settings = {(c.grid, c.settings["ties"]) for c in sweep.choices}
    assert settings == {("token", "token"), ("entity", "entity"), ("no ml", "entity")}


def test_a_choice_has_the_reward_of_its_own_recipe(tmp_path, capsys):
    grids = [Grid("plain", ("ml",)), Grid("heavy", ("ml", "raml"), "2", over=("entity-weight=3",))]
    sweep = run_sweep(OverTask(), OverRecipe(), grids, tmp_path)
    assert [(c.grid, c.objective, c.signature) for c in sweep.choices] == [
        ("plain", "ml", "weight=1"), ("heavy", "ml", "weight=3"), ("heavy", "raml", "weight=3")
    ]  # fmt: skip
    assert sweep.signature == "weight=1, weight=3"
    assert [c.recipe(OverRecipe()).penalty.entity_weight for c in sweep.choices] == [1, 3, 3]
    assert read_sweep(OverTask(), tmp_path) == sweep
    show_choices(sweep, OverRecipe(), Console(width=200))
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "reward: weight=1 (plain ml)",
        "reward: weight=3 (heavy ml, heavy raml)",
    ]


def test_no_gain_over_another_test_set(tmp_path):
    few, many = (f"test={count}" for count in (100, 200))
    grids = [Grid("few", ("ml",), over=(few,)), Grid("many", ("raml",), "1", over=(many,))]
    with single_thread():
        choices = run_sweep(TASK, recipe(), grids, tmp_path).choices
    assert [choice.gain for choice in choices] == [None, None]


def test_a_sweep_grows_by_a_key(tmp_path):
    plain = Grid("a", ("ml",), seed="0:1")
    larger = dataclasses.replace(plain, over=("c2=0.3,1",))
    run_sweep(OverTask(), OverRecipe(), [plain], tmp_path / "grown")
    before = snapshot(tmp_path / "grown" / RUNS)
    task = OverTask()
    grown = run_sweep(task, OverRecipe(), [larger], tmp_path / "grown", resume=True)
    assert [cell.penalty.c2 for cell in task.trained] == [0.3, 0.3]
    assert before.items() <= snapshot(tmp_path / "grown" / RUNS).items()
    at_once = run_sweep(OverTask(), OverRecipe(), [larger], tmp_path / "at once")
    assert [member.cell for member in grown.cells] == [member.cell for member in at_once.cells]
    assert grown.choices == at_once.choices


def test_a_run_that_goes_on_keeps_its_settings(tmp_path):
    cell, settings = OverRecipe(Penalty(c2=0.3)), {"c2": 0.3}
    train_cells(OverTask(), [cell], tmp_path / "whole", settings=settings, workers=CPU)
    shutil.copytree(tmp_path / "whole", tmp_path / "broken")
    (tmp_path / "broken" / RESULT).unlink()
    train_cells(
        OverTask(), [cell], tmp_path / "broken", resume=True, workers=CPU
    )  # as `softq train --resume` does
    assert contents(tmp_path / "broken") == contents(tmp_path / "whole")
    assert RunFolder(tmp_path / "whole").result()["cells"][0]["settings"] == settings


def test_models_of_other_settings_are_not_trained_together(tmp_path):
    grid = Grid("a", ("ml", "raml"), "2", "0:1", over=("learning-rate=0.05,0.2", "hidden=4;8,8"))
    with single_thread():
        sweep = run_sweep(TASK, recipe(), [grid], tmp_path / "over")
        base = recipe("--learning-rate", 0.2, "--hidden", 4)
        plain = run_sweep(TASK, base, [dataclasses.replace(grid, over=())], tmp_path / "plain")
    runs = sorted((tmp_path / "over" / RUNS).iterdir())
    assert [path.name.rpartition("-")[0] for path in runs] == [
        f"grid-learning_rate={rate}-hidden={hidden}" for rate in (0.05, 0.2) for hidden in ("4", "8,8")
    ]  # fmt: skip
    cells, wanted = [member.cell for member in sweep.cells], {"learning_rate": 0.2, "hidden": [4]}
    assert [cell for cell in cells if cell.settings == wanted] == [
        dataclasses.replace(member.cell, settings=wanted) for member in plain.cells
    ]
    tables = [read_toml(path / RECIPE) for path in runs]
    assert [(table["optimizer"]["learning_rate"], table["model"]["hidden"]) for table in tables] == [
        (0.05, [4]), (0.05, [8, 8]), (0.2, [4]), (0.2, [8, 8])
    ]  # fmt: skip


# --- what people see ------------------------------------------------------------------------------------

SMALL_SWEEP = [
    "--inputs",
    "300",
    "--dev",
    "200",
    "--test",
    "200",
    "--epochs",
    "2",
    "--burn-in",
    "0",
    "--objective",
    "ml",
]


def test_over_on_the_command_line_and_in_the_report(tmp_path):
    out = tmp_path / "sweep"
    with single_thread():
        over = ["--over", "learning-rate=0.1,0.2", "--over", "momentum=0.5"]
        result = softq("sweep", "classification", *SMALL_SWEEP, *over, "--out", out)
        assert (result.exit_code, result.stderr) == (0, "")
        again = softq("sweep", "--resume", "--out", out, "--over", "learning_rate=0.2", "--json")
    (choice,) = json.loads(again.stdout)["choices"]
    assert choice["settings"] == {"learning_rate": 0.2, "momentum": 0.5}
    assert "best settings" in result.stdout
    assert "momentum=0.5" in result.stdout
    assert "τ and settings are chosen on the development set." in result.stdout
    assert len(list((out / RUNS).iterdir())) == 2  # nothing was trained again
    (section,) = read_sections(find_sources([out]))
    table = next(one for one in section.parts if one.name == "runs")
    column = [column.title for column in table.columns].index("Settings")
    assert [row[column] for row in table.rows] == ["learning_rate=0.2 momentum=0.5"]
    refused = softq("sweep", "classification", "--over", "momentun=1", "--out", tmp_path / "x")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "did you mean --momentum?" in refused.stderr
