"""The page's sheet of classes: a table of costs and an input on the left; decisions, regions and bounds on the right."""

from __future__ import annotations

import math
from typing import cast

from nicegui import ui

from softq.errors import SoftqError
from softq.explorer import drawing
from softq.explorer.classes import (
    EXAMPLE,
    EXAMPLE_PROBABILITIES,
    ClassStudy,
    ClassTable,
    Rule,
    TableKind,
    parse_probabilities,
    parse_table,
)
from softq.explorer.fields import Temperature, choice, grey, read, text_area, text_field

_POINTS = 61  # of a curve


class ClassTab:
    """Builds the sheet where it is made."""

    def __init__(self) -> None:
        self.table = parse_table(EXAMPLE, "costs")
        self.study = ClassStudy(
            self.table, parse_probabilities(EXAMPLE_PROBABILITIES, len(self.table.labels))
        )
        self._settling = False  # while several fields change together
        with ui.element("div").classes("sheet"):
            with ui.element("section").classes("controls"):
                self._build_controls()
            with ui.element("section").classes("results") as self._results:
                self._build_results()
        self._read_table()

    def _build_controls(self) -> None:
        hint = "rows: what is decided; columns: what is right; cells between tabs, commas or spaces, names if you like"
        self._cells = text_area("table", EXAMPLE, self._read_table, rows=6, hint=hint).props(
            'input-class="table-cells"'
        )
        self._kind = ui.radio(
            {"costs": "costs, to be kept low", "rewards": "rewards"},
            value="costs",
            on_change=self._read_table,
        ).props("dense inline")
        self._probabilities = text_field(
            "P(y|x) of an input",
            EXAMPLE_PROBABILITIES,
            self._recompute,
            hint="one number for each class, such as 0.25 or 1/4",
        )
        self._chosen = choice("classes to draw", {}, self._recompute, multiple=True)
        ui.label(
            "SQDML decides as the Bayes rule at any temperature. RAML comes closer to it as τ grows, and to likelihood (ML) as τ falls, "
            "where being right is best."
        ).classes("note")

    def _build_results(self) -> None:
        self._tau = Temperature(3.0, -1.0, 3.0, self._show_tau)
        self._decisions = (
            ui.html(sanitize=False)
            .classes("scroll")
            .props('tabindex=0 role="region" aria-label="classes"')
        )
        ui.html("Decision regions", tag="h2", sanitize=False)
        with ui.element("div").classes("maps"):
            self._maps: dict[Rule, ui.html] = {
                rule: ui.html(sanitize=False) for rule in drawing.RULES
            }
        self._map_note = ui.label().classes("note")
        with ui.element("div").classes("charts"):
            self._rewards, self._gaps = ui.echart({}, renderer="svg"), ui.echart({}, renderer="svg")
        ui.html("How far RAML’s Q′ is from SQDML’s Q at the input", tag="h2", sanitize=False)
        self._bounds = ui.html(sanitize=False).classes("scroll")

    # --- what people do ---------------------------------------------------------------------------------

    def _read_table(self) -> None:
        kind = cast(TableKind, self._kind.value)
        table = read(self._cells, lambda text: parse_table(text, kind))
        if table is None:
            grey(self._results, True)
            return
        self._settling = True
        if len(table.labels) != len(
            self.table.labels
        ):  # what was typed for other classes means nothing for these
            self._probabilities.value = " ".join([f"1/{len(table.labels)}"] * len(table.labels))
        self.table = table
        self._offer(table)
        self._settling = False
        self._recompute()

    def _offer(self, table: ClassTable) -> None:
        """The classes of the table to choose from, where there are more than a triangle has corners."""
        everything = dict(enumerate(table.labels))
        kept = [number for number in self._chosen.value or [] if number in everything]
        self._chosen.set_options(
            everything, value=kept if len(kept) in (2, 3) else list(everything)[:3]
        )
        self._chosen.visible = len(everything) > 3

    def _recompute(self) -> None:
        if self._settling:
            return
        p = read(
            self._probabilities, lambda text: parse_probabilities(text, len(self.table.labels))
        )
        study = None
        if p is not None and self._cells.error is None:
            try:
                study = ClassStudy(
                    self.table,
                    p,
                    sorted(self._chosen.value) if len(self.table.labels) > 3 else None,
                )
                self._chosen.error = None
            except SoftqError as error:
                self._chosen.error = str(error)
        grey(self._results, study is None)
        if study is not None:
            self.study = study
            self._show_study()

    # --- what they see ----------------------------------------------------------------------------------

    def _show_study(self) -> None:
        middle = round(math.log10(self.table.range))
        self._tau.scale(middle - 2.0, middle + 2.0)
        taus = [10 ** (middle - 2 + 4 * step / (_POINTS - 1)) for step in range(_POINTS)]
        self._reward_lines = drawing.reward_lines(self.study, taus)
        self._gap_lines = drawing.bound_lines(self.study.bounds(taus))
        drawn = ", ".join(self.table.labels[number] for number in self.study.chosen)
        rest = (
            " The other classes keep their probabilities."
            if len(self.study.chosen) < len(self.table.labels)
            else ""
        )
        self._map_note.text = (
            f"P between {drawn}; a corner is certainty, the dot is the input.{rest}"
        )
        self._show_tau()

    def _show_tau(self) -> None:
        tau = self._tau.value
        point = self.study.at(tau)
        self._decisions.content = drawing.class_table(self.study, point)
        self._bounds.content = drawing.bounds_table(self.study, point)
        for rule, picture in self._maps.items():
            picture.content = drawing.region_picture(
                self.study, rule, self.study.regions(rule, tau), self.study.agreement(rule, tau)
            )
        self._rewards.options.update(
            drawing.chart("mean reward over the regions", self._reward_lines, tau)
        )
        self._gaps.options.update(
            drawing.chart(
                "KL(Q‖Q′) at the input and its bounds", self._gap_lines, tau, logarithmic=True
            )
        )
        for each in (self._rewards, self._gaps):
            each.update()
