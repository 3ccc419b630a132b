"""The world of two languages.

Its probabilities against what it draws, and that the most probable translation is not the best one.
"""

import math
from collections import Counter
from itertools import product
from statistics import NormalDist

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from softq.errors import DataError, ShapeError
from softq.lab.worlds import LanguageWorld
from softq.lab.worlds.language_dictionary import DICTIONARY
from softq.lab.worlds.languages import (
    FEWEST,
    MOST,
    SOURCE_WORDS,
    Clause,
    NounPhrase,
    formal,
    parse,
    source_of,
)
from softq.rewards import MultiReferenceBLEU, SentenceBLEU

CHANCE = 1e-9  # how often each comparison with a probability fails by chance
FAR = NormalDist().inv_cdf(1 - CHANCE / 2)  # standard errors that chance reaches as rarely

WORLD = LanguageWorld()
TEXT = WORLD.sample(400, seed=1, references=3)


def agrees(counted, probabilities, total):
    """Chi-square of counts, those with an expected count below 5 taken together."""
    frequent = [key for key, p in probabilities.items() if p * total >= 5]
    observed, expected = (
        [counted[key] for key in frequent],
        [probabilities[key] * total for key in frequent],
    )
    rest = total - sum(expected)
    if rest > 1e-6:
        observed, expected = [*observed, total - sum(observed)], [*expected, rest]
    return (
        chisquare(observed, np.array(expected) * total / sum(expected)).pvalue > CHANCE
    )  # scaled by no more than rounding


def test_probabilities_are_probabilities_of_all_that_is_drawn():
    for source, references in zip(TEXT.sources, TEXT.references, strict=True):
        translations = WORLD.outputs(source)
        assert math.fsum(translations.values()) == pytest.approx(1, abs=1e-12)
        assert min(translations.values()) > 0
        assert FEWEST < len(translations) <= MOST + 1
        assert list(translations.values()) == sorted(translations.values(), reverse=True)
        assert set(references) <= translations.keys()


@pytest.mark.parametrize("idiom", [0.0, 0.25, 0.9])
def test_translations_are_drawn_with_their_probabilities(monkeypatch, idiom):
    world, count = LanguageWorld(idiom=idiom), 20_000
    for number in (3, 44):  # the same clause each time, so that all references are of one source
        monkeypatch.setattr(
            LanguageWorld,
            "sample_input",
            lambda world, uniforms, number=number: TEXT.sources[number],
        )
        drawn = world.sample(count // 4, seed=2, references=4)
        assert set(drawn.sources) == {TEXT.sources[number]}
        written = Counter(reference for references in drawn.references for reference in references)
        assert agrees(written, world.outputs(TEXT.sources[number]), count)
        # And each for itself: two references of one source are as a pair what independence makes of
        # them.
        pairs = Counter((first, second) for first, second, *_ in drawn.references)
        single = world.outputs(TEXT.sources[number])
        assert agrees(
            pairs,
            {(a, b): p * q for (a, p), (b, q) in product(single.items(), repeat=2)},
            count // 4,
        )


def test_references_are_as_probable_as_they_should_be():
    # E[-log P(Y | x)] is the entropy of P(. | x), whatever the source.
    surprise = []
    for source, references in zip(TEXT.sources, TEXT.references, strict=True):
        translations = WORLD.outputs(source)
        entropy = -math.fsum(p * math.log(p) for p in translations.values())
        surprise += [-math.log(translations[reference]) - entropy for reference in references]
    assert abs(sum(surprise)) < FAR * math.sqrt(sum(value**2 for value in surprise))


def test_the_share_of_formal_translations():
    for idiom in (0.0, 0.25, 1.0):
        world = LanguageWorld(idiom=idiom)
        for source in TEXT.sources[:50]:
            assert world.outputs(source).get(formal(parse(source)), 0.0) == pytest.approx(idiom)


def test_a_sentence_said_by_hand():
    plain = {
        kind: [dict(entry.meanings[0].words) for entry in entries]
        for kind, entries in DICTIONARY.items()
    }
    definite, indefinite = 0, 1
    subject, object_ = NounPhrase(definite, 1, 0, None), NounPhrase(indefinite, 0, 1, 2)
    clause = Clause(subject, object_, 3, past=0, first="time", time=1, place=None, manner=None)
    (time,) = plain["time"][1]
    verb = next(iter(plain["verb"][3]))
    adjective, noun = list(plain["adjective"][2])[1], next(iter(plain["noun"][0]))
    senses = DICTIONARY["noun"][1].meanings
    assert len(senses) == 2
    for sense, p_sense in zip(
        senses, (0.15, 0.85), strict=True
    ):  # beside a verb of odd number the second is likelier
        word, p_word = sense.words[-1]
        text = f"{time} na {word} {verb}t soma {adjective} {noun}s"
        p = (
            0.75
            * 0.75
            * p_sense
            * p_word
            * plain["verb"][3][verb]
            * 0.6
            * plain["adjective"][2][adjective]
            * 0.7
        )
        assert WORLD.outputs(source_of(clause))[text] == pytest.approx(p)
        assert WORLD.outputs(source_of(clause))[text.replace("soma ", "")] == pytest.approx(
            p * 0.4 / 0.6
        )


WORD_OF = {spelling: word for word, spelling in SOURCE_WORDS.items()}


def is_sentence(source):
    try:
        parse(source)
    except DataError:
        return False
    return True


def test_sentences_say_one_thing():
    assert len(WORD_OF) == len(SOURCE_WORDS)
    for source in TEXT.sources:
        assert source_of(parse(source)) == source
        words = source.split()
        assert 6 <= len(words) <= 12
        kinds = [WORD_OF[word].kind for word in words]
        assert kinds[-1] == "verb"
        assert kinds.count("auxiliary") == 1
        for first in range(
            len(words)
        ):  # without a word that it needs, with words changed about, or with one twice
            needed = kinds[first] not in ("adjective", "time", "manner") or (
                kinds[first] == "time" and first == 0
            )
            assert is_sentence(" ".join(words[:first] + words[first + 1 :])) == (not needed)
        assert not is_sentence(" ".join([words[-1], *words[:-1]]))
        assert not is_sentence(" ".join([*words, words[-1]]))


@pytest.mark.parametrize(
    "source", ["", "ein Haus", "na", "tor vas", "ton vas tor", "tor hur ton", "vas"]
)
def test_what_is_no_sentence(source):
    with pytest.raises(DataError, match="expected a sentence of this world's source language, got"):
        WORLD.outputs(source)


def test_the_auxiliary_agrees_with_the_subject():
    other = {
        spelled: SOURCE_WORDS[word._replace(form=1 - word.form)]
        for spelled, word in WORD_OF.items()
        if word.kind == "auxiliary"
    }
    for source in TEXT.sources:
        assert not is_sentence(" ".join(other.get(word, word) for word in source.split()))


def test_the_words_are_as_many_as_are_said():
    text = WORLD.sample(4000, seed=3, references=4)
    sources = {word for source in text.sources for word in source.split()}
    targets = {
        word
        for references in text.references
        for reference in references
        for word in reference.split()
    }
    assert sources == set(SOURCE_WORDS.values())
    assert 150 < len(sources) + len(targets) < 400
    assert sources.isdisjoint(targets)
    assert len(set(text.sources)) > 3990
    counts = [len(WORLD.outputs(source)) for source in text.sources[:500]]
    assert np.median(counts) > 20


def test_a_seed_says_all():
    assert WORLD.sample(50, seed=1, references=3).sources == TEXT.sources[:50]
    assert WORLD.sample(50, seed=1, references=3).references == TEXT.references[:50]
    assert LanguageWorld().sample(50, seed=2) != WORLD.sample(50, seed=3)


def test_expected_rewards_are_those_of_a_loop():
    reward = SentenceBLEU()
    for source in TEXT.sources[:5]:
        translations = WORLD.outputs(source)
        texts = [*translations, "na unheard of", ""]
        numbers = {
            word: number
            for number, word in enumerate({word for text in texts for word in text.split()})
        }

        def one(text, reference, numbers=numbers):
            pair = [
                torch.tensor([[[numbers[word] for word in some.split()]]], dtype=torch.int64)
                for some in (text, reference)
            ]
            lengths = [torch.tensor([[some.shape[2]]]) for some in pair]
            return reward(pair[0], lengths[0], pair[1], lengths[1]).item()

        values = {
            text: math.fsum(p * one(text, reference) for reference, p in translations.items())
            for text in (*texts[:3], *texts[-2:])
        }
        for text, value in values.items():
            assert WORLD.expected_reward(source, text.split(), reward) == pytest.approx(
                value, abs=1e-12
            )
        best = WORLD.bayes(source, reward)
        assert best.reward == pytest.approx(
            WORLD.expected_reward(source, best.text.split(), reward)
        )
        assert best.reward == pytest.approx(
            max(WORLD.expected_reward(source, text.split(), reward) for text in translations)
        )
        assert WORLD.mode(source, reward) == (
            next(iter(translations)),
            pytest.approx(values[texts[0]]),
        )


def mean_rewards(idiom, count=60):
    world, reward = LanguageWorld(idiom=idiom), SentenceBLEU()
    both = [
        (world.bayes(source, reward).reward, world.mode(source, reward).reward)
        for source in TEXT.sources[:count]
    ]
    return np.mean(both, 0)


def test_with_formal_translations_the_most_probable_is_not_the_best():
    bayes, mode = mean_rewards(0.0)
    assert -1e-12 <= bayes - mode < 0.005
    bayes, mode = mean_rewards(0.25)
    assert bayes - mode > 0.08
    bayes, mode = mean_rewards(1.0)
    assert (bayes, mode) == pytest.approx((1, 1))


def test_for_exact_match_the_most_probable_is_the_best():
    def exact(candidates, lengths, references, ref_lengths):
        both = [
            [row[:size] for row, size in zip(rows[0].tolist(), sizes[0].tolist(), strict=True)]
            for rows, sizes in ((candidates, lengths), (references, ref_lengths))
        ]
        return torch.tensor([[[float(one == other) for other in both[1]] for one in both[0]]])

    for source in TEXT.sources[:10]:
        found = WORLD.bayes(source, exact).reward, WORLD.mode(source, exact).reward
        assert found == pytest.approx((max(WORLD.outputs(source).values()),) * 2, abs=1e-6)


def test_what_cannot_be():
    for arguments, message in (
        ({"idiom": 1.5}, "must lie in 0..1, got 1.5"),
        ({"idiom": math.nan}, "0..1"),
    ):
        with pytest.raises(DataError, match=message):
            LanguageWorld(**arguments)
    for size, references in ((-1, 1), (1, 0)):
        with pytest.raises(DataError, match=f"got {size} with {references}"):
            WORLD.sample(size, seed=0, references=references)
    with pytest.raises(
        ShapeError, match=r"a reward of each hypothesis for each reference, .*, got \[1, 1, 1\]"
    ):
        WORLD.expected_reward(TEXT.sources[0], ["na"], MultiReferenceBLEU())
