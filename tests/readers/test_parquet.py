"""Parquet and Arrow files: rows and batches as NumPy has them, private; damage is reported."""

from __future__ import annotations

import datetime
import decimal
import importlib
import math
import random
import re
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioqueue import DataLossError, InvalidArgumentError
from aioqueue.readers.files import files
from aioqueue.readers.parquet import read_arrow, read_parquet
from tests.items.test_positions import check_every_position, comparable
from tests.kit.worlds import TaskWorld

pa: Any = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pq: Any = importlib.import_module("pyarrow.parquet")
ipc: Any = importlib.import_module("pyarrow.ipc")

properties = settings(derandomize=True, deadline=None, max_examples=40)


def write_parquet(table: Any, path: Path, portion: int) -> None:
    pq.write_table(table, path, row_group_size=portion, write_page_checksum=True)


def write_file(table: Any, path: Path, portion: int) -> None:
    with pa.OSFile(str(path), "wb") as sink, ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=portion)


def write_stream(table: Any, path: Path, portion: int) -> None:
    with pa.OSFile(str(path), "wb") as sink, ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=portion)


Write = Callable[[Any, Path, int], None]
Read = Callable[..., Any]
KINDS: dict[str, tuple[Write, Read]] = {
    "parquet": (write_parquet, read_parquet),
    "file": (write_file, read_arrow),
    "stream": (write_stream, read_arrow),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "table"


def written(kind: str, columns: Any, path: Path, portion: int = 7) -> Read:
    """Write a table; return what reads it."""
    write, read = KINDS[kind]
    write(columns if isinstance(columns, pa.Table) else pa.table(columns), path, portion)
    return read


def one(kind: str, values: Any, path: Path) -> tuple[list[Any], np.ndarray[Any, Any]]:
    """A column as it is in rows, and in one batch."""
    read = written(kind, {"x": values}, path)
    rows = [row["x"] for row in read(path)]
    ((batch),) = read(path, batch_size=1000)
    return rows, batch["x"]


DAY = np.datetime64("1970-01-05")
HOUR = np.timedelta64(1, "h")
NEW_YEAR = datetime.datetime(2024, 1, 1)
NAT = np.datetime64("NaT", "ns")
NOON_IN_UTC = datetime.datetime(2024, 1, 1, 12, tzinfo=datetime.UTC)


@every_kind
class TestTypes:
    @pytest.mark.parametrize(
        "dtype",
        ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "?"],
    )
    def test_numbers(self, kind: str, dtype: str, path: Path) -> None:
        values = (np.arange(10) % 3).astype(dtype)
        rows, batch = one(kind, pa.array(values), path)
        assert {type(value) for value in rows} == {np.dtype(dtype).type}
        assert rows == values.tolist()
        assert batch.dtype == np.dtype(dtype)
        assert batch.tolist() == values.tolist()

    @pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
    def test_times(self, kind: str, unit: str, path: Path) -> None:
        values = np.array([0, -5, 86_400_000_000_000], f"M8[{unit}]")
        if unit == "s" and kind == "parquet":
            pytest.skip("Parquet has no seconds")
        for array in (pa.array(values), pa.array(values).cast(pa.timestamp(unit, "Asia/Tokyo"))):
            rows, batch = one(kind, array, path)
            assert rows == list(values)
            assert batch.dtype == values.dtype
            assert (batch == values).all()

    def test_dates_times_of_day_and_durations(self, kind: str, path: Path) -> None:
        day = datetime.date(2024, 2, 29)
        rows, batch = one(kind, pa.array([day, datetime.date(1, 1, 1)]), path)
        assert rows == [np.datetime64("2024-02-29"), np.datetime64("0001-01-01")]
        assert batch.dtype == np.dtype("M8[D]")
        rows, batch = one(kind, pa.array([86_400_000], pa.date64()), path)
        assert rows == [np.datetime64("1970-01-02")]
        for type, dtype in ((pa.time32("ms"), "m8[ms]"), (pa.time64("us"), "m8[us]")):
            rows, batch = one(kind, pa.array([1, 2], type), path)
            assert batch.dtype == np.dtype(dtype)
            assert rows == list(np.array([1, 2], dtype))
        rows, batch = one(kind, pa.array([1, -2], pa.duration("us")), path)
        assert batch.dtype == np.dtype("m8[us]")
        assert rows == [np.timedelta64(1, "us"), np.timedelta64(-2, "us")]

    def test_text_bytes_and_what_has_no_dtype(self, kind: str, path: Path) -> None:
        number = decimal.Decimal("1.50")
        for values, type in (
            (["a", "é", ""], pa.string()),
            (["a", "é", ""], pa.large_string()),
            ([b"a", b"\xff", b""], pa.binary()),
            ([b"ab", b"cd"], pa.binary(2)),
            ([number, number], pa.decimal128(5, 2)),
            ([[("a", 1)], []], pa.map_(pa.string(), pa.int8())),
        ):
            rows, batch = one(kind, pa.array(values, type), path)
            assert rows == values
            assert batch.dtype == object
            assert batch.tolist() == values

    def test_dictionaries_are_what_they_stand_for(self, kind: str, path: Path) -> None:
        rows, batch = one(kind, pa.array(["a", "b", "a", None]).dictionary_encode(), path)
        assert rows == batch.tolist() == ["a", "b", "a", None]
        rows, batch = one(kind, pa.array([5, 6, 5]).dictionary_encode(), path)
        assert rows == batch.tolist() == [5, 6, 5]

    @pytest.mark.parametrize("large", [False, True])
    def test_lists(self, kind: str, large: bool, path: Path) -> None:
        make = pa.large_list if large else pa.list_
        rows, batch = one(kind, pa.array([[1, 2], [], None, [3]], make(pa.int16())), path)
        for found in (rows, list(batch)):
            assert comparable(found) == comparable(
                [np.array([1, 2], "i2"), np.array([], "i2"), None, np.array([3], "i2")]
            )
        rows, _ = one(kind, pa.array([[1, None], [2]], make(pa.int16())), path)
        assert rows[0] == [1, None]
        assert comparable(rows[1]) == comparable(np.array([2], "i2"))
        rows, _ = one(kind, pa.array([["a", None], []], make(pa.string())), path)
        assert rows == [["a", None], []]
        rows, _ = one(kind, pa.array([[[1.5], []], []], make(make(pa.float32()))), path)
        assert comparable(rows) == comparable([[np.array([1.5], "f4"), np.array([], "f4")], []])

    def test_lists_of_a_fixed_size(self, kind: str, path: Path) -> None:
        values = np.arange(12, dtype="f4").reshape(2, 3, 2)
        type = pa.list_(pa.list_(pa.float32(), 2), 3)
        rows, batch = one(kind, pa.array(values.tolist(), type), path)
        assert comparable(batch) == comparable(values)
        assert comparable(rows) == comparable(list(values))

    def test_nulls_among_lists_of_a_fixed_size(self, kind: str, path: Path) -> None:
        if kind == "parquet" and int(pa.__version__.split(".")[0]) < 26:
            pytest.skip("pyarrow before 26 does not read what it writes there")
        read = written(kind, {"x": pa.array([[1, 2], None], pa.list_(pa.int8(), 2))}, path)
        rows = [row["x"] for row in read(path)]
        assert comparable(rows) == comparable([np.array([1, 2], "i1"), None])
        with pytest.raises(InvalidArgumentError, match="fill_null: got nothing for column 'x'"):
            list(read(path, batch_size=2))

    def test_tensors_have_their_shape(self, kind: str, path: Path) -> None:
        values = np.arange(24, dtype="f4").reshape(2, 3, 4)
        rows, batch = one(kind, pa.FixedShapeTensorArray.from_numpy_ndarray(values), path)
        assert comparable(batch) == comparable(values)
        assert comparable(rows) == comparable(list(values))
        turned = values.transpose(0, 2, 1)
        rows, batch = one(kind, pa.FixedShapeTensorArray.from_numpy_ndarray(turned), path)
        assert comparable(batch) == comparable(turned)

    def test_structs(self, kind: str, path: Path) -> None:
        values = [{"a": 1, "b": {"c": "x"}}, None, {"a": None, "b": None}]
        rows, batch = one(kind, pa.array(values), path)
        assert rows == batch.tolist() == values
        assert type(rows[0]["a"]) is np.int64
        nanoseconds = np.array([1], "M8[ns]")
        array = pa.StructArray.from_arrays([pa.array(nanoseconds)], ["t"])
        assert one(kind, array, path)[0] == [{"t": nanoseconds[0]}]

    def test_nulls(self, kind: str, path: Path) -> None:
        for values, type in (
            ([1, None, 3], pa.int64()),
            ([True, None, False], pa.bool_()),
            ([1.5, None, 2.5], pa.float32()),
            ([np.datetime64(5, "us"), None], pa.timestamp("us")),
        ):
            read = written(kind, {"x": pa.array(values, type)}, path)
            assert [row["x"] for row in read(path)] == values
        (batch,) = read(path, batch_size=5)
        assert np.isnat(batch["x"]).tolist() == [False, True]
        rows, objects = one(kind, pa.nulls(3), path)
        assert rows == objects.tolist() == [None] * 3

    def test_nulls_that_a_batch_has_no_place_for(self, kind: str, path: Path) -> None:
        read = written(kind, {"x": pa.array([1, None]), "y": pa.array([0.5, None])}, path)
        with pytest.raises(InvalidArgumentError, match="fill_null: got nothing for column 'x'"):
            list(read(path, batch_size=5))
        (batch,) = read(path, batch_size=5, fill_null={"x": -1, "y": float("nan")})
        assert batch["x"].tolist() == [1, -1]
        assert np.isnan(batch["y"]).tolist() == [False, True]
        assert batch["x"].dtype == "i8"
        rows = list(read(path, fill_null={"x": 9}))
        assert rows == [{"x": 1, "y": 0.5}, {"x": 9, "y": None}]
        with pytest.raises(InvalidArgumentError, match="fill_null: got 'no' for column 'x'"):
            list(read(path, fill_null={"x": "no"}))
        with pytest.raises(InvalidArgumentError, match=r"fill_null: got 'z', .*\['x', 'y'\]"):
            list(read(path, ["x"], fill_null={"y": 1, "z": 0}))

    @pytest.mark.parametrize(
        ("type", "right", "wrong"),
        [
            ("int64", [0, -5, 2.0, np.int8(3)], [1.5, np.float32(0.5), 2**70, -(2**70), True]),
            ("uint8", [255], [-1, 256]),
            ("float32", [0.1, 1, math.inf, math.nan, np.float32(2)], [1e300, "1", 2**60 + 1]),
            ("float16", [0.1], [1e6]),
            ("bool", [True, False], [1, 2.0, "yes"]),
            ("string", ["", "a"], [5, 1.5]),
            ("time64[us]", [datetime.time(1)], ["noon"]),
            ("timestamp[us]", [5, datetime.datetime(2024, 1, 1)], [1j]),
        ],
    )
    def test_nulls_become_the_given_value_or_none(
        self, kind: str, type: str, right: list[Any], wrong: list[Any], path: Path
    ) -> None:
        read = written(kind, {"x": pa.array([None], type)}, path)
        for value in right:
            (row,) = read(path, fill_null={"x": value})
            (expected,) = read(path, fill_null={"x": pa.scalar(value, type)})
            assert row["x"] == expected["x"] or value != value
        for value in wrong:
            message = re.escape(f"fill_null: got {value!r} for column 'x'; expected a value of")
            with pytest.raises(InvalidArgumentError, match=message):
                list(read(path, fill_null={"x": value}))

    @pytest.mark.parametrize(
        ("type", "right", "wrong"),
        [
            (pa.date32(), [DAY, DAY.item(), DAY.astype("M8[ns]")], [DAY + HOUR, HOUR, "1970", NAT]),
            (pa.date64(), [DAY, DAY.item(), DAY.astype("M8[ms]")], [DAY + HOUR, HOUR, NAT]),
            (
                pa.timestamp("ms"),
                [DAY + HOUR, datetime.datetime(2024, 1, 1)],
                [DAY + np.timedelta64(1, "us"), HOUR],
            ),
            (pa.timestamp("ns"), [DAY, NEW_YEAR], [np.datetime64("9999")]),
            (pa.timestamp("s", tz="UTC"), [DAY, NOON_IN_UTC], [datetime.time(5)]),
            (pa.time32("s"), [HOUR, datetime.time(5)], [HOUR * 24, -HOUR, DAY, NAT]),
            (pa.time64("us"), [HOUR, datetime.time(5, 1, 2, 3)], [np.timedelta64(1, "ns"), DAY]),
            (pa.duration("ms"), [HOUR * 48, -HOUR, datetime.timedelta(1)], [DAY, 1.5, object()]),
        ],
        ids=lambda value: None if isinstance(value, list) else str(value),
    )
    def test_nulls_become_times_as_rows_have_them(
        self, kind: str, type: Any, right: list[Any], wrong: list[Any], path: Path
    ) -> None:
        if kind == "parquet" and type == pa.time32("s"):
            type = pa.time32("ms")
        known = next(value for value in right if not isinstance(value, np.generic))
        plain = pa.array([known, None], type)
        for column in [plain] if pa.types.is_duration(type) else [plain, plain.dictionary_encode()]:
            read = written(kind, {"x": column}, path)
            for value in right:
                first, second = (row["x"] for row in read(path, fill_null={"x": value}))
                assert second.dtype == first.dtype
                (batch,) = read(path, fill_null={"x": value}, batch_size=2)
                assert batch["x"].tolist() == [first.item(), second.item()]
                if isinstance(value, np.generic):
                    assert second == value
            for value in wrong:
                with pytest.raises(InvalidArgumentError, match=r"fill_null: got .* for column 'x'"):
                    list(read(path, fill_null={"x": value}))

    def test_structs_with_two_fields_of_one_name(self, kind: str, path: Path) -> None:
        fields = [pa.array([1]), pa.array([2])]
        struct = pa.StructArray.from_arrays(fields, ["t", "t"])
        read = written(kind, {"x": pa.array([3]), "y": struct}, path)
        for options in ({}, {"batch_size": 3}):
            message = r"columns: .*\['t', 't'\]"
            with pytest.raises(InvalidArgumentError, match=message):
                list(read(path, **options))
        assert [row["x"] for row in read(path, ["x"])] == [3]


TABLE: dict[str, Any] = {
    "a": np.arange(50),
    "b": [f"row {n}" for n in range(50)],
    "c": np.arange(100, dtype="f4").reshape(50, 2).tolist(),
}


@every_kind
class TestRows:
    def test_columns_in_the_order_that_was_asked_for(self, kind: str, path: Path) -> None:
        read = written(kind, TABLE, path)
        assert list(next(iter(read(path)))) == ["a", "b", "c"]
        assert list(next(iter(read(path, ["b", "a"])))) == ["b", "a"]
        assert list(next(iter(read(path, ("c",), batch_size=3)))) == ["c"]
        with pytest.raises(InvalidArgumentError, match=r"columns: got 'x', which .* has 0 times"):
            list(read(path, ["x"]))

    def test_keys(self, kind: str, path: Path) -> None:
        read = written(kind, TABLE, path)
        keys = [key for key, _ in read(path).with_keys()]
        assert keys == [f"{path}:{number}" for number in range(50)]
        keys = [key for key, _ in read(path, batch_size=20).with_keys()]
        assert keys == [f"{path}:{number}" for number in (0, 20, 40)]

    @pytest.mark.parametrize("size", [1, 3, 7, 10, 14, 50, 1000])
    def test_batches_have_so_many_rows_wherever_portions_end(
        self, kind: str, size: int, path: Path
    ) -> None:
        read = written(kind, TABLE, path)
        batches = list(read([path, path], batch_size=size))
        rows = [row["a"] for row in read(path)]
        sizes = [len(batch["a"]) for batch in batches[: len(batches) // 2]]
        assert sizes == [min(size, 50 - at) for at in range(0, 50, size)]
        assert np.concatenate([batch["a"] for batch in batches]).tolist() == rows * 2

    def test_all_of_it_is_private_and_can_be_written_to(self, kind: str, path: Path) -> None:
        read = written(kind, TABLE, path, portion=30)
        expected = comparable(list(read(path, batch_size=20)))
        kept = []
        for batch in read(path, batch_size=20):
            kept.append(comparable(batch))
            batch["a"][:] = -1
            for row in (*batch["c"], *[batch["a"]]):
                row[...] = -1
        assert tuple(kept) == expected
        for row in read(path):
            row["c"][:] = 0

    def test_empty_files_and_files_without_columns(self, kind: str, path: Path) -> None:
        read = written(kind, pa.table({"a": pa.array([], pa.int8())}), path)
        assert list(read(path)) == list(read(path, batch_size=3)) == []
        read = written(kind, TABLE, path)
        assert len(list(read(path, ["a"]))) == 50

    async def test_read_ahead(self, task_world: TaskWorld, kind: str, path: Path) -> None:
        read = written(kind, TABLE, path)
        rows = [row["a"] async for row in read(path)]
        assert rows == list(range(50))

    @pytest.mark.slow("file", "parquet")
    @properties
    @given(sizes=st.lists(st.integers(0, 9), max_size=5), size=st.integers(1, 12))
    def test_any_portions(
        self,
        kind: str,
        tmp_path_factory: pytest.TempPathFactory,
        sizes: list[int],
        size: int,
    ) -> None:
        path = tmp_path_factory.getbasetemp() / f"any-{kind}"
        parts = [pa.table({"x": pa.array(np.arange(n))}) for n in [*sizes, 1]]
        read = written(kind, pa.concat_tables(parts), path, portion=5)
        numbers = [row["x"] for row in read(path)]
        assert numbers == [number for n in [*sizes, 1] for number in range(n)]
        batches = list(read(path, batch_size=size))
        assert [number for batch in batches for number in batch["x"]] == numbers
        assert all(len(batch["x"]) == size for batch in batches[:-1])

    @pytest.mark.slow(but=("7-file", "30-parquet"))
    @pytest.mark.parametrize("size", [None, 4, 7, 30])
    def test_every_position(self, kind: str, size: int | None, tmp_path: Path) -> None:
        for number in range(3):
            columns: dict[str, Any] = {name: TABLE[name][: 19 * number] for name in TABLE}
            if not number:
                columns = {"a": pa.array([], pa.int64()), "b": [], "c": []}
            written(kind, columns, tmp_path / str(number))
        read = KINDS[kind][1]
        pattern = f"{tmp_path}/*"
        check_every_position(
            lambda: read(files(pattern, 2, True, 3), batch_size=size).with_keys(), step=3
        )

    @pytest.mark.slow
    def test_positions_within_a_portion(
        self, kind: str, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("aioqueue.readers.parquet._ROWS", 3)
        read = written(kind, TABLE, path, portion=20)
        check_every_position(lambda: read(path).with_keys())
        *_, (_, place) = islice(read(path).placed(), 25)
        assert place == (None, 23, (1, 3, 23), 2)  # row 3 of portion 1, and two taken since


class TestArguments:
    @pytest.mark.parametrize("read", [read_parquet, read_arrow])
    @pytest.mark.parametrize(
        "options",
        [
            {"columns": []},
            {"columns": "a"},
            {"columns": [1]},
            {"columns": ["a", "a"]},
            {"batch_size": 0},
            {"batch_size": 1.5},
            {"fill_null": 5},
            {"fill_null": {1: 1}},
            {"fill_null": {"a": None}},
        ],
        ids=str,
    )
    def test_wrong_ones_are_named(self, read: Read, options: dict[str, Any]) -> None:
        with pytest.raises(InvalidArgumentError, match=f"^{next(iter(options))}: got"):
            read("a", **options)

    @pytest.mark.parametrize("read", [read_parquet, read_arrow])
    def test_a_missing_extra_is_reported_with_its_command(
        self, read: Read, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def missing(name: str) -> Any:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

        monkeypatch.setattr(importlib, "import_module", missing)
        with pytest.raises(ModuleNotFoundError, match=r"pip install '\.\[parquet\]'"):
            read("a")


def read_before_loss(rows: Iterator[Any]) -> tuple[list[Any], DataLossError]:
    found = []
    with pytest.raises(DataLossError) as caught:
        for row in rows:
            found.append(row["a"])  # noqa: PERF401  # what was read before the failure
    return found, caught.value


@every_kind
class TestDamage:
    def test_cut_off_anywhere(self, kind: str, path: Path) -> None:
        read = written(kind, TABLE, path, portion=20)
        whole = path.read_bytes()
        for size in [*range(0, len(whole), 37), len(whole) - 1]:
            path.write_bytes(whole[:size])
            found, error = read_before_loss(read(path))
            assert found == list(range(len(found)))
            assert error.path == str(path)
            assert 0 <= error.offset <= size

    def test_what_is_no_such_file(self, kind: str, path: Path) -> None:
        read = KINDS[kind][1]
        path.write_bytes(b"neither Parquet nor Arrow " * 50)
        assert "no " in read_before_loss(read(path))[1].fault
        with pytest.raises(FileNotFoundError):
            list(read(path.with_name("none")))

    @pytest.mark.slow(every=3)
    def test_any_byte(self, kind: str, path: Path) -> None:
        """It is reported, or the rows are those that were written, or values without a checksum."""
        read = written(kind, {"a": np.arange(30)}, path, portion=20)
        whole = path.read_bytes()
        for place in range(0, len(whole), 3):
            damaged = bytearray(whole)
            damaged[place] ^= 0x55
            path.write_bytes(damaged)
            try:
                rows = [row["a"] for row in read(path)]
            except DataLossError:
                continue
            assert len(rows) <= 40

    @pytest.mark.parametrize("size", [None, 7, 1000])
    def test_text_that_is_none(self, kind: str, size: int | None, path: Path) -> None:
        """Of which there is no checksum here; pyarrow looks at that of Parquet only when asked."""
        write, read = KINDS[kind]
        table = pa.table({"a": np.arange(50), "b": [f"é{n}é" for n in range(50)]})
        if kind == "parquet":
            pq.write_table(table, path, row_group_size=20, use_dictionary=False, compression="none")
        else:
            write(table, path, 20)
        whole = path.read_bytes()
        path.write_bytes(whole.replace("é30é".encode(), b"\xc3\xff30\xc3\xa9"))
        found, error = read_before_loss(iter(read(path, batch_size=size)))
        numbers = found if size is None else [number for batch in found for number in batch]
        assert numbers == list(range(len(numbers)))
        assert len(numbers) in {None: (20,), 7: (20, 28), 1000: (0, 20)}[size]
        assert error.path == str(path)
        assert 0 < error.offset < path.stat().st_size
        assert re.match("damaged (rows [0-9]+ to [0-9]+|record batch 1) ", error.fault)
        with pytest.raises(InvalidArgumentError, match="columns: got 'c', which"):
            list(read(path, ["c"]))


def test_pages_have_checksums(path: Path) -> None:
    """Of Parquet, what stands in a page is what was written, or is reported."""
    table = pa.table({"a": np.arange(1000)})
    pq.write_table(
        table,
        path,
        row_group_size=500,
        write_page_checksum=True,
        use_dictionary=False,
        compression="none",
    )
    group = pq.ParquetFile(path).metadata.row_group(1).column(0)
    whole = path.read_bytes()
    for place in range(200, 4000, 311):
        damaged = bytearray(whole)
        damaged[group.data_page_offset + place] ^= 1
        path.write_bytes(damaged)
        found, error = read_before_loss(iter(read_parquet(path)))
        assert found == list(range(500))
        assert error.offset == group.data_page_offset
        assert error.fault.startswith("damaged row group 1")


@pytest.mark.slow
def test_whatever_pyarrow_raises_on_damage(path: Path) -> None:
    """Turned bits of Arrow's own schema may ask for types that there are not."""
    pq.write_table(pa.table({"a": np.arange(10)}), path, row_group_size=4)
    whole = path.read_bytes()
    metadata = pq.ParquetFile(path).metadata.metadata
    end = whole.index(metadata[b"ARROW:schema"]) + len(metadata[b"ARROW:schema"])
    faults = []
    for place in range(end - 64, end):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            path.write_bytes(damaged)
            try:
                assert len(list(read_parquet(path))) == 10
            except DataLossError as error:
                faults.append(error.fault)
    assert any("or it has something that this pyarrow does not know" in one for one in faults)


def test_more_memory_than_there_is(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written("parquet", TABLE, path)

    def much(*_: Any) -> None:
        raise pa.ArrowMemoryError("malloc of size 9223372036854775744 failed")

    monkeypatch.setattr("aioqueue.readers.parquet.values_of", much)
    with pytest.raises(DataLossError, match="damaged rows 0 to 6, or it needs more memory"):
        list(read_parquet(path))


def test_a_row_group_that_claims_to_be_smaller_loses_no_rows(path: Path) -> None:
    """Turned bits of the footer, which has no checksum."""
    pq.write_table(pa.table({"a": np.arange(1000)}), path, row_group_size=333)
    whole = path.read_bytes()
    counts = bytes([0x16, 0x9A, 0x05])  # Thrift's field of 333, once for each of what it counts
    places = [
        place
        for place in range(len(whole) - 8 - int.from_bytes(whole[-8:-4], "little"), len(whole))
        if whole[place : place + 3] == counts
    ]
    assert len(places) >= 6  # of rows, and of values, in each full group
    reported = 0
    for place in places:
        for turned in range(7):  # the eighth says that another byte follows
            damaged = bytearray(whole)
            damaged[place + 1] ^= 1 << turned
            path.write_bytes(damaged)
            try:
                assert [row["a"] for row in read_parquet(path)] == list(range(1000))
            except DataLossError as error:
                reported += error.fault.startswith("damaged footer: 1000 rows in the file, ")
    assert reported == 3 * 7


class TestEndOfStreams:
    @pytest.fixture(params=[False, True], ids=["", "old"])
    def whole(self, request: pytest.FixtureRequest, path: Path) -> bytes:
        """A stream with a dictionary, whose last record batch ends with zeros, like an end mark."""
        words = pa.array(["a", "b", "c", "a", "a"]).dictionary_encode()
        table = pa.table({"a": np.arange(5), "word": words})
        options = ipc.IpcWriteOptions(use_legacy_format=request.param)
        with ipc.new_stream(path, table.schema, options=options) as writer:
            writer.write_table(table, max_chunksize=2)
        assert path.read_bytes().endswith(bytes(4) if request.param else bytes(3))
        return path.read_bytes()

    def test_one_that_is_whole(self, whole: bytes, path: Path) -> None:
        assert [row["a"] for row in read_arrow(path)] == list(range(5))
        check_every_position(lambda: read_arrow(path).with_keys())

    @pytest.mark.slow
    def test_one_that_is_cut_off_anywhere(self, whole: bytes, path: Path) -> None:
        for size in range(len(whole)):
            path.write_bytes(whole[:size])
            found, error = read_before_loss(iter(read_arrow(path)))
            assert found == list(range(len(found)))
            assert 0 <= error.offset <= size

    def test_data_behind_the_end_mark(self, whole: bytes, path: Path) -> None:
        mark = b"\xff\xff\xff\xff\0\0\0\0"
        for more in (whole, b"x", bytes(4), mark, b"garbage" * 9 + mark):
            path.write_bytes(whole + more)
            found, error = read_before_loss(iter(read_arrow(path)))
            assert found == list(range(5))
            assert error.offset == len(whole)
            fault = f"{len(more)} bytes of data behind the end mark of the stream"
            assert error.fault == fault


@pytest.mark.slow(but="1000-stream")
@every_kind
@pytest.mark.parametrize("size", [None, 1000])
def test_one_portion_is_in_memory_at_a_time(kind: str, size: int | None, path: Path) -> None:
    values = np.random.default_rng(1).random(2**20)  # 8 MiB, in 32 portions
    read = written(kind, {"a": values}, path, portion=2**15)
    before = pa.total_allocated_bytes()
    most = max(pa.total_allocated_bytes() - before for _ in read(path, batch_size=size))
    assert most < 2 * 2**20


def test_of_an_url(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    for kind, (_, read) in KINDS.items():
        written(kind, TABLE, tmp_path / kind)
        system = fsspec.filesystem("memory")
        system.pipe(f"/{kind}", (tmp_path / kind).read_bytes())
        check_every_position(lambda: read(f"memory://{kind}"), step=9)  # noqa: B023
        system.rm(f"/{kind}")


class TestOldTimes:
    """Timestamps of 96 bits, as Spark and Impala write them, with sentinels such as 9999-12-31."""

    FAR = (
        datetime.datetime(9999, 12, 31),
        datetime.datetime(2020, 1, 1),
        datetime.datetime(1000, 1, 1),
        None,
    )
    NEAR = (1, 2**62, -(2**62), 1_577_836_800_123_456_789, None)  # in nanoseconds

    @staticmethod
    def written(path: Path, **columns: Any) -> Path:
        pq.write_table(
            pa.table(columns), path, use_deprecated_int96_timestamps=True, row_group_size=2
        )
        return path

    def test_far_ones_are_in_microseconds(self, tmp_path: Path) -> None:
        far = pa.array(self.FAR, pa.timestamp("us"))
        path = self.written(tmp_path / "a", far=far, number=pa.array(range(4)))
        expected = [None if one is None else np.datetime64(one) for one in self.FAR]
        assert [row["far"] for row in read_parquet(path)] == expected
        (batch,) = read_parquet(path, batch_size=9)
        assert batch["far"].dtype == "M8[us]"
        assert list(batch["far"][:3]) == expected[:3]
        assert np.isnat(batch["far"][3])
        late = read_parquet(path, filters=[("far", ">", datetime.datetime(2100, 1, 1))])
        assert [row["number"] for row in late] == [0]
        assert [row["far"] for row in read_parquet(path, schema="union")] == expected
        for unit in ("s", "ms", "us"):
            schema = pa.schema({"far": pa.timestamp(unit)})
            assert [row["far"] for row in read_parquet(path, schema=schema)] == expected
        with pytest.raises(InvalidArgumentError, match=r"schema: got timestamp\[ns\]"):
            list(read_parquet(path, schema=pa.schema({"far": pa.timestamp("ns")})))

    def test_near_ones_are_in_nanoseconds(self, tmp_path: Path) -> None:
        path = self.written(tmp_path / "a", near=pa.array(self.NEAR, pa.timestamp("ns")))
        found = [row["near"] for row in read_parquet(path)]
        assert found == [None if one is None else np.datetime64(one, "ns") for one in self.NEAR]
        for unit in ("s", "us"):
            with pytest.raises(InvalidArgumentError, match="schema: got"):
                list(read_parquet(path, schema=pa.schema({"near": pa.timestamp(unit)})))

    def test_in_lists_and_structs(self, tmp_path: Path) -> None:
        times = pa.array([self.FAR[0], self.FAR[2]], pa.timestamp("us"))
        path = self.written(
            tmp_path / "a",
            some=pa.array([[one] for one in times.to_pylist()], pa.list_(pa.timestamp("us"))),
            one=pa.StructArray.from_arrays([times], ["x"]),
        )
        for row, time in zip(read_parquet(path), (self.FAR[0], self.FAR[2]), strict=True):
            assert list(row["some"]) == [np.datetime64(time)]
            assert row["one"] == {"x": np.datetime64(time)}

    def test_what_64_bits_do_not_hold_is_refused(self, tmp_path: Path) -> None:
        far = pa.array([self.FAR[0], None, None, None], pa.timestamp("us"))
        near = pa.array([None, None, None, 1], pa.timestamp("ns"))
        path = self.written(tmp_path / "a", far=far, near=near)
        assert next(iter(read_parquet(path, ["far"])))["far"] == np.datetime64(self.FAR[0])
        match = r"columns: got 'near' .* fractions of microseconds in row 0 or later"
        with pytest.raises(InvalidArgumentError, match=match):
            list(read_parquet(path))

    @pytest.mark.parametrize("seed", range(20))
    def test_random_ones(self, seed: int, tmp_path: Path) -> None:
        draw = random.Random(seed)
        least, most = -62_135_596_800_000_000, 253_402_300_799_999_999
        micros = [draw.randrange(least, most) for _ in range(9)]
        path = self.written(tmp_path / "a", x=pa.array(micros, pa.timestamp("us")))
        assert [row["x"].astype(np.int64) for row in read_parquet(path)] == micros


class TestSchemas:
    """A schema for reading changes no value, but rounds floats."""

    @pytest.mark.parametrize(
        ("values", "stored", "asked"),
        [
            ([datetime.datetime(2020, 1, 1, 7)], pa.timestamp("us"), pa.date32()),
            ([datetime.datetime(2020, 1, 1, 7)], pa.timestamp("us"), pa.time64("us")),
            ([datetime.datetime(2020, 1, 1, 7, 0, 0, 1)], pa.timestamp("us"), pa.timestamp("ms")),
            ([1.5], pa.float64(), pa.int64()),
            ([2**53 + 1], pa.int64(), pa.float64()),
            ([2**24 + 1], pa.int64(), pa.float32()),
            ([2], pa.int64(), pa.bool_()),
            ([300], pa.int64(), pa.int8()),
            ([-1], pa.int64(), pa.uint64()),
            ([decimal.Decimal("1.25")], pa.decimal128(9, 2), pa.decimal128(9, 1)),
            ([decimal.Decimal("1.25")], pa.decimal128(9, 2), pa.int64()),
            ([1e300], pa.float64(), pa.float32()),
        ],
    )
    def test_what_does_not_fit_is_refused(
        self, values: Any, stored: Any, asked: Any, tmp_path: Path
    ) -> None:
        path = tmp_path / "a"
        pq.write_table(pa.table({"x": pa.array(values, stored)}), path)
        with pytest.raises(InvalidArgumentError, match="schema: got"):
            list(read_parquet(path, schema=pa.schema({"x": asked})))

    def test_what_fits(self, tmp_path: Path) -> None:
        path = tmp_path / "a"
        pq.write_table(pa.table({"x": pa.array([datetime.datetime(2020, 1, 1)])}), path)
        (row,) = read_parquet(path, schema=pa.schema({"x": pa.date32()}))
        assert row["x"] == np.datetime64("2020-01-01")
        pq.write_table(pa.table({"x": [0.1, None, float("nan")]}), path)
        found = [row["x"] for row in read_parquet(path, schema=pa.schema({"x": pa.float32()}))]
        assert (found[0], found[1]) == (np.float32(0.1), None)
        assert np.isnan(found[2])
