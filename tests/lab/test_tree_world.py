"""The world of trees.

Its posteriors against enumeration of the generative story, its samples against both, and that a
seed says all.
"""

import itertools
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

import oracle
import softq
from chance import CHANCE, FAR, agrees
from softq.errors import DataError
from softq.formats.conllu import read_conllu
from softq.formats.trees import crossing_arcs, is_projective
from softq.lab.worlds import tree_grammar
from softq.lab.worlds import trees as tree_world
from softq.lab.worlds.trees import CARELESSNESS, LONGEST, SHORTEST, TreeWorld

WORLD = TreeWorld(crossing=0.3)  # many crossing trees, so that both parts of the mixture matter
FLAT = TreeWorld(crossing=0.0)


def cut(sentence, first, size):
    """Some words of a sentence, without a tree."""
    columns = {
        name: getattr(sentence, name)[first : first + size]
        for name in ("forms", "lemmas", "upos", "xpos", "feats")
    }
    return replace(sentence, **columns, heads=(), relations=())


def short_sentences():
    drawn = [sentence for sentence in WORLD.sample(60, seed=3) if len(sentence.forms) > 5]
    return [
        cut(sentence, first, size)
        for size, sentence, first in zip(
            (1, 2, 3, 4, 4, 4), drawn, (0, 1, 2, 0, 1, 2), strict=False
        )
    ]


SHORT = short_sentences()
each_short = pytest.mark.parametrize(
    "sentence", SHORT, ids=lambda sentence: " ".join(sentence.forms)
)


def story(world, sentence, heads):
    """What the generative story gives the words and this tree.

    The first word, then each word's dependents outward, and its stops.
    """
    lexicon = world._lexicon
    words = [lexicon.ids[form] for form in sentence.forms]
    p = float(lexicon.first[words[heads.index(0)]])
    for place, word in enumerate(words, start=1):
        left = [other for other in range(place - 1, 0, -1) if heads[other - 1] == place]
        right = [other for other in range(place + 1, len(words) + 1) if heads[other - 1] == place]
        for side, dependents in enumerate((left, right)):
            stop = float(lexicon.stops[side][word])
            for dependent in dependents:
                p *= (1 - stop) * float(lexicon.dependents[side][word][words[dependent - 1]])
            p *= stop
    return p


def distribution(world, sentence, temperature=1.0):
    """P(tree | words) of every tree, from the story.

    Projective trees, and with probability `crossing` all of them.
    """
    every = oracle.trees(len(sentence.forms), multiroot=False, projective=False)
    weights = {heads: story(world, sentence, heads) ** (1 / temperature) for heads in every}
    inside = math.fsum(weight for heads, weight in weights.items() if oracle.is_projective(heads))
    total = math.fsum(weights.values())
    c = world.crossing
    return {
        heads: (1 - c) * oracle.is_projective(heads) * weight / inside + c * weight / total
        for heads, weight in weights.items()
    }


def arc_marginals(probabilities):
    size = len(next(iter(probabilities))) + 1
    found = np.zeros((size, size))
    for heads, p in probabilities.items():
        for word, head in enumerate(heads, start=1):
            found[head, word] += p
    return found


def posterior(world, sentence, annotations, carelessness):
    """P(true tree | words, annotations) by Bayes' theorem over every tree."""
    truth, flat = distribution(world, sentence), distribution(world, sentence, world.temperature)
    joint = dict(truth)
    for heads in truth:
        for written, k in zip(annotations, carelessness, strict=True):
            joint[heads] *= (1 - k) * (written == heads) + k * flat[written]
    evidence = math.fsum(joint.values())
    return {heads: p / evidence for heads, p in joint.items()}


def expected_uas(marginals, heads):
    return math.fsum(marginals[head, word] for word, head in enumerate(heads, start=1)) / len(heads)


@each_short
@pytest.mark.parametrize(
    "world", [WORLD, FLAT, TreeWorld(crossing=1.0)], ids=lambda world: str(world.crossing)
)
def test_trees_given_words_are_those_of_the_story(world, sentence):
    exact = distribution(world, sentence)
    for heads, p in exact.items():
        assert math.exp(world.log_prob(sentence, heads)) == pytest.approx(p, rel=1e-9)
    np.testing.assert_allclose(world.marginals(sentence), arc_marginals(exact), atol=1e-12)
    best = max(expected_uas(arc_marginals(exact), heads) for heads, p in exact.items() if p)
    assert expected_uas(arc_marginals(exact), world.bayes_heads(sentence)) == pytest.approx(
        best, abs=1e-12
    )


def test_the_best_heads_cross_where_trees_may():
    crossing = (3, 4, 0, 3)
    marginals = arc_marginals({crossing: 1.0})
    assert WORLD.best_heads(marginals) == crossing
    projective = oracle.trees(4, multiroot=False, projective=True)
    assert FLAT.best_heads(marginals) in projective
    assert expected_uas(marginals, FLAT.best_heads(marginals)) == max(
        expected_uas(marginals, heads) for heads in projective
    )


@each_short
def test_the_log_partition_is_the_probability_of_the_words(sentence):
    evidence = math.fsum(
        story(FLAT, sentence, heads)
        for heads in oracle.trees(len(sentence.forms), multiroot=False, projective=True)
    )
    tree = softq.ProjectiveTree(torch.tensor(FLAT.scores(sentence)))
    assert tree.log_partition.item() == pytest.approx(math.log(evidence), abs=1e-10)


def annotations_of(world, sentence):
    """Sets of annotations with the carelessness of each annotator.

    Agreeing, not, hopeless, and certain.
    """
    likely = sorted(distribution(world, sentence).items(), key=lambda pair: -pair[1])
    first, second, third = (likely[place % len(likely)][0] for place in (0, 1, 2))
    last = min(
        (heads for heads, p in likely if p), key=lambda heads: distribution(world, sentence)[heads]
    )
    return [
        ((first,), (0.4,)),
        ((last,), (0.01,)),
        ((first, second, first), (0.4, 0.1, 0.7)),
        ((last, last, second, third), (0.5, 0.6, 0.2, 1.0)),
        ((first, second, last), (1.0, 1.0, 1.0)),
        ((second, first, second), (0.0, 0.3, 0.2)),
    ]


@each_short
@pytest.mark.parametrize("world", [WORLD, FLAT], ids=lambda world: str(world.crossing))
def test_trees_given_annotations_are_those_of_bayes_theorem(world, sentence):
    for annotations, carelessness in annotations_of(world, sentence):
        if world is FLAT and not all(oracle.is_projective(heads) for heads in annotations):
            continue
        exact = arc_marginals(posterior(world, sentence, annotations, carelessness))
        np.testing.assert_allclose(
            world.marginals(sentence, annotations, carelessness), exact, atol=1e-10
        )
        best = max(
            expected_uas(exact, heads) for heads, p in distribution(world, sentence).items() if p
        )
        assert expected_uas(
            exact, world.bayes_heads(sentence, annotations, carelessness)
        ) == pytest.approx(best, abs=1e-10)


@each_short
def test_what_an_annotator_writes_is_a_mixture_and_averages_to_what_the_words_say(sentence):
    truth, flat = distribution(WORLD, sentence), distribution(WORLD, sentence, WORLD.temperature)
    written = {heads: 0.7 * p + 0.3 * flat[heads] for heads, p in truth.items()}
    np.testing.assert_allclose(
        WORLD.marginals_of_annotator(sentence, 0.3), arc_marginals(written), atol=1e-12
    )
    np.testing.assert_allclose(
        WORLD.marginals_of_annotator(sentence, [0.1, 0.5]), arc_marginals(written), atol=1e-12
    )
    # The law of total probability: beliefs after one annotation average to the belief before it.
    average = sum(p * WORLD.marginals(sentence, [heads], 0.3) for heads, p in written.items())
    np.testing.assert_allclose(average, WORLD.marginals(sentence), atol=1e-12)


def test_annotators_write_what_they_should():
    count = 20_000
    sentence = SHORT[3]
    flat = distribution(WORLD, sentence, WORLD.temperature)
    true = max(flat, key=lambda heads: distribution(WORLD, sentence)[heads])
    annotated = WORLD.annotate(
        [replace(sentence, heads=true)] * count, annotators=2, carelessness=[0.9, 0.2], seed=4
    )
    for who, k in enumerate((0.9, 0.2)):
        written = {heads: (1 - k) * (heads == true) + k * p for heads, p in flat.items()}
        assert agrees(Counter(trees[who] for trees in annotated), written, count)
    both_right = np.prod([1 - k + k * flat[true] for k in (0.9, 0.2)])  # each for herself
    assert (
        binomtest(sum(trees == [true, true] for trees in annotated), count, both_right).pvalue
        > CHANCE
    )


def test_words_are_drawn_with_their_probabilities(monkeypatch):
    monkeypatch.setattr(
        tree_world, "SHORTEST", 1
    )  # with no bound, what is drawn has the probabilities of the tables
    monkeypatch.setattr(tree_world, "LONGEST", 100_000)
    lexicon = FLAT._lexicon
    sentences = FLAT.sample(4000, seed=5)
    first = Counter(sentence.forms[sentence.heads.index(0)] for sentence in sentences)
    assert agrees(
        first, dict(zip(FLAT.vocabulary, lexicon.first.tolist(), strict=True)), len(sentences)
    )
    stopped, went_on, drawn, expected = Counter(), Counter(), Counter(), np.zeros(len(lexicon.ids))
    for sentence in sentences:
        for place, (form, tag) in enumerate(
            zip(sentence.forms, sentence.upos, strict=True), start=1
        ):
            stopped.update(
                [(tag, 0), (tag, 1)]
            )  # each word stops once on each side, and goes on once for each dependent
            for word, head in enumerate(sentence.heads, start=1):
                if head == place:
                    went_on[tag, word > place] += 1
                    if tag == "VERB" and word > place:
                        drawn[sentence.forms[word - 1]] += 1
                        expected += lexicon.dependents[1, lexicon.ids[form]]
    for (tag, side), stops in stopped.items():
        p = tree_grammar.GRAMMAR[tag][side][0]
        # Stops are as many as words: the number of draws that are needed for so many stops is
        # negative binomial.
        assert (
            abs(went_on[tag, side] - stops * (1 - p) / p) < FAR * math.sqrt(stops * (1 - p)) / p + 3
        )
    total = sum(drawn.values())
    assert agrees(
        drawn, dict(zip(FLAT.vocabulary, (expected / total).tolist(), strict=True)), total
    )


def test_probabilities_are_probabilities():
    lexicon = WORLD._lexicon
    np.testing.assert_allclose(lexicon.first.sum(), 1.0)
    np.testing.assert_allclose(lexicon.dependents.sum(2), 1.0)
    assert (lexicon.dependents > 0).all()
    assert ((lexicon.stops > 0) & (lexicon.stops < 1)).all()
    assert len(set(WORLD.vocabulary)) == len(WORLD.vocabulary)


@pytest.mark.parametrize("world", [WORLD, FLAT], ids=lambda world: str(world.crossing))
def test_the_bayes_rule_is_as_often_right_as_it_expects(world):
    sentences = world.sample(1500, seed=6)
    annotated = world.annotate(sentences, annotators=2, seed=6)
    surprise = {"words": [], "annotations": [], "labels": []}
    for sentence, trees in zip(sentences, annotated, strict=True):
        for given, known in (("words", ()), ("annotations", trees)):
            marginals = world.marginals(sentence, known)
            heads = world.best_heads(marginals)
            right = [head == true for head, true in zip(heads, sentence.heads, strict=True)]
            surprise[given].append(sum(right) - len(heads) * expected_uas(marginals, heads))
        relations = world.relations(sentence, heads)
        labelled = sum(
            is_right and relation == true
            for is_right, relation, true in zip(right, relations, sentence.relations, strict=True)
        )
        known_noise = [1.0 if head == 0 else 1 - world.label_noise for head in heads]
        las = sum(
            marginals[head, word] * share
            for (word, head), share in zip(enumerate(heads, start=1), known_noise, strict=True)
        )
        surprise["labels"].append(labelled - las)
    for values in (
        surprise.values()
    ):  # independent between sentences, and zero on average if the marginals are true
        assert abs(sum(values)) < FAR * math.sqrt(sum(value**2 for value in values))


def vote(world, trees):
    """The tree with the most arcs that annotators drew."""
    counts = np.zeros((len(trees[0]) + 1,) * 2)
    for heads in trees:
        for word, head in enumerate(heads, start=1):
            counts[head, word] += 1
    return world.best_heads(counts)


def test_no_rule_beats_the_bayes_rule():
    world = TreeWorld()
    sentences = world.sample(1000, seed=7)
    total = Counter()
    for sentence, trees in zip(sentences, world.annotate(sentences, seed=7), strict=True):
        scores = torch.tensor(world.scores(sentence))
        given_words, given_all = world.marginals(sentence), world.marginals(sentence, trees)
        rules = {
            "projective mode": tuple(softq.ProjectiveTree(scores).mode().tolist()),
            "spanning mode": tuple(softq.SpanningTree(scores).mode().tolist()),
            "annotator's": world.best_heads(world.marginals_of_annotator(sentence)),
            "annotator": trees[0],
            "vote": vote(world, trees),
            "words": world.bayes_heads(sentence),
            "all": world.bayes_heads(sentence, trees),
        }
        size = len(sentence.forms)
        for rule, heads in rules.items():
            total[rule] += size * expected_uas(given_all, heads)
            assert expected_uas(given_all, heads) <= expected_uas(given_all, rules["all"]) + 1e-9
            assert (
                expected_uas(given_words, heads) <= expected_uas(given_words, rules["words"]) + 1e-9
            )
        total["words alone"] += size * expected_uas(given_words, rules["words"])
        total["size"] += size
    uas = {rule: 100 * right / total["size"] for rule, right in total.items()}
    assert max(uas[rule] for rule in rules if rule != "all") < uas["all"]
    assert uas["annotator"] < uas["vote"]
    assert 75 < uas["annotator"] < 83
    assert 85 < uas["words alone"] < 92


def share_of_crossing(world):
    sentences = world.sample(2000, seed=8)
    crossing = np.array([crossing_arcs(sentence.heads) for sentence in sentences])
    words = sum(len(sentence.heads) for sentence in sentences)
    return (
        crossing.sum() / words,
        math.sqrt((crossing**2).sum()) / words,
    )  # and its standard error, rather too large


def test_crossing_arcs_are_as_many_as_asked_for():
    shares = {c: share_of_crossing(TreeWorld(crossing=c)) for c in (0.0, 0.1, 0.4, 1.0)}
    assert shares[0.0] == (0.0, 0.0)
    for c, (share, error) in shares.items():
        assert abs(share - c * shares[1.0][0]) <= FAR * (error + c * shares[1.0][1])
    assert shares[0.1][0] < shares[0.4][0] < shares[1.0][0]
    flat = FLAT.sample(500, seed=9)
    annotated = FLAT.annotate(flat, annotators=2, carelessness=1.0, seed=9)
    assert all(is_projective(heads) for trees in annotated for heads in trees)


def test_sentences_are_sound():
    sentences = WORLD.sample(400, seed=10)
    noisy = total = 0
    for sentence in sentences:
        assert SHORTEST <= len(sentence.forms) <= LONGEST
        assert all(
            form.startswith(lemma)
            for form, lemma in zip(sentence.forms, sentence.lemmas, strict=True)
        )
        assert [relation == "root" for relation in sentence.relations] == [
            head == 0 for head in sentence.heads
        ]
        plain = WORLD.relations(sentence, sentence.heads)
        noisy += sum(a != b for a, b in zip(plain, sentence.relations, strict=True))
        total += len(plain) - 1
    assert binomtest(noisy, total, WORLD.label_noise).pvalue > CHANCE
    words = {
        (form, feats)
        for sentence in sentences
        for form, feats in zip(sentence.forms, sentence.feats, strict=True)
    }
    assert len({form for form, _ in words}) == len(words)
    assert {feats for _, feats in words} == {"_", "Number=Sing", "Number=Plur"}


def test_a_wrong_relation_is_each_of_the_others_alike():
    world = TreeWorld(label_noise=1.0)
    wrong = Counter()
    for sentence in world.sample(1000, seed=13):
        for plain, relation in zip(
            world.relations(sentence, sentence.heads), sentence.relations, strict=True
        ):
            assert (plain == relation) == (plain == "root")
            if plain == "det":
                wrong[relation] += 1
    others = [relation for relation in tree_grammar.RELATIONS if relation != "det"]
    assert agrees(wrong, dict.fromkeys(others, 1 / len(others)), sum(wrong.values()))


def test_sentences_can_be_written_and_read(tmp_path):
    sentences = WORLD.sample(20, seed=11)
    (tmp_path / "trees.conllu").write_text(
        "".join(sentence.text(sentence.heads, sentence.relations) for sentence in sentences)
    )
    for made, read in zip(sentences, read_conllu(tmp_path / "trees.conllu"), strict=True):
        assert (made.forms, made.lemmas, made.upos, made.feats) == (
            read.forms,
            read.lemmas,
            read.upos,
            read.feats,
        )
        assert (made.heads, made.relations) == (read.heads, read.relations)


def test_seeds_say_all():
    sentences = WORLD.sample(50, seed=1)
    assert sentences == TreeWorld(crossing=0.3).sample(50, seed=1)
    assert sentences != WORLD.sample(50, seed=2)
    annotated = WORLD.annotate(sentences, annotators=2, seed=1)
    assert annotated == TreeWorld(crossing=0.3).annotate(
        sentences, annotators=2, carelessness=[CARELESSNESS] * 2, seed=1
    )
    assert annotated != WORLD.annotate(sentences, annotators=2, seed=2)
    assert TreeWorld(seed=1).vocabulary != WORLD.vocabulary
    assert WORLD.sample(0, seed=0) == []
    assert WORLD.annotate([], seed=0) == []


def test_careful_annotators_write_the_truth():
    sentences = WORLD.sample(30, seed=12)
    assert WORLD.annotate(sentences, annotators=2, carelessness=0.0, seed=0) == [
        [sentence.heads] * 2 for sentence in sentences
    ]


def test_bad_arguments_are_refused():
    sentence = SHORT[2]
    trees = [
        heads
        for heads in itertools.product(range(4), repeat=3)
        if oracle.is_tree(heads, multiroot=False)
    ]
    cases = [
        (lambda: TreeWorld(crossing=1.5), r"crossing must lie in 0\.\.1, got 1\.5"),
        (lambda: TreeWorld(label_noise=-0.1), r"label_noise must lie in 0\.\.1, got -0\.1"),
        (lambda: TreeWorld(lemmas=2), r"lemmas of a world must be 6 \(one for each class of"),
        (lambda: TreeWorld(lemmas=101), "to 100, got 101"),
        (lambda: TreeWorld(temperature=0.5), r"temperature of a world must be 1 or more and"),
        (lambda: TreeWorld(seed=-1), "seed must be 0 or more, got -1"),
        (lambda: WORLD.sample(1, seed=-1), "seed must be 0 or more, got -1"),
        (lambda: WORLD.annotate([], annotators=0, seed=0), "expected one annotator or more, got 0"),
        (
            lambda: WORLD.annotate([], annotators=3, carelessness=[0.1, 0.2], seed=0),
            "or one for each of 3, got 2",
        ),
        (lambda: WORLD.annotate([], carelessness=1.1, seed=0), r"carelessness must lie in"),
        (lambda: WORLD.annotate([sentence], seed=0), "expected a head for each of the 3 words of"),
        (lambda: WORLD.log_prob(sentence, (2, 1, 0)), r"heads \[2, 1, 0\] are no tree with one"),
        (lambda: WORLD.marginals(sentence, [(0, 1)]), "expected a head for each of the 3 words"),
        (lambda: WORLD.marginals(sentence, trees[:2], 0.0), "write the true tree, but they gave"),
        (lambda: FLAT.marginals(SHORT[3], [(3, 4, 0, 3)]), r"expected trees that do not cross,"),
        (lambda: WORLD.scores(replace(sentence, forms=("Xyzzy", "a", "b"))), "this world's"),
    ]
    for call, message in cases:
        with pytest.raises(DataError, match=message):
            call()
