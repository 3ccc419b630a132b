"""softq tune: the entity weight that development data choose, and commands that decode by it."""

import csv

import pytest

from ner_commands import (
    FAST,
    evaluated,
    make_corpus,
    make_runs,
    predictions,
    refused,
    softq,
    told,
    well,
)
from softq import CRFTagger, DependencyParser
from softq.formats.conll import read_conll
from softq.lab.worlds import TreeWorld
from softq.linear import tune_entity_weight


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def runs(corpus, tmp_path_factory):
    return make_runs(corpus, tmp_path_factory.mktemp("runs"))[0]


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    folder = tmp_path_factory.mktemp("others")
    CRFTagger(**FAST, templates=["word[0]"]).fit([["a", "b"]], [["NN", "VB"]]).save(folder / "pos")
    options = {"bits": 12, "relation_bits": 8, "epochs": 1, "templates": ["dep.word"]}
    DependencyParser(**options).fit(TreeWorld(lemmas=6).sample(10, seed=0)).save(folder / "parser")
    return folder


def test_weights_are_those_of_the_function_and_of_evaluate(corpus, runs, tmp_path):
    out = tmp_path / "weights.csv"
    found = told(softq("tune", runs / "bio", corpus / "dev.conll", "--out", out, "--json"))
    sentences = read_conll(corpus / "dev.conll").sentences
    tokens, labels = [s.tokens for s in sentences], [list(s.labels[0]) for s in sentences]
    choice = tune_entity_weight(CRFTagger.load(runs / "bio"), tokens, labels)
    assert found["best"] == choice.best._asdict()
    assert found["weights"] == [row._asdict() for row in choice.rows]
    with out.open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["weight", "precision", "recall", "f"]
    assert [float(row[3]) for row in rows[1:]] == [row.f for row in choice.rows]
    own = evaluated(runs / "bio", corpus / "dev.conll")
    assert found["own"] == {"precision": own["precision"], "recall": own["recall"], "f": own["f1"]}
    for row in choice.rows[::7]:
        weighted = evaluated(runs / "bio", corpus / "dev.conll", "--entity-weight", row.weight)
        assert weighted["f1"] == pytest.approx(row.f)
        assert weighted["recall"] == pytest.approx(row.recall)


def test_the_table_marks_the_best_and_beta_changes_it(corpus, runs):
    for beta in (0.25, 4):
        printed = well(softq("tune", runs / "bioes", corpus / "dev.conll", "--beta", beta))
        found = told(softq("tune", runs / "bioes", corpus / "dev.conll", "--beta", beta, "--json"))
        (line,) = [line for line in printed.splitlines() if line.rstrip().endswith("best")]
        assert float(line.split()[0]) == found["best"]["weight"]
        assert f"--entity-weight {found['best']['weight']:g}" in printed
        assert f"F{beta:g}" in printed


def test_predicting_with_a_weight_and_scoring_are_evaluating(corpus, runs, tmp_path):
    labelled = tmp_path / "labelled.conll"
    predictions(runs / "bio", corpus / "test.conll", "--entity-weight", 3, "--out", labelled)
    direct = evaluated(runs / "bio", corpus / "test.conll", "--entity-weight", 3)
    assert evaluated("--predictions", labelled)["f1"] == direct["f1"]
    many = evaluated(runs / "bio", corpus / "test.conll", "--entity-weight", 16)
    few = evaluated(runs / "bio", corpus / "test.conll", "--entity-weight", 0.125)
    assert few["recall"] < many["recall"]
    as_json = told(
        softq("predict", runs / "bio", corpus / "test.conll", "--entity-weight", 3, "--json",
              "--out", labelled)
    )  # fmt: skip
    assert as_json["decoding"] == "mbr"


def test_what_does_not_fit_is_refused(corpus, runs, others):
    dev = corpus / "dev.conll"
    refused(softq("tune", others / "parser", dev), "for taggers of entities", "is a parser")
    refused(softq("tune", others / "pos", dev), "an entity weight is for taggers of entities")
    refused(softq("tune", runs / "bio", dev, "--beta", "0"), "beta must be")
    refused(softq("tune", runs / "bio", "nowhere.conll"), "nowhere.conll")
    refused(softq("predict", runs / "bio", dev, "--entity-weight", "0"), "--entity-weight must be")
    refused(
        softq("evaluate", runs / "bio", dev, "--entity-weight", "2", "--decoding", "viterbi"),
        "--entity-weight weighs expected labels",
    )
    refused(
        softq("predict", others / "parser", dev, "--entity-weight", "2"),
        "--entity-weight is for taggers",
    )
