"""Fine-tuning of Hugging Face models on candidates.

What it saves to read a source once, and whether candidates are waited for.

Models have random weights: an encoder-decoder of the size of T5-small (60 million parameters) and a
causal one of the size of GPT-2 with six layers. A batch has 32 sources of 64 tokens, each with 8
candidates of 32 tokens.

*Loss and gradient* compares, alternating, the shared computation with the same loss where every
candidate repeats its source: by the clock, and by the time that the GPU is at work, which is all
that counts where the host starts kernels fast enough. *Training* is the real loop of
`RewardAugmentedTrainer` on an encoder-decoder, candidates by n-gram replacement and weighed by
BLEU, alternating with the same steps on precomputed candidates: *waits* is the share of its
time in which it waits for candidates, *slower* by how much it is slower in all, also because
what makes candidates takes a core or Python's lock from what starts kernels. The plain `Trainer`,
ML on the same sources, is beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from sequences import machine_name
from softq.integrations.transformers import RewardAugmentedArguments, RewardAugmentedTrainer
from softq.integrations.transformers.candidates import Row, StepTarget
from softq.integrations.transformers.rows import TARGET
from softq.integrations.transformers.scoring import (
    ScoredCandidates,
    causal_log_probs,
    encoder_decoder_log_probs,
)
from timing import by_turns, synchronize

SOURCES, CANDIDATES, SOURCE, TARGET_LENGTH = 32, 8, 64, 32
WARMUP = 5  # steps of training
BLOCK, SKIPPED = (
    12,
    6,
)  # steps of a block, and its first ones, whose batches data loader workers may have made before it began


def t5_small(tiny: bool) -> PreTrainedModel:
    size = (
        {"d_model": 32, "d_ff": 64, "num_layers": 2, "num_heads": 2, "d_kv": 16, "vocab_size": 500}
        if tiny
        else {}
    )
    return T5ForConditionalGeneration(
        T5Config(decoder_start_token_id=0, **size)
    )  # the defaults are T5-small's


def gpt2_six(tiny: bool) -> PreTrainedModel:
    size = {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 500} if tiny else {"n_layer": 6}
    last = size.get("vocab_size", 50257) - 1
    return GPT2LMHeadModel(
        GPT2Config(bos_token_id=last, eos_token_id=last, pad_token_id=last, **size)
    )


def precision_of(name: str) -> contextlib.AbstractContextManager[Any]:
    torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
    return torch.autocast(
        "cuda" if torch.cuda.is_available() else "cpu", torch.bfloat16, enabled=name == "bf16"
    )


def sharing(
    name: str, model: PreTrainedModel, precision: str, compiled: bool, options: argparse.Namespace
) -> dict[str, Any]:
    """Milliseconds of loss and gradient, shared and repeated."""
    model = model.to(options.device).train()
    vocab = model.get_input_embeddings().num_embeddings
    draw = torch.Generator().manual_seed(0)
    source = torch.randint(5, vocab - 5, (SOURCES, SOURCE), generator=draw).to(options.device)
    tokens = torch.randint(5, vocab - 5, (SOURCES, CANDIDATES, TARGET_LENGTH), generator=draw).to(
        options.device
    )
    scored = ScoredCandidates(
        tokens, torch.full((SOURCES, CANDIDATES), TARGET_LENGTH, device=options.device)
    )
    weights = torch.full((SOURCES, CANDIDATES), 1 / CANDIDATES, device=options.device)
    inputs = {"input_ids": source, "attention_mask": torch.ones_like(source)}

    called = torch.compile(model, dynamic=False) if compiled else model  # as Trainer does it

    def loss(shared: bool) -> Tensor:
        if model.config.is_encoder_decoder:
            log_probs = encoder_decoder_log_probs(called, model, inputs, scored, shared=shared)
        else:
            log_probs = causal_log_probs(called, model, inputs, scored, shared=shared)
        return -(weights * log_probs).sum() / (SOURCES * TARGET_LENGTH)

    def step(shared: bool) -> None:
        model.zero_grad()
        with precision_of(precision):
            found = loss(shared)
        found.backward()

    contenders = {"shared": lambda: step(True), "repeated": lambda: step(False)}
    found = by_turns(contenders, rounds=options.rounds, warmup=3)
    row: dict[str, Any] = {
        "work": f"loss and gradient, {name}, {precision}{', compiled' if compiled else ''}",
        "milliseconds": round(found["shared"], 2),
        "repeated": round(found["repeated"], 2),
        "times": round(found["repeated"] / found["shared"], 2),
    }
    if options.device == "cuda":
        at_work = {kind: milliseconds_at_work(call) for kind, call in contenders.items()}
        row |= {
            "gpu_milliseconds": round(at_work["shared"], 2),
            "gpu_times": round(at_work["repeated"] / at_work["shared"], 2),
        }
    return row


def milliseconds_at_work(call: Callable[[], object], count: int = 5) -> float:
    """What all kernels of one call take on the GPU, one after the other."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        for _ in range(count):
            call()
        synchronize()
    return sum(float(event.self_device_time_total) for event in seen.key_averages()) / count / 1e3


class Clock(TrainerCallback):
    """Seconds of the steps after the first few."""

    def __init__(self) -> None:
        self.start = self.seconds = 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Called by Trainer."""
        if state.global_step == WARMUP:
            synchronize()
            self.start = time.perf_counter()
        if state.global_step == state.max_steps:
            synchronize()
            self.seconds = time.perf_counter() - self.start


class Alternating(RewardAugmentedTrainer):
    """Some steps with candidates that are made for them, then as many that take the last of these once more, and so on.

    What a noisy machine does to one it does to the other, a second later.
    """

    def __init__(self, *args: Any, **more: Any) -> None:
        self.fresh = multiprocessing.Value("b", True)  # data loader workers read it, too
        self.blocks: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
        self.start = self.waited = 0.0
        super().__init__(*args, **more)
        made: list[StepTarget] = []
        make, fresh = self.data_collator.make, self.fresh

        def made_or_last(rows: list[Row]) -> StepTarget:
            if fresh.value or not made:
                made[:] = [make(rows)]
            return made[0]

        self.data_collator.make = made_or_last
        self.add_callback(StepEnds(self))

    def get_batch_samples(self, *args: Any) -> Any:
        """As Trainer does it, with the time it takes until batches and their candidates are there."""
        if self.state.global_step % BLOCK == SKIPPED:
            synchronize()
            self.start, self.waited = time.perf_counter(), 0.0
        start = time.perf_counter()
        batches, count = super().get_batch_samples(*args)
        for batch in batches:
            if isinstance(batch[TARGET], Future):  # which the loss would ask for next
                batch[TARGET].result()
        self.waited += time.perf_counter() - start
        return batches, count

    def end_of_step(self, step: int) -> None:
        """Writes down what a block took, and changes over to the other kind."""
        if step % BLOCK == 0:
            synchronize()
            kept = BLOCK - SKIPPED
            self.blocks[bool(self.fresh.value)].append(
                ((time.perf_counter() - self.start) / kept * 1e3, self.waited / kept * 1e3)
            )
            self.fresh.value = not self.fresh.value


class StepEnds(TrainerCallback):
    """Tells an alternating trainer that a step is over."""

    def __init__(self, trainer: Alternating) -> None:
        self.trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Called by Trainer."""
        self.trainer.end_of_step(state.global_step)


def training(
    name: str, model: PreTrainedModel, precision: str, workers: int, options: argparse.Namespace
) -> dict[str, Any]:
    """Milliseconds of a step, with candidates and without the making of them, and of the plain Trainer."""
    vocab, draw, end = (
        model.get_input_embeddings().num_embeddings,
        torch.Generator().manual_seed(0),
        model.config.eos_token_id,
    )
    steps = 2 * options.blocks * BLOCK
    rows = torch.randint(
        5, vocab - 5, (SOURCES * steps, SOURCE + TARGET_LENGTH), generator=draw
    ).tolist()  # one epoch
    data = [{"input_ids": row[:SOURCE], "labels": [*row[SOURCE:-1], end]} for row in rows]
    usual: dict[str, Any] = {
        "per_device_train_batch_size": SOURCES,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
        "logging_steps": 10**6,
        "bf16": precision == "bf16",
        "tf32": True if precision == "tf32" else None,
        "use_cpu": options.device == "cpu",
        "dataloader_pin_memory": options.device != "cpu",
        "dataloader_num_workers": workers,
    }
    clock = Clock()
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(io.StringIO()),
    ):  # Trainer's summary
        arguments = RewardAugmentedArguments(
            folder, objective="raml", tau=0.2, candidate_size=CANDIDATES, max_steps=steps, **usual
        )
        alternating = Alternating(model, arguments, train_dataset=data)
        alternating.train()
        plain = TrainingArguments(
            folder, max_steps=options.blocks * BLOCK + WARMUP, remove_unused_columns=False, **usual
        )
        collate = lambda batch: {key: torch.tensor([row[key] for row in batch]) for key in batch[0]}  # noqa: E731
        Trainer(model, plain, train_dataset=data, callbacks=[clock], data_collator=collate).train()
    found, ready = (
        alternating.blocks[kind][1:] for kind in (True, False)
    )  # the first block of each warms up
    milliseconds = statistics.median(clock for clock, _ in found)
    pairs = list(zip(found, ready, strict=True))
    return {
        "work": f"training, {name}, {precision}" + (f", {workers} workers" if workers else ""),
        "milliseconds": round(milliseconds, 2),
        "slower": round(statistics.median(a[0] - b[0] for a, b in pairs) / milliseconds, 4),
        "waiting": round(statistics.median(a[1] - b[1] for a, b in pairs) / milliseconds, 4),
        "ml": round(clock.seconds / options.blocks / BLOCK * 1e3, 2),
    }


def show(rows: list[dict[str, Any]], title: str) -> None:
    table = Table(title=title)
    for column in (
        "work",
        "ms",
        "repeated ms",
        "× repeated",
        "GPU ms",
        "× repeated",
        "waits",
        "slower",
        "plain ML ms",
    ):
        table.add_column(column, justify="left" if column == "work" else "right")
    for row in rows:
        cells = (
            row["work"],
            *(
                row.get(name, "")
                for name in ("milliseconds", "repeated", "times", "gpu_milliseconds", "gpu_times")
            ),
        )
        shares = [f"{row[name]:.2%}" if name in row else "" for name in ("waiting", "slower")]
        table.add_row(*map(str, cells), *shares, str(row.get("ml", "")))
    Console(width=130).print(table)


def main() -> None:
    make = argparse.ArgumentParser(description=__doc__)
    make.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    make.add_argument(
        "--precision", nargs="+", default=["float32", "bf16"], choices=["float32", "tf32", "bf16"]
    )
    make.add_argument("--rounds", type=int, default=15)
    make.add_argument(
        "--blocks",
        type=int,
        default=10,
        help=f"of {BLOCK} steps of training, with candidates and without making them",
    )
    make.add_argument(
        "--part", nargs="+", default=["sharing", "training"], choices=["sharing", "training"]
    )
    make.add_argument(
        "--tiny", action="store_true", help="tiny models, to try the benchmark out on a CPU"
    )
    make.add_argument("--json", action="store_true", help="print the JSON object alone")
    options = make.parse_args()
    if options.blocks < 2:
        make.error(
            f"--blocks must be 2 or more, since the first one warms up, got {options.blocks}"
        )
    torch.manual_seed(0)
    models = {"T5-small": t5_small, "GPT-2, 6 layers": gpt2_six}
    rows = []

    def done(row: dict[str, Any]) -> None:
        print(row, file=sys.stderr)  # it takes a while until all are there
        rows.append(row)

    for name, made in models.items() if "sharing" in options.part else ():
        for precision in options.precision:
            for compiled in (False, True) if options.device == "cuda" else (False,):
                done(sharing(name, made(options.tiny), precision, compiled, options))
    for precision in options.precision if "training" in options.part else ():
        for workers in (0, 2):
            done(training("T5-small", t5_small(options.tiny), precision, workers, options))
    machine = machine_name(options.device)
    if not options.json:
        show(rows, f"{SOURCES} sources × {CANDIDATES} candidates, {machine}")
    about = {
        "device": options.device,
        "machine": machine,
        "torch": torch.__version__,
        "tiny": options.tiny,
    }
    print(json.dumps({"benchmark": "finetuning", **about, "rows": rows}))


if __name__ == "__main__":
    main()
