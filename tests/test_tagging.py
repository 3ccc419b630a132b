"""Training objectives of feature CRFs against enumeration of all label sequences, finite differences and the chains of softq itself."""

import itertools
import math
import re

import numpy as np
import pytest
import torch

import oracle
import softq
from small_runs import single_thread
from softq.errors import OutputError, ShapeError, TemperatureError, WeightError
from softq.features import FeatureMatrix
from softq.kernels import feature_crf, jit
from softq.rewards import TokenReward
from softq.tagging import (
    AdaGrad,
    CRFObjective,
    CRFSettings,
    Forbidden,
    Layout,
    References,
    corpus_target,
    entity_reward,
    seen_layout,
    target,
)


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    with single_thread():
        yield


LENGTHS = {1: (3, 0, 1), 2: (4, 0, 1, 3), 3: (4, 1, 0, 2), 5: (3, 0, 1, 4), 9: (1, 3, 0, 2), 17: (2, 0, 1, 2)}
KINDS = ("PER", "LOC", "ORG", "MISC")
NAMES = {
    1: ("O",),
    2: ("O", "B-PER"),
    3: ("I-PER", "O", "B-PER"),
    5: ("E-PER", "I-PER", "O", "S-PER", "B-PER"),
    9: ("O", *(f"{prefix}-{kind}" for kind in KINDS[:2] for prefix in "BIES")),
    17: ("O", *(f"{prefix}-{kind}" for kind in KINDS for prefix in "BIES")),
}
SCHEMES = {2: "bio", 3: "bio", 5: "bioes", 9: "bioes", 17: "bioes"}
_ENTITY = {"bio": r"B-(\w+) (?:I-\1 )*", "bioes": r"(?:S-\w+ |B-(\w+) (?:I-\1 )*E-\1 )"}


def follows(names, scheme):
    """Whether a sequence of labels is one of the scheme, by a regular expression for whole sentences."""
    return scheme is None or re.fullmatch(f"(?:O |{_ENTITY[scheme]})*", "".join(f"{name} " for name in names)) is not None


def sequences(length, names, scheme):
    return [y for y in oracle.label_sequences(length, len(names)) if follows([names[k] for k in y], scheme)]


def features(seed, lengths, size=6, valued=False, twice=True):
    """Random rows, some empty, some with a column twice; column 0 stands nowhere."""
    rng = np.random.default_rng(seed)
    rows = [rng.integers(1, size, rng.integers(0, 4)) for _ in range(sum(lengths))]
    if twice:
        rows[0] = np.array([2, 1, 2])
    indices = np.concatenate(rows).astype(np.int32)
    values = rng.choice(np.float32([-1.5, 0.25, 2.0]), len(indices)) if valued else None
    return FeatureMatrix(np.concatenate([[0], np.cumsum([len(row) for row in rows])]), indices, values, np.array(lengths), size)


def some_references(seed, lengths, names, scheme=None, most=3):
    """One to three label sequences a sentence, with weights of any sum; from two on, one weighs nothing, and holds no labels at all."""
    rng = np.random.default_rng(seed)
    labels, weights = [], []
    for length in lengths:
        choice = sequences(length, names, scheme)
        count = int(rng.integers(1, most + 1))
        labels.append(np.array([choice[int(i)] for i in rng.integers(0, len(choice), count)], np.int64).reshape(count, length))
        weights.append(rng.integers(1, 4, count) / 2)
        if count > 1:
            labels[-1][0], weights[-1][0] = 99, 0.0
    return References(labels, weights)


def by_enumeration(matrix, references, names, objective, tau, table, parameters, *, c2=0.0, target_scheme=None, model_scheme=None):
    """Value, gradient (flat: features, then neighbours), E_target of labels and of neighbours, and the constant between value and KL."""
    labels, size = len(names), matrix.size
    weights = [[parameters[f * labels + k] for k in range(labels)] for f in range(size)]
    between = [[parameters[size * labels + i * labels + j] for j in range(labels)] for i in range(labels)]
    value, constant = c2 * math.fsum(p * p for p in parameters), 0.0
    gradient = [2 * c2 * p for p in parameters]
    unary, pairs = [], [[0.0] * labels for _ in range(labels)]
    token = 0
    for length, sentence, shares in zip(matrix.lengths, references.labels, references.weights, strict=True):
        rows = []
        for t in range(token, token + length):
            cells = range(matrix.offsets[t], matrix.offsets[t + 1])
            rows.append([(int(matrix.indices[i]), 1.0 if matrix.values is None else float(matrix.values[i])) for i in cells])
        token += length
        possible = sequences(length, names, model_scheme)
        allowed = set(sequences(length, names, target_scheme))
        emissions = [[math.fsum(v * weights[f][k] for f, v in row) for k in range(labels)] for row in rows]
        scores = [oracle.label_score(emissions, [between] * length, y) for y in possible]
        used = [(tuple(y), w / sum(shares)) for y, w in zip(sentence.tolist(), shares, strict=True) if w > 0]
        mass = [w for _, w in used]
        if objective == "ml":
            q = [math.fsum(w for ref, w in used if ref == y) for y in possible]
            constant += oracle.entropy(q)
        else:
            rewards = [
                [sum(table[a][b] for a, b in zip(y, ref, strict=True)) if y in allowed else -math.inf for y in possible] for ref, _ in used
            ]
            q = (oracle.raml if objective == "raml" else oracle.sqdml)(rewards, mass, tau)
            parts = (
                [(1.0, q)] if objective == "sqdml" else [(w, oracle.raml([row], [1.0], tau)) for w, row in zip(mass, rewards, strict=True)]
            )
            constant += math.fsum(w * oracle.entropy(part) for w, part in parts)
        p = oracle.probabilities(scores)
        value += oracle.log_sum_exp(scores) - math.fsum(a * s for a, s in zip(q, scores, strict=True) if a > 0)
        expected = [[0.0] * labels for _ in range(length)]
        for y, a, b in zip(possible, p, q, strict=True):
            for t, k in enumerate(y):
                expected[t][k] += b
                for f, v in rows[t]:
                    gradient[f * labels + k] += (a - b) * v
            for i, j in itertools.pairwise(y):
                pairs[i][j] += b
                gradient[size * labels + i * labels + j] += a - b
        unary += expected
    return value, gradient, unary, pairs, constant


def settings_for(names, objective, tau, constraints="none", **more):
    more = {"scheme": SCHEMES.get(len(names)), "all_states": True, "c2": 0.0} | more
    return CRFSettings(names, objective, None if objective == "ml" else tau, constraints=constraints, **more)


def evaluate(objective, parameters):
    gradient = torch.full_like(parameters, torch.nan)
    return objective(parameters, gradient), gradient


CASES = [
    (labels, objective, constraints)
    for labels in LENGTHS
    for objective in ("ml", "raml", "sqdml")
    for constraints in ("none", "decode", "target", "model")
    if (labels in SCHEMES or constraints == "none") and (labels < 9 or constraints != "decode")
]


@pytest.mark.parametrize(("labels", "objective", "constraints"), CASES)
@pytest.mark.parametrize("valued", [False, True])
def test_value_and_gradient_by_enumeration(labels, objective, constraints, valued):
    names, lengths, seed = NAMES[labels], LENGTHS[labels], labels + 10 * valued
    scheme = SCHEMES[labels] if constraints in ("target", "model") else None
    # What breaks the scheme can be a reference of RAML and SQDML: it is outside the target, yet what comes near it earns something.
    references = some_references(seed, lengths, names, scheme if objective == "ml" else None)
    table = (
        np.random.default_rng(seed).integers(-4, 9, (labels, labels)) / 4
    )  # R[predicted, right], neither symmetric nor 0 off the diagonal
    matrix = features(seed, lengths, valued=valued)
    settings = settings_for(names, objective, 0.7, constraints, reward=TokenReward(torch.from_numpy(table)), c2=0.3)
    whole = settings.whole(matrix, references)
    parameters = torch.randn(whole.layout.size, generator=torch.Generator().manual_seed(seed))
    value, gradient = evaluate(whole, parameters)
    expected, slopes, unary, pairs, constant = by_enumeration(
        matrix,
        references,
        names,
        objective,
        0.7,
        table.tolist(),
        parameters.tolist(),
        c2=0.3,
        target_scheme=scheme,
        model_scheme=scheme if constraints == "model" else None,
    )
    assert value == pytest.approx(expected, rel=1e-6)
    assert np.allclose(gradient, slopes, rtol=1e-4, atol=2e-6)
    assert np.allclose(whole.target.labels, np.reshape(unary, (-1, labels)), atol=1e-6)
    assert np.allclose(whole.target.pairs, pairs, atol=1e-9)
    penalty = 0.3 * math.fsum(p * p for p in parameters.tolist())
    assert whole.cross_entropy == pytest.approx(expected - penalty, rel=1e-6, abs=1e-6)
    assert whole.kl == pytest.approx(expected - penalty - constant, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("objective", ["ml", "raml", "sqdml"])
@pytest.mark.parametrize("constraints", ["none", "model"])
def test_the_gradient_is_that_of_the_value(objective, constraints):
    names, lengths = NAMES[5], (6, 0, 1, 9, 3)
    references = some_references(1, (3, 0, 1, 3, 3), names, "bioes")
    references = References(
        [np.tile(sequence, times) for sequence, times in zip(references.labels, (2, 1, 1, 3, 1), strict=True)], references.weights
    )
    whole = settings_for(names, objective, 0.5, constraints, c2=0.1).whole(features(2, lengths, valued=True), references)
    parameters = torch.randn(whole.layout.size, generator=torch.Generator().manual_seed(4))
    _, gradient = evaluate(whole, parameters)
    generator = torch.Generator().manual_seed(5)
    for _ in range(8):
        direction = torch.randn(len(parameters), generator=generator)
        # Parameters are float32 in the kernels: a step of 2^-7 leaves rounding at 1e-5 and the third derivative at 1e-4.
        step = 2.0**-7 * direction / direction.norm()
        above, below = (evaluate(whole, parameters + sign * step)[0] for sign in (1, -1))
        assert (above - below) / 2 == pytest.approx(float(gradient.double() @ step.double()), rel=2e-3, abs=2e-6)


def chain_of(matrix, names, scheme, parameters):
    """The dense, padded, differentiable chain of a corpus without empty sentences."""
    labels = len(names)
    weights = parameters[: matrix.size * labels].reshape(matrix.size, labels)
    dense = torch.zeros(matrix.tokens, matrix.size, dtype=torch.float64)
    for t in range(matrix.tokens):
        for i in range(matrix.offsets[t], matrix.offsets[t + 1]):
            dense[t, matrix.indices[i]] += 1.0 if matrix.values is None else float(matrix.values[i])
    scores = (dense @ weights).split(matrix.lengths.tolist())
    emissions = torch.nn.utils.rnn.pad_sequence(scores, batch_first=True)
    transitions = parameters[matrix.size * labels :].reshape(labels, labels)
    return Forbidden.by(scheme, names).chain(emissions, torch.from_numpy(matrix.lengths), transitions)


@pytest.mark.parametrize("labels", [3, 9, 17])
@pytest.mark.parametrize("constrained", [False, True])
@pytest.mark.parametrize("objective", ["raml", "sqdml"])
def test_it_is_the_cross_entropy_of_chains(labels, constrained, objective):
    names, lengths = NAMES[labels], (12, 3, 1, 25)
    rng = np.random.default_rng(labels)
    references = References([rng.integers(0, labels, (2, n)) for n in lengths], [np.array([1.0, 3.0])] * 4)
    matrix = features(3, lengths, size=40, valued=True)
    whole = settings_for(names, objective, 0.4, "model" if constrained else "none").whole(matrix, references)
    parameters = torch.randn(whole.layout.size, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).float().double()
    parameters.requires_grad_()
    chain = chain_of(matrix, names, SCHEMES[labels] if constrained else None, parameters)
    refs = torch.zeros(4, 2, 25, dtype=torch.int64)
    for row, sentence in enumerate(references.labels):
        refs[row, :, : sentence.shape[1]] = torch.from_numpy(sentence)
    make = softq.raml if objective == "raml" else softq.sqdml
    loss = softq.cross_entropy(make(chain, refs, tau=0.4, ref_weights=torch.tensor([[1.0, 3.0]] * 4).double()), chain).sum()
    loss.backward()
    value, gradient = evaluate(whole, parameters.detach().float())
    assert value == pytest.approx(float(loss.detach()), rel=1e-6)
    assert torch.allclose(gradient.double(), parameters.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scale", [100.0, 1e4])
@pytest.mark.parametrize("constraints", ["none", "model"])
def test_extreme_weights(scale, constraints):
    names, lengths = NAMES[5], (4, 1, 0, 3)
    scheme = "bioes" if constraints == "model" else None
    references = some_references(0, lengths, names, scheme)
    matrix = features(7, lengths, twice=False)
    whole = settings_for(names, "raml", 0.5, constraints).whole(matrix, references)
    parameters = (scale * torch.randn(whole.layout.size, generator=torch.Generator().manual_seed(2))).round()  # sums are exact in float32
    value, gradient = evaluate(whole, parameters)
    table = np.eye(5).tolist()
    expected, slopes, *_ = by_enumeration(
        matrix, references, names, "raml", 0.5, table, parameters.tolist(), target_scheme=scheme, model_scheme=scheme
    )
    assert value == pytest.approx(expected, rel=1e-6)
    assert np.allclose(gradient, slopes, atol=1e-5)


def test_threads_change_no_bit(monkeypatch):
    names = NAMES[17]
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 9, 150)
    matrix = features(1, lengths, size=200, valued=True)
    references = References([rng.integers(0, 17, (1, n)) for n in lengths], [np.ones(1)] * len(lengths))
    whole = settings_for(names, "raml", 0.5, c2=0.1).whole(matrix, references)
    parameters = torch.randn(whole.layout.size, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(jit, "_OPERATIONS_PER_THREAD", 1)
    found = []
    for threads in (1, 2, 7):
        monkeypatch.setattr(jit.torch, "get_num_threads", lambda threads=threads: threads)
        found.append(evaluate(whole, parameters))
    for value, gradient in found[1:]:
        assert value == found[0][0]
        assert torch.equal(gradient, found[0][1])


def test_a_second_evaluation_does_not_remember_the_first():
    names, lengths = NAMES[3], LENGTHS[3]
    references, matrix = some_references(5, lengths, names), features(5, lengths)
    settings = settings_for(names, "sqdml", 0.5, all_states=False, all_transitions=False, c2=0.2)
    whole = settings.whole(matrix, references)
    parameters = torch.randn(whole.layout.size, generator=torch.Generator().manual_seed(0))
    evaluate(whole, 3 - parameters)
    value, gradient = evaluate(whole, parameters)
    other, slopes = evaluate(settings.whole(matrix, references), parameters)
    assert value == other
    assert torch.equal(gradient, slopes)


def test_sizes_that_do_not_fit_are_refused():
    names = NAMES[3]
    references, matrix = some_references(0, (2, 3), names), features(0, (2, 3))
    settings = settings_for(names, "raml", 1.0)
    corpus = settings.target(references)
    with pytest.raises(ShapeError, match=r"expected a layout of 6 features and a target of shape \[5, 3\], got 5 and \[5, 3\]"):
        CRFObjective(matrix, corpus, Layout(5, 3, None, None), c2=0.0, forbidden=settings.forbidden)
    with pytest.raises(ShapeError, match=r"of shape \[5, 4\], got 6 and \[5, 3\]"):
        CRFObjective(matrix, corpus, Layout(6, 4, None, None), c2=0.0, forbidden=settings.forbidden)
    with pytest.raises(ShapeError, match=r"expected references of 2 sentences with 5 tokens.* got 2 with 5"):
        settings.whole(features(0, (3, 2)), references)
    with pytest.raises(ShapeError, match=r"expected references of 3 sentences with 6 tokens.* got 2 with 5"):
        settings.whole(features(0, (2, 3, 1)), references)


# --- targets ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["ml", "raml", "sqdml"])
@pytest.mark.parametrize("scheme", [None, "bioes"])
def test_targets_do_not_depend_on_batches(monkeypatch, objective, scheme):
    names = NAMES[5]
    lengths = np.random.default_rng(0).integers(0, 5, 30)
    references = some_references(2, lengths, names, scheme)
    forbidden = Forbidden.by(scheme, names)
    one = corpus_target(objective, references, forbidden, tau=0.6)
    for cells in (1, 100, 700):
        monkeypatch.setattr(target, "_CELLS", cells)
        other = corpus_target(objective, references, forbidden, tau=0.6)
        assert np.allclose(one.labels, other.labels, atol=1e-7)
        assert np.allclose(one.pairs, other.pairs, rtol=1e-12)
        assert one.entropy == pytest.approx(other.entropy, rel=1e-12)
    order = np.random.default_rng(1).permutation(30)
    shuffled = corpus_target(objective, references.take(order), forbidden, tau=0.6)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    rows = np.concatenate([np.arange(starts[i], starts[i + 1]) for i in order])
    assert np.allclose(shuffled.labels, one.labels[rows], atol=1e-7)
    assert np.allclose(shuffled.pairs, one.pairs, rtol=1e-12)


@pytest.mark.parametrize("scheme", [None, "bioes"])
def test_with_one_reference_raml_is_sqdml_and_without_temperature_ml(scheme):
    names, lengths = NAMES[5], (3, 0, 1, 4)
    references = some_references(3, lengths, names, "bioes", most=1)
    forbidden = Forbidden.by(scheme, names)
    raml, sqdml = (corpus_target(objective, references, forbidden, tau=0.8) for objective in ("raml", "sqdml"))
    assert np.allclose(raml.labels, sqdml.labels, atol=1e-7)
    assert np.allclose(raml.pairs, sqdml.pairs)
    assert raml.entropy == pytest.approx(sqdml.entropy)
    ml = corpus_target("ml", references, forbidden)
    for objective in ("raml", "sqdml"):
        cold = corpus_target(objective, references, forbidden, tau=0.01)
        assert np.allclose(cold.labels, ml.labels, atol=1e-12)
        assert np.allclose(cold.pairs, ml.pairs)
        assert cold.entropy == pytest.approx(0.0, abs=1e-12)


def test_the_target_is_a_distribution_on_what_is_allowed():
    names, lengths = NAMES[9], (5, 1, 0, 7)
    references = some_references(1, (3, 1, 0, 3), names)
    references = References([np.tile(s, 3)[:, :n] for s, n in zip(references.labels, lengths, strict=True)], references.weights)
    forbidden = Forbidden.by("bioes", names)
    for objective in ("raml", "sqdml"):
        found = corpus_target(objective, references, forbidden, tau=3.0)
        assert np.allclose(found.labels.sum(1), 1.0, atol=1e-6)
        assert found.pairs.sum() == pytest.approx(sum(n - 1 for n in lengths if n))
        assert not found.pairs[np.isneginf(forbidden.between.numpy())].any()
        assert not found.labels[[0, 5, 6], :][:, np.isneginf(forbidden.first.numpy())].any()
        assert not found.labels[[4, 5, 12], :][:, np.isneginf(forbidden.last.numpy())].any()


def test_references_that_cannot_be_are_refused():
    names = NAMES[5]
    nothing = Forbidden.by(None, names)
    for number in (5, -1):
        bad = References([np.zeros((1, 4), np.int64), np.array([[0, 1], [2, number]])], [np.ones(1), np.ones(2)])
        for objective in ("ml", "raml", "sqdml"):
            with pytest.raises(OutputError, match=r"reference 1 of sentence 1 \(counted from 0\): expected label numbers in 0..4, got"):
                corpus_target(objective, bad, nothing, tau=1.0)
    broken = References([np.array([[2]]), np.array([[2, 2], [4, 2]])], [np.ones(1), np.ones(2)])  # B-PER O
    with pytest.raises(OutputError, match=r"reference 1 of sentence 1 \(counted from 0\) breaks the tag scheme, and ML gives all its mass"):
        corpus_target("ml", broken, Forbidden.by("bioes", names))
    corpus_target("ml", broken._replace(weights=[np.ones(1), np.array([1.0, 0.0])]), Forbidden.by("bioes", names))
    corpus_target("raml", broken, Forbidden.by("bioes", names), tau=1.0)
    for weights in (np.zeros(2), np.array([1.0, -0.5]), np.array([1.0, np.nan])):
        with pytest.raises(WeightError):
            corpus_target("raml", broken._replace(weights=[np.ones(1), weights]), nothing, tau=1.0)
    with pytest.raises(TemperatureError, match="sqdml needs a temperature"):
        corpus_target("sqdml", broken, nothing)


@pytest.mark.parametrize("lengths", [(), (0,), (0, 0)])
def test_without_tokens_there_is_only_the_penalty(lengths):
    names = NAMES[3]
    references = References([np.zeros((1, 0), np.int64)] * len(lengths), [np.ones(1)] * len(lengths))
    matrix = FeatureMatrix(np.zeros(1, np.int64), np.zeros(0, np.int32), None, np.zeros(len(lengths), np.int64), 2)
    whole = settings_for(names, "raml", 1.0, c2=0.5).whole(matrix, references)
    value, gradient = evaluate(whole, torch.ones(whole.layout.size))
    assert value == pytest.approx(0.5 * 15)
    assert torch.equal(gradient, torch.ones(15))


def test_without_features_transitions_are_left():
    names, lengths = NAMES[3], (4, 1, 3)
    references = some_references(0, lengths, names)
    matrix = FeatureMatrix(np.zeros(9, np.int64), np.zeros(0, np.int32), None, np.array(lengths), 0)
    for all_states in (False, True):
        whole = settings_for(names, "sqdml", 1.0, all_states=all_states).whole(matrix, references)
        parameters = torch.randn(9, generator=torch.Generator().manual_seed(0))
        value, gradient = evaluate(whole, parameters)
        expected, slopes, *_ = by_enumeration(matrix, references, names, "sqdml", 1.0, np.eye(3).tolist(), parameters.tolist())
        assert value == pytest.approx(expected, rel=1e-6)
        assert np.allclose(gradient, slopes, atol=1e-6)


def test_entity_reward():
    names = ["B-PER", "O", "I-PER", "I-LOC"]
    assert torch.equal(entity_reward(names).table, torch.eye(4, dtype=torch.float64))
    assert torch.equal(entity_reward(names, 2.5).table, torch.diag(torch.tensor([2.5, 1.0, 2.5, 2.5], dtype=torch.float64)))
    expected = torch.tensor([[2.0, 0, 0.5, 0], [0, 1, 0, 0], [0.5, 0, 2, 0], [0, 0, 0, 2]], dtype=torch.float64)
    assert torch.equal(entity_reward(names, 2.0, 0.25).table, expected)


# --- layouts ----------------------------------------------------------------------------------------------


def test_layouts_pack_and_unpack():
    rng = np.random.default_rng(0)
    for states, transitions in itertools.product((None, torch.tensor([0, 4, 5, 14]), torch.tensor([], dtype=torch.int64)), repeat=2):
        transitions = None if transitions is None else transitions[:3]
        layout = Layout(5, 3, states, transitions)
        assert layout.size == (15 if states is None else len(states)) + (9 if transitions is None else len(transitions))
        parameters = torch.from_numpy(rng.standard_normal(layout.size).astype(np.float32))
        weights, table = layout.unpack(parameters)
        assert (weights.dtype, weights.shape) == (np.float32, (feature_crf.padded(15),))
        assert (table.dtype, table.shape) == (np.float64, (3, 3))
        back = torch.full_like(parameters, torch.nan)
        layout.pack(weights, table, back)
        assert torch.equal(back, parameters)
        for array, chosen, count in ((weights[:15], states, 15), (table.reshape(-1), transitions, 9)):
            others = np.setdiff1d(np.arange(count), np.arange(count) if chosen is None else chosen.numpy())
            assert not array[others].any()
        used = np.zeros_like(weights)
        assert layout.unpack(parameters, used)[0] is used
        assert np.array_equal(used, weights)


@pytest.mark.parametrize("valued", [False, True])
@pytest.mark.parametrize("min_freq", [0.5, 1.0, 2.0, 2.5])
def test_seen_pairs_by_a_dictionary(valued, min_freq):
    names = NAMES[3]
    lengths = np.random.default_rng(3).integers(0, 5, 12)
    references, matrix = some_references(4, lengths, names, most=6), features(4, lengths, valued=valued)
    layout = seen_layout(matrix, references, 3, all_states=False, all_transitions=False, min_freq=min_freq)
    counts, neighbours = {}, set()
    token = 0
    for sentence, weights in zip(references.labels, references.weights, strict=True):
        shown = [{} for _ in range(sentence.shape[1])]
        for sequence, weight in zip(sentence.tolist(), weights.tolist(), strict=True):
            if weight == 0:
                continue
            neighbours |= set(itertools.pairwise(sequence))
            for t, k in enumerate(sequence):
                shown[t][k] = max(shown[t].get(k, 0.0), weight / max(weights))
        for labels in shown:
            for i in range(matrix.offsets[token], matrix.offsets[token + 1]):
                for k, share in labels.items():
                    pair = (int(matrix.indices[i]), k)
                    counts[pair] = counts.get(pair, 0.0) + share * (1.0 if matrix.values is None else abs(float(matrix.values[i])))
            token += 1
    expected = sorted(f * 3 + k for (f, k), count in counts.items() if min_freq <= 1 or count >= min_freq)
    assert layout.states.tolist() == expected
    assert layout.transitions.tolist() == sorted(i * 3 + j for i, j in neighbours)
    everything = seen_layout(matrix, references, 3, all_states=True, all_transitions=True)
    assert (everything.states, everything.transitions) == (None, None)


def test_left_out_pairs_have_the_weight_0():
    names, lengths = NAMES[3], (3, 4, 2)
    references, matrix = some_references(6, lengths, names, most=1), features(6, lengths)
    settings = settings_for(names, "raml", 1.0, all_states=False, all_transitions=False, c2=0.2)
    some, every = settings.whole(matrix, references), settings_for(names, "raml", 1.0, c2=0.2).whole(matrix, references)
    assert some.layout.size < every.layout.size
    parameters = torch.randn(some.layout.size, generator=torch.Generator().manual_seed(0))
    places = torch.cat([some.layout.states, 18 + some.layout.transitions])
    spread = torch.zeros(every.layout.size).index_copy(0, places, parameters)
    (value, gradient), (other, slopes) = evaluate(some, parameters), evaluate(every, spread)
    assert value == pytest.approx(other, rel=1e-7)
    assert torch.allclose(gradient, slopes[places], atol=1e-6)


# --- AdaGrad ----------------------------------------------------------------------------------------------


def batches_of(names, scheme=None):
    """Two batches with features of their own and in common; of six columns, 0 is on no token."""
    lengths = ((3, 1), (2, 0, 2))
    return [(features(seed, part, size=6 - seed), some_references(seed, part, names, scheme)) for seed, part in enumerate(lengths)]


@pytest.mark.parametrize("constraints", ["none", "model"])
def test_steps_of_adagrad_are_the_formula(constraints):
    names = NAMES[3]
    settings = settings_for(names, "sqdml", 0.7, constraints, c2=0.4)
    batches = [(matrix._replace(size=6), references) for matrix, references in batches_of(names)]
    descent = AdaGrad(settings, 6, 0.3)
    for matrix, _ in batches:
        descent.count(matrix)
    weights = np.zeros(18 + 9)
    squares = np.zeros(18 + 9)
    touched = [set(matrix.indices.tolist()) for matrix, _ in batches]
    shares = np.array([sum(f in batch for batch in touched) for f in range(6) for _ in range(3)] + [2] * 9)
    scheme = "bio" if constraints == "model" else None
    for matrix, references in [*batches, *batches]:
        value, slopes, *_ = by_enumeration(
            matrix, references, names, "sqdml", 0.7, np.eye(3).tolist(), weights.tolist(), target_scheme=scheme, model_scheme=scheme
        )
        assert descent.step(matrix, references) == pytest.approx(value, rel=1e-4)
        here = np.array([f in set(matrix.indices.tolist()) for f in range(6) for _ in range(3)] + [True] * 9)
        slope = np.where(here, np.array(slopes) + 2 * 0.4 * weights / np.maximum(shares, 1), 0.0)
        squares += slope**2
        weights -= 0.3 * slope / (np.sqrt(squares) + 1e-8)
        flat, transitions = descent.unpack()
        assert np.allclose(flat[:18], weights[:18], atol=1e-4)
        assert np.allclose(transitions.reshape(-1), weights[18:], atol=1e-4)
        assert not flat[18:].any()


def test_an_epoch_of_adagrad_adds_up_to_the_objective():
    names = NAMES[3]
    settings = settings_for(names, "raml", 0.7, c2=0.4)
    lengths = (3, 1, 2, 0, 2, 4)
    matrix, references = features(8, lengths, size=9), some_references(8, lengths, names)
    parts = [np.array([0, 3]), np.array([1, 2]), np.array([4, 5])]
    descent = AdaGrad(settings, 9, 1e-6)  # so small a rate that the weights stay where they are
    for part in parts:
        descent.count(matrix.take(part))
    used = np.unique(matrix.indices)
    generator = torch.Generator().manual_seed(0)
    descent.load_state(
        {**descent.state(), "weights": torch.randn(9, 3, generator=generator), "transitions": torch.randn(3, 3, generator=generator)}
    )
    descent.weights[np.setdiff1d(np.arange(9), used)] = 0.0
    parameters = torch.from_numpy(np.concatenate([descent.weights.reshape(-1), descent.transitions.reshape(-1)]))
    _, gradient = evaluate(settings.whole(matrix, references), parameters)
    total = np.zeros(36)
    for part in parts:
        before = {name: tensor.numpy().copy() for name, tensor in descent.state().items()}
        descent.load_state({**descent.state(), "squares": torch.zeros(9, 3), "transition_squares": torch.zeros(3, 3)})
        descent.step(matrix.take(part), references.take(part))
        after = descent.state()
        # After one step from squares of 0 they are the slopes, up to the sign; the sign is that of the step.
        signs = np.sign(np.concatenate([(before[n] - after[n].numpy()).reshape(-1) for n in ("weights", "transitions")]))
        total += signs * np.sqrt(np.concatenate([after[n].numpy().reshape(-1) for n in ("squares", "transition_squares")]))
        descent.load_state({**after, **{n: torch.from_numpy(before[n]) for n in ("weights", "transitions")}})
    assert np.allclose(total, gradient.numpy(), atol=2e-3)
