"""Small classification problems for the tests of `softq.RewardClassifier`."""

import numpy as np
import torch

from softq import theory

OBJECTIVES = ["ml", "raml", "sqdml"]
REWARDS = theory.four_class_problem(1).rewards.numpy()


def random_problem(seed, size=4, rows=6):
    """Rows P(·|x) and a reward table."""
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.ones(size), rows), rng.normal(size=(size, size)) * rng.choice(
        [0.5, 5.0]
    )


def draw_four_classes(rows, labels, seed):
    """Points of the square, labels drawn for each, and P(y|x)."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.rand(rows, 2, generator=generator, dtype=torch.float64) * 2 - 1
    corners = torch.tensor([[1, 1], [1, -1], [-1, -1], [-1, 1]], dtype=torch.float64)
    p = torch.softmax(-torch.cdist(inputs, corners), -1)
    return (
        inputs.numpy(),
        torch.multinomial(p, labels, replacement=True, generator=generator).numpy(),
        p.numpy(),
    )


def blobs(rows=120, classes=3, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(classes, size=rows)
    return rng.normal(size=(rows, 2)) + 3.0 * np.stack([np.cos(y * 2.0), np.sin(y * 2.0)], 1), y
