"""Sets of whole outputs: by enumeration, the guarantee by leaving out, exact coverage by sampling."""

import itertools
import math

import numpy as np
import pytest
import torch

from chance import FAR
from softq import Categorical, Chain, ProjectiveTree, SemiMarkov, SpanningTree
from softq.conformal import (
    OutputSet,
    SequenceSets,
    coverage,
    mean_set_size,
    unbounded_share,
)
from softq.errors import DataError, EstimatorError, ShapeError

pytestmark = pytest.mark.usefixtures("one_thread")

SCORES = pytest.mark.parametrize("score", ["adaptive", "lac"])


def chains(count, seed, size=4, labels=3, sharpness=2.0):
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, size + 1, (count,), generator=random)
    emissions = sharpness * torch.randn(count, size, labels, generator=random)
    p = Chain(emissions.double(), torch.randn(labels, labels, generator=random).double(), lengths)
    return p, p.sample(generator=random)


def by_definition(p, right, score, most):
    """For each sentence the scores of all its outputs, and that of the right one, by enumeration."""
    size, labels = p.scores.shape[1:]
    every = list(itertools.product(range(labels), repeat=size))
    batch = torch.tensor(every).unsqueeze(1).expand(-1, len(p.scores), -1)
    probabilities = p.log_prob(batch).exp().T.tolist()
    found = []
    for row, n in enumerate(p.all_lengths().tolist()):
        table = {y[:n]: one for y, one in zip(every, probabilities[row], strict=True)}
        ordered = sorted(table, key=table.__getitem__, reverse=True)
        scores, before = [], 0.0
        for output in ordered:
            scores.append(before if score == "adaptive" else -math.log(table[output]))
            before += table[output]
        beyond = scores[most] if len(scores) > most else math.inf
        capped = dict(zip(ordered, [*scores[:most], *[beyond] * len(scores)], strict=False))
        found.append((capped, capped.get(tuple(right[row, :n].tolist()), beyond)))
    return found


@SCORES
@pytest.mark.parametrize("most", [1, 5, 30])
def test_scores_and_sets_by_enumeration(score, most):
    p, right = chains(20, seed=0, size=3)
    sets = SequenceSets.calibrate([p], [right], 0.3, score=score, most=most)
    wanted = by_definition(p, right, score, most)
    assert np.allclose(sets.scores, np.sort([own for _, own in wanted]))
    limit = sets.threshold()
    assert limit == sets.scores[math.ceil(0.7 * 21) - 1]
    for found, (table, _) in zip(sets.predict([p]), wanted, strict=True):
        held = {output for output, value in table.items() if value <= limit + 1e-9}
        if found.bounded:
            assert {tuple(output) for output in found.outputs} == held
            assert len(found.outputs) <= most
        else:
            assert held == set(table)
        assert sorted(found.probabilities, reverse=True) == list(found.probabilities)


@SCORES
@pytest.mark.parametrize("make", [ProjectiveTree, SpanningTree])
def test_sets_of_trees_hold_the_most_probable_ones(score, make):
    random = torch.Generator().manual_seed(0)
    p = make(2 * torch.randn(60, 6, 6, generator=random).double())
    right = p.sample(generator=random)
    sets = SequenceSets.calibrate([p], [right], 0.2, score=score, most=8)
    found, best = sets.predict([p]), p.topk(8)
    for one, trees in zip(found, best.outputs.tolist(), strict=True):
        assert one.outputs == trees[: len(one.outputs)]
    assert coverage(found, right.tolist()).value >= 0.8
    assert {one.bounded for one in found} == {True, False}
    assert 0 < unbounded_share(found) < 1


def test_sets_of_segmentations():
    random = torch.Generator().manual_seed(0)
    p = SemiMarkov(torch.randn(40, 4, 3, 2, generator=random).double(), torch.zeros(2, 2).double())
    right = p.sample(generator=random)
    found = SequenceSets.calibrate([p], [right], 0.2, most=20).predict([p])
    assert coverage(found, right.tolist()).value >= 0.8


@SCORES
@pytest.mark.parametrize("most", [1, 3, 100])
@pytest.mark.parametrize("alpha", [0.1, 0.25])
def test_coverage_is_guaranteed_for_any_sentences(score, most, alpha):
    # Given the set of N exchangeable sentences, each is the new one with probability 1/N: the
    # expected coverage is that of leaving out each in turn. Nothing is sampled; nothing fails by
    # chance. The outputs are not sampled from the model: it is as wrong as can be.
    for seed in range(6):
        p, _ = chains(15, seed)
        _, right = chains(15, seed + 100)
        each = np.array([own for _, own in by_definition(p, right, score, most)])
        outputs = [row[:n] for row, n in zip(right.tolist(), p.all_lengths().tolist(), strict=True)]
        covered = 0
        for i, output in enumerate(outputs):
            sets = SequenceSets(np.sort(np.delete(each, i)), alpha, score, most)
            covered += sets.predict([p])[i].holds(output)
        assert covered >= (1 - alpha) * 15 - 1e-9


@pytest.mark.parametrize(("count", "alpha"), [(9, 0.1), (14, 0.2), (19, 0.05)])
def test_coverage_of_finite_samples_is_exact(count, alpha):
    # Scores have no ties here (-log p of other scores for each sentence, and enough outputs to be
    # bounded), so a new sentence is covered with probability ⌈(n + 1)(1 - alpha)⌉ / (n + 1),
    # exactly. Over 3,000 independent rounds the share is further away than FAR standard errors with
    # probability below 1e-9.
    times = 3000
    exact = math.ceil(round((count + 1) * (1 - alpha), 9)) / (count + 1)
    p, right = chains(times * (count + 1), seed=5, size=3, sharpness=1.0)
    scores = -p.log_prob(right)
    everything = SequenceSets.calibrate([p], [right], alpha, score="lac", most=30)
    assert np.allclose(everything.scores, scores.sort().values)
    hits = []
    for new, *rest in scores.reshape(times, count + 1).tolist():
        rule = everything._replace(scores=np.sort(np.array(rest)))
        hits.append(new <= rule.threshold())
    error = math.sqrt(exact * (1 - exact) / times)
    assert abs(np.mean(hits) - exact) < FAR * error


def test_what_the_model_cannot_give_is_in_no_bounded_set():
    p = Chain(torch.tensor([[[5.0, 0.0]] * 2] * 30), torch.zeros(2, 2))
    right = torch.zeros(30, 2, dtype=torch.int64)
    right[:2] = -1  # labels that the model does not know
    rare = SequenceSets.calibrate([p], [right], 0.1, most=10)
    assert rare.scores[-2:].tolist() == [math.inf] * 2
    found = rare.predict([p])
    assert all(one.bounded and one.outputs == [[0, 0]] for one in found)
    assert coverage(found, right.tolist()).value == pytest.approx(28 / 30)
    right[:6] = -1  # more than may be missed: sets claim nothing
    found = SequenceSets.calibrate([p], [right], 0.1, most=10).predict([p])
    assert not any(one.bounded for one in found)
    assert unbounded_share(found) == 1.0
    assert math.isnan(mean_set_size(found))
    assert coverage(found, right.tolist()).value == 1.0


def test_forbidden_sequences_and_empty_sentences():
    scores = torch.zeros(12, 3, 2)
    scores[:, :, 1] = -math.inf  # one sequence is possible
    p = Chain(scores, torch.zeros(2, 2), lengths=[3] * 10 + [0, 1])
    right = torch.zeros(12, 3, dtype=torch.int64)
    found = SequenceSets.calibrate([p], [right], 0.1, most=4).predict([p])
    assert [one.outputs for one in found] == [[[0, 0, 0]]] * 10 + [[[]], [[0]]]
    assert all(one.bounded and one.probabilities == [1.0] for one in found)
    assert mean_set_size(found) == 1.0


def test_the_bound_is_told_not_hidden():
    # uniform over 27 sequences: the threshold asks for most of them, and 5 are looked at
    p = Chain(torch.zeros(40, 3, 3), torch.zeros(3, 3))
    right = p.sample(generator=torch.Generator().manual_seed(0))
    few = SequenceSets.calibrate([p], [right], 0.1, most=5).predict([p])
    assert not any(one.bounded for one in few)
    assert all(len(one.outputs) == 5 for one in few)
    assert few[0].holds([9, 9, 9])
    assert not OutputSet([[0]], [1.0], True).holds([9])


def test_errors():
    p, right = chains(5, seed=0)
    with pytest.raises(DataError, match="needs at least 9 sentences with right outputs, got 5"):
        SequenceSets.calibrate([p], [right], 0.1)
    with pytest.raises(EstimatorError, match="alpha must lie above 0 and below 1, got 2"):
        SequenceSets.calibrate([p], [right], 2)
    with pytest.raises(EstimatorError, match="score 'lac' or 'adaptive' and unit"):
        SequenceSets.calibrate([p], [right], 0.5, score="aps")
    with pytest.raises(EstimatorError, match="most must be"):
        SequenceSets.calibrate([p], [right], 0.5, most=0)
    classes = Categorical(torch.zeros(5, 2))
    with pytest.raises(ShapeError, match="for classes take ConformalSets"):
        SequenceSets.calibrate([classes], [torch.zeros(5, dtype=torch.int64)], 0.5)
    with pytest.raises(ShapeError, match="outputs must have an entry for each of the 5"):
        coverage(SequenceSets.calibrate([p], [right], 0.5).predict([p]), right.tolist()[:3])
