"""Rewards and samplers against other packages and against a copy of memory, in one run.

`softq bench rewards`.

On two CPU threads. Words are sampled by Zipf's law, so that sentences share some as real ones do.
Contenders take turns, and what they compute is checked to agree before it is timed. sacreBLEU and
fast-bleu are timed on a part of the pairs, spread over all of them, and scaled. The peers' strings
and lists are made beforehand; what they build from them is part of their time.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.metadata
import importlib.util
import json
import os
import platform
import random
import string
import sys
from collections.abc import Callable
from functools import partial

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

import softq
from memory import peak_bytes
from softq.rewards import ChrF, NegativeEditDistance, RougeL, SentenceBLEU
from softq.samplers import EditStratified, HammingStratified, NgramReplacement
from softq.sentences import Sentences
from timing import by_turns

THREADS = 2
VOCAB = 20_000
EVERY_PAIR, EVERY_REFERENCE = (
    51,
    8,
)  # sacreBLEU gets every 51st pair, fast-bleu the candidates of every 8th reference
PEERS = {"sacreBLEU": "sacrebleu", "fast-bleu": "fast_bleu", "rapidfuzz": "rapidfuzz"}
Row = dict[str, object]


def installed(peer: str) -> bool:
    return importlib.util.find_spec(PEERS[peer]) is not None


def sentences(
    batch: int,
    shortest: int,
    longest: int,
    *,
    count: int = 1,
    vocab: int = VOCAB,
    dtype: torch.dtype = torch.int64,
) -> Sentences:
    """Random sentences ``[batch, count, longest]``, lengths uniform between the two."""
    words = torch.multinomial(
        1.0 / torch.arange(1.0, vocab + 1), batch * count * longest, replacement=True
    )
    return Sentences(
        words.reshape(batch, count, longest).to(dtype),
        torch.randint(shortest, longest + 1, (batch, count)),
    )


def figure(
    what: str, value: float, *, least: float | None = None, most: float | None = None
) -> Row:
    """One measured number and its bar, if it has one."""
    reached = (
        None
        if least is None and most is None
        else (least is None or value >= least) and (most is None or value <= most)
    )
    return {
        "what": what,
        "value": float(f"{value:.4g}"),
        "at_least": least,
        "at_most": most,
        "reached": reached,
    }


def row(work: str, times: dict[str, float], *figures: Row) -> Row:
    return {
        "work": work,
        "ms": {name: round(ms, 4) for name, ms in times.items()},
        "figures": list(figures),
    }


def rate(count: int, ms: float) -> float:
    """Millions per second."""
    return count / ms / 1e3


def agree(peer: str, ours: Tensor, theirs: object, tolerance: float) -> None:
    gap = float((ours.double() - torch.as_tensor(theirs, dtype=torch.float64)).abs().max())
    if not gap <= tolerance:
        raise SystemExit(f"{peer} computes other values than softq: they differ by up to {gap:g}")


def bleu(rounds: int) -> list[Row]:
    """Sentence BLEU, 256 references with 64 candidates each.

    The other overlap rewards on the same pairs.
    """
    refs = sentences(256, 15, 25)
    cands = NgramReplacement(VOCAB, size=64)(refs)
    pairs = cands.lengths.numel()
    given = (*cands.sentences, *refs)
    rewards = {"softq": SentenceBLEU(), "ROUGE-L": RougeL(), "chrF": ChrF(random_words())}
    calls: dict[str, Callable[[], object]] = {
        name: partial(reward, *given) for name, reward in rewards.items()
    }
    scale: dict[str, float] = {}
    both = zip(refs.unpack(), cands.sentences.unpack(), strict=True)
    groups = [(spelled(ref), [spelled(cand) for cand in group]) for (ref,), group in both]
    if installed("sacreBLEU"):
        from sacrebleu.metrics import BLEU

        metric = BLEU(effective_order=True, tokenize="none")
        texts = [(" ".join(cand), [" ".join(ref)]) for ref, group in groups for cand in group][
            ::EVERY_PAIR
        ]
        calls["sacreBLEU"] = lambda: [
            metric.sentence_score(cand, ref).score / 100 for cand, ref in texts
        ]
        scale["sacreBLEU"] = pairs / len(texts)
        for reward in (
            SentenceBLEU(smoothing="sacrebleu", effective_order=True),
            rewards["softq"],
        ):  # the same on sentences this long
            agree("sacreBLEU", reward(*given).reshape(-1)[::EVERY_PAIR], calls["sacreBLEU"](), 1e-9)
    if installed("fast-bleu"):
        from fast_bleu import BLEU as FastBLEU  # noqa: N811

        some, weights = groups[::EVERY_REFERENCE], {4: (0.25,) * 4}
        calls["fast-bleu"] = lambda: [
            FastBLEU([ref], weights).get_score(group)[4] for ref, group in some
        ]
        if sys.platform == "linux":
            calls["fast-bleu, one thread"] = partial(on_one_thread, calls["fast-bleu"])
        scale |= {name: len(groups) / len(some) for name in calls if name.startswith("fast-bleu")}
        plain = SentenceBLEU(smoothing="none")(*given)[::EVERY_REFERENCE, :, 0]
        agree(
            "fast-bleu",
            plain[plain > 0],
            torch.tensor(calls["fast-bleu"](), dtype=torch.float64)[plain > 0],
            1e-6,
        )
    times = by_turns(calls, rounds=rounds, repeats={"softq": 3, "ROUGE-L": 3})
    times |= {peer: times[peer] * factor for peer, factor in scale.items()}
    speeds = {
        name: figure(
            "million pairs/s", rate(pairs, times[name]), least=5.0 if name == "softq" else None
        )
        for name in rewards
    }
    bars = {"sacreBLEU": 500.0, "fast-bleu": 100.0, "fast-bleu, one thread": 100.0}
    versus = [
        figure(f"times faster than {peer}", times[peer] / times["softq"], least=bars[peer])
        for peer in scale
    ]
    first = row(
        "sentence BLEU 256×64",
        {name: times[name] for name in ("softq", *scale)},
        speeds["softq"],
        *versus,
    )
    return [
        first,
        *(
            row(f"{name} 256×64", {"softq": times[name]}, speeds[name])
            for name in ("ROUGE-L", "chrF")
        ),
    ]


def on_one_thread(call: Callable[[], object]) -> object:
    """fast-bleu takes a thread for every core.

    Where others use the cores too, they wait for each other and one alone is faster.
    """
    openmp = ctypes.CDLL("libgomp.so.1", mode=os.RTLD_NOLOAD)  # the one that is loaded already
    levels = openmp.omp_get_max_active_levels()
    openmp.omp_set_max_active_levels(0)
    try:
        return call()
    finally:
        openmp.omp_set_max_active_levels(levels)


def spelled(words: list[int]) -> list[str]:
    return [f"w{word}" for word in words]


def random_words() -> list[str]:
    made = random.Random(0)  # noqa: S311
    return [
        "".join(made.choices(string.ascii_lowercase, k=made.randint(2, 9))) for _ in range(VOCAB)
    ]


def levenshtein(rounds: int) -> list[Row]:
    """Each of 256 references with its own 64 candidates.

    And 64 candidates with all 256 references, as cdist pairs them.
    """
    refs = sentences(256, 20, 20)
    own = NgramReplacement(VOCAB, size=64)(refs).sentences
    few = Sentences(
        own.tokens[None, ::4, 1], own.lengths[None, ::4, 1]
    )  # one candidate of every fourth reference
    every = Sentences(refs.tokens.reshape(1, 256, -1), refs.lengths.reshape(1, 256))
    reward, pairs = NegativeEditDistance(), 256 * 64
    left = [group[0] for group in refs.unpack()]
    rows = []
    for pairing, given in {"each its own": (*own, *refs), "all with all": (*few, *every)}.items():
        calls: dict[str, Callable[[], object]] = {"softq": partial(reward, *given)}
        bars: dict[str, float | None] = {}
        if installed("rapidfuzz"):
            from rapidfuzz import process
            from rapidfuzz.distance import Levenshtein

            options = {"scorer": Levenshtein.distance, "workers": THREADS}
            if pairing == "all with all":
                right = few.unpack()[0]
                both = [(a, b) for b in right for a in left]
                calls["rapidfuzz cdist"] = partial(process.cdist, left, right, **options)
                found = calls["rapidfuzz cdist"]().T
            else:
                both = [(a, b) for a, group in zip(left, own.unpack(), strict=True) for b in group]
                calls["rapidfuzz cpdist"] = partial(
                    process.cpdist, *map(list, zip(*both, strict=True)), **options
                )
                found = calls["rapidfuzz cpdist"]()
            calls["rapidfuzz in a loop"] = partial(
                lambda both: [Levenshtein.distance(a, b) for a, b in both], both
            )
            bars = {"rapidfuzz in a loop": 2.0, "rapidfuzz cdist": 1.0, "rapidfuzz cpdist": None}
            for values in (calls["rapidfuzz in a loop"](), found):
                agree(
                    "rapidfuzz",
                    -reward(*given).reshape(-1),
                    torch.as_tensor(values).reshape(-1),
                    0.0,
                )
        times = by_turns(
            calls,
            rounds=rounds,
            repeats={name: 3 for name in calls if name != "rapidfuzz in a loop"},
        )
        versus = [
            figure(f"times faster than {peer}", times[peer] / times["softq"], least=bars[peer])
            for peer in calls
            if peer != "softq"
        ]
        rows.append(
            row(
                f"Levenshtein 256×64, {pairing}",
                times,
                figure("million pairs/s", rate(pairs, times["softq"])),
                *versus,
            )
        )
    return rows


def replacement(batch: int, dtype: torch.dtype, rounds: int) -> Row:
    """n-gram replacement against a copy of what it makes; both allocate their result."""
    refs, sampler = sentences(batch, 15, 25, dtype=dtype), NgramReplacement(VOCAB, size=100)
    made = sampler(refs)
    parts = [
        part
        for part in (made.tokens, made.lengths, made.log_proposal, made.fixed, made.draws)
        if part is not None
    ]
    calls = {"softq": lambda: sampler(refs), "copy": lambda: [part.clone() for part in parts]}
    times = by_turns(
        calls, rounds=rounds, repeats=dict.fromkeys(calls, 3) if batch < 1000 else None
    )
    speed = figure("million candidates/s", rate(made.lengths.numel(), times["softq"]))
    work = f"n-gram replacement {batch:,}×100, {str(dtype).removeprefix('torch.')}"
    return row(
        work,
        times,
        figure("times the time of a copy", times["softq"] / times["copy"], most=4.0),
        speed,
    )


def generate_and_score(rounds: int) -> Row:
    """100 candidates for each of 100,000 references, in memory.

    The peak is the most resident memory beyond the references.
    """
    refs, sampler, reward = (
        sentences(100_000, 10, 30, dtype=torch.int32),
        NgramReplacement(VOCAB, max_n=4, size=100),
        SentenceBLEU(),
    )

    def run() -> tuple[softq.Candidates, Tensor]:
        cands = sampler(refs)
        return cands, reward(*cands.sentences, *refs)

    times = by_turns(
        {"softq": run, "generating alone": lambda: sampler(refs)}, rounds=rounds, warmup=0
    )
    cands, rewards = run()
    size = sum(part.nbytes for part in (cands.tokens, cands.lengths, cands.log_proposal, rewards))
    del cands, rewards
    peak = peak_bytes(run)
    seconds = figure("seconds", times["softq"] / 1e3, most=3.0)
    memory = figure(
        f"peak memory, times the result of {size / 2**30:.2f} GiB", peak / size, most=2.0
    )
    return row(
        "generate and score 100,000×100",
        times,
        seconds,
        memory,
        figure("seconds to generate", times["generating alone"] / 1e3),
    )


def captions(rounds: int) -> list[Row]:
    """SQDML on 1,000 images with 500 candidates and 5 references."""
    refs = sentences(1000, 8, 16, count=5, vocab=10_000)
    cands = NgramReplacement(10_000, max_n=3, size=500)(refs)
    reward = SentenceBLEU()
    calls = {
        "rewards": partial(reward, *cands.sentences, *refs),
        "sqdml": partial(softq.sqdml, cands, refs, 0.1, reward),
    }
    times = by_turns(calls, rounds=rounds, warmup=1)
    speed = figure("million pairs/s", rate(cands.lengths.numel() * 5, times["rewards"]))
    seconds = {name: ms / 1e3 for name, ms in times.items()}
    return [
        row(
            "SQDML rewards 1,000×500×5",
            {"softq": times["rewards"]},
            figure("seconds", seconds["rewards"], most=1.0),
            speed,
        ),
        row(
            "softq.sqdml, rewards included",
            {"softq": times["sqdml"]},
            figure("seconds", seconds["sqdml"]),
        ),
    ]


def others(rounds: int) -> list[Row]:
    """Samplers and estimators without a bar, 256 references with 100 candidates each."""
    refs = sentences(256, 15, 25)
    samplers = [
        HammingStratified(VOCAB, 0.85, rescale=True),
        EditStratified(VOCAB, 0.8, rescale=True),
    ]
    calls: dict[str, Callable[[], object]] = {
        type(sampler).__name__: partial(sampler, refs) for sampler in samplers
    }
    times = by_turns(calls, rounds=rounds)
    rows = [
        row(f"{name} 256×100", {"softq": ms}, figure("million samples/s", rate(25_600, ms)))
        for name, ms in times.items()
    ]
    cands, reward = NgramReplacement(VOCAB, size=100)(refs), SentenceBLEU()

    def raml(*measure: object) -> softq.Target:
        return softq.raml(cands.measure(*measure), refs, 0.1, reward)

    calls = {"set": partial(raml, "set"), "paper, k=10": partial(raml, "paper", 10)}
    calls |= {"importance": partial(raml, "importance")}
    calls |= {"rewards alone": partial(reward, *cands.sentences, *refs)}
    times = by_turns(calls, rounds=rounds, repeats=dict.fromkeys(calls, 3))
    return [
        *rows,
        row(
            "softq.raml 256×100",
            {"softq": times["set"]},
            *(figure(f"ms, {name}", ms) for name, ms in times.items()),
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true", help="print the JSON object alone")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(THREADS)
    rounds = options.rounds
    rows = bleu(rounds)
    rows.append(generate_and_score(rounds))
    rows += [
        replacement(batch, dtype, rounds)
        for batch in (256, 20_000)
        for dtype in (torch.int64, torch.int32)
    ]
    rows += levenshtein(rounds) + captions(rounds) + others(rounds)
    missing = [peer for peer in PEERS if not installed(peer)]
    if not options.json:
        show(rows, missing)
    versions = {peer: importlib.metadata.version(peer) for peer in PEERS if peer not in missing}
    machine = {
        "machine": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }
    print(
        json.dumps(
            {
                "benchmark": "rewards",
                **machine,
                "torch": torch.__version__,
                "peers": versions,
                "missing": missing,
                "rows": rows,
            }
        )
    )


def show(rows: list[Row], missing: list[str]) -> None:
    table = Table(title=f"rewards and samplers, {torch.get_num_threads()} threads", box=box.SIMPLE)
    for column in ("work", "softq ms", "", "measured", "bar", "reached"):
        table.add_column(column, justify="right" if column in ("softq ms", "", "bar") else "left")
    for line in rows:
        head = [line["work"], f"{line['ms']['softq']:,.3f}"]
        for item in line["figures"]:
            bar = (
                f"≥ {item['at_least']:g}"
                if item["at_least"]
                else f"≤ {item['at_most']:g}"
                if item["at_most"]
                else ""
            )
            value = f"{item['value']:,.0f}" if item["value"] >= 100 else f"{item['value']:.3g}"
            table.add_row(
                *head,
                value,
                item["what"],
                bar,
                {True: "yes", False: "no", None: ""}[item["reached"]],
            )
            head = ["", ""]
    console = Console(width=140)
    console.print(table)
    console.print(
        "sacreBLEU and fast-bleu: scaled from a part of the pairs. Peak memory: resident memory"
        " beyond that before, sampled."
    )
    if missing:
        console.print(f"not installed and left out: {', '.join(missing)}")


if __name__ == "__main__":
    main()
