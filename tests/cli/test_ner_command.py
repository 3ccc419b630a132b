"""Taggers on the command line: what train, sweep and reproduce say of them."""

import importlib.util
import itertools
import json
import math
import random
import re
import shlex
import warnings

import pytest

from ner_commands import (
    QUICK,
    evaluated,
    make_corpus,
    make_runs,
    predictions,
    refused,
    softq,
    told,
    well,
)
from small_runs import single_thread, snapshot
from softq.annotators.reliability import estimate
from softq.cli import progress, recipes, reproduction, shared
from softq.errors import ConvergenceWarning
from softq.formats.conll import read_conll
from softq.lab.ranges import parse_seeds, parse_taus
from softq.lab.recipe import read_toml
from softq.lab.run import RunFolder
from softq.lab.sweep import expand
from softq.lab.tasks import TASKS
from softq.linear import CRFTagger


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def runs(corpus, tmp_path_factory):
    return make_runs(corpus, tmp_path_factory.mktemp("runs"))


def files_of(corpus):
    return ["--train", corpus / "train.conll", "--dev", corpus / "dev.conll"]


def test_training_says_what_its_numbers_are_of(runs):
    folder, printed = runs
    expected = {
        "bio": ("dev.conll", "the development set again"),
        "bioes": ("2 folds of train.conll", "the development set again"),
        "pos": ("the training file itself", "the training file itself"),
    }
    for name, parts in expected.items():
        (cell,) = RunFolder(folder / name).result()["cells"]
        scores = (
            f"{part} F1 {cell[f'{part}_f1']:.4f}, token accuracy"
            f" {cell[f'{part}_token_accuracy']:.4f}, exact match {cell[f'{part}_exact_match']:.4f}"
            f" ({of})"
            for part, of in zip(("dev", "test"), parts, strict=True)
        )
        assert printed[name].splitlines()[0] == f"ml, seed 0: {'; '.join(scores)}"


def test_training_by_halves_and_on_the_built_in_world(corpus, tmp_path):
    flags = [*files_of(corpus), "--halve-dev", "--out", tmp_path / "a"]
    first = well(softq("train", "ner", *QUICK, *flags)).splitlines()[0]
    assert "(every other example of dev.conll); test " in first
    assert first.endswith("(the others of dev.conll)")
    flags = ["--sentences", "20", "--dev-sentences", "9", "--out", tmp_path / "b"]
    assert (
        well(softq("train", "ner", *QUICK, *flags)).splitlines()[0].count("(built-in world)") == 2
    )


@pytest.fixture(scope="module")
def crowd(corpus):
    """Training data that eleven people labelled, three a sentence.

    The higher their number, the more entities they miss.
    """
    path, chances = corpus / "crowd.conll", random.Random(0)
    blocks = []
    for number, sentence in enumerate(read_conll(corpus / "train.conll").sentences):
        people = sorted({number % 11, (number + 4) % 11, (number + 7) % 11})
        blocks.append("# annotators = " + " ".join(f"p{person:02}" for person in people))
        for token, label in zip(sentence.tokens, sentence.labels[0], strict=True):
            blocks.append(
                "\t".join(
                    [
                        token,
                        *("O" if chances.random() < 0.07 * person else label for person in people),
                    ]
                )
            )
        blocks.append("")
    path.write_text("\n".join(blocks) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "flags",
    [["--weights", "dawid-skene"], ["--weights", "one-coin"], ["--references", "dawid-skene"]],
)
def test_training_says_whom_it_trusts(corpus, crowd, tmp_path, flags):
    arguments = [
        "train",
        "ner",
        *QUICK,
        "--train",
        crowd,
        "--dev",
        corpus / "dev.conll",
        *flags,
        "--out",
        tmp_path / "run",
    ]
    shown = well(softq(*arguments))
    found = told(softq(*arguments, "--resume", "--json"))
    assert {
        name: value for name, value in found.items() if name not in ("annotators", "run")
    } == RunFolder(tmp_path / "run").result()
    expected = estimate(read_conll(crowd).sentences, flags[1]).annotators
    assert found["annotators"] == [row._asdict() for row in expected]
    score, *table, reward, run = shown.splitlines()
    assert (score[:3], reward, run) == ("ml,", "reward: token-accuracy", f"run: {tmp_path / 'run'}")
    assert f"annotators: best and worst 5 of 11, estimated by {flags[1]}" in shown
    rows = sorted(expected, key=lambda row: row.weight, reverse=True)
    assert [line.split() for line in table if line.strip().startswith("p")] == [
        [name, f"{tokens:,}", *(f"{share:.4f}" for share in shares)]
        for name, tokens, *shares in rows[:5] + rows[-5:]
    ]


def test_few_annotators_are_shown_all(corpus, tmp_path):
    flags = ["--weights", "dawid-skene", "--out", tmp_path / "run"]
    blocks = [
        f"# annotators = [b]a b\n{token}\tB-PER\tB-PER\nran\tO\tO\n" for token in ("Ann", "Bob")
    ]
    (tmp_path / "two.conll").write_text("\n".join(blocks) + "\n")
    shown = well(softq("train", "ner", *QUICK, "--train", tmp_path / "two.conll", *flags))
    assert "annotators: 2, estimated by dawid-skene" in shown
    assert {"[b]a", "b"} <= {line.split()[0] for line in shown.splitlines() if line.split()}
    (tmp_path / "two.conll").unlink()
    result = softq("train", "--resume", "--out", tmp_path / "run")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == shown
    plain = [*files_of(corpus), "--out", tmp_path / "plain", "--json"]
    assert "annotators" not in told(softq("train", "ner", *QUICK, *plain))


def test_a_sweep_says_what_its_numbers_are_of(corpus, tmp_path):
    files = [*files_of(corpus), *QUICK, "--objective", "raml", "--tau", "0.2"]
    test = ["--test", corpus / "test.conll"]
    shown = well(
        softq("sweep", "ner", *files, *test, "--over", "entity-weight=2", "--out", tmp_path / "a")
    ).splitlines()
    assert shown[-3:-1] == [
        "dev: dev.conll; test: test.conll",
        "reward: token-reward:entity-weight=2",
    ]
    shown = well(
        softq("sweep", "ner", *files, "--over", "halve-dev=true", "--out", tmp_path / "b")
    ).splitlines()
    assert shown[-3] == "dev: every other example of dev.conll; test: the others of dev.conll"


def test_a_search_that_does_not_converge_is_one_line(corpus, tmp_path):
    flags = [*files_of(corpus), *QUICK, "--iterations", "2"]
    result = softq("train", "ner", *flags, "--out", tmp_path / "run")
    assert result.exit_code == 0
    assert result.stderr.startswith(
        "softq: training stopped after 2 iterations, before it converged: "
    )
    assert result.stderr.count("\n") == 1
    result = softq(
        "sweep",
        "ner",
        *flags,
        "--objective",
        "ml",
        "--over",
        "c2=1,2",
        "--out",
        tmp_path / "sweep",
        "--json",
    )
    assert (
        result.exit_code,
        result.stderr.count("softq: training stopped after 2 iterations"),
        result.stderr.count("\n"),
    ) == (0, 2, 2)


def test_other_warnings_are_python_s():
    with pytest.warns(UserWarning, match="of another kind"), shared.one_line_errors():
        warnings.warn("of another kind", UserWarning, stacklevel=1)
    shown = []
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *place: shown.append(str(message))
        with shared.one_line_errors():
            warnings.warn("of another kind", UserWarning, stacklevel=1)
            warnings.warn("no line of Python's", ConvergenceWarning, stacklevel=1)
    assert shown == ["of another kind"]


def test_bars_take_turns_and_have_their_unit(corpus, runs, monkeypatch):
    real = progress.Console
    monkeypatch.setattr(
        progress, "Console", lambda **options: real(**options, force_terminal=True, width=200)
    )
    result = softq("predict", runs[0] / "bio", corpus / "test.conll", "--json", terminal="xterm")
    assert "test.conll" in result.stderr
    assert " tokens" in result.stderr
    with progress.progress_bars() as watch:
        first, second, unknown = (
            watch("first", unit="models"),
            watch("second"),
            watch("third", unit="bytes"),
        )
        bars = first._progress
        rate = progress._Rate()
        for watcher, total, unit in (
            (first, 8, "models"),
            (second, 100, "examples"),
            (unknown, 0, "bytes"),
        ):
            watcher.begin(total, 0)
            (bar,) = bars.tasks  # the one before is gone
            assert (bar.total, bar.fields["unit"], rate.render(bar).plain) == (
                total or None,
                unit,
                "",
            )
            bar.start_time, bar.stop_time = 0.0, None
            monkeypatch.setattr(type(bar), "speed", property(lambda self: 45_600.0))
            assert rate.render(bar).plain == ("" if unit == "models" else f"45.6k {unit}/s")
            watcher.advance(8, "3 of 8")
            monkeypatch.undo()
            monkeypatch.setattr(
                progress,
                "Console",
                lambda **options: real(**options, force_terminal=True, width=200),
            )


def models_asked_for(path):
    """How many models the grids of a recipe have, if none is of two grids."""
    count = 0
    for grid in read_toml(path)["sweep"]:
        values = [len(entry.partition("=")[2].split(",")) for entry in grid.get("over", [])]
        targets = sum(
            1 if name == "ml" else len(parse_taus(grid["tau"])) for name in grid["objective"]
        )
        count += targets * math.prod(values) * len(parse_seeds(grid.get("seed", "0")))
    return count


def test_recipes_of_ner():
    sizes = {}
    for path in sorted(recipes.RECIPES.glob("ner-*.toml")):
        wanted = recipes.find_recipe(str(path), [], sweep=True)
        sizes[path.stem] = len(expand(wanted.task, wanted.recipe, wanted.grids))
        assert sizes[path.stem] == models_asked_for(path)
    assert sizes["ner-paper"] == 2 * 3 * (1 + 9)
    assert set(sizes) == {"ner-crowd", "ner-paper", "ner-small"}


def test_reproduce_ner(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    reported = []
    monkeypatch.setattr(
        reproduction, "write_report", lambda sections, page, title: reported.append(page)
    )
    monkeypatch.setattr(reproduction, "read_sections", lambda sources: sources)
    asked = []
    real = reproduction.run_sweep

    def run_sweep(*arguments, jobs, **options):
        asked.append(jobs)
        return real(*arguments, jobs=1, **options)

    monkeypatch.setattr(reproduction, "run_sweep", run_sweep)
    arguments = [
        *shlex.split("reproduce ner --sentences 40 --dev-sentences 20 --jobs 3 --out"),
        tmp_path,
    ]
    count = models_asked_for(recipes.RECIPES / "ner-small.toml")
    with single_thread():
        (experiment,) = told(softq(*arguments, "--json"))["experiments"]
    assert (experiment["task"], experiment["cells"], asked, reported) == (
        "ner",
        count,
        [3],
        [tmp_path / "report.html"],
    )
    before = snapshot(tmp_path / "ner" / "runs")
    monkeypatch.setattr(type(TASKS["ner"]), "learner", None)
    assert "gain over ML" in well(softq(*arguments))
    assert snapshot(tmp_path / "ner" / "runs") == before


def test_labels_of_any_kind(tmp_path, corpus):
    for name in ("train", "dev", "test"):
        rows = [line.split("\t")[:2] for line in (corpus / f"{name}.pos").read_text().splitlines()]
        (tmp_path / name).write_text("".join("\t".join(row) + "\n" for row in rows))
    files = ["--train", tmp_path / "train", "--dev", tmp_path / "dev", "--test", tmp_path / "test"]
    refused(
        softq("train", "ner", *files, "--out", tmp_path / "no"),
        "expected entity tags such as B-PER and O in the last column, got 'IN', 'NN', 'VB'; "
        "for labels of another kind take softq train tag",
    )
    for flags, text in (
        (["--constraints", "decode"], "constraints are of tag schemes, and scheme is none"),
        (["--entity-weight", "2"], "entity_weight and type_credit are of entity tags"),
        (["--train-scheme", "bioes"], "labels cannot be converted to train_scheme = bioes"),
    ):
        refused(softq("train", "tag", *files, *flags, "--out", tmp_path / "no"), text)
    refused(
        softq("train", "ner", "--scheme", "none"), "for labels of any kind take softq train tag"
    )
    run = tmp_path / "run"
    text = well(softq("train", "tag", *QUICK, *files, "--out", run))
    assert re.search(r"dev token accuracy 0\.\d+, exact match .*; test token accuracy", text)
    (row,) = json.loads((run / "result.json").read_text())["cells"]
    assert row["test"] == row["test_token_accuracy"] > 0.9
    assert "test_f1" not in row
    scores = evaluated(run, tmp_path / "test")
    assert scores["token_accuracy"] == row["test"]
    assert scores["scheme"] is None
    assert "f1" not in scores
    against = well(softq("evaluate", run, tmp_path / "test", "--against", run))
    assert "token accuracy" in against
    assert "F1" not in against
    tagged = predictions(run, tmp_path / "test").split("\n")
    right = [line.split("\t")[1] == line.split("\t")[2] for line in tagged if line]
    assert sum(right) / len(right) == pytest.approx(row["test"])
    loaded = CRFTagger.load(run)
    assert (loaded.classes_, loaded.scheme_) == (["IN", "NN", "VB"], None)
    grid = ["--objective", "ml,raml", "--tau", "0.5", "--seed", "0", "--jobs", "1"]
    well(softq("sweep", "tag", *QUICK, *files, *grid, "--out", tmp_path / "sweep"))
    if importlib.util.find_spec("matplotlib") is not None:
        for folder in (run, tmp_path / "sweep"):
            well(softq("report", folder, "--out", tmp_path / "report.html"))


def test_reproduce_all_and_what_it_refuses(tmp_path, monkeypatch, corpus):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    started = []
    monkeypatch.setattr(reproduction, "run_sweep", lambda task, *_, **__: started.append(task.name))
    monkeypatch.setattr(
        reproduction, "read_sections", lambda sources: [source.command for source in sources]
    )
    monkeypatch.setattr(
        reproduction, "write_report", lambda sections, page, title: started.append(sections)
    )
    monkeypatch.setattr(reproduction, "sweep_json", lambda sweep, folder: str(folder))
    others = ("classifier", "tag")  # which are none of the paper's
    experiments = [name for name in TASKS if name not in others]
    assert told(softq("reproduce", "--json"))["experiments"] == [
        f"reproduction/small/{name}" for name in experiments
    ]
    commands = [f"softq reproduce {name} --scale small" for name in experiments]
    wanted = [(name, commands[: number + 1]) for number, name in enumerate(experiments)]
    assert started == list(itertools.chain(*wanted))  # the page grows
    started.clear()
    wanted = [
        "ner at the paper's scale is trained on CoNLL-2003",
        "--train eng.train --test eng.testb",
    ]
    refused(softq("reproduce", "ner", "--scale", "paper"), "there is no file eng.train", *wanted)
    refused(
        softq("reproduce", "--scale", "paper"),
        "captioning at the paper's scale is trained on MSCOCO",
    )
    refused(
        softq("reproduce", "ner", "--scale", "paper", "--train", corpus / "train.conll"),
        "there is no file eng.testb",
        *wanted,
    )
    refused(
        softq("reproduce", "--inputs", "30"),
        "captioning: there is no flag --inputs",
        "softq reproduce TASK --inputs 30",
    )
    refused(softq("reproduce", "ner", "--data", "folder"), "there is no folder folder")
    assert started == []
    named = ["--train", corpus / "train.conll", "--test", corpus / "test.conll"]
    told(softq("reproduce", "ner", "--scale", "paper", *named, "--json"))
    assert started[0] == "ner"


def test_a_sweep_needs_something_to_choose_by(tmp_path):
    train = tmp_path / "train.conll"
    train.write_text("Ann B-PER\nran O\n")
    for more in ([], ["--folds", "2"]):
        refused(
            softq("sweep", "ner", "--train", train, *more, "--out", tmp_path / "sweep"),
            "add --dev FILE, or --folds 5 with --test FILE",
        )
    assert not (tmp_path / "sweep").exists()


def test_a_wrong_scheme_is_not_scored(runs, tmp_path):
    path = tmp_path / "true.conll"
    path.write_text("Ann\tB-PER\nran\tO\n")
    result = softq("evaluate", runs[0] / "bio", path, "--scheme", "bioes")
    assert result.exit_code == 2
    assert "true.conll, line 2: expected I-PER or E-PER after B-PER, got O (bioes)" in result.stderr


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_sweep_of_bad_files_leaves_nothing_behind(tmp_path, jobs):
    train = tmp_path / "train.conll"
    train.write_text("Ann B-PER\nran\n")
    result = softq(
        "sweep",
        "ner",
        "--train",
        train,
        "--dev",
        train,
        "--jobs",
        jobs,
        "--out",
        tmp_path / "sweep",
    )
    refused(result, "train.conll, line 2: expected 2 columns")
    assert not (tmp_path / "sweep").exists()
