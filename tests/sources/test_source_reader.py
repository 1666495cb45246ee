"""`SourceReader`: how items are read from any source, and what closes it."""

from __future__ import annotations

import asyncio
import gc
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest

from aioqueue import InvalidArgumentError, OutOfRangeError, sync
from aioqueue.coordination.cancellations import Call
from aioqueue.inputs import items as items_of
from aioqueue.items.item import Entry, Item
from aioqueue.sources.base import EntryScan
from aioqueue.sources.kinds.sequences import _SequenceScan
from aioqueue.sources.source_reader import (
    SourceReader,
    close_items,
    combine_errors,
    failure_of_clean_up,
    next_of,
)
from tests.kit.worlds import TaskWorld


class File:
    """Its own iterator, as an open file is."""

    def __init__(self) -> None:
        self.is_closed = False

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        return "line"

    def close(self) -> None:
        self.is_closed = True


class AsyncFile:
    """The same for tasks."""

    def __init__(self) -> None:
        self.is_closed = False

    def __aiter__(self) -> AsyncIterator[str]:
        return self

    async def __anext__(self) -> str:
        return "line"

    async def aclose(self) -> None:
        await anyio.lowlevel.checkpoint()
        self.is_closed = True


class Lines:
    """Makes a new iterator each time; the last one is kept here."""

    def __iter__(self) -> Iterator[str]:
        self.made = File()
        return self.made


class AsyncLines:
    """The same for tasks."""

    def __aiter__(self) -> AsyncIterator[str]:
        self.made = AsyncFile()
        return self.made


def numbers() -> Generator[int, None, None]:
    yield from range(3)


async def numbers_async() -> AsyncGenerator[int, None]:
    for number in range(3):
        yield number


class TestInThreads:
    def test_items_of_an_iterable(self) -> None:
        assert list(SourceReader(["ab"]).items()) == [Item(0, "ab", 0, 0)]
        assert list(SourceReader(numbers()).items()) == [Item(n, n, 0, n) for n in range(3)]

    def test_items_of_a_source_know_their_epoch(self) -> None:
        items = list(SourceReader(items_of(["a", "b"], epochs=2)).items())
        assert items == [
            Item(0, "a", 0, 0),
            Item(1, "b", 0, 1),
            Item(2, "a", 1, 0),
            Item(3, "b", 1, 1),
        ]

    def test_items_of_a_queue_and_its_end(self) -> None:
        queue = sync.FIFOQueue(3)
        queue.enqueue("a")
        queue.enqueue("b")
        queue.close()
        items = SourceReader(queue.aio).items()
        assert [next(items), next(items)] == [Item(0, "a", 0, 0), Item(1, "b", 0, 1)]
        with pytest.raises(OutOfRangeError):
            next(items)

    @pytest.mark.parametrize("has_begun", [True, False])
    def test_what_is_its_own_iterator_stays_its_owners(self, has_begun: bool) -> None:
        file = File()
        items: Any = SourceReader(file).items()
        if has_begun:
            next(items)
        items.close()
        assert not file.is_closed

    def test_an_iterator_that_was_made_for_us_is_closed(self) -> None:
        lines = Lines()
        items: Any = SourceReader(lines).items()
        next(items)
        items.close()
        assert lines.made.is_closed

    def test_and_so_is_a_generator(self) -> None:
        source = numbers()
        items: Any = SourceReader(source).items()
        next(items)
        items.close()
        assert next(source, None) is None

    def test_and_what_a_source_goes_through(self, monkeypatch: pytest.MonkeyPatch) -> None:
        source, entries = items_of(["a", "b"]), (Entry(value, 0, 0) for value in "ab")
        monkeypatch.setattr(source, "_scan", lambda epoch, after: EntryScan(lambda: entries))
        items: Any = SourceReader(source).items()
        assert next(items) == Item(0, "a", 0, 0)
        items.close()
        assert next(entries, None) is None

    def test_and_what_it_has_numbered_itself(self, monkeypatch: pytest.MonkeyPatch) -> None:
        source, numbered = (
            items_of(["a", "b"]),
            ((at, value, 0, 0) for at, value in enumerate("ab")),
        )
        monkeypatch.setattr(_SequenceScan, "numbered", lambda scan: numbered)
        items: Any = SourceReader(source).items()
        assert next(items) == Item(0, "a", 0, 0)
        items.close()
        assert next(numbered, None) is None

    @pytest.mark.parametrize("epochs", [0, 1, 3])
    @pytest.mark.parametrize(
        "options", [{}, {"shuffle": True, "seed": 1}, {"shard": (1, 3)}, {"drop_remainder": True}]
    )
    def test_numbers_of_its_own_are_those_of_its_entries(
        self, epochs: int, options: dict[str, Any]
    ) -> None:
        for sequence in (range(0), range(7), [1, [2], "three"], np.arange(12).reshape(6, 2)):
            whole: Any = items_of(sequence, epochs=epochs, **options)
            for source in (whole, *whole.split([0.5, 0.5])):
                expected = [Item(at, *entry) for at, entry in enumerate(source.entries())]
                assert repr(list(SourceReader(source).items())) == repr(expected)

    @pytest.mark.parametrize("source", ["text", b"bytes", 3])
    def test_what_is_no_source(self, source: Any) -> None:
        with pytest.raises(InvalidArgumentError, match=r"^source: got"):
            SourceReader(source)

    def test_what_only_tasks_can_iterate(self) -> None:
        assert SourceReader(numbers_async()).is_async_only
        queue = sync.FIFOQueue(1)
        others: list[Any] = [numbers(), [], items_of(["a", "b"]), queue, queue.aio]
        assert [SourceReader(source).is_async_only for source in others] == [False] * 5


async def all_of(feed: SourceReader) -> list[Item]:
    return [item async for item in feed.items_async()]


class TestInTasks:
    def test_items_of_everything(self, task_world: TaskWorld) -> None:
        async def body() -> None:
            expected = [Item(n, n, 0, n) for n in range(3)]
            assert await all_of(SourceReader(range(3))) == expected
            assert await all_of(SourceReader(numbers())) == expected
            assert await all_of(SourceReader(numbers_async())) == expected
            twice = await all_of(SourceReader(items_of(range(3), epochs=2)))
            assert twice == [Item(n, n % 3, n // 3, n % 3) for n in range(6)]

        task_world.run(body)

    def test_only_what_was_made_for_us_is_closed(self, task_world: TaskWorld) -> None:
        async def body() -> None:
            file, lines, made = AsyncFile(), AsyncLines(), numbers_async()
            sources: list[Any] = [file, lines, made]
            for source in sources:
                items = SourceReader(source).items_async()
                await anext(items)
                assert await close_items(items) is None
            assert not file.is_closed
            assert lines.made.is_closed
            assert [number async for number in made] == []

        task_world.run(body)

    def test_a_generator_that_never_waits_is_closed(self, task_world: TaskWorld) -> None:
        async def body() -> None:
            source = numbers()
            items = SourceReader(source).items_async()
            await anext(items)
            await close_items(items)
            assert next(source, None) is None

        task_world.run(body)

    def test_and_what_a_source_goes_through(
        self, task_world: TaskWorld, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def body() -> None:
            lines = AsyncFile()

            class Entries:
                def __aiter__(self) -> AsyncIterator[Any]:
                    return self

                async def __anext__(self) -> Any:
                    return ("value", 4, 5)

                aclose = lines.aclose

            source = items_of(["a", "b"])
            monkeypatch.setattr(source, "_aentries", Entries)
            items = SourceReader(source).items_async()
            assert [await anext(items), await anext(items)] == [
                Item(0, "value", 4, 5),
                Item(1, "value", 4, 5),
            ]
            await close_items(items)
            assert lines.is_closed

        task_world.run(body)

    def test_all_the_way_in_a_task_that_is_cancelled(self, task_world: TaskWorld) -> None:
        async def body() -> None:
            lines = AsyncLines()
            items = SourceReader(lines).items_async()
            await anext(items)
            closed: list[str] = []

            async def slow() -> AsyncGenerator[int, None]:
                try:
                    yield 1
                finally:
                    await anyio.lowlevel.checkpoint()
                    closed.append("now")

            others = slow()
            await anext(others)
            with anyio.CancelScope() as scope:
                scope.cancel()
                assert await close_items(items) is None
                assert await close_items(others) is None
            assert lines.made.is_closed
            assert closed == ["now"]

        task_world.run(body)

    def test_what_fails_in_that(self, task_world: TaskWorld) -> None:
        async def body() -> None:
            async def broken() -> AsyncGenerator[int, None]:
                try:
                    yield 1
                finally:
                    raise OutOfRangeError("the disk")

            items = broken()
            await anext(items)
            failure = await close_items(items)
            assert isinstance(failure, RuntimeError)
            assert str(failure) == "the clean-up of the source raised OutOfRangeError: the disk"
            assert failure.__notes__ == ["in the source of a prepare"]

        task_world.run(body)

    def test_what_is_cancelled_in_there_is_a_failure(self, task_world: TaskWorld) -> None:
        async def body() -> None:
            async def cancelled() -> AsyncGenerator[int, None]:
                with anyio.CancelScope() as scope:
                    scope.cancel()
                    try:
                        await anyio.lowlevel.checkpoint()
                    except BaseException as error:
                        caught.append(error)
                yield 1
                raise caught[0]

            caught: list[BaseException] = []
            items = cancelled()
            assert await next_of(items, Call()) == 1
            with pytest.raises(RuntimeError, match=r"^what the source awaited was cancelled$"):
                await next_of(items, Call())

        task_world.run(body)


def test_an_async_source_is_read_two_items_ahead_for_each_worker() -> None:
    assert SourceReader(numbers_async()).async_reader(3)._queue.capacity == 6


def test_a_drain_ends_the_reading_of_an_async_source(task_world: TaskWorld) -> None:
    """Behind what it has read; and only once its next item has come."""

    async def body() -> None:
        taken: list[int] = []

        async def endless() -> AsyncIterator[int]:
            for number in itertools.count():
                taken.append(number)
                yield number

        reader = SourceReader(endless()).async_reader(2)
        feed = reader.items()
        reading = task_world.spawn(reader.read_source)
        await task_world.until(lambda: len(taken) == 5)  # the fifth waits for a place
        reader.drain()
        found = [next(feed).value for _ in range(4)]
        with pytest.raises(OutOfRangeError):
            await reading.result()
        found.append(next(feed).value)
        with pytest.raises(OutOfRangeError):
            next(feed)
        assert found == taken == [0, 1, 2, 3, 4]

    task_world.run(body)


def test_a_reader_of_an_async_source_in_a_closed_loop_was_cancelled() -> None:
    class Waits:
        async def __aiter__(self) -> AsyncIterator[int]:
            await asyncio.Event().wait()
            yield 1

    reader = SourceReader(Waits()).async_reader(2)
    loop = asyncio.new_event_loop()
    task = loop.create_task(reader.read_source())
    loop.call_soon(loop.stop)
    loop.run_forever()
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # it will never run again
    loop.close()
    del task
    gc.collect()
    with pytest.raises(OutOfRangeError) as ended:
        next(reader.items())
    assert isinstance(ended.value.__cause__, RuntimeError)
    assert "the task that reads the source of a prepare was cancelled" in str(ended.value.__cause__)


def test_a_failure_of_cleaning_up_is_never_an_end() -> None:
    end = OutOfRangeError("of something else")
    failure = failure_of_clean_up(end)
    assert isinstance(failure, RuntimeError)
    assert failure.__cause__ is end
    assert failure.__notes__ == ["in the source of a prepare"]


def test_the_worst_of_several() -> None:
    end, one, other = OutOfRangeError(), ValueError(), KeyError()
    assert combine_errors([end]) is end
    assert combine_errors([end, one]) is one
    assert combine_errors([one, end]) is one
    group = combine_errors([one, end, other])
    assert isinstance(group, ExceptionGroup)
    assert group.exceptions == (one, other)
