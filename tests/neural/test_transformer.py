"""The Transformer.

One model however it is read (word by word, all at once, one candidate or many, padded or not).
"""

import itertools
import math

import pytest
import torch

from softq.errors import ModelError
from softq.formats.vocabulary import END, PAD, START
from softq.neural.modules.sequence import teacher_forcing
from softq.neural.modules.transformer import TransformerTranslator, positions
from softq.sentences import Sentences
from softq.spaces import Candidates

SOURCES = Sentences.pack([[5, 6, 7, 8, 9], [4], [], [9, 9, 4]])
CANDIDATES = Sentences.pack(
    [[[4, 5, 6, 7], [8], []], [[9, 4]], [[5, 5, 5], [6, 7, 8, 9, 4, 5]], [[], [4], [4, 4]]]
)


def small(*, vocab=12, seed=1, dtype=torch.float64, tie=False, **sizes):
    settings = {"size": 8, "heads": 2, "layers": 2, "feed_forward": 16} | sizes
    model = TransformerTranslator(10, vocab, tie=tie, seed=seed, **settings).to(dtype).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # biases and norms that do something
            if parameter.dim() == 1 and name != "output.bias":
                parameter += 0.3 * torch.randn(
                    parameter.shape, generator=torch.Generator().manual_seed(len(name)), dtype=dtype
                )
    return model


def test_word_by_word_equals_all_at_once():
    model = small()
    memory = model.encode(SOURCES)
    inputs, _, _ = teacher_forcing(*CANDIDATES)
    together = model.hidden(memory, inputs)
    assert together.shape == (*inputs.shape, 8)
    state = model.start(memory, inputs.shape[1])
    for t in range(inputs.shape[2]):
        vectors, state = model.step(memory, state, inputs[:, :, t].flatten())
        assert torch.allclose(vectors, together[:, :, t].flatten(0, 1), atol=1e-12)
    assert all(len(part) == inputs.shape[0] * inputs.shape[1] for part in state)
    assert all(len(part) == len(inputs) for part in memory)


def test_rows_of_state_and_memory_can_be_selected():
    model = small()
    memory = model.encode(SOURCES)
    words = torch.tensor([[4, 5, 6], [7, 8, 9]])  # of two sources, three sentences each
    pairs = tuple(part[:2] for part in memory)
    _, state = model.step(pairs, model.start(pairs, 3), torch.full((6,), START))
    vectors, _ = model.step(pairs, state, words.flatten())
    turned = torch.tensor([4, 4, 3])  # of the second source alone
    only = tuple(part[1:2] for part in memory)
    some, _ = model.step(
        only, tuple(part.index_select(0, turned) for part in state), words.flatten()[turned]
    )
    assert torch.allclose(some, vectors[turned], atol=1e-12)


def test_padding_never_matters():
    model = small()
    wanted = model.log_prob(SOURCES, CANDIDATES)
    for filler in (PAD, 9, -1):
        source = torch.full((4, 9), filler)
        candidates = torch.full((4, 3, 10), filler)
        for b, row in enumerate(SOURCES.unpack()):
            source[b, : len(row)] = torch.tensor(row)
        for b, sentences in enumerate(CANDIDATES.unpack()):
            for s, row in enumerate(sentences):
                candidates[b, s, : len(row)] = torch.tensor(row)
        found = model.log_prob(
            Sentences(source, SOURCES.lengths), Candidates(candidates, CANDIDATES.lengths)
        )
        assert torch.allclose(found, wanted, atol=1e-12)


def test_ragged_candidates_equal_a_loop_over_them():
    model = small()
    together = model.log_prob(SOURCES, CANDIDATES)
    for b, sentences in enumerate(CANDIDATES.unpack()):
        for s, sentence in enumerate(sentences):
            alone = model.log_prob(
                Sentences.pack([SOURCES.unpack()[b]]), Sentences.pack([[sentence]])
            )
            assert together[b, s].item() == pytest.approx(alone.item(), abs=1e-12)
        assert (together[b, len(sentences) :] == 0).all()


def test_every_word_before_and_none_after_matters():
    model = small()
    memory = model.encode(SOURCES)
    inputs = torch.tensor([START, 4, 5, 6, 7]).expand(4, 1, 5)
    before = model.hidden(memory, inputs)
    for place in range(1, 5):
        changed = inputs.clone()
        changed[..., place] = 9
        moved = (model.hidden(memory, changed) - before).abs().amax((0, 1, 3))
        assert (moved[:place] == 0).all()
        assert (moved[place:] > 1e-6).all()


def test_order_and_every_word_of_the_source_matter():
    model = small()
    candidate = Sentences.pack([[[4, 5]]])
    values = [
        model.log_prob(Sentences.pack([source]), candidate).item()
        for source in ([4, 5, 6], [5, 4, 6], [4, 5], [4, 5, 7], [])
    ]
    assert len({round(value, 9) for value in values}) == 5


def test_gradient_of_log_prob():
    model = small(vocab=7, size=4, layers=1, feed_forward=6)
    sources, candidates = Sentences.pack([[4, 5], [6]]), Sentences.pack([[[4, 5], [6]], [[5]]])
    parameters = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    names = list(parameters)

    def log_prob(*values):
        return torch.func.functional_call(
            LogProb(model),
            {f"model.{n}": v for n, v in zip(names, values, strict=True)},
            (sources, candidates),
        )

    assert torch.autograd.gradcheck(log_prob, tuple(parameters.values()))


class LogProb(torch.nn.Module):
    """log_prob as the forward of a module."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, sources, candidates):
        return self.model.log_prob(sources, candidates)


def test_probabilities_sum_to_one():
    """Of all sentences of at most three words and of all longer ones together, by what they begin with."""
    model = small(vocab=7)
    sources = Sentences.pack([[5, 6], [4]])
    words = range(END + 1, 7)
    every = [list(s) for length in range(4) for s in itertools.product(words, repeat=length)]
    log_probs = model.log_prob(sources, Sentences.pack([every, every]))
    memory = model.encode(sources)
    longer = torch.zeros(2, dtype=torch.float64)
    for prefix in itertools.product(words, repeat=4):
        state, log_p = model.start(memory, 1), torch.zeros(2, dtype=torch.float64)
        for last, word in itertools.pairwise((START, *prefix)):
            following, state = model.next_log_probs(memory, state, torch.full((2,), last))
            log_p = log_p + following[:, word]
        longer += log_p.detach().exp()
    assert torch.allclose(log_probs.exp().sum(1) + longer, torch.ones(2, dtype=torch.float64))


@pytest.mark.parametrize("tie", [True, False])
def test_what_it_generates_has_the_probability_it_says(tie):
    model = small(tie=tie)
    for method in ("beam", "greedy", "sample"):
        found = model.generate(
            SOURCES, method=method, size=3, max_length=6, generator=torch.Generator().manual_seed(0)
        )
        assert torch.allclose(model.log_prob(SOURCES, found), found.log_model, atol=1e-9)
        assert (found.tokens[found.token_mask] > END).all()
    best = model.generate(SOURCES, size=10**4, max_length=3, length_penalty=0.0)
    every = [
        list(s) for length in range(4) for s in itertools.product(range(END + 1, 12), repeat=length)
    ]
    log_probs, order = model.log_prob(SOURCES, Sentences.pack([every] * 4)).sort(1, descending=True)
    assert torch.allclose(best.log_model[:, : len(every)], log_probs)
    assert [row[: len(every)] for row in best.sentences.unpack()] == [
        [every[i] for i in row] for row in order.tolist()
    ]


def test_first_weights_follow_from_the_seed():
    first, again, other = (
        TransformerTranslator(9, 11, size=16, feed_forward=32, seed=seed) for seed in (3, 3, 4)
    )
    torch.manual_seed(12345)
    assert all(
        torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True)
    )
    assert not torch.equal(first.output.weight, other.output.weight)
    tied = TransformerTranslator(9, 11, size=16, feed_forward=32, tie=True)
    assert tied.output.weight is tied.target_embedding.weight
    assert tied.vocab == 11


def test_a_new_model_is_nearly_uniform():
    """And so learns from the first step on: no score is large."""
    model = TransformerTranslator(100, 1000).eval()
    following, _ = model.next_log_probs(
        memory := model.encode(SOURCES), model.start(memory, 1), torch.full((4,), START)
    )
    assert following.exp().sum(1).tolist() == pytest.approx([1.0] * 4, abs=1e-5)
    entropy = -(following.exp() * following.clamp(min=-1e9)).sum(1)
    assert (entropy > 0.9 * math.log(1000)).all()


def test_dropout_only_in_training():
    model = small()
    assert torch.equal(model.log_prob(SOURCES, CANDIDATES), model.log_prob(SOURCES, CANDIDATES))
    model.train()
    assert not torch.equal(model.log_prob(SOURCES, CANDIDATES), model.log_prob(SOURCES, CANDIDATES))


def test_it_learns_to_copy():
    model = TransformerTranslator(10, 10, size=32, heads=4, layers=1, feed_forward=64, dropout=0.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(250):
        tokens = torch.randint(4, 10, (32, 5), generator=generator)
        lengths = torch.randint(1, 6, (32,), generator=generator)
        loss = -model.log_prob(
            Sentences(tokens, lengths), Candidates(tokens.unsqueeze(1), lengths.unsqueeze(1))
        ).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    sentences = [[4, 5, 6, 7], [9, 8], [5, 5, 4, 6, 9], [7]]
    found = model.generate(Sentences.pack(sentences), size=3)
    assert [best[0] for best in found.sentences.unpack()] == sentences


def test_places_are_told_apart_at_any_length():
    found = positions(0, 2000, 16, torch.zeros(1, dtype=torch.float64))
    assert torch.allclose(
        found[700:703], positions(700, 3, 16, torch.zeros(1, dtype=torch.float64))
    )
    assert torch.pdist(found).min() > 0.01
    assert found[:, 0].tolist()[:3] == pytest.approx([math.sin(t) for t in range(3)], abs=1e-6)


@pytest.mark.parametrize(
    "sizes", [{"size": 10, "heads": 4}, {"size": 9, "heads": 3}, {"layers": 0}, {"heads": 0}]
)
def test_sizes_that_do_not_fit(sizes):
    with pytest.raises(ModelError, match="even size that is a multiple of its heads"):
        TransformerTranslator(9, 9, **sizes)
