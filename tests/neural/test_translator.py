"""The paper's translator.

Log-probabilities of candidates against a plain loop, gradients by hand against autograd.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from softq.formats.vocabulary import END, START
from softq.kernels.decoder.log_softmax_gather import log_softmax_gather
from softq.neural.modules.translator import AttentionalTranslator
from softq.sentences import Sentences

SOURCE = Sentences.pack([[5, 6, 7, 4], [8], [9, 4]])
CANDIDATES = Sentences.pack([[[4, 5], [6], [7, 6, 5]], [[7, 5, 4, 4]], [[], [4]]])


def translator(**options):
    chosen = {"embedding": 5, "hidden": 4, "init": 0.7, "dropout": 0.0} | options
    return AttentionalTranslator(11, 8, **chosen).double()


def by_steps(model, source, sentence):
    memory = model.encode((torch.tensor([source]), torch.tensor([len(source)])))
    state, total = model.start(memory, 1), 0.0
    for before, word in itertools.pairwise([START, *sentence, END]):
        log_probs, state = model.next_log_probs(memory, state, torch.tensor([before]))
        total = total + log_probs[0, word]
    return total


@pytest.mark.parametrize("options", [{}, {"layers": 3}, {"tie": True, "embedding": 4}])
def test_ragged_candidates_equal_a_loop_over_them_with_gradients(options):
    model = translator(**options)
    found = model.log_prob(SOURCE, CANDIDATES)
    weights = torch.rand(
        found.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    (weights * found).sum().backward()
    gradients = {name: value.grad.clone() for name, value in model.named_parameters()}
    model.zero_grad()
    expected = 0.0
    for b, (source, candidates) in enumerate(
        zip(SOURCE.unpack(), CANDIDATES.unpack(), strict=True)
    ):
        for k, sentence in enumerate(candidates):
            one = by_steps(model, source, sentence)
            torch.testing.assert_close(found[b, k], one)
            expected = expected + weights[b, k] * one
    expected.backward()
    for name, value in model.named_parameters():
        torch.testing.assert_close(gradients[name], value.grad, msg=name)
    assert not found[1, 1:].any()  # what is missing counts nothing


def test_dropout_of_the_decoder_is_that_of_the_steps():
    from softq.kernels.decoder.attention import decode
    from softq.kernels.decoder.reference import Attended

    generator = torch.Generator().manual_seed(3)

    def draw(*shape):
        return torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_()

    steps, inputs, copies, places, size, layers = 3, 2, 2, 4, 3, 2
    rows = inputs * copies
    bias = torch.zeros(inputs, 1, places, dtype=torch.float64)
    bias[1, 0, 2:] = -torch.inf
    tensors = (
        draw(steps, rows, 4 * size),
        draw(layers, rows, size),
        draw(layers, rows, size),
        draw(inputs, places, size),
    )
    tensors += (
        draw(inputs, places, size),
        draw(size, size),
        draw(4 * size, 2 * size),
        draw(4 * size, 2 * size),
        draw(4 * size),
    )
    masks = [
        nn.functional.dropout(torch.ones(shape).double(), 0.5)
        for shape in ((steps, rows, size), (layers - 1, steps, rows, size))
    ]

    def run(words, hidden, cell, keys, values, to_attentional, first, second, second_bias):
        return decode(
            words,
            hidden,
            cell,
            Attended(keys, values, bias),
            (first, second),
            (second_bias,),
            to_attentional,
            *masks,
        )

    assert torch.autograd.gradcheck(run, tensors)
    found = run(*tensors)
    assert torch.equal(found == 0, masks[0] == 0)


@torch.no_grad()
def test_probabilities_of_all_sentences_sum_to_one():
    model = translator()
    memory = model.encode((torch.tensor([[5, 6]]), torch.tensor([2])))
    total, prefixes = 0.0, [((), 0.0)]
    for _ in range(3):
        longer = []
        for words, log_prob in prefixes:
            state = model.start(memory, 1)
            for word in (START, *words):
                log_probs, state = model.next_log_probs(memory, state, torch.tensor([word]))
            total += float((log_prob + log_probs[0, END]).exp())
            longer += [
                ((*words, word), log_prob + log_probs[0, word]) for word in range(3, model.vocab)
            ]
        prefixes = longer
    assert total + sum(float(log_prob.exp()) for _, log_prob in prefixes) == pytest.approx(1.0)


def test_padding_never_matters():
    model = translator(layers=2)
    found = model.log_prob(SOURCE, CANDIDATES)
    source = Sentences(nn.functional.pad(SOURCE.tokens, (0, 3), value=10), SOURCE.lengths)
    candidates = Sentences(
        nn.functional.pad(CANDIDATES.tokens, (0, 2), value=7), CANDIDATES.lengths
    )
    torch.testing.assert_close(model.log_prob(source, candidates), found)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("chunk", [None, 2])
def test_log_softmax_gather_are_those_of_a_softmax(smoothing, chunk):
    generator = torch.Generator().manual_seed(5)
    vectors, weight = (
        torch.randn(shape, dtype=torch.float64, generator=generator, requires_grad=True)
        for shape in ((5, 3), (7, 3))
    )
    bias = torch.randn(7, dtype=torch.float64, generator=generator, requires_grad=True)
    words = torch.tensor([2, 6, 2, 3, 5])

    def impossible(bias):
        return torch.cat([bias[:2] - torch.inf, bias[2:]])

    def run(vectors, weight, bias):
        return log_softmax_gather(vectors, weight, impossible(bias), words, smoothing, chunk=chunk)

    assert torch.autograd.gradcheck(run, (vectors, weight, bias))
    log_probs = (vectors @ weight.T + bias)[:, 2:].log_softmax(1)
    expected = (1 - smoothing) * log_probs[range(5), words - 2] + smoothing * log_probs.mean(1)
    torch.testing.assert_close(run(vectors, weight, bias), expected)
