"""Small files of the names that documents use, from softq's own worlds."""

import gzip
import json
import re
import shutil

import numpy as np
from PIL import Image

import captioning_runs
import ner_runs
import parsing_runs
import translation_runs
from softq.formats.captions import names_file
from tiny_taggers import save_encoder

FEATURES = 1280  # as many as the usual encoder has
IMAGES = {"train": range(10), "dev": range(10, 16), "test": range(16, 22)}
SIZES = {"train": 24, "dev": 8, "test": 8}

KINDS = [  # what a file is, by its name, and the first pattern that fits
    (r"(.*/)?labelled\.conll", "labelled.conll"),
    (r"(crowd_.*/|crowd).*train\.conll(\.gz)?|crowd\.conll", "crowd.conll"),
    (r"some\.conll|.*\.gold\.conll\.gz", "some.conll"),
    (r"export\.json", "export.json"),
    (r"(admin|bob)\.jsonl", "admin.jsonl"),
    (r".*train.*\.conll(\.gz)?|eng\.train", "train.conll"),
    (r".*\.conll(\.gz)?|eng\.test.", "dev.conll"),
    (r".*train.*\.conllu(\.gz)?", "train.conllu"),
    (r".*\.conllu(\.gz)?", "dev.conllu"),
    (r"(.*train|.*dev|.*test)?\.?captions\.tsv(\.gz)?", "{1}.captions.tsv"),
    (r"(.*train|.*dev|.*test)\.features\.npy", "{1}.features.npy"),
    (r"mine\.txt", "mine.txt"),
    (r"(train|dev|test|new)\.csv", "rows.csv"),
    (r"costs\.csv", "costs.csv"),
    (r"vectors\.txt", "vectors.txt"),
    (r"(train|dev|test)\.tsv(\.gz)?", "{1}.tsv"),
    (r"(train|dev|test)\d?\.(de|en)", "{1}.{2}"),
    (r"german\.txt", "dev.de"),
    (r"rewards\.py:.*", "rewards.py"),
    (r"(hypotheses|references|others)\.txt", "dev.en"),
    (r"refs\.(txt|tsv)", "refs.txt"),
    (r"(transformers:)?bert-base-cased", "encoder"),
    (r"IMAGES/?", "IMAGES"),
    (r"DIR/?", "DIR"),
]


def make_store(folder):
    """Files of every kind, once for all pages."""
    world = ner_runs.WORLD
    for seed, (part, size) in enumerate(SIZES.items()):
        ner_runs.write(folder / f"{part}.conll", world.sample(size, seed=seed))
        parsing_runs.write(folder / f"{part}.conllu", parsing_runs.WORLD.sample(size, seed=seed))
        text = translation_runs.WORLD.sample(size, seed=seed, references=2)
        translation_runs.write(folder / f"{part}.tsv", text.sources, text.references)
        (folder / f"{part}.de").write_text("".join(f"{line}\n" for line in text.sources), "utf-8")
        (folder / f"{part}.en").write_text(
            "".join(f"{several[0]}\n" for several in text.references), "utf-8"
        )
        _write_captions(folder, part)
    ner_runs.write(
        folder / "crowd.conll", world.annotate(world.sample(SIZES["train"], seed=0), seed=0)
    )
    (folder / "vectors.txt").write_text("met 0.5 1 0\nin 1 -1 0.25\n", encoding="utf-8")
    ner_runs.write(folder / "some.conll", world.sample(SIZES["train"], seed=0)[::2])
    rows = [f"{i % 7},{i % 3},{'malignant' if i % 7 > 4 else 'benign'}" for i in range(42)]
    (folder / "rows.csv").write_text("\n".join(["size,age,kind", *rows, ""]), "utf-8")
    costs = "decided,benign,malignant\nbenign,0,10\nmalignant,1,0\n"
    (folder / "costs.csv").write_text(costs, "utf-8")
    label = [{"start": 0, "end": 3, "labels": ["PER"]}]
    record = {"id": 1, "text": "Ann ran.", "label": label}
    (folder / "export.json").write_text(json.dumps([record | {"annotator": 7}]), "utf-8")
    (folder / "admin.jsonl").write_text(json.dumps(record), "utf-8")
    (folder / "rewards.py").write_text(
        "def right_length(completions, prompts):\n"
        "    return [-abs(len(c) - len(p)) for c, p in zip(completions, prompts)]\n",
        "utf-8",
    )
    rows = (line.split("\t") for line in (folder / "dev.conll").read_text("utf-8").splitlines())
    (folder / "labelled.conll").write_text(
        "".join("\t".join([*row, *row[1:]]) + "\n" for row in rows), "utf-8"
    )
    tested = {f"{number}.jpg": captioning_runs.captions_of(number)[:1] for number in IMAGES["test"]}
    captioning_runs.write(folder / "mine.txt", tested)
    shutil.copyfile(folder / "dev.tsv", folder / "refs.txt")
    save_encoder(folder / "encoder")
    _make_folder(folder, folder / "DIR")
    return folder


def _make_folder(store, folder):
    """A folder of corpora: that of an experiment, and those of the benchmarks below it."""
    for name in ("broad_twitter", "wnut17", "ud_english_ewt"):
        (folder / name).mkdir(parents=True)
    for part in SIZES:
        shutil.copyfile(store / f"{part}.tsv", folder / f"{part}.tsv")
        for corpus in ("broad_twitter", "wnut17"):
            shutil.copyfile(store / f"{part}.conll", folder / corpus / f"{part}.conll")
        packed = gzip.compress((store / f"{part}.conllu").read_bytes())
        (folder / "ud_english_ewt" / f"en_ewt-ud-{part}.conllu.gz").write_bytes(packed)


def _write_captions(folder, part):
    """Captions, features, and the images themselves in plain colours."""
    numbers = IMAGES[part]
    captions = {f"{number}.jpg": captioning_runs.captions_of(number) for number in numbers}
    captioning_runs.write(
        folder / f"{part}.captions.tsv", captions, captioning_runs.features_of(numbers, FEATURES)
    )
    (folder / "IMAGES").mkdir(exist_ok=True)
    for number in numbers:
        Image.new("RGB", (32, 24), (9 * number, 255 - 9 * number, 100)).save(
            folder / "IMAGES" / f"{number}.jpg"
        )


def provide(store, folder, name):
    """Put a file of this name into a page's folder, if documents use the name and it is not there yet.

    A name may stand before a colon, as that of a function's file does.
    """
    wanted = folder / name.removeprefix("transformers:").partition(":")[0]
    if wanted.exists():
        return
    fits, kind = next(
        ((fits, kind) for pattern, kind in KINDS if (fits := re.fullmatch(pattern, name))),
        (None, ""),
    )
    if fits is None:
        return
    groups = [re.sub(r".*[-/]", "", group or "train") for group in fits.groups()]
    source = store / kind.format("", *groups)
    wanted.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, wanted)
    elif name.endswith(".gz"):
        wanted.write_bytes(gzip.compress(source.read_bytes()))
    else:
        shutil.copyfile(source, wanted)
    if ".captions.tsv" in name:
        features = wanted.parent / (name.rsplit("/")[-1].split(".captions")[0] + ".features.npy")
        if not features.exists():
            shutil.copyfile(
                source.parent / source.name.replace(".captions.tsv", ".features.npy"), features
            )
    if name.endswith(".features.npy"):
        names = [f"{number}.jpg" for number in IMAGES[groups[0]]]
        assert len(names) == len(np.load(wanted))
        names_file(wanted).write_text("".join(f"{name}\n" for name in names), "utf-8")
