"""Classifiers of rows of numbers, and CSV files of them: how they are read, labelled and scored."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from softq.cli.kinds import Options, find_model
from softq.cli.kinds.base import STDIN, PredictedPart, Predictor, Scores, heading, only_file
from softq.errors import DataError
from softq.formats.file_checks import read_tensors
from softq.formats.tables import Table
from softq.lab.tasks.classifier import CLASSIFIER_METRICS, TableClassifier

_PREDICTED = "predicted"  # the column that is added


class FileClassifier(Predictor):
    """A classifier with the columns that it reads."""

    decoding = "expected reward"
    reads = "a CSV file with a header"

    def __init__(self, path: Path, options: Options = Options()) -> None:
        super().__init__(path, options)
        self.found = TableClassifier.from_tensors(read_tensors(find_model(path)).tensors)

    def predict(self, file: IO[bytes], path: Path, where: str) -> Iterator[PredictedPart]:
        """The rows with one more column, the decision, and with the probability of each class."""
        text = path if path != STDIN else file.read().decode(errors="replace") + "\n"
        table = Table.read(text)
        model, features = self.found.model, self.found.features(table)
        columns = [_PREDICTED]
        cells = [[str(label)] for label in model.predict(features).tolist()]
        if self.options.probabilities:
            columns += [f"p({label})" for label in model.classes_.tolist()]
            for row, shares in zip(cells, model.predict_proba(features), strict=True):
                row += [f"{share:.6f}" for share in shares]
        there = [title for title in columns if title in table.header]
        if there:
            raise DataError(f"{where}: expected a file without a column {there[0]!r}, got one")
        written = io.StringIO()
        rows = zip(table.rows, cells, strict=True)
        writer = csv.writer(written, lineterminator="\n")
        writer.writerows([table.header + columns, *(row + more for row, more in rows)])
        yield PredictedPart(written.getvalue().encode(), len(table.rows), int(np.size(features)))


load = FileClassifier


def score_models(
    files: Sequence[Path], options: Options, models: Sequence[FileClassifier]
) -> list[Scores]:
    """Reward and accuracy on the labels of a file."""
    path = only_file(files, models)
    table = Table.read(path)
    sizes = {"rows": len(table.rows)}
    return [
        Scores(
            one.found.statistics(table),
            CLASSIFIER_METRICS,
            {"reward": "mean reward"},
            {"file": str(path), **sizes},
            heading(str(path), sizes),
        )
        for one in models
    ]
