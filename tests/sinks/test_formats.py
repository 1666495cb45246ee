"""What each sink writes is what the reader of its format gives, and what other programs read."""

from __future__ import annotations

import gzip
import importlib.util
import io
import json
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from aioqueue import InvalidArgumentError
from aioqueue.inputs import (
    Sink,
    Written,
    arrays,
    items,
    numbers,
    read_parquet,
    read_tar,
    read_tfrecords,
    to_json_lines,
    to_parquet,
    to_tar,
    to_tfrecord,
)

HAS_PYARROW = importlib.util.find_spec("pyarrow") is not None
if HAS_PYARROW:
    import pyarrow as pa
    import pyarrow.parquet
needs_pyarrow = pytest.mark.skipif(not HAS_PYARROW, reason="pyarrow is not installed")
needs_crc32c = pytest.mark.skipif(
    importlib.util.find_spec("google_crc32c") is None, reason="google-crc32c is not installed"
)


MASKED: Any = np.ma.masked_equal([1, 2], 2)


def refused(rows: Sequence[Any], sink: Sink, match: str) -> None:
    with pytest.raises(InvalidArgumentError, match=match):
        items(list(rows)).write(sink, raise_single=True)


def names_of(written: Written) -> list[str]:
    return [str(path) for path in written.paths]


class TestJsonLines:
    def test_values(self, tmp_path: Path) -> None:
        rows = [
            {"text": "a\nü\u2028", "none": None, "nested": [{"x": [1, 2.5]}], "yes": True},
            {"number": np.int64(7), "half": np.float32(0.5), "array": np.eye(2), "no": np.bool_(0)},
            [1, "two"],
        ]
        (path,) = items(rows).write(to_json_lines(tmp_path)).paths
        found = [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
        expected = {"number": 7, "half": 0.5, "array": [[1, 0], [0, 1]], "no": False}
        assert found == [rows[0], expected, rows[2]]

    def test_compressed(self, tmp_path: Path) -> None:
        done = numbers(5).write(to_json_lines(tmp_path, rows_per_file=3, compression="gzip"))
        assert [path.name for path in done.paths] == ["part-00000.jsonl.gz", "part-00001.jsonl.gz"]
        assert [gzip.decompress(path.read_bytes()) for path in done.paths] == [
            b"0\n1\n2\n",
            b"3\n4\n",
        ]

    @pytest.mark.parametrize("compression", ["gzip", "bz2", "xz"])
    def test_the_same_rows_are_the_same_file(
        self, compression: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found = []
        for day in range(2):
            monkeypatch.setattr(time, "time", lambda day=day: 86400.0 * day)
            sink = to_json_lines(tmp_path / f"{day}", compression=compression)
            (path,) = numbers(5).write(sink).paths
            found.append(path.read_bytes())
        assert found[0] == found[1]

    @pytest.mark.parametrize(
        ("value", "why"),
        [
            (b"bytes", "it has a bytes"),
            (float("nan"), "not JSON compliant"),
            (np.datetime64("2026-01-01"), "it has a datetime64"),
            ("\ud800", "surrogates"),
            ({1: "a", "1": "b"}, "the key 1, which would become a string"),
            ([{None: 1, "null": 2}], "the key None, which would become a string"),
            ({True: 1}, "the key True, which would become a string"),
            (MASKED, "a masked array"),
            ([np.ma.masked], "a masked array"),
        ],
    )
    def test_what_json_does_not_have(self, value: Any, why: str, tmp_path: Path) -> None:
        refused([{"x": 0}, {"x": value}], to_json_lines(tmp_path), f"row 1: got dict .*{why}")

    def test_batches(self, tmp_path: Path) -> None:
        rows = arrays({"x": np.arange(5), "y": np.arange(10).reshape(5, 2)})
        (path,) = rows.batch(2).write(to_json_lines(tmp_path)).paths
        found = [json.loads(line) for line in path.read_text().splitlines()]
        assert found == [{"x": x, "y": [2 * x, 2 * x + 1]} for x in range(5)]
        # They may also be rows that are written as they are.
        kept = rows.batch(5).write(to_json_lines(tmp_path / "kept", batches=False))
        assert json.loads(kept.paths[0].read_text())["x"] == [0, 1, 2, 3, 4]


class TestTar:
    def test_samples(self, tmp_path: Path) -> None:
        array = np.arange(3)
        rows = [
            {"__key__": f"cats/{number}", "jpg": bytes([number]), "cls": number, "npy": array}
            for number in range(5)
        ]
        written = items(rows).write(to_tar(tmp_path, rows_per_file=2))
        assert [path.name for path in written.paths] == [f"part-0000{n}.tar" for n in range(3)]
        found = list(read_tar(names_of(written)))
        assert [one["__key__"] for one in found] == [f"cats/{number}" for number in range(5)]
        assert [(one["jpg"], one["cls"]) for one in found] == [
            (bytes([number]), str(number).encode()) for number in range(5)
        ]
        assert np.load(io.BytesIO(found[4]["npy"])).tolist() == [0, 1, 2]

    def test_the_same_rows_make_the_same_bytes(self, tmp_path: Path) -> None:
        rows = [{"txt": "ä", "json": {"a": [1]}, "__url__": "left out"}]
        for name in ("one", "other"):
            items(rows).write(to_tar(tmp_path / name))
        one, other = (tmp_path / name / "part-00000.tar" for name in ("one", "other"))
        assert one.read_bytes() == other.read_bytes()
        with tarfile.open(one) as archive:
            assert archive.getnames() == ["000000000.txt", "000000000.json"]

    def test_long_names(self, tmp_path: Path) -> None:
        key = "folder/" * 40 + "ü"
        written = items([{"__key__": key, "txt": "x"}]).write(to_tar(tmp_path, compression="xz"))
        assert next(iter(read_tar(names_of(written))))["__key__"] == key

    @pytest.mark.parametrize(
        ("row", "why"),
        [
            (b"bytes", "got a bytes; expected a dict"),
            ({"__key__": "a.b", "txt": ""}, "got the key 'a.b'"),
            ({"__key__": "a"}, "without files"),
            ({"jpg": 1.5}, "got for 'jpg' what cannot be written .a float."),
            ({"json": float("nan")}, "not JSON compliant"),
            ({"json": {1: 2, "1": 3}}, "the key 1, which would become a string"),
            ({"npy": MASKED}, "a masked array"),
            ({"__key__": "a\0b", "txt": ""}, "'a.*b.txt', which `read_tar` would not read"),
            ({"__key__": "a", "x/y": b""}, "'a.x/y', which `read_tar` would not read"),
            ({"__key__": "../a", "txt": ""}, "the key '../a', which leads out of the folder"),
            ({"__key__": "a/../../b", "txt": ""}, "which leads out of the folder"),
            ({"__key__": "..", "txt": ""}, "the key '..'"),
            ({"__key__": "a", "..": ""}, "'a\\.\\.\\.'; .* without '..'"),
            ({"__key__": "a", "txt..gz": ""}, "'a.txt..gz'; .* without '..'"),
            ({"__key__": "\ud800", "txt": ""}, "without lone surrogates"),
            ({"__key__": "a", "\ud800": b""}, "without lone surrogates"),
            ({"__key__": "__MACOSX/a", "txt": ""}, "which `read_tar` would not read"),
            ({"__key__": "__meta__/a", "txt": ""}, "which `read_tar` would not read"),
        ],
    )
    def test_what_is_no_sample(self, row: Any, why: str, tmp_path: Path) -> None:
        refused([row], to_tar(tmp_path), f"row 0: .*{why}")

    def test_neighbours_of_one_key(self, tmp_path: Path) -> None:
        refused([{"__key__": "a", "txt": ""}] * 2, to_tar(tmp_path), "row 1: got the key 'a'")

    def test_names_that_are_not_utf_8_come_back(self, tmp_path: Path) -> None:
        """`read_tar` has them from other programs, with their bytes as lone surrogates."""
        row = {"__key__": "a\udc80", "n\udcff": b"y"}
        written = items([row]).write(to_tar(tmp_path))
        (found,) = read_tar(names_of(written))
        assert row.items() <= found.items()


@needs_crc32c
class TestTFRecord:
    def test_records(self, tmp_path: Path) -> None:
        class Message:
            def SerializeToString(self) -> bytes:  # noqa: N802  # of protobuf
                return b"message"

        rows = [b"one", Message(), bytearray(b"three")]
        written = items(rows).write(to_tfrecord(tmp_path, rows_per_file=2, compression="gzip"))
        assert [path.name for path in written.paths] == [
            "part-00000.tfrecord.gz",
            "part-00001.tfrecord.gz",
        ]
        assert list(read_tfrecords(names_of(written))) == [b"one", b"message", b"three"]

    def test_what_is_no_record(self, tmp_path: Path) -> None:
        refused([{"x": 1}], to_tfrecord(tmp_path), "row 0: got a dict; expected bytes")


class Point(NamedTuple):
    x: int
    y: float


@needs_pyarrow
class TestNamesOfColumns:
    @pytest.mark.parametrize(
        ("row", "match"),
        [
            ({"\ud800": 1}, r"row 0: columns: got .*\\ud800.*; expected names without lone surrog"),
            ({"a": 1, "b\udc80": 1}, "row 0: columns: got .*without lone surrogates"),
            ({"a": {"\ud800": 1}}, "row 0: got for the column 'a' what cannot be written"),
        ],
    )
    def test_lone_surrogates_are_refused(
        self, row: dict[str, Any], match: str, tmp_path: Path
    ) -> None:
        refused([row], to_parquet(tmp_path), match)

    def test_in_batches_too(self, tmp_path: Path) -> None:
        batch = {"\ud800": np.arange(2)}
        refused([batch], to_parquet(tmp_path, batches=True), "batch: columns: got")
        with pytest.raises(InvalidArgumentError, match=r"^columns: got .*without lone surrogates"):
            to_parquet(tmp_path, columns=["\ud800"])

    @pytest.mark.parametrize("name", ["..", "a..b", "a\0b", "../x", "ü"])
    def test_others_come_back(self, name: str, tmp_path: Path) -> None:
        """A column is no file, so its name leads nowhere."""
        written = items([{name: 1}]).write(to_parquet(tmp_path))
        assert list(read_parquet(names_of(written))) == [{name: 1}]


@needs_pyarrow
class TestParquet:
    ROWS = (
        {"i": 1, "f": 0.5, "s": "a", "b": b"\0", "t": datetime(2026, 1, 2), "yes": True},
        {"i": None, "f": 1.5, "s": "ü", "b": b"", "t": datetime(2026, 1, 3), "yes": False},
    )

    def test_rows(self, tmp_path: Path) -> None:
        written = items(list(self.ROWS)).write(to_parquet(tmp_path))
        assert pa.parquet.read_table(written.paths[0]).to_pylist() == list(self.ROWS)

    def test_rows_of_numpy(self, tmp_path: Path) -> None:
        rows = [
            {
                "scalar": np.uint8(number),
                "time": np.datetime64("2026-01-01", "ms") + np.timedelta64(number, "ms"),
                "list": np.arange(number, dtype=np.int16),
                "image": np.full((2, 3), number, np.float32),
                "struct": {"a": np.arange(2), "b": "x"},
                "point": np.array(number),
            }
            for number in range(5)
        ]
        written = items(rows).write(to_parquet(tmp_path, rows_per_file=2))
        found = list(read_parquet(names_of(written)))
        assert len(found) == 5
        for row, given in zip(found, rows, strict=True):
            np.testing.assert_equal(row, given)
            assert row["scalar"].dtype == np.uint8
            assert (row["image"].dtype, row["list"].dtype) == (np.float32, np.int16)

    @pytest.mark.parametrize("size", [3, 16])
    def test_batches(self, size: int, tmp_path: Path) -> None:
        columns = {
            "x": np.arange(20),
            "embedding": np.arange(40, dtype=np.float32).reshape(20, 2),
            "image": np.zeros((20, 2, 3), np.uint8),
            "name": np.array([f"name {number}" for number in range(20)]),
            "flag": np.arange(20) % 2 == 0,
        }
        rows = arrays(columns)
        written = rows.batch(size).write(to_parquet(tmp_path, rows_per_file=7))
        assert len(written.paths) == 3
        found = list(read_parquet(names_of(written), batch_size=100))
        for name, column in columns.items():
            joined = np.concatenate([batch[name] for batch in found])
            assert joined.tolist() == column.tolist()
        assert found[0]["image"].shape == (7, 2, 3)
        # What a reader gives in batches is written as it is.
        again = read_parquet(names_of(written), batch_size=6).write(to_parquet(tmp_path / "again"))
        assert again.rows == 20

    def test_tuples(self, tmp_path: Path) -> None:
        pairs = [(1, "a"), (2, "b")]
        written = items(pairs).write(to_parquet(tmp_path / "pairs", columns=["x", "y"]))
        assert list(read_parquet(names_of(written))) == [{"x": 1, "y": "a"}, {"x": 2, "y": "b"}]
        points = items([Point(1, 2.0), Point(3, 4.0)])
        for pipeline in (points, points.batch(2)):
            written = pipeline.write(to_parquet(tmp_path / "points"), existing="replace")
            assert list(read_parquet(names_of(written)))[1] == {"x": 3, "y": 4.0}
        refused(pairs, to_parquet(tmp_path / "unnamed"), "row 0: got a tuple; expected a dict")

    def test_batches_of_dicts_in_dicts(self, tmp_path: Path) -> None:
        """They are what the rows are: structs."""
        rows: Any = items([{"x": {"a": n, "b": {"c": float(n)}}, "y": n} for n in range(5)])
        tables = [
            pyarrow.parquet.read_table(pipeline.write(to_parquet(tmp_path / name)).paths[0])
            for name, pipeline in (("rows", rows), ("batches", rows.batch(2)))
        ]
        assert tables[0].equals(tables[1])
        uneven = {"x": {"a": np.zeros(2), "b": np.zeros(3)}}
        refused([uneven], to_parquet(tmp_path / "no", batches=True), r"'x.a': 2, 'x.b': 3")

    def test_tables(self, tmp_path: Path) -> None:
        def table(number: int) -> Any:
            made = pa.table({"x": [number, number + 1], "y": ["a", "b"]})
            return made if number % 2 else made.to_batches()[0]

        pipeline = numbers(4).prepare(table)
        written = pipeline.write(to_parquet(tmp_path, rows_per_file=3, batches=True))
        found = [int(row["x"]) for row in read_parquet(names_of(written))]
        assert found == [0, 1, 1, 2, 2, 3, 3, 4]

    def test_one_schema(self, tmp_path: Path) -> None:
        rows = [{"x": 1}] * 300 + [{"x": 1.5}]
        refused(rows, to_parquet(tmp_path / "no"), "for the column 'x' .*expected int64")
        schema = pa.schema([("x", pa.float64())])
        written = items(rows).write(to_parquet(tmp_path / "yes", schema=schema))
        assert [row["x"] for row in read_parquet(names_of(written))][-2:] == [1, 1.5]

    def test_it_stays_after_a_resume(self, tmp_path: Path) -> None:
        sink = to_parquet(tmp_path, rows_per_file=2)

        def rows(fails: bool) -> Any:
            def row(number: int) -> dict[str, Any]:
                if fails and number == 2:
                    raise ValueError("two")
                return {"x": number if number < 2 else number + 0.5}

            return numbers(4).prepare(row, workers=1)

        with pytest.raises(ExceptionGroup, match="two"):
            rows(True).write(sink)
        with pytest.raises(InvalidArgumentError, match="expected int64"):
            rows(False).write(sink, raise_single=True)

    @pytest.mark.parametrize(
        ("rows", "why"),
        [
            ([{"x": 1}, {"y": 1}], r"row 1: got \['y'\]; expected the columns \['x'\]"),
            ([{"x": 1}, {"x": 1, "y": 2}], r"row 1: got \['x', 'y'\]"),
            ([{"x": object()}], "row 0: got for the column 'x'"),
            ([{"x": np.eye(2)}, {"x": np.eye(3)}], r"shapes \(2, 2\) and \(3, 3\)"),
            ([5], "row 0: got an int; expected a dict"),
            ([{"x": {"a": 1}}] * 64 + [{"x": {"a": 1, "b": 2}}], "a field 'b'"),
            ([{"x": [1]}] * 64 + [{"x": [1.5]}], "Float value 1.5"),
            ([{"x": True}] * 64 + [{"x": 1}], "int64 for bools"),
            ([{"x": 1}] * 64 + [{"x": True}], "bool for numbers"),
            ([{"x": 1}] * 64 + [{"x": "1"}], "string for numbers"),
            ([{"x": "a"}] * 64 + [{"x": 1}], "int64 for text"),
            ([{"x": datetime(2026, 1, 1)}] * 64 + [{"x": 1}], "int64 for times"),
            ([{"x": np.float32(1)}] * 64 + [{"x": 1e300}], r"1e\+300 does not fit float"),
            ([{"x": [np.float32(1)]}] * 64 + [{"x": [1e300]}], r"1e\+300 does not fit float"),
            ([{"x": np.float64(1)}, {"x": np.int64(2**62 + 1)}], "4611686018427387905"),
            ([{"x": np.float64(1)}, {"x": np.uint64(2**64 - 1)}], "too large"),
            ([{"x": 1.5}, {"x": np.uint64(2**64 - 1)}], "too large"),
            ([{"x": [1.5, np.uint64(2**64 - 1)]}], "row 0: got a list with uint64 among others"),
            ([{"x": np.timedelta64(1, "s")}, {"x": 5}], "for the column 'x'"),
            (
                [{"x": np.datetime64(1, "ns")}, {"x": np.datetime64("9999-01-01")}],
                "for the column 'x'",
            ),
            ([{"x": 0}, {"x": MASKED}], "row 1: got a masked array"),
            ([{"x": {"y": [np.ma.masked]}}], "row 0: got a masked array"),
        ],
    )
    def test_what_does_not_fit(self, rows: list[Any], why: str, tmp_path: Path) -> None:
        refused(rows, to_parquet(tmp_path), why)

    def test_a_schema_does_not_change_values(self, tmp_path: Path) -> None:
        for type, fits, other in (
            (pa.float32(), [0.1, 3e38, np.inf, np.nan, None], [-1e300]),
            (pa.float16(), [0.1, 65504.0, -np.inf], [np.float32(70000)]),
            (pa.list_(pa.float32()), [[1.5], [np.inf], None], [[0.0], [1e39]]),
            (pa.struct({"y": pa.float32()}), [{"y": 1.0}], [{"y": 1e39}]),
        ):
            sink = to_parquet(tmp_path / f"{type}", schema=pa.schema({"x": type}))
            rows = [{"x": one} for one in fits]
            (path,) = items(rows).write(sink).paths
            assert len(list(read_parquet(path))) == len(rows)
            bad = to_parquet(tmp_path / f"{type}-bad", schema=pa.schema({"x": type}))
            refused([{"x": one} for one in other], bad, "does not fit")
            table = pa.table({"x": other})
            refused(
                [table],
                to_parquet(tmp_path / f"{type}-table", schema=pa.schema({"x": type}), batches=True),
                "does not fit",
            )

    def test_masks_of_batches(self, tmp_path: Path) -> None:
        batch = {"x": MASKED}
        refused([batch], to_parquet(tmp_path, batches=True), "batch: got a masked array")

    @pytest.mark.parametrize("unit", ["25s", "10ms", "7ns"])
    @pytest.mark.parametrize("kind", ["M8", "m8"])
    def test_times_in_units_of_several(self, kind: str, unit: str, tmp_path: Path) -> None:
        """Arrow takes 25 s for 1 s."""
        times = np.arange(6).reshape(3, 2).astype(f"{kind}[{unit}]")
        rows = [{"one": row[0], "some": row} for row in times]
        for name, pipeline in (
            ("rows", items(rows)),
            ("batches", items(rows).batch(2)),
            ("gaps", items([*rows, {"one": None, "some": None}])),
        ):
            batches = name == "batches"
            written = pipeline.write(to_parquet(tmp_path / name, batches=batches))
            for row, found in zip(times, read_parquet(names_of(written)), strict=False):
                assert found["one"] == row[0]
                assert list(found["some"]) == list(row)

    @pytest.mark.parametrize("batches", [False, True])
    def test_masks_are_not_lost(self, batches: bool, tmp_path: Path) -> None:
        masked = np.ma.array([1, 2], mask=[False, True])
        match = "masked array; fill it"
        refused([{"x": masked}], to_parquet(tmp_path / "no", batches=batches), match)

    @pytest.mark.parametrize("kind", [list, dict])
    def test_containers_without_an_end_are_refused(self, kind: Any, tmp_path: Path) -> None:
        """Arrow follows them until the process crashes."""
        endless = kind()
        if kind is list:
            endless += [1, endless]
        else:
            endless["x"] = endless
        for row in ({"x": endless}, {"x": [endless], "y": 1}):
            refused([row], to_parquet(tmp_path / "no"), "more than 64 deep")

    def test_a_large_int_beside_floats_is_refused(self, tmp_path: Path) -> None:
        refused([{"x": np.float64(0.5)}, {"x": 2**53 + 1}], to_parquet(tmp_path / "no"), "x")

    def test_batches_that_are_none(self, tmp_path: Path) -> None:
        for batch, why in (
            ({"x": np.arange(2), "y": np.arange(3)}, "different lengths"),
            ({"x": 1}, "a component without rows"),
        ):
            refused([batch], to_parquet(tmp_path / why, batches=True), why)

    @pytest.mark.slow
    def test_row_groups_are_bounded(self, tmp_path: Path) -> None:
        """By their bytes: a file of large rows must not have to fit into memory."""
        large = b"\0" * 2**20
        pipeline = numbers(100).prepare(lambda number: {"x": large})
        (path,) = pipeline.write(to_parquet(tmp_path, compression="zstd")).paths
        groups = pa.parquet.ParquetFile(path).metadata
        assert groups.num_rows == 100
        assert groups.num_row_groups > 1

    def test_arguments(self, tmp_path: Path) -> None:
        for options, why in (
            ({"schema": {"x": int}}, "schema: got"),
            ({"compression": "zip"}, "compression: got 'zip'"),
            ({"columns": ["x", "x"]}, "columns: got"),
            ({"batches": 1}, "batches: got 1"),
        ):
            with pytest.raises(InvalidArgumentError, match=why):
                to_parquet(tmp_path, **options)
        with pytest.raises(InvalidArgumentError, match=r"one of 'gzip', 'bz2', 'xz', 'zstd'$"):
            to_json_lines(tmp_path, compression="zip")


@pytest.mark.parametrize(
    ("make", "module", "extra"),
    [(to_parquet, "pyarrow", "parquet"), (to_tfrecord, "google_crc32c", "tfrecord")],
)
def test_a_missing_package_is_named(
    make: Callable[[Path], Sink],
    module: str,
    extra: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from aioqueue.readers import tfrecord

    tfrecord.required_crc32c.cache_clear()
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError, match=rf"{extra}\]"):
        make(tmp_path)
    tfrecord.required_crc32c.cache_clear()
