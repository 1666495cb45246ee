"""`Latest`: one side publishes, many read the newest value, through either face."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import aioqueue
from aioqueue import sync
from aioqueue.base.tracebacks import PACKAGE_FOLDER
from aioqueue.errors import (
    CancelledError,
    DeadlineExceededError,
    InvalidArgumentError,
    OutOfRangeError,
    QueueClosedError,
    QueueEmpty,
)
from tests.kit.worlds import PATIENCE, spin_until

Body = Callable[[], Coroutine[Any, Any, None]]


def readers(latest: Any) -> int:
    """Count the waiting callers."""
    return len(latest._core._pending())


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(PATIENCE):
        while not condition():
            await anyio.lowlevel.checkpoint()


@pytest.fixture(params=["asyncio", "trio"])
def run(request: pytest.FixtureRequest) -> Callable[[Body], None]:
    """Runs a coroutine function under asyncio, and under trio."""
    if request.param == "trio":
        pytest.importorskip("trio")
    return lambda body: anyio.run(body, backend=request.param)


@pytest.fixture
def pool() -> Any:
    with ThreadPoolExecutor(8) as threads:
        yield threads


def test_reading_keeps_the_value_and_skips_old_ones() -> None:
    latest = sync.Latest[str]()
    assert latest.version == 0
    with pytest.raises(QueueEmpty, match="nothing has been published in Latest"):
        latest.get_nowait()
    assert [latest.publish(value) for value in "abc"] == [1, 2, 3]
    for _ in range(2):
        assert latest.get_nowait() == latest.get() == (3, "c")
        assert latest.wait_newer(0) == latest.wait_newer(2) == (3, "c")
    version, value = latest.aio.get_nowait()
    assert (version, value) == (latest.version, "c")
    assert latest.aio.sync is latest
    assert latest.aio is latest.aio
    assert sync.Latest("first").get() == (1, "first")
    assert sync.Latest(None).get() == (1, None)


def test_tasks_wait_for_a_newer_version(run: Callable[[Body], None], pool: Any) -> None:
    """A thread or a task publishes; all waiting callers get the same value."""

    async def body() -> None:
        latest = aioqueue.Latest[int](10, name="weights")
        got: list[Any] = []

        async def read(version: int) -> None:
            got.append(await latest.wait_newer(version))

        async with anyio.create_task_group() as group:
            for version in (1, 1, 2):
                group.start_soon(read, version)
            await until(lambda: readers(latest) == 3)
            blocked = pool.submit(latest.sync.wait_newer, 1, timeout=PATIENCE)
            await until(lambda: readers(latest) == 4)
            pool.submit(latest.sync.publish, 20)
            await until(lambda: len(got) == 2)
            assert blocked.result(PATIENCE) == (2, 20)
            assert readers(latest) == 1
            latest.publish(30)
        assert got == [(2, 20), (2, 20), (3, 30)]
        assert await latest.get() == (3, 30)
        text = "<aioqueue.Latest 'weights', version 3, 0 readers waiting"
        assert repr(latest).startswith(text)  # a handle also says who shares it

    run(body)


def test_a_cancelled_wait_changes_nothing(run: Callable[[Body], None]) -> None:
    async def body() -> None:
        latest = aioqueue.Latest[int]()
        with anyio.move_on_after(0.01) as scope:
            await latest.get()
        assert scope.cancelled_caught
        assert readers(latest) == 0
        got: list[Any] = []

        async def read() -> None:
            got.append(await latest.get())

        async with anyio.create_task_group() as group:
            group.start_soon(read)
            await until(lambda: readers(latest) == 1)
            latest.publish(1)  # granted, and cancelled before it resumes
            group.cancel_scope.cancel()
        assert got in ([], [(1, 1)])
        assert latest._core._waiting == {}
        assert await latest.wait_newer(0) == (1, 1)

    run(body)


def test_the_end(run: Callable[[Body], None], pool: Any) -> None:
    async def body() -> None:
        latest = aioqueue.Latest[int]()
        ended: list[BaseException] = []

        async def read() -> None:
            with pytest.raises(OutOfRangeError, match="no version at all was published") as caught:
                await latest.get()
            ended.append(caught.value)

        async with anyio.create_task_group() as group:
            group.start_soon(read)
            await until(lambda: readers(latest) == 1)
            blocked = pool.submit(latest.sync.get, timeout=PATIENCE)
            await until(lambda: readers(latest) == 2)
            failure = ValueError("the learner has failed")
            latest.close(cause=failure)
            latest.close(cause=KeyError("too late"))
        thread_end = blocked.exception(PATIENCE)
        assert ended[0] is not thread_end
        assert ended[0].__cause__ is failure
        assert isinstance(thread_end, OutOfRangeError)
        assert thread_end.__cause__ is failure
        assert latest.is_closed()
        with pytest.raises(QueueClosedError) as caught:
            latest.publish(1)
        assert caught.value.__cause__ is failure
        with pytest.raises(OutOfRangeError):
            [one async for one in latest]

    run(body)


def test_the_last_value_is_read_after_the_end() -> None:
    latest = sync.Latest[int](5)
    latest.close()
    assert latest.get() == latest.get_nowait() == latest.wait_newer(0) == (1, 5)
    with pytest.raises(OutOfRangeError, match="no version after 1 was published") as caught:
        latest.wait_newer(1)
    assert caught.value.__cause__ is None
    assert list(latest) == [(1, 5)]

    async def both() -> list[Any]:
        return [one async for one in latest.aio]

    assert asyncio.run(both()) == [(1, 5)]


@pytest.mark.parametrize("kind", ["task", "thread", "blocking"])
def test_the_stop_of_a_coordinator_wakes_its_workers(kind: str) -> None:
    """Without the wake, the block would wait for its whole grace period."""
    latest = aioqueue.Latest[int]()
    queue = aioqueue.FIFOQueue(1)

    async def in_task() -> None:
        await latest.get()

    def on_thread() -> None:
        latest.sync.get()

    async def main() -> None:
        async with aioqueue.Coordinator() as coord:
            coord.start(aioqueue.QueueRunner(queue, in_task if kind == "task" else on_thread))
            await until(lambda: readers(latest) == 1)

    if kind == "blocking":
        with sync.Coordinator() as coord:
            coord.start(sync.QueueRunner(queue, on_thread))
            spin_until(lambda: readers(latest) == 1)
    else:
        asyncio.run(asyncio.wait_for(main(), PATIENCE))
    assert readers(latest) == 0


@pytest.mark.parametrize("is_thread", [True, False])
def test_the_stop_wakes_a_worker_that_was_registered_while_it_waited(is_thread: bool) -> None:
    latest = aioqueue.Latest[int]()
    ended: list[BaseException] = []

    def on_thread() -> None:
        with pytest.raises(aioqueue.CancelledError, match="ended by the stop") as raised:
            list(latest.sync)
        ended.append(raised.value)

    async def in_task() -> None:
        with pytest.raises(aioqueue.CancelledError, match="ended by the stop") as raised:
            [one async for one in latest]
        ended.append(raised.value)

    async def main() -> None:
        async with aioqueue.Coordinator() as coord:
            task = asyncio.create_task(in_task())
            await until(lambda: readers(latest) == 1)
            coord.register(task)

    if is_thread:
        with sync.Coordinator() as coord:
            thread = threading.Thread(target=on_thread)
            thread.start()
            spin_until(lambda: readers(latest) == 1)
            coord.register(thread)
    else:
        asyncio.run(asyncio.wait_for(main(), PATIENCE))
    (error,) = ended
    assert PACKAGE_FOLDER not in "".join(traceback.format_exception(error))


def test_limits_of_threads(pool: Any) -> None:
    latest = sync.Latest[int]()
    for timeout in (0, 0.01):
        with pytest.raises(DeadlineExceededError, match="has lasted its timeout"):
            latest.get(timeout=timeout)
    with (
        pytest.raises(DeadlineExceededError, match="deadline of its CancelScope"),
        sync.CancelScope(0.01),
    ):
        latest.wait_newer(0)
    scope = sync.CancelScope()

    def read() -> Any:
        with scope:
            return latest.wait_newer(3)

    blocked = pool.submit(read)
    spin_until(lambda: readers(latest) == 1)
    latest.publish(1)
    assert not blocked.done()
    scope.cancel()
    assert isinstance(blocked.exception(PATIENCE), CancelledError)
    assert latest._core._waiting == {}

    async def in_a_loop() -> None:
        assert latest.get() == (1, 1)  # need not wait
        with pytest.raises(RuntimeError, match=r"use `await latest\.aio\.wait_newer"):
            latest.wait_newer(1)

    asyncio.run(in_a_loop())


def test_misuse() -> None:
    latest = sync.Latest[int](name="weights")
    wrong: Any
    for wrong in (-1, 1.5, "1"):
        with pytest.raises(InvalidArgumentError, match=r"^version: got "):
            latest.wait_newer(wrong)
    wrong = "a failure"
    with pytest.raises(InvalidArgumentError, match=r"^cause: got 'a failure'; expected an exc"):
        latest.close(cause=wrong)
    wrong = 3
    with pytest.raises(InvalidArgumentError, match=r"^name: got 3; expected a string or None"):
        aioqueue.Latest(name=wrong)
    with pytest.raises(TypeError, match="Latest 'weights' cannot be pickled or copied"):
        pickle.dumps(latest)
    with pytest.raises(TypeError, match="searched by `in`: the search would wait"):
        assert 3 in latest


def test_reentrant_calls() -> None:
    """From signal handlers and finalizers: a publication is refused, a close is deferred."""
    latest = sync.Latest[int](1)

    def inject() -> None:
        with pytest.raises(RuntimeError, match="nothing was published"):
            latest.publish(2)
        latest.close()
        assert not latest.is_closed()

    with latest._core._lock:
        inject()
    spin_until(latest.is_closed)
    assert latest.get() == (1, 1)


def test_a_finalizer_of_an_old_value_may_publish_and_wait(pool: Any) -> None:
    """It may publish, and wait for a lock that a publishing thread holds."""
    latest, lock, published = sync.Latest[Any](), threading.Lock(), []

    class Weights:
        def __del__(self) -> None:
            with lock:
                published.append(latest.publish("a finalizer's"))

    latest.publish(Weights())
    with lock:
        other = pool.submit(latest.publish, "another's")
        while latest.version < 2:
            threading.Event().wait(1e-4)
        assert pool.submit(latest.publish, "mine").result(10) == 3
    assert other.result(10) == 2
    assert published == [4]


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timers")
def test_an_interrupted_publication_loses_no_wake(pool: Any) -> None:
    """A signal handler may raise at any point: waiting callers are woken."""

    class InjectedError(Exception):
        pass

    def inject(*_: object) -> None:
        raise InjectedError

    random = Random(5)
    before = signal.signal(signal.SIGALRM, inject)
    try:
        for _ in range(60):
            latest = sync.Latest[int]()
            blocked = pool.submit(latest.wait_newer, 0, timeout=PATIENCE)
            while not readers(latest):
                time.sleep(0)  # gives way to the reader
            try:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 4e-5))
                try:
                    latest.publish(1)
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except InjectedError:
                pass
            if latest.version == 0:
                latest.publish(1)
            assert blocked.result(PATIENCE) == (1, 1)
    finally:
        signal.signal(signal.SIGALRM, before)


async def publish_to_all(seed: int) -> tuple[int, list[list[Any]]]:
    """Publish to readers in threads and tasks; return how many values, and what each has read."""
    random = Random(seed)
    latest = aioqueue.Latest[tuple[int, int]]()
    seen: list[list[Any]] = [[] for _ in range(6)]

    def read(mine: list[Any]) -> None:
        mine.extend(latest.sync)

    async def pause() -> None:
        if random.random() < 0.3:
            await asyncio.sleep(0)

    async def read_async(mine: list[Any]) -> None:
        async for one in latest:
            mine.append(one)
            await pause()

    count = random.randint(1, 60)
    threads = [threading.Thread(target=read, args=(mine,)) for mine in seen[:3]]
    for thread in threads:
        thread.start()
    tasks = [asyncio.create_task(read_async(mine)) for mine in seen[3:]]
    for number in range(count):
        latest.publish((number, number))
        await pause()
    latest.close()
    await asyncio.gather(*tasks)
    for thread in threads:
        await asyncio.to_thread(thread.join, PATIENCE)
    return count, seen


def test_random_readers_see_later_and_later_versions() -> None:
    """Threads and tasks read while others publish."""
    for seed in range(6):
        count, seen = asyncio.run(publish_to_all(seed))
        for mine in seen:
            versions = [one.version for one in mine]
            assert versions == sorted(set(versions)), seed
            assert all(one.value == (one.version - 1,) * 2 for one in mine), seed
            assert versions[-1] == count, seed


def test_reference_counting_frees_everything() -> None:
    """Without the garbage collector; old values are freed, too."""

    class Weights:
        pass

    latest = aioqueue.Latest[Weights]()
    old, new = Weights(), Weights()
    watched = weakref.ref(old)
    latest.publish(old)
    latest.publish(new)
    del old
    assert watched() is None
    face = latest.sync
    assert face.get().value is new
    references = weakref.ref(latest), weakref.ref(face), weakref.ref(latest._core)
    del latest, face
    assert [one() for one in references] == [None] * 3


def test_an_explanation_names_waiting_readers(pool: Any) -> None:
    latest = sync.Latest[int](1, name="weights of the policy")
    blocked = pool.submit(latest.wait_newer, 1)
    spin_until(lambda: readers(latest) == 1)
    explanation = str(aioqueue.explain())
    latest.close()
    assert isinstance(blocked.exception(PATIENCE), OutOfRangeError)
    assert "waits for a version after 1 of Latest 'weights of the policy'" in explanation
    assert "of Latest 'weights of the policy', whose version is 1, for" in explanation


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_forks() -> None:
    """A used one refuses calls in a fork; an unused one works there."""
    begun, new = sync.Latest(1), sync.Latest[int]()
    other = begun.aio
    child = os.fork()
    if not child:
        status = 1
        try:
            for call in (begun.get_nowait, begun.get, other.close, lambda: begun.publish(2)):
                with pytest.raises(RuntimeError, match="in this fork"):
                    call()
            assert "of another process" in repr(begun)
            assert new.publish(3) == 1
            assert new.get() == (1, 3)
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert begun.get() == (1, 1)
    assert new.version == 0
