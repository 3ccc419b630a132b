"""The rewards that a recipe of `softq train lm` names: by name, as functions in Python, or a reward model."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from softq.errors import DataError, RecipeError
from softq.integrations.transformers.loading import load_reward_model
from softq.lab.tasks.lm_recipe import LmCandidates


def given_rewards(settings: LmCandidates, device: torch.device) -> Any:
    """What `RewardAugmentedTrainer` takes as ``reward``: one, or a list of several."""
    found: list[Any] = [*settings.names, *map(load_function, settings.reward_function)]
    if settings.reward_model:
        found.append(load_reward_model(settings.reward_model, device, settings.reward_label))
    return found if len(found) > 1 or settings.reward_weights else found[0]


def load_function(where: str) -> Callable[..., Any]:
    """The function that ``package.module:name`` or ``FILE.py:name`` names.

    >>> load_function("statistics:fmean")([1, 2])
    1.5
    >>> load_function("statistics:fmeen")
    Traceback (most recent call last):
    softq.errors.RecipeError: reward_function statistics:fmeen: there is no fmeen in statistics
    """
    place, _, name = where.rpartition(":")
    if not place or not name:
        raise RecipeError(
            f"reward_function must be package.module:name or FILE.py:name, got {where!r}"
        )
    found = getattr(_module(place, where), name, None)
    if found is None:
        raise RecipeError(f"reward_function {where}: there is no {name} in {place}")
    if not callable(found) or isinstance(found, type):
        kind = "a class" if isinstance(found, type) else type(found).__name__
        raise RecipeError(f"reward_function {where}: expected a function, got {kind}")
    return found  # type: ignore[no-any-return]


def _module(place: str, where: str) -> ModuleType:
    if not place.endswith(".py"):
        try:
            return importlib.import_module(place)
        except Exception as error:  # whatever the user's code raises
            raise RecipeError(f"reward_function {where}: {_told(error, place)}") from error
    path = Path(place)
    spec = importlib.util.spec_from_file_location(path.stem, path) if path.is_file() else None
    if spec is None or spec.loader is None:
        raise RecipeError(f"reward_function {where}: there is no file {place}")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # by which workers of a data loader find it
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        sys.modules.pop(path.stem, None)
        raise RecipeError(f"reward_function {where}: {_told(error, place)}") from error
    return module


def _told(error: Exception, place: str) -> str:
    """What an error of the user's code says, and in which line of it."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}: {error.msg}"
    own = [one for one in traceback.extract_tb(error.__traceback__) if one.filename.endswith(place)]
    line = f"{place}, line {own[-1].lineno}: " if own else ""
    return f"{line}{type(error).__name__}: {error}"


def check_references(
    score: str, rows: Sequence[dict[str, Any]], name: str, *, given: bool = False
) -> None:
    """An error if a reward or score compares with references and a row has none.

    With ``given`` a row may have the rewards of its candidates instead.
    """
    for number, row in enumerate(rows, start=1):
        if not (row.get("references") or (given and row.get("candidate_rewards"))):
            raise DataError(
                f"{name}, row {number}: {score} compares with references, got none: give"
                " references, or a reward of completions alone (--reward-function, --reward-model)"
            )
