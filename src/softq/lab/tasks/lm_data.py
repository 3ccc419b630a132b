"""Texts with references for a model of 🤗 Transformers.

Tab-separated lines, JSON lines, or the built-in world.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from softq.errors import DataError
from softq.formats.bitext import Bitext, read_bitext
from softq.formats.file_checks import parse_json
from softq.formats.text import file_type, read_lines
from softq.integrations.text_rows import text_row
from softq.lab.tasks.lm_recipe import LmRecipe
from softq.lab.tasks.sequence_data import sample_evenly
from softq.lab.worlds import LanguageWorld

Rows = list[dict[str, Any]]
"""Each with ``source`` and ``references``, and where a file has them ``candidates`` and ``candidate_rewards``."""


def read_parts(recipe: LmRecipe) -> tuple[Rows, Rows]:
    """Rows for training and for evaluation.

    What does not fit is an error with file and line.
    """
    data = recipe.data
    if not data.train:
        world = LanguageWorld()
        sizes = (data.sentences, 2 * data.seed), (data.sentences // 10, 2 * data.seed + 1)
        train, dev = (
            _rows(world.sample(size, seed=seed, references=data.references)) for size, seed in sizes
        )
    else:
        train = read_rows(Path(data.train))
        dev = read_rows(Path(data.dev)) if data.dev else sample_evenly(train)
    if recipe.objective.name != "ml" and "dataset" in recipe.candidates.sampler.split("+"):
        for number, row in enumerate(train, start=1):
            if not row.get("candidates"):
                raise DataError(
                    f"{data.train or 'the built-in world'}, row {number}: sampler = dataset needs"
                    " candidates, got none"
                )
    return train, dev


def read_rows(*paths: Path) -> Rows:
    """Rows of a file.

    JSON lines if its name ends in .jsonl (or .jsonl.gz, .jsonl.xz), else a source, a tab and
    references on each line.

    Tab-separated sources and references may also be files of their own, whose lines belong
    together.
    """
    if is_jsonl(paths[0]):
        if len(paths) > 1:
            raise DataError(
                f"{paths[0]} has sources and references: expected one file, got {len(paths)}"
            )
        return _read_jsonl(paths[0])
    return _rows(read_bitext(*paths))


def is_jsonl(path: Path) -> bool:
    """Whether a file holds an object on each line."""
    return file_type(path) == ".jsonl"


def _rows(text: Bitext) -> Rows:
    return [
        {"source": source, "references": several}
        for source, several in zip(text.sources, text.references, strict=True)
    ]


def _read_jsonl(path: Path) -> Rows:
    rows = []
    for number, line in enumerate(read_lines(path), start=1):
        try:
            row = text_row(parse_json(line, "the line"))
            if not isinstance(row["source"], str):
                raise DataError(f"'source' must be a text, got {row['source']!r}")
            rows.append(row)
        except DataError as error:
            raise DataError(
                f"{path}, line {number}: expected an object with source and references: {error}"
            ) from None
    if not rows:
        raise DataError(f"{path} is empty: expected an object on each line")
    return rows
