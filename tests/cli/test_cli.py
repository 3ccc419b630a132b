"""The command line: what it prints, what it returns, how it refuses."""

import gzip
import json
import lzma
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import softq
from softq import cli
from softq.cli import theory_command
from softq.cli.theory_command import DEFAULT_TAUS
from softq.lab.ranges import parse_taus

GRID = ["--grid", "40"]


def run(*args, env=None):
    # A wide plain terminal, so that nothing wraps or is coloured.
    return CliRunner().invoke(
        cli.app, list(args), env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"} | (env or {})
    )


def test_theory_prints_table_and_summary():
    result = run("theory", *GRID)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert "40 × 40" in lines[0]
    assert [
        line.split()[0]
        for line in lines
        if line[:5].strip() and line.split()[0].replace(".", "").isdigit()
    ] == list(DEFAULT_TAUS)
    table = softq.theory.theory_table(softq.theory.four_class_problem(40), [2.4])
    row = next(line.split() for line in lines if line.split()[:1] == ["2.4"])
    (exact,) = table.rows
    assert row[1:] == [f"{exact.kl:.6f}"] + [f"{x:.4f}" for x in exact[2:6]] + [
        f"{x:.5f}" for x in exact[6:]
    ]
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
    assert parse_taus(text) == taus


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0", "positive and finite, got 0.0"),
        ("-1", "positive and finite, got -1.0"),
        ("nan", "positive and finite, got nan"),
        ("inf", "positive and finite, got inf"),
        (
            "warm",
            "must be a positive number, several as 0.5,1,2, or a range like 0.5:3:0.5, got 'warm'",
        ),
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


def test_version():
    result = run("--version")
    assert result.exit_code == 0
    assert result.stdout == f"softq {softq.__version__}\n"


def test_progress_bar_where_somebody_watches(monkeypatch):
    watch = theory_command.Console
    monkeypatch.setattr(
        theory_command,
        "Console",
        lambda **options: watch(**options, force_terminal=bool(options.get("stderr"))),
    )
    result = run("theory", *GRID, "--tau", "1", "--json", env={"TERM": "xterm"})
    assert "temperatures" in result.stderr
    json.loads(result.stdout)


@pytest.fixture
def source_tree(tmp_path, monkeypatch):
    """A tree around a pretended softq whose benchmark says how it was called."""
    (tmp_path / "src" / "softq").mkdir(parents=True)
    monkeypatch.setattr(softq, "__file__", str(tmp_path / "src" / "softq" / "__init__.py"))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "count", "usual", "options"),
    [
        ("core", "--rounds", "15", ["--device", "cpu"]),
        ("rewards", "--rounds", "15", []),
        ("estimators", "--repeats", "2000", ["--plot", "x.svg"]),
    ],
)
def test_bench_runs_the_script_of_the_source_tree(source_tree, name, count, usual, options):
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
    assert run("bench", name, count, "4", *options, "--json").exit_code == 3
    assert json.loads(told.read_text()) == ["hello", count, "4", *options, "--json"]
    assert run("bench", name).exit_code == 3
    assert json.loads(told.read_text()) == ["hello", count, usual]


@pytest.mark.parametrize("name", ["core", "rewards", "estimators"])
def test_bench_without_a_source_tree(source_tree, name):
    result = run("bench", name)
    assert result.exit_code == 2
    assert "come with the source tree" in result.stderr
    assert str(source_tree / "benchmarks" / f"{name}.py") in result.stderr


@pytest.fixture
def references(tmp_path):
    path = tmp_path / "refs.tsv.gz"
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.write("a man rides a horse\ta person on a horse\nthe dog sleeps\tа собака спит\n")
    return path


@pytest.mark.parametrize("reward", ["bleu", "rouge-l", "chrf", "edit", "exact"])
@pytest.mark.parametrize("objective", ["raml", "sqdml"])
def test_curve_of_references(references, reward, objective):
    options = [
        "--references",
        str(references),
        "--reward",
        reward,
        "--objective",
        objective,
        "--size",
        "30",
    ]
    result = run("theory", *options, "--tau", "0.1,1,10", "--mass", "0.5", "--json")
    assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout)
    assert (told["examples"], told["words"], told["size"], told["objective"]) == (
        2,
        12,
        30,
        objective,
    )
    assert [row["tau"] for row in told["rows"]] == [0.1, 1.0, 10.0]
    masses = [row["reference_mass"] for row in told["rows"]]
    assert masses == sorted(masses, reverse=True)
    if (
        objective == "sqdml"
    ):  # its references need not be its best sentences, and no temperature may leave them half of it
        return
    tau = told["suggestions"][0]["tau"]
    again = json.loads(run("theory", *options, "--tau", str(tau), "--json").stdout)
    assert again["rows"][0]["reference_mass"] == pytest.approx(0.5, abs=1e-6)


def test_curve_of_references_as_a_table_and_a_picture(references, tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "curve.svg"
    result = run(
        "theory",
        "--references",
        str(references),
        "--plot",
        str(picture),
        "--mass",
        "0.5",
        "--mass",
        "0.0001",
    )
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert sum(line.strip().startswith(("0.", "1", "2")) for line in lines) == len(
        theory_command.CURVE_TAUS
    )
    assert "█" in result.stdout
    assert any(
        line.startswith("tau = ") and line.endswith("leaves 0.5 of the mass on the references")
        for line in lines
    )
    assert "no temperature leaves a mass of 0.0001" in result.stdout
    assert picture.read_text().startswith("<?xml")


def test_exact_curve_of_the_hamming_distance(references):
    result = run(
        "theory", "--references", str(references), "--reward", "hamming", "--tau", "0.8", "--json"
    )
    told = json.loads(result.stdout)
    assert told["estimator"] == "exact"
    point = softq.temperature.HammingCurve(12, [5, 5, 3, 3], rescale=True).at(0.8)
    assert told["rows"][0]["expected_edits"] == pytest.approx(point.expected_edits)
    assert told["rows"][0]["effective_sample_size"] is None
    assert (
        "tau / (1 + log(words - 1))"
        in run("theory", "--references", str(references), "--reward", "hamming").stdout
    )
    assert (
        "another reward"
        in run(
            "theory", "--references", str(references), "--reward", "hamming", "--objective", "sqdml"
        ).stderr
    )


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "is empty"),
        (b"a b\n\nc\n", "line 2: expected one or more sentences"),
        (b"a b\tc\t\n", "line 1: expected"),
        (b"\xff\xfe", "expected UTF-8, got UTF-16"),
        (b"a b\n\xff\n", "line 2: expected UTF-8, got byte 0xff at offset 4"),
        (None, "cannot read"),
    ],
)
def test_references_that_cannot_be_read(tmp_path, content, text):
    path = tmp_path / "refs.txt"
    if content is not None:
        path.write_bytes(content)
    result = run("theory", "--references", str(path))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("softq: ")
    assert text in result.stderr
    assert str(path) in result.stderr


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            ["--plot", "x.svg"],
            "--plot is for your references, and none are given: add --references FILE",
        ),
        (["--reward", "chrf"], "add --references FILE"),
        (["--max-n", "3"], "add --references FILE"),
        (["--references", "FILE", "--grid", "10"], "--grid is for the four-class problem"),
        (["--references", "FILE", "--mass", "2"], "--mass must lie between 0 and 1, got 2"),
    ],
)
def test_options_that_would_be_ignored(references, options, text):
    result = run("theory", *(str(references) if option == "FILE" else option for option in options))
    assert (result.exit_code, result.stdout) == (2, "")
    assert text in result.stderr


def test_broken_archives_and_pictures(tmp_path, references):
    broken = tmp_path / "refs.xz"
    broken.write_bytes(b"not an archive")
    damaged = tmp_path / "damaged.gz"
    damaged.write_bytes(gzip.compress(b"a b c")[:10] + b"\xff" * 20)
    assert "cannot read" in run("theory", "--references", str(damaged)).stderr
    marked = tmp_path / "marked.txt"
    marked.write_bytes("\ufeffa b\na c\n".encode())
    assert json.loads(run("theory", "--references", str(marked), "--json").stdout)["words"] == 3
    assert "cannot read" in run("theory", "--references", str(broken)).stderr
    packed = tmp_path / "good.xz"
    with lzma.open(packed, "wt", encoding="utf-8") as file:
        file.write("a b c\n")
    assert run("theory", "--references", str(packed), "--tau", "1").exit_code == 0
    assert (
        "cannot draw"
        in run(
            "theory", "--references", str(references), "--plot", str(tmp_path / "curve.nope")
        ).stderr
    )
    only = tmp_path / "one.txt"
    only.write_text("a a\n")
    assert (
        "two different words"
        in run("theory", "--references", str(only), "--reward", "hamming").stderr
    )


def test_module_runs_as_a_command():
    command = [sys.executable, "-m", "softq"]
    good = subprocess.run(
        [*command, "theory", *GRID, "--tau", "1", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert good.returncode == 0, good.stderr
    assert json.loads(good.stdout)["rows"][0]["tau"] == 1.0
    bad = subprocess.run(
        [*command, "theory", "--tau", "0"], capture_output=True, text=True, check=False
    )
    assert (bad.returncode, bad.stdout) == (2, "")
    assert (
        bad.stderr
        == "softq: tau must be positive and finite, got 0.0; as tau goes to 0 RAML becomes"
        " softq.ml\n"
    )
