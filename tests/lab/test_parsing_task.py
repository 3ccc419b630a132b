"""Dependency parsing from files and from the built-in world.

What is read, trained, judged, refused, and gone on with.
"""

import json
import math

import numpy as np
import pytest
import torch
from test_crashes import broken_off_at_every_write

from parsing_runs import TASK, make_files, parts, recipe, right_heads, run, write
from small_runs import CPU, contents
from softq.errors import ConvergenceWarning, RunError
from softq.formats.conllu import read_conllu
from softq.lab.loop import NonFiniteLossError
from softq.lab.run import BEST, METRICS, RESULT, RunFolder
from softq.lab.tasks import train_cells
from softq.lab.tasks.parsing import bayes_statistics, prepare, read_corpora
from softq.lab.tasks.parsing_recipe import ParsingData
from softq.linear import DependencyParser
from softq.linear.parser_training import Descent
from softq.linear.parsing import Parser
from softq.metrics import ATTACHMENT_METRICS

pytestmark = pytest.mark.usefixtures("one_thread", "no_events")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return make_files(tmp_path_factory.mktemp("files"))


# --- from end to end --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flags",
    [["ml"], ["raml", "--tau", 0.5, "--spanning"], ["sqdml", "--tau", 0.5, "--decoding", "mbr"]],
)
def test_from_end_to_end(tmp_path, files, flags):
    flags = [*parts(files, "train", "dev", "test"), "--epochs", 4, "--objective", *flags]
    row = run(tmp_path, *flags)
    parser = DependencyParser.load(tmp_path / BEST)
    assert parser.decoding == recipe(*flags).model.decoding
    for part in ("dev", "test"):
        sentences = read_conllu(files[part])
        parses = parser.predict(sentences)
        assert (
            row[part]
            == row[f"{part}_uas"]
            == pytest.approx(right_heads(sentences, parses), abs=1e-12)
        )
        exact = [
            sentence.heads == parse.heads for sentence, parse in zip(sentences, parses, strict=True)
        ]
        assert row[f"{part}_exact_match"] == pytest.approx(sum(exact) / len(exact))
        assert {f"{part}_{name}" for name in ATTACHMENT_METRICS} <= row.keys()
        assert row[f"{part}_labelled_exact_match"] <= row[f"{part}_exact_match"]
        assert row[f"{part}_las"] <= row[part]
    assert row["test"] > 0.4  # what anyone would learn
    lines = RunFolder(tmp_path).lines(METRICS)
    assert len(lines) == 4
    assert row["dev"] == max(line["dev"] for line in lines)
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert lines[-1]["relation_loss"] < lines[0]["relation_loss"]
    statistics = RunFolder(tmp_path).test_counts().model(0)
    assert statistics.shape == (15, 10)
    assert float(TASK.metrics[TASK.chosen_by](statistics.sum(0))) == row["test"]
    assert len(RunFolder(tmp_path).outputs()) == 15
    result = json.loads((tmp_path / RESULT).read_text())
    assert (result["task"], result["metric"], result["signature"]) == (
        "parsing",
        "UAS",
        "attachment",
    )
    assert result["cells"] == [row]


def test_the_measures_are_those_of_the_kept_parser(tmp_path, files):
    flags = [*parts(files, "train", "dev"), "--references", files["other"]]
    row = run(tmp_path, *flags)
    prepared, learner = prepare(recipe(*flags)), TASK.learner([recipe(*flags)], CPU)
    parser = DependencyParser.load(tmp_path / BEST).parser_
    bank = prepared.treebank
    surprise = entropy = 0.0
    for numbers, space in parser.trees(bank.codes):
        for row_, number in enumerate(numbers):
            heads = bank.possible.heads[number]
            padded = torch.zeros(len(numbers), space.mode().shape[1], dtype=torch.int64)
            for tree in heads:
                padded[:] = space.mode()
                padded[row_, : len(tree)] = torch.from_numpy(tree)
                surprise -= float(space.log_prob(padded)[row_]) / len(heads)
            if (heads[0] != heads[1]).any():
                entropy += math.log(2)
    assert row["cross_entropy"] == pytest.approx(surprise / 60, rel=1e-5)
    assert row["kl"] == pytest.approx((surprise - entropy) / 60, rel=1e-5)
    assert row["parameters"] == 2**12 + 2**8 * len(bank.relations)
    # a parser without weights has every relation for the same
    blank = Parser(
        bank.index, parser.weights, parser.relations, np.zeros_like(parser.relation_weights)
    )
    descent = Descent(bank, learner._estimator.settings(), 0.1, 0.1)
    losses = {
        name: descent.relation_loss(np.arange(len(bank)), of) / prepared.words
        for name, of in (("own", parser), ("blank", blank))
    }
    assert losses["blank"] == pytest.approx(math.log(len(bank.relations)), rel=1e-6)
    assert 0 < row["relation_loss"] == pytest.approx(losses["own"])
    assert losses["own"] < losses["blank"]


def test_ml_is_raml_without_temperature(tmp_path, files):
    flags = parts(files, "train", "dev")
    ml, raml = (
        run(tmp_path / "ml", *flags),
        run(tmp_path / "raml", *flags, "--objective", "raml", "--tau", 0.02),
    )
    assert ml["cross_entropy"] == pytest.approx(raml["cross_entropy"], rel=1e-4)
    assert ml["kl"] == pytest.approx(ml["cross_entropy"])


def test_without_dev_it_is_judged_by_what_it_learnt_from(tmp_path, files):
    row = run(tmp_path, "--train", files["train"], "--references", files["other"])
    sentences = read_conllu(files["train"])
    parser = DependencyParser.load(tmp_path / BEST).parser_
    assert (
        row["dev"] == row["test"] == pytest.approx(right_heads(sentences, parser.parse(sentences)))
    )


def test_halves_of_dev(tmp_path, files):
    row = run(tmp_path / "a", *parts(files, "train", "dev"), "--halve-dev")
    sentences = read_conllu(files["dev"])
    even, odd = (write(tmp_path / f"{half}.conllu", sentences[half::2]) for half in (0, 1))
    other = run(tmp_path / "b", "--train", files["train"], "--dev", even, "--test", odd)
    assert {name: value for name, value in row.items() if name != "hash"} == {
        k: v for k, v in other.items() if k != "hash"
    }


def test_batches_are_new_in_every_epoch_and_hold_every_sentence_once(files):
    flags = ["--train", files["train"], "--batch-size", 7]
    learner = TASK.learner([recipe(*flags)], CPU)
    first, again, second = (learner.batches(epoch) for epoch in (0, 0, 1))
    assert len(first) == 9
    assert all(len(batch) in (6, 7) for batch in first)
    assert sorted(np.concatenate(first)) == sorted(np.concatenate(second)) == list(range(60))
    assert all(map(np.array_equal, first, again))
    assert {frozenset(batch.tolist()) for batch in first} != {
        frozenset(batch.tolist()) for batch in second
    }
    other = TASK.learner([recipe(*flags, "--seed", 1)], CPU)
    assert not np.array_equal(np.concatenate(first), np.concatenate(other.batches(0)))


def test_lbfgs_converges_and_is_judged_at_the_end(tmp_path, files):
    flags = [
        *parts(files, "train", "dev"),
        "--method",
        "lbfgs",
        "--iterations",
        90,
        "--tolerance",
        0.01,
        "--epochs",
        3,
    ]
    row = run(tmp_path / "a", *flags)
    assert (row["converged"], row["epoch"]) == (1.0, 3)
    assert row["gradient_norm"] <= 0.01
    lines = RunFolder(tmp_path / "a").lines(METRICS)
    assert [line["dev"] for line in lines] == [None, None, row["dev"]]
    assert lines[-1]["loss"] == pytest.approx(row["cross_entropy"], rel=1e-5)
    parser = DependencyParser.load(tmp_path / "a").parser_
    penalty = float(np.square(parser.weights.astype(np.float64)).sum())  # c2 is 1
    assert row["penalised_loss"] == pytest.approx(60 * row["cross_entropy"] + penalty, rel=1e-5)
    with pytest.warns(
        ConvergenceWarning, match="training stopped after 3 iterations, before it converged"
    ):
        short = run(tmp_path / "b", *flags, "--iterations", 3)
    assert (short["converged"], short["iterations"]) == (0.0, 3.0)
    assert short["penalised_loss"] > row["penalised_loss"]
    run(tmp_path / "c", *parts(files, "train", "dev"), "--epochs", 3)
    of_adagrad = RunFolder(tmp_path / "c").lines(
        METRICS
    )  # which learns relations alike, whatever the trees
    assert [line["relation_loss"] for line in lines] == [
        line["relation_loss"] for line in of_adagrad
    ]


# --- broken off -------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::softq.errors.ConvergenceWarning")
@pytest.mark.parametrize(
    "flags",
    [
        ["--checkpoint-every", 2],
        ["--method", "lbfgs", "--iterations", 4, "--checkpoint-every", 1],
        [
            "--method",
            "lbfgs",
            "--iterations",
            4,
            "--tolerance",
            0.9,
            "--checkpoint-every",
            3,
        ],  # which has converged before the end
    ],
    ids=["adagrad", "lbfgs", "converged"],
)
def test_a_run_that_is_broken_off_at_any_write_ends_the_same(tmp_path, files, flags):
    train = write(tmp_path / "train.conllu", read_conllu(files["train"])[:24])

    def job(out):
        made = recipe("--train", train, "--objective", "raml", "--tau", 0.5, *flags)
        train_cells(TASK, [made], out, resume=True, workers=CPU)

    job(tmp_path / "whole")
    whole = contents(tmp_path / "whole")
    writes = 0
    for out in broken_off_at_every_write(job, tmp_path):
        writes += 1
        assert contents(out) == whole
    assert writes >= 2 * 6


def test_what_is_not_finite_stops_with_the_batch_saved(tmp_path, files, monkeypatch):
    learner = TASK.learner([recipe(*parts(files, "train"))], CPU)
    monkeypatch.setattr(learner._fit.descent, "step", lambda sentences: (1.0, math.nan))
    with pytest.raises(
        NonFiniteLossError, match="the loss is not finite: 1 of trees, nan of relations"
    ) as stopped:
        learner.train(0, 3, 4, [True])
    assert stopped.value.batch["sentences"].tolist() == learner.batches(0)[3].tolist()
    with pytest.raises(
        RunError, match=r"the loss is not finite: .* the batch is in .*nonfinite.safetensors"
    ):
        run(tmp_path / "run", *parts(files, "train"), "--learning-rate", 1e38)
    assert (tmp_path / "run" / "nonfinite.safetensors").is_file()
    assert not (tmp_path / "run" / RESULT).exists()
    monkeypatch.setattr(
        "softq.linear.parser_training._slopes", lambda scores, *rest: (math.inf, scores)
    )
    with pytest.raises(RunError, match=r"iteration \d+: the objective is .*nonfinite.safetensors"):
        run(tmp_path / "search", *parts(files, "train"), "--method", "lbfgs")


# --- the built-in world -----------------------------------------------------------------------------------


@pytest.mark.parametrize("crossing", [0, 0.5])
def test_no_parser_of_the_world_beats_its_bayes_rule(tmp_path, crossing):
    flags = [
        "--sentences",
        150,
        "--dev-sentences",
        150,
        "--crossing",
        crossing,
        "--decoding",
        "mbr",
        "--objective",
        "sqdml",
        "--tau",
        0.1,
    ]
    row = run(tmp_path, *flags, "--epochs", 4)
    assert (row["lifted"] > 0) == (crossing > 0)
    made = recipe(*flags)
    best = bayes_statistics(made.data)
    found = RunFolder(tmp_path).test_counts().model(0)
    assert torch.equal(best[:, [0, 6, 9]], found[:, [0, 6, 9]])  # the same sentences
    ahead = best[:, 1] - found[:, 1]
    assert float(ahead.mean()) > -4 * float(ahead.std()) / math.sqrt(
        len(ahead)
    )  # by chance once in 30,000 at most
    assert float(best[:, 1].sum() / best[:, 0].sum()) > row["test"] > 0.4


def test_annotators_of_the_world():
    truth = read_corpora(ParsingData(sentences=40, dev_sentences=5, annotators=0))
    assert [heads.tolist() for heads in truth.trees.heads] == [
        [list(sentence.heads)] for sentence in truth.train
    ]
    several = read_corpora(
        ParsingData(sentences=40, dev_sentences=5, annotators=4, carelessness=0.3)
    )
    assert several.train == truth.train
    assert {heads.shape[0] for heads in several.trees.heads} == {4}
    careful = read_corpora(
        ParsingData(sentences=40, dev_sentences=5, annotators=2, carelessness=0.0)
    )
    wrong = 0
    for sentence, heads, relations in zip(several.train, *several.trees[:2], strict=True):
        for tree, names in zip(heads, relations, strict=True):
            same = tree == np.array(sentence.heads)
            assert all(
                a == b for a, b, kept in zip(names, sentence.relations, same, strict=True) if kept
            )
            assert all(
                (name == "root") == (head == 0) for name, head in zip(names, tree, strict=True)
            )
            wrong += not same.all()
    assert 0.15 < wrong / 160 < 0.45
    for sentence, heads, relations in zip(careful.train, *careful.trees[:2], strict=True):
        assert heads.tolist() == [list(sentence.heads)] * 2
        assert relations == [sentence.relations] * 2
    assert (
        len({sentence.forms for part in (truth.train, truth.dev, truth.test) for sentence in part})
        > 40
    )
