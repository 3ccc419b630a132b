"""Small files and runs for the tests of the named-entity experiment."""

from small_runs import CPU
from softq.formats.conll import read_conll, to_conll
from softq.lab.recipe import build, parse_flags
from softq.lab.run import RunFolder
from softq.lab.tasks import TASKS, train_cells
from softq.lab.tasks.base import best_models
from softq.lab.tasks.ner_recipe import NerRecipe
from softq.lab.worlds import EntityWorld
from softq.linear import CRFTagger

TASK = TASKS["ner"]
WORLD = EntityWorld(common=20, names=4, shared=3, double=3)
FEW = ["--templates", "word[0],word[-1],shape[0]"]


def recipe(*flags):
    return build(NerRecipe, parse_flags(NerRecipe, [*FEW, *map(str, flags)]))


def write(path, sentences):
    path.write_text(
        sentences if isinstance(sentences, str) else to_conll(sentences), encoding="utf-8"
    )
    return path


def make_files(folder):
    """Training, development and test file in bio, and the training file as annotators have it."""
    drawn = {
        name: WORLD.sample(size, seed=seed)
        for seed, (name, size) in enumerate({"train": 150, "dev": 41, "test": 30}.items())
    }
    paths = {name: write(folder / f"{name}.conll", sentences) for name, sentences in drawn.items()}
    return paths | {"crowd": write(folder / "crowd.conll", WORLD.annotate(drawn["train"], seed=0))}


def parts(files, *names):
    return [text for name in names for text in (f"--{name}", files[name])]


def run(out, *flags):
    """The row of a run."""
    return train_cells(TASK, [recipe(*flags)], out, workers=CPU)["cells"][0]


def tagger_of(out):
    return CRFTagger.from_tensors(best_models(RunFolder(out)))


def labels_of(path):
    return [list(sentence.labels[0]) for sentence in read_conll(path).sentences]


def predictions(out, path):
    tagger = tagger_of(out).tagger_
    return tagger.decode(
        tagger.index.transform([sentence.tokens for sentence in read_conll(path).sentences])
    )
