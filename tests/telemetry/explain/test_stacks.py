"""Stacks of threads and tasks that continue to run."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

import aioqueue
from aioqueue import sync
from aioqueue.telemetry.explain.gather import items_in_progress
from aioqueue.telemetry.explain.lock_waits import locks_of
from aioqueue.telemetry.explain.stacks import (
    Frame,
    format_stack,
    of_thread,
    place_of,
    stack_of,
    stack_of_dump,
    stack_of_traceback,
)
from aioqueue.testing import wait_until_waiting
from aioqueue.worlds.current import current_waker
from aioqueue.worlds.waker import Owner
from tests.kit.worlds import PATIENCE, TASK_WORLDS, AsyncioWorld, TaskWorld, spin_until

HERE = Path(__file__).name


def names(stack: tuple[Frame, ...]) -> list[str]:
    return [frame.function.rpartition(".")[2] for frame in stack if frame.is_user_code]


class TestThreads:
    def test_a_waiting_thread(self) -> None:
        go = threading.Event()

        def inner() -> None:
            go.wait(PATIENCE)

        thread = threading.Thread(target=inner)
        assert stack_of(thread) == ()
        thread.start()
        spin_until(lambda: "go.wait(PATIENCE)" in str(place_of(stack_of(thread))))
        assert names(stack_of(thread)) == ["inner"]
        go.set()
        thread.join(PATIENCE)
        spin_until(lambda: stack_of(thread) == ())

    def test_other_objects_have_no_stack(self) -> None:
        assert stack_of(None) == stack_of(3) == ()


WAYS_TO_SAMPLE: dict[str, Callable[[threading.Thread], object]] = {
    "explain": lambda thread: aioqueue.explain(),
    "items": lambda thread: items_in_progress(),
    "locks": lambda thread: locks_of([thread.ident]),
    "stack": stack_of,
    "place": of_thread,
}


class TestNothingIsKept:
    """Reading all threads includes the reading one: no reference cycle keeps its locals."""

    @pytest.mark.parametrize("way", WAYS_TO_SAMPLE)
    @pytest.mark.parametrize("whose", ["own", "another"])
    def test_of_the_reading_thread(self, way: str, whose: str) -> None:
        go = threading.Event()
        thread = threading.Thread(target=go.wait, args=(PATIENCE,))
        thread.start()
        seen = threading.current_thread() if whose == "own" else thread

        class Data:
            pass

        def works() -> weakref.ref[Data]:
            data = Data()
            WAYS_TO_SAMPLE[way](seen)
            return weakref.ref(data)

        gc.disable()
        try:
            assert works()() is None
        finally:
            gc.enable()
            go.set()
            thread.join(PATIENCE)


async def forever() -> None:
    await anyio.sleep(3600)


async def parts() -> Any:
    await forever()
    yield 1


async def reads_parts() -> None:
    async for _ in parts():
        pass


async def awaits_a_task() -> None:
    await asyncio.create_task(reads_parts())


class TestTasks:
    @pytest.mark.parametrize("world_type", TASK_WORLDS, ids=lambda world: world.name)
    def test_async_generators_are_followed(self, world_type: type[TaskWorld]) -> None:
        if world_type.missing():
            pytest.skip(world_type.missing())
        world = world_type()
        owners: list[Owner] = []

        async def worker() -> None:
            owners.append(Owner(current_waker().runner()))
            await reads_parts()

        async def body() -> None:
            task = world.spawn(worker)
            await world.until(lambda: owners and "forever" in names(stack_of(owners[0].thing)))
            found = names(stack_of(owners[0].thing))
            assert found[:4] == ["forever", "parts", "reads_parts", "worker"]
            assert not owners[0].has_ended()
            task.cancel()
            assert await task.was_cancelled()
            await world.until(owners[0].has_ended)

        world.run(body)

    def test_tasks_that_are_awaited_are_followed(self) -> None:
        async def body() -> None:
            task = asyncio.create_task(awaits_a_task())
            while "forever" not in names(stack_of(task)):
                await asyncio.sleep(0)
            assert names(stack_of(task)) == ["forever", "parts", "reads_parts", "awaits_a_task"]
            task.cancel()

        AsyncioWorld().run(body)

    def test_a_running_task_is_found_in_the_thread_of_its_loop(self) -> None:
        async def body() -> None:
            def own_stack() -> tuple[Frame, ...]:
                return stack_of(asyncio.current_task())

            assert names(own_stack()) == ["own_stack", "body"]

        AsyncioWorld().run(body)


class TestFormats:
    def test_of_a_dump(self) -> None:
        dump = 'Current thread 0x1 (most recent call first):\n  File "a b.py", line 8 in f\n'
        assert stack_of_dump(dump) == (Frame("a b.py", 8, "f"),)

    def test_of_a_traceback(self) -> None:
        def fails() -> None:
            raise ValueError

        try:
            fails()
        except ValueError as error:
            stack = stack_of_traceback(error.__traceback__)
        assert names(stack) == ["fails", "test_of_a_traceback"]
        assert "raise ValueError" in str(stack[0])

    def test_user_code_is_the_place_or_else_the_innermost_call(self) -> None:
        library = Frame(threading.__file__, 1, "wait")
        own = Frame(__file__, 1, "f")
        assert place_of((library, own)) == own
        assert place_of((library,)) == library
        assert place_of(()) is None
        assert [
            line.rpartition(" in ")[2][:4] for line in format_stack((library, own)).splitlines()
        ] == [
            "",
            'f: "',
            "wait",
        ]


class TestOwners:
    def test_a_thread_that_has_ended(self) -> None:
        owners: list[Owner] = []
        thread = threading.Thread(
            target=lambda: owners.append(Owner(threading.current_thread())), name="x"
        )
        thread.start()
        thread.join(PATIENCE)
        assert (owners[0].name, owners[0].has_ended(), owners[0].thing) == ("x", True, thread)
        del thread
        spin_until(lambda: owners[0].thing is None)
        assert (owners[0].key, owners[0].has_ended()) == (0, True)


def enters(lock: Any) -> None:
    with lock:
        pass


def acquires(lock: Any) -> None:
    lock.acquire(timeout=PATIENCE)
    lock.release()


def waits_for_an_event(lock: Any) -> None:
    event = threading.Event()

    def release() -> None:
        with lock:
            event.set()

    threading.Thread(target=release).start()
    event.wait(PATIENCE)


@pytest.mark.parametrize(
    ("function", "make", "is_lock"),
    [
        (enters, threading.Lock, True),
        (enters, threading.RLock, True),
        (enters, threading.Semaphore, True),
        (acquires, threading.Lock, True),
        (waits_for_an_event, threading.Lock, False),
    ],
)
def test_waits_for_a_lock_are_recognised(function: Any, make: Any, is_lock: bool) -> None:
    lock = make()
    lock.acquire()
    thread = threading.Thread(target=function, args=(lock,))
    thread.start()
    place = f"{Path(__file__)}:"

    def there() -> bool:
        stack = stack_of(thread)
        return any(frame.function == function.__name__ for frame in stack)

    spin_until(there)
    if is_lock:
        spin_until(lambda: str(locks_of([thread.ident or 0])[0]).startswith(place))
    else:
        spin_until(lambda: any("wait" in frame.function for frame in stack_of(thread)[:2]))
        assert locks_of([thread.ident or 0]) == [None]
    lock.release()
    thread.join(PATIENCE)


@pytest.mark.parametrize(
    "make", [anyio.Lock, lambda: anyio.Semaphore(1), asyncio.Lock, anyio.Event]
)
def test_waits_of_tasks_for_a_lock_are_recognised(task_world: TaskWorld, make: Any) -> None:
    async def body() -> None:
        lock = make()
        if isinstance(lock, asyncio.Lock) and not isinstance(task_world, AsyncioWorld):
            pytest.skip("a lock of asyncio")
        owners: list[Owner] = []
        is_lock = not isinstance(lock, anyio.Event)

        async def wait() -> None:
            owners.append(Owner(current_waker().runner()))
            if not is_lock:
                await lock.wait()
                return
            async with lock:
                pass

        if is_lock:
            await lock.acquire()
        task = task_world.spawn(wait)
        depth = 2  # of calls in the library
        await task_world.until(lambda: owners and len(stack_of(owners[0].thing)) >= depth)
        (place,) = locks_of([owners[0].thing])
        assert str(place).startswith(f"{Path(__file__)}:") if is_lock else place is None
        (lock.release if is_lock else lock.set)()
        await task.result()

    task_world.run(body)


def test_a_wait_at_a_queue_is_no_wait_for_a_lock() -> None:
    queue = sync.FIFOQueue(8)

    def takes() -> int:
        value: int = queue.dequeue()
        return value

    thread = threading.Thread(target=takes)
    thread.start()
    wait_until_waiting(queue, dequeues=1)
    spin_until(lambda: len(stack_of(thread)) > 4)
    assert locks_of([thread.ident or 0]) == [None]
    queue.enqueue(1)
    thread.join(PATIENCE)
