"""Bias and error of the estimators of a target on candidates, against the sum over every sentence of a small space.

The quantity is the loss itself, E_target[-log P(y)], for RAML with sentence BLEU and one reference, and a model P far from uniform. The
weights of the paper's estimator do not sum to one; its loss is divided by their sum, since a scale is but a learning rate.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

import softq
from softq.rewards import SentenceBLEU
from softq.samplers import HammingStratified, NgramReplacement

WORDS, LENGTH, TAU = 5, 5, 0.4
REFERENCE = [0, 1, 2, 3, 1]
SIZES = [10, 20, 50, 100, 200, 500, 1000]
SPACE = torch.tensor(list(itertools.product(range(WORDS), repeat=LENGTH)))
BLEU = SentenceBLEU()

Draw = Callable[[int, int, torch.Generator], softq.Target]


def refs(count: int) -> torch.Tensor:
    return torch.tensor([REFERENCE]).expand(count, -1)


def ngram_set(estimator: str, share: float | None = None) -> Draw:
    """Targets on sets by n-gram replacement; with ``share``, a step uses that part of the set."""

    def draw(size: int, repeats: int, generator: torch.Generator) -> softq.Target:
        cands = NgramReplacement(WORDS, max_n=4, size=size)(refs(repeats), generator=generator)
        k = None if share is None else max(2, round(size * share))
        measured = cands.measure(estimator, k, generator=generator)
        return softq.raml(measured, refs(repeats), TAU, BLEU)

    return draw


def hamming_draws(size: int, repeats: int, generator: torch.Generator) -> softq.Target:
    cands = HammingStratified(WORDS, tau=1.0, size=size)(refs(repeats), generator=generator)
    return softq.raml(cands.measure("importance"), refs(repeats), TAU, BLEU)


ESTIMATORS: dict[str, Draw] = {
    "set": ngram_set("set"),
    "set, k = a fifth": ngram_set("set", 0.2),
    "paper, k = a fifth": ngram_set("paper", 0.2),
    "importance, n-gram set": ngram_set("importance"),
    "importance, Hamming draws": hamming_draws,
}


def losses(target: softq.Target, log_probs: torch.Tensor) -> np.ndarray:
    """The loss of each repetition.

    Sentences are read as numbers in base WORDS to find them in the space.
    """
    place = (target.outputs.tokens.clamp(min=0) * WORDS ** torch.arange(LENGTH - 1, -1, -1)).sum(-1)
    loss = softq.cross_entropy(target, log_probs[place])
    return (loss / target.weights.sum(1) if "estimator=paper" in target.signature else loss).numpy()


def exact(log_probs: torch.Tensor, among: torch.Tensor) -> tuple[float, float]:
    """Loss and reference mass of the target on the sentences ``among``, in full."""
    cands = softq.Candidates(SPACE[among].unsqueeze(0), torch.full((1, int(among.sum())), LENGTH))
    target = softq.raml(cands, refs(1), TAU, BLEU)
    return float(softq.cross_entropy(target, log_probs[among].unsqueeze(0))), float(
        target.reference_mass()
    )


def plot(rows: list[dict[str, object]], path: Path) -> None:
    """Bias and error against the number of candidates, readable on light and dark pages."""
    import matplotlib as mpl

    mpl.use("svg" if path.suffix == ".svg" else "agg")
    from matplotlib import pyplot as plt

    mpl.rcParams |= {"svg.hashsalt": "softq", "font.size": 10}
    for name in ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"):
        mpl.rcParams[name] = "#808080"
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.8), sharex=True, sharey=True)
    markers = iter("osD^v")
    for name in ESTIMATORS:
        mine = [row for row in rows if row["estimator"] == name]
        marker = next(markers)
        for panel, value in zip(panels, ("rmse", "bias"), strict=True):
            points = [(row["size"], abs(row[value])) for row in mine]
            panel.loglog(*zip(*points, strict=True), marker=marker, markersize=4, label=name)
    panels[0].set_ylabel("nats")
    for panel, title in zip(
        panels, ("root mean square error of the loss", "size of the bias"), strict=True
    ):
        panel.set_title(title, fontsize=10)
        panel.set_xlabel("candidates")
        panel.grid(alpha=0.25)
    panels[1].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(
        path, transparent=True, metadata={"Date": None} if path.suffix == ".svg" else None
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=2000)
    parser.add_argument(
        "--plot", type=Path, help="write the picture there (.svg or .png; needs matplotlib)"
    )
    parser.add_argument("--json", action="store_true", help="print the JSON object alone")
    options = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    logits = 1.5 * torch.randn(LENGTH, WORDS, generator=generator, dtype=torch.float64)
    logits += 1.5 * torch.nn.functional.one_hot(
        torch.tensor(REFERENCE), WORDS
    )  # a model that has learnt something
    log_probs = logits.log_softmax(1).gather(1, SPACE.T).sum(0)
    everything = torch.ones(len(SPACE), dtype=torch.bool)
    different = torch.tensor(REFERENCE) != SPACE
    span = (
        torch.where(different, torch.arange(LENGTH), -1).amax(1)
        - torch.where(different, torch.arange(LENGTH), LENGTH).amin(1)
        + 1
    )
    truth, mass = exact(log_probs, everything)
    within, within_mass = exact(log_probs, span <= 4)
    rows = []
    cells = list(itertools.product(ESTIMATORS.items(), SIZES))
    for (name, draw), size in track(
        cells, "estimators", console=Console(stderr=True), transient=True, disable=options.json
    ):
        target = draw(size, options.repeats, generator)
        found = losses(target, log_probs)
        rows.append(
            {
                "estimator": name,
                "size": size,
                "bias": round(float(found.mean() - truth), 6),
                "deviation": round(float(found.std()), 6),
                "rmse": round(math.sqrt(np.mean((found - truth) ** 2)), 6),
                "reference_mass": round(float(target.reference_mass().mean()), 6),
                "total_weight": round(float(target.weights.sum(1).mean()), 6),
                "effective_sample_size": round(float(target.effective_sample_size().mean()), 3),
            }
        )
    if not options.json:
        show(rows, truth, mass, within, within_mass)
    if options.plot:
        plot(rows, options.plot)
    facts = {"space": len(SPACE), "tau": TAU, "reward": BLEU.signature, "repeats": options.repeats}
    answers = {
        "loss": truth,
        "reference_mass": mass,
        "loss_one_ngram": within,
        "reference_mass_one_ngram": within_mass,
    }
    print(json.dumps({"benchmark": "estimators", **facts, **answers, "rows": rows}))


def show(
    rows: list[dict[str, object]], truth: float, mass: float, within: float, within_mass: float
) -> None:
    table = Table(
        title=(
            f"RAML, tau = {TAU:g}, {WORDS}^{LENGTH} sentences: loss {truth:.4f}, reference mass"
            f" {mass:.4f}"
        ),
        box=box.SIMPLE,
    )
    for column in (
        "estimator",
        "size",
        "bias",
        "deviation",
        "rmse",
        "reference mass",
        "total weight",
        "ESS",
    ):
        table.add_column(column, justify="left" if column == "estimator" else "right")
    for row in rows:
        figures = [
            f"{row[key]:.4f}"
            for key in ("bias", "deviation", "rmse", "reference_mass", "total_weight")
        ]
        table.add_row(
            row["estimator"], str(row["size"]), *figures, f"{row['effective_sample_size']:.1f}"
        )
    console = Console(width=120)
    console.print(table)
    console.print(
        f"on what one n-gram can reach: loss {within:.4f}, reference mass {within_mass:.4f}"
    )


if __name__ == "__main__":
    main()
