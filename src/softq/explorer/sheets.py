"""The two sheets of the page: controls on the left, results at a temperature on the right."""

from __future__ import annotations

import math
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from nicegui import events, ui

from softq.errors import SoftqError
from softq.explorer.charts import Line, chart, render
from softq.explorer.classes import (
    EXAMPLE,
    EXAMPLE_PROBABILITIES,
    RULES,
    ClassStudy,
    parse_probabilities,
    parse_table,
)
from softq.explorer.form import Form, Temperature, number, temperature, whole
from softq.explorer.sentences import (
    MOST_CANDIDATES,
    OBJECTIVES,
    SAMPLERS,
    Objective,
    SentenceStudy,
    load_references,
    parse_references,
    write_references,
)
from softq.rewards.names import REWARDS

_BUTTON = "outline no-caps dense padding='4px 12px'"
_LARGEST_FILE = 4_000_000  # bytes
_SHOWN = 25  # candidates in the table
_SORTS = {"raml": "RAML’s weight", "sqdml": "SQDML’s weight", "reward": "mean reward"}
_CURVES = {
    "mass on the references": "reference_mass",
    "entropy (nats)": "entropy",
    "expected reward": "expected_reward",
}
_MEAN_REWARD = "mean reward over the regions"
_GAP = "KL(Q‖Q′) at the input and its bounds"
_BOUNDS = {
    "kl": "KL(Q‖Q′), exact",
    "mean_kl": "mean of KL(Q‖q(·|Y))",
    "hoeffding": "min(R/τ, R²/8τ²)",
    "closed_form": "min(R/τ, R²/2τ²)",
    "theorem1": "Theorem 1, 2R/τ",
}


def _note(text: str = "") -> ui.label:
    return ui.label(text).classes("note").props('role="status"')


class _Sheet(ABC):
    """A form, a temperature, and what a study of the form's values shows at it.

    While the form cannot be read, the results of the last study stay, in grey. A sheet adds fields
    to `_form` in the section of controls, and to the section of results its temperature, templates
    and charts. It says what a study is made of, which curves it has and what templates need.
    """

    _study: Any
    _tau: Temperature

    def __init__(self) -> None:
        self._form = Form(self._recompute)
        self._html: dict[str, ui.html] = {}
        self._charts: dict[str, ui.echart] = {}
        with ui.element("div").classes("sheet"):
            self._controls = ui.element("section").classes("controls")
            self._results = ui.element("section").classes("results")

    @abstractmethod
    def _compute(self, values: dict[str, Any]) -> Any:
        """A study of the form's values."""

    @abstractmethod
    def _lines(self) -> dict[str, list[Line]]:
        """The curves of each chart, by its title."""

    @abstractmethod
    def _values(self, tau: float) -> dict[str, Any]:
        """What the templates show at a temperature."""

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
        values, study = self._form.read_all(), None
        try:
            study = values and self._compute(values)
        except SoftqError as error:
            name = getattr(error, "setting", next(iter(self._form.fields)))
            self._form.fields[name].error = str(error)
        self._results.classes(**{"add" if study is None else "remove": "stale"})
        if study is not None:
            self._study = study
            self._show_study()

    def _show_study(self) -> None:
        """Show a new study."""
        self._curves = self._lines()
        self._show()

    def _show(self) -> None:
        """Show the study at the present temperature."""
        values = self._values(self._tau.value)
        for template, block in self._html.items():
            block.content = render(template, **values)
        for title, picture in self._charts.items():
            lines, logarithmic = self._curves[title], title == _GAP
            picture.options.update(chart(title, lines, self._tau.value, logarithmic=logarithmic))
            picture.update()


class SentenceSheet(_Sheet):
    """References and how to make candidates; the weights of both objectives.

    Args:
        text: the references to begin with.
        study: of these references.

    """

    def __init__(self, text: str, study: SentenceStudy) -> None:
        super().__init__()
        self._study: SentenceStudy = study
        self._suggested: dict[Objective, float | str] = {}
        with self._controls:
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
            self._form.choice(
                "reward", "reward", {str(name): reward.title for name, reward in REWARDS.items()}
            )
            self._form.choice("sampler", "candidates by", SAMPLERS)
            with ui.element("div").classes("pair"):
                self._form.text("size", "candidates per input", "100", whole(2, MOST_CANDIDATES))
                self._form.text("seed", "seed", "0", whole(0, 2**31 - 1))
                self._max_n = self._form.text("max_n", "longest n-gram", "4", whole(1, 20))
                self._draw_tau = self._form.text("draw_tau", "τ of the samples", "0.8", temperature)
            self._draw_tau.visible = False
            self._form.text(
                "more_words",
                "more words to write with",
                "",
                lambda text: text.replace(",", " ").split(),
                hint="besides those of the references",
            )
        with self._results:
            self._tau = Temperature(0.2, self._show)
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
            self._view = Form(self._show)
            with ui.element("div").classes("suggestions"):
                self._input = self._view.choice("input", "input", {0: "input 1"})
                self._sort = self._view.choice("sort", "sorted by", _SORTS)
            self._add_html("candidates", "candidates")
        self._show_study()

    def _compute(self, values: dict[str, Any]) -> SentenceStudy:
        """Candidates and their rewards."""
        return SentenceStudy(**values)

    def _recompute(self) -> None:
        """Likewise, and show the fields of the sampler alone."""
        self._loaded.text = ""
        self._draw_tau.visible = self._form.fields["sampler"].value in ("hamming", "edit")
        self._max_n.visible = not self._draw_tau.visible
        super()._recompute()

    async def _load(self, event: events.UploadEventArguments) -> None:
        content = await event.file.read()
        cast(ui.upload, event.sender).reset()
        name = Path(event.file.name).name  # chosen by the browser: shown, never used as a path
        suffix = Path(name).suffix
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / ("upload" + (suffix if suffix in (".gz", ".xz") else ""))
            path.write_bytes(content)
            try:
                examples = load_references(path)
            except SoftqError as error:
                self._references.error = str(error).replace(str(path), name)
                return
        self._references.value = write_references(examples)
        self._loaded.text = f"{len(examples)} inputs of {name}"

    def _reject(self) -> None:
        self._references.error = (
            f"expected a file of at most {_LARGEST_FILE // 1_000_000} MB, got a larger one"
        )

    def _show_study(self) -> None:
        """Likewise, with the inputs to choose from and the temperatures to suggest."""
        count = len(self._study.examples)
        with self._view.quiet():
            inputs = {one: f"input {one + 1}" for one in range(count)}
            self._input.set_options(inputs, value=min(self._input.value or 0, count - 1))
        self._input.visible = count > 1
        mass = self._wanted.read("mass")
        if mass is not None:
            self._suggest(mass)
        super()._show_study()

    def _suggest(self, mass: float) -> None:
        self._suggested = self._study.suggest(mass)
        unmet = ""
        for name, found in self._suggested.items():
            there = isinstance(found, float)
            shown = f"τ = {found:.4g}" if there else "none"
            self._buttons[name].set_text(f"{OBJECTIVES[name]}: {shown}")
            self._buttons[name].set_enabled(there)
            unmet += "" if there else f"{OBJECTIVES[name]}: {found}. "
        self._unmet.text, self._unmet.visible = unmet, bool(unmet)

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

    def _values(self, tau: float) -> dict[str, Any]:
        """Targets, and candidates of the chosen input."""
        example = int(self._input.value or 0)
        rows = self._study.rows(example, tau, self._sort.value, _SHOWN)
        return {
            "points": self._study.at(tau),
            "names": OBJECTIVES,
            "rows": rows,
            "pieces": [self._study.pieces(example, row.number) for row in rows],
            "hidden": int(self._study.counted[example].sum()) - len(rows),
        }


class ClassSheet(_Sheet):
    """A table of costs and an input; decisions, regions and bounds."""

    def __init__(self) -> None:
        super().__init__()
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
            self._tau = Temperature(3.0, self._show)
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
            with self._form.quiet():
                if before and before != len(options):
                    self._probabilities.value = " ".join([f"1/{len(options)}"] * len(options))
                self._chosen.set_options(options, value=list(options)[:3])
            self._chosen.visible = len(options) > 3
        super()._recompute()

    def _compute(self, values: dict[str, Any]) -> ClassStudy:
        """Decisions under the table."""
        return ClassStudy(values["table"], values["p"], sorted(values["chosen"]))

    def _show_study(self) -> None:
        """Likewise; the slider follows the range of the rewards."""
        self._middle = round(math.log10(self._study.table.range))
        self._tau.slider.props(f"min={self._middle - 2} max={self._middle + 2}")
        super()._show_study()

    def _lines(self) -> dict[str, list[Line]]:
        """The mean reward of each rule, and the gap between the targets with its bounds."""
        study: ClassStudy = self._study
        taus = [10 ** (self._middle - 2 + step / 15) for step in range(61)]
        bayes, ml = study.mean_reward("bayes", 1.0), study.mean_reward("ml", 1.0)
        rows = study.bounds(taus)
        return {
            _MEAN_REWARD: [
                Line("RAML", "--raml", [(tau, study.mean_reward("raml", tau)) for tau in taus]),
                Line(RULES["bayes"], "--sqdml", [(tau, bayes) for tau in taus], dashed=True),
                Line("ML", "--muted", [(tau, ml) for tau in taus], dashed=True),
            ],
            _GAP: [
                Line(
                    name,
                    f"--bound-{field}",
                    [(row.tau, getattr(row, field)) for row in rows],
                    dashed=field != "kl",
                )
                for field, name in _BOUNDS.items()
            ],
        }

    def _values(self, tau: float) -> dict[str, Any]:
        """Decisions, regions and bounds."""
        study: ClassStudy = self._study
        return {
            "study": study,
            "point": study.at(tau),
            "rules": RULES,
            "bounds": _BOUNDS,
            "maps": {
                rule: (study.regions(rule, tau), study.agreement(rule, tau)) for rule in RULES
            },
        }
