"""The page itself: a heading, a switch between light and dark, and the two sheets."""

from __future__ import annotations

from pathlib import Path

from nicegui import ui

from softq.explorer.sentences import SentenceStudy
from softq.explorer.sheets import ClassSheet, SentenceSheet

_STYLE = Path(__file__).with_name("style.css")
_SCHEMES = {"auto": None, "light": False, "dark": True}


def build(text: str, study: SentenceStudy) -> None:
    """Everything on the page, once for each visitor.

    Args:
        text: the references to begin with.
        study: of these references.

    """
    ui.add_css(_STYLE.read_text(encoding="utf-8"))
    ui.colors(primary="#2277aa")
    scheme = ui.dark_mode(None)
    with ui.element("main").classes("explorer"):
        with ui.element("header").classes("top"):
            with ui.element("div"):
                ui.html("What a temperature does", tag="h1", sanitize=False)
                ui.label("RAML and SQDML side by side, computed by softq on this machine.").classes(
                    "note"
                )
            choice = ui.toggle(
                list(_SCHEMES),
                value="auto",
                on_change=lambda event: scheme.set_value(_SCHEMES[event.value]),
            )
            choice.props('dense no-caps flat aria-label="light or dark"')
        with ui.tabs().props("no-caps align=left dense").classes("tabs") as tabs:
            sentences, classes = ui.tab("Sentences"), ui.tab("Classes")
        with ui.tab_panels(tabs, value=sentences, animated=False, keep_alive=True).classes("panel"):
            with ui.tab_panel(sentences):
                SentenceSheet(text, study)
            with ui.tab_panel(classes):
                ClassSheet()
