"""Two processes train and evaluate a tagger or a parser as one does with batches twice as large.

Run as a script, this file is such a process.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import tiny_parsers
import tiny_taggers

pytestmark = pytest.mark.usefixtures("one_thread")

TAGS = [
    {"tokens": row["tokens"], "annotations": [row["ner_tags"], [0] * len(row["tokens"])]}
    for row in tiny_taggers.SENTENCES * 2
]
TREES = [
    *tiny_parsers.TREES,
    *({"tokens": row["tokens"], "heads": row["heads"]} for row in tiny_parsers.TREES),
]


def train(kind, folder, batch):
    """Weights, scores and predictions at the end, and what is known of annotators."""
    settings = {
        "per_device_train_batch_size": batch,
        "per_device_eval_batch_size": batch,
        "num_train_epochs": 2,
        "average_tokens_across_devices": True,
        "optim": "sgd",
    }
    # three sentences are what two processes cannot share equally
    if kind == "tagger":
        test = tiny_taggers.SENTENCES[:3]
        trainer = tiny_taggers.trainer_for(
            tiny_taggers.tagger(),
            folder,
            TAGS,
            evaluate=test,
            annotators="sequential",
            **settings,
        )
    else:
        test = tiny_parsers.TREES[:3]
        slow = {"learning_rate": 1e-3, "head_learning_rate": 1e-3, "objective": "raml", "tau": 0.5}
        trainer = tiny_parsers.trainer_for(
            tiny_parsers.parser(), folder, TREES, evaluate=test, **settings, **slow
        )
    trainer.train()
    scores = trainer.evaluate()
    timed = ("runtime", "per_second", "loss", "epoch")
    return {
        "weights": [float(weight.detach().double().sum()) for weight in trainer.model.parameters()],
        "scores": {name: score for name, score in scores.items() if not name.endswith(timed)},
        "tables": trainer.truth.tables.confusions.tolist() if kind == "tagger" else [],
        "predictions": np.stack(trainer.predict(test).predictions).tolist(),
    }


@pytest.mark.parametrize("kind", ["tagger", "parser"])
def test_two_processes_are_one_with_twice_the_batch(kind, tmp_path):
    from test_processes import free_port  # which loads much that the processes need not

    helpers = str(Path(__file__).parents[1])
    paths = os.pathsep.join(filter(None, [helpers, os.environ.get("PYTHONPATH")]))
    threads = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    launcher = ["-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_addr"]
    ended = subprocess.run(
        [
            *(sys.executable, *launcher, "127.0.0.1", "--master_port", free_port()),
            *(__file__, kind, tmp_path),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=os.environ | threads | {"PYTHONPATH": paths},
    )
    assert ended.returncode == 0, ended.stderr
    both = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    alone = train(kind, tmp_path, 4)
    for process in both:
        assert process["predictions"] == alone["predictions"]
        assert process["weights"] == pytest.approx(alone["weights"], abs=1e-4)
        assert process["scores"] == pytest.approx(alone["scores"], abs=1e-9)
        assert torch.allclose(
            torch.tensor(process["tables"]), torch.tensor(alone["tables"]), atol=1e-6
        )


if __name__ == "__main__":
    torch.set_num_threads(1)
    kind, out = sys.argv[1], Path(sys.argv[2])
    (out / f"{os.environ['RANK']}.json").write_text(json.dumps(train(kind, out, 2)))
    torch.distributed.destroy_process_group()
