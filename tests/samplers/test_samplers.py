"""Samplers against enumeration.

What they draw (chi-square) and the log-probabilities they report (exactly).
"""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

import oracle
from scale import draws
from softq import Candidates, Sentences
from softq.decode import sampling
from softq.errors import IntractableError, OutputError, SamplerError, ScoreError, ShapeError
from softq.kernels.text.stratified import edit_law
from softq.samplers import EditStratified, FromModel, HammingStratified, NgramReplacement

# of each chi-square test failing although all is well; some thirty of them: one run in 30,000
CHANCE = 1e-6


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def drawn(cands, start=0):
    """Sentences of a candidate set from column ``start`` on, with their log-proposals."""
    out = []
    for rows, lengths, values in zip(
        cands.tokens.tolist(), cands.lengths.tolist(), cands.log_proposal.tolist(), strict=True
    ):
        kept = list(zip(rows, lengths, values, strict=True))[start:]
        out += [(tuple(row[:length]), value) for row, length, value in kept if length >= 0]
    return out


def assert_frequencies(counts, law):
    """Counts come from the law, by chi-square over cells of at least five expected draws."""
    n = counts.total()
    big = [y for y in law if law[y] * n >= 5]
    observed, expected = [counts[y] for y in big], [law[y] * n for y in big]
    if 1.0 - sum(law[y] for y in big) > 1e-9:
        observed, expected = [*observed, n - sum(observed)], [*expected, n - sum(expected)]
    assert len(observed) > 1
    assert chisquare(observed, np.array(expected) * (sum(observed) / sum(expected))).pvalue > CHANCE


def assert_follows(samples, law):
    """Samples come from the law, and report its log-probabilities."""
    for y, value in set(samples):
        assert y in law, f"{y} is not in the space"
        assert value == pytest.approx(math.log(law[y]), abs=1e-9)
    assert_frequencies(Counter(y for y, _ in samples), law)


def independent_words(weights):
    """The law of n-grams whose words 0, 1, … are drawn one by one with these weights."""
    weights = [float(weight) for weight in weights]

    def law(n):
        grams = itertools.product(range(len(weights)), repeat=n)
        return {gram: math.prod(weights[w] for w in gram) / sum(weights) ** n for gram in grams}

    return law


UNIFORM_REFS = {
    "one": [(0, 1, 2, 1)],
    "three_of_two_lengths": [(0, 1, 2), (0, 2, 2), (1, 0)],
    "the_same_twice": [(0, 1, 2), (0, 1, 2), (0, 1, 1)],
    "one_word": [(1,)],
    "specials": [(3, 0, 1), (0, 3, 1)],
    "one_with_a_special": [(0, 3, 1, 2)],
}


@pytest.mark.parametrize("refs", UNIFORM_REFS.values(), ids=UNIFORM_REFS)
@pytest.mark.parametrize("keep_last", [False, True])
@pytest.mark.parametrize("kind", ["uniform", "frequencies", "corpus"])
def test_ngram_replacement_follows_its_law(refs, keep_last, kind):
    # the last word is special and never written
    weights = torch.tensor([0.6, 0.1, 0.3, 5.0], dtype=torch.float64)
    corpus = [(0, 1, 0, 0), (2, 1), (3, 0, 1, 2), (1, 0)]
    law = independent_words(weights[:3] if kind == "frequencies" else [1, 1, 1])
    options = {"frequencies": weights} if kind == "frequencies" else {}
    if kind == "corpus":
        options = {"corpus": [list(y) for y in corpus]}

        def law(n):
            grams = Counter(
                y[i : i + n] for y in corpus for i in range(len(y) - n + 1) if 3 not in y[i : i + n]
            )
            return {g: c / grams.total() for g, c in grams.items()}

    expected = oracle.ngram_replacement(refs, 3, law, keep_last=keep_last)
    distinct = len(set(refs))
    sampler = NgramReplacement(
        4, max_n=3, size=len(refs) + 1, specials=[3], keep_last=keep_last, **options
    )
    if not expected:
        assert sampler([[list(y) for y in refs]], generator=gen()).present.sum() == distinct
        return
    if len(expected) == 1:
        pytest.skip("one possible candidate has no distribution to test")
    cands = sampler([[list(y) for y in refs]] * draws(20_000), generator=gen(1))
    # One draw per set follows the law; a second one, where references repeat, is without
    # replacement.
    assert bool((cands.fixed == distinct).all())
    first = Candidates(
        cands.tokens[:, : distinct + 1],
        cands.lengths[:, : distinct + 1],
        cands.log_proposal[:, : distinct + 1],
    )
    assert_follows(drawn(first, distinct), expected)
    assert sampler.enumerate([list(y) for y in refs]) == pytest.approx(expected)


def test_ngram_replacement_draws_without_replacement():
    """Two draws in a row have the law P(a) P(b) / (1 - P(a))."""
    weights = torch.tensor([0.9, 0.09, 0.01], dtype=torch.float64)
    one = oracle.ngram_replacement([(0, 1)], 2, independent_words(weights))
    pairs = {(a, b): one[a] * one[b] / (1 - one[a]) for a in one for b in one if a != b}
    sampler = NgramReplacement(3, max_n=2, size=3, frequencies=weights)
    cands = sampler([[0, 1]] * draws(20_000), generator=gen(2))
    seen = Counter((tuple(rows[1]), tuple(rows[2])) for rows in cands.tokens.tolist())
    assert_frequencies(seen, pairs)


@pytest.mark.parametrize("size", [30, 500])
def test_small_spaces_are_exhausted(size):
    refs = [(0, 1, 2), (1, 1)]
    space = oracle.ngram_replacement(refs, 2, independent_words([1, 1, 1]))
    cands = NgramReplacement(3, max_n=2, size=size)([[list(y) for y in refs]] * 3, generator=gen())
    for rows in cands.sentences.unpack():
        found = [tuple(y) for y in rows[2:]]
        assert len(found) == len(set(found)) == min(size - 2, len(space))
        assert set(found) <= set(space)
    assert cands.present.sum(1).tolist() == [min(size, 2 + len(space))] * 3
    assert cands.draws.tolist() == [min(size - 2, len(space))] * 3


def test_a_vocabulary_of_one_word():
    """Another n-gram cannot be had where only that word stands.

    Where another word stands it can.
    """
    cands = NgramReplacement(5, size=4, specials=[1, 2, 3, 4])([[0, 0], [0, 4]], generator=gen())
    assert cands.present.sum(1).tolist() == [1, 2]
    assert cands.tokens[1, 1].tolist() == [0, 0]
    assert cands.log_proposal[1, 1] == 0.0


def test_a_space_that_chance_does_not_find_is_listed_by_its_law():
    """Where another word comes up once in millions of draws, the whole space is listed and drawn from by its probabilities."""
    weights = torch.tensor([1.0, 3e-7, 1e-7], dtype=torch.float64)
    law = oracle.ngram_replacement([(0, 0)], 1, independent_words(weights))
    assert sorted(law.values())[-1] > 2 * sorted(law.values())[0]
    cands = NgramReplacement(3, max_n=1, size=2, frequencies=weights / weights.sum())(
        [[0, 0]] * draws(1000), generator=gen(3)
    )
    assert_follows(drawn(cands, 1), law)


def test_the_rest_of_a_set_comes_from_the_list():
    """A likely candidate is found by chance, the unlikely ones behind it by their law."""
    weights = torch.tensor([0.5, 0.5, 3e-7, 1e-7], dtype=torch.float64)
    cands = NgramReplacement(4, max_n=1, size=3, frequencies=weights)(
        [[0]] * draws(1000), generator=gen(4)
    )
    assert cands.tokens[:, 1].eq(1).all()
    last = Counter(cands.tokens[:, 2, 0].tolist())
    count = draws(1000)
    assert chisquare([last[2], last[3]], [0.75 * count, 0.25 * count]).pvalue > CHANCE


def test_a_large_space_of_very_uneven_words_is_refused():
    weights = torch.full((20_000,), 1e-9, dtype=torch.float64)
    weights[0] = 1.0
    text = r"found only 1 of 100 candidates for example 0.*too uneven"
    with pytest.raises(SamplerError, match=text):
        NgramReplacement(20_000, frequencies=weights)([[0] * 10], generator=gen())


@pytest.mark.parametrize(
    ("vocab", "size", "ref", "rare"), [(500, 500, [7], None), (4, 7, [0, 0], [1.0, *[1e-9] * 3])]
)
def test_sets_are_filled_however_seldom_chance_finds_the_rest(vocab, size, ref, rare):
    """Every other word of a large vocabulary once; words that hardly ever come up."""
    weights = None if rare is None else torch.tensor(rare, dtype=torch.float64)
    max_n = 4 if rare is None else 1
    cands = NgramReplacement(vocab, max_n, size, frequencies=weights)([ref] * 3, generator=gen())
    assert cands.present.all()
    assert not cands.repeats().any()


def test_ngram_candidates_at_scale():
    """References in front, one window changed, nothing twice, same for any number of threads, either integer type."""
    g, count = gen(3), draws(300) // 3
    lengths = torch.randint(1, 12, (count, 3), generator=g)
    lengths[::4, 2] = -1
    tokens = torch.randint(10, 500, (count, 3, 11), generator=g)
    refs = Sentences(tokens, lengths)
    sampler = NgramReplacement(500, max_n=4, size=40, specials=range(10), pad=7)
    cands = sampler(refs, generator=gen(4))
    assert cands.present.all()
    assert not cands.repeats().any()
    assert cands.tokens[~cands.token_mask].eq(7).all()
    for b, rows in enumerate(refs.unpack()):
        made = [
            row[:length]
            for row, length in zip(cands.tokens[b].tolist(), cands.lengths[b].tolist(), strict=True)
        ]
        distinct = [y for i, y in enumerate(rows) if y not in rows[:i]]
        assert made[: len(distinct)] == distinct
        for y in made[len(distinct) :]:
            assert min(y) >= 10
            spans = [
                [t for t in range(len(y)) if y[t] != ref[t]] for ref in rows if len(ref) == len(y)
            ]
            assert any(span and span[-1] - span[0] < 4 for span in spans)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        alone = sampler(refs, generator=gen(4))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(alone.tokens, cands.tokens)
    small = sampler(Sentences(tokens.int(), lengths), generator=gen(4))
    assert small.tokens.dtype == torch.int32
    assert torch.equal(small.tokens.long(), cands.tokens)
    assert torch.equal(refs.tokens, tokens)


@pytest.mark.parametrize(
    "refs", [[(0, 1, 2, 1)], [(0, 1, 2), (2, 1, 2), (1, 0)], [(3, 0, 1), (0, 3, 1)], [(1,)]]
)
@pytest.mark.parametrize("keep_last", [False, True])
def test_hamming_follows_its_law(refs, keep_last):
    words, tau = [0, 1, 2], 0.9
    laws = []
    for ref in refs:
        free = len(ref) - keep_last
        options = [[*words, *([ref[t]] if ref[t] not in words else [])] for t in range(free)]
        space = [(*y, *ref[free:]) for y in itertools.product(*options)]
        laws.append(oracle.normalised({y: math.exp(-oracle.hamming(y, ref) / tau) for y in space}))
    expected = oracle.mixture(laws)
    sampler = HammingStratified(4, tau, size=100, specials=[3], keep_last=keep_last)
    cands = sampler([[list(y) for y in refs]] * draws(200), generator=gen(5))
    if len(expected) == 1:
        assert {y for y, _ in drawn(cands)} == set(expected)
    else:
        assert_follows(drawn(cands), expected)


@pytest.mark.parametrize(
    "make",
    [
        NgramReplacement,
        lambda vocab, size: HammingStratified(vocab, 0.5, size),
        lambda vocab, size: EditStratified(vocab, 0.5, size),
    ],
)
def test_it_does_not_matter_which_reference_is_missing(make):
    tokens, lengths = (
        torch.randint(50, (6, 3, 8), generator=gen()),
        torch.tensor([[8, -1, 5]]).expand(6, 3),
    )
    order = torch.tensor([0, 2, 1])
    between, last = (
        make(50, size=20)(Sentences(tokens[:, o], lengths[:, o]), generator=gen(1))
        for o in (torch.arange(3), order)
    )
    assert torch.equal(between.tokens, last.tokens)
    assert torch.equal(between.log_proposal, last.log_proposal)


def test_references_with_nothing_to_replace_are_kept_and_never_drawn():
    refs, sampler = [[1], [2, 3, 4], [5]], NgramReplacement(6, max_n=2, size=20, keep_last=True)
    cands, space = sampler([refs], generator=gen()), sampler.enumerate(refs)
    assert cands.sentences.unpack()[0][:3] == refs
    for y, value in drawn(cands, 3):
        assert value == pytest.approx(math.log(space[y]))


def test_hamming_counts_and_rescaling():
    """DESIGN: V = 22,821, L = 20, τ = 0.85 changes 19.997 words of 20.

    The footnote's rescaling about one.
    """
    ref = torch.arange(20).unsqueeze(0)
    for rescale, expected in ((False, 19.997), (True, None)):
        sampler = HammingStratified(22821, tau=0.85, size=draws(40_000), rescale=rescale)
        p = 1.0 / (1.0 + math.exp(1.0 / sampler.temperature) / 22820)
        cands = sampler(ref, generator=gen(6))
        changed = (cands.tokens != ref).sum(-1).double().mean()
        assert float(changed) == pytest.approx(
            20 * p, abs=5 * math.sqrt(20 * p * (1 - p) / draws(40_000))
        )
        if expected is not None:
            assert 20 * p == pytest.approx(expected, abs=5e-4)
        else:
            assert 0.5 < 20 * p < 1.5


@pytest.mark.parametrize("refs", [[(0, 1, 0)], [(0, 1), (1, 1, 0)], [(0, 3, 1)], [(1,), ()]])
@pytest.mark.parametrize("keep_last", [False, True])
def test_edits_follow_their_law(refs, keep_last):
    words, tau = [0, 1, 2], 0.8
    laws = []
    for ref in refs:
        free = max(0, len(ref) - keep_last)
        made = oracle.edit_law(ref[:free], words, tau, 2)
        laws.append({(*y, *ref[free:]): p for y, p in made.items()})
    expected = oracle.mixture(laws)
    sampler = EditStratified(4, tau, size=100, specials=[3], keep_last=keep_last, max_edits=2)
    if len(expected) > 1:
        cands = sampler([[list(y) for y in refs]] * draws(300), generator=gen(7))
        assert_follows(drawn(cands), expected)


def test_edits_of_which_more_never_come():
    """Where the law is cut because no draw would reach further, log-proposals come from a recursion that does not count edits."""
    g, count = gen(12), draws(200) // 4
    refs = Sentences(
        torch.randint(50, (count, 2, 20), generator=g),
        torch.randint(14, 21, (count, 2), generator=g),
    )
    refs.tokens[:, 1, :13] = refs.tokens[:, 0, :13]
    usual = EditStratified(50, 0.5, size=20, rescale=True, specials=[3])
    law = edit_law(20, 49, -1.0 / usual.temperature, 20)
    reach = law.cumulative.shape[1] - 1
    assert reach < 14  # shorter than every reference
    counting = EditStratified(
        50, 0.5, size=20, rescale=True, specials=[3], max_edits=reach
    )  # the same draws, by the other recursion
    ours, theirs = usual(refs, generator=gen(13)), counting(refs, generator=gen(13))
    assert torch.equal(ours.tokens, theirs.tokens)
    assert torch.allclose(ours.log_proposal, theirs.log_proposal, rtol=0, atol=1e-9)
    others = (ours.lengths.unsqueeze(2) != refs.lengths.unsqueeze(1)).all(2)
    assert int(others.sum()) > 0  # words were inserted and left out


@pytest.mark.parametrize("refs", [[(0, 1, 0)], [(0, 1), (1, 1, 0)], [(2,)], [()], [(), (1,)]])
@pytest.mark.parametrize("keep_last", [False, True])
def test_exact_edits_follow_the_payoff(refs, keep_last):
    words, tau, most = [0, 1, 2], 0.7, 2
    laws = []
    for ref in refs:
        free = max(0, len(ref) - keep_last)
        space = [
            y
            for y in oracle.sentences(words, free + most)
            if oracle.edit_distance(y, ref[:free]) <= most
        ]
        law = oracle.normalised(
            {y: math.exp(-oracle.edit_distance(y, ref[:free]) / tau) for y in space}
        )
        laws.append({(*y, *ref[free:]): p for y, p in law.items()})
    sampler = EditStratified(3, tau, size=50, exact=True, max_edits=most, keep_last=keep_last)
    assert_follows(
        drawn(sampler([[list(y) for y in refs]] * draws(100), generator=gen(8))),
        oracle.mixture(laws),
    )


@pytest.mark.parametrize(
    ("vocab", "most", "reference", "text"),
    [(10, 1, [1] * 2000, "2000 words are too many"), (1000, 12, range(40), "lower max_edits")],
)
def test_exact_edits_that_take_too_long(vocab, most, reference, text):
    sampler = EditStratified(vocab, 0.5, size=1, exact=True, max_edits=most)
    with pytest.raises(IntractableError, match=text):
        sampler([list(reference)], generator=gen())


def chain_model(table):
    """next_word of a first-order chain: row of the last word, or the last row at the start."""
    return lambda inputs, examples, prefixes: table[
        prefixes[:, -1] if prefixes.shape[1] else torch.full((len(prefixes),), -1)
    ]


TABLE = torch.tensor(
    [[0.2, 0.5, 0.3], [0.6, 0.1, 0.3], [0.1, 0.6, 0.3], [0.1, 0.4, 0.5]], dtype=torch.float64
)  # 0 ends


def chain_law(table, max_length):
    law = {}
    for y in oracle.sentences([1, 2], max_length):
        p, last = 1.0, -1
        for word in y:
            p, last = p * float(table[last, word]), word
        law[y] = p * (float(table[last, 0]) if len(y) < max_length else 1.0)
    return law


def assert_log_model(cands):
    """log_model is log P(y) of TABLE with the end token, also where a sentence had to end."""
    for rows, values in zip(cands.sentences.unpack(), cands.log_model.tolist(), strict=True):
        for row, value in zip(rows, values, strict=False):  # missing ones come last
            steps = zip([-1, *row], [*row, 0], strict=True)
            assert value == pytest.approx(sum(math.log(TABLE[last, word]) for last, word in steps))


def assert_samples_follow(table, seed, **options):
    """Sentences sampled from the chain of TABLE have the law of this table; returns them."""
    sampler = FromModel(chain_model(TABLE.log()), size=100, end=0, max_length=3, **options)
    cands = sampler([[1]] * draws(200), generator=gen(seed))
    assert_follows(drawn(cands), {y: p for y, p in chain_law(table, 3).items() if p > 0})
    return cands


def test_model_samples_follow_the_model():
    cands = assert_samples_follow(TABLE, 9)
    assert_log_model(cands)
    assert torch.allclose(cands.log_model[cands.lengths < 3], cands.log_proposal[cands.lengths < 3])


def test_model_samples_at_a_temperature():
    cool = TABLE**2 / (TABLE**2).sum(1, keepdim=True)
    assert_log_model(assert_samples_follow(cool, 10, temperature=0.5))


def test_top_p_cuts_the_tail():
    kept = TABLE.clone()
    for row in kept:  # the fewest words that hold 0.7: drop those behind
        order = row.argsort(descending=True)
        mass = row[order].cumsum(0)
        row[order[1:][mass[:-1] >= 0.7]] = 0.0
    kept /= kept.sum(1, keepdim=True)
    assert bool((kept == 0).any())
    assert_samples_follow(kept, 11, method="top-p", top_p=0.7)


@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_a_beam_wide_enough_finds_the_best(penalty):
    options = {"method": "beam", "length_penalty": penalty}
    cands = FromModel(chain_model(TABLE.log()), size=20, end=0, max_length=3, **options)([[1], [2]])
    assert cands.log_proposal is None
    assert_log_model(cands)
    every = sorted(oracle.sentences([1, 2], 3))  # 15, and nothing else
    for rows, values in zip(cands.sentences.unpack(), cands.log_model.tolist(), strict=True):
        assert sorted(map(tuple, rows)) == every
        pairs = zip(rows, values, strict=False)
        scores = [value / (len(row) + 1) ** penalty for row, value in pairs]
        assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("method", ["ancestral", "beam"])
@pytest.mark.parametrize("start", [None, 0])
def test_the_model_is_asked_about_unfinished_hypotheses_alone(method, start):
    """Start and end may be the same token; hypotheses that ended or cannot be are never shown."""

    def model(inputs, examples, prefixes):
        words = prefixes[:, 0 if start is None else 1 :]
        assert (words == 1).all()  # neither the end nor the impossible token 2
        return torch.tensor([0.5, 0.5, 0.0]).log().expand(len(prefixes), 3)

    cands = FromModel(model, size=8, end=0, max_length=3, start=start, method=method)(
        [[1]] * 5, generator=gen()
    )
    assert {tuple(y) for rows in cands.sentences.unpack() for y in rows} == {
        (),
        (1,),
        (1, 1),
        (1, 1, 1),
    }


def test_a_batch_in_which_all_is_finished(monkeypatch):
    """On a GPU it is looked at once in a few steps only, and the model is not asked about it."""
    monkeypatch.setattr(sampling, "rows_to_keep", lambda unfinished, step: None)

    def model(inputs, examples, prefixes):
        assert prefixes.shape == (6, 0)
        return torch.tensor([0.0, -math.inf]).expand(6, 2)

    assert (
        FromModel(model, size=3, end=0, max_length=4)([[1], [1]], generator=gen()).lengths.tolist()
        == [[0] * 3] * 2
    )


def test_model_inputs_start_and_references():
    seen = []

    def model(inputs, examples, prefixes):
        seen.append(prefixes[:, 0].unique().tolist())
        return inputs[examples]

    inputs = torch.tensor(
        [[-math.inf, 0.0, -math.inf], [-math.inf, -math.inf, 0.0]]
    )  # example 0 gives 1 1 1, example 1 gives 2 2 2
    sampler = FromModel(model, size=2, end=0, max_length=3, start=9, references=True)
    cands = sampler([[2, 2], [2, 2, 2]], inputs, generator=gen())
    assert seen == [[9]] * 4  # for three words and the end
    assert cands.tokens.tolist() == [
        [[2, 2, 0], [1, 1, 1], [1, 1, 1]],
        [[2, 2, 2], [2, 2, 2], [2, 2, 2]],
    ]
    assert cands.lengths.tolist() == [[2, 3, 3], [3, -1, -1]]
    assert cands.fixed.tolist() == [1, 1]
    assert cands.draws.tolist() == [2, 2]


def ngrams(*options, refs=None, **more):
    """A call that makes a sampler and, if there are references, uses it."""
    return lambda: (lambda sampler: refs and sampler(refs))(NgramReplacement(*options, **more))


def from_model(scores=None, *, end=0, **options):
    """A call that samples two candidates from a model of constant scores."""

    def model(inputs, examples, prefixes):
        return scores

    return lambda: FromModel(model, size=2, end=end, max_length=2, **options)([[1]])


def edits(*refs, **options):
    return lambda: EditStratified(10, 0.5, **options)(refs)


SCORES = torch.zeros(2, 3)
OPTIONS = {
    SamplerError: [
        (ngrams(0), "vocab must be"),
        (ngrams(3.5), "vocab must be"),
        (ngrams(10, max_n=0), "max_n must be a whole number from 1, got 0"),
        (ngrams(10, size=True), "size must be"),
        (ngrams(3, specials=[0, 1, 2]), "leaves none"),
        (ngrams(3, specials=[3]), "specials must be word numbers in 0..2, got 3"),
        (ngrams(3, frequencies=torch.ones(2)), r"shape \[3\]"),
        (ngrams(2, frequencies=torch.tensor([1.0, -1.0])), "not negative"),
        (ngrams(2, frequencies=torch.tensor([0.0, 1.0]), specials=[1]), "positive for some word"),
        (ngrams(2, frequencies=torch.ones(2), corpus=[[0]]), "not both"),
        (ngrams(2, max_n=2, corpus=[[0], [1]]), "no 2-gram without specials.*max_n=1"),
        (lambda: NgramReplacement(100_000).enumerate([[1, 2]]), "too many to list"),
        (ngrams(10, size=1, refs=[[[1], [2]]]), "size 1 for the 2 references of example 0"),
        (edits(exact=True), "needs max_edits"),
        (edits(max_edits=0), "max_edits must be"),
        (edits([1, 4], exact=True, max_edits=1, specials=[4]), "got 4 in example 0"),
        (from_model(method="greedy"), "method must be one of"),
        (from_model(method="top-p"), "top_p goes with"),
        (from_model(method="top-p", top_p=0.0), r"\(0, 1\]"),
        (from_model(method="beam", temperature=2.0), "1 for a beam"),
        (from_model(method="beam", length_penalty=-1.0), "from 0, got -1"),
    ],
    OutputError: [
        (ngrams(2, corpus=[[0, 2]]), "lie in 0..1, got 2"),
        (ngrams(10, refs=[[1], []]), "reference 0 of example 1 is empty"),
        (ngrams(10, refs=[[1], [2, 10]]), "lie in 0..9, got 10 at example 1"),
        (lambda: HammingStratified(10, 0.5)([[]]), "is empty"),
    ],
    ShapeError: [(from_model(SCORES[:1]), r"\[2, V\]"), (from_model(SCORES, end=3), "end token 3")],
    ScoreError: [
        (from_model(SCORES + math.nan), "example 0"),
        (from_model(SCORES - math.inf), "example 0"),
        (from_model(SCORES[:1] + math.inf, method="beam"), "none is"),
    ],
}


@pytest.mark.parametrize(
    ("error", "call", "text"),
    [(error, *case) for error, cases in OPTIONS.items() for case in cases],
)
def test_bad_options_and_references(error, call, text):
    with pytest.raises(error, match=text):
        call()


def test_vocabulary_by_its_words():
    assert NgramReplacement(["a", "b", "c"]).vocab == 3
