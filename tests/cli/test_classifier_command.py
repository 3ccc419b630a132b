"""Classifiers of CSV files on the command line."""

import csv
import json

import numpy as np
import pytest

from ner_commands import softq, well
from softq import RewardClassifier
from softq.lab.run import BEST

pytestmark = pytest.mark.usefixtures("one_thread")

COSTS = "decided,benign,malignant\nbenign,0,10\nmalignant,1,0\n"
FAST = ["--alpha", 1]


def refused(result):
    """The one line of a command that ends with exit code 2."""
    assert (result.exit_code, result.stdout) == (2, ""), (result.output, result.exception)
    (line,) = result.stderr.splitlines()
    return line


def rows(count, seed, labels=("benign", "malignant")):
    random = np.random.default_rng(seed)
    found = random.normal(size=(count, 2)).round(3)
    sick = found[:, 0] + random.normal(size=count) > 0.8
    return [(*map(str, row), labels[int(one)]) for row, one in zip(found, sick, strict=True)]


def write(path, found, header=("size", "age", "kind")):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *found])
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    for part, count in (("train", 120), ("dev", 60), ("test", 50)):
        write(folder / f"{part}.csv", rows(count, count))
    (folder / "costs.csv").write_text(COSTS, "utf-8")
    return folder


@pytest.fixture(scope="module")
def run(files):
    out = files / "runs" / "costs"
    well(
        softq(
            *("train", "classifier", "--train", files / "train.csv", "--dev", files / "dev.csv"),
            *("--test", files / "test.csv", "--costs", files / "costs.csv", *FAST, "--out", out),
        )
    )
    return out


def features(found):
    return np.array([row[:2] for row in found], float), [row[2] for row in found]


def test_a_run_is_the_estimator(files, run):
    train, test = rows(120, 120), rows(50, 50)
    model = RewardClassifier(cost=[[0, 10], [1, 0]], objective="ml", alpha=1.0, random_state=0).fit(
        *features(train)
    )
    told = json.loads(well(softq("evaluate", run, files / "test.csv", "--json")))
    assert told["reward"] == pytest.approx(model.score(*features(test)))
    predicted = model.predict(features(test)[0])
    assert told["accuracy"] == pytest.approx(np.mean(predicted == features(test)[1]))
    assert told["rows"] == 50
    result = json.loads((run / "result.json").read_text("utf-8"))
    assert result["cells"][0]["test_reward"] == pytest.approx(told["reward"])
    assert result["signature"] == "costs:costs.csv"
    shown = well(softq("predict", run, files / "test.csv", "--probabilities")).splitlines()
    assert shown[0] == "size,age,kind,predicted,p(benign),p(malignant)"
    cells = [line.split(",") for line in shown[1:]]
    assert [row[3] for row in cells] == predicted.tolist()
    shares = model.predict_proba(features(test)[0])
    np.testing.assert_allclose([[float(p) for p in row[4:]] for row in cells], shares, atol=1e-6)


def test_columns_are_found_by_their_names(files, run, tmp_path):
    turned = write(
        tmp_path / "turned.csv",
        [(row[1], "7", row[0]) for row in rows(50, 50)],
        header=("age", "other", "size"),
    )
    shown = well(softq("predict", run, turned)).splitlines()[1:]
    expected = well(softq("predict", run, files / "test.csv")).splitlines()[1:]
    assert [line.split(",")[-1] for line in shown] == [line.split(",")[-1] for line in expected]
    from_pipe = softq("predict", run, stdin=turned.read_text("utf-8"))
    assert well(from_pipe).splitlines()[1:] == shown


def test_numbers_as_labels_and_rewards_by_name(files, tmp_path):
    train = write(tmp_path / "train.csv", rows(60, 1, labels=("1", "10")))
    arguments = ["train", "classifier", "--train", train, *FAST, "--reward", "absolute"]
    well(softq(*arguments, "--objective", "raml", "--tau", 4, "--out", tmp_path / "run"))
    shown = well(softq("evaluate", tmp_path / "run", train))
    assert "mean reward" in shown
    wrong = write(tmp_path / "wrong.csv", rows(9, 1, labels=("one", "10")))
    assert "labels that are whole numbers, as in training, got 'one'" in refused(
        softq("evaluate", tmp_path / "run", wrong)
    )
    # the label need not be the last column
    first = write(
        tmp_path / "first.csv",
        [(row[2], *row[:2]) for row in rows(60, 1)],
        header=("kind", "size", "age"),
    )
    arguments = ["train", "classifier", "--train", first, "--label-column", "kind", *FAST]
    row = json.loads(well(softq(*arguments, "--out", tmp_path / "first", "--json")))["cells"][0]
    assert row["dev_accuracy"] > 0.6


def test_a_finished_run_is_resumed_and_compared(files, run):
    again = json.loads(well(softq("train", "--resume", "--out", run, "--json")))
    assert again["cells"][0]["epoch"] == 1
    told = json.loads(well(softq("evaluate", run, files / "dev.csv", "--against", run, "--json")))
    assert told["against"]["reward"]["difference"]["value"] == 0.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name the training file: softq train classifier --train FILE.csv"),
        (["--train", "train.csv", "--label-column", "sort"], "expected a column 'sort', got size"),
        (
            ["--train", "train.csv", "--costs", "costs.csv", "--reward", "squared"],
            "costs and reward say the same",
        ),
        (["--train", "words.csv"], "words.csv, line 2, column 'word': expected a number, got 'a'"),
        (["--train", "alone.csv"], "expected columns of numbers beside 'kind', got none"),
    ],
)
def test_what_does_not_fit_is_one_clear_error(files, arguments, message, tmp_path):
    write(tmp_path / "words.csv", [("a", "x"), ("b", "y")], header=("word", "kind"))
    write(tmp_path / "alone.csv", [("x",), ("y",)], header=("kind",))
    places = {"train.csv": files, "costs.csv": files}
    arguments = [places.get(a, tmp_path) / a if a.endswith(".csv") else a for a in arguments]
    out = tmp_path / "run"
    assert message in refused(softq("train", "classifier", *arguments, "--out", out))
    assert not out.exists()


def test_files_for_another_model_are_refused(files, run, tmp_path):
    unknown = write(tmp_path / "unknown.csv", rows(9, 1, labels=("benign", "new")))
    message = refused(softq("evaluate", run, unknown))
    assert "expected one of the labels benign, malignant, got 'new'" in message
    twice = write(tmp_path / "twice.csv", rows(9, 1), header=("size", "age", "predicted"))
    assert "expected a file without a column 'predicted'" in refused(softq("predict", run, twice))
    assert "--plain" in refused(softq("predict", run, files / "test.csv", "--plain"))


def test_damaged_models_are_refused(files, run, tmp_path):
    from safetensors.torch import load_file, save_file

    tensors = load_file(run / BEST)

    def written(change, *left_out):
        notes = json.loads(tensors["about"].numpy().tobytes())
        text = json.dumps(change(notes)).encode()
        about = tensors["about"].new_tensor(list(text))
        kept = {name: one for name, one in tensors.items() if name not in left_out}
        save_file(kept | {"about": about}, tmp_path / "model.safetensors")
        return softq("predict", tmp_path / "model.safetensors", files / "test.csv")

    assert well(written(lambda notes: notes)) == well(softq("predict", run, files / "test.csv"))
    assert "expected 2 names of columns, got 1" in refused(
        written(lambda notes: notes | {"columns": ["size"]})
    )
    assert "expected the tensors and notes of a classifier" in refused(
        written(lambda notes: {k: v for k, v in notes.items() if k != "objective"})
    )
    assert "expected a table of rewards, got none" in refused(
        written(lambda notes: notes | {"given": None}, "reward")
    )
