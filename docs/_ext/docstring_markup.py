"""The docstrings of softq as reStructuredText, which is what autodoc reads.

They are written to be read in an editor: code in single or double backticks, formulae and tables as
indented blocks, and no backslashes.
"""

from __future__ import annotations

import inspect
import re
import sys
from abc import ABC
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.ext.napoleon import Config, GoogleDocstring
from sphinx.pycode import ModuleAnalyzer

_GOOGLE = Config(napoleon_attr_annotations=False)  # signatures have the types
_SECTION = re.compile(r"(Args|Attributes|Raises|Returns|Yields):$")
_ENTRY = re.compile(r"(\s+)(\*{0,2}\w+: )(.*)")
_ITEM = re.compile(r"([-*]|\d+\.) ")
_MARKUP = re.compile(
    r"(?P<code>``.+?``|(?::\w+:)?`[^`]+`)"
    r"|(?P<bullet>^\* )"
    r"|(?P<emphasis>(?<![\w*])(?P<stars>\*\*?)(?=[^\s*])[^*]+(?<=\S)(?P=stars)(?![\w*]))"
    r"|(?P<special>[*|\\]|(?<=\w)_(?!\w))",
    re.DOTALL | re.MULTILINE,
)


def to_rst(lines: list[str]) -> list[str]:
    r"""A docstring, without its indentation, as reStructuredText.

    >>> to_rst(["P(y|x) of `Chain`:", "", "    exp(s) / Z", "", "for each y*."])
    ['P(y\\|x) of ``Chain``:', '', '::', '', '    exp(s) / Z', '', 'for each y\\*.', '']
    >>> to_rst(["Args:", "    classes_: the `K` labels."])
    ['Args:', '    classes_: the ``K`` labels.', '']
    """
    out: list[str] = []
    in_section = in_list = False
    for block in _blocks(lines):
        indented = block[0].startswith("  ")
        if not indented:
            in_section, in_list = bool(_SECTION.match(block[0])), bool(_ITEM.match(block[0]))
        if block[0].lstrip().startswith(">>>"):
            out += block
        elif in_section:
            out += _section(block)
        elif indented and not in_list:
            out += ["::", "", *block]
        else:
            out += _text(block)
        out.append("")
    return out


def _blocks(lines: list[str]) -> Iterator[list[str]]:
    """Paragraphs: lines up to an empty one, or up to a doctest."""
    block: list[str] = []
    in_doctest = False
    for line in lines:
        starts_doctest = line.lstrip().startswith(">>>")
        if block and (not line.strip() or (starts_doctest and not in_doctest)):
            yield block
            block = []
        in_doctest = bool(line.strip()) and (in_doctest or starts_doctest)
        if line.strip():
            block.append(line)
    if block:
        yield block


def _section(block: list[str]) -> list[str]:
    """A section of Google's style, in which napoleon looks for names by itself.

    An entry goes over several lines.
    """
    out: list[str] = []
    for line in block:
        if _SECTION.match(line) or _ENTRY.match(line) or not out or _SECTION.match(out[-1]):
            out.append(line)
        else:
            out[-1] += "\n" + line
    whole = []
    for part in out:
        entry = _ENTRY.fullmatch(part.split("\n")[0])
        if entry is None:
            whole += _text(part.split("\n"))
        else:
            first, *rest = _text([entry[3], *part.split("\n")[1:]])
            whole += [entry[1] + entry[2] + first, *rest]
    return whole


def _text(lines: list[str]) -> list[str]:
    """Text with its code and its special signs as reStructuredText has them."""
    text = "\n".join(lines)

    def replace(found: re.Match[str]) -> str:
        if found["emphasis"] or found["bullet"]:
            return found[0]
        if found["special"]:
            return "\\" + found[0]
        before, after = text[: found.start()][-1:], text[found.end() :][:1]
        return (
            ("\\ " if before.isalnum() else "")
            + f"``{found[0].partition('`')[2].strip('`')}``"
            + ("\\ " if after.isalnum() else "")
        )

    return _MARKUP.sub(replace, text).split("\n")


def is_public(cls: type) -> bool:
    """Whether a class is one that people meet.

    Its package exports it, or exports nothing by name.
    """
    if not cls.__module__.startswith("softq."):
        return True
    package = sys.modules[".".join(cls.__module__.split(".")[:2])]
    exported = getattr(package, "__all__", None)
    return not cls.__name__.startswith("_") and (exported is None or cls.__name__ in exported)


def public_bases(bases: Iterable[type]) -> Iterator[type]:
    """The nearest public classes that a class is made from.

    >>> import softq
    >>> [base.__name__ for base in public_bases(softq.rewards.SentenceBLEU.__bases__)]
    ['Reward']
    """
    for base in bases:
        if is_public(base):
            yield base
        else:
            yield from public_bases(base.__bases__)


def inherited(cls: type) -> list[str]:
    """What a class has from others of softq, a paragraph for each of these.

    >>> import softq
    >>> inherited(softq.Categorical)[0][:30]
    'Inherited from `Distribution`:'
    """
    paragraphs = []
    seen = {
        name
        for base in _own_classes(cls)
        for name, member in vars(base).items()
        if _documentation(member)
    }
    for base in cls.__mro__[1:]:
        if not base.__module__.startswith("softq.") or not is_public(base):
            continue
        names = [
            name
            for name, member in vars(base).items()
            if _is_shown(name) and name not in seen and _documentation(member)
        ]
        seen.update(names)
        if names:
            members = ", ".join(f"`{name}`" for name in names)
            paragraphs += [f"Inherited from `{base.__name__}`: {members}.", ""]
    return paragraphs


def _own_classes(cls: type) -> list[type]:
    """A class and what it is made from that is documented nowhere else."""
    return [base for base in cls.__mro__ if base is cls or not is_public(base)]


def _is_shown(name: str) -> bool:
    return not name.startswith("_") or name == "__call__"


def _documentation(member: Any) -> str | None:
    if isinstance(member, (classmethod, staticmethod)):
        member = member.__func__
    return member.__doc__ if inspect.isfunction(member) or isinstance(member, property) else None


def _process(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    if what in ("class", "exception"):
        lines += ["", *inherited(thing)]
    lines[:] = to_rst(lines)
    if what not in (
        "attribute",
        "data",
        "property",
    ):  # of those napoleon takes what stands before a colon for the type
        lines[:] = GoogleDocstring(lines, _GOOGLE, app, what, name, thing, options).lines()


def _show_bases(app: Sphinx, name: str, thing: type, options: Any, bases: list[type]) -> None:
    bases[:] = [base for base in public_bases(bases) if base not in (object, ABC)] or [object]


def _skip(app: Sphinx, what: str, name: str, thing: Any, skip: bool, options: Any) -> bool | None:
    """Leave out the fields of named tuples of which no more is known than their number.

    Their class tells of them.
    """
    if not (getattr(thing, "__doc__", None) or "").startswith("Alias for field number"):
        return None
    cls = _classes_of_fields(len(sys.modules)).get(id(thing))
    if cls is None:
        return None
    analyzer = ModuleAnalyzer.for_module(cls.__module__)
    analyzer.analyze()
    return None if (cls.__qualname__, name) in analyzer.attr_docs else True


@lru_cache(maxsize=1)
def _classes_of_fields(modules_so_far: int) -> dict[int, type]:
    """The named tuple of each of its fields, which do not know it."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("softq.")]
    classes = {
        thing
        for module in modules
        for thing in vars(module).values()
        if isinstance(thing, type) and issubclass(thing, tuple)
    }
    return {
        id(vars(cls)[field]): cls
        for cls in classes
        for field in getattr(cls, "_fields", ())
        if field in vars(cls)
    }


def _tidy(app: Sphinx, doctree: nodes.document) -> None:
    """Say of no class that it is an object, and end blocks of code with their last line."""
    for content in doctree.findall(addnodes.desc_content):
        if content.children and content[0].astext() == "Bases: object":
            content.pop(0)
    for block in doctree.findall(nodes.literal_block):
        if block.rawsource == block.astext():
            block.rawsource = block.rawsource.rstrip()
            block.children = [nodes.Text(block.rawsource)]


def setup(app: Sphinx) -> dict[str, Any]:
    """Take part in what autodoc does."""
    app.connect("autodoc-process-docstring", _process)
    app.connect("autodoc-process-bases", _show_bases)
    app.connect("autodoc-skip-member", _skip)
    app.connect("doctree-read", _tidy)
    return {"parallel_read_safe": True}
