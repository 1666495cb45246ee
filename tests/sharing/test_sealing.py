"""Objects on their way: who pickles and unpickles them, and what nobody can unpickle."""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aioqueue
from aioqueue import sync
from aioqueue.core.fast_path import NOTHING
from aioqueue.core.storage.objects import ObjectStorage
from aioqueue.errors import OutOfRangeError, QueueClosedError
from aioqueue.sharing import sealing
from aioqueue.sharing.queues import take_plain
from aioqueue.sharing.sealing import Sealed
from tests.kit import owners
from tests.kit.owners import InAnotherProcess
from tests.kit.sharing import Child
from tests.kit.worlds import spin_until

Start = Callable[..., Child]


class Unreadable:
    """It is pickled, and cannot be unpickled."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


class Watched:
    """It notes the thread that pickles it, and the one that unpickles it."""

    pickled: list[str] = []  # noqa: RUF012
    unpickled: list[str] = []  # noqa: RUF012

    def __getstate__(self) -> Any:
        self.pickled.append(threading.current_thread().name)
        return {"x": 1}

    def __setstate__(self, state: Any) -> None:
        self.unpickled.append(threading.current_thread().name)


def unpickling_thread(queue: Any) -> Any:
    queue.dequeue()
    queue.enqueue(Watched())
    return Watched.unpickled, Watched.pickled


def test_only_callers_run_code_of_the_user(child: Start) -> None:
    Watched.pickled.clear()
    Watched.unpickled.clear()
    queue = sync.FIFOQueue(3).share()
    queue.enqueue(Watched())
    there = child(unpickling_thread, queue).result()
    queue.dequeue()
    assert set(there[0] + there[1]) == {"MainThread"}
    assert set(Watched.pickled + Watched.unpickled) == {"MainThread"}


class WatchedError(Exception):
    """The same, as a failure."""

    threads: list[str] = []  # noqa: RUF012

    def __reduce__(self) -> Any:
        self.threads.append(threading.current_thread().name)
        return unpickled_failure, self.args


def unpickled_failure(*arguments: Any) -> WatchedError:
    WatchedError.threads.append(threading.current_thread().name)
    return WatchedError(*arguments)


def close_with_a_failure(shared: Any) -> list[str]:
    try:
        raise WatchedError("lost")
    except WatchedError as failure:
        shared.close(cause=failure)
    return WatchedError.threads


def causes_of_ends(shared: Any) -> tuple[list[BaseException | None], list[str]]:
    """The causes of what readers and writers get."""
    calls: list[Callable[[], Any]]
    if isinstance(shared, sync.Latest):
        calls = [shared.get, lambda: shared.publish(1)]
    else:
        calls = [shared.dequeue, shared.dequeue_nowait, lambda: shared.enqueue(1), shared.join]
    found: list[BaseException | None] = []
    for call in calls:
        with pytest.raises((OutOfRangeError, QueueClosedError)) as error:
            call()
        found.append(error.value.__cause__)
    return found, WatchedError.threads


@pytest.mark.parametrize("make", [lambda: sync.FIFOQueue(3), sync.Latest], ids=["queue", "latest"])
@pytest.mark.parametrize("closed", ["before it is shared", "here", "elsewhere"])
def test_a_failure_that_closes_is_pickled_by_callers_only(
    child: Start, make: Callable[[], Any], closed: str
) -> None:
    WatchedError.threads.clear()
    shared = make()
    if closed == "before it is shared":
        close_with_a_failure(shared)
    shared.share()
    if closed == "here":
        close_with_a_failure(shared)
    elif closed == "elsewhere":
        assert set(child(close_with_a_failure, shared).result()) == {"MainThread"}
    causes, threads = child(causes_of_ends, shared).result()
    assert {repr(one) for one in causes} == {"WatchedError('lost')"}
    assert set(threads) == {"MainThread"}
    causes, threads = causes_of_ends(shared)
    assert set(threads) <= {"MainThread"}
    assert repr(causes[0]) == "WatchedError('lost')"
    assert all(one is causes[0] for one in causes), "it is one failure for all callers here"
    assert causes[0] is not None
    text = str(causes[0].__cause__)
    assert ("where the queue was closed" in text) == (closed == "elsewhere")


@pytest.mark.parametrize(
    "thing", [1, 2.0, "text", b"bytes", None, (1, "a"), [1, 2], {"x": 1}, np.arange(3), np.int64(3)]
)
def test_plain_data_is_not_pickled_in_its_own_process(child: Start, thing: Any) -> None:
    queue = sync.FIFOQueue(3).share()
    queue.enqueue(thing)
    assert queue.dequeue() is thing


def test_other_objects_are_copies_even_in_their_own_process(child: Start) -> None:
    queue = sync.FIFOQueue(3).share()
    thing = {"nested": {"x": 1}}
    queue.enqueue(thing)
    taken = queue.dequeue()
    assert taken == thing
    assert taken is not thing


def test_what_cannot_be_pickled_is_refused_at_once(child: Start) -> None:
    queue = sync.FIFOQueue(3).share()
    with pytest.raises(TypeError, match="cannot pickle") as error:
        queue.enqueue(threading.Lock())
    assert error.value.__notes__ == ["the queue is shared, so its elements have to be pickled"]
    assert queue.size() == 0


def take(queue: Any) -> Any:
    try:
        return queue.dequeue(timeout=5)
    except Exception as error:
        return type(error).__name__, getattr(error, "__notes__", [])


# What was put in before, and cannot be pickled.

KINDS: dict[str, Callable[..., Any]] = {
    "fifo": lambda **options: sync.FIFOQueue(9, **options),
    "priority": lambda **options: sync.PriorityQueue(9, **options),
    "components": lambda **options: sync.FIFOQueue(9, [object, "int64"], [(), ()], **options),
    "shuffle": lambda **options: sync.RandomShuffleQueue(9, 0, seed=1, **options),
    "max_bytes": lambda **options: sync.FIFOQueue(9, max_bytes=10**6, **options),
}


def element_of(kind: str, place: int, thing: Any) -> Any:
    return {"priority": (place, thing), "components": (thing, place)}.get(kind, thing)


def objects_of(kind: str, elements: Any) -> list[Any]:
    if kind == "components":
        return list(elements[0])
    return [one[1] for one in elements] if kind == "priority" else list(elements)


def take_each(queue: Any, kind: str, size: int) -> Any:
    """Take all with a batch size, 0 for one by one: what came, and the errors."""
    found: list[Any] = []
    errors: list[Any] = []
    while len(errors) < 4:
        try:
            if size:
                found += objects_of(kind, queue.dequeue_up_to(size, 0, timeout=5))
            else:
                row = queue.dequeue(timeout=5)
                found += objects_of(kind, ([row[0]],) if kind == "components" else [row])
        except TypeError as error:
            errors.append(error.__notes__[-1])
    return found, errors


@pytest.mark.parametrize("size", [0, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_what_was_in_before_and_cannot_be_pickled_keeps_its_place(
    child: Start, kind: str, size: int
) -> None:
    """Each such element fails one dequeue of a handle. Others get what is behind, and local callers
    get it, too, in order."""
    locks = [threading.Lock(), threading.Lock()]
    queue = KINDS[kind](name="jobs")
    things = [[["a"]], locks[0], [["b"]], [["c"]], locks[1], [["d"]]]
    for place, thing in enumerate(things):
        queue.enqueue(element_of(kind, place, thing))
    found, errors = child(take_each, queue.share(), kind, size).result()
    assert sorted(found) == [[["a"]], [["b"]], [["c"]], [["d"]]]
    if kind != "shuffle":
        assert found == sorted(found)
    assert all("an object of lock in" in one and "'jobs'" in one for one in errors)
    assert all(f"take it in process {os.getpid()}" in one for one in errors)
    spin_until(lambda: not queue.statistics().granted)
    assert queue.size() == 2
    left = objects_of(kind, queue.dequeue_many(2))
    assert {*map(id, left)} == {*map(id, locks)}
    if kind != "shuffle":
        assert left[0] is locks[0]
    queue.enqueue(element_of(kind, 0, ["next"]))
    got = child(take, queue).result()
    assert objects_of(kind, ([got[0]],) if kind == "components" else [got]) == [["next"]]


def queue_with_a_lock() -> Any:
    """In another process: a queue whose first element cannot be pickled."""
    queue = aioqueue.FIFOQueue[Any](5)
    owners._made.append(queue)
    queue.enqueue_nowait(threading.Lock())
    queue.enqueue_nowait("next")
    return queue.share()


def type_of_next(queue: Any) -> str:
    return type(queue.dequeue_nowait()).__name__


@pytest.mark.slow(but="asyncio-process")
def test_in_each_world(process_world: InAnotherProcess) -> None:
    owner = process_world.owner
    handle = owner.call(queue_with_a_lock)
    queue: Any = process_world._made(handle)

    async def body() -> None:
        with pytest.raises(TypeError, match="cannot pickle") as error:
            await queue.dequeue()
        assert f"an object of lock in FIFOQueue '{handle.name}'" in error.value.__notes__[-1]
        assert await queue.dequeue() == "next"
        with pytest.raises(TypeError, match="cannot pickle"):
            await queue.dequeue()  # there is nothing else
        assert owner.call(type_of_next, handle) == "lock"
        waiting = process_world.spawn(queue.dequeue)
        await process_world.until(lambda: queue.statistics().waiting_dequeues == 1)
        await queue.enqueue("last")
        assert await waiting.result() == "last"

    process_world.run(body)


def take_exactly(queue: Any, n: int) -> Any:
    with pytest.raises(TypeError, match="cannot pickle") as error:
        queue.dequeue_many(n)
    return queue.dequeue_many(n), error.value.__notes__[-1]


def test_a_whole_batch_behind_what_cannot_be_pickled(child: Start) -> None:
    queue = sync.FIFOQueue[Any](9)
    queue.enqueue_many([1, threading.Lock(), 2, 3])
    batch, note = child(take_exactly, queue.share(), 3).result()
    assert batch == [1, 2, 3]
    assert note.startswith("row 1 of the batch: an object of lock in ")
    assert queue.size() == 1


class WaitsAndFails:
    """An object whose pickling fails, once another thread lets it."""

    may_continue = threading.Event()

    def __reduce__(self) -> Any:
        WaitsAndFails.may_continue.wait(20)
        raise ValueError("not now")


def test_a_local_caller_that_waits_gets_what_cannot_be_pickled(child: Start) -> None:
    """It goes back to the front, so it is for the next in line that can have it."""
    queue = sync.FIFOQueue[Any](9)
    queue.enqueue(WaitsAndFails())
    taking = child(take, queue.share())
    spin_until(lambda: queue.statistics().granted == 1)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(queue.dequeue()))
    thread.start()
    spin_until(lambda: queue.statistics().waiting_dequeues == 1)
    WaitsAndFails.may_continue.set()
    name, notes = taking.result()
    thread.join()
    assert name == "ValueError"
    assert "an object of WaitsAndFails" in notes[-1]
    assert type(found[0]) is WaitsAndFails


def test_an_element_that_no_process_can_unpickle_is_set_aside(
    child: Start, caplog: pytest.LogCaptureFixture
) -> None:
    queue = sync.FIFOQueue(5, name="jobs").share()
    queue.enqueue(Unreadable())
    queue.enqueue("next")
    for _ in range(2):
        name, notes = child(take, queue).result()
        assert name == "ValueError"
        assert "what a dequeue of FIFOQueue 'jobs' got (a pickled builtins.int" in notes[0]
    assert child(take, queue).result() == "next"
    assert "a pickled builtins.int" in caplog.text
    assert "is set aside" in caplog.text
    spin_until(lambda: not queue.statistics().granted)  # the last one was acknowledged
    statistics = queue.statistics()
    assert (statistics.dequeued, statistics.granted, statistics.unfinished) == (2, 0, 1)


def take_batches(queue: Any) -> Any:
    notes = []
    for _ in range(2):
        with pytest.raises(ValueError, match="no number") as error:
            queue.dequeue_many(3)
        notes += error.value.__notes__
    return queue.dequeue_many(3), notes


@pytest.mark.parametrize("kind", [sync.FIFOQueue, sync.PriorityQueue])
def test_a_batch_with_an_element_that_no_process_can_unpickle(child: Start, kind: Any) -> None:
    queue = kind(5).share()
    elements: list[Any] = [0, Unreadable(), 2, 3]
    if kind is sync.PriorityQueue:
        elements = list(enumerate(elements))
    queue.enqueue_many(elements)
    batch, notes = child(take_batches, queue).result()
    assert batch == [elements[0], elements[2], elements[3]]
    assert "row 1 of what" in notes[0]


class Slow:
    """An object whose unpickling waits until another thread lets it."""

    may_continue = threading.Event()

    def __reduce__(self) -> Any:
        return Slow.wait, ()

    @staticmethod
    def wait() -> str:
        Slow.may_continue.wait(20)
        return "unpickled"


def take_slowly(queue: Any) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(queue.dequeue()))
    thread.start()
    spin_until(lambda: queue.statistics().granted == 1)
    queue.enqueue("of another caller")  # neither the owner nor this process waits
    Slow.may_continue.set()
    thread.join()
    return found


def test_an_object_that_is_slow_to_unpickle_stops_no_other_caller(child: Start) -> None:
    queue = sync.FIFOQueue(5).share()
    queue.enqueue(Slow())
    assert child(take_slowly, queue).result() == ["unpickled"]
    assert queue.dequeue() == "of another caller"


def test_a_sealed_object_can_be_sealed_in_another() -> None:
    large = np.arange(1 << 15)
    sealed = sealing.seal({"x": {"y": large}})
    assert type(sealed) is Sealed
    assert sealing.seal(sealed) is sealed
    data, buffers = sealing.parts_of([sealed, 1])
    assert len(data) < 1000
    again, _ = pickle.loads(data, buffers=[bytearray(one) for one in buffers])
    assert (sealing.unseal(again)["x"]["y"] == large).all()


def test_what_a_pickle_is_of() -> None:
    assert sealing.described(sealing.seal(Unreadable())).startswith("a pickled builtins.int of ")
    assert sealing.described(Sealed(b"no pickle")) == "a pickle of 9 bytes"


# What a caller of the owner's process cannot unpickle.

TAKES: dict[str, Callable[[Any], Any]] = {
    "dequeue": lambda queue: queue.dequeue(timeout=0),
    "dequeue_nowait": lambda queue: queue.dequeue_nowait(),
    "next": next,
    "async": lambda queue: asyncio.run(queue.aio.dequeue()),
}


@pytest.mark.parametrize("take", TAKES.values(), ids=TAKES)
@pytest.mark.usefixtures("child")
def test_what_the_owner_cannot_unpickle_goes_back(
    take: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    queue = sync.FIFOQueue[Any](5, name="jobs").share()
    queue.enqueue_many([Unreadable(), "next"])
    for size in (2, 1):
        with pytest.raises(ValueError, match="no number") as error:
            take(queue)
        assert "what a dequeue of FIFOQueue 'jobs' got (a pickled builtins.int" in str(
            error.value.__notes__
        )
        assert queue.size() == size
    assert "is set aside" in caplog.text
    assert queue.statistics().unfinished == 1
    assert queue.dequeue() == "next"


@pytest.mark.usefixtures("child")
def test_what_the_owner_waits_for_and_cannot_unpickle_goes_back() -> None:
    queue = sync.FIFOQueue[Any](5).share()
    raised: list[BaseException] = []

    def take_it() -> None:
        try:
            queue.dequeue()
        except ValueError as error:
            raised.append(error)

    thread = threading.Thread(target=take_it)
    thread.start()
    spin_until(lambda: queue.statistics().waiting_dequeues == 1)
    queue.enqueue(Unreadable())
    thread.join()
    assert "It goes back" in raised[0].__notes__[0]
    assert queue.size() == 1


@pytest.mark.parametrize("kind", [sync.FIFOQueue, sync.PriorityQueue])
@pytest.mark.usefixtures("child")
def test_a_batch_of_which_the_owner_cannot_unpickle_a_row(kind: Any) -> None:
    queue = kind(5).share()
    elements: list[Any] = [0, Unreadable(), 2, 3]
    if kind is sync.PriorityQueue:
        elements = list(enumerate(elements))
    queue.enqueue_many(elements)
    for size in (4, 3):
        with pytest.raises(ValueError, match="no number") as error:
            queue.dequeue_many(3)
        assert "row 1 of what" in error.value.__notes__[0]
        assert queue.size() == size
    assert queue.dequeue_many(3) == [elements[0], elements[2], elements[3]]


def test_an_element_fails_once_here_and_once_there(child: Start) -> None:
    queue = sync.FIFOQueue[Any](5).share()
    queue.enqueue_many([Unreadable(), "next"])
    with pytest.raises(ValueError, match="no number"):
        queue.dequeue()
    assert child(take, queue).result()[0] == "ValueError"
    assert child(take, queue).result() == "next"


class Exiting:
    """Its unpickling raises what no `except Exception` catches."""

    def __reduce__(self) -> Any:
        return sys.exit, (2,)


def take_exits(queue: Any) -> Any:
    exits = 0
    while True:
        try:
            return queue.dequeue(), exits
        except SystemExit:
            exits += 1


@pytest.mark.parametrize("is_here", [True, False])
def test_an_element_whose_unpickling_exits_is_set_aside(child: Start, is_here: bool) -> None:
    queue = sync.FIFOQueue[Any](5).share()
    queue.enqueue_many([Exiting(), "next"])
    found = take_exits(queue) if is_here else child(take_exits, queue).result()
    # A signal handler may have raised it, so it takes more than two to give the element up.
    assert found == ("next", sealing.MOST_FAILURES)


@pytest.mark.parametrize("n", [None, 2])
@pytest.mark.usefixtures("child")
def test_a_lease_that_the_owner_cannot_unpickle(n: int | None) -> None:
    queue = sync.FIFOQueue[Any](5).share()
    queue.enqueue_many([Unreadable(), "next", "last"])
    leases = queue._leases() if n is None else queue.batches(n)._leases()
    for size in (3, 2):
        with pytest.raises(ValueError, match="no number"):
            leases.take("key")
        assert (queue.size(), len(leases)) == (size, 0)
    assert leases.take("key") == ("next" if n is None else ["next", "last"])
    leases.commit_all()


def take_into_arrays(queue: Any) -> Any:
    out = [np.empty(2, object), np.empty(2, np.int64)]
    batch = queue.dequeue_many(2, out=out)
    assert batch[0] is out[0]
    return out


@pytest.mark.parametrize("is_here", [True, False])
def test_objects_are_written_to_the_arrays_of_the_caller(child: Start, is_here: bool) -> None:
    queue = sync.FIFOQueue(5, [object, "int64"], [(), ()]).share()
    queue.enqueue_many([np.array([{"nested": [1]}, {"nested": [2]}]), np.arange(2)])
    out = take_into_arrays(queue) if is_here else child(take_into_arrays, queue).result()
    assert out[0].tolist() == [{"nested": [1]}, {"nested": [2]}]
    assert out[1].tolist() == [0, 1]


class HandledStorage(ObjectStorage):
    """A signal handler changes it as soon as somebody has looked at it."""

    def __init__(self, handle: Callable[[ObjectStorage], object]) -> None:
        super().__init__()
        self._handle = handle

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        self._handle(self)
        return found


def test_the_fast_path_of_the_owner_takes_plain_objects_only() -> None:
    """They need not be unpickled, so they need not be able to go back."""
    storage = ObjectStorage()
    assert take_plain(storage) is NOTHING
    sealed = Sealed(pickle.dumps(1))
    storage.extend([1, sealed])
    assert take_plain(storage) == 1
    assert take_plain(storage) is NOTHING
    assert list(storage) == [sealed]


@pytest.mark.parametrize("left", [[], [Sealed(b""), 2], [2]])
def test_a_handler_that_takes_meanwhile(left: list[Any]) -> None:
    def handle(storage: ObjectStorage) -> None:
        storage.clear()
        storage.extend(left)

    storage = HandledStorage(handle)
    storage.append(1)
    taken = take_plain(storage)
    if left == [2]:
        assert taken == 2
        assert not storage
    else:
        assert taken is NOTHING
        assert list(storage) == left


@pytest.mark.parametrize("is_before", [True, False])
def test_plain_and_pickled_objects_leave_in_their_order(child: Start, is_before: bool) -> None:
    queue = sync.FIFOQueue(20)
    if not is_before:
        queue.share()
    things = [1, Exception("first"), "two", [{"deep": [3]}], None, b"four", np.arange(3)]
    for thing in things:
        queue.enqueue(thing)
    queue.share()
    for thing in things:
        queue.enqueue(thing)
    kinds = [type(queue.dequeue()) for _ in range(2 * len(things))]
    assert kinds == [type(thing) for thing in things] * 2
    assert queue.statistics().dequeued == 2 * len(things)
    assert queue.statistics().granted == 0
