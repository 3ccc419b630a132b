"""Code in the text of a page that names something of softq becomes a link to where it is documented.

In a docstring names are read as Python would read them there: `fit` in the class, `Chain` in the module. Elsewhere only those that cannot
be meant otherwise are: names with their module (``softq.raml``), and classes of which there is one of that name (``SentenceBLEU``).
"""

from __future__ import annotations

import importlib
import re
import sys
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.domains.python import ObjectEntry
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.nodes import make_refnode

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_CLASS = re.compile(r"[A-Z]\w*[a-z]\w*(\.\w+)*")
_CALL = re.compile(r"\([^()]*\)$")


class NameLinks(SphinxPostTransform):
    """Links from code in the text to the reference."""

    default_priority = 400

    def run(self, **kwargs: Any) -> None:
        """Wrap every such piece of code of this page."""
        objects = self.env.domains.python_domain.objects
        docname = self.env.current_document.docname
        for literal in list(self.document.findall(nodes.literal)):
            if _inside(literal, (nodes.reference, nodes.title)):
                continue
            name = self._documented(literal)
            entry: ObjectEntry | None = objects.get(name) if name else None
            signature = _signature(literal)
            if entry is None or (signature is not None and entry.node_id in signature["ids"]):
                continue
            builder = self.app.builder
            literal.replace_self(
                make_refnode(
                    builder, docname, entry.docname, entry.node_id, literal.deepcopy(), name
                )
            )

    def _documented(self, literal: nodes.literal) -> str | None:
        text = _CALL.sub("", literal.astext())
        if not _NAME.fullmatch(text):
            return None
        signature = _signature(literal)
        if signature is not None:
            return self._find(text, _namespaces(signature["module"], signature["fullname"]))
        if text.startswith("softq."):
            return self._find(text, [])
        return self._class(text) if _CLASS.fullmatch(text) else None

    def _class(self, text: str) -> str | None:
        head, dot, rest = text.partition(".")
        objects = self.env.domains.python_domain.objects
        found = [
            name
            for name, entry in objects.items()
            if name.endswith("." + head)
            and entry.objtype in ("class", "exception")
            and not entry.aliased
        ]
        return found[0] + dot + rest if len(found) == 1 else None

    def _find(self, text: str, namespaces: list[Any]) -> str | None:
        """The name in the reference of what a text means in the first of the namespaces that knows it."""
        objects = self.env.domains.python_domain.objects
        if text in objects:
            return text
        head, *rest = text.split(".")
        missing = object()
        for space in [*namespaces, sys.modules]:
            thing = (
                space.get(head, missing)
                if isinstance(space, dict)
                else getattr(space, head, missing)
            )
            for name in rest:
                thing = getattr(thing, name, missing)
            owner = space if not rest else None
            for path in _paths(thing, owner, text.rpartition(".")[2]):
                parent, _, name = path.rpartition(".")
                known = objects.get(
                    parent
                )  # the reference has classes also by the modules they stand in, but not their members
                for found in (path, f"{known.node_id}.{name}" if known else path):
                    if found in objects:
                        return found
        return None


def _paths(thing: Any, owner: Any, name: str) -> list[str]:
    """The names that the reference may have for a thing."""
    if isinstance(thing, property):
        thing = thing.fget
    if isinstance(thing, type(sys)):
        return [thing.__name__]
    paths = []
    module, qualified = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if isinstance(module, str) and isinstance(qualified, str) and module.startswith("softq"):
        paths.append(f"{module}.{qualified}")
    if isinstance(owner, type):  # attributes know nothing of their class
        paths += [f"{base.__module__}.{base.__qualname__}.{name}" for base in owner.__mro__]
    return paths


def _namespaces(module: str, fullname: str) -> list[Any]:
    """Where Python would look a name up that stands in the docstring of this object.

    Its classes, then its module.
    """
    space: Any = importlib.import_module(module)
    spaces = []
    for name in fullname.split("."):
        space = getattr(space, name, None)
        spaces.append(space)
    classes = [space for space in reversed(spaces) if isinstance(space, type)]
    home = sys.modules.get(getattr(spaces[0], "__module__", None) or module)
    return [*classes, home, importlib.import_module("softq")]


def _inside(node: nodes.Node, kinds: tuple[type[nodes.Node], ...]) -> bool:
    while node.parent is not None:
        node = node.parent
        if isinstance(node, kinds):
            return True
    return False


def _signature(node: nodes.Node) -> addnodes.desc_signature | None:
    """The signature of the object in whose docstring a node stands."""
    while node.parent is not None:
        node = node.parent
        if isinstance(node, addnodes.desc) and node.get("domain") == "py":
            first = node[0]
            return (
                first
                if isinstance(first, addnodes.desc_signature) and first.get("module")
                else None
            )
    return None


def _add_anchors(app: Sphinx, doctree: nodes.document) -> None:
    """Every path by which an object can be imported is an anchor.

    Pages of source code link to one that they guess.
    """
    for signature in doctree.findall(addnodes.desc_signature):
        module, name = signature.get("module"), signature.get("fullname")
        home = (
            getattr(
                getattr(importlib.import_module(module), name.partition(".")[0], None),
                "__module__",
                None,
            )
            if module
            else None
        )
        if not isinstance(home, str) or not home.startswith("softq"):
            continue
        parts = home.split(".")
        paths = [".".join((*parts[:end], name)) for end in range(1, len(parts) + 1)]
        signature["ids"] += [
            path for path in paths if path not in signature["ids"] and signature["ids"]
        ]


def setup(app: Sphinx) -> dict[str, Any]:
    """Add the links and the anchors."""
    app.add_post_transform(NameLinks)
    app.connect("doctree-read", _add_anchors)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
