"""The tree loss inside a parser.

Softq against SuPar's distributions in the training of `softq.neural.BiaffineParser`.

Contenders take turns on the same batches of the same trees, bucketed by length. *Loss* is forward
and backward of the loss alone, on the arc scores of the parser; *step* is all of a training step,
from words to new weights, the loss of relations included. *Kernel by kernel* is one loop for all,
in which the tree loss alone differs. *As trained* is how ``softq train parsing`` steps on a GPU,
each step recorded; SuPar's distributions build index tensors on the CPU in every call and stay with
the plain loop, so there two loops are compared. SuPar gets each batch at its longest sentence,
without the padding that keeps softq's compiled sizes few. All losses are checked to agree first.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

import softq
from peers import load_supar
from softq.formats.conllu import TreeSentence, read_conllu
from softq.kernels.spanning import MOST_NODES_ON_GPU
from softq.neural import BiaffineParser, TreeVocabulary
from softq.neural.parser_settings import ParserSettings
from softq.neural.recorded_steps import RecordedSteps
from timing import by_turns

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from biaffine import Batch, make_batches, make_target, relation_loss

BAR = 5.0  # projective trees: times faster than SuPar
TreeLoss = Callable[[softq.Distribution], Tensor]  # of one batch; one number per sentence


def tree_of(parser: BiaffineParser) -> type[softq.SpanningTree] | type[softq.ProjectiveTree]:
    return softq.SpanningTree if parser.spanning else softq.ProjectiveTree


def losses_of(parser: BiaffineParser, batches: list[Batch], label: str) -> list[TreeLoss]:
    """The loss of one contender on each batch."""
    if label == "SuPar":
        kind = load_supar().MatrixTree if parser.spanning else load_supar().DependencyCRF
        return [partial(supar_loss, kind, batch) for batch in batches]
    options = argparse.Namespace(objective="raml" if label.endswith("RAML") else "ml", tau=0.3)
    found = []
    for batch in batches:  # any scores: a target depends on the references alone
        zeros = torch.zeros(*batch.heads.shape, 1, device=batch.heads.device)
        arcs = torch.nn.functional.pad(zeros.expand(-1, -1, batch.heads.shape[1]), (1, 0, 1, 0))
        space = tree_of(parser)(arcs, batch.sentences.lengths)
        found.append(partial(softq.cross_entropy, make_target(space, batch.heads, options)))
    return found


def supar_loss(kind: Callable[..., Any], batch: Batch, model: softq.Distribution) -> Tensor:
    size = len(batch.sentences.words.packing.steps)  # the longest sentence and the root
    arcs = model.scores[:, :size, :size].transpose(1, 2)  # its scores are [B, dependent, head]
    return -kind(arcs, batch.sentences.lengths).log_prob(
        torch.nn.functional.pad(batch.heads[:, : size - 1], (1, 0))
    )


def loss_alone(
    parser: BiaffineParser, batches: list[Batch], losses: list[TreeLoss]
) -> Callable[[], float]:
    """Forward and backward of the loss on every batch; the sum of losses."""
    with torch.no_grad():
        leaves = [parser(batch.sentences)[0].scores.detach().clone() for batch in batches]
    for leaf in leaves:
        leaf.requires_grad_()

    def run() -> float:
        total = torch.zeros((), device=leaves[0].device)
        for leaf, batch, loss in zip(leaves, batches, losses, strict=True):
            leaf.grad = None
            value = loss(tree_of(parser)(leaf, batch.sentences.lengths, validate=False)).sum()
            value.backward()
            total += value.detach()
        return total.item()

    return run


def sweep(parser: BiaffineParser, batch: Batch, tree_loss: TreeLoss) -> Tensor:
    """Forward and back on one batch; the sum of losses."""
    tree, views = parser(batch.sentences)
    loss = tree_loss(tree).sum() + relation_loss(parser, views, batch)
    (loss / len(batch.sentences.words.words)).backward()
    return loss.detach()


def take_all(
    steps: RecordedSteps, parser: BiaffineParser, batches: list[Batch], losses: list[TreeLoss]
) -> Callable[[], float]:
    """A step of training on every batch; the sum of losses."""
    jobs = [
        (
            partial(sweep, parser, batch, loss),
            not parser.spanning or batch.heads.shape[1] < MOST_NODES_ON_GPU,
        )
        for batch, loss in zip(batches, losses, strict=True)
    ]

    def run() -> float:
        total = torch.zeros((), device=batches[0].heads.device)
        for step, fits in jobs:
            total += steps.take(step, 0, step, record=fits)[0]
        return total.item()

    return run


def compare(
    work: str, calls: dict[str, Callable[[], float]], count: int, rounds: int, bar: float | None
) -> dict[str, Any]:
    """Milliseconds of one batch for each contender."""
    times = {label: ms / count for label, ms in by_turns(calls, rounds=rounds).items()}
    return {
        "work": work,
        "ms": {label: round(ms, 4) for label, ms in times.items()},
        "times_faster": round(times["SuPar"] / times["softq"], 2),
        "raml_over_ml": round(times["softq RAML"] / times["softq"], 3),
        "bar": bar,
    }


def tree_case(
    sentences: list[TreeSentence], options: argparse.Namespace, *, spanning: bool
) -> list[dict[str, Any]]:
    """Loss alone and whole steps on one kind of tree."""
    relations = sorted({name for tree in sentences for name in tree.relations})
    torch.manual_seed(0)
    parser = BiaffineParser(
        TreeVocabulary.of(sentences, relations),
        ParserSettings(hidden=options.hidden),
        spanning=spanning,
    ).to(options.device)
    torch.nn.init.normal_(parser.biaffine.arc.weight, std=0.05)  # scores that tell arcs apart
    all_batches = make_batches(parser, sentences, options.batch)
    every = max(len(all_batches) // options.steps, 1)
    batches = all_batches[every // 2 :: every]  # of all lengths
    device = torch.device(options.device)
    eagerly, recorded = (  # at rate 0: all see the same weights
        RecordedSteps(
            torch.optim.AdamW(parser.parameters(), 0.0, fused=True),
            device,
            clip=5.0,
            graphs=graphs,
        )
        for graphs in (False, True)
    )
    losses = {
        label: losses_of(parser, batches, label) for label in ("softq", "softq RAML", "SuPar")
    }

    kind = "spanning" if spanning else "projective"
    alone = {label: loss_alone(parser, batches, each) for label, each in losses.items()}
    ours, theirs = alone["softq"](), alone["SuPar"]()
    if abs(ours - theirs) > 1e-3 * abs(ours):
        raise SystemExit(
            f"{kind} trees: SuPar computes another loss ({theirs}) than softq ({ours})"
        )
    eager = {label: take_all(eagerly, parser, batches, each) for label, each in losses.items()}
    cases = [("loss", alone), ("step, kernel by kernel", eager)]
    if options.device == "cuda":
        graphs = {
            label: take_all(recorded, parser, batches, losses[label])
            for label in ("softq", "softq RAML")
        }
        cases.append(("step, as trained", {**graphs, "SuPar": eager["SuPar"]}))
    return [
        {
            "trees": kind,
            **compare(
                f"{kind}: {work}", calls, len(batches), options.rounds, None if spanning else BAR
            ),
        }
        for work, calls in cases
    ]


def main() -> None:
    make = argparse.ArgumentParser(description=__doc__)
    make.add_argument("--train", type=Path, required=True, help="a CoNLL-U file of trees")
    make.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    make.add_argument("--batch", type=int, default=4000, help="words in a batch")
    make.add_argument(
        "--steps", type=int, default=10, help="batches, spread over the lengths of sentences"
    )
    make.add_argument("--hidden", type=int, default=400, help="width of the LSTM")
    make.add_argument("--rounds", type=int, default=7)
    make.add_argument("--json", action="store_true", help="print the JSON object alone")
    options = make.parse_args()
    torch.set_float32_matmul_precision("high")
    sentences = read_conllu(options.train)
    rows = [
        row
        for spanning in (False, True)
        for row in tree_case(sentences, options, spanning=spanning)
    ]
    machine = (
        torch.cuda.get_device_name()
        if options.device == "cuda"
        else platform.processor() or platform.machine()
    )
    if not options.json:
        show(rows, machine)
    print(
        json.dumps(
            {
                "benchmark": "biaffine",
                "device": options.device,
                "machine": machine,
                "torch": torch.__version__,
                "rows": rows,
            }
        )
    )


def show(rows: list[dict[str, Any]], machine: str) -> None:
    table = Table(title=f"milliseconds a batch, {machine}", box=box.SIMPLE)
    for column in ("work", "softq", "softq RAML", "SuPar", "times faster", "bar"):
        table.add_column(column, justify="left" if column == "work" else "right")
    for row in rows:
        times = [f"{row['ms'][label]:.2f}" for label in ("softq", "softq RAML", "SuPar")]
        table.add_row(
            row["work"],
            *times,
            f"{row['times_faster']:.1f}×",
            f"{row['bar']:g}×" if row["bar"] else "",
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
