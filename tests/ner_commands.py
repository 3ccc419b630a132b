"""Files, runs and commands for the tests of taggers on the command line."""

import json

from typer.testing import CliRunner

from small_runs import single_thread
from softq import cli
from softq.formats.conll import to_conll
from softq.lab.worlds import EntityWorld

QUICK = ["--templates", "word[0],word[-1],suffix[0]{2:2}", "--tolerance", "1e-2"]
POS = ("NN", "VB", "IN")
FAST = {"algorithm": "adagrad", "max_epochs": 2, "random_state": 0}


def softq(*arguments, stdin=None, terminal="dumb"):
    """A command in this process, on a wide plain terminal, so that nothing wraps or is coloured."""
    environment = {"COLUMNS": "300", "NO_COLOR": "1", "TERM": terminal}
    return CliRunner().invoke(cli.app, list(map(str, arguments)), input=stdin, env=environment)


def well(result):
    """The output of a command that went well in silence."""
    assert (result.exit_code, result.stderr) == (0, ""), (result.output, result.exception)
    return result.stdout


def told(result):
    return json.loads(well(result).splitlines()[-1])


def evaluated(*arguments):
    """What `softq evaluate --json` says."""
    return told(softq("evaluate", *arguments, "--json"))


def predictions(*arguments, **options):
    """What `softq predict` writes, of a command that went well in silence."""
    return well(softq("predict", *arguments, **options))


def refused(result, *texts):
    """One line on stderr, exit code 2."""
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("softq: ")
    assert result.stderr.count("\n") == 1
    for text in texts:
        assert text in result.stderr


def with_pos(sentences):
    """Columns of token, part of speech (made up from the word) and label."""
    rows = (
        [
            (token, POS[len(token) % 3], label)
            for token, label in zip(s.tokens, s.labels[0], strict=True)
        ]
        for s in sentences
    )
    return "".join("".join("\t".join(row) + "\n" for row in sentence) + "\n" for sentence in rows)


def make_corpus(folder):
    """Files of a made-up language: train, dev and test in BIO, and with parts of speech."""
    world = EntityWorld(common=30, names=5, shared=2, double=2)
    for number, (name, count) in enumerate({"train": 150, "dev": 60, "test": 80}.items()):
        sentences = world.sample(count, seed=number)
        (folder / f"{name}.conll").write_text(to_conll(sentences), encoding="utf-8")
        (folder / f"{name}.pos").write_text(with_pos(sentences), encoding="utf-8")
    return folder


def make_runs(corpus, folder):
    """Runs.

    Plain, one trained in another scheme than that of its files, and one that knows parts of speech;
    and what training printed.
    """
    printed = {}
    flags = {
        "bio": ["--train", corpus / "train.conll", "--dev", corpus / "dev.conll", "--c2", "0.5"],
        "bioes": [
            "--train",
            corpus / "train.conll",
            "--train-scheme",
            "bioes",
            "--folds",
            "2",
            "--c2",
            "2",
            "--decoding",
            "mbr",
        ],
        "pos": ["--train", corpus / "train.pos", "--templates", "word[0],pos[0]", "--pos", "2"],
    }
    with single_thread():
        for name, more in flags.items():
            printed[name] = well(softq("train", "ner", *QUICK, *more, "--out", folder / name))
    return folder, printed
