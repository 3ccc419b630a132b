"""Sentences as tensors: packing, unpacking, and the forms in which references may come."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from softq.errors import DtypeError, LengthError, OutputError, ShapeError
from softq.sentences import Sentences, as_references

words = st.integers(0, 2**63 - 1)
sentence = st.lists(words, max_size=8)
full_sentence = st.lists(words, min_size=1, max_size=8)
examples = settings(deadline=None, database=None, max_examples=200)


@examples
@given(
    st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=8), max_size=6), st.integers(-5, 5)
)
def test_packing_one_sentence_per_example(sentences, pad):
    packed = Sentences.pack(sentences, pad=pad)
    assert packed.tokens.dtype == packed.lengths.dtype == torch.int64
    assert packed.lengths.tolist() == [len(s) for s in sentences]
    assert packed.tokens.shape == (len(sentences), max(map(len, sentences), default=0))
    assert all(
        row[len(s) :] == [pad] * (len(row) - len(s))
        for row, s in zip(packed.tokens.tolist(), sentences, strict=True)
    )
    assert packed.unpack() == sentences
    assert packed.present.all()


@examples
@given(
    st.lists(st.lists(sentence, min_size=1, max_size=4), min_size=1, max_size=5), st.integers(-5, 5)
)
def test_packing_several_sentences_per_example(groups, pad):
    packed = Sentences.pack(groups, pad=pad)
    count = max(map(len, groups))
    assert packed.tokens.shape[:2] == packed.lengths.shape == (len(groups), count)
    assert packed.lengths.tolist() == [
        [len(s) for s in group] + [-1] * (count - len(group)) for group in groups
    ]
    assert packed.present.sum(1).tolist() == [len(group) for group in groups]
    assert packed.unpack() == groups
    references = as_references(packed)
    assert torch.equal(references.tokens, packed.tokens)
    assert torch.equal(references.lengths, packed.lengths)


@examples
@given(
    st.lists(st.lists(full_sentence, min_size=1, max_size=4), min_size=1, max_size=5),
    st.integers(-9, -1),
)
def test_references_in_all_their_forms_are_the_same(groups, pad):
    want = as_references(groups)
    assert want.unpack() == groups
    padded = Sentences.pack(groups, pad=pad)
    before = padded.tokens.clone()
    as_tensors = [[torch.tensor(s) for s in group] for group in groups]
    as_tuples = tuple(tuple(map(tuple, group)) for group in groups)
    as_numpy_numbers = [[list(np.array(s)) for s in group] for group in groups]
    for form in (padded.tokens, padded, as_tensors, as_tuples, as_numpy_numbers, iter(groups)):
        found = as_references(form)
        assert torch.equal(found.lengths, want.lengths)
        assert found.unpack() == groups
    assert torch.equal(padded.tokens, before)
    one_each = [group[0] for group in groups]
    for form in (one_each, Sentences.pack(one_each), Sentences.pack(one_each, pad=pad).tokens):
        found = as_references(form)
        assert found.lengths.shape == (len(groups), 1)
        assert found.unpack() == [[s] for s in one_each]


def test_missing_references_and_empty_ones():
    padded = torch.tensor(
        [[[1, 2, -1], [-5, -1, -1]], [[-1, -1, -1], [3, 4, 5]]], dtype=torch.int32
    )
    found = as_references(padded)
    assert found.lengths.tolist() == [[2, -1], [-1, 3]]
    assert found.lengths.dtype == torch.int64
    assert found.unpack() == [[[1, 2]], [[3, 4, 5]]]
    assert as_references([[[], [1]], [[2]]]).lengths.tolist() == [[0, 1], [1, -1]]
    assert as_references([[], []]).lengths.tolist() == [[0], [0]]
    assert as_references(torch.zeros(2, 0, dtype=torch.int64)).lengths.tolist() == [[0], [0]]
    assert as_references([]).lengths.shape == (0, 1)
    behind = Sentences(torch.tensor([[7, -3], [8, 10**9]]), torch.tensor([1, 1], dtype=torch.int32))
    assert as_references(behind, vocab=9).unpack() == [[[7]], [[8]]]
    assert as_references(behind).lengths.dtype == torch.int64


def test_rows_of_a_tensor_are_sentences():
    assert Sentences.pack(torch.tensor([[1, 2], [3, 4]])).unpack() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("sentences", "text"),
    [
        ([1, 2], "a sentence must be a list of whole numbers, got 1 in example 0"),
        ([[1, 2], 3], "got 3 in example 1"),
        ([[1, 2.5]], r"got \[1, 2\.5\] in example 0"),
        ([[1], [True]], r"got \[True\] in example 1"),
        ([["a"]], r"got \['a'\] in example 0"),
        (["words"], "got 'words' in example 0"),
        ([[""]], "in example 0"),
        ([None], "got None in example 0"),
        ([[1, 2], [[3], [4]]], r"got \[\[3\], \[4\]\] in example 1"),
        ([[[1], [2]], [[[3]]]], r"got \[\[3\]\] in example 1"),  # too deep
        ([torch.tensor([1.0])], r"got tensor\(\[1\.\]\) in example 0"),
        ([torch.tensor([[1]])], r"got tensor\(\[\[1\]\]\) in example 0"),
    ],
)
def test_lists_that_are_no_sentences(sentences, text):
    with pytest.raises(DtypeError, match=text):
        Sentences.pack(sentences)
    with pytest.raises(DtypeError, match=text):
        as_references(sentences)


@pytest.mark.parametrize(
    ("refs", "vocab", "error", "text"),
    [
        (5, None, DtypeError, "Sentences, an integer tensor or nested lists, got int"),
        (None, None, DtypeError, "Sentences, an integer tensor or nested lists, got NoneType"),
        (torch.zeros(2, 3), None, DtypeError, r"must hold int64 or int32 numbers, got"),
        (torch.zeros(3, dtype=torch.int64), None, ShapeError, r"shape \[B, M\] or \[B, R, M\],"),
        (torch.tensor(5), None, ShapeError, r"shape \[B, M\] or \[B, R, M\], got \[\]"),
        (
            Sentences(torch.tensor([1]), torch.tensor(1)),
            None,
            ShapeError,
            r"shape \[B, M\] or \[B, R, M\], got \[1\]",
        ),
        (Sentences(torch.tensor(1), torch.tensor(1)), None, ShapeError, "shape"),
        (
            Sentences(torch.zeros(2, 3, dtype=torch.int64), torch.tensor([3, 4])),
            None,
            LengthError,
            r"0\.\.3 or be -1, got 4 at index \(1,\)",
        ),
        (
            Sentences(torch.zeros(2, 3, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)),
            None,
            ShapeError,
            r"shape \[2\], got \[3\]",
        ),
        (
            Sentences(torch.zeros(2, 3), torch.tensor([3, 3])),
            None,
            DtypeError,
            r"tokens of references .* got torch\.float32",
        ),
        (Sentences([[1]], torch.tensor([1])), None, DtypeError, "tokens of references .* got list"),
        (torch.tensor([[1, 2], [-1, -1]]), None, OutputError, "every example needs a reference,"),
        (torch.full((2, 2, 3), -1), None, OutputError, "every example needs a reference, example"),
        (torch.zeros(1, 0, 3, dtype=torch.int64), None, OutputError, "every example needs a"),
        (
            Sentences(torch.zeros(2, 1, 3, dtype=torch.int64), torch.tensor([[3], [-1]])),
            None,
            OutputError,
            "example 1 has none",
        ),
        (torch.tensor([[1, 2, 3], [1, -1, 3]]), None, OutputError, "must not be negative, got -1"),
        ([[[1], [2, -3]]], None, OutputError, "must not be negative, got -3 at example 0,"),
        ([[[1], [2]], [[3], [4, 7]]], 7, OutputError, r"must lie in 0\.\.6, got 7 at example 1,"),
        ([[-1]], 7, OutputError, r"must lie in 0\.\.6, got -1 at example 0, sentence 0, position"),
    ],
)
def test_references_that_cannot_be_used(refs, vocab, error, text):
    with pytest.raises(error, match=text):
        as_references(refs, vocab=vocab)


def test_an_example_without_sentences_among_others_that_have_some():
    packed = Sentences(torch.tensor([[[1, 2]], [[0, 0]]]), torch.tensor([[2], [-1]]))
    assert packed.unpack() == [[[1, 2]], []]
    assert Sentences.pack(packed.unpack()).lengths.tolist() == [[2], [-1]]
    with pytest.raises(OutputError, match="every example needs a reference, example 1 has none"):
        as_references([[[1, 2]], []])
