"""Every command and every block of code in README, docs and help texts runs, on small inputs."""

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import documented
import documented_files
import documented_scripts
from documented import DOCUMENTS, ROOT, Shell, pages, read_blocks
from softq.cli import bench_command, reproduction
from softq.cli import recipes as cli_recipes
from softq.explorer import server
from softq.lab.report import classification
from softq.lab.report import page as report_page
from softq.lab.sweep import parse_recipe
from softq.lab.tasks import TASKS

# what it covers is covered by tests that look at results; a third of the time is saved
pytestmark = [pytest.mark.no_cover, pytest.mark.usefixtures("one_thread")]
PAGES = pages()

NOT_RUN = {  # pattern of a command: why it is only looked at
    r"pip install ": "installs: what it names must be an extra of pyproject.toml",
    r"make \w": "takes minutes: what it names must be a target of the Makefile",
    r"(\w+=\w+ )?pytest ": "tests themselves: the file must be there",
    r"dask (scheduler|worker) ": "waits for work until it is stopped",
    r"softq data features .*--encoder (vgg16-fc7|timm:)": (
        "needs torchvision or timm, and weights from the network"
    ),
}


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    """Commands in small: recipes, reports, benchmarks and pages that would wait for a reader."""
    pytest.importorskip("matplotlib")
    recipes = documented.small_recipes(tmp_path_factory.mktemp("recipes"))
    drawn, draw_svg = {}, report_page.draw_svg

    def draw_once(draw, name, *, phone):
        code = getattr(draw, "func", draw).__code__  # of a partial function, that of its own
        if code not in drawn:
            drawn[code] = draw_svg(draw, name, phone=phone)
        return drawn[code]

    really_run, measured = subprocess.run, set()

    def run_benchmark(command, **options):
        path, flags = Path(command[1]), command[2:]
        if path.parent != ROOT / "benchmarks":
            return really_run(command, **options)
        work = (path.stem, "--data" in flags)  # once; with other flags, a script has to accept them
        with documented_scripts.replaced(subprocess, run=really_run):
            known = (
                work in measured and "--plot" not in flags
            ) or path.stem not in documented_scripts.BENCHMARKS
            sys.stdout.write(
                documented_scripts.run_benchmark(
                    path.stem, flags, documented.run_softq, read_only=known
                )
            )
        measured.add(work)
        return subprocess.CompletedProcess(command, 0)

    with pytest.MonkeyPatch.context() as patch:
        for module in (cli_recipes, reproduction):
            patch.setattr(module, "RECIPES", recipes)
        for name, size in (("FINE_GRID", 20), ("COARSE_GRID", 20), ("REGION_GRID", 12)):
            patch.setattr(classification, name, size)
        patch.setattr(report_page, "draw_svg", draw_once)
        patch.setattr(report_page, "draw_png", lambda draw: b"")
        patch.setattr(bench_command.subprocess, "run", run_benchmark)
        patch.setattr(server, "serve", lambda *_, **__: None)
        classification._population.cache_clear()
        yield Shell(tmp_path_factory.mktemp("pages"))
    classification._population.cache_clear()


@pytest.mark.parametrize("page", PAGES)
def test_commands_run(shell, page, monkeypatch):
    folder = shell.folder(page)
    monkeypatch.chdir(folder)
    for line in PAGES[page]:
        if not any(re.match(pattern, line) for pattern in NOT_RUN):
            shell.run(line, folder)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("softq theory --tua 1", "No such option"),
        ("softq train ner --train train.conll --epoch 1", "there is no flag --epoch"),
        ("softq predict runs/nowhere new.conll", "runs/nowhere is not a model"),
        ("softq bench core --round 3", "No such option"),
        ("softq train ner --train train.conll --dry-run --out runs/none", "there is no runs/none"),
        ("cargo run", "expected softq or python, got cargo"),
        (
            "python examples/biaffine.py --train train.conllu --dev dev.conllu --tua 1",
            "unrecognized arguments",
        ),
    ],
)
def test_wrong_commands_are_found(shell, line, text, monkeypatch, capsys):
    folder = shell.folder("wrong")
    monkeypatch.chdir(folder)
    with pytest.raises((AssertionError, SystemExit)) as failure:
        shell.run(line, folder)
    assert text in str(failure.value) + capsys.readouterr().err


def test_every_command_is_run_or_looked_at():
    lines = [line for commands in PAGES.values() for line in commands]
    unused = [pattern for pattern in NOT_RUN if not any(re.match(pattern, line) for line in lines)]
    assert not unused, f"no page has a command like {unused}"
    for pattern in [*documented.REPLACED, *(pattern for pattern, _ in documented.SMALL)]:
        assert any(re.search(pattern, line) for line in lines), (
            f"no page has a command like {pattern}"
        )
    for pattern, kind in documented_files.KINDS:
        words = {name for line in lines for word in shlex.split(line) for name in word.split(",")}
        assert any(re.fullmatch(pattern, word) for word in words), (
            f"no page names a file like {pattern}, which is {kind}"
        )


def test_extras_targets_and_tests_that_documents_name_exist():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    texts = [path.read_text("utf-8") for path in DOCUMENTS] + list(documented.help_texts().values())
    for text in texts:
        for extras in re.findall(r"(?:softq|\.)\[([a-z,]+)\]", text):
            assert set(extras.split(",")) <= set(project["optional-dependencies"]), extras
        for target in re.findall(r"^make (\w+)|`(?:\w+=\S+ )?make (\w+)`", text, re.MULTILINE):
            assert "".join(target) in targets, target
        for name in re.findall(r"\bpytest (\S+\.py)", text):
            assert (ROOT / name).is_file(), name


def test_python_blocks_are_doctests_and_recipes_are_read():
    grids = 0
    for path in DOCUMENTS:
        for language, text, line in read_blocks(path.read_text("utf-8")):
            where = f"{path.relative_to(ROOT)}, line {line}"
            if language == "python" and path.name == "CONTRIBUTING.md":
                continue  # a whole task, which tests/lab/test_own_task.py runs
            if language == "python":
                assert text.lstrip().startswith(">>>"), f"{where}: only examples with >>> are run"
            elif language == "toml":
                table = tomllib.loads(text)
                parse_recipe(TASKS[table.get("task", "classification")], table, where)
                grids += 1
            else:
                assert language in ("sh", "text") or language.startswith("{"), (
                    f"{where}: nothing runs a block of {language or 'no language'}"
                )
    assert grids


def test_doctests_cover_the_documents():
    options = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["pytest"][
        "ini_options"
    ]
    assert "--doctest-glob=*.md" in options["addopts"]
    assert {"README.md", "docs"} <= set(options["testpaths"])
