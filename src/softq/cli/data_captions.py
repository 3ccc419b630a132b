"""What `softq data` says of images with captions: files of tab-separated columns, Karpathy's JSON, and features beside them."""

from __future__ import annotations

import math
import re
from collections import Counter
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from softq.errors import DataError
from softq.formats.captions import Split, check_captions, check_features, is_json, read_captions
from softq.formats.text import Fault, read_lines
from softq.formats.tokens import tokenize, without_marks
from softq.metrics import reference_agreement

_ENOUGH = 100  # lines that tell what a file is
_ONE_IN = 2  # first columns of captions, or more often, is the name of an image
_IMAGE = re.compile(r"\.(jpe?g|png|gif|bmp|webp)(#\d+)?$", re.IGNORECASE)
_OFTEN = 5  # the paper's vocabulary is of words that occur as often


def is_captions(path: Path) -> bool:
    """Whether a file is images with captions by its name (.json) or its first lines: what stands before a tab is called like an image."""
    if is_json(path):
        return True
    images: list[str] = []
    with suppress(DataError):  # whoever reads it will say so
        images.extend(
            line.partition("\t")[0].strip()
            for line in islice(read_lines(path), _ENOUGH)
            if "\t" in line
        )
    called_so = sum(_IMAGE.search(image) is not None for image in images)
    return called_so > 0 and called_so * _ONE_IN >= len(images)


def count_captions(path: Path, split: Split | None) -> dict[str, Any]:
    """All numbers of a file, as they go to JSON; words are counted in lower case, as captioners are trained on them."""
    found = read_captions(path, split)
    references = [
        [without_marks(tokenize(caption.lower())) for caption in captions]
        for captions in found.captions
    ]
    lengths = Counter(len(words) for captions in references for words in captions)
    words = Counter(word for captions in references for sentence in captions for word in sentence)
    agreement = reference_agreement(references)
    return {
        "path": str(path),
        "format": "captions",
        "split": split,
        "images": len(found),
        "captions": lengths.total(),
        "distinct_captions": sum(len(set(captions)) for captions in found.captions),
        "captions_per_image": {
            str(count): images for count, images in sorted(Counter(map(len, references)).items())
        },
        "words": words.total(),
        "distinct_words": len(words),
        "words_that_occur_once": sum(count == 1 for count in words.values()),
        "words_that_occur_5_times": sum(count >= _OFTEN for count in words.values()),
        "mean_length": words.total() / lengths.total(),
        "shortest": min(lengths),
        "longest": max(lengths),
        "agreement": None if math.isnan(agreement) else agreement,
    }


def show_captions(file: dict[str, Any], console: Console) -> None:
    """The same as a table."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name in ("images", "captions"):
        table.add_row(name, f"{file[name]:,}")
    for count, images in file["captions_per_image"].items():
        table.add_row(f"images with {count} caption{'s' if count != '1' else ''}", f"{images:,}")
    if file["distinct_captions"] < file["captions"]:
        table.add_row(
            "captions that repeat another of the image",
            f"{file['captions'] - file['distinct_captions']:,}",
        )
    table.add_section()
    table.add_row("words", f"{file['words']:,}")
    table.add_row("distinct words, in lower case", f"{file['distinct_words']:,}")
    table.add_row("words that occur once", f"{file['words_that_occur_once']:,}")
    table.add_row(
        f"words that occur {_OFTEN} times or more", f"{file['words_that_occur_5_times']:,}"
    )
    table.add_row("words per caption, mean", f"{file['mean_length']:.2f}")
    table.add_row("words of the shortest caption", f"{file['shortest']:,}")
    table.add_row("words of the longest caption", f"{file['longest']:,}")
    table.add_section()
    agreement = "undefined" if file["agreement"] is None else f"{100 * file['agreement']:.2f}"
    table.add_row("sentence BLEU between captions of an image", agreement)
    console.print(
        escape(file["path"]) + (f", split {file['split']}" if file["split"] else ""),
        highlight=False,
        soft_wrap=True,
    )
    console.print(table)


def check_captions_and_features(
    path: Path, split: Split | None, features: Path | None
) -> dict[Path, list[Fault]]:
    """Every fault of a file of captions, and of the features of its images if a file of them is given."""
    found = {path: check_captions(path, split)}
    if features is None:
        return found
    try:
        captions = read_captions(path, split)
    except DataError:  # rows belong to images, and which there are is not known yet
        return found | {features: [Fault(0, f"not checked: first mend {path}")]}
    return found | check_features(features, captions)
