"""Grids: which recipes a sweep trains.

A cell of a grid is one choice from each of its axes. Objective, temperature and seed are axes of
every grid; ``over`` adds one for any other key of the recipe, ``"c2=0.1,0.3,1"``, named and written
like its flag. An axis of a single value sets the key for that grid, so that the grids of a sweep
can treat the same data differently.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softq.errors import RecipeError, SoftqError
from softq.lab.ranges import parse_seeds, parse_taus
from softq.lab.recipe import (
    Objective,
    build,
    flag_names,
    key,
    parse_flags,
    read_toml,
    recipe_hash,
    to_toml,
    toml_value,
)
from softq.lab.tasks.base import Task, cell_recipe, show_settings
from softq.targets import ObjectiveName

MOST_CELLS = 10_000  # of one grid; more is a slip of the pen


@dataclass(frozen=True)
class Grid:
    """One grid of a sweep: a table ``[[sweep]]`` of a recipe."""

    name: str = key("sweep", "what to call it in tables and figures")
    objective: tuple[ObjectiveName, ...] = key(("ml", "raml", "sqdml"), "objectives")
    tau: str = key(
        "0.5,1,2", "temperatures of raml and sqdml: numbers, or a range FROM:TO:STEP with its end"
    )
    seed: str = key("0", "seeds: numbers, or a range FROM:TO")
    temperature_scaled: bool = key(
        False, "divide the scores by tau and multiply the loss by tau squared"
    )
    over: tuple[str, ...] = key(
        (),
        "other keys of the recipe with their values, each as KEY=VALUE,VALUE; ; between values that"
        " are lists",
    )

    def __post_init__(self) -> None:
        """A grid has cells, and they can be written down."""
        if not self.objective:
            raise RecipeError(
                "objective must name at least one of ml, raml and sqdml, got an empty list"
            )
        parse_taus(self.tau)
        parse_seeds(self.seed)

    def objectives(self) -> list[Objective]:
        """Every objective at every temperature; ML once.

        >>> [str(objective) for objective in Grid(objective=("ml", "raml"), tau="1,2").objectives()]
        ['ml', 'raml τ=1', 'raml τ=2']
        """
        tuned = [(tau, self.temperature_scaled) for tau in parse_taus(self.tau)]
        return [
            Objective(name, *how)
            for name in self.objective
            for how in ([()] if name == "ml" else tuned)
        ]

    def axes(self, recipe_type: type[Any]) -> dict[str, list[Any]]:
        """The values of each key in ``over``, as JSON has them, by the shortest flag of the key."""
        found: dict[str, list[Any]] = {}
        for entry in self.over:
            flag, values = _parse_axis(recipe_type, entry)
            if flag in found:
                raise RecipeError(
                    f"over names {flag} twice, write all its values in one entry, got"
                    f" {', '.join(self.over)}"
                )
            found[flag] = values
        return found


def _parse_axis(recipe_type: type[Any], entry: str) -> tuple[str, list[Any]]:
    """The shortest flag of a key and its values.

    >>> Model = dataclasses.make_dataclass("Model", [("c2", float), ("hidden", tuple[int, ...])])
    >>> Recipe = dataclasses.make_dataclass("Recipe", [("model", Model)])
    >>> _parse_axis(Recipe, "c2=0.1,1"), _parse_axis(Recipe, "model.hidden=8,8;16")
    (('c2', [0.1, 1.0]), ('hidden', [[8, 8], [16]]))
    """
    flags = flag_names(recipe_type)
    name, equals, text = entry.partition("=")
    name = name.strip().replace("-", "_")
    section, field, hint = flags.get(name, ("", "", None))
    is_list = any(typing.get_origin(kind) is tuple for kind in (hint, *typing.get_args(hint)))
    items = [item.strip() for item in text.split(";" if is_list else ",")]
    if not name or not equals or not all(items):
        raise RecipeError(
            "over expects a key and its values, such as c2=0.1,0.3,1 (lists are set apart by ;),"
            f" got {entry!r}"
        )
    try:
        tables = [parse_flags(recipe_type, [f"--{name}={item}"]) for item in items]
        values = [(table[section] if section else table)[field] for table in tables]
        _check_axis(recipe_type, section, field, values)
    except SoftqError as error:
        raise RecipeError(f"over {entry!r}: {error}") from None
    return min((flag for flag in flags if flags[flag][:2] == (section, field)), key=len), values


def _check_axis(recipe_type: type[Any], section: str, field: str, values: Sequence[Any]) -> None:
    """Refuse keys that are no axis of their own, and values that cannot be written down."""
    if section == "objective" or (section, field) == ("training", "seed"):
        raise RecipeError(
            "objectives, temperatures and seeds are axes of their own, set them by"
            " objective, tau and seed"
        )
    owner = typing.get_type_hints(recipe_type)[section] if section else recipe_type
    about = next(known.metadata for known in dataclasses.fields(owner) if known.name == field)
    if not about.get("identity", True):
        raise RecipeError(
            f"{field} cannot change a result, set it for the whole sweep by"
            f" --{field.replace('_', '-')}"
        )
    if not all(math.isfinite(value) for value in values if isinstance(value, float)):
        raise RecipeError("values must be finite")


def lay_over(recipe_type: type[Any], grid: Grid, entries: Sequence[str]) -> Grid:
    """The grid with other entries of ``over``: they take the place of those with the same key."""
    found = {_parse_axis(recipe_type, entry)[0]: entry for entry in (*grid.over, *entries)}
    return dataclasses.replace(grid, over=tuple(found.values()))


def expand(task: Task, base: Any, grids: Sequence[Grid]) -> dict[str, tuple[Any, tuple[str, ...]]]:
    """Every cell's recipe and the grids it belongs to, by the hash of the recipe.

    A cell of two grids is trained once.
    """
    found: dict[str, tuple[Any, tuple[str, ...]]] = {}
    for grid in grids:
        axes, seeds, objectives = (
            grid.axes(task.recipe_type),
            parse_seeds(grid.seed),
            grid.objectives(),
        )
        count = len(seeds) * len(objectives) * math.prod(map(len, axes.values()))
        if count > MOST_CELLS:
            raise RecipeError(
                f"the grid {grid.name!r} must have at most {MOST_CELLS:,} cells, got {count:,};"
                " leave out values, or seeds"
            )
        for seed, values, objective in itertools.product(
            seeds, list(itertools.product(*axes.values())), objectives
        ):
            settings = dict(zip(axes, values, strict=True))
            described = {
                "objective": objective.name,
                "tau": objective.tau,
                "temperature_scaled": objective.temperature_scaled,
                "seed": seed,
                "settings": settings,
            }
            at = f" at {show_settings(settings)}" if settings else ""
            recipe = cell_recipe(base, described, f"the grid {grid.name!r}{at}")
            name = recipe_hash(recipe, task=task.name)
            _, names = found.get(name, (None, ()))
            found[name] = (recipe, names if grid.name in names else (*names, grid.name))
    return found


def varied(task: Task, grids: Sequence[Grid]) -> list[str]:
    """The keys that any of the grids sets or varies, by their flags.

    What the cells of a sweep are told apart by.
    """
    return list(dict.fromkeys(flag for grid in grids for flag in grid.axes(task.recipe_type)))


def read_recipe(task: Task, path: Path) -> tuple[Any, list[Grid]]:
    """The recipe of a file and its grids, [] if it has none."""
    return parse_recipe(task, read_toml(path), str(path))


def parse_recipe(task: Task, table: Mapping[str, Any], where: str) -> tuple[Any, list[Grid]]:
    """The same from the file's tables."""
    base = build(
        task.recipe_type,
        {name: value for name, value in table.items() if name not in ("task", "sweep")},
        where,
    )
    grids = table.get("sweep", [])
    if not isinstance(grids, list) or not all(isinstance(grid, Mapping) for grid in grids):
        raise RecipeError(
            f"{where}: a grid is a table [[sweep]], in double brackets because there may be"
            f" several, got {grids!r}"
        )
    found = [build(Grid, grid, f"{where}, [[sweep]]") for grid in grids]
    names = [grid.name for grid in found]
    if len(set(names)) < len(names):
        raise RecipeError(
            f"{where}: every [[sweep]] needs a name of its own, got {', '.join(names)}"
        )
    try:
        varied(task, found)
    except SoftqError as error:
        raise RecipeError(f"{where}, [[sweep]]: {error}") from None
    return base, found


def sweep_toml(task: Task, base: Any, grids: Sequence[Grid]) -> str:
    """The recipe with its grids as TOML."""
    lines = [
        line
        for grid in grids
        for line in (
            "\n[[sweep]]",
            *(f"{name} = {toml_value(value)}" for name, value in dataclasses.asdict(grid).items()),
        )
    ]
    return to_toml(base, task=task.name) + "".join(f"{line}\n" for line in lines)
