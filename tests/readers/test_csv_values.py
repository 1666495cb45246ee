"""Quoted newlines, nulls and bools in tables; random ones against Python's `csv`."""

from __future__ import annotations

import csv
import io
import random
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest

from aioqueue import DataLossError, InvalidArgumentError
from aioqueue.inputs import read_csv
from aioqueue.readers import lines as reading
from tests.conftest import Write


def table(draw: random.Random, delimiter: str, ends: str) -> tuple[str, list[list[str]]]:
    """A file with random fields, and its rows as `csv` reads them."""
    parts = ["a", '"', '""', "\n", "\r\n", delimiter, " ", "é", "x" * 9, "'"]
    rows = [
        ["".join(draw.choices(parts, k=draw.randrange(4))) for _ in range(3)]
        for _ in range(draw.randrange(1, 12))
    ]
    file = io.StringIO(newline="")
    quoting: Any = draw.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
    csv.writer(file, delimiter=delimiter, lineterminator=ends, quoting=quoting).writerows(rows)
    text = file.getvalue().removesuffix(ends if draw.random() < 0.3 else "\0")
    return text, list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))


class TestQuotedNewlines:
    def test_a_row_may_have_several_lines(self, write: Write) -> None:
        path = write('name,note\nx,"one\ntwo"\n"y","",\n'.replace('"",', '""'))
        rows = list(read_csv(path, [str, str], skip_header_lines=1).with_keys())
        assert rows == [(f"{path}:2", ("x", "one\ntwo")), (f"{path}:4", ("y", ""))]

    def test_returns_within_quotes_stay(self, write: Write) -> None:
        path = write('"a\r\nb",1\r\n"c\rd",2\r\n')
        assert list(read_csv(path, [str, int])) == [("a\r\nb", 1), ("c\rd", 2)]

    def test_a_quote_within_a_field_is_a_quote(self, write: Write) -> None:
        path = write('5" pipe,1\na"b,2\n"c"d,3\n')
        assert list(read_csv(path, [str, int])) == [('5" pipe', 1), ('a"b', 2), ("cd", 3)]

    def test_header_lines_are_lines(self, write: Write) -> None:
        path = write('"made by hand\nkind,size\n"a\nb",1\n')
        rows = list(read_csv(path, {"kind": str, "size": int}, skip_header_lines=2))
        assert rows == [{"kind": "a\nb", "size": 1}]

    @pytest.mark.parametrize("block", [1, 7, 64])
    def test_a_field_without_end_is_reported_where_it_begins(
        self, block: int, write: Write, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(reading, "_BLOCK", block)
        path = write('a,1\n"b\nb",2\n"c,3\nd,4\ne,5\n')
        read = []
        with pytest.raises(DataLossError, match="line 4: a quoted field has no end") as reported:
            for row in read_csv(path, [str, int]):
                read.append(row)  # noqa: PERF402  # what was read before the failure
        assert read == [("a", 1), ("b\nb", 2)]
        assert reported.value.offset == 12

    def test_a_row_has_a_largest_size(self, write: Write) -> None:
        path = write('a,1\n"' + "b\n" * 200_000)
        with pytest.raises(DataLossError, match="a row exceeds max_line_bytes=65536") as reported:
            list(read_csv(path, [str, int], max_line_bytes=2**16))
        assert reported.value.offset == 4

    def test_what_follows_does_not_fit(self, write: Write) -> None:
        path = write('"a\nb",1\n"c\n\nd",x\n')
        with pytest.raises(DataLossError, match=r"line 3: .*'x'") as reported:
            list(read_csv(path, [str, int]))
        assert reported.value.offset == 8

    @pytest.mark.parametrize("seed", range(40))
    def test_random_tables(self, seed: int, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
        """They are read as `csv` reads them, in blocks of any size, and from any position."""
        draw = random.Random(seed)
        monkeypatch.setattr(reading, "_BLOCK", draw.choice([1, 2, 5, 17, 2**16]))
        delimiter, ends = draw.choice(",;\t"), draw.choice(["\n", "\r\n"])
        text, rows = table(draw, delimiter, ends)
        header = draw.choice(["", "a title\nb c d\n"])
        encoding = draw.choice(["utf-8", "latin-1", "utf-7"])
        path = write((header + text).encode(encoding))
        reader = read_csv(
            path,
            [str, str, str],
            delimiter=delimiter,
            encoding=encoding,
            skip_header_lines=header.count("\n"),
        )
        expected = [tuple(row) for row in rows if len(row) == 3]
        assert list(reader) == expected
        for number, placed in enumerate(list(reader.placed()), 1):
            rest = list(reader.after(reader.position(placed.place)))
            assert rest == expected[number:]

    def test_a_mark_is_that_of_a_row(self, write: Write) -> None:
        """Also if the row begins in one block, and ends in the next."""
        path = write("".join(f'{n},"{"line " * 9}\n{n}"\n' for n in range(4000)))
        reader = read_csv(path, [int, str])
        rows = list(reader)
        assert [int(row[1].split("\n")[1]) for row in rows] == list(range(4000))
        for taken in (1, 1100, 1213, 2500, 3999):
            *_, last = islice(reader.placed(), taken)
            assert list(reader.after(reader.position(last.place))) == rows[taken:]


class TestNulls:
    def test_are_none_in_rows(self, write: Write) -> None:
        path = write("id,size,kind,day\n1,NA,cat,2020-01-01\n,0.5,NA,NA\n")
        dtypes = {"id": int, "size": "float32", "kind": str, "day": "M8[D]"}
        rows = list(read_csv(path, dtypes, skip_header_lines=1, null_values=["", "NA"]))
        assert rows == [
            {"id": 1, "size": None, "kind": "cat", "day": np.datetime64("2020-01-01")},
            {"id": None, "size": 0.5, "kind": None, "day": None},
        ]
        assert [type(rows[0]["id"]), type(rows[1]["size"])] == [np.int64, np.float32]

    def test_are_filled_by_column(self, write: Write) -> None:
        path = write("id,size,kind\n1,NA,cat\nNA,0.5,NA\n")
        dtypes = {"id": "int8", "size": "float32", "kind": str}
        fill = {"id": -1, "kind": "?"}
        skip: Any = {"skip_header_lines": 1, "null_values": "NA"}
        assert list(read_csv(path, dtypes, fill_null=fill, **skip)) == [
            {"id": 1, "size": None, "kind": "cat"},
            {"id": -1, "size": 0.5, "kind": "?"},
        ]

    def test_in_arrays(self, write: Write) -> None:
        path = write("1,NA\n NA ,2\n")
        rows = list(read_csv(path, "float32", null_values=["NA"]))
        assert np.array_equal(rows, [[1, np.nan], [np.nan, 2]], equal_nan=True)
        assert rows[0].dtype == np.float32
        filled = read_csv(path, "int64", null_values=["NA"], fill_null=-1)
        assert [row.tolist() for row in filled] == [[1, -1], [-1, 2]]
        by_column = read_csv(
            path, "int64", columns=[1, 0], null_values="NA", fill_null={0: -1, 1: -2}
        )
        assert [row.tolist() for row in by_column] == [[-2, 1], [2, -1]]
        texts = read_csv(path, str, null_values=["NA", " NA "])
        assert [row.tolist() for row in texts] == [["1", None], [None, "2"]]

    def test_spaces_count_in_strings_only(self, write: Write) -> None:
        path = write("NA, NA \n NA ,NA\n")
        assert list(read_csv(path, [str, "float64"], null_values="NA")) == [
            (None, None),
            (" NA ", None),
        ]

    def test_what_is_no_token_has_to_fit(self, write: Write) -> None:
        for field, fault in (
            ("x", "'x' does not fit int8 in column 2"),
            ("", "'' does not fit int8 in column 2"),
            ("1000", "'1000' does not fit int8 in column 2"),
        ):
            path = write(f"NA,NA\nNA,3\nNA,{field}\n")
            with pytest.raises(DataLossError, match=f"line 3: .*{fault}"):
                list(read_csv(path, [str, "int8"], null_values="NA"))

    def test_rows_of_other_widths(self, write: Write) -> None:
        path = write("1,2\n1\n")
        with pytest.raises(DataLossError, match="line 2: "):
            list(read_csv(path, [int, int], null_values="NA"))
        with pytest.raises(DataLossError, match="line 2: "):
            list(read_csv(path, "float64", null_values="NA"))
        with pytest.raises(DataLossError, match="line 1: it has 2 columns; expected 3"):
            list(read_csv(path, [int, int, int], null_values="NA"))

    @pytest.mark.parametrize("seed", range(20))
    def test_random_tables(self, seed: int, write: Write) -> None:
        draw = random.Random(seed)
        dtypes: dict[str, Any] = {
            "i": "int32",
            "f": "float64",
            "b": "bool",
            "s": "U3",
            "v": str,
            "d": "M8[s]",
            "t": "m8[s]",
        }
        made: dict[str, Callable[[], str]] = {
            "i": lambda: str(draw.randrange(-9, 9)),
            "f": lambda: repr(draw.random()),
            "b": lambda: draw.choice(["true", "0"]),
            "s": lambda: draw.choice(["abc", "", "é"]),
            "v": lambda: draw.choice(["a,b", "long " * 9, 'say "hi"']),
            "d": lambda: f"2020-01-0{draw.randrange(1, 9)}T00:00:00",
            "t": lambda: str(draw.randrange(99)),
        }
        rows = [
            {name: draw.choice([None, make()]) for name, make in made.items()}
            for _ in range(draw.randrange(1, 60))
        ]
        file = io.StringIO(newline="")
        writer = csv.DictWriter(file, list(dtypes))
        writer.writeheader()
        writer.writerows([{k: "-" if v is None else v for k, v in row.items()} for row in rows])
        found = list(read_csv(write(file.getvalue()), dtypes, skip_header_lines=1, null_values="-"))
        bools = {"true": True, "0": False}
        assert found == [
            {
                name: None
                if text is None
                else np.bool_(bools[text])
                if name == "b"
                else np.array([int(text) if name == "t" else text], object).astype(dtypes[name])[0]
                for name, text in row.items()
            }
            for row in rows
        ]


class TestBools:
    def test_by_default(self, write: Write) -> None:
        path = write("true,1\nFalse,0\nTRUE, true\n")
        assert list(read_csv(path, [bool, bool])) == [(True, True), (False, False), (True, True)]
        assert [row.tolist() for row in read_csv(path, bool)] == [[1, 1], [0, 0], [1, 1]]
        assert type(next(iter(read_csv(path, [bool, bool])))[0]) is np.bool_

    def test_by_texts_of_ones_own(self, write: Write) -> None:
        path = write("ja\nnein\n?\n")
        reader = read_csv(path, [bool], true_values="ja", false_values=["nein"], null_values="?")
        assert list(reader) == [(True,), (False,), (None,)]
        with pytest.raises(DataLossError, match="line 1: '1' does not fit bool in column 1"):
            list(read_csv(write("1\n"), [bool], true_values="ja", false_values=["nein"]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"null_values": 3}, "null_values: got 3; expected a list of strings"),
        ({"null_values": [3]}, r"null_values: got \[3\]"),
        ({"true_values": None}, "true_values: got None"),
        ({"null_values": "1"}, "true_values: got '1', which null_values has too"),
        ({"true_values": "0"}, "false_values: got '0', which true_values has too"),
        ({"fill_null": 1}, "fill_null: got 1 without null_values"),
        ({"null_values": "-"}, "fill_null: got None with null_values; .* array of int64"),
        ({"null_values": "-", "fill_null": {0: 1}}, "fill_null: got .* an array of int64"),
        ({"null_values": "-", "fill_null": "x"}, "fill_null: got 'x'; .* int64 can hold"),
        ({"null_values": "-", "fill_null": 1.5}, "fill_null: got 1.5; .* int64 can hold"),
        ({"null_values": "-", "fill_null": {"a": 1}}, "column 'a'; expected numbers from 0"),
        (
            {"dtypes": ["U2", "int8"], "null_values": "-", "fill_null": {2: 1}},
            r"column 2; expected some of \[0, 1\]",
        ),
        (
            {"dtypes": ["U2", "int8"], "null_values": "-", "fill_null": {0: "abc"}},
            "fill_null: got 'abc'; expected a value that <U2 can hold",
        ),
        (
            {"dtypes": ["U2", "int8"], "null_values": "-", "fill_null": {1: 300}},
            "fill_null: got 300; expected a value that int8 can hold",
        ),
        ({"dtypes": [str], "null_values": "-", "fill_null": 1}, "fill_null: got 1"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        read_csv("a", **{"dtypes": "int64", **arguments})
