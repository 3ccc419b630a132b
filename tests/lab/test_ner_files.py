"""Files and recipes that the named-entity experiment refuses, and any others that it must live with."""

import contextlib
import math
import warnings

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_conll import FRAGMENTS, sentences_of

from ner_runs import TASK, make_files, recipe, run, write
from small_runs import CPU
from softq.errors import ConvergenceWarning, DataError, RecipeError
from softq.formats.conll import Sentence, read_conll, to_conll
from softq.lab.tasks.base import measures
from softq.lab.tasks.ner_data import prepare
from softq.lab.tasks.ner_labels import label

QUICK = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
few_iterations = pytest.mark.filterwarnings("ignore::softq.errors.ConvergenceWarning")

pytestmark = pytest.mark.usefixtures("one_thread", "no_events")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return make_files(tmp_path_factory.mktemp("files"))


def test_a_label_that_training_does_not_have(tmp_path, files):
    dev = write(tmp_path / "dev.conll", "Ann O\nLee O\n\nin O\nRome B-GPE\n")
    with pytest.raises(
        DataError, match=r"dev.conll, line 5: the label B-GPE does not occur in the training file"
    ):
        prepare(recipe("--train", files["train"], "--dev", dev))
    write(dev, "Ann O\nLee I-PER\n")
    with pytest.raises(
        DataError, match=r"dev.conll, line 2: expected O or B-\* after O, got I-PER \(bio\)"
    ):
        prepare(recipe("--train", files["train"], "--dev", dev))


@pytest.mark.parametrize(
    ("text", "flags", "message"),
    [
        ("", [], "t: no sentences: expected lines of a token and its label"),
        ("Ann B-PER\nLee\n", [], "t, line 2: expected 2 columns separated by spaces"),
        ("Ann\tB-PER\nran\tO\nLee\t\n", [], "t, line 3: column 2 is empty"),
        (
            "She PRP\nran VBD\n",
            [],
            "t: expected entity tags such as B-PER and O in the last column, got 'PRP', 'VBD'",
        ),
        (
            "Ann B-PER\nran O\n\nat O\nhome LOC\n",
            [],
            r"t, line 5: expected a tag of bio such as B-PER or O, got 'LOC'",
        ),
        ("Ann B-PER\nran ?\n", [], "t, line 2: expected a tag .* got '\\?'"),
        (
            "Ann O\nLee I-PER\n",
            ["--scheme", "bio"],
            r"t, line 2: expected O or B-\* after O, got I-PER",
        ),
        (
            "Ann B-PER\nran O|\n",
            ["--partial-labels"],
            "t, line 2: expected a label, . for a missing",
        ),
        (
            "Ann B-PER\nran O|LOC\n",
            ["--partial-labels"],
            r"t, line 2: expected a tag of bio .*'O\|LOC'",
        ),
        (
            "# annotators = a\nAnn B-PER\nran O\n",
            ["--partial-labels"],
            "t, line 2: partial_labels are of one column of labels, and these are annotators'",
        ),
        (
            "Ann B-PER|O\nran ?\n",
            ["--partial-labels"],
            r"t: expected entity tags .* or name the scheme of tags that are all uncertain",
        ),
        ("Ann B-PER O\nran O\n", ["--annotators", "2"], "t, line 2: expected 3 columns"),
        (
            "Ann B-PER\n",
            ["--folds", "2"],
            "t: expected 2 sentences or more, one for each fold, got 1",
        ),
    ],
)
def test_broken_files_are_named_with_their_line(tmp_path, text, flags, message):
    with pytest.raises(DataError, match=message):
        prepare(recipe("--train", write(tmp_path / "t", text), *flags))
    with pytest.raises(DataError, match=message):
        run(tmp_path / "run", "--train", tmp_path / "t", *flags)


UNLABELLED = (
    "# annotators = a b\nAnn B-PER ?\nran O O\n\n# annotators = a b\nAnn ? O\nran ? ?\n\n" * 3
)


@pytest.mark.parametrize("flags", [[], ["--references", "vote"], ["--weights", "dawid-skene"]])
def test_references_need_a_label_of_every_token(tmp_path, flags):
    path = write(tmp_path / "t", UNLABELLED)
    message = (
        r"t, line 7: expected a label of one annotator or more for 'ran', got none; annotator_model"
        r" = sequential, or references = sequential or dawid-skene, can do without"
    )
    with pytest.raises(DataError, match=message):
        run(tmp_path / "run", "--train", path, *flags)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "flags",
    [
        ["--annotator-model", "sequential"],
        ["--annotator-model", "dawid-skene"],
        ["--references", "sequential"],
        ["--references", "dawid-skene"],
    ],
)
@pytest.mark.parametrize("nothing", ["", "# annotators = a b\nBob ? ?\n\n"])
def test_what_can_do_without_a_label_of_every_token(tmp_path, flags, nothing):
    path = write(tmp_path / "t", UNLABELLED + nothing)
    assert run(tmp_path / "run", "--train", path, *flags)["dev"] >= 0
    found = label(recipe("--train", path, *flags))
    sentences = read_conll(path).sentences
    guesses = [found.best(number) for number in range(len(sentences))]
    assert [len(labels) for labels in guesses] == [len(one.tokens) for one in sentences]
    assert {name for labels in guesses for name in labels} <= {"B-PER", "O"}
    if flags != ["--references", "dawid-skene"]:  # for which these are too few
        assert guesses[0] == ["B-PER", "O"]


@pytest.mark.parametrize("objective", [["ml"], ["raml", "--tau", 0.5], ["sqdml", "--tau", 0.5]])
@pytest.mark.parametrize("constraints", ["none", "target", "model"])
@pytest.mark.parametrize("scheme", ["same", "bioes"])
def test_rows_with_missing_labels_train(tmp_path, objective, constraints, scheme):
    # the third row, filled in by the first two, has an I-PER after an O
    rows = (("B-PER", "I-PER", "O"), ("B-PER", "I-PER", "?"), ("O", "?", "O"), ("B-PER", "?", "O"))
    sentences = [Sentence(("Ann", "Lee", "ran"), rows, ("a", "b", "c", "d"))] * 3
    path = write(tmp_path / "t", sentences)
    flags = ["--train", path, "--objective", *objective, "--constraints", constraints]
    row = run(tmp_path / "run", *flags, "--train-scheme", scheme, "--scheme", "bio")
    assert math.isfinite(row["kl"])


def test_other_faults_of_files(tmp_path, files):
    with pytest.raises(DataError, match=r"cannot read .*none"):
        prepare(recipe("--train", tmp_path / "none"))
    (tmp_path / "latin").write_bytes("Ann B-PER\nCafé O\n".encode("latin-1"))
    with pytest.raises(DataError, match="latin, line 2: expected UTF-8"):
        prepare(recipe("--train", tmp_path / "latin"))
    one = write(tmp_path / "one", "Ann O\n")
    with pytest.raises(DataError, match="one: expected two sentences or more to halve, got 1"):
        prepare(recipe("--train", files["train"], "--dev", one, "--halve-dev"))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--folds", 1], "folds must be 0, or 2 and more, got 1"),
        (["--folds", -2], "folds must be 0, or 2 and more"),
        (
            ["--train", "a", "--dev", "b", "--folds", 3],
            "folds are for training without a development file",
        ),
        (["--halve-dev"], "halve_dev takes the test part from dev"),
        (
            ["--train", "a", "--dev", "b", "--test", "c", "--halve-dev"],
            "halve_dev takes the test part from dev",
        ),
        (["--dev", "b"], "name the training file as well"),
        (["--annotators", "many"], "annotators is a number of columns, or all, got 'many'"),
        (["--annotators", "3"], "folds, annotators and scheme are of files"),
        (["--folds", 3], "folds, annotators and scheme are of files"),
        (["--scheme", "bioes"], "folds, annotators and scheme are of files"),
        (["--scheme", "iobes"], "scheme"),
        (["--pos", 1], "pos must be 0, or a column from 2 on, got 1"),
        (["--pos", 2], "the built-in world has no parts of speech"),
        (["--c2", -1], "c2 must be at least 0"),
        (["--c2", "inf"], "c2 must be at least 0 and finite"),
        (["--epochs", 3], "lbfgs counts iterations, not epochs"),
        (["--train", "a", "--method", "adagrad", "--folds", 2], "folds are for lbfgs"),
        (
            ["--method", "adagrad", "--no-all-possible-transitions"],
            "adagrad has weights for all neighbouring labels",
        ),
        (
            ["--objective", "raml", "--tau", 1, "--temperature-scaled"],
            "ner has no temperature_scaled",
        ),
        (["--objective", "raml"], "tau"),
        (
            ["--annotator-model", "sequential", "--references", "vote"],
            "annotator_model estimates the truth .* leave out references and weights",
        ),
        (
            ["--annotator-model", "sequential", "--weights", "one-coin"],
            "leave out references and weights",
        ),
        (
            ["--annotator-model", "sequential", "--entity-weight", 2],
            "the reward is the annotators' log-probability: leave out entity_weight",
        ),
        (
            ["--annotator-model", "sequential", "--objective", "raml", "--tau", 1],
            "annotator_model goes with ml, .* or sqdml, .* got raml",
        ),
        (
            ["--annotator-model", "sequential", "--method", "adagrad"],
            "annotator_model needs method = lbfgs, got adagrad",
        ),
        (
            ["--train", "a", "--annotator-model", "sequential", "--partial-labels"],
            "annotator_model and partial_labels do not go together",
        ),
        (["--rounds", 2, "--loop-c2", 1], "rounds, loop_c2: of the tagger in the loop"),
        (["--train", "a", "--partial-labels", "--temper", 1], "temper and evidence_floor are of"),
        (["--partial-labels"], "partial_labels are of files"),
        (
            ["--train", "a", "--partial-labels", "--annotators", "all"],
            "partial_labels are of one column of labels: leave out annotators",
        ),
        (
            ["--train", "a", "--partial-labels", "--folds", 2],
            "folds are scored by the labels they hold out, and partial_labels are not all known",
        ),
        (
            ["--train", "a", "--partial-labels", "--objective", "sqdml", "--tau", 1],
            "partial_labels go with ml, .* got sqdml",
        ),
        (
            ["--train", "a", "--partial-labels", "--method", "adagrad"],
            "partial_labels needs method = lbfgs",
        ),
    ],
)
def test_recipes_that_do_not_fit_together(flags, message):
    with pytest.raises(RecipeError, match=message):
        recipe(*flags)


def test_one_process_trains(files):
    class Two:
        size = 2

    with pytest.raises(
        RecipeError, match="ner trains in one process with several threads, got 2 processes"
    ):
        TASK.learner([recipe("--train", files["train"])], Two())


def train_quickly(path, *flags):
    """All that a run does, but for its folder."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        learner = TASK.learner([recipe("--train", path, "--iterations", 3, *flags)], CPU)
        learner.train(0, 0, learner.steps, [True])
        learner.end_epoch([True])
        learner.evaluate([True])
        learner.keep_best([True])
        learner.load_best(learner.best())
        (row,) = measures(TASK, learner.evaluate_best())
    assert all(math.isfinite(value) for value in row.values())


OPTIONS = [
    ["--constraints", "model", "--objective", "sqdml", "--tau", 0.5],
    ["--constraints", "none", "--train-scheme", "bioes"],
    ["--references", "vote", "--constraints", "target", "--annotators", "all"],
    ["--folds", 2, "--train-scheme", "iob1"],
    ["--method", "adagrad", "--constraints", "model"],
    ["--weights", "dawid-skene", "--objective", "raml", "--tau", 2],
    ["--constraints", "target", "--annotators", "all"],
    ["--annotator-model", "sequential", "--loop-folds", 2, "--constraints", "model"],
    ["--annotator-model", "dawid-skene", "--loop-folds", 2, "--objective", "sqdml", "--tau", 2],
    ["--partial-labels", "--loop-folds", 2, "--scheme", "bio"],
]


@QUICK
@given(
    st.lists(st.sampled_from([*FRAGMENTS, b"a\tB-P\n", b"b\tI-P\n", b"c\tE-P\n\n"]), max_size=12),
    st.sampled_from(OPTIONS),
)
def test_any_bytes_train_or_are_refused(tmp_path, pieces, flags):
    path = tmp_path / "t"
    path.write_bytes(b"".join(pieces))
    with contextlib.suppress(DataError, RecipeError):
        train_quickly(path, *flags)


@QUICK
@given(
    st.booleans().flatmap(lambda annotated: sentences_of(annotated)),
    st.sampled_from(OPTIONS),
    st.sampled_from(["", "\ufeff"]),
)
def test_any_sentences_train_or_are_refused(tmp_path, sentences, flags, mark):
    path = tmp_path / "t"
    path.write_bytes((mark + to_conll(sentences)).replace("\n", "\r\n" if mark else "\n").encode())
    with contextlib.suppress(DataError, RecipeError):
        train_quickly(path, *flags)


def test_a_file_that_changes_is_read_again(tmp_path):
    path = write(tmp_path / "t", "Ann B-PER\nran O\n")
    assert label(recipe("--train", path)).names == ("B-PER", "O")
    write(path, "Rome B-LOC\nran O\n")
    assert label(recipe("--train", path)).names == ("B-LOC", "O")
    prepared = prepare(recipe("--train", path))
    assert "word[0]=Rome" in prepared.index.names()
    assert prepare(recipe("--train", path)) is prepared
