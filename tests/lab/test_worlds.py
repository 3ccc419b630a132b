"""The world of entities.

Its posterior against enumeration, its annotators against their table, and that a seed says all.
"""

import itertools
import math
from collections import Counter, defaultdict

import numpy as np
import pytest
import torch
from scipy.stats import binomtest, chisquare

from chance import CHANCE
from softq.errors import DataError
from softq.formats.conll import Sentence
from softq.formats.tags import faults, spans
from softq.lab.worlds import entities as worlds
from softq.lab.worlds.entities import ANNOTATORS, FEWEST, KINDS, LABELS, MOST, EntityWorld

WORLD = EntityWorld()


def joint(world, tokens, labels):
    """P(words, labels | number of words), by the chain rule over every sequence of hidden states with these labels."""
    lexicon = world._lexicon
    words = [lexicon.ids[token] for token in tokens]
    behind = [[s for s, of in enumerate(worlds._LABEL_OF_STATE) if of == label] for label in labels]
    total = 0.0
    for states in itertools.product(*behind):
        p = worlds._FIRST[states[0]]
        for before, after in itertools.pairwise(states):
            p *= worlds._TRANSITIONS[before, after]
        for state, word in zip(states, words, strict=True):
            p *= lexicon.probabilities[state, word]
        total += p
    return total


def short_sentences():
    """The first words of drawn sentences, and words that are both names and not, with cues around them and next to each other."""
    double, other = WORLD.vocabulary[-1], WORLD.vocabulary[-2]
    drawn = [sentence.tokens[:3] for sentence in WORLD.sample(8, seed=3)]
    return [
        *drawn,
        ("Mr.", double, "said"),
        ("in", "the", other),
        (double, other, double),
        (double, "at", "a"),
        (double,),
        ("a",),
    ]


@pytest.mark.parametrize("tokens", short_sentences(), ids=" ".join)
def test_the_posterior_is_that_of_bayes_theorem(tokens):
    chain = WORLD.posterior(tokens)
    sequences = list(itertools.product(range(len(LABELS)), repeat=len(tokens)))
    probabilities = [joint(WORLD, tokens, [LABELS[k] for k in labels]) for labels in sequences]
    evidence = math.fsum(probabilities)
    assert chain.log_partition.item() == pytest.approx(math.log(evidence), abs=1e-10)
    torch.testing.assert_close(
        chain.log_prob(torch.tensor(sequences)).exp(),
        torch.tensor(probabilities, dtype=torch.float64) / evidence,
    )


def test_words_that_cannot_be_have_no_probability():
    assert (
        WORLD.posterior(("said",)).log_partition.item() == -math.inf
    )  # no sentence begins with a verb of speech
    assert WORLD.posterior(("Mr.", "in")).log_partition.item() == -math.inf


def test_posteriors_share_no_memory_and_know_their_words():
    first = WORLD.posterior(("in", "the"))
    first.emissions[:], first.transitions[:] = 7.0, 7.0
    again = WORLD.posterior(("in", "the"))
    assert not torch.equal(again.emissions, first.emissions)
    assert not torch.equal(again.transitions, first.transitions)
    assert first.emissions.shape == (2, len(LABELS))
    assert WORLD.posterior(()).emissions.shape == (0, len(LABELS))
    with pytest.raises(DataError, match=r"expected words of this world's vocabulary, got 'Xyzzy'"):
        WORLD.posterior(("in", "Xyzzy"))


def test_probabilities_are_probabilities():
    for table in (worlds._TRANSITIONS, worlds._FIRST[None], WORLD._lexicon.probabilities):
        np.testing.assert_allclose(table.sum(1), 1.0)
        assert (table >= 0).all()
    assert len(set(WORLD.vocabulary)) == len(WORLD.vocabulary)


def test_words_and_labels_are_drawn_with_their_probabilities():
    sentences = WORLD.sample(4000, seed=5)
    assert all(not faults(sentence.labels[0], "bio") for sentence in sentences)
    first = Counter(sentence.tokens[0] for sentence in sentences)
    expected = worlds._FIRST @ WORLD._lexicon.probabilities
    frequent = expected * len(sentences) >= 5
    counted = [first[word] for word, kept in zip(WORLD.vocabulary, frequent, strict=True) if kept]
    rest = len(sentences) - sum(counted)
    observed, wanted = (
        [*counted, rest],
        [*(expected[frequent] * len(sentences)), (1 - expected[frequent].sum()) * len(sentences)],
    )
    assert chisquare(observed, wanted).pvalue > CHANCE
    assert np.mean([len(sentence.tokens) for sentence in sentences]) == pytest.approx(
        12, abs=6 * 3 / math.sqrt(4000)
    )


def test_the_bayes_rule_is_as_often_right_as_it_expects():
    sentences = WORLD.sample(600, seed=6)
    right = tokens = 0
    expected = 0.0
    for sentence in sentences:
        chain = WORLD.posterior(sentence.tokens)
        labels = chain.mbr()
        expected += chain.marginals.gather(1, labels.unsqueeze(1)).sum().item()
        right += sum(
            LABELS[k] == label for k, label in zip(labels.tolist(), sentence.labels[0], strict=True)
        )
        tokens += len(sentence.tokens)
    # Errors of one sentence hang together: three standard errors of independent tokens would be 0.6
    # %, so 1.5 % leaves room.
    assert right / tokens == pytest.approx(expected / tokens, abs=0.015)
    assert 0.93 < expected / tokens < 0.98


def readings(world, count):
    """For each annotator.

    Entities and how they were read, and words outside and which were marked.
    """
    gold = world.sample(count, seed=7)
    entities, outside = defaultdict(list), defaultdict(list)
    for right, crowd in zip(gold, world.annotate(gold, seed=7), strict=True):
        truth = spans(right.labels[0], "bio")
        inside = {place for span in truth for place in range(span.start, span.end)}
        for name, labels in zip(crowd.annotators, crowd.labels, strict=True):
            marked = spans(labels, "bio")
            touched = set()
            for span in truth:
                over = [m for m in marked if m.start < span.end and span.start < m.end]
                entities[name].append((span, over, len(labels), inside))
                touched |= {place for m in over for place in range(m.start, m.end)}
            outside[name] += [
                labels[place] for place in range(len(labels)) if place not in inside | touched
            ]
    return entities, outside


def agrees(count, total, probability):
    return binomtest(count, total, probability).pvalue > CHANCE


def test_annotators_err_as_often_as_their_table_says():
    entities, outside = readings(WORLD, 3000)
    assert sorted(entities) == [annotator.name for annotator in ANNOTATORS]
    for annotator in ANNOTATORS:
        # Alone: an entity with words outside on both sides, so that nothing else reaches into it
        # and any boundary can go wrong.
        alone = [
            (span, over)
            for span, over, length, inside in entities[annotator.name]
            if span.start > 0 and span.end < length and not {span.start - 1, span.end} & inside
        ]
        seen = [(span, over[0]) for span, over in alone if over]
        assert agrees(len(alone) - len(seen), len(alone), annotator.miss)
        assert agrees(sum(m.kind != span.kind for span, m in seen), len(seen), annotator.wrong_type)
        marks = [label for label in outside[annotator.name] if label != "O"]
        assert agrees(len(marks), len(outside[annotator.name]), annotator.spurious)
        assert all(abs(m.start - span.start) + abs(m.end - span.end) <= 1 for span, m in seen)
        # A neighbour two words away may have taken the only free word before: what grows may then
        # shrink instead, but err it does.
        assert agrees(
            sum((m.start, m.end) != (span.start, span.end) for span, m in seen),
            len(seen),
            annotator.wrong_boundary,
        )
    marks = Counter(label for labels in outside.values() for label in labels if label != "O")
    assert set(marks) == {f"B-{kind}" for kind in KINDS}
    assert chisquare(list(marks.values())).pvalue > CHANCE


def test_each_sentence_has_three_to_seven_annotators_each_alike():
    crowd = WORLD.annotate(WORLD.sample(3000, seed=8), seed=8)
    sizes = Counter(len(sentence.annotators) for sentence in crowd)
    assert set(sizes) == set(range(FEWEST, MOST + 1))
    assert chisquare(list(sizes.values())).pvalue > CHANCE
    # Drawn without replacement the counts vary less than chi-square allows, which only makes a
    # failure rarer.
    assert (
        chisquare(
            list(Counter(name for sentence in crowd for name in sentence.annotators).values())
        ).pvalue
        > CHANCE
    )
    assert (
        chisquare(list(Counter(sentence.annotators[0] for sentence in crowd).values())).pvalue
        > CHANCE
    )  # the first is not the best
    assert all(len(set(sentence.annotators)) == len(sentence.annotators) for sentence in crowd)
    assert not any(faults(labels, "bio") for sentence in crowd for labels in sentence.labels)


def test_seeds_say_all():
    gold = WORLD.sample(50, seed=1)
    assert gold == EntityWorld().sample(50, seed=1)
    assert gold != WORLD.sample(50, seed=2)
    assert WORLD.annotate(gold, seed=1) == EntityWorld().annotate(gold, seed=1)
    assert WORLD.annotate(gold, seed=1) != WORLD.annotate(gold, seed=2)
    assert EntityWorld(seed=1).vocabulary != WORLD.vocabulary
    assert WORLD.sample(0, seed=0) == []


def test_an_entity_that_fills_its_sentence_keeps_its_boundary(monkeypatch):
    everyone_wrong = tuple(
        a._replace(miss=0.0, wrong_boundary=1.0, wrong_type=0.0, spurious=0.0) for a in ANNOTATORS
    )
    monkeypatch.setattr(worlds, "ANNOTATORS", everyone_wrong)
    alone, longer = WORLD.annotate(
        [Sentence(("a",), (("B-PER",),)), Sentence(("a", "b"), (("B-PER", "I-PER"),))], seed=0
    )
    assert set(alone.labels) == {("B-PER",)}
    assert set(longer.labels) <= {("B-PER", "O"), ("O", "B-PER")}


def test_a_wrong_type_is_each_of_the_others_alike(monkeypatch):
    always_wrong = tuple(
        a._replace(miss=0.0, wrong_boundary=0.0, wrong_type=1.0, spurious=0.0) for a in ANNOTATORS
    )
    monkeypatch.setattr(worlds, "ANNOTATORS", always_wrong)
    crowd = WORLD.annotate([Sentence(("a", "b", "c"), (("O", "B-LOC", "I-LOC"),))] * 300, seed=0)
    read = Counter(labels for sentence in crowd for labels in sentence.labels)
    assert set(read) == {("O", f"B-{kind}", f"I-{kind}") for kind in ("PER", "ORG", "MISC")}
    assert chisquare(list(read.values())).pvalue > CHANCE


def test_bad_arguments_are_refused():
    with pytest.raises(DataError, match="names of a world must be 1 or more, got 0"):
        EntityWorld(names=0)
    with pytest.raises(DataError, match="seed must be 0 or more, got -1"):
        WORLD.sample(1, seed=-1)
    with pytest.raises(DataError, match="true labels alone, got one with 2 sequences"):
        WORLD.annotate([Sentence(("a",), (("O",), ("O",)), ("x", "y"))], seed=0)
