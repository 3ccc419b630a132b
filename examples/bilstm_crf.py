"""A BiLSTM tagger with a CRF on top, trained on what several imperfect annotators say of entities.

    python examples/bilstm_crf.py --objective ml       # the likelihood of all their labels
    python examples/bilstm_crf.py --objective sqdml    # aimed at token accuracy, a word of an entity counting three times

The data come from a built-in world whose Bayes rule is known, so the table at the end shows what is
left to gain. What your own tagger needs of softq is in two places: `Tagger.forward`
returns a distribution, and `target` says what it should become.
"""

import argparse
from collections.abc import Sequence
from typing import NamedTuple

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import softq
from softq.annotators.reliability import estimate, reference_weights
from softq.formats.conll import Sentence
from softq.formats.tags import allowed_transitions
from softq.lab.worlds.entities import LABELS, EntityWorld
from softq.metrics import SpanScores, span_statistics

SPELLING = 12  # characters of a word that are looked at


class Batch(NamedTuple):
    """Sentences as numbers, 0 on padding."""

    words: Tensor  # [B, n]
    characters: Tensor  # [B, n, SPELLING]
    lengths: Tensor  # [B]
    references: Tensor  # [B, R, n], one per annotator
    weights: Tensor  # [B, R], 0 for a reference that is not there

    def at(self, index: Tensor) -> "Batch":
        """Some of the sentences."""
        size = int(self.lengths[index].max())
        words, characters, lengths, references, weights = (tensor[index] for tensor in self)
        return Batch(
            words[:, :size], characters[:, :size], lengths, references[:, :, :size], weights
        )


def encode(
    sentences: Sequence[Sentence], weights: Sequence[Sequence[float]], vocabulary: dict[str, int]
) -> Batch:
    """Sentences, and how much each of their label sequences counts, as numbers."""
    count, size, annotators = (
        len(sentences),
        max(len(s.tokens) for s in sentences),
        max(len(s.labels) for s in sentences),
    )
    words, lengths = (
        torch.zeros(count, size, dtype=torch.long),
        torch.tensor([len(s.tokens) for s in sentences]),
    )
    characters = torch.zeros(count, size, SPELLING, dtype=torch.long)
    references, reference_weights = (
        torch.zeros(count, annotators, size, dtype=torch.long),
        torch.zeros(count, annotators),
    )
    for b, sentence in enumerate(sentences):
        for t, word in enumerate(sentence.tokens):
            words[b, t] = vocabulary.get(word, 1)
            letters = [min(ord(c), 127) for c in word[-SPELLING:]]
            characters[b, t, : len(letters)] = torch.tensor(letters)
        for r, labels in enumerate(sentence.labels):
            references[b, r, : len(labels)] = torch.tensor(
                [LABELS.index(label) for label in labels]
            )
            reference_weights[b, r] = weights[b][r]
    return Batch(words, characters, lengths, references, reference_weights)


class Tagger(nn.Module):
    """Words and their characters to a distribution over label sequences."""

    def __init__(self, words: int, constraints: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(words, 48, padding_idx=0)
        self.characters = nn.Embedding(128, 16, padding_idx=0)
        self.spelling = nn.Conv1d(16, 24, kernel_size=3, padding=1)
        self.encoder = nn.LSTM(48 + 24, 48, batch_first=True, bidirectional=True)
        self.emissions = nn.Linear(2 * 48, len(LABELS))
        self.transitions = nn.Parameter(torch.zeros(len(LABELS), len(LABELS)))
        allowed = allowed_transitions(LABELS, "bio")
        self.forbidden = ~allowed.between if constraints else torch.zeros_like(allowed.between)
        self.forbidden_first = ~allowed.first if constraints else torch.zeros_like(allowed.first)

    def forward(self, batch: Batch) -> softq.Chain:
        """A linear chain: scores of each label at each word, and of neighbouring labels."""
        letters = self.characters(batch.characters.flatten(0, 1)).transpose(
            1, 2
        )  # [B·n, 16, SPELLING]
        spelling = self.spelling(letters).amax(-1).unflatten(0, batch.words.shape)  # [B, n, 24]
        inputs = torch.cat([self.words(batch.words), spelling], -1)
        packed, _ = self.encoder(
            pack_padded_sequence(inputs, batch.lengths, batch_first=True, enforce_sorted=False)
        )
        hidden, _ = pad_packed_sequence(packed, batch_first=True, total_length=batch.words.shape[1])
        start = torch.zeros(len(LABELS)).masked_fill(
            self.forbidden_first, -torch.inf
        )  # no sentence starts with I-
        transitions = self.transitions.masked_fill(self.forbidden, -torch.inf)  # -inf forbids
        return softq.Chain(self.emissions(hidden), transitions, batch.lengths, start=start)


def target(model: softq.Chain, batch: Batch, options: argparse.Namespace) -> softq.Target:
    """What the model should become: the one line in which ML, RAML and SQDML differ."""
    if options.objective == "ml":
        return softq.ml(model, batch.references, ref_weights=batch.weights)
    reward = softq.rewards.TokenReward.weighted(
        torch.tensor([options.entity_weight if label != "O" else 1.0 for label in LABELS])
    )
    make = softq.raml if options.objective == "raml" else softq.sqdml
    return make(model, batch.references, options.tau, reward, ref_weights=batch.weights)


def train(tagger: Tagger, data: Batch, options: argparse.Namespace, console: Console) -> None:
    """Any PyTorch loop."""
    steps = [
        index for _ in range(options.epochs) for index in torch.randperm(len(data.words)).split(32)
    ]
    optimizer = torch.optim.Adam(tagger.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, len(steps))
    for index in track(
        steps,
        f"Training with {options.objective}",
        console=console,
        disable=not console.is_terminal,
    ):
        batch = data.at(index)
        model = tagger(batch)
        loss = softq.cross_entropy(target(model, batch, options), model).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


def bayes_rule(world: EntityWorld, sentence: Sentence) -> Tensor:
    """The best that anyone can do who knows how the world was made."""
    return world.posterior(sentence.tokens).mbr()


def score(gold: Sequence[Sentence], predicted: Sequence[Tensor]) -> SpanScores:
    """Predicted label ids against the true labels."""
    labels = [
        [LABELS[label] for label in row[: len(sentence.tokens)]]
        for sentence, row in zip(gold, predicted, strict=True)
    ]
    return SpanScores.of(span_statistics([sentence.labels[0] for sentence in gold], labels, "bio"))


def main() -> None:
    """Make data, train, compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--objective",
        choices=["ml", "raml", "sqdml"],
        default="sqdml",
        help="what to train toward (sqdml)",
    )
    parser.add_argument(
        "--tau", type=float, default=0.1, help="temperature of raml and sqdml (0.1)"
    )
    parser.add_argument(
        "--entity-weight",
        type=float,
        default=3.0,
        help="reward of a right label other than O, in raml and sqdml (3)",
    )
    parser.add_argument(
        "--constraints", action="store_true", help="forbid label sequences that are not BIO"
    )
    parser.add_argument("--sentences", type=int, default=4000, help="to train on (4000)")
    parser.add_argument("--epochs", type=int, default=6, help="times to see them (6)")
    parser.add_argument(
        "--seed", type=int, default=0, help="of data, first weights and batches (0)"
    )
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(
        1
    )  # tensors this small gain nothing from a second thread, and wait for it when the machine is busy

    world = EntityWorld()
    crowd = world.annotate(world.sample(options.sentences, seed=options.seed), seed=options.seed)
    test = world.sample(1000, seed=options.seed + 1)
    reliability = estimate(crowd)  # of the annotators, without knowing the truth
    vocabulary = {
        word: number
        for number, word in enumerate(sorted({word for s in crowd for word in s.tokens}), start=2)
    }

    tagger = Tagger(len(vocabulary) + 2, options.constraints)
    train(
        tagger,
        encode(crowd, [reference_weights(s, reliability) for s in crowd], vocabulary),
        options,
        Console(stderr=True),
    )
    with torch.no_grad():
        predicted = tagger(encode(test, [[1.0]] * len(test), vocabulary)).mbr()

    table = Table(
        "",
        "token accuracy",
        "span precision",
        "recall",
        "F1",
        title=f"{len(test)} sentences with their true labels",
    )
    for name, scores in (
        (f"BiLSTM-CRF, {options.objective}", score(test, list(predicted))),
        ("Bayes rule", score(test, [bayes_rule(world, sentence) for sentence in test])),
    ):
        table.add_row(
            name,
            *(
                f"{100 * x:.2f}"
                for x in (scores.token_accuracy, scores.precision, scores.recall, scores.f1)
            ),
        )
    Console().print(table)


if __name__ == "__main__":
    main()
