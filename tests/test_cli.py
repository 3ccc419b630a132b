"""The command line: what it prints, what it returns, how it refuses."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import softq
from softq import cli

GRID = ["--grid", "40"]


def run(*args, env=None):
    # A wide plain terminal, so that nothing wraps or is coloured.
    return CliRunner().invoke(cli.app, list(args), env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"} | (env or {}))


def test_theory_prints_table_and_summary():
    result = run("theory", *GRID)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert "40 × 40" in lines[0]
    assert [line.split()[0] for line in lines if line[:5].strip() and line.split()[0].replace(".", "").isdigit()] == list(cli.DEFAULT_TAUS)
    table = softq.theory.theory_table(softq.theory.four_class_problem(40), [2.4])
    row = next(line.split() for line in lines if line.split()[:1] == ["2.4"])
    (exact,) = table.rows
    assert row[1:] == [f"{exact.kl:.6f}"] + [f"{x:.4f}" for x in exact[2:6]] + [f"{x:.5f}" for x in exact[6:]]
    assert f"Bayes rule {table.reward_bayes:.5f}" in result.stdout
    assert f"ML {table.reward_ml:.5f}" in result.stdout
    assert f"→ {table.theorem2_limit:.5f}" in result.stdout
    assert "1/(e^cb-1)" in result.stdout
    assert result.stderr == ""  # no progress bar where nobody watches


def test_theory_json_is_all_of_stdout():
    result = run("theory", *GRID, "--tau", "0.5:1.5:0.5", "--tau", "4,8", "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    problem = softq.theory.four_class_problem(40)
    exact = softq.theory.theory_table(problem, [0.5, 1.0, 1.5, 4.0, 8.0])
    assert found["rows"] == [row._asdict() for row in exact.rows]
    assert (found["reward_bayes"], found["reward_ml"], found["theorem2_limit"]) == exact[:3]
    assert found["grid"] == 40
    assert found["softq"] == softq.__version__
    assert found["reward"] == softq.rewards.Matrix(problem.rewards).signature


@pytest.mark.parametrize(
    ("text", "taus"),
    [
        ("2", [2.0]),
        ("0.5,1", [0.5, 1.0]),
        ("0.1:0.4:0.1", [0.1, 0.2, 0.3, 0.4]),
        ("1:2:0.7", [1.0, 1.7]),
        ("3:3:1", [3.0]),
        ("1,2:4:2", [1.0, 2.0, 4.0]),
    ],
)
def test_temperatures(text, taus):
    assert cli.parse_taus(text) == taus


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0", "positive and finite, got 0.0"),
        ("-1", "positive and finite, got -1.0"),
        ("nan", "positive and finite, got nan"),
        ("inf", "positive and finite, got inf"),
        ("warm", "must be a positive number, several as 0.5,1,2, or a range like 0.5:3:0.5, got 'warm'"),
        ("", "got ''"),
        ("1,,2", "got '1,,2'"),
        ("1:2", "must have three numbers, FROM:TO:STEP, got 2 in '1:2'"),
        ("0:2:1", "positive and finite, got 0.0"),
        ("1:inf:1", "positive and finite, got inf"),
        ("2:1:1", "must climb"),
        ("1:2:0", "must climb"),
        ("1:2:nan", "must climb"),
        ("1:2:1e-9", "at most 10000 steps"),
    ],
)
def test_bad_temperatures(text, message):
    result = run("theory", *GRID, f"--tau={text}")
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.startswith("softq: ")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


@pytest.mark.parametrize(
    "args",
    [
        ["theory", "--grid", "0"],
        ["theory", "--grid", "x"],
        ["bench", "core", "--rounds", "0"],
        ["bench", "core", "--device", "tpu"],
        ["bench", "rewards", "--rounds", "0"],
        ["train"],
    ],
)
def test_bad_options(args):
    result = run(*args)
    assert result.exit_code == 2
    assert args[-2 if len(args) > 2 else -1] in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("args", "lesson"),
    [
        ([], ["softq theory", "softq bench core"]),
        (["theory"], ["Bayes rule", "--tau 0.5:3:0.5", "--json"]),
        (["bench"], ["core", "rewards"]),
        (["bench", "core"], ["make bench", "--rounds 3"]),
        (["bench", "rewards"], ["make bench", "--rounds 3", "sacreBLEU"]),
    ],
)
def test_help_teaches(args, lesson):
    result = run(*args, "--help")
    assert result.exit_code == 0
    for text in lesson:
        assert text in result.stdout


def test_version():
    result = run("--version")
    assert result.exit_code == 0
    assert result.stdout == f"softq {softq.__version__}\n"


def test_progress_bar_where_somebody_watches(monkeypatch):
    watch = cli.Console
    monkeypatch.setattr(cli, "Console", lambda **options: watch(**options, force_terminal=bool(options.get("stderr"))))
    result = run("theory", *GRID, "--tau", "1", "--json", env={"TERM": "xterm"})
    assert "temperatures" in result.stderr
    json.loads(result.stdout)


@pytest.fixture
def source_tree(tmp_path, monkeypatch):
    """A tree around a pretended softq whose benchmark says how it was called."""
    (tmp_path / "src" / "softq").mkdir(parents=True)
    monkeypatch.setattr(softq, "__file__", str(tmp_path / "src" / "softq" / "__init__.py"))
    return tmp_path


@pytest.mark.parametrize(("name", "options"), [("core", ["--device", "cpu"]), ("rewards", [])])
def test_bench_runs_the_script_of_the_source_tree(source_tree, name, options):
    folder = source_tree / "benchmarks"
    folder.mkdir()
    (folder / "neighbour.py").write_text("GREETING = 'hello'\n")
    told = source_tree / "told.json"
    script = f"""
import json, neighbour, pathlib, sys
pathlib.Path({str(told)!r}).write_text(json.dumps([neighbour.GREETING, *sys.argv[1:]]))
sys.exit(3)
"""
    (folder / f"{name}.py").write_text(script)
    assert run("bench", name, "--rounds", "4", *options, "--json").exit_code == 3
    assert json.loads(told.read_text()) == ["hello", "--rounds", "4", *options, "--json"]
    assert run("bench", name).exit_code == 3
    assert json.loads(told.read_text()) == ["hello", "--rounds", "15"]


@pytest.mark.parametrize("name", ["core", "rewards"])
def test_bench_without_a_source_tree(source_tree, name):
    result = run("bench", name)
    assert result.exit_code == 2
    assert "come with the source tree" in result.stderr
    assert str(source_tree / "benchmarks" / f"{name}.py") in result.stderr


def test_module_runs_as_a_command():
    command = [sys.executable, "-m", "softq"]
    good = subprocess.run([*command, "theory", *GRID, "--tau", "1", "--json"], capture_output=True, text=True, check=False)  # noqa: S603
    assert good.returncode == 0, good.stderr
    assert json.loads(good.stdout)["rows"][0]["tau"] == 1.0
    bad = subprocess.run([*command, "theory", "--tau", "0"], capture_output=True, text=True, check=False)  # noqa: S603
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr == "softq: tau must be positive and finite, got 0.0; as tau goes to 0 RAML becomes softq.ml\n"
