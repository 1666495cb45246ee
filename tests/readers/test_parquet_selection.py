"""One schema over files, filters of rows, and columns of the path; random ones against pyarrow."""

from __future__ import annotations

import datetime
import json
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aioqueue import DataLossError, InvalidArgumentError
from aioqueue.inputs import files, items, read_arrow, read_parquet

pa = pytest.importorskip("pyarrow")
pc = pytest.importorskip("pyarrow.compute")
ds = pytest.importorskip("pyarrow.dataset")
ipc = pytest.importorskip("pyarrow.ipc")
parquet = pytest.importorskip("pyarrow.parquet")


def write(path: Path, columns: Any, portion: int = 3) -> str:
    """Write a Parquet file; return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    parquet.write_table(table, path, row_group_size=portion)
    return str(path)


def plain(rows: Any) -> list[dict[str, Any]]:
    """Rows with Python's numbers."""

    def of(value: Any) -> Any:
        return value.item() if isinstance(value, np.generic) else value

    return [{name: of(value) for name, value in row.items()} for row in rows]


class TestSchema:
    @pytest.fixture
    def paths(self, tmp_path: Path) -> list[str]:
        return [
            write(tmp_path / "a", {"x": pa.array([1, 2], "int32"), "y": ["a", "b"]}),
            write(tmp_path / "b", {"x": pa.array([3], "int64"), "y": pa.nulls(1), "z": [0.5]}),
            write(tmp_path / "c", {"y": ["c"], "x": pa.array([4], "int8")}),
        ]

    def test_of_all_files(self, paths: list[str]) -> None:
        rows = list(read_parquet(paths, schema="union"))
        assert rows == [
            {"x": 1, "y": "a", "z": None},
            {"x": 2, "y": "b", "z": None},
            {"x": 3, "y": None, "z": 0.5},
            {"x": 4, "y": "c", "z": None},
        ]
        assert {type(row["x"]) for row in rows} == {np.int64}

    def test_of_batches(self, paths: list[str]) -> None:
        batches = list(
            read_parquet(paths, ["z", "x"], schema="union", batch_size=5, fill_null={"z": -1})
        )
        assert [list(batch) for batch in batches] == [["z", "x"]] * 3
        assert [batch["z"].tolist() for batch in batches] == [[-1, -1], [0.5], [-1]]
        assert {batch["x"].dtype for batch in batches} == {np.dtype("int64")}
        batches[0]["x"][0] = 7  # writable

    def test_of_your_own(self, paths: list[str]) -> None:
        schema = pa.schema({"x": pa.float32(), "w": pa.string()})
        assert list(read_parquet(paths, schema=schema)) == [
            {"x": n, "w": None} for n in (1, 2, 3, 4)
        ]
        assert type(next(iter(read_parquet(paths, schema=schema)))["x"]) is np.float32

    def test_each_file_has_its_own_by_default(self, paths: list[str]) -> None:
        rows = list(read_parquet(paths))
        assert [list(row) for row in rows] == [["x", "y"]] * 2 + [["x", "y", "z"], ["y", "x"]]
        with pytest.raises(InvalidArgumentError, match=r"'z'.*schema='union' fills"):
            list(read_parquet(paths, ["z"]))

    def test_of_files_that_differ_too_much(self, tmp_path: Path) -> None:
        paths = [write(tmp_path / "a", {"x": [1]}), write(tmp_path / "b", {"x": ["one"]})]
        with pytest.raises(InvalidArgumentError, match=r"schema: got 'union' .*differ.*x"):
            list(read_parquet(paths, schema="union"))
        with pytest.raises(InvalidArgumentError, match=r"int64 for column 'x', .* string in .*b"):
            list(read_parquet(paths, schema=pa.schema({"x": pa.int64()})))

    @pytest.mark.parametrize(
        ("one", "other", "values"),
        [
            (pa.array(["a"]).dictionary_encode(), pa.array(["b"]), ["a", "b"]),
            (pa.array([1], "uint8"), pa.array([-3], "int8"), [1, -3]),
            (pa.array([1]), pa.array([0.5]), [1.0, 0.5]),
            (
                pa.array([{"a": "x"}]),
                pa.array([{"b": "y"}]),
                [{"a": "x", "b": None}, {"a": None, "b": "y"}],
            ),
            (pa.array(["a"]), pa.array(["b"], pa.large_string()), ["a", "b"]),
            (pa.array([b"a"]), pa.nulls(1), [b"a", None]),
            (
                pa.FixedShapeTensorArray.from_numpy_ndarray(np.zeros((1, 2), "int8")),
                pa.FixedShapeTensorArray.from_numpy_ndarray(np.ones((1, 2), "int8")),
                [[0, 0], [1, 1]],
            ),
        ],
        ids=["dictionary", "sign", "float", "struct", "large", "null", "tensor"],
    )
    def test_widened_types(self, one: Any, other: Any, values: Any, tmp_path: Path) -> None:
        paths = [
            write(tmp_path / name, {"x": x, "n": [1]}) for name, x in (("a", one), ("b", other))
        ]
        given: list[dict[str, Any]] = [{}, {"filters": [("n", "==", 1)]}]
        for options in given:
            found = [row["x"] for row in read_parquet(paths, schema="union", **options)]
            assert [x.tolist() if isinstance(x, np.ndarray) else x for x in found] == values

    def test_a_value_is_never_changed(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a", {"x": [300]})
        with pytest.raises(InvalidArgumentError, match="schema: got int8 for column 'x'"):
            list(read_parquet(path, schema=pa.schema({"x": pa.int8()})))

    @pytest.mark.parametrize(
        ("stored", "type"),
        [
            ([1e300], pa.float32()),
            ([[0.0, -1e39]], pa.list_(pa.float32())),
            ([{"y": 1e39}], pa.struct({"y": pa.float32()})),
            ([2], pa.bool_()),
        ],
    )
    def test_nor_made_infinite_or_true(self, stored: Any, type: Any, tmp_path: Path) -> None:
        path = write(tmp_path / "a", {"x": stored})
        with pytest.raises(InvalidArgumentError, match=r"schema: got .* does not fit"):
            list(read_parquet(path, schema=pa.schema({"x": type})))

    def test_what_fits_is_converted(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a", {"x": [np.inf, 0.1, None], "y": [0, 1, None]})
        schema = pa.schema({"x": pa.float32(), "y": pa.bool_()})
        rows = list(read_parquet(path, schema=schema))
        assert [row["x"] for row in rows] == [np.inf, np.float32(0.1), None]
        assert [row["y"] for row in rows] == [False, True, None]

    def test_needs_to_know_the_paths(self, paths: list[str], tmp_path: Path) -> None:
        with pytest.raises(InvalidArgumentError, match="not known beforehand"):
            list(read_parquet(iter(paths), schema="union"))
        assert len(list(read_parquet(files(tmp_path / "*"), schema="union"))) == 4
        assert len(list(read_parquet(items(paths).repeat(2), schema="union"))) == 8

    def test_a_damaged_file_is_reported_in_its_turn(self, paths: list[str]) -> None:
        Path(paths[1]).write_bytes(Path(paths[1]).read_bytes()[:-9])
        reader = read_parquet(paths, schema="union", on_error="skip")
        assert [row["x"] for row in reader] == [1, 2, 4]
        assert [record.item for record in reader.quarantine] == [paths[1]]
        with pytest.raises(DataLossError):
            list(read_parquet(paths, schema="union"))

    def test_of_arrow_files(self, tmp_path: Path) -> None:
        for name, values in (("a", pa.array([1], "int8")), ("b", pa.array([2], "int64"))):
            table = pa.table({"x": values, name: [0]})
            with ipc.new_file(str(tmp_path / name), table.schema) as writer:
                writer.write_table(table)
        rows = list(read_arrow(files(tmp_path / "*"), schema="union", filters=[("x", ">", 1)]))
        assert rows == [{"x": 2, "a": None, "b": 0}]


class TestFilters:
    @pytest.fixture
    def path(self, tmp_path: Path) -> str:
        return write(
            tmp_path / "table", {"n": list(range(20)), "text": [f"t{n % 3}" for n in range(20)]}
        )

    @pytest.mark.parametrize(
        ("filters", "numbers"),
        [
            ([("n", ">=", 17)], [17, 18, 19]),
            (("n", "<", 2), [0, 1]),
            ([("n", ">", 3), ("n", "<", 9), ("text", "=", "t0")], [6]),
            ([[("n", "==", 1)], [("n", "in", [7, 9])]], [1, 7, 9]),
            (ds.field("n") * 2 == 8, [4]),
            (pc.starts_with(pc.field("text"), "t2") & (pc.field("n") > 15), [17]),
            ([("n", ">", 100)], []),
        ],
    )
    def test_leave_out_rows(self, filters: Any, numbers: list[int], path: str) -> None:
        reader = read_parquet(path, filters=filters)
        assert [row["n"] for row in reader] == numbers
        assert [key for key, _ in reader.with_keys()] == [f"{path}:{n}" for n in numbers]
        only = read_parquet(path, ["text"], filters=filters)
        assert list(only) == [{"text": f"t{n % 3}"} for n in numbers]
        batches = list(read_parquet(path, ["n"], filters=filters, batch_size=2))
        assert [n for batch in batches for n in batch["n"].tolist()] == numbers
        assert all(len(batch["n"]) == 2 for batch in batches[:-1])

    def test_of_row_groups_without_rows_only_the_columns_of_the_filter_are_read(
        self, path: str
    ) -> None:
        """Damage in others is not met."""
        column = parquet.ParquetFile(path).metadata.row_group(3).column(1)
        content = bytearray(Path(path).read_bytes())
        begin = column.dictionary_page_offset or column.data_page_offset
        for at in range(begin, begin + column.total_compressed_size):
            content[at] ^= 0xFF
        Path(path).write_bytes(content)
        with pytest.raises(DataLossError):
            list(read_parquet(path))
        found = read_parquet(path, filters=[("n", ">", 14)])
        assert [row["n"] for row in found] == [15, 16, 17, 18, 19]
        assert [key for key, _ in found.with_keys()] == [f"{path}:{n}" for n in range(15, 20)]
        with pytest.raises(DataLossError):
            list(read_parquet(path, filters=[("n", ">", 10)]))

    def test_damaged_statistics_hide_no_rows(self, tmp_path: Path) -> None:
        """They stand in the footer, which has no checksum."""
        least, most = 0x1122334455, 0x1122334466
        path = write(tmp_path / "t", {"n": [least, most], "text": ["a", "b"]})
        content = Path(path).read_bytes()
        at = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
        footer = content[at:].replace(most.to_bytes(8, "little"), least.to_bytes(8, "little"))
        assert footer != content[at:]
        Path(path).write_bytes(content[:at] + footer)
        assert [row["text"] for row in read_parquet(path, filters=[("n", "=", most)])] == ["b"]

    def test_damage_within_a_row_group_comes_behind_the_rows_before_it(
        self, tmp_path: Path
    ) -> None:
        """Also if the columns of the filter have it, which are read first."""
        path = tmp_path / "t"
        table = pa.table({"n": range(9000), "text": ["a"] * 9000})
        parquet.write_table(
            table, path, use_dictionary=False, data_page_size=8000, write_page_checksum=True,
            compression="none",
        )  # fmt: skip
        content = bytearray(path.read_bytes())
        column = parquet.ParquetFile(path).metadata.row_group(0).column(0)
        content[column.data_page_offset + 50_000] ^= 1
        path.write_bytes(content)

        def read_before_loss(**options: Any) -> list[int]:
            read: list[int] = []
            with pytest.raises(DataLossError):
                read.extend(row["n"] for row in read_parquet(path, **options))
            return read

        assert read_before_loss(filters=[("n", ">", 3)]) == read_before_loss()[4:]

    def test_a_null_never_matches(self, tmp_path: Path) -> None:
        path = write(tmp_path / "t", {"x": [1, None, 3]})
        assert [row["x"] for row in read_parquet(path, filters=[("x", "!=", 1)])] == [3]
        assert list(read_parquet(path, filters=pc.field("x").is_null())) == [{"x": None}]

    def test_a_position_knows_them(self, path: str) -> None:
        position = read_parquet(path, filters=[("n", ">", 1)], seed=1).position()
        with pytest.raises(InvalidArgumentError, match=r"source\.options\.filters"):
            read_parquet(path, filters=[("n", ">", 2)], seed=1).after(position)

    @pytest.mark.parametrize(
        ("filters", "message"),
        [
            ([("no", "==", 1)], r"filters: got \(no == 1\), which does not fit .*no.*; expected"),
            ([("n", "==", "x")], "filters: got .* does not fit"),
        ],
    )
    def test_that_do_not_fit_a_file(self, filters: Any, message: str, path: str) -> None:
        with pytest.raises(InvalidArgumentError, match=message):
            list(read_parquet(path, filters=filters))

    @pytest.mark.parametrize("filters", [[], "n > 1", 3, [("n", "~", 1)], [("n",)], [[]]])
    def test_wrong_ones_are_named(self, filters: Any, path: str) -> None:
        with pytest.raises(InvalidArgumentError, match=r"filters: got .*; expected a list"):
            read_parquet(path, filters=filters)


class TestHive:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        for year in (2023, 2024):
            for kind in ("a b", "__HIVE_DEFAULT_PARTITION__"):
                name = kind.replace(" ", "%20")
                write(tmp_path / f"year={year}" / f"kind={name}" / "part.parquet", {"n": [1, 2]})
        return tmp_path

    def test_folders_are_columns(self, folder: Path) -> None:
        rows = list(read_parquet(files(folder / "**" / "*.parquet"), partitioning="hive"))
        assert rows == [
            {"n": n, "year": year, "kind": kind}
            for year in (2023, 2024)
            for kind in (None, "a b")
            for n in (1, 2)
        ]
        assert type(rows[0]["year"]) is np.int64

    def test_filters_and_columns(self, folder: Path) -> None:
        reader = read_parquet(
            files(folder / "**" / "*.parquet"),
            ["kind"],
            partitioning="hive",
            filters=[("year", "==", 2024), ("n", ">", 1)],
        )
        assert list(reader) == [{"kind": None}, {"kind": "a b"}]
        (batch,) = read_parquet(
            files(folder / "year=2024" / "kind=a*" / "*"),
            ["year"],
            partitioning="hive",
            batch_size=5,
        )
        assert batch["year"].tolist() == [2024, 2024]
        assert batch["year"].dtype == np.int64

    def test_types_are_those_of_all_paths_or_of_the_schema(self, tmp_path: Path) -> None:
        paths = [write(tmp_path / f"k={key}" / "f", {"n": [1]}) for key in ("1", "x")]
        assert [row["k"] for row in read_parquet(paths, partitioning="hive")] == ["1", "x"]
        (row,) = read_parquet(paths[0], partitioning="hive")
        assert row["k"] == 1
        schema = pa.schema({"k": pa.float64(), "n": pa.int8()})
        (row,) = read_parquet(paths[0], partitioning="hive", schema=schema)
        assert (row["k"], type(row["n"])) == (1.0, np.int8)
        with pytest.raises(InvalidArgumentError, match="'k', which is 'x' in"):
            list(read_parquet(paths[1], partitioning="hive", schema=schema))
        assert [row["k"] for row in read_parquet(iter(paths), partitioning="hive")] == ["1", "x"]

    def test_other_digits_are_text(self, tmp_path: Path) -> None:
        path = write(tmp_path / "k=\u0663" / "f", {"n": [1]})
        assert list(read_parquet(path, partitioning="hive")) == [{"n": 1, "k": "\u0663"}]

    def test_folders_that_are_no_text_are_refused(self, tmp_path: Path) -> None:
        """One replacement character for each would make one of ``k=%ff`` and ``k=%fe``."""
        path = write(tmp_path / "k=%ff" / "f", {"n": [1]})
        with pytest.raises(InvalidArgumentError, match="'%ff' is not UTF-8"):
            list(read_parquet(path, partitioning="hive"))

    def test_a_path_hides_a_stored_column(self, tmp_path: Path) -> None:
        path = write(tmp_path / "n=7" / "f", {"n": [1], "m": [2]})
        assert list(read_parquet(path, partitioning="hive")) == [{"n": 7, "m": 2}]
        assert list(read_parquet(path)) == [{"n": 1, "m": 2}]

    def test_is_named_where_it_would_help(self, folder: Path) -> None:
        with pytest.raises(InvalidArgumentError, match="partitioning='hive' reads columns"):
            list(read_parquet(files(folder / "**" / "*.parquet"), ["year"]))

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"partitioning": "directory"}, "partitioning: got 'directory'; expected 'hive'"),
            ({"schema": "first"}, "schema: got 'first'; expected 'union'"),
            ({"schema": {"a": "int64"}}, "schema: got {'a'"),
        ],
    )
    def test_wrong_arguments_are_named(self, arguments: Any, message: str) -> None:
        with pytest.raises(InvalidArgumentError, match=message):
            read_parquet("a", **arguments)


@pytest.mark.slow(every=8)
@pytest.mark.parametrize("seed", range(40))
def test_random_files(seed: int, tmp_path: Path) -> None:
    """They have the rows that `pyarrow.dataset` finds, from any position, in rows and batches."""
    draw = random.Random(seed)
    day = datetime.date(2024, 1, 1)

    def ints(type: str, size: int) -> Any:
        return pa.array([draw.choice([None, *range(-9, 9)]) for _ in range(size)], type)

    makers: dict[str, list[Callable[[int], Any]]] = {
        "i": [partial(ints, type) for type in ("int8", "int16", "int64")],
        "f": [lambda n: pa.array([draw.randrange(9) / 2 for _ in range(n)], "float32"), pa.nulls],
        "s": [
            lambda n: pa.array([draw.choice(["a", "b", None]) for _ in range(n)], "string"),
            pa.nulls,
        ],
        "d": [lambda n: pa.array([day + datetime.timedelta(draw.randrange(4)) for _ in range(n)])],
    }
    paths = []
    for number in range(draw.randrange(1, 6)):
        size = draw.randrange(12)
        names = draw.sample(sorted(makers), draw.randrange(1, 5))
        table = pa.table({name: draw.choice(makers[name])(size) for name in names})
        part = f"p={draw.choice(['1', '2', '__HIVE_DEFAULT_PARTITION__'])}"
        paths.append(write(tmp_path / part / f"{number}", table, draw.choice([1, 2, 5, 100])))
    schemas = [parquet.read_schema(path).remove_metadata() for path in paths]
    schema = pa.unify_schemas(schemas, promote_options="permissive")
    schema = schema.append(pa.field("p", pa.int64()))
    parts = ds.partitioning(pa.schema({"p": pa.int64()}), flavor="hive")
    whole = ds.dataset(paths, schema=schema, partitioning=parts, format="parquet")
    conditions: dict[str, Any] = {
        "i": [("i", ">", 0), ("i", "in", [1, 2, 3])],
        "f": [("f", "<=", 2.0)],
        "s": [("s", "==", "a")],
        "d": [("d", ">=", day + datetime.timedelta(2))],
        "p": [("p", "==", 1), ("p", "!=", 1)],
    }
    known = [
        name for name in conditions if name in schema.names and schema.field(name).type != pa.null()
    ]
    filters: Any = [draw.choice(conditions[draw.choice(known)]) for _ in range(draw.randrange(3))]
    options: dict[str, Any] = {
        "schema": "union",
        "partitioning": "hive",
        "filters": filters or None,
        "columns": draw.choice([None, draw.sample(schema.names, draw.randrange(1, len(schema)))]),
    }
    expression = parquet.filters_to_expression(filters) if filters else None
    table = whole.to_table(columns=options["columns"] or schema.names, filter=expression)
    reader = read_parquet(paths, seed=1, **options)
    rows = list(reader)
    days = {day + datetime.timedelta(n): None for n in range(4)}
    expected = [
        {name: np.datetime64(value) if value in days else value for name, value in row.items()}
        for row in table.to_pylist()
    ]
    assert plain(rows) == plain(expected)
    for number, placed in enumerate(list(reader.placed()), 1):
        position = json.loads(json.dumps(reader.position(placed.place)))
        again = read_parquet(paths, seed=1, **options)
        assert list(again.after(position)) == rows[number:]

    size = draw.randrange(1, 6)
    fill = {"i": 99, "f": -1, "p": 99}
    filled = {name: fill[name] for name in fill if name in table.column_names}
    batching = read_parquet(paths, seed=1, batch_size=size, fill_null=filled, **options)
    batches = list(batching)
    for name in table.column_names:
        found = [value for batch in batches for value in batch[name].tolist()]
        values = [filled.get(name) if one is None else one for one in table[name].to_pylist()]
        assert found == values
    for number, placed in enumerate(list(batching.placed()), 1):
        rest = list(batching.after(batching.position(placed.place)))
        assert repr(rest) == repr(batches[number:])
