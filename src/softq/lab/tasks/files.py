"""What tasks that learn from files share.

Which parts there are, and results that are kept as long as the files stay the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache, wraps
from typing import Any, Protocol, TypeVar, cast

from softq.errors import DataError, RecipeError

F = TypeVar("F", bound=Callable[..., Any])
S = TypeVar("S")


class NamesFiles(Hashable, Protocol):
    """A recipe's section of data."""

    @property
    def files(self) -> tuple[str, ...]:
        """Every file that it names, "" where it names none."""
        ...


def once(size: int) -> Callable[[F], F]:
    """Remember the last ``size`` results of a function of `NamesFiles` and more, as long as the files stay the same."""

    def decorate(function: F) -> F:
        @lru_cache(maxsize=size)
        def found(stamps: Any, *args: Any) -> Any:
            return function(*args)

        @wraps(function)
        def call(data: NamesFiles, *args: Any) -> Any:
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


def check_parts(train: str, dev: str, test: str, halve_dev: bool) -> None:
    """Refuse parts of a corpus that do not go together."""
    if halve_dev and (test or not dev):
        raise RecipeError(
            "halve_dev takes the test part from dev: name a dev file and leave out test"
        )
    if not train and (dev or test):
        raise RecipeError(
            "name the training file as well (train), or leave out dev and test for the built-in"
            " world"
        )


def halves(path: str, sentences: Sequence[S]) -> tuple[Sequence[S], Sequence[S]]:
    """The even and the odd sentences of a development file, to choose on and to test on.

    >>> halves("dev.conll", "abcde")
    ('ace', 'bd')
    """
    if len(sentences) < 2:
        raise DataError(f"{path}: expected two sentences or more to halve, got {len(sentences)}")
    return sentences[::2], sentences[1::2]
