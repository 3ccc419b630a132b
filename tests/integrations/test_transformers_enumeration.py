"""Gradients toward prior(y)^a exp(r(y)/τ), against the sum over all texts of five words, at most three of them.

The oracle has every text, its probability by Transformers' own loss, and the target in plain Python.
"""

import itertools
import math
from types import SimpleNamespace

import pytest
import torch

from softq.rewards import Reward
from tiny_models import END, PAD, START, assert_same_gradients, gradients, step, tiny, trainer_for

pytestmark = pytest.mark.usefixtures("one_thread")

VOCAB, MOST, TAU, SOURCE = 8, 3, 0.7, [5, 6]
WORDS = range(3, VOCAB)
ANYTHING = (PAD, START, *WORDS)  # within a text, a model may write a special token
TEXTS = [
    text
    for length in range(1, MOST + 1)
    for text in itertools.product(ANYTHING, repeat=length)
    if text[0] in WORDS and text[-1] in WORDS
]
ROW = {"input_ids": SOURCE, "candidates": [[*text, END] for text in TEXTS]}


def worth(text):
    """A reward between -1 and 2."""
    return 0.6 * text.count(4) - 0.3 * len(text) + 0.2 * (text[0] == 7) + 0.1 * (text[-1] % 3)


class Worth(Reward):
    """The same for candidates; references are not looked at."""

    pairwise, uses_references = False, False
    signature, bound = "worth", 3.0

    def score(self, candidates, references):
        """``[B, S, 1]``."""
        values = [
            [worth(row[:length]) if length > 0 else 0.0 for row, length in zip(*pair, strict=True)]
            for pair in zip(candidates.tokens.tolist(), candidates.lengths.tolist(), strict=True)
        ]
        return torch.tensor(values, dtype=torch.float64).unsqueeze(2)


def all_log_probs(model):
    """Of each text, differentiable."""
    texts = [[*text, END] for text in TEXTS]
    width = max(map(len, texts))
    labels = torch.tensor([text + [-100] * (width - len(text)) for text in texts])
    sources = torch.tensor([SOURCE] * len(texts))
    if model.config.is_encoder_decoder:
        logits = model(input_ids=sources, labels=labels).logits
    else:
        whole = torch.cat([sources, labels.clamp(min=0)], 1)
        logits = model(input_ids=whole).logits[:, len(SOURCE) - 1 : -1]
    found = logits.log_softmax(2).gather(2, labels.clamp(min=0).unsqueeze(2)).squeeze(2)
    return (found * (labels >= 0)).sum(1)


def target_by_hand(log_prior, power):
    """Weights of all texts."""
    payoffs = [
        worth(text) / TAU + power * value for text, value in zip(TEXTS, log_prior, strict=True)
    ]
    highest = max(payoffs)
    total = sum(math.exp(payoff - highest) for payoff in payoffs)
    return [math.exp(payoff - highest) / total for payoff in payoffs]


def oracle(model, base, prior, power=1.0, *, normalized=False):
    """Gradients of the cross-entropy, and its value."""
    with torch.no_grad():
        logs = {"none": [0.0] * len(TEXTS), "base": all_log_probs(base).tolist()}
        logs["current"] = all_log_probs(model).tolist()
    weights = target_by_hand(logs[prior], power)
    model.zero_grad()
    scores = all_log_probs(model)
    if normalized:
        scores = scores - scores.logsumexp(0)
    loss = -sum(weight * score for weight, score in zip(weights, scores, strict=True))
    loss.backward()
    return float(loss.detach()), gradients(model)


def moved_trainer(name, folder, *, flat=1.0, **settings):
    """A trainer whose model is no longer the one it began with, which is returned, too."""
    model, base = tiny(name, vocab=VOCAB), tiny(name, vocab=VOCAB)
    for each in (model, base):
        each.get_output_embeddings().weight.data *= flat
    usual = {"tau": TAU, "max_new_tokens": MOST + 2, "reward": Worth()}
    trainer = trainer_for(model, folder, **{**usual, **settings})
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return trainer, base


def scaled(found, factor):
    return {name: factor * value for name, value in found.items()}


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize(
    ("prior", "power"),
    [("none", 1.0), ("base", 1.0), ("base", 0.5), ("current", 1.0), ("current", 0.3)],
)
@pytest.mark.parametrize("name", ["llama", "t5"])
def test_gradients_equal_enumeration(name, prior, power, normalized, tmp_path):
    settings = {"candidates": "dataset", "prior": prior, "prior_weight": power}
    trainer, base = moved_trainer(name, tmp_path, normalize_model=normalized, **settings)
    loss, found = step(trainer, [ROW])
    wanted, right = oracle(trainer.model, base, prior, power, normalized=normalized)
    tokens = MOST + 2  # as many as max_new_tokens
    assert loss * tokens == pytest.approx(wanted, abs=1e-5)
    assert_same_gradients(scaled(found, tokens), right, 1e-5)


def test_a_prior_of_a_model_with_dropout_has_none(tmp_path):
    """The weights are those of the model in evaluation, whatever is dropped in training."""
    trainer, _ = moved_trainer("llama", tmp_path, candidates="dataset", prior="current")
    trainer.model.train()
    batch = trainer.data_collator([ROW])
    found = []
    for deterministic in (True, False):
        trainer._deterministic = deterministic
        own = {name: value for name, value in batch.items() if name.startswith("softq")}
        target, _ = trainer._step(trainer.model, own, batch["softq_prompts"])
        found.append(target.weights[target.weights > 0])
    assert torch.allclose(found[0], found[1], atol=1e-6)
    dropping = trainer_for(tiny("llama", dropout=0.1), tmp_path, tau=1.0)
    assert trainer_for(tiny("llama"), tmp_path, tau=1.0)._deterministic
    assert not dropping._deterministic


@pytest.mark.parametrize(
    ("name", "prior"), [("llama", "none"), ("llama", "base"), ("llama", "current"), ("t5", "base")]
)
def test_importance_weights_are_right_on_average(name, prior, tmp_path):
    """The error falls like n^-1/2, to 0.

    By chance the slope is off by 0.25 in fewer than one of 1,000 trials, and the mean of 25 trials
    is off by five standard errors in fewer than one of a million.
    """
    settings = {"candidates": "model", "prior": prior, "estimator": "importance"}
    sizes, trials, tokens, errors = (80, 1280), 25, MOST + 2, []
    right = None
    for size in sizes:
        trainer, base = moved_trainer(name, tmp_path, flat=0.3, candidate_size=size, **settings)
        trainer._shared = False  # in one row so many would need a large mask
        if right is None:
            right = flat(oracle(trainer.model, base, prior)[1])
        torch.manual_seed(size)
        rows = [{"input_ids": SOURCE}]
        tries = [tokens * flat(step(trainer, rows)[1]) for _ in range(trials)]
        off = torch.stack(tries) - right
        errors.append(float(off.square().sum(1).mean().sqrt()))
        largest = off.square().sum(0).argmax()
    slope = (math.log(errors[-1]) - math.log(errors[0])) / math.log(sizes[-1] / sizes[0])
    assert slope == pytest.approx(-0.5, abs=0.25)
    error = float(off[:, largest].std()) / math.sqrt(trials)
    assert abs(float(off[:, largest].mean())) < 5 * error
    assert errors[-1] < 0.5 * float(right.norm())


def flat(found):
    return torch.cat([value.flatten() for value in found.values()]).double()


def test_samples_of_an_older_model_have_exact_weights(tmp_path):
    """Target(y) / proposal(y), with the probability at sampling time; nothing is sampled anew."""
    trainer, _ = moved_trainer(
        "llama",
        tmp_path,
        candidates="model",
        prior="current",
        estimator="importance",
        candidate_size=60,
        reuse_samples=2,
    )
    calls = []
    samples = trainer.writer.samples
    trainer.writer.samples = lambda *given: calls.append(1) or samples(*given)
    seen = []
    trainer.averages = SimpleNamespace(add=seen.append)
    model = trainer.model.train()
    rows = [{"input_ids": SOURCE}]

    def weights():
        batch = trainer.data_collator(rows)
        own = {name: value for name, value in batch.items() if name.startswith("softq")}
        target, _ = trainer._step(model, own, batch["softq_prompts"])
        texts = target.scored
        return [
            (tuple(row[: length - 1]), weight)
            for row, length, weight in zip(
                texts.tokens[0].tolist(),
                texts.lengths[0].tolist(),
                target.weights[0].tolist(),
                strict=True,
            )
            if length > 0
        ]

    torch.manual_seed(3)
    old = dict(zip(TEXTS, all_log_probs(model).tolist(), strict=True))
    first = weights()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 1.2
    now = dict(zip(TEXTS, all_log_probs(model).tolist(), strict=True))
    second = weights()
    assert len(calls) == 1
    assert [text for text, _ in first] == [text for text, _ in second]
    for found, current in ((first, old), (second, now)):
        payoffs = [math.exp(worth(text) / TAU + current[text] - old[text]) for text, _ in found]
        wanted = [payoff / sum(payoffs) for payoff in payoffs]
        assert [weight for _, weight in found] == pytest.approx(wanted, rel=1e-4)
    assert [weight for _, weight in first] != pytest.approx([weight for _, weight in second])
    weights()
    assert len(calls) == 2
