"""Features that the caller made, against python-crfsuite's conversion."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_features import equal, rows_of

from scale import draws
from softq.errors import DataError, RecipeError
from softq.linear.features import AttributeIndex

names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=4)
either = st.one_of(names, names.map(str.encode))
numbers = st.one_of(
    st.booleans(),
    st.integers(-(10**6), 10**6),
    st.floats(width=32, allow_nan=False, allow_infinity=False),
)
nested = st.recursive(
    st.one_of(numbers, either),
    lambda inner: st.one_of(
        st.dictionaries(either, inner, max_size=3),
        st.lists(either, max_size=3),
        st.sets(either, max_size=3),
    ),
    max_leaves=6,
)
tokens = st.one_of(
    st.dictionaries(names, st.one_of(names, numbers), max_size=4),
    st.dictionaries(either, nested, max_size=4),
    st.lists(either, max_size=4),
    st.lists(either, max_size=4).map(tuple),
    st.sets(either, max_size=4),
    st.frozensets(names, max_size=4),
)


@given(st.lists(st.lists(tokens, max_size=3), max_size=3))
@example([[{"a": np.float32(2.5), "b": np.bool_(True), "c": np.int64(3), "d": np.str_("x")}]])
@settings(deadline=None, max_examples=draws(400))
def test_attributes_are_those_of_python_crfsuite(sentences):
    pycrfsuite = pytest.importorskip("pycrfsuite")
    index, matrix = AttributeIndex.fit(sentences)
    names = index.names()
    values = np.ones(len(matrix.indices), np.float32) if matrix.values is None else matrix.values
    rows = [
        {
            names[column]: float(value)
            for column, value in zip(matrix.indices[a:b], values[a:b], strict=True)
        }
        for a, b in zip(matrix.offsets, matrix.offsets[1:], strict=False)
    ]
    expected = [row for sentence in sentences for row in pycrfsuite.ItemSequence(sentence).items()]
    assert len(rows) == len(expected)
    for row, items in zip(rows, expected, strict=True):
        assert row.keys() == items.keys()
        for (
            name,
            value,
        ) in row.items():  # of a name that a token has twice, their dict keeps one value
            assert (
                value == np.float32(items[name])
                or sum(names[c] == name for c in matrix.indices) > 1
            )
    assert matrix.lengths.tolist() == [len(sentence) for sentence in sentences]
    assert equal(index.transform(sentences), matrix)


def test_attributes_keep_order_repeats_and_values():
    sentences = [
        [["b", "a", "b"], {"b": 0.5, "c": {"d": [], "e": ("x", "y")}}],
        [],
        [{"z", "y", "b"}],
    ]
    index, matrix = AttributeIndex.fit(sentences)
    assert index.names() == ["b", "a", "c:e:x", "c:e:y", "y", "z"]
    assert rows_of(matrix) == [[0, 1, 0], [0, 2, 3], [0, 4, 5]]
    assert matrix.values.tolist() == [1, 1, 1, 0.5, 1, 1, 1, 1, 1]
    assert matrix.values.dtype == np.float32
    assert matrix.lengths.tolist() == [2, 0, 1]
    other = index.transform([[["q", "z"], {"c": {"e": "y", "b": 3}, "b": 1}]])
    assert rows_of(other) == [[5], [3, 0]]
    assert other.values is None


def test_rare_attributes_are_dropped():
    index, matrix = AttributeIndex.fit(
        [[["a", "a"], ["b"]], [{"b": 2.0}]], min_freq=2
    )  # twice on one token is once
    assert index.names() == ["b"]
    assert rows_of(matrix) == [[], [0], [0]]
    assert matrix.values.tolist() == [1.0, 2.0]
    assert AttributeIndex.fit([], min_freq=2)[0].size == 0


def test_hashed_attributes():
    sentences = [[[f"{i}:{j}" for j in range(20)] for i in range(50)]]
    _, plain = AttributeIndex.fit(sentences)
    hashed, matrix = AttributeIndex.fit(sentences, hash_bits=30)
    assert hashed.size == 2**30
    assert np.array_equal(matrix.offsets, plain.offsets)
    assert (
        len(set(matrix.indices.tolist())) == 1000
    )  # that two share a column: 0.0005, and the same in every run
    assert equal(hashed.transform(sentences), matrix)
    assert np.array_equal(
        AttributeIndex.fit(sentences, hash_bits=5)[1].indices, matrix.indices % 32
    )
    with pytest.raises(RecipeError, match="keeps no names"):
        hashed.names()


@pytest.mark.parametrize(
    ("token", "text"),
    [
        ({"a": None}, r", key 'a': expected a string, a number, a dict or a list .*, got None"),
        ({"x": 1.0, "a": {"b": 1j}}, ", key 'a:b': expected a string, a number"),
        ({"x": 2.0, 7: "a"}, r": expected a key that is a string, got 7 \(int\)"),
        ({"a": ["x", 1.0]}, r", key 'a': expected a feature that is a string, got 1.0 \(float\)"),
        (["x", 1.0], r": expected a feature that is a string, got 1.0 \(float\)"),
        ([b"\xff"], ": expected a feature in UTF-8"),
        ("xyz", r": expected a dict or a list, tuple or set of strings, got 'xyz' \(str\)"),
        ({"a": float("nan")}, ", key 'a': expected a finite number that a 32-bit float can hold"),
        ({"a": {"b": 1e39}}, ", key 'a:b': expected a finite number .* got 1e[+]39"),
        ({"a": 10**400}, ", key 'a': expected a finite number"),
        ({"a": "\ud800"}, ": expected text, got .* lone surrogate"),
    ],
)
def test_bad_attributes(token, text):
    with pytest.raises(DataError, match=f"sentence 1, token 2{text}"):
        AttributeIndex.fit([[["p"]], [["q"], {"r": 2.0}, token, ["s"]]])


@pytest.mark.parametrize("sentence", ["word", {"a": 1}, 5, None])
def test_bad_sentences_of_attributes(sentence):
    with pytest.raises(
        DataError,
        match="sentence 1 must be a sequence of tokens, each a dict or a list of strings, got",
    ):
        AttributeIndex.fit([[["p"]], sentence])
