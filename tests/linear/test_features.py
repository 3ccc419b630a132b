"""Features against a plain-Python oracle that renders every template to strings, and against python-crfsuite's conversion."""

import json
import random
import re
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from scale import draws
from softq.errors import DataError, RecipeError, SoftqError
from softq.linear.features import FINKEL, AttributeIndex, TemplateIndex, default_templates
from softq.linear.features.templates import parse_template

# --- the oracle ---------------------------------------------------------------------------------------


class End(str):
    """The value of a place beyond the sentence: written like a word, equal to none."""

    def __eq__(self, other):
        return isinstance(other, End) and str.__eq__(self, other)

    __hash__ = str.__hash__


def shape(word, longest):
    symbols = [
        "X" if c.isupper() or c.istitle() else "d" if c.isdigit() else "x" if c.isalpha() else c
        for c in word
    ]
    return "".join(
        c for i, c in enumerate(symbols) if symbols[max(i - longest, 0) : i] != [c] * longest
    )


def pieces(name, word, low, high):
    if name == "ngrams":
        marked = f"<{word}>"
        grams = {
            marked[i:j]
            for i in range(len(marked))
            for j in range(i + low, min(i + high, len(marked)) + 1)
        }
        inner = set(word)  # a mark by itself is no n-gram, unless it stands in the word
        return {gram for gram in grams if len(gram) > 1 or gram in inner}
    lengths = range(low, min(high, len(word)) + 1)
    return {word[:n] if name == "prefix" else word[len(word) - n :] for n in lengths}


def values(atom, sentence, columns, t):
    name, first, last, low, high = re.fullmatch(
        r"(\w+)\[(-?\d+):?(-?\d+)?\](?:\{(\d+):(\d+)\})?", atom
    ).groups()

    def at(row, place):
        return End("<s>") if place < 0 else End("</s>") if place >= len(row) else row[place]

    if name == "bag":
        return {at(sentence, t + i) for i in range(int(first), int(last) + 1)}
    value = at(columns.get(name, sentence), t + int(first))
    if name in columns or isinstance(value, End) or name == "word":
        return {value}
    if name == "lower":
        return {value.lower()}
    if name in ("shape", "type"):
        return {shape(value, 4 if name == "shape" else 1)}
    return pieces(name, value, int(low), int(high))


def oracle_row(templates, sentence, columns, t):
    """Features of a token as (template without braces, value, …)."""
    row = []
    for template in templates:
        atoms = [] if template == "bias" else template.split("|")
        label = re.sub(r"\{.*\}", "", template)
        if len(atoms) == 1:
            row += [(label, value) for value in values(atoms[0], sentence, columns, t)]
        else:
            row.append(
                (label, *(value for atom in atoms for value in values(atom, sentence, columns, t)))
            )
    return row


def oracle_rows(templates, sentences, columns=None):
    columns = columns or {}
    return [
        oracle_row(templates, sentence, {name: column[s] for name, column in columns.items()}, t)
        for s, sentence in enumerate(sentences)
        for t in range(len(sentence))
    ]


def render(feature):
    label, *rest = feature
    return f"{label}={'|'.join(map(str, rest))}" if rest else label


def rows_of(matrix):
    return [
        matrix.indices[a:b].tolist()
        for a, b in zip(matrix.offsets, matrix.offsets[1:], strict=False)
    ]


def named_rows(index, matrix):
    names = index.names()
    return [Counter(names[column] for column in row) for row in rows_of(matrix)]


def equal(a, b):
    return all(
        np.array_equal(x, y) if isinstance(x, np.ndarray) else x == y
        for x, y in zip(a, b, strict=True)
    )


# --- inputs -------------------------------------------------------------------------------------------

TEMPLATES = (
    *FINKEL,
    "lower[0]|shape[0]",
    "ngrams[-1]{2:3}",
    "prefix[0]{2:9}",
    "suffix[0]{1:1}",
    "type[0]",
    "word[3]",
    "bag[-1:2]",
)
POS = ("pos[0]", "pos[-1]|pos[0]", "word[0]|pos[1]", "pos[-2]")
ODD = [
    "",
    "<s>",
    "</s>",
    "<",
    ">",
    "a|b",
    "b",
    "a",
    "İstanbul",
    "ǅ",
    "straße",
    "١٢٣",
    "2²",
    "北京市",
    "🙂🙂🙂🙂🙂🙂",
    "e\u0301",
    "\x00",
    "a\nb",
    "aaaaaaa",
]
ODD += [
    "ΑΣ",
    "Ⅷ",
    "AAAAAbbbbb11111",
    "banana",
    "x" * 300,
    "\x7f\x80\u07ff\u0800\uffff\U00010000\U0010ffff",
]

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
words = st.one_of(st.sampled_from(ODD), st.text("aAbB1-<>|", max_size=6), text)
corpora = st.lists(st.lists(words, max_size=6), max_size=4)


def random_corpus(count, seed, longest=12):
    rng = random.Random(seed)
    vocabulary = [
        "".join(rng.choice("abcdeABC19-é") for _ in range(rng.randint(1, 7))) for _ in range(300)
    ]
    return [[rng.choice(vocabulary) for _ in range(rng.randint(0, longest))] for _ in range(count)]


# --- templates give what they say ---------------------------------------------------------------------


@given(corpora, st.sets(st.sampled_from(TEMPLATES + POS), min_size=1), st.data())
@settings(deadline=None, max_examples=draws(300))
def test_features_are_those_of_the_oracle(sentences, chosen, data):
    templates = [template for template in TEMPLATES + POS if template in chosen]
    columns = {
        "pos": [
            [data.draw(st.sampled_from(["N", "V", "<s>", ""])) for _ in sentence]
            for sentence in sentences
        ]
    }
    index, matrix = TemplateIndex.fit(sentences, templates, columns=columns)
    expected = oracle_rows(templates, sentences, columns)
    assert named_rows(index, matrix) == [Counter(map(render, row)) for row in expected]
    assert (
        index.size == matrix.size == len({feature for row in expected for feature in row})
    )  # no two features share a column
    assert matrix.lengths.tolist() == [len(sentence) for sentence in sentences]
    assert matrix.values is None
    assert matrix.offsets.dtype == matrix.lengths.dtype == np.int64
    assert matrix.indices.dtype == np.int32
    assert equal(index.transform(sentences, columns), matrix)


@pytest.mark.parametrize(
    "templates", [TEMPLATES, ("bias",), ("word[0]|word[0]",), ("bag[-1:1]", "bias")]
)
@pytest.mark.parametrize("sentences", [[ODD], [[word] for word in ODD], [[], ["a"], []], [[]], []])
def test_odd_words_and_empty_sentences(templates, sentences):
    index, matrix = TemplateIndex.fit(sentences, templates)
    assert named_rows(index, matrix) == [
        Counter(map(render, row)) for row in oracle_rows(templates, sentences)
    ]
    assert equal(index.transform(sentences), matrix)


def test_an_end_is_no_word_and_parts_of_a_conjunction_stay_apart():
    index, matrix = TemplateIndex.fit(
        [["<s>", "a|b", "c"], ["<s>", "a", "b|c"]], ["word[-1]", "word[0]|word[1]"]
    )
    assert index.names().count("word[-1]=<s>") == 2
    assert index.names().count("word[0]|word[1]=a|b|c") == 2
    assert matrix.indices[0] != matrix.indices[2]


def test_unknown_features_are_left_out():
    seen, new = random_corpus(draws(200), 1), random_corpus(draws(200), 2)
    index, _ = TemplateIndex.fit(seen)
    known = {feature for row in oracle_rows(FINKEL, seen) for feature in row}
    expected = [
        Counter(render(feature) for feature in row if feature in known)
        for row in oracle_rows(FINKEL, new)
    ]
    assert named_rows(index, index.transform(new)) == expected
    assert any(expected)


@pytest.mark.parametrize("min_freq", [2, 5, 10**6])
def test_rare_features_are_dropped(min_freq):
    sentences = random_corpus(draws(200), 3)
    rows = oracle_rows(TEMPLATES, sentences)
    counts = Counter(feature for row in rows for feature in set(row))
    index, matrix = TemplateIndex.fit(sentences, TEMPLATES, min_freq=min_freq)
    assert named_rows(index, matrix) == [
        Counter(render(feature) for feature in row if counts[feature] >= min_freq) for row in rows
    ]
    assert index.size == sum(count >= min_freq for count in counts.values())
    assert equal(index.transform(sentences), matrix)


def test_hashed_columns_are_one_per_feature():
    sentences = random_corpus(draws(100), 4)
    index, plain = TemplateIndex.fit(sentences)
    hashed, matrix = TemplateIndex.fit(sentences, hash_bits=30)
    assert hashed.size == matrix.size == 2**30
    assert np.array_equal(matrix.offsets, plain.offsets)
    pairs = set(zip(plain.indices.tolist(), matrix.indices.tolist(), strict=True))
    assert len(pairs) == index.size  # a column for each feature, always the same
    assert (
        len({column for _, column in pairs}) > 0.999 * index.size
    )  # that any two of n share one of 2^30: about n²/2^31
    small, folded = TemplateIndex.fit(sentences, hash_bits=10)
    assert np.array_equal(folded.indices, matrix.indices % 1024)
    assert equal(small.transform(sentences), folded)
    with pytest.raises(RecipeError, match=r"hash_bits=10\) keeps no names.*fit without hash_bits"):
        small.names()


# --- the built-in set ---------------------------------------------------------------------------------


def test_parts_of_speech_are_used_where_they_are_given():
    assert default_templates() == FINKEL
    assert default_templates(columns=("chunk",)) == FINKEL
    assert not any("pos" in template for template in FINKEL)
    sentences, pos = [["Go", "home"]], [["V", "N"]]
    with_pos, _ = TemplateIndex.fit(sentences, columns={"pos": pos, "chunk": pos})
    assert with_pos.templates == default_templates(("pos",))
    assert "pos[-1]|pos[0]=V|N" in with_pos.names()
    with pytest.raises(RecipeError, match="reads a column 'pos', which is not given"):
        with_pos.transform(sentences)


# --- saving, threads ----------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"min_freq": 3}, {"hash_bits": 12}])
def test_saved_indexes_give_the_same(tmp_path, options):
    sentences, new = random_corpus(draws(100), 6), random_corpus(draws(100), 7)
    for kind, made in (
        (TemplateIndex, sentences),
        (AttributeIndex, [[[word, word[:1]] for word in s] for s in sentences]),
    ):
        index, matrix = kind.fit(made, **options)
        save_file(index.tensors(), tmp_path / "index.safetensors")
        back = kind.from_tensors(
            load_file(tmp_path / "index.safetensors"), json.loads(json.dumps(index.notes()))
        )
        assert back.size == index.size
        assert equal(back.transform(made), matrix)
        if "hash_bits" not in options:
            assert back.names() == index.names()
        if kind is TemplateIndex:
            assert back.templates == index.templates
            assert equal(back.transform(new), index.transform(new))


def test_tables_are_used_where_they_lie(tmp_path):
    sentences = random_corpus(draws(100), 8)
    index, matrix = TemplateIndex.fit(sentences)
    mapped = {}
    for name, array in index.tensors().items():
        np.save(tmp_path / name, array)
        mapped[name] = np.load(tmp_path / f"{name}.npy", mmap_mode="r")
    back = TemplateIndex.from_tensors(mapped, index.notes())
    assert all(np.shares_memory(array, mapped[name]) for name, array in back.tensors().items())
    assert equal(back.transform(sentences), matrix)
    assert back.names() == index.names()


def test_results_do_not_depend_on_threads():
    sentences, new = random_corpus(draws(1000), 9), random_corpus(draws(1000), 10)
    before = torch.get_num_threads()
    made = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            index, matrix = TemplateIndex.fit(sentences)
            made.append((matrix, index.transform(new), index.tensors()))
    finally:
        torch.set_num_threads(before)
    for matrix, other, tensors in made[1:]:
        assert equal(matrix, made[0][0])
        assert equal(other, made[0][1])
        assert all(np.array_equal(tensors[name], array) for name, array in made[0][2].items())


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"format": 7}, "format 1, got 7"),
        ({"kind": "other"}, "expected the notes of AttributeIndex .*, got kind 'other'"),
        (
            {"size": 33},
            (
                r"an index of 33 features must be \[S, 2\] with S a power of two and at least twice"
                r" as many, got \[64, 2\]"
            ),
        ),
        ({"size": 19}, "expected a table of 19 keys, got 20"),
    ],
)
def test_notes_that_do_not_fit(change, text):
    index, _ = AttributeIndex.fit([[[str(i) for i in range(20)]]])
    with pytest.raises(DataError, match=text):
        AttributeIndex.from_tensors(index.tensors(), {**index.notes(), **change})
    with pytest.raises(
        DataError, match=r"expected the notes of TemplateIndex .*, got kind 'attributes'"
    ):
        TemplateIndex.from_tensors(index.tensors(), index.notes())


def test_tensors_that_do_not_fit():
    index, _ = TemplateIndex.fit([["a"]])
    tensors = index.tensors()
    with pytest.raises(
        DataError, match="expected the tensor 'names' of an index of features, got nothing"
    ):
        TemplateIndex.from_tensors(
            {name: array for name, array in tensors.items() if name != "names"}, index.notes()
        )
    with pytest.raises(
        DataError,
        match=r"expected slots of an index of features of int64 \[\?, \?\], got float64 \[3\]",
    ):
        TemplateIndex.from_tensors({**tensors, "slots": np.zeros(3)}, index.notes())


# --- bad templates, bad words -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("", r"template '': expected atoms such as word\[0\], .* joined by \|, got ''"),
        ("word", r"a name and a place, as in word\[0\], got 'word'"),
        ("word[x]", r"atoms such as .*, got 'word\[x\]'"),
        ("head.word[0]", r"atoms such as .*, got 'head.word\[0\]'"),
        ("word[0]{1:2}", "numbers of characters, .* with affixes and n-grams alone"),
        ("word[0]|", "atoms such as .*, got ''"),
        ("word[0]|bias", "atoms with one value each, got bias, which must stand alone"),
        ("ngrams[0]", r"numbers of characters, as in suffix\[0\]\{1:3\}"),
        ("prefix[0]{3:2}", "numbers of characters from 1, the smaller one first"),
        ("bag[1]", r"the first and the last of a bag, got 'bag\[1\]'"),
        ("word[0:1]", "one place, or as in"),
        ("bag[0:100]", r"a bag of 1 to 100 places from left to right, got 'bag\[0:100\]'"),
    ],
)
def test_bad_templates(template, text):
    with pytest.raises(RecipeError, match=text):
        parse_template(template)
    with pytest.raises(SoftqError, match="template"):
        TemplateIndex.fit([["a"]], [template])


@pytest.mark.parametrize(
    ("sentences", "options", "text"),
    [
        ([["a"]], {"templates": "word[0]"}, "must be a sequence of strings, got 'word"),
        ([["a"]], {"templates": []}, "at least one template"),
        ([["a"]], {"templates": ["ngrams[0]{1:2}", "ngrams[0]{3:4}"]}, "the same features: leave"),
        ([["a"]], {"templates": ["wrod[0]"]}, r"column 'wrod'.*\(none\); did you mean 'word'\?"),
        ([["a"]], {"columns": {"pos": []}}, "'pos' must have as many sentences .*, 1, got 0"),
        ([["a", "b"]], {"columns": {"pos": [["N"]]}}, "each of the 2 tokens of sentence 0, got 1"),
        ([["a"]], {"columns": {"pos": [[5]]}}, r"'pos' of token 0 in sentence 0: .* got 5 \(int\)"),
        ([["a"]], {"min_freq": 0}, "min_freq must be a whole number from 1, got 0"),
        ([["a"]], {"min_freq": 2, "hash_bits": 8}, "do not go together"),
        (
            [["a"]],
            {"hash_bits": 31},
            r"hash_bits must be None or a whole number in 1\.\.30, got 31",
        ),
        (["a b"], {}, "sentence 0 must be a sequence of strings, .*, got 'a b'; split it"),
        (iter([["a"]]), {}, "must be a sequence of sequences of strings, .* got list_iterator"),
        ([["a"], iter("b")], {}, "sentence 1 must be a sequence of strings, .* got str"),
        ([["a"], ["b", None]], {}, "token 1 in sentence 1: expected a string, got None"),
        ([["a", "b\ud800"]], {}, "token 1 in sentence 0: expected text, got .* lone surrogate"),
    ],
)
def test_bad_input(sentences, options, text):
    with pytest.raises((DataError, RecipeError), match=text):
        TemplateIndex.fit(sentences, **options)
