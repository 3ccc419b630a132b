"""Texts with references, or prompts alone, for a model of 🤗 Transformers.

Tab-separated lines, JSON lines, lines of text, or the built-in world.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from softq.errors import DataError, DataWarning
from softq.formats.bitext import Bitext, read_bitext
from softq.formats.file_checks import parse_json
from softq.formats.text import file_type, read_lines
from softq.integrations.text_rows import text_row
from softq.lab.tasks.lm_recipe import LmRecipe
from softq.lab.tasks.sequence_data import sample_evenly
from softq.lab.worlds import LanguageWorld

Rows = list[dict[str, Any]]
"""Each with ``source``, and where a file has them ``references``, ``candidates`` and ``candidate_rewards``."""

_OF_REFERENCES = {"ngram", "hamming", "edit", "recombined"}  # samplers that change them


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
        train = read_rows(Path(data.train), references=False)
        dev = read_rows(Path(data.dev), references=False) if data.dev else sample_evenly(train)
    for missing in _needed(recipe, train):
        raise DataError(missing)
    return train, dev


def _needed(recipe: LmRecipe, train: Rows) -> Iterator[str]:
    """What rows lack that the objective is trained on; a warning where they have what it is not."""
    likelihood, settings = recipe.objective.name == "ml", recipe.candidates
    kinds = set() if likelihood else {*settings.sampler.split("+")}
    changed = sorted(kinds & _OF_REFERENCES)
    # rows that are distilled are made in each epoch
    for number, row in enumerate(() if settings.distill_samples else train, start=1):
        place = f"{recipe.data.train or 'the built-in world'}, row {number}"
        if "dataset" in kinds and not row.get("candidates"):
            yield f"{place}: sampler = dataset needs candidates, got none"
        if not row.get("references"):
            if likelihood:
                yield (
                    f"{place}: ml needs references, got none: choose raml or sqdml with sampler"
                    " model and a reward that needs none, or set distill_samples"
                )
            if changed:
                yield f"{place}: sampler = {changed[0]} changes references, got none: use model"
    unused = settings.distill_samples or "dataset" not in kinds
    if unused and any("candidates" in row for row in train):
        warnings.warn(
            f"{recipe.data.train} has candidates, which are used by raml and sqdml with sampler ="
            " dataset alone, and not with distill_samples",
            DataWarning,
            stacklevel=2,
        )


def read_rows(*paths: Path, references: bool = True) -> Rows:
    """Rows of a file.

    JSON lines if its name ends in .jsonl (or .jsonl.gz, .jsonl.xz), else a source, a tab and
    references on each line.

    Tab-separated sources and references may also be files of their own, whose lines belong
    together. Where no ``references`` are needed, a file called .txt has a prompt on each line.
    """
    if is_jsonl(paths[0]):
        if len(paths) > 1:
            raise DataError(
                f"{paths[0]} has sources and references: expected one file, got {len(paths)}"
            )
        return _read_jsonl(paths[0], references)
    if not references and len(paths) == 1 and file_type(paths[0]) == ".txt":
        return [{"source": line} for line in _read_prompts(paths[0])]
    return _rows(read_bitext(*paths))


def _read_prompts(path: Path) -> list[str]:
    prompts = [line.strip() for line in read_lines(path)]
    for number, prompt in enumerate(prompts, start=1):
        if not prompt:
            raise DataError(f"{path}, line {number}: expected a prompt, got an empty line")
    if not prompts:
        raise DataError(f"{path} is empty: expected a prompt on each line")
    return prompts


def is_jsonl(path: Path) -> bool:
    """Whether a file holds an object on each line."""
    return file_type(path) == ".jsonl"


def _rows(text: Bitext) -> Rows:
    return [
        {"source": source, "references": several}
        for source, several in zip(text.sources, text.references, strict=True)
    ]


def _read_jsonl(path: Path, references: bool) -> Rows:
    rows, wanted = [], "source and references" if references else "source"
    for number, line in enumerate(read_lines(path), start=1):
        try:
            given = parse_json(line, "the line")
            if isinstance(given, dict) and "source" not in given and "prompt" in given:
                given["source"] = given.pop("prompt")
            row = text_row(given, references=references)
            if not isinstance(row["source"], str):
                raise DataError(f"'source' must be a text, got {row['source']!r}")
            rows.append(row)
        except DataError as error:
            raise DataError(
                f"{path}, line {number}: expected an object with {wanted}: {error}"
            ) from None
    if not rows:
        raise DataError(f"{path} is empty: expected an object on each line")
    return rows
