"""The paper's four-class problem in one figure: the reward that each objective's decisions earn.

Everything is exact: the targets that ML, RAML and SQDML reach with unlimited data, their decisions
on a grid of inputs, and the expected reward of these decisions (paper §4.1.1, Figure 1).

    python examples/reward_against_tau.py --out reward.svg     # needs matplotlib: softq[plot]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np

from softq.theory import four_class_problem, theory_table

COLOURS = {"SQDML": "#0072b2", "RAML": "#cc5500", "ML": "#007d5a"}


def main() -> None:
    """Compute the table, print it and draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("reward.svg"), help="Image to write.")
    parser.add_argument("--grid", type=int, default=1000, help="Inputs along each side.")
    options = parser.parse_args()
    taus = np.round(np.geomspace(0.2, 6.0, 25), 4).tolist()
    table = theory_table(four_class_problem(options.grid), taus)
    rewards = {
        "SQDML": [row.reward_sqdml for row in table.rows],
        "RAML": [row.reward_raml for row in table.rows],
        "ML": [table.reward_ml] * len(taus),
    }
    print(f"Bayes rule  {table.reward_bayes:.4f}")
    for name, values in rewards.items():
        print(f"{name:<12}{values[0]:.4f} at tau = {taus[0]:g}, {values[-1]:.4f} at {taus[-1]:g}")
    draw(taus, rewards, options.out)


def draw(taus: list[float], rewards: dict[str, list[float]], out: Path) -> None:
    """One line for each objective, named at its end instead of in a legend."""
    mpl.rcParams["svg.hashsalt"] = "softq"  # the same bytes each time
    figure, axes = plt.subplots(figsize=(7.2, 3.4), layout="constrained")
    labels = {
        "SQDML": ("SQDML: the Bayes rule, at every τ", 0.21, -14),
        "RAML": ("RAML", 1.0, -14),
        "ML": ("maximum likelihood", 2.6, 6),
    }
    for name, values in rewards.items():
        axes.plot(taus, values, color=COLOURS[name], linewidth=2.2)
        label, tau, offset = labels[name]
        place = (tau, float(np.interp(tau, taus, values)))
        style = {"color": COLOURS[name], "fontweight": "bold"}
        axes.annotate(label, place, (0, offset), textcoords="offset points", **style)
    axes.set_xscale("log")
    axes.set_xticks([0.2, 0.5, 1, 2, 5], ["0.2", "0.5", "1", "2", "5"])
    axes.minorticks_off()
    axes.set_xlabel("temperature τ")
    axes.set_ylabel("expected reward")
    axes.set_ylim(top=max(rewards["SQDML"]) + 0.01)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None)


if __name__ == "__main__":
    main()
