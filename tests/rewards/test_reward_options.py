"""Signatures and bounds of rewards, functions of one's own as rewards, and what rewards refuse."""

import inspect
import itertools
import math
import os

import pytest
import torch

import reward_functions
import softq
from reward_cases import PIECES, REWARDS, TABLE, VOCAB, label, pair, random_batch
from softq import rewards
from softq.errors import DtypeError, LengthError, OutputError, RewardError, ShapeError, SoftqError
from softq.rewards import (
    ChrF,
    FromFunction,
    Matrix,
    MultiReferenceBLEU,
    RougeL,
    SentenceBLEU,
    TokenAccuracy,
    TokenReward,
)
from softq.rewards.base import both_present
from softq.sentences import Sentences

every_reward = pytest.mark.parametrize("reward", REWARDS, ids=label)
CANDIDATES, REFERENCES = [[[0, 1, 2], [3]], [[4, 5]]], [[[0, 1], [2, 3, 4]], [[5]]]


def score(reward, candidates=CANDIDATES, references=REFERENCES):
    return reward(*Sentences.pack(candidates), *Sentences.pack(references))


def test_every_exported_reward_is_tried():
    exported = [
        value for name in rewards.__all__ if inspect.isclass(value := getattr(rewards, name))
    ]
    concrete = {
        cls for cls in exported if issubclass(cls, rewards.Reward) and not inspect.isabstract(cls)
    }
    of_one_batch = {rewards.Precomputed, rewards.Annotators}
    of_numbered_labels = {rewards.SegmentAccuracy, rewards.SpanF1}  # what a number is, counts
    others = of_one_batch | of_numbered_labels  # with tests of their own
    assert concrete == {type(reward) for reward in REWARDS} | others
    assert sorted(rewards.__all__) == rewards.__all__


@every_reward
def test_signature_bound_and_kind(reward):
    assert reward.signature
    assert reward.signature.isascii()
    assert not any(c.isspace() for c in reward.signature)
    assert reward.bound > 0
    assert reward.pairwise == (not isinstance(reward, MultiReferenceBLEU))
    assert type(reward).__name__ in repr(reward)


def test_signatures_tell_all_options_apart():
    switches = [
        {"brevity_penalty": a, "effective_order": b} for a in (True, False) for b in (True, False)
    ]
    rules = ("nltk3", "mteval", "sacrebleu", "none")
    made = [
        cls(order, rule, **options)
        for cls in (SentenceBLEU, MultiReferenceBLEU)
        for order, rule, options in itertools.product((1, 2, 4), rules, switches)
    ]
    made += [
        ChrF(vocab, order=order, beta=beta)
        for vocab in (None, PIECES, PIECES[::-1], PIECES[:-1])
        for order in (4, 6)
        for beta in (1, 2.5)
    ]
    made += [RougeL(beta) for beta in (0.5, 1, 1.2)]
    made += [
        cls(table)
        for cls in (Matrix, TokenReward)
        for table in (TABLE, TABLE.T, TABLE[:3, :3], TABLE + 1e-9)
    ]
    made += [
        FromFunction(reward_functions.shared),
        FromFunction(reward_functions.shared_of_all),
        FromFunction(reward_functions.shared, name="other"),
    ]
    made += [reward for reward in REWARDS if not inspect.signature(type(reward)).parameters]
    assert len({reward.signature for reward in made}) == len(made)


def test_signature_does_not_depend_on_how_an_option_was_written():
    assert RougeL(1).signature == RougeL(1.0).signature
    assert (
        Matrix(torch.eye(2)).signature
        == Matrix(torch.eye(2, dtype=torch.float64)).signature
        == Matrix(torch.eye(2, dtype=torch.int64)).signature
    )
    assert ChrF(["a b", "c"]).signature == ChrF(("ab", "c")).signature


@every_reward
def test_differences_keep_within_the_bound(reward):
    """Of a `PartReward` the bound is that of one part."""
    found = []
    for seed in range(20):
        lengths = {"longest": 1, "ref_longest": 1} if isinstance(reward, rewards.PartReward) else {}
        batch = random_batch(seed, size=20, **lengths)
        there = (batch[1] >= 0).unsqueeze(2) & (batch[3] >= 0).unsqueeze(1)
        values = reward(*batch)
        found += values[there if reward.pairwise else there.any(2)].flatten().tolist()
    assert 0 < max(found) - min(found) <= reward.bound
    if reward.bound == 1.0:
        assert max(found) - min(found) == pytest.approx(1.0)  # and no smaller bound would do


def test_bounds():
    assert rewards.NegativeEditDistance().bound == math.inf
    assert FromFunction(reward_functions.shared).bound == math.inf
    assert FromFunction(reward_functions.shared, bound=2).bound == 2.0
    assert Matrix(torch.tensor([[1.0, -2.0], [0.0, 5.0]])).bound == 7.0


def test_weighted_tokens():
    reward = TokenReward.weighted(torch.tensor([1.0, 3.0]))
    assert pair(reward, [0, 1, 1, 0], [0, 1, 0, 0]) == 5.0


def test_reward_tables_are_copied_out_of_the_graph_and_may_be_whole_numbers():
    table = torch.eye(2, requires_grad=True)
    assert not Matrix(table).table.requires_grad
    assert Matrix(torch.eye(2, dtype=torch.int64)).table.dtype == torch.get_default_dtype()


def test_a_table_for_each_example():
    """Targets by tables of the examples are those of one example after another."""
    generator = torch.Generator().manual_seed(0)
    tables = torch.randn(5, 3, 3, generator=generator, dtype=torch.float64)
    classes = torch.randint(3, (5, 2), generator=generator)
    space = softq.Categorical(torch.zeros(5, 3, dtype=torch.float64))
    for make in (softq.raml, softq.sqdml):
        (found,) = make(space, classes, 0.7, Matrix(tables)).expected_parts(space)
        for row in range(5):
            one = softq.Categorical(torch.zeros(1, 3, dtype=torch.float64))
            target = make(one, classes[row : row + 1], 0.7, Matrix(tables[row]))
            torch.testing.assert_close(found[row], target.expected_parts(one)[0][0])
    assert Matrix(tables).signature != Matrix(tables.flip(0)).signature
    with pytest.raises(ShapeError, match=r"for examples of shape \[4\], the references have"):
        softq.sqdml(space, classes, 0.7, Matrix(tables[:4]))
    with pytest.raises(ShapeError, match="one reward table for all examples"):
        score(Matrix(tables))
    with pytest.raises(ShapeError, match=r"must have shape \[K, K\]"):
        TokenReward(tables)


def test_function_of_token_lists():
    found = score(
        FromFunction(lambda cand, ref: 100 * len(cand) + 10 * len(ref) + len(set(cand) & set(ref)))
    )
    assert found.tolist() == [[[322.0, 331.0], [120.0, 131.0]], [[211.0, 0.0], [0.0, 0.0]]]


@pytest.mark.parametrize("batched", [False, True])
def test_function_of_texts(batched):
    """Decoded by a function, or from the text of each token.

    Each sentence once, not once per pair.
    """
    calls, seen = [], []

    def spell(tokens):
        calls.append(tuple(tokens))
        return reward_functions.spell(tokens)

    def note(cand, ref):
        seen.append((cand, ref))
        return [1.0] * len(cand) if batched else 1.0

    score(FromFunction(note, decode=spell, batched=batched))
    assert len(calls) == len(set(calls))
    want = [("abc", "ab"), ("abc", "cde"), ("d", "ab"), ("d", "cde"), ("ef", "f")]
    assert seen == ([tuple(map(list, zip(*want, strict=True)))] if batched else want)
    seen.clear()
    score(
        FromFunction(note, decode=["zero", "one", "two", "three", "four", "five"], batched=batched)
    )
    assert (seen[0][0][0] if batched else seen[0][0]) == "zero one two"
    assert (seen[0][1][-1] if batched else seen[-1][1]) == "five"


def test_batched_function_gives_the_same():
    batch = random_batch(1)
    one, many = (
        FromFunction(reward_functions.shared),
        FromFunction(reward_functions.shared_of_all, batched=True),
    )
    assert torch.equal(one(*batch), many(*batch))
    assert torch.equal(
        one(*batch),
        FromFunction(lambda a, b: torch.tensor(reward_functions.shared_of_all(a, b)), batched=True)(
            *batch
        ),
    )


@pytest.mark.parametrize("workers", [0, 1])
def test_functions_of_a_pair_and_something_more(workers):
    batch = random_batch(1)
    plain = FromFunction(reward_functions.shared)(*batch)
    with FromFunction(reward_functions.shared_and_more, workers=workers) as reward:
        numbers = [*range(1, len(plain) + 1)]
        there = both_present(Sentences(*batch[:2]), Sentences(*batch[2:]))
        wanted = plain + 100 * torch.tensor(numbers).view(-1, 1, 1) * there
        assert torch.equal(reward.with_values(numbers)(*batch), wanted)
        pools = list(reward._pools)
        assert len(pools) == workers  # no processes of its own for every batch
        assert torch.equal(reward.with_values(numbers)(*batch), wanted)
        assert reward._pools == pools
        with reward.with_values(
            numbers
        ) as other:  # closing one closes all, and each may start them anew
            other(*batch)
        assert torch.equal(reward.with_values(numbers)(*batch), wanted)
        with pytest.raises(RewardError, match=f"a value for each of {len(plain)} examples, got 1"):
            reward.with_values([1])(*batch)


def test_worker_processes_give_the_same_in_the_same_order():
    """More pairs than one job of 1024 for each.

    Closing ends the processes, and a later call starts others.
    """
    cands, lengths = (
        torch.arange(3_000).reshape(3, 1_000, 1),
        torch.ones(3, 1_000, dtype=torch.int64),
    )
    lengths[2, 5:] = -1
    refs, ref_lengths = torch.zeros(3, 1, 1, dtype=torch.int64), torch.ones(3, 1, dtype=torch.int64)
    batch = cands, lengths, refs, ref_lengths
    reward = FromFunction(reward_functions.first_token_and_process, workers=2)
    processes = []
    for _ in range(2):
        with reward:
            found = reward(*batch)[lengths >= 0].long()
            again = reward(*batch)[lengths >= 0].long()
            with pytest.raises(
                RewardError, match="got nan for example 1, candidate 999, reference 0"
            ):
                reward(cands + reward_functions.TOKENS - 2_000, *batch[1:])
        assert torch.equal(found % reward_functions.TOKENS, torch.arange(2_005).unsqueeze(1))
        processes.append(
            set((torch.cat([found, again]) // reward_functions.TOKENS).flatten().tolist())
        )
        for process in processes[-1]:
            with pytest.raises(ProcessLookupError):
                os.kill(process, 0)
    assert 1 <= len(processes[0]) <= 2
    assert not processes[0] & (processes[1] | {os.getpid()})
    reward.close()  # nothing left to end


def nan_at(*places):
    """A function of tokens that fails on the given pairs."""
    return lambda cand, ref: math.nan if (cand, ref) in places else 0.0


@pytest.mark.parametrize(
    ("function", "options", "text"),
    [
        (
            nan_at(([3], [2, 3, 4])),
            {},
            "must return finite numbers, got nan for example 0, candidate 1, reference 1",
        ),
        (
            nan_at(([4, 5], [5])),
            {"name": "mine"},
            (
                "the reward 'callable:mine' must return finite .* got nan for example 1, candidate"
                " 0, reference 0"
            ),
        ),
        (lambda a, b: -math.inf, {}, "got -inf for example 0, candidate 0, reference 0"),
        (
            lambda a, b: [1.0] * (len(a) - 1),
            {"batched": True},
            "one number per pair, got 4 for 5 pairs",
        ),
        (lambda a, b: "good", {}, "must return numbers: could not convert string to float: 'good'"),
        (lambda a, b: None, {}, "must return numbers: .*NoneType"),
        (lambda a, b: [None] * len(a), {"batched": True}, "must return numbers: .*NoneType"),
        (lambda a, b: None, {"batched": True}, "one number per pair|must return numbers"),
        (lambda a, b: 0.5, {"batched": True}, "one number per pair|must return numbers"),
    ],
)
def test_functions_that_return_nonsense(function, options, text):
    with pytest.raises(RewardError, match=text):
        score(FromFunction(function, **options))


@pytest.mark.parametrize("number", [-1, 3])
def test_word_list_that_lacks_a_word(number):
    """A negative number does not count from the end of the list."""
    with pytest.raises(SoftqError, match=str(number)):
        score(
            FromFunction(reward_functions.shared, decode=["a", "b", "c"]), [[[0, number]]], [[[1]]]
        )


def function(*options, **more):
    return lambda: FromFunction(*(options or [reward_functions.shared]), **more)


OTHER_PROCESSES = "goes to other processes.*define it at the top of a module, or use workers=0"
WHOLE, POSITIVE = "must be a whole number from", "beta must be a positive number, got"
RULES = "smoothing must be one of nltk3, mteval, sacrebleu, none, got"


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (function(lambda a, b: 1.0, workers=2), OTHER_PROCESSES),
        (function(decode=lambda tokens: "", workers=1), OTHER_PROCESSES),
        *((function(workers=bad), f"workers {WHOLE} 0, got {bad}") for bad in (-1, 1.5, True)),
        (function("shared"), "must be a function of a candidate and a reference, got str"),
        *((function(bound=b), f"bound must be positive, got {b}") for b in (0.0, -1, math.nan)),
        (lambda: SentenceBLEU(smoothing="nltk4"), f"{RULES} 'nltk4'"),
        (lambda: MultiReferenceBLEU(smoothing=None), f"{RULES} None"),
        (lambda: SentenceBLEU(0), f"max_order {WHOLE} 1, got 0"),
        (lambda: SentenceBLEU(4.0), f"max_order {WHOLE} 1, got 4.0"),
        (lambda: MultiReferenceBLEU(True), f"max_order {WHOLE} 1, got True"),
        (lambda: ChrF(order=0), f"order {WHOLE} 1, got 0"),
        (lambda: ChrF(beta=0), f"{POSITIVE} 0"),
        (lambda: ChrF(beta="2"), f"{POSITIVE} '2'"),
        (lambda: RougeL(-1.0), f"{POSITIVE} -1.0"),
        (lambda: RougeL(math.nan), f"{POSITIVE} nan"),
        (lambda: RougeL(True), f"{POSITIVE} True"),
        (
            lambda: Matrix(torch.tensor([[0.0, math.nan], [0.0, 0.0]])),
            "must be finite; forbid outputs by -inf scores",
        ),
    ],
)
def test_options_that_make_no_reward(make, text):
    with pytest.raises(RewardError, match=text):
        make()


def test_tables_that_make_no_reward():
    with pytest.raises(ShapeError, match=r"shape \[K, K\] \(predicted, right\), got \[2, 3\]"):
        Matrix(torch.zeros(2, 3))
    with pytest.raises(DtypeError, match=r"real numbers, got torch\.bool"):
        Matrix(torch.eye(2, dtype=torch.bool))
    with pytest.raises(DtypeError, match=r"real numbers, got torch\.complex64"):
        TokenReward(torch.eye(2, dtype=torch.complex64))
    with pytest.raises(ShapeError, match=r"weights must have shape \[K\], got \[2, 2\]"):
        TokenReward.weighted(torch.eye(2))
    with pytest.raises(ShapeError, match="for 6 labels, the output space has 4"):
        TokenReward(TABLE).on_parts(torch.zeros(3, 4))


def changed(place, value):
    """A good batch of two examples, with one of its tensors replaced or changed."""
    batch = list(random_batch(2, batch=2, size=3, count=2, longest=4, ref_longest=5))
    batch[place] = value(batch[place]) if callable(value) else value
    return batch


def put(index, number):
    def change(tensor):
        tensor = tensor.clone()
        tensor[index] = number
        return tensor

    return change


GOOD = changed(0, torch.clone)
INTEGERS = r"must be an int64 or int32 tensor, got"
BATCHES = {
    DtypeError: [
        (changed(0, torch.Tensor.float), rf"tokens of candidates {INTEGERS} torch\.float32"),
        (changed(1, torch.Tensor.bool), rf"lengths of candidates {INTEGERS} torch\.bool"),
        (changed(2, torch.Tensor.tolist), f"tokens of references {INTEGERS} list"),
        (changed(3, torch.Tensor.short), rf"lengths of references {INTEGERS} torch\.int16"),
    ],
    ShapeError: [
        (changed(1, lambda x: x[:, :2]), r"candidates must have shape \[2, 3\], got \[2, 2\]"),
        (changed(3, lambda x: x[0]), r"references must have shape \[2, 2\], got \[2\]"),
        (
            [*GOOD[:2], *(torch.zeros(size, dtype=torch.int64) for size in ((3, 2, 5), (3, 2)))],
            r"\[B, S, L\] and \[B, R, M\] with one B, got \[2, 3, 4\] and \[3, 2, 5\]",
        ),
        ([x[0] for x in GOOD], r"with one B, got \[3, 4\] and \[2, 5\]"),
    ],
    LengthError: [
        (changed(1, put((1, 2), 5)), r"candidates .* 0\.\.4 or be -1, got 5 at index \(1, 2\)"),
        (changed(3, put((0, 1), -2)), r"references .* 0\.\.5 or be -1, got -2 at index \(0, 1\)"),
    ],
    OutputError: [
        (
            [*GOOD[:2], *Sentences.pack([[[0, 1], [2]], [[3], [0, -4, 1]]])],
            "references must not be negative, got -4 at example 1, sentence 1, position 1",
        )
    ],
}


@every_reward
@pytest.mark.parametrize(
    ("error", "batch", "text"),
    [(error, *case) for error, cases in BATCHES.items() for case in cases],
)
def test_batches_that_do_not_fit(reward, error, batch, text):
    with pytest.raises(error, match=text):
        reward(*batch)
    if hasattr(reward, "statistics"):
        with pytest.raises(error, match=text):
            reward.statistics(*batch)


def test_single_numbers_are_no_batch():
    with pytest.raises(ShapeError, match="shape"):
        SentenceBLEU()(torch.tensor(5), torch.tensor(1), torch.tensor(5), torch.tensor(1))


@pytest.mark.parametrize(
    ("reward", "candidates", "references", "text"),
    [
        (
            ChrF(PIECES),
            [[[0, 1], [2, 3, 6]]],
            [[[0]]],
            "candidates must lie in 0..5, got 6 at example 0, sentence 1, position 2",
        ),
        (
            ChrF(PIECES),
            [[[-1, 1]]],
            [[[0]]],
            "candidates must lie in 0..5, got -1 at example 0, sentence 0, position 0",
        ),
        (
            ChrF(PIECES),
            [[[0]], [[0]]],
            [[[0]], [[9]]],
            "references must lie in 0..5, got 9 at example 1, sentence 0, position 0",
        ),
        (
            TokenReward(TABLE),
            [[[0, 1], [2, VOCAB]]],
            [[[1, 2]]],
            f"0..5, got {VOCAB} predicted and 2 right at example 0, candidate 1, reference 0, "
            "position 1",
        ),
        (
            Matrix(TABLE),
            [[[0]], [[1]]],
            [[[0]], [[0], [7]]],
            "0..5, got 1 predicted and 7 right at example 1, candidate 0, reference 1, position 0",
        ),
    ],
)
def test_numbers_outside_a_vocabulary_or_table(reward, candidates, references, text):
    with pytest.raises(OutputError, match=text):
        score(reward, candidates, references)


def test_token_accuracy_has_no_table_and_no_limit():
    assert score(TokenAccuracy(), [[[0, 10**12]]], [[[0, 10**12]]]).item() == 2.0
