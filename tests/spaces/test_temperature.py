"""Temperature curves against enumeration and closed forms."""

import itertools
import math

import pytest
import torch

import oracle
from softq import Candidates, Sentences, rewards
from softq.errors import DtypeError, LengthError, RewardError, TemperatureError
from softq.samplers import HammingStratified, NgramReplacement
from softq.temperature import CandidateCurve, HammingCurve

WORDS, LENGTH = 3, 4
SPACE = list(itertools.product(range(WORDS), repeat=LENGTH))
REFS = [(0, 1, 2, 0), (0, 0, 1, 0)]


def whole_space():
    return Candidates(torch.tensor([SPACE]), torch.full((1, len(SPACE)), LENGTH))


@pytest.mark.parametrize("objective", ["raml", "sqdml"])
@pytest.mark.parametrize("tau", [0.2, 1.0])
def test_values_on_the_whole_space(objective, tau):
    bleu = rewards.SentenceBLEU(max_order=2, smoothing="mteval")
    table = bleu(*whole_space().sentences, *Sentences.pack([[list(y) for y in REFS]]))[0].T.tolist()
    target = getattr(oracle, objective)(table, [0.5, 0.5], tau)
    curve = CandidateCurve(whole_space(), [[list(y) for y in REFS]], bleu, objective=objective)
    point = curve.at(tau)
    mean = [sum(row[s] for row in table) / 2 for s in range(len(SPACE))]
    assert point.expected_reward == pytest.approx(
        math.fsum(p * r for p, r in zip(target, mean, strict=True))
    )
    assert point.reference_mass == pytest.approx(sum(target[SPACE.index(y)] for y in REFS))
    nearest = [min(oracle.edit_distance(y, ref) for ref in REFS) for y in SPACE]
    assert point.expected_edits == pytest.approx(
        math.fsum(p * d for p, d in zip(target, nearest, strict=True))
    )
    if objective == "sqdml":
        assert point.entropy == pytest.approx(oracle.entropy(target))
    else:
        alone = [oracle.entropy(oracle.raml([row], [1.0], tau)) for row in table]
        assert point.entropy == pytest.approx(sum(alone) / 2)
    assert point.effective_sample_size == pytest.approx(1 / sum(p * p for p in target))


@pytest.mark.parametrize("rescale", [False, True])
@pytest.mark.parametrize("tau", [0.3, 0.9])
def test_hamming_in_closed_form(rescale, tau):
    curve = HammingCurve(WORDS, [LENGTH], rescale=rescale)
    used = tau / (1 + math.log(WORDS - 1)) if rescale else tau
    law = oracle.probabilities([-oracle.hamming(y, REFS[0]) / used for y in SPACE])
    point = curve.at(tau)
    edits = math.fsum(p * oracle.hamming(y, REFS[0]) for y, p in zip(SPACE, law, strict=True))
    assert point.expected_edits == pytest.approx(edits)
    assert point.expected_reward == pytest.approx(-edits)
    assert point.reference_mass == pytest.approx(law[SPACE.index(REFS[0])])
    assert point.entropy == pytest.approx(oracle.entropy(law))


def test_hamming_at_any_temperature_and_length():
    for tau in (1e-4, 0.85, 1e4):
        point = HammingCurve(22821, [20, 1, 400]).at(tau)
        assert math.isfinite(point.entropy)
        assert 0.0 <= point.reference_mass <= 1.0
    assert HammingCurve(22821, [20]).at(0.85).expected_edits == pytest.approx(19.997, abs=5e-4)


def test_importance_estimates_reach_beyond_the_set():
    """Entropy and mass over all 3^4 sentences from draws of a Hamming proposal."""
    cands = HammingStratified(WORDS, 1.2, size=50_000)(
        [list(REFS[0])], generator=torch.Generator().manual_seed(0)
    )
    estimated = CandidateCurve(
        cands, [list(REFS[0])], rewards.NegativeHamming(), estimator="importance"
    ).at(0.7)
    exact = HammingCurve(WORDS, [LENGTH]).at(0.7)
    assert estimated.entropy == pytest.approx(exact.entropy, abs=0.02)
    assert estimated.expected_reward == pytest.approx(exact.expected_reward, abs=0.03)
    assert estimated.reference_mass == pytest.approx(exact.reference_mass, abs=0.01)


@pytest.mark.parametrize("mass", [0.05, 0.5, 0.99])
def test_suggestions_leave_the_mass(mass):
    refs = torch.randint(5, 1000, (20, 12), generator=torch.Generator().manual_seed(0))
    cands = NgramReplacement(1000, size=50)(refs, generator=torch.Generator().manual_seed(1))
    curves = [CandidateCurve(cands, refs, rewards.SentenceBLEU()), HammingCurve(1000, [12, 30])]
    for curve in curves:
        tau = curve.suggest(mass=mass)
        assert curve.at(tau).reference_mass == pytest.approx(mass, rel=1e-6)
    masses = [point.reference_mass for point in curves[0].curve([0.05, 0.2, 0.8, 3.0])]
    assert masses == sorted(masses, reverse=True)


@pytest.mark.parametrize("mass", [0.05, 0.11, 0.25])
def test_masses_that_rise_and_fall_are_found(mass):
    """Three annotators of whom nobody wrote the best sentence.

    SQDML leaves them nothing when cold, most when warm, 1/9 when hot.
    """
    space = list(itertools.product(range(3), repeat=3))
    cands = Candidates(torch.tensor([space]), torch.full((1, 27), 3))
    curve = CandidateCurve(
        cands, [[[0, 1, 0], [0, 2, 1], [2, 1, 1]]], rewards.TokenAccuracy(), objective="sqdml"
    )
    assert curve.at(1e-3).reference_mass < 0.01 < 0.3 < curve.at(0.2).reference_mass
    assert curve.at(curve.suggest(mass)).reference_mass == pytest.approx(mass, rel=1e-6)


def curve(reward, **options):
    return CandidateCurve(whole_space(), [list(REFS[0])], reward, **options)


EXACT = rewards.ExactMatch()


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: HammingCurve(10, [3]).suggest(0.0), TemperatureError, "between 0 and 1"),
        (lambda: curve(EXACT).suggest(0.001), TemperatureError, "no temperature leaves"),
        (lambda: curve(EXACT, objective="ml"), TemperatureError, "objective must be"),
        (lambda: curve(EXACT, estimator="paper"), TemperatureError, "estimator must be"),
        (lambda: curve(rewards.MultiReferenceBLEU()), RewardError, "against each reference"),
        (lambda: HammingCurve(1, [3]), DtypeError, "from 2"),
        (lambda: HammingCurve(5, []), LengthError, "at least one"),
        (lambda: HammingCurve(5, [3]).at(-1.0), TemperatureError, "positive"),
    ],
)
def test_bad_input(call, error, text):
    with pytest.raises(error, match=text):
        call()
