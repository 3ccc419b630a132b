"""Run and sweep folders as sections of a report: each model once, what was run, what is not finished."""

import hashlib
import shlex
import shutil

import pytest

from small_runs import ToyRecipe, ToyTask, recipe, single_thread, softq
from softq.lab.report import classification_load
from softq.lab.report.classification_load import classification_results
from softq.lab.report.load import find_sources, read_sections
from softq.lab.report.paper import ClassificationSetup
from softq.lab.run import RECIPE, RunFolder
from softq.lab.sweep import SUMMARY, SWEEP, Grid, Sweep, SweepCell, read_sweep, run_sweep
from softq.lab.tasks import TASKS
from softq.lab.tasks.base import Cell, train_cells
from softq.metrics import mean_interval

TASK = TASKS["classification"]
GRIDS = [  # 11 models: the first two share those of raml at τ = 1
    Grid("one", ("ml", "raml"), "0.5,1", "0:1"),
    Grid("two", ("raml",), "1,2", "0:2"),
    Grid("divided", ("raml",), "1", "0", temperature_scaled=True),
]


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("swept") / "a sweep"
    with single_thread():
        run_sweep(TASK, recipe(), GRIDS, folder)
    return folder


@pytest.fixture(autouse=True)
def coarse(monkeypatch):
    """Population values to fewer digits, in less time."""
    classification_load._population.cache_clear()
    for name in ("FINE_GRID", "COARSE_GRID", "REGION_GRID"):
        monkeypatch.setattr(classification_load, name, 20)
    yield
    classification_load._population.cache_clear()


def unfinished_copy(swept, folder):
    """The sweep with a grid more, of which nothing is trained."""
    shutil.copytree(swept, folder)
    (folder / SUMMARY).unlink()
    with (folder / SWEEP).open("a") as file:
        file.write('\n[[sweep]]\nname = "more"\nobjective = ["sqdml"]\ntau = "3"\n')
    return folder


def test_a_model_of_two_grids_counts_once(swept):
    sweep = read_sweep(TASK, swept)
    results = classification_results(TASK, sweep, swept, "")
    shared = [cell for cell in results.cells if (cell.sweep, cell.tau) == ("short", 1.0)]
    assert sorted(cell.seed for cell in shared) == [0, 1, 2]
    assert dict(results.rewards("short", "raml", "test"))[1.0] == mean_interval(
        [cell.test for cell in shared]
    )
    assert [cell.sweep for cell in results.cells if cell.temperature_scaled] == ["short-scaled"]
    assert len(results.cells) == 11
    assert len(set(results.comparisons)) == len(results.comparisons)
    assert results.repetitions() == "1 to 3"
    assert results.setup == ClassificationSetup(300, 10, 200, 200, (8, 8), 0.1, 0.9, 3)
    (marked,) = [title for title in results.regions if title.endswith("(best)")]
    assert marked == f"RAML τ = {results.best('raml').tau:g} (best)"


@pytest.mark.parametrize("best", [0.5, 1.0, 2.0])
def test_the_best_map_says_so(tmp_path, best):
    cells = [
        SweepCell(("g",), Cell(f"{tau}", "raml", tau, False, 0, 1, 0.0, 0.0, {}, {}), tmp_path)
        for tau in (0.5, 1.0, 2.0)
    ]
    titles = classification_load._panels(
        Sweep("classification", "reward", "", cells, [], 3), {"raml": best}
    )
    assert list(titles) == [
        f"RAML τ = {tau:g}{' (best)' if tau == best else ''}" for tau in sorted({0.5, best, 2.0})
    ]


def test_a_sweep_shows_its_recipe(swept, tmp_path):
    (section,) = read_sections(find_sources([swept]))
    text = (swept / SWEEP).read_text()
    assert section.recipe == text
    assert section.provenance["Recipe"] == hashlib.sha256(text.encode()).hexdigest()[:12]
    assert section.command == f"softq sweep '{swept / SWEEP}' --out sweeps/again"
    assert not any("finished" in paragraph for paragraph in section.intro)
    (other,) = read_sections(find_sources([unfinished_copy(swept, tmp_path / "more")]))
    assert other.provenance["Recipe"] != section.provenance["Recipe"]  # the grids differ


def test_a_sweep_that_is_not_finished(swept, tmp_path):
    (section,) = read_sections(find_sources([unfinished_copy(swept, tmp_path / "more")]))
    assert section.intro[0] == "11 of 12 models are finished; this page is of these."
    shutil.rmtree(tmp_path / "more" / "runs")
    (section,) = read_sections(find_sources([tmp_path / "more"]))
    assert section.intro == ["Nothing is finished yet, none of 12 models."]
    assert (section.parts, section.differences, section.provenance) == ([], (), {})
    assert "tau = " in section.recipe


def test_a_sweep_of_another_task(tmp_path, monkeypatch):
    toy = ToyTask(lambda cell: 0.5, lambda cell: [0.5, 1.0])
    monkeypatch.setitem(TASKS, "toy", toy)
    run_sweep(
        toy,
        ToyRecipe(),
        [Grid(objective=("ml", "raml"), tau="1", temperature_scaled=True)],
        tmp_path,
    )
    (section,) = read_sections(find_sources([tmp_path]))
    assert sorted(row[2] for row in section.parts[0].rows) == ["ml", "raml, scaled"]
    assert section.recipe == (tmp_path / SWEEP).read_text()
    assert section.command == f"softq sweep {tmp_path / SWEEP} --out sweeps/again"


def test_each_folder_once(swept, tmp_path):
    with single_thread():
        train_cells(TASK, [recipe()], tmp_path / "runs" / "x")
    (tmp_path / "link").symlink_to(tmp_path / "runs")
    paths = [
        tmp_path / "runs",
        tmp_path / "runs" / "x",
        tmp_path / "link",
        tmp_path / "runs" / ".." / "runs",
    ]
    assert [source.path for source in find_sources(paths)] == [tmp_path / "runs" / "x"]
    (grid,) = (swept / "runs").iterdir()
    assert [source.path for source in find_sources([grid, swept])] == [swept]
    assert [source.path for source in find_sources([grid])] == [grid]


def test_runs_can_be_run_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with single_thread():
        for name, flags in (("a b", ["--temperature-scaled"]), ("c", [])):
            train_cells(
                TASK, [recipe("--objective", "raml", "--tau", 2, *flags)], tmp_path / "done" / name
            )
        (section,) = read_sections(find_sources([tmp_path / "done"]))
        assert [row[2] for row in section.parts[0].rows] == ["raml, scaled", "raml"]
        first, second = section.command.splitlines()
        assert second.endswith("--out runs/again-2")
        assert softq(*shlex.split(first)[1:]).exit_code == 0
    assert (
        RunFolder(tmp_path / "runs" / "again-1").result()
        == RunFolder(tmp_path / "done" / "a b").result()
    )
    for name in ("a b", "c"):
        assert (
            f"# {tmp_path / 'done' / name / RECIPE}\n"
            + (tmp_path / "done" / name / RECIPE).read_text()
            in section.recipe
        )
    (alone,) = read_sections(find_sources([tmp_path / "done" / "c"]))
    assert alone.command == f"softq train {tmp_path / 'done' / 'c' / RECIPE} --out runs/again"
    assert alone.recipe == (tmp_path / "done" / "c" / RECIPE).read_text()


def test_models_trained_as_one_have_no_command(swept):
    (grid,) = (swept / "runs").iterdir()
    (section,) = read_sections(find_sources([grid]))
    assert len(section.parts[0].rows) == 11
    assert section.command == ""
