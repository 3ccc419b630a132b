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


class Sheet(ABC):
    """A form, a temperature, and what a study of the form's values shows at it.

    While the form cannot be read, the results of the last study stay, in grey. A sheet builds its
    controls and results, and says what a study is made of, which curves it has and what templates
    need.
    """

    study: Any
    tau: Temperature

    def __init__(self) -> None:
        self.form = Form(self.recompute)
        self._html: dict[str, ui.html] = {}
        self._charts: dict[str, ui.echart] = {}
        with ui.element("div").classes("sheet"):
            with ui.element("section").classes("controls"):
                self.build_controls()
            with ui.element("section").classes("results") as self._results:
                self.build_results()

    @abstractmethod
    def build_controls(self) -> None:
        """Add fields to the form."""

    @abstractmethod
    def build_results(self) -> None:
        """Add the temperature ``tau`` and what is shown at it."""

    @abstractmethod
    def compute(self, values: dict[str, Any]) -> Any:
        """A study of the form's values."""

    @abstractmethod
    def lines(self) -> dict[str, list[Line]]:
        """The curves of each chart, by its title."""

    @abstractmethod
    def values(self, tau: float) -> dict[str, Any]:
        """What the templates show at a temperature."""

    def add_html(self, template: str, label: str) -> None:
        """A template that is rendered at each temperature."""
        block = ui.html(sanitize=False).classes("scroll")  # templates escape what users typed
        self._html[template] = block.props(f'tabindex=0 role="region" aria-label="{label}"')

    def add_charts(self, titles: Sequence[str]) -> None:
        """Charts over temperatures."""
        with ui.element("div").classes("charts"):
            self._charts = {title: ui.echart({}, renderer="svg") for title in titles}

    def recompute(self) -> None:
        """A study of what the fields hold now, or messages beside those to blame."""
        values, study = self.form.read_all(), None
        try:
            study = values and self.compute(values)
        except SoftqError as error:
            name = getattr(error, "setting", next(iter(self.form.fields)))
            self.form.fields[name].error = str(error)
        self._results.classes(**{"add" if study is None else "remove": "stale"})
        if study is not None:
            self.study = study
            self.show_study()

    def show_study(self) -> None:
        """Show a new study."""
        self._lines = self.lines()
        self.show()

    def show(self) -> None:
        """Show the study at the present temperature."""
        values = self.values(self.tau.value)
        for template, block in self._html.items():
            block.content = render(template, **values)
        for title, picture in self._charts.items():
            lines, logarithmic = self._lines[title], title == _GAP
            picture.options.update(chart(title, lines, self.tau.value, logarithmic=logarithmic))
            picture.update()


class SentenceSheet(Sheet):
    """References and how to make candidates; the weights of both objectives.

    Args:
        text: the references to begin with.
        study: of these references.

    """

    def __init__(self, text: str, study: SentenceStudy) -> None:
        self.study: SentenceStudy = study
        self._text = text
        self._suggested: dict[Objective, float | str] = {}
        super().__init__()
        self.show_study()

    def build_controls(self) -> None:
        """References, reward and sampler."""
        self._references = self.form.text(
            "examples",
            "references",
            self._text,
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
        self.form.choice(
            "reward", "reward", {str(name): reward.title for name, reward in REWARDS.items()}
        )
        self.form.choice("sampler", "candidates by", SAMPLERS)
        with ui.element("div").classes("pair"):
            self.form.text("size", "candidates per input", "100", whole(2, MOST_CANDIDATES))
            self.form.text("seed", "seed", "0", whole(0, 2**31 - 1))
            self._max_n = self.form.text("max_n", "longest n-gram", "4", whole(1, 20))
            self._draw_tau = self.form.text("draw_tau", "τ of the samples", "0.8", temperature)
        self._draw_tau.visible = False
        self.form.text(
            "more_words",
            "more words to write with",
            "",
            lambda text: text.replace(",", " ").split(),
            hint="besides those of the references",
        )

    def build_results(self) -> None:
        """Temperature, suggestions, charts and the table of candidates."""
        self.tau = Temperature(0.2, self.show)
        self._wanted = Form(self.show_study)
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
        self.add_html("facts", "targets")
        self.add_charts(list(_CURVES))
        _note(
            "Means over inputs. Vertical lines: the present τ, and dashed, those that leave the "
            "wanted mass."
        )
        self._view = Form(self.show)
        with ui.element("div").classes("suggestions"):
            self._input = self._view.choice("input", "input", {0: "input 1"})
            self._sort = self._view.choice("sort", "sorted by", _SORTS)
        self.add_html("candidates", "candidates")

    def compute(self, values: dict[str, Any]) -> SentenceStudy:
        """Candidates and their rewards."""
        return SentenceStudy(**values)

    def recompute(self) -> None:
        """Likewise, and show the fields of the sampler alone."""
        self._loaded.text = ""
        self._draw_tau.visible = self.form.fields["sampler"].value in ("hamming", "edit")
        self._max_n.visible = not self._draw_tau.visible
        super().recompute()

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

    def show_study(self) -> None:
        """Likewise, with the inputs to choose from and the temperatures to suggest."""
        count = len(self.study.examples)
        with self._view.quiet():
            inputs = {one: f"input {one + 1}" for one in range(count)}
            self._input.set_options(inputs, value=min(self._input.value or 0, count - 1))
        self._input.visible = count > 1
        mass = self._wanted.read("mass")
        if mass is not None:
            self._suggest(mass)
        super().show_study()

    def _suggest(self, mass: float) -> None:
        self._suggested = self.study.suggest(mass)
        unmet = ""
        for name, found in self._suggested.items():
            there = isinstance(found, float)
            shown = f"τ = {found:.4g}" if there else "none"
            self._buttons[name].set_text(f"{OBJECTIVES[name]}: {shown}")
            self._buttons[name].set_enabled(there)
            unmet += "" if there else f"{OBJECTIVES[name]}: {found}. "
        self._unmet.text, self._unmet.visible = unmet, bool(unmet)

    def _take(self, name: Objective) -> None:
        self.tau.field.value = f"{self._suggested[name]:.4g}"

    def lines(self) -> dict[str, list[Line]]:
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
                for name, points in self.study.curves.items()
            ]
            for title, field in _CURVES.items()
        }

    def values(self, tau: float) -> dict[str, Any]:
        """Targets, and candidates of the chosen input."""
        example = int(self._input.value or 0)
        rows = self.study.rows(example, tau, self._sort.value, _SHOWN)
        return {
            "points": self.study.at(tau),
            "names": OBJECTIVES,
            "rows": rows,
            "pieces": [self.study.pieces(example, row.number) for row in rows],
            "hidden": int(self.study.counted[example].sum()) - len(rows),
        }


class ClassSheet(Sheet):
    """A table of costs and an input; decisions, regions and bounds."""

    def __init__(self) -> None:
        self._labels: tuple[str, ...] = ()
        super().__init__()
        self.recompute()

    def build_controls(self) -> None:
        """Table, probabilities and the classes to draw."""
        self.form.text(
            "table",
            "table",
            EXAMPLE,
            lambda text: parse_table(text, self.form.fields["kind"].value),
            hint=(
                "rows: the decision; columns: the right answer; cells between tabs, commas or "
                "spaces, names if you like"
            ),
            rows=6,
        ).props('input-class="table-cells"')
        kinds = {"costs": "costs, to be kept low", "rewards": "rewards"}
        self.form.add("kind", ui.radio(kinds, value="costs").props("dense inline"))
        self._probabilities = self.form.text(
            "p",
            "P(y|x) of an input",
            EXAMPLE_PROBABILITIES,
            lambda text: parse_probabilities(text, len(self._labels)),
            hint="one number for each class, such as 0.25 or 1/4",
        )
        self._chosen = self.form.choice("chosen", "classes to draw", {}, multiple=True)
        _note(
            "SQDML decides as the Bayes rule at any temperature. RAML comes closer to it as τ "
            "grows, and to likelihood (ML) as τ falls, where being right is best."
        )

    def build_results(self) -> None:
        """Temperature, decisions, regions, charts and bounds."""
        self.tau = Temperature(3.0, self.show)
        self.add_html("classes", "classes")
        self.add_charts([_MEAN_REWARD, _GAP])
        self.add_html("bounds", "bounds")

    def recompute(self) -> None:
        """Likewise, after the other fields have followed the classes of the table."""
        table = self.form.read("table")
        if table is not None and table.labels != self._labels:
            before, self._labels = len(self._labels), table.labels
            options = dict(enumerate(table.labels))
            with self.form.quiet():
                if before and before != len(options):
                    self._probabilities.value = " ".join([f"1/{len(options)}"] * len(options))
                self._chosen.set_options(options, value=list(options)[:3])
            self._chosen.visible = len(options) > 3
        super().recompute()

    def compute(self, values: dict[str, Any]) -> ClassStudy:
        """Decisions under the table."""
        return ClassStudy(values["table"], values["p"], sorted(values["chosen"]))

    def show_study(self) -> None:
        """Likewise; the slider follows the range of the rewards."""
        self._middle = round(math.log10(self.study.table.range))
        self.tau.slider.props(f"min={self._middle - 2} max={self._middle + 2}")
        super().show_study()

    def lines(self) -> dict[str, list[Line]]:
        """The mean reward of each rule, and the gap between the targets with its bounds."""
        study: ClassStudy = self.study
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

    def values(self, tau: float) -> dict[str, Any]:
        """Decisions, regions and bounds."""
        study: ClassStudy = self.study
        return {
            "study": study,
            "point": study.at(tau),
            "rules": RULES,
            "bounds": _BOUNDS,
            "maps": {
                rule: (study.regions(rule, tau), study.agreement(rule, tau)) for rule in RULES
            },
        }
