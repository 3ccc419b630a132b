"""Strict recipes: nested dataclasses read from TOML and command-line flags, written back as TOML.

A recipe is a frozen dataclass whose fields are sections (dataclasses themselves), and a section's
fields are keys::

    task = "classification"

    [objective]
    name = "raml"
    tau = 2.4

A key is set by a flag of its own name (``--tau 2.4``); where sections share one, ``[training]`` has
it (``--seed 1``) and the others say which section they mean (``--data.seed 1``). ``--objective`` is
short for ``--objective.name``. An unknown key is an error that names the nearest right one; a value
is never guessed into another type.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import hashlib
import json
import math
import operator
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from softq.errors import RecipeError, SoftqError
from softq.options import ObjectiveName, check_conflicts, check_tau

R = TypeVar("R")


_LIMITS: dict[str, tuple[Callable[[Any, Any], bool], str]] = {
    "least": (operator.ge, "at least {}"),
    "above": (operator.gt, "more than {}"),
    "most": (operator.le, "at most {}"),
    "below": (operator.lt, "less than {}"),
    "positive": (lambda value, _: 0 < value < math.inf, "a positive number"),
    "finite": (lambda value, _: math.isfinite(value), "finite"),
    "bits": (
        lambda value, bits: -(2 ** (bits - 1)) <= value < 2 ** (bits - 1),
        "a number of {} bits",
    ),
}
"""What a key may declare of its values, how it is checked, and how errors put it."""


def key(default: Any, explanation: str, *, identity: bool = True, **limits: float) -> Any:
    """A key of a `RecipeSection`.

    Args:
        default: its value where a recipe does not name it.
        explanation: one line for ``--help``, and for recipes that are printed.
        identity: whether another value makes another result.
        **limits: of its values, checked by `RecipeSection`: ``least``, ``above``, ``most`` and ``below``
            a number; ``positive=True``, ``finite=True``; ``bits`` that it must fit into.

    """
    metadata = {"explanation": explanation, "identity": identity, "limits": limits}
    return dataclasses.field(default=default, metadata=metadata)


Conflicts = Sequence[tuple[object, str]]
"""Conditions, and what to say where one of them holds."""


class RecipeSection:
    """A section of a recipe, or a recipe: values within their limits that go together.

    >>> Rates = dataclasses.make_dataclass("Rates", [("rate", float, key(0.5, "", above=0, most=1))], bases=(RecipeSection,))
    >>> Rates(2.0)
    Traceback (most recent call last):
    softq.errors.RecipeError: rate must be more than 0 and at most 1, got 2.0
    """

    def __post_init__(self) -> None:
        """Refuse what does not fit."""
        for field in dataclasses.fields(cast(Any, self)):
            value, limits = getattr(self, field.name), field.metadata.get("limits", {})
            for one in value if isinstance(value, tuple) else (value,):
                if one is not None and not all(_LIMITS[n][0](one, of) for n, of in limits.items()):
                    wanted = " and ".join(_LIMITS[n][1].format(of) for n, of in limits.items())
                    raise RecipeError(f"{field.name} must be {wanted}, got {one}")
        check_conflicts(self.conflicts(), RecipeError)

    def conflicts(self) -> Conflicts:
        """What does not go together."""
        return ()


@dataclass(frozen=True)
class Objective(RecipeSection):
    """What a model is trained toward: the section ``[objective]`` of every recipe."""

    name: ObjectiveName = key("ml", "ml (eq. 2), raml (eq. 4) or sqdml (eq. 14)")
    tau: float | None = key(None, "temperature of raml and sqdml")
    temperature_scaled: bool = key(
        False, "divide the scores by tau and multiply the loss by tau squared"
    )

    def __post_init__(self) -> None:
        """Only RAML and SQDML have a temperature, and they need one."""
        super().__post_init__()
        if self.tau is not None:
            check_tau(self.tau)

    def conflicts(self) -> Conflicts:
        """A temperature, or the lack of one."""
        return (
            (
                self.name == "ml" and (self.tau is not None or self.temperature_scaled),
                "ml has no temperature: leave out tau and temperature_scaled, or choose raml or"
                " sqdml",
            ),
            (
                self.name != "ml" and self.tau is None,
                f"{self.name} needs a temperature in units of its reward, such as tau = 0.2 for"
                " BLEU; see docs/temperature.md",
            ),
        )

    def __str__(self) -> str:
        """What tells objectives apart in a table.

        >>> str(Objective("raml", 2.4))
        'raml τ=2.4'
        """
        tau = "" if self.tau is None else f" τ={self.tau:g}"
        return self.name + tau + (" scaled" if self.temperature_scaled else "")


@dataclass(frozen=True)
class Training(RecipeSection):
    """How long and where a model is trained: the section ``[training]`` of every recipe."""

    epochs: int = key(100, "passes over the training data, at most", least=1)
    burn_in: int = key(
        0,
        "first epochs whose development scores do not count (the last one's does): a half-trained"
        " model may be good by luck",
        least=0,
    )
    patience: int = key(
        10,
        "epochs without a better development score before training stops; 0: never stops early",
        least=0,
    )
    batch_size: int = key(1000, "examples of one step, over all processes", least=1)
    seed: int = key(0, "random seed of the first weights and of training", bits=64)
    device: Literal["auto", "cpu", "cuda"] = key(
        "auto", "where to train; auto: a GPU if there is one", identity=False
    )
    checkpoint_every: int = key(
        0,
        "steps between checkpoints inside an epoch; 0: one after each epoch",
        identity=False,
        least=0,
    )


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file; an error names the file and the line."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecipeError(f"cannot read the recipe {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # tomllib's own errors are ValueErrors
        raise RecipeError(f"{path} is not valid TOML: {error}") from None


def build(
    recipe_type: type[R], table: Mapping[str, Any], where: str = "recipe", base: R | None = None
) -> R:
    """The dataclass that a table of TOML or JSON describes.

    Missing keys are as in ``base``, or take their defaults; unknown keys, and missing ones that
    have no default, are errors.

    >>> build(Training, {"epochs": 3}).epochs
    3
    >>> build(Training, {"epoch": 3})
    Traceback (most recent call last):
    softq.errors.RecipeError: recipe: there is no key 'epoch', did you mean 'epochs'?
    """
    known = {field.name: field for field in dataclasses.fields(cast(Any, recipe_type))}
    hints = _hints(recipe_type)
    values: dict[str, Any] = {}
    for name, value in table.items():
        if name not in known:
            raise RecipeError(f"{where}: there is no key {name!r}, {_nearest(name, known)}")
        if dataclasses.is_dataclass(hints[name]):
            if not isinstance(value, Mapping):
                raise RecipeError(
                    f"{where}: {name!r} is a section, write [{name}] and its keys below it, "
                    f"got {shorten(value)}"
                )
            values[name] = build(
                cast(type, hints[name]), value, f"{where}, [{name}]", _section(known[name], base)
            )
        else:
            values[name] = typed(value, hints[name], f"{where}, {name}")
    for name, field in known.items():
        if base is None and name not in values and _section(field, None) is dataclasses.MISSING:
            raise RecipeError(f"{where}: the key {name!r} is missing")
    try:
        return (
            recipe_type(**values)
            if base is None
            else dataclasses.replace(cast(Any, base), **values)
        )
    except SoftqError as error:  # from a section's own checks
        raise RecipeError(f"{where}: {error}") from None


def _section(field: dataclasses.Field[Any], base: Any) -> Any:
    """A key without a value of its own.

    A recipe may have other defaults for a section than the section's class.
    """
    if base is not None:
        return getattr(base, field.name)
    factory = field.default_factory
    return field.default if factory is dataclasses.MISSING else factory()


def merge(*tables: Mapping[str, Any]) -> dict[str, Any]:
    """Tables laid over each other section by section, the last one on top.

    >>> merge({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}})
    {'a': {'x': 1, 'y': 3}}
    """
    merged: dict[str, Any] = {}
    for table in tables:
        for name, value in table.items():
            under = merged.get(name)
            merged[name] = (
                merge(under, value)
                if isinstance(under, Mapping) and isinstance(value, Mapping)
                else value
            )
    return merged


def parse_flags(recipe_type: type[Any], arguments: Sequence[str]) -> dict[str, Any]:
    """The table that ``--key value`` and ``--key=value`` arguments describe.

    ``--key`` and ``--no-key`` for yes and no.

    >>> Recipe = dataclasses.make_dataclass("Recipe", [("objective", Objective), ("training", Training)])
    >>> parse_flags(Recipe, ["--objective", "raml", "--tau=2.4", "--epochs", "3"])
    {'objective': {'name': 'raml', 'tau': 2.4}, 'training': {'epochs': 3}}
    """
    flags = flag_names(recipe_type)
    table: dict[str, Any] = {}
    waiting = list(arguments)
    while waiting:
        argument = waiting.pop(0)
        if not argument.startswith("--"):
            raise RecipeError(
                f"expected a flag like --epochs 10, got {argument!r}; a task or recipe comes before"
                " the flags"
            )
        name, equals, text = argument[2:].partition("=")
        name = name.replace("-", "_")
        negated = name.startswith("no_") and name not in flags and name[3:] in flags
        if negated:
            name = name[3:]
        if name not in flags:
            raise RecipeError(
                f"there is no flag --{name.replace('_', '-')}, {_nearest(name, flags, flag=True)}"
            )
        section, field, hint = flags[name]
        if hint is bool and not equals:
            value: Any = not negated
        else:
            if not equals:
                if not waiting:
                    raise RecipeError(f"--{name.replace('_', '-')} needs a value")
                text = waiting.pop(0)
            if negated:
                raise RecipeError(
                    f"--no-{name.replace('_', '-')} does not fit: it takes no value, and {name}"
                    " must be a yes-or-no key"
                )
            value = _from_text(text, hint, f"--{name.replace('_', '-')}")
        table = merge(table, {section: {field: value}} if section else {field: value})
    return table


def flag_names(recipe_type: type[Any]) -> dict[str, tuple[str, str, Any]]:
    """What each flag sets: ``(section, key, type)`` by the flag's name, with ``_`` for ``-``.

    >>> Data = dataclasses.make_dataclass("Data", [("seed", int), ("inputs", int)])
    >>> flags = flag_names(dataclasses.make_dataclass("Recipe", [("data", Data), ("training", Training)]))
    >>> flags["seed"][0], flags["data.seed"][0], flags["inputs"][0]
    ('training', 'data', 'data')
    """
    full: dict[str, tuple[str, str, Any]] = {}
    short: dict[str, list[tuple[str, str, Any]]] = {}
    for name, hint in _hints(recipe_type).items():
        if not dataclasses.is_dataclass(hint):
            full[name] = ("", name, hint)
            continue
        for inner, inner_hint in _hints(cast(type[Any], hint)).items():
            full[f"{name}.{inner}"] = (name, inner, inner_hint)
            short.setdefault(name if inner == "name" else inner, []).append(
                (name, inner, inner_hint)
            )
    for name, places in short.items():
        of_training = [place for place in places if place[0] == "training"]
        if name not in full and (len(places) == 1 or of_training):
            full[name] = (of_training or places)[0]
    return full


def _hints(recipe_type: type[Any]) -> dict[str, Any]:
    """The types of the keys of a section, or of the sections of a recipe."""
    hints = typing.get_type_hints(recipe_type)
    return {field.name: hints[field.name] for field in dataclasses.fields(recipe_type)}


def describe(recipe: Any) -> list[tuple[str, str, Any, str]]:
    """Every key of a recipe as ``(section, key, value, explanation)``, in order."""
    rows: list[tuple[str, str, Any, str]] = []
    for field in dataclasses.fields(recipe):
        value = getattr(recipe, field.name)
        if dataclasses.is_dataclass(value):
            rows += [(field.name, inner, *rest) for _, inner, *rest in describe(value)]
        else:
            rows.append(("", field.name, value, str(field.metadata.get("explanation", ""))))
    return rows


def to_toml(recipe: Any, *, task: str, explain: bool = False) -> str:
    """The recipe as TOML that reads back to the same recipe; keys without a value are left out.

    >>> Recipe = dataclasses.make_dataclass("Recipe", [("objective", Objective)])
    >>> print(to_toml(Recipe(Objective("raml", 2.4)), task="demo"), end="")
    task = "demo"
    <BLANKLINE>
    [objective]
    name = "raml"
    tau = 2.4
    temperature_scaled = false
    """
    lines = [f"task = {json.dumps(task)}"]
    section = ""
    for in_section, name, value, explanation in describe(recipe):
        if in_section != section:
            section = in_section
            lines += ["", f"[{section}]"]
        comment = f"  # {explanation}" if explain and explanation else ""
        if value is not None:
            lines.append(f"{name} = {toml_value(value)}{comment}")
        elif explain:
            lines.append(f"# {name} = …{comment}")
    return "\n".join(lines) + "\n"


def toml_value(value: Any) -> str:
    """One value as TOML writes it: as JSON does, but for numbers that are not finite.

    >>> toml_value((1e-05, True, math.inf, "ü"))
    '[1e-05, true, inf, "ü"]'
    """
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(map(toml_value, value))}]"
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def recipe_hash(recipe: Any, *, task: str) -> str:
    """Twelve hexadecimal digits that tell recipes apart.

    Keys that cannot change a result do not count.
    """
    counted = {"task": task} | _identity(recipe)
    return hashlib.sha256(json.dumps(counted, sort_keys=True).encode()).hexdigest()[:12]


def _identity(recipe: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in dataclasses.fields(recipe):
        value = getattr(recipe, field.name)
        if dataclasses.is_dataclass(value):
            found[field.name] = _identity(value)
        elif field.metadata.get("identity", True):
            found[field.name] = value
    return found


def _nearest(name: str, known: Iterable[str], flag: bool = False) -> str:
    known = sorted(known)
    written = [f"--{k.replace('_', '-')}" if flag else repr(k) for k in known]
    namesakes = [
        shown for k, shown in zip(known, written, strict=True) if flag and k.endswith(f".{name}")
    ]
    if namesakes:  # keys of several sections, none of which has the short flag
        return f"did you mean {' or '.join(namesakes)}?"
    close = difflib.get_close_matches(name, known, 1, 0.5)
    if close:
        return f"did you mean {written[known.index(close[0])]}?"
    return f"there are {', '.join(written)}"


def typed(value: Any, hint: Any, where: str) -> Any:
    """The value if it has this type.

    Integers pass as floats, lists as tuples, and nothing else is converted.

    >>> typed([1, 2.5], tuple[float, ...], "rates")
    (1.0, 2.5)
    >>> typed({"epnch": 3}, typing.TypedDict("Row", {"epoch": int}), "line 1")
    Traceback (most recent call last):
    softq.errors.RecipeError: line 1: the key 'epoch' is missing
    """
    if hint is Any:
        return value
    kind = dict if typing.is_typeddict(hint) else typing.get_origin(hint)
    return _READERS.get(kind, _plain)(value, hint, where)


def _option(value: Any, hint: Any, where: str) -> Any:
    options = typing.get_args(hint)
    if value in options:
        return value
    close = difflib.get_close_matches(str(value), [str(option) for option in options], 1, 0.4)
    raise RecipeError(
        f"{where} is one of {', '.join(map(repr, options))}, got {shorten(value)}"
        + (f"; did you mean {close[0]!r}?" if close else "")
    )


def _union(value: Any, hint: Any, where: str) -> Any:
    options = typing.get_args(hint)
    if value is None and type(None) in options:
        return None
    *first, last = (option for option in options if option is not type(None))
    for option in first:
        with contextlib.suppress(RecipeError):
            return typed(value, option, where)
    return typed(value, last, where)


def _items(value: Any, hint: Any, where: str) -> Any:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise RecipeError(f"{where} is a list, got {shorten(value)}")
    item_hint = typing.get_args(hint)[0]
    return typing.get_origin(hint)(typed(item, item_hint, where) for item in value)


def _table(value: Any, hint: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise RecipeError(f"{where} is a table of keys and values, got {shorten(value)}")
    for name in sorted(getattr(hint, "__required_keys__", set()) - value.keys()):
        raise RecipeError(f"{where}: the key {name!r} is missing")
    known = typing.get_type_hints(hint) if typing.is_typeddict(hint) else {}
    _, others = typing.get_args(hint) or (str, Any)
    return {
        name: typed(item, known.get(name, others), f"{where}, {name}")
        for name, item in value.items()
    }


def _plain(value: Any, hint: Any, where: str) -> Any:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):
            return float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise RecipeError(
            f"{where} must be {_NAMES.get(hint, hint.__name__)}, got {shorten(value)}"
        )
    return value


_READERS: dict[Any, Callable[[Any, Any, str], Any]] = {
    Literal: _option,
    types.UnionType: _union,
    typing.Union: _union,
    tuple: _items,
    list: _items,
    dict: _table,
}
"""What reads values of a type that is made of others, by its origin."""
_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def shorten(value: Any) -> str:
    """A value for a message: not at any length, nor any depth."""
    with contextlib.suppress(ValueError, RecursionError):  # Python refuses to print long integers
        text = repr(value)
        return text if len(text) <= 200 else text[:200] + "…"
    return f"a {type(value).__name__} that is too large to print"


def _from_text(text: str, hint: Any, where: str) -> Any:
    """A flag's text as a value of the key's type."""
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return _from_text(
            text, next(option for option in options if option is not type(None)), where
        )
    if origin is tuple:
        return [_from_text(item, options[0], where) for item in text.split(",") if item]
    if hint is bool:
        if text.lower() not in ("true", "false"):
            raise RecipeError(f"{where} is true or false, got {text!r}")
        return text.lower() == "true"
    if hint in (int, float):
        try:
            return hint(text.replace("_", ""))
        except ValueError:
            raise RecipeError(f"{where} must be {_NAMES[hint]}, got {text!r}") from None
    return typed(text, hint, where)
