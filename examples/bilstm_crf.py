"""A BiLSTM tagger with a CRF on top, trained on what several imperfect annotators of a built-in world say of entities.

    python examples/bilstm_crf.py --objective ml       # the likelihood of all their labels
    python examples/bilstm_crf.py --objective sqdml    # aimed at token accuracy, a word of an entity counting three times

A tagger of your own has to return a `softq.Chain`.
"""

from argparse import ArgumentParser, Namespace

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


class Data:
    """Sentences, and what annotators say of them as numbers ``[N, R, n]``, with weights ``[N, R]``."""

    def __init__(
        self, sentences: list[Sentence], weights: list[list[float]], vocabulary: WordVocabulary
    ) -> None:
        self.words = vocabulary.encode([sentence.tokens for sentence in sentences])
        shape = len(sentences), max(len(s.labels) for s in sentences), int(self.words.lengths.max())
        self.references, self.weights = torch.zeros(shape, dtype=torch.long), torch.zeros(shape[:2])
        for b, sentence in enumerate(sentences):
            for r, labels in enumerate(sentence.labels):
                numbers = [LABELS.index(label) for label in labels]
                self.references[b, r, : len(labels)] = torch.tensor(numbers)
                self.weights[b, r] = weights[b][r]

    def at(self, index: Tensor) -> tuple[WordBatch, Tensor, Tensor]:
        """Some of the sentences, the labels that annotators gave them, and their weights."""
        words = self.words.batch(index.numpy())
        return words, self.references[index, :, : words.packing.width], self.weights[index]


def make_tagger(vocabulary: WordVocabulary, constraints: bool) -> SequenceTagger:
    """Words and their characters to a distribution over label sequences."""
    forbid, seed = "model" if constraints else "none", int(torch.randint(2**31, ()))
    return SequenceTagger(vocabulary, LABELS, SIZES, scheme="bio", constraints=forbid, seed=seed)


def target(model: softq.Chain, refs: Tensor, weights: Tensor, options: Namespace) -> softq.Target:
    """What the model should become: the one line in which ML, RAML and SQDML differ."""
    if options.objective == "ml":
        return softq.ml(model, refs, ref_weights=weights)
    entity = [options.entity_weight if label != "O" else 1.0 for label in LABELS]
    reward = softq.rewards.TokenReward.weighted(torch.tensor(entity))
    make = softq.raml if options.objective == "raml" else softq.sqdml
    return make(model, refs, options.tau, reward, ref_weights=weights)


def train(tagger: SequenceTagger, data: Data, options: Namespace) -> None:
    """Any PyTorch loop."""
    sentences = torch.cat([torch.randperm(len(data.references)) for _ in range(options.epochs)])
    steps = sentences.split(32)
    optimizer = torch.optim.Adam(tagger.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, len(steps))
    for index in track(steps, options.objective, console=Console(stderr=True)):
        words, references, weights = data.at(index)
        model = tagger(words)
        loss = softq.cross_entropy(target(model, references, weights, options), model).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


def bayes_rule(world: EntityWorld, sentence: Sentence) -> list[str]:
    """The best that anyone can do who knows how the world was made."""
    return [LABELS[label] for label in world.posterior(sentence.tokens).mbr().tolist()]


def add_row(table: Table, name: str, gold: list[Sentence], labels: list[list[str]]) -> None:
    """Scores of labels against the true ones."""
    found = SpanScores.of(span_statistics([one.labels[0] for one in gold], labels, "bio"))
    values = found.token_accuracy, found.precision, found.recall, found.f1
    table.add_row(name, *(f"{100 * value:.2f}" for value in values))


def main() -> None:
    """Make data, train, compare."""
    make = ArgumentParser(description=__doc__.splitlines()[0])
    make.add_argument("--objective", choices=["ml", "raml", "sqdml"], default="sqdml")
    make.add_argument("--constraints", action="store_true", help="forbid what is not BIO")
    numbers = {"tau": 0.1, "entity-weight": 3.0, "sentences": 4000, "epochs": 6, "seed": 0}
    for name, number in numbers.items():  # entity-weight: reward of a right label other than O
        make.add_argument(f"--{name}", type=type(number), default=number)
    options = make.parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)  # tensors this small gain nothing from a second thread
    world = EntityWorld()
    crowd = world.annotate(world.sample(options.sentences, seed=options.seed), seed=options.seed)
    test = world.sample(1000, seed=options.seed + 1)
    reliability = estimate(crowd)  # of the annotators, without knowing the truth
    tagger = make_tagger(WordVocabulary.of(s.tokens for s in crowd), options.constraints)
    weights = [list(reference_weights(sentence, reliability)) for sentence in crowd]
    train(tagger, Data(crowd, weights, tagger.vocabulary), options)
    table = Table("", "token accuracy", "span precision", "recall", "F1")
    found = tagger.predict([sentence.tokens for sentence in test], "mbr")
    add_row(table, f"BiLSTM-CRF, {options.objective}", test, found)
    add_row(table, "Bayes rule", test, [bayes_rule(world, sentence) for sentence in test])
    Console().print(table)


if __name__ == "__main__":
    main()
