"""Entity F1 of a sentence against the metric's own counts."""

import itertools

import pytest
import torch

import softq
from softq.errors import OutputError
from softq.metrics import SpanScores, span_statistics
from softq.rewards import SpanF1

INVENTORIES = {
    "bio": ["O", "B-PER", "I-PER", "I-LOC"],
    "iob1": ["I-PER", "O", "B-PER", "I-LOC"],
    "bioes": ["B-PER", "I-PER", "E-PER", "O", "S-LOC"],
}


@pytest.mark.parametrize("scheme", INVENTORIES)
def test_is_the_metric_of_one_sentence(scheme):
    labels = INVENTORIES[scheme]
    sentences = [list(y) for n in range(4) for y in itertools.product(range(len(labels)), repeat=n)]
    generator = torch.Generator().manual_seed(0)
    chosen = [sentences[i] for i in torch.randperm(len(sentences), generator=generator)[:40]]
    cands, refs = (
        softq.Sentences.pack([chosen, chosen[:2]]),
        softq.Sentences.pack([chosen[:20], chosen[20:21]]),
    )
    found = SpanF1(labels, scheme)(*cands, *refs)
    for b, (some, right) in enumerate([(chosen, chosen[:20]), (chosen[:2], chosen[20:21])]):
        for s, y in enumerate(some):
            for r, true in enumerate(right):
                width = max(len(y), len(true))
                pair = [[labels[k] for k in z] + ["O"] * (width - len(z)) for z in (true, y)]
                statistics = span_statistics([pair[0]], [pair[1]], scheme)
                want = SpanScores.of(statistics).f1 if statistics.rows[0, 1:3].sum() else 1.0
                assert found[b, s, r].item() == pytest.approx(want)
    assert not found[1, 2:].any()  # missing
    assert not found[1, :, 1:].any()


def test_padding_counts_nothing_and_labels_are_checked():
    reward = SpanF1(["O", "B-PER", "I-PER"])
    tokens, lengths = torch.tensor([[[1, 2, 2, 99]]]), torch.tensor([[2]])
    assert reward(tokens, lengths, torch.tensor([[[1, 2]]]), lengths).item() == 1.0
    assert reward(tokens[..., :0], lengths * 0, tokens[..., :0], lengths * 0).item() == 1.0
    assert reward.bound == 1.0
    assert reward.signature.startswith("span-f1:bio:3:")
    assert reward.signature != SpanF1(["O", "B-LOC", "I-LOC"]).signature
    with pytest.raises(OutputError, match=r"0\.\.2"):
        reward(tokens, lengths + 2, tokens, lengths)
    with pytest.raises(OutputError, match="no tag of bio"):
        SpanF1(["O", "NOUN"])
