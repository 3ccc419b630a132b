"""A deep biaffine parser (Dozat and Manning 2017) in a training loop of one's own, by likelihood or toward attachment.

    python examples/biaffine.py --train train.conllu --dev dev.conllu
    python examples/biaffine.py --train … --dev … --objective raml --tau 0.3  # toward attachment
    python examples/biaffine.py --train … --dev … --spanning                  # arcs may cross

A parser of your own has to return a distribution over trees; `make_target` says what that should become. Without such a loop,
`softq train parsing --model neural` trains the same parser, resumes, and records its steps on a GPU.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import softq
from softq.formats.conllu import TreeSentence, read_conllu
from softq.formats.trees import projectivise
from softq.metrics import attachment_statistics, las, uas
from softq.neural import BiaffineParser, TreeVocabulary
from softq.neural.parser import TreeBatch
from softq.neural.parser_settings import ParserSettings
from softq.neural.words import like_lengths


class Batch(NamedTuple):
    """B sentences and their trees; padding of heads is 0."""

    sentences: TreeBatch
    heads: Tensor  # [B, n]
    relations: Tensor  # [B, n], -1 on padding and where a word lost its head


def make_batches(parser: BiaffineParser, trees: list[TreeSentence], words: int) -> list[Batch]:
    """Sentences of about one length, about so many words together."""
    encoded, device, found = parser.vocabulary.encode(trees), parser.device, []
    ids = {name: number for number, name in enumerate(parser.vocabulary.relations)}
    for numbers in like_lengths(encoded.lengths, 0, np.random.default_rng(0), words=words):
        sentences = encoded.batch(numbers).to(device)
        heads = torch.zeros(len(numbers), sentences.words.packing.width - 1, dtype=torch.long)
        relations = torch.full_like(heads, -1)
        for row, tree in enumerate(trees[number] for number in numbers):
            # arcs that cross are lifted until none does, which a projective parser can learn
            own = tree.heads if parser.spanning else tuple(projectivise(tree.heads).tolist())
            pairs = zip(tree.relations, own, tree.heads, strict=True)
            named = [ids[name] if new == old else -1 for name, new, old in pairs]
            heads[row, : len(own)], relations[row, : len(own)] = map(torch.tensor, (own, named))
        found.append(Batch(sentences, heads.to(device), relations.to(device)))
    return found


def make_target(space: softq.Distribution, heads: Tensor, options: Namespace) -> softq.Target:
    """What the model should become: the one place in which ML, RAML and SQDML differ."""
    if options.objective == "ml":
        return softq.ml(space, heads)
    return (softq.raml if options.objective == "raml" else softq.sqdml)(space, heads, options.tau)


def relation_loss(parser: BiaffineParser, views: tuple[Tensor, Tensor], batch: Batch) -> Tensor:
    """Cross-entropy of the relations between words and their heads, summed."""
    scores = parser.relation_scores(views, batch.heads).transpose(1, 2)
    return functional.cross_entropy(scores, batch.relations, ignore_index=-1, reduction="sum")


def train(parser: BiaffineParser, batches: Sequence[Batch], options: Namespace) -> None:
    """Any PyTorch loop, with UAS and LAS on the development set after each epoch."""
    dev, steps = read_conllu(options.dev), options.epochs * len(batches)
    optimizer = torch.optim.AdamW(parser.parameters(), options.lr, (0.9, 0.9), weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(  # up for a twentieth of training, then down to 0
        optimizer, lambda step: min((step + 0.5) / steps / 0.05, (1 - step / steps) / 0.95)
    )
    for epoch in range(1, options.epochs + 1):
        parser.train()
        for number in torch.randperm(len(batches)).tolist():
            batch = batches[number]
            tree, views = parser(batch.sentences)
            loss = softq.cross_entropy(make_target(tree, batch.heads, options), tree).sum()
            loss = (loss + relation_loss(parser, views, batch)) / batch.sentences.lengths.sum()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parser.parameters(), 5.0)
            optimizer.step()
            schedule.step()
        found = parser.parse(dev, "mbr")  # the trees of the most right heads to be expected
        heads, relations = [one.heads for one in found], [one.relations for one in found]
        sums = attachment_statistics(dev, heads, relations).sum(0)
        print(f"epoch {epoch}: UAS {100 * float(uas(sums)):.2f}, LAS {100 * float(las(sums)):.2f}")


def main() -> None:
    """Read, train, save."""
    make = ArgumentParser(description=__doc__.splitlines()[0])
    make.add_argument("--train", required=True, help="CoNLL-U file of trees to learn from")
    make.add_argument("--dev", required=True, help="likewise, to choose the best epoch by")
    make.add_argument("--objective", choices=["ml", "raml", "sqdml"], default="ml")
    make.add_argument("--spanning", action="store_true", help="let arcs cross")
    numbers = {"tau": 0.3, "epochs": 40, "batch": 4000, "lr": 0.002, "hidden": 400, "seed": 0}
    for name, number in numbers.items():  # batch: words of a step; hidden: width of the LSTM
        make.add_argument(f"--{name}", type=type(number), default=number)
    make.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    make.add_argument("--out", help="file for the parser, .safetensors")
    options = make.parse_args()
    torch.manual_seed(options.seed)
    trees = read_conllu(options.train)
    relations = sorted({name for tree in trees for name in tree.relations})
    vocabulary, sizes = TreeVocabulary.of(trees, relations), ParserSettings(hidden=options.hidden)
    parser = BiaffineParser(vocabulary, sizes, spanning=options.spanning, seed=options.seed)
    parser.to(options.device)
    train(parser, make_batches(parser, trees, options.batch), options)
    if options.out:
        parser.save(options.out)


if __name__ == "__main__":
    main()
