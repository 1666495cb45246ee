"""Tables: a field is what stands in the file, or an error says that it does not fit."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aioqueue import DataLossError, InvalidArgumentError
from aioqueue.readers.csv import read_csv
from tests.conftest import Write


def path_offset(path: str, line: int) -> int:
    """Where a line begins, in bytes."""
    with open(path, "rb") as file:
        return sum(map(len, file.readlines()[: line - 1]))


class TestCsv:
    def test_one_dtype_makes_arrays(self, write: Write) -> None:
        rows = list(read_csv(write("1,2\n3,4\n"), "float32"))
        assert [row.tolist() for row in rows] == [[1, 2], [3, 4]]
        assert {row.dtype for row in rows} == {np.dtype("float32")}

    def test_several_make_tuples(self, write: Write) -> None:
        rows = list(read_csv(write("1,0.5,cat\n2,1.5,dog\n"), ["int64", "float32", str]))
        assert rows == [(1, 0.5, "cat"), (2, 1.5, "dog")]
        assert [type(value) for value in rows[0]] == [np.int64, np.float32, str]

    def test_names_make_dicts(self, write: Write) -> None:
        path = write("made by hand\nid, size ,kind\n1,0.5,cat\n2,1.5,dog\n")
        reader = read_csv(path, {"kind": str, "id": "int32"}, skip_header_lines=2)
        assert list(reader) == [{"kind": "cat", "id": 1}, {"kind": "dog", "id": 2}]

    def test_columns_can_be_chosen(self, write: Write) -> None:
        path = write("a,b,c\n1,2,x\n3,4,y\n")
        by_number = read_csv(path, "int64", columns=[1, 0], skip_header_lines=1)
        by_name = read_csv(path, "int64", columns=["b", "a"], skip_header_lines=1)
        assert [row.tolist() for row in by_number] == [[2, 1], [4, 3]]
        assert [row.tolist() for row in by_name] == [[2, 1], [4, 3]]

    def test_each_file_has_its_own_header(self, write: Write) -> None:
        paths = [write("a,b\n1,2\n", "one"), write("b,a\n2,1\n", "two"), write("", "empty")]
        reader = read_csv(paths, {"a": int, "b": int}, skip_header_lines=1)
        assert list(reader) == [{"a": 1, "b": 2}] * 2

    @pytest.mark.parametrize(
        ("dtype", "field", "value"),
        [
            ("U3", "abc", "abc"),
            ("U3", "é", "é"),
            ("S3", "abc", b"abc"),
            ("S3", "é", "é".encode()),
            (str, "of any length", "of any length"),
            (bytes, "of any length", b"of any length"),
            ("S", "é", "é".encode()),
            ("O", "a", "a"),
            ("int8", " -128", -128),
            ("uint64", "18446744073709551615", 2**64 - 1),
            ("float32", "1e38", np.float32(1e38)),
            ("float32", "-inf", -np.inf),
            ("float64", "Infinity", np.inf),
            ("float16", "65504", 65504),
            ("float32", "1e-60", 0),
            ("complex64", "1+2j", 1 + 2j),
            ("complex64", "inf", complex("inf")),
            ("bool", "1", True),
            ("bool", "0", False),
            ("M8[D]", "2020", np.datetime64("2020-01-01")),
            ("M8[D]", "2020-02-03T00:00", np.datetime64("2020-02-03")),
            ("M8[ns]", "2020-02-03T04:05:06.789", np.datetime64("2020-02-03T04:05:06.789")),
            ("m8[s]", "-5", np.timedelta64(-5, "s")),
            (">i4", "7", 7),
        ],
    )
    def test_fields_that_fit(self, dtype: Any, field: str, value: Any, write: Write) -> None:
        path = write(f"0,{field}\n1,{field}\n")
        rows = list(read_csv(path, ["int64", dtype]))
        assert rows == [(0, value), (1, value)]
        assert type(rows[0][1]) is np.dtype(dtype).type or type(rows[0][1]) is type(value)
        (first, second) = read_csv(path, dtype, columns=[1])
        assert first.tolist() == second.tolist() == np.array([value], first.dtype).tolist()

    @pytest.mark.parametrize(
        ("dtype", "field"),
        [
            *(("U3", "abcd"), ("U3", "a\0"), ("S3", "abcd"), ("S3", "éé"), ("S1", "a\0")),
            *(("int8", "128"), ("uint8", "-1"), ("int64", "9223372036854775808")),
            *(("int64", "1.0"), ("int64", "1e2"), ("int64", "nan"), ("int64", "")),
            *(("float16", "1e5"), ("float32", "1e39"), ("float64", "1e400"), ("float64", "")),
            *(("float32", "-1e39"), ("complex64", "1e39"), ("complex64", "1+1e39j")),
            *(("bool", "2"), ("bool", "-1"), ("bool", "1.0"), ("bool", "yes"), ("bool", "")),
            *(("M8[D]", "2020-02-03T04:05"), ("M8[ns]", "3000-01-01"), ("M8[s]", "soon")),
            *(("M8[D]", "today"), ("M8[s]", " Now")),
            *(("m8[s]", "9" * 20), ("m8[s]", "1.5")),
        ],
    )
    def test_fields_that_do_not_fit_are_never_changed(
        self, dtype: Any, field: str, write: Write
    ) -> None:
        """Not cut, not wrapped, not infinite: the error names the line and the column."""
        good = {"U": "a", "S": "a", "M": "2020-01-01"}.get(np.dtype(dtype).kind, "1")
        path = write(f"h,h,h\n\n{good},x,{good}\n{good},x,{field}\n{good},x,{good}\n")
        skip: Any = {"skip_header_lines": 1}
        for reader, column in (
            (read_csv(path, [dtype, str, dtype], **skip), 3),
            (read_csv(path, [dtype, dtype], columns=[0, 2], **skip), 3),
            (read_csv(path, dtype, columns=[2, 0], **skip), 3),
        ):
            read = []
            with pytest.raises(
                DataLossError, match=f"{path}: line 4: .* column {column}"
            ) as reported:
                for row in reader:
                    read.append(row)  # noqa: PERF402  # what was read before the failure
            assert len(read) == 1
            assert reported.value.offset == path_offset(path, 4)

    @pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "cp1252", "utf-8-sig"])
    def test_bytes_are_those_of_the_file(self, encoding: str, write: Write) -> None:
        path = write("é,1\n".encode(encoding))
        assert list(read_csv(path, [bytes, int], encoding=encoding)) == [
            ("é".encode(encoding).removeprefix(b"\xef\xbb\xbf"), 1)
        ]

    def test_messages_have_our_names_of_arguments(self, write: Write) -> None:
        with pytest.raises(DataLossError, match=r"requires 1 columns .*; pass columns=\[\.\.\.\]"):
            list(read_csv(write("1,2\n"), [int]))

    @pytest.mark.slow
    def test_of_many_strings_one_is_too_long(self, write: Write) -> None:
        path = write("abc\n" * 40_000 + "abcd\n")
        reader = iter(read_csv(path, ["U3"]))
        assert len(list(islice(reader, 40_000))) == 40_000
        with pytest.raises(DataLossError, match="line 40001: 'abcd' does not fit <U3 in column 1"):
            next(reader)

    def test_rows_of_empty_fields_are_rows(self, write: Write) -> None:
        rows = list(read_csv(write("a\tb\n\t\n\nc\td\n"), [str, str], delimiter="\t"))
        assert rows == [("a", "b"), ("", ""), ("c", "d")]
        assert list(read_csv(write(",\n \n\r\n"), [str, str])) == [("", "")]
        path = write("a b\n \n\n")
        pairs = list(read_csv(path, [str, bytes], delimiter=" ").with_keys())
        assert pairs == [(f"{path}:1", ("a", b"b")), (f"{path}:2", ("", b""))]

    def test_a_return_within_a_line_is_reported(self, write: Write) -> None:
        with pytest.raises(DataLossError, match=r"line 2: .*newline"):
            list(read_csv(write("a,b\nc\rd,e\n"), [str, str]))

    def test_blank_lines_are_no_rows_but_count(self, write: Write) -> None:
        path = write("1\n\n  \r\n2\r\n\n")
        pairs = [(key, row.tolist()) for key, row in read_csv(path, int).with_keys()]
        assert pairs == [(f"{path}:1", [1]), (f"{path}:4", [2])]

    def test_fields_can_be_quoted(self, write: Write) -> None:
        path = write('"a,b",1\n"say ""hi""",2\n')
        assert list(read_csv(path, [str, int])) == [("a,b", 1), ('say "hi"', 2)]
        assert list(read_csv(write("'a;b';1"), [str, int], delimiter=";", quotechar="'")) == [
            ("a;b", 1)
        ]
        assert list(read_csv(write('a",1'), [str, int], quotechar=None)) == [('a"', 1)]

    def test_a_hash_is_no_comment(self, write: Write) -> None:
        assert list(read_csv(write("#a,1\n"), [str, int])) == [("#a", 1)]

    def test_of_many_blocks(self, write: Write) -> None:
        path = write("x,y\n" + "".join(f"{n},{n}.5\n" for n in range(20_000)))
        rows = list(read_csv(path, ["int64", "float64"], skip_header_lines=1))
        assert rows == [(n, n + 0.5) for n in range(20_000)]

    @pytest.mark.parametrize(
        ("line", "fault"),
        [
            ("x,2", "could not convert string 'x' to int64 in column 1"),
            (",2", "could not convert string '' to int64 in column 1"),
            ("1", "requires 2 columns but 1 were found"),
            ("1,2,3", "requires 2 columns but 3 were found"),
            ('"1,2', "a quoted field has no end"),
        ],
    )
    def test_a_line_that_does_not_fit_is_data_loss(
        self, line: str, fault: str, write: Write
    ) -> None:
        path = write(f"h\r\n\n1,1\r\n2,2\r\n{line}\n3,3\n")
        read = []
        with pytest.raises(DataLossError, match=f"{path}: line 5: .*{fault}") as caught:
            for row in read_csv(path, ["int64", "int64"], skip_header_lines=1):
                read.append(row)  # noqa: PERF402  # what was read before the failure
        assert read == [(1, 1), (2, 2)]
        assert (caught.value.path, caught.value.offset) == (path, 14)

    def test_rows_of_one_array_must_have_one_width(self, write: Write) -> None:
        path = write("1,2\n" * 30_000 + "1,2,3\n" * 30_000)
        reader = iter(read_csv(path, "int64"))
        assert len(list(islice(reader, 30_000))) == 30_000
        with pytest.raises(DataLossError, match=r"line 30001: it has 3 columns, .* above have 2"):
            next(reader)

    def test_a_column_that_is_missing_is_data_loss(self, write: Write) -> None:
        path = write("title\na,b\n1,2\n")
        with pytest.raises(DataLossError, match=r"line 2: no column 'c' among \['a', 'b'\]") as e:
            list(read_csv(path, {"c": int}, skip_header_lines=2))
        assert e.value.offset == 6

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"dtypes": "no such"}, "dtypes: got 'no such'"),
            ({"dtypes": None}, "dtypes: got None"),
            ({"dtypes": "V"}, "dtypes: got 'V'; expected a number, string or time dtype"),
            ({"dtypes": ["int64", "V4"]}, "dtypes: got 'V4'; expected a number"),
            ({"dtypes": [("int64", (2,)), "int64"]}, "dtypes: got .*; expected a number"),
            ({"dtypes": np.dtype([("a", "int64")])}, "dtypes: got .*; expected a number"),
            ({"dtypes": []}, r"dtypes: got \[\]"),
            ({"dtypes": ["int64", None]}, "dtypes: got None"),
            ({"dtypes": ["int64"], "columns": [0, 1]}, "dtypes: .* each column"),
            ({"dtypes": {"a": int}, "columns": ["a"]}, "columns: got .* dict"),
            ({"dtypes": {}}, "columns|dtypes"),
            ({"columns": []}, r"columns: got \[\]"),
            ({"columns": [-1]}, "columns"),
            ({"columns": [0, "a"]}, "columns"),
            ({"columns": "ab"}, "columns"),
            ({"columns": ["a"]}, "skip_header_lines: got 0 for columns with names"),
            ({"delimiter": ""}, "delimiter: got ''"),
            ({"delimiter": ", "}, "delimiter"),
            ({"delimiter": None}, "delimiter"),
            ({"delimiter": "\n"}, "delimiter"),
            ({"quotechar": "ab"}, "quotechar"),
            ({"quotechar": ","}, "quotechar: got ',';"),
            ({"encoding": None}, "encoding: got None"),
        ],
    )
    def test_wrong_arguments_are_named(self, arguments: dict[str, Any], message: str) -> None:
        with pytest.raises(InvalidArgumentError, match=message):
            read_csv("a", **{"dtypes": "int64", **arguments})


class TestAllColumns:
    """What is not used has to be there all the same: a torn row is reported."""

    @pytest.mark.parametrize("torn", ["Oslo, N,3,4", "1,2", "1,2,3,", '"1",2,3,4', '"1,2",3'])
    @pytest.mark.parametrize(
        ("dtypes", "columns"),
        [
            (str, None),
            (str, [0]),
            ([str, str], [1, 0]),
            ([str, str], ["b", "a"]),
            ({"b": str}, None),
        ],
        ids=str,
    )
    def test_rows_with_other_numbers_of_fields(
        self, dtypes: Any, columns: Any, torn: str, write: Write
    ) -> None:
        sound = '4,5,6\n"a,b",5,6\n7,8,9\n'
        path = write(f"a,b,c\n{sound}{torn}\n{sound}")
        rows = []
        with pytest.raises(DataLossError, match="line 5: "):
            for row in read_csv(path, dtypes, columns=columns, skip_header_lines=1):
                rows.append(row)  # noqa: PERF402  # what was read before the failure
        assert len(rows) == 3

    def test_the_header_has_the_number_of_columns(self, write: Write) -> None:
        path = write("a,b,c\n1,2,3,4\n1,2,3,4\n")
        with pytest.raises(DataLossError, match="line 2: it has 4 columns, and lines above have 3"):
            list(read_csv(path, {"b": int}, skip_header_lines=1))
        assert len(list(read_csv(path, int, columns=[1], skip_header_lines=1))) == 2

    @pytest.mark.slow
    def test_behind_a_mark_the_header_is_known(self, write: Write) -> None:
        path = write("a,b,c\n" + "1,2,3\n" * 15_000 + "1,2,3,4\n")
        reader = read_csv(path, {"b": int}, skip_header_lines=1)
        run = reader.placed()
        place = [next(run).place for _ in range(14_000)][-1]
        with pytest.raises(DataLossError, match=r"line 15002: it has 4 columns, .* have 3"):
            list(read_csv(path, {"b": int}, skip_header_lines=1).after(reader.position(place)))

    @pytest.mark.parametrize("header", ["size,age,size", "size, size,age", '"size",age,size'])
    def test_a_name_that_is_there_twice(self, header: str, write: Write) -> None:
        path = write(f"{header}\n1,2,3\n")
        with pytest.raises(DataLossError, match="line 1: column 'size' occurs 2 times"):
            list(read_csv(path, {"size": int}, skip_header_lines=1))
        assert len(list(read_csv(path, {"age": int}, skip_header_lines=1))) == 1


@pytest.mark.parametrize(
    ("header", "columns", "expected"),
    [
        ("a, b", ["b", "a"], ["2", "1"]),
        ("a, b", [" b", "a"], ["2", "1"]),
        ("a, a", ["a", " a"], ["1", "2"]),
        ("a, a", [" a"], ["2"]),
        ("a , a", [" a", "a "], ["2", "1"]),
        ('"\na",a', ["\na", "a"], ["1", "2"]),
    ],
)
def test_spaces_around_names_count_if_they_are_written(
    header: str, columns: list[str], expected: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"{header}\n1,2\n")
    rows = read_csv(str(path), [str] * len(columns), columns=columns, skip_header_lines=1)
    assert list(rows) == [tuple(expected)]


def test_spaces_around_names_that_make_two_of_one(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a , a\n1,2\n")
    with pytest.raises(DataLossError, match="'a' occurs 2 times"):
        list(read_csv(str(path), [str], columns=["a"], skip_header_lines=1))
