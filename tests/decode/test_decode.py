"""Beam search, greedy choice and draws against plain Python over table models, whose next word depends on a hash of all before it."""

import heapq
import itertools
import math
import random

import pytest
import torch

from softq import decode
from softq.decode import sampling
from softq.errors import LengthError, ModelError, ScoreError, ShapeError
from softq.formats.vocabulary import END, PAD, START

ROWS = 4093
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU"),
        ],
    ),
]


class Table:
    """Next words by a hash of source and prefix; counts what it was asked. Memory.

    Numbers of sources; state: hashes, and these numbers.
    """

    start_token, end_token, pad_token = START, END, PAD

    def __init__(self, vocab, *, seed=0, sharpness=1.0, end=0.0, holes=0.0, dtype=torch.float64):
        generator = torch.Generator().manual_seed(seed)
        scores = torch.randn(ROWS, vocab, dtype=torch.float64, generator=generator) * sharpness
        scores[:, END] += end
        forbidden = torch.rand(ROWS, vocab, generator=generator) < holes
        forbidden[:, END] = False
        forbidden[:, [PAD, START]] = True
        self.table = scores.masked_fill(forbidden, -math.inf).log_softmax(1).to(dtype)
        self.plain = self.table.tolist()
        self.rows_asked = []

    def start(self, memory, copies):
        numbers = memory[0].repeat_interleave(copies)
        return numbers % ROWS, numbers

    def next_log_probs(self, memory, state, words):
        assert torch.equal(
            state[1], memory[0].repeat_interleave(len(words) // len(memory[0]))
        )  # row b·K + k is of source b
        self.rows_asked.append(len(words))
        state = (state[0] * 31 + words * 17 + 5) % ROWS, state[1]
        return self.table.to(words.device)[state[0]], state

    def after(self, source, prefix):
        """Log-probabilities of the next word, a plain list."""
        state = source % ROWS
        for word in (START, *prefix):
            state = (state * 31 + word * 17 + 5) % ROWS
        return self.plain[state]

    def words(self):
        return range(END + 1, len(self.plain[0]))

    def log_prob(self, source, sentence):
        return sum(
            self.after(source, sentence[:t])[word] for t, word in enumerate((*sentence, END))
        )


def plain_beam(model, source, size, limit, penalty):
    """No early stop, no tensors: (score, log P, sentence), best first."""
    unfinished, ended = [(0.0, ())], []
    for length in range(limit + 1):
        for log_prob, prefix in unfinished:
            total = log_prob + model.after(source, prefix)[END]
            ended.append((total / (length + 1) ** penalty, total, prefix))
        grown = [
            (log_prob + model.after(source, prefix)[word], (*prefix, word))
            for log_prob, prefix in unfinished
            for word in model.words()
        ]
        unfinished = heapq.nlargest(size, [option for option in grown if option[0] > -math.inf])
    return heapq.nlargest(size, ended)


def everything(model, source, limit):
    """log P of every sentence that has one."""
    every = (
        s for length in range(limit + 1) for s in itertools.product(model.words(), repeat=length)
    )
    found = {s: model.log_prob(source, s) for s in every}
    return {s: log_prob for s, log_prob in found.items() if log_prob > -math.inf}


def check_found(found, b, wanted, penalty, *, tolerance=1e-9):
    """The sentences of source b are the wanted (score, log P, sentence), best first, and nothing else."""
    size = found.tokens.shape[1]
    lengths = found.lengths[b].tolist()
    assert lengths == [len(s) for _, _, s in wanted] + [-1] * (size - len(wanted))
    assert found.log_model[b].tolist()[len(wanted) :] == [-math.inf] * (size - len(wanted))
    for s, (_, log_prob, sentence) in enumerate(wanted):
        assert tuple(found.tokens[b, s, : lengths[s]].tolist()) == sentence
        assert found.log_model[b, s].item() == pytest.approx(log_prob, abs=tolerance)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seed", range(12))
def test_beam_equals_a_plain_one(seed, device):
    rng = random.Random(seed)
    vocab, size, batch = (
        rng.choice([4, 5, 9, 30]),
        rng.choice([1, 2, 3, 5, 8]),
        rng.choice([1, 2, 7, 20]),
    )
    penalty = rng.choice([0.0, 0.6, 1.0, 1.7])
    model = Table(
        vocab,
        seed=seed,
        sharpness=rng.choice([0.3, 1.0, 4.0]),
        end=rng.choice([-2.0, 0.0, 3.0]),
        holes=rng.choice([0.0, 0.4]),
    )
    numbers = [rng.randrange(10**6) for _ in range(batch)]
    limits = [rng.randrange(12) for _ in range(batch)]
    found = decode.beam_search(
        model,
        (torch.tensor(numbers, device=device),),
        size=size,
        max_length=torch.tensor(limits),
        length_penalty=penalty,
    )
    assert found.tokens.dtype == torch.int64
    assert found.tokens.shape[:2] == (batch, size)
    assert found.log_proposal is None
    for b, (number, limit) in enumerate(zip(numbers, limits, strict=True)):
        check_found(found, b, plain_beam(model, number, size, limit, penalty), penalty)
    assert (found.tokens.masked_select(~found.token_mask) == PAD).all()
    assert (found.tokens.masked_select(found.token_mask) > END).all()


@pytest.mark.parametrize("penalty", [0.0, 1.0])
@pytest.mark.parametrize("holes", [0.0, 0.6])
def test_a_huge_beam_equals_enumeration(penalty, holes):
    model = Table(7, seed=3, holes=holes)
    numbers, limits = [11, 22, 33], [0, 2, 4]
    found = decode.beam_search(
        model,
        (torch.tensor(numbers),),
        size=400,
        max_length=torch.tensor(limits),
        length_penalty=penalty,
    )
    for b in range(3):
        every = everything(model, numbers[b], limits[b])
        wanted = sorted(
            ((log_prob / (len(s) + 1) ** penalty, log_prob, s) for s, log_prob in every.items()),
            reverse=True,
        )
        check_found(found, b, wanted, penalty)
    assert found.lengths[0].tolist() == [0] + [-1] * 399


def test_a_batch_equals_a_loop_over_its_sources():
    model = Table(12, seed=4, sharpness=3.0, end=1.0, dtype=torch.float32)
    numbers, limits = torch.arange(100, 150), torch.arange(50) % 15
    together = decode.beam_search(model, (numbers,), size=4, max_length=limits)
    said = decode.greedy(model, (numbers,), max_length=limits)
    for b in range(50):
        alone = decode.beam_search(model, (numbers[b : b + 1],), size=4, max_length=int(limits[b]))
        width = alone.tokens.shape[2]
        assert torch.equal(alone.tokens[0], together.tokens[b, :, :width])
        assert torch.equal(alone.lengths[0], together.lengths[b])
        assert torch.equal(alone.log_model[0], together.log_model[b])
        one = decode.greedy(model, (numbers[b : b + 1],), max_length=int(limits[b]))
        assert one.sentences.unpack()[0] == said.sentences.unpack()[b]
        assert torch.equal(one.log_model[0], said.log_model[b])


def test_sources_that_are_done_leave_the_batch():
    model = Table(8, seed=5, sharpness=1.5, end=2.5)  # END is likely
    sleepy = torch.arange(64)
    found = decode.beam_search(model, (sleepy,), size=2, max_length=200, length_penalty=0.0)
    assert len(model.rows_asked) < 20
    assert model.rows_asked[1] == 128
    assert model.rows_asked[-1] < 32
    for b in range(0, 64, 9):
        check_found(found, b, plain_beam(model, b, 2, 30, 0.0), 0.0)
    model.rows_asked.clear()
    decode.greedy(model, (sleepy,), max_length=200)
    assert len(model.rows_asked) < 20
    model.rows_asked.clear()
    decode.sample(
        model, (sleepy,), size=3, max_length=200, generator=torch.Generator().manual_seed(0)
    )
    assert len(model.rows_asked) < 20
    assert model.rows_asked[0] == 192
    assert model.rows_asked[-1] < 48


def test_greedy_takes_the_best_word():
    model = Table(9, seed=6, sharpness=2.0)
    numbers, limits = list(range(40)), [b % 9 for b in range(40)]
    found = decode.greedy(model, (torch.tensor(numbers),), max_length=torch.tensor(limits))
    assert found.tokens.dtype == torch.int64
    assert found.tokens.shape[:2] == (40, 1)
    for b in numbers:
        prefix = []
        while len(prefix) < limits[b]:
            options = model.after(b, prefix)
            best = options.index(max(options))
            if best == END:
                break
            prefix.append(best)
        assert found.sentences.unpack()[b] == [prefix]
        assert found.log_model[b].item() == pytest.approx(model.log_prob(b, prefix), abs=1e-9)


def plain_proposal(log_probs, temperature, top_p):
    """Probabilities of the words that may be drawn, by the rule in words."""
    weights = {word: math.exp(value / temperature) for word, value in enumerate(log_probs)}
    total = sum(weights.values())
    kept, mass = {}, 0.0
    for word in sorted(weights, key=lambda word: -weights[word]):
        if top_p is not None and mass >= top_p:
            break
        kept[word] = weights[word] / total
        mass += kept[word]
    return {word: p / mass for word, p in kept.items() if p}


def proposals(model, source, limit, temperature, top_p):
    """Probability of every sentence that may be drawn, END after ``limit`` words for certain."""
    found, waiting = {}, [((), 1.0)]
    while waiting:
        prefix, p = waiting.pop()
        if len(prefix) == limit:
            found[prefix] = p
            continue
        for word, share in plain_proposal(model.after(source, prefix), temperature, top_p).items():
            if word == END:
                found[prefix] = p * share
            else:
                waiting.append(((*prefix, word), p * share))
    return found


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("temperature", "top_p"), [(1.0, None), (0.5, None), (1.0, 0.7), (2.0, 0.8), (1.0, 1.0)]
)
def test_draws_follow_their_law(temperature, top_p, device):
    model, size = Table(7, seed=7, sharpness=1.5, holes=0.2), 20_000
    numbers, limits = [5, 6], [3, 2]
    generator = torch.Generator().manual_seed(1)
    memory = (torch.tensor(numbers, device=device),)
    drawn = decode.sample(
        model,
        memory,
        size=size,
        max_length=torch.tensor(limits),
        temperature=temperature,
        top_p=top_p,
        generator=generator,
    )
    assert drawn.tokens.dtype == torch.int64
    assert drawn.log_proposal.dtype == torch.float64
    assert (drawn.tokens[~drawn.token_mask] == PAD).all()
    for b in range(2):
        law = proposals(model, numbers[b], limits[b], temperature, top_p)
        assert sum(law.values()) == pytest.approx(1.0)
        counts = dict.fromkeys(law, 0)
        rows = zip(
            drawn.sentences.unpack()[b],
            drawn.log_proposal[b].tolist(),
            drawn.log_model[b].tolist(),
            strict=True,
        )
        for sentence, log_proposal, log_model in itertools.islice(rows, size):
            counts[tuple(sentence)] += 1
            if counts[tuple(sentence)] == 1:
                assert log_proposal == pytest.approx(math.log(law[tuple(sentence)]), abs=1e-9)
                assert log_model == pytest.approx(model.log_prob(numbers[b], sentence), abs=1e-9)
        # Chi-square over sentences expected at least five times, the others as one; beyond 6
        # standard deviations once in 10^6 or so.
        common = {s for s, p in law.items() if p * size >= 5}
        cells = [(counts[s], law[s] * size) for s in common]
        rest = sum(law[s] for s in law if s not in common) * size
        if rest >= 5:
            cells.append((size - sum(n for n, _ in cells), rest))
        chi = sum((n - e) ** 2 / e for n, e in cells)
        assert chi < len(cells) + 6 * math.sqrt(2 * len(cells)) + 10


@pytest.mark.parametrize("top_p", [None, 1.0])
def test_the_outermost_numbers_draw_no_word_of_probability_0(top_p):
    log_probs = torch.tensor([[[0.0, 0.25, 0.0, 0.75, 0.0]] * 2]).log()
    words, log_chosen = sampling._sample_tokens(
        log_probs, torch.tensor([[0.0, 1 - 2.0**-53]], dtype=torch.float64), top_p
    )
    assert words.tolist() == (
        [[1, 3]] if top_p is None else [[3, 1]]
    )  # the most probable come first where they are sorted
    assert log_chosen[0].exp().tolist() == pytest.approx(
        [0.25, 0.75] if top_p is None else [0.75, 0.25]
    )


def test_draws_repeat_with_the_generator_and_do_not_depend_on_who_left():
    model = Table(9, seed=8, end=1.0)
    numbers = torch.arange(30)

    def draw(limits):
        return decode.sample(
            model, (numbers,), size=2, max_length=limits, generator=torch.Generator().manual_seed(3)
        )

    first, second = draw(20), draw(20)
    assert torch.equal(first.tokens, second.tokens)
    assert torch.equal(first.log_proposal, second.log_proposal)
    short = torch.where(numbers % 3 == 0, 20, 0)  # most leave at once
    third = draw(short)
    assert torch.equal(third.lengths[::3], first.lengths[::3])
    assert (third.lengths[1::3] == 0).all()


@pytest.mark.parametrize("device", DEVICES)
def test_generators_of_each_source_draw_whatever_the_others_are(device):
    model, numbers = Table(9, seed=8), torch.tensor([3, 8, 5, 11, 2])
    limits = torch.tensor([9, 0, 4, 30, 2])

    def draw(rows, generator):
        return decode.sample(
            model, (numbers[rows].to(device),), size=3, max_length=limits[rows], generator=generator
        ).to("cpu")

    def own(rows):
        return [torch.Generator().manual_seed(100 + row) for row in rows]

    together = draw([0, 1, 2, 3, 4], own(range(5)))
    assert len({tuple(draws.flatten().tolist()) for draws in together.tokens[:, :, :3]}) == 5
    for rows in ([0], [1], [4, 2], [3, 1, 0]):
        found = draw(rows, own(rows))
        assert torch.equal(found.lengths, together.lengths[rows])
        assert torch.equal(found.tokens, together.tokens[rows][..., : found.tokens.shape[2]])
        if len(rows) == 1:  # one generator for all is one for each where there is one source
            assert torch.equal(draw(rows, own(rows)[0]).tokens, found.tokens)
    with pytest.raises(ModelError, match="one for each of 2 sources, got 3"):
        draw([0, 1], own(range(3)))


def test_an_empty_batch():
    nothing = (torch.zeros(0, dtype=torch.int64),)
    limits = torch.zeros(0, dtype=torch.int64)
    assert decode.beam_search(Table(5), nothing, size=3, max_length=limits).tokens.shape == (
        0,
        3,
        0,
    )
    assert decode.greedy(Table(5), nothing, max_length=4).tokens.shape == (0, 1, 0)
    assert decode.sample(Table(5), nothing, size=2, max_length=4).log_proposal.shape == (0, 2)
    assert decode.sample(
        Table(5), nothing, size=2, max_length=4, generator=[]
    ).log_proposal.shape == (0, 2)


def test_what_cannot_be_asked_for():
    model, memory = Table(5), (torch.tensor([1, 2]),)
    with pytest.raises(ModelError, match="size must be a whole number from 1, got 0"):
        decode.beam_search(model, memory, size=0, max_length=3)
    with pytest.raises(ModelError, match="size must be a whole number from 1, got True"):
        decode.sample(model, memory, size=True, max_length=3)
    with pytest.raises(ModelError, match="length_penalty must be a number from 0, got -1"):
        decode.beam_search(model, memory, max_length=3, length_penalty=-1.0)
    with pytest.raises(LengthError, match="max_length must not be negative, got -2"):
        decode.greedy(model, memory, max_length=-2)
    with pytest.raises(
        ShapeError,
        match=r"max_length must be a whole number or an int64 tensor \[2\], got torch.int64 \[3\]",
    ):
        decode.greedy(model, memory, max_length=torch.tensor([1, 2, 3]))
    with pytest.raises(ShapeError, match=r"got 2\.5"):
        decode.greedy(model, memory, max_length=2.5)
    with pytest.raises(ModelError, match="temperature must be positive and finite, got 0"):
        decode.sample(model, memory, size=2, max_length=3, temperature=0.0)
    with pytest.raises(ModelError, match=r"top_p must lie in \(0, 1\], got 1.5"):
        decode.sample(model, memory, size=2, max_length=3, top_p=1.5)


def test_a_model_that_gives_nan_is_named():
    model = Table(5)
    model.table = torch.full_like(model.table, math.nan)
    for search in (
        lambda: decode.beam_search(model, (torch.tensor([1, 2]),), max_length=3),
        lambda: decode.greedy(model, (torch.tensor([1, 2]),), max_length=3),
        lambda: decode.sample(model, (torch.tensor([1, 2]),), size=2, max_length=3),
        lambda: decode.sample(model, (torch.tensor([1, 2]),), size=2, max_length=3, top_p=0.5),
    ):
        with pytest.raises(ScoreError, match="must give log-probabilities, got NaN for source 0"):
            search()
