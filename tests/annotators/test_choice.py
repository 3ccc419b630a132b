"""Settings by hidden labels: the value by enumeration, and what it prefers."""

import math
from itertools import product

import numpy as np
import pytest
from made_crowds import made_crowd

from softq.annotators import AnnotatorTables, Crowd, SequentialFit, TablePriors
from softq.annotators.choice import hidden_likelihood
from softq.errors import DataError
from softq.formats.conll import MISSING, Sentence

ROWS = (("B-P", "I-P"), ("B-P", "O"), ("B-P", "I-P"), ("O", "O"))


def fitted(temper=1.0):
    def fit(tables):
        crowd = tables.crowd
        return SequentialFit(tables, crowd.labels, crowd.lengths, "bio", temper=temper).scores

    return fit


def test_hidden_labels_are_predicted_from_the_truth_and_the_tables():
    sentences = [Sentence(("Ann", "Lee"), ROWS, ("1", "2", "3", "4"))] * 5
    crowd = Crowd.read(sentences, previous=True)
    rest, hidden = crowd.hide(0.2, 3)
    tables = AnnotatorTables(rest)
    scores = fitted()(tables)
    means = tables.concentrations / tables.concentrations.sum(-1, keepdims=True)
    total = 0.0
    for sentence in range(5):
        tokens = [2 * sentence, 2 * sentence + 1]
        weights, joint = [], []
        for labels in product(range(len(crowd.labels)), repeat=2):
            score = sum(scores.emissions[t, y] for t, y in zip(tokens, labels, strict=True))
            score += float(scores.transitions[0][labels[0], labels[1]])
            likelihood = 0.0
            for token, label in zip(tokens, labels, strict=True):
                for m in np.flatnonzero(hidden.pattern == crowd.patterns[token]):
                    table = means[hidden.annotator[m], hidden.previous[m], label]
                    likelihood += math.log(table[hidden.label[m]])
            weights.append(math.exp(score))
            joint.append(math.exp(score + likelihood))
        total += math.log(sum(joint) / sum(weights))
    found = hidden_likelihood(crowd, fitted(), share=0.2, seed=3)
    assert found == pytest.approx(total / hidden.label_count, abs=1e-9)


def test_priors_that_know_how_careful_annotators_are_predict_better():
    made = made_crowd(0, 4, 6, items=60)
    sentences = [
        Sentence(("item",), tuple((MISSING if k < 0 else f"c{k}",) for k in row), tuple("abcdef"))
        for row in made.labels
    ]
    crowd = Crowd.read(sentences)

    def fit(tables):
        return SequentialFit(tables, crowd.labels, crowd.lengths, None, temper=1.0).scores

    sure, doubtful = TablePriors(right=3.0), TablePriors(right=0.2, wrong=30.0)
    assert hidden_likelihood(crowd, fit, sure) > hidden_likelihood(crowd, fit, doubtful) + 0.05


def test_what_cannot_be_hidden():
    alone = Crowd.read([Sentence(("a", "b"), (("X", "Y"),), ("1",))])
    with pytest.raises(DataError, match="expected sentences with several annotators"):
        hidden_likelihood(alone, fitted())
    with pytest.raises(DataError, match="share must be between 0 and 1, got 1"):
        hidden_likelihood(alone, fitted(), share=1.0)
