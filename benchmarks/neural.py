"""Training speed of neural taggers and parsers, and what a structured head costs.

Sentences are made here: as many, and as long, as those of the English Web Treebank, over a Zipfian
vocabulary. *Recorded* is how ``softq train … --model neural`` steps on a GPU, each batch one CUDA
graph; *eager* is the same step kernel by kernel. The share of the loss is that of log Z and its
gradient, that of decoding the most probable labels of the same sentences, both against the steps.
Heads on an encoder of BERT-base's size are those of ``words.py``. Bars are those of an H200.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import softq
from softq.formats.conllu import read_conllu
from softq.lab.processes import Workers
from softq.lab.recipe import build, parse_flags
from softq.lab.tasks import TASKS
from softq.neural import BiaffineParser, SequenceTagger, TreeVocabulary, WordVocabulary
from softq.neural.parser_settings import ParserSettings
from softq.neural.recorded_steps import matrix_precision
from softq.neural.tagger_settings import TaggerSettings
from timing import by_turns

SENTENCES, WORDS, MEAN_LENGTH, LONGEST = 4096, 15_000, 16.3, 80
LABELS = ("O", *(f"{kind}-{entity}" for entity in ("PER", "LOC", "ORG", "MISC") for kind in "BI"))
RELATIONS = tuple(f"relation{k}" for k in range(37))
UPOS = tuple(f"POS{k}" for k in range(17))
TINY = False  # the encoder, to try it on a CPU
TAGGER_SIZES = ["--batch-size", "32"]
PARSER_SIZES: list[str] = []
BARS = {
    "tagger, recorded": (20_000.0, "at least"),  # sentences/s
    "loss and decoding": (0.15, "below"),  # of a step
    "chain head": (0.10, "below"),  # more than a step with a softmax head
    "tree head": (0.15, "below"),
    "gradients": (1e-5, "below"),
}
PARTS = ("tagger", "parser", "gradients", "transformers")


# --- sentences ------------------------------------------------------------------------------------


def make_lengths(random: np.random.Generator, count: int) -> np.ndarray:
    """Lengths as EWT has them: many short sentences, few long ones."""
    spread = random.gamma(1.6, (MEAN_LENGTH - 1) / 1.6, count)
    return 1 + np.minimum(spread.astype(np.int64), LONGEST - 1)


def make_files(folder: Path, count: int) -> dict[str, Path]:
    """Sentences with random labels, and with random projective trees."""
    random = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
    names = ["".join(random.choice(letters, 1 + random.poisson(4))) for _ in range(WORDS)]
    ner, trees = [], []
    lengths = make_lengths(random, count)
    for first in range(0, count, 256):
        some = torch.from_numpy(lengths[first : first + 256])
        zeros = torch.zeros(len(some), int(some.max()) + 1, int(some.max()) + 1)
        tops = softq.ProjectiveTree(zeros, some).sample(generator=torch.Generator().manual_seed(1))
        for size, heads in zip(some.tolist(), tops.tolist(), strict=True):
            ranks = np.exp(random.random(size) * np.log(WORDS)).astype(int) - 1
            words = [names[rank] for rank in ranks]
            tags = random.choice(len(LABELS), size, p=[0.84, *[0.02] * 8])
            ner.append("".join(f"{w}\t{LABELS[k]}\n" for w, k in zip(words, tags, strict=True)))
            rows = [
                f"{i}\t{word}\t_\t{random.choice(UPOS)}\t_\t_\t{head}"
                f"\t{'root' if head == 0 else random.choice(RELATIONS)}\t_\t_\n"
                for i, (word, head) in enumerate(zip(words, heads[:size], strict=True), 1)
            ]
            trees.append("".join(rows))
    found = {"ner": folder / "train.conll", "parsing": folder / "train.conllu"}
    for path, sentences in zip(found.values(), (ner, trees), strict=True):
        path.write_text("\n".join([*sentences, ""]), encoding="utf-8")
    return found


# --- training -------------------------------------------------------------------------------------


def make_learner(task: str, path: Path, device: str, *flags: str) -> Any:
    """The learner of ``softq train TASK --model neural``, for more epochs than are timed."""
    recipe = TASKS[task].recipe_type
    given = ["--model", "neural", "--train", str(path), "--epochs", "1000", *flags]
    cells = [build(recipe, parse_flags(recipe, given))]
    return TASKS[task].learner(cells, Workers(torch.device(device)))


def epochs(learner: Any) -> Callable[[], None]:
    """Train one more epoch with each call."""
    done = iter(range(1000))
    return lambda: learner.train(next(done), 0, learner.steps, [True])


def bench_tagger(path: Path, device: str, rounds: int) -> list[dict[str, Any]]:
    """Sentences per second, and the share of loss and decoding."""
    gpu = device == "cuda"
    learners = {"eager": make_learner("ner", path, device, *TAGGER_SIZES, "--no-graphs")}
    if gpu:
        learners["recorded"] = make_learner("ner", path, device, *TAGGER_SIZES)
        learners["recorded, 128 sentences"] = make_learner(
            "ner", path, device, "--batch-size", "128"
        )
    times = {}
    for name, learner in learners.items():
        times |= by_turns({name: epochs(learner)}, rounds=rounds, warmup=1)
    count = learners["eager"].examples
    rows = [
        row(f"tagger, {name}", count / ms * 1e3, "sentences/s", steps_ms=ms / learners[name].steps)
        for name, ms in times.items()
    ]
    how = "recorded" if gpu else "eager"
    return [*rows, *bench_share(learners[how], times[how], rounds)]


def bench_share(learner: Any, epoch_ms: float, rounds: int) -> list[dict[str, Any]]:
    """Time of losses, and of decoding, of all sentences against that of an epoch of steps."""
    tagger: SequenceTagger = learner._module
    with torch.no_grad():
        batches = learner._losses._batches
        every = max(len(batches) // 16, 1)
        inputs = [(tagger.scores(words), words.packing.lengths) for words in batches[::every]]
    table = tagger.transitions.detach().requires_grad_()
    leaves = [scores.detach().requires_grad_() for scores, _ in inputs]

    def losses() -> None:
        table.grad = None
        for leaf, (_, lengths) in zip(leaves, inputs, strict=True):
            leaf.grad = None
            softq.Chain(leaf, table, lengths, validate=False).log_partition.sum().backward()

    # decoding takes sentences in larger batches
    encoded = learner._encoded["train"]
    with torch.no_grad():
        together = [encoded.batch(part) for part in np.array_split(by_length(encoded.lengths), 8)]
        scored = [tagger.scores(batch.to(table.device)) for batch in together]
    sizes = [batch.packing.lengths.to(table.device) for batch in together]

    def decoding() -> None:
        for scores, lengths in zip(scored, sizes, strict=True):
            softq.Chain(scores, table.detach(), lengths, validate=False).mode()

    calls: dict[str, Callable[[], object]] = {"loss": losses, "decoding": decoding}
    if table.is_cuda:
        calls["loss"] = graphed(losses)
    ms = by_turns(calls, rounds=rounds)
    scale = len(batches) / len(inputs)
    shares = {"loss": ms["loss"] * scale / epoch_ms, "decoding": ms["decoding"] / epoch_ms}
    total = sum(shares.values())
    found = [row(f"share of {name}", share, "of a step") for name, share in shares.items()]
    return [*found, row("loss and decoding", total, "of a step")]


def by_length(lengths: np.ndarray) -> np.ndarray:
    return np.argsort(lengths, kind="stable")


def graphed(call: Callable[[], object]) -> Callable[[], object]:
    """The same as one CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()  # what is compiled or allocated once is made here
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def bench_parser(path: Path, device: str, rounds: int) -> list[dict[str, Any]]:
    """Words per second."""
    flags = {"eager": ["--no-graphs"]} | ({"recorded": []} if device == "cuda" else {})
    words, rows = sum(len(one.forms) for one in read_conllu(path)), []
    for name, more in flags.items():
        learner = make_learner("parsing", path, device, *PARSER_SIZES, *more)
        ((_, ms),) = by_turns({name: epochs(learner)}, rounds=rounds, warmup=1).items()
        rows.append(
            row(f"parser, {name}", words / ms * 1e3, "words/s", steps_ms=ms / learner.steps)
        )
    return rows


# --- gradients ------------------------------------------------------------------------------------


def bench_gradients(path: dict[str, Path], device: str) -> list[dict[str, Any]]:
    """Largest difference between the gradient of a batch's mean loss and that of a plain loop."""
    trees = read_conllu(path["parsing"])[:32]
    words = [one.forms for one in trees]
    generator = torch.Generator().manual_seed(0)
    tags = [torch.randint(len(LABELS), (len(one),), generator=generator) for one in words]
    vocabulary = WordVocabulary(WordVocabulary.of(words).words, tuple("etaoinshrdlu"))
    tagger = SequenceTagger(vocabulary, LABELS, TaggerSettings(dropout=0.0)).to(device).train()
    known = TreeVocabulary(vocabulary, (UPOS, (), ()), RELATIONS)
    sizes = ParserSettings(dropout=0.0, input_dropout=0.0)
    parser = BiaffineParser(known, sizes).to(device).train()
    for name, parameter in [*tagger.named_parameters(), *parser.named_parameters()]:
        if "transitions" in name or name.split(".")[-2] in ("arc", "relation"):
            nn.init.normal_(parameter, std=0.05)  # scores that tell outputs apart

    def tagger_loss(group: Sequence[int]) -> Tensor:
        p = tagger([words[i] for i in group])
        gold = nn.utils.rnn.pad_sequence([tags[i] for i in group], batch_first=True)
        return softq.cross_entropy(softq.raml(p, gold.to(device), tau=0.3), p).sum()

    def parser_loss(group: Sequence[int]) -> Tensor:
        tree, views = parser([trees[i] for i in group])
        heads = torch.zeros(len(group), tree.scores.shape[1] - 1, dtype=torch.int64)
        for place, i in enumerate(group):
            heads[place, : len(trees[i].heads)] = torch.tensor(trees[i].heads)
        heads = heads.to(device)
        relations = parser.relation_scores(views, heads).log_softmax(-1)[..., 0]
        real = torch.arange(heads.shape[1], device=device) < tree.lengths.unsqueeze(1)
        loss = softq.cross_entropy(softq.raml(tree, heads, tau=0.3), tree).sum()
        return loss - (relations * real).sum()

    rows = []
    with matrix_precision("float32"):
        for name, model, loss in (
            ("tagger", tagger, tagger_loss),
            ("parser", parser, parser_loss),
        ):
            gradients = []
            for groups in ([range(len(words))], [[i] for i in range(len(words))]):
                model.zero_grad()
                for group in groups:
                    (loss(group) / len(words)).backward()
                gradients.append([p.grad.clone() for p in model.parameters()])
            apart = max(
                float((a - b).abs().max() / b.abs().max().clamp(min=1))
                for a, b in zip(*gradients, strict=True)
            )
            rows.append(row(f"gradients, {name}", apart, "largest difference", bar="gradients"))
    return rows


# --- heads on an encoder of Transformers ------------------------------------------------------------


def bench_transformers(device: str, rounds: int) -> list[dict[str, Any]]:
    """Milliseconds of a step with each head by ML, and how much more than a softmax it costs."""
    import words

    precision = "bf16" if device == "cuda" else "float32"
    options = argparse.Namespace(device=device, precision=precision, tiny=TINY)
    steps = {
        name.removesuffix(", ML"): step
        for name, step in words.contenders(options).items()
        if not name.endswith("RAML")
    }
    ms = by_turns(steps, rounds=rounds, warmup=5)
    found = [row(f"step, {name}", value, "ms") for name, value in ms.items()]
    heads = {"chain head": "chain", "tree head": "projective tree"}
    return found + [
        row(name, ms[head] / ms["softmax"] - 1, "more than a softmax")
        for name, head in heads.items()
    ]


# --- the table ------------------------------------------------------------------------------------


def row(work: str, value: float, unit: str, *, bar: str = "", **more: float) -> dict[str, Any]:
    """A line of the table; the bar is that of its name, or of another."""
    found = {"work": work, "value": value, "unit": unit, **more}
    if (bar or work) in BARS:
        limit, side = BARS[bar or work]
        reached = value >= limit if side == "at least" else value < limit
        found |= {"bar": f"{side} {limit:g}", "reached": reached}
    return found


def show(rows: list[dict[str, Any]], machine: str) -> None:
    table = Table("work", "value", "unit", "ms a step", "bar", title=machine, box=box.SIMPLE)
    for one in rows:
        value = f"{one['value']:,.0f}" if one["value"] >= 100 else f"{one['value']:.3g}"
        step = f"{one['steps_ms']:.2f}" if "steps_ms" in one else ""
        verdict = {True: "reached", False: "missed", None: ""}[one.get("reached")]
        bar = f"{verdict} ({one['bar']})" if verdict else ""
        table.add_row(one["work"], value, one["unit"], step, bar)
    Console(width=120).print(table)


def main() -> None:
    make = argparse.ArgumentParser(description=__doc__)
    make.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    make.add_argument("--rounds", type=int, default=5, help="turns, of which the median is taken")
    make.add_argument("--sentences", type=int, default=SENTENCES, help="that are made")
    make.add_argument("--part", choices=PARTS, action="append", help="measure these parts alone")
    make.add_argument("--json", action="store_true", help="print the JSON object alone")
    options = make.parse_args()
    parts, device, rows = options.part or PARTS, options.device, []
    with tempfile.TemporaryDirectory() as folder:
        files = make_files(Path(folder), options.sentences)
        if "tagger" in parts:
            rows += bench_tagger(files["ner"], device, options.rounds)
        if "parser" in parts:
            rows += bench_parser(files["parsing"], device, options.rounds)
        if "gradients" in parts:
            rows += bench_gradients(files, device)
    if "transformers" in parts:
        rows += bench_transformers(device, 3 * options.rounds)
    machine = torch.cuda.get_device_name() if device == "cuda" else platform.machine()
    if not options.json:
        show(rows, machine)
    about = {"benchmark": "neural", "device": device, "machine": machine}
    print(json.dumps(about | {"torch": torch.__version__, "rows": rows}))


if __name__ == "__main__":
    main()
