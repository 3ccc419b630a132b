"""Help on the command line.

A guide to every command and to every task, and how soon it is there.
"""

import re
import subprocess
import sys

import pytest
from typer.main import get_command

from documented import help_texts, read_blocks
from small_runs import softq
from softq import cli
from softq.cli import guides, recipes
from softq.lab.recipe import describe, flag_names
from softq.lab.tasks import TASKS

HELP = help_texts()
TRAINING = [name for name, listed in cli.COMMANDS.items() if listed.of_recipe]


def shown(*arguments):
    result = softq(*arguments, "--help")
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def panels(text):
    """The rows of each panel of a table of keys, by the table's name."""
    found = {}
    for title, body in re.findall(r"^╭─ \[(\w+)\].*?─╮\n(.*?)^╰", text, re.MULTILINE | re.DOTALL):
        found[title] = [line.strip("│ ") for line in body.splitlines() if line.startswith("│ --")]
    return found


def test_summaries_are_the_first_lines_of_commands():
    listed = shown()
    for name, (_, summary, _) in cli.COMMANDS.items():
        assert cli.load_command(name).help.splitlines()[0] == summary
        assert re.search(rf"│ {name} +{re.escape(summary)} ", listed)


@pytest.mark.parametrize("page", HELP)
def test_help_is_a_guide(page):
    text, words = HELP[page], page.split()
    assert softq(*words[1:], "--help").exit_code == 0
    examples = [line for block in read_blocks(text) for line in block.text.splitlines()]
    if words[1:] != ["explore"]:
        assert any(line.strip().startswith(page) for line in examples), (
            "an example begins with the command"
        )
    assert len(text.split("\n\n")) >= 3, "what it does, examples, and more"
    if words[1:] and words[1] not in ("bench", "explore") and page != "softq data":
        assert "**Next.**" in text


def test_no_arguments_are_a_question_for_help():
    assert "COMMAND [ARGS]" in softq().stdout
    assert "Did you mean 'train'?" in softq("tran").stderr


@pytest.mark.parametrize("command", TRAINING)
def test_help_of_a_command_lists_tasks_and_not_their_flags(command):
    text = shown(command)
    for task in TASKS:
        listed = bool(getattr(guides.GUIDES[task], command))
        assert (f"• {task}: {guides.GUIDES[task].one}" in text) == listed
    assert f"softq {command} TASK --help" in text
    assert "learning-rate" not in text.replace("--over learning-rate=", "")
    assert not panels(text)


@pytest.mark.parametrize(
    ("command", "task"),
    [(c, t) for c in TRAINING for t in TASKS if getattr(guides.GUIDES[t], c)],
)
def test_help_of_a_task_lists_a_flag_for_every_key(command, task):
    text = shown(command, task)
    tables, recipe = panels(text), TASKS[task].recipe_type
    known = flag_names(recipe)
    for section, name, _, explanation in describe(recipe()):
        of_grids = command != "train" and (
            section == "objective" or (section, name) == ("training", "seed")
        )
        flags = [row.split()[0][2:].replace("-", "_") for row in tables.get(section, ())]
        places = [known[flag][:2] for flag in flags]
        assert places.count((section, name)) == (0 if of_grids else 1)
        if not of_grids:
            assert explanation[:40] in tables[section][places.index((section, name))]
    assert text.index("Examples") < text.index("╭─ Options") < text.index("╭─ [data]")
    assert f"softq {command} {task} " in text


def test_help_of_a_recipe_shows_its_values(tmp_path):
    assert re.search(r"--hidden +8,8 +units of each hidden layer", shown("train", "classification"))
    assert re.search(r"--annotators +all +last columns", shown("sweep", "ner-crowd"))
    mine = tmp_path / "mine.toml"
    mine.write_text('task = "classification"\n[data]\ninputs = 7\n')
    assert re.search(r"--inputs +7 +training inputs", shown("train", "--seed", "3", mine))
    mine.write_text('task = "classification"\n[data]\ninput = 7\n')
    refused = softq("train", mine, "--help")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "did you mean 'inputs'?" in refused.stderr


def test_every_task_has_a_guide():
    assert set(guides.GUIDES) >= set(TASKS)
    for about in guides.GUIDES.values():
        assert (recipes.RECIPES.parent / about.page).is_file()


def loaded_by_help(*pages):
    """What pages of help say, and the modules that they import, in a process of its own."""
    program = (
        "import sys\nfrom softq.cli import app\n"
        "for page in sys.argv[1:]: app([*page.split(), '--help'], standalone_mode=False)\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *pages], capture_output=True, text=True, check=True
    )
    return done.stdout, set(done.stderr.split())


def test_help_does_not_wait_for_what_only_commands_need():
    text, loaded = loaded_by_help("")
    assert "Train structured predictors" in text
    assert "softq.cli" in loaded
    assert not {"softq.lab.tasks", "softq.lab.report", "softq.cli.train_command", "jinja2"} & loaded


def test_help_of_a_task_does_not_wait_for_torch():
    abouts = guides.GUIDES
    pages = [
        f"{command} {task}"
        for task in abouts
        for command in TRAINING
        if getattr(abouts[task], command)
    ]
    text, loaded = loaded_by_help(*pages)
    assert all(f"softq {page} " in text for page in pages)
    assert {
        f"softq.lab.tasks.{name}_recipe" for name in ("ner", "parsing", "sequence", "lm")
    } <= loaded
    assert not {"torch", "numba", "numpy", "transformers"} & loaded


def test_the_group_knows_every_command():
    group = get_command(cli.app)
    assert list(group.commands) == list(cli.COMMANDS)
