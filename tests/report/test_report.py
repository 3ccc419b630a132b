"""The page of a report: opened in a browser, read back from its files; runs of any task, and colours."""

import base64
import csv
import dataclasses
import io
import itertools
import math
import os
import re
import shutil
import statistics
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from report_cases import SHORT, legend_of, make_regions, make_results, make_runs, part
from softq.errors import DataError, DependencyError, SoftqError
from softq.lab import report
from softq.lab.report import figures
from softq.lab.report import page as pages
from softq.metrics import Interval

COMMAND = "softq reproduce classification --scale small --out runs/classification"


@pytest.fixture(scope="module")
def results():
    return make_results()


@pytest.fixture(scope="module")
def written(results, tmp_path_factory):
    out = tmp_path_factory.mktemp("report") / "page.html"
    sections = [
        dataclasses.replace(report.classification_section(results), command=COMMAND),
        report.runs_section(make_runs(), command="softq report runs/*"),
    ]
    return out, report.write_report(sections, out, title="softq against the paper")


# --- in a browser ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
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
    page.on(
        "console",
        lambda message: (
            troubles.append(message.text) if message.type in ("error", "warning") else None
        ),
    )
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.goto(out.as_uri())
    page.wait_for_load_state("load")
    pictures = page.eval_on_selector_all(
        "figure img",
        """images => images.map(image => ({
            alt: image.alt, loaded: image.complete && image.naturalWidth > 0, source: image.currentSrc,
            shown: image.checkVisibility() && image.getBoundingClientRect().width > 250 }))""",
    )
    assert len(pictures) == 6
    assert all(
        picture["loaded"] and picture["shown"] and len(picture["alt"]) > 60 for picture in pictures
    )
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert_headings_in_order(page)
    style = next(
        s
        for s in (figures.LIGHT, figures.DARK, figures.LIGHT_PHONE, figures.DARK_PHONE)
        if (s.scheme, s.phone) == (scheme, width < 720)
    )
    for picture in pictures:  # the variant for this scheme and width was chosen
        svg = base64.b64decode(picture["source"].partition(",")[2]).decode()
        assert style.background in svg
        assert f'width="{style.width * 72:g}pt"' in svg
    assert {url for url in requests if not url.startswith("data:")} == {out.as_uri()}
    assert troubles == []
    for folder in filter(None, (tmp_path, os.environ.get("SOFTQ_SCREENSHOTS"))):
        page.screenshot(path=Path(folder) / f"report-{scheme}-{width}.png", full_page=True)
    context.close()


def assert_headings_in_order(page):
    levels = page.eval_on_selector_all(
        "h1, h2, h3, h4, h5, h6", "found => found.map(one => Number(one.tagName[1]))"
    )
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


def test_switch_and_copy(written, browser):
    out, _ = written
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
    page = context.new_page()
    page.goto(out.as_uri())

    def colours():
        source = page.eval_on_selector(
            "figure img", "async image => { await image.decode(); return image.currentSrc }"
        )
        return page.evaluate("getComputedStyle(document.body).color"), base64.b64decode(
            source.partition(",")[2]
        ).decode()

    def is_in(style):
        ink, svg = colours()
        return (
            ink == "rgb({}, {}, {})".format(*(int(style.ink[i : i + 2], 16) for i in (1, 3, 5)))
            and style.background in svg
        )

    assert is_in(figures.LIGHT)
    page.click("#scheme")
    assert is_in(figures.DARK)
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 680, "height": 1000})
    assert is_in(figures.LIGHT)  # paper is white, whatever the screen was
    assert (
        f'width="{figures.LIGHT.width * 72:g}pt"' in colours()[1]
    )  # and a sheet is not a phone, though about as narrow
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.emulate_media(media="screen")
    page.click("#scheme")
    assert is_in(figures.LIGHT)
    page.emulate_media(color_scheme="dark")
    assert is_in(figures.LIGHT)  # chosen by hand
    button = page.locator("button.copy").first
    button.click()
    # copied, or where the browser forbids that, selected
    page.wait_for_timeout(300)
    assert (
        button.text_content() == "Copied"
        or page.evaluate("getSelection().toString()").strip() == COMMAND
    )
    context.close()


def test_scripts_are_not_needed(written, browser):
    context = browser.new_context(
        viewport={"width": 360, "height": 900}, color_scheme="dark", java_script_enabled=False
    )
    page = context.new_page()
    page.goto(written[0].as_uri())
    assert not page.is_visible("#scheme")
    assert page.is_visible("figure img")
    context.close()


# --- the files ------------------------------------------------------------------------------------------


def read_csv(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_files(written):
    out, paths = written
    assert paths[0] == out
    assert all(path.is_file() for path in paths)
    folder = out.parent / "page_files"
    assert set(folder.iterdir()) == set(paths[1:])
    names = {path.name for path in paths[1:]}
    drawn = {
        "reward-by-temperature",
        "reward-by-wide-temperature",
        "reward-with-scaled-logits",
        "decision-regions",
        "gap-and-bounds",
    }
    drawn.add("learning-curves-ner-f1")
    tables = {
        "best-temperature",
        "population-agreement",
        "largest-temperature",
        "gain-over-ml",
        "runs",
    }
    assert names == {
        name + end for name in drawn for end in (".svg", "-dark.svg", ".png", ".csv")
    } | {f"{name}.csv" for name in tables}
    for path in paths:
        if path.suffix == ".svg":
            assert ElementTree.parse(path).getroot().tag.endswith("svg")  # noqa: S314
        if path.suffix == ".png":
            assert path.read_bytes().startswith(b"\x89PNG")


def test_csv_of_figures_holds_what_was_drawn(written, results):
    rows = read_csv(written[0].parent / "page_files" / "reward-by-temperature.csv")
    assert [float(row["τ"]) for row in rows] == SHORT
    for row in rows:
        tests = [
            c.test
            for c in results.cells
            if (c.sweep, c.objective, c.tau) == ("short", "raml", float(row["τ"]))
        ]
        assert float(row["RAML, test"]) == pytest.approx(statistics.fmean(tests), rel=1e-15)
        low, high = scipy.stats.t.interval(
            0.95, len(tests) - 1, statistics.fmean(tests), scipy.stats.sem(tests)
        )
        assert (float(row["RAML, test low"]), float(row["RAML, test high"])) == pytest.approx(
            (low, high), rel=1e-12
        )
        exact = next(one for one in results.population.rows if one.tau == float(row["τ"]))
        assert float(row["RAML, exact"]) == exact.reward_raml
        assert float(row["Bayes rule, validation"]) == results.bayes_dev
    gaps = read_csv(written[0].parent / "page_files" / "gap-and-bounds.csv")
    assert [float(row["KL(Q‖Q′), exact"]) for row in gaps] == [
        row.kl for row in sorted(results.population.rows)
    ]
    regions = read_csv(written[0].parent / "page_files" / "decision-regions.csv")
    ml = next(row for row in regions if row["Model"] == "ML")
    assert float(ml["As the Bayes rule"]) == pytest.approx(
        100 * np.mean(results.regions["ML"] == results.regions["Bayes rule"])
    )
    assert sum(float(ml[f"Class {label}"]) for label in range(4)) == pytest.approx(100)


def test_csv_reads_back():
    columns = [
        report.Column("name, with comma"),
        report.Column("x", ".1f"),
        report.Column("y", ".2f"),
    ]
    rows = [
        ('a "quoted" name', 0.1 + 0.2, Interval(1 / 3, 0.25, 0.5)),
        ("b", None, None),
        ("c", math.nan, Interval(2.0)),
    ]
    text = pages.to_csv(report.Table("t", "T", columns, rows))
    read = list(csv.DictReader(io.StringIO(text)))
    assert list(read[0]) == ["name, with comma", "x", "y", "y low", "y high"]
    assert (read[0]["name, with comma"], float(read[0]["x"]), float(read[0]["y"])) == (
        'a "quoted" name',
        0.1 + 0.2,
        1 / 3,
    )
    assert [read[1][key] for key in ("x", "y", "y low")] == ["", "", ""]
    assert (read[2]["x"], read[2]["y"], read[2]["y high"]) == ("", "2.0", "")


def tiny_section(title="Tiny", name="tiny", **changes):
    def draw(canvas):
        (panel,) = canvas.panels(1, height=1.0, columns=1)
        canvas.lines(panel, [figures.Series(name, figures.Look("blue"), [(0.0, 1.0), (1.0, 2.0)])])
        canvas.legend(panel, columns=1)

    table = report.Table(
        name,
        "Numbers",
        [report.Column("name"), report.Column("value", ".3f")],
        [(name, -1.5), ("none", None)],
    )
    return report.Section(
        title,
        ["One paragraph."],
        [table, report.Figure(name, "A line", "Rising.", "It rises.", draw)],
        **changes,
    )


def test_the_same_results_give_the_same_bytes(tmp_path):
    # twice, once with settings of the user's own, which must not matter
    import matplotlib as mpl

    regions = {
        title: found
        for title, found in make_regions(40).items()
        if title in ("Bayes rule", "ML", "RAML τ = 2.4 (best)")
    }
    regions["ML"][0, 0] = 0  # too small a region for a label
    results = make_results((), regions=regions)
    maps = report.Section(
        "Maps", [], [part(report.classification_section(results), "decision-regions")]
    )
    written = []
    for folder in ("a", "b"):
        with mpl.rc_context(
            {"xtick.direction": "in", "svg.hashsalt": None} if folder == "b" else {}
        ):
            before = dict(mpl.rcParams)
            paths = report.write_report([tiny_section(), maps], tmp_path / folder / "page.html")
            assert dict(mpl.rcParams) == before  # left as they were
        written.append({path.relative_to(tmp_path / folder): path.read_bytes() for path in paths})
    assert written[0] == written[1]


def test_names_are_text_everywhere(tmp_path):
    name = "<script>alert('x')</script> & \"$y$\""
    section = tiny_section(
        name,
        name,
        command=f"softq {name}",
        recipe=name,
        differences=[name],
        provenance={name: name},
    )
    paths = report.write_report([section, section], tmp_path / "page.html", title=name)
    page = paths[0].read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert page.count('<pre class="recipe" tabindex="0"><code>&lt;script&gt;alert(') == 2
    assert page.count("<script") == 1  # its own
    assert page.count("&lt;script&gt;alert(") > 10
    names = [path.name for path in paths[1:]]
    assert len(set(names)) == len(names)
    assert all(
        re.fullmatch(r"script-alert-x-script-y(-\d)?(-dark)?\.(csv|svg|png)", one) for one in names
    )


def test_missing_values_and_signs(tmp_path):
    page = report.write_report([tiny_section()], tmp_path / "page.html")[0].read_text(
        encoding="utf-8"
    )
    assert '<td class="number">−1.500</td>' in page
    assert '<td class="number">–</td>' in page
    assert "Copy" not in re.sub(
        r"<script>.*</script>", "", page, flags=re.DOTALL
    )  # there is no command to copy
    with pytest.raises(DataError, match="table 't' has 1 columns, got a row of 2 values"):
        report.Table("t", "T", [report.Column("a")], [(1, 2)])


def test_a_report_replaces_the_last_one_whole_or_not_at_all(tmp_path, monkeypatch):
    out = tmp_path / "page.html"
    report.write_report([tiny_section()], out, title="first")

    def refuse(source, target):
        raise PermissionError(13, "Permission denied", str(target))

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refuse)
        with pytest.raises(
            SoftqError,
            match=r"cannot write the report to .*page\.html: Permission denied .*choose a folder",
        ):
            report.write_report([tiny_section()], out, title="second")
    assert "first" in out.read_text(encoding="utf-8")
    assert not [path for path in tmp_path.rglob(".*") if path.is_file()]
    report.write_report([tiny_section()], out, title="second")
    assert "second" in out.read_text(encoding="utf-8")


def test_a_folder_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(
        DataError, match=r"cannot write the report to .*choose a folder that you may write to"
    ):
        report.write_report([], tmp_path / "file" / "page.html")


def test_without_matplotlib(monkeypatch, tmp_path):
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(
        DependencyError, match=r"figures need matplotlib.*pip install 'softq\[plot\]'"
    ):
        report.write_report([tiny_section()], tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []
    table_only = report.Section("Tables", [], tiny_section().parts[:1])
    assert report.write_report([table_only], tmp_path / "page.html")[0].is_file()


def test_a_map_stands_upright():
    """Class 0 belongs to the corner (1, 1), above right; its fill must lie there in the picture."""
    import matplotlib.image

    def draw(canvas):
        (panel,) = canvas.panels(1, height=3.42, columns=1)
        canvas.region_map(panel, make_regions(20)["ML"], "ML")

    pixels = matplotlib.image.imread(
        io.BytesIO(figures.render(draw, figures.LIGHT_PHONE, "png").content)
    )
    height, width = pixels.shape[:2]
    for label, (x, y) in enumerate(
        [(0.8, 0.3), (0.8, 0.75), (0.3, 0.75), (0.3, 0.3)]
    ):  # corners (1,1), (1,-1), (-1,-1), (-1,1)
        found = "#{:02x}{:02x}{:02x}".format(
            *np.round(pixels[int(y * height), int(x * width), :3] * 255).astype(int)
        )
        assert found == figures.LIGHT.classes[label]


def test_runs():
    runs = make_runs()
    section = report.runs_section(
        [
            *runs,
            report.RunSummary("x", "toy", "ml", None, 3, "accuracy", None, None, None, [], "", ""),
        ]
    )
    table, curves = section.parts  # the last has nothing to draw
    assert [row[0] for row in table.rows] == ["ner-ml", "ner-raml-0.2", "x"]
    assert table.rows[1][3:9] == (0.2, 0, "F1", 0.8604, 19, None)
    assert len(curves.numbers.rows) == 40
    assert curves.numbers.rows[0] == ("ner-ml", *runs[0].curve[0])
    assert "ner-ml rises from" in curves.alt
    assert section.intro[0].startswith("3 runs")


def test_many_runs_of_one_folder_are_told_apart():
    runs = [
        report.RunSummary(
            "_grid",
            "toy",
            objective,
            tau,
            seed,
            "reward",
            0.5,
            2,
            None,
            [(1, None, 0.25), (2, None, 0.5 + seed)],
            "h",
            "s",
        )
        for objective, tau in (("ml", None), ("raml", 0.5))
        for seed in range(4)
    ]
    curves = report.runs_section(runs).parts[1]
    assert {row[0] for row in curves.numbers.rows} >= {
        "_grid ml seed 0",
        "_grid raml τ = 0.5 seed 3",
    }
    assert "Runs of one objective look alike" in curves.caption
    labels, panels = legend_of(curves)
    assert labels == ["ml", "raml"]
    assert panels == ["Development reward"]  # no cross-entropy was measured


def test_labels_are_no_formulas_and_not_hidden():
    names = ["_private", "cost $x^$"]  # the second would not even parse
    runs = [
        report.RunSummary(
            name, "toy", "ml", None, 0, "m", 1.0, 1, 1.0, [(1, 1.0, 1.0), (2, 0.5, 2.0)], "h", "s"
        )
        for name in names
    ]
    labels, _ = legend_of(report.runs_section(runs).parts[1])
    assert labels == ["private", r"cost \$x^\$"]


# --- colours --------------------------------------------------------------------------------------------


def contrast(first, second):
    """WCAG's ratio of two colours."""

    def luminance(colour):
        linear = [
            c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
            for c in (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
        ]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("style", [figures.LIGHT, figures.DARK], ids=["light", "dark"])
def test_contrast(style):
    for background in (style.background, style.panel):
        assert contrast(style.ink, background) > 10
        assert contrast(style.muted, background) > 4.5
        assert contrast(style.accent, background) > 4.5
    assert all(contrast(hue, style.background) > 4.5 for hue in style.hues.values())
    assert all(contrast(style.ink, fill) > 4.5 for fill in style.classes)
