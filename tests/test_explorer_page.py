"""`softq explore` in a browser, as people use it, and without one, field by field.

With SOFTQ_SCREENSHOTS=FOLDER the pictures of docs/explorer.md are taken on the way.
"""

import asyncio
import contextlib
import gzip
import http.client
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.testing import CliRunner

from softq import cli
from softq.errors import DependencyError, RunError
from softq.explorer import classes, sentences, server

pytest.importorskip("nicegui", reason="NiceGUI is not installed")

from nicegui import ui
from nicegui.testing.user_simulation import user_simulation

from softq.explorer import fields
from softq.explorer.page import build

pytestmark = pytest.mark.usefixtures("one_thread")

ONE_INPUT = "a cat sleeps on the warm mat\nthe cat is asleep on a mat\n"


@pytest.fixture(scope="module")
def study():
    return sentences.SentenceStudy(sentences.SentenceSettings(sentences.parse_references(sentences.EXAMPLE)))


# --- in a browser ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """The command in a process of its own; it must leave cleanly when it is interrupted."""
    folder = tmp_path_factory.mktemp("explore")
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "NICEGUI"))}
    command = [sys.executable, "-m", "softq", "explore", "--no-browser"]
    process = subprocess.Popen(command, cwd=folder, env=plain, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # noqa: S603
    try:
        told = process.stdout.readline()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+ \(Ctrl-C ends it\)\n", told), process.stderr.read()
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
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("no Chromium or Chrome to open the page in")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@contextlib.contextmanager
def visit(browser, address, **options):
    """A page that has loaded; at the end, nothing was asked of another host and the console is clean."""
    context = browser.new_context(viewport={"width": 1280, "height": 1000}, **options)
    page = context.new_page()
    page.set_default_timeout(15_000)
    requests, troubles = [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("websocket", lambda socket: requests.append(socket.url.replace("ws://", "http://")))
    page.on("console", lambda message: troubles.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.goto(address)
    page.wait_for_selector("table.candidates")
    page.wait_for_selector(".charts svg text")
    yield page
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    context.close()
    assert troubles == []
    assert [url for url in requests if not url.startswith((address + "/", "data:"))] == []


def fact(page, name):
    return float(page.text_content(f'[data-fact="{name}"]').replace("−", "-"))


def wait_for(page, name, value):
    text = f"{value:.4f}".replace("-", "−")
    page.wait_for_function("([name, text]) => document.querySelector(`[data-fact='${name}']`)?.textContent === text", arg=[name, text])


def take(page, name, **options):
    if folder := os.environ.get("SOFTQ_SCREENSHOTS"):
        page.mouse.move(0, 0)
        page.wait_for_timeout(600)  # until nothing moves
        page.screenshot(path=Path(folder) / name, **options)


def test_no_other_name_is_answered(address):
    """A page from elsewhere cannot reach this one by giving its own name this machine's address."""
    port = int(address.rpartition(":")[2])
    for host, status in (("127.0.0.1", 200), ("example.org", 400)):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", "/", headers={"Host": f"{host}:{port}"})
        assert connection.getresponse().status == status
        connection.close()


def test_sentences(browser, address, study, tmp_path):
    """Type, move the slider, read the numbers, be refused, load a file."""
    with visit(browser, address) as page:
        wait_for(page, "raml-reference_mass", study.at(0.2)["raml"].reference_mass)
        page.locator(".nicegui-echart svg text", has_text="mass on the references").wait_for()
        take(page, "explorer-sentences.png")
        page.locator(".nicegui-echart").first.hover()
        page.locator(".nicegui-echart").first.get_by_text("SQDML").wait_for()  # what the curves are where the mouse is

        slider = page.get_by_role("slider", name="temperature").locator("[tabindex='0']")
        slider.focus()
        for _ in range(5):
            slider.press("ArrowRight")
        field = page.get_by_label("temperature τ", exact=True)
        wait_for(page, "sqdml-entropy", study.at(0.224)["sqdml"].entropy)  # five steps of a hundredth of a decade
        assert field.input_value() == "0.224"

        page.get_by_label("references", exact=True).fill(ONE_INPUT)
        study = sentences.SentenceStudy(sentences.SentenceSettings(sentences.parse_references(ONE_INPUT)))
        wait_for(page, "raml-reference_mass", study.at(0.224)["raml"].reference_mass)
        field.fill("0.05")
        wait_for(page, "raml-expected_reward", study.at(0.05)["raml"].expected_reward)
        best = study.rows(0, 0.05)[0]
        row = page.locator("table.candidates tbody tr").first
        assert row.locator("th").inner_text().replace(" reference", "").split() == best.words
        assert row.locator("td").all_inner_texts() == [f"{value:.4f}" for value in (best.reward, best.raml, best.sqdml)]

        suggested = study.suggest(0.5)["sqdml"]
        page.get_by_role("button", name="SQDML").click()
        wait_for(page, "sqdml-reference_mass", 0.5)
        assert field.input_value() == f"{suggested:.4g}"

        field.fill("-1")
        page.get_by_text("expected a positive number, got -1").wait_for()
        page.get_by_label("references", exact=True).fill("")
        page.get_by_text("expected at least one sentence, got none").wait_for()
        bad = tmp_path / "latin1.txt"
        bad.write_bytes("ein schöner Hund\n".encode("latin-1"))
        page.set_input_files("input[type=file]", bad)
        page.get_by_text("latin1.txt, line 1: the byte 0xf6 is not UTF-8 text").wait_for()
        good = tmp_path / "refs.tsv.gz"
        good.write_bytes(gzip.compress(b"a dog runs fast\tthe dog runs\na cat\n"))
        page.set_input_files("input[type=file]", good)
        page.get_by_text("2 inputs of refs.tsv.gz").wait_for()
        assert page.get_by_label("references", exact=True).input_value() == "a dog runs fast\nthe dog runs\n\na cat\n"
        assert page.locator(".stale").count() == 0


def test_classes(browser, address):
    """The other sheet, in the dark: regions follow the slider, a bad table is refused, a better one is drawn; at last on a phone."""
    with visit(browser, address, color_scheme="dark") as page:
        page.get_by_role("tab", name="Classes").click()
        study = classes.ClassStudy(
            classes.parse_table(classes.EXAMPLE, "costs"), classes.parse_probabilities(classes.EXAMPLE_PROBABILITIES, 3)
        )
        page.wait_for_selector("figure svg polygon")
        assert page.locator("figure svg").count() == 3
        assert page.text_content('[data-fact="kl"]') == f"{study.at(3.0).row.kl:.4g}"
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(21, 24, 27)"
        take(page, "explorer-classes.png", full_page=True)
        panel = page.get_by_role("tabpanel")
        panel.get_by_label("temperature τ", exact=True).fill("12")
        page.get_by_text(f"as the Bayes rule on {study.agreement('raml', 12.0):.1%}".replace("%", " %")).wait_for()
        panel.get_by_label("table", exact=True).fill("0 1\n2")
        page.get_by_text("line 2: expected 2 numbers, one for each of the 2 rows, got 1").wait_for()
        panel.get_by_label("table", exact=True).fill("fair fraud\n0 10\n1 0")
        page.wait_for_function("document.querySelectorAll('figure svg rect').length > 0")
        assert panel.get_by_label("P(y|x) of an input").input_value() == "1/2 1/2"
        panel.get_by_label("P(y|x) of an input").fill("0.8 0.1")
        page.get_by_text("expected probabilities that sum to one, got a sum of 0.9").wait_for()
        page.get_by_role("button", name="light").click()
        page.wait_for_function("getComputedStyle(document.body).backgroundColor === 'rgb(253, 253, 251)'")
        page.set_viewport_size({"width": 360, "height": 800})
        for name in ("Classes", "Sentences"):
            page.get_by_role("tab", name=name).click()
            page.wait_for_timeout(200)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


# --- field by field, without a browser ------------------------------------------------------------------


def in_a_loop(visit):
    """Run a visit in a thread of its own: playwright keeps a loop in this one."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: asyncio.run(visit())).result()


@contextlib.asynccontextmanager
async def simulated(study):
    """A visitor's page, and what finds its fields by their labels, those that are hidden too."""
    async with user_simulation(lambda: build(sentences.EXAMPLE, study)) as user:
        client = await user.open("/")

        def find(label):
            (found,) = (one for one in client.elements.values() if one.props.get("label") == label)
            return found

        yield user, find


def is_grey(field):
    """Whether results of the field's page are not of what its fields hold."""
    return any("stale" in one.classes for one in field.client.elements.values())


def text_of(user, css):
    return [one.content for one in user.find(ui.html).elements if css in one.content]


def test_every_field_refuses_beside_itself(study):
    refusals = {
        "references": {"": "at least one sentence", "dog dog": None, "w " * 101: "at most 100 words"},
        "candidates per input": {"x": "a whole number, got 'x'", "1": "from 2 to 20000", "3": "at least 4", "10001": "at most 10000 each"},
        "seed": {"-1": "from 0 to", "": "a whole number, got ''"},
        "longest n-gram": {"0": "from 1 to 20"},
        "mass to leave on the references": {"1": "between 0 and 1, got '1'", "much": "got 'much'"},
        "P(y|x) of an input": {"0.5 0.5": "expected 3 probabilities", "1 1 1": "a sum of 3"},
        "table": {"1 2\n3 nan": "line 2, column 2", "": "got none; paste one"},
    }

    async def type_all():
        async with simulated(study) as (_, find):
            for label, cases in refusals.items():
                field = find(label)
                before = field.value
                for text, message in cases.items():
                    field.value = text
                    if message is not None:
                        assert message in field.error
                    else:
                        assert "two different words" in find("more words to write with").error
                field.value = before
                assert field.error is None
            assert find("more words to write with").error is None

    in_a_loop(type_all)


def test_samplers_and_sorting(study):
    async def choose():
        async with simulated(study) as (user, find):
            sampler = find("candidates by")
            for name in ("hamming", "edit"):
                sampler.value = name
                assert find("τ of the draws").visible
                assert not find("longest n-gram").visible
            find("τ of the draws").value = "0"
            assert "as τ goes to 0, RAML becomes ML" in find("τ of the draws").error
            find("τ of the draws").value = "0.5"
            sampler.value = "recombined"
            assert find("longest n-gram").visible
            find("references").value = "one line\n\nanother line"
            assert "several references" in sampler.error
            sampler.value = "ngram"
            assert sampler.error is None
            find("input").value = 1
            find("sorted by").value = "reward"
            (table,) = text_of(user, "mean reward</th>")
            first = re.search(r"<tbody><tr><th[^>]*>(.*?)</th>", table).group(1)
            assert first.startswith("another line")
            find("references").value = "a single input"  # the second is gone, the first is shown
            assert find("input").value == 0
            assert not find("input").visible
            find("reward").value = "exact"
            find("mass to leave on the references").value = "0.001"
            buttons = [one.text for one in user.find(ui.button).elements]
            assert "RAML: none" in buttons
            assert "no temperature leaves a mass of 0.001" in " ".join(one.text for one in user.find(ui.label).elements)

    in_a_loop(choose)


def test_temperatures_move_together():
    async def move():
        moves = []
        async with user_simulation(lambda: moves.append(fields.Temperature(0.1, -2.0, 2.0, lambda: moves.append(moves[0].value)))) as user:
            await user.open("/")
            temperature = moves[0]
            (slider,) = user.find(ui.slider).elements
            slider.value = 1.0
            assert (temperature.value, temperature.field.value) == (10.0, "10")
            temperature.field.value = "0.5"
            assert slider.value == pytest.approx(math.log10(0.5))
            temperature.field.value = "1e5"  # beyond the slider
            assert (temperature.value, slider.value) == (1e5, 2.0)
            for text, message in {"warm": "got 'warm'", "nan": "positive number, got nan", "1e99": "from 1e-09 to 1e+15, got 1e99"}.items():
                temperature.field.value = text
                assert message in temperature.field.error
            temperature.set(0.123456)
            assert (temperature.field.value, temperature.field.error) == ("0.1235", None)
            temperature.scale(0.0, 4.0)
            assert (temperature.value, slider.value) == (0.1235, 0.0)
            assert moves[1:] == [10.0, 0.5, 1e5, 0.1235]

    in_a_loop(move)


def test_many_classes(study):
    async def paste():
        async with simulated(study) as (user, find):
            rows = ["a b c d e"] + [" ".join("0" if i == j else "1" for j in range(5)) for i in range(5)]
            find("table").value = "\n".join(rows)
            chosen = find("classes to draw")
            assert chosen.visible
            assert chosen.value == [0, 1, 2]
            assert find("P(y|x) of an input").value == "1/5 1/5 1/5 1/5 1/5"
            chosen.value = [1]
            assert "two or three different classes to draw, got 1" in chosen.error
            chosen.value = [3, 1]
            assert chosen.error is None
            assert len(text_of(user, "<rect")) == 3
            find("table").value = "1 2\n3 x"
            assert "got 'x'" in find("table").error
            (kind,) = user.find(ui.radio).elements
            kind.value = "rewards"
            assert find("table").error is not None
            find("P(y|x) of an input").value = "0.2 0.3 0.1 0.3 0.1"
            assert find("P(y|x) of an input").error is None
            assert is_grey(chosen)  # the table is still no table
            find("table").value = "1 2\n3 4"
            assert not is_grey(chosen)

    in_a_loop(paste)


def test_files_that_are_too_large(study):
    async def upload():
        async with simulated(study) as (user, find):
            (field,) = user.find(ui.upload).elements
            for listener in list(field._event_listeners.values()):
                if listener.type == "rejected":
                    listener.handler()
            assert "at most 4 MB" in find("references").error

    in_a_loop(upload)


# --- the command ----------------------------------------------------------------------------------------


def run(*args):
    return CliRunner().invoke(cli.app, ["explore", *args], env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"})


def test_help_teaches():
    told = run("--help").stdout
    for text in ("softq explore --references captions.tsv", "127.0.0.1", "--no-browser", "Bayes rule"):
        assert text in told


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
        with pytest.raises(RunError, match=rf"cannot listen on port {port} of 127\.0\.0\.1: .*choose another --port"):
            server._listen(port)


def test_without_nicegui(monkeypatch):
    monkeypatch.setitem(sys.modules, "nicegui", None)
    with pytest.raises(DependencyError, match=r"softq explore needs NiceGUI.*pip install 'softq\[explore\]'"):
        server.serve(None, None, print, open_browser=False)


def test_the_command_serves(monkeypatch, tmp_path):
    """What is asked for is what is served; an interrupt is the usual end."""
    asked = []

    def serve(references, port, tell, *, open_browser):
        asked.append((references, port, open_browser))
        tell("http://127.0.0.1:1")
        raise KeyboardInterrupt

    monkeypatch.setattr("softq.cli.explore_command.serve", serve)
    result = run("--port", "8080", "--no-browser", "--references", "x.tsv")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "http://127.0.0.1:1 (Ctrl-C ends it)\n", "")
    assert asked == [(Path("x.tsv"), 8080, False)]
