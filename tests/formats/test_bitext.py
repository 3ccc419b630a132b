"""Files of sentences and their translations."""

import gzip
import io
import lzma

import pytest

from softq.cli.kinds.sentences import read_as_they_come
from softq.errors import DataError
from softq.formats.bitext import read_bitext
from softq.formats.text import read_lines


def write(path, text):
    pack = {".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix, bytes)
    path.write_bytes(pack(text.encode()))
    return path


def test_columns(tmp_path):
    text = "Ja.\tYes.\nNein. \t No.\tNope.\r\nJa.\tYeah.\n Ja.\tYes.\n"
    for name in ("a.tsv", "a.tsv.gz", "a.tsv.xz"):
        found = read_bitext(write(tmp_path / name, text))
        assert found.sources == ["Ja.", "Nein."]
        assert found.references == [["Yes.", "Yeah.", "Yes."], ["No.", "Nope."]]
        assert (found.lines, len(found), found.place(1)) == (
            [1, 2],
            2,
            f"{tmp_path / name}, line 2",
        )
    apart = read_bitext(tmp_path / "a.tsv", merge=False)
    assert apart.sources == ["Ja.", "Nein.", "Ja.", "Ja."]
    assert apart.references == [["Yes."], ["No.", "Nope."], ["Yeah."], ["Yes."]]
    assert apart.place(3).endswith("line 4")


def test_files_side_by_side(tmp_path):
    sources = write(tmp_path / "a.de", "x\ny\nx\n")
    first, second = write(tmp_path / "a.en.gz", "1\n2\n3"), write(tmp_path / "b.en", "4\t4\n5\n6\n")
    found = read_bitext(sources, first, second)
    assert (found.sources, found.references, found.lines) == (
        ["x", "y"],
        [["1", "4\t4", "3", "6"], ["2", "5"]],
        [1, 2],
    )
    apart = read_bitext(sources, first, second, merge=False)
    assert (apart.sources, apart.references) == (
        ["x", "y", "x"],
        [["1", "4\t4"], ["2", "5"], ["3", "6"]],
    )
    assert read_bitext(sources, first).references == [["1", "3"], ["2"]]
    assert read_bitext(sources, first).name == str(sources)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a.tsv is empty"),
        (
            "a\tb\n\nc\td\n",
            (
                "a.tsv, line 2: expected a source, a tab and one or more references separated by"
                " tabs, got an empty line"
            ),
        ),
        ("a\tb\n \t\n", "line 2: .* got an empty line"),
        ("a\tb\nc d\n", "line 2: .* got no tab"),
        ("\tb\n", "line 1: .* got references without a source"),
        ("a\t\n", "line 1: .* got 'a' without a reference"),
        ("a\tb\t\td\n", "line 1: .* got an empty reference in column 3"),
    ],
)
def test_faults_in_columns(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        read_bitext(write(tmp_path / "a.tsv", text))


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (("a\nb\n", "c\n"), r"got .*1\.txt with 1 lines and .*0\.txt with more"),
        (("a\n", "c\n", "d\ne\n"), r"got .*0\.txt with 1 lines and .*2\.txt with more"),
        (("a\n\n", "c\nd\n"), r"0\.txt, line 2: expected a sentence, got an empty line$"),
        (("a\nb\n", "c\n \n"), r"1\.txt, line 2: expected a sentence, got an empty line; sources"),
        (("", ""), r"0\.txt is empty"),
    ],
)
def test_faults_of_files_side_by_side(tmp_path, texts, message):
    paths = [write(tmp_path / f"{number}.txt", text) for number, text in enumerate(texts)]
    with pytest.raises(DataError, match=message):
        read_bitext(*paths)


@pytest.mark.parametrize("name", ["a.tsv", "a.tsv.gz", "a.tsv.xz"])
def test_bytes_that_are_not_utf_8_have_a_line(tmp_path, name):
    pack = {".gz": gzip.compress, ".xz": lzma.compress}.get((tmp_path / name).suffix, bytes)
    (tmp_path / name).write_bytes(pack(b"a\tb\nc\td\ng\tgr\xfcn\nx\ty\n"))
    with pytest.raises(
        DataError,
        match=f"{name}, line 3: expected UTF-8, got byte 0xfc at offset 12 of the file; convert it",
    ):
        read_bitext(tmp_path / name)


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.txt.xz"])
def test_lines_end_at_lf_and_cr_lf_alone(tmp_path, name):
    inside = ["a\rb", "c\x0bd\x0ce", "\ufefff\x85g", "h\u2028i"]
    path = write(tmp_path / name, "\ufeff" + "\r\n".join(inside) + "\n\nlast")
    assert list(read_lines(path)) == [*inside, "", "last"]
    file = io.BufferedReader(io.BytesIO(("\ufeff" + "\r\n".join(inside) + "\n\nlast").encode()))
    assert [line for lines in read_as_they_come(file, "pipe") for line in lines] == [
        *inside,
        "",
        "last",
    ]


def test_no_files(tmp_path):
    with pytest.raises(DataError, match="got no file"):
        read_bitext()
    with pytest.raises(DataError, match="cannot read"):
        read_bitext(tmp_path / "absent.tsv")
