"""Which weights a feature CRF has, and AdaGrad, against their formulas."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from softq.kernels.features import crf as feature_crf
from softq.linear.tagger_training import BatchFit, Layout, seen_layout
from softq.linear.tagging import References
from tagging_cases import NAMES, by_enumeration, evaluate, features, settings_for, some_references

pytestmark = pytest.mark.usefixtures("one_thread")


# --- layouts ----------------------------------------------------------------------------------------------


def test_layouts_pack_and_unpack():
    rng = np.random.default_rng(0)
    for states, transitions in itertools.product(
        (None, torch.tensor([0, 4, 5, 14]), torch.tensor([], dtype=torch.int64)), repeat=2
    ):
        transitions = None if transitions is None else transitions[:3]
        layout = Layout(5, 3, states, transitions)
        assert layout.size == (15 if states is None else len(states)) + (
            9 if transitions is None else len(transitions)
        )
        parameters = torch.from_numpy(rng.standard_normal(layout.size).astype(np.float32))
        weights, table = layout.unpack(parameters)
        assert (weights.dtype, weights.shape) == (np.float32, (feature_crf.padded(15),))
        assert (table.dtype, table.shape) == (np.float64, (3, 3))
        back = torch.full_like(parameters, torch.nan)
        layout.pack(weights, table, back)
        assert torch.equal(back, parameters)
        for array, chosen, count in (
            (weights[:15], states, 15),
            (table.reshape(-1), transitions, 9),
        ):
            others = np.setdiff1d(
                np.arange(count), np.arange(count) if chosen is None else chosen.numpy()
            )
            assert not array[others].any()
        used = np.zeros_like(weights)
        assert layout.unpack(parameters, used)[0] is used
        assert np.array_equal(used, weights)


@pytest.mark.parametrize("valued", [False, True])
@pytest.mark.parametrize("min_freq", [0.5, 1.0, 2.0, 2.5])
def test_seen_pairs_by_a_dictionary(valued, min_freq):
    names = NAMES[3]
    lengths = np.random.default_rng(3).integers(0, 5, 12)
    references, matrix = (
        some_references(4, lengths, names, most=6),
        features(4, lengths, valued=valued),
    )
    layout = seen_layout(
        matrix, references, 3, all_states=False, all_transitions=False, min_freq=min_freq
    )
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
                    counts[pair] = counts.get(pair, 0.0) + share * (
                        1.0 if matrix.values is None else abs(float(matrix.values[i]))
                    )
            token += 1
    expected = sorted(
        f * 3 + k for (f, k), count in counts.items() if min_freq <= 1 or count >= min_freq
    )
    assert layout.states.tolist() == expected
    assert layout.transitions.tolist() == sorted(i * 3 + j for i, j in neighbours)
    everything = seen_layout(matrix, references, 3, all_states=True, all_transitions=True)
    assert (everything.states, everything.transitions) == (None, None)


def test_left_out_pairs_have_the_weight_0():
    names, lengths = NAMES[3], (3, 4, 2)
    references, matrix = some_references(6, lengths, names, most=1), features(6, lengths)
    settings = settings_for(names, "raml", 1.0, all_states=False, all_transitions=False, c2=0.2)
    some, every = (
        settings.whole(matrix, references),
        settings_for(names, "raml", 1.0, c2=0.2).whole(matrix, references),
    )
    assert some.layout.size < every.layout.size
    parameters = torch.randn(some.layout.size, generator=torch.Generator().manual_seed(0))
    places = torch.cat([some.layout.states, 18 + some.layout.transitions])
    spread = torch.zeros(every.layout.size).index_copy(0, places, parameters)
    (value, gradient), (other, slopes) = evaluate(some, parameters), evaluate(every, spread)
    assert value == pytest.approx(other, rel=1e-7)
    assert torch.allclose(gradient, slopes[places], atol=1e-6)


# --- BatchFit ----------------------------------------------------------------------------------------------


def batches_of(names, scheme=None):
    """Two batches with features of their own and in common; of six columns, 0 is on no token."""
    lengths = ((3, 1), (2, 0, 2))
    return [
        (features(seed, part, size=6 - seed), some_references(seed, part, names, scheme))
        for seed, part in enumerate(lengths)
    ]


@pytest.mark.parametrize("constraints", ["none", "model"])
def test_steps_of_adagrad_are_the_formula(constraints):
    names = NAMES[3]
    settings = settings_for(names, "sqdml", 0.7, constraints, c2=0.4)
    batches = [(matrix._replace(size=6), references) for matrix, references in batches_of(names)]
    descent = BatchFit(
        settings,
        SimpleNamespace(size=6),
        lambda batch: batches[int(batch[0] > 0)][0],
        References(*([one for b in batches for one in b[1][side]] for side in (0, 1))),
        lambda epoch: [np.arange(2), np.arange(2, 5)],
        0.3,
    )
    weights = np.zeros(18 + 9)
    squares = np.zeros(18 + 9)
    touched = [set(matrix.indices.tolist()) for matrix, _ in batches]
    shares = np.array(
        [sum(f in batch for batch in touched) for f in range(6) for _ in range(3)] + [2] * 9
    )
    scheme = "bio" if constraints == "model" else None
    for step, (matrix, references) in enumerate([*batches, *batches]):
        value, slopes, *_ = by_enumeration(
            matrix,
            references,
            names,
            "sqdml",
            0.7,
            np.eye(3).tolist(),
            weights.tolist(),
            target_scheme=scheme,
            model_scheme=scheme,
        )
        descent.step(step // 2, step % 2)
        assert descent.end_epoch()["loss"] == pytest.approx(value, rel=1e-4)
        here = np.array(
            [f in set(matrix.indices.tolist()) for f in range(6) for _ in range(3)] + [True] * 9
        )
        slope = np.where(here, np.array(slopes) + 2 * 0.4 * weights / np.maximum(shares, 1), 0.0)
        squares += slope**2
        weights -= 0.3 * slope / (np.sqrt(squares) + 1e-8)
        flat, transitions = descent.model().weights, descent.model().transitions
        assert np.allclose(flat[:18], weights[:18], atol=1e-4)
        assert np.allclose(transitions.reshape(-1), weights[18:], atol=1e-4)
        assert not flat[18:].any()
