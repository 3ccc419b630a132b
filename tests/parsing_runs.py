"""Small files and runs for the tests of the parsing experiment."""

from small_runs import CPU
from softq.lab.recipe import build, parse_flags
from softq.lab.tasks import TASKS, train_cells
from softq.lab.tasks.parsing_recipe import ParsingRecipe
from softq.lab.worlds import TreeWorld

TASK = TASKS["parsing"]
WORLD = TreeWorld(crossing=0.3, lemmas=6)
SMALL = [  # a recipe that trains in an instant
    "--bits", 12, "--relation-bits", 8, "--epochs", 2, "--batch-size", 8, "--learning-rate", 0.1,
    "--templates", "head.upos|dep.upos,head.word,dep.word",
]  # fmt: skip


def recipe(*flags):
    return build(ParsingRecipe, parse_flags(ParsingRecipe, list(map(str, [*SMALL, *flags]))))


def write(path, sentences, trees=None):
    trees = trees or [(sentence.heads, sentence.relations) for sentence in sentences]
    text = "".join(
        sentence.text(heads, relations)
        for sentence, (heads, relations) in zip(sentences, trees, strict=True)
    )
    path.write_text(text, encoding="utf-8")
    return path


def make_files(folder):
    """Training, development and test file, and the trees of another annotator for the training file."""
    drawn = {
        name: WORLD.sample(size, seed=seed)
        for seed, (name, size) in enumerate({"train": 60, "dev": 21, "test": 15}.items())
    }
    paths = {name: write(folder / f"{name}.conllu", sentences) for name, sentences in drawn.items()}
    others = [
        (trees[0], s.relations)
        for s, trees in zip(
            drawn["train"], WORLD.annotate(drawn["train"], annotators=1, seed=0), strict=True
        )
    ]
    return paths | {"other": write(folder / "other.conllu", drawn["train"], others)}


def parts(files, *names):
    return [text for name in names for text in (f"--{name}", files[name])]


def run(out, *flags):
    """The row of a run."""
    return train_cells(TASK, [recipe(*flags)], out, workers=CPU)["cells"][0]


def crosses(heads):
    """Whether two arcs of a tree cross, the root being a word at the left end."""
    arcs = [(min(head, word), max(head, word)) for word, head in enumerate(heads, start=1)]
    return any(a < c < b < d for a, b in arcs for c, d in arcs)


def right_heads(sentences, parses):
    pairs = [
        (a, b)
        for sentence, parse in zip(sentences, parses, strict=True)
        for a, b in zip(sentence.heads, parse.heads, strict=True)
    ]
    return sum(a == b for a, b in pairs) / len(pairs)
