"""Captioners.

Log-probabilities against plain loops and plain torch, what they say, and what their files hold.
"""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import nn

from softq.errors import ModelError
from softq.formats.vocabulary import END, SPECIALS, START
from softq.neural.modules.captioner import ImageCaptioner
from softq.sentences import Sentences

pytestmark = pytest.mark.usefixtures("one_thread")

CANDIDATES = Sentences.pack([[[4, 5], [6], [7, 6, 5]], [[7, 5, 4, 4]], [[], [4]]])
TEXTS = [
    "a red circle above a big blue square",
    "the small circle is red",
    "there is a square below the circle",
]


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


VECTORS = draw(3, 6)


def model_of(**options):
    chosen = {"embedding": 5, "hidden": 4, "init": 0.7, "dropout": 0.0} | options
    return ImageCaptioner(6, 8, **chosen).double()


# --- the model --------------------------------------------------------------------------------------------


def by_steps(model, vector, sentence):
    memory = model.encode((vector.unsqueeze(0),))
    state, total = model.start(memory, 1), 0.0
    for before, word in itertools.pairwise([START, *sentence, END]):
        log_probs, state = model.next_log_probs(memory, state, torch.tensor([before]))
        total = total + log_probs[0, word]
    return total


def by_cells(model, vector, sentence):
    """The equations of Appendix C with torch's own cells: c_0 = W x + b.

    S_t = LSTM(y_{t-1}, s_{t-1}); softmax(W_s s_t).
    """
    cells = []
    for layer in range(model.layers):
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        cell = nn.LSTMCell(
            model.words.embedding_dim if layer == 0 else model.size, model.size
        ).double()
        parameters = {name: getattr(model.decoder[layer], f"{name}_l0").detach() for name in names}
        cell.load_state_dict(parameters)
        cells.append(cell)
    memory = (model.first_cell.weight @ vector + model.first_cell.bias).split(model.size)
    states = [(part.tanh().unsqueeze(0), part.unsqueeze(0)) for part in memory]
    total = 0.0
    for before, word in itertools.pairwise([START, *sentence, END]):
        below = model.words.weight[before].unsqueeze(0)
        for layer, cell in enumerate(cells):
            states[layer] = cell(below, states[layer])
            below = states[layer][0]
        scores = model.output.weight @ below[0] + model.output.bias
        total += float(
            scores[word] - scores[END:].logsumexp(0)
        )  # neither padding nor the start is ever said
    return total


KINDS = pytest.mark.parametrize(
    "options", [{}, {"layers": 3}, {"tie": True, "embedding": 4}], ids=["plain", "deep", "tied"]
)


@KINDS
def test_ragged_candidates_equal_a_loop_over_them_with_gradients(options):
    model = model_of(**options)
    vectors = VECTORS.clone().requires_grad_()
    found = model.log_prob((vectors,), CANDIDATES)
    weights = draw(*found.shape, seed=1)
    (weights * found).sum().backward()
    gradients = {name: value.grad.clone() for name, value in model.named_parameters()} | {
        "vectors": vectors.grad.clone()
    }
    model.zero_grad()
    vectors.grad = None
    expected = 0.0
    for b, candidates in enumerate(CANDIDATES.unpack()):
        for k, sentence in enumerate(candidates):
            one = by_steps(model, vectors[b], sentence)
            torch.testing.assert_close(found[b, k], one)
            expected = expected + weights[b, k] * one
    expected.backward()
    for name, value in [*model.named_parameters(), ("vectors", vectors)]:
        torch.testing.assert_close(gradients[name], value.grad, msg=name)
    assert not found[1, 1:].any()  # what is missing counts nothing


@KINDS
@torch.no_grad()
def test_the_equations_of_the_paper(options):
    model = model_of(**options)
    found = model.log_prob((VECTORS,), CANDIDATES)
    for b, candidates in enumerate(CANDIDATES.unpack()):
        for k, sentence in enumerate(candidates):
            assert float(found[b, k]) == pytest.approx(
                by_cells(model, VECTORS[b], sentence), abs=1e-12
            )


@torch.no_grad()
def test_what_stands_behind_an_end_never_matters():
    model = model_of(layers=2)
    found = model.log_prob((VECTORS,), CANDIDATES)
    wider = Sentences(nn.functional.pad(CANDIDATES.tokens, (0, 2), value=7), CANDIDATES.lengths)
    torch.testing.assert_close(model.log_prob((VECTORS,), wider), found)
    torch.testing.assert_close(
        model.log_prob((VECTORS[1:],), Sentences(*(part[1:] for part in CANDIDATES))), found[1:]
    )


def test_tied_weights_are_one():
    tied, own = model_of(tie=True, embedding=4), model_of(embedding=4)
    assert tied.output.weight is tied.words.weight
    count = [sum(parameter.numel() for parameter in model.parameters()) for model in (own, tied)]
    assert count[0] - count[1] == 8 * 4
    with pytest.raises(
        ModelError,
        match=r"to tie the output to embeddings they must have the shape \[8, 4\], got \[8, 5\]",
    ):
        model_of(tie=True)


def test_parameters_begin_uniform_and_follow_from_the_seed():
    first, again, other = (ImageCaptioner(40, 50, init=0.2, seed=seed) for seed in (1, 1, 2))
    for one, same, else_ in zip(
        first.parameters(), again.parameters(), other.parameters(), strict=True
    ):
        assert torch.equal(one, same)
        assert not torch.equal(one, else_)
        assert float(one.detach().abs().max()) <= 0.2
    assert float(first.words.weight.detach().std()) == pytest.approx(0.2 / math.sqrt(3), rel=0.05)


@torch.no_grad()
def test_dropout_is_of_training_alone():
    model = model_of(layers=2, dropout=0.5)
    calm = model_of(layers=2)
    for name, value in calm.named_parameters():
        assert torch.equal(value, dict(model.named_parameters())[name])
    expected = calm.log_prob((VECTORS,), CANDIDATES)
    torch.testing.assert_close(model.eval().log_prob((VECTORS,), CANDIDATES), expected)
    model.train()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        first, second = (model.log_prob((VECTORS,), CANDIDATES) for _ in range(2))
        torch.manual_seed(0)
        assert torch.equal(model.log_prob((VECTORS,), CANDIDATES), first)
    assert not torch.allclose(first, second)
    assert not torch.allclose(first, expected)


def test_dropout_is_of_features_words_and_states_of_every_layer():
    model, shapes = model_of(layers=2, dropout=0.5).train(), []
    drop = model._drop

    def watched(vectors):
        shapes.append(tuple(vectors.shape))
        return drop(vectors)

    model._drop = watched
    with torch.random.fork_rng():
        model.log_prob((VECTORS,), CANDIDATES)
    assert shapes == [
        (3, 6),
        (5, 9, 5),
        (5, 9, 4),
        (5, 9, 4),
    ]  # five steps, three candidates of three images


@pytest.mark.parametrize("shape", [(3, 5), (3, 7), (6,), (2, 3, 6)])
def test_features_of_a_wrong_size(shape):
    with pytest.raises(
        ModelError,
        match=(
            r"expected features \[B, 6\], as this model was made for, got"
            rf" \[{', '.join(map(str, shape))}\]"
        ),
    ):
        model_of().encode((torch.zeros(shape).double(),))


@torch.no_grad()
def everything(model, vector, longest):
    """All sentences of up to so many words with their log-probabilities."""
    words = range(SPECIALS - 1, model.vocab)  # the unknown word may be said
    sentences = [
        list(chosen)
        for length in range(longest + 1)
        for chosen in itertools.product(words, repeat=length)
    ]
    found = model.log_prob((vector.unsqueeze(0),), Sentences.pack([sentences]))[0]
    return dict(zip(map(tuple, sentences), found.tolist(), strict=True))


@pytest.mark.parametrize("options", [{}, {"layers": 2}])
@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_beam_search_finds_the_best_of_all_sentences(options, penalty):
    model = model_of(init=1.5, **options)
    longest = 3
    found = model.generate(
        (VECTORS,), size=130, max_length=longest, length_penalty=penalty
    )  # wider than 5 words to the third
    for b, vector in enumerate(VECTORS):
        space = everything(model, vector, longest)
        ranked = sorted(
            space, key=lambda words: space[words] / (len(words) + 1) ** penalty, reverse=True
        )
        assert list(map(tuple, found.sentences.unpack()[b])) == ranked[:130]
        assert found.log_model[b].tolist() == pytest.approx(
            [space[words] for words in ranked[:130]], abs=1e-5
        )


@torch.no_grad()
def test_probabilities_of_all_sentences_sum_to_one():
    model = model_of(init=1.0)
    model.output.bias[END] += 6  # so that few are longer
    total = sum(math.exp(value) for value in everything(model, VECTORS[0], 5).values())
    assert 0.99 < total < 1 + 1e-9


def test_draws_have_the_probabilities_of_the_model():
    model = model_of(init=1.0)
    with torch.no_grad():
        model.output.bias[END] += 2
    found = model.generate(
        (VECTORS[:1],),
        method="sample",
        size=4000,
        max_length=1,
        generator=torch.Generator().manual_seed(0),
    ).sentences.unpack()[0]
    space = everything(model, VECTORS[0], 1)
    share = found.count([]) / len(found)
    p = math.exp(space[()])
    assert abs(share - p) < 5 * math.sqrt(
        p * (1 - p) / len(found)
    )  # fails by chance once in a million times
    greedy = model.generate((VECTORS,), method="greedy", max_length=4)
    one = model.generate((VECTORS,), size=1, max_length=4)
    assert greedy.sentences.unpack() == one.sentences.unpack()


def test_a_caption_has_fifty_words_at_most_unless_told():
    model = model_of()
    with torch.no_grad():
        model.output.bias[END] -= 1000
    assert model.generate((VECTORS,), method="greedy").lengths.tolist() == [[50]] * 3
