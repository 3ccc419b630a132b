"""Targets on candidates.

The equations on a whole tiny space, and bias and error of each estimator against enumeration.
"""

import itertools
import math

import numpy as np
import pytest
import torch

import oracle
import softq
from scale import draws
from softq import Candidates, Sentences, rewards
from softq.errors import (
    DtypeError,
    EstimatorError,
    IntractableError,
    RewardError,
    ShapeError,
    TemperatureError,
    WeightError,
)
from softq.samplers import HammingStratified, NgramReplacement

WORDS, LENGTH = 3, 4
SPACE = list(itertools.product(range(WORDS), repeat=LENGTH))
REFS = [[(0, 1, 2, 0), (0, 1, 1, 0)], [(2, 2, 2, 2), (1, 0, 2, 1)]]
OBJECTIVES = {"raml": (softq.raml, oracle.raml), "sqdml": (softq.sqdml, oracle.sqdml)}
objectives = pytest.mark.parametrize("objective", OBJECTIVES)
BLEU = rewards.SentenceBLEU(max_order=2, smoothing="mteval")


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def nested(refs):
    return [[list(y) for y in example] for example in refs]


def whole_space(batch=2):
    return Candidates(
        torch.tensor(SPACE).expand(batch, -1, -1).contiguous(),
        torch.full((batch, len(SPACE)), LENGTH),
    )


def reward_table(reward, refs, space=SPACE):
    """reward[i][y] against each reference of one example."""
    packed = Sentences.pack([[list(y) for y in space]])
    values = reward(*packed, *Sentences.pack([[list(y) for y in refs]]))[0]
    return values.T.tolist()


def model_log_probs(seed=0):
    """A fixed model over the space, far from uniform."""
    return dict(
        zip(
            SPACE,
            torch.randn(len(SPACE), generator=gen(seed), dtype=torch.float64)
            .mul(3)
            .log_softmax(0)
            .tolist(),
            strict=True,
        )
    )


def estimate(target, values):
    """Σ_s w_s f(y_s) for each example."""
    out = []
    for rows, lengths, weights in zip(
        target.outputs.tokens.tolist(),
        target.outputs.lengths.tolist(),
        target.weights.tolist(),
        strict=True,
    ):
        out.append(
            math.fsum(
                w * values[tuple(row[:n])]
                for row, n, w in zip(rows, lengths, weights, strict=True)
                if n >= 0 and w
            )
        )
    return np.array(out)


@objectives
@pytest.mark.parametrize("tau", [0.1, 0.7, 5.0])
@pytest.mark.parametrize(
    "reward",
    [BLEU, rewards.NegativeEditDistance(), rewards.TokenAccuracy()],
    ids=lambda r: r.signature,
)
def test_the_set_of_all_sentences_gives_the_exact_target(objective, tau, reward):
    ours, theirs = OBJECTIVES[objective]
    weights = torch.tensor([[0.25, 0.75], [1.0, 0.0]])
    target = ours(whole_space(), nested(REFS), tau, reward, ref_weights=weights)
    model = torch.randn(2, len(SPACE), generator=gen(1), dtype=torch.float64).log_softmax(1)
    for b in range(2):
        expected = theirs(reward_table(reward, REFS[b]), weights[b].tolist(), tau)
        assert target.weights[b].tolist() == pytest.approx(expected, abs=1e-12)
        assert float(target.entropy()[b]) == pytest.approx(oracle.entropy(expected))
        used = [ref for ref, weight in zip(REFS[b], weights[b].tolist(), strict=True) if weight > 0]
        mass = sum(p for y, p in zip(SPACE, expected, strict=True) if y in used)
        assert float(target.reference_mass()[b]) == pytest.approx(mass)
        assert float(softq.cross_entropy(target, model)[b]) == pytest.approx(
            oracle.cross_entropy(expected, model[b].exp().tolist())
        )
        divergence = oracle.cross_entropy(expected, model[b].exp().tolist()) - oracle.entropy(
            expected
        )
        assert float(softq.kl(target, model)[b]) == pytest.approx(divergence)


@objectives
def test_candidates_and_exact_distributions_agree(objective):
    """Token accuracy splits over positions.

    The target on all sentences is the exact one of a label sequence.
    """
    refs = torch.tensor(REFS)
    space = softq.Independent(torch.zeros(2, LENGTH, WORDS, dtype=torch.float64))
    exact = OBJECTIVES[objective][0](space, refs, 0.6)
    sampled = OBJECTIVES[objective][0](whole_space(), refs, 0.6, rewards.TokenAccuracy())
    every = torch.tensor(SPACE).unsqueeze(1).expand(-1, 2, -1)
    assert torch.allclose(exact.log_prob(every).T, sampled.weights.log())
    hamming = OBJECTIVES[objective][0](whole_space(), refs, 0.6, rewards.NegativeHamming())
    assert torch.allclose(hamming.weights, sampled.weights)


def test_one_reference_makes_raml_and_sqdml_the_same():
    cands = NgramReplacement(50, size=30)([[5, 6, 7, 8]] * 3, generator=gen())
    a, b = (
        f(cands, [[5, 6, 7, 8]] * 3, 0.4, rewards.SentenceBLEU()) for f in (softq.raml, softq.sqdml)
    )
    assert torch.equal(a.weights, b.weights)


def test_cold_raml_is_ml():
    refs = [[[5, 6, 7, 8], [5, 6, 9]]]
    cands = NgramReplacement(50, size=30)(refs, generator=gen())
    ml = softq.ml(cands, refs)
    assert ml.weights[0, :2].tolist() == [0.5, 0.5]
    assert float(ml.weights.sum()) == 1.0
    assert torch.allclose(softq.raml(cands, refs, 1e-3, rewards.ExactMatch()).weights, ml.weights)
    assert float(ml.entropy()) == pytest.approx(math.log(2))


def test_gradient_is_minus_the_weights_and_missing_candidates_count_nothing():
    cands = NgramReplacement(4, max_n=1, size=20)(
        [[0, 1], [2, 3]], generator=gen()
    )  # a space of 7: the rest is missing
    target = softq.raml(cands, [[0, 1], [2, 3]], 0.5, BLEU)
    log_probs = torch.randn(2, 20, dtype=torch.float64)
    log_probs[~cands.present] = math.nan
    log_probs.requires_grad_()
    softq.cross_entropy(target, log_probs).sum().backward()
    assert torch.equal(log_probs.grad[cands.present], -target.weights[cands.present])
    assert target.weights[~cands.present].eq(0).all()
    assert target.weights.sum(1).tolist() == pytest.approx([1.0, 1.0])


def test_float32_models_keep_their_type():
    cands = whole_space(1)
    target = softq.raml(cands, [[0, 1, 2, 0]], 0.5, BLEU)
    log_probs = torch.zeros(1, len(SPACE), requires_grad=True)
    loss = softq.cross_entropy(target, log_probs)
    assert loss.dtype == torch.float32
    assert softq.kl(target, log_probs).dtype == torch.float32


def test_a_set_counts_repeats_once_and_a_sample_counts_each():
    tokens = torch.tensor([[[0, 1], [0, 1], [1, 1]]])
    log_proposal = torch.full((1, 3), -math.log(3), dtype=torch.float64)
    cands = Candidates(tokens, torch.full((1, 3), 2), log_proposal)
    reward = rewards.TokenAccuracy()
    by_set = softq.raml(cands, [[0, 1]], 1.0, reward).weights[0]
    assert by_set.tolist() == pytest.approx(
        [math.e**2 / (math.e**2 + math.e), 0.0, math.e / (math.e**2 + math.e)]
    )
    by_draw = softq.raml(cands.measure("importance"), [[0, 1]], 1.0, reward).weights[0]
    assert by_draw[0] == by_draw[1]
    assert by_draw.tolist() == pytest.approx((torch.tensor([2.0, 2.0, 1.0]).softmax(0)).tolist())


# --- estimators -----------------------------------------------------------------------------------------------------


@objectives
@pytest.mark.parametrize("refs", [REFS[0], REFS[1][:1]], ids=["two", "one"])
def test_importance_error_falls_like_the_square_root(objective, refs):
    """Hamming proposal, BLEU weights (the paper's Table 8) against the sum over all 81 sentences.

    Any proposal temperature.
    """
    ours, theirs = OBJECTIVES[objective]
    tau, f = 0.3, model_log_probs()
    expected = theirs(reward_table(BLEU, refs), [1 / len(refs)] * len(refs), tau)
    truth = math.fsum(p * f[y] for y, p in zip(SPACE, expected, strict=True))
    errors, biases, sizes = [], [], [50, 200, 800]
    for size in sizes:
        cands = HammingStratified(WORDS, tau=1.3, size=size)(
            nested([refs]) * 400, generator=gen(size)
        )
        found = estimate(ours(cands.measure("importance"), nested([refs]) * 400, tau, BLEU), f)
        errors.append(math.sqrt(np.mean((found - truth) ** 2)))
        biases.append(abs(found.mean() - truth))
    slope = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert (
        -0.6 < slope < -0.4
    )  # the error of each of 400 repetitions has 3.5 % error itself: the slope about 0.02
    assert biases[-1] < 4 * errors[-1] / math.sqrt(400) + 1e-3  # consistent: what is left is chance


def test_importance_with_the_paper_temperature_rescaled():
    """The printed weight exp(BLEU/τ) / exp(-d/τ) is wrong when the proposal is rescaled.

    Log-proposals are right.
    """
    refs, tau, f = REFS[0][:1], 0.3, model_log_probs()
    expected = oracle.raml(reward_table(BLEU, refs), [1.0], tau)
    truth = math.fsum(p * f[y] for y, p in zip(SPACE, expected, strict=True))
    cands = HammingStratified(WORDS, tau=tau * 4, size=200_000, rescale=True)(
        nested([refs]), generator=gen(2)
    )
    right = estimate(softq.raml(cands.measure("importance"), nested([refs]), tau, BLEU), f)[0]
    distance = (cands.tokens != torch.tensor(refs[0])).sum(-1)
    printed = Candidates(cands.tokens, cands.lengths, -distance.double() / (tau * 4))
    wrong = estimate(softq.raml(printed.measure("importance"), nested([refs]), tau, BLEU), f)[0]
    assert right == pytest.approx(truth, abs=0.08)  # four standard deviations
    assert abs(wrong - truth) > 0.2


def test_importance_on_ngram_sets_joins_certain_and_drawn():
    """References are there for certain, the rest by n' draws.

    The right target on what one n-gram can reach.
    """
    refs, tau, f = REFS[0], 0.3, model_log_probs()
    law = oracle.ngram_replacement(
        refs,
        2,
        lambda n: {g: float(WORDS) ** -n for g in itertools.product(range(WORDS), repeat=n)},
    )
    reachable = [*refs, *law]
    expected = oracle.raml(reward_table(BLEU, refs, reachable), [0.5, 0.5], tau)
    truth = math.fsum(p * f[y] for y, p in zip(reachable, expected, strict=True))
    cands = NgramReplacement(WORDS, max_n=2, size=6)(nested([refs]) * 20_000, generator=gen(3))
    importance = estimate(
        softq.raml(cands.measure("importance"), nested([refs]) * 20_000, tau, BLEU), f
    ).mean()
    by_set = estimate(softq.raml(cands, nested([refs]) * 20_000, tau, BLEU), f).mean()
    assert abs(importance - truth) < 0.25 * abs(
        by_set - truth
    )  # four draws: not unbiased, but it knows how large the space is


def test_model_samples_with_references_estimate_the_target():
    law = dict(
        zip(
            SPACE,
            torch.randn(81, generator=gen(5), dtype=torch.float64).softmax(0).tolist(),
            strict=True,
        )
    )
    refs, tau, f = REFS[0], 0.3, model_log_probs()
    truth = math.fsum(
        p * f[y]
        for y, p in zip(SPACE, oracle.raml(reward_table(BLEU, refs), [0.5, 0.5], tau), strict=True)
    )
    index = torch.multinomial(
        torch.tensor(list(law.values())).expand(200, -1), 400, replacement=True, generator=gen(6)
    )
    drawn = Candidates(
        torch.tensor(SPACE)[index],
        torch.full((200, 400), LENGTH),
        torch.tensor(list(law.values())).log()[index],
    )
    both = drawn.with_references(Sentences.pack(nested([refs]) * 200))
    assert both.fixed.tolist() == [2] * 200
    assert not both.equals(Sentences.pack(nested([refs]) * 200))[:, 2:].any()
    plain = estimate(softq.raml(drawn.measure("importance"), nested([refs]) * 200, tau, BLEU), f)
    better = estimate(softq.raml(both.measure("importance"), nested([refs]) * 200, tau, BLEU), f)
    assert abs(better.mean() - truth) < 5 * better.std() / math.sqrt(200) + 5e-3
    assert (
        better.std() < plain.std()
    )  # the references, which weigh most, are no longer left to chance


def repeated(cands, times):
    """One candidate set as many examples, to average over the choice of subsets."""
    return Candidates(
        cands.tokens.expand(times, -1, -1).contiguous(),
        cands.lengths.expand(times, -1).contiguous(),
    )


@objectives
@pytest.mark.parametrize("refs", REFS, ids=["first", "second"])
def test_the_paper_estimator_is_the_subset_it_says(objective, refs):
    """Its mean is the references in full and the rest by the share that is used.

    Biased toward the references, and known.
    """
    make, f = OBJECTIVES[objective][0], model_log_probs()
    cands = NgramReplacement(WORDS, max_n=2, size=16)(nested([refs]), generator=gen(7))
    full = make(cands, nested([refs]), 0.3, BLEU)
    many = make(
        repeated(cands, draws(4000)).measure("paper", 5, generator=gen(1)),
        nested([refs]) * draws(4000),
        0.3,
        BLEU,
    )
    found = estimate(many, f)
    values = [f[tuple(y)] for y in cands.tokens[0].tolist()]
    share = [1.0, 1.0, *[3 / 14] * 14]
    expected = math.fsum(
        w * v * s for w, v, s in zip(full.weights[0].tolist(), values, share, strict=True)
    )
    assert abs(found.mean() - expected) < 5 * found.std() / math.sqrt(draws(4000))
    assert many.components.is_reference[:, :2].all()
    assert not many.components.is_reference[:, 2:].any()
    assert not many.outputs.repeats().any()
    assert many.outputs.tokens.shape[:2] == (draws(4000), 5)


@objectives
@pytest.mark.parametrize("refs", REFS, ids=["first", "second"])
def test_a_subset_of_the_set_is_unbiased(objective, refs):
    make, f = OBJECTIVES[objective][0], model_log_probs()
    cands = NgramReplacement(WORDS, max_n=2, size=16)(nested([refs]), generator=gen(8))
    truth = estimate(make(cands, nested([refs]), 0.3, BLEU), f)
    many = estimate(
        make(
            repeated(cands, draws(4000)).measure("set", 5, generator=gen(1)),
            nested([refs]) * draws(4000),
            0.3,
            BLEU,
        ),
        f,
    )
    assert abs(many.mean() - truth[0]) < 5 * many.std() / math.sqrt(draws(4000))
    everything = make(cands.measure("set", 16, generator=gen()), nested([refs]), 0.3, BLEU)
    assert estimate(everything, f) == pytest.approx(truth)
    assert float(everything.entropy()[0]) > 0


def test_the_paper_estimator_lifts_the_reference():
    """100 candidates, k = 10.

    A reference has about 2 % of the softmax and 13-20 % of what a step uses.
    """
    refs = torch.randint(10, 20_000, (50, 20), generator=gen(9))
    cands = NgramReplacement(20_000, size=100)(refs, generator=gen(10))
    full = softq.raml(cands, refs, 0.85, rewards.SentenceBLEU())
    used = softq.raml(
        cands.measure("paper", 10, generator=gen(11)), refs, 0.85, rewards.SentenceBLEU()
    )
    assert 0.01 < float(full.reference_mass().mean()) < 0.03
    assert 0.12 < float(used.reference_mass().mean()) < 0.21
    assert float(used.weights.sum(1).mean()) < 0.2


def test_effective_sample_size():
    even = softq.ml(Candidates(*Sentences.pack([[[1], [2], [3]]])), [[[1], [2]]])
    assert float(even.effective_sample_size()) == 2.0
    target = softq.raml(whole_space(1), [[0, 1, 2, 0]], 1e6, BLEU)
    assert float(target.effective_sample_size()) == pytest.approx(81, rel=1e-3)


def test_log_prob_of_sentences():
    target = softq.raml(whole_space(1), [[0, 1, 2, 0]], 0.5, BLEU)
    asked = Sentences.pack([[[0, 1, 2, 0], [0, 1, 2], [2, 2, 2, 2]]])
    found = target.log_prob(asked)[0].exp().tolist()
    assert found == pytest.approx(
        [float(target.weights[0, SPACE.index((0, 1, 2, 0))]), 0.0, float(target.weights[0, -1])]
    )
    assert torch.allclose(target.log_prob(target.outputs).exp(), target.weights)


def test_multi_reference_bleu_serves_sqdml_only():
    reward = rewards.MultiReferenceBLEU(max_order=2, smoothing="mteval")
    target = softq.sqdml(whole_space(), nested(REFS), 0.4, reward)
    values = reward(*whole_space().sentences, *Sentences.pack(nested(REFS)))[..., 0]
    assert torch.allclose(target.weights, (values / 0.4).softmax(1))
    with pytest.raises(RewardError, match="use softq"):
        softq.raml(whole_space(), nested(REFS), 0.4, reward)


def test_any_function_is_a_reward():
    def first_word(candidate, reference):
        return float(candidate[0] == reference[0])

    target = softq.raml(whole_space(1), [[0, 1, 2, 0]], 0.5, first_word)
    assert target.signature == f"raml:tau=0.5:callable:{first_word.__qualname__}:estimator=set"
    assert torch.allclose(
        target.weights[0, :27] / target.weights[0, 27:54], torch.tensor(math.exp(2.0)).double()
    )


@objectives
def test_a_reference_without_weight_is_missing(objective):
    make = OBJECTIVES[objective][0]
    refs, weights = [[[0, 1, 2, 0], [2, 2, 2, 2]]], torch.tensor([[1.0, 0.0]])
    both, alone = (
        make(whole_space(1), refs, 0.5, BLEU, ref_weights=weights),
        make(whole_space(1), [refs[0][:1]], 0.5, BLEU),
    )
    assert torch.equal(both.weights, alone.weights)
    assert torch.equal(both.reference_mass(), alone.reference_mass())
    together = rewards.MultiReferenceBLEU(max_order=2, smoothing="mteval")
    both = softq.sqdml(whole_space(1), refs, 0.5, together, ref_weights=weights)
    assert torch.allclose(
        both.weights, softq.sqdml(whole_space(1), [refs[0][:1]], 0.5, together).weights
    )
    with pytest.raises(WeightError, match="cannot weigh them"):
        softq.sqdml(whole_space(1), refs, 0.5, together, ref_weights=torch.tensor([[0.7, 0.3]]))


@objectives
def test_the_set_alone_is_biased_toward_its_references(objective):
    """Against the whole space.

    A small set leaves the references too much, and its bias shrinks only as it fills the space.
    """
    make, f = OBJECTIVES[objective][0], model_log_probs()
    truth = estimate(make(whole_space(1), nested(REFS[:1]), 0.3, BLEU), f)[0]
    mass = float(make(whole_space(1), nested(REFS[:1]), 0.3, BLEU).reference_mass())
    biases, masses = [], []
    for size in (6, 20, 60):
        cands = NgramReplacement(WORDS, max_n=4, size=size)(
            nested(REFS[:1]) * draws(2000), generator=gen(size)
        )
        target = make(cands, nested(REFS[:1]) * draws(2000), 0.3, BLEU)
        biases.append(abs(estimate(target, f).mean() - truth))
        masses.append(float(target.reference_mass().mean()))
    assert biases[0] > biases[1] > biases[2]
    assert masses[0] > masses[1] > masses[2] > mass


def test_k_may_equal_the_references_where_there_is_nothing_else():
    refs = [[[0, 0], [0, 1]], [[1, 2]]]
    cands = NgramReplacement(3, max_n=1, size=4, specials=[1, 2])(refs, generator=gen())
    target = softq.raml(cands.measure("set", 2, generator=gen()), refs, 0.5, BLEU)
    assert torch.allclose(target.weights.sum(1), torch.ones(2, dtype=torch.float64))


def test_references_are_added_once():
    cands = NgramReplacement(50, size=5)([[1, 2, 3]], generator=gen())
    again = cands.with_references(Sentences.pack([[[1, 2, 3]]]))
    assert again.fixed.tolist() == [1]
    assert int(again.present.sum()) == 5
    with pytest.raises(EstimatorError, match="add references once"):
        cands.with_references(Sentences.pack([[[4, 5, 6]]]))


def test_ragged_references_are_weighted_among_those_there():
    refs = [[[0, 1, 2, 0]], [[2, 2, 2, 2], [1, 0, 2, 1]]]
    target = softq.raml(whole_space(), refs, 0.5, BLEU)
    alone = softq.raml(whole_space(1), refs[:1], 0.5, BLEU)
    both = softq.raml(
        Candidates(*(part[1:] for part in whole_space().sentences)), refs[1:], 0.5, BLEU
    )
    assert torch.allclose(target.weights, torch.cat([alone.weights, both.weights]))


def test_selection_drops_columns_and_keeps_model_scores():
    cands = Candidates(
        torch.tensor([[[1, 2, 3], [4, 0, 0]]]),
        torch.tensor([[3, 1]]),
        log_model=torch.tensor([[-1.0, -2.0]]),
    )
    chosen = cands.select(torch.tensor([[1, -1]]))
    assert chosen.tokens.shape == (1, 2, 1)
    assert chosen.lengths.tolist() == [[1, -1]]
    assert chosen.log_model[0, 0] == -2.0
    moved = cands.to("cpu")
    assert torch.equal(moved.tokens, cands.tokens)
    assert moved.fixed is None


SMALL = Candidates(torch.tensor([[[0, 1], [1, 1]]]), torch.tensor([[2, 2]]))
EMPTY = Candidates(torch.zeros(1, 2, 2, dtype=torch.int64), torch.tensor([[-1, -1]]))
IMPOSSIBLE = Candidates(*SMALL.sentences, torch.tensor([[0.0, -math.inf]]))
ONE_OF_TWO = Sentences.pack([[[0, 1], [1, 1]]])._replace(lengths=torch.tensor([[2, -1]]))
CHAIN = softq.Chain(torch.zeros(1, 2, 2), torch.zeros(2, 2))
PLACES = torch.zeros(1, 2, 2, dtype=torch.int64), torch.zeros(1, 2, dtype=torch.int64)


def raml(cands=SMALL, refs=([0, 1],), reward=BLEU, **options):
    return lambda: softq.raml(cands, refs, 0.5, reward, **options)


def loss(model, make=lambda: softq.ml(SMALL, [[0, 1]]), **options):
    return lambda: softq.cross_entropy(make(), model, **options)


def measure(*options):
    return lambda: SMALL.measure(*options)


REFUSED = {
    RewardError: [
        (raml(reward=None), "no natural reward"),
        (raml(reward=3), "reward must be one of"),
        (raml(reward=lambda c, r: math.nan), "nan for example 0, candidate 0, reference 0"),
        (raml(CHAIN, torch.tensor([[0, 1]])), "candidates from"),
    ],
    EstimatorError: [
        (measure("unbiased"), "one of set, paper, importance"),
        (measure("paper"), "needs k"),
        (measure("set", 3), "number of candidates, 2, got 3"),
        (measure("set", 0), "k must be a whole number"),
        (measure("importance"), "needs candidates with log_proposal"),
        (measure("importance", 1), "uses every draw"),
        (raml(SMALL.measure("set", 1)), "no place for candidates"),
        (raml(SMALL.measure("paper", 1), [[[0, 1], [1, 1]]]), "2 references of example 0"),
        (
            raml(IMPOSSIBLE.measure("importance")),
            "must be finite, got -inf for candidate 1 of example 0",
        ),
        (raml(EMPTY), "example 0 has none"),
        (raml(refs=[[0, 1], [1, 1]]), "references must be those of the 1 examples"),
        (lambda: softq.ml(SMALL, [[0, 0]]), "reference 0 of example 0 is not among"),
    ],
    WeightError: [
        (raml(refs=ONE_OF_TWO, ref_weights=torch.ones(1, 2)), "must be 0 for a missing reference")
    ],
    ShapeError: [
        (loss(torch.zeros(1, 3)), "one per candidate"),
        (lambda: Candidates(torch.zeros(2, 2), torch.zeros(2)), r"\[B, S, L\]"),
        (lambda: Candidates(*PLACES, torch.zeros(2)), "log_proposal must have"),
        (loss(softq.Categorical(torch.zeros(1, 2))), "a distribution over as many outputs"),
    ],
    DtypeError: [
        (loss([[0.0, 0.0]]), "log-probabilities"),
        (lambda: Candidates(*PLACES, PLACES[1]), "floating"),
    ],
    TemperatureError: [
        (loss(torch.zeros(1, 2), raml(), temperature_scaled=True), "normalised already")
    ],
}


@pytest.mark.parametrize(
    ("error", "call", "text"),
    [(error, *case) for error, cases in REFUSED.items() for case in cases],
)
def test_what_does_not_fit_is_refused(error, call, text):
    with pytest.raises(error, match=text):
        call()


def test_an_estimate_has_no_entropy():
    target = softq.raml(
        HammingStratified(5, 1.0, size=9)([[1, 2]], generator=gen()).measure("importance"),
        [[1, 2]],
        0.5,
        BLEU,
    )
    with pytest.raises(IntractableError, match="their entropy is not the target's"):
        target.entropy()
    assert repr(target).startswith("Target(raml:tau=0.5:sentence-bleu")
