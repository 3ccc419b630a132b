"""Two processes train and evaluate as one does with batches twice as large.

Run as a script, this file is such a process.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tiny_models import END, random_rows, tiny, tokenizer, trainer_for

pytestmark = pytest.mark.usefixtures("one_thread")

ROWS = [
    row | {"candidates": [[5, 6, END], [7, END], row["labels"][0][1:]]}
    for row in random_rows(12, references=2)
]
EVALUATED = random_rows(7, seed=1)  # two batches of four, of which the second is not full


def train(folder, batch, prior="none"):
    """Losses of each step, as they are in this process, what is logged, and what evaluation says."""
    settings = {
        "per_device_train_batch_size": batch,
        "per_device_eval_batch_size": batch,
        "average_tokens_across_devices": True,
    }
    data = {"rows": ROWS, "evaluate": EVALUATED, "words": tokenizer(end=False)}
    more = {
        "candidates": "dataset",
        "objective": "sqdml",
        "num_train_epochs": 2,
        "corpus_metric": "chrf",
        "eval_mbr_samples": 2,
        "prior": prior,
        "logging_strategy": "steps",
        "logging_steps": 1,
    }
    trainer = trainer_for(tiny("llama"), folder, **data, **more, **settings)
    trainer.train()
    scores = trainer.evaluate()
    return {
        "losses": trainer.losses,
        "logged": [
            [line[name] for name in ("reward", "reward_std", "distinct", "ess")]
            for line in trainer.state.log_history
            if "reward" in line
        ],
        "scores": {name: scores[f"eval_{name}"] for name in ("reward", "chrf")},
    }


def test_two_processes_are_one_with_twice_the_batch(tmp_path):
    from test_processes import free_port  # which loads much that the processes need not

    launcher = [
        "-m",
        "torch.distributed.run",
        "--nproc_per_node",
        "2",
        "--master_addr",
        "127.0.0.1",
        "--master_port",
        free_port(),
    ]
    helpers = str(Path(__file__).parents[1])
    paths = os.pathsep.join(filter(None, [helpers, os.environ.get("PYTHONPATH")]))
    threads = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    environment = os.environ | threads | {"PYTHONPATH": paths}
    ended = subprocess.run(
        [sys.executable, *launcher, __file__, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=environment,
    )
    assert ended.returncode == 0, ended.stderr
    for prior in ("none", "base"):
        processes = [
            json.loads((tmp_path / f"{rank}.json").read_text())[prior] for rank in range(2)
        ]
        alone = train(tmp_path, 4, prior)
        assert max(alone["scores"].values()) > 0
        if prior == "none":
            assert min(alone["scores"].values()) > 0
        check(processes, alone)


def check(both, alone):
    """Whether two processes were one."""
    assert len(alone["losses"]) == 6
    means = [
        sum(losses) / 2 for losses in zip(*(process["losses"] for process in both), strict=True)
    ]
    assert means == pytest.approx(alone["losses"], abs=1e-5)
    assert len(alone["logged"]) == 6
    for process in both:
        assert process["scores"] == pytest.approx(alone["scores"], abs=1e-9)
        for found, wanted in zip(process["logged"], alone["logged"], strict=True):
            assert found == pytest.approx(wanted, abs=1e-5)


if __name__ == "__main__":
    torch.set_num_threads(1)
    out = Path(sys.argv[1])
    found = {prior: train(out, 2, prior) for prior in ("none", "base")}
    (out / f"{os.environ['RANK']}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()
