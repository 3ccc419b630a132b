"""The page's sheet of sentences: references and choices on the left; temperatures, curves and candidates on the right."""

from __future__ import annotations

import math
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, cast, get_args

from nicegui import events, ui

from softq.errors import SoftqError
from softq.explorer import drawing
from softq.explorer.fields import (
    Temperature,
    choice,
    grey,
    parse_mass,
    parse_tau,
    parse_whole,
    read,
    text_area,
    text_field,
)
from softq.explorer.sentences import (
    MOST_CANDIDATES,
    TAUS,
    Objective,
    SentenceSettings,
    SentenceStudy,
    SettingError,
    SortKey,
    load_references,
    parse_references,
    write_references,
)
from softq.rewards.names import REWARDS

_REWARDS = {str(name): reward.title for name, reward in REWARDS.items()}
_SAMPLERS = {
    "ngram": "n-gram replacement",
    "hamming": "draws by Hamming distance",
    "edit": "draws by edit distance",
    "recombined": "recombined references",
}
_SORTS = {"raml": "RAML’s weight", "sqdml": "SQDML’s weight", "reward": "mean reward"}
_CHARTS = {
    "reference_mass": "mass on the references",
    "entropy": "entropy (nats)",
    "expected_reward": "expected reward",
}
_SHOWN = 25  # candidates in the table
_LARGEST_FILE = 4_000_000  # bytes


class SentenceTab:
    """Builds the sheet where it is made; ``text`` are the references to begin with, ``study`` what is known of them."""

    def __init__(self, text: str, study: SentenceStudy) -> None:
        self.study = study
        self._suggested: dict[Objective, float | str] = {}
        with ui.element("div").classes("sheet"):
            with ui.element("section").classes("controls"):
                self._build_controls(text)
            with ui.element("section").classes("results") as self._results:
                self._build_results()
        self._show_study()

    def _build_controls(self, text: str) -> None:
        hint = "a sentence per line; several lines are references of one input, a blank line begins the next"
        self._references = text_area("references", text, self._recompute, rows=7, hint=hint)
        upload = ui.upload(
            auto_upload=True,
            max_file_size=_LARGEST_FILE,
            on_upload=self._load,
            on_rejected=self._reject,
        )
        upload.classes("hidden-upload").props('aria-hidden="true" tabindex=-1')
        load = ui.button("load a file", color=None).props(
            "outline no-caps dense padding='4px 12px'"
        )
        load.on("click", js_handler=f"() => getElement({upload.id}).pickFiles()")
        ui.html(
            "One input per line, its references between tabs, as <code>softq theory --references</code> reads it.",
            sanitize=False,
        ).classes("note")
        self._loaded = ui.label().classes("note").props('role="status"')
        self._fields: dict[str, Any] = {"references": self._references}
        self._fields["reward"] = choice("reward", _REWARDS, self._recompute)
        self._fields["sampler"] = choice("candidates by", _SAMPLERS, self._choose_sampler)
        with ui.element("div").classes("pair"):
            self._fields["size"] = text_field("candidates per input", "100", self._recompute)
            self._fields["seed"] = text_field("seed", "0", self._recompute)
            self._fields["max_n"] = text_field("longest n-gram", "4", self._recompute)
            self._fields["draw_tau"] = text_field("τ of the draws", "0.8", self._recompute)
        self._fields["draw_tau"].visible = False
        self._fields["more_words"] = text_field(
            "more words to write with", "", self._recompute, hint="beside those of the references"
        )

    def _build_results(self) -> None:
        self._tau = Temperature(0.2, math.log10(TAUS[0]), math.log10(TAUS[-1]), self._show_tau)
        with ui.element("div").classes("suggestions"):
            self._mass = text_field("mass to leave on the references", "0.5", self._suggest).style(
                "width: 15rem"
            )
            self._buttons = {
                name: ui.button(color=None, on_click=partial(self._take, name)).props(
                    "outline no-caps dense padding='4px 12px'"
                )
                for name in get_args(Objective)
            }
        self._unmet = ui.label().classes("note").props('role="status"')
        self._facts = ui.html(sanitize=False).classes("scroll")
        with ui.element("div").classes("charts"):
            self._charts = {field: ui.echart({}, renderer="svg") for field in _CHARTS}
        ui.label(
            "Means over inputs. Upright: the present τ, and dashed, those that leave the wanted mass."
        ).classes("note")
        with ui.element("div").classes("between"):
            self._heading = ui.html(tag="h2", sanitize=False)
            with ui.element("div").classes("suggestions").style("width: auto"):
                self._input = choice("input", {0: "input 1"}, self._show_tau).style(
                    "min-width: 8rem"
                )
                self._sort = choice("sorted by", _SORTS, self._show_tau).style("min-width: 10rem")
        self._table = (
            ui.html(sanitize=False)
            .classes("scroll")
            .props('tabindex=0 role="region" aria-label="candidates"')
        )

    # --- what people do ---------------------------------------------------------------------------------

    def _choose_sampler(self) -> None:
        by_distance = self._fields["sampler"].value in ("hamming", "edit")
        self._fields["draw_tau"].visible, self._fields["max_n"].visible = (
            by_distance,
            not by_distance,
        )
        self._recompute()

    def _recompute(self) -> None:
        """New candidates and rewards, or messages where the settings do not allow them; then the old results are greyed."""
        self._loaded.text = ""
        settings = self._read_settings()
        try:
            if settings is not None:
                self.study = SentenceStudy(settings)
        except SettingError as error:
            self._fields[error.setting].error = str(error)
            settings = None
        except SoftqError as error:
            self._references.error = str(error)
            settings = None
        grey(self._results, settings is None)
        if settings is not None:
            self._show_study()

    def _read_settings(self) -> SentenceSettings | None:
        fields = self._fields
        examples = read(fields["references"], parse_references)
        size = read(fields["size"], parse_whole(2, MOST_CANDIDATES))
        seed = read(fields["seed"], parse_whole(0, 2**31 - 1))
        max_n = read(fields["max_n"], parse_whole(1, 20))
        draw_tau = read(fields["draw_tau"], parse_tau)
        fields["sampler"].error = fields["more_words"].error = None
        if examples is None or size is None or seed is None or max_n is None or draw_tau is None:
            return None
        words = str(fields["more_words"].value or "").replace(",", " ").split()
        return SentenceSettings(
            examples,
            words,
            fields["reward"].value,
            fields["sampler"].value,
            size,
            max_n,
            draw_tau,
            seed,
        )

    async def _load(self, event: events.UploadEventArguments) -> None:
        content = await event.file.read()
        cast(ui.upload, event.sender).reset()
        with tempfile.TemporaryDirectory() as folder:
            name = Path(
                event.file.name
            ).name  # the browser's word: to be shown, and no name for a file here
            suffix = Path(name).suffix
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

    def _suggest(self) -> None:
        mass = read(self._mass, parse_mass)
        if mass is None:
            return
        self._suggested = self.study.suggest(mass)
        reasons = []
        for name, found in self._suggested.items():
            title = drawing.NAMES[name]
            there = isinstance(found, float)
            self._buttons[name].set_text(f"{title}: τ = {found:.4g}" if there else f"{title}: none")
            self._buttons[name].set_enabled(there)
            if not there:
                reasons.append(f"{title}: {found}.")
        self._unmet.text = " ".join(reasons)
        self._unmet.visible = bool(reasons)
        self._show_charts()

    def _take(self, name: Objective) -> None:
        found = self._suggested[name]
        if isinstance(found, float):
            self._tau.set(found)

    # --- what they see ----------------------------------------------------------------------------------

    def _show_study(self) -> None:
        count = len(self.study.settings.examples)
        number = min(int(self._input.value or 0), count - 1)
        self._input.set_options({one: f"input {one + 1}" for one in range(count)}, value=number)
        self._input.visible = count > 1
        self._suggest()
        self._show_tau()

    def _show_tau(self) -> None:
        tau, example = self._tau.value, int(self._input.value or 0)
        self._facts.content = drawing.facts_table(self.study.at(tau))
        rows = self.study.rows(example, tau, cast(SortKey, self._sort.value), _SHOWN)
        pieces = [self.study.pieces(example, row.number) for row in rows]
        count = int(self.study.counted[example].sum())
        self._heading.content = f"{count} candidates"
        self._table.content = drawing.candidate_table(rows, pieces, count - len(rows))
        self._show_charts()

    def _show_charts(self) -> None:
        marks = {
            name: found if isinstance(found, float) else None
            for name, found in self._suggested.items()
        }
        for field, title in _CHARTS.items():
            options = drawing.chart(
                title, drawing.sentence_lines(field, self.study.curves, marks), self._tau.value
            )
            self._charts[field].options.update(options)
            self._charts[field].update()
