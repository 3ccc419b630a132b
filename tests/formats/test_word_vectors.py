"""Files of word vectors: what is read of them, and what is refused with its line."""

import gzip

import numpy as np
import pytest

from softq.errors import DataError
from softq.formats.word_vectors import read_vectors

TEXT = "the 0.5 1 -2\nRome 1e-3 2 3\ncat 4 5 6\n"


def write(folder, text, name="v.txt"):
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def save(folder, table, words):
    np.save(folder / "v.100d.npy", table)
    write(folder, "".join(f"{word}\n" for word in words), "v.100d.words.txt")
    return folder / "v.100d.npy"


def test_text_with_and_without_a_first_line_packed_or_not(tmp_path):
    plain = read_vectors(write(tmp_path, TEXT))
    assert plain.words == ("the", "Rome", "cat")
    assert plain.table.dtype == np.float32
    np.testing.assert_array_equal(
        plain.table, np.array([[0.5, 1, -2], [1e-3, 2, 3], [4, 5, 6]], np.float32)
    )
    with_header = read_vectors(write(tmp_path, "3 3\n" + TEXT.replace("\n", " \n"), "w2v.vec"))
    packed = tmp_path / "v.txt.gz"
    packed.write_bytes(gzip.compress(TEXT.encode()))
    for found in (with_header, read_vectors(packed)):
        assert found.words == plain.words
        np.testing.assert_array_equal(found.table, plain.table)


def test_only_what_is_asked_for_is_kept_and_the_first_of_a_word(tmp_path):
    found = read_vectors(write(tmp_path, TEXT + "cat 9 9 9\n"), ["cat", "dog", "the"])
    assert found.words == ("the", "cat")
    assert found.table.tolist() == [[0.5, 1, -2], [4, 5, 6]]
    none = read_vectors(write(tmp_path, TEXT), ["dog"])
    assert (none.words, none.table.shape) == ((), (0, 3))


def test_a_word_with_spaces_is_no_wrong_number_of_columns(tmp_path):
    found = read_vectors(write(tmp_path, TEXT + ". . . 7 8 9\n"))
    assert found.words[-1] == ". . ."
    assert found.table[-1].tolist() == [7, 8, 9]


def test_an_array_with_its_words_beside_it(tmp_path):
    table = np.arange(12).reshape(4, 3).astype(np.float16)
    path = save(tmp_path, table, ["a", "b", "a", "c"])
    found = read_vectors(path)
    assert found.words == ("a", "b", "c")
    assert found.table.dtype == np.float32
    np.testing.assert_array_equal(found.table, table[[0, 1, 3]])
    assert read_vectors(path, {"c", "z"}).table.tolist() == [[9, 10, 11]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TEXT + "dog 1 2\n", "v.txt, line 4: expected a word and 3 numbers after it, as on the"),
        (TEXT + "dog 1 2 3 4\n", "line 4: expected a word and 3 numbers .*, got 5 columns"),
        (TEXT + "\n", "line 4: expected a word and 3 numbers .*, got 0 columns"),
        ("the\n", "line 1: expected a word and numbers after it"),
        (TEXT.replace("2 3", "2 x"), "v.txt, line 2 .'Rome'.: expected numbers, got .*'x'"),
        (TEXT.replace("2 3", "2 nan"), "line 2 .'Rome'.: expected finite numbers, got NaN or inf"),
        ("4 3\n" + TEXT, "expected the 4 words that its first line says, got 3"),
        ("3 2\n" + TEXT, "line 2: expected a word and 2 numbers"),
        ("0 3\n", "v.txt: expected word vectors, got none"),
    ],
)
def test_text_that_is_wrong_is_told_with_its_line(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        read_vectors(write(tmp_path, text))


def test_arrays_that_are_wrong(tmp_path):
    words = ["a", "b"]
    for table, known, message in (
        (np.ones((2, 3)), [*words, "c"], "words.txt: expected 2 words, .* got 3 lines"),
        (np.ones((2, 3)), ["a", "b c"], "words.txt, line 2: expected one word, got 'b c'"),
        (np.ones(3), words, r"expected word vectors, floats .*, got float64 \[3\]"),
        (np.ones((2, 3), np.int64), words, "got int64"),
        (np.array([[1.0], [np.nan]]), words, r"npy, row 1 \('b'\): expected finite numbers"),
    ):
        with pytest.raises(DataError, match=message):
            read_vectors(save(tmp_path, table, known))
    for path in (write(tmp_path, "no array", "x.npy"), tmp_path / "missing.npy"):
        with pytest.raises(DataError, match="cannot read the word vectors"):
            read_vectors(path)
