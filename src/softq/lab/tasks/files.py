"""What tasks that learn from files share.

Their section of data, the splits that it names, and results that are kept as long as the files stay
the same. Nothing here imports torch, so that a recipe can be explained without.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping
from functools import lru_cache, wraps
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar, cast

from softq.errors import DataError
from softq.lab.recipe import Conflicts, RecipeSection

F = TypeVar("F", bound=Callable[..., Any])
S = TypeVar("S", bound="_Split")

SPLITS = ("train", "dev", "test")
WORLD = "built-in world"
DEV_AGAIN, TRAIN_AGAIN = "the development set again", "the training file itself"
MOST_OF_TRAIN = 1000
"""Training inputs for the development scores of models of sentences where there is no development split.

All would be decoded in every epoch.
"""


class DataSection(RecipeSection):
    """The section ``[data]`` of a task: the files of a corpus, or the sizes of a built-in world where it names none."""

    train: str
    dev: str
    test: str
    halve_dev: bool
    folds: int = 0
    sentences: int
    dev_sentences: int
    seed: int
    unit: ClassVar[str] = "sentence"  # what a corpus is of

    @property
    def files(self) -> tuple[str, ...]:
        """Every file, "" where there is none."""
        return self.train, self.dev, self.test

    def sizes(self) -> tuple[int, int]:
        """How many examples of the built-in world are to train on, and to choose and test on."""
        return self.sentences, self.dev_sentences

    def conflicts(self) -> Conflicts:
        """Splits that do not go together."""
        return (
            (
                self.halve_dev and (self.test or not self.dev),
                "halve_dev takes the test part from dev: name a dev file and leave out test",
            ),
            (
                not self.train and (self.dev or self.test),
                "name the training file as well (train), or leave out dev and test for the"
                " built-in world",
            ),
        )

    def sources(self) -> tuple[str, str]:
        """What the development and the test split are: they need not be files of their own."""
        found = split_sources(vars(self))
        return found["dev"], found["test"]


def split_sources(data: Mapping[str, Any]) -> dict[str, str]:
    """Where each split comes from, by the data section of a recipe.

    >>> split_sources({"train": "a.conll", "dev": "b.conll", "test": ""})
    {'train': 'a.conll', 'dev': 'b.conll', 'test': 'the development set again'}
    """
    files = [str(data.get(split) or "") for split in SPLITS]
    (train, dev, test), (_, dev_name, test_name) = files, [Path(path).name for path in files]
    if not train:
        return dict.fromkeys(SPLITS, WORLD if data else "not stated")
    # the files of other splits; a JSON file of captions holds all of them
    others = {} if train.endswith(".json") else {dev: DEV_AGAIN, train: TRAIN_AGAIN}
    chosen_on = TRAIN_AGAIN if not dev or others.get(dev) == TRAIN_AGAIN else dev_name
    if not dev and data.get("folds"):
        chosen_on = f"{data['folds']} folds of {Path(train).name}"
    others[""] = TRAIN_AGAIN if chosen_on == TRAIN_AGAIN else DEV_AGAIN
    tested_on = others.get(test, test_name)
    if data.get("halve_dev"):
        chosen_on, tested_on = f"every other example of {dev_name}", f"the others of {dev_name}"
    return {"train": Path(train).name, "dev": chosen_on, "test": tested_on}


class _Split(Protocol):
    """Examples, such as a list of sentences."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: slice, /) -> Any:
        """Some of them."""


def read_splits(
    data: DataSection, read: Callable[[str], S], sample: Callable[[str, int, int], S]
) -> tuple[S, S | None, S | None]:
    """Train, dev and test as a section names them; None where it does not.

    Args:
        data: the section.
        read: a split from its file.
        sample: a split of the built-in world, of a size and by a seed.

    """
    if not data.train:
        (most, few), seed = data.sizes(), 4 * data.seed
        return (
            sample("train", most, seed),
            sample("dev", few, seed + 1),
            sample("test", few, seed + 2),
        )
    train = read("train")
    dev, test = (read(split) if getattr(data, split) else None for split in SPLITS[1:])
    if data.halve_dev and dev is not None:
        if len(dev) < 2:
            raise DataError(
                f"{data.dev}: expected two {data.unit}s or more to halve, got {len(dev)}"
            )
        dev, test = dev[::2], dev[1::2]
    return train, dev, test


class _NamesFiles(Hashable, Protocol):
    """What depends on files."""

    @property
    def files(self) -> tuple[str, ...]:
        """Every file that it names, "" where it names none."""
        ...


def once(size: int) -> Callable[[F], F]:
    """Remember the last ``size`` results of a function of `_NamesFiles` and more, as long as the files stay the same."""

    def decorate(function: F) -> F:
        @lru_cache(maxsize=size)
        def found(stamps: Any, *args: Any) -> Any:
            return function(*args)

        @wraps(function)
        def call(data: _NamesFiles, *args: Any) -> Any:
            return found(tuple(map(_stamp, data.files)), data, *args)

        return cast(F, call)

    return decorate


def _stamp(path: str) -> tuple[int, int, int] | None:
    """What changes when a file is written."""
    try:
        about = os.stat(path)
    except OSError:  # whoever reads it will say so
        return None
    return about.st_ino, about.st_size, about.st_mtime_ns
