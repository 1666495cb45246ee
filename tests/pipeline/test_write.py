"""`Pipeline.write`: no row is lost or written twice, whatever stops it."""

from __future__ import annotations

import io
import itertools
import json
import os
import shutil
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest

from aioqueue import DataLossError, InvalidArgumentError
from aioqueue.inputs import Pipeline, Written, from_iterable, items, numbers, to_json_lines
from aioqueue.pipeline.write import LeftError, Writing, fill
from tests.kit.going import results
from tests.kit.pipelines import failures_of
from tests.kit.worlds import PATIENCE, ThreadWorld, World


async def written(world: World, pipeline: Any, sink: Any, **options: Any) -> Written:
    if isinstance(world, ThreadWorld):
        return pipeline.write(sink, **options)  # type: ignore[no-any-return]
    return await pipeline.awrite(sink, **options)  # type: ignore[no-any-return]


def rows_in(folder: Path) -> list[Any]:
    """The rows of all files, in order, as other programs see them."""
    texts = [path.read_text("utf-8") for path in sorted(folder.glob("part-*.jsonl"))]
    return [json.loads(line) for text in texts for line in text.splitlines()]


def temporaries(folder: Path) -> list[Path]:
    return list(folder.glob(".*.tmp"))


def squared(number: int, rng: np.random.Generator) -> dict[str, Any]:
    return {"number": number, "square": number**2, "draw": int(rng.integers(1000))}


def shuffled(count: int = 100) -> Pipeline[dict[str, Any]]:
    return numbers(count, shuffle=True, seed=3).prepare(squared, workers=2).shuffle(7)


def snapshots(
    monkeypatch: pytest.MonkeyPatch, folder: Path, into: Path, write: Callable[[], object]
) -> list[Path]:
    """What is in a folder whenever something there was flushed or renamed, or is about to be.

    A process that is killed leaves just that.
    """
    found: list[Path] = []
    snapshots: list[dict[str, bytes]] = []

    def keep() -> None:
        snapshot = {path.name: path.read_bytes() for path in folder.iterdir()}
        if snapshot not in snapshots[-1:]:
            snapshots.append(snapshot)
            found.append(into / str(len(found)))
            shutil.copytree(folder, found[-1])

    def around(name: str) -> None:
        real = getattr(os, name)

        def call(*arguments: Any) -> Any:
            keep()
            result = real(*arguments)
            keep()
            return result

        monkeypatch.setattr(os, name, call)

    with monkeypatch.context() as monkeypatch:
        around("replace")
        around("fsync")
        write()
    return found


class TestKills:
    @pytest.mark.slow(but="20-8")
    @pytest.mark.parametrize(("count", "size"), [(20, 8), (100, None), (100, 8), (100, 70)])
    def test_a_run_continues_from_any_moment(
        self, count: int, size: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Batches are smaller and larger than files, and are cut."""
        pipeline: Pipeline[Any] = shuffled(count)
        pipeline = pipeline if size is None else pipeline.batch(size)
        whole, per_file = list(shuffled(count)), count * 3 // 10

        def write(folder: Path) -> Written:
            return pipeline.write(to_json_lines(folder, rows_per_file=per_file))

        first = tmp_path / "first"
        moments = snapshots(monkeypatch, first, tmp_path, lambda: write(first))
        resumed = []
        for folder in moments:
            done = write(folder)
            assert rows_in(folder) == whole
            assert (done.rows, len(done.paths)) == (count, 4)
            assert sorted(path.name for path in folder.iterdir() if path.name[0] != ".") == [
                "_part.aioqueue.json",
                *(path.name for path in done.paths),
            ]
            resumed.append(done.resumed)
        assert set(resumed) == {0, per_file, 2 * per_file, 3 * per_file, count}
        assert resumed == sorted(resumed)

    @pytest.mark.slow
    def test_of_several_epochs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        pipeline = shuffled(20).batch(6, across_epochs=True)

        def write(folder: Path) -> Written:
            return pipeline.write(to_json_lines(folder, rows_per_file=13), epochs=3)

        first = tmp_path / "first"
        moments = snapshots(monkeypatch, first, tmp_path, lambda: write(first))
        whole = rows_in(first)
        assert len(whole) == 60
        for folder in moments:
            write(folder)
            assert rows_in(folder) == whole

    @pytest.mark.slow
    def test_of_workers_without_order(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pipeline = numbers(90, seed=1).prepare(squared, workers=3, ordered=False)

        def write(folder: Path) -> Written:
            return pipeline.write(to_json_lines(folder, rows_per_file=20))

        first = tmp_path / "first"
        for folder in snapshots(monkeypatch, first, tmp_path, lambda: write(first)):
            write(folder)
            assert sorted(row["number"] for row in rows_in(folder)) == list(range(90))

    def test_what_was_never_committed_is_removed(self, tmp_path: Path) -> None:
        sink = to_json_lines(tmp_path, rows_per_file=30)

        def failing(row: dict[str, Any]) -> dict[str, Any]:
            if row["number"] == 75:
                raise ValueError("seventy-five")
            return row

        with pytest.raises(ExceptionGroup, match="failing failed on item"):
            shuffled().prepare(failing).write(sink)
        committed = len(rows_in(tmp_path))
        assert temporaries(tmp_path) == []
        # The function may be another one when it goes on.
        done = shuffled().prepare(lambda row: row).write(sink)
        assert (done.resumed, rows_in(tmp_path)) == (committed, list(shuffled()))


class TestFolders:
    async def test_what_is_written(self, world: World, tmp_path: Path) -> None:
        done = await written(world, shuffled(), to_json_lines(tmp_path / "a" / "b"))
        assert done.paths == (tmp_path / "a" / "b" / "part-00000.jsonl",)
        assert (done.rows, done.size, done.resumed) == (100, done.paths[0].stat().st_size, 0)
        assert [row["square"] for row in rows_in(tmp_path / "a" / "b")] == [
            row["number"] ** 2 for row in await results(world, shuffled())
        ]

    async def test_a_second_call_writes_nothing(self, world: World, tmp_path: Path) -> None:
        sink = to_json_lines(tmp_path, rows_per_file=40)
        first = await written(world, shuffled(), sink)
        before = [path.stat().st_mtime_ns for path in first.paths]
        assert await written(world, shuffled(), sink) == first._replace(resumed=100)
        assert [path.stat().st_mtime_ns for path in first.paths] == before

    def test_another_pipeline_is_refused(self, tmp_path: Path) -> None:
        sink = to_json_lines(tmp_path, rows_per_file=40)
        shuffled().write(sink)
        with pytest.raises(InvalidArgumentError, match="source") as error:
            shuffled(101).write(sink)
        assert "existing='replace'" in error.value.__notes__[0]
        with pytest.raises(InvalidArgumentError, match="epochs is 1 there, and 2 now"):
            shuffled().write(sink, epochs=2)
        with pytest.raises(InvalidArgumentError, match="something was written before"):
            shuffled().write(sink, existing="fail")
        assert rows_in(tmp_path) == list(shuffled())

    def test_replacing(self, tmp_path: Path) -> None:
        shuffled().write(to_json_lines(tmp_path, rows_per_file=10))
        done = items([1, 2]).write(to_json_lines(tmp_path), existing="replace")
        assert (rows_in(tmp_path), done.resumed) == ([1, 2], 0)

    def test_files_of_others_are_kept(self, tmp_path: Path) -> None:
        (tmp_path / "part-00003.jsonl").write_text("mine\n")
        for existing in ("resume", "replace"):
            with pytest.raises(InvalidArgumentError, match=r"which has 'part-00003\.jsonl'"):
                shuffled().write(to_json_lines(tmp_path), existing=existing)
        assert (tmp_path / "part-00003.jsonl").read_text() == "mine\n"

    def test_one_writes_at_a_time(self, tmp_path: Path) -> None:
        def nested(number: int) -> int:
            items([1]).write(to_json_lines(tmp_path), raise_single=True)
            return number

        with pytest.raises(InvalidArgumentError, match=r"another process .* writes now"):
            items([1]).prepare(nested).write(to_json_lines(tmp_path), raise_single=True)

    def test_damage_is_found(self, tmp_path: Path) -> None:
        sink = to_json_lines(tmp_path, rows_per_file=40)
        first, second, _ = shuffled().write(sink).paths
        second.write_bytes(second.read_bytes()[:-1])
        with pytest.raises(DataLossError, match="written"):
            shuffled().write(sink)
        first.unlink()
        with pytest.raises(DataLossError, match="missing part"):
            shuffled().write(sink)
        (tmp_path / "_part.aioqueue.json").write_text("{}")
        with pytest.raises(DataLossError):
            shuffled().write(sink)

    def test_no_rows_make_no_file(self, tmp_path: Path) -> None:
        done = numbers(3).filter(lambda number: number > 5).write(to_json_lines(tmp_path))
        assert done == ((), 0, 0, 0)

    @pytest.mark.parametrize("rank", range(3))
    def test_ranks_share_a_folder(self, rank: int, tmp_path: Path) -> None:
        for each in range(3):
            part = shuffled().shard(each, 3, uneven="allow")
            done = part.write(to_json_lines(tmp_path, rows_per_file=20))
            assert done.paths[0].name == f"part-{each}-of-3-00000.jsonl"
        found = sorted(row["number"] for row in rows_in(tmp_path))
        assert found == list(range(100))
        with pytest.raises(InvalidArgumentError, match="uneven: got 'pad'"):
            shuffled().shard(rank, 3).write(to_json_lines(tmp_path))


class TestWithoutPositions:
    def test_what_comes_once(self, tmp_path: Path) -> None:
        sink = to_json_lines(tmp_path, rows_per_file=2)
        done = from_iterable(iter(range(5))).write(sink)
        assert (rows_in(tmp_path), done.rows) == ([0, 1, 2, 3, 4], 5)
        with pytest.raises(InvalidArgumentError, match="has no positions"):
            from_iterable(iter(range(5))).write(sink)
        from_iterable(iter(range(3))).write(sink, existing="replace")
        assert rows_in(tmp_path) == [0, 1, 2]


class TestFailures:
    async def test_a_row_that_does_not_fit(self, world: World, tmp_path: Path) -> None:
        pipeline = numbers(10).prepare(lambda number: {1} if number == 7 else number)
        with pytest.raises(ExceptionGroup, match=r"to_json_lines failed on part-00002\.jsonl") as e:
            await written(world, pipeline, to_json_lines(tmp_path, rows_per_file=3))
        (failure,) = failures_of(e.value)
        assert failure.startswith("InvalidArgumentError: row 7: got set that JSON cannot hold")
        assert rows_in(tmp_path) == [0, 1, 2, 3, 4, 5]
        with pytest.raises(InvalidArgumentError, match="row 7"):
            await written(
                world, pipeline, to_json_lines(tmp_path, rows_per_file=3), raise_single=True
            )

    async def test_those_of_workers(self, world: World, tmp_path: Path) -> None:
        with pytest.raises(ExceptionGroup) as error:
            await written(
                world, numbers(9).prepare(lambda number: 1 / (number - 4)), to_json_lines(tmp_path)
            )
        assert failures_of(error.value) == ["ZeroDivisionError: division by zero"]
        assert rows_in(tmp_path) == []

    async def test_a_full_disk(
        self, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real, calls = os.fsync, itertools.count()

        def full(*arguments: Any) -> None:
            if next(calls) >= 2:  # behind those of the first manifest
                raise OSError(28, "No space left on device")
            real(*arguments)

        sink = to_json_lines(tmp_path, rows_per_file=40)
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", full)
            with pytest.raises(ExceptionGroup, match="No space left"):
                await written(world, shuffled(), sink)
        assert rows_in(tmp_path) == []
        assert (await written(world, shuffled(), sink)).rows == 100

    def test_arguments(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidArgumentError, match="sink: got '"):
            numbers(3).write(str(tmp_path))  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match="existing: got 'append'"):
            numbers(3).write(to_json_lines(tmp_path), existing="append")  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match="rows_per_file: got 0"):
            to_json_lines(tmp_path, rows_per_file=0)
        with pytest.raises(
            InvalidArgumentError, match=r"path: got 's3://.*expected a local folder"
        ):
            to_json_lines("s3://bucket/rows")
        with pytest.raises(InvalidArgumentError, match="progress: got 1"):
            numbers(3).write(to_json_lines(tmp_path), progress=1)  # type: ignore[arg-type]


async def test_a_cancelled_call_continues_later(task_world: Any, tmp_path: Path) -> None:
    """It is cancelled while it waits for a row that does not come."""
    reached = anyio.Event()

    async def slow(number: int) -> int:
        if number == 50:
            reached.set()
            await anyio.sleep_forever()
        return number

    sink = to_json_lines(tmp_path, rows_per_file=20)
    async with anyio.create_task_group() as group:

        async def write() -> None:
            await numbers(60).prepare(slow, workers=1, max_in_flight=1).awrite(sink)

        group.start_soon(write)
        await reached.wait()
        while len(rows_in(tmp_path)) < 40:
            await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
    assert temporaries(tmp_path) == []

    async def quick(number: int) -> int:
        return number

    done = await numbers(60).prepare(quick).awrite(sink)
    assert (done.resumed, rows_in(tmp_path)) == (40, list(range(60)))


async def test_in_an_event_loop_it_is_refused(task_world: Any, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"await pipeline\.awrite"):
        numbers(3).write(to_json_lines(tmp_path))


def test_a_bar(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tqdm")
    shuffled().write(to_json_lines(tmp_path / "rows"), progress=True)
    shown = capsys.readouterr().err
    assert "writing rows: 100%" in shown
    assert "100/100" in shown
    shuffled().write(to_json_lines(tmp_path / "other"))
    assert capsys.readouterr().err == ""


class Terminal(io.StringIO):
    """A terminal that is closed at some time, as a connection that has ended."""

    def __init__(self, lines: int) -> None:
        super().__init__()
        self._lines = lines

    def isatty(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        self._lines -= 1
        if self._lines < 0:
            raise OSError(9, "Bad file descriptor")
        return super().write(text)


@pytest.mark.parametrize("progress", [True, None])
@pytest.mark.parametrize("lines", [None, -1, 0, 1, 2, 5])
def test_a_terminal_that_breaks_ends_the_bar_and_not_the_work(
    lines: int | None, progress: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tqdm = pytest.importorskip("tqdm")
    terminal = None if lines is None else Terminal(lines)
    if terminal is not None and lines == -1:
        terminal.close()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert shuffled().write(to_json_lines(tmp_path), progress=progress).rows == 100
    # Neither this thread nor the one that wrote keeps the lock of all bars.
    taken: list[bool] = []

    def take() -> None:
        with tqdm.tqdm.get_lock():
            taken.append(True)

    other = threading.Thread(target=take, daemon=True)
    other.start()
    other.join(PATIENCE / 10)
    assert taken


def test_what_is_left_before_its_run_begins_ends(tmp_path: Path) -> None:
    """A cache leaves its writer from another thread, perhaps just before the first epoch."""

    async def stuck(number: int) -> int:
        await anyio.sleep_forever()
        return number

    writing = Writing(numbers(3).prepare(stuck), to_json_lines(tmp_path), 1, "fail", True)
    assert writing.begin()
    writing.leave()
    with closing(writing.files), pytest.raises(LeftError):
        fill(writing, writing.start())
