"""Small files and runs for the tests of the translation experiment."""

from small_runs import CPU
from softq.lab.recipe import build, parse_flags
from softq.lab.tasks import TASKS, train_cells
from softq.lab.tasks.sequence_recipe import TranslationRecipe
from softq.lab.worlds import LanguageWorld

TASK = TASKS["translation"]
WORLD = LanguageWorld()
SMALL = [  # a recipe that trains in an instant
    "--embedding", 12, "--hidden", 16, "--epochs", 2, "--batch-size", 16, "--learning-rate", 0.02, "--candidates.size", 4, "--beam", 2,
    "--sentences", 48, "--dev-sentences", 12, "--references", 2,
]  # fmt: skip


def recipe(*flags):
    return build(
        TranslationRecipe, parse_flags(TranslationRecipe, list(map(str, [*SMALL, *flags])))
    )


def run(out, *flags, **options):
    """The row of a run."""
    return train_cells(TASK, [recipe(*flags)], out, workers=CPU, **options)["cells"][0]


def write(path, sources, references):
    """A file of tab-separated columns."""
    path.write_text(
        "".join(
            "\t".join([source, *several]) + "\n"
            for source, several in zip(sources, references, strict=True)
        ),
        "utf-8",
    )
    return path


def write_side_by_side(folder, name, text):
    """A file of sources and one for each reference; their paths."""
    count = len(text.references[0])
    columns = [
        text.sources,
        *([several[number] for several in text.references] for number in range(count)),
    ]
    paths = [folder / f"{name}.{number}" for number in range(count + 1)]
    for path, lines in zip(paths, columns, strict=True):
        path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return paths


def make_files(folder):
    """Training, development and test file of the built-in world's sentences, with two references each."""
    drawn = {
        name: WORLD.sample(size, seed=seed, references=2)
        for seed, (name, size) in enumerate({"train": 50, "dev": 13, "test": 10}.items())
    }
    return {
        name: write(folder / f"{name}.tsv", text.sources, text.references)
        for name, text in drawn.items()
    }


def parts(files, *names):
    return [text for name in names for text in (f"--{name}", files[name])]
