"""`softq data` on captions: which files are taken for captions, what is counted, what is wrong."""

import gzip
import json
from functools import partial

import numpy as np
import pytest

from ner_commands import softq as command
from softq.cli.kinds.captioner import recognise as is_captions
from softq.formats.captions import names_file

run = partial(command, "data")

CAPTIONS = (
    "a.jpg#0\tA dog runs fast.\n"
    "b.jpg#0\tOne cat\n"
    "a.jpg#1\ta dog runs fast .\tA dog runs fast.\n"  # the same words
    "b.jpg#1\tTwo grey mice\n"  # no word in common
    "c.jpg#0\tA dog\n"
)


def told(result):
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)["files"]


def refused(result, message):
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("softq: ")
    assert result.stderr.count("\n") == 1
    assert message in result.stderr


@pytest.fixture
def captions(tmp_path):
    path = tmp_path / "a[b].captions.tsv.gz"
    path.write_bytes(gzip.compress(CAPTIONS.encode()))
    return path


@pytest.fixture
def dataset(tmp_path):
    path = tmp_path / "d.json"
    images = [
        {
            "filename": "a.jpg",
            "split": "train",
            "sentences": [{"raw": "A dog."}, {"raw": "A cow."}],
        },
        {"filename": "b.jpg", "split": "val", "sentences": [{"raw": "A cat."}]},
    ]
    path.write_text(json.dumps({"images": images}), encoding="utf-8")
    return path


def test_stats_for_programs(captions):
    (found,) = told(run("stats", captions, "--json"))
    assert found == {
        "path": str(captions),
        "format": "captions",
        "split": None,
        "images": 3,
        "captions": 6,
        "distinct_captions": 5,
        "captions_per_image": {"1": 1, "2": 1, "3": 1},
        "words": 3 * 5 + 2 + 3 + 2,
        "distinct_words": 10,
        "words_that_occur_once": 5,
        "words_that_occur_5_times": 0,
        "mean_length": pytest.approx(22 / 6),
        "shortest": 2,
        "longest": 5,
        "agreement": pytest.approx((1 + 0) / 2),  # of the images with several
    }


def test_stats_as_a_table(captions):
    result = run("stats", captions)
    assert result.exit_code == 0
    first, *lines = (line.strip() for line in result.stdout.splitlines())
    assert first == str(captions)
    shown = dict(line.rsplit(maxsplit=1) for line in lines if line)
    assert {name.rstrip(): value for name, value in shown.items()} == {
        "images": "3",
        "captions": "6",
        "images with 1 caption": "1",
        "images with 2 captions": "1",
        "images with 3 captions": "1",
        "captions that repeat another of the image": "1",
        "words": "22",
        "distinct words, in lower case": "10",
        "words that occur once": "5",
        "words that occur 5 times or more": "0",
        "words per caption, mean": "3.67",
        "words of the shortest caption": "2",
        "words of the longest caption": "5",
        "sentence BLEU between captions of an image": "50.00",
    }


def test_splits(dataset):
    (whole,) = told(run("stats", dataset, "--json"))
    (train,) = told(run("stats", dataset, "--split", "train", "--json"))
    (val,) = told(run("stats", dataset, "--split", "val", "--json"))
    assert [(file["split"], file["images"], file["captions"]) for file in (whole, train, val)] == [
        (None, 2, 3),
        ("train", 1, 2),
        ("val", 1, 1),
    ]
    assert val["agreement"] is None
    shown = run("stats", dataset, "--split", "val").stdout
    assert shown.startswith(f"{dataset}, split val\n")
    assert shown.split()[-1] == "undefined"
    refused(
        run("stats", dataset, "--split", "test"),
        "expected images of the split 'test', got 'train', 'val'",
    )
    result = run("check", dataset, "--split", "test")
    assert (result.exit_code, result.stdout) == (
        2,
        f"{dataset}: expected images of the split 'test', got 'train', 'val'\n",
    )


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.json", "", True),
        ("a.json.xz", "", True),
        ("a.tsv", "a.jpg\tA dog.\n", True),
        ("Flickr8k.token.txt", "a b/a.JPEG#3\tA dog.\n", True),
        ("a.tsv", "\n\ta\n1.webp\tb\n\n2.gif\tc\n3.bmp\td\n", True),
        ("a.tsv", "a.png\tb\nx\ty\nx\ty\n", False),
        ("a.tsv", "Ja, klar.\tYes.\n", False),
        ("a.names.txt", "a.jpg\nb.jpg\n", False),  # images alone
        ("a.conll", "logo.jpg\tO\nis\tO\nan\tO\nimage\tO\n", False),
        ("a.tsv", "jpg\tb\n", False),
        ("a.tsv", "", False),
    ],
)
def test_which_files_are_captions(tmp_path, name, text, expected):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    assert is_captions(path) is expected
    assert not is_captions(tmp_path / "absent.tsv")


def test_files_of_several_kinds(captions, tmp_path):
    labels, pairs = tmp_path / "a.conll", tmp_path / "a.tsv"
    labels.write_text("Ann\tB-PER\nran\tO\n", encoding="utf-8")
    pairs.write_text("Ja, klar.\tYes, of course.\n", encoding="utf-8")
    found = told(run("stats", captions, labels, pairs, "--json"))
    assert {file["path"]: file.get("format") for file in found} == {
        str(captions): "captions",
        str(labels): None,
        str(pairs): "bitext",
    }
    captions.write_bytes(
        gzip.compress(b"my dog.jpg\tA dog.\n")
    )  # several words before a tab, as in translations
    result = run("check", captions, labels, pairs)
    assert result.exit_code == 0
    assert sorted(result.stdout.splitlines()) == sorted(
        f"{path}: no faults" for path in (captions, labels, pairs)
    )


def test_the_format_can_be_said(tmp_path, captions):
    path = tmp_path / "a.tsv"
    path.write_text("image 1\tA dog.\n", encoding="utf-8")
    (found,) = told(run("stats", path, "--format", "captions", "--json"))
    assert (found["format"], found["images"]) == ("captions", 1)
    assert told(run("stats", path, "--json"))[0]["format"] == "bitext"
    for labels in (("--format", "columns"), ("--annotators", "1")):
        refused(run("stats", captions, *labels), "line 3: expected 2 columns separated by tabs")
    refused(
        run("stats", path, "--format", "captions", "--scheme", "bio"),
        "--scheme is for files of labels",
    )
    refused(
        run("stats", path, "--split", "val"),
        "--split is for files of captions, and no such file is among these",
    )
    refused(run("stats", captions, "--split", "val"), "got lines, which have no splits")


def test_check_prints_every_fault(tmp_path, captions):
    bad = tmp_path / "bad.tsv"
    bad.write_text("a.jpg\tA dog.\nb.jpg\t\n\tA cat.\nc.jpg\tA cow.\t\n", encoding="utf-8")
    result = run("check", bad, captions)
    expected = (
        "expected the name of an image, a tab and one or more captions separated by tabs, got"
    )
    assert result.exit_code == 2
    assert result.stdout.splitlines() == [
        f"{bad}:2: {expected} 'b.jpg' without a caption",
        f"{bad}:3: {expected} captions without the name of an image",
        f"{bad}:4: {expected} an empty caption in column 3",
        f"{captions}: no faults",
    ]
    found = json.loads(run("check", bad, captions, "--json").stdout)["files"]
    assert [[fault["line"] for fault in file["faults"]] for file in found] == [[2, 3, 4], []]
    refused(run("stats", bad), f"{bad}, line 2: {expected} 'b.jpg' without a caption (and 2 more")


def test_check_of_features(tmp_path, captions):
    features = tmp_path / "a.features.npy"
    rows = np.ones((3, 2), np.float32)
    np.save(features, rows)
    result = run("check", captions, "--features", features)
    assert (result.exit_code, result.stdout) == (
        0,
        f"{captions}: no faults\n{features}: no faults\n",
    )
    rows[1, 1] = np.nan
    np.save(features, rows)
    names = names_file(features)
    names.write_text("c.jpg\na.jpg\na.jpg\n", encoding="utf-8")
    result = run("check", captions, "--features", features)
    assert result.exit_code == 2
    assert result.stdout.splitlines() == [
        f"{captions}: no faults",
        f"{features}: expected one row for image 'b.jpg' ({captions}, line 2), got none in {names}",
        (
            f"{features}: the features of image 'a.jpg' ({captions}, line 1) in row 2 are not"
            " finite: NaN or infinity"
        ),
        f"{names}:3: expected each image once, got 'a.jpg' again, which is on line 2",
    ]
    names.unlink()
    np.save(features, np.ones((3, 2), int))
    result = run("check", captions, "--features", features)
    assert result.stdout.splitlines()[1:] == [
        f"{features}: expected features as float16, float32 or float64, got <i8: convert them with"
        " astype"
    ]
    np.save(features, rows[:2])
    captions.write_bytes(gzip.compress((CAPTIONS + "d.jpg\t...\n").encode()))
    result = run("check", captions, "--features", features)
    assert result.exit_code == 2
    assert (
        result.stdout.splitlines()[0]
        == f"{captions}:6: expected words, got none but punctuation: '...', a caption of the image"
        " 'd.jpg'"
    )
    assert result.stdout.splitlines()[1].startswith(
        f"{features}: expected 4 rows, one for each image, got 2"
    )
    refused(
        run("check", captions, captions, "--features", features),
        "--features are those of one file of captions, got 2 such files",
    )
    captions.write_bytes(gzip.compress(b"a.jpg\t\n"))
    result = run("check", captions, "--format", "captions", "--features", features)
    assert result.exit_code == 2
    assert result.stdout.splitlines()[1:] == [f"{features}: not checked: first fix {captions}"]
