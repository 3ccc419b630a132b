"""Texts with references for a model of 🤗 Transformers.

Tab-separated lines, JSON lines, or the built-in world.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from softq.errors import DataError
from softq.formats.bitext import Bitext, read_bitext
from softq.formats.text import file_type, read_lines
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
            rows.append(_checked(json.loads(line)))
        except (ValueError, RecursionError) as error:  # DataError is a ValueError
            raise DataError(
                f"{path}, line {number}: expected an object with source and references,"
                f" {_reason(error)}"
            ) from None
    if not rows:
        raise DataError(f"{path} is empty: expected an object on each line")
    return rows


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, DataError) else f"got what is not JSON ({error})"


def _checked(found: Any) -> dict[str, Any]:
    """A row of a JSON-lines file; other keys than those that are known are the user's own."""
    if not isinstance(found, dict):
        raise DataError(f"got {found!r}")
    source, references = found.get("source"), found.get("references")
    several = [references] if isinstance(references, str) else references
    if not isinstance(source, str) or not source.strip():
        raise DataError(f"got source = {source!r}")
    if not _are_texts(several) or not several:
        raise DataError(f"got references = {references!r}, not a text or a list of texts")
    row: dict[str, Any] = {"source": source, "references": several}
    if found.get("candidates") is not None:
        if not _are_texts(found["candidates"]):
            raise DataError(f"got candidates = {found['candidates']!r}, not a list of texts")
        row["candidates"] = found["candidates"]
    if found.get("candidate_rewards") is not None:
        rewards, wanted = found["candidate_rewards"], len(row.get("candidates", []))
        if not isinstance(rewards, list) or len(rewards) != wanted:
            raise DataError(
                f"got candidate_rewards = {rewards!r}, not a list of {wanted}, one for each"
                " candidate"
            )
        for given in rewards:
            values = given if isinstance(given, list) and len(given) == len(several) else [given]
            if not all(_is_number(value) for value in values):
                raise DataError(
                    f"got {given!r} among candidate_rewards, not a finite number, or {len(several)}"
                    " of them, one for each reference"
                )
        row["candidate_rewards"] = rewards
    return row


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _are_texts(values: Any) -> bool:
    return (
        isinstance(values, Sequence)
        and not isinstance(values, str)
        and all(isinstance(text, str) and text.strip() for text in values)
    )
