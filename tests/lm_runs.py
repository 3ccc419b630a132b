"""Small files and runs for the tests of `softq train lm`."""

from ner_commands import softq, well
from softq.lab.run import METRICS, RunFolder
from softq.lab.worlds import LanguageWorld

SMALL = [
    "--max-new-tokens",
    10,
    "--beams",
    2,
    "--evaluation.batch-size",
    8,
    "--batch-size",
    8,
    "--device",
    "cpu",
]
SCRATCH = [
    "--from-scratch",
    "t5-tiny",
    "--vocabulary-size",
    120,
    "--learning-rate",
    5e-3,
    "--epochs",
    3,
    "--dropout",
    0.05,
]


def write_files(folder):
    """Training, development and test sentences with their references, and sources alone.

    The folder they are in.
    """
    for seed, (name, size) in enumerate((("train", 48), ("dev", 12), ("test", 12))):
        text = LanguageWorld().sample(size, seed=seed, references=2)
        lines = [
            "\t".join([source, *references])
            for source, references in zip(text.sources, text.references, strict=True)
        ]
        (folder / f"{name}.tsv").write_text(
            "".join(f"{line}\n" for line in lines), encoding="utf-8"
        )
        (folder / f"{name}.txt").write_text(
            "".join(f"{source}\n" for source in text.sources), encoding="utf-8"
        )
    return folder


def train(files, out, *flags):
    return softq(
        "train",
        "lm",
        "--train",
        files / "train.tsv",
        "--dev",
        files / "dev.tsv",
        *SMALL,
        *flags,
        "--out",
        out,
    )


def train_two(files, folder):
    """A model by likelihood and one by RAML from there; the folder they are in."""
    well(train(files, folder / "ml", *SCRATCH))
    further = [
        "--model",
        folder / "ml",
        "--objective",
        "raml",
        "--tau",
        0.3,
        "--sampler",
        "ngram+recombined",
        "--size",
        3,
    ]
    well(
        train(
            files,
            folder / "raml",
            *further,
            "--epochs",
            1,
            "--mbr-samples",
            3,
            "--learning-rate",
            1e-3,
        )
    )
    return folder


def rows_of(folder):
    return RunFolder(folder).lines(METRICS)
