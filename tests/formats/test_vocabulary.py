"""Vocabularies: that text comes back, that counts are right, that files hold all of it."""

import json
import sys
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from softq.errors import DataError, DependencyError
from softq.formats import vocabulary as module
from softq.formats.tokens import MARK, tokenize, without_marks
from softq.formats.vocabulary import END, PAD, SPECIALS, START, UNKNOWN, Vocabulary

TEXTS = [
    "Tom's dog, (a well-known dog) isn't here ...",
    "„Das geht's nicht!“, sagte  Tom.",
    "The dog is not here: <unk> it is <s> there.",
    "我们 ated the größte dog\u00a0of the dogs",
]
WORDS, SUBWORDS = Vocabulary.fit_words(TEXTS), Vocabulary.fit_subwords(TEXTS, 300)
BOTH = [WORDS, SUBWORDS]
QUICK = settings(max_examples=200, deadline=None)


def spaced(text):
    return " ".join(text.split())


def test_the_special_numbers():
    assert (PAD, START, END, UNKNOWN, SPECIALS) == (0, 1, 2, 3, 4)


@pytest.mark.parametrize("vocabulary", BOTH)
def test_known_text_comes_back(vocabulary):
    counts = Counter()
    for text in TEXTS:
        numbers = vocabulary.encode(text)
        assert all(SPECIALS <= number < len(vocabulary) for number in numbers)
        assert vocabulary.decode(numbers) == spaced(text)
        assert vocabulary.decode([START, *numbers, END, PAD]) == spaced(text)
        assert (
            vocabulary.words([START, *numbers, END, PAD])
            == vocabulary.plain(text)
            == without_marks(tokenize(text))
        )
        counts.update(numbers)
    assert vocabulary.frequencies.dtype == torch.int64
    assert vocabulary.frequencies.tolist() == [counts[number] for number in range(len(vocabulary))]
    assert vocabulary.encode("") == []
    assert vocabulary.decode([]) == ""
    assert vocabulary.words([]) == []


@QUICK
@given(st.text().filter(lambda text: MARK not in text and "\0" not in text))
def test_subwords_know_every_text(text):
    numbers = SUBWORDS.encode(text)
    assert UNKNOWN not in numbers
    assert SUBWORDS.decode(numbers) == spaced(text)
    assert SUBWORDS.words(numbers) == SUBWORDS.plain(text)


@QUICK
@given(st.lists(st.integers(0, len(SUBWORDS) - 1)), st.lists(st.integers(0, len(WORDS) - 1)))
def test_any_numbers_have_a_text(subwords, words):
    text = SUBWORDS.decode(subwords)
    assert text == spaced(text)
    assert SUBWORDS.plain(text) == SUBWORDS.plain(" ".join(text.splitlines()))
    assert SUBWORDS.words(subwords).count("<unk>") == subwords.count(UNKNOWN)
    assert WORDS.words(words).count("<unk>") == words.count(UNKNOWN)
    assert len(WORDS.words(words)) == sum(number >= UNKNOWN for number in words)
    assert WORDS.decode(words).count("<unk>") >= words.count(UNKNOWN)


@pytest.mark.parametrize(
    "separator", ["\n", "\r", "\r\n", "\t", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029"]
)
def test_subwords_are_one_line(separator):
    dog = SUBWORDS.encode("dog")
    bytes_of_it = [number + SPECIALS for number in SUBWORDS._subwords.encode(separator).ids]
    for numbers in (
        [*dog, *bytes_of_it, *dog],
        [*bytes_of_it, *dog, *bytes_of_it, *bytes_of_it, *dog, *bytes_of_it],
    ):
        assert SUBWORDS.decode(numbers) == "dog dog"
    assert SUBWORDS.decode([UNKNOWN, *bytes_of_it, UNKNOWN]) == "<unk> <unk>"
    assert SUBWORDS.decode(bytes_of_it) == ""


def test_unknown_subwords_are_written():
    dog, of = SUBWORDS.encode("dog"), SUBWORDS.encode("of")
    assert SUBWORDS.decode([UNKNOWN, *dog, UNKNOWN, UNKNOWN, *of]) == "<unk> dog<unk><unk> of"
    assert SUBWORDS.words([UNKNOWN, *dog, UNKNOWN, UNKNOWN, *of]) == [
        "<unk>",
        "dog",
        "<unk>",
        "<unk>",
        "of",
    ]


def test_pieces_one_by_one_are_those_of_the_whole_text():
    for text in (*map(spaced, TEXTS), "it's 5's  ' s !a a! 12ab", "nothing like it\u0301 我们我"):
        whole = SUBWORDS._subwords.encode(" " + spaced(text)).ids
        assert SUBWORDS.encode(text) == [number + SPECIALS for number in whole]


def test_frequent_words_are_kept():
    texts = ["b b b a a c", "d d a"]
    assert Vocabulary.fit_words(texts).types == ["a", "b", "d", "c"]
    assert Vocabulary.fit_words(texts).frequencies.tolist() == [0, 0, 0, 0, 3, 3, 2, 1]
    assert Vocabulary.fit_words(texts, min_freq=2).types == ["a", "b", "d"]
    assert Vocabulary.fit_words(texts, max_size=6).types == ["a", "b"]
    few = Vocabulary.fit_words(texts, min_freq=3, max_size=5)
    assert len(few) == 5
    assert few.encode("c a b") == [UNKNOWN, 4, UNKNOWN]
    assert few.decode(few.encode("c a b!")) == "<unk> a <unk> <unk>"


def test_words_between_spaces():
    vocabulary = Vocabulary.fit_words(["Tom 's dog , <unk> ￭a"], tokenizer="space")
    assert sorted(vocabulary.types) == ["'s", ",", "Tom", "dog", "￭a"]
    numbers = vocabulary.encode("Tom 's  <unk> ￭a Tom,")
    assert numbers.count(UNKNOWN) == 2
    assert vocabulary.decode(numbers) == "Tom 's <unk> ￭a <unk>"
    assert vocabulary.words(numbers) == ["Tom", "'s", "<unk>", "￭a", "<unk>"]
    assert vocabulary.plain("Tom, <unk>") == ["Tom,", "<unk>"]


def test_lower_case():
    vocabulary = Vocabulary.fit_words(["Der Dog, DER"], lowercase=True)
    assert vocabulary.types == ["der", "dog", "￭,"]
    assert vocabulary.encode("DOG der") == vocabulary.encode("dog Der") == [5, 4]
    assert vocabulary.plain("Der Dog!") == ["der", "dog", "!"]


@pytest.mark.parametrize(
    "vocabulary",
    [WORDS, Vocabulary.fit_words(["A b ￭c"], tokenizer="space", lowercase=True), SUBWORDS],
    ids=["unicode", "space", "subwords"],
)
def test_tensors_hold_all_of_it(vocabulary):
    tensors = vocabulary.tensors("target.")
    assert all(name.startswith("target.") for name in tensors)
    found = Vocabulary.from_tensors(
        tensors | vocabulary.tensors("source.") | {"weights": torch.zeros(3)}, "target."
    )
    assert type(found) is type(vocabulary)
    assert len(found) == len(vocabulary)
    assert torch.equal(found.frequencies, vocabulary.frequencies)
    for text in (*TEXTS, "A B ￭C unheard-of!"):
        assert found.encode(text) == vocabulary.encode(text)
        assert found.decode(found.encode(text)) == vocabulary.decode(vocabulary.encode(text))
        assert found.plain(text) == vocabulary.plain(text)
    again = found.tensors("target.")
    assert again.keys() == tensors.keys()
    assert all(torch.equal(again[name], tensor) for name, tensor in tensors.items())


def as_bytes(value):
    return torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8)


@pytest.mark.parametrize(
    ("vocabulary", "name", "tensor", "message"),
    [
        (WORDS, "about", None, "got none of the name 'about'"),
        (WORDS, "about", torch.tensor([1, 2], dtype=torch.uint8), "expected JSON in the tensor"),
        (WORDS, "about", as_bytes([1]), "expected an object of JSON in the tensor 'about'"),
        (
            WORDS,
            "about",
            as_bytes({"format": "softq vocabulary 2", "kind": "syllables"}),
            "kind of a vocabulary must be one of 'words', 'subwords', got 'syllables'",
        ),
        (
            WORDS,
            "about",
            as_bytes({"format": "softq vocabulary 2", "kind": "words", "tokenizer": "space"}),
            "types in about must be a list of strings, got None",
        ),
        (WORDS, "frequencies", None, r"expected frequencies of torch.int64 \[V\], got None"),
        (WORDS, "frequencies", torch.zeros(5), "got torch.float32"),
        (WORDS, "frequencies", torch.zeros(5, dtype=torch.int64), "tokens, got 5"),
        (SUBWORDS, "frequencies", torch.zeros(5, dtype=torch.int64), "for 300 tokens, got 5"),
        (SUBWORDS, "tokenizer", None, "got none of the name 'tokenizer'"),
        (SUBWORDS, "tokenizer", as_bytes({"model": 1}), "expected a tokenizer of bytes and byte"),
    ],
)
def test_tensors_of_something_else(vocabulary, name, tensor, message):
    tensors = {key: value for key, value in vocabulary.tensors().items() if key != name}
    if tensor is not None:
        tensors[name] = tensor
    with pytest.raises(DataError, match=message):
        Vocabulary.from_tensors(tensors)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokenizer": "moses"}, "expected a tokenizer of unicode or space, got 'moses'"),
        ({"min_freq": 0}, "smallest frequency of 1 or more, got 0"),
        ({"max_size": 4}, "a vocabulary of more than 4"),
        ({"min_freq": 100}, "words that come at least 100 times"),
    ],
)
def test_words_that_cannot_be(options, message):
    with pytest.raises(DataError, match=message):
        Vocabulary.fit_words(TEXTS, **options)


def test_subwords_that_cannot_be(monkeypatch):
    with pytest.raises(DataError, match=r"at least 260 .* got 259"):
        Vocabulary.fit_subwords(TEXTS, 259)
    with pytest.raises(DataError, match="got none"):
        Vocabulary.fit_subwords([" "], 300)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    for attempt in (
        lambda: Vocabulary.fit_subwords(TEXTS, 300),
        lambda: Vocabulary.from_tensors(SUBWORDS.tensors()),
    ):
        with pytest.raises(DependencyError, match=r"pip install 'softq\[translation\]'"):
            attempt()


def test_subwords_follow_from_the_text_alone():
    assert all(
        torch.equal(tensor, SUBWORDS.tensors()[name])
        for name, tensor in Vocabulary.fit_subwords(TEXTS, 300).tensors().items()
    )
    assert len(SUBWORDS) == 300
    assert len(Vocabulary.fit_subwords(["ab"], 300)) == 262  # " a" or "ab", then " ab"


def test_the_cache_is_bounded_and_changes_nothing(monkeypatch):
    monkeypatch.setattr(module, "_CACHED", 2)
    vocabulary = Vocabulary.fit_words(TEXTS)
    assert [vocabulary.encode(text) for text in TEXTS * 2] == [
        WORDS.encode(text) for text in TEXTS * 2
    ]
    assert len(vocabulary._cache) <= 2
