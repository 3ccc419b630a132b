"""Files of images, their captions and their features."""

import gzip
import json
import lzma
import mmap
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from softq.errors import DataError
from softq.formats.captions import (
    Captions,
    check_captions,
    check_features,
    features_beside,
    match_names,
    names_file,
    read_captions,
    read_features,
)


def write(path, text):
    pack = {".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix, bytes)
    path.write_bytes(pack(text if isinstance(text, bytes) else text.encode()))
    return path


def record(name, *captions, **more):
    return {"filename": name, "sentences": [{"raw": caption} for caption in captions], **more}


def karpathy(path, *records):
    return write(path, json.dumps({"images": records, "dataset": "flickr8k"}))


def made(*images):
    return Captions(list(images), [["A dog."]] * len(images))


def save(path, rows, names=None):
    np.save(path, rows)
    if names is not None:
        names_file(path).write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    return path


def faults_of(path, captions):
    return [
        (file.name, *fault)
        for file, faults in check_features(path, captions).items()
        for fault in faults
    ]


def is_mapped(array):
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array, mmap.mmap)


def test_columns(tmp_path):
    text = (
        "\ufeffa.jpg#0\tA dog.\nb.jpg \t A cat.\tTwo cats.\r\na.jpg#1\tDog!\n x/a#b.png\tA"
        " dog.\na.jpg#10\tA dog.\n"
    )
    for name in ("a.tsv", "a.token.gz", "a.tsv.xz"):
        found = read_captions(write(tmp_path / name, text))
        assert found.images == ["a.jpg", "b.jpg", "x/a#b.png"]
        assert found.captions == [["A dog.", "Dog!", "A dog."], ["A cat.", "Two cats."], ["A dog."]]
        assert (found.lines, len(found), found.place(2)) == (
            [1, 2, 4],
            3,
            f"{tmp_path / name}, line 4",
        )
        assert check_captions(tmp_path / name) == []


def test_karpathy_json(tmp_path):
    records = [
        record("a.jpg", "A dog. ", "Two\n dogs.", split="train", cocoid=7),
        record("b.jpg", "A cat.", split="restval", filepath="val2014/"),
        record("a.jpg", "A cow.", split="val", filepath=None),
        {
            "filename": "c.jpg",
            "split": "val",
            "sentences": [{"tokens": ["a", "pig"]}, {"raw": "Pig!", "tokens": ["no"]}],
        },
    ]
    for name in ("d.json", "d.json.gz", "d.JSON.xz"):
        path = karpathy(tmp_path / name, *records)
        found = read_captions(path)
        assert found.images == ["a.jpg", "val2014/b.jpg", "c.jpg"]
        assert found.captions == [["A dog.", "Two dogs.", "A cow."], ["A cat."], ["a pig", "Pig!"]]
        assert (found.lines, found.place(2)) == ([1, 2, 4], f"{path}, record 4")
        assert read_captions(path, "train").captions == [["A dog.", "Two dogs."], ["A cat."]]
        assert (read_captions(path, "val").images, read_captions(path, "val").lines) == (
            ["a.jpg", "c.jpg"],
            [3, 4],
        )
        with pytest.raises(
            DataError, match=r"expected images of the split 'test', got 'restval', 'train', 'val'$"
        ):
            read_captions(path, "test")


word = st.text("abc é.", min_size=1).filter(str.strip)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a.jpg", "b.png", "x/a.jpg"]), st.lists(word, min_size=1, max_size=3)
        ),
        min_size=1,
        max_size=8,
    )
)
def test_lines_and_json_say_the_same(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("captions")
    lines = read_captions(
        write(
            folder / "a.tsv",
            "".join("\t".join((image, *captions)) + "\n" for image, captions in rows),
        )
    )
    records = read_captions(
        karpathy(folder / "a.json", *(record(image, *captions) for image, captions in rows))
    )
    assert (lines.images, lines.lines) == (records.images, records.lines)
    assert [
        [" ".join(caption.split()) for caption in captions] for captions in lines.captions
    ] == records.captions
    together = {}
    for image, captions in rows:
        together.setdefault(image, []).extend(caption.strip() for caption in captions)
    assert dict(zip(lines.images, lines.captions, strict=True)) == together


def test_some_images():
    whole = Captions(["a", "b", "c"], [["1", "2"], ["3"], ["4", "5"]], [1, 4, 6], "x.tsv")
    some = whole.take([2, 0])
    assert some == Captions(["c", "a"], [["4", "5"], ["1", "2"]], [6, 1], "x.tsv")
    assert Captions(["a"], [["1"]]).take([0]).lines == []


EXPECTED = "expected the name of an image, a tab and one or more captions separated by tabs, got "


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", 0, "no images: expected at least one, with its captions"),
        ("a.jpg\tb\n\nc.jpg\td\n", 2, EXPECTED + "an empty line"),
        (" \t\t\n", 1, EXPECTED + "an empty line"),
        ("a.jpg\tb\nc.jpg\n", 2, EXPECTED + "no tab"),
        ("\tA dog.\n", 1, EXPECTED + "captions without the name of an image"),
        ("#0\tA dog.\n", 1, EXPECTED + "captions without the name of an image"),
        ("a.jpg\t \n", 1, EXPECTED + "'a.jpg' without a caption"),
        ("a.jpg\tb\t\td\n", 1, EXPECTED + "an empty caption in column 3"),
        (
            b"a.jpg\tb\nb.jpg\tgr\xfcn\n",
            2,
            (
                "expected UTF-8, got byte 0xfc at offset 16 of the file; convert it, for example"
                " with iconv"
            ),
        ),
    ],
)
def test_faults_in_columns(tmp_path, text, line, message):
    path = write(tmp_path / "a.tsv", text)
    assert check_captions(path) == [(line, message)]
    with pytest.raises(DataError) as error:
        read_captions(path)
    assert str(error.value) == f"{path}{f', line {line}' if line else ''}: {message}"


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ([], "no images: expected at least one, with its captions"),
        (["a.jpg"], 'record 1: expected an object with a filename and sentences, got "a.jpg"'),
        ([record("a.jpg", "A dog."), record("b.jpg")], "got the image 'b.jpg' without a caption"),
        ([{"filename": "b.jpg"}], "or more sentences, got the image 'b.jpg' without a caption"),
        ([record(" ", "A dog.")], "got captions without an image"),
        ([{"sentences": [{"raw": "A dog."}]}], "got captions without an image"),
        ([record("a.jpg", "A dog.", filepath=3)], "got captions without an image"),
        ([record("a.jpg", "A dog.", "\n")], "got an empty caption of the image 'a.jpg', number 2"),
        ([{"filename": "a.jpg", "sentences": [{"tokens": []}]}], "of the image 'a.jpg', number 1"),
        ([{"filename": "a.jpg", "sentences": [{"sentid": 3}]}], "of the image 'a.jpg', number 1"),
        ([{"filename": "a.jpg", "sentences": ["A dog."]}], "of the image 'a.jpg', number 1"),
        ([record("a\tb.jpg", "A dog.")], r"an image on one line and without tabs, got 'a\tb.jpg'"),
        ([record("b.jpg", "A dog.", filepath="a\nb")], r"got 'a\nb/b.jpg'"),
        (
            [record("a.jpg", "A dog.", split=3)],
            "record 1: expected a split such as \"train\" for the image 'a.jpg', got 3",
        ),
        ([record("a.jpg", "A dog.", split=["val"])], 'got ["val"]'),
    ],
)
def test_faults_in_records(tmp_path, images, message):
    path = karpathy(tmp_path / "d.json", *images)
    ((line, told),) = check_captions(path)
    assert line == 0
    assert told.endswith(message)
    with pytest.raises(DataError) as error:
        read_captions(path)
    assert str(error.value) == f"{path}: {told}"


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ('{"images":\n [}', 2, "expected JSON in it, got Expecting value"),
        (b'{"images": "\xff"}', 0, "expected JSON in it, got 'utf-8' codec"),
        ("[" * 100_000, 0, "expected JSON in it, got maximum recursion"),
        ('{"images": ' + "9" * 5000 + "}", 0, "expected JSON in it, got Exceeds the limit"),
        ("[]", 0, "expected Karpathy's JSON"),
        ('{"images": {}}', 0, 'got no list "images"'),
    ],
)
def test_text_that_is_not_karpathys(tmp_path, text, line, message):
    ((found, told),) = check_captions(write(tmp_path / "d.json", text))
    assert found == line
    assert message in told


def test_splits_that_are_not_there(tmp_path):
    path = karpathy(
        tmp_path / "d.json",
        record("a.jpg", "A dog.", split="val"),
        record("b.jpg", "A cat."),
        record("c.jpg", split="test"),
    )
    assert check_captions(path, "val") == [
        (0, "record 2: expected a split for the image 'b.jpg', got none")
    ]  # and c.jpg is another's
    assert [message.partition(":")[0] for _, message in check_captions(path)] == ["record 3"]
    with pytest.raises(DataError, match=r"expected images of the split 'val', got no split$"):
        read_captions(karpathy(tmp_path / "none.json", record("a.jpg", "A dog.")), "val")
    with pytest.raises(
        DataError, match=r"expected Karpathy's JSON, called .json, for the split 'val', got lines"
    ):
        read_captions(write(tmp_path / "a.tsv", "a.jpg\tb\n"), "val")


def test_a_split_that_is_no_text_belongs_to_none(tmp_path):
    path = karpathy(
        tmp_path / "d.json",
        record("a.jpg", "A dog.", split="val"),
        record("b.jpg", "A cat.", split=3),
    )
    assert check_captions(path, "val") == [
        (0, "record 2: expected a split such as \"train\" for the image 'b.jpg', got 3")
    ]


@pytest.mark.parametrize("marks", ["...", "…", "! ?", "--", "。", "$+"])
def test_captions_without_words_are_faults_and_are_read(tmp_path, marks):
    message = f"expected words, got none but punctuation: {marks!r}, a caption of the image 'a.jpg'"
    lines = write(
        tmp_path / "a.tsv", f"b.jpg\tA cat.\t7\t\N{DOG FACE}!\na.jpg\tA dog.\t{marks}\nc.jpg\n"
    )
    assert check_captions(lines)[:1] == [(2, message)]
    records = karpathy(tmp_path / "a.json", record("b.jpg", "A cat."), record("a.jpg", marks))
    assert check_captions(records) == [(0, f"record 2: {message}")]
    assert read_captions(records).captions == [["A cat."], [marks]]


def test_several_faults_and_no_file(tmp_path):
    path = write(tmp_path / "a.tsv", "a.jpg\n\nb.jpg\tA cat.\n\tA dog.\n")
    assert [line for line, _ in check_captions(path)] == [1, 2, 4]
    with pytest.raises(
        DataError, match=r"a.tsv, line 1: .* \(and 2 more; `softq data check` lists them\)"
    ):
        read_captions(path)
    path = karpathy(
        tmp_path / "d.json",
        *(record("a.jpg", "b") for _ in range(8)),
        record("b.jpg"),
        record("c.jpg"),
    )
    with pytest.raises(DataError, match=r"record 9: .* \(and 1 more"):
        read_captions(path)
    for name in ("absent.tsv", "absent.json"):
        with pytest.raises(DataError, match="cannot read"):
            read_captions(tmp_path / name)
        assert check_captions(tmp_path / name)[0].message.startswith("cannot read")


def test_where_features_are(tmp_path):
    assert names_file(tmp_path / "a.b.npy") == tmp_path / "a.b.names.txt"
    for name in (
        "train.captions.tsv.gz",
        "train.tsv",
        "train.captions.json.xz",
        "train.captions.txt",
        "train",
    ):
        assert features_beside(tmp_path / name) == tmp_path / "train.features.npy"


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_features_by_place(tmp_path, kind):
    rows = np.arange(6, dtype=kind).reshape(3, 2)
    path = save(tmp_path / "f.npy", rows)
    captions = Captions(["a", "b", "c"], [["1", "2"], ["3"], ["4"]])
    found = read_features(path, captions)
    assert found.dtype == kind
    assert np.array_equal(found, rows)
    assert is_mapped(found)
    assert np.array_equal(read_features(path, captions.take([0, 0, 1, 2])), rows[[0, 0, 1, 2]])
    assert check_features(path, captions) == {path: []}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.from_numpy(found)[0] = 7
    assert np.array_equal(np.load(path), rows)  # the file is not written to


def test_features_by_name(tmp_path):
    rows = np.arange(10, dtype=np.float32).reshape(5, 2)
    rows[0] = np.nan  # nobody's
    path = save(tmp_path / "f.npy", rows, ["z.jpg", "a.jpg", "x/b.jpg", " c.jpg", "x/y/d.jpg"])

    def rows_of(*images):
        return [int(row[0]) // 2 for row in read_features(path, made(*images))]

    assert rows_of("a.jpg", "x/b.jpg", "c.jpg") == [1, 2, 3]
    assert rows_of("a.jpg", "c.jpg") == [1, 3]
    assert rows_of("c.jpg", "a.jpg", "c.jpg") == [3, 1, 3]
    assert rows_of("v/a.jpg", "b.jpg", "u/v/c.jpg", "y/d.jpg") == [
        1,
        2,
        3,
        4,
    ]  # folders in front of either
    assert is_mapped(read_features(path, made("x/b.jpg", "c.jpg")))
    assert read_features(path, made()).shape == (0, 2)
    assert faults_of(path, made("y/b.jpg", "a.jpg", "pa.jpg", "y/b.jpg")) == [
        (
            "f.npy",
            0,
            f"expected one row for image 'y/b.jpg' (image 1), got none in {names_file(path)}",
        ),  # another folder, another image
        (
            "f.npy",
            0,
            f"expected one row for image 'pa.jpg' (image 3), got none in {names_file(path)}",
        ),
    ]


def test_names_that_fit_twice(tmp_path):
    path = save(tmp_path / "f.npy", np.ones((3, 2)), ["x/a.jpg", "y/a.jpg", "b.jpg"])
    assert faults_of(path, made("a.jpg", "x/a.jpg", "x/b.jpg", "y/b.jpg")) == [
        (
            "f.npy",
            0,
            (
                "expected one row for image 'a.jpg' (image 1), got 2: 'x/a.jpg', 'y/a.jpg' in"
                f" {names_file(path)}"
            ),
        ),
        (
            "f.npy",
            0,
            (
                "expected one row for image 'y/b.jpg' (image 4), got one for 'x/b.jpg' as well:"
                f" 'b.jpg' in {names_file(path)}"
            ),
        ),
    ]
    with pytest.raises(
        DataError,
        match=r"f.npy: expected one row for image 'a.jpg' \(image 1\), got 2: .* \(and 1 more",
    ):
        read_features(path, made("a.jpg", "x/b.jpg", "y/b.jpg"))


def test_names_are_the_same_or_differ_in_folders(tmp_path):
    assert match_names(["a", "x/b", "y/c", "a", "d", "p/e"], ["z/a", "a", "b", "x/y/c", "q/e"]) == (
        {"a": "a", "x/b": "b", "y/c": "x/y/c"},
        {},  # d and p/e have nothing that fits
    )
    assert match_names(["x/a", "a"], ["a"]) == (
        {"a": "a"},
        {"x/a": "one for 'a' as well: 'a'"},
    )  # the same name first
    many = [f"{folder}/a" for folder in "abcdefg"]
    assert match_names(["a"], many)[1] == {"a": "7: 'a/a', 'b/a', 'c/a', 'd/a', 'e/a' and 2 more"}


def test_faults_of_names(tmp_path):
    path = save(tmp_path / "f.npy", np.ones((4, 2)), ["a.jpg", "", "a.jpg", "b.jpg"])
    assert faults_of(path, made("a.jpg", "b.jpg")) == [
        ("f.names.txt", 2, "expected the name of an image, got an empty line"),
        ("f.names.txt", 3, "expected each image once, got 'a.jpg' again, which is on line 1"),
    ]
    with pytest.raises(DataError, match=r"f.names.txt, line 2: expected the name of an image"):
        read_features(path, made("a.jpg"))
    save(path, np.ones((4, 2)), ["a.jpg", "b.jpg"])
    with pytest.raises(
        DataError,
        match=(
            r"f.names.txt: expected a name for each of the 4 rows of .*f.npy, one per line, got 2$"
        ),
    ):
        read_features(path, made("a.jpg"))
    assert faults_of(path, made("a.jpg")) == [
        ("f.names.txt", 0, f"expected a name for each of the 4 rows of {path}, one per line, got 2")
    ]


def test_fewer_and_more_features_than_images(tmp_path):
    captions = read_captions(write(tmp_path / "a.tsv", "a.jpg\t1\na.jpg\t2\nb.jpg\t3\nc.jpg\t4\n"))
    path = save(tmp_path / "f.npy", np.ones((1, 2)))
    with pytest.raises(
        DataError,
        match=(
            r"f.npy: expected 3 rows, one for each image, got 1, none for image 'b.jpg' \(.*a.tsv,"
            r" line 3\); if"
        ),
    ):
        read_features(path, captions)
    save(path, np.ones((0, 2)))
    with pytest.raises(DataError, match=r"got 0, none for image 'a.jpg'"):
        read_features(path, captions)
    save(path, np.ones((4, 2)))
    with pytest.raises(
        DataError,
        match=r"got 4; if rows are not the images .*f.names.txt must name them, one per line",
    ):
        read_features(path, captions)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("chunk", [1, 4, 1 << 22])
def test_features_that_are_not_finite(tmp_path, monkeypatch, value, chunk):
    monkeypatch.setattr("softq.formats.captions._CHUNK", chunk)
    rows = np.zeros((5, 2), np.float16)
    rows[3, 1] = rows[1, 0] = value
    path, captions = (
        save(tmp_path / "f.npy", rows),
        Captions(list("abcde"), [["1"]] * 5, [1, 3, 5, 7, 9], "c.tsv"),
    )
    assert faults_of(path, captions) == [
        (
            "f.npy",
            0,
            (
                f"the features of image {image!r} (c.tsv, line {line}) in row {row} are not finite:"
                " NaN or infinity"
            ),
        )
        for image, line, row in (("b", 3, 2), ("d", 7, 4))
    ]
    with pytest.raises(
        DataError,
        match=r"f.npy: the features of image 'b' \(c.tsv, line 3\) in row 2 .* \(and 1 more",
    ):
        read_features(path, captions)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.ones(3), r"expected features \[images, size\], a row for each image, got an array of"),
        (np.ones((3, 2, 1)), r"got an array of shape \[3, 2, 1\]"),
        (np.ones((3, 0)), r"got an array of shape \[3, 0\]"),
        (np.ones((3, 2), np.int64), "expected features as float16, float32 or float64, got <i8"),
        (np.ones((3, 2), ">f4"), "got >f4"),
        (np.ones((3, 2), np.complex64), "got <c8"),
        (np.array([["a", None]], object), "f.npy: cannot read it: expected an array of numbers"),
    ],
)
def test_arrays_that_are_no_features(tmp_path, rows, message):
    with pytest.raises(DataError, match=message):
        read_features(save(tmp_path / "f.npy", rows), made("a", "b", "c"))


def test_files_that_are_no_arrays(tmp_path):
    whole = save(tmp_path / "f.npy", np.ones((3, 2))).read_bytes()
    np.savez(tmp_path / "f.npz", np.ones((3, 2)))
    for content in (b"", b"a,b\n", (tmp_path / "f.npz").read_bytes(), whole[:20], whole[:-1]):
        (tmp_path / "f.npy").write_bytes(content)
        with pytest.raises(DataError, match=r"f.npy: cannot read it: expected an array of numbers"):
            read_features(tmp_path / "f.npy", made("a", "b", "c"))
    for absent in (tmp_path / "absent.npy", tmp_path):
        ((_, message),) = check_features(absent, made("a"))[absent]
        assert message.startswith("cannot read it: expected an array of numbers")
        assert str(absent) not in message  # whoever lists faults says whose they are
