"""Parsers on the encoders of tiny_taggers."""

import torch

from softq.integrations.transformers.dependency_parsing import (
    DependencyArguments,
    DependencyModel,
    DependencyTrainer,
)
from tiny_taggers import arguments, encoder, tokenizer

RELATIONS = ("root", "nsubj", "obj", "case", "nmod", "punct", "flat")
TREES = [
    {
        "tokens": ["Ann", "Lee", "met", "Bob", "in", "Paris", "."],
        "heads": [3, 1, 0, 3, 6, 3, 3],
        "deprels": ["nsubj", "flat", "root", "obj", "case", "nmod", "punct"],
    },
    {
        "tokens": ["internationalisation", "of", "Rome"],
        "heads": [0, 3, 1],
        "deprels": ["root", "case", "nmod"],
    },
    {"tokens": ["Lee", "ran"], "heads": [2, 0], "deprels": ["nsubj", "root"]},
    {"tokens": ["Bob"], "heads": [0], "deprels": ["root"]},
]


def parser(kind="bert", *, seed=0, relations=RELATIONS, **settings):
    """A parser with an encoder of random weights, and scores that differ; dropout only if asked for."""
    limit = settings.pop("limit", 32)
    small = {"dropout": 0.0, "arc_size": 8, "relation_size": 4}
    model = DependencyModel.from_encoder(
        encoder(kind, seed=seed, limit=limit), relations, **{**small, **settings}
    )
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for weight in model.head_parameters():
            weight.copy_(0.5 * torch.randn(weight.shape, generator=generator))
    return model


def trainer_for(model, folder, rows=TREES, *, kind="bert", evaluate=None, **settings):
    """A trainer of rows."""
    return DependencyTrainer(
        model,
        arguments(folder, made=DependencyArguments, **settings),
        train_dataset=rows,
        eval_dataset=evaluate,
        processing_class=tokenizer(kind),
    )
