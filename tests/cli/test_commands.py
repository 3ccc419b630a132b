"""train, sweep, report and reproduce on the command line.

What they print, what they leave, how they refuse.
"""

import json
import shlex
import subprocess
import sys
from typing import ClassVar

import pytest

from small_runs import SMALL, recipe, snapshot, softq
from softq.cli import progress, recipes, reproduction
from softq.lab.recipe import read_toml, recipe_hash
from softq.lab.report import classification as four_classes
from softq.lab.report import page as pages
from softq.lab.run import BEST, CELLS, COUNTS, METRICS, OUTPUTS, RECIPE, RESULT, RunFolder
from softq.lab.sweep import SWEEP, parse_recipe, read_recipe
from softq.lab.tasks import TASKS
from softq.lab.tasks.classification import Classification

TRAIN = ["train", "classification", *SMALL]
SWEEPING = ["sweep", "classification", *SMALL, "--tau", "1,2", "--seed", "0:1"]


def refused(result, *texts):
    """One line on stderr, exit code 2, nothing else."""
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("softq: ")
    assert result.stderr.count("\n") == 1
    for text in texts:
        assert text in result.stderr


def told(result):
    """The one JSON object of a command that went well in silence."""
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.count("\n") == 1
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    run = tmp_path_factory.mktemp("trained") / "run"
    return run, softq(
        *TRAIN,
        *shlex.split("--objective raml --tau 2.4 --seed 3 --data.seed 4 --out"),
        run,
    )


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("swept") / "sweep"
    return folder, told(softq(*SWEEPING, "--out", folder, "--json"))


# --- train --------------------------------------------------------------------------------------------


def test_train_says_what_it_found(trained):
    run, result = trained
    assert (result.exit_code, result.stderr) == (0, "")
    (cell,) = RunFolder(run).result()["cells"]
    assert result.stdout.splitlines() == [
        (
            f"raml τ=2.4, seed 3: reward {cell['dev']:.4f} dev, {cell['test']:.4f} test (epoch"
            f" {cell['epoch']})"
        ),
        f"reward: {RunFolder(run).result()['signature']}",
        f"run: {run}",
    ]


def test_train_leaves_a_folder_that_explains_itself(trained):
    run, _ = trained
    names = {path.name for path in run.iterdir() if not path.name.startswith("events")}
    assert names == {
        RECIPE,
        CELLS,
        "environment.json",
        METRICS,
        "timings.jsonl",
        "last.safetensors",
        BEST,
        COUNTS,
        OUTPUTS,
        RESULT,
    }
    written, grids = parse_recipe(TASKS["classification"], read_toml(run / RECIPE), "again")
    assert written == recipe("--objective", "raml", "--tau", 2.4, "--seed", 3, "--data.seed", 4)
    assert grids == []
    (cell,) = RunFolder(run).result()["cells"]
    assert (cell["hash"], cell["seed"]) == (recipe_hash(written, task="classification"), 3)


def test_json_is_all_of_stdout(trained, tmp_path):
    found = told(softq(*TRAIN, "--out", tmp_path / "run", "--json"))
    assert found.pop("run") == str(tmp_path / "run")
    assert found == RunFolder(tmp_path / "run").result()


def test_resume_needs_no_recipe(trained, monkeypatch):
    run, _ = trained
    before = snapshot(run)
    monkeypatch.setattr(Classification, "learner", None)  # a finished run makes none
    assert (
        told(softq("train", "--resume", "--out", run, "--json"))["cells"]
        == RunFolder(run).result()["cells"]
    )
    assert snapshot(run) == before


def test_a_folder_without_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = told(softq(*TRAIN, "--json"))
    assert found["run"] == f"runs/classification-ml-{found['cells'][0]['hash']}"
    assert (tmp_path / found["run"] / RESULT).is_file()


@pytest.mark.parametrize(
    "start",
    [
        ["classification"],
        ["classification-small"],
        ["classification", "--objective", "sqdml", "--tau", "1e-3"],
    ],
)
def test_a_dry_run_reads_back(tmp_path, start):
    result = softq("train", *start, "--hidden", "3,4", "--no-average", "--dry-run")
    assert (result.exit_code, result.stderr) == (0, "")
    mine = tmp_path / "mine.toml"
    mine.write_text(result.stdout)
    again = softq("train", mine, "--dry-run")
    assert again.stdout == result.stdout
    assert "hidden = [3, 4]  # units of each hidden layer" in result.stdout
    wanted = recipes.find_recipe(start[0], [*start[1:], "--hidden", "3,4", "--no-average"])
    assert recipes.find_recipe(str(mine), []).recipe == wanted.recipe


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        (
            [],
            [
                "name a task or a recipe, such as softq train classification; only --resume --out"
                " FOLDER needs none"
            ],
        ),
        (["--resume"], ["name a task or a recipe"]),
        (["--epochs", "3"], ["name a task or a recipe"]),
        (
            ["--resume", "--out", "nowhere"],
            ["nowhere holds nothing to resume: there is no recipe.toml in it"],
        ),
        (
            ["clasification"],
            [
                (
                    "expected a task, a recipe of softq, or a file that ends in .toml, got"
                    " 'clasification'"
                ),
                "did you mean 'classification'?",
            ],
        ),
        (
            ["zzz"],
            [
                (
                    "there are classification, classifier, captioning, ner, parsing, tag, translation,"
                    " captioning-flickr8k,"
                ),
                "ner-crowd, ner-paper, ner-small, parsing-paper, parsing-small",
            ],
        ),
        (["missing.toml"], ["there is no file missing.toml"]),
        (["classification", "--epoch", "3"], ["there is no flag --epoch, did you mean --epochs?"]),
        (["classification", "--epochs", "0"], ["[training]: epochs must be at least 1, got 0"]),
        (
            ["classification", "--objective", "raml"],
            ["raml needs a temperature in units of its reward, such as tau = 0.2 for BLEU"],
        ),
        (["classification", "epochs", "3"], ["expected a flag like --epochs 10, got 'epochs'"]),
        (
            [*TRAIN[1:], "--out", "file/run"],
            ["cannot write to file/run: Not a directory; nothing was begun there"],
        ),
        (
            [*TRAIN[1:], "--learning-rate", "1e30", "--out", "wild"],
            ["is not finite", "nonfinite.safetensors"],
        ),
        (
            ["other.toml"],
            [
                "other.toml: the key 'task' must be one of classification, classifier, captioning,"
                " ner, parsing, tag, translation, got 'other'"
            ],
        ),
        (
            ["none.toml"],
            [
                "none.toml: the key 'task' must be one of classification, classifier, captioning,"
                " ner, parsing, tag, translation, got 'none.toml'"
            ],
        ),
        (["broken.toml"], ["broken.toml is not valid TOML", "line 2"]),
    ],
)
def test_train_refuses_in_one_line(tmp_path, monkeypatch, arguments, texts):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "other.toml").write_text('task = "other"\n')
    (tmp_path / "none.toml").write_text("[data]\ninputs = 3\n")
    (tmp_path / "broken.toml").write_text("task = 'classification'\n[data\n")
    refused(softq("train", *arguments), *texts)


def test_a_folder_is_not_overwritten(trained):
    run, _ = trained
    refused(
        softq(*TRAIN, "--out", run),
        f"{run} already holds a run: add --resume to continue it, or choose another --out",
    )
    refused(softq(*TRAIN, "--out", run, "--resume"), f"{run} was started with another recipe")


def test_flags_lie_over_a_recipe(tmp_path):
    mine = tmp_path / "mine.toml"
    mine.write_text(
        'task = "classification"\n[data]\ninputs = 7\n[objective]\nname = "raml"\ntau = 2\n'
    )
    found = softq("train", mine, "--tau", "3", "--dry-run").stdout
    assert "inputs = 7 " in found
    assert "tau = 3.0 " in found


def test_a_progress_bar_where_somebody_watches(tmp_path, monkeypatch):
    real = progress.Console
    monkeypatch.setattr(
        progress, "Console", lambda **options: real(**options, force_terminal=True, width=200)
    )
    result = softq(
        *TRAIN,
        "--objective",
        "raml",
        "--tau",
        "2",
        "--out",
        tmp_path / "run",
        "--json",
        terminal="xterm",
    )
    assert "raml τ=2" in result.stderr
    assert "scoring the best model" in result.stderr
    json.loads(result.stdout)


def test_rates_are_short():
    class Bar:
        speed = None
        finished = False
        fields: ClassVar = {"unit": "examples"}

    rates = []
    for speed in (None, 12.3, 45_600.0, 1.2e6, 3.4e9, 5.6e12):
        Bar.speed = speed
        rates.append(progress._Rate().render(Bar()).plain)
    assert rates == [
        "",
        "12.3 examples/s",
        "45.6k examples/s",
        "1.2M examples/s",
        "3.4G examples/s",
        "5.6e+03G examples/s",
    ]


# --- sweep --------------------------------------------------------------------------------------------


def test_sweep_says_what_it_chose(swept):
    folder, found = swept
    assert (found["task"], found["metric"], found["cells"], found["sweep"]) == (
        "classification",
        "reward",
        10,
        str(folder),
    )
    assert [choice["objective"] for choice in found["choices"]] == ["ml", "raml", "sqdml"]
    assert found["choices"][0]["gain"] is None
    result = softq("sweep", "--resume", "--out", folder)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "classification: reward, 10 models" in result.stdout
    for choice in found["choices"]:
        row = next(
            line.split()
            for line in result.stdout.splitlines()
            if line.split()[1:2] == [choice["objective"]]
        )
        assert f"{choice['test']['value']:.4f}" in row
        assert choice["gain"] is None or f"{choice['gain']['value']:+.4f}" in row
    assert f"reward: {found['signature']}" in result.stdout


def test_a_sweep_goes_on_without_a_recipe_and_trains_nothing(swept, monkeypatch):
    folder, found = swept
    before = snapshot(folder / "runs")
    monkeypatch.setattr(Classification, "learner", None)
    assert told(softq("sweep", "--resume", "--out", folder, "--json")) == found
    assert told(softq(*SWEEPING, "--resume", "--out", folder, "--json")) == found
    assert snapshot(folder / "runs") == before
    refused(softq(*SWEEPING, "--out", folder), f"{folder} already holds a sweep: add --resume")


def test_a_sweep_of_a_file_with_grids(tmp_path):
    mine = tmp_path / "mine.toml"
    grid = '\n[[sweep]]\nname = "mine"\nobjective = ["raml"]\ntau = "1:2:0.5"\n'
    mine.write_text(softq(*TRAIN, "--dry-run").stdout + grid)
    found = told(softq("sweep", mine, "--out", tmp_path / "a", "--json"))
    assert (found["cells"], found["choices"][0]["grid"], found["choices"][0]["gain"]) == (
        3,
        "mine",
        None,
    )
    flags = ["--objective", "sqdml", "--tau", "5", "--temperature-scaled"]
    found = told(softq("sweep", mine, *flags, "--out", tmp_path / "b", "--json"))
    assert [
        (choice["objective"], choice["tau"], choice["temperature_scaled"])
        for choice in found["choices"]
    ] == [("sqdml", 5.0, True)]


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        (
            [],
            [
                "name a task or a recipe, such as softq sweep classification; only --resume --out"
                " FOLDER needs none"
            ],
        ),
        (
            ["--resume", "--out", "nowhere"],
            ["nowhere holds nothing to resume: there is no sweep.toml in it"],
        ),
        (["classification", "--tau", "0"], ["tau must be positive and finite, got 0.0"]),
        (["classification", "--seed", "x"], ["seed must be a whole number"]),
        (["classification", "--objective", "ml,rmal"], ["did you mean 'raml'?"]),
        (["classification", "--epoch", "3"], ["did you mean --epochs?"]),
        ([*SWEEPING[1:], "--out", "file/sweep"], ["cannot write to file/sweep: Not a directory"]),
    ],
)
def test_sweep_refuses_in_one_line(tmp_path, monkeypatch, arguments, texts):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    refused(softq("sweep", *arguments), *texts)


# --- report and reproduce -----------------------------------------------------------------------------


@pytest.fixture
def coarse(monkeypatch):
    """Population values to fewer digits, and figures drawn once, without pictures (test_page.py has them): in less time."""
    pytest.importorskip("matplotlib")
    drawn, draw_svg = {}, pages.draw_svg

    def draw_once(draw, name, *, phone):
        if draw not in drawn:
            drawn[draw] = draw_svg(draw, name, phone=phone)
        return drawn[draw]

    monkeypatch.setattr(pages, "draw_svg", draw_once)
    monkeypatch.setattr(pages, "draw_png", lambda draw: b"")
    four_classes._population.cache_clear()
    for name, size in (("FINE_GRID", 40), ("COARSE_GRID", 40), ("REGION_GRID", 24)):
        monkeypatch.setattr(four_classes, name, size)
    yield
    four_classes._population.cache_clear()


@pytest.mark.usefixtures("coarse")
def test_report_of_runs_and_sweeps(trained, swept, tmp_path):
    page = tmp_path / "report.html"
    found = told(softq("report", trained[0], swept[0], "--out", page, "--json"))
    assert found["page"] == str(page)
    assert found["files"][0] == str(page) or str(page) in found["files"]
    text = page.read_text()
    (cell,) = RunFolder(trained[0]).result()["cells"]
    assert cell["hash"] in text
    assert f"{cell['test']:.4f}" in text
    assert RunFolder(trained[0]).result()["signature"] in text
    result = softq("report", swept[0].parent, "--out", page)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith(f"{page}, and ")


@pytest.mark.usefixtures("coarse")
def test_report_of_a_run_that_is_not_finished(trained, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    for name in (RECIPE, CELLS, METRICS):
        (run / name).write_bytes((trained[0] / name).read_bytes())
    result = softq("report", tmp_path, "--out", tmp_path / "report.html")
    assert (result.exit_code, result.stderr) == (0, "")
    assert RunFolder(run).lines(CELLS)[0]["hash"] in (tmp_path / "report.html").read_text()


def test_report_needs_something_to_report(tmp_path):
    (tmp_path / "empty").mkdir()
    refused(
        softq("report", tmp_path / "empty", "--out", tmp_path / "page.html"),
        f"{tmp_path / 'empty'} holds no run and no sweep",
    )
    (tmp_path / "empty" / RECIPE).write_text('task = "other"\n')
    refused(
        softq("report", tmp_path / "empty", "--out", tmp_path / "page.html"),
        f"must be one of {', '.join(TASKS)}, got 'other'",
    )
    (tmp_path / "empty" / RECIPE).unlink()
    (tmp_path / "empty" / SWEEP).write_text("[data]\n")
    refused(
        softq("report", tmp_path / "empty", "--out", tmp_path / "page.html"),
        f"must be one of {', '.join(TASKS)}, got None",
    )
    assert not (tmp_path / "page.html").exists()


@pytest.mark.usefixtures("coarse")
def test_reproduce_runs_the_experiments_once(tmp_path, monkeypatch):
    tiny = ["--inputs", "2000", "--dev", "500", "--test", "500", "--epochs", "1", "--burn-in", "0"]
    arguments = ["reproduce", "classification", *tiny, "--out", tmp_path / "out"]
    found = told(softq(*arguments, "--json"))
    assert found["page"] == str(tmp_path / "out" / "report.html")
    (experiment,) = found["experiments"]
    assert (experiment["task"], experiment["cells"]) == ("classification", 5 * (61 + 42 - 2 + 42))
    page = (tmp_path / "out" / "report.html").read_text()
    assert "softq reproduce classification --scale small --inputs 2000" in page
    before = snapshot(tmp_path / "out" / "classification" / "runs")
    monkeypatch.setattr(Classification, "learner", None)
    monkeypatch.setattr(
        reproduction, "write_report", lambda sections, page, title: None
    )  # the figures take long
    again = softq(*arguments)
    assert (again.exit_code, again.stderr) == (0, "")
    assert "gain over ML" in again.stdout
    assert again.stdout.splitlines()[-1] == f"page: {tmp_path / 'out' / 'report.html'}"
    assert snapshot(tmp_path / "out" / "classification" / "runs") == before


def test_reproduce_refuses_in_one_line(tmp_path):
    refused(
        softq("reproduce", "cooking"),
        "the experiments are classification, captioning, ner, parsing, translation, got 'cooking'",
    )
    refused(
        softq("reproduce", "classification", "--epoch", "3", "--out", tmp_path),
        "did you mean --epochs?",
    )


def test_reproduce_has_a_recipe_for_every_scale():
    for scale in ("small", "paper"):
        for name in set(TASKS) - {"classifier", "tag"}:  # no experiments of the paper
            assert recipes.find_recipe(str(recipes.RECIPES / f"{name}-{scale}.toml"), []).grids


def test_train_as_a_program(tmp_path):
    command = [sys.executable, "-m", "softq", *TRAIN, "--out", "run", "--json"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert json.loads(ended.stdout)["cells"] == RunFolder(tmp_path / "run").result()["cells"]


def test_flags_of_a_sweep_change_its_grids_and_leave_the_rest(tmp_path):
    folder = tmp_path / "sweep"
    told(
        softq(
            "sweep",
            "classification",
            *SMALL,
            "--objective",
            "raml",
            "--tau",
            "1,3",
            "--out",
            folder,
            "--json",
        )
    )
    told(softq("sweep", "--resume", "--out", folder, "--seed", "0:1", "--json"))
    _, (grid,) = read_recipe(TASKS["classification"], folder / SWEEP)
    assert (grid.objective, grid.tau, grid.seed) == (("raml",), "1,3", "0:1")


@pytest.mark.parametrize(
    "flags", [["--training.seed", "7"], ["--objective.name", "raml"], ["--objective.tau", "3"]]
)
@pytest.mark.parametrize("command", [["sweep", "classification"], ["reproduce", "classification"]])
def test_what_grids_decide_is_no_flag_of_a_sweep(tmp_path, command, flags):
    refused(
        softq(*command, *flags, "--out", tmp_path / "x"),
        "objectives, temperatures and seeds are set by the grids of",
    )
    assert not (tmp_path / "x").exists()


def test_reproduce_asks_for_matplotlib_before_it_trains(tmp_path, monkeypatch):
    monkeypatch.setattr(reproduction.importlib.util, "find_spec", lambda name: None)
    refused(softq("reproduce", "--out", tmp_path / "x"), "pip install 'softq[plot]'")
    assert not (tmp_path / "x").exists()


def test_paths_are_printed_as_they_are(tmp_path):
    out = tmp_path / "[b]run"
    assert f"run: {out}\n" in softq(*TRAIN, "--out", out).stdout


def test_report_of_nothing_is_one_line(tmp_path):
    refused(
        softq("report", tmp_path / "nowhere", "--out", tmp_path / "x.html"),
        "nowhere holds no run and no sweep",
    )
    assert not list(tmp_path.iterdir())


def test_a_seed_that_no_generator_takes_leaves_nothing_behind(tmp_path):
    refused(
        softq(*TRAIN, "--seed", 2**70, "--out", tmp_path / "x"), "seed must be a number of 64 bits"
    )
    refused(
        softq(*SWEEPING[:2], *SMALL, "--seed", 2**70, "--out", tmp_path / "x"),
        "seed must be a number of 64 bits",
    )
    assert not list(tmp_path.iterdir())
