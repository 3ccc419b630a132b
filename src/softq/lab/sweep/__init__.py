"""A sweep.

One recipe over grids of objectives, temperatures, other keys and seeds, and what to conclude from
it.

A sweep folder holds ``sweep.toml`` (the recipe with its grids), ``runs/`` (run folders: one for all
cells where a task trains them together, else one each), ``cells.jsonl`` (a line per finished cell)
and ``summary.json``. Started again, it skips what is finished, resumes what was interrupted,
and trains what is new. The temperature, and what else a grid varies, is chosen on the development
set, and what it earns on the test set is compared with ML by a paired bootstrap over test examples.
"""

from softq.lab.sweep.choices import Choice, SweepCell
from softq.lab.sweep.engine import local_processes
from softq.lab.sweep.folder import RUNS, SUMMARY, SWEEP, Sweep, read_finished, read_sweep, run_sweep
from softq.lab.sweep.grids import Grid, expand, lay_over, parse_recipe, read_recipe, sweep_toml

__all__ = [
    "RUNS",
    "SUMMARY",
    "SWEEP",
    "Choice",
    "Grid",
    "Sweep",
    "SweepCell",
    "expand",
    "lay_over",
    "local_processes",
    "parse_recipe",
    "read_finished",
    "read_recipe",
    "read_sweep",
    "run_sweep",
    "sweep_toml",
]
