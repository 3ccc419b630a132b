"""Feature CRFs over segments: objective and gradient against enumeration, reading, files, errors."""

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import oracle
import softq
from softq import CRFTagger
from softq.calibration import batch_of
from softq.errors import DataError, DataWarning, EstimatorError, RewardError
from softq.formats.tags import every_tag, faults, spans, tags_of_segments
from softq.linear import entity_f1_scorer, tune_entity_weight
from softq.linear.segment_tags import SegmentTags
from softq.linear.tagger_training import CRFSettings
from softq.linear.tagging import UNLABELLED, References, label_marginals
from softq.linear.uncertainty import EstimatorSets
from softq.rewards import SegmentAccuracy
from strange_files import change_notes
from tagging_cases import evaluate, features

pytestmark = pytest.mark.usefixtures("one_thread")

KINDS = ("O", "LOC", "PER")
TAGS = {
    "bio": ("I-PER", "O", "B-PER", "I-LOC", "B-LOC"),
    "bioes": ("O", *(f"{prefix}-{kind}" for kind in KINDS[1:] for prefix in "SEIB")),
}
LONGEST = 2
LENGTHS = (3, 0, 1, 4)
X = [["Ann", "Lee", "met", "Bob", "."], ["He", "met", "Ann", "."], []]
Y = [["B-PER", "I-PER", "O", "B-PER", "O"], ["O", "O", "B-PER", "O"], []]


def possible(length, longest=LONGEST):
    """All outputs in which an O is one word."""
    return [
        y
        for y in oracle.segmentations(length, longest, len(KINDS))
        if all(kind or size == 1 for _, size, kind in oracle.segments_of(y, len(KINDS)))
    ]


def tags_of(y, scheme):
    """The tags of an output, by their definition."""
    found = []
    for _, size, kind in oracle.segments_of(y, len(KINDS)):
        prefixes = ["B", *"I" * (size - 1)]
        if scheme == "bioes":
            prefixes = ["S"] if size == 1 else ["B", *"I" * (size - 2), "E"]
        found += [f"{one}-{KINDS[kind]}" if kind else "O" for one in prefixes]
    return found


def some_references(seed, scheme):
    """One to three outputs a sentence, with weights of any sum, as ids of labels."""
    rng = np.random.default_rng(seed)
    outputs, labels, weights = [], [], []
    for length in LENGTHS:
        choice = possible(length)
        chosen = [choice[int(i)] for i in rng.integers(0, len(choice), int(rng.integers(1, 4)))]
        ids = [[TAGS[scheme].index(tag) for tag in tags_of(y, scheme)] for y in chosen]
        outputs.append(chosen)
        labels.append(np.array(ids, np.int64).reshape(len(chosen), length))
        weights.append(rng.integers(1, 4, len(chosen)) / 2)
    return outputs, References(labels, weights)


def by_enumeration(matrix, outputs, references, scheme, objective, tau, weights, parameters, c2):
    """Value, gradient (features, neighbouring types, lengths) and the target's entropy."""
    tags, kinds = TAGS[scheme], len(KINDS)
    first = matrix.size * len(tags)

    def parts(y, rows):
        """Numbers of the parameters that an output uses, with the values of their features."""
        used = [
            (f * len(tags) + tags.index(tag), value)
            for row, tag in zip(rows, tags_of(y, scheme), strict=True)
            for f, value in row
        ]
        segments = oracle.segments_of(y, kinds)
        for (_, _, before), (_, _, after) in itertools.pairwise(segments):
            used.append((first + before * kinds + after, 1.0))
        for _, size, kind in segments:
            used.append((first + kinds**2 + (size - 1) * kinds + kind, 1.0))
        return used

    value, entropy = c2 * math.fsum(p * p for p in parameters), 0.0
    gradient = [2 * c2 * p for p in parameters]
    token = 0
    for length, refs, shares in zip(matrix.lengths, outputs, references.weights, strict=True):
        rows = [
            [
                (int(matrix.indices[i]), 1.0 if matrix.values is None else float(matrix.values[i]))
                for i in range(matrix.offsets[t], matrix.offsets[t + 1])
            ]
            for t in range(token, token + length)
        ]
        token += length
        every = possible(length)
        used = [parts(y, rows) for y in every]
        scores = [math.fsum(v * parameters[i] for i, v in one) for one in used]
        mass = [share / sum(shares) for share in shares]

        def reward(y, ref):
            hits = set(oracle.segments_of(y, kinds)) & set(oracle.segments_of(ref, kinds))
            return sum(weights[kind] for _, _, kind in hits)

        rewards = [[reward(y, ref) for y in every] for ref in refs]
        if objective == "ml":
            q = [math.fsum(m for ref, m in zip(refs, mass, strict=True) if ref == y) for y in every]
            entropy += oracle.entropy(q)
        else:
            q = (oracle.raml if objective == "raml" else oracle.sqdml)(rewards, mass, tau)
            single = [(m, oracle.raml([r], [1.0], tau)) for m, r in zip(mass, rewards, strict=True)]
            several = [(1.0, q)] if objective == "sqdml" else single
            entropy += math.fsum(m * oracle.entropy(one) for m, one in several)
        p = oracle.probabilities(scores)
        value += oracle.log_sum_exp(scores) - math.fsum(
            b * s for b, s in zip(q, scores, strict=True)
        )
        for one, a, b in zip(used, p, q, strict=True):
            for i, v in one:
                gradient[i] += (a - b) * v
    return value, gradient, entropy


def case(seed, scheme, objective, valued=False, c2=0.0):
    matrix = features(seed, LENGTHS, valued=valued)
    outputs, references = some_references(seed, scheme)
    weights = [0.5, 2.0, 2.0]
    settings = CRFSettings(
        TAGS[scheme],
        objective,
        None if objective == "ml" else 0.6,
        SegmentAccuracy(weights),
        scheme,
        c2=c2,
        all_states=True,
        max_segment=LONGEST,
    )
    parameters = torch.randn(
        settings.layout(matrix.size).size, generator=torch.Generator().manual_seed(seed)
    )
    return SimpleNamespace(
        matrix=matrix,
        outputs=outputs,
        references=references,
        settings=settings,
        weights=weights,
        parameters=parameters,
    )


@pytest.mark.parametrize("scheme", ["bio", "bioes"])
@pytest.mark.parametrize("objective", ["ml", "raml", "sqdml"])
@pytest.mark.parametrize("valued", [False, True])
def test_objective_and_gradient_by_enumeration(scheme, objective, valued):
    it = case(5, scheme, objective, valued, c2=0.3)
    found = it.settings.whole(it.matrix, it.references)
    value, gradient = evaluate(found, it.parameters)
    want, slope, entropy = by_enumeration(
        it.matrix,
        it.outputs,
        it.references,
        scheme,
        objective,
        0.6,
        it.weights,
        it.parameters.tolist(),
        0.3,
    )
    assert value == pytest.approx(want, rel=1e-5)
    assert found.target.entropy == pytest.approx(entropy, abs=1e-5)
    torch.testing.assert_close(gradient, torch.tensor(slope), atol=2e-5, rtol=1e-4)


def test_gradient_against_finite_differences():
    """Of the one step that float32 allows."""
    it = case(7, "bioes", "sqdml", valued=True, c2=0.1)
    objective = it.settings.whole(it.matrix, it.references)
    _, gradient = evaluate(objective, it.parameters)
    step = 1e-2
    for i in range(len(it.parameters)):
        around = [it.parameters.clone() for _ in range(2)]
        around[0][i] += step
        around[1][i] -= step
        up, down = (evaluate(objective, one)[0] for one in around)
        assert (up - down) / (2 * step) == pytest.approx(gradient[i].item(), abs=2e-3)


@pytest.mark.parametrize("scheme", ["bio", "bioes"])
def test_marginals_and_the_best_by_enumeration(scheme):
    spelled = SegmentTags(TAGS[scheme], scheme, LONGEST)
    generator = torch.Generator().manual_seed(3)
    tags = torch.randn(2, 4, len(TAGS[scheme]), dtype=torch.float64, generator=generator)
    table = torch.randn(spelled.table_shape, dtype=torch.float64, generator=generator)
    p = spelled.distribution(tags, table, torch.tensor([4, 2]))
    marginals = label_marginals(p, spelled)
    for b, length in enumerate([4, 2]):
        every = possible(length)
        scores = []
        for y in every:
            segments = oracle.segments_of(y, 3)
            score = sum(
                tags[b, t, TAGS[scheme].index(tag)] for t, tag in enumerate(tags_of(y, scheme))
            )
            score += sum(table[a[2], c[2]] for a, c in itertools.pairwise(segments))
            scores.append(float(score + sum(table[2 + size, k] for _, size, k in segments)))
        assert p.log_partition[b].item() == pytest.approx(oracle.log_sum_exp(scores))
        shares = oracle.probabilities(scores)
        for t, k in itertools.product(range(length), range(len(TAGS[scheme]))):
            want = sum(
                a for y, a in zip(every, shares, strict=True) if tags_of(y, scheme)[t] == TAGS[scheme][k]
            )  # fmt: skip
            assert marginals[b, t, k].item() == pytest.approx(want)
        best = every[int(np.argmax(shares))]
        assert spelled.written(p.mode(), p.all_lengths())[b] == tags_of(best, scheme)


# --- reading ----------------------------------------------------------------------------------------------


def test_labels_are_read_leniently_and_cut():
    spelled = SegmentTags(("B-PER", "I-PER", "O"), "bio", 2)
    ids = torch.tensor([[[1, 1, 1, 1, 1], [2, 1, 1, 0, 2]]])  # I I I I I; O I I B O
    kinds = 2
    found = spelled.read(ids, torch.tensor([5])).tolist()
    assert found == [[[2 * kinds + 1, 0, 2 * kinds + 1, 0, 3], [2, 5, 0, 3, 2]]]


def test_a_label_that_is_left_out_is_that_of_the_others():
    spelled = SegmentTags(("B-PER", "I-PER", "O"), "bio", 3)
    settings = CRFSettings(spelled.labels, "sqdml", 0.5, scheme="bio", max_segment=3)
    left_out = References([np.array([[0, UNLABELLED, 2], [0, 1, 2], [0, 2, 2]])], [np.array([2.0, 3.0, 1.0])])  # fmt: skip
    filled = References([np.array([[0, 1, 2], [0, 1, 2], [0, 2, 2]])], left_out.weights)
    for one, other in zip(settings.target(left_out), settings.target(filled), strict=True):
        np.testing.assert_allclose(one, other)


def test_one_annotator_and_a_small_tau_are_ml():
    _, references = some_references(3, "bio")
    first = References([one[:1] for one in references.labels], [one[:1] for one in references.weights])  # fmt: skip
    ml, cold = (
        CRFSettings(TAGS["bio"], name, tau, scheme="bio", max_segment=LONGEST).target(first)
        for name, tau in (("ml", None), ("raml", 0.01))
    )
    np.testing.assert_allclose(ml.labels, cold.labels, atol=1e-6)
    np.testing.assert_allclose(ml.pairs, cold.pairs, atol=1e-6)
    assert ml.pairs[: len(KINDS)].sum() == sum(
        len(oracle.segments_of(outputs[0], 3)) - (len(outputs[0]) > 0)
        for outputs in some_references(3, "bio")[0]
    )


# --- the estimator ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"objective": "raml", "tau": 0.3, "c1": 0.01},
        {"objective": "sqdml", "tau": 0.3, "reward": {"PER": 3.0, "O": 0.5}, "decoding": "mbr"},
        {"algorithm": "adagrad", "batch_size": 1, "max_epochs": 20, "random_state": 0},
        {"min_freq": 2.0, "all_possible_states": True, "entity_weight": 2.0},
    ],
)
def test_learns_predicts_and_comes_back_from_a_file(options, tmp_path):
    tagger = CRFTagger(space="segments", max_segment=3, c2=0.1, **options).fit(X, Y, X, Y)
    assert tagger.classes_ == ["B-PER", "I-PER", "O"]
    assert tagger.predict(X) == Y
    assert tagger.score(X, Y) == tagger.dev_score_ == entity_f1_scorer(tagger, X, Y) == 1.0
    assert tagger.kl_ is not None
    assert tagger.kl_ >= 0
    tagger.save(tmp_path / "tagger.safetensors")
    again = CRFTagger.load(tmp_path / "tagger.safetensors")
    assert again.get_params() | {"random_state": None} == tagger.get_params() | {
        "random_state": None
    }
    assert again.predict_marginals(X) == tagger.predict_marginals(X)
    assert again.predict_spans(X) == tagger.predict_spans(X)
    assert set(again.transition_features_) <= set(itertools.product(["O", "PER"], repeat=2))
    assert {size for size, _ in again.length_features_} <= {1, 2, 3}


def test_the_loss_is_the_one_of_the_distribution():
    """Cross-entropy of `softq.cross_entropy` on the tagger's own distributions."""
    tagger = CRFTagger(space="segments", max_segment=3, c2=0.1, objective="raml", tau=0.5)
    tagger.fit(X, Y)
    total = 0.0
    for batch, p in tagger.tagger_.chains(tagger.features(X)):
        refs = batch_of(tagger.whole_outputs(X, Y), batch, p)
        total += float(softq.kl(softq.raml(p, refs, 0.5), p).sum())
    assert total / len(X) == pytest.approx(tagger.kl_, abs=1e-5)


def test_probabilities_of_spans():
    tagger = CRFTagger(space="segments", max_segment=3, c2=1.0).fit(X, Y)
    (found,) = tagger.predict_spans([X[0]], least=0.0)
    inside = [0.0] * len(X[0])
    for _, start, end, share in found:
        assert 0 < end - start <= 3
        for t in range(start, end):
            inside[t] += share
    marginals = tagger.predict_marginals([X[0]])[0]
    assert inside == pytest.approx([1 - token["O"] for token in marginals], abs=1e-5)
    few = tagger.predict_spans([X[0]], least=0.3)[0]
    assert few == [span for span in found if span.probability >= 0.3] != found
    with pytest.raises(EstimatorError, match="space='segments', and this tagger is a chain"):
        CRFTagger().fit(X, Y).predict_spans(X)


def test_several_annotators_and_weights_at_decoding():
    crowd = [
        [Y[0], None, ["O", "O", "O", "B-PER", "O"]],
        [Y[1], ["O", "O", "O", "O"], ["?", "O", "O", "O"]],
        [[], [], []],
    ]
    ml = CRFTagger(space="segments", c2=0.1).fit(X, crowd)
    assert ml.predict([X[1]]) == [["O", "O", "O", "O"]]
    eager = CRFTagger(space="segments", c2=0.1, objective="sqdml", tau=0.2, entity_weight=4.0)
    assert eager.fit(X, crowd).predict([X[1]]) == [Y[1]]
    assert ml.predict([X[1]], entity_weight=8.0) == [Y[1]]
    assert ml.predict([X[1]], reward={"PER": 8.0}) == [Y[1]]
    choice = tune_entity_weight(ml, [X[1]], [Y[1]])
    assert choice.best.f == 1.0
    assert choice.best.weight > 1
    weighed = CRFTagger(space="segments", c2=0.1, objective="sqdml", tau=0.2)
    assert len(weighed.fit(X, crowd, ref_weights="one-coin").annotators_) == 3


def test_temperature_from_sentences_not_trained_on():
    tagger = CRFTagger(space="segments", max_segment=2, c2=0.1).fit(X, Y)
    before = tagger.predict_marginals(X)
    more = [["Ann", "Lee", "Bob"], ["Bob", "Ann"]], [["B-PER", "I-PER", "I-PER"], ["O", "O"]]
    tagger.calibrate(X + more[0], Y + more[1])
    assert tagger.predict(X) == Y
    assert tagger.predict_marginals(X) != before

    def log_likelihood(factor):
        model = replace(tagger.tagger_, temperature=factor * tagger.temperature_)
        right, total = tagger.whole_outputs(X + more[0], Y + more[1]), 0.0
        for batch, p in model.chains(tagger.features(X + more[0])):
            total += float(p.log_prob(batch_of(right, batch, p)).sum())
        return total

    assert log_likelihood(1.0) > max(log_likelihood(0.9), log_likelihood(1.1))


def test_sets_of_whole_sentences():
    """They hold labels, of the right sentence too; one with an unknown label is never in a set."""
    tagger = CRFTagger(space="segments", max_segment=2, c2=1.0).fit(X, Y)
    many, right = X[:2] * 15, Y[:2] * 15
    sets = EstimatorSets.calibrate(tagger, many, right, alpha=0.1, unit="sequence")
    found = sets.predict(X[:2])
    assert [one.outputs[0] for one in found] == tagger.predict(X[:2])
    assert sets.coverage(X[:2], Y[:2], unit="sentence").value == 1.0
    unknown = [["B-PER", "I-PER", "B-NEW", "O", "O"], Y[1]]
    assert sets.coverage(X[:2], unknown, unit="sentence").value == 0.5


def test_predictions_keep_to_the_scheme():
    """Whatever the weights: random ones here."""
    labels = every_tag(["B-LOC", "I-PER"], "bioes")
    generator = torch.Generator().manual_seed(0)
    spelled = SegmentTags(labels, "bioes", 3)
    tags = 5 * torch.randn(50, 9, len(labels), generator=generator)
    table = torch.randn(spelled.table_shape, generator=generator)
    p = spelled.distribution(tags, table, torch.full((50,), 9))
    for outputs in (p.mode(), p.mbr(spelled.reward(3.0))):
        for found in spelled.written(outputs, p.all_lengths()):
            assert faults(found, "bioes") == []
            assert all(span.end - span.start <= 3 for span in spans(found, "bioes"))
    assert tags_of_segments([(0, 9, 0)], "bioes", spelled.kinds) == ["O"] * 9


def test_entities_longer_than_a_segment_are_cut_with_a_warning():
    long = [["B-PER", "I-PER", "I-PER", "I-PER", "O"], *Y[1:]]
    with pytest.warns(DataWarning, match="1 entities of more than 3 words"):
        tagger = CRFTagger(space="segments", max_segment=3, c2=0.1).fit(X, long)
    assert tagger.predict([X[0]]) == [["B-PER", "I-PER", "I-PER", "B-PER", "O"]]


# --- errors -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "y", "error", "text"),
    [
        ({"max_segment": 0}, Y, EstimatorError, "max_segment must be a whole number of at least 1"),
        ({"space": "segment"}, Y, EstimatorError, "did you mean 'segments'"),
        ({"annotators": "sequential"}, [[y, y] for y in Y], EstimatorError, "needs space='chain'"),
        ({"partial_labels": True}, Y, EstimatorError, "partial_labels estimates the truth label"),
        ({"reward": np.eye(3)}, Y, RewardError, "a reward of segments is a dict from types"),
        ({"reward": {"B-PER": 2.0}}, Y, DataError, "O, PER; got 'B-PER'"),
        ({}, [["x"] * len(y) for y in Y], DataError, "segments are for tags .* take space='chain'"),
        ({}, [["I-PER"] + ["O"] * 4, ["O"] * 4, []], DataError, "bio or bioes, got iob1"),
        ({}, [["B-O"] + ["O"] * 4, ["O"] * 4, []], DataError, "rename the type"),
    ],
)  # fmt: skip
def test_options_and_labels_that_do_not_fit(options, y, error, text):
    with pytest.raises(Exception, match=text) as found:
        CRFTagger(**{"space": "segments"} | options).fit(X, y)
    assert issubclass(found.type, error) or error is DataError


@pytest.mark.parametrize(
    ("notes", "text"),
    [
        ({"max_segment": 0}, "max_segment must be a whole number from 1, got 0"),
        ({"max_segment": "3"}, "max_segment must be a whole number from 1, got '3'"),
        ({"max_segment": 4}, r"transitions \[6, 2\]"),
        ({"max_segment": None}, r"transitions \[3, 3\]"),
        ({"scheme": None}, "segments need a tag scheme"),
        ({"scheme": "iob1"}, "bio or bioes, got iob1"),
        ({"labels": ["B-LOC", "B-PER", "O"]}, "none that is I-LOC"),
    ],
)
def test_damaged_files(notes, text, tmp_path):
    path = tmp_path / "tagger.safetensors"
    CRFTagger(space="segments", max_segment=3, c2=0.1).fit(X, Y).save(path)
    change_notes(path, lambda about: about | notes)
    with pytest.raises(DataError, match=text):
        CRFTagger.load(path)
