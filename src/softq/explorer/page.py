"""The page: a heading, and two sheets with controls on the left and results on the right."""

from __future__ import annotations

import math
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from nicegui import events, ui

from softq.errors import SoftqError
from softq.explorer.charts import BOUNDS, Line, chart, render
from softq.explorer.classes import (
    EXAMPLE,
    EXAMPLE_PROBABILITIES,
    RULES,
    ClassStudy,
    parse_probabilities,
    parse_table,
)
from softq.explorer.fields import Form, Temperature, number, temperature, whole
from softq.explorer.sentences import (
    MOST_CANDIDATES,
    OBJECTIVES,
    OF_NGRAMS,
    SAMPLERS,
    Objective,
    SentenceStudy,
    load_references,
    parse_references,
    write_references,
)
from softq.rewards.names import REWARDS

_STYLE = Path(__file__).with_name("style.css")
_SCHEMES = {"auto": None, "light": False, "dark": True}
_BUTTON = "outline no-caps dense padding='4px 12px'"
_LARGEST_FILE = 4_000_000  # bytes
_SORTS = {"raml": "RAML’s weight", "sqdml": "SQDML’s weight", "reward": "mean reward"}
_CURVES = {
    "mass on the references": "reference_mass",
    "entropy (nats)": "entropy",
    "expected reward": "expected_reward",
}
_MEAN_REWARD = "mean reward over the regions"
_GAP = "KL(Q‖Q′) at the input and its bounds"


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
                about = "RAML and SQDML side by side, computed by softq on this machine."
                ui.label(about).classes("note")
            ui.toggle(
                list(_SCHEMES),
                value="auto",
                on_change=lambda event: scheme.set_value(_SCHEMES[event.value]),
            ).props('dense no-caps flat aria-label="light or dark"')
        with ui.tabs().props("no-caps align=left dense").classes("tabs") as tabs:
            sheets: dict[ui.tab, Callable[[], _Sheet]] = {
                ui.tab("Sentences"): partial(SentenceSheet, text, study),
                ui.tab("Classes"): ClassSheet,
            }
        with ui.tab_panels(tabs, value=next(iter(sheets)), animated=False, keep_alive=True).classes(
            "panel"
        ):
            for tab, sheet in sheets.items():
                with ui.tab_panel(tab):
                    sheet()


def _note(text: str = "") -> ui.label:
    return ui.label(text).classes("note").props('role="status"')


class _Sheet(ABC):
    """A form, a temperature, and what a study of the form's values shows at it.

    A sheet adds fields to `_form` in the section of controls, and templates and charts to the
    section of results. Templates see the study, ``tau`` and the values of `_view`. While the form
    cannot be read, the results of the last study stay, in grey.

    Args:
        make: a study of the form's values.
        tau: the temperature to begin with.

    """

    _study: Any

    def __init__(self, make: Callable[..., Any], tau: float) -> None:
        self._make, self._form, self._view = make, Form(self._recompute), Form(self._show)
        self._html: dict[str, ui.html] = {}
        self._charts: dict[str, ui.echart] = {}
        with ui.element("div").classes("sheet"):
            self._controls = ui.element("section").classes("controls")
            self._results = ui.element("section").classes("results")
        with self._results:
            self._tau = Temperature(tau, self._show)

    @abstractmethod
    def _lines(self) -> dict[str, list[Line]]:
        """The curves of each chart, by its title."""

    def _add_html(self, template: str, label: str) -> None:
        """A template that is rendered at each temperature."""
        block = ui.html(sanitize=False).classes("scroll")  # templates escape what users typed
        self._html[template] = block.props(f'tabindex=0 role="region" aria-label="{label}"')

    def _add_charts(self, titles: Sequence[str]) -> None:
        """Charts over temperatures."""
        with ui.element("div").classes("charts"):
            self._charts = {title: ui.echart({}, renderer="svg") for title in titles}

    def _recompute(self) -> None:
        """A study of what the fields hold now, or messages beside those to blame."""
        study = self._form.build(self._make)
        self._results.classes(**{"add" if study is None else "remove": "stale"})
        if study is not None:
            self._study = study
            self._show_study()

    def _show_study(self) -> None:
        """Show a new study."""
        self._show()

    def _show(self) -> None:
        """Show the study at the present temperature."""
        view = {name: field.value for name, field in self._view.fields.items()}
        for template, block in self._html.items():
            block.content = render(template, study=self._study, tau=self._tau.value, **view)
        for title, lines in self._lines().items():
            options = chart(title, lines, self._tau.value, logarithmic=title == _GAP)
            self._charts[title].options.update(options)
            self._charts[title].update()


class SentenceSheet(_Sheet):
    """References and how to make candidates; the weights of both objectives.

    Args:
        text: the references to begin with.
        study: of these references.

    """

    def __init__(self, text: str, study: SentenceStudy) -> None:
        super().__init__(SentenceStudy, 0.2)
        self._study = study
        self._suggested: dict[Objective, float | str] = {}
        with self._controls:
            self._add_fields(text)
        with self._results:
            self._add_results()
        self._show_study()

    def _add_fields(self, text: str) -> None:
        self._references = self._form.text(
            "examples",
            "references",
            text,
            parse_references,
            hint=(
                "a sentence per line; several lines are references of one input, "
                "a blank line begins the next"
            ),
            rows=7,
        )
        upload = ui.upload(
            auto_upload=True,
            max_file_size=_LARGEST_FILE,
            on_upload=self._load,
            on_rejected=self._reject,
        )
        upload.classes("hidden-upload").props('aria-hidden="true" tabindex=-1')
        button = ui.button("load a file", color=None).props(_BUTTON)
        button.on("click", js_handler=f"() => getElement({upload.id}).pickFiles()")
        _note(
            "One input per line, its references between tabs, as softq theory --references "
            "reads it."
        )
        self._loaded = _note()
        rewards = {str(name): reward.title for name, reward in REWARDS.items()}
        self._form.choice("reward", "reward", rewards)
        sampler = self._form.choice("sampler", "candidates by", SAMPLERS)
        with ui.element("div").classes("pair"):
            self._form.text("size", "candidates per input", "100", whole(2, MOST_CANDIDATES))
            self._form.text("seed", "seed", "0", whole(0, 2**31 - 1))
            max_n = self._form.text("max_n", "longest n-gram", "4", whole(1, 20))
            draw_tau = self._form.text("draw_tau", "τ of the samples", "0.8", temperature)
        max_n.bind_visibility_from(sampler, "value", lambda name: name in OF_NGRAMS)
        draw_tau.bind_visibility_from(sampler, "value", lambda name: name not in OF_NGRAMS)
        self._form.text(
            "more_words",
            "more words to write with",
            "",
            lambda text: text.replace(",", " ").split(),
            hint="besides those of the references",
        )

    def _add_results(self) -> None:
        self._wanted = Form(self._show_study)
        with ui.element("div").classes("suggestions"):
            self._wanted.text(
                "mass",
                "mass to leave on the references",
                "0.5",
                number("a number between 0 and 1", math.ulp(0.0), math.nextafter(1.0, 0.0)),
            ).style("width: 15rem")
            self._buttons = {
                name: ui.button(color=None, on_click=partial(self._take, name)).props(_BUTTON)
                for name in OBJECTIVES
            }
        self._unmet = _note()
        self._add_html("facts", "targets")
        self._add_charts(list(_CURVES))
        _note(
            "Means over inputs. Vertical lines: the present τ, and dashed, those that leave "
            "the wanted mass."
        )
        with ui.element("div").classes("suggestions"):
            self._input = self._view.choice("example", "input", {0: "input 1"})
            self._view.choice("sort", "sorted by", _SORTS)
        self._add_html("candidates", "candidates")

    async def _load(self, event: events.UploadEventArguments) -> None:
        cast(ui.upload, event.sender).reset()
        name = Path(event.file.name).name  # chosen by the browser: shown, never used as a path
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "upload").with_suffix(Path(name).suffix)
            path.write_bytes(await event.file.read())
            try:
                examples = load_references(path)
            except SoftqError as error:
                self._references.error = str(error).replace(str(path), name)
                return
        self._references.value = write_references(examples)
        self._loaded.text = f"{len(examples)} inputs of {name}"

    def _reject(self) -> None:
        most = _LARGEST_FILE // 1_000_000
        self._references.error = f"expected a file of at most {most} MB, got a larger one"

    def _recompute(self) -> None:
        """Likewise; what was loaded is no longer what the field holds."""
        self._loaded.text = ""
        super()._recompute()

    def _show_study(self) -> None:
        """Likewise, with the inputs to choose from and the temperatures to suggest."""
        inputs = {one: f"input {one + 1}" for one in range(len(self._study.examples))}
        self._input.set_options(inputs, value=min(self._input.value or 0, len(inputs) - 1))
        self._input.visible = len(inputs) > 1
        mass = self._wanted.read("mass")
        if mass is not None:
            self._suggested = self._study.suggest(mass)
            for name, found in self._suggested.items():
                is_met = isinstance(found, float)
                self._buttons[name].enabled = is_met
                self._buttons[
                    name
                ].text = f"{OBJECTIVES[name]}: {f'τ = {found:.4g}' if is_met else 'none'}"
            self._unmet.text = "".join(
                f"{OBJECTIVES[name]}: {found}. "
                for name, found in self._suggested.items()
                if isinstance(found, str)
            )
            self._unmet.visible = bool(self._unmet.text)
        self._show()

    def _take(self, name: Objective) -> None:
        self._tau.field.value = f"{self._suggested[name]:.4g}"

    def _lines(self) -> dict[str, list[Line]]:
        """Both objectives, with the suggested temperatures."""
        marks = {name: found for name, found in self._suggested.items() if isinstance(found, float)}
        return {
            title: [
                Line(
                    OBJECTIVES[name],
                    f"--{name}",
                    [(point.tau, getattr(point, field)) for point in points],
                    dashed=name == "sqdml",
                    mark=marks.get(name),
                )
                for name, points in self._study.curves.items()
            ]
            for title, field in _CURVES.items()
        }


class ClassSheet(_Sheet):
    """A table of costs and an input; decisions, regions and bounds."""

    def __init__(self) -> None:
        super().__init__(
            lambda table, kind, p, chosen: ClassStudy(table, p, sorted(chosen)),  # kind: of table
            3.0,
        )
        self._labels: tuple[str, ...] = ()
        with self._controls:
            self._form.text(
                "table",
                "table",
                EXAMPLE,
                lambda text: parse_table(text, self._form.fields["kind"].value),
                hint=(
                    "rows: the decision; columns: the right answer; cells between tabs, commas or "
                    "spaces, names if you like"
                ),
                rows=6,
            ).props('input-class="table-cells"')
            kinds = {"costs": "costs, to be kept low", "rewards": "rewards"}
            self._form.add("kind", ui.radio(kinds, value="costs").props("dense inline"))
            self._probabilities = self._form.text(
                "p",
                "P(y|x) of an input",
                EXAMPLE_PROBABILITIES,
                lambda text: parse_probabilities(text, len(self._labels)),
                hint="one number for each class, such as 0.25 or 1/4",
            )
            self._chosen = self._form.choice("chosen", "classes to draw", {}, multiple=True)
            _note(
                "SQDML decides as the Bayes rule at any temperature. RAML comes closer to it as τ "
                "grows, and to likelihood (ML) as τ falls, where being right is best."
            )
        with self._results:
            self._add_html("classes", "classes")
            self._add_charts([_MEAN_REWARD, _GAP])
            self._add_html("bounds", "bounds")
        self._recompute()

    def _recompute(self) -> None:
        """Likewise, after the other fields have followed the classes of the table."""
        table = self._form.read("table")
        if table is not None and table.labels != self._labels:
            before, self._labels = len(self._labels), table.labels
            options = dict(enumerate(table.labels))
            if before and before != len(options):
                self._probabilities.value = " ".join([f"1/{len(options)}"] * len(options))
            self._chosen.set_options(options, value=list(options)[:3])
            self._chosen.visible = len(options) > 3
        super()._recompute()

    def _show_study(self) -> None:
        """Likewise; the slider follows the range of the rewards."""
        middle = self._study.middle
        self._tau.slider.props(f"min={middle - 2} max={middle + 2}")
        self._show()

    def _lines(self) -> dict[str, list[Line]]:
        """The mean reward of each rule, and the gap between the targets with its bounds."""
        curves = self._study.curves
        return {
            _MEAN_REWARD: [
                Line("RAML", "--raml", curves["raml"]),
                Line(RULES["bayes"], "--sqdml", curves["bayes"], dashed=True),
                Line("ML", "--muted", curves["ml"], dashed=True),
            ],
            _GAP: [
                Line(name, f"--bound-{field}", curves[field], dashed=field != "kl")
                for field, name in BOUNDS.items()
            ],
        }
