"""What the kinds of models have in common: how a model works through files, and what its scores are."""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar, cast

import torch
import typer
from rich.table import Table
from torch import Tensor

from softq.cli.kinds import Options
from softq.cli.progress import Watch, progress_bars
from softq.cli.shared import make_table
from softq.errors import DataError
from softq.formats.chunks import Chunk, read_plain_chunks
from softq.formats.file_checks import one_of, refusing
from softq.formats.text import file_type, readable, unpacked
from softq.formats.tokens import tokenize, without_marks
from softq.formats.words import split_words
from softq.lab.processes import find_device
from softq.metrics import Metric, PairedTest, paired_test
from softq.neural.saved_module import saved_format

STDIN = Path("-")
AT_A_TIME = 1000  # sentences or images that a model predicts for at once
_LOOK_AHEAD = 100  # lines that tell whether a file is running text
Item = TypeVar("Item")
Known = TypeVar("Known", bound=str)
Rows = list[Sequence[str]]  # of a table, as `make_table` takes them


class PredictedPart(NamedTuple):
    """A part of a file with what was predicted for it, and how much it holds."""

    text: bytes
    sentences: int
    tokens: int


class Predictor:
    """A saved model, and how it predicts.

    Attributes:
        path: of the run folder or the file.
        options: what the command line says.
        decoding: how predictions are chosen, as results name it.
        reads: what its files are, for messages of taggers and parsers.

    """

    decoding: str
    reads = "text"

    def __init__(self, path: Path, options: Options) -> None:
        self.path, self.options = path, options

    def check_files(self, files: Sequence[Path]) -> None:
        """An error if files cannot be what the model reads, before anything is written."""
        if self.options.plain or self.options.text:
            self.check_text()

    def check_text(self) -> None:
        """An error if the model looks at what neither running text nor ``--tagger`` has."""
        needed = self.needs_tags()
        if needed and self.options.tagger is None:
            raise DataError(
                f"{self.path} needs parts of speech ({needed}), and running text has none: give"
                f" {self.reads}, or name a tagger of parts of speech with --tagger"
            )

    def needs_tags(self) -> str:
        """Where the model looks for parts of speech, "" where it looks for none."""
        return ""

    def predict(self, file: IO[bytes], path: Path, where: str) -> Iterator[PredictedPart]:
        """Read an open, unpacked file, which errors call ``where``, and give it back part by part with predictions."""
        raise NotImplementedError

    def predict_files(self, files: Sequence[Path], watch: Watch) -> Iterator[PredictedPart]:
        """Predictions for files of text, one after the other, part by part."""
        tokens = 0
        for path in files:
            where = "standard input" if path == STDIN else str(path)
            with _opened(path, where) as (packed, file):
                size = 0 if path == STDIN else path.stat().st_size
                watcher = watch(where, unit="bytes")
                watcher.show(size, 0, "")
                for part in self.predict(file, path, where):
                    yield part
                    tokens += part.tokens
                    watcher.show(size, packed.tell() if size else 0, f"{tokens:,} tokens")

    def choose_decoding(self, usual: str, known: tuple[Known, ...], what: str) -> Known:
        """The decoding that is asked for, if this kind of model has it, else the model's own."""
        asked = self.options.decoding
        if asked is None:
            with refusing(f"{self.path} is damaged"):
                return cast(Known, one_of("decoding", usual, known))
        if asked not in known:
            raise DataError(
                f"{self.path} is a {what}, whose --decoding is {' or '.join(known)}, got {asked}"
            )
        return known[known.index(asked)]

    def text_chunks(
        self, file: IO[bytes], path: Path, where: str, looks: Callable[[Sequence[str]], bool]
    ) -> Iterator[Chunk] | None:
        """Sentences of running text, None where the file is not text.

        Standard input and .txt files are text if they look so, or if ``--text`` or ``--plain`` says so; another file that looks so is
        an error.
        """
        if not (self.options.text or self.options.plain):
            with readable(where):
                first = _first_lines(file)
            if not looks(first):
                return None
            if path != STDIN and file_type(path) != ".txt":
                raise DataError(
                    f"{where}, line 1: expected {self.reads}, got what looks like running text: add"
                    " --text to split it into words"
                )
        self.check_text()
        split = str.split if self.options.plain else split_words
        return read_plain_chunks(file, where, split=split)


def _first_lines(file: IO[bytes]) -> list[str]:
    """Lines at the start of a file, which stay to be read."""
    lines = cast(io.BufferedReader, file).peek(1).decode(errors="replace").splitlines()
    return lines[: max(1, min(_LOOK_AHEAD, len(lines) - 1))]  # the last one may be cut


@contextmanager
def _opened(path: Path, where: str) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """The file as it is on the disk, and what is packed in it."""
    if path == STDIN:
        stream = typer.get_binary_stream("stdin")
        if not hasattr(stream, "peek"):
            stream = io.BufferedReader(cast(Any, stream))
        yield stream, stream
        return
    with readable(where):
        packed = path.open("rb")
    with packed, unpacked(packed, path) as file:
        yield packed, file


def only_file(files: Sequence[Path], models: Sequence[Predictor]) -> Path:
    """The file that models are scored on, where there must be one."""
    if len(files) != 1:
        raise DataError(
            f"{models[0].path} is scored on one file, got {len(files)}; several files belong"
            " together for translators alone"
        )
    return files[0]


def in_batches(items: Sequence[Item], label: object, unit: str) -> Iterator[Sequence[Item]]:
    """Examples some at a time, with a bar that moves when each batch is done."""
    with progress_bars() as watch:
        yield from watch(str(label), unit=unit).batches(items, AT_A_TIME)


# --- softq evaluate -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scores:
    """Scores of predictions for one file.

    Attributes:
        rows: statistics of each example, ``[N, D]``.
        metrics: functions of their sums.
        titles: of metrics that are not called by their name.
        facts: about the file and the model, for JSON before the scores.
        heading: the same for people.
        details: for JSON after the scores.
        further: rows below those of the scores in their table, None where there is no value; None for no table of them.
        tables: for people, after that of the scores.
        lines: below the tables.

    """

    rows: Tensor
    metrics: Mapping[str, Metric]
    titles: Mapping[str, str]
    facts: dict[str, Any]
    heading: str
    details: dict[str, Any] = field(default_factory=dict)
    further: Mapping[str, str | None] | None = field(default_factory=dict)
    tables: Sequence[Table] = ()
    lines: Sequence[str] = ()

    @cached_property
    def overall(self) -> dict[str, float]:
        """By the names of the metrics; NaN where one has no value."""
        return {name: float(metric(self.rows.sum(0))) for name, metric in self.metrics.items()}

    @property
    def known_further(self) -> dict[str, str]:
        """Those of ``further`` that have a value."""
        return {title: value for title, value in (self.further or {}).items() if value is not None}

    @property
    def all_tables(self) -> list[Table]:
        """The scores that have a value, one on each line, and the other tables."""
        if self.further is None:
            return list(self.tables)
        scores = {
            self.titles.get(name, name): f"{value:.4f}"
            for name, value in self.overall.items()
            if not math.isnan(value)
        }
        return [make_table(("", "score"), (scores | self.known_further).items()), *self.tables]

    def compare(self, other: Scores) -> dict[str, PairedTest]:
        """Paired bootstrap of both on the same examples; metrics that one of them has no value of are left out."""
        found = {}
        for name, metric in self.metrics.items():
            if not math.isnan(other.overall[name] + self.overall[name]):
                generator = torch.Generator().manual_seed(0)  # the same draws for all metrics
                (test,) = paired_test(
                    self.rows[None, None], other.rows[None], metric, generator=generator
                )
                if not math.isnan(test.p_value):  # a draw may hold nothing that the metric counts
                    found[name] = test
        return found


def heading(where: str, sizes: Mapping[str, int]) -> str:
    """What was scored, and how much it is.

    >>> heading("test.conll", {"sentences": 1200, "tokens": 20000})
    'test.conll: 1,200 sentences, 20,000 tokens'
    """
    return f"{where}: {', '.join(f'{count:,} {name}' for name, count in sizes.items())}"


def kind_table(
    title: str, rows: Mapping[str, Sequence[float]], total: Sequence[float] = ()
) -> Table:
    """Precision, recall and F1 of each class, with how many were predicted and are true."""
    named = [*rows.items(), *([("", ()), ("all", total)] if total else [])]
    return make_table(
        (title, "precision", "recall", "F1", "predicted", "true"),
        [
            (name, *(f"{score:.4f}" for score in row[:3]), *(f"{count:,}" for count in row[3:]))
            if row
            else ()
            for name, row in named
        ],
    )


# --- softq data -----------------------------------------------------------------------------------------


def bare_words(text: str) -> list[str]:
    """Words of a text as metrics count them."""
    return without_marks(tokenize(text))


def word_counts(sentences: Sequence[Sequence[str]]) -> dict[str, Any]:
    """How many words sentences have, and how many different ones, as `softq data stats` tells."""
    words = Counter(word for sentence in sentences for word in sentence)
    return {
        "words": words.total(),
        "distinct_words": len(words),
        "words_that_occur_once": sum(count == 1 for count in words.values()),
        "mean_length": words.total() / len(sentences),
        "longest": max(map(len, sentences)),
    }


def counted(names: Iterator[str]) -> dict[str, int]:
    """How often each name occurs, in the order of the names."""
    return dict(sorted(Counter(names).items()))


def fact_rows(titles: Mapping[str, str], *facts: Mapping[str, Any], digits: int = 2) -> Rows:
    """Facts by their titles, a column for each of several sides: counts, means, and what is undefined.

    >>> fact_rows({"words": "words", "mean": "mean length"}, {"words": 1200, "mean": None})
    [('words', '1,200'), ('mean length', 'undefined')]
    """
    return [
        (title, *(_as_text(side[name], digits) for side in facts)) for name, title in titles.items()
    ]


def _as_text(value: float | None, digits: int) -> str:
    if value is None:
        return "undefined"
    return f"{value:,}" if isinstance(value, int) else f"{value:.{digits}f}"


def count_rows(title: str, counts: Mapping[str, int]) -> Rows:
    """A section of names with their counts and shares, the most frequent first."""
    total = sum(counts.values())
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [
        (),
        (title, f"{total:,}", ""),
        *((f"  {name}", f"{count:,}", f"{count / total:.2%}") for name, count in ordered),
    ]


def sizes_of(references: Iterable[Sequence[Any]]) -> dict[str, int]:
    """How many examples have each number of references."""
    sizes = Counter(map(len, references))
    return {str(size): times for size, times in sorted(sizes.items())}


def size_rows(counts: Mapping[str, int], of: str, what: str) -> Rows:
    """What `sizes_of` finds, of examples and references as a table calls them."""
    return [
        (f"{of} with {size} {what}{'s' if size != '1' else ''}", f"{times:,}")
        for size, times in counts.items()
    ]


def open_neural(file: Path, kinds: Mapping[str, str]) -> Any:
    """The neural model in a file, on a GPU if there is one; None where the file holds another model.

    Args:
        file: of any model.
        kinds: ``module:class`` by how the format of its files begins; imported where it is needed.

    """
    found = saved_format(file)
    for begins, place in kinds.items():
        if found.startswith(begins):
            module, _, name = place.partition(":")
            model = getattr(import_module(module), name).load(file)
            return model.to(find_device("auto"))
    return None
