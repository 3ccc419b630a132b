"""A race of objectives at equal cost: ML, RAML, SQDML and a prior against TRL's SFT, DPO and GRPO.

Two models are first trained by likelihood from random weights: an encoder-decoder of the size of
T5-small on German-English sentences of Tatoeba (SOFTQ_DATA, by default ../shared/data), and a
causal model of the size of GPT-2 on the built-in language. From there each method has the same
seconds of training, in which everything counts that it does: generating samples, making preference
pairs or distilling, rewards, steps. Evaluation does not count, nor does the first step, in which
kernels are compiled. The reward is sentence BLEU of words, mean over references; the held-out
metric is sentence chrF, which nothing is trained on. Greedy texts for sentences that no method has
seen are scored; half of them choose the learning rate (at the first seed), the other half is
reported.

What is done stays in OUT (one JSON line for each cell), so that the same command continues where it
stopped; --minutes makes it stop in time. --steps-only measures a step of softq with 8 samples of a
prompt against one of TRL's GRPO at the same shapes, and what sharing of prompts saves, in bf16.

    python benchmarks/race.py --trl TRL --minutes 9 --figure race.svg
    python benchmarks/race.py --trl TRL --steps-only
    python benchmarks/race.py --trl TRL --scale tiny --out runs/tiny  # minutes on a CPU

TRL is not installed with softq: `pip download --no-deps trl`, unpack the wheel, and name the folder
with --trl. It trains causal models only.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    PrinterCallback,
    Trainer,
    TrainerCallback,
)

from finetuning import gpt2_six, sharing, t5_small
from sequences import machine_name
from softq.integrations.transformers import (
    RewardAugmentedArguments,
    RewardAugmentedTrainer,
    RowEncoder,
    distill,
)
from softq.integrations.transformers.generation import TextModel, Writing, mean_rewards
from softq.integrations.transformers.loading import (
    Loaded,
    load_model,
    make_t5,
    quiet,
    save_model,
    train_tokenizer,
)
from softq.lab.report.drawing import Look, Series, coloured, draw_svg
from softq.lab.report.figures import Panel, panels_figure
from softq.lab.run import RunFolder, write_atomically
from softq.lab.tasks.lm_data import Rows, read_rows
from softq.lab.worlds import LanguageWorld
from softq.metrics import Interval, mean_interval
from softq.rewards import SentenceBLEU
from softq.sentences import Sentences
from timing import synchronize
from trl_peer import dataset, load_trl

REWARD, HELD_OUT = "reward", "chrf"
SAMPLES = 8  # of a prompt in a step, and of a source in preference pairs
MBR_SAMPLES = 16
WARMUP = 10  # steps in which the learning rate rises
CELLS, START = "race.jsonl", "start-{}"
Rated = Mapping[str, tuple[float, ...]]


@dataclass(frozen=True)
class Scale:
    """How large the race is."""

    t5: str
    gpt2: Mapping[str, int]
    vocabulary: int
    sources: int  # of training by likelihood before the race
    raced: int  # of these, the first ones, which the methods are trained on
    held_out: int
    batch: int  # prompts of a step
    start_batch: int
    start_steps: int
    start_rate: float  # of the causal model
    faster: float  # the causal model's rates in the race, times this: small models learn faster
    seconds: float
    seeds: int
    checks: int  # evaluations within the budget
    max_new_tokens: int


SCALES = {
    "full": Scale(
        t5="t5-small",
        gpt2={},
        vocabulary=8000,
        sources=150_000,
        raced=12_000,
        held_out=1200,
        batch=32,
        start_batch=256,
        start_steps=3000,
        start_rate=5e-4,
        faster=1.0,
        seconds=15.0,
        seeds=3,
        checks=3,
        max_new_tokens=40,
    ),
    "tiny": Scale(
        t5="t5-tiny",
        gpt2={"n_embd": 64, "n_layer": 2, "n_head": 4},
        vocabulary=400,
        sources=1500,
        raced=1500,
        held_out=120,
        batch=8,
        start_batch=32,
        start_steps=500,
        start_rate=5e-3,
        faster=30.0,
        seconds=8.0,
        seeds=2,
        checks=2,
        max_new_tokens=16,
    ),
}


@dataclass(frozen=True)
class Method:
    """How a model is trained within the budget.

    ``settings`` are of `RewardAugmentedArguments`, or of TRL's configuration.
    """

    title: str
    look: Look
    settings: Mapping[str, Any] = field(default_factory=dict)
    prepare: str = ""
    trl: str = ""
    rates: Rated = field(
        default_factory=lambda: {"t5": (0.002, 0.006), "gpt2": (3e-5, 1e-4)}
    )  # T5 has Adafactor, whose rate is relative to the size of the weights


_ON_POLICY: Rated = {"t5": (0.002, 0.006), "gpt2": (1e-5, 3e-5)}
_SQDML = {"objective": "sqdml", "tau": 0.2}
METHODS = {
    "ml": Method("ML", Look("green", "", "-."), {"objective": "ml"}),
    "raml": Method("RAML", Look("orange", "s"), {"tau": 0.2}),
    "sqdml-edits": Method(
        "SQDML, edits", Look("blue", "o"), _SQDML | {"candidates": "ngram+recombined"}
    ),
    "sqdml-samples": Method(
        "SQDML, samples", Look("blue", "^", "--"), _SQDML | {"candidates": "model"}
    ),
    "sqdml-mbr": Method(
        "SQDML, MBR", Look("blue", "v", ":"), _SQDML | {"candidates": "dataset"}, prepare="mbr"
    ),
    "current": Method('prior="current"', Look("purple", "D"), {"preset": "tpo"}, rates=_ON_POLICY),
    "sft": Method("TRL SFT", Look("muted", "", "-."), trl="SFT"),
    "dpo": Method(
        "TRL DPO",
        Look("brown", "P", "--"),
        {"beta": 0.1},
        prepare="pairs",
        trl="DPO",
        rates={"gpt2": (3e-6, 1e-5)},
    ),
    "grpo": Method("TRL GRPO", Look("ink", "X"), trl="GRPO", rates=_ON_POLICY),
}


@dataclass(frozen=True)
class Track:
    """One of the two models with its data."""

    kind: str
    tokenizer: Any
    template: str
    train: Rows
    held_out: Rows

    @property
    def causal(self) -> bool:
        """Whether the model continues a prompt."""
        return self.kind == "gpt2"

    def filled(self, rows: Rows) -> Rows:
        """Rows whose sources are what the model reads."""
        return [row | {"source": self.template.format(row["source"])} for row in rows]


# --- data and starting models -------------------------------------------------------------------


def make_track(kind: str, scale: Scale) -> Track:
    """Rows of text and a tokenizer that is trained on them."""
    if kind == "t5":
        folder = Path(os.environ.get("SOFTQ_DATA", "../shared/data")) / "tatoeba_deu_eng"
        train = read_rows(folder / "train.tsv.gz")
        step = max(1, len(train) // scale.sources)
        train, held_out = train[::step], read_rows(folder / "dev.tsv.gz")[: scale.held_out]
        template = "{}"
    else:
        world, template = LanguageWorld(), "{} >"
        train, held_out = (
            [
                {"source": source, "references": list(several)}
                for source, several in zip(text.sources, text.references, strict=True)
            ]
            for text in (
                world.sample(min(scale.sources, 20_000), seed=0, references=3),
                world.sample(scale.held_out, seed=1, references=3),
            )
        )
    texts = [template.format(row["source"]) for row in train]
    texts += [text for row in train for text in row["references"]]
    tokenizer = train_tokenizer(texts, scale.vocabulary)
    if kind == "gpt2":  # a prompt has no end, as with GPT-2's own tokenizer
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(single="$A")
    return Track(kind, tokenizer, template, train, held_out)


def new_model(track: Track, scale: Scale) -> Any:
    torch.manual_seed(0)
    if not track.causal:
        return make_t5(scale.t5, track.tokenizer)
    ids = {"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0, "n_positions": 256}
    return GPT2LMHeadModel(GPT2Config(vocab_size=len(track.tokenizer), **ids, **scale.gpt2))


def adafactor(model: Any, rate: float) -> torch.optim.Optimizer:
    """As `softq train lm --optimizer adafactor`."""
    return torch.optim.Adafactor(
        model.parameters(), rate, eps=(torch.finfo(torch.float32).eps, 1e-3)
    )


def usual_arguments(options: argparse.Namespace, rate: float, seed: int) -> dict[str, Any]:
    """What all Trainers are told."""
    return {
        "output_dir": str(options.out / "trainer"),
        "learning_rate": rate,
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": WARMUP,
        "max_steps": 10**6,  # the clock ends it
        "seed": seed,
        "bf16": options.device == "cuda",
        "use_cpu": options.device == "cpu",
        "save_strategy": "no",
        "logging_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "dataloader_pin_memory": options.device == "cuda",
    }


def softq_trainer(
    track: Track, model: Any, arguments: RewardAugmentedArguments, rows: Rows
) -> Trainer:
    encode = RowEncoder(track.tokenizer, causal=track.causal, max_source=128, max_target=64)
    trainer = RewardAugmentedTrainer(
        model, arguments, processing_class=track.tokenizer, train_dataset=encode.all(rows)
    )
    if not track.causal:
        trainer.optimizer = adafactor(model, arguments.learning_rate)
    return trainer


def train_start(track: Track, scale: Scale, options: argparse.Namespace) -> Path:
    """The model that all methods start from, trained by likelihood; made if it is not there."""
    folder = options.out / START.format(track.kind)
    if not folder.exists():
        began = time.perf_counter()
        model = new_model(track, scale)
        usual = usual_arguments(options, 0.03 if track.kind == "t5" else scale.start_rate, 0)
        usual |= {"max_steps": options.start_steps or scale.start_steps, "warmup_steps": 100}
        usual["lr_scheduler_type"] = "cosine"
        arguments = RewardAugmentedArguments(
            **usual,
            objective="ml",
            reward="words:bleu",
            per_device_train_batch_size=scale.start_batch,
        )
        rows = [  # a reference at a time, as Transformers' own loss takes them
            {"source": row["source"], "references": [text]}
            for row in track.filled(track.train)
            for text in row["references"]
        ]
        trainer = softq_trainer(track, model, arguments, rows)
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        save_model(trainer.model, track.tokenizer, folder)
        note(f"{track.kind}: trained by likelihood, {time.perf_counter() - began:.0f} s")
    return folder


# --- a cell: one method, one rate, one seed -------------------------------------------------------


class Clock(TrainerCallback):
    """Evaluates at equal parts of the budget, with the clock stopped, and ends training with it."""

    def __init__(
        self, budget: float, checks: int, evaluate: Callable[[], dict[str, float]]
    ) -> None:
        self.budget, self.checks, self.evaluate = budget, checks, evaluate
        self.spent, self.began, self.step = 0.0, 0.0, 0
        self.curve: list[dict[str, float]] = []

    def run(self) -> None:
        """Let it run."""
        synchronize()
        self.began = time.perf_counter()

    def stop(self) -> None:
        """Stop it, once the GPU has done what it was asked to."""
        synchronize()
        self.spent += time.perf_counter() - self.began

    @property
    def now(self) -> float:
        """Seconds, while it runs."""
        return self.spent + time.perf_counter() - self.began

    def check(self) -> None:
        """Add a point to the curve."""
        found = {"seconds": round(self.spent, 3), "step": float(self.step), **self.evaluate()}
        self.curve.append(found)

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Called by Trainer; the first step, in which kernels are compiled, does not count."""
        if state.global_step == 1:
            self.run()
        elif self.now >= self.budget * len(self.curve) / self.checks:
            self.stop()
            self.step = state.global_step
            self.check()
            control.should_training_stop = self.spent >= self.budget
            self.run()


def text_rewards(texts: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
    """Sentence BLEU of words, mean over the references of each text."""
    numbers: dict[str, int] = {}

    def packed(rows: Sequence[Sequence[str]]) -> Sentences:
        return Sentences.pack(
            [
                [[numbers.setdefault(word, len(numbers)) for word in text.split()] for text in row]
                for row in rows
            ]
        )

    refs = packed(references)
    values = SentenceBLEU()(*packed([[text] for text in texts]), *refs).squeeze(1)
    return ((values * refs.present).sum(1) / refs.present.sum(1)).tolist()  # type: ignore[no-any-return]


def mbr_rows(model: TextModel, track: Track, how: Writing, going: Callable[[], bool]) -> Rows:
    """The model's own samples and what each earns against the others, while there is time."""
    made: Rows = []
    for rows in distill(model, [row["source"] for row in track.train], how):
        made += [row for row in rows if row is not None]
        if not going():
            break
    return made


def preference_pairs(
    model: TextModel, track: Track, how: Writing, going: Callable[[], bool]
) -> Rows:
    """The best and the worst of the model's samples for a source, while there is time."""
    made: Rows = []
    for first in range(0, len(track.train), how.batch_size):
        some = track.train[first : first + how.batch_size]
        drawn = model.samples([row["source"] for row in some], how).sentences.unpack()
        for row, tokens in zip(some, drawn, strict=True):
            texts = list(
                dict.fromkeys(model.tokenizer.batch_decode(tokens, skip_special_tokens=True))
            )
            rewards = text_rewards(texts, [row["references"]] * len(texts)) if texts else []
            if rewards and max(rewards) > min(rewards):
                best, worst = (texts[rewards.index(end)] for end in (max(rewards), min(rewards)))
                pair = {"chosen": f" {best}", "rejected": f" {worst}"}
                made.append({"prompt": track.template.format(row["source"]), **pair})
        if not going():
            break
    return made


def trl_trainer(
    track: Track, model: Any, method: Method, usual: dict[str, Any], rows: Rows, options: Any
) -> Trainer:
    """TRL's Trainer at the same number of prompts in a step."""
    trl, scale = load_trl(options.trl), options.sizes
    kind, arguments = method.trl, usual | dict(method.settings)
    arguments["per_device_train_batch_size"] = scale.batch * (SAMPLES if kind == "GRPO" else 1)
    more: dict[str, Any] = {}
    if kind == "SFT":
        arguments["max_length"] = 192
        rows = [
            {"prompt": row["source"], "completion": f" {text}"}
            for row in track.filled(rows)
            for text in row["references"]
        ]
    elif kind == "DPO":
        arguments["max_length"] = 192
    else:
        arguments |= {"num_generations": SAMPLES, "max_completion_length": scale.max_new_tokens}
        rows = [
            {"prompt": row["source"], "references": row["references"]} for row in track.filled(rows)
        ]

        def reward(
            prompts: Sequence[str], completions: Sequence[str], references: Any, **_: Any
        ) -> list[float]:
            return text_rewards(completions, references)

        more["reward_funcs"] = reward
    config = getattr(trl, f"{kind}Config")(**arguments)
    return getattr(trl, f"{kind}Trainer")(  # type: ignore[no-any-return]
        model, args=config, train_dataset=dataset(rows), processing_class=track.tokenizer, **more
    )


def evaluation(model: TextModel, track: Track, scale: Scale) -> Callable[[], dict[str, float]]:
    """What scores the model's greedy texts for held-out sources."""
    how = Writing(method="greedy", max_new_tokens=scale.max_new_tokens, batch_size=512)
    sources = [row["source"] for row in track.held_out]
    references = [row["references"] for row in track.held_out]
    tokens = [[model.token_ids(text) for text in several] for several in references]
    chrf = model.reward(HELD_OUT)

    def evaluate() -> dict[str, float]:
        texts = model.write(sources, how)
        scores = {
            REWARD: torch.tensor(text_rewards(texts, references), dtype=torch.float64),
            HELD_OUT: mean_rewards([model.token_ids(text) for text in texts], tokens, chrf),
        }
        halves = {"chosen_by_": slice(0, None, 2), "": slice(1, None, 2)}
        found = {
            f"{half}{one}": round(float(values[rows].mean()), 6)
            for half, rows in halves.items()
            for one, values in scores.items()
        }
        words = [tuple(text.split()) for text in texts]
        length = round(statistics.fmean(map(len, words)), 3)
        return found | {"length": length, "distinct": round(len(set(words)) / len(words), 4)}

    return evaluate


def run_cell(
    track: Track, start: Path, name: str, rate: float, seed: int, options: argparse.Namespace
) -> dict[str, Any]:
    """Train by one method for the budget; its curve."""
    scale, method = options.sizes, METHODS[name]
    torch.manual_seed(seed)
    loaded = load_model(str(start))
    model = loaded.model.to(options.device)
    rows = track.train[: scale.raced]
    track = Track(track.kind, loaded.tokenizer, track.template, rows, track.held_out)
    text_model = TextModel(Loaded(model, track.tokenizer), template=track.template, max_source=128)
    clock = Clock(options.seconds, options.checks, evaluation(text_model, track, scale))
    clock.check()
    if method.prepare:
        many = Writing(
            samples=MBR_SAMPLES if method.prepare == "mbr" else SAMPLES,
            reward="words:bleu",
            max_new_tokens=scale.max_new_tokens,
            batch_size=4 * scale.batch,
            seed=seed,
        )
        make = mbr_rows if method.prepare == "mbr" else preference_pairs
        clock.run()
        rows = make(text_model, track, many, lambda: clock.now < options.seconds / 3)
        clock.stop()
    faster = scale.faster if track.causal else 1.0
    usual = usual_arguments(options, rate * faster, seed)
    if method.trl:
        trainer = trl_trainer(track, model, method, usual, rows, options)
    else:
        arguments = RewardAugmentedArguments(
            **usual,
            **{"reward": "words:bleu", "candidate_size": SAMPLES, **method.settings},
            max_new_tokens=scale.max_new_tokens,
            per_device_train_batch_size=scale.batch,
        )
        trainer = softq_trainer(track, model, arguments, track.filled(rows))
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(clock)
    trainer.train()
    return {
        "kind": track.kind,
        "method": name,
        "rate": rate,
        "seed": seed,
        "budget": options.seconds,
        "rows": len(rows),
        "steps": clock.step,
        "curve": clock.curve,
    }


# --- the race -----------------------------------------------------------------------------------------


def wanted_cells(
    kind: str, name: str, done: Sequence[Mapping[str, Any]], options: argparse.Namespace
) -> list[tuple[float, int]]:
    """The rates and seeds that are not done: all rates at the first seed, then the best one."""
    rates = METHODS[name].rates.get(kind, ())
    mine = [cell for cell in done if (cell["kind"], cell["method"]) == (kind, name)]
    known = {(cell["rate"], cell["seed"]) for cell in mine}
    first = [(rate, 0) for rate in rates if (rate, 0) not in known]
    if first or not rates:
        return first
    best = chosen_rate(mine)
    return [(best, seed) for seed in range(1, options.seeds) if (best, seed) not in known]


def chosen_rate(cells: Sequence[Mapping[str, Any]]) -> float:
    """The rate of the best reward on the half that chooses, at the first seed."""
    first = [cell for cell in cells if cell["seed"] == 0]
    return float(max(first, key=lambda cell: cell["curve"][-1][f"chosen_by_{REWARD}"])["rate"])


def race(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run what is not done yet; all cells that are."""
    folder, began, longest = RunFolder(options.out), time.perf_counter(), 0.0
    options.out.mkdir(parents=True, exist_ok=True)
    folder.rewrite_lines(CELLS, folder.lines(CELLS))  # without half a line that a kill has left
    for kind in options.kinds:
        track: Track | None = None
        for name in options.methods:
            if METHODS[name].trl and (kind == "t5" or options.trl is None):
                continue
            while waiting := wanted_cells(kind, name, folder.lines(CELLS), options):
                if track is None:
                    track = make_track(kind, options.sizes)
                    start = train_start(track, options.sizes, options)
                elapsed = time.perf_counter() - began
                if options.minutes and elapsed + longest > 60 * options.minutes:
                    note("stopped in time; the same command continues")
                    return folder.lines(CELLS)
                cell_began = time.perf_counter()
                cell = run_cell(track, start, name, *waiting[0], options)
                folder.append_line(CELLS, cell)
                gc.collect()
                torch.cuda.empty_cache()
                last = cell["curve"][-1]
                note(
                    f"{kind} {name}, rate {cell['rate']:g}, seed {cell['seed']}: {cell['steps']}"
                    f" steps, reward {last[REWARD]:.4f}, chrF {last[HELD_OUT]:.4f}"
                )
                longest = max(longest, time.perf_counter() - cell_began)
    return folder.lines(CELLS)


def results(cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What each method reaches at the end of the budget, mean over seeds with 95 % intervals."""
    rows = []
    for kind in dict.fromkeys(cell["kind"] for cell in cells):
        finals: dict[str, dict[int, Mapping[str, float]]] = {}
        for name in METHODS:
            mine = [cell for cell in cells if (cell["kind"], cell["method"]) == (kind, name)]
            if any(cell["seed"] == 0 for cell in mine):
                rate = chosen_rate(mine)
                kept = [cell for cell in mine if cell["rate"] == rate]
                finals[name] = {cell["seed"]: cell["curve"][-1] for cell in kept}
                found = {
                    one: mean_interval([last[one] for last in finals[name].values()])
                    for one in (REWARD, HELD_OUT, "length", "distinct")
                }
                steps = statistics.fmean(cell["steps"] for cell in kept)
                start = kept[0]["curve"][0]
                rows.append(
                    {"kind": kind, "method": name, "rate": rate, "seeds": len(kept), "steps": steps}
                    | {one: list(value) for one, value in found.items()}
                    | {"start_reward": start[REWARD], "start_chrf": start[HELD_OUT]}
                )
        for row in rows:
            ours, theirs = finals.get(row["method"], {}), finals.get("grpo", {})
            both = sorted(ours.keys() & theirs.keys())
            if row["kind"] == kind and row["method"] != "grpo" and both:
                gaps = [ours[seed][REWARD] - theirs[seed][REWARD] for seed in both]
                row["over_grpo"] = list(mean_interval(gaps))
    return rows


def show(rows: Sequence[Mapping[str, Any]], title: str) -> None:
    table = Table(title=title)
    for column in ("model", "method", "rate", "seeds", "steps", "reward", "chrF", "over GRPO"):
        table.add_column(column, justify="left" if column in ("model", "method") else "right")

    def told(value: Sequence[float] | None, sign: str = "") -> str:
        if value is None:
            return ""
        middle, low, _ = value
        spread = "" if low != low else f" ± {100 * (middle - low):.2f}"
        return f"{100 * middle:{sign}.2f}{spread}"

    for row in rows:
        table.add_row(
            row["kind"],
            METHODS[row["method"]].title,
            f"{row['rate']:g}",
            str(row["seeds"]),
            f"{row['steps']:.0f}",
            told(row[REWARD]),
            told(row[HELD_OUT]),
            told(row.get("over_grpo"), "+"),
        )
    Console(width=130).print(table)


def draw(cells: Sequence[Mapping[str, Any]], path: Path, clock: str) -> None:
    """Reward and held-out metric against seconds, a band for the seeds."""
    panels = []
    for kind, what in (("t5", "Encoder–decoder"), ("gpt2", "Causal model")):
        for one, title in ((REWARD, "reward, %"), (HELD_OUT, "held-out chrF, %")):
            series = []
            for name, method in METHODS.items():
                mine = [cell for cell in cells if (cell["kind"], cell["method"]) == (kind, name)]
                if not any(cell["seed"] == 0 for cell in mine):
                    continue
                curves = [cell["curve"] for cell in mine if cell["rate"] == chosen_rate(mine)]
                points = [
                    (
                        statistics.fmean(point["seconds"] for point in at),
                        Interval(*(100 * end for end in mean_interval([p[one] for p in at]))),
                    )
                    for at in zip(*curves, strict=False)
                ]
                series.append(Series(method.title, method.look, points))
            panels.append(Panel(f"{what}: {title}", series))
    figure = panels_figure("race", "Race", "", panels, clock)
    if figure is not None:
        svg, _, _ = draw_svg(figure.draw, "race", phone=False)
        write_atomically(path, coloured(svg, dark=False).encode())


# --- steps --------------------------------------------------------------------------------------------


class Steps(TrainerCallback):
    """Milliseconds of each step after the first few."""

    def __init__(self, skip: int) -> None:
        self.skip, self.times, self.began = skip, list[float](), 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Called by Trainer."""
        if not self.began:
            synchronize()
            self.began = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Called by Trainer."""
        synchronize()
        now = time.perf_counter()
        if state.global_step > self.skip:
            self.times.append(1e3 * (now - self.began))
        self.began = now  # a step begins with its batch, which GRPO generates before on_step_begin


def word_tokenizer(size: int) -> Any:
    """One token for each word, so that prompts have the length they should."""
    words = {"<pad>": 0, "</s>": 1, "<unk>": 2} | {f"w{i}": i for i in range(3, size)}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))  # noqa: S106
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    marks = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=made, **marks)


def step_times(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A step with 8 samples of a prompt: softq with each way to generate against TRL's GRPO."""
    tiny = options.scale == "tiny"
    prompts, prompt, new = (4, 16, 8) if tiny else (32, 64, 32)
    size = {"vocab_size": 500, "n_embd": 32, "n_layer": 2, "n_head": 2} if tiny else {}
    config = GPT2Config(bos_token_id=1, eos_token_id=1, pad_token_id=0, **size)
    tokenizer = word_tokenizer(config.vocab_size)
    torch.manual_seed(0)
    first = GPT2LMHeadModel(config)
    numbers = torch.randint(3, config.vocab_size, (4096 if not tiny else 256, prompt))
    texts = [tokenizer.decode(row) for row in numbers.tolist()]
    steps, skip = (6, 2) if tiny else (16, 6)
    usual = usual_arguments(options, 1e-6, 0) | {"max_steps": steps}

    def ours(generation: str) -> Trainer:
        arguments = RewardAugmentedArguments(
            **usual,
            preset="tpo",
            candidate_size=SAMPLES,
            max_new_tokens=new,
            per_device_train_batch_size=prompts,
            generation=generation,
            pad_to_multiple_of=None if generation == "eager" else 32,
        )
        rows = [{"source": text, "references": [text]} for text in texts]
        encoded = RowEncoder(tokenizer, causal=True).all(rows)
        return RewardAugmentedTrainer(
            copy.deepcopy(first),
            arguments,
            reward=lambda candidates, references: [float(len(text)) for text in candidates],
            processing_class=tokenizer,
            train_dataset=encoded,
        )

    def theirs() -> Trainer:
        trl = load_trl(options.trl)
        arguments = trl.GRPOConfig(
            **usual,
            num_generations=SAMPLES,
            max_completion_length=new,
            per_device_train_batch_size=prompts * SAMPLES,
        )
        return trl.GRPOTrainer(  # type: ignore[no-any-return]
            copy.deepcopy(first),
            args=arguments,
            reward_funcs=lambda prompts, completions, **_: [float(len(t)) for t in completions],
            train_dataset=dataset([{"prompt": text} for text in texts]),
            processing_class=tokenizer,
        )

    contenders: dict[str, Callable[[], Trainer]] = {
        f"softq, {how}": lambda how=how: ours(how)  # type: ignore[misc]
        for how in (("eager",) if tiny else ("eager", "static", "compiled"))
    }
    if options.trl is not None:
        contenders["TRL GRPO"] = theirs
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(options.rounds):
        for name, make in contenders.items():
            steps_of = Steps(skip)
            trainer = make()
            trainer.remove_callback(PrinterCallback)
            trainer.add_callback(steps_of)
            trainer.train()
            times[name].append(statistics.median(steps_of.times))
            note(f"{name}: {times[name][-1]:.1f} ms")
            del trainer
            gc.collect()
            torch.cuda.empty_cache()
    shape = f"{prompts} prompts of {prompt} tokens × {SAMPLES} samples of {new}"
    rows = []
    for name, found in times.items():
        row: dict[str, Any] = {"work": f"step, {name}, {shape}", "ms": statistics.median(found)}
        if "TRL GRPO" in times and name != "TRL GRPO":
            pairs = zip(times["TRL GRPO"], found, strict=True)
            row["times_faster"] = round(statistics.median(a / b for a, b in pairs), 3)
        rows.append(row)
    return rows


def sharing_rows(options: argparse.Namespace) -> list[dict[str, Any]]:
    """What it saves to read a prompt once for all its candidates, by the benchmark of fine-tuning."""
    how = SimpleNamespace(device=options.device, rounds=options.rounds * 3)
    tiny = options.scale == "tiny"
    rows = []
    for name, made in {"T5-small": t5_small, "GPT-2, 6 layers": gpt2_six}.items():
        for compiled in (False,) if options.device == "cpu" else (False, True):
            rows.append(sharing(name, made(tiny), "bf16", compiled, how))  # type: ignore[arg-type]
            note(str(rows[-1]))
    return rows


# --- the command --------------------------------------------------------------------------------------


def without_nan(value: Any) -> Any:
    """The same with null for NaN, such as the ends of an interval over one seed."""
    if isinstance(value, dict):
        return {name: without_nan(one) for name, one in value.items()}
    if isinstance(value, list):
        return [without_nan(one) for one in value]
    return None if isinstance(value, float) and value != value else value


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def parse() -> argparse.Namespace:
    make = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    make.add_argument("--scale", choices=list(SCALES), default="full")
    make.add_argument("--out", type=Path, default=Path("runs/race"), help="cells and models")
    make.add_argument("--trl", help="folder that TRL was unpacked into; '' if it is installed")
    make.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    make.add_argument("--kinds", nargs="+", choices=["t5", "gpt2"], default=["t5", "gpt2"])
    make.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    make.add_argument("--seconds", type=float, help="of training for each method")
    make.add_argument("--seeds", type=int)
    make.add_argument("--checks", type=int, help="evaluations within the budget")
    make.add_argument("--start-steps", type=int, help="of likelihood, before the race")
    make.add_argument("--minutes", type=float, help="begin no cell that would end later")
    make.add_argument("--figure", type=Path, help="write the curves there (.svg)")
    make.add_argument("--steps-only", action="store_true", help="step times instead of the race")
    make.add_argument("--rounds", type=int, default=3, help="of --steps-only")
    make.add_argument("--json", action="store_true", help="print the JSON object alone")
    options = make.parse_args()
    options.sizes = SCALES[options.scale]
    for name in ("seconds", "seeds", "checks"):
        if getattr(options, name) is None:
            setattr(options, name, getattr(options.sizes, name))
    return options


def main() -> None:
    options = parse()
    machine = machine_name(options.device)
    clock = "GPU seconds" if options.device == "cuda" else "CPU seconds"
    about: dict[str, Any] = {
        "benchmark": "race, steps" if options.steps_only else "race",
        "scale": options.scale,
        "device": options.device,
        "machine": machine,
        "torch": torch.__version__,
        "budget": options.seconds,
    }
    with quiet():
        if options.steps_only:
            rows = [*step_times(options), *sharing_rows(options)]
            if not options.json:
                for row in rows:
                    print(row)
        else:
            cells = race(options)
            rows = results(cells)
            if options.figure is not None:
                draw(cells, options.figure, clock)
            if not options.json:
                show(
                    rows, f"{options.seconds:g} {clock} each, {machine}; reward and chrF in percent"
                )
    print(json.dumps(without_nan({**about, "rows": rows})))


if __name__ == "__main__":
    main()
