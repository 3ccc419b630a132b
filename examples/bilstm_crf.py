"""A BiLSTM tagger with a CRF on top, trained on what several imperfect annotators say of entities.

    python examples/bilstm_crf.py --objective ml       # the likelihood of all their labels
    python examples/bilstm_crf.py --objective sqdml    # aimed at token accuracy, a word of an entity counting three times

The data come from a built-in world whose Bayes rule is known, so the table at the end shows what is
left to gain. What your own tagger needs of softq is in two places: `SequenceTagger`
returns a distribution, and `target` says what it should become.
"""

import argparse
from collections.abc import Sequence
from typing import NamedTuple

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

import softq
from softq.annotators.reliability import estimate, reference_weights
from softq.formats.conll import Sentence
from softq.lab.worlds.entities import LABELS, EntityWorld
from softq.metrics import SpanScores, span_statistics
from softq.neural import SequenceTagger, WordVocabulary
from softq.neural.tagger_settings import TaggerSettings
from softq.neural.words import WordBatch

SIZES = TaggerSettings(word_size=48, character_size=16, filters=24, hidden=48, dropout=0.0)


class Batch(NamedTuple):
    """Sentences as a tagger takes them, and what annotators say of them."""

    words: WordBatch
    references: Tensor  # [B, R, n], one per annotator
    weights: Tensor  # [B, R], 0 for a reference that is not there


class Data:
    """Sentences, and how much each of their label sequences counts, as numbers."""

    def __init__(
        self,
        sentences: Sequence[Sentence],
        weights: Sequence[Sequence[float]],
        vocabulary: WordVocabulary,
    ) -> None:
        self.words = vocabulary.encode([sentence.tokens for sentence in sentences])
        count, annotators = len(sentences), max(len(s.labels) for s in sentences)
        size = int(self.words.lengths.max())
        self.references = torch.zeros(count, annotators, size, dtype=torch.long)
        self.weights = torch.zeros(count, annotators)
        for b, sentence in enumerate(sentences):
            for r, labels in enumerate(sentence.labels):
                numbers = [LABELS.index(label) for label in labels]
                self.references[b, r, : len(labels)] = torch.tensor(numbers)
                self.weights[b, r] = weights[b][r]

    def __len__(self) -> int:
        return len(self.references)

    def at(self, index: Tensor) -> Batch:
        """Some of the sentences."""
        words = self.words.batch(index.numpy())
        references = self.references[index, :, : words.packing.width]
        return Batch(words, references, self.weights[index])


def make_tagger(vocabulary: WordVocabulary, constraints: bool) -> SequenceTagger:
    """Words and their characters to a distribution over label sequences.

    An encoder of your own has to return a `softq.Chain`, too.
    """
    forbid = "model" if constraints else "none"  # label sequences that are not BIO
    seed = int(torch.randint(2**31, ()))
    return SequenceTagger(vocabulary, LABELS, SIZES, scheme="bio", constraints=forbid, seed=seed)


def target(model: softq.Chain, batch: Batch, options: argparse.Namespace) -> softq.Target:
    """What the model should become: the one line in which ML, RAML and SQDML differ."""
    if options.objective == "ml":
        return softq.ml(model, batch.references, ref_weights=batch.weights)
    reward = softq.rewards.TokenReward.weighted(
        torch.tensor([options.entity_weight if label != "O" else 1.0 for label in LABELS])
    )
    make = softq.raml if options.objective == "raml" else softq.sqdml
    return make(model, batch.references, options.tau, reward, ref_weights=batch.weights)


def train(
    tagger: SequenceTagger, data: Data, options: argparse.Namespace, console: Console
) -> None:
    """Any PyTorch loop."""
    steps = [index for _ in range(options.epochs) for index in torch.randperm(len(data)).split(32)]
    optimizer = torch.optim.Adam(tagger.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, len(steps))
    for index in track(
        steps,
        f"Training with {options.objective}",
        console=console,
        disable=not console.is_terminal,
    ):
        batch = data.at(index)
        model = tagger(batch.words)
        loss = softq.cross_entropy(target(model, batch, options), model).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


def bayes_rule(world: EntityWorld, sentence: Sentence) -> list[str]:
    """The best that anyone can do who knows how the world was made."""
    return [LABELS[label] for label in world.posterior(sentence.tokens).mbr().tolist()]


def score(gold: Sequence[Sentence], predicted: Sequence[Sequence[str]]) -> SpanScores:
    """Predicted labels against the true ones."""
    true = [sentence.labels[0] for sentence in gold]
    return SpanScores.of(span_statistics(true, predicted, "bio"))


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
    tagger = make_tagger(WordVocabulary.of(s.tokens for s in crowd), options.constraints)
    weights = [reference_weights(sentence, reliability) for sentence in crowd]
    data = Data(crowd, weights, tagger.vocabulary)
    train(tagger, data, options, Console(stderr=True))
    predicted = tagger.predict([sentence.tokens for sentence in test], "mbr")

    table = Table(
        "",
        "token accuracy",
        "span precision",
        "recall",
        "F1",
        title=f"{len(test)} sentences with their true labels",
    )
    for name, scores in (
        (f"BiLSTM-CRF, {options.objective}", score(test, predicted)),
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
