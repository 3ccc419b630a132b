"""Links of the pages to files and folders of the repository, which are right on GitHub, lead to pages of highlighted source here."""

from __future__ import annotations

import html
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms import SphinxTransform

_ROOT = Path(__file__).resolve().parents[2]
_DOCS = _ROOT / "docs"
_PAGES = {
    "README.md": "project/readme",
    "CHANGELOG.md": "project/changelog",
    "CONTRIBUTING.md": "project/contributing",
}
_LANGUAGES = {
    ".py": "python",
    ".toml": "toml",
    ".md": "markdown",
    ".cff": "yaml",
    ".txt": "text",
    "": "text",
}
_KIND = "repository"


class RepositoryLinks(SphinxTransform):
    """Finds the links that leave the folder of the documentation, before Sphinx takes them for downloads or for errors."""

    default_priority = 5

    def apply(self, **kwargs: Any) -> None:
        """Tell links to other pages from links to files."""
        docname = self.env.current_document.docname
        base = _ROOT if docname in _PAGES.values() else (_DOCS / docname).parent
        for node in list(self.document.findall(addnodes.pending_xref)) + list(
            self.document.findall(addnodes.download_reference)
        ):
            if node.get("reftype") != "myst":
                continue
            target, _, anchor = node["reftarget"].partition("#")
            if node.get("refdomain") == "doc":
                anchor = node.get("reftargetid") or ""
                path = Path(target + ".md")
                path = path if path.is_absolute() else _DOCS / path
            else:
                path = Path(os.path.normpath(base / target))
            if not path.is_relative_to(_ROOT) or not path.exists() or path == base:
                continue
            place = path.relative_to(_ROOT).as_posix()
            page = _PAGES.get(place)
            if page is None and path.is_relative_to(_DOCS) and path.suffix == ".md":
                page = path.relative_to(_DOCS).with_suffix("").as_posix()
            if page is not None:
                new = addnodes.pending_xref(
                    refdomain="doc",
                    reftarget=page,
                    reftargetid=anchor or None,
                    reftype="myst",
                    refdoc=docname,
                    refexplicit=True,
                )
            elif not path.is_relative_to(_DOCS):
                new = addnodes.pending_xref(
                    reftype=_KIND,
                    refdomain="",
                    reftarget=place,
                    anchor=anchor,
                    refdoc=docname,
                    refexplicit=True,
                )
                self.env.metadata[docname].setdefault(_KIND, []).append((place, anchor))
            else:
                continue
            new.source, new.line = node.source, node.line
            new += node.children
            node.replace_self(new)


def _resolve(
    app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, content: nodes.Element
) -> nodes.reference | None:
    if node["reftype"] != _KIND:
        return None
    uri = app.builder.get_relative_uri(
        node["refdoc"], _page_of(env, node["reftarget"], node["anchor"])
    )
    return nodes.reference(
        "",
        "",
        content,
        refuri=uri + ("#" + node["anchor"] if node["anchor"] else ""),
        internal=True,
    )


def _page_of(env: BuildEnvironment, place: str, anchor: str = "") -> str:
    """The page of a file or folder.

    That of viewcode where there is one, which links back to the reference.
    """
    if (_ROOT / place).is_dir():
        return f"source/{place}/index"
    module = place.removeprefix("src/").removesuffix(".py").removesuffix("/__init__")
    known = getattr(env, "_viewcode_modules", {})
    if place.startswith("src/") and not anchor and known.get(module.replace("/", ".")):
        return f"_modules/{module}"
    return f"source/{place}"


def _pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """A page for each file and folder that is linked to, and for what stands in the folders."""
    done: set[str] = set()
    waiting = sorted(
        {link for metadata in app.env.metadata.values() for link in metadata.get(_KIND, ())}
    )
    while waiting:
        place, anchor = waiting.pop()
        page = _page_of(app.env, place, anchor)
        if page in done or not page.startswith("source/"):
            continue
        done.add(page)
        path = _ROOT / place
        if path.is_dir():
            inside = sorted(
                part.relative_to(_ROOT).as_posix() for part in path.iterdir() if _is_source(part)
            )
            waiting += [(part, "") for part in inside]
            body = _folder(app, page, inside)
        else:
            body = _file(app, path)
        yield (
            page,
            {"title": place, "body": f"<h1><code>{html.escape(place)}</code></h1>\n{body}"},
            "page.html",
        )


def _is_source(path: Path) -> bool:
    return not path.name.startswith((".", "__pycache__")) and (
        path.is_dir() or path.suffix in _LANGUAGES
    )


def _folder(app: Sphinx, page: str, inside: list[str]) -> str:
    items = []
    for place in inside:
        uri = app.builder.get_relative_uri(page, _page_of(app.env, place))
        name = place.rpartition("/")[2] + ("/" if (_ROOT / place).is_dir() else "")
        items.append(f'<li><a href="{html.escape(uri)}"><code>{html.escape(name)}</code></a></li>')
    return "<ul>\n" + "\n".join(items) + "\n</ul>"


def _file(app: Sphinx, path: Path) -> str:
    """Highlighted text; line 12 is the anchor L12, as on GitHub."""
    text = path.read_text(encoding="utf-8")
    shown: str = app.builder.highlighter.highlight_block(text, _LANGUAGES.get(path.suffix, "text"))  # type: ignore[attr-defined]
    before, _, code = shown.partition("<pre>")
    lines = [
        f'<span id="L{number}"></span>{line}' for number, line in enumerate(code.split("\n"), 1)
    ]
    return before + "<pre>" + "\n".join(lines)


class _Navigation:
    """Pages of source code stand in no table of contents, so that those of one depth of folders can share the one at their side."""

    def __init__(self) -> None:
        self.found: dict[tuple[int, str], str] = {}

    def __call__(
        self,
        app: Sphinx,
        page: str,
        template: str,
        context: dict[str, Any],
        doctree: nodes.document | None,
    ) -> None:
        if not page.startswith(("source/", "_modules/")):
            return
        make = context["toctree"]

        def toctree(**options: Any) -> str:
            kind = page.count("/"), repr(sorted(options.items()))
            if kind not in self.found:
                self.found[kind] = make(**options)
            return self.found[kind]

        context["toctree"] = toctree


def setup(app: Sphinx) -> dict[str, Any]:
    """Add links and pages."""
    app.add_transform(RepositoryLinks)
    app.connect("missing-reference", _resolve)
    app.connect("html-collect-pages", _pages)
    app.connect("html-page-context", _Navigation(), priority=100)  # before the theme asks for it
    return {"parallel_read_safe": True, "parallel_write_safe": True}
