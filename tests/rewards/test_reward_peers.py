"""Rewards against public implementations, to 1e-12, on thousands of random pairs and on every edge."""

import itertools
import logging
import math
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu
from rapidfuzz.distance import Levenshtein
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics import BLEU, CHRF

from softq.rewards import ChrF, MultiReferenceBLEU, NegativeEditDistance, RougeL, SentenceBLEU
from softq.sentences import Sentences

PAIRS, LONGEST = 4_000, 60
ORDERS = (1, 2, 3, 4, 5, 6)
EDGES = [
    ([], []),
    ([], [1]),
    ([], [1, 2, 3, 4, 5]),
    ([1], []),
    ([1, 2, 3, 4, 5], []),
    *[(list(range(n)), list(range(n))) for n in range(1, 8)],  # perfect
    *[([7] * n, [7] * m) for n in range(1, 7) for m in range(1, 7)],  # clipping
    *[
        (list(range(n)), list(range(50, 50 + m))) for n in range(1, 7) for m in (1, 3, 6)
    ],  # no match at all
    *[
        (list(range(n)), list(range(m))) for n in range(1, 7) for m in range(1, 12)
    ],  # a prefix of the other
    *[(list(range(n))[::-1], list(range(n))) for n in range(2, 8)],  # all words, none in place
    ([1, 2, 1, 2, 1, 2, 1], [1, 2, 1, 2, 1]),  # n-grams that overlap themselves
    ([3, 1, 2, 9, 1, 2, 4], [1, 2, 8, 1, 2]),
    (list(range(64)), list(range(64))),  # all 64 bits of a word
    ([5] * 64, [5] * 64),
    (list(range(1, 64)), list(range(64))),
    *[
        (list(range(100, 100 + n)), list(range(n))) for n in (15, 16, 31, 32, 63, 64)
    ],  # many different words, and all of them looked for in vain
]
IDS = np.unique(
    np.random.default_rng(1).integers(2**62, size=1_000)
).tolist()  # word numbers need not be small


def random_sentence(rng, vocab, low, high):
    """Words of 0..vocab-1; sometimes a short phrase over and over, so that n-grams repeat."""
    length = int(rng.integers(low, high + 1))
    if rng.random() < 0.25:
        phrase = rng.integers(vocab, size=rng.integers(1, 6)).tolist()
        return [phrase[i % len(phrase)] for i in range(length)]
    return rng.integers(vocab, size=length).tolist()


def edited(rng, words, vocab, longest):
    """A copy with a few words replaced, dropped, added, and sometimes a block moved.

    Long matches remain.
    """
    words = list(words)
    for _ in range(int(rng.integers(0, 6))):
        at = int(rng.integers(len(words) + 1))
        kind = int(rng.integers(4))
        if kind == 0:
            words[at : at + 1] = [int(rng.integers(vocab))]
        elif kind == 1:
            del words[at : at + int(rng.integers(1, 4))]
        elif kind == 2:
            words[at:at] = rng.integers(vocab, size=rng.integers(1, 4)).tolist()
        else:
            words = words[at:] + words[:at]
    return words[:longest]


def random_pairs(count, seed, low=0, high=LONGEST):
    """Candidate and reference: half of them unrelated, half of them edits of one another.

    Some short; vocabularies from 1 to 1000.
    """
    rng = np.random.default_rng(seed)
    pairs = []
    for i in range(count):
        vocab = (1, 2, 3, 10, 1_000)[i % 5]
        limit = 8 if low == 0 and rng.random() < 0.25 else high
        ref = random_sentence(rng, vocab, low, limit)
        pairs.append(
            (
                (
                    edited(rng, ref, vocab, high)
                    if rng.random() < 0.5
                    else random_sentence(rng, vocab, low, limit)
                ),
                ref,
            )
        )
    return pairs


@pytest.fixture(scope="module")
def pairs():
    made = EDGES + random_pairs(PAIRS, seed=0)
    assert max(len(ref) for _, ref in made) <= 64  # the path of one machine word
    assert {len(cand) for cand, _ in made} >= set(range(LONGEST + 1))
    return made


@pytest.fixture(scope="module")
def long_pairs():
    """References of two, three and four machine words, with the edges of a word among them, and short ones between them."""
    made = random_pairs(500, seed=2, low=60, high=200)
    made += [
        (list(range(n)), list(range(m)))
        for n in (63, 64, 65, 127, 128, 129, 192, 193)
        for m in (63, 64, 65, 127, 128, 129, 192, 193)
    ]
    made += [([1] * n, [1] * m) for n in (63, 64, 65, 128, 129) for m in (64, 65, 128, 129, 200)]
    return made + EDGES + random_pairs(200, seed=3)


@pytest.fixture(scope="module", autouse=True)
def quiet_sacrebleu():
    """It advises against effective_order=False at each call."""
    logger = logging.getLogger("sacrebleu")
    level = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(level)


def scored(reward, pairs, ids=None):
    """All pairs in one call, each an example of its own.

    ``ids`` are other numbers for the words.
    """
    sides = zip(*pairs, strict=True)
    packed = [
        Sentences.pack(
            [[words if ids is None else [ids[word] for word in words]] for words in side]
        )
        for side in sides
    ]
    return reward(*packed[0], *packed[1]).reshape(-1)


def text(words, pieces=None):
    return " ".join(f"w{word}" if pieces is None else pieces[word] for word in words)


def assert_equal(found, want, pairs):
    want = torch.tensor(want, dtype=torch.float64)
    assert found.dtype == torch.float64
    assert found.shape == want.shape
    gap = (found - want).abs()
    worst = int(gap.argmax())
    assert gap[worst] <= 1e-12, (
        f"{float(found[worst])} and not {float(want[worst])} for number {worst}: {pairs[worst]}"
    )


def assert_values(reward, pairs, want):
    """Words of small numbers and of any numbers are looked up in different ways."""
    assert_equal(scored(reward, pairs), want, pairs)
    assert_equal(scored(reward, pairs, IDS), want, pairs)


def by_nltk(pairs, orders=ORDERS):
    """Values of each order, [orders][pairs].

    A single weight vector gives a plain number, so at least two are asked for.
    """
    weights = [(1 / n,) * n for n in orders]
    rule = SmoothingFunction().method3
    rows = [
        sentence_bleu(refs, cand, weights=weights, smoothing_function=rule) for cand, refs in pairs
    ]
    return list(zip(*rows, strict=True))


def by_sacrebleu(pairs, order, method, effective):
    metric = BLEU(
        force=True,
        tokenize="none",
        smooth_method=method,
        effective_order=effective,
        max_ngram_order=order,
    )
    return [
        metric.sentence_score(text(cand), [text(ref) for ref in refs]).score / 100
        for cand, refs in pairs
    ]


def single(pairs):
    """The same pairs with lists of one reference."""
    return [(cand, [ref]) for cand, ref in pairs]


def by_mteval(cand, ref, order, brevity=True, effective=False):
    """mteval-v13a from its definition.

    An order without n-grams adds log 1 = 0 to the mean over all orders.
    """
    if not cand:
        return 0.0
    total, smooth, there = 0.0, 1, 0
    for n in range(1, order + 1):
        have, want = (
            Counter(zip(*(side[i:] for i in range(n)), strict=False)) for side in (cand, ref)
        )
        count, match = sum(have.values()), sum((have & want).values())
        if count == 0:
            continue
        there += 1
        if match == 0:
            smooth *= 2
            total += math.log(1 / (smooth * count))
        else:
            total += math.log(match / count)
    penalty = math.exp(min(0.0, 1 - len(ref) / len(cand))) if brevity else 1.0
    return math.exp(total / (there if effective else order)) * penalty


def test_bleu_against_nltk_at_all_orders(pairs):
    for order, want in zip(ORDERS, by_nltk(single(pairs)), strict=True):
        assert_values(SentenceBLEU(order), pairs, want)


def test_bleu_against_nltk_with_long_references(long_pairs):
    for order, want in zip(ORDERS, by_nltk(single(long_pairs)), strict=True):
        assert_values(SentenceBLEU(order), long_pairs, want)


def test_effective_order_against_nltk_reweighing(pairs):
    """NLTK gives the weights to the orders that are there, if the candidate has fewer than four words and the order is four."""
    short = [(cand, ref) for cand, ref in pairs if len(cand) < 4]
    assert len(short) > 400
    rule = SmoothingFunction().method3
    want = [
        sentence_bleu([ref], cand, smoothing_function=rule, auto_reweigh=True)
        for cand, ref in short
    ]
    assert_values(SentenceBLEU(effective_order=True), short, want)


@pytest.mark.parametrize("effective", [False, True])
@pytest.mark.parametrize(("smoothing", "method"), [("sacrebleu", "exp"), ("none", "none")])
def test_bleu_against_sacrebleu(pairs, smoothing, method, effective):
    want = by_sacrebleu(single(pairs), 4, method, effective)
    assert_values(SentenceBLEU(4, smoothing, effective_order=effective), pairs, want)


@pytest.mark.parametrize("effective", [False, True])
@pytest.mark.parametrize(("smoothing", "method"), [("sacrebleu", "exp"), ("none", "none")])
def test_bleu_against_sacrebleu_at_other_orders_and_with_long_references(
    pairs, long_pairs, smoothing, method, effective
):
    for order in ORDERS:
        some = pairs[: len(EDGES) + 500] if order != 4 else long_pairs
        want = by_sacrebleu(single(some), order, method, effective)
        assert_values(SentenceBLEU(order, smoothing, effective_order=effective), some, want)


@pytest.mark.parametrize("brevity", [True, False])
@pytest.mark.parametrize("effective", [False, True])
def test_mteval_rule_against_its_definition(pairs, long_pairs, brevity, effective):
    for order, some in [(4, pairs), (4, long_pairs), *((n, pairs[:1_000]) for n in ORDERS)]:
        want = [by_mteval(cand, ref, order, brevity, effective) for cand, ref in some]
        reward = SentenceBLEU(order, "mteval", brevity_penalty=brevity, effective_order=effective)
        assert_values(reward, some, want)


@pytest.fixture(scope="module")
def groups():
    """Candidates with one to four references.

    Half of the candidates put together from pieces of all of them.
    """
    rng = np.random.default_rng(4)
    made = [
        ([], [[1]]),
        ([1], [[], [1, 2]]),
        ([1, 2, 3], [[], []]),
        ([1, 2, 3], [[1], [1, 2, 3, 4, 5]]),
        ([1, 1, 1], [[1, 1], [1, 2, 1, 1, 1]]),
    ]
    for i in range(3_000):
        vocab, high = (1, 2, 3, 10, 1_000)[i % 5], (8, 30, 60, 100)[i % 4]
        refs = [random_sentence(rng, vocab, 0, high) for _ in range(int(rng.integers(1, 5)))]
        mixed = [
            word for ref in refs for word in ref[int(rng.integers(9)) :][: int(rng.integers(1, 9))]
        ]
        made.append((mixed if rng.random() < 0.5 else edited(rng, refs[0], vocab, high), refs))
    assert any(len(ref) > 64 for _, refs in made for ref in refs)
    return made


def scored_together(reward, groups):
    cands = Sentences.pack([[cand] for cand, _ in groups])
    return reward(*cands, *Sentences.pack([refs for _, refs in groups])).reshape(-1)


def test_several_references_against_nltk(groups):
    for order, want in zip(ORDERS, by_nltk(groups), strict=True):
        assert_equal(scored_together(MultiReferenceBLEU(order), groups), want, groups)


@pytest.mark.parametrize("effective", [False, True])
@pytest.mark.parametrize(("smoothing", "method"), [("sacrebleu", "exp"), ("none", "none")])
def test_several_references_against_sacrebleu(groups, smoothing, method, effective):
    want = by_sacrebleu(groups, 4, method, effective)
    assert_equal(
        scored_together(MultiReferenceBLEU(4, smoothing, effective_order=effective), groups),
        want,
        groups,
    )


def test_edit_distance_against_rapidfuzz(pairs, long_pairs):
    for some in (pairs, long_pairs):
        want = [-Levenshtein.distance(cand, ref) for cand, ref in some]
        assert_values(NegativeEditDistance(), some, want)


def test_rouge_against_rouge_score(pairs, long_pairs):
    scorer = RougeScorer(["rougeL"], tokenizer=SimpleNamespace(tokenize=str.split))
    for some in (pairs, long_pairs[:200] + long_pairs[500:]):
        found = [scorer.score(text(ref), text(cand))["rougeL"] for cand, ref in some]
        assert_values(RougeL(), some, [value.fmeasure for value in found])
        # Other weights from its precision and recall, as Lin (2004) defines them.
        for beta in (0.5, 1.2):
            want = [
                (
                    (1 + beta**2)
                    * value.precision
                    * value.recall
                    / (value.recall + beta**2 * value.precision)
                    if value.recall
                    else 0.0
                )
                for value in found
            ]
            assert_values(RougeL(beta), some, want)


def spelling():
    """Text of 1000 tokens.

    Few letters, so that characters match across words, some accents, other scripts, emoji, spaces,
    and nothing.
    """
    rng = np.random.default_rng(5)
    letters = [*"aaabbcde.,é日本😀", "a\u0301"]
    pieces = ["".join(rng.choice(letters, size=rng.integers(0, 6))) for _ in range(990)]
    return [
        *pieces,
        "",
        " ",
        "a b",
        " ab",
        "ab\n",
        "\u00a0b",
        "b\u3000",
        "\t",
        "e e e",
        "aaaaaaaaaaaaaaaa",
    ]


@pytest.mark.parametrize(("order", "beta"), [(6, 2.0), (4, 1.0), (1, 3.0), (8, 0.5)])
def test_chrf_against_sacrebleu(pairs, long_pairs, order, beta):
    pieces = spelling()
    metric = CHRF(char_order=order, word_order=0, beta=beta)
    for some in (pairs if order == 6 else pairs[:1_000], long_pairs):
        want = [
            metric.sentence_score(text(cand, pieces), [text(ref, pieces)]).score / 100
            for cand, ref in some
        ]
        assert_equal(scored(ChrF(pieces, order=order, beta=beta), some), want, some)


@pytest.mark.parametrize(("order", "beta"), [(6, 2.0), (3, 1.0)])
def test_chrf_of_tokens_that_are_characters(pairs, long_pairs, order, beta):
    metric = CHRF(char_order=order, word_order=0, beta=beta)
    letters = [chr(0x100 + i) for i in range(1_000)]
    assert not any(letter.isspace() for letter in letters)
    for some in (pairs if order == 6 else pairs[:1_000], long_pairs):
        want = [
            metric.sentence_score(text(cand, letters), [text(ref, letters)]).score / 100
            for cand, ref in some
        ]
        assert_values(ChrF(order=order, beta=beta), some, want)


def test_many_candidates_and_references_at_once():
    """[B, S, R] values of candidates of all lengths side by side."""
    rng = np.random.default_rng(6)
    refs = [[random_sentence(rng, 5, 1, 20) for _ in range(2)] for _ in range(3)]
    cands = [[edited(rng, row[s % 2], 5, 20) for s in range(600)] for row in refs]
    packed = *Sentences.pack(cands), *Sentences.pack(refs)
    pairs = [
        (cands[b][s], refs[b][r]) for b, s, r in itertools.product(range(3), range(600), range(2))
    ]
    assert_equal(SentenceBLEU()(*packed).flatten(), by_nltk(single(pairs))[3], pairs)
    assert_equal(
        SentenceBLEU(4, "sacrebleu")(*packed).flatten(),
        by_sacrebleu(single(pairs), 4, "exp", False),
        pairs,
    )
    assert_equal(
        SentenceBLEU(4, "mteval")(*packed).flatten(), [by_mteval(*pair, 4) for pair in pairs], pairs
    )
    assert_equal(
        NegativeEditDistance()(*packed).flatten(),
        [-Levenshtein.distance(*pair) for pair in pairs],
        pairs,
    )
