"""Loss and gradient of the exact spaces against their peers, in one run: `softq bench core`.

Every loss is the mean negative log-likelihood of one reference, forward and backward, float32, and
all losses are checked to agree before they are timed. Contenders take turns; the figure is the
ratio of medians. The making of the target is part of the time. On a GPU, softq's step is timed as
it stands and once more as a CUDA graph.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

import softq
from peers import Loss, chain_losses, segment_losses, tree_losses
from timing import by_turns

CHAINS = {
    "cpu": [(128, 30, 9, 10.0), (128, 100, 9, 18.0), (32, 100, 50, 15.0)],
    "cuda": [(256, 100, 9, 5.0)],
}
SEGMENTS: dict[str, list[tuple[int, int, int, int, float | None]]] = {
    # batch, tokens, longest segment, labels: the second is small enough for torch-struct
    "cpu": [(32, 40, 8, 9, 20.0), (16, 20, 4, 5, 20.0)],
    "cuda": [(128, 40, 8, 9, None)],
}
SEGMENT_MS = 1.5  # bar on a GPU: milliseconds of that step
PROJECTIVE = {"cpu": [(32, 20, 30.0), (32, 40, 40.0), (32, 80, 30.0)], "cuda": [(128, 40, 5.0)]}
SPANNING = {"cpu": [(32, 20, 3.0), (32, 40, 3.0)], "cuda": [(128, 40, None)]}


def step(loss: Loss, *leaves: Tensor) -> Callable[[], Tensor]:
    """One loss and its gradient."""

    def run() -> Tensor:
        for leaf in leaves:
            leaf.grad = None
        value = loss()
        value.backward()
        return value

    return run


def graphed(call: Callable[[], object]) -> Callable[[], object]:
    """The same step as one CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()  # what is compiled or allocated once is made here
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def compare(
    name: str,
    ours: dict[str, Loss],
    peers: dict[str, Loss],
    leaves: list[Tensor],
    bar: float | None,
    rounds: int,
    raml_bar: float,
) -> dict[str, object]:
    """Time ML and RAML of softq and every peer; ratios to the peer the bar is set against."""
    values = {
        label: step(loss, *leaves)().item()
        for label, loss in {"softq": ours["ml"], **peers}.items()
    }
    for label, value in values.items():
        if abs(value - values["softq"]) > 1e-3 * abs(values["softq"]):
            raise SystemExit(
                f"{name}: {label} computes another loss ({value}) than softq ({values['softq']})"
            )
    calls = {"softq": step(ours["ml"], *leaves), "softq RAML": step(ours["raml"], *leaves)}
    if leaves[0].is_cuda:
        calls |= {f"{label} graphed": graphed(call) for label, call in list(calls.items())}
    repeats = dict.fromkeys(calls, 3)
    calls |= {label: step(loss, *leaves) for label, loss in peers.items()}
    times = by_turns(calls, rounds=rounds, repeats=repeats)
    ratios = {label: times[label] / times["softq"] for label in peers}
    return {
        "work": name,
        "ms": {label: round(ms, 4) for label, ms in times.items()},
        "times_faster": {label: round(ratio, 2) for label, ratio in ratios.items()},
        "times_faster_than_the_fastest": round(min(ratios.values()), 2) if ratios else None,
        "bar": bar,
        "raml_over_ml": round(times["softq RAML"] / times["softq"], 3),
        "raml_bar": raml_bar,
    }


def chain_case(
    batch: int, size: int, labels: int, bar: float, device: str, rounds: int
) -> dict[str, object]:
    """Linear chains; the bar is against pytorch-crf on the CPU and the fastest peer on a GPU."""
    emissions = torch.randn(batch, size, labels, device=device, requires_grad=True)
    transitions = torch.randn(labels, labels, device=device, requires_grad=True)
    gold = torch.randint(labels, (batch, size), device=device)

    def ml() -> Tensor:
        p = softq.Chain(emissions, transitions)
        return softq.cross_entropy(softq.ml(p, gold), p).mean()

    def raml() -> Tensor:
        p = softq.Chain(emissions, transitions)
        return softq.cross_entropy(softq.raml(p, gold, tau=0.2), p).mean()

    peers = chain_losses(emissions, transitions, gold)
    return compare(
        f"Chain {batch}×{size}×{labels}",
        {"ml": ml, "raml": raml},
        peers,
        [emissions, transitions],
        bar,
        rounds,
        1.1,
    )


def segment_case(
    batch: int, size: int, longest: int, labels: int, bar: float | None, device: str, rounds: int
) -> dict[str, object]:
    """Labelled segments."""
    segments = torch.randn(batch, size, longest, labels, device=device, requires_grad=True)
    transitions = torch.randn(labels, labels, device=device, requires_grad=True)
    gold = softq.SemiMarkov(segments.detach()).sample(generator=torch.Generator().manual_seed(0))

    def ml() -> Tensor:
        p = softq.SemiMarkov(segments, transitions)
        return softq.cross_entropy(softq.ml(p, gold), p).mean()

    def raml() -> Tensor:
        p = softq.SemiMarkov(segments, transitions)
        return softq.cross_entropy(softq.raml(p, gold, tau=0.3), p).mean()

    peers = segment_losses(segments, transitions, gold)
    row = compare(
        f"SemiMarkov {batch}×{size}×{labels}, segments ≤ {longest}",
        {"ml": ml, "raml": raml},
        peers,
        [segments, transitions],
        bar,
        rounds,
        3.0,
    )
    return row | ({"ms_bar": SEGMENT_MS} if device == "cuda" else {})


def tree_case(
    kind: type[softq.Distribution],
    batch: int,
    size: int,
    bar: float | None,
    device: str,
    rounds: int,
) -> dict[str, object]:
    """Dependency trees with one root."""
    arcs = torch.randn(batch, size + 1, size + 1, device=device, requires_grad=True)
    gold = kind(arcs.detach()).sample(generator=torch.Generator().manual_seed(0))

    def ml() -> Tensor:
        p = kind(arcs)
        return softq.cross_entropy(softq.ml(p, gold), p).mean()

    def raml() -> Tensor:
        p = kind(arcs)
        return softq.cross_entropy(softq.raml(p, gold, tau=0.3), p).mean()

    peers = tree_losses(arcs, gold, projective=kind is softq.ProjectiveTree)
    return compare(
        f"{kind.__name__} {batch}×{size}", {"ml": ml, "raml": raml}, peers, [arcs], bar, rounds, 2.1
    )


def decoding_case(
    name: str, make: Callable[..., softq.Distribution], *shapes: tuple[int, ...]
) -> dict[str, object]:
    """Decoding on a GPU beside copying the scores to the CPU and decoding there; float32."""
    scores = [torch.randn(shape, device="cuda") for shape in shapes]
    generator = torch.Generator().manual_seed(0)
    calls: dict[str, Callable[[], object]] = {
        "mode": lambda: make(*scores, validate=False).mode(),
        "mbr": lambda: make(*scores, validate=False).mbr(),
        "8 samples": lambda: make(*scores, validate=False).sample((8,), generator=generator),
        "mode on the CPU": lambda: (
            make(*(each.cpu() for each in scores), validate=False).mode().to("cuda")
        ),
    }
    times = by_turns(calls, rounds=15, repeats=dict.fromkeys(calls, 3))
    return {
        "work": f"decoding {name} {'×'.join(map(str, shapes[0]))}",
        "ms": {label: round(ms, 4) for label, ms in times.items()},
        "times_faster": round(times["mode on the CPU"] / times["mode"], 2),
    }


def decoding_cases() -> list[dict[str, object]]:
    return [
        decoding_case("Chain", softq.Chain, (128, 40, 9), (9, 9)),
        decoding_case("SemiMarkov", softq.SemiMarkov, (128, 40, 8, 9), (9, 9)),
        decoding_case("ProjectiveTree", softq.ProjectiveTree, (128, 41, 41)),
        decoding_case("SpanningTree", softq.SpanningTree, (128, 41, 41)),
    ]


def best_case(batch: int = 128, size: int = 30, labels: int = 9, k: int = 16) -> dict[str, object]:
    """The k best label sequences beside the best one; ragged lengths."""
    emissions, transitions = torch.randn(batch, size, labels), torch.randn(labels, labels)
    lengths = torch.randint(size // 2, size + 1, (batch,))
    calls: dict[str, Callable[[], object]] = {
        "mode": lambda: softq.Chain(emissions, transitions, lengths).mode(),
        "topk": lambda: softq.Chain(emissions, transitions, lengths).topk(k),
    }
    times = by_turns(calls, rounds=30, repeats=dict.fromkeys(calls, 5))
    return {
        "work": f"the {k} best of Chain {batch}×{size}×{labels}",
        "ms": {label: round(ms, 4) for label, ms in times.items()},
        "times_mode": round(times["topk"] / times["mode"], 2),
        "bar": 5.0,
    }


def chain_memory(batch: int = 128, size: int = 1000, labels: int = 50) -> dict[str, object]:
    """Peak memory of loss and gradient beyond the inputs, as a multiple of them.

    The allocations torch and numba make.
    """
    from memory import peak_bytes

    emissions = torch.randn(batch, size, labels, requires_grad=True)
    transitions = torch.randn(labels, labels, requires_grad=True)
    gold = torch.randint(labels, (batch, size))
    inputs = (emissions.numel() + transitions.numel()) * emissions.element_size()

    def run(target: Callable[[softq.Distribution], softq.Target]) -> None:
        emissions.grad = transitions.grad = None
        p = softq.Chain(emissions, transitions)
        softq.cross_entropy(target(p), p).mean().backward()

    found = {}
    for name, target in {
        "ml": lambda p: softq.ml(p, gold),
        "raml": lambda p: softq.raml(p, gold, 0.2),
    }.items():
        run(target)
        found[name] = round(peak_bytes(lambda target=target: run(target)) / inputs, 2)
    return {"work": f"memory of Chain {batch}×{size}×{labels}", "times_inputs": found, "bar": 2.5}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true", help="print the JSON object alone")
    options = parser.parse_args()
    torch.manual_seed(0)
    device, rounds = options.device, options.rounds
    if device == "cuda" and not torch.cuda.is_available():
        print("no GPU here: nothing was measured")
        return
    rows = [chain_case(*case, device, rounds) for case in CHAINS[device]]
    rows += [segment_case(*case, device, rounds) for case in SEGMENTS[device]]
    rows += [tree_case(softq.ProjectiveTree, *case, device, rounds) for case in PROJECTIVE[device]]
    rows += [tree_case(softq.SpanningTree, *case, device, rounds) for case in SPANNING[device]]
    memory = chain_memory() if device == "cpu" else None
    best = best_case() if device == "cpu" else None
    decoding = decoding_cases() if device == "cuda" else []
    if not options.json:
        show(rows, memory, best, decoding)
    machine = (
        torch.cuda.get_device_name()
        if device == "cuda"
        else platform.processor() or platform.machine()
    )
    print(
        json.dumps(
            {
                "benchmark": "core",
                "device": device,
                "machine": machine,
                "threads": torch.get_num_threads(),
                "torch": torch.__version__,
                "rows": rows,
                "memory": memory,
                "best": best,
                "decoding": decoding,
            }
        )
    )


def show(
    rows: list[dict[str, object]],
    memory: dict[str, object] | None,
    best: dict[str, object] | None,
    decoding: list[dict[str, object]],
) -> None:
    names = sorted({label for row in rows for label in row["times_faster"]})
    table = Table(
        title=f"loss + gradient, {torch.get_num_threads()} threads; times faster than",
        box=box.SIMPLE,
    )
    graphs = any("softq graphed" in row["ms"] for row in rows)
    for column in (
        "work",
        "softq ms",
        *(["graphed ms"] if graphs else []),
        *names,
        "bar",
        "RAML / ML",
        "bar",
    ):
        table.add_column(column, justify="left" if column == "work" else "right")
    for row in rows:
        faster = [
            f"{row['times_faster'][n]:.1f}×" if n in row["times_faster"] else "" for n in names
        ]
        bar = f"{row['bar']:g}×" if row["bar"] else ""
        bar = f"{row['ms_bar']:g} ms" if "ms_bar" in row else bar
        ms = [
            f"{row['ms'][label]:.3f}" for label in ("softq", "softq graphed") if label in row["ms"]
        ]
        table.add_row(
            row["work"], *ms, *faster, bar, f"{row['raml_over_ml']:.2f}", f"{row['raml_bar']:g}"
        )
    console = Console(width=120)
    console.print(table)
    if memory:
        console.print(
            f"{memory['work']}: {memory['times_inputs']} times its inputs, bar {memory['bar']:g}"
        )
    if best:
        console.print(
            f"{best['work']}: {best['ms']['topk']:.2f} ms, {best['times_mode']:.1f} times the best"
            f" one, bar {best['bar']:g}"
        )
    for row in decoding:
        ms = ", ".join(f"{label} {value:.3f}" for label, value in row["ms"].items())
        console.print(f"{row['work']}, ms: {ms}")


if __name__ == "__main__":
    main()
