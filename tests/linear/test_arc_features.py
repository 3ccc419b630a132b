import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import arc_twin
from softq.errors import DataError, RecipeError
from softq.formats.conllu import TreeSentence
from softq.kernels.features import arcs as arc_features
from softq.kernels.features import relations as arc_relations
from softq.linear.features import ARC_TEMPLATES, RELATION_TEMPLATES, ArcIndex, given_columns
from softq.linear.features.arcs import make_plan
from softq.linear.features.templates import COLUMNS, parse_template, templates_for

TEMPLATES = (
    "head.upos|between.upos|dep.upos",
    "head.word|dep.word",
    "head.upos[-1]|head.upos|dep.upos|dep.upos[2]",
    "head.lemma|between.feats",
    "dep.suffix|head.prefix",
    "dep.shape",
    "head.xpos[1]|dep.xpos[-2]",
    "dep.feats|head.feats",
    "head.word[-1]",
    "between.upos",
)


def made(rng, length, words=("A1", "bee", "Cees", "d-d", "Éa", "fifth")):
    def column(values):
        return tuple(str(value) for value in rng.choice(values, length))

    return TreeSentence(
        column(words),
        column(("a", "b")),
        column(("N", "V", "P", "D")),
        column(("_", "X", "Y")),
        column(("_", "Num=Sing")),
        (),
        (),
    )


def scored(index, sentences, weights):
    codes = index.encode(sentences)
    words = arc_features.parts(index.plan, codes.codes, codes.starts)
    size = int(codes.lengths.max()) + 1
    out = np.full((len(sentences), size, size), np.nan, weights.dtype)
    arc_features.scores(index.plan, words, weights, out)
    return words, out


@pytest.mark.parametrize(
    "templates", [TEMPLATES, TEMPLATES[:1], TEMPLATES[1:2]], ids=["many", "between", "plain"]
)
def test_scores_and_gradients_are_those_of_the_twin(templates):
    rng = np.random.default_rng(0)
    training = [made(rng, n) for n in (3, 5, 4)]
    sentences = [made(rng, n, ("A1", "bee", "new")) for n in (1, 13, 4)]
    index = ArcIndex.fit(training, templates, ("dep.upos",), min_freq=1)
    size = 1 << 10
    weights = rng.standard_normal(size)
    words, found = scored(index, sentences, weights)
    slopes = rng.standard_normal(found.shape)
    sums = arc_features.Sums.like(weights)
    arc_features.add_gradient(index.plan, words, slopes, sums)
    expected = np.zeros(size)
    for b, sentence in enumerate(sentences):
        n = len(sentence.forms)
        for h in range(n + 1):
            for d in range(1, n + 1):
                if h == d:
                    continue
                places = list(arc_twin.places(index, templates, sentence, h, d, size))
                np.testing.assert_allclose(found[b, h, d], weights[places].sum(), atol=1e-12)
                np.add.at(expected, places, slopes[b, h, d])
        assert np.isnan(found[b, :, 0]).all()
        assert np.isnan(found[b, np.arange(n + 1), np.arange(n + 1)]).all()
    np.testing.assert_allclose(sums.values, expected, atol=1e-12)
    for bank in range(arc_features.BANKS):  # what is listed is what is there
        begin = bank * size // arc_features.BANKS
        listed = sums.touched[bank, : sums.counts[bank]]
        nonzero = np.flatnonzero(expected[begin : begin + size // arc_features.BANKS]) + begin
        assert set(nonzero) <= set(listed) or sums.counts[bank] == size // arc_features.BANKS


def test_built_in_templates_agree_with_the_twin():
    rng = np.random.default_rng(1)
    sentences = [made(rng, 6)]
    index = ArcIndex.fit(sentences, ARC_TEMPLATES, RELATION_TEMPLATES, min_freq=1)
    weights = rng.standard_normal(1 << 16)
    _, found = scored(index, sentences, weights)
    for h, d in ((0, 3), (1, 6), (6, 1), (3, 2)):
        places = list(arc_twin.places(index, ARC_TEMPLATES, sentences[0], h, d, len(weights)))
        assert len(places) >= 2 * len(ARC_TEMPLATES) - 4  # no tags between neighbours
        np.testing.assert_allclose(found[0, h, d], weights[places].sum(), atol=1e-12)


def test_relations_are_scored_and_learned_as_by_the_twin():
    rng = np.random.default_rng(2)
    sentences = [made(rng, n) for n in (7, 3)]
    index = ArcIndex.fit(sentences, TEMPLATES[:1], TEMPLATES, min_freq=1)
    codes = index.encode(sentences)
    plan = index.relation_plan
    words = arc_features.parts(plan, codes.codes, codes.starts)
    arcs = arc_relations.Arcs(
        np.array([0, 1, 0, 0]), np.array([0, 3, 7, 2]), np.array([4, 1, 2, 1])
    )
    rows, kinds = 1 << 8, 3
    weights = rng.standard_normal((rows, kinds))
    places = [
        list(arc_twin.places(index, TEMPLATES, sentences[s], h, d, rows))
        for s, h, d in zip(*arcs, strict=True)
    ]
    found = arc_relations.scores(plan, words, arcs, weights)
    np.testing.assert_allclose(found, [weights[of].sum(0) for of in places], atol=1e-12)
    slopes = rng.standard_normal((4, kinds))
    slopes[3] = 0.0
    total = np.zeros((rows, kinds))
    for of, slope in zip(places, slopes, strict=True):
        np.add.at(total, of, slope)
    squares = 0.25 + total**2
    change = 0.5 * total / np.sqrt(squares)
    drift, moved = 7 * change, weights - change
    moments, sums = arc_features.Moments.like(weights, 0.25), arc_features.Sums.like(weights)
    arc_relations.add_gradient(plan, words, arcs, slopes, sums)
    arc_features.descend(sums, moments, weights, 0.5, 7)
    assert not sums.values.any()
    assert not sums.counts.any()
    np.testing.assert_allclose(weights, moved, atol=1e-12)
    np.testing.assert_allclose(moments.squares, squares, atol=1e-12)
    np.testing.assert_allclose(moments.drift, drift, atol=1e-12)


@pytest.mark.parametrize("share", [0.01, 0.5], ids=["few", "many"])
def test_descent_is_adagrad_and_its_average_the_mean_of_its_steps(share):
    rng = np.random.default_rng(3)
    size, rate = 1 << 10, 0.3
    sums = arc_features.Sums.like(np.zeros(size))
    weights, plain, squares, trace = np.zeros(size), np.zeros(size), np.full(size, 0.5), []
    moments = arc_features.Moments.like(weights, 0.5)
    for step in range(1, 6):
        slopes = np.where(rng.random(size) < share, rng.standard_normal(size), 0.0)
        sums.values[:] = slopes
        for bank, values in enumerate(slopes.reshape(arc_features.BANKS, -1)):
            some = np.flatnonzero(values)
            sums.touched[bank, : len(some)] = some + bank * len(values)
            sums.counts[bank] = len(some)
        arc_features.descend(sums, moments, weights, rate, step)
        squares += slopes**2
        plain = plain - rate * slopes / np.sqrt(squares)
        trace.append(plain)
        np.testing.assert_allclose(weights, plain, atol=1e-12)
        assert not sums.values.any()
        assert not sums.counts.any()
    np.testing.assert_allclose(
        arc_features.average(weights, moments, 5), np.mean(trace, 0), atol=1e-12
    )
    np.testing.assert_array_equal(arc_features.average(weights, moments, 0), weights)


def test_a_small_table_counts_sums_that_come_back_to_zero():
    # two weights per bank: sums pass through 0 again and again, and the list of touched weights is
    # full at once
    rng = np.random.default_rng(4)
    sentences = [made(rng, 6)]
    index = ArcIndex.fit(sentences, TEMPLATES, ("dep.upos",), min_freq=1)
    words, found = scored(index, sentences, np.zeros(16))
    slopes = np.where(rng.random(found.shape) < 0.5, 1.0, -1.0)
    sums = arc_features.Sums.like(np.zeros(16))
    for _ in range(3):
        arc_features.add_gradient(index.plan, words, slopes, sums)
    expected = sums.values.copy()
    assert (sums.counts <= 2).all()
    weights = np.zeros(16)
    arc_features.descend(sums, arc_features.Moments.like(weights, 1e-9), weights, 1.0, 1)
    np.testing.assert_allclose(weights, -np.sign(expected), rtol=1e-6)


def test_work_shared_between_threads_gives_the_same_bits():
    rng = np.random.default_rng(5)
    sentences = [made(rng, int(n)) for n in rng.integers(1, 30, 40)]
    index = ArcIndex.fit(sentences, TEMPLATES, ("dep.upos",), min_freq=1)
    weights = rng.standard_normal(1 << 12).astype(np.float32)
    results = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            words, found = scored(index, sentences, weights)
            sums = arc_features.Sums.like(weights)
            arc_features.add_gradient(index.plan, words, np.nan_to_num(found), sums)
            results.append((found, sums.values))
    finally:
        torch.set_num_threads(before)
    for found, values in results[1:]:
        np.testing.assert_array_equal(found, results[0][0])
        np.testing.assert_array_equal(values, results[0][1])


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 60), st.integers(0, 60))
def test_kinds_tell_direction_and_length(head, dependent):
    if head != dependent:
        assert arc_features.arc_kind(head, dependent) == arc_twin.kind(head, dependent)


def test_different_features_have_different_weights():
    # in a table of 2^24 the 4,600 features of these arcs hardly meet: 0.6 collisions are to be
    # expected
    rng = np.random.default_rng(6)
    sentences = [made(rng, 8, [f"w{k}" for k in range(200)]) for _ in range(10)]
    index = ArcIndex.fit(sentences, TEMPLATES, ("dep.upos",), min_freq=1)
    named: dict[int, set[tuple[int, int]]] = {}
    for sentence in sentences:
        for h in range(9):
            for d in range(1, 9):
                if h != d:
                    for feature in arc_twin.features(index, TEMPLATES, sentence, h, d):
                        for place in (
                            arc_twin.MULTIPLIERS[0],
                            arc_twin.MULTIPLIERS[arc_twin.kind(h, d)],
                        ):
                            key = feature[0] % 8 * 2**21 + (feature[1] * place % 2**32) // 2**11
                            named.setdefault(key, set()).add((*feature, place))
    total = sum(map(len, named.values()))
    assert total > 4000
    assert total - len(named) < 10


def test_encoding_knows_what_training_showed_often_enough():
    rng = np.random.default_rng(7)
    first = TreeSentence(
        ("The", "the", "cat"),
        ("the", "the", "cat"),
        ("D", "D", "N"),
        ("_",) * 3,
        ("_",) * 3,
        (),
        (),
    )
    index = ArcIndex.fit([first], ("head.word|dep.upos",), ("dep.word",))
    assert index.strings == {"word": ("the",), "upos": ("D", "N")}
    codes = index.encode([first, made(rng, 1)])
    assert codes.codes[0].tolist() == [2, 4, 4, 3, 2, 3]
    assert codes.codes[1, :4].tolist() == [2, 4, 4, 5]
    assert codes.lengths.tolist() == [3, 1]
    assert codes.take(np.array([1, 0, 1])).codes[0].tolist() == [2, 3, 2, 4, 4, 3, 2, 3]
    again = ArcIndex.from_tensors(index.tensors(), index.notes())
    assert again == index
    np.testing.assert_array_equal(again.encode([first]).codes, index.encode([first]).codes)


def test_default_templates_read_what_is_given():
    bare = TreeSentence(("a", "b"), ("_", "_"), ("N", "V"), ("_", "_"), ("_", "_"), (), ())
    assert given_columns([bare]) == {"word", "upos", "prefix", "suffix", "shape"}
    index = ArcIndex.fit([bare], min_freq=1)
    assert index.templates == templates_for(ARC_TEMPLATES, given_columns([bare]))
    assert not any(
        "xpos" in text or "lemma" in text or "feats" in text
        for text in index.templates + index.relation_templates
    )
    assert len(index.templates) > 30


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("head", r"expected atoms such as head\.word.*got 'head'"),
        (
            "head.wrd|dep.upos",
            r"expected one of the columns word, lemma.*\(did you mean word\?\), got 'head.wrd'",
        ),
        ("between.upos|between.xpos", "at most one atom between"),
        ("between.upos[1]", "without a place"),
        ("upos[1]", r"expected atoms such as head.word, .*, got 'upos\[1\]'"),
        ("head.word[0:2]", "expected one place and no numbers of characters"),
        ("", "got ''"),
    ],
)
def test_bad_templates_are_refused(text, message):
    with pytest.raises(RecipeError, match=message):
        parse_template(text, arcs=True)


def test_bad_sets_of_templates_are_refused():
    with pytest.raises(RecipeError, match="would give an arc the same features"):
        make_plan(("head.upos|dep.upos", "dep.upos|head.upos"), COLUMNS)
    with pytest.raises(RecipeError, match="would give an arc the same features"):
        make_plan(("head.upos", "head.upos"), COLUMNS)
    with pytest.raises(RecipeError, match="at least one template"):
        make_plan((), COLUMNS)
    for odd in ("head.upos", [3]):
        with pytest.raises(RecipeError, match="must be a sequence of strings"):
            make_plan(odd, COLUMNS)


def test_columns_of_another_length_are_refused():
    odd = TreeSentence(("a", "b"), ("_",), ("N", "V"), ("_", "_"), ("_", "_"), (), ())
    index = ArcIndex.fit(
        [TreeSentence(("a",), ("l",), ("N",), ("_",), ("_",), (), ())],
        ("dep.lemma",),
        ("dep.upos",),
        min_freq=1,
    )
    with pytest.raises(DataError, match="sentence 0: expected 2 lemmas, one per word, got 1"):
        index.encode([odd])
