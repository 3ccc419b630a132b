"""The documentation as a site.

Built as strictly as `make docs` builds it, complete, and readable without a network.
"""

import ast
import html
import pkgutil
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytest.importorskip("sphinx", reason="Sphinx is not installed: pip install 'softq[docs]'")

ROOT = Path(__file__).parents[2]

# Packages whose exports the reference holds; modules that export nothing by name are public as a
# whole.
PUBLIC = [
    *(
        "softq",
        "softq.spaces",
        "softq.rewards",
        "softq.samplers",
        "softq.temperature",
        "softq.theory",
        "softq.nn",
    ),
    *(
        "softq.decode",
        "softq.neural",
        "softq.linear",
        "softq.linear.tagging",
        "softq.linear.uncertainty",
        "softq.linear.tagger_training",
        "softq.linear.parsing",
        "softq.linear.parser_training",
        "softq.linear.features",
        "softq.neural.images",
    ),
    *(
        "softq.metrics",
        "softq.calibration",
        "softq.conformal",
        "softq.lab.loop",
        "softq.lab.processes",
        "softq.lab.torch_learner",
        "softq.lab.sweep",
        "softq.errors",
        "softq.integrations.transformers",
    ),
    *(
        f"softq.formats.{name}"
        for name in (
            "conll",
            "tags",
            "conllu",
            "trees",
            "bitext",
            "captions",
            "rows",
            "text",
            "tokens",
            "vocabulary",
        )
    ),
    *(
        f"softq.annotators.{name}"
        for name in (
            "reliability",
            "agreement",
            "crowd",
            "tables",
            "known",
            "sequential",
            "truth",
            "heads",
        )
    ),
    "softq.linear.truth_loop",
    *(
        f"softq.lab.worlds.{name}"
        for name in ("entities", "trees", "languages", "scenes", "scene_pictures")
    ),
]
# What others than the library itself and its commands have no use for; some of it is documented for
# what it shares with them.
INTERNAL = {"checks", "cli", "explorer", "kernels", "numerics", "options", "report", "tasks"}
# Documented where softq exports them from.
BY_PARTS = {"objectives", "sentences", "targets"}
HELPERS = {
    f"softq.formats.conll.{name}" for name in ("Block", "clean_lines", "has_tabs", "split_blocks")
}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-E",
        "-W",
        "--keep-going",
        "-b",
        "html",
        "-d",
        out / "doctrees",
        "docs",
        out / "html",
    ]
    return out / "html", subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def site(built):
    return built[0]


def test_build_is_strict(built):
    assert built[1].stderr == ""
    assert built[1].returncode == 0


class Page:
    """What a page links to, what it loads, and which anchors it has."""

    def __init__(self, text):
        self.links, self.loaded, self.anchors = set(), set(), set()
        for tag, attributes in re.findall(r"<([a-z]\w*)(\s[^<>]*)>", text):
            for name, value in re.findall(
                r'\s(id|href|src|srcset|data|poster)="([^"]*)"', attributes
            ):
                found = self.anchors if name == "id" else self.links if tag == "a" else self.loaded
                found.add(html.unescape(value))


@pytest.fixture(scope="module")
def pages(site):
    return {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}


def test_every_page_is_there(site):
    sources = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    assert len(sources) > 20
    assert [str(path) for path in sources if not (site / path.with_suffix(".html")).is_file()] == []


def public_names(module):
    """What a module exports, or else all that it defines.

    Read and not imported, for some of it asks for much.
    """
    path = ROOT / "src" / module.replace(".", "/")
    tree = ast.parse(
        (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(
            encoding="utf-8"
        )
    )
    exported = []
    for node in ast.walk(tree):
        targets = (
            node.targets
            if isinstance(node, ast.Assign)
            else [node.target]
            if isinstance(node, ast.AugAssign)
            else []
        )
        if any(ast.unparse(target) == "__all__" for target in targets):
            exported += ast.literal_eval(node.value)
    defined = [
        node.name
        for node in tree.body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")
    ]
    return {f"{module}.{name}" for name in exported or defined} - HELPERS - set(PUBLIC)


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_documented(pages, module):
    anchors = {
        anchor
        for path, page in pages.items()
        if path.parent.name == "api"
        for anchor in page.anchors
    }
    names = public_names(module)
    assert names
    assert sorted(names - anchors) == []


def test_every_module_is_judged():
    """A new module of softq is either in the reference or said to be internal."""
    modules = {found.name for found in pkgutil.iter_modules([ROOT / "src" / "softq"])} - {
        "__main__"
    }
    named = {name.split(".")[1] for name in PUBLIC if "." in name}
    assert sorted(modules - named - INTERNAL - BY_PARTS) == []
    assert sorted((INTERNAL | BY_PARTS) & named) == []


def test_nothing_is_loaded_from_elsewhere(site, pages):
    loaded = {resource for page in pages.values() for resource in page.loaded}
    assert any(resource.startswith("_static") for resource in loaded)
    assert [resource for resource in sorted(loaded) if re.match(r"([a-z]+:)?//", resource)] == []
    for style in site.rglob("*.css"):
        assert not re.search(
            r"url\([\"']?(https?:)?//|@import", style.read_text(encoding="utf-8")
        ), style


def test_local_links_lead_somewhere(site, pages):
    broken, local = [], 0
    for path, page in pages.items():
        for target in page.links | page.loaded:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc or target == "#":
                continue
            local += 1
            there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            if not there.is_file() or (
                anchor and there in pages and anchor not in pages[there].anchors
            ):
                broken.append(f"{path.relative_to(site)}: {target}")
    assert local > 1000
    assert broken == []


def test_links_do_not_stand_in_links(site, pages):
    own = [path for path in pages if path.relative_to(site).parts[0] not in ("_modules", "source")]
    nested = re.compile(r"<a\s(?:(?!</a>).)*<a\s", re.DOTALL)
    assert [
        str(path.relative_to(site))
        for path in own
        if nested.search(path.read_text(encoding="utf-8"))
    ] == []


def test_markup_of_docstrings(site):
    """Formulae stay as they were written, code is code, and names are links."""
    text = (site / "api" / "targets.html").read_text(encoding="utf-8")
    assert "system-message" not in text
    assert not re.search(r"<p>[^<]*`", text)
    shown = (site / "math.html").read_text(encoding="utf-8")
    assert (
        '<div class="highlight-none notranslate"><div class="highlight"><pre><span></span>log P(y)'
        " = ⟨φ(y), s⟩ - log Z(s)" in shown
    )
    assert '<span class="gp">&gt;&gt;&gt; </span>' in shown
    assert 'href="_modules/softq/objectives.html"' in shown
    assert 'href="source/src/softq/kernels/spanning/cpu.py.html"' in shown
    card = (site / "api" / "spaces.html").read_text(encoding="utf-8")
    assert re.search(r'Inherited from <a [^>]*href="#softq.Distribution"', card)
    assert 'href="#softq.Distribution.log_prob"' in card


# --- in a browser ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if path is None:
        pytest.skip("no Chromium or Chrome to open the site in")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def opened(browser):
    context = browser.new_context(viewport={"width": 1280, "height": 900})
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
    yield page
    context.close()
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
    assert troubles == []


def test_search_on_the_disk(site, opened):
    opened.goto((site / "index.html").as_uri())
    opened.fill(".sidebar-search", "raml")
    opened.press(".sidebar-search", "Enter")
    opened.wait_for_selector(
        "#search-results .search-summary >> text=found"
    )  # results appear one by one until then
    found = opened.eval_on_selector_all(
        "#search-results li a", "links => links.map(link => link.getAttribute('href'))"
    )
    assert any(link.startswith("api/targets.html#softq.raml") for link in found)
    assert any(link.startswith("math.html") for link in found)
    opened.click("#search-results li a >> nth=0")
    assert opened.url.startswith((site / "api").as_uri())


@pytest.mark.parametrize(
    "name", ["captioning", "api/spaces", "source/recipes/index", "_modules/softq/targets"]
)
def test_pages_on_the_disk(site, opened, name):
    opened.goto((site / f"{name}.html").as_uri())
    pictures = opened.eval_on_selector_all(
        "main img, article img", "found => found.map(one => one.complete && one.naturalWidth > 0)"
    )
    assert all(pictures)
    assert bool(pictures) == (name == "captioning")
    assert opened.evaluate("document.documentElement.scrollWidth <= innerWidth")
