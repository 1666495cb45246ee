"""What a sink or cache writes comes back as it was, or is refused. One table for all of them.

A generator draws columns: values of one kind, or of several, alone or in lists, dicts and arrays,
as rows and as batches, the first rows of one kind and a later one of another. Each sink writes
them, and its reader gives them back. Then each value is the same, in the words of `to_parquet`; or
the error names the row or batch, and the column where there is one. It is never another value.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeAlias
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from aioqueue import InvalidArgumentError
from aioqueue.inputs import (
    items,
    read_json_lines,
    read_parquet,
    read_tar,
    to_json_lines,
    to_parquet,
    to_tar,
)

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")

Draw: TypeAlias = random.Random
Maker: TypeAlias = Callable[[Draw], Any]

INTS = [f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)]
UNITS = ["Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "25s", "10ms"]
ZONES: list[Any] = [
    UTC,
    timezone(timedelta(hours=5)),
    timezone(timedelta(hours=-3, minutes=-30)),
    timezone(timedelta(seconds=3208)),
    ZoneInfo("UTC"),
]


def some_int(draw: Draw) -> int:
    edges = [0, 1, -1, 7, 255, 2**31, 2**53, 2**53 + 1, -(2**63), 2**63 - 1, 2**63, 2**64, 10**30]
    return draw.choice(edges[: draw.choice([4, 13])])


def numpy_int(name: str) -> Maker:
    info = np.iinfo(name)
    return lambda draw: np.dtype(name).type(
        draw.choice([0, 1, info.min, info.max, draw.randrange(100)])
    )


def some_float(draw: Draw) -> float:
    return draw.choice([0.0, -0.0, 0.5, 0.1, 1e300, 5e-324, 2.0**60, math.inf, math.nan])


def numpy_float(name: str) -> Maker:
    def made(draw: Draw) -> Any:
        with np.errstate(over="ignore"):
            return np.dtype(name).type(some_float(draw))

    return made


def moment(draw: Draw) -> datetime:
    return draw.choice(
        [
            datetime(2020, 1, 1),
            datetime(2020, 1, 1, 7, 30),
            datetime(2020, 10, 25, 2, 30, fold=1),
            datetime(1969, 12, 31, 23, 59, 59, 999_999),
            datetime(1000, 1, 1, 1),
            datetime(9999, 12, 31, 20),
        ]
    )


def numpy_time(kind: str, unit: str) -> Maker:
    def made(draw: Draw) -> Any:
        number = draw.choice([0, 1, -1, 1500, 90_000, 2**31, 2**40, 2**62, None])
        return np.array("NaT" if number is None else number, f"{kind}8[{unit}]")[()]

    return made


KINDS: dict[str, Maker] = {
    "int": some_int,
    "float": some_float,
    "bool": lambda draw: draw.random() < 0.5,
    "str": lambda draw: draw.choice(
        ["", "a", "é\u2028", "1", "a\0", "\ud800"][: draw.choice([5, 6])]
    ),
    "bytes": lambda draw: draw.choice([b"", b"a", b"\xff\0", "é".encode()]),
    "bytearray": lambda draw: bytearray(b"ab"),
    "date": lambda draw: draw.choice([date(2020, 1, 1), date.min, date.max]),
    "naive": moment,
    "aware": lambda draw: moment(draw).replace(tzinfo=draw.choice(ZONES)),
    "time": lambda draw: draw.choice([time(0), time(1, 2, 3, 4), time(23, 59, 59, 999_999)]),
    "aware time": lambda draw: time(1, 2, tzinfo=UTC),
    "timedelta": lambda draw: draw.choice(
        [timedelta(0), timedelta(1, 2, 3), timedelta(-5), timedelta(days=10**8), timedelta.max]
    ),
    "decimal": lambda draw: Decimal(draw.choice(["0", "1.10", "-2.345", "1e30", "1e-30", "NaN"])),
    "none": lambda draw: None,
    "uuid": lambda draw: UUID(int=draw.randrange(9)),
    "set": lambda draw: {1, 2},
    "complex": lambda draw: 1j,
    "numpy bool": lambda draw: np.bool_(draw.random() < 0.5),
    "numpy str": lambda draw: np.str_(draw.choice(["a", ""])),
    "numpy bytes": lambda draw: np.bytes_(draw.choice([b"a", b""])),
    **{f"numpy {name}": numpy_int(name) for name in INTS},
    **{f"numpy {name}": numpy_float(name) for name in ("f2", "f4", "f8", "g")},
    **{f"{kind}8[{unit}]": numpy_time(kind, unit) for kind in "Mm" for unit in UNITS},
}


def array(kind: Maker, shape: tuple[int, ...]) -> Maker:
    def made(draw: Draw) -> Any:
        values = [kind(draw) for _ in range(math.prod(shape))]
        found = np.array(values) if values and isinstance(values[0], np.generic) else None
        if found is None:
            found = np.empty(len(values), object)
            found[:] = values
        return found.reshape(shape)

    return made


CONTAINERS: dict[str, Callable[[Maker], Maker]] = {
    "bare": lambda kind: kind,
    "list": lambda kind: lambda draw: [kind(draw) for _ in range(draw.randrange(4))],
    "tuple": lambda kind: lambda draw: (kind(draw), kind(draw)),
    "dict": lambda kind: lambda draw: {"a": kind(draw), "b": 1},
    "dicts": lambda kind: lambda draw: [{"a": kind(draw)} for _ in range(draw.randrange(3))],
    "lists": lambda kind: lambda draw: [[kind(draw)], []],
    "deep": lambda kind: lambda draw: {"a": [{"b": (kind(draw),)}]},
    "some names": lambda kind: (
        lambda draw: {"a": kind(draw), **({"b": 1} if draw.random() < 0.5 else {})}
    ),
    "array": lambda kind: array(kind, (2,)),
    "row of an array": lambda kind: array(kind, (2, 3)),
    "array in a dict": lambda kind: lambda draw: {"a": array(kind, (2,))(draw)},
    "bare array": lambda kind: array(kind, ()),
    "swapped array": lambda kind: (
        lambda draw: (
            lambda found: (
                found if found.dtype == object else found.astype(found.dtype.newbyteorder())
            )
        )(array(kind, (2,))(draw))
    ),
}


def column(draw: Draw) -> list[Any]:
    """The values of a column: of one kind or two, of which the second comes at once or late."""
    kinds = draw.sample(sorted(KINDS), draw.choice([1, 1, 2]))
    contained = [draw.choice(sorted(CONTAINERS)) if draw.random() < 0.7 else "bare"] * 2
    if draw.random() < 0.1:
        contained[1] = draw.choice(sorted(CONTAINERS))
    makers = [CONTAINERS[name](KINDS[kind]) for name, kind in zip(contained, kinds, strict=False)]
    count = draw.choice([2, 70])
    values = [makers[0](draw) for _ in range(count)]
    if len(makers) > 1:
        values += [draw.choice(makers)(draw) for _ in range(3)]
    if draw.random() < 0.2:
        values[draw.randrange(len(values))] = None
    return values


# The same, in words of this test, and not of the code that it checks.


PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9, "ps": 10**12}
SECONDS = {"W": 604_800, "D": 86_400, "h": 3600, "m": 60}


def seconds_of(value: Any) -> Any:
    """A time as exact seconds since the epoch, since midnight, or of a duration."""
    if isinstance(value, np.datetime64 | np.timedelta64):
        unit, count = np.datetime_data(value.dtype)
        if np.isnat(value):
            return None
        if unit in "YM" and isinstance(value, np.datetime64):
            value, unit, count = value.astype("M8[D]"), "D", 1
        number = int(value.astype(np.int64)) * count
        if unit in "YM":
            return (unit, number)
        return Fraction(number * SECONDS.get(unit, 1), PER_SECOND.get(unit, 1))
    if isinstance(value, datetime):
        offset = value.utcoffset() or timedelta(0)
        return seconds_of(value.replace(tzinfo=None) - datetime(1970, 1, 1)) - seconds_of(offset)
    if isinstance(value, date):
        return Fraction((value - date(1970, 1, 1)).days * 86_400)
    if isinstance(value, time):
        return seconds_of(datetime.combine(date.min, value.replace(tzinfo=None)) - datetime.min)
    assert isinstance(value, timedelta)
    return Fraction(value // timedelta(microseconds=1), 10**6)


TIMES = (date, time, timedelta, np.datetime64, np.timedelta64)
NUMBERS = (int, float, np.number, Decimal)
FLAGS = (bool, np.bool_)


def is_same(given: Any, found: Any) -> bool:
    given, found = (
        one[()] if isinstance(one, np.ndarray) and one.ndim == 0 else one for one in (given, found)
    )
    if isinstance(given, np.datetime64 | np.timedelta64) and np.isnat(given):
        return found is None or (isinstance(found, type(given)) and bool(np.isnat(found)))
    if given is None or found is None:
        return given is found or (
            given is None and isinstance(found, TIMES) and seconds_of(found) is None
        )
    if isinstance(given, Mapping):
        return (
            isinstance(found, Mapping)
            and given.keys() == found.keys()
            and all(is_same(given[name], found[name]) for name in given)
        )
    if isinstance(given, list | tuple | np.ndarray):
        are_arrays = isinstance(given, np.ndarray) and isinstance(found, np.ndarray)
        if are_arrays and np.ndim(given) > 1 and np.shape(given) != np.shape(found):
            return False
        return (
            isinstance(found, list | tuple | np.ndarray)
            and len(given) == len(found)
            and all(map(is_same, given, found))
        )
    if isinstance(given, FLAGS) or isinstance(found, FLAGS):
        return isinstance(given, FLAGS) and isinstance(found, FLAGS) and bool(given) == bool(found)
    if isinstance(given, TIMES):
        if isinstance(given, time | timedelta | np.timedelta64):
            alike = isinstance(found, time | timedelta | np.timedelta64)
        else:
            alike = isinstance(found, date | np.datetime64)
        # A time of a day with a zone is no time of a day.
        has_zone = isinstance(given, time) and given.tzinfo is not None
        return alike and not has_zone and seconds_of(given) == seconds_of(found)
    if isinstance(found, TIMES):  # durations of NumPy count as numbers
        return False
    if isinstance(given, NUMBERS) and isinstance(found, NUMBERS):
        given, found = (
            one.item() if isinstance(one, np.generic) else one for one in (given, found)
        )
        return bool(given == found) or (given != given and found != found)
    if isinstance(given, bytes | bytearray):
        return isinstance(found, bytes | bytearray) and bytes(given) == bytes(found)
    return isinstance(found, str) == isinstance(given, str) and bool(given == found)


def into_parquet(values: list[Any], folder: Path) -> Iterable[Any]:
    written = items([{"x": value, "y": 0} for value in values]).write(
        to_parquet(folder, rows_per_file=67), raise_single=True
    )
    return [row["x"] for row in read_parquet([str(path) for path in written.paths])]


def into_parquet_batches(values: list[Any], folder: Path) -> Iterable[Any]:
    """In batches, as a function may make them: lists of values, or arrays of them."""
    batches: list[Any] = []
    for begin in range(0, len(values), 40):
        batch: Any = values[begin : begin + 40]
        types = {
            (type(one), *(getattr(one, name, None) for name in ("dtype", "shape"))) for one in batch
        }
        if len(types) == 1 and isinstance(batch[0], np.generic | np.ndarray):
            batch = np.array(batch)
        batches.append({"x": batch})
    written = items(batches).write(to_parquet(folder, batches=True), raise_single=True)
    return [row["x"] for row in read_parquet([str(path) for path in written.paths])]


def out_of_parquet_in_batches(values: list[Any], folder: Path) -> Iterable[Any]:
    into_parquet(values, folder)
    found: list[Any] = []
    try:
        for batch in read_parquet(
            str(folder / "*.parquet").replace("*", "part-00000"), batch_size=7
        ):
            found += list(batch["x"])
    except InvalidArgumentError as error:
        assert "fill_null: got nothing for column 'x'" in str(error)
        return values
    return [*found, *values[len(found) :]]


def into_json(values: list[Any], folder: Path) -> Iterable[Any]:
    written = items([{"x": value} for value in values]).write(
        to_json_lines(folder), raise_single=True
    )
    return [row["x"] for row in read_json_lines([str(path) for path in written.paths])]


def into_tar(values: list[Any], folder: Path) -> Iterable[Any]:
    written = items([{"json": value} for value in values]).write(to_tar(folder), raise_single=True)
    found = [row["json"] for row in read_tar([str(path) for path in written.paths])]
    # Bytes are the content of a file, whatever it is called.
    pairs = zip(values, found, strict=True)
    return [
        one if isinstance(given, bytes | bytearray) else json.loads(one) for given, one in pairs
    ]


def into_a_cache(values: list[Any], folder: Path) -> Iterable[Any]:
    cached = items([{"x": value} for value in values]).cache(folder)
    with cached.epochs(2, raise_single=True) as epochs:
        found = [[row["x"] for row in epoch] for epoch in epochs]
    return found[1]


SINKS: dict[str, Callable[[list[Any], Path], Iterable[Any]]] = {
    "parquet": into_parquet,
    "parquet batches": into_parquet_batches,
    "batches of parquet": out_of_parquet_in_batches,
    "json": into_json,
    "tar": into_tar,
    "cache": into_a_cache,
}


def check(name: str, values: list[Any], folder: Path) -> bool:
    """Write values and read them. Returns whether they were accepted."""
    try:
        found = list(SINKS[name](values, folder))
    except InvalidArgumentError as error:
        reported = str(error)
        assert reported.startswith(("row ", "batch")), reported
        if name.startswith("parquet"):
            assert "'x'" in reported or "masked" in reported or "uint64" in reported, reported
        return False
    assert len(found) == len(values)
    for number, (given, one) in enumerate(zip(values, found, strict=True)):
        assert is_same(given, one), (number, given, one)
    return True


@pytest.mark.slow(every=24)
@pytest.mark.parametrize("seed", range(120))
@pytest.mark.parametrize("name", SINKS)
def test_values_come_back_or_are_refused(name: str, seed: int, tmp_path: Path) -> None:
    draw = random.Random(f"{name} {seed}")
    for number in range(8):
        check(name, column(draw), tmp_path / str(number))


PLAIN = {
    *("int", "float", "bool", "str", "bytes", "date", "naive", "aware", "time", "timedelta"),
    *("numpy bool", *(f"numpy {name}" for name in INTS), "numpy f2", "numpy f4", "numpy f8"),
    *(f"{kind}8[{unit}]" for kind in "Mm" for unit in ("D", "h", "s", "ms", "us", "ns", "25s")),
}


@pytest.mark.slow(every=16)
@pytest.mark.parametrize("kind", sorted(PLAIN))
def test_parquet_has_all_of_these(kind: str, tmp_path: Path) -> None:
    """Refusing everything would keep the rule, too."""
    for number, container in enumerate(("bare", "list", "dict", "array", "array in a dict")):
        draw = random.Random(number)
        accepted = 0
        for attempt in range(8):
            values = [CONTAINERS[container](KINDS[kind])(draw) for _ in range(2)]
            accepted += check("parquet", values, tmp_path / f"{number}-{attempt}")
        assert accepted, container


GRID = np.arange(4).reshape(2, 2)


@pytest.mark.parametrize(
    "values",
    [
        pytest.param([GRID, GRID.reshape(4)], id="an array of one axis behind one of two"),
        pytest.param([GRID.reshape(4), GRID], id="two axes behind one"),
        pytest.param([[0, 1, 2, 3], GRID], id="two axes behind a list"),
        pytest.param([GRID, GRID.reshape(1, 4)], id="another shape"),
        pytest.param([GRID, 1j], id="what Arrow does not know, behind two axes"),
        pytest.param([GRID, {"p": GRID}], id="a dict behind two axes"),
    ],
)
@pytest.mark.parametrize("as_batches", [False, True])
def test_axes_are_never_lost(values: list[Any], as_batches: bool, tmp_path: Path) -> None:
    """Arrow casts a tensor to a list, and a list to a tensor."""
    pipeline = items(values).prepare(lambda value: {"x": [value] if as_batches else value})
    sink = to_parquet(tmp_path, rows_per_file=1, batches=as_batches)
    with pytest.raises(InvalidArgumentError, match="'x'"):
        pipeline.write(sink, raise_single=True)


@pytest.mark.parametrize(
    "type",
    [
        pa.list_(pa.int64()),
        pa.list_(pa.int64(), 4),
        pa.fixed_shape_tensor(pa.int64(), (1, 4)),
    ],
)
@pytest.mark.parametrize("table", [False, True])
def test_a_schema_makes_no_other_axes(type: Any, table: bool, tmp_path: Path) -> None:
    array = pa.FixedShapeTensorArray.from_numpy_ndarray(GRID.reshape(1, 2, 2))
    row = pa.table({"x": array}) if table else {"x": GRID}
    sink = to_parquet(tmp_path, schema=pa.schema([("x", type)]), batches=table)
    with pytest.raises(InvalidArgumentError, match="shape"):
        items([row]).write(sink, raise_single=True)


def test_a_tensor_may_be_missing(tmp_path: Path) -> None:
    written = items([{"x": GRID}, {"x": None}]).write(to_parquet(tmp_path, rows_per_file=1))
    first, second = read_parquet(map(str, written.paths))
    assert first["x"].tolist() == GRID.tolist()
    assert second["x"] is None


def test_a_batch_of_one_row_with_several_axes(tmp_path: Path) -> None:
    """NumPy gives an axis of length 1 any stride."""
    pipeline = items([GRID]).prepare(lambda image: {"x": image[None]})
    (row,) = read_parquet(map(str, pipeline.write(to_parquet(tmp_path, batches=True)).paths))
    assert row["x"].tolist() == GRID.tolist()


MAPS = pa.map_(pa.string(), pa.int64())


@pytest.mark.parametrize(
    ("values", "type"),
    [
        ([[("a", 1), ("b", 2)], [], None, [("a", None)]], MAPS),
        ([[("a", 0.5)]], pa.map_(pa.string(), pa.float32())),
        ([[("a", "b")]], pa.map_(pa.string(), pa.string())),
        ([{"m": [("a", 1)]}], pa.struct([("m", MAPS)])),
        ([[[("a", 1)], []]], pa.list_(MAPS)),
        ([[("a", [("b", 1)])]], pa.map_(pa.string(), MAPS)),
    ],
)
def test_maps_come_back_as_pairs(values: list[Any], type: Any, tmp_path: Path) -> None:
    sink = to_parquet(tmp_path, schema=pa.schema([("x", type)]), rows_per_file=2)
    written = items([{"x": value} for value in values]).write(sink)
    assert [row["x"] for row in read_parquet(map(str, written.paths))] == values


@pytest.mark.parametrize(
    "pairs", [[("a", 1.5)], [("a", True)], [("a", "5")], [(None, 1)], [("a",)], {"a": 1}, [5], 5]
)
@pytest.mark.parametrize("is_deep", [False, True])
def test_maps_of_other_values_are_refused(pairs: Any, is_deep: bool, tmp_path: Path) -> None:
    type = pa.struct([("m", MAPS)]) if is_deep else MAPS
    sink = to_parquet(tmp_path, schema=pa.schema([("x", type)]))
    with pytest.raises(InvalidArgumentError, match="'x'"):
        items([{"x": {"m": pairs} if is_deep else pairs}]).write(sink, raise_single=True)


@pytest.mark.parametrize("key", [1, None, 1.5])
@pytest.mark.parametrize("name", ["json", "tar"])
def test_keys_in_arrays_of_objects_are_strings(name: str, key: Any, tmp_path: Path) -> None:
    """JSON would make strings of them."""
    array = np.empty(1, object)
    array[0] = {key: 2}
    assert not check(name, [array], tmp_path / "array")
    assert not check(name, [{"in": [array.reshape(())]}], tmp_path / "deep")
