"""Small files and runs for the tests of the captioning experiment."""

import json

import numpy as np

from small_runs import CPU
from softq.lab.recipe import build, parse_flags
from softq.lab.tasks import TASKS, train_cells
from softq.lab.tasks.sequence_recipe import CaptioningRecipe
from softq.lab.tasks.sequence_task import SequenceJudge

TASK = TASKS["captioning"]
SMALL = [  # a recipe that trains in an instant
    "--embedding", 12, "--hidden", 16, "--epochs", 2, "--batch-size", 16, "--learning-rate", 0.02, "--candidates.size", 6, "--beam", 2,
    "--min-freq", 1, "--max-words", 14, "--scenes", 32, "--dev-scenes", 8, "--captions", 3,
]  # fmt: skip
SIZE = 6  # of the features of files

PLACES, THINGS = ("left", "right", "top"), ("dog", "cat", "ball", "tree")


def recipe(*flags):
    return build(CaptioningRecipe, parse_flags(CaptioningRecipe, list(map(str, [*SMALL, *flags]))))


def prepared(*flags):
    return SequenceJudge.of(TASK, recipe(*flags)).data


def run(out, *flags, **options):
    """The row of a run."""
    return train_cells(TASK, [recipe(*flags)], out, workers=CPU, **options)["cells"][0]


def captions_of(number):
    """Two or three captions of an image, which follow from its number."""
    thing, place = THINGS[number % 4], PLACES[number // 4 % 3]
    return [
        f"A {thing} on the {place}.",
        f"the {thing}, {place}",
        f"There is a {thing} on the {place}",
    ][: 2 + number % 2]


def features_of(numbers, size=SIZE, dtype=np.float16):
    """From which the captions can be told."""
    return np.array(
        [[np.cos((number % 12 + 1) * (place + 1)) for place in range(size)] for number in numbers],
        dtype,
    )


def write(path, captions, features=None):
    """A file of captions by image, and their features beside it."""
    path.write_text(
        "".join(
            f"{image}\t{caption}\n" for image, several in captions.items() for caption in several
        ),
        "utf-8",
    )
    if features is not None:
        np.save(
            path.parent
            / (path.name.removesuffix(".tsv").removesuffix(".captions") + ".features.npy"),
            features,
        )
    return path


def write_json(path, splits):
    """Karpathy's file of images ``{split: numbers}``, and features of all of them."""
    numbers = [number for several in splits.values() for number in several]
    records = [
        {
            "filename": f"{number}.jpg",
            "split": split,
            "sentences": [{"raw": caption} for caption in captions_of(number)],
        }
        for split, several in splits.items()
        for number in several
    ]
    path.write_text(json.dumps({"images": records}))
    np.save(path.with_name(path.stem + ".features.npy"), features_of(numbers))
    path.with_name(path.stem + ".features.names.txt").write_text(
        "".join(f"{number}.jpg\n" for number in numbers)
    )
    return path


def make_files(folder):
    """Training, development and test captions with their features beside them."""
    parts = {"train": range(36), "dev": range(100, 109), "test": range(200, 207)}
    return {
        name: write(
            folder / f"{name}.captions.tsv",
            {f"{number}.jpg": captions_of(number) for number in numbers},
            features_of(numbers),
        )
        for name, numbers in parts.items()
    }


def parts(files, *names):
    return [text for name in names for text in (f"--{name}", files[name])]
