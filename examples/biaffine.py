"""A BiLSTM-biaffine dependency parser (Dozat and Manning 2017) that learns whole trees, by likelihood or toward attachment.

    python examples/biaffine.py --train en_ewt-ud-train.conllu.gz --dev en_ewt-ud-dev.conllu.gz                # likelihood
    python examples/biaffine.py --train … --dev … --objective raml --tau 0.3                                   # toward attachment
    python examples/biaffine.py --train … --dev … --spanning                                                   # arcs may cross

Words, tags and features are read from the files; nothing is pretrained. What your own parser needs of softq is in three places:
`Parser.forward` returns a distribution over trees, `target` says what it should become, and `mbr()` in `parse` is the tree with the most
right heads to be expected.
"""

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from rich.console import Console
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

import softq
from softq.formats.conllu import TreeSentence, read_conllu
from softq.formats.trees import is_projective, projectivise
from softq.metrics import attachment_statistics, las, uas

COLUMNS = ("words", "upos", "xpos", "feats")
WIDTHS = {"words": 128, "upos": 32, "xpos": 32, "feats": 32, "characters": 64}
SPELLING = 20  # characters of a word that are looked at, and
SPELLING_WIDTH = 128  # numbers they become
ARC, RELATION = 512, 128  # width of a word as head or dependent
LAYERS = 3
DROPOUT, INPUT_DROPOUT = 0.33, 0.2
WARMUP = 0.05  # part of training in which the learning rate rises
PADDING, UNKNOWN, ROOT = range(3)  # what every vocabulary starts with
NO_RELATION = -1

Vocabularies = dict[str, dict[str, int]]


# --- data -----------------------------------------------------------------------------------------------


def number(values: Iterable[str], least: int = 1) -> dict[str, int]:
    """A number for every value that occurs often enough."""
    kept = sorted(value for value, count in Counter(values).items() if count >= least)
    return {value: i for i, value in enumerate(kept, start=ROOT + 1)}


def make_vocabularies(sentences: Sequence[TreeSentence]) -> Vocabularies:
    """What the parser knows: words seen twice or more.

    Tags, features, characters and relations seen at all.
    """
    forms = [form for sentence in sentences for form in sentence.forms]
    found = {
        column: number(value for s in sentences for value in getattr(s, column))
        for column in ("upos", "xpos", "feats")
    }
    relations = sorted({relation for s in sentences for relation in s.relations})
    return {
        "words": number((form.lower() for form in forms), least=2),
        **found,
        "characters": number(character for form in set(forms) for character in form),
        "relations": {relation: i for i, relation in enumerate(relations)},
    }


class Batch(NamedTuple):
    """B sentences, the longest first.

    Position 0 of each is the root, and T positions are no padding.

    What the encoder reads has no padding at all: the roots of all sentences, then their first
    words, and so on (a `PackedSequence`).
    """

    columns: Tensor  # [4, T], numbers of COLUMNS
    characters: Tensor  # [T, SPELLING], 0 on padding
    # [longest], how many sentences reach each position; on the CPU, as a PackedSequence wants it
    steps: Tensor
    place: Tensor  # [T], the index of each position in a padded [B, n+1] matrix, flattened
    lengths: Tensor  # [B], words without the root
    heads: Tensor  # [B, n], 0 on padding
    relations: Tensor  # [B, n], NO_RELATION on padding
    index: Tensor  # [B], which sentences these are; on the CPU

    def to(self, device: torch.device) -> "Batch":
        """The same on another device."""
        stay = {"steps", "index"}
        return Batch(
            **{
                name: value if name in stay else value.to(device)
                for name, value in self._asdict().items()
            }
        )


TreeLoss = Callable[[softq.Distribution], Tensor]  # of one batch; one number per sentence


class Corpus:
    """Sentences as numbers: all positions in one row, a root before the words of each sentence."""

    def __init__(self, sentences: Sequence[TreeSentence], vocabularies: Vocabularies) -> None:
        spellings: dict[str, list[int]] = {}
        columns, forms, heads, relations = [], [], [], []
        for s in sentences:
            words = [form.lower() for form in s.forms]
            rows = zip(COLUMNS, (words, s.upos, s.xpos, s.feats), strict=True)
            columns.append(
                [
                    [ROOT, *(vocabularies[name].get(value, UNKNOWN) for value in values)]
                    for name, values in rows
                ]
            )
            forms += ["", *s.forms]
            heads += [0, *s.heads]
            relations += [
                NO_RELATION,
                *(vocabularies["relations"].get(relation, NO_RELATION) for relation in s.relations),
            ]
        known = vocabularies["characters"]
        for form in set(forms):
            numbers = [known.get(character, UNKNOWN) for character in form[-SPELLING:]]
            spellings[form] = numbers + [PADDING] * (SPELLING - len(numbers))
        self.columns = torch.tensor(
            [[number for row in columns for number in row[k]] for k in range(len(COLUMNS))]
        )  # [4, positions]
        self.characters = torch.tensor([spellings[form] for form in forms])  # [positions, SPELLING]
        self.heads, self.relations = torch.tensor(heads), torch.tensor(relations)
        self.sizes = torch.tensor([len(s.forms) + 1 for s in sentences])
        self.starts = self.sizes.cumsum(0) - self.sizes
        self.words = len(forms) - len(sentences)

    def batches(self, tokens: int, *, generator: torch.Generator | None = None) -> list[Batch]:
        """Sentences of about one length, about ``tokens`` words together.

        With a generator, in an order of its own.
        """
        ties = (
            torch.rand(len(self.sizes), generator=generator)
            if generator
            else torch.zeros(len(self.sizes))
        )
        order = (self.sizes + 0.9 * ties).argsort(descending=True, stable=True)
        count = max(round(self.words / tokens), 1)
        part = ((self.sizes[order].cumsum(0) - 1) * count).div(
            len(self.heads), rounding_mode="floor"
        )
        parts = order.split(part.unique_consecutive(return_counts=True)[1].tolist())
        shuffled = (
            torch.randperm(len(parts), generator=generator)
            if generator
            else torch.arange(len(parts))
        )
        return [self.batch(parts[i]) for i in shuffled]

    def batch(self, index: Tensor) -> Batch:
        """The sentences of this index, longest first."""
        sizes = self.sizes[index]
        step = torch.arange(int(sizes[0])).unsqueeze(1)
        inside = step < sizes  # [longest, B]
        source = (self.starts[index] + step)[inside]
        width = (
            -(-len(step) // 16) * 16
        )  # a compiler sees few sizes of tree, whatever the sentences' lengths
        place = (width * torch.arange(len(index)) + step)[inside]
        heads = torch.zeros(len(index), width, dtype=torch.long)
        heads.view(-1)[place] = self.heads[source]
        relations = torch.full_like(heads, NO_RELATION)
        relations.view(-1)[place] = self.relations[source]
        characters = self.characters[source]
        return Batch(
            self.columns[:, source],
            characters,
            inside.sum(1),
            place,
            sizes - 1,
            heads[:, 1:].contiguous(),
            relations[:, 1:],
            index,
        )


# --- model ----------------------------------------------------------------------------------------------


class Parser(nn.Module):
    """Words to a distribution over trees, and to scores of relations once heads are known."""

    def __init__(self, vocabularies: Vocabularies, *, hidden: int, spanning: bool) -> None:
        super().__init__()
        self.tree = softq.SpanningTree if spanning else softq.ProjectiveTree
        self.tables = nn.ModuleList(
            nn.Embedding(len(vocabularies[name]) + ROOT + 1, WIDTHS[name]) for name in COLUMNS
        )
        self.letters = nn.Embedding(
            len(vocabularies["characters"]) + ROOT + 1, WIDTHS["characters"], padding_idx=PADDING
        )
        self.spelling = nn.Conv1d(WIDTHS["characters"], SPELLING_WIDTH, kernel_size=3, padding=1)
        inputs = sum(WIDTHS[name] for name in COLUMNS) + SPELLING_WIDTH
        self.layers = nn.ModuleList(
            nn.LSTM(2 * hidden if i else inputs, hidden, bidirectional=True) for i in range(LAYERS)
        )
        self.views = nn.Linear(2 * hidden, 2 * ARC + 2 * RELATION)
        self.arc = nn.Linear(ARC, ARC)
        self.relation = nn.Linear(RELATION, len(vocabularies["relations"]) * (RELATION + 1))
        for biaffine in (self.arc, self.relation):
            nn.init.zeros_(biaffine.weight)  # every tree is as good as another at first

    def forward(self, batch: Batch) -> tuple[softq.Distribution, tuple[Tensor, Tensor]]:
        """A distribution over trees, and each position as head and as dependent of a relation, ``[B, n+1, RELATION]`` both."""
        count, width = len(batch.lengths), batch.heads.shape[1] + 1
        row = batch.place // width  # [T], the sentence of each position
        hidden = self.embed(batch)
        for layer in self.layers:
            hidden = layer(PackedSequence(self.drop(hidden, row, count), batch.steps))[0].data
        views = self.drop(
            F.leaky_relu(self.views(self.drop(hidden, row, count)), 0.1), row, count
        )  # [T, …]
        padded = (
            views.new_zeros(count * width, views.shape[1])
            .index_copy(0, batch.place, views)
            .unflatten(0, (count, width))
        )
        head, dependent, *relation_views = padded.split([ARC, ARC, RELATION, RELATION], -1)
        arcs = head @ self.arc(dependent).transpose(1, 2)  # [B, head, dependent]
        # The trees were checked when they were read. To check here, once more in every step, the
        # GPU would have to be waited for.
        return self.tree(arcs, batch.lengths, validate=not self.training), tuple(relation_views)

    def embed(self, batch: Batch) -> Tensor:
        """Words, tags, features and spelling, ``[T, …]``.

        In training some are left out and the others count more.
        """
        letters = self.letters(batch.characters).transpose(1, 2)  # [T, width, SPELLING]
        kinds = [table(column) for table, column in zip(self.tables, batch.columns, strict=True)]
        kinds.append(F.leaky_relu(self.spelling(letters).amax(-1), 0.1))
        if self.training:
            kept = torch.rand(len(batch.place), len(kinds), device=letters.device) > INPUT_DROPOUT
            factor = kept * (len(kinds) / kept.sum(1, keepdim=True).clamp(min=1))
            kinds = [kind * factor[:, k : k + 1] for k, kind in enumerate(kinds)]
        return torch.cat(kinds, -1)

    def drop(self, x: Tensor, row: Tensor, count: int) -> Tensor:
        """Dropout of the same coordinates at all positions of a sentence (variational dropout)."""
        return x * F.dropout(x.new_ones(count, x.shape[1]), DROPOUT)[row] if self.training else x

    def relation_scores(self, views: tuple[Tensor, Tensor], heads: Tensor) -> Tensor:
        """Scores of every relation between each word and its head, ``[B, n, relations]``."""
        head, dependent = views
        head = head.gather(1, heads.unsqueeze(-1).expand(-1, -1, RELATION))
        matrices = self.relation(dependent[:, 1:]).unflatten(
            -1, (-1, RELATION + 1)
        )  # [B, n, relations, RELATION+1]
        return (matrices @ F.pad(head, (0, 1), value=1.0).unsqueeze(-1)).squeeze(-1)

    @torch.no_grad()
    def parse(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Heads and relations, ``[B, n]`` both."""
        tree, views = self(batch)
        heads = tree.mbr()
        return heads, self.relation_scores(views, heads).argmax(-1)


# --- training -------------------------------------------------------------------------------------------


def target(
    tree: type[softq.Distribution], batch: Batch, options: argparse.Namespace
) -> softq.Target:
    """What the model should become: the one place in which ML, RAML and SQDML differ.

    It depends on the reference trees alone.
    """
    count, n = batch.heads.shape
    space = tree(
        torch.zeros(count, n + 1, n + 1, device=batch.heads.device), batch.lengths
    )  # any scores: which trees there are
    if options.objective == "ml":
        return softq.ml(space, batch.heads)
    return (softq.raml if options.objective == "raml" else softq.sqdml)(
        space, batch.heads, options.tau
    )


def take_step(
    parser: Parser, optimizer: torch.optim.Optimizer, batch: Batch, tree_loss: TreeLoss
) -> Tensor:
    """One step on one batch; the mean loss of a word."""
    tree, views = parser(batch)
    scores = parser.relation_scores(views, batch.heads)
    relation_loss = F.cross_entropy(
        scores.flatten(0, 1), batch.relations.flatten(), ignore_index=NO_RELATION, reduction="sum"
    )
    loss = (tree_loss(tree).sum() + relation_loss) / int(batch.steps[1:].sum())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(parser.parameters(), 5.0)
    optimizer.step()
    return loss.detach()


def make_optimizer(parser: Parser) -> torch.optim.Optimizer:
    """AdamW with a short memory, as Dozat and Manning have it.

    Its rate is a tensor that is filled before each step.
    """
    device = parser.views.weight.device
    rate = torch.zeros((), device=device)
    return torch.optim.AdamW(
        parser.parameters(),
        rate,
        betas=(0.9, 0.9),
        weight_decay=1e-3,
        fused=True,
        capturable=device.type == "cuda",
    )


def recorded(
    step: Callable[[], Tensor], stream: torch.cuda.Stream, pool: tuple[int, int]
) -> Callable[[], Tensor]:
    """The same step as one CUDA graph.

    To launch the kernels of an LSTM one by one takes longer than to run them.

    Graphs share their memory, so what a step returns is to be used before the next one is taken.
    """
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()  # what is compiled or kept is made here (the rate is still 0)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=stream):
        result = step()

    def replay() -> Tensor:
        graph.replay()
        return result

    return replay


def make_steps(
    parser: Parser,
    optimizer: torch.optim.Optimizer,
    batches: Sequence[Batch],
    losses: Sequence[TreeLoss],
) -> list[Callable[[], Tensor]]:
    """A step for each batch, to be taken in every epoch."""
    steps = [
        partial(take_step, parser, optimizer, batch, loss)
        for batch, loss in zip(batches, losses, strict=True)
    ]
    if batches[0].place.is_cpu:
        return steps
    stream, pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()
    # The matrix-tree kernel holds 64 nodes. With more, softq falls back on plain torch, thousands
    # of small kernels: not recorded.
    fits = [parser.tree is softq.ProjectiveTree or batch.heads.shape[1] < 64 for batch in batches]
    return [
        recorded(step, stream, pool) if fit else step for step, fit in zip(steps, fits, strict=True)
    ]


def evaluate(
    parser: Parser,
    sentences: Sequence[TreeSentence],
    batches: Sequence[Batch],
    relations: Sequence[str],
) -> tuple[float, float]:
    """UAS and LAS as the CoNLL 2018 shared task defines them, in percent."""
    parser.eval()
    heads: dict[int, list[int]] = {}
    names: dict[int, list[str]] = {}
    for batch in batches:
        for i, n, *found in zip(
            batch.index.tolist(),
            batch.lengths.tolist(),
            *(x.tolist() for x in parser.parse(batch)),
            strict=True,
        ):
            heads[i], names[i] = found[0][:n], [relations[number] for number in found[1][:n]]
    parser.train()
    order = range(len(sentences))
    sums = attachment_statistics(
        sentences, [heads[i] for i in order], [names[i] for i in order]
    ).sum(0)
    return 100 * uas(sums).item(), 100 * las(sums).item()


def train(
    parser: Parser,
    corpus: Corpus,
    score: Callable[[], tuple[float, float]],
    options: argparse.Namespace,
    console: Console,
) -> None:
    """Learn from the same batches in every epoch, in another order.

    The parser ends with the weights that were best by UAS, then LAS.
    """
    start, training = time.perf_counter(), 0.0
    generator = torch.Generator().manual_seed(options.seed)
    batches = [
        batch.to(options.device) for batch in corpus.batches(options.batch, generator=generator)
    ]
    losses = [
        partial(softq.cross_entropy, target(parser.tree, batch, options)) for batch in batches
    ]
    optimizer = make_optimizer(parser)
    steps = make_steps(parser, optimizer, batches, losses)
    best, best_epoch, weights = (-1.0, -1.0), 0, parser.state_dict()
    console.print(
        f"{len(batches)} batches, ready after {time.perf_counter() - start:.1f} s", highlight=False
    )
    console.print("epoch   seconds    loss     UAS     LAS")
    for epoch in range(1, options.epochs + 1):
        began = time.perf_counter()
        order = torch.randperm(len(steps), generator=generator).tolist()
        total = torch.zeros((), device=options.device)
        for i, number in enumerate(order):
            done = (epoch - 1 + (i + 0.5) / len(steps)) / options.epochs
            optimizer.param_groups[0]["lr"].fill_(
                options.lr * min(done / WARMUP, (1 - done) / (1 - WARMUP))
            )
            total += steps[number]()
        loss = total.item() / len(steps)  # waits for the GPU, once
        if not loss < float("inf"):
            raise SystemExit(
                f"the loss became {loss} in epoch {epoch}; try a lower --lr than {options.lr:g}"
            )
        training += time.perf_counter() - began
        scores = score()
        if scores > best:
            best, best_epoch, weights = (
                scores,
                epoch,
                {name: value.clone() for name, value in parser.state_dict().items()},
            )
        console.print(
            f"{epoch:5} {time.perf_counter() - began:9.2f} {loss:7.3f} {scores[0]:7.2f}"
            f" {scores[1]:7.2f}",
            highlight=False,
        )
    parser.load_state_dict(weights)
    console.print(
        f"best UAS {best[0]:.2f}, LAS {best[1]:.2f} (epoch {best_epoch});"
        f" {time.perf_counter() - start:.1f} s in all, {training:.1f} s of them in steps:"
        f" {options.epochs * corpus.words / training:,.0f} words/s",
        highlight=False,
        soft_wrap=True,
    )


def save(parser: Parser, vocabularies: Vocabularies, options: argparse.Namespace) -> None:
    """Weights, and what is needed to make the parser that they belong to."""
    options.out.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: value.contiguous() for name, value in parser.state_dict().items()},
        options.out / "parser.safetensors",
    )
    described = {
        "hidden": options.hidden,
        "spanning": options.spanning,
        "vocabularies": vocabularies,
    }
    (options.out / "parser.json").write_text(
        json.dumps(described, ensure_ascii=False), encoding="utf-8"
    )


def projective(sentences: Sequence[TreeSentence], console: Console) -> list[TreeSentence]:
    """Sentences whose crossing arcs are lifted until none cross.

    What a projective model can learn.
    """
    crossing = [not is_projective(s.heads) for s in sentences]
    console.print(
        f"{sum(crossing)} of {len(sentences)} training trees have crossing arcs and are"
        " projectivised",
        highlight=False,
    )
    return [lifted(s) if bad else s for s, bad in zip(sentences, crossing, strict=True)]


def lifted(sentence: TreeSentence) -> TreeSentence:
    """The sentence without crossing arcs."""
    heads = tuple(projectivise(sentence.heads).tolist())
    # A lifted word's relation is to the head that it has lost. To its new one it has none: "",
    # which becomes NO_RELATION.
    kept = (
        relation if new == old else ""
        for relation, new, old in zip(sentence.relations, heads, sentence.heads, strict=True)
    )
    return replace(sentence, heads=heads, relations=tuple(kept))


def main() -> None:
    """Read, train, save."""
    make = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    make.add_argument(
        "--train", type=Path, required=True, help="trees to learn from: CoNLL-U, plain, .gz or .xz"
    )
    make.add_argument("--dev", type=Path, required=True, help="trees to choose the best epoch by")
    make.add_argument(
        "--objective",
        choices=["ml", "raml", "sqdml"],
        default="ml",
        help="what to train toward (ml)",
    )
    make.add_argument("--tau", type=float, default=0.3, help="temperature of raml and sqdml (0.3)")
    make.add_argument("--spanning", action="store_true", help="let arcs cross")
    make.add_argument("--epochs", type=int, default=40, help="times to see the training trees (40)")
    make.add_argument("--batch", type=int, default=4000, help="words in a batch (4000)")
    make.add_argument("--lr", type=float, default=2e-3, help="highest learning rate (0.002)")
    make.add_argument(
        "--hidden", type=int, default=400, help="width of the LSTM in each direction (400)"
    )
    make.add_argument(
        "--seed", type=int, default=0, help="of first weights, dropout and batches (0)"
    )
    make.add_argument(
        "--device",
        type=torch.device,
        default="cuda" if torch.cuda.is_available() else "cpu",
        help="where to train",
    )
    make.add_argument(
        "--out", type=Path, help="folder for the trained parser: parser.safetensors and parser.json"
    )
    options = make.parse_args()
    torch.manual_seed(options.seed)
    torch.set_float32_matmul_precision("high")  # TF32 on GPUs that have it
    console = Console()

    trees, dev = read_conllu(options.train), read_conllu(options.dev)
    vocabularies = make_vocabularies(trees)
    corpus = Corpus(trees if options.spanning else projective(trees, console), vocabularies)
    dev_batches = [
        batch.to(options.device) for batch in Corpus(dev, vocabularies).batches(2 * options.batch)
    ]
    parser = Parser(vocabularies, hidden=options.hidden, spanning=options.spanning).to(
        options.device
    )
    train(
        parser,
        corpus,
        lambda: evaluate(parser, dev, dev_batches, list(vocabularies["relations"])),
        options,
        console,
    )
    if options.out:
        save(parser, vocabularies, options)


if __name__ == "__main__":
    main()
