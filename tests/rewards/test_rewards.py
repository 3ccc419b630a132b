"""Rewards in batches: padding, missing sentences, threads; BLEU's rules and statistics.

Sums over parts.

That the values are those of other packages is tested in test_reward_peers.py.
"""

import itertools
import math
from collections import Counter

import pytest
import torch
from torch.testing import assert_close

import softq
from reward_cases import REWARDS, RULES, TABLE, VOCAB, fill, label, pair, random_batch
from scale import COMPILED
from softq.errors import SoftqError
from softq.rewards import (
    Attachment,
    ChrF,
    ExactMatch,
    Matrix,
    MultiReferenceBLEU,
    NegativeEditDistance,
    NegativeHamming,
    PartReward,
    RougeL,
    SentenceBLEU,
    TokenAccuracy,
    TokenReward,
)

every_reward = pytest.mark.parametrize("reward", REWARDS, ids=label)
part_rewards = pytest.mark.parametrize(
    "reward", [r for r in REWARDS if isinstance(r, PartReward)], ids=label
)
of_any_number = [
    r
    for r in REWARDS
    if not isinstance(r, (Matrix, TokenReward)) and getattr(r, "vocab_size", None) is None
]


@every_reward
def test_a_batch_is_a_loop_over_pairs_and_missing_sentences_earn_nothing(reward):
    for seed, options in enumerate(
        [{}, {"longest": 4, "ref_longest": 7}, {"longest": 80, "ref_longest": 70}]
    ):
        cands, lengths, refs, ref_lengths = random_batch(seed, **options)
        found = reward(cands, lengths, refs, ref_lengths)
        assert found.dtype == torch.float64
        assert found.shape == (*lengths.shape, ref_lengths.shape[1] if reward.pairwise else 1)
        for b, s in itertools.product(*map(range, lengths.shape)):
            cand = None if lengths[b, s] < 0 else cands[b, s, : lengths[b, s]].tolist()
            group = [
                None if n < 0 else row[:n].tolist()
                for row, n in zip(refs[b], ref_lengths[b], strict=True)
            ]
            if not reward.pairwise:
                there = [ref for ref in group if ref is not None]
                want = pair(reward, cand, *there) if cand is not None and there else 0.0
                assert found[b, s, 0].item() == pytest.approx(want, abs=1e-12)
                continue
            for r, ref in enumerate(group):
                want = 0.0 if cand is None or ref is None else pair(reward, cand, ref)
                assert found[b, s, r].item() == pytest.approx(want, abs=1e-12)


@every_reward
def test_what_stands_behind_the_lengths_does_not_matter(reward):
    batch = random_batch(3)
    want = reward(*batch)
    generator = torch.Generator().manual_seed(4)
    junk = torch.tensor(
        [-1, -7, 5, 10**6, 2**62, torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max]
    )
    for _ in range(5):
        cands, refs = (
            fill(x, n, junk[torch.randint(7, x.shape, generator=generator)])
            for x, n in (batch[:2], batch[2:])
        )
        assert_close(reward(cands, batch[1], refs, batch[3]), want, atol=1e-14, rtol=0)


@every_reward
def test_references_without_a_word_and_anything_behind_it(reward):
    cands, lengths, refs, ref_lengths = random_batch(3)
    ref_lengths = ref_lengths.clamp(max=0)
    want = reward(cands, lengths, torch.zeros_like(refs), ref_lengths)
    for behind in (
        -1,
        -2,
        -3,
        -9,
        2**20,
        2**62,
        torch.iinfo(torch.int64).min,
        torch.iinfo(torch.int64).max,
    ):
        assert torch.equal(reward(cands, lengths, torch.full_like(refs, behind), ref_lengths), want)


@pytest.mark.parametrize("reward", of_any_number, ids=label)
def test_how_words_are_numbered_does_not_matter(reward):
    """A table with one entry per number serves up to 2^20 of them, a hash table beyond."""
    for seed, options in enumerate(
        [{}, {"longest": 70, "ref_longest": 64}, {"longest": 70, "ref_longest": 65}]
    ):
        cands, lengths, refs, ref_lengths = random_batch(
            seed, size=11 if COMPILED else 2, **options
        )
        want = reward(cands, lengths, refs, ref_lengths)
        for largest in (
            VOCAB,
            2**20 - 3,
            2**20 - 2,
            2**20 - 1,
            2**20,
            2**31 - 1,
            2**32,
            2**62,
            2**63 - 1,
        ):
            shift = largest - VOCAB + 1
            found = reward(cands + shift, lengths, refs + shift, ref_lengths)
            assert_close(found, want, atol=1e-14, rtol=0)
        scattered = torch.tensor([2**40, 0, 7, 2**20 - 1, 2**63 - 1, 1])
        assert_close(
            reward(scattered[cands], lengths, scattered[refs], ref_lengths),
            want,
            atol=1e-14,
            rtol=0,
        )
        foreign = torch.where(cands == 1, 10**9, cands)  # larger than any word of a reference
        other = torch.where(cands == 1, VOCAB, cands)
        found, want = (reward(c, lengths, refs, ref_lengths) for c in (foreign, other))
        assert_close(found, want, atol=1e-14, rtol=0)


@every_reward
def test_wider_tensors_change_nothing(reward):
    """References of more than 64 places go another way through the kernels."""
    pad = torch.nn.functional.pad
    for width in (8, 63, 64, 65, 128, 129):
        cands, lengths, refs, ref_lengths = random_batch(5, longest=width + 1, ref_longest=width)
        lengths[:, 1:] = lengths[:, 1:].clamp(min=width - 3)
        want = reward(cands, lengths, refs, ref_lengths)
        for more in (1, 64, 200):
            assert_close(
                reward(cands, lengths, pad(refs, (0, more), value=3), ref_lengths),
                want,
                atol=1e-12,
                rtol=0,
            )
            assert_close(
                reward(pad(cands, (0, more), value=3), lengths, refs, ref_lengths),
                want,
                atol=1e-12,
                rtol=0,
            )


@every_reward
def test_types_and_memory_layout_change_nothing_and_inputs_stay(reward):
    batch = random_batch(6)
    want = reward(*batch)
    before = [x.clone() for x in batch]
    for dtypes in itertools.product((torch.int32, torch.int64), repeat=4):
        # but for the last digit: each type has its own compiled code, in which sums may be taken in
        # another order
        assert_close(
            reward(*(x.to(dtype) for x, dtype in zip(batch, dtypes, strict=True))),
            want,
            rtol=0,
            atol=1e-15,
        )
    turned = [x.transpose(0, -1).contiguous().transpose(0, -1) for x in batch]
    assert not turned[0].is_contiguous()
    assert torch.equal(reward(*turned), want)
    assert all(torch.equal(x, y) for x, y in zip(batch, before, strict=True))


@every_reward
def test_more_than_256_candidates_equal_a_loop(reward):
    """An example with many candidates is split in shares, and some candidates go together."""
    generator = torch.Generator().manual_seed(7)
    many = 600 if COMPILED else 300
    cands, lengths = (
        torch.randint(VOCAB, (2, many, 5), generator=generator),
        torch.randint(-1, 6, (2, many), generator=generator),
    )
    refs, ref_lengths = (
        torch.randint(VOCAB, (2, 2, 5), generator=generator),
        torch.tensor([[5, 4], [3, -1]]),
    )
    one_by_one = [
        reward(cands[:, s : s + 1], lengths[:, s : s + 1], refs, ref_lengths) for s in range(many)
    ]
    assert torch.equal(reward(cands, lengths, refs, ref_lengths), torch.cat(one_by_one, 1))
    for few in (1, 2, 7, 8, 9, 17, 257):
        assert torch.equal(
            reward(cands[:, :few], lengths[:, :few], refs, ref_lengths),
            torch.cat(one_by_one[:few], 1),
        )


@pytest.mark.parametrize("reward", REWARDS[:-1], ids=label)
def test_work_shared_between_threads_gives_the_same_rewards(reward):
    """Large enough for two threads; with one example, candidates are what they share."""
    threads = torch.get_num_threads()
    try:
        for batch, size in ((30, 40), (1, 1_500)):
            sentences = random_batch(8, batch=batch, size=size, longest=30, ref_longest=70)
            results = []
            for count in (1, 2):
                torch.set_num_threads(count)
                results.append(reward(*sentences))
            assert torch.equal(*results)
            assert results[0].unique().numel() > 1 or isinstance(reward, ExactMatch)
    finally:
        torch.set_num_threads(threads)


def empty_batch(batch=2, size=2, count=2, longest=3, ref_longest=3):
    def zeros(*shape):
        return torch.zeros(shape, dtype=torch.int64)

    return (
        zeros(batch, size, longest),
        zeros(batch, size),
        zeros(batch, count, ref_longest),
        zeros(batch, count),
    )


@every_reward
@pytest.mark.parametrize("empty", ["batch", "size", "count"])
def test_no_examples_candidates_or_references(reward, empty):
    found = reward(*empty_batch(**{empty: 0}))
    count = 1 if not reward.pairwise else 0 if empty == "count" else 2
    assert found.shape == (0 if empty == "batch" else 2, 0 if empty == "size" else 2, count)
    assert not found.any()


@every_reward
def test_tensors_without_a_single_place(reward):
    """As they come of packing empty sentences."""
    want = reward(*empty_batch())
    for longest, ref_longest in ((0, 3), (3, 0), (0, 0)):
        assert torch.equal(reward(*empty_batch(longest=longest, ref_longest=ref_longest)), want)


@pytest.mark.parametrize("reward", of_any_number, ids=label)
def test_negative_numbers_in_candidates_match_nothing(reward):
    cands, lengths, refs, ref_lengths = random_batch(9)
    strange = torch.where(cands == 2, -1, torch.where(cands == 3, -(2**63), cands))
    foreign = torch.where(cands == 2, 10**9, torch.where(cands == 3, 10**9 + 1, cands))
    assert torch.equal(
        reward(strange, lengths, refs, ref_lengths), reward(foreign, lengths, refs, ref_lengths)
    )


def test_large_numbers_stay_different_when_types_differ():
    """A reference beyond 32 bits is not the candidate word that shares its lower bits."""
    cands, lengths = torch.tensor([[[5, 6]]], dtype=torch.int32), torch.tensor([[2]])
    refs = torch.tensor([[[2**32 + 5, 2**32 + 6]]])
    for reward in (
        SentenceBLEU(2),
        MultiReferenceBLEU(2),
        ChrF(),
        RougeL(),
        TokenAccuracy(),
        ExactMatch(),
    ):
        assert reward(cands, lengths, refs, lengths).item() == 0.0
    assert NegativeEditDistance()(cands, lengths, refs, lengths).item() == -2.0


def test_known_values_of_a_perfect_sentence_of_three_words():
    """Where the smoothing rules part."""
    perfect = [1, 2, 3], [1, 2, 3]
    assert pair(SentenceBLEU(), *perfect) == pytest.approx(0.841, abs=5e-4)
    assert pair(SentenceBLEU(), *perfect) == pytest.approx(0.5**0.25, abs=1e-15)
    assert pair(SentenceBLEU(smoothing="mteval"), *perfect) == 1.0
    assert pair(SentenceBLEU(smoothing="sacrebleu"), *perfect) == 0.0
    assert pair(SentenceBLEU(smoothing="none"), *perfect) == 0.0
    for rule in RULES:
        assert pair(SentenceBLEU(smoothing=rule, effective_order=True), *perfect) == 1.0
        assert pair(SentenceBLEU(smoothing=rule), [1, 2, 3, 4], [1, 2, 3, 4]) == 1.0


def test_rules_when_no_word_matches():
    """mteval smooths even then, the others give 0."""
    cand, ref = [1, 2, 3, 4], [5, 6, 7, 8]
    assert pair(SentenceBLEU(smoothing="mteval"), cand, ref) == pytest.approx(
        (1 / (2 * 4) / (4 * 3) / (8 * 2) / (16 * 1)) ** 0.25
    )
    for rule in ("nltk3", "sacrebleu", "none"):
        assert pair(SentenceBLEU(smoothing=rule), cand, ref) == 0.0
    for rule in RULES:
        assert pair(SentenceBLEU(smoothing=rule), [], ref) == 0.0


@pytest.mark.parametrize("cls", [SentenceBLEU, MultiReferenceBLEU])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("effective", [False, True])
def test_brevity_penalty_is_a_factor(cls, rule, effective):
    cands, lengths, refs, ref_lengths = random_batch(10, count=1, size=40)
    with_it, without = (
        cls(4, rule, brevity_penalty=on, effective_order=effective)(
            cands, lengths, refs, ref_lengths
        )
        for on in (True, False)
    )
    penalty = (
        (1 - ref_lengths.double().unsqueeze(1) / lengths.clamp(min=1).unsqueeze(2))
        .clamp(max=0)
        .exp()
    )
    assert_close(with_it, without * penalty, atol=1e-13, rtol=1e-13)
    assert (with_it < without).any()


def clipped(cand, refs, n):
    """Matches of order n, an n-gram counted up to the most often a reference has it."""
    have, *want = (
        Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
        for words in (cand, *refs)
    )
    return sum(min(count, max(w[gram] for w in want)) for gram, count in have.items())


@pytest.mark.parametrize("order", [3, 4])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("cls", [SentenceBLEU, MultiReferenceBLEU])
def test_statistics_are_counts_and_give_the_reward(cls, rule, order):
    reward = cls(order, rule)
    batch = cands, lengths, refs, ref_lengths = random_batch(11, longest=12, vocab=3)
    found = reward.statistics(*batch)
    assert found.matches.dtype == torch.int32
    assert_close(reward.from_statistics(found), reward(*batch), atol=1e-14, rtol=0)
    groups = (
        [[[r] for r in range(3)]] * 4
        if reward.pairwise
        else [[[r for r in range(3) if n[r] >= 0]] for n in ref_lengths]
    )
    for b, s in itertools.product(range(4), range(5)):
        for i, group in enumerate(groups[b]):
            there = bool(group) and lengths[b, s] >= 0 and bool((ref_lengths[b, group] >= 0).all())
            cand, plain = (
                cands[b, s, : lengths[b, s]].tolist(),
                [refs[b, r, : ref_lengths[b, r]].tolist() for r in group],
            )
            want = [clipped(cand, plain, n) if there else 0 for n in range(1, reward.max_order + 1)]
            assert found.matches[b, s, i].tolist() == want
            assert found.lengths[b, s, i] == lengths[b, s]
            if there:
                assert found.ref_lengths[b, s, i] == min(
                    map(len, plain), key=lambda n: (abs(n - len(cand)), n)
                )


def test_statistics_of_another_order_are_refused():
    statistics = SentenceBLEU(4).statistics(*random_batch(12))
    for order in (2, 3, 5):
        with pytest.raises(SoftqError, match=f"(?s){order}.*4"):
            SentenceBLEU(order).from_statistics(statistics)


PLAIN = {
    ExactMatch: lambda a, b: float(a == b),
    TokenAccuracy: lambda a, b: float(sum(x == y for x, y in zip(a, b, strict=False))),
    Attachment: lambda a, b: float(sum(x == y for x, y in zip(a, b, strict=False))),
    NegativeHamming: lambda a, b: float(
        sum(x == y for x, y in zip(a, b, strict=False)) - max(len(a), len(b))
    ),
    Matrix: lambda a, b: math.fsum(TABLE[x, y].item() for x, y in zip(a, b, strict=False)),
    TokenReward: lambda a, b: math.fsum(TABLE[x, y].item() for x, y in zip(a, b, strict=False)),
}


@part_rewards
def test_part_rewards_against_plain_python(reward):
    batch = (
        random_batch(14, longest=1, ref_longest=1)
        if isinstance(reward, Matrix)
        else random_batch(14)
    )
    found = reward(*batch)
    cands, lengths, refs, ref_lengths = (x.tolist() for x in batch)
    for b, s, r in itertools.product(*map(range, found.shape)):
        n, m = lengths[b][s], ref_lengths[b][r]
        want = PLAIN[type(reward)](cands[b][s][:n], refs[b][r][:m]) if n >= 0 and m >= 0 else 0.0
        assert found[b, s, r].item() == pytest.approx(want, abs=1e-12)


@part_rewards
def test_rewards_of_the_parts_add_up_to_the_reward(reward):
    """r(y, y*) = Σ over the parts of y of on_parts(indicator(y*)), padding included."""
    generator = torch.Generator().manual_seed(15)
    lengths = torch.tensor([5, 3, 1])
    scores = {"classes": (3, VOCAB), "labels": (3, 5, VOCAB), "arcs": (3, 6, 6)}[reward.parts]
    make = {
        "classes": lambda s, _: softq.Categorical(s),
        "labels": softq.Independent,
        "arcs": softq.SpanningTree,
    }[reward.parts]
    space = make(torch.randn(scores, generator=generator, dtype=torch.float64), lengths)
    drawn, refs = (space.sample((20,), generator=generator) for _ in range(2))  # [20, 3, ...]
    indicator = space.indicator(refs)
    parts = reward.on_parts(indicator)
    assert_close(
        reward.on_parts(indicator * 2.5 + space.indicator(drawn)),
        parts * 2.5 + reward.on_parts(space.indicator(drawn)),
    )
    want = (space.indicator(drawn) * parts).flatten(2).sum(-1)
    if reward.parts == "classes":
        drawn, refs, lengths = (
            drawn.unsqueeze(-1),
            refs.unsqueeze(-1),
            torch.ones(3, dtype=torch.int64),
        )
    found = reward(
        drawn.transpose(0, 1),
        lengths.unsqueeze(1).expand(3, 20),
        refs.transpose(0, 1),
        lengths.unsqueeze(1).expand(3, 20),
    )
    assert_close(found.diagonal(dim1=1, dim2=2).T, want, atol=1e-12, rtol=0)
    assert want.unique().numel() > 1


@pytest.mark.parametrize("objective", [softq.raml, softq.sqdml])
@pytest.mark.parametrize("kind", ["chain", "forbidding chain", "independent"])
def test_negative_hamming_has_the_targets_of_token_accuracy(objective, kind):
    """They differ by the length, a constant."""
    generator = torch.Generator().manual_seed(16)
    emissions = torch.randn(3, 5, 4, generator=generator, dtype=torch.float64)
    transitions = torch.randn(4, 4, generator=generator, dtype=torch.float64)
    if kind == "forbidding chain":
        transitions[1, 2] = -math.inf
    lengths = torch.tensor([5, 3, 1])
    p = (
        softq.Independent(emissions, lengths)
        if kind == "independent"
        else softq.Chain(emissions, transitions, lengths)
    )
    refs = p.sample((2,), generator=generator).movedim(0, 1)
    refs[1, :, 3:] = -9  # padding may hold anything
    accuracy, hamming = (
        objective(p, refs, 0.4, reward) for reward in (TokenAccuracy(), NegativeHamming())
    )
    assert "negative-hamming" in hamming.signature
    outputs = p.sample((50,), generator=generator)
    assert_close(hamming.log_prob(outputs), accuracy.log_prob(outputs), atol=1e-12, rtol=1e-12)
    assert_close(
        softq.cross_entropy(hamming, p), softq.cross_entropy(accuracy, p), atol=1e-12, rtol=1e-12
    )
    assert_close(hamming.component_entropy(), accuracy.component_entropy(), atol=1e-12, rtol=1e-12)
