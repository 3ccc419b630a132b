"""`softq explore` in a browser, as people use it, and the command.

With SOFTQ_SCREENSHOTS=FOLDER the pictures of docs/explorer.md are taken on the way.
"""

import contextlib
import gzip
import http.client
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner

from softq import cli
from softq.errors import DependencyError, RunError
from softq.explorer import classes, sentences, server

pytest.importorskip("nicegui", reason="NiceGUI is not installed")

pytestmark = pytest.mark.usefixtures("one_thread")

BAD = ("error", "warning")  # messages on the console
ONE_INPUT = "a cat sleeps on the warm mat\nthe cat is asleep on a mat\n"


@pytest.fixture(scope="module")
def study():
    return sentences.SentenceStudy(sentences.parse_references(sentences.EXAMPLE))


# --- in a browser ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """The command in a process of its own; it must leave cleanly when it is interrupted."""
    folder = tmp_path_factory.mktemp("explore")
    hidden = ("PYTEST", "NICEGUI")
    plain = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    command = [sys.executable, "-m", "softq", "explore", "--no-browser"]
    process = subprocess.Popen(
        command, cwd=folder, env=plain, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        told = process.stdout.readline()
        assert re.fullmatch(
            r"http://127\.0\.0\.1:\d+/\?key=[\w-]{43} \(Ctrl-C ends it\)\n", told
        ), process.stderr.read()
        yield told.split()[0]
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=10)
        assert (process.returncode, errors) == (0, "")
        assert list(folder.iterdir()) == []  # nothing is kept
    finally:
        process.kill()


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        pytest.skip("no Chromium or Chrome to open the page in")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@contextlib.contextmanager
def visit(browser, address, **options):
    """A page that has loaded.

    At the end, nothing was asked of another host and the console is clean.
    """
    context = browser.new_context(viewport={"width": 1280, "height": 1000}, **options)
    page = context.new_page()
    page.set_default_timeout(15_000)
    requests, troubles = [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("websocket", lambda socket: requests.append(socket.url.replace("ws://", "http://")))
    page.on("console", lambda told: troubles.append(told.text) if told.type in BAD else None)
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.goto(address)
    page.wait_for_selector("table.candidates")
    page.wait_for_selector(".charts svg text")
    yield page
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    context.close()
    assert troubles == []
    own = (address.partition("?")[0], "data:")
    assert [url for url in requests if not url.startswith(own)] == []


def fact(page, name):
    return float(page.text_content(f'[data-fact="{name}"]').replace("−", "-"))


def wait_for(page, name, value):
    text = f"{value:.4f}".replace("-", "−")
    page.wait_for_function(
        "([name, text]) => document.querySelector(`[data-fact='${name}']`)?.textContent === text",
        arg=[name, text],
    )


def take(page, name, **options):
    if folder := os.environ.get("SOFTQ_SCREENSHOTS"):
        page.mouse.move(0, 0)
        page.wait_for_timeout(600)  # until nothing moves
        page.screenshot(path=Path(folder) / name, **options)


def ask(address, path, **headers):
    """The status of the answer, its headers and its text."""
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=10)
    try:
        connection.request("GET", path, headers={"Host": parts.netloc} | headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()
    finally:
        connection.close()


def test_only_who_has_the_key_is_let_in(address):
    """Other users of the machine reach the port too.

    Without key or cookie they get neither page nor assets nor socket.
    """
    parts = urlsplit(address)
    status, headers, _ = ask(address, f"/?{parts.query}")
    assert (status, headers["location"]) == (303, "/")
    cookie = headers["set-cookie"].partition(";")[0]
    assert {"HttpOnly", "SameSite=lax"} <= set(headers["set-cookie"].split("; "))
    status, _, text = ask(address, "/", Cookie=cookie)
    assert status == 200
    asset = re.search(r'(/_nicegui/[^"]+\.js)"', text).group(1)
    assert ask(address, asset, Cookie=cookie)[0] == 200
    name = cookie.partition("=")[0]
    socket = "/_nicegui_ws/socket.io/?EIO=4&transport=polling"
    for path in ("/", "/?key=", "/?key=guess", asset, f"{asset}?{parts.query}", socket):
        for wrong in ({}, {"Cookie": f"{name}=guess"}, {"Cookie": f"{name}="}):
            status, _, text = ask(address, path, **wrong)
            assert (status, "sleeps" in text) == (403, False), path
            assert "the address that" in text


def test_no_other_name_or_origin_is_answered(address):
    """A page from elsewhere cannot reach this one, by its own name for this machine's address or by what a browser adds to its requests."""
    parts = urlsplit(address)
    cookie = ask(address, f"/?{parts.query}")[1]["set-cookie"].partition(";")[0]
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    }
    socket = "/_nicegui_ws/socket.io/?EIO=4&transport=websocket"
    own = {"Cookie": cookie, "Origin": f"http://{parts.netloc}"}
    assert ask(address, "/", **own)[0] == 200
    assert ask(address, "/", **own | {"Host": f"example.org:{parts.port}"})[0] == 400
    for origin in ("http://example.org", "http://127.0.0.1:1", "null"):
        foreign = own | {"Origin": origin}
        assert ask(address, "/", **foreign)[0] == 403
        assert ask(address, f"/?{parts.query}", **foreign)[0] == 403
        assert ask(address, socket, **foreign | upgrade)[0] == 403
    assert ask(address, socket, **upgrade)[0] == 403


def test_sentences(browser, address, study, tmp_path):
    """Type, move the slider, read the numbers, be refused, load a file."""
    with visit(browser, address) as page:
        wait_for(page, "raml-reference_mass", study.at(0.2)["raml"].reference_mass)
        page.locator(".nicegui-echart svg text", has_text="mass on the references").wait_for()
        take(page, "explorer-sentences.png")
        page.locator(".nicegui-echart").first.hover()
        page.locator(".nicegui-echart").first.get_by_text(
            "SQDML"
        ).wait_for()  # what the curves are where the mouse is

        slider = page.get_by_role("slider", name="temperature").locator("[tabindex='0']")
        slider.focus()
        for _ in range(5):
            slider.press("ArrowRight")
        field = page.get_by_label("temperature τ", exact=True)
        wait_for(
            page, "sqdml-entropy", study.at(0.224)["sqdml"].entropy
        )  # five steps of a hundredth of a decade
        assert field.input_value() == "0.224"

        page.get_by_label("references", exact=True).fill(ONE_INPUT)
        study = sentences.SentenceStudy(sentences.parse_references(ONE_INPUT))
        wait_for(page, "raml-reference_mass", study.at(0.224)["raml"].reference_mass)
        field.fill("0.05")
        wait_for(page, "raml-expected_reward", study.at(0.05)["raml"].expected_reward)
        best = study.rows(0, 0.05)[0]
        row = page.locator("table.candidates tbody tr").first
        assert row.locator("th").inner_text().replace(" reference", "").split() == best.words
        assert row.locator("td").all_inner_texts() == [
            f"{value:.4f}" for value in (best.reward, best.raml, best.sqdml)
        ]

        suggested = study.suggest(0.5)["sqdml"]
        page.get_by_role("button", name="SQDML").click()
        wait_for(page, "sqdml-reference_mass", 0.5)
        assert field.input_value() == f"{suggested:.4g}"

        field.fill("-1")
        page.get_by_text("expected a positive number from 1e-09 to 1e+08, got '-1'").wait_for()
        page.get_by_label("references", exact=True).fill("")
        page.get_by_text("expected at least one sentence, got none").wait_for()
        bad = tmp_path / "latin1.txt"
        bad.write_bytes("ein schöner Hund\n".encode("latin-1"))
        page.set_input_files("input[type=file]", bad)
        page.get_by_text("latin1.txt, line 1: expected UTF-8, got byte 0xf6").wait_for()
        good = tmp_path / "refs.tsv.gz"
        good.write_bytes(gzip.compress(b"a dog runs fast\tthe dog runs\na cat\n"))
        page.set_input_files("input[type=file]", good)
        page.get_by_text("2 inputs of refs.tsv.gz").wait_for()
        assert (
            page.get_by_label("references", exact=True).input_value()
            == "a dog runs fast\nthe dog runs\n\na cat\n"
        )
        assert page.locator(".stale").count() == 0


def test_classes(browser, address):
    """The other sheet, in the dark.

    Regions follow the slider, a bad table is refused, a better one is drawn; at last on a phone.
    """
    with visit(browser, address, color_scheme="dark") as page:
        page.get_by_role("tab", name="Classes").click()
        study = classes.ClassStudy(
            classes.parse_table(classes.EXAMPLE, "costs"),
            classes.parse_probabilities(classes.EXAMPLE_PROBABILITIES, 3),
        )
        page.wait_for_selector("figure svg polygon")
        assert page.locator("figure svg").count() == 3
        assert page.text_content('[data-fact="kl"]') == f"{study.at(3.0).row.kl:.4g}"
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(21, 24, 27)"
        take(page, "explorer-classes.png", full_page=True)
        panel = page.get_by_role("tabpanel")
        panel.get_by_label("temperature τ", exact=True).fill("12")
        page.get_by_text(
            f"as the Bayes rule on {study.agreement('raml', 12.0):.1%}".replace("%", " %")
        ).wait_for()
        panel.get_by_label("table", exact=True).fill("0 1\n2")
        page.get_by_text("line 2: expected 2 numbers, one for each of the 2 rows, got 1").wait_for()
        panel.get_by_label("table", exact=True).fill("fair fraud\n0 10\n1 0")
        page.wait_for_function("document.querySelectorAll('figure svg rect').length > 0")
        assert panel.get_by_label("P(y|x) of an input").input_value() == "1/2 1/2"
        panel.get_by_label("P(y|x) of an input").fill("0.8 0.1")
        page.get_by_text("expected probabilities that sum to one, got a sum of 0.9").wait_for()
        page.get_by_role("button", name="light").click()
        page.wait_for_function(
            "getComputedStyle(document.body).backgroundColor === 'rgb(253, 253, 251)'"
        )
        page.set_viewport_size({"width": 360, "height": 800})
        for name in ("Classes", "Sentences"):
            page.get_by_role("tab", name=name).click()
            page.wait_for_timeout(200)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


# --- the command ----------------------------------------------------------------------------------------


def run(*args):
    return CliRunner().invoke(
        cli.app, ["explore", *args], env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    )


def test_a_bad_file_is_one_line(tmp_path):
    path = tmp_path / "refs.txt"
    path.write_text("a dog\n\n")
    result = run("--references", str(path))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"softq: {path}, line 2: expected one or more sentences")
    assert result.stderr.count("\n") == 1


def test_a_port_that_is_taken():
    with server._listen(None) as taken:
        assert taken.getsockname()[0] == "127.0.0.1"
        port = taken.getsockname()[1]
        with pytest.raises(
            RunError,
            match=rf"cannot listen on port {port} of 127\.0\.0\.1: .*choose another --port",
        ):
            server._listen(port)


def test_without_nicegui(monkeypatch):
    monkeypatch.setitem(sys.modules, "nicegui", None)
    with pytest.raises(
        DependencyError, match=r"softq explore needs NiceGUI.*pip install 'softq\[explore\]'"
    ):
        server.serve(None, None, print, open_browser=False)


def test_the_command_serves(monkeypatch, tmp_path):
    """What is asked for is what is served; an interrupt is the usual end."""
    asked = []

    def serve(references, port, tell, *, open_browser):
        asked.append((references, port, open_browser))
        tell("http://127.0.0.1:1")
        raise KeyboardInterrupt

    monkeypatch.setattr("softq.explorer.server.serve", serve)
    result = run("--port", "8080", "--no-browser", "--references", "x.tsv")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "http://127.0.0.1:1 (Ctrl-C ends it)\n"
    assert asked == [(Path("x.tsv"), 8080, False)]
