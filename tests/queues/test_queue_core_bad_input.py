"""Refused means unchanged: every wrong argument, what is said, and the queue after it.

Every message names the argument, what was given and what would be right.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioqueue
from aioqueue import sync
from aioqueue.errors import InvalidArgumentError
from tests.kit.worlds import AnyQueue, World

FACES = pytest.mark.parametrize("face", [aioqueue, sync], ids=["aio", "sync"])
KIND_NAMES = ("FIFOQueue", "RandomShuffleQueue", "PaddingFIFOQueue", "PriorityQueue")
HUGE = 2**63


def refused(message: str) -> pytest.RaisesExc[InvalidArgumentError]:
    """Expect a refusal whose message begins so; it is a ``ValueError``."""
    assert issubclass(InvalidArgumentError, ValueError)
    return pytest.raises(InvalidArgumentError, match=f"^{message}")


@FACES
class TestConstruction:
    @pytest.mark.parametrize("kind", KIND_NAMES)
    @pytest.mark.parametrize("capacity", [0, -1, 1.0, "3", True, (1,)], ids=repr)
    def test_capacity(self, face: Any, kind: str, capacity: Any) -> None:
        arguments = {
            "FIFOQueue": (capacity,),
            "RandomShuffleQueue": (capacity, 0),
            "PaddingFIFOQueue": (capacity, "int32", [(None,)]),
            "PriorityQueue": (capacity,),
        }[kind]
        with refused(r"capacity: got .*; expected an int >= 1, or None for no bound$"):
            getattr(face, kind)(*arguments)

    @pytest.mark.parametrize("kind", KIND_NAMES)
    @pytest.mark.parametrize("capacity", [sys.maxsize + 1, np.uint64(2**63), 10**400])
    def test_capacities_that_no_memory_has(self, face: Any, kind: str, capacity: Any) -> None:
        arguments = {
            "FIFOQueue": (capacity, "float32", (0,)),
            "RandomShuffleQueue": (capacity, 0),
            "PaddingFIFOQueue": (capacity, "int32", [(None,)]),
            "PriorityQueue": (capacity,),
        }[kind]
        with refused(rf"capacity: got .*; expected at most {sys.maxsize}, or None for no bound$"):
            getattr(face, kind)(*arguments)

    @pytest.mark.parametrize("keep", [-1, 0.5, None, True, "1"], ids=repr)
    def test_min_after_dequeue(self, face: Any, keep: Any) -> None:
        with refused(r"min_after_dequeue: got .*; expected an int >= 0$"):
            face.RandomShuffleQueue(9, keep)
        with refused(r"min_after_dequeue: got .*; expected an int >= 0$"):
            face.RandomShuffleQueue(None, keep)

    @pytest.mark.parametrize("keep", [9, 10])
    def test_min_after_dequeue_is_less_than_the_capacity(self, face: Any, keep: int) -> None:
        with refused(rf"min_after_dequeue: got {keep}; expected less than the capacity, 9$"):
            face.RandomShuffleQueue(9, keep)

    @pytest.mark.parametrize("seed", ["a", 1.5, (1,), (1, 2, 3), (1, "a"), [1, None]], ids=repr)
    def test_seed(self, face: Any, seed: Any) -> None:
        with refused("seed: got .*; expected "):
            face.RandomShuffleQueue(9, 1, seed=seed)

    @pytest.mark.parametrize(
        "dtypes",
        ["no such", ["int32", "no such"], [object()]],
        ids=["unknown", "one of them", "an object"],
    )
    def test_dtypes(self, face: Any, dtypes: Any) -> None:
        with refused("dtypes: got .* for component .*; expected what numpy.dtype accepts$"):
            face.FIFOQueue(9, dtypes)

    def test_no_dtypes_at_all(self, face: Any) -> None:
        with refused(r"dtypes: got \[\]; expected at least one dtype$"):
            face.FIFOQueue(9, [])

    @pytest.mark.parametrize("kind", ["FIFOQueue", "PriorityQueue"])
    @pytest.mark.parametrize("argument", ["shapes", "names"])
    def test_of_a_queue_of_objects(self, face: Any, kind: str, argument: str) -> None:
        with refused(
            rf"{argument}: got \['a'\] without dtypes; a queue of plain objects has none$"
        ):
            getattr(face, kind)(9, **{argument: ["a"]})

    @pytest.mark.parametrize(
        ("shapes", "message"),
        [
            ([()], r".*1 shape; expected 2, one per dtype$"),
            ([(), (), ()], r".*3 shapes; expected 2, one per dtype$"),
            ([(), 3], r"got 3; expected a tuple of sizes >= 0$"),
            ([(), (-1,)], r"got \(-1,\); expected a tuple of sizes >= 0$"),
            ([(), (1.5,)], r"got \(1.5,\); expected a tuple of sizes >= 0$"),
            ([(), (True,)], r"got \(True,\); expected a tuple of sizes >= 0$"),
            ([(), (None,)], r"got \(None,\); expected fixed sizes \(only PaddingFIFOQueue"),
            ("ab", r"got 'ab'; expected a list of shapes$"),
            (7, r"got 7; expected a list of shapes$"),
        ],
        ids=str,
    )
    def test_shapes(self, face: Any, shapes: Any, message: str) -> None:
        with refused(rf"shapes: {message}"):
            face.FIFOQueue(9, ["int32", "int32"], shapes)
        with refused(rf"shapes: {message}"):
            face.RandomShuffleQueue(9, 0, ["int32", "int32"], shapes)

    @pytest.mark.parametrize(
        ("names", "message"),
        [
            (["a"], "expected 2 different names, one per component"),
            (["a", "a"], "expected 2 different names, one per component"),
            (["a", "b", "c"], "expected 2 different names, one per component"),
            (["a", 1], "expected a list of strings"),
            (3, "expected a list of strings"),
        ],
        ids=str,
    )
    def test_names(self, face: Any, names: Any, message: str) -> None:
        with refused(rf"names: got .*; {message}$"):
            face.FIFOQueue(9, ["int32", "int32"], names=names)

    def test_names_of_a_priority_queue(self, face: Any) -> None:
        with refused(r"names: got \['a'\]; expected 2 different names, one per component$"):
            face.PriorityQueue(9, ["int32"], [()], ["a"])

    @pytest.mark.parametrize("kind", KIND_NAMES)
    @pytest.mark.parametrize("name", [3, b"a", ["a"]], ids=repr)
    def test_name(self, face: Any, kind: str, name: Any) -> None:
        arguments: dict[str, tuple[Any, ...]] = {
            "FIFOQueue": (9,),
            "RandomShuffleQueue": (9, 0),
            "PaddingFIFOQueue": (9, "int32", [(None,)]),
            "PriorityQueue": (9,),
        }
        with refused(r"name: got .*; expected a string or None$"):
            getattr(face, kind)(*arguments[kind], name=name)

    def test_padding_needs_dtypes_and_shapes(self, face: Any) -> None:
        with refused("dtypes: got None; a PaddingFIFOQueue needs a dtype and a shape per"):
            face.PaddingFIFOQueue(9, None, None)
        with refused("shapes: got None; a PaddingFIFOQueue needs a dtype and a shape per"):
            face.PaddingFIFOQueue(9, "int32", None)


class TestCounts:
    @pytest.mark.parametrize("n", [-1, 1.0, "1", None, True], ids=repr)
    async def test_n(self, world: World, n: Any) -> None:
        queue = world.fifo(9)
        await queue.enqueue_many([0, 1])
        before = queue.statistics()
        for method in (queue.dequeue_many, queue.dequeue_up_to):
            with refused(r"n: got .*; expected an int >= 0$"):
                await world.spawn(method, n).result()
        with refused(r"n: got .*; expected an int >= 0$"):
            queue.batches(n)
        assert queue.statistics() == before
        assert await queue.dequeue() == 0

    async def test_batches_of_none(self, world: World) -> None:
        with refused("n: got 0; expected an int >= 1$"):
            world.fifo(9).batches(0)

    async def test_without_shapes(self, world: World) -> None:
        queue = world.fifo(9, "int32", name="loose")
        await queue.enqueue([0, 1])
        before = queue.statistics()
        with refused("FIFOQueue 'loose' was made without shapes; batches can only be taken from"):
            await queue.dequeue_many(1)
        assert queue.statistics() == before

    async def test_more_than_a_priority_queue_can_hold(self, world: World) -> None:
        queue = world.priority(3)
        await queue.enqueue((0, "a"))
        before = queue.statistics()
        message = "n: got 4; expected at most 3, the capacity: a PriorityQueue cannot"
        for method in (queue.dequeue_many, queue.dequeue_up_to):
            with refused(message):
                await method(4)
        with refused(message):
            queue.batches(4)
        assert queue.statistics() == before
        assert await queue.dequeue() == (0, "a")

    @pytest.mark.parametrize("max_wait", [-1, -0.001, "1", True, float("nan")], ids=repr)
    async def test_max_wait(self, world: World, max_wait: Any) -> None:
        queue = world.fifo(9)
        await queue.enqueue(0)
        before = queue.statistics()
        with refused(r"max_wait: got .*; expected a number of seconds >= 0$"):
            await queue.dequeue_up_to(2, max_wait=max_wait)
        assert queue.statistics() == before

    @pytest.mark.parametrize("timeout", [-1, -0.001, "1", True, float("nan")], ids=repr)
    def test_timeout(self, timeout: Any) -> None:
        """Checked also where there is no need to wait: a wrong argument is wrong at once."""
        for inside in (0, 1, 2):
            queue = sync.FIFOQueue(2)
            queue.enqueue_many(range(inside))
            before = queue.statistics()
            calls: list[Callable[[], object]] = [
                partial(queue.dequeue, timeout=timeout),
                partial(queue.dequeue_many, 1, timeout=timeout),
                partial(queue.dequeue_up_to, 1, timeout=timeout),
                partial(queue.enqueue, 9, timeout=timeout),
                partial(queue.enqueue_many, [9], timeout=timeout),
                partial(queue.wait_closed, timeout=timeout),
                partial(queue.join, timeout=timeout),
            ]
            for call in calls:
                with refused(r"timeout: got .*; expected a number of seconds >= 0$"):
                    call()
                assert queue.statistics() == before

    async def test_cause(self, world: World) -> None:
        queue = world.fifo(9)
        wrong: Any = "no exception"
        with refused("cause: got 'no exception'; expected an exception or None$"):
            queue.close(cause=wrong)
        with refused("cause: got <class 'ValueError'>; expected an exception or None$"):
            queue.close(cause=ValueError)  # type: ignore[arg-type]
        assert not queue.is_closed()

    async def test_cancel_pending_enqueues(self, world: World) -> None:
        queue = world.fifo(9)
        wrong: Any = 1
        with refused("cancel_pending_enqueues: got 1; expected a bool$"):
            queue.close(wrong)
        assert not queue.is_closed()


Make = Callable[[World], AnyQueue]


def typed(world: World) -> AnyQueue:
    queue = world.fifo(9, ["float32", "int8"], [(2,), ()])
    queue.enqueue_nowait(([1, 2], 3))
    return queue


def named(world: World) -> AnyQueue:
    queue = world.fifo(9, ["float32", "int8"], [(2,), ()], ["image", "label"])
    queue.enqueue_nowait({"image": [1, 2], "label": 3})
    return queue


def single(world: World) -> AnyQueue:
    queue = world.fifo(9, "int8", ())
    queue.enqueue_nowait(3)
    return queue


def texts(world: World) -> AnyQueue:
    queue = world.fifo(9, [str, bytes], [(), ()])
    queue.enqueue_nowait(("a", b"b"))
    return queue


def padded(world: World) -> AnyQueue:
    queue = world.padding(9, "int32", [(None, 2)])
    queue.enqueue_nowait([[1, 2]])
    return queue


def shuffled(world: World) -> AnyQueue:
    queue = world.shuffle(9, 0, "int8", (), seed=1)
    queue.enqueue_nowait(3)
    return queue


def prioritised(world: World) -> AnyQueue:
    queue = world.priority(9, "int8", [()])
    queue.enqueue_nowait((1, 3))
    return queue


def prioritised_objects(world: World) -> AnyQueue:
    queue = world.priority(9)
    queue.enqueue_nowait((1, "a"))
    return queue


def objects(world: World) -> AnyQueue:
    queue = world.fifo(9)
    queue.enqueue_nowait("a")
    return queue


ELEMENTS: list[tuple[Make, Any, str]] = [
    # Too many, too few, or no components at all.
    (typed, ([1, 2],), r"element: got 1 component; expected a tuple of 2 components"),
    (typed, ([1, 2], 3, 4), r"element: got 3 components; expected a tuple of 2 components"),
    (typed, np.zeros(2), r"element: got an array float64\[2\], not a tuple; expected a tuple of 2"),
    (typed, {"image": [1, 2]}, r"element: got \{.*\}, not a tuple; expected a tuple of 2"),
    (typed, "ab", r"element: got 'ab', not a tuple; expected a tuple of 2"),
    # Names.
    (named, {"image": [1, 2]}, r"element: got \['image'\]; expected a dict with the keys \['im"),
    (named, {"image": 1, "label": 2, "x": 3}, r"element: got \['image', 'label', 'x'\]; expected"),
    (named, ([1, 2], 3), r"element: got \(\[1, 2\], 3\); expected a dict with the keys"),
    (named, {"image": [1, 2], "label": 1.5}, r"component label: got 1.5, of dtype float64; exp"),
    # Casting.
    (typed, ([1, 2], 1.5), r"component 1: got 1.5, of dtype float64; expected int8 \(numbers are"),
    (typed, ([1, 2], np.float32(1)), r"component 1: got .*1.0.*, of dtype float32; expected int8"),
    (typed, ([1, 2], "a"), r"component 1: got 'a', of dtype <U1; expected int8"),
    (typed, ([1, 2], None), r"component 1: got None, of dtype object; expected int8"),
    (typed, ([1j, 2], 1), r"component 0: got .*, of dtype complex128; expected float32"),
    (single, 128, r"component 0: got 128, outside -128 to 127; expected int8"),
    (single, -129, r"component 0: got -129, outside -128 to 127; expected int8"),
    (single, np.ma.masked_array([1], [True])[0], r"component 0: got a masked array; expected one"),
    # Shapes.
    (typed, ([1, 2, 3], 3), r"component 0: got \[1, 2, 3\] of shape \[3\]; expected shape \[2\]"),
    (
        typed,
        ([[1, 2]], 3),
        r"component 0: got .* of shape \[1,2\]|.*\[1, 2\]; expected shape \[2\]",
    ),
    (typed, (1, 3), r"component 0: got 1 of shape \[\]; expected shape \[2\]"),
    (typed, ([1, [2]], 3), r"component 0: got \[1, \[2\]\], which NumPy cannot convert: .*; expe"),
    (single, [1], r"component 0: got \[1\] of shape \[1\]; expected shape \[\]"),
    (padded, [1, 2], r"component 0: got \[1, 2\] of shape \[2\]; expected shape \[\?,2\]"),
    (padded, [[1, 2, 3]], r"component 0: got .* of shape \[1, 3\]; expected shape \[\?,2\]"),
    (padded, [[1.5, 2]], r"component 0: got .*, of dtype float64; expected int32"),
    # Strings.
    (texts, (b"a", b"b"), r"component 0: got b'a', holding a bytes; expected str"),
    (texts, ("a", "b"), r"component 1: got 'b', holding a str; expected bytes"),
    (texts, (3, b"b"), r"component 0: got 3, holding an int; expected str"),
    (shuffled, 1.5, r"component 0: got 1.5, of dtype float64; expected int8"),
    # Priorities.
    (prioritised, (1.5, 3), r"component 0: got 1.5, of dtype float64; expected int64"),
    (prioritised, (HUGE, 3), r"component 0: got 9223372036854775808, .*; expected int64"),
    (prioritised, ([1], 3), r"component 0: got \[1\] of shape \[1\]; expected shape \[\]"),
    (prioritised, 3, r"element: got 3, not a tuple; expected a tuple of 2 components"),
    (prioritised_objects, "ab", r"element: got 'ab'; expected a pair \(priority, object\)"),
    (prioritised_objects, (1, 2, 3), r"element: got \(1, 2, 3\); expected a pair \(priority, obj"),
    (prioritised_objects, (1.5, "a"), r"element: got the priority 1.5; expected an int of 64 bits"),
    (prioritised_objects, (True, "a"), r"element: got the priority True; expected an int of 64"),
    (prioritised_objects, (HUGE, "a"), r"element: got the priority 9223372036854775808; expected"),
]


@pytest.mark.parametrize(("make", "element", "message"), ELEMENTS)
async def test_elements(world: World, make: Make, element: Any, message: str) -> None:
    queue = make(world)
    before, state = queue.statistics(), repr(queue)
    with refused(message):
        await queue.enqueue(element)
    with refused(message):
        queue.enqueue_nowait(element)
    assert (queue.statistics(), repr(queue)) == (before, state)
    queue.dequeue_nowait()  # what was inside, and nothing else
    assert queue.size() == 0


BATCHES: list[tuple[Make, Any, str]] = [
    (typed, ([[1, 2]], [3, 4]), r"batch: got 2 rows for component 1 and 1 for component 0; exp"),
    (typed, [[[1, 2]]], r"batch: got 1 component; expected a tuple of 2 components"),
    (
        typed,
        np.zeros((2, 2)),
        r"batch: got an array float64\[2, 2\], not a tuple; expected a tuple",
    ),
    (named, {"image": [[1, 2]]}, r"batch: got \['image'\]; expected a dict with the keys"),
    (typed, ([1, 2], [3, 4]), r"component 0: got rows of shape \[\] in an array of shape \[2\]; "),
    (typed, ([[1, 2]], 3), r"component 1: got the scalar 3; expected a batch, an array of shape"),
    (typed, ([[1, 2]], [[3]]), r"component 1: got rows of shape \[1\] in an array of shape"),
    (typed, ([[1, 2]], [1.5]), r"component 1: got \[1.5\], of dtype float64; expected int8"),
    (single, [1, 2, 300], r"component 0: got \[1, 2, 300\], outside -128 to 127; expected int8"),
    (single, np.zeros(3), r"component 0: got an array float64\[3\], of dtype float64; expected"),
    (single, 3, r"component 0: got the scalar 3; expected a batch"),
    (texts, (["a", 3], [b"b", b"c"]), r"component 0: got \['a', 3\], holding an int; expected str"),
    (texts, ("ab", [b"a", b"b"]), r"component 0: got 'ab'; expected a sequence of values"),
    (texts, (3, [b"a"]), r"component 0: got 3, which is not a sequence; expected str"),
    (padded, [[[1, 2]], [[1, 2, 3]]], r"component 0: got .* of shape \[1, 3\]; expected shape"),
    (prioritised, ([1, 2], [3]), r"batch: got 1 row for component 1 and 2 for component 0; exp"),
    (prioritised_objects, [(1, "a"), 2], r"element: got 2; expected a pair \(priority, object\)"),
    (objects, "ab", r"batch: got 'ab'; expected a list, or another iterable, of elements"),
    (objects, {"a": 1}, r"batch: got \{'a': 1\}; expected a list, or another iterable"),
    (objects, 3, r"batch: got 3; expected a list, or another iterable"),
]


@pytest.mark.parametrize("copy", [True, False], ids=["copied", "handed-over"])
@pytest.mark.parametrize(("make", "batch", "message"), BATCHES)
async def test_batches(world: World, make: Make, batch: Any, message: str, copy: bool) -> None:
    queue = make(world)
    before = queue.statistics()
    with refused(message):
        await queue.enqueue_many(batch, copy=copy)
    assert queue.statistics() == before
    queue.dequeue_nowait()
    assert queue.size() == 0


def read_only() -> np.ndarray[Any, Any]:
    array = np.zeros(1, "int8")
    array.flags.writeable = False
    return array


OUTPUTS: list[tuple[Make, Any, str]] = [
    (
        single,
        np.zeros(1),
        r"out: got float64\[1\] for component 0; expected a writable .* int8\[1\]",
    ),
    (single, np.zeros(2, "int8"), r"out: got int8\[2\] for component 0; expected .* int8\[1\]"),
    (single, np.zeros((1, 1), "int8"), r"out: got int8\[1, 1\] for component 0; expected"),
    (single, [0], r"out: got a list for component 0; expected a writable array int8\[1\]"),
    (single, read_only(), r"out: got int8\[1\], read-only for component 0; expected a writable"),
    (
        single,
        np.ma.zeros(1, "int8"),
        r"out: got a MaskedArray for component 0; expected a",
    ),
    (
        typed,
        (np.zeros((1, 2), "float32").view(np.matrix), np.zeros(1, "int8")),
        r"out: got a matrix for component 0; expected a writable array float32\[1, 2\]",
    ),
    (typed, np.zeros(1), r"out: got an array float64\[1\], not a tuple; expected a tuple of 2"),
    (typed, (np.zeros((1, 2), "float32"), 0), r"out: got an int for component 1; expected"),
    (named, (1, 2), r"out: got \(1, 2\); expected a dict with the keys"),
    (objects, [None], r"out: got \[None\]; a queue of objects returns a list and writes to no"),
    (
        padded,
        np.zeros((1, 1, 2), "int32"),
        r"out: got .*; this queue's batches have no fixed shape",
    ),
]


@pytest.mark.parametrize(("make", "out", "message"), OUTPUTS)
async def test_outputs(world: World, make: Make, out: Any, message: str) -> None:
    queue = make(world)
    before = queue.statistics()
    with refused(message):
        await queue.dequeue_many(1, out=out)
    assert queue.statistics() == before
    queue.dequeue_nowait()


async def test_rows_are_never_lost_behind_a_mask(world: World) -> None:
    """An array that ignores what is assigned to it is no place for them."""
    queue = world.fifo(9, "int8", ())
    await queue.enqueue_many([1, 2, 3])
    out = np.ma.masked_array(np.zeros(3, "int8"), [False, True, False], hard_mask=True)
    with refused("out: got a MaskedArray"):
        await queue.dequeue_many(3, out=out)
    assert (await queue.dequeue_many(3)).tolist() == [1, 2, 3]


async def test_mapped_files_are_memory(world: World, tmp_path: Path) -> None:
    queue = world.fifo(9, "int8", ())
    await queue.enqueue_many([1, 2, 3])
    out: Any = np.memmap(tmp_path / "rows", "int8", "w+", shape=(3,))
    assert await queue.dequeue_many(3, out=out) is out
    assert out.tolist() == [1, 2, 3]


async def test_refused_though_it_would_wait(world: World) -> None:
    """What is wrong is refused at once, also when the queue is full, empty or closed."""
    queue = world.fifo(1, "int8", ())
    await queue.enqueue(1)
    before = queue.statistics()
    with refused("component 0"):
        await queue.enqueue("a")
    with refused("component 0"):
        await queue.enqueue_many(["a"])
    queue.close()
    with refused("component 0"):
        await queue.enqueue("a")
    with refused("n: got -1"):
        await queue.dequeue_many(-1)
    assert queue.statistics() == before


async def test_an_iterable_that_fails(world: World) -> None:
    """A failure while the batch is read is the caller's own; nothing has been put in yet."""

    def rows() -> Any:
        yield 1
        raise LookupError("no more")

    queue = world.fifo(9)
    with pytest.raises(LookupError, match="no more"):
        await queue.enqueue_many(rows())
    assert queue.statistics().enqueued == 0


def test_async_methods_take_no_timeout() -> None:
    queue: Any = aioqueue.FIFOQueue(1)
    with pytest.raises(TypeError, match="timeout"):
        queue.dequeue(timeout=1)


def test_async_methods_need_an_event_loop() -> None:
    queue = aioqueue.FIFOQueue(1)
    operation = queue.dequeue()
    with pytest.raises(RuntimeError, match="no running event loop"):
        operation.send(None)
    assert queue.statistics().waiting_dequeues == 0
    assert asyncio.run(take_one(queue)) == 7


async def take_one(queue: aioqueue.FIFOQueue) -> Any:
    await queue.enqueue(7)
    return await queue.dequeue()
