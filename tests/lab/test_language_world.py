"""The world of two languages.

Its probabilities against what it draws, and that the most probable translation is not the best one.
"""

import numpy as np
import pytest
import torch

from softq.errors import DataError
from softq.lab.worlds import LanguageWorld
from softq.lab.worlds.language_dictionary import DICTIONARY
from softq.lab.worlds.languages import (
    SOURCE_WORDS,
    Clause,
    NounPhrase,
    parse,
    source_of,
)
from softq.rewards import SentenceBLEU

WORLD = LanguageWorld()
TEXT = WORLD.sample(400, seed=1, references=3)


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
