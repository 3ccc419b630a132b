"""Taggers and parsers on an encoder: what a chain or a tree costs beside a softmax of each token.

An encoder of the size of BERT-base with random weights, 64 sentences of 62 words, a subword each,
with two special tokens. A step is loss, gradient and AdamW, everything on the device already. All
contenders take turns: the softmax head of Transformers, the chain of `TokenClassificationModel` and
the trees of `DependencyModel`, toward ML and RAML. *Share* is the part of a step that goes beyond
that of the softmax.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from transformers import BertConfig, BertForTokenClassification, BertModel

from sequences import machine_name
from softq.integrations.transformers import DependencyModel, TokenClassificationModel
from softq.integrations.transformers.dependency_parsing import TreeLosses
from softq.integrations.transformers.token_classification.losses import SentenceLosses
from timing import by_turns

SENTENCES, WORDS, LABELS, RELATIONS = 64, 62, 9, 50
TAU = 0.3


def encoder_config(tiny: bool) -> BertConfig:
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return BertConfig(**(size | {"intermediate_size": 16, "vocab_size": 99} if tiny else {}))


def words_of(device: str, vocab: int, generator: torch.Generator) -> dict[str, Tensor]:
    """What models of words read."""
    shape = (SENTENCES, WORDS + 2)
    place = torch.arange(1, WORDS + 1).expand(SENTENCES, -1)
    window = torch.arange(SENTENCES).unsqueeze(1).expand_as(place)
    found = {
        "input_ids": torch.randint(5, vocab, shape, generator=generator),
        "attention_mask": torch.ones(shape, dtype=torch.int64),
        "words": torch.stack([window, place, place + 1], -1),
        "lengths": torch.full((SENTENCES,), WORDS),
    }
    return {name: value.to(device) for name, value in found.items()}


def random_heads(generator: torch.Generator) -> Tensor:
    """Projective trees: each word hangs off the one before it, or off the first."""
    chain = torch.arange(WORDS).expand(SENTENCES, -1)
    starts = torch.rand(SENTENCES, WORDS, generator=generator) < 0.5
    return torch.where(starts & (chain > 0), 1, chain)


def contenders(options: argparse.Namespace) -> dict[str, Callable[[], object]]:
    """A step of each."""
    generator, config = torch.Generator().manual_seed(0), encoder_config(options.tiny)
    inputs = words_of(options.device, config.vocab_size, generator)
    labels = torch.randint(LABELS, (SENTENCES, WORDS), generator=generator)
    padded = nn.functional.pad(labels, (1, 1), value=-100).to(options.device)
    every, ones = torch.arange(SENTENCES), torch.ones(SENTENCES, 1, dtype=torch.float64)
    tags = {"rows": every, "values": labels.unsqueeze(1), "weights": ones}
    relations = torch.randint(RELATIONS, (SENTENCES, 1, WORDS), generator=generator)
    trees = {"rows": every, "weights": ones, "relations": relations}
    trees["heads"] = random_heads(generator).unsqueeze(1)
    targets = {
        kind: {"references": {name: value.to(options.device) for name, value in part.items()}}
        for kind, part in (("chain", tags), ("tree", trees))
    }
    softmax = BertForTokenClassification(config)
    softmax.num_labels, softmax.classifier = LABELS, nn.Linear(config.hidden_size, LABELS)
    made: dict[str, tuple[nn.Module, Callable[[nn.Module], Tensor]]] = {
        "softmax": (
            softmax,
            lambda model: (
                model(
                    input_ids=inputs["input_ids"],
                    attention_mask=inputs["attention_mask"],
                    labels=padded,
                ).loss
            ),
        )
    }
    for kind in ("chain", "projective tree", "spanning tree"):
        encoder: Any = BertModel(config)
        if kind == "chain":
            model: Any = TokenClassificationModel.from_encoder(
                encoder, list(map(str, range(LABELS)))
            )
            losses: Any = SentenceLosses
        else:
            names = list(map(str, range(RELATIONS)))
            model = DependencyModel.from_encoder(
                encoder, names, spanning=kind.startswith("spanning")
            )
            losses = TreeLosses
        for objective, tau in (("ml", None), ("raml", TAU)):
            criterion = partial(losses(objective, tau), targets=targets[kind.split()[-1]])
            made[f"{kind}, {objective.upper()}"] = (
                model,
                lambda model, criterion=criterion: (
                    model(**inputs, criterion=criterion).loss.sum() / labels.numel()
                ),
            )
    return {name: step_of(*both, options) for name, both in made.items()}


def step_of(
    model: nn.Module, loss_of: Callable[[nn.Module], Tensor], options: argparse.Namespace
) -> Callable[[], object]:
    model = model.to(options.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)

    def step() -> None:
        autocast = torch.autocast(options.device, torch.bfloat16)
        with autocast if options.precision == "bf16" else contextlib.nullcontext():
            loss = loss_of(model)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def main() -> None:
    make = argparse.ArgumentParser(description=__doc__)
    make.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    make.add_argument("--precision", default="bf16", choices=["float32", "bf16"])
    make.add_argument("--rounds", type=int, default=30)
    make.add_argument("--tiny", action="store_true", help="a tiny encoder, to try it on a CPU")
    make.add_argument("--json", action="store_true", help="print the JSON object alone")
    options = make.parse_args()
    torch.manual_seed(0)
    found = by_turns(contenders(options), rounds=options.rounds, warmup=5)
    rows = [
        {"head": name, "ms": round(ms, 2), "share": round(1 - found["softmax"] / ms, 3)}
        for name, ms in found.items()
    ]
    machine = machine_name(options.device)
    if not options.json:
        title = f"A step with {SENTENCES} × {WORDS} words, {options.precision}, {machine}"
        table = Table("head", "ms", "share of the step", title=title)
        for row in rows:
            table.add_row(str(row["head"]), str(row["ms"]), f"{row['share']:.1%}")
        Console(width=100).print(table)
    about = {"device": options.device, "machine": machine, "torch": torch.__version__}
    print(json.dumps({"benchmark": "words", **about, "tiny": options.tiny, "rows": rows}))


if __name__ == "__main__":
    main()
