"""Decoding for a reward, and the entity weight that development data choose."""

# ruff: noqa: N803, N806 -- scikit-learn calls the inputs X

import itertools

import numpy as np
import pytest
import torch

from softq import CRFTagger, DependencyParser
from softq.errors import DataError, EstimatorError, RewardError
from softq.formats.tags import faults
from softq.lab.worlds import EntityWorld, TreeWorld
from softq.linear import entity_f1_scorer, tune_entity_weight
from softq.linear.entity_weights import WEIGHTS
from softq.linear.tagging import entity_reward
from softq.rewards import PartReward, TokenAccuracy

pytestmark = pytest.mark.usefixtures("one_thread")
WORLD = EntityWorld(common=30, names=5, shared=3, double=3)


def corpus(count, seed):
    sentences = WORLD.sample(count, seed=seed)
    return [list(s.tokens) for s in sentences], [list(s.labels[0]) for s in sentences]


@pytest.fixture(scope="module")
def tagger():
    return CRFTagger(templates=["word[0]", "word[-1]"], c2=1.0).fit(*corpus(60, 0))


@pytest.fixture(scope="module")
def dev():
    return corpus(60, 1)


@pytest.mark.parametrize("weight", [0.3, 1.0, 2.5])
def test_labels_of_the_highest_expected_reward(tagger, dev, weight):
    X, _ = dev
    earns = entity_reward(tagger.classes_, weight).table.numpy()
    found = tagger.predict(X, entity_weight=weight)
    for labels, rows in zip(found, tagger.predict_marginals(X), strict=True):
        table = np.array([list(row.values()) for row in rows]).reshape(-1, len(earns)) @ earns.T
        chosen = [tagger.classes_.index(label) for label in labels]
        assert table[np.arange(len(labels)), chosen] == pytest.approx(table.max(1, initial=0.0))
    assert found == tagger.predict(X, reward={k: weight for k in tagger.classes_ if k != "O"})
    assert found == tagger.predict(X, reward=earns)


def test_a_weight_of_one_is_the_decoding_of_most_right_labels(tagger, dev):
    best = CRFTagger(**tagger.get_params() | {"decoding": "mbr"})
    best.__dict__.update({k: v for k, v in vars(tagger).items() if k.endswith("_") or k[0] == "_"})
    assert best.predict(dev[0]) == tagger.predict(dev[0], entity_weight=1.0)


def test_constraints_hold_whatever_the_weight(dev):
    X, y = corpus(40, 2)
    tagger = CRFTagger(templates=["word[0]"], c2=3.0, constraints="decode").fit(X, y)
    for weight in (0.2, 1.0, 8.0):
        assert not any(
            faults(labels, "bio") for labels in tagger.predict(dev[0], entity_weight=weight)
        )


def test_a_larger_weight_finds_more_and_the_best_f_is_chosen(tagger, dev):
    choices = {beta: tune_entity_weight(tagger, *dev, beta) for beta in (0.3, 1.0, 3.0)}
    rows = choices[1.0].rows
    assert tuple(row.weight for row in rows) == WEIGHTS
    assert (WEIGHTS[0], WEIGHTS[6], WEIGHTS[-1]) == (0.125, 1.0, 64.0)
    tags = [
        sum(
            label != "O"
            for labels in tagger.predict(dev[0], entity_weight=weight)
            for label in labels
        )
        for weight in WEIGHTS
    ]
    assert all(a <= b for a, b in itertools.pairwise(tags))
    assert tags[0] < tags[-1]
    for beta, choice in choices.items():
        assert choice.best.f == max(row.f for row in choice.rows)
        for row in choice.rows:
            below = beta**2 * row.precision + row.recall
            f = (1 + beta**2) * row.precision * row.recall / below if below else 0.0
            assert row.f == pytest.approx(f)
    assert choices[0.3].best.precision >= choices[3.0].best.precision
    assert choices[0.3].best.recall <= choices[3.0].best.recall

    class Weighted:
        scheme_ = "bio"

        def predict(self, X):
            return tagger.predict(X, entity_weight=choices[1.0].best.weight)

    assert entity_f1_scorer(Weighted(), *dev) == pytest.approx(choices[1.0].best.f)


def test_of_weights_that_are_as_good_the_one_nearest_to_one_is_chosen(tagger):
    X, y = [["zzz"]], [["O"]]
    choice = tune_entity_weight(tagger, X, y, weights=[0.25, 0.5, 0.8])
    assert (choice.best.weight, choice.best.f) == (0.8, 0.0)


def test_what_does_not_fit_is_said(tagger, dev):
    X, y = dev
    with pytest.raises(EstimatorError, match="entity_weight must be"):
        tagger.predict(X, entity_weight=0.0)
    with pytest.raises(EstimatorError, match="do not go together"):
        tagger.predict(X, reward={"O": 2.0}, entity_weight=2.0)
    with pytest.raises(EstimatorError, match="beta must be"):
        tune_entity_weight(tagger, X, y, beta=0.0)
    with pytest.raises(EstimatorError, match="weights must be"):
        tune_entity_weight(tagger, X, y, weights=[-1.0])
    with pytest.raises(EstimatorError, match="at least one entity weight"):
        tune_entity_weight(tagger, X, y, weights=[])
    with pytest.raises(DataError, match="one label sequence"):
        tune_entity_weight(tagger, X[:1], [[y[0], y[0]]])


class Undirected(PartReward):
    """Half of a point for an arc that points the wrong way."""

    parts, signature, bound = "arcs", "undirected", 1.0

    def on_parts(self, reference):
        return reference + 0.5 * reference.transpose(-1, -2)

    def score(self, candidates, references):
        raise NotImplementedError


def test_trees_of_the_highest_expected_reward():
    world = TreeWorld(crossing=0.0, lemmas=6)
    options = {"bits": 12, "relation_bits": 8, "epochs": 2, "random_state": 0, "min_freq": 1}
    parser = DependencyParser(**options, templates=["head.upos|dep.upos", "dep.word"])
    parser.fit(world.sample(30, seed=0))
    X = world.sample(40, seed=1)

    def earned(trees):
        total = 0.0
        for tree, arcs in zip(trees, parser.predict_marginals(X), strict=True):
            table = Undirected().on_parts(torch.as_tensor(np.array(arcs)))
            total += sum(float(table[head, word]) for word, head in enumerate(tree.heads, 1))
        return total

    found, usual = parser.predict(X, reward=Undirected()), parser.predict(X)
    assert [t.heads for t in found] != [t.heads for t in usual]
    assert earned(found) > earned(usual)
    with pytest.raises(RewardError, match="does not split over"):
        parser.predict(X, reward=TokenAccuracy())
