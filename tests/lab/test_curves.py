"""What runs keep for the report: calibration, sets, precision and recall, as estimators have them."""

# ruff: noqa: N806 -- scikit-learn calls the inputs X

import json
import shutil

import numpy as np
import pytest
import torch

import ner_runs
import parsing_runs
from report_cases import part, rows_of, text_of
from small_runs import CPU, softq
from softq import CRFTagger, DependencyParser, Independent, ProjectiveTree
from softq.calibration import calibration_scores, reliability_diagram
from softq.errors import RunError
from softq.formats.conll import read_conll
from softq.formats.conllu import read_conllu
from softq.formats.tags import convert
from softq.lab.report import find_sources, read_sections, write_report
from softq.lab.run import CURVES, RunFolder
from softq.lab.tasks import train_cells
from softq.lab.tasks.curves import TRIED, Believed, uncertainty
from softq.linear import RewardClassifier, tune_entity_weight
from softq.linear.uncertainty import EstimatorSets, calibration_of
from softq.metrics import span_precision, span_recall, span_statistics

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return ner_runs.make_files(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def tagged(files, tmp_path_factory):
    """A run of a tagger with all three splits."""
    out = tmp_path_factory.mktemp("runs") / "tagged"
    ner_runs.run(out, *ner_runs.parts(files, "train", "dev", "test"))
    return out


def sentences(path):
    found = read_conll(path).sentences
    return [list(one.tokens) for one in found], [list(one.labels[0]) for one in found]


def same_calibration(kept, scores):
    for name in ("error", "error_mass", "brier"):
        assert kept[name] == pytest.approx(getattr(scores, name), abs=1e-6), name


def same_sets(curves, estimator, dev, test):
    """Those of the estimator, which is at the temperature of the run."""
    assert {(row["level"], row["unit"]) for row in curves["sets"]} >= {(0.9, "token")}
    for row in curves["sets"]:
        sets = EstimatorSets.calibrate(estimator, *dev, 1 - row["level"], unit=row["unit"])
        assert row["coverage"] == pytest.approx(sets.coverage(*test, unit=row["unit"]).value)


def test_a_tagger_keeps_what_its_estimator_says(files, tagged):
    curves, tagger = RunFolder(tagged).curves(), CRFTagger.load(tagged)
    dev, test = sentences(files["dev"]), sentences(files["test"])
    assert curves["choices"] == "labels"
    same_calibration(curves["before"], calibration_of(tagger, *test))
    bins = reliability_diagram(tagger.output_probabilities(test[0]), tagger.output_ids(*test))
    assert [tuple(row.values()) for row in curves["before"]["bins"]] == [
        pytest.approx(tuple(one)) for one in bins
    ]
    choice = tune_entity_weight(tagger, *dev, weights=TRIED)
    kept = curves["precision_recall"]
    assert kept["chosen"]["weight"] == choice.best.weight
    assert [row["dev_f1"] for row in kept["points"]] == [row.f for row in choice.rows]
    for row in kept["points"]:
        found = tagger.predict(test[0], entity_weight=row["weight"])
        sums = span_statistics(test[1], found, "bio").rows.sum(0)
        assert row["precision"] == pytest.approx(float(span_precision(sums)))
        assert row["recall"] == pytest.approx(float(span_recall(sums)))
    tagger.calibrate(*dev)
    assert curves["temperature"] == pytest.approx(tagger.temperature_, rel=0.01)
    tagger.tagger_ = tagger.tagger_.__class__(
        **{**vars(tagger.tagger_), "temperature": curves["temperature"]}
    )
    same_calibration(curves["after"], calibration_of(tagger, *test))
    same_sets(curves, tagger, dev, test)


def test_a_parser_keeps_what_its_estimator_says(tmp_path):
    paths = {
        name: parsing_runs.write(tmp_path / f"{name}.conllu", parsing_runs.WORLD.sample(size, seed=seed))
        for seed, (name, size) in enumerate({"train": 60, "dev": 40, "test": 30}.items())
    }  # fmt: skip
    flags = [text for name, path in paths.items() for text in (f"--{name}", path)]
    train_cells(parsing_runs.TASK, [parsing_runs.recipe(*flags)], tmp_path / "run", workers=CPU)
    curves, parser = RunFolder(tmp_path / "run").curves(), DependencyParser.load(tmp_path / "run")
    dev, test = (
        (found, [one.heads for one in found])
        for found in (read_conllu(paths["dev"]), read_conllu(paths["test"]))
    )
    assert curves["choices"] == "heads"
    assert "precision_recall" not in curves
    same_calibration(curves["before"], calibration_of(parser, *test))
    with pytest.warns(match="impossible at any temperature"):  # some trees cross
        parser.calibrate(*dev)
    assert curves["temperature"] == pytest.approx(parser.temperature_, rel=0.01)
    assert curves["after"]["brier"] == pytest.approx(calibration_of(parser, *test).brier, rel=0.01)
    (section,) = read_sections(find_sources([tmp_path / "run"]))
    assert "heads" in part(section, "sets").rows[0][1]


def test_a_classifier_keeps_what_its_estimator_says(tmp_path):
    random = np.random.default_rng(0)
    for name, count in (("train", 120), ("dev", 60), ("test", 50)):
        X = random.normal(size=(count, 2)).round(3)
        y = X[:, 0] + random.normal(size=count) > 0.5
        rows = [f"{a},{b},{int(c)}" for (a, b), c in zip(X, y, strict=True)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["a,b,kind", *rows]) + "\n", "utf-8")
    flags = [
        t for name in ("train", "dev", "test") for t in (f"--{name}", tmp_path / f"{name}.csv")
    ]
    softq("train", "classifier", *flags, "--alpha", 1, "--out", tmp_path / "run")
    curves = RunFolder(tmp_path / "run").curves()
    assert curves["choices"] == "classes"
    assert {row["unit"] for row in curves["sets"]} == {"token"}  # a row is both
    table = {
        name: np.loadtxt(tmp_path / f"{name}.csv", delimiter=",", skiprows=1)
        for name in ("train", "dev", "test")
    }
    model = RewardClassifier(objective="ml", alpha=1, random_state=0)
    model.fit(table["train"][:, :2], table["train"][:, 2].astype(int))
    dev, test = ((table[name][:, :2], table[name][:, 2].astype(int)) for name in ("dev", "test"))
    same_calibration(curves["before"], calibration_of(model, *test))
    model.temperature_ = curves["temperature"]
    same_calibration(curves["after"], calibration_of(model, *test))
    same_sets(curves, model, dev, test)


NEURAL = ["--model", "neural", "--epochs", 1, "--hidden", 4, "--word-size", 4, "--layers", 1]


@pytest.mark.parametrize("task", ["ner", "parsing"])
def test_neural_models_keep_them_too(task, tmp_path):
    flags = [*NEURAL, "--sentences", 40, "--dev-sentences", 30]
    done = softq("train", task, *flags, "--out", tmp_path / "run")
    assert done.exit_code == 0, done.output
    curves = RunFolder(tmp_path / "run").curves()
    assert curves["temperature"] > 0
    assert curves["after"]["bins"]
    assert curves["sets"]
    assert ("precision_recall" in curves) == (task == "ner")


def test_labels_of_another_scheme_are_those_of_the_data(files, tmp_path):
    flags = ner_runs.parts(files, "train", "dev", "test")
    ner_runs.run(tmp_path / "run", *flags, "--train-scheme", "bioes")
    curves, tagger = RunFolder(tmp_path / "run").curves(), CRFTagger.load(tmp_path / "run")
    X, y = sentences(files["test"])
    right = tagger.output_ids(X, [convert(labels, "bio", "bioes") for labels in y])
    same_calibration(curves["before"], calibration_scores(tagger.output_probabilities(X), right))
    row = curves["precision_recall"]["points"][3]
    found = tagger.predict(X, entity_weight=row["weight"])
    sums = span_statistics(y, [convert(one, "bioes", "bio") for one in found], "bio").rows.sum(0)
    assert row["recall"] == pytest.approx(float(span_recall(sums)))


def test_without_a_test_set_every_other_sentence_measures(files, tmp_path):
    ner_runs.run(tmp_path / "run", *ner_runs.parts(files, "train", "dev"))
    curves, tagger = RunFolder(tmp_path / "run").curves(), CRFTagger.load(tmp_path / "run")
    X, y = sentences(files["dev"])
    same_calibration(curves["before"], calibration_of(tagger, X[1::2], y[1::2]))
    choice = tune_entity_weight(tagger, X[::2], y[::2], weights=TRIED)
    assert curves["precision_recall"]["chosen"]["weight"] == choice.best.weight
    assert curves["temperature"] == pytest.approx(
        tagger.calibrate(X[::2], y[::2]).temperature_, rel=0.01
    )


def test_nothing_is_fitted_to_training_sentences(files, tmp_path):
    ner_runs.run(tmp_path / "run", *ner_runs.parts(files, "train"))
    assert RunFolder(tmp_path / "run").curves() is None
    assert not (tmp_path / "run" / CURVES).exists()


def test_tags_that_are_no_entities_have_no_entity_weight(files, tmp_path):
    softq(
        *("train", "tag", *ner_runs.FEW, *ner_runs.parts(files, "train", "dev", "test")),
        *("--out", tmp_path / "run"),
    )
    curves = RunFolder(tmp_path / "run").curves()
    assert curves["sets"]
    assert "precision_recall" not in curves


def test_too_few_sentences_have_no_sets_and_none_has_no_curves():
    p = Independent(torch.randn(4, 3, 2, generator=torch.Generator().manual_seed(0)))
    few = Believed([(np.arange(4), p)], [np.zeros(3, np.int64)] * 4)
    units = {(row["level"], row["unit"]) for row in uncertainty("labels", few, few)["sets"]}
    assert units == {(0.9, "token")}  # 12 tokens: 95 % needs 19, and 4 sentences are too few
    empty = Believed([], [])
    assert uncertainty("labels", few, empty) is None
    assert uncertainty("labels", empty, few) is None


def test_unknown_and_impossible_outputs_do_not_fit_the_temperature():
    trees = ProjectiveTree(torch.randn(30, 5, 5, generator=torch.Generator().manual_seed(1)))
    right = list(trees.sample(generator=torch.Generator().manual_seed(2)).numpy())
    whole = Believed([(np.arange(30), trees)], right)
    changed = [*right[:29], np.array([3, 4, 0, 3])]  # crosses
    others = Believed([(np.arange(30), trees)], changed)
    assert others.temperature(np.arange(30)) == whole.temperature(np.arange(29))
    nothing = Believed([(np.arange(30), trees)], [changed[29]] * 30)
    assert nothing.temperature(np.arange(30)) == 1.0
    p = Independent(torch.tensor([[[0.0, -torch.inf]] * 2] * 2))  # label 1 is forbidden
    for right in ([0, -1], [0, 1], [-1, -1]):
        believed = Believed([(np.arange(2), p)], [np.array(right)] * 2)
        assert believed.temperature(np.arange(2)) == 1.0


# --- in the report --------------------------------------------------------------------------------


def test_the_report_shows_them_and_reads_nothing_else(tagged, tmp_path):
    (section,) = read_sections(find_sources([tagged]))
    curves = RunFolder(tagged).curves()
    row = rows_of(part(section, "calibration"))["tagged"]
    assert float(row["Calibration error, %, before"]) == 100 * curves["before"]["error"]
    assert float(row["Brier score, after"]) == curves["after"]["brier"]
    assert [row[1] for row in part(section, "sets").rows] == [
        f"{level} % of {units}" for units in ("labels", "whole sentences") for level in (90, 95)
    ]
    chosen = curves["precision_recall"]["chosen"]
    row = rows_of(part(section, "entity-weights"))["tagged"]
    assert (float(row["Entity weight"]), float(row["F1"])) == (chosen["weight"], 100 * chosen["f1"])
    points = part(section, "precision-recall")
    assert [row[-1] for row in points.numbers.rows].count("chosen") == 1
    assert f"at weight {chosen['weight']:g}" in points.alt
    assert len(part(section, "reliability").numbers.rows) == sum(
        len(curves[when]["bins"]) for when in ("before", "after")
    )
    write_report([section], tmp_path / "page.html")
    text = text_of(tmp_path / "page.html")
    assert "Reliability diagram" in text
    assert "Precision against recall" in text


def test_a_sweep_shows_the_chosen_models(files, tmp_path):
    flags = ["--objective", "ml,raml", "--tau", "0.5", "--seed", "0:1", "--iterations", 5]
    data = ner_runs.parts(files, "train", "dev", "test")
    done = softq("sweep", "ner", *ner_runs.FEW, *flags, *data, "--out", tmp_path / "swept")
    assert done.exit_code == 0, done.output
    (section,) = read_sections(find_sources([tmp_path / "swept"]))
    assert list(rows_of(part(section, "calibration"))) == ["ML", "RAML τ = 0.5"]
    write_report([section], tmp_path / "page.html")


def test_older_and_damaged_runs(tagged, tmp_path):
    old = shutil.copytree(tagged, tmp_path / "old")
    (old / CURVES).unlink()
    (section,) = read_sections(find_sources([old]))
    assert "calibration" not in {one.name for one in section.parts}
    kept = json.loads((tagged / CURVES).read_text("utf-8"))
    for change, expected in (
        ({"temperature": "hot"}, "temperature must be a number"),
        ({"sets": [{"level": 0.9}]}, "the key 'coverage' is missing"),
        ({"precision_recall": {"points": []}}, "the key 'chosen' is missing"),
    ):
        (old / CURVES).write_text(json.dumps(kept | change), "utf-8")
        with pytest.raises(RunError, match=expected) as caught:
            read_sections(find_sources([old]))
        assert str(old / CURVES) in str(caught.value)
    (old / CURVES).write_text(json.dumps(kept | {"sets": []}), "utf-8")
    (section,) = read_sections(find_sources([old]))
    assert "sets" not in {one.name for one in section.parts}
