"""One or more of every reward, and random sentences to try them on."""

import torch

import reward_functions
from softq.rewards import (
    Attachment,
    ChrF,
    ExactMatch,
    FromFunction,
    Matrix,
    MultiReferenceBLEU,
    NegativeEditDistance,
    NegativeHamming,
    RougeL,
    SentenceBLEU,
    TokenAccuracy,
    TokenReward,
)
from softq.sentences import Sentences

VOCAB = 6
PIECES = ["a", "ab", "", "b c", "ba", "é"]
TABLE = torch.arange(VOCAB * VOCAB, dtype=torch.float64).reshape(VOCAB, VOCAB).sin() * 3
RULES = ("nltk3", "mteval", "sacrebleu", "none")
REWARDS = [
    SentenceBLEU(),
    SentenceBLEU(smoothing="mteval"),
    SentenceBLEU(2, "sacrebleu", effective_order=True),
    MultiReferenceBLEU(),
    MultiReferenceBLEU(3, "none", brevity_penalty=False),
    MultiReferenceBLEU(smoothing="mteval"),
    ChrF(),
    ChrF(PIECES, order=4, beta=1.5),
    RougeL(),
    NegativeEditDistance(),
    ExactMatch(),
    TokenAccuracy(),
    Attachment(),
    NegativeHamming(),
    Matrix(TABLE),
    TokenReward(TABLE),
    FromFunction(reward_functions.shared, bound=float(VOCAB)),
]


def label(reward):
    """Its name in the list of tests."""
    return reward.signature


def random_batch(seed, batch=4, size=5, count=3, longest=9, ref_longest=8, vocab=VOCAB):
    """Candidates and references near one another, of lengths from 0, some of both missing.

    Zeros behind the lengths.

    Of more than two examples, the last has no reference at all.
    """
    generator = torch.Generator().manual_seed(seed)
    base = torch.randint(vocab, (batch, 1, max(longest, ref_longest)), generator=generator)
    sides = []
    for number, width in ((size, longest), (count, ref_longest)):
        kept = torch.rand(batch, number, width, generator=generator) < 0.8
        tokens = torch.where(
            kept,
            base[..., :width],
            torch.randint(vocab, (batch, number, width), generator=generator),
        )
        lengths = torch.randint(-1, width + 1, (batch, number), generator=generator)
        lengths[0, 0] = width
        if batch > 2 and len(sides) > 0:
            lengths[-1] = -1
        sides += [fill(tokens, lengths, 0), lengths]
    return tuple(sides)


def fill(tokens, lengths, value):
    """A copy with ``value`` (a number or a tensor) behind the lengths."""
    behind = torch.arange(tokens.shape[-1]) >= lengths.unsqueeze(-1)
    return torch.where(behind, torch.as_tensor(value, dtype=tokens.dtype), tokens)


def pair(reward, candidate, *references):
    """Reward of a candidate that is alone in its batch, with one reference or, for rewards of all together, with several."""
    cands, refs = Sentences.pack([[candidate]], pad=0), Sentences.pack([list(references)])
    sides = [(torch.nn.functional.pad(side.tokens, (0, 1)), side.lengths) for side in (cands, refs)]
    return reward(*sides[0], *sides[1]).item()
