"""Options of commands as fields of dataclasses, and commands that take them: typer reads what the signature of a function says."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any

import typer

from softq.errors import DataError

REQUIRED = inspect.Parameter.empty
"""The default of an option that must be given."""


def option(default: Any, help: str, *names: str, **settings: Any) -> Any:  # noqa: A002
    """A field that is an option: its default, its help, and what `typer.Option` takes beside them."""
    about = {"help": help, "names": names, "settings": settings}
    return dataclasses.field(default=default, metadata=about)


def flag(name: str) -> str:
    """How an option is written.

    >>> flag("top_p")
    '--top-p'
    """
    return "--" + name.replace("_", "-")


def declare(
    name: str,
    type_: Any,
    default: Any,
    help: str,  # noqa: A002
    *names: str,
    **settings: Any,
) -> inspect.Parameter:
    """An option as a parameter of a command, with what `typer.Option` takes; `REQUIRED` for no default."""
    about = typer.Option(*names, help=help, **settings)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[type_, about]
    )


def takes_options(
    options_type: type[Any], panels: Mapping[str, str]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a command take fields of a dataclass as options and get them as one, its argument ``options``.

    Args:
        options_type: the dataclass, whose fields are made by `option`.
        panels: the fields to take, each with the title of its panel in ``--help``.

    """
    hints = typing.get_type_hints(options_type)
    fields = {field.name: field for field in dataclasses.fields(options_type)}

    taken = [
        declare(
            name,
            hints[name],
            fields[name].default,
            fields[name].metadata["help"],
            *fields[name].metadata["names"],
            rich_help_panel=panel,
            show_default=False,
            **fields[name].metadata["settings"],
        )
        for name, panel in panels.items()
    ]

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(function, eval_str=True).parameters
        kept = [
            one.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for name, one in own.items()
            if name != "options"
        ]

        def command(**given: Any) -> None:
            options = options_type(**{name: given.pop(name) for name in panels})
            function(options=options, **given)

        command.__name__, command.__doc__ = function.__name__, function.__doc__
        command.__signature__ = inspect.Signature([*kept, *taken])  # type: ignore[attr-defined]
        return command

    return decorate


def refuse_others(
    options: Any,
    taken: Iterable[str],
    who_takes: Callable[[str], str],
    what: str,
    instead: str = "leave it out",
) -> None:
    """An error if an option is given that the kind of model or file does not take.

    Args:
        options: what the command line says, a dataclass of `option` fields.
        taken: the names of the options that the kind takes.
        who_takes: the kinds that take an option, as the error names them.
        what: what the options were given for, such as "runs/names is a tagger".
        instead: what to do.

    """
    allowed = set(taken)
    for field in dataclasses.fields(options):
        if getattr(options, field.name) != field.default and field.name not in allowed:
            raise DataError(
                f"{flag(field.name)} is for {who_takes(field.name)}, and {what}: {instead}"
            )
