"""Models of sentences: translators, Transformer and captioner obey the same laws.

Log-probabilities against a loop word by word, against enumeration, and against the equations.
"""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import nn

from softq.errors import ModelError
from softq.formats.vocabulary import END, START
from softq.kernels.decoder.attention import decode
from softq.kernels.decoder.log_softmax_gather import log_softmax_gather
from softq.kernels.decoder.reference import Attended
from softq.neural.modules import AttentionalTranslator, ImageCaptioner, TransformerTranslator
from softq.sentences import Sentences
from softq.spaces import Candidates

pytestmark = pytest.mark.usefixtures("one_thread")

VOCAB = 8
SOURCES = Sentences.pack([[5, 6, 7, 4], [8], [9, 4]])
CANDIDATES = Sentences.pack([[[4, 5], [6], [7, 6, 5]], [[7, 5, 4, 4]], [[], [4]]])


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


VECTORS = draw(3, 6)


def captioner(**options):
    chosen = {"embedding": 5, "hidden": 4, "init": 0.7, "dropout": 0.0} | options
    return ImageCaptioner(6, VOCAB, **chosen).double()


def translator(**options):
    chosen = {"embedding": 5, "hidden": 4, "init": 0.7, "dropout": 0.0} | options
    return AttentionalTranslator(11, VOCAB, **chosen).double()


def transformer(**options):
    sizes = {"size": 8, "heads": 2, "layers": 2, "feed_forward": 16, "dropout": 0.0} | options
    model = TransformerTranslator(11, VOCAB, **sizes).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # biases and norms that do something
            if parameter.dim() == 1 and name != "output.bias":
                parameter += 0.3 * draw(*parameter.shape, seed=len(name))
    return model


CASES = {
    "captioner": (captioner, {}),
    "deep captioner": (captioner, {"layers": 3}),
    "tied captioner": (captioner, {"tie": True, "embedding": 4}),
    "translator": (translator, {}),
    "deep translator": (translator, {"layers": 3}),
    "tied translator": (translator, {"tie": True, "embedding": 4}),
    "transformer": (transformer, {}),
    "tied transformer": (transformer, {"tie": True}),
}
all_models = pytest.mark.parametrize("name", CASES)
one_of_each = pytest.mark.parametrize("name", ["captioner", "translator", "transformer"])


def make(name, **more):
    build, options = CASES[name]
    model = build(**options | more)
    return model, (VECTORS,) if build is captioner else SOURCES


def row_of(inputs, b):
    """One of the inputs, without padding."""
    if isinstance(inputs, Sentences):
        return Sentences.pack([inputs.unpack()[b]])
    return tuple(part[b : b + 1] for part in inputs)


def by_steps(model, inputs, sentence):
    memory = model.encode(inputs)
    state, total = model.start(memory, 1), 0.0
    for before, word in itertools.pairwise([START, *sentence, END]):
        log_probs, state = model.next_log_probs(memory, state, torch.tensor([before]))
        total = total + log_probs[0, word]
    return total


def sentences_up_to(longest):
    words = range(END + 1, VOCAB)
    lengths = range(longest + 1)
    return [list(some) for n in lengths for some in itertools.product(words, repeat=n)]


@all_models
def test_ragged_candidates_equal_a_loop_over_them_with_gradients(name):
    model, inputs = make(name)
    found = model.log_prob(inputs, CANDIDATES)
    weights = draw(*found.shape, seed=1)
    (weights * found).sum().backward()
    gradients = {name: value.grad.clone() for name, value in model.named_parameters()}
    model.zero_grad()
    expected = 0.0
    for b, candidates in enumerate(CANDIDATES.unpack()):
        for k, sentence in enumerate(candidates):
            one = by_steps(model, row_of(inputs, b), sentence)
            torch.testing.assert_close(found[b, k], one)
            expected = expected + weights[b, k] * one
    expected.backward()
    for name, value in model.named_parameters():
        torch.testing.assert_close(gradients[name], value.grad, msg=name)
    assert not found[1, 1:].any()  # what is missing counts nothing


@all_models
@torch.no_grad()
def test_padding_never_matters(name):
    model, inputs = make(name)
    found = model.log_prob(inputs, CANDIDATES)
    wider = Sentences(nn.functional.pad(CANDIDATES.tokens, (0, 2), value=7), CANDIDATES.lengths)
    if isinstance(inputs, Sentences):
        inputs = Sentences(nn.functional.pad(inputs.tokens, (0, 3), value=10), inputs.lengths)
    torch.testing.assert_close(model.log_prob(inputs, wider), found)


@one_of_each
@torch.no_grad()
def test_probabilities_sum_to_one(name):
    """Of sentences of at most two words, and of longer ones by the three that they begin with."""
    model, inputs = make(name)
    memory = model.encode(row_of(inputs, 0))
    total, prefixes = 0.0, [((), 0.0)]
    for _ in range(3):
        longer = []
        for words, log_prob in prefixes:
            state = model.start(memory, 1)
            for word in (START, *words):
                log_probs, state = model.next_log_probs(memory, state, torch.tensor([word]))
            total += float((log_prob + log_probs[0, END]).exp())
            longer += [
                ((*words, word), log_prob + log_probs[0, word]) for word in range(END + 1, VOCAB)
            ]
        prefixes = longer
    assert total + sum(float(log_prob.exp()) for _, log_prob in prefixes) == pytest.approx(1.0)


@all_models
@pytest.mark.parametrize("penalty", [0.0, 1.0])
@torch.no_grad()
def test_beam_search_finds_the_best_of_all_sentences(name, penalty):
    model, inputs = make(name)
    every = sentences_up_to(3)
    log_probs = model.log_prob(inputs, Sentences.pack([every] * 3))
    lengths = torch.tensor([len(words) + 1 for words in every])
    order = (log_probs / lengths**penalty).argsort(1, descending=True)[:, :130]
    # wider than five words to the third
    found = model.generate(inputs, size=130, max_length=3, length_penalty=penalty)
    assert found.sentences.unpack() == [[every[i] for i in row] for row in order.tolist()]
    torch.testing.assert_close(found.log_model, log_probs.gather(1, order))


@one_of_each
@torch.no_grad()
def test_what_it_generates_has_the_probability_it_says(name):
    model, inputs = make(name)
    for method in ("beam", "greedy", "sample"):
        generator = torch.Generator().manual_seed(0)
        options = {"method": method, "size": 3, "max_length": 6, "generator": generator}
        found = model.generate(inputs, **options)
        torch.testing.assert_close(model.log_prob(inputs, found), found.log_model)
        assert (found.tokens[found.token_mask] > END).all()
    greedy, narrow = (
        model.generate(inputs, max_length=4, **how) for how in ({"method": "greedy"}, {"size": 1})
    )
    assert greedy.sentences.unpack() == narrow.sentences.unpack()


@one_of_each
@torch.no_grad()
def test_samples_have_the_probabilities_of_the_model(name):
    model, inputs = make(name)
    generator = torch.Generator().manual_seed(0)
    options = {"method": "sample", "size": 4000, "max_length": 1, "generator": generator}
    found = model.generate(row_of(inputs, 0), **options).sentences.unpack()[0]
    p = float(model.log_prob(row_of(inputs, 0), Sentences.pack([[[]]])).exp())
    # fails by chance once in a million times
    assert abs(found.count([]) / 4000 - p) < 5 * math.sqrt(p * (1 - p) / 4000)


def test_a_caption_has_fifty_words_at_most_unless_told():
    model = captioner()
    with torch.no_grad():
        model.output.bias[END] -= 1000
    assert model.generate((VECTORS,), method="greedy").lengths.tolist() == [[50]] * 3


@one_of_each
def test_first_parameters_follow_from_the_seed(name):
    first, again, other = (list(make(name, seed=seed)[0].parameters()) for seed in (1, 1, 2))
    assert all(torch.equal(one, same) for one, same in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])


@pytest.mark.parametrize("build", [captioner, translator])
def test_parameters_of_recurrent_models_begin_uniform(build):
    model = build(embedding=40, hidden=40, init=0.2)
    largest = [float(parameter.detach().abs().max()) for parameter in model.parameters()]
    assert max(largest) <= 0.2
    deviation = float(model.output.weight.detach().std())
    assert deviation == pytest.approx(0.2 / math.sqrt(3), rel=0.1)


@pytest.mark.parametrize(
    ("build", "embedding"),
    [(captioner, "words"), (translator, "target"), (transformer, "target_embedding")],
)
def test_tied_weights_are_one(build, embedding):
    sizes = {} if build is transformer else {"embedding": 4}
    tied, own = build(tie=True, **sizes), build(**sizes)
    assert tied.output.weight is getattr(tied, embedding).weight
    count = [sum(parameter.numel() for parameter in model.parameters()) for model in (own, tied)]
    assert count[0] - count[1] == tied.output.weight.numel()
    if build is not transformer:
        with pytest.raises(ModelError, match="to tie the output to embeddings they must have the"):
            build(tie=True)


@pytest.mark.parametrize("name", ["deep captioner", "deep translator", "transformer"])
@torch.no_grad()
def test_dropout_is_of_training_alone_and_follows_from_the_seed(name):
    calm, inputs = make(name)
    model, _ = make(name, dropout=0.5)
    expected = calm.log_prob(inputs, CANDIDATES)
    torch.testing.assert_close(model.eval().log_prob(inputs, CANDIDATES), expected)
    model.train()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        first, second = (model.log_prob(inputs, CANDIDATES) for _ in range(2))
        torch.manual_seed(0)
        assert torch.equal(model.log_prob(inputs, CANDIDATES), first)
    assert not torch.allclose(first, second)
    assert not torch.allclose(first, expected)


# --- the captioner ----------------------------------------------------------------------------------------


def by_cells(model, vector, sentence):
    """The equations of Appendix C with torch's own cells: c_0 = W x + b, s_0 = tanh(c_0).

    s_t = LSTM(y_{t-1}, s_{t-1}); P(y_t) = softmax(W_s s_t).
    """
    cells = []
    for layer, lstm in enumerate(model.decoder):
        size = model.size if layer else model.words.embedding_dim
        cells.append(nn.LSTMCell(size, model.size).double())
        for name, value in cells[-1].named_parameters():
            value.copy_(getattr(lstm, f"{name}_l0"))
    memory = (model.first_cell.weight @ vector + model.first_cell.bias).split(model.size)
    states = [(part.tanh().unsqueeze(0), part.unsqueeze(0)) for part in memory]
    total = 0.0
    for before, word in itertools.pairwise([START, *sentence, END]):
        below = model.words.weight[before].unsqueeze(0)
        for layer, cell in enumerate(cells):
            states[layer] = cell(below, states[layer])
            below = states[layer][0]
        scores = model.output.weight @ below[0] + model.output.bias
        # neither padding nor the start is ever generated
        total += float(scores[word] - scores[END:].logsumexp(0))
    return total


@pytest.mark.parametrize("name", ["captioner", "deep captioner", "tied captioner"])
@torch.no_grad()
def test_the_equations_of_the_paper(name):
    model, inputs = make(name)
    found = model.log_prob(inputs, CANDIDATES)
    for b, candidates in enumerate(CANDIDATES.unpack()):
        for k, sentence in enumerate(candidates):
            wanted = by_cells(model, VECTORS[b], sentence)
            assert float(found[b, k]) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("shape", [(3, 5), (3, 7), (6,), (2, 3, 6)])
def test_features_of_a_wrong_size(shape):
    with pytest.raises(ModelError, match=r"expected features \[B, 6\], as this model was made for"):
        captioner().encode((torch.zeros(shape).double(),))


# --- the attentional translator ---------------------------------------------------------------------------


def test_dropout_of_the_decoder_is_that_of_the_steps():
    steps, inputs, copies, places, size, layers = 3, 2, 2, 4, 3, 2
    rows = inputs * copies
    bias = torch.zeros(inputs, 1, places, dtype=torch.float64)
    bias[1, 0, 2:] = -torch.inf
    shapes = [(steps, rows, 4 * size), (layers, rows, size), (layers, rows, size)]
    shapes += [(inputs, places, size)] * 2 + [(size, size)] + [(4 * size, 2 * size)] * 2
    shapes += [(4 * size,)]
    tensors = [draw(*shape, seed=3 + i).requires_grad_() for i, shape in enumerate(shapes)]
    masks = [
        nn.functional.dropout(torch.ones(shape).double(), 0.5)
        for shape in ((steps, rows, size), (layers - 1, steps, rows, size))
    ]

    def run(words, hidden, cell, keys, values, to_attentional, first, second, second_bias):
        attended, recurrent = Attended(keys, values, bias), (first, second)
        given = (words, hidden, cell, attended, recurrent, (second_bias,), to_attentional)
        return decode(*given, *masks)

    assert torch.autograd.gradcheck(run, tensors)
    assert torch.equal(run(*tensors) == 0, masks[0] == 0)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("chunk", [None, 2])
def test_log_softmax_gather_is_that_of_a_softmax(smoothing, chunk):
    vectors, weight, bias = (
        draw(*shape, seed=5 + i).requires_grad_() for i, shape in enumerate([(5, 3), (7, 3), (7,)])
    )
    words = torch.tensor([2, 6, 2, 3, 5])

    def run(vectors, weight, bias):
        possible = torch.cat([bias[:2] - torch.inf, bias[2:]])
        return log_softmax_gather(vectors, weight, possible, words, smoothing, chunk=chunk)

    assert torch.autograd.gradcheck(run, (vectors, weight, bias))
    log_probs = (vectors @ weight.T + bias)[:, 2:].log_softmax(1)
    expected = (1 - smoothing) * log_probs[range(5), words - 2] + smoothing * log_probs.mean(1)
    torch.testing.assert_close(run(vectors, weight, bias), expected)


# --- the Transformer --------------------------------------------------------------------------------------


def test_rows_of_state_and_memory_can_be_selected():
    model = transformer()
    memory = model.encode(SOURCES)
    words = torch.tensor([[4, 5, 6], [7, 3, 4]])  # of two sources, three sentences each
    pairs = tuple(part[:2] for part in memory)
    _, state = model.step(pairs, model.start(pairs, 3), torch.full((6,), START))
    vectors, _ = model.step(pairs, state, words.flatten())
    turned = torch.tensor([4, 4, 3])  # of the second source alone
    only = tuple(part[1:2] for part in memory)
    chosen = tuple(part.index_select(0, turned) for part in state)
    some, _ = model.step(only, chosen, words.flatten()[turned])
    torch.testing.assert_close(some, vectors[turned])


def test_every_word_before_and_none_after_matters():
    model = transformer()
    memory = model.encode(SOURCES)
    inputs = torch.tensor([START, 4, 5, 6, 7]).expand(3, 1, 5)
    before = model.hidden(memory, inputs)
    for place in range(1, 5):
        changed = inputs.clone()
        changed[..., place] = 3
        moved = (model.hidden(memory, changed) - before).abs().amax((0, 1, 3))
        assert (moved[:place] == 0).all()
        assert (moved[place:] > 1e-6).all()


def test_order_and_every_word_of_the_source_matter_and_it_may_be_empty():
    model, sources = transformer(), ([4, 5, 6], [5, 4, 6], [4, 5], [4, 5, 7], [])
    candidate = Sentences.pack([[[4, 5]]])
    alone = [model.log_prob(Sentences.pack([source]), candidate).item() for source in sources]
    assert len({round(value, 9) for value in alone}) == 5
    together = model.log_prob(Sentences.pack(sources), Sentences.pack([[[4, 5]]] * 5))
    assert together[:, 0].tolist() == pytest.approx(alone, abs=1e-12)


def test_a_new_model_is_nearly_uniform():
    """And so learns from the first step on: no score is large."""
    model = TransformerTranslator(100, 1000).eval()
    memory = model.encode(SOURCES)
    following, _ = model.next_log_probs(memory, model.start(memory, 1), torch.full((3,), START))
    assert following.exp().sum(1).tolist() == pytest.approx([1.0] * 3, abs=1e-5)
    entropy = -(following.exp() * following.clamp(min=-1e9)).sum(1)
    assert (entropy > 0.9 * math.log(1000)).all()


def test_it_learns_to_copy():
    model = TransformerTranslator(10, 10, size=32, heads=4, layers=1, feed_forward=64, dropout=0.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(250):
        tokens = torch.randint(4, 10, (32, 5), generator=generator)
        lengths = torch.randint(1, 6, (32,), generator=generator)
        candidates = Candidates(tokens.unsqueeze(1), lengths.unsqueeze(1))
        loss = -model.log_prob(Sentences(tokens, lengths), candidates).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    sentences = [[4, 5, 6, 7], [9, 8], [5, 5, 4, 6, 9], [7]]
    found = model.generate(Sentences.pack(sentences), size=3)
    assert [best[0] for best in found.sentences.unpack()] == sentences


@pytest.mark.parametrize(
    "sizes", [{"size": 10, "heads": 4}, {"size": 9, "heads": 3}, {"layers": 0}, {"heads": 0}]
)
def test_sizes_that_do_not_fit(sizes):
    with pytest.raises(ModelError, match="even size that is a multiple of its heads"):
        TransformerTranslator(9, 9, **sizes)
