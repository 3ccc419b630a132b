"""The page itself: a heading, light or dark, and the two sheets."""

from __future__ import annotations

from pathlib import Path

from nicegui import ui

from softq.explorer.class_tab import ClassTab
from softq.explorer.sentence_tab import SentenceTab
from softq.explorer.sentences import SentenceStudy

_STYLE = Path(__file__).with_name("style.css")
_SCHEMES = {"auto": None, "light": False, "dark": True}


def build(text: str, study: SentenceStudy) -> None:
    """Everything on the page, once for each visitor; ``text`` are the references to begin with, ``study`` what is known of them."""
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
                SentenceTab(text, study)
            with ui.tab_panel(classes):
                ClassTab()
