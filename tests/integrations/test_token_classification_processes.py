"""Two processes train and evaluate a tagger as one does with batches twice as large.

Run as a script, this file is such a process.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tiny_taggers import SENTENCES, tagger, trainer_for

pytestmark = pytest.mark.usefixtures("one_thread")

ROWS = [
    {"tokens": row["tokens"], "annotations": [row["ner_tags"], [0] * len(row["tokens"])]}
    for row in SENTENCES * 2
]


def train(folder, batch):
    """Weights, scores and what is known of annotators at the end."""
    settings = {"per_device_train_batch_size": batch, "per_device_eval_batch_size": batch}
    trainer = trainer_for(
        tagger(),
        folder,
        ROWS,
        evaluate=SENTENCES[:3],  # which two processes cannot share equally
        annotators="sequential",
        num_train_epochs=2,
        average_tokens_across_devices=True,
        optim="sgd",
        **settings,
    )
    trainer.train()
    scores = trainer.evaluate()
    return {
        "weights": [float(weight.detach().double().sum()) for weight in trainer.model.parameters()],
        "scores": [scores[f"eval_{name}"] for name in ("precision", "recall", "token_accuracy")],
        "tables": trainer.truth.tables.confusions.tolist(),
        "predictions": trainer.predict(SENTENCES[:3]).predictions.tolist(),
    }


def test_two_processes_are_one_with_twice_the_batch(tmp_path):
    from test_processes import free_port  # which loads much that the processes need not

    helpers = str(Path(__file__).parents[1])
    paths = os.pathsep.join(filter(None, [helpers, os.environ.get("PYTHONPATH")]))
    threads = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    launcher = ["-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_addr"]
    ended = subprocess.run(
        [sys.executable, *launcher, "127.0.0.1", "--master_port", free_port(), __file__, tmp_path],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=os.environ | threads | {"PYTHONPATH": paths},
    )
    assert ended.returncode == 0, ended.stderr
    both = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    alone = train(tmp_path, 4)
    for process in both:
        assert process["predictions"] == alone["predictions"]
        assert process["weights"] == pytest.approx(alone["weights"], abs=1e-4)
        assert process["scores"] == pytest.approx(alone["scores"], abs=1e-9)
        assert torch.allclose(
            torch.tensor(process["tables"]), torch.tensor(alone["tables"]), atol=1e-6
        )


if __name__ == "__main__":
    torch.set_num_threads(1)
    out = Path(sys.argv[1])
    (out / f"{os.environ['RANK']}.json").write_text(json.dumps(train(out, 2)))
    torch.distributed.destroy_process_group()
