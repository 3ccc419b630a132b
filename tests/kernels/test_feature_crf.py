"""Sparse products of the feature CRF against dense numpy: transpose, scores of labels, gradient."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softq.errors import ShapeError
from softq.kernels import jit
from softq.kernels.features import crf as feature_crf
from softq.kernels.simd import WIDTHS

QUICK = settings(max_examples=50, deadline=None)
WIDTH = WIDTHS["float32"]
LABELS = st.sampled_from([1, 2, 9, WIDTH - 1, WIDTH, WIDTH + 1, 2 * WIDTH, 37])

pytestmark = pytest.mark.usefixtures("one_thread")


@st.composite
def matrices(draw):
    """Offsets, indices, values (or None) and the number of columns.

    Rows and columns may be empty, a column may come twice in a row.
    """
    size = draw(st.integers(0, 6))
    row = st.lists(st.integers(0, size - 1), max_size=5) if size else st.just([])
    rows = draw(st.lists(row, max_size=7))
    indices = np.array([column for columns in rows for column in columns], np.int32)
    offsets = np.concatenate([[0], np.cumsum([len(columns) for columns in rows], dtype=np.int64)])
    values = None
    if draw(st.booleans()):
        values = (
            np.array(
                draw(st.lists(st.integers(-8, 8), min_size=len(indices), max_size=len(indices))),
                np.float32,
            )
            / 4
        )
    return offsets, indices, values, size


def dense(offsets, indices, values, size):
    """The same matrix ``[T, F]``."""
    found = np.zeros((len(offsets) - 1, size))
    for t in range(len(offsets) - 1):
        for i in range(offsets[t], offsets[t + 1]):
            found[t, indices[i]] += 1.0 if values is None else values[i]
    return found


def padded(array):
    """Flat, with NaN behind it: what is read beyond the end must not matter."""
    flat = np.full(feature_crf.padded(array.size), np.nan, np.float32)
    flat[: array.size] = array.reshape(-1)
    return flat


def test_sixteen_may_be_read_from_any_number_on():
    for count in range(40):
        assert feature_crf.padded(count) >= max(count - 1, 0) + WIDTH


@QUICK
@given(matrices())
def test_the_transpose_is_the_same_matrix_with_tokens_in_order(matrix):
    columns = feature_crf.transpose(*matrix)
    offsets, rows = columns.offsets, columns.rows
    assert offsets[0] == 0
    assert offsets[-1] == len(rows) == len(matrix[1])
    assert len(offsets) == matrix[3] + 1
    tokens = len(matrix[0]) - 1
    assert np.array_equal(dense(offsets, rows, columns.values, tokens), dense(*matrix).T)
    for f in range(matrix[3]):
        assert (np.diff(rows[offsets[f] : offsets[f + 1]]) >= 0).all()
    assert (columns.values is None) == (matrix[2] is None)


def test_columns_beyond_the_last_are_refused():
    with pytest.raises(ShapeError, match="expected columns below 3, got 3"):
        feature_crf.transpose(np.array([0, 2]), np.array([0, 3], np.int32), None, 3)


@QUICK
@given(matrices(), LABELS, st.integers(0, 10**6))
def test_scores_are_the_product_with_the_weights(matrix, labels, seed):
    offsets, indices, values, size = matrix
    weights = (
        np.random.default_rng(seed).integers(-64, 65, (size, labels)) / 16
    )  # sums of these are exact in float32
    scores = feature_crf.emissions(offsets, indices, values, padded(weights), labels)
    assert scores.dtype == np.float32
    assert np.array_equal(scores, dense(*matrix) @ weights)


@QUICK
@given(matrices(), LABELS, st.integers(0, 10**6))
def test_the_gradient_is_the_product_with_the_transpose(matrix, labels, seed):
    offsets, indices, values, size = matrix
    differences = np.random.default_rng(seed).integers(-64, 65, (len(offsets) - 1, labels)) / 16
    found = np.full(feature_crf.padded(size * labels), 7.0, np.float32)
    feature_crf.multiply(
        feature_crf.transpose(offsets, indices, values, size), padded(differences), labels, found
    )
    assert np.array_equal(
        found[: size * labels].reshape(size, labels), dense(*matrix).T @ differences
    )
    assert (found[size * labels :] == 7.0).all()  # what lies behind is left alone


@pytest.mark.parametrize("labels", [3, 17])
def test_larger_matrices_whatever_the_threads(monkeypatch, labels):
    # More rows and columns than there are blocks, one column on most tokens: the shares of the
    # threads must cover everything once.
    rng = np.random.default_rng(0)
    tokens, size = 500, 300
    counts = rng.integers(0, 6, tokens)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    indices = np.where(rng.random(offsets[-1]) < 0.4, 7, rng.integers(0, size, offsets[-1])).astype(
        np.int32
    )
    values = rng.standard_normal(len(indices)).astype(np.float32)
    weights, differences = (
        rng.standard_normal((size, labels)),
        rng.standard_normal((tokens, labels)),
    )
    matrix = dense(offsets, indices, values, size)
    monkeypatch.setattr(jit, "_OPERATIONS_PER_THREAD", 1)
    found = []
    for threads in (1, 2, 5):
        monkeypatch.setattr(jit.torch, "get_num_threads", lambda threads=threads: threads)
        scores = feature_crf.emissions(offsets, indices, values, padded(weights), labels)
        gradient = np.full(feature_crf.padded(size * labels), np.nan, np.float32)
        feature_crf.multiply(
            feature_crf.transpose(offsets, indices, values, size),
            padded(differences),
            labels,
            gradient,
        )
        found.append((scores, gradient[: size * labels].reshape(size, labels)))
    for scores, gradient in found:
        assert np.allclose(scores, matrix @ weights, atol=1e-4)
        assert np.allclose(gradient, matrix.T @ differences, atol=1e-3)
        assert np.array_equal(scores, found[0][0])
        assert np.array_equal(gradient, found[0][1])


def test_a_corpus_without_sentences():
    none = np.zeros(0, np.int32)
    corpus = feature_crf.FeatureCorpus(
        np.zeros(1, np.int64), np.zeros(1, np.int64), none, None, np.zeros((0, 3), np.float32)
    )
    ends = np.zeros(3)
    loss, pairs = feature_crf.differences(
        corpus, padded(np.zeros((0, 3))), np.zeros((3, 3)), ends, ends, padded(np.zeros((0, 3)))
    )
    assert loss == 0.0
    assert np.array_equal(pairs, np.zeros((3, 3)))


def test_the_loss_does_not_depend_on_where_arrays_lie():
    """A run that is resumed ends with the same numbers, to the last digit, as one that was not."""
    generator = np.random.default_rng(0)
    tokens, labels, size = 200, 9, 50
    starts = np.concatenate([[0], np.cumsum([5, 8, 12, 7, 18] * 4)])
    offsets = np.arange(0, 5 * tokens + 1, 5)
    indices = generator.integers(0, size, 5 * tokens).astype(np.int32)
    target = generator.dirichlet(np.ones(labels), tokens).astype(np.float32)
    corpus = feature_crf.FeatureCorpus(starts, offsets, indices, None, target)
    weights = padded(generator.normal(size=(size, labels)))
    transitions, ends = generator.normal(size=(labels, labels)), np.zeros(labels)
    losses, elsewhere = set(), []
    for _ in range(1000):
        elsewhere += [np.empty(size, np.uint8) for size in generator.integers(1, 9000, 20)]
        generator.shuffle(elsewhere)
        del elsewhere[40:]  # which leaves holes for the next arrays
        corpus = corpus._replace(target=target.copy())
        found = np.zeros(feature_crf.padded(tokens * labels), np.float32)
        losses.add(feature_crf.differences(corpus, weights, transitions, ends, ends, found)[0])
    assert len(losses) == 1
