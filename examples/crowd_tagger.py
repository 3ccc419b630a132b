"""A neural tagger that learns from annotators, and how reliable they are, at the same time.

    python examples/crowd_tagger.py

The truth of a sentence is what its annotators and a tagger make likely (the E-step, `truth`). Each
step trains toward it, and after each epoch the annotators' confusion tables are estimated again
(the M-step). A tagger would believe what it has learnt by heart, so there are two: each is trained
on one half of the sentences and asked about the other half. At the end a third learns from all.
Replace `make_tagger` by an encoder of your own: it only has to return a `softq.Chain`.
"""

import argparse
from collections.abc import Callable

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

import softq
from bilstm_crf import Data, add_row, bayes_rule, make_tagger
from softq.annotators import AnnotatorTables, Crowd, SequentialFit, vote
from softq.formats.conll import Sentence
from softq.lab.worlds.entities import LABELS, EntityWorld
from softq.neural import WordVocabulary

Target = Callable[[Tensor, softq.Chain], softq.Target | softq.Distribution]
"""What the model of a batch is trained toward, by the indices of its sentences."""


class Learner:
    """A tagger and its optimizer."""

    def __init__(self, vocabulary: WordVocabulary) -> None:
        self.tagger = make_tagger(vocabulary, constraints=True)
        self.optimizer = torch.optim.Adam(self.tagger.parameters(), lr=5e-3)

    def train(self, data: Data, sentences: Tensor, target: Target) -> None:
        """One epoch on some of the sentences."""
        self.tagger.train()
        for index in sentences[torch.randperm(len(sentences))].split(32):
            model = self.tagger(data.at(index)[0])
            loss = softq.cross_entropy(target(index, model), model).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        self.tagger.eval()


class Truth:
    """The annotators' tables, and two taggers of one half of the sentences each."""

    def __init__(self, crowd: Crowd, data: Data, vocabulary: WordVocabulary) -> None:
        self.data, self.tables, self.weight = data, AnnotatorTables(crowd), 0.0
        SequentialFit(self.tables, LABELS, crowd.lengths, "bio")  # where the tables start
        sentences = torch.arange(len(data.references))
        self.halves = [sentences[::2], sentences[1::2]]
        self.learners = [Learner(vocabulary) for _ in self.halves]

    @torch.no_grad()
    def __call__(self, index: Tensor, model: softq.Chain | None = None) -> softq.Distribution:
        """E-step for sentences of one half, with the tagger that was trained on the other."""
        prior = self.learners[1 - int(index[0]) % 2].tagger(self.data.at(index)[0])
        return self.tables.target(prior, index.tolist(), weight=self.weight)

    def epoch(self) -> None:
        """Train both taggers, then estimate the annotators' tables (M-step)."""
        for learner, half in zip(self.learners, self.halves, strict=True):
            learner.train(self.data, half, self)
        self.weight = 1.0  # taggers count once they have learnt something
        marginals = self.by_sentence(lambda truth: truth.marginals)
        self.tables.update(torch.cat(marginals).double().numpy())

    def by_sentence(self, find: Callable[[softq.Distribution], Tensor]) -> list[Tensor]:
        """What `find` gets from the truth, for each sentence without its padding."""
        found = {}
        for half in self.halves:
            for index in half.split(256):
                found.update(zip(index.tolist(), find(self(index)), strict=True))
        lengths = self.data.words.lengths.tolist()
        return [found[sentence][:length] for sentence, length in enumerate(lengths)]


def main() -> None:
    """Make data, train toward the truth and toward the vote, compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sentences", type=int, default=4000, help="to train on (4000)")
    parser.add_argument("--epochs", type=int, default=6, help="times to see them (6)")
    parser.add_argument("--seed", type=int, default=0, help="of data, weights and batches (0)")
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)

    world, console = EntityWorld(), Console(stderr=True)
    gold = world.sample(options.sentences, seed=options.seed)
    annotated = world.annotate(gold, seed=options.seed)
    test = world.sample(1000, seed=options.seed + 1)
    vocabulary = WordVocabulary.of(sentence.tokens for sentence in annotated)
    votes = [Sentence(one.tokens, (vote(one, "entity"),)) for one in annotated]
    data = Data(votes, [[1.0]] * len(votes), vocabulary)  # the references are the votes

    truth = Truth(Crowd.read(annotated, LABELS, previous=True), data, vocabulary)
    for _ in track(range(options.epochs), "The truth", console=console):
        truth.epoch()
    targets: dict[str, Target] = {
        "the vote": lambda index, model: softq.ml(model, data.at(index)[1]),
        "the truth": truth,
    }
    table = Table("", "token accuracy", "span precision", "recall", "F1")
    for name, target in targets.items():
        learner = Learner(vocabulary)
        for _ in track(range(options.epochs), f"A tagger toward {name}", console=console):
            for half in truth.halves:
                learner.train(data, half, target)
        tokens = [sentence.tokens for sentence in test]
        add_row(table, f"tagger toward {name}", test, learner.tagger.predict(tokens, "mbr"))
    add_row(table, "Bayes rule", test, [bayes_rule(world, sentence) for sentence in test])
    add_row(table, "vote on the training set", gold, [list(one.labels[0]) for one in votes])
    best = truth.by_sentence(lambda found: found.mode())
    labels = [[LABELS[label] for label in row.tolist()] for row in best]
    add_row(table, "truth on the training set", gold, labels)
    Console().print(table)


if __name__ == "__main__":
    main()
