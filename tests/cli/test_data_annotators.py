"""`softq data annotators`: estimates, outputs, choice of settings, the page, and bad input."""

import csv
import gzip
import json
import os
import shutil
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from ner_commands import softq as command
from softq.annotators import estimate
from softq.annotators.review import Review
from softq.formats.conll import read_conll, to_conll
from softq.lab.report import crowd as crowd_page
from softq.lab.report.page import MOST_ROWS
from softq.lab.worlds import EntityWorld

pytestmark = pytest.mark.usefixtures("one_thread")
run = partial(command, "data", "annotators")


def table(path):
    """The rows of a CSV file, packed or not."""
    content = path.read_bytes()
    content = gzip.decompress(content) if path.suffix == ".gz" else content
    return list(csv.DictReader(content.decode().splitlines()))


def told(*arguments):
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def crowd(tmp_path_factory):
    """A file of the world's annotators, and the true labels of every second sentence."""
    folder = tmp_path_factory.mktemp("crowd")
    world = EntityWorld()
    gold = world.sample(120, seed=0)
    (folder / "crowd.conll").write_text(to_conll(world.annotate(gold, seed=0)), encoding="utf-8")
    (folder / "gold.conll").write_text(to_conll(gold[::2]), encoding="utf-8")
    return folder / "crowd.conll"


@pytest.fixture(scope="module")
def gold(crowd):
    return crowd.with_name("gold.conll")


def test_annotators_pairs_and_labels(crowd):
    sentences = read_conll(crowd, annotators="all").sentences
    expected = estimate(sentences, "sequential")
    found = told(crowd)
    assert (found["sentences"], found["model"], found["gold"]) == (120, "sequential", None)
    assert [row["weight"] for row in found["annotators"]] == pytest.approx(
        [row.weight for row in expected.annotators]
    )
    assert found["labels"] == pytest.approx(
        dict(zip(expected.labels, expected.prior.tolist(), strict=True))
    )
    rows = Review(sentences, expected).confusions()
    assert [row["share"] for row in found["confusions"]] == pytest.approx([r.share for r in rows])
    assert found["agreement"]["alpha"] > 0.3
    shown = run(crowd).stdout
    for row in expected.annotators:
        assert f"{row.name} " in shown
    for title in ("Agreement", "Pairs of annotators", "Labels"):
        assert f"{title} " in shown
    assert f"{100 * expected.annotators[0].recall:.2f}" in shown


@pytest.mark.parametrize("model", ["one-coin", "dawid-skene"])
def test_models_are_those_of_the_library(crowd, model):
    expected = estimate(read_conll(crowd, annotators="all").sentences, model)
    found = told(crowd, "--model", model)
    assert found["annotators"] == [row._asdict() for row in expected.annotators]


def test_outputs(crowd, tmp_path):
    consensus, disputed, doubtful = (tmp_path / name for name in ("a.conll", "b.csv", "c.csv.gz"))
    outputs = ("--consensus", consensus, "--disputed", disputed, "--doubtful", doubtful)
    assert run(crowd, *outputs).exit_code == 0
    sentences = read_conll(crowd, annotators="all").sentences
    found = estimate(sentences, "sequential")
    review = Review(sentences, found)
    written = read_conll(consensus).sentences
    assert [one.labels[0] for one in written] == list(found.best)
    assert [one.tokens for one in written] == [one.tokens for one in sentences]
    rows = table(disputed)
    assert len(rows) == len(review.disputes())
    first = sentences[review.disputes()[0].sentence]
    assert rows[0]["Place"] == f"line {first.line}"
    assert rows[0]["Sentence"] == " ".join(first.tokens)
    rows = table(doubtful)
    doubt = review.doubts()[0]
    assert len(rows) == len(review.doubts())
    assert (rows[0]["Annotator"], rows[0]["Given"], rows[0]["Likely"]) == doubt[2:5]
    assert rows[0]["Token"] == sentences[doubt.sentence].tokens[doubt.token]
    line = crowd.read_text(encoding="utf-8").splitlines()[int(rows[0]["Place"].split()[1]) - 1]
    assert line.split("\t")[0] == rows[0]["Token"]


def test_annotators_that_are_left_out(crowd, gold):
    names = [row["name"] for row in told(crowd)["annotators"]]
    left_out = names[2:]
    found = told(crowd, "--without", ", ".join(left_out), "--gold", gold)
    assert [row["name"] for row in found["annotators"]] == names[:2]
    # sentences that only the others labelled are gone, and true labels of them are passed over
    assert found["sentences"] < 120
    assert 0 < found["gold"]["sentences"] < 60


def test_true_labels_score_the_estimate(crowd, gold, tmp_path):
    out = tmp_path / "consensus.conll"
    found = told(crowd, "--gold", gold, "--consensus", out)["gold"]
    assert found["sentences"] == 60
    best = [one.labels[0] for one in read_conll(out).sentences][::2]
    true = [one.labels[0] for one in read_conll(gold).sentences]
    right = [a == b for x, y in zip(best, true, strict=True) for a, b in zip(x, y, strict=True)]
    assert found["token_accuracy"] == pytest.approx(np.mean(right))
    assert found["f1"] > 0.6
    assert f"F1 {found['f1']:.4f}" in run(crowd, "--gold", gold).stdout


def test_settings_are_chosen_by_hidden_labels_or_by_true_ones(crowd, gold):
    over = ("--choose", "--over", "temper=0.01,0.85")
    found = told(crowd, *over)["settings"]
    assert [row["settings"] for row in found] == [{"temper": 0.85}, {"temper": 0.01}]
    assert found[0]["hidden"] > found[1]["hidden"]
    assert "f1" not in found[0]
    chosen = told(crowd, *over, "--gold", gold)
    assert chosen["settings"][0]["f1"] == max(row["f1"] for row in chosen["settings"])
    assert chosen["settings"][0]["f1"] == chosen["gold"]["f1"]
    result = run(crowd, *over, "--gold", gold)
    assert result.stderr.count("softq: --temper") == 2
    assert "Log-probability of hidden labels" in result.stdout


def test_a_tagger_in_the_loop_with_the_settings_that_were_chosen(crowd):
    over = ("--over", "rounds=1", "--over", "tagger-weight=0,1")
    found = told(crowd, "--tagger", "--choose", *over)
    assert {row["settings"]["tagger_weight"] for row in found["settings"]} == {0, 1}
    assert all(
        row["settings"] | {"rounds": 1, "loop_c2": 1} == row["settings"]
        for row in found["settings"]
    )
    result = run(crowd, "--tagger", "--choose", "--over", "rounds=1")
    assert "--rounds 1 --loop-c2 1" in result.stderr
    assert "round 1: " in result.stderr
    assert found["annotators"] != told(crowd)["annotators"]


def test_labels_of_other_kinds(tmp_path):
    path = tmp_path / "tags.conll"
    path.write_text("the DT DT NN\ncat NN NN NN\n\na DT DT DT\nruns VB NN VB\n", encoding="utf-8")
    found = told(path)
    assert found["model"] == "dawid-skene"
    assert found["agreement"]["span_cohen"] is None
    assert run(path, "--page", tmp_path / "p.html").exit_code == 0


def test_exports_of_tools(tmp_path):
    path = tmp_path / "export.jsonl"
    text = "Ann ran to Rome."
    records = [
        {"text": text, "label": [[0, 3, "PER"], [11, 15, "LOC"]], "user": "ann"},
        {"text": text, "label": [[0, 3, "PER"]], "user": "bob"},
    ]
    path.write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    out = tmp_path / "out.conll"
    found = told(path, "--consensus", out)
    assert [row["name"] for row in found["annotators"]] == ["ann", "bob"]
    assert read_conll(out).sentences[0].tokens == ("Ann", "ran", "to", "Rome", ".")


# --- the page -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page(crowd):
    """A page of a crowd in which one annotator is always silent and one has a strange name."""
    path = crowd.with_name("strange.conll")
    pieces = []
    for one in read_conll(crowd, annotators="all").sentences:
        named = zip(
            (*one.annotators, "<i>&mute"), (*one.labels, ("O",) * len(one.tokens)), strict=True
        )
        names, rows = zip(*named, strict=True)
        pieces.append(replace(one, annotators=names, labels=rows))
    path.write_text(to_conll(pieces), encoding="utf-8")
    out = path.with_suffix(".html")
    result = run(path, "--page", out)
    assert result.exit_code == 0, result.output
    return out


def test_the_page_holds_everything(page):
    text = page.read_text(encoding="utf-8")
    for title in (
        "Agreement",
        "Annotators to look at",
        "Who agrees with whom",
        "Most disputed sentences",
        "Labels that are probably wrong",
        "Each annotator",
    ):
        assert f">{title}" in text
    assert "&lt;i&gt;&amp;mute" in text
    assert "<i>&mute" not in text
    files = {path.name for path in page.with_name("strange_files").iterdir()}
    assert {"who-agrees.svg", "who-agrees.csv", "disputed.csv", "doubtful.csv"} <= files
    suspicious = page.with_name("strange_files") / "suspicious.csv"
    assert "<i>&mute,one label" in suspicious.read_text(encoding="utf-8")


def test_confusion_tables_of_the_page_are_those_of_the_command(page):
    found = told(page.with_suffix(".conll"))
    name = found["annotators"][1]["name"]
    path = page.with_name("strange_files") / f"confusion-{name}.csv"
    rows = {row["Right label"]: row for row in table(path)}
    assert rows
    for cell in found["confusions"]:
        if cell["annotator"] == name and cell["right"] in rows:
            row, column = rows[cell["right"]], cell["given"]
            assert float(row[column]) == pytest.approx(100 * cell["share"])
            assert float(row[f"{column} low"]) == pytest.approx(100 * cell["low"])
            assert float(row[f"{column} high"]) == pytest.approx(100 * cell["high"])


def test_the_map_has_the_kappa_of_every_pair(page):
    found = told(page.with_suffix(".conll"))["agreement"]["pairs"]
    rows = table(page.with_name("strange_files") / "who-agrees.csv")
    assert {(row["First"], row["Second"]): float(row["Kappa"]) for row in rows} == pytest.approx(
        {(pair["first"], pair["second"]): pair["kappa"] for pair in found}
    )


def test_of_many_annotators_those_with_most_tokens_are_shown(crowd, tmp_path, monkeypatch):
    monkeypatch.setattr(crowd_page, "_MOST_TABLES", 3)
    monkeypatch.setattr(crowd_page, "_MOST_IN_MAP", 4)
    assert run(crowd, "--page", tmp_path / "p.html").exit_code == 0
    rows = sorted(told(crowd)["annotators"], key=lambda row: -row["tokens"])
    files = {path.stem for path in (tmp_path / "p_files").glob("confusion-*.csv")}
    assert files == {f"confusion-{row['name']}" for row in rows[:3]}
    text = (tmp_path / "p.html").read_text(encoding="utf-8")
    assert "The 13 annotators with the fewest tokens have no table." in text
    assert "The 12 with the fewest tokens are left out." in text
    assert "A map of the agreement of 4 annotators." in text


def test_the_page_fits_screens_and_runs_no_faulty_script(page):
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        pytest.skip("no Chromium or Chrome to open the page in")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for width in (400, 1400):
            tab = chromium.new_page(viewport={"width": width, "height": 900})
            faults = []
            tab.on("pageerror", lambda fault: faults.append(str(fault)))  # noqa: B023
            tab.goto(page.as_uri())
            tab.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true })")
            assert tab.evaluate("document.documentElement.scrollWidth") == width
            assert tab.locator("details.table").count() > 3
            assert not faults
        chromium.close()


# --- bad input ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("a O\n", ["--annotators", "0"], "expected labels of annotators, got none"),
        ("a O O\nb O\n", [], "line 2: expected 3 columns"),
        ("a O O\nb O O\n", [], "expected two different labels or more"),
        (
            "a B-X|O O\nb B-X O\n",
            [],
            "line 1: expected a tag of bio such as B-PER or O, got 'B-X|O'",
        ),
        ("a O B-X\nb O O\n", ["--without", "1,2"], "expected somebody who is not left out"),
        ("a O B-X\nb O O\n", ["--without", "7"], "got '7', who is not among 1, 2"),
        ("a O B-X\nb O O\n", ["--annotators", "x"], "--annotators must be a number"),
        ("a O B-X\nb O O\n", ["--over", "temper=1"], "--over has settings to choose from"),
        (
            "a O B-X\nb O O\n",
            ["--choose", "--over", "c2=1"],
            "--over takes temper, evidence-floor, and more with --tagger, got c2",
        ),
        ("a O B-X\nb O O\n", ["--choose", "--over", "temper=-1"], "temper must be"),
        (
            "a O B-X\nb O O\n",
            ["--choose", "--model", "dawid-skene"],
            "--choose needs settings to choose from",
        ),
        ("a O B-X\nb O O\n", ["--tagger", "--model", "one-coin"], "got one-coin"),
        ("a O B-X\nb O O\n", ["--tagger"], "expected 2 sentences or more, got 1"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(tmp_path, text, options, message):
    path = tmp_path / "a.conll"
    path.write_text(text, encoding="utf-8")
    outputs = ["--consensus", tmp_path / "c.conll", "--page", tmp_path / "p.html"]
    result = run(path, *options, *outputs)
    assert result.exit_code == 2, result.output
    assert (result.stdout, result.stderr.count("\n")) == ("", 1), result.output
    assert message in result.stderr
    assert [found.name for found in tmp_path.iterdir()] == ["a.conll"]


@pytest.mark.parametrize(
    ("true", "message"),
    [
        ("Zed\tO\n", "line 1: expected a sentence of"),
        ("# annotators = a\nAnn\tO\n", "expected true labels, got those of annotators"),
    ],
)
def test_true_labels_of_something_else(crowd, tmp_path, true, message):
    path = tmp_path / "gold.conll"
    path.write_text(true, encoding="utf-8")
    result = run(crowd, "--gold", path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


def test_all_outputs_are_written_or_none(crowd, tmp_path):
    absent = tmp_path / "absent" / "d.csv"
    result = run(crowd, "--consensus", tmp_path / "c.conll", "--disputed", absent)
    assert result.exit_code == 2
    assert f"cannot write {absent}" in result.stderr
    assert not list(tmp_path.iterdir())
    # the folder of the page cannot be made, for a file has its name
    (tmp_path / "p_files").write_text("mine", encoding="utf-8")
    result = run(crowd, "--consensus", tmp_path / "c.conll", "--page", tmp_path / "p.html")
    assert result.exit_code == 2
    assert "cannot write the report" in result.stderr
    assert os.listdir(tmp_path) == ["p_files"]
    same = tmp_path / "same.csv"
    result = run(crowd, "--disputed", same, "--doubtful", same)
    assert "expected a file of its own for each output" in result.stderr
    before = crowd.read_bytes()
    again = crowd.parent / ".." / crowd.parent.name / crowd.name
    assert run(crowd, "--consensus", again).exit_code == 2
    assert crowd.read_bytes() == before


def test_tables_of_the_page_are_cut_and_files_are_whole(page):
    rows = table(page.with_name("strange_files") / "doubtful.csv")
    assert len(rows) > MOST_ROWS
    assert f"{len(rows) - MOST_ROWS} more rows are in the file" in page.read_text("utf-8")
