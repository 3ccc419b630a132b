"""Fine-tuning of Hugging Face models on candidates: what it saves to read a source once, and whether candidates are waited for.

Models have random weights: an encoder-decoder of the size of T5-small (60 million parameters) and a causal one of the size of GPT-2 with
six layers. A batch has 32 sources of 64 tokens, each with 8 candidates of 32 tokens.

*Loss and gradient* compares, by turns, the shared computation with the same loss where every candidate repeats its source: by the clock,
and by the time that the GPU is at work, which is all that counts where the host starts kernels fast enough. *Training* is the real loop of
`RewardAugmentedTrainer` on an encoder-decoder, candidates by n-gram replacement and weighed by BLEU; *candidates* is the share of its time
that their making takes, by turns with the same training on candidates that are there already. The plain `Trainer`, ML on the same sources,
is beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
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
from softq.integrations.transformers.candidates import StepTarget
from softq.integrations.transformers.scoring import Prompts, Scored, causal_log_probs, encoder_decoder_log_probs
from timing import by_turns, synchronize

SOURCES, CANDIDATES, SOURCE, TARGET = 32, 8, 64, 32
WARMUP = 5  # steps of training


def t5_small(tiny: bool) -> PreTrainedModel:
    size = {"d_model": 32, "d_ff": 64, "num_layers": 2, "num_heads": 2, "d_kv": 16, "vocab_size": 500} if tiny else {}
    return T5ForConditionalGeneration(T5Config(decoder_start_token_id=0, **size))  # the defaults are T5-small's


def gpt2_six(tiny: bool) -> PreTrainedModel:
    size = {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 500} if tiny else {"n_layer": 6}
    last = size.get("vocab_size", 50257) - 1
    return GPT2LMHeadModel(GPT2Config(bos_token_id=last, eos_token_id=last, pad_token_id=last, **size))


def precision_of(name: str) -> contextlib.AbstractContextManager[Any]:
    torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
    return torch.autocast("cuda" if torch.cuda.is_available() else "cpu", torch.bfloat16, enabled=name == "bf16")


def sharing(name: str, model: PreTrainedModel, precision: str, compiled: bool, options: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of loss and gradient, shared and repeated."""
    model = model.to(options.device).train()
    vocab = model.get_input_embeddings().num_embeddings
    draw = torch.Generator().manual_seed(0)
    source = torch.randint(5, vocab - 5, (SOURCES, SOURCE), generator=draw).to(options.device)
    tokens = torch.randint(5, vocab - 5, (SOURCES, CANDIDATES, TARGET), generator=draw).to(options.device)
    scored = Scored(tokens, torch.full((SOURCES, CANDIDATES), TARGET, device=options.device))
    weights = torch.full((SOURCES, CANDIDATES), 1 / CANDIDATES, device=options.device)
    mask = torch.ones_like(source)

    called = torch.compile(model, dynamic=False) if compiled else model  # as Trainer does it

    def loss(shared: bool) -> Tensor:
        if model.config.is_encoder_decoder:
            log_probs = encoder_decoder_log_probs(called, model, {"input_ids": source, "attention_mask": mask}, scored, shared=shared)
        else:
            log_probs = causal_log_probs(called, model, Prompts(source, mask), scored, shared=shared)
        return -(weights * log_probs).sum() / (SOURCES * TARGET)

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
        row |= {"gpu_milliseconds": round(at_work["shared"], 2), "gpu_times": round(at_work["repeated"] / at_work["shared"], 2)}
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


class ReadyMade(RewardAugmentedTrainer):
    """The same training without the making of candidates: all batches have those of the first."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        made: list[StepTarget] = []
        make = self.data_collator.make
        self.data_collator.make = lambda rows: made[0] if made else made.append(make(rows)) or made[0]


def training(name: str, model: PreTrainedModel, precision: str, workers: int, options: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of a step, with candidates and without the making of them, and of the plain Trainer."""
    vocab, draw, end = model.get_input_embeddings().num_embeddings, torch.Generator().manual_seed(0), model.config.eos_token_id
    rows = torch.randint(5, vocab - 5, (SOURCES * 80, SOURCE + TARGET), generator=draw).tolist()
    data = [{"input_ids": row[:SOURCE], "labels": [*row[SOURCE:-1], end]} for row in rows]
    usual: dict[str, Any] = {
        "max_steps": options.steps + WARMUP,
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

    def seconds(trainer: type[Trainer], arguments: TrainingArguments, **more: Any) -> float:
        clock = Clock()
        with contextlib.redirect_stdout(io.StringIO()):  # Trainer's summary
            trainer(model, arguments, train_dataset=data, callbacks=[clock], **more).train()
        return clock.seconds / options.steps * 1e3

    with tempfile.TemporaryDirectory() as folder:
        arguments = RewardAugmentedArguments(folder, objective="raml", tau=0.2, candidate_size=CANDIDATES, **usual)
        plain = TrainingArguments(folder, **usual, remove_unused_columns=False)
        turns = [
            (
                seconds(RewardAugmentedTrainer, arguments),
                seconds(ReadyMade, arguments),
                seconds(Trainer, plain, data_collator=lambda batch: {key: torch.tensor([row[key] for row in batch]) for key in batch[0]}),
            )
            for _ in range(options.turns)
        ]
    live, ready, ml = map(statistics.median, zip(*turns, strict=True))
    what = f"training, {name}, {precision}" + (f", {workers} workers" if workers else "")
    return {"work": what, "milliseconds": round(live, 2), "waiting": round(1 - ready / live, 4), "ml": round(ml, 2)}


def show(rows: list[dict[str, Any]], title: str) -> None:
    table = Table(title=title)
    for column in ("work", "ms", "repeated ms", "× repeated", "GPU ms", "× repeated", "candidates", "plain ML ms"):
        table.add_column(column, justify="left" if column == "work" else "right")
    for row in rows:
        cells = (row["work"], *(row.get(name, "") for name in ("milliseconds", "repeated", "times", "gpu_milliseconds", "gpu_times")))
        waiting = f"{row['waiting']:.2%}" if "waiting" in row else ""
        table.add_row(*map(str, cells), waiting, str(row.get("ml", "")))
    Console(width=130).print(table)


def main() -> None:
    make = argparse.ArgumentParser(description=__doc__)
    make.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    make.add_argument("--precision", nargs="+", default=["float32", "bf16"], choices=["float32", "tf32", "bf16"])
    make.add_argument("--rounds", type=int, default=15)
    make.add_argument("--steps", type=int, default=40, help="of a turn of training")
    make.add_argument("--turns", type=int, default=3, help="of training")
    make.add_argument("--tiny", action="store_true", help="tiny models, to try the benchmark out on a CPU")
    make.add_argument("--json", action="store_true", help="print the JSON object alone")
    options = make.parse_args()
    torch.manual_seed(0)
    models = {"T5-small": t5_small, "GPT-2, 6 layers": gpt2_six}
    rows = []

    def done(row: dict[str, Any]) -> None:
        print(row, file=sys.stderr)  # it takes a while until all are there
        rows.append(row)

    for name, made in models.items():
        for precision in options.precision:
            for compiled in (False, True) if options.device == "cuda" else (False,):
                done(sharing(name, made(options.tiny), precision, compiled, options))
    for precision in options.precision:
        for workers in (0, 2):
            done(training("T5-small", t5_small(options.tiny), precision, workers, options))
    machine = machine_name(options.device)
    if not options.json:
        show(rows, f"{SOURCES} sources × {CANDIDATES} candidates, {machine}")
    about = {"device": options.device, "machine": machine, "torch": torch.__version__, "tiny": options.tiny}
    print(json.dumps({"benchmark": "finetuning", **about, "rows": rows}))


if __name__ == "__main__":
    main()
