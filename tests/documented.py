"""The commands that documents and help texts show: found, made small, and run."""

import dataclasses
import re
import shlex
import shutil
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from typer.main import get_command
from typer.testing import CliRunner

import captioning_runs
import documented_files
import documented_scripts
import parsing_runs
import small_runs
import translation_runs
from softq import cli
from softq.cli import guides, recipes
from softq.lab.sweep.grids import sweep_toml

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

_TASKS = {  # flags that make a task small
    "classification": [*small_runs.SMALL, "--epochs", 1],
    "captioning": [*captioning_runs.SMALL, "--epochs", 1],
    "ner": ["--templates", "word[0]", "--iterations", 3, "--sentences", 20, "--dev-sentences", 10],
    "tag": ["--templates", "word[0]", "--iterations", 3],
    "parsing": [*parsing_runs.SMALL, "--epochs", 1, "--sentences", 20, "--dev-sentences", 10],
    "translation": [*translation_runs.SMALL, "--epochs", 1],
}
SMALL_TASKS = {name: shlex.join(map(str, flags)) for name, flags in _TASKS.items()}
REPLACED = {
    r"--model google-t5/\S+": "--from-scratch t5-tiny",
    r"--cluster \S+": "",
}  # what would have to be downloaded, or started
SMALL = [  # flags that are added to the commands that fit
    *(
        (rf"softq (train|sweep) {name}\b(?!.*--model (neural|transformers))", flags)
        for name, flags in SMALL_TASKS.items()
    ),
    (r"softq train ner --model neural", "--hidden 4 --filters 4 --epochs 1"),
    (
        r"softq train parsing --model neural",
        "--hidden 4 --layers 1 --arc-size 4 --relation-size 4 --filters 4 --epochs 1",
    ),
    (r"softq train ner --model transformers", "--epochs 1"),
    (r"softq train parsing --model transformers", "--arc-size 4 --relation-size 4 --epochs 1"),
    (r"softq train mine\.toml .*--train train\.conll", SMALL_TASKS["ner"]),
    (r"softq train mine\.toml --epochs", SMALL_TASKS["classification"]),
    (
        r"softq train lm\b",
        (
            "--max-new-tokens 4 --beams 2 --evaluation.batch-size 8 --batch-size 8 --epochs 1"
            " --device cpu"
        ),
    ),
    (
        r"softq train lm .*--(from-scratch|model google)",
        "--from-scratch t5-tiny --vocabulary-size 120",
    ),
    (r"softq sweep (ner|tag|parsing|translation|captioning)\b", "--tau 0.2"),
    (r"softq sweep", "--seed 0 --jobs 1"),
    (r"softq train lm .*--distill", "--distill-samples 2"),
    (r"softq data distill", "--samples 2"),
    (r"softq data annotators .*--tagger", "--over rounds=1"),
    (r"softq reproduce", "--jobs 1"),
    (r"softq theory(?!.*--references)", "--grid 20"),
    (r"softq theory .*--references", "--size 10"),
    (r"python examples/finetune_", "--ml-epochs 0.1 --epochs 0.1"),
    (r"--device cuda", "--device cpu"),
]
READY = {  # runs that pages use and others train
    "runs/names": (
        "softq train ner --train train.conll --dev dev.conll --objective raml --tau 0.2 --out"
        " runs/names"
    ),
    "runs/neural": (
        "softq train ner --model neural --vectors vectors.txt --train train.conll --dev dev.conll"
        " --out runs/neural"
    ),
    "runs/neural-trees": (
        "softq train parsing --model neural --vectors vectors.txt --train train.conllu --dev"
        " dev.conllu --out runs/neural-trees"
    ),
    "runs/bert": (
        "softq train ner --model transformers:bert-base-cased --train train.conll --dev dev.conll"
        " --out runs/bert"
    ),
    "runs/bert-trees": (
        "softq train parsing --model transformers:bert-base-cased --train train.conllu --dev"
        " dev.conllu --out runs/bert-trees"
    ),
    "runs/names-ml": "softq train ner --train train.conll --dev dev.conll --out runs/names-ml",
    "runs/ml": (
        "softq train lm --from-scratch t5-small --train train.tsv --dev dev.tsv --out runs/ml"
    ),
    "runs/costs": "softq train classifier --train train.csv --costs costs.csv --out runs/costs",
    "runs/trees": (
        "softq train parsing --train train.conllu --dev dev.conllu --objective raml --tau 0.2 --out"
        " runs/trees"
    ),
    "runs/mt": (
        "softq train translation --train train.tsv --dev dev.tsv --objective raml --tau 0.2 --out"
        " runs/mt"
    ),
    "runs/captions": (
        "softq train captioning --train train.captions.tsv --dev dev.captions.tsv --out"
        " runs/captions"
    ),
}


class Block(NamedTuple):
    """A block of code and the line on which it begins."""

    language: str
    text: str
    line: int


def read_blocks(text):
    """The fenced blocks of a page."""
    return [
        Block(fence[1], fence[2], text[: fence.start()].count("\n") + 1)
        for fence in re.finditer(r"^ *```([^\n]*)\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    ]


def shell_lines(text):
    """The commands of a page.

    The lines of its ```sh blocks, and list items that are a command in backticks; without comments.
    """
    lines = [
        line
        for block in read_blocks(text)
        if block.language == "sh"
        for line in block.text.replace("\\\n", " ").splitlines()
    ]
    lines += re.findall(r"^ *- `((?:softq|accelerate|python|echo) [^`]*)`", text, re.MULTILINE)
    return [shown for line in lines if (shown := _without_comment(line))]


def _without_comment(line):
    quoted = None
    for place, sign in enumerate(line):
        if sign in "'\"":
            quoted = None if quoted == sign else quoted or sign
        if sign == "#" and not quoted and (place == 0 or line[place - 1].isspace()):
            return line[:place].strip()
    return line.strip()


def help_texts():
    """The help of every command, and of every task of those that train, by what has to be typed before ``--help``."""
    texts = {"softq": get_command(cli.app).help}
    for name in cli.COMMANDS:
        command = cli.load_command(name)
        texts[f"softq {name}"] = command.help
        texts |= {
            f"softq {name} {inner}": below.help
            for inner, below in getattr(command, "commands", {}).items()
        }
        if cli.COMMANDS[name].of_recipe:
            texts |= {
                f"softq {name} {task}": guides.guide(name, task)
                for task in guides.GUIDES
                if getattr(guides.GUIDES[task], name)
            }
    return texts


def pages():
    """Every page that shows commands, by its name, with them."""
    found = {
        str(path.relative_to(ROOT)): shell_lines(path.read_text("utf-8")) for path in DOCUMENTS
    }
    found |= {f"{name} --help": shell_lines(text) for name, text in help_texts().items()}
    return {name: lines for name, lines in found.items() if lines}


def make_small(line):
    """A command with the flags that make it small."""
    flags = [flags for pattern, flags in SMALL if re.search(pattern, line)]
    for pattern, instead in REPLACED.items():
        line = re.sub(pattern, instead, line)
    return " ".join([line, *flags])


def small_recipes(folder):
    """The recipes that come with softq, made small.

    Two grids of each, one temperature and one seed.
    """
    for path in recipes.RECIPES.glob("*.toml"):
        task, _, _ = recipes.find_recipe(str(path), [])
        enough = (
            "--candidates.size 100" if task.name in ("captioning", "translation") else ""
        )  # for the paper's estimator, which takes some
        _, recipe, grids = recipes.find_recipe(
            str(path), shlex.split(f"{SMALL_TASKS[task.name]} {enough}")
        )
        few = [
            dataclasses.replace(
                grid,
                tau=re.split("[:,]", grid.tau)[0],
                seed="0",
                over=tuple(re.split("[,;]", entry)[0] for entry in grid.over),
            )
            for grid in grids[:2]
        ]
        (folder / path.name).write_text(sweep_toml(task, recipe, few), "utf-8")
    return folder


class Shell:
    """Runs commands as they stand on pages, each page in a folder of its own, and a line that was run on another page only once."""

    def __init__(self, folder):
        self._folder = folder
        (folder / "store").mkdir()
        self._store = documented_files.make_store(folder / "store")
        self._done = {}

    def folder(self, page):
        place = self._folder / re.sub(r"\W", "-", page)
        place.mkdir(exist_ok=True)
        return place

    def run(self, line, folder):
        """Run a line, with all that it needs, and look whether what it names as its output is there."""
        small = make_small(line)
        words = shlex.split(small)
        outputs = _outputs(words)
        for name in [name for word in words for name in word.split(",") if name not in outputs]:
            if name in READY and not (folder / name).exists():
                self.run(READY[name], folder)
            documented_files.provide(self._store, folder, name)
        for output in outputs:
            (folder / output).parent.mkdir(parents=True, exist_ok=True)
        if not self._copy(small, folder):
            before = _stamps(folder)
            text = None
            for part in _split(words, "&&"):
                for command in _split(part, "|"):
                    text = run_program(command, text, folder)
            after = _stamps(folder)
            self._done[small] = (
                folder,
                [path for path in after if before.get(path) != after[path]],
            )
        for output in outputs:
            assert (folder / output).exists(), f"{line}: there is no {output}"

    def _copy(self, line, folder):
        """Take what the same line has made on another page, unless something else is there already."""
        if line not in self._done:
            return False
        source, made = self._done[line]
        if any((folder / path).exists() for path in made):
            return False
        for path in made:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / path, folder / path)
        return True


def _outputs(words):
    """What a command says it writes."""
    return [
        after
        for word, after in pairwise(words)
        if word in ("--out", "--plot", ">") and "--resume" not in words
    ]


def _split(words, sign):
    """Lists of words between signs."""
    parts = [[]]
    for word in words:
        if word == sign:
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def _stamps(folder):
    return {
        path.relative_to(folder): path.stat().st_mtime_ns
        for path in folder.rglob("*")
        if path.is_file()
    }


def run_program(words, stdin, folder):
    """Run one program in this process, and write what it prints where ``>`` says.

    What it prints.
    """
    target = None
    if ">" in words:
        place = words.index(">")
        words, target = words[:place] + words[place + 2 :], words[place + 1]
    if "-m" in words[1:]:  # of several processes, such as accelerate's: one, which is this
        words = words[words.index("-m") + 1 :]
    if words[0] == "echo":
        printed = " ".join(words[1:]) + "\n"
    elif words[0] == "python":
        printed = documented_scripts.run_script(ROOT / words[1], words[2:])
    else:
        assert words[0] == "softq", f"expected softq or python, got {words[0]}"
        printed = run_softq(words[1:], stdin).stdout
    if target is not None:
        (folder / target).write_text(printed, "utf-8")
    return printed


def run_softq(arguments, stdin=None):
    """A command of softq that must go well."""
    result = CliRunner().invoke(
        cli.app, arguments, input=stdin, env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    )
    assert result.exit_code == 0, (
        f"softq {shlex.join(arguments)}\n{result.output}{result.exception or ''}"
    )
    return result
