"""Named entities from files and from the built-in world.

What is read, trained, judged, and gone on with.
"""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from test_crashes import broken_off_at_every_write

from ner_runs import TASK, labels_of, make_files, parts, predictions, recipe, run, tagger_of, write
from small_runs import CPU, contents
from softq.annotators.reliability import estimate, reference_weights, vote
from softq.errors import ConvergenceWarning, DataError
from softq.formats.conll import Sentence, read_conll
from softq.formats.tags import convert, faults
from softq.lab.run import BEST, METRICS, RESULT, RunFolder
from softq.lab.tasks import train_cells
from softq.lab.tasks.ner_data import bayes_statistics, prepare, read_corpora
from softq.lab.tasks.ner_labels import label
from softq.lab.worlds import EntityWorld
from softq.linear import CRFTagger
from softq.linear.tagging import UNLABELLED
from softq.metrics import span_f1, span_statistics

QUICK = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
few_iterations = pytest.mark.filterwarnings("ignore::softq.errors.ConvergenceWarning")

pytestmark = pytest.mark.usefixtures("one_thread", "no_events")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return make_files(tmp_path_factory.mktemp("files"))


# --- from end to end --------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", [["ml"], ["raml", "--tau", 0.5], ["sqdml", "--tau", 0.5]])
def test_lbfgs_from_end_to_end(tmp_path, files, objective):
    row = run(tmp_path, *parts(files, "train", "dev", "test"), "--objective", *objective)
    for part in ("dev", "test"):
        counts = span_statistics(
            labels_of(files[part]), predictions(tmp_path, files[part]), "bio"
        ).rows.sum(0)
        assert row[part] == row[f"{part}_f1"] == float(span_f1(counts))
        assert row[f"{part}_token_accuracy"] == float(counts[3] / counts[4])
        assert row[f"{part}_precision"] == float(counts[0] / counts[1])
        assert row[f"{part}_recall"] == float(counts[0] / counts[2])
        assert row[f"{part}_exact_match"] == float(counts[5] / counts[6])
    assert row["test"] > 0.6  # what anyone would learn
    assert row["converged"] == 1.0
    assert row["gradient_norm"] <= 1e-4
    assert 0 <= row["kl"] <= row["cross_entropy"] + 1e-9
    (line,) = RunFolder(tmp_path).lines(METRICS)
    assert (line["loss"], line["dev"]) == (row["cross_entropy"], row["dev"])
    statistics = RunFolder(tmp_path).test_counts().model(0)
    assert statistics.shape == (30, 7)
    assert float(TASK.metrics[TASK.chosen_by](statistics.sum(0))) == row["test"]
    assert len(RunFolder(tmp_path).outputs()) == 30
    again = json.loads((tmp_path / RESULT).read_text())
    assert again["cells"][0] == row
    assert (again["task"], again["metric"]) == ("ner", "F1")


def test_ml_is_raml_without_temperature(tmp_path, files):
    flags = [*parts(files, "train", "dev"), "--tolerance", 1e-4]
    ml, raml = (
        run(tmp_path / "ml", *flags),
        run(tmp_path / "raml", *flags, "--objective", "raml", "--tau", 0.01),
    )
    assert ml["penalised_loss"] == pytest.approx(raml["penalised_loss"], rel=1e-5)
    assert ml["kl"] == pytest.approx(ml["cross_entropy"])


def test_adagrad_from_end_to_end(tmp_path, files):
    flags = [*parts(files, "train", "dev", "test"), "--c2", 0.1]
    adagrad = [*flags, "--method", "adagrad", "--epochs", 6, "--batch-size", 16]
    adagrad += ["--learning-rate", 0.3]
    row = run(tmp_path / "a", *adagrad)
    lines = RunFolder(tmp_path / "a").lines(METRICS)
    assert len(lines) == 6
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert row["dev"] == max(line["dev"] for line in lines)
    assert abs(row["test"] - run(tmp_path / "b", *flags)["test"]) < 0.1
    again = run(tmp_path / "c", *adagrad)
    assert again == row
    other = run(tmp_path / "d", *adagrad, "--seed", 1)
    assert (
        other["test_token_accuracy"] != row["test_token_accuracy"]
        or other["dev"] != row["dev"]
        or other["epoch"] != row["epoch"]
    )


def test_without_dev_it_is_judged_by_what_it_learnt_from(tmp_path, files):
    row = run(tmp_path, "--train", files["train"])
    assert row["dev"] == row["test"] > 0.7


def test_halves_of_dev(tmp_path, files):
    row = run(tmp_path / "a", *parts(files, "train", "dev"), "--halve-dev")
    sentences = read_conll(files["dev"]).sentences
    even, odd = (write(tmp_path / f"{half}.conll", sentences[half::2]) for half in (0, 1))
    other = run(tmp_path / "b", "--train", files["train"], "--dev", even, "--test", odd)
    assert {name: value for name, value in row.items() if name != "hash"} == {
        k: v for k, v in other.items() if k != "hash"
    }


def test_folds_are_models_of_the_others(tmp_path, files):
    row = run(tmp_path / "folds", *parts(files, "train", "test"), "--folds", 3, "--c2", 1)
    sentences = read_conll(files["train"]).sentences
    counts = torch.zeros(7, dtype=torch.float64)
    for fold in range(3):
        rest = write(
            tmp_path / "rest.conll", [s for number, s in enumerate(sentences) if number % 3 != fold]
        )
        held_out = write(tmp_path / "fold.conll", sentences[fold::3])
        run(tmp_path / str(fold), "--train", rest, "--dev", held_out, "--c2", 1)
        counts += span_statistics(
            labels_of(held_out), predictions(tmp_path / str(fold), held_out), "bio"
        ).rows.sum(0)
    assert row["dev"] == row["dev_f1"] == pytest.approx(float(span_f1(counts)), abs=0.005)
    whole = run(tmp_path / "whole", *parts(files, "train", "test"), "--c2", 1)
    assert row["test"] == whole["test"]
    assert row["penalised_loss"] == whole["penalised_loss"]


# --- broken off -------------------------------------------------------------------------------------------


@few_iterations
@pytest.mark.parametrize(
    "flags",
    [
        [
            "--iterations",
            9,
            "--tolerance",
            0.2,
            "--checkpoint-every",
            3,
        ],  # which has converged before the end
        ["--iterations", 4, "--tolerance", 1e-9, "--checkpoint-every", 3],
        ["--iterations", 4, "--tolerance", 0.05, "--checkpoint-every", 3, "--folds", 2],
        ["--method", "adagrad", "--epochs", 2, "--batch-size", 30, "--checkpoint-every", 2],
    ],
    ids=["converged", "going", "folds", "adagrad"],
)
def test_a_run_that_is_broken_off_at_any_write_ends_the_same(tmp_path, files, flags):
    train = write(tmp_path / "train.conll", read_conll(files["train"]).sentences[:60])

    def job(out):
        train_cells(
            TASK,
            [recipe("--train", train, "--objective", "raml", "--tau", 0.5, *flags)],
            out,
            resume=True,
            workers=CPU,
        )

    job(tmp_path / "whole")
    whole = contents(tmp_path / "whole")
    writes = 0
    for out in broken_off_at_every_write(job, tmp_path):
        writes += 1
        assert contents(out) == whole
    assert writes >= 2 * 8


# --- annotators -------------------------------------------------------------------------------------------


def test_all_annotators_are_references(files):
    sentences = read_conll(files["crowd"]).sentences
    labelled = label(recipe("--train", files["crowd"], "--constraints", "none"))
    names = labelled.names
    for sentence, found, weights in zip(sentences, *labelled.references, strict=True):
        assert [[names[k] for k in row] for row in found.tolist()] == [
            list(labels) for labels in sentence.references
        ]
        assert weights.tolist() == [1.0] * len(found)
    assert labelled.reliability is None


def test_the_rest_of_a_row_with_a_missing_label_is_a_reference(tmp_path):
    labels = (("B-PER", "?"), ("B-PER", "O"), ("?", "?"), ("O", "O"))
    sentences = [Sentence(("Ann", "ran"), labels, ("w1", "w2", "w3", "w4"))] * 3
    flags = ["--train", write(tmp_path / "t", sentences), "--constraints", "none"]
    found = label(recipe(*flags))
    assert found.names == ("B-PER", "O")
    assert found.references.labels[0].tolist() == [[0, UNLABELLED], [0, 1], [1, 1]]
    assert found.best(0) == ["B-PER", "O"]
    (share, *_) = label(recipe(*flags, "--weights", "dawid-skene")).references.weights
    expected = [weight for weight in reference_weights(sentences[0], estimate(sentences)) if weight]
    assert np.allclose(share / share.sum(), expected)


@pytest.mark.parametrize("ties", ["entity", "outside", "first", "random"])
def test_votes(tmp_path, files, ties):
    flags = ["--train", files["crowd"], "--references", "vote", "--ties", ties]
    labelled = label(recipe(*flags, "--constraints", "none"))
    names = labelled.names
    for sentence, (found,), weights in zip(
        read_conll(files["crowd"]).sentences, *labelled.references, strict=True
    ):
        assert [names[k] for k in found] == convert(
            vote(sentence, ties, seed=0), "bio", "bio"
        )  # mended
        assert weights.tolist() == [1.0]
    mended = label(recipe(*flags, "--constraints", "model"))
    for (found,) in mended.references.labels:
        assert not faults([mended.names[k] for k in found], "bio")
    assert run(tmp_path, *flags, *parts(files, "dev"))["dev"] > 0.4


@pytest.mark.parametrize("weights", ["one-coin", "dawid-skene"])
def test_estimated_weights(tmp_path, files, weights):
    flags = ["--train", files["crowd"], "--weights", weights]
    sentences = read_conll(files["crowd"]).sentences
    reliability = estimate(sentences, weights)
    found = label(recipe(*flags)).references.weights
    sharp = label(recipe(*flags, "--sharpness", 3)).references.weights
    for sentence, share, sharper in zip(sentences, found, sharp, strict=True):
        expected = np.array(reference_weights(sentence, reliability))
        assert np.allclose(share / share.sum(), expected)
        assert np.allclose(sharper / sharper.sum(), expected**3 / (expected**3).sum())
    row = run(tmp_path, *flags, *parts(files, "dev"), "--objective", "sqdml", "--tau", 0.5)
    assert row["dev"] > 0.4
    sharpest = label(recipe(*flags, "--sharpness", 5000)).references.weights
    assert all(share.max() == 1 for share in sharpest)  # not all of them 0


def test_votes_and_weights_need_annotators(files):
    for flags in (
        ["--references", "vote"],
        ["--references", "sequential"],
        ["--weights", "one-coin"],
        ["--annotator-model", "dawid-skene"],
    ):
        with pytest.raises(
            DataError,
            match=(
                r"train.conll: votes, weights and models of annotators need annotators, and the"
                r" file has none"
            ),
        ):
            label(recipe("--train", files["train"], *flags))


# --- schemes, constraints, parts of speech ----------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["iob1", "bioes"])
@pytest.mark.parametrize("constraints", ["none", "decode", "target", "model"])
def test_another_scheme_to_train_in(tmp_path, files, scheme, constraints):
    flags = [
        *parts(files, "train", "dev"),
        "--train-scheme",
        scheme,
        "--constraints",
        constraints,
        "--objective",
        "raml",
        "--tau",
        0.4,
    ]
    row = run(tmp_path, *flags)
    loaded = tagger_of(tmp_path)
    assert (loaded.file_scheme_, loaded.scheme_) == ("bio", scheme)
    tagger = loaded.tagger_
    found = predictions(tmp_path, files["dev"])
    gold = labels_of(files["dev"])
    counts = span_statistics(
        gold, [convert(labels, scheme, "bio") for labels in found], "bio"
    ).rows.sum(0)
    assert row["dev"] == float(span_f1(counts)) > 0.4
    assert float(counts[2]) == sum(
        name.startswith("B-") for labels in gold for name in labels
    )  # as many as the file has
    assert set(tagger.labels) == {
        name for labels in labels_of(files["train"]) for name in convert(labels, "bio", scheme)
    }
    if constraints != "none":
        assert not any(faults(labels, scheme) for labels in found)


@pytest.mark.parametrize("constraints", ["target", "model"])
def test_broken_sequences_are_mended_where_they_must_be(tmp_path, constraints):
    text = (
        "Ann I-PER\nran O\n\nLee B-PER\nran O\n\nAnn B-PER\nLee I-PER\n\nBob B-PER\nran O\n\n" * 3
    )
    path = write(tmp_path / "t", text)
    assert read_corpora(recipe("--train", path).data).scheme == "bio"
    row = run(tmp_path / "run", "--train", path, "--constraints", constraints)
    assert row["dev"] == 1.0
    for flags, first in ((["--constraints", constraints], "B-PER"), ([], "I-PER")):
        labelled = label(recipe("--train", path, *flags))
        assert [labelled.names[k] for k in labelled.references.labels[0][0]] == [first, "O"]


def test_a_word_can_always_be_outside(tmp_path):
    # No O and no S-PER in training, and yet a sentence of one word has a label that the scheme
    # allows.
    text = "Ann B-PER\nLee E-PER\n\nBob B-PER\nLee E-PER\n\nLee E-PER\n"
    row = run(tmp_path / "run", "--train", write(tmp_path / "t", text))
    assert row["dev"] < 1
    assert tagger_of(tmp_path / "run").tagger_.labels == ("B-PER", "E-PER", "O")


def test_mbr_and_viterbi(tmp_path, files):
    rows = [
        run(tmp_path / name, *parts(files, "train", "dev"), "--decoding", name, "--c2", 5)
        for name in ("viterbi", "mbr")
    ]
    assert rows[0]["penalised_loss"] == rows[1]["penalised_loss"]
    assert tagger_of(tmp_path / "mbr").decoding == "mbr"


def test_parts_of_speech(tmp_path, files):
    def with_pos(path):
        return write(
            tmp_path / path.name,
            [
                Sentence(
                    s.tokens,
                    s.labels,
                    (),
                    (("x",) * len(s.tokens), tuple(name[0] for name in s.labels[0])),
                )
                for s in read_conll(path).sentences
            ],
        )

    train, dev = with_pos(files["train"]), with_pos(files["dev"])
    flags = ["--train", train, "--dev", dev]
    row = run(tmp_path / "run", *flags, "--pos", 3, "--templates", "word[0],pos[0]")
    assert (
        row["dev_token_accuracy"]
        > run(tmp_path / "other", *flags, "--templates", "word[0]")["dev_token_accuracy"]
    )
    assert tagger_of(tmp_path / "run").pos_column_ == 3
    with pytest.raises(
        DataError,
        match=r"train.conll, line 1: expected parts of speech in column 4, got 3 before the labels",
    ):
        prepare(recipe(*flags, "--pos", 4))
    with pytest.raises(
        DataError,
        match=r"dev.conll, line 1: expected parts of speech in column 3, got 1 before the labels",
    ):
        prepare(recipe("--train", train, "--dev", files["dev"], "--pos", 3))


def test_all_pairs_and_all_features(tmp_path, files):
    few = run(tmp_path / "a", *parts(files, "train", "dev"), "--no-all-possible-transitions")
    many = run(tmp_path / "b", *parts(files, "train", "dev"), "--all-possible-states")
    tagger = tagger_of(tmp_path / "b").tagger_
    assert many["parameters"] == tagger.index.size * len(tagger.labels) + len(tagger.labels) ** 2
    assert few["parameters"] < many["parameters"]
    hashed = run(tmp_path / "c", *parts(files, "train", "dev"), "--hash-bits", 14)
    assert abs(hashed["dev"] - few["dev"]) < 0.1
    rare = run(tmp_path / "d", *parts(files, "train", "dev"), "--min-freq", 3)
    assert rare["parameters"] < few["parameters"] + 200


# --- convergence, the built-in world, taggers on the disk -------------------------------------------------


def test_too_few_iterations_are_told(tmp_path, files):
    with pytest.warns(
        ConvergenceWarning, match="training stopped after 2 iterations, before it converged"
    ):
        row = run(tmp_path / "a", *parts(files, "train", "dev"), "--iterations", 2)
    assert (row["converged"], row["iterations"]) == (0.0, 2.0)
    with pytest.warns(ConvergenceWarning) as told:
        run(tmp_path / "b", "--train", files["train"], "--iterations", 2, "--folds", 2)
    assert [str(warning.message)[:7] for warning in told] == ["fold 0:", "fold 1:", "trainin"]


@pytest.mark.parametrize(
    "flags",
    [["--objective", "sqdml", "--tau", 0.3, "--weights", "dawid-skene"], ["--references", "vote"]],
)
def test_no_tagger_of_the_world_beats_its_bayes_rule(tmp_path, flags):
    flags = ["--sentences", 250, "--dev-sentences", 250, "--decoding", "mbr", *flags]
    row = run(tmp_path, *flags)
    made = recipe(*flags)
    best = bayes_statistics(made.data)
    found = RunFolder(tmp_path).test_counts().model(0)
    assert torch.equal(best[:, [2, 4, 6]], found[:, [2, 4, 6]])  # the same sentences and entities
    ahead = best[:, 3] - found[:, 3]
    assert float(ahead.mean()) > -4 * float(ahead.std()) / math.sqrt(
        len(ahead)
    )  # by chance once in 30,000 at most
    assert float(best[:, 3].sum() / best[:, 4].sum()) > 0.9
    assert 0.5 < row["test"] < float(span_f1(best.sum(0))) + 0.05


def test_the_signature_names_the_reward():
    assert TASK.signature(recipe()) == "token-accuracy"
    assert (
        TASK.signature(recipe("--entity-weight", 2.5)) == "token-accuracy"
    )  # which ML does not aim at anyway
    toward = ("--objective", "raml", "--tau", 0.5, "--entity-weight", 2.5)
    assert TASK.signature(recipe(*toward)) == "token-reward:entity-weight=2.5"
    assert (
        TASK.signature(recipe(*toward, "--type-credit", 0.5))
        == "token-reward:entity-weight=2.5:type-credit=0.5"
    )


def test_the_best_tagger_of_a_run_is_a_file(tmp_path, files):
    run(tmp_path, *parts(files, "train", "dev"))
    tagger = CRFTagger.load(tmp_path / BEST)
    sentences = [sentence.tokens for sentence in read_conll(files["dev"]).sentences]
    assert tagger.predict(sentences) == predictions(tmp_path, files["dev"])
    assert (tagger.scheme_, tagger.file_scheme_, tagger.pos_column_) == ("bio", "bio", 0)
    with pytest.raises(DataError, match="is not a tagger of softq"):
        CRFTagger.load(tmp_path / RESULT)


def test_keys_of_training_keep_the_others_defaults():
    plain, seeded = recipe().training, recipe("--seed", 3).training
    assert seeded == dataclasses.replace(plain, seed=3)
    assert (plain.epochs, plain.patience, plain.batch_size) == (1, 0, 64)


# --- what must not pass for truth -----------------------------------------------------------------------


def test_annotators_are_not_the_truth(tmp_path, files):
    crowd = tmp_path / "crowd.conll"
    crowd.write_text(
        "# annotators = u v\nAnn\tB-PER\tO\nran\tO\tO\n\n# annotators = u"
        " v\nBob\tB-PER\tB-PER\nran\tO\tO\n"
    )
    with pytest.raises(
        DataError,
        match=(
            r"crowd.conll, line 2: expected the true labels in the last column, got those of"
            r" several annotators"
        ),
    ):
        run(tmp_path / "a", *parts(files, "train"), "--dev", crowd)
    with pytest.raises(
        DataError, match="folds are judged by the labels they hold out, and these are annotators'"
    ):
        run(tmp_path / "b", "--train", crowd, "--folds", 2)


def test_without_a_test_file_folds_are_the_test_too(tmp_path, files):
    row = run(tmp_path / "folds", *parts(files, "train"), "--folds", 3)
    assert row["test"] == row["dev"] == row["dev_f1"] == row["test_f1"]
    assert row["test_token_accuracy"] == row["dev_token_accuracy"]


def test_the_likeliest_labels_are_a_reference(tmp_path):
    world = ["--sentences", 200, "--dev-sentences", 50]
    found = label(recipe(*world, "--references", "dawid-skene"))
    assert found.reliability is not None
    truth = EntityWorld().sample(200, seed=0)
    right = total = 0
    for sentence, labels in zip(truth, found.references.labels, strict=True):
        assert labels.shape[0] == 1
        right += sum(
            found.names[k] == name for k, name in zip(labels[0], sentence.labels[0], strict=True)
        )
        total += len(sentence.tokens)
    voted = label(recipe(*world, "--references", "vote"))
    by_vote = sum(
        sum(voted.names[k] == name for k, name in zip(labels[0], sentence.labels[0], strict=True))
        for sentence, labels in zip(truth, voted.references.labels, strict=True)
    )
    assert right / total > by_vote / total > 0.9  # EM knows whom to believe
    for labels in voted.references.labels:
        assert not faults([voted.names[k] for k in labels[0]], "bio")  # votes are mended


def test_bad_files_leave_nothing_behind(tmp_path):
    for name, text in (("broken.conll", "Ann B-PER\nran\n"), ("none.conll", None)):
        if text is not None:
            (tmp_path / name).write_text(text)
        with pytest.raises(DataError, match=name):
            run(tmp_path / "out", "--train", tmp_path / name)
        assert not (tmp_path / "out").exists()
