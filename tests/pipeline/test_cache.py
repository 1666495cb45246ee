"""`cache`: made once, read in every epoch, and never another thing than what the stages make."""

from __future__ import annotations

import asyncio
import importlib.util
import re
import shutil
import sys
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import numpy as np
import pytest

from aioqueue import DataLossError, InvalidArgumentError
from aioqueue.inputs import Pipeline, from_iterable, items, merge_positions, numbers
from aioqueue.pipeline import cache_file
from aioqueue.pipeline.batches.arrow import dtype_by_name
from tests.kit.exact import Exact
from tests.kit.going import results
from tests.kit.pipelines import failures_of
from tests.kit.worlds import PATIENCE, World, spin_until
from tests.pipeline.test_write import snapshots

HAS_PYARROW = importlib.util.find_spec("pyarrow") is not None
needs_pyarrow = pytest.mark.skipif(not HAS_PYARROW, reason="pyarrow is not installed")

WHERE = ["memory", pytest.param("files", marks=needs_pyarrow)]
CALLS: list[int] = []
"""What `Counting` was called with."""


@pytest.fixture(autouse=True)
def _none_called() -> Iterator[None]:
    CALLS.clear()
    yield
    CALLS.clear()


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of 64 examples each."""
    monkeypatch.setattr(cache_file, "_MOST_BYTES", 1)
    monkeypatch.setattr(cache_file, "_MOST_ROWS", 64)


class Counting:
    """Makes an example, and counts its calls, which are no part of what it is."""

    def __init__(self, version: int = 0) -> None:
        self.version = version

    def __call__(self, number: int, rng: np.random.Generator) -> dict[str, Any]:
        called(number)
        return {"number": number, "noise": rng.random(3), "version": self.version}


def called(number: int, calls: Callable[[int], None] = CALLS.append) -> None:
    calls(number)


def cached(
    path: Path | None, count: int = 300, version: int = 0, **options: Any
) -> Pipeline[dict[str, Any]]:
    source = numbers(count, shuffle=True, seed=4)
    made = source.prepare(Counting(version), workers=2).shuffle(20)
    return made.cache(path, **{"key": "1", **options})


def folder(where: str, tmp_path: Path) -> Path | None:
    return tmp_path / "cache" if where == "files" else None


def exactly(found: Any) -> list[Exact]:
    return list(map(Exact, found))


@pytest.mark.parametrize("where", WHERE)
class TestBoth:
    async def test_every_epoch_is_the_first(self, where: str, world: World, tmp_path: Path) -> None:
        pipeline = cached(folder(where, tmp_path))
        first = await results(world, pipeline)
        assert len(first) == 300
        assert await results(world, pipeline) == first
        assert len(CALLS) == 300

    def test_it_is_what_the_stages_make(self, where: str, tmp_path: Path) -> None:
        plain = numbers(300, shuffle=True, seed=4).prepare(Counting(), workers=2).shuffle(20)
        pipeline = cached(folder(where, tmp_path))
        for epoch in pipeline.epochs(2):
            assert exactly(epoch) == exactly(plain)

    @pytest.mark.parametrize("taken", [0, 1, 70, 299, 300, 301, 550])
    @pytest.mark.usefixtures("small_files")
    def test_a_run_is_resumed_in_it_and_behind_it(
        self, where: str, taken: int, tmp_path: Path
    ) -> None:
        def pipeline() -> Any:
            return cached(folder(where, tmp_path)).prepare(dict).shuffle(9)

        with pipeline().epochs(2) as epochs:
            whole = exactly(one for epoch in epochs for one in epoch)
        found: list[Exact] = []
        with pipeline().epochs(2) as epochs:
            for epoch in epochs if taken else ():
                for one in epoch:
                    found.append(Exact(one))
                    if len(found) == taken:
                        break
                if len(found) == taken:
                    break
            state = epochs.state_dict()
        with pipeline().epochs(2, resume=state) as epochs:
            assert found + exactly(one for epoch in epochs for one in epoch) == whole

    def test_examples_are_private(self, where: str, tmp_path: Path) -> None:
        pipeline = cached(folder(where, tmp_path))
        whole = exactly(pipeline)
        for one in pipeline:
            one["noise"][:] = 7
            one["number"] = -1
        assert exactly(pipeline) == whole

    def test_leaving_stops_it(self, where: str, tmp_path: Path) -> None:
        before = threading.active_count()
        with cached(folder(where, tmp_path), 10**6).epochs(1) as epochs:
            if where == "memory":
                next(iter(next(epochs)))
            else:
                next(epochs)
        spin_until(lambda: all(one.name != "aioqueue-cache" for one in threading.enumerate()))
        assert threading.active_count() <= before + 1
        assert len(CALLS) < 10**6

    def test_a_coroutine_that_leaves_stops_it(self, where: str, tmp_path: Path) -> None:
        waits = threading.Event()

        async def stuck_behind_the_first(number: int) -> int:
            if number:
                waits.set()
                await anyio.sleep_forever()
            return number

        pipeline = numbers(9, seed=1).prepare(stuck_behind_the_first)
        cached = pipeline.cache(folder(where, tmp_path))

        async def main() -> None:
            async with (
                asyncio.timeout(PATIENCE),
                cached.epochs(1) as epochs,
                asyncio.TaskGroup() as group,
            ):
                epoch = await anext(epochs)
                reading = group.create_task(anext(epoch))
                await asyncio.to_thread(waits.wait)
                if where == "memory":  # the example is there before its file is
                    assert await reading == 0
                    reading = group.create_task(anext(epoch))
                    await asyncio.sleep(0)
                reading.cancel()

        asyncio.run(main())
        ours = ("aioqueue-cache", "aioqueue-read-cache", "aioqueue-write")
        spin_until(lambda: not [t for t in threading.enumerate() if t.name.startswith(ours)])

    def test_failures(self, where: str, tmp_path: Path) -> None:
        is_broken = True

        def broken(number: int) -> int:
            if is_broken and number == 40:
                raise ValueError("forty")
            return number

        pipeline = numbers(50).prepare(broken).cache(folder(where, tmp_path), key="1")
        with pytest.raises(ExceptionGroup) as error:
            list(pipeline)
        assert failures_of(error.value) == ["ValueError: forty"]
        is_broken = False
        assert list(pipeline) == list(range(50))

    def test_ranks_share_it(self, where: str, tmp_path: Path) -> None:
        pipeline = cached(folder(where, tmp_path))
        whole = [one["number"] for one in pipeline]
        found = [
            [one["number"] for one in pipeline.shard(rank, 3, uneven="allow")] for rank in range(3)
        ]
        assert [list(whole[rank::3]) for rank in range(3)] == found
        states = []
        for rank in range(2):
            with pipeline.batch(10).shard(rank, 2).epochs(1) as epochs:
                epoch = next(epochs)
                next(epoch)
                states.append(epochs.state_dict())
        rest = pipeline.batch(10).shard(0, 1).resume(merge_positions(states))
        assert sorted(one for batch in rest for one in batch["number"].tolist()) == sorted(
            whole[20:]
        )

    def test_among_others(self, where: str, tmp_path: Path) -> None:
        inner = numbers(20, seed=1).cache(folder(where, tmp_path))
        mixed = numbers(20, seed=2).mix(inner, seed=3).concat(inner).batch(7)
        whole = exactly(mixed)
        with mixed.epochs(1) as epochs:
            epoch = next(epochs)
            for _ in range(3):
                next(epoch)
            state = epochs.state_dict()
        assert exactly(mixed.resume(state)) == whole[3:]
        outer = inner.prepare(str).cache(tmp_path / "outer" if where == "files" else None)
        assert list(outer) == [str(number) for number in range(20)]

    def test_lengths(self, where: str, tmp_path: Path) -> None:
        path = folder(where, tmp_path)
        assert len(numbers(20).batch(3).cache(path)) == 7
        for unknown in (
            numbers(20).filter(bool),
            numbers(20).prepare(str, on_error="skip"),
        ):
            with pytest.raises(TypeError):
                len(unknown.cache(path))


class TestRefused:
    @pytest.mark.parametrize(
        ("make", "why"),
        [
            (lambda: from_iterable(iter([1])), "which has no positions"),
            (lambda: numbers(3).shard(0, 2), "behind `shard`"),
        ],
    )
    def test_what_cannot_be_cached(self, make: Callable[[], Any], why: str) -> None:
        with pytest.raises(InvalidArgumentError, match=why):
            make().cache()

    def test_arguments(self) -> None:
        for options, why in (
            ({"on_stale": "ask"}, "on_stale: got 'ask'"),
            ({"key": 1}, "key: got 1"),
            ({"progress": "yes"}, "progress: got 'yes'"),
        ):
            with pytest.raises(InvalidArgumentError, match=why):
                numbers(3).cache(**options)


class Point(NamedTuple):
    x: int
    y: Any


class OtherPoint(NamedTuple):
    x: int
    y: Any


class Nothing(NamedTuple):
    pass


@dataclass(frozen=True, eq=False)
class Box:
    corners: list[Any]
    point: Point
    label: str = ""


@dataclass(slots=True, eq=False)
class Slotted:
    array: Any


@dataclass(eq=False)
class Derived:
    x: int

    def __post_init__(self) -> None:
        self.square = self.x**2


class scalar:  # noqa: N801 (layouts have this name)
    def __init__(self, x: int) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, scalar) and self.x == other.x

    def __hash__(self) -> int:
        return self.x


HAS_TEXT = hasattr(np.dtypes, "StringDType")  # NumPy 2


def local(x: int) -> Any:
    """A value of a class that nobody else finds."""

    @dataclass
    class Local:
        x: int

    return Local(x)


@needs_pyarrow
class TestFiles:
    VALUES: tuple[Any, ...] = (
        *(1, 2**70, 1.5, True, "text", b"bytes", [1, "two", None], {}),
        *(np.float16(2), np.datetime64("2026-01-01"), np.bool_(True), np.complex64(1j)),
        *(np.arange(6).reshape(2, 3), np.array(3), np.zeros((0, 2)), np.array(["a", "bcd"])),
        *(np.array(["x", "yy"], object), np.array([True, False]), np.arange(3, dtype=">i4")),
        *((1, "a", np.arange(2)), {"a": {"b": (np.eye(2), None)}}, Point(1, "a")),
        *([1, np.arange(2), [{"a": np.eye(2)}]], (), [], Nothing(), {"a": [], "b": ()}),
        *("\ud800 \u00e9", ["\ud800"], {"a": "\ud800", "b": np.eye(1)}),
        *((np.array([["ab", "c" * 40]], np.dtypes.StringDType()),) if HAS_TEXT else ()),
        *(Box([np.zeros(2), np.ones(1)], Point(3, np.eye(2)), "b"), Slotted([np.arange(3)])),
    )

    @pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
    def test_values_come_back_as_they_were(self, value: Any, tmp_path: Path) -> None:
        pipeline = numbers(3).prepare(lambda _: value).cache(tmp_path, key="1")
        assert exactly(pipeline) == exactly(pipeline) == [Exact(value)] * 3

    @pytest.mark.parametrize(
        ("values", "why"),
        [
            ([1, object()], r"row 1: got an object.*"),
            ([{"a": {"b": {1}}}], r"row 0: got a set at a\.b"),
            ([{"a": [np.eye(1), {1}]}], r"row 0: got a set at a\[1\]"),
            ([{1: np.eye(1)}], r"row 0: got the keys \[1\]; expected strings"),
            (
                [[np.eye(1)], [np.eye(1)] * 2],
                "row 1: got a list of 2; expected a list of 1, as",
            ),
            (
                [{"a": [np.eye(1)]}, {"a": None}],
                "row 1: got None at a, where other rows",
            ),
            ([{"a": local(1)}], "row 0: got a Local at a; expected a class that a module defines"),
            ([Derived(2)], r"row 0: got a Derived with the attributes \['square'\]; expected its"),
            ([Point(1, 2), OtherPoint(1, 2)], "row 1: got an OtherPoint; expected a Point, as the"),
            ([OrderedDict(a=np.eye(1))], "row 0: got an OrderedDict, which the files"),
            ([{"a": 1}, {"b": 1}], r"row 1: got \['b'\]; expected \['a'\]"),
            ([np.arange(2), np.ones(2)], "that differ: float64 of 1 axes and int64 of 1 axes"),
            (
                [np.zeros(2, "i4,f4")],
                "row 0: got an array of .*f0.*, which the files",
            ),
            (
                [np.zeros(2, "V3")],
                r"row 0: got an array of \|V3, which the files",
            ),
            ([np.array([object()])], "arrays of objects"),
            ([array("i", [1])], "row 0: got an array, which the files"),
            ([scalar(1)], "row 0: got a scalar, which the files"),
            ([np.array(["a", "\ud800"], object)], r"arrays of objects \(lone surrogates, str\)"),
        ],
    )
    def test_what_a_file_cannot_hold(self, values: list[Any], why: str, tmp_path: Path) -> None:
        pipeline = numbers(len(values)).prepare(values.__getitem__)
        with pytest.raises(ExceptionGroup, match=r"cache failed on part-00000\.arrow") as error:
            list(pipeline.cache(tmp_path, key="1"))
        (failure,) = error.value.exceptions
        assert isinstance(failure, InvalidArgumentError)
        assert re.search(why, str(failure))
        assert exactly(pipeline.cache()) == exactly(values)

    def test_containers_without_an_end(self, tmp_path: Path) -> None:
        endless: list[Any] = [np.eye(1)]
        endless.append(endless)
        with pytest.raises(ExceptionGroup) as caught:
            list(numbers(1).prepare(lambda _: endless).cache(tmp_path, key="1"))
        assert caught.group_contains(InvalidArgumentError, match="without an end; expected fewer")

    def test_dtypes_of_other_packages(self, tmp_path: Path) -> None:
        ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
        value = np.arange(6).astype(ml_dtypes.bfloat16).reshape(2, 3)
        values = [{"array": value, "scalar": value[0, 0], "bytes": value.astype("float8_e5m2")}]
        pipeline = numbers(1).prepare(values.__getitem__).cache(tmp_path, key="1")
        assert exactly(pipeline) == exactly(pipeline) == exactly(values)

    def test_a_dtype_that_is_not_imported_is_named(self) -> None:
        with pytest.raises(InvalidArgumentError, match="arrays of float7, which NumPy does not"):
            dtype_by_name("float7")

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            ([np.eye(2)], [np.eye(2)] * 2),
            ([np.eye(2)], (np.eye(2),)),
            (Point(1, 2), OtherPoint(1, 2)),
            (Slotted(1), Slotted("1")),
        ],
    )
    @pytest.mark.usefixtures("small_files")
    def test_containers_that_change(self, before: Any, after: Any, tmp_path: Path) -> None:
        values = [before if number < 192 else after for number in range(400)]
        pipeline = numbers(400).prepare(values.__getitem__).cache(tmp_path, key="1")
        assert exactly(pipeline) == exactly(pipeline) == exactly(values)

    def test_examples_that_change_their_kind(self, tmp_path: Path) -> None:
        """Each kind has files of its own."""
        values = [number if number < 200 else f"text {number}" for number in range(400)]
        pipeline = numbers(400).prepare(values.__getitem__).cache(tmp_path, key="1")
        assert list(pipeline) == list(pipeline) == values
        assert len(list(tmp_path.glob("part-*.arrow"))) == 2

    def test_another_function_is_stale(self, tmp_path: Path) -> None:
        def made(factor: int, **options: Any) -> Any:
            return numbers(5).prepare(lambda number: number * factor).cache(tmp_path, **options)

        assert list(made(2)) == list(made(2)) == [0, 2, 4, 6, 8]
        with pytest.raises(ExceptionGroup) as error:
            list(made(3))
        (failure,) = failures_of(error.value)
        assert re.search(r"code\.0 prepare .*on_stale='rebuild'", failure)
        assert list(made(3, on_stale="rebuild")) == [0, 3, 6, 9, 12]
        with pytest.raises(ExceptionGroup, match="something else was written"):
            list(made(2))
        with pytest.raises(ExceptionGroup, match="key"):
            list(made(3, key="three"))

    def test_another_source_is_stale(self, tmp_path: Path) -> None:
        assert list(numbers(5).cache(tmp_path)) == list(range(5))
        with pytest.raises(ExceptionGroup, match=r"source\.length 5; expected 6"):
            list(numbers(6).cache(tmp_path))
        assert list(numbers(6).cache(tmp_path, on_stale="rebuild")) == list(range(6))
        # A source that draws its seed itself is the same one the next time.
        assert list(numbers(6).batch(2).unbatch().cache(tmp_path / "b")) == list(range(6))
        assert list(numbers(6).batch(2).unbatch().cache(tmp_path / "b")) == list(range(6))

    @pytest.mark.usefixtures("small_files")
    def test_damage(self, tmp_path: Path) -> None:
        whole = exactly(cached(tmp_path))
        part = tmp_path / "part-00001.arrow"
        part.write_bytes(part.read_bytes()[:-8])
        with pytest.raises(ExceptionGroup) as error:
            list(cached(tmp_path))
        assert isinstance(error.value.exceptions[0], DataLossError)
        assert exactly(cached(tmp_path, on_stale="rebuild")) == whole
        part.write_bytes(bytes(len(part.read_bytes())))  # of the same size
        with pytest.raises(ExceptionGroup) as error:
            list(cached(tmp_path))
        assert isinstance(error.value.exceptions[0], DataLossError)

    @pytest.mark.usefixtures("small_files")
    @pytest.mark.slow("missing", "empty", "fewer")
    @pytest.mark.parametrize("damage", ["zeros", "missing", "empty", "fewer"])
    def test_damage_that_is_found_by_reading(self, damage: str, tmp_path: Path) -> None:
        def inject() -> None:
            part = tmp_path / "part-00002.arrow"
            zeros = bytes(part.stat().st_size)  # of the same size, as nobody parses it before
            part.unlink()
            if damage == "fewer":
                shutil.copy(tmp_path / "part-00004.arrow", part)  # of the last 44 examples
            elif damage != "missing":
                part.write_bytes(zeros if damage == "zeros" else b"")

        known = cached(tmp_path)
        whole = exactly(known)
        inject()
        for pipeline in (known, cached(tmp_path)):
            with pytest.raises(ExceptionGroup, match="the source failed") as error:
                list(pipeline)
            (failure,) = error.value.exceptions
            assert isinstance(failure, DataLossError)
            assert failure.path == str(tmp_path / "part-00002.arrow")
            assert any("on_stale='rebuild'" in note for note in failure.__notes__)

        rebuilding = cached(tmp_path, on_stale="rebuild")
        for _ in range(2):
            CALLS.clear()
            assert exactly(rebuilding) == whole
            assert len(CALLS) == len(whole)
            inject()
        first, second = (
            iter(epoch) for epoch in (rebuilding, cached(tmp_path, on_stale="rebuild"))
        )
        both = zip(*zip(first, second, strict=True), strict=True)  # alternately, from two stores
        assert list(map(exactly, both)) == [whole, whole]

    @pytest.mark.usefixtures("small_files")
    def test_readers_that_find_the_same_damage(self, tmp_path: Path) -> None:
        pipeline = cached(tmp_path, on_stale="rebuild")
        whole = exactly(pipeline)
        for part in sorted(tmp_path.glob("part-*.arrow"))[1:]:
            part.write_bytes(bytes(part.stat().st_size))
        CALLS.clear()
        found: list[list[Exact]] = []
        readers = [
            threading.Thread(target=lambda: found.append(exactly(pipeline))) for _ in range(3)
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        assert found == [whole] * 3
        assert len(CALLS) == len(whole)

    @pytest.mark.slow
    @pytest.mark.usefixtures("small_files")
    def test_it_continues_from_any_moment(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = tmp_path / "first"
        first.mkdir()
        whole: list[Exact] = []
        moments = snapshots(
            monkeypatch, first, tmp_path, lambda: whole.extend(exactly(cached(first)))
        )
        counts = []
        for moment in moments:
            CALLS.clear()
            assert exactly(cached(moment)) == whole
            counts.append(len(CALLS))
        assert counts == sorted(counts, reverse=True)
        assert (counts[0], counts[-1]) == (300, 0)

    @pytest.mark.usefixtures("small_files")
    def test_a_stop_keeps_whole_files(self, tmp_path: Path) -> None:
        with cached(tmp_path).epochs(1) as epochs:
            next(next(epochs))
        kept = len(list(tmp_path.glob("part-*.arrow")))
        assert kept >= 1
        before = len(CALLS)
        assert len(exactly(cached(tmp_path))) == 300
        assert len(CALLS) <= 300 + before - 64 * kept + 64

    def test_a_finished_one_is_only_read(self, tmp_path: Path) -> None:
        whole = exactly(cached(tmp_path))
        tmp_path.chmod(0o500)
        try:
            assert exactly(cached(tmp_path)) == whole
        finally:
            tmp_path.chmod(0o700)
        assert len(CALLS) == 300

    def test_a_bar(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        pytest.importorskip("tqdm")
        list(cached(tmp_path / "rows", progress=True))
        assert "300/300" in capsys.readouterr().err
        list(cached(tmp_path / "rows", progress=True))
        assert capsys.readouterr().err == ""


def test_without_pyarrow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ModuleNotFoundError, match=r"a cache in files needs .*parquet\]"):
        numbers(3).cache("somewhere")
    assert list(items(["a"]).cache()) == ["a"]
