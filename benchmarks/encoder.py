"""Images a second of `softq data features`.

Decoding alone, the encoder alone, and both together, with the same number of threads.

The images are JPEGs that are made here, with detail about as in photographs, and the weights are
random: neither changes the speed. Of each size there are as many as keep the slower of the two
parts busy for a second and a half, in whole batches, unless you say how many.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich import box
from rich.console import Console
from rich.table import Table
from safetensors.torch import save_file

from softq.neural.images import Encoder, load_encoder, read_picture, stream
from softq.neural.images.efficientnet import EfficientNetLite0
from timing import synchronize

SIZES = {
    "224 × 224": (224, 224),
    "500 × 375": (500, 375),
    "2048 × 1536": (2048, 1536),
}  # thumbnails, Flickr's and COCO's, a camera's
DISTINCT = 16  # images of a size; longer lists repeat them
# of the slower part in a turn; what begins and ends a run through the images is little beside it
SECONDS = 1.5
ENCODED = 8  # batches at most that the encoder takes in a turn of its own
BAR = 0.95  # of the rate of decoding alone, on a GPU


def make_images(folder: Path, width: int, height: int) -> list[Path]:
    """JPEGs of smooth patches with some noise."""
    generator = np.random.default_rng(0)
    noise = generator.normal(0, 6, (height, width, 3)).astype(np.float32)
    files = []
    for number in range(DISTINCT):
        patches = Image.fromarray(
            generator.integers(0, 256, (height // 16, width // 16, 3), dtype=np.uint8)
        )
        smooth = np.asarray(
            patches.resize((width, height), Image.Resampling.BICUBIC), dtype=np.float32
        )
        files.append(folder / f"{width}-{number}.jpg")
        Image.fromarray((smooth + noise).clip(0, 255).astype(np.uint8)).save(files[-1], quality=85)
    return files


def random_encoder(folder: Path) -> Encoder:
    """EfficientNet-Lite0 with random weights."""
    save_file(EfficientNetLite0().state_dict(), folder / "weights.safetensors")
    return load_encoder("efficientnet-lite0", folder / "weights.safetensors")


def batch_size(encoder: Encoder) -> int:
    """Images that `stream` gives to the encoder at once."""
    return 256 if encoder.device.type == "cuda" else 32


def decode(files: Sequence[Path], encoder: Encoder, threads: int) -> int:
    """Nothing but decoding: each thread has its share of the files and looks at nothing else.

    The number of images, as of the others.
    """

    def share(first: int) -> None:
        for file in files[first::threads]:
            read_picture(file, encoder.size, encoder.crop, encoder.interpolation)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(share, range(threads)))
    return len(files)


def run_through(files: Sequence[Path], encoder: Encoder, threads: int) -> int:
    for batch in stream(files, encoder, workers=threads):
        if batch.corrupt:
            raise SystemExit(f"images made here cannot be read: {batch.corrupt}")
    return len(files)


def encode(batches: int, encoder: Encoder) -> int:
    """Nothing but the encoder, on what is on its device already."""
    size = batch_size(encoder)
    batch = torch.zeros(
        size, encoder.size, encoder.size, 3, dtype=torch.uint8, device=encoder.device
    ).permute(0, 3, 1, 2)
    for _ in range(batches):
        encoder(batch)
    synchronize()
    return batches * size


def timed(call: Callable[[], int]) -> tuple[float, float]:
    """Images a second, and cores that this process kept busy."""
    synchronize()
    wall, work = time.perf_counter(), time.process_time()
    count = call()
    seconds = time.perf_counter() - wall
    return count / seconds, (time.process_time() - work) / seconds


def by_turns(
    contenders: dict[str, Callable[[], int]], rounds: int, threads: int
) -> dict[str, dict[str, float]]:
    """Images a second of each contender, medians, and the share of the threads' time in which this process was at work."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, call in contenders.items():
            found[name].append(timed(call))
    return {
        name: {
            "images_per_second": round(statistics.median(rates), 1),
            "busy": round(statistics.median(cores) / threads, 3),
        }
        for name, (rates, cores) in (
            (name, tuple(zip(*turns, strict=True))) for name, turns in found.items()
        )
    }


def enough_images(files: Sequence[Path], encoder: Encoder, threads: int) -> int:
    """How many keep the slower part busy for `SECONDS`.

    Whole batches, and two at least, or nothing would be done side by side.
    """
    some = list(files) * -(-8 * threads // len(files))  # eight of each thread
    decode(some[:threads], encoder, threads)
    encode(1, encoder)  # what is made ready at a first call takes long
    rate = min(
        timed(lambda: decode(some, encoder, threads))[0], timed(lambda: encode(2, encoder))[0]
    )
    return max(2, round(rate * SECONDS / batch_size(encoder))) * batch_size(encoder)


def measure(
    size: str, folder: Path, encoder: Encoder, options: argparse.Namespace
) -> dict[str, Any]:
    distinct = make_images(folder, *SIZES[size])
    count = options.images or enough_images(distinct, encoder, options.threads)
    files = (distinct * -(-count // DISTINCT))[:count]
    run_through(
        files[: 2 * batch_size(encoder)], encoder, options.threads
    )  # page-locked memory is made once
    row = by_turns(
        {
            "decoding": lambda: decode(files, encoder, options.threads),
            "encoder": lambda: encode(min(ENCODED, -(-count // batch_size(encoder))), encoder),
            "both": lambda: run_through(files, encoder, options.threads),
        },
        options.rounds,
        options.threads,
    )
    slower = min(row[part]["images_per_second"] for part in ("decoding", "encoder"))
    return {
        "images": size,
        "count": count,
        "bytes": round(statistics.mean(file.stat().st_size for file in distinct)),
        **row,
        "of_decoding": round(
            row["both"]["images_per_second"] / row["decoding"]["images_per_second"], 3
        ),
        "of_the_slower": round(row["both"]["images_per_second"] / slower, 3),
    }


def main() -> None:
    make = argparse.ArgumentParser(description=__doc__)
    make.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    make.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="that decode"
    )
    make.add_argument("--images", type=int, default=None, help="of each size")
    make.add_argument("--rounds", type=int, default=3)
    make.add_argument("--json", action="store_true", help="print the JSON object alone")
    options = make.parse_args()
    on_gpu = options.device == "cuda"
    with tempfile.TemporaryDirectory() as name:
        encoder = random_encoder(Path(name)).to(torch.device(options.device))
        rows = []
        for size in SIZES:
            rows.append(measure(size, Path(name), encoder, options))
            if not options.json:
                print(
                    f"{size}: {rows[-1]['both']['images_per_second']:,.0f} images/s",
                    file=sys.stderr,
                    flush=True,
                )
    machine = torch.cuda.get_device_name() if on_gpu else platform.processor() or platform.machine()
    if not options.json:
        show(rows, machine, options.threads)
    about = {
        "device": options.device,
        "machine": machine,
        "threads": options.threads,
        "torch": torch.__version__,
    }
    print(
        json.dumps({"benchmark": "encoder", **about, "bar": BAR if on_gpu else None, "rows": rows})
    )


def show(rows: list[dict[str, Any]], machine: str, threads: int) -> None:
    table = Table(
        title=f"efficientnet-lite0, images/s, {threads} threads, {machine}", box=box.SIMPLE
    )
    for column in (
        "JPEGs",
        "bytes",
        "decoding alone",
        "encoder alone",
        "both",
        "÷ decoding",
        "÷ the slower",
        "cores busy",
    ):
        table.add_column(column, justify="left" if column == "JPEGs" else "right")
    for row in rows:
        speeds = [
            f"{row[part]['images_per_second']:,.0f}" for part in ("decoding", "encoder", "both")
        ]
        shares = [
            f"{row['of_decoding']:.2f}",
            f"{row['of_the_slower']:.2f}",
            f"{row['both']['busy']:.0%}",
        ]
        table.add_row(row["images"], f"{row['bytes']:,}", *speeds, *shares)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
