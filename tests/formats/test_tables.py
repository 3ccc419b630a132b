"""CSV files of numbers and labels, and tables of costs."""

import gzip

import numpy as np
import pytest

from softq.errors import DataError
from softq.formats.tables import Table, read_costs


def test_cells_by_their_columns(tmp_path):
    text = 'size, kind ,"a, b"\r\n1.5,x,2\r\n\r\n-3e1," y ",4\r\n'
    table = Table.read(text)
    assert table.header == ["size", "kind", "a, b"]
    assert table.column("kind") == ["x", "y"]
    np.testing.assert_array_equal(table.numbers(["a, b", "size"]), [[2.0, 1.5], [4.0, -30.0]])
    assert table.lines == [2, 4]
    path = tmp_path / "rows.csv.gz"
    path.write_bytes(gzip.compress(text.encode()))
    assert Table.read(path).rows == table.rows


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n", "the text: expected a header and at least one row, got 1 rows"),
        ("\n", "got 0 rows"),
        ("a,a\n1,2\n", "line 1: expected names of columns that differ"),
        ("a,\n1,2\n", "line 1: expected names of columns that differ"),
        ("a,b\n1,2\n1\n", "line 3: expected 2 columns as in the header, got 1"),
        ("a,b\n1,2\nred,2\n", "line 3, column 'a': expected a number, got 'red'; give categories"),
        ("a,b\n,2\n", "line 2, column 'a': expected a number, got ''"),
        ("a,b\nnan,2\n", "line 2, column 'a': expected a number, got 'nan'"),
        ("b,c\n1,2\n", "expected a column 'a', got b, c"),
        ('a,b\n"1' + "x" * 200_000 + '",2\n', "line 2: field larger than field limit"),
    ],
)
def test_what_is_no_table_is_told_with_its_line(text, message):
    with pytest.raises(DataError, match=message):
        Table.read(text).numbers(["a"])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("costs.csv", "decided,no,yes\nyes,1,0\nno,0,10\n"),
        ("costs.toml", "[no]\nno = 0\nyes = 10\n[yes]\nno = 1.0\nyes = 0\n"),
    ],
)
def test_costs_are_in_the_order_of_the_classes(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text, "utf-8")
    assert read_costs(path, ["no", "yes"]).tolist() == [[0.0, 10.0], [1.0, 0.0]]
    assert read_costs(path, ["yes", "no"]).tolist() == [[0.0, 1.0], [10.0, 0.0]]
    with pytest.raises(DataError, match="to decide 'no' where 'perhaps' is right, got nothing"):
        read_costs(path, ["no", "perhaps"])


def test_damaged_costs(tmp_path):
    path = tmp_path / "costs.toml"
    path.write_text("[no\n", "utf-8")
    with pytest.raises(DataError, match=r"costs\.toml: expected TOML"):
        read_costs(path, ["no"])
    path.write_text('no = 3\n[yes]\nyes = "0"\n', "utf-8")
    with pytest.raises(DataError, match="to decide 'no' where 'no' is right, got nothing"):
        read_costs(path, ["no", "yes"])
    with pytest.raises(DataError, match="to decide 'yes' where 'yes' is right, got '0'"):
        read_costs(path, ["yes"])
