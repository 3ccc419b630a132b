"""The page of a report: opened in a browser, read back from its files; its size, and colours."""

import csv
import io
import itertools
import math
import os
import re
import shutil
import sys
import time
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest

from report_cases import make_run, sweep_toys, text_of, toy_task
from softq.errors import DataError, DependencyError, SoftqError
from softq.lab import report
from softq.lab.report import drawing
from softq.lab.report.content import to_csv
from softq.lab.tasks import TASKS
from softq.metrics import Interval

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A page of a sweep and of two runs, one of them unfinished."""
    folder = tmp_path_factory.mktemp("report")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TASKS, "toy", toy_task())
        sweep_toys(folder / "all" / "sweep")
        make_run(folder / "all" / "a")
        make_run(folder / "all" / "b", seed=1, finished=False)
        sections = report.read_sections(report.find_sources([folder / "all"]))
    out = folder / "page.html"
    return out, report.write_report(sections, out, title="softq against the paper")


# --- in a browser ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        pytest.skip("no Chromium or Chrome to open the report in")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.mark.parametrize("width", [1280, 360])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_in_a_browser(written, browser, tmp_path, scheme, width):
    out, _ = written
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, device_scale_factor=1
    )
    page = context.new_page()
    requests, troubles = [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: troubles.append(message.text))
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.goto(out.as_uri())
    page.wait_for_load_state("load")
    shown = page.eval_on_selector_all(
        ".drawing",
        """found => found.filter(one => one.checkVisibility() && one.getBoundingClientRect().width > 250).map(one => ({
            size: one.classList[1], alt: one.ariaLabel,
            ground: getComputedStyle(one.querySelector("path")).fill }))""",
    )
    assert shown
    ground = "rgb({}, {}, {})".format(*rgb(drawing.COLOURS["background"][scheme == "dark"]))
    for figure in shown:
        assert figure["size"] == ("phone" if width < drawing.PHONE_WIDTH else "wide")
        assert figure["ground"] == ground
        assert len(figure["alt"]) > 60
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert {url for url in requests if not url.startswith("data:")} == {out.as_uri()}
    assert troubles == []
    for folder in filter(None, (tmp_path, os.environ.get("SOFTQ_SCREENSHOTS"))):
        page.screenshot(path=Path(folder) / f"report-{scheme}-{width}.png", full_page=True)
    context.close()


def test_switch(written, browser):
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
    page = context.new_page()
    page.goto(written[0].as_uri())

    def ink():
        found = page.evaluate("getComputedStyle(document.body).color")
        return [int(number) for number in re.findall(r"\d+", found)]

    light, dark = map(rgb, drawing.COLOURS["ink"])
    assert ink() == light
    page.click("#scheme")
    assert ink() == dark
    page.emulate_media(media="print")
    assert ink() == light  # paper is white, whatever the screen was
    page.emulate_media(media="screen", color_scheme="dark")
    page.click("#scheme")
    assert ink() == light  # chosen by hand
    context.close()


# --- without one ----------------------------------------------------------------------------------------


class Structure(HTMLParser):
    """Ids, headings and everything that a browser might fetch."""

    VOID = ("meta", "link", "br", "img", "input")

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.headings, self.fetched, self.references = [], [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if tag not in self.VOID:
            self.open.append(tag)
        self.ids += [attrs["id"]] if "id" in attrs else []
        self.headings += [int(tag[1])] if re.fullmatch("h[1-6]", tag) else []
        self.fetched += [attrs[name] for name in ("src", "href", "srcset") if name in attrs]
        self.references += re.findall(r"url\(#([^)]*)\)", " ".join(map(str, attrs.values())))

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_structure(written):
    text = written[0].read_text("utf-8")
    found = Structure(text)
    assert len(set(found.ids)) == len(found.ids)
    assert found.headings[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(found.headings))
    # nothing but the page itself and data in it, which its policy enforces
    assert all(one.startswith(("#", "data:")) for one in found.fetched)
    assert {one[1:] for one in found.fetched if one.startswith("#")} <= set(found.ids)
    assert set(found.references) <= set(found.ids)
    assert "default-src 'none'" in text
    assert "nan" not in text_of(written[0]).lower().split()


def test_one_drawing_serves_both_schemes(written):
    text = written[0].read_text("utf-8")
    drawings = re.findall(r"<svg .*?</svg>", text, re.S)
    assert drawings
    for svg in drawings:
        assert not re.search(r"#[0-9a-f]{6}\b", svg.replace("url(#", ""))  # no colour of its own
        assert set(re.findall(r"var\(--(\w+)\)", svg)) <= drawing.COLOURS.keys()
    assert text.count('class="drawing wide"') == text.count('class="drawing phone"')


def test_files(written):
    out, paths = written
    assert paths[0] == out
    folder = out.parent / "page_files"
    assert set(folder.iterdir()) == set(paths[1:])
    names = {path.name for path in paths[1:]}
    for name in ("by-temperature", "learning-curves-parsing-uas"):
        assert {name + end for end in (".svg", "-dark.svg", ".png", ".csv")} <= names
    for path in paths:
        if path.suffix == ".svg":
            assert ElementTree.parse(path).getroot().tag.endswith("svg")  # noqa: S314
            assert "var(" not in path.read_text()
        if path.suffix == ".png":
            assert path.read_bytes().startswith(b"\x89PNG")
    text = out.read_text("utf-8")
    for name in ("temperatures", "runs", "by-temperature"):  # what is offered is what is beside it
        link = re.search(rf'href="data:text/csv;charset=utf-8,([^"]*)" download="{name}.csv"', text)
        assert unquote(link[1].replace("&#39;", "'")) == (folder / f"{name}.csv").read_text("utf-8")


def test_csv_reads_back():
    columns = [report.Column(*one) for one in (("name, with comma",), ("x", ".1f"), ("y", ".2f"))]
    rows = [
        ('a "quoted" name', 0.1 + 0.2, Interval(1 / 3, 0.25, 0.5)),
        ("b", None, None),
        ("c", math.nan, Interval(2.0)),
    ]
    read = list(csv.DictReader(io.StringIO(to_csv(report.Table("t", "T", columns, rows)))))
    assert list(read[0]) == ["name, with comma", "x", "y", "y low", "y high"]
    assert read[0]["name, with comma"] == 'a "quoted" name'
    assert (float(read[0]["x"]), float(read[0]["y"])) == (0.1 + 0.2, 1 / 3)
    assert [read[1][key] for key in ("x", "y", "y low")] == ["", "", ""]
    assert (read[2]["x"], read[2]["y"], read[2]["y high"]) == ("", "2.0", "")


def tiny_section(title="Tiny", name="tiny", **changes):
    def draw(canvas):
        (panel,) = canvas.panels(1, height=1.0, columns=1)
        line = drawing.Series(name, drawing.Look("blue"), [(0.0, 1.0), (1.0, 2.0)])
        canvas.lines(panel, [line])
        canvas.legend(panel, columns=1)

    columns = [report.Column("name"), report.Column("value", ".3f")]
    table = report.Table(name, "Numbers", columns, [(name, -1.5), ("none", None)])
    figure = report.Figure(name, "A line", "Rising.", "It rises.", draw, table)
    return report.Section(title, ["One paragraph."], [table, figure], **changes)


def test_the_same_results_give_the_same_bytes(tmp_path):
    # twice, once with settings of the user's own, which must not matter
    import matplotlib as mpl

    written = []
    own = {"xtick.direction": "in", "svg.fonttype": "path"}
    for folder, settings in (("a", {}), ("b", own)):
        with mpl.rc_context(settings):
            before = dict(mpl.rcParams)
            paths = report.write_report([tiny_section()], tmp_path / folder / "page.html")
            assert dict(mpl.rcParams) == before  # left as they were
        written.append({path.relative_to(tmp_path / folder): path.read_bytes() for path in paths})
    assert written[0] == written[1]


def test_names_are_text_everywhere(tmp_path):
    name = "<script>alert('x')</script> & \"$y$\""
    texts = {"warnings": [name], "recipe": name, "provenance": {name: name}}
    section = tiny_section(name, name, commands=[f"softq {name}"], **texts)
    paths = report.write_report([section, section], tmp_path / "page.html", title=name)
    page = paths[0].read_text(encoding="utf-8")
    assert page.count("<script") == 1  # its own
    assert page.count("&lt;script&gt;alert(") > 10
    names = [path.name for path in paths[1:]]
    assert len(set(names)) == len(names)
    pattern = r"script-alert-x-script-y(-\d)?(-dark)?\.(csv|svg|png)"
    assert all(re.fullmatch(pattern, one) for one in names)


def test_missing_values_and_signs(tmp_path):
    page = report.write_report([tiny_section()], tmp_path / "page.html")[0].read_text("utf-8")
    assert '<td class="number">−1.500</td>' in page
    assert '<td class="number">–</td>' in page
    with pytest.raises(DataError, match="table 't' has 1 columns, got a row of 2 values"):
        report.Table("t", "T", [report.Column("a")], [(1, 2)])


def test_a_long_table_is_cut_but_its_csv_is_not(tmp_path):
    rows = [(f"row {number}", number) for number in range(1000)]
    table = report.Table("long", "Long", [report.Column("name"), report.Column("n", "d")], rows)
    paths = report.write_report([report.Section("Long", [], [table])], tmp_path / "page.html")
    text = paths[0].read_text("utf-8")
    assert '<th scope="row">row 199</th>' in text
    assert '<th scope="row">row 200</th>' not in text
    assert "800 more rows" in text
    assert len(paths[1].read_text().splitlines()) == 1001


def test_a_report_replaces_the_last_one_whole_or_not_at_all(tmp_path, monkeypatch):
    out = tmp_path / "page.html"
    report.write_report([tiny_section()], out, title="first")

    def refuse(source, target):
        raise PermissionError(13, "Permission denied", str(target))

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refuse)
        match = r"cannot write the report to .*page\.html: Permission denied .*choose a folder"
        with pytest.raises(SoftqError, match=match):
            report.write_report([tiny_section()], out, title="second")
    assert "first" in out.read_text(encoding="utf-8")
    assert not [path for path in tmp_path.rglob(".*") if path.is_file()]
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(DataError, match="cannot write the report to"):
        report.write_report([], tmp_path / "file" / "page.html")


def test_without_matplotlib(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    match = r"figures need matplotlib.*pip install 'softq\[plot\]'"
    with pytest.raises(DependencyError, match=match):
        report.write_report([tiny_section()], tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []
    table_only = report.Section("Tables", [], tiny_section().parts[:1])
    assert report.write_report([table_only], tmp_path / "page.html")[0].is_file()


# --- two hundred runs -----------------------------------------------------------------------------------


def test_two_hundred_runs_make_a_small_page(tmp_path):
    objectives = [("ml", None), ("raml", 0.5), ("raml", 1.0), ("sqdml", 1.0)]
    for number in range(200):
        objective, tau = objectives[number % 4]
        finished = number != 7
        make_run(
            tmp_path / "runs" / f"run-{number}",
            seed=number,
            objective=objective,
            tau=tau,
            epochs=100,
            finished=finished,
        )
    sections = report.read_sections(report.find_sources([tmp_path / "runs"]))
    start = time.process_time()
    page = report.write_report(sections, tmp_path / "page.html")[0]
    assert page.stat().st_size < 1_000_000
    text = page.read_text("utf-8")
    Structure(text)
    assert time.process_time() - start < 60
    commands = [line for line in sections[0].commands if line.startswith("softq train ")]
    assert len(set(commands)) == 200
    assert text.count("Unfinished: run-7,") == 1


# --- drawing --------------------------------------------------------------------------------------------


def rgb(colour):
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]


def test_a_map_stands_upright():
    """Each class must lie in its own quarter of the picture.

    Class 0 above right, then clockwise.
    """
    import matplotlib.image

    classes = np.array([[2, 3], [1, 0]]).repeat(10, 0).repeat(10, 1)  # [x₀, x₁]

    def draw(canvas):
        (panel,) = canvas.panels(1, height=8.0, columns=1)
        canvas.region_map(panel, classes, "ML")

    pixels = matplotlib.image.imread(io.BytesIO(drawing.draw_png(draw)))
    height, width = pixels.shape[:2]
    for label, (x, y) in enumerate([(0.65, 0.35), (0.65, 0.65), (0.35, 0.65), (0.35, 0.35)]):
        found = np.round(pixels[int(y * height), int(x * width), :3] * 255).astype(int).tolist()
        assert found == rgb(drawing.COLOURS[f"class{label}"][0])


def test_labels_are_no_formulas_and_not_hidden():
    found = []

    def draw(canvas):
        (panel,) = canvas.panels(1, height=2.0, columns=1)
        for name in ("_private", "cost $x^$"):  # the second would not even parse
            canvas.lines(panel, [drawing.Series(name, drawing.Look("blue"), [(0, 1), (1, 2)])])
        canvas.legend(panel, columns=1)
        found.extend(text.get_text() for text in canvas.figure.legends[0].get_texts())

    drawing.draw_svg(draw, "labels", phone=False)
    assert found == ["private", r"cost \$x^\$"]


def contrast(first, second):
    """WCAG's ratio of two colours."""

    def luminance(colour):
        shares = (part / 255 for part in rgb(colour))
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in shares]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_contrast(dark):
    colours = {name: pair[dark] for name, pair in drawing.COLOURS.items()}
    for ground in (colours["background"], colours["panel"]):
        assert contrast(colours["ink"], ground) > 10
        assert contrast(colours["muted"], ground) > 4.5
        assert contrast(colours["accent"], ground) > 4.5
    hues = ("blue", "orange", "green", "purple", "brown")
    assert all(contrast(colours[hue], colours["background"]) > 4.5 for hue in hues)
    assert all(contrast(colours["ink"], colours[f"class{label}"]) > 4.5 for label in range(4))
