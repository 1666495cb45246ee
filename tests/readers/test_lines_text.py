"""Text files are read as others read them: byte order marks, ends of lines, headers, damage.

A generator draws tables, and writes them as a program might that has made the file: in any
encoding, with or without a byte order mark, with each kind of line ends, titles before the header,
and names and fields with delimiters, quotes and newlines. `csv.reader` of Python says what the file
has, and where pyarrow is installed, its own parser does, too.
"""

from __future__ import annotations

import csv
import io
import random
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from aioqueue import DataLossError, InvalidArgumentError
from aioqueue.inputs import files, read_csv, read_json_lines, read_lines
from aioqueue.readers import lines as reading
from tests.conftest import Write

MARK = "\ufeff"
ENCODINGS = ("utf-8", "utf-8-sig", "utf-7", "gb18030", "latin-1", "cp1252")
MARKED = ("utf-8", "utf-8-sig", "utf-7", "gb18030")
"""Encodings that have a byte order mark, which programs write in front of the text."""


class Table(NamedTuple):
    """A text, and what is in it."""

    content: bytes
    titles: int
    """How many lines are before the row of names."""
    names: list[str]
    rows: list[list[str]]
    options: dict[str, Any]
    """How to read it."""

    @classmethod
    def drawn(cls, draw: random.Random) -> Table:
        encoding = draw.choice(ENCODINGS)
        end = draw.choice(["\n", "\r\n", "\r"])
        delimiter = draw.choice(",;\t|")
        alphabet = ["a", "B", "0", " ", '"', delimiter, "é", ""]
        within = "\n" if end == "\r" else draw.choice(["\n", "\r\n", "\n"])
        width = draw.randrange(1, 5)

        def text(more: list[str]) -> str:
            return "".join(draw.choices([*alphabet, *more], k=draw.randrange(5)))

        more = [within] if draw.random() < 0.7 else []
        names = [f"{text(more)}{number}" for number in range(width)]
        rows = [[text(more) for _ in range(width)] for _ in range(draw.randrange(8))]
        # A row of one field that is blank would be no row.
        rows = [row for row in rows if width > 1 or row[0].strip()]
        file = io.StringIO(newline="")
        # Python's writer does not quote a newline that ends no row.
        quoting: Any = draw.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL][end == "\r" :])
        writer = csv.writer(file, delimiter=delimiter, lineterminator=end, quoting=quoting)
        titles = draw.randrange(3)
        for number in range(titles):
            file.write(draw.choice(["", f"made by hand {number}", 'a 5" title']) + end)
        writer.writerow(names)
        writer.writerows(rows)
        content = file.getvalue()
        if draw.random() < 0.3:
            content = content.removesuffix(end)
        if encoding in MARKED and draw.random() < 0.5:
            content = MARK + content
        options: dict[str, Any] = {"encoding": encoding, "delimiter": delimiter}
        if end == "\r":
            options["lineterminator"] = "\r"
        encoded = content.encode("utf-8" if encoding == "utf-8-sig" else encoding)
        return cls(encoded, titles, names, rows, options)


def check(table: Table, path: str, draw: random.Random) -> None:
    """Check that a table is read as it was written: by numbers, by names, and from any position."""
    count, rows = len(table.names), table.rows
    options: Any = {**table.options, "skip_header_lines": table.titles + 1}
    by_number = read_csv(path, [str] * count, **options)
    assert [list(row) for row in by_number] == rows
    # Names are stripped, so some may be alike.
    names = [name.strip() for name in table.names]
    chosen = draw.sample(range(count), draw.randrange(1, count + 1))
    by_name = read_csv(path, {names[at]: str for at in chosen}, **options)
    expected = [{names[at]: row[at] for at in chosen} for row in rows]
    assert list(by_name) == expected
    for number, placed in enumerate(list(by_name.placed()), 1):
        assert list(by_name.after(by_name.position(placed.place))) == expected[number:]


@pytest.mark.slow(every=10)
@pytest.mark.parametrize("seed", range(400))
def test_tables_are_read_as_they_were_written(
    seed: int, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(seed)
    monkeypatch.setattr(reading, "_BLOCK", draw.choice([1, 2, 5, 17, 2**16]))
    table = Table.drawn(draw)
    check(table, write(table.content), draw)


@pytest.mark.slow(every=10)
@pytest.mark.parametrize("seed", range(200))
def test_tables_are_read_as_arrow_reads_them(seed: int, write: Write) -> None:
    parser = pytest.importorskip("pyarrow.csv", reason="pyarrow is not installed")
    draw = random.Random(seed)
    table = Table.drawn(draw)
    encoding = table.options["encoding"]
    if encoding not in ("utf-8", "utf-8-sig", "latin-1") or "lineterminator" in table.options:
        return
    if not table.rows:  # Arrow takes a header without an end for an empty file
        return
    path = write(table.content)
    # Arrow has a byte order mark only at the start of what it reads.
    plain = encoding.removesuffix("-sig")
    text = table.content.decode(encoding).removeprefix(MARK)
    titles = sum(map(len, text.splitlines(keepends=True)[: table.titles]))
    theirs = parser.read_csv(
        io.BytesIO(text[titles:].encode(plain)),
        read_options=parser.ReadOptions(encoding=plain),
        parse_options=parser.ParseOptions(
            delimiter=table.options["delimiter"], newlines_in_values=True
        ),
        convert_options=parser.ConvertOptions(
            column_types=dict.fromkeys(table.names, "string"), strings_can_be_null=False
        ),
    )
    options: Any = {**table.options, "skip_header_lines": table.titles + 1}
    ours = list(read_csv(path, [str] * len(table.names), **options))
    assert theirs.column_names == table.names
    assert [tuple(row.values()) for row in theirs.to_pylist()] == ours


@pytest.mark.slow(every=10)
@pytest.mark.parametrize("seed", range(300))
def test_damage_is_data_loss_and_nothing_else(
    seed: int, tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever bytes a file has: rows, or a `DataLossError` that names it. The next one is read."""
    draw = random.Random(seed)
    monkeypatch.setattr(reading, "_BLOCK", draw.choice([1, 5, 2**16]))
    table = Table.drawn(draw)
    content = bytearray(table.content)
    for _ in range(draw.randrange(1, 4)):
        at = draw.randrange(len(content) + 1)
        content[at : at + draw.randrange(2)] = draw.choice(
            [b"\r", b'"', b"\0", b"\n", b"\xff", b"\xef\xbb\xbf", b",", b"\x1f", b"\x85"]
        )
    write(bytes(content), "a.csv")
    names = ["size", "x"]
    delimiter, end = table.options["delimiter"], table.options.get("lineterminator", "\n")
    sound = end.join(
        [*("title" for _ in range(table.titles)), delimiter.join(names), delimiter.join("12"), ""]
    )
    write(sound.encode("ascii"), "b.csv")
    dtypes: Any = draw.choice([[str, "int64"], {"size": "int64"}, "float64", str])
    options: Any = {**table.options, "skip_header_lines": table.titles + 1}
    found = list(read_csv(files(tmp_path / "*.csv"), dtypes, on_error="skip", **options))
    last = list(read_csv(tmp_path / "b.csv", dtypes, **options))
    assert len(last) == 1
    assert repr(found[-1:]) == repr(last)
    try:
        list(read_csv(tmp_path / "a.csv", dtypes, **options))
    except DataLossError as error:
        assert error.path == str(tmp_path / "a.csv")
        assert str(error).startswith(error.path)


class TestMarks:
    """A byte order mark at the start of a file is no part of the text."""

    @pytest.mark.parametrize("encoding", MARKED)
    def test_of_each_encoding(self, encoding: str, write: Write) -> None:
        plain = encoding.removesuffix("-sig")
        path = write(f"{MARK}a,é\n{MARK}b,c\n".encode(plain))
        assert list(read_lines(path, encoding=encoding)) == ["a,é", f"{MARK}b,c"]
        assert list(read_csv(path, [str, str], encoding=encoding)) == [
            ("a", "é"),
            (f"{MARK}b", "c"),
        ]
        assert list(read_csv(path, {"é": str}, encoding=encoding, skip_header_lines=1)) == [
            {"é": "c"}
        ]
        assert list(read_lines(write(MARK.encode(plain)), encoding=encoding)) == []
        path = write(f'{MARK}{{"é": 1}}\n2\n'.encode(plain))
        assert list(read_json_lines(path, encoding=encoding)) == [{"é": 1}, 2]

    def test_before_a_quoted_name(self, write: Write) -> None:
        path = write(f'{MARK}"id","a,b"\n1,2\n'.encode())
        assert list(read_csv(path, {"id": int, "a,b": int}, skip_header_lines=1)) == [
            {"id": 1, "a,b": 2}
        ]

    def test_in_bytes_and_in_other_encodings_it_is_what_it_is(self, write: Write) -> None:
        path = write(f"{MARK}a\n".encode())
        assert list(read_lines(path, encoding=None)) == [b"\xef\xbb\xbfa"]
        assert list(read_lines(path, encoding="latin-1")) == ["ï»¿a"]

    @pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
    def test_of_wide_encodings_is_reported(self, encoding: str, write: Write) -> None:
        path = write(f"{MARK}a\n".encode(encoding.replace("-le", "")))
        wide = encoding.replace("-le", "").upper()
        with pytest.raises(DataLossError, match=rf"byte order mark of {wide}: .*read_whole_files"):
            list(read_lines(path))
        with pytest.raises(InvalidArgumentError, match=r"encoding: .* read_whole_files"):
            read_lines(path, encoding=encoding)

    def test_a_position_is_behind_it(self, write: Write) -> None:
        reader = read_lines(write(f"{MARK}a\nb\nc\n".encode()))
        places = [placed.place for placed in reader.placed()]
        assert list(reader.after(reader.position(places[0]))) == ["b", "c"]


class TestHeaders:
    def test_a_name_has_a_newline(self, write: Write) -> None:
        path = write('id,"Your name\n(first, last)"\n1,Ann\n2,Bob\n')
        for skip in (1, 2):  # the row of names begins in line 1, and ends in line 2
            reader = read_csv(path, {"id": str}, skip_header_lines=skip)
            assert list(reader.with_keys()) == [
                (f"{path}:3", {"id": "1"}),
                (f"{path}:4", {"id": "2"}),
            ]
            by_number = read_csv(path, [int, str], skip_header_lines=skip)
            assert list(by_number) == [(1, "Ann"), (2, "Bob")]
        named = read_csv(path, {"Your name\n(first, last)": str}, skip_header_lines=1)
        assert [row.popitem()[1] for row in named] == ["Ann", "Bob"]

    def test_a_title_may_have_a_quote_that_none_closes(self, write: Write) -> None:
        path = write('"made by hand\n"id","na\nme"\n1,x\n')
        reader = read_csv(path, {"na\nme": str, "id": int}, skip_header_lines=2)
        assert list(reader) == [{"na\nme": "x", "id": 1}]

    @pytest.mark.parametrize("named", [True, False])
    @pytest.mark.parametrize("most", [10, None])
    def test_a_name_without_end(self, named: bool, most: Any, write: Write) -> None:
        path = write('title\n"id,x\n1,2\n3,4\n5,6\n')
        dtypes: Any = {"id": int} if named else [int, int]
        fault = "a row exceeds max_line_bytes=10" if most else "line 2: a quoted field has no end"
        with pytest.raises(DataLossError, match=fault) as reported:
            list(read_csv(path, dtypes, skip_header_lines=2, max_line_bytes=most))
        assert reported.value.offset == 6

    @pytest.mark.parametrize("header", ["", "a,b\rc,d", '"a', "a,,b"])
    def test_a_header_that_lacks_a_name(self, header: str, write: Write) -> None:
        path = write(f"{header}\n1,2\n")
        with pytest.raises(DataLossError, match=f"{re.escape(path)}: line 1: "):
            list(read_csv(path, {"id": int}, skip_header_lines=1))

    def test_a_field_of_any_size(self, write: Write) -> None:
        """Python's `csv` would refuse more than 128 KiB."""
        name = "a" * 200_000
        path = write(f"{name},b\n1,2\n")
        assert list(read_csv(path, {"b": int}, skip_header_lines=1)) == [{"b": 2}]


class TestReturns:
    def test_files_of_old_macs(self, tmp_path: Path, write: Write) -> None:
        old = write(b"id,text\r1,a\r2,b\r", "a.csv")
        write(b"id,text\n3,c\n", "b.csv")
        with pytest.raises(DataLossError, match=r"line 1: a return .* lineterminator='\\r'") as e:
            list(read_csv(old, {"id": int}, skip_header_lines=1))
        assert e.value.path == old
        both = files(tmp_path / "*.csv")
        reader = read_csv(both, {"id": int}, skip_header_lines=1, on_error="skip")
        assert list(reader) == [{"id": 3}]
        assert [one.item for one in reader.quarantine] == [old]
        reader = read_csv(old, {"id": int}, skip_header_lines=1, lineterminator="\r")
        assert list(reader.with_keys()) == [(f"{old}:2", {"id": 1}), (f"{old}:3", {"id": 2})]
        assert list(read_lines(old, lineterminator="\r")) == ["id,text", "1,a", "2,b"]
        raw = read_lines(old, lineterminator="\r", encoding=None)
        assert list(raw) == [b"id,text", b"1,a", b"2,b"]

    def test_newlines_within_them_stay(self, write: Write) -> None:
        path = write(b'1,"a\nb"\r2,"c\rd"\r3,"e\r\nf"\r')
        assert list(read_csv(path, [int, str], lineterminator="\r")) == [
            (1, "a\nb"),
            (2, "c\rd"),
            (3, "e\r\nf"),
        ]

    @pytest.mark.parametrize("given", ["\n", "\r\n", "x", "", 5, b"\r"])
    def test_others_are_refused(self, given: Any) -> None:
        with pytest.raises(InvalidArgumentError, match="lineterminator: got"):
            read_lines("a", lineterminator=given)
        with pytest.raises(InvalidArgumentError, match="lineterminator: got"):
            read_csv("a", int, lineterminator=given)

    def test_a_position_of_other_ends_does_not_fit(self, write: Write) -> None:
        path = write(b"a\rb\rc\r")
        reader = read_lines(path, lineterminator="\r")
        place = next(reader.placed()).place
        with pytest.raises(InvalidArgumentError):
            list(read_lines(path).after(reader.position(place)))
