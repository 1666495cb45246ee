"""What every operation does, in every world: the promises of its documentation, one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError
from itertools import chain
from typing import Any, assert_type

import numpy as np
import pytest

import aioqueue
from aioqueue import sync
from aioqueue.core.attempts import QueueState
from aioqueue.core.elements.spec import ArrayElements
from aioqueue.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    OutOfRangeError,
    QueueClosedError,
    QueueEmpty,
    QueueFull,
)
from tests.kit.worlds import AsyncioWorld, Kind, World, drive


class TestConstruction:
    async def test_describes_itself(self, world: World) -> None:
        queue = world.fifo(7, ["float32", str], [(2, 3), ()], ["image", "label"], name="images")
        assert (queue.name, queue.capacity, queue.names) == ("images", 7, ["image", "label"])
        assert queue.dtypes == [np.dtype("float32"), np.dtype(object)]
        assert queue.shapes == [(2, 3), ()]

    async def test_a_queue_of_objects_has_no_components(self, world: World) -> None:
        queue = world.fifo(7)
        assert (queue.dtypes, queue.shapes, queue.names) == (None, None, None)

    async def test_one_bare_shape_and_dtype(self, world: World) -> None:
        for dtypes, shapes in (("int32", (2,)), (["int32"], [(2,)]), (np.int32, [2])):
            queue = world.fifo(1, dtypes, shapes)
            assert (queue.dtypes, queue.shapes) == ([np.dtype("int32")], [(2,)])

    async def test_without_shapes(self, world: World) -> None:
        queue = world.fifo(9, "int32")
        assert queue.shapes is None
        await queue.enqueue([1, 2])
        await queue.enqueue(3)
        with pytest.raises(InvalidArgumentError, match="without shapes"):
            await queue.dequeue_many(2)
        with pytest.raises(InvalidArgumentError, match="without shapes"):
            await queue.dequeue_up_to(2)
        with pytest.raises(InvalidArgumentError, match="without shapes"):
            queue.batches(2)
        assert (await queue.dequeue()).tolist() == [1, 2]
        assert await queue.dequeue() == 3

    async def test_names_are_made_up(self, world: World) -> None:
        first, second = world.fifo(1), world.fifo(1)
        assert first.name.startswith("FIFOQueue-")
        assert first.name != second.name

    async def test_unbounded(self, world: World, kind: Kind) -> None:
        queue = kind.make(world, None)
        assert queue.capacity is None
        await queue.enqueue_many(kind.batch(range(1000)))
        assert sorted(kind.numbers(await queue.dequeue_many(1000))) == list(range(1000))

    async def test_an_empty_queue_is_true(self, world: World, kind: Kind) -> None:
        queue = kind.make(world)
        assert len(queue) == 0
        assert bool(queue) is True

    async def test_repr(self, world: World) -> None:
        queue = world.fifo(3, ["int32", str], [(2, 1), ()], name="examples")
        await queue.enqueue(([[1], [2]], "a"))
        assert repr(queue).endswith(".FIFOQueue 'examples' [int32[2,1], str[]] 1/3>")
        await queue.enqueue_many((np.zeros((2, 2, 1), "int32"), ["b", "c"]))
        await world.begin(queue.enqueue, ([[3], [4]], "d"))
        queue.close()
        assert repr(queue).endswith(" 3/3, closing>")
        queue.close(cancel_pending_enqueues=True)
        assert repr(queue).endswith(" 3/3, closed>")
        unbounded = world.fifo(None)
        assert repr(unbounded).endswith("[objects] 0 elements, unbounded>")
        await unbounded.enqueue(1)
        assert repr(unbounded).endswith("[objects] 1 element, unbounded>")
        named = world.padding(3, ["int32"], [(None,)], ["ids"])
        assert "[ids: int32[?]]" in repr(named)
        assert "[(priority, object)]" in repr(world.priority(3))

    async def test_min_after_dequeue_is_an_attribute(self, world: World) -> None:
        assert world.shuffle(9, 4).min_after_dequeue == 4


def test_both_faces_are_of_one_queue(kind: Kind) -> None:
    queue: Any = kind.make(AsyncioWorld())
    face = queue.sync
    assert queue.sync is face
    assert face.aio is queue
    assert face.aio.sync is face
    assert isinstance(queue, aioqueue.AsyncQueue)
    assert isinstance(face, sync.BlockingQueue)
    assert type(face).__name__ == type(queue).__name__
    face.enqueue(kind.element(1))
    assert queue.size() == 1
    assert kind.number(queue.dequeue_nowait()) == 1
    assert queue.statistics() == face.statistics()
    queue.close()
    assert face.is_closed()


def test_types_name_the_kind_and_the_face() -> None:
    """mypy, which reads the tests too, refuses each line of these that does not hold."""

    def any_async(queue: aioqueue.AsyncQueue) -> aioqueue.AsyncQueue:
        assert_type(queue.sync, sync.BlockingQueue)
        return queue.sync.aio

    def any_blocking(queue: sync.BlockingQueue) -> sync.BlockingQueue:
        assert_type(queue.aio, aioqueue.AsyncQueue)
        return queue.aio.sync

    fifo, shuffle = aioqueue.FIFOQueue(3), aioqueue.RandomShuffleQueue(3, 1)
    padding, priority = aioqueue.PaddingFIFOQueue(3, "int32", (None,)), aioqueue.PriorityQueue(3)
    assert_type(padding, aioqueue.PaddingFIFOQueue[ArrayElements])
    assert assert_type(fifo.aio, aioqueue.FIFOQueue) is fifo
    assert assert_type(fifo.sync.sync, sync.FIFOQueue) is fifo.sync
    assert assert_type(fifo.sync.aio, aioqueue.FIFOQueue) is fifo
    assert assert_type(shuffle.sync, sync.RandomShuffleQueue) is shuffle.sync
    assert assert_type(shuffle.sync.aio, aioqueue.RandomShuffleQueue) is shuffle
    assert assert_type(padding.sync, sync.PaddingFIFOQueue[ArrayElements]) is padding.sync
    assert assert_type(padding.sync.aio, aioqueue.PaddingFIFOQueue[ArrayElements]) is padding
    assert assert_type(priority.sync, sync.PriorityQueue) is priority.sync
    assert assert_type(priority.sync.aio, aioqueue.PriorityQueue) is priority
    assert any_async(fifo) is fifo
    assert any_blocking(fifo.sync) is fifo.sync


@pytest.mark.parametrize("face", [aioqueue, sync], ids=["aio", "sync"])
@pytest.mark.parametrize(
    "name", ["FIFOQueue", "RandomShuffleQueue", "PaddingFIFOQueue", "PriorityQueue"]
)
def test_a_missing_argument_is_missed_by_the_class_that_was_called(name: str, face: Any) -> None:
    with pytest.raises(TypeError, match=rf"^{name}\.__init__\(\) missing .*'capacity'"):
        getattr(face, name)()


@pytest.mark.parametrize(
    ("timeout", "time", "what"),
    [
        (None, 0, "reached the deadline of its CancelScope"),
        (60, 0, "reached the deadline of its CancelScope"),
        (0, 60, "waited its timeout of 0 s"),
        (0, None, "waited its timeout of 0 s"),
    ],
)
def test_a_deadline_error_names_the_limit_that_passed(
    timeout: float | None, time: float | None, what: str
) -> None:
    queue = sync.FIFOQueue(2, name="numbers")
    calls: dict[str, Callable[[], object]] = {
        "dequeue": lambda: queue.dequeue(timeout=timeout),
        "enqueue_many": lambda: queue.enqueue_many([1, 2, 3], timeout=timeout),
    }
    for method, call in calls.items():
        with (
            aioqueue.sync.CancelScope(time),
            pytest.raises(DeadlineExceededError, match=f"^{method} on .* 'numbers' has {what}"),
        ):
            call()
    assert queue.size() == 2


def test_iterators_over_batches_describe_themselves() -> None:
    queue = aioqueue.FIFOQueue(3, name="numbers")
    assert repr(queue.batches(3)) == "<aioqueue.AsyncBatches of 3 from 'numbers'>"
    assert repr(queue.sync.batches(3)) == "<aioqueue.sync.Batches of 3 from 'numbers'>"


def test_a_blocking_queue_has_an_async_face() -> None:
    queue = sync.RandomShuffleQueue(9, 3, "int32", name="examples")
    assert queue.aio is queue.aio
    assert queue.aio.sync is queue
    assert isinstance(queue.aio, aioqueue.RandomShuffleQueue)
    assert queue.aio.min_after_dequeue == 3
    assert queue.aio.name == "examples"


class TestElements:
    async def test_one_component_is_the_bare_value(self, world: World) -> None:
        queue = world.fifo(9, "float32", (2,))
        await queue.enqueue([1, 2])
        element = await queue.dequeue()
        assert isinstance(element, np.ndarray)
        assert element.dtype == "float32"
        assert element.tolist() == [1, 2]
        await queue.enqueue_many([[1, 2], [3, 4]])
        assert (await queue.dequeue_many(2)).tolist() == [[1, 2], [3, 4]]

    async def test_several_are_a_tuple_or_a_list_in_and_a_tuple_out(self, world: World) -> None:
        queue = world.fifo(9, ["int32", "bool"], [(), ()])
        await queue.enqueue((1, True))
        await queue.enqueue([2, False])
        assert await queue.dequeue() == (1, True)
        element = await queue.dequeue()
        assert type(element) is tuple
        await queue.enqueue_many([[1, 2], [True, False]])
        batch = await queue.dequeue_many(2)
        assert type(batch) is tuple
        assert [column.tolist() for column in batch] == [[1, 2], [True, False]]

    async def test_names_make_dicts(self, world: World) -> None:
        queue = world.fifo(9, ["int32", "bool"], [(), ()], ["a", "b"])
        await queue.enqueue({"b": True, "a": 1})
        assert await queue.dequeue() == {"a": 1, "b": True}
        await queue.enqueue_many({"b": [True, False], "a": [1, 2]})
        batch = await queue.dequeue_many(2)
        assert list(batch) == ["a", "b"]
        assert batch["a"].tolist() == [1, 2]

    async def test_one_named_component_is_a_dict_too(self, world: World) -> None:
        queue = world.fifo(9, "int32", (), "a")
        await queue.enqueue({"a": 1})
        assert await queue.dequeue() == {"a": 1}

    async def test_objects_are_returned_themselves(self, world: World) -> None:
        queue = world.fifo(9)
        given: list[Any] = [object(), None, (1, 2), []]
        for element in given:
            await queue.enqueue(element)
        assert await queue.dequeue() is given[0]
        batch = await queue.dequeue_many(3)
        assert type(batch) is list
        assert all(got is put for got, put in zip(batch, given[1:], strict=True))
        await queue.enqueue_many(iter(given))
        assert await queue.dequeue_many(4) == given

    async def test_same_kind_casting(self, world: World) -> None:
        queue = world.fifo(9, ["float32", "int16"], [(), ()])
        await queue.enqueue((np.float64(1.5), np.int64(3)))
        element = await queue.dequeue()
        assert element == (1.5, 3)
        assert [value.dtype.name for value in element] == ["float32", "int16"]

    async def test_strings_and_objects_of_any_length(self, world: World) -> None:
        queue = world.fifo(9, [str, bytes, object], [(), (), ()])
        long = "x" * 1000
        await queue.enqueue((long, b"", {"any": "thing"}))
        await queue.enqueue(("y", long.encode(), [1, 2]))
        texts, octets, objects = await queue.dequeue_many(2)
        assert texts.dtype == octets.dtype == objects.dtype == object
        assert texts.tolist() == [long, "y"]
        assert octets.tolist() == [b"", long.encode()]
        assert objects.tolist() == [{"any": "thing"}, [1, 2]]

    async def test_values_are_copied_in_and_private_on_the_way_out(self, world: World) -> None:
        for queue in (
            world.fifo(9, "int64", (2,)),
            world.fifo(9, "int64"),
            world.shuffle(9, 0, "int64", (2,), seed=1),
            world.padding(9, "int64", [(None,)]),
        ):
            given = np.array([1, 2])
            await queue.enqueue(given)
            given[:] = 0
            first = await queue.dequeue()
            assert first.tolist() == [1, 2]
            first[:] = 7  # writable
            await queue.enqueue([3, 4])
            assert first.tolist() == [7, 7]
            assert (await queue.dequeue()).tolist() == [3, 4]
        given = np.array([[1, 2], [3, 4]])
        queue = world.fifo(9, "int64", (2,))
        await queue.enqueue_many(given)
        given[:] = 0
        batch = await queue.dequeue_many(2)
        batch += 1
        assert batch.tolist() == [[2, 3], [4, 5]]

    async def test_a_batch_that_waits_is_private_too(self, world: World) -> None:
        queue = world.fifo(1, "int64", (1,))
        taking = await world.begin(queue.dequeue_many, 3)
        given = np.array([[1], [2], [3]])
        await queue.enqueue_many(given)
        given[:] = 0
        batch = await taking.result()
        batch += 1
        assert batch.tolist() == [[2], [3], [4]]

    async def test_arrays_can_be_enqueued_without_a_copy(self, world: World, kind: Kind) -> None:
        queue = kind.make(world, 3)
        await queue.enqueue(kind.element(0))
        putting = await world.begin(queue.enqueue_many, kind.batch(range(1, 6)), copy=False)
        got = kind.numbers(await queue.dequeue_many(2))
        got += kind.numbers(await queue.dequeue_many(2))
        await putting.result()
        got += kind.numbers(await queue.dequeue_up_to(2))
        assert kind.in_order(got) == list(range(6))

    async def test_out_is_written_and_returned(self, world: World) -> None:
        queue = world.fifo(9, ["int32", "float64"], [(), (2,)])
        await queue.enqueue_many(([1, 2, 3], np.ones((3, 2))))
        out = (np.zeros(3, "int32"), np.zeros((3, 2)))
        batch = await queue.dequeue_many(3, out=out)
        assert batch[0] is out[0]
        assert batch[1] is out[1]
        assert out[0].tolist() == [1, 2, 3]
        assert out[1].sum() == 6

    async def test_out_is_written_by_a_batch_that_waits(self, world: World) -> None:
        queue = world.fifo(2, "int32", ())
        out = np.zeros(5, "int32")
        taking = await world.begin(queue.dequeue_many, 5, out=out)
        await queue.enqueue_many([1, 2, 3])
        await queue.enqueue_many([4, 5])
        assert await taking.result() is out
        assert out.tolist() == [1, 2, 3, 4, 5]

    async def test_out_of_no_rows(self, world: World) -> None:
        queue = world.fifo(2, "int32", ())
        out = np.zeros(0, "int32")
        assert await queue.dequeue_many(0, out=out) is out


class TestEnqueue:
    async def test_waits_while_full(self, world: World, kind: Kind) -> None:
        queue = kind.make(world, 2)
        await queue.enqueue_many(kind.batch([1, 2]))
        putting = await world.begin(queue.enqueue, kind.element(3))
        assert queue.statistics().waiting_enqueues == 1
        assert not putting.done
        first = kind.number(await queue.dequeue())
        assert await putting.result() is None
        assert kind.in_order([first, *await kind.drain(queue)]) == [1, 2, 3]

    async def test_many_may_exceed_the_capacity(self, world: World, kind: Kind) -> None:
        queue = kind.make(world, 2)
        putting = await world.begin(queue.enqueue_many, kind.batch(range(7)))
        assert len(queue) == 2
        got = [kind.number(await queue.dequeue()) for _ in range(5)]
        assert await putting.result() is None
        assert kind.in_order(got + await kind.drain(queue)) == list(range(7))

    async def test_rows_stay_together(self, world: World) -> None:
        queue = world.fifo(2)
        batches = [await world.begin(queue.enqueue_many, [n, n + 1, n + 2]) for n in (0, 10)]
        single = await world.begin(queue.enqueue, 20)
        got = [await queue.dequeue() for _ in range(7)]
        assert got == [0, 1, 2, 10, 11, 12, 20]
        for putting in (*batches, single):
            await putting.result()

    async def test_no_rows_return_at_once_always(self, world: World, kind: Kind) -> None:
        queue = kind.make(world, 1)
        await queue.enqueue_many(kind.batch([]))
        await queue.enqueue(kind.element(1))
        await queue.enqueue_many(kind.batch([]))  # it is full
        putting = await world.begin(queue.enqueue, kind.element(2))
        await queue.enqueue_many(kind.batch([]))  # others wait
        queue.close()
        await queue.enqueue_many(kind.batch([]))  # it is closed
        assert await kind.drain(queue) == [1, 2]
        await putting.result()

    async def test_nowait(self, world: World, kind: Kind) -> None:
        queue = kind.make(world, 2)
        queue.enqueue_nowait(kind.element(1))
        queue.enqueue_nowait(kind.element(2))
        with pytest.raises(QueueFull, match=f"'{queue.name}' is full"):
            queue.enqueue_nowait(kind.element(3))
        assert await kind.drain(queue) == [1, 2]

    async def test_nowait_wakes_waiting_callers(self, world: World, kind: Kind) -> None:
        queue = kind.make(world, 2)
        taking = await world.begin(queue.dequeue)
        queue.enqueue_nowait(kind.element(1))
        assert kind.number(await taking.result()) == 1

    async def test_nowait_never_overtakes(self, world: World) -> None:
        queue = world.fifo(3)
        await queue.enqueue_many([0, 1])
        # A batch at the head of the line needs all the room there will be.
        putting = await world.begin(queue.enqueue_many, range(2, 6))
        await queue.dequeue_many(2)
        assert len(queue) == 3
        with pytest.raises(QueueFull):
            queue.enqueue_nowait(9)
        assert await queue.dequeue_many(3) == [2, 3, 4]
        await putting.result()
        queue.enqueue_nowait(9)
        assert await queue.dequeue_many(2) == [5, 9]

    async def test_closed(self, world: World, kind: Kind) -> None:
        queue = kind.make(world, 2)
        await queue.enqueue(kind.element(1))
        queue.close()
        for operation in (
            world.spawn(queue.enqueue, kind.element(2)),
            world.spawn(queue.enqueue_many, kind.batch([2, 3])),
        ):
            with pytest.raises(QueueClosedError, match=f"'{queue.name}' is closed") as caught:
                await operation.result()
            assert caught.value.queue == queue.name
            assert caught.value.enqueued == 0
            assert caught.value.__cause__ is None
        with pytest.raises(QueueClosedError):
            queue.enqueue_nowait(kind.element(2))
        assert await kind.drain(queue) == [1]


class TestDequeue:
    async def test_waits_for_one(self, world: World, kind: Kind) -> None:
        queue = kind.make(world)
        taking = await world.begin(queue.dequeue)
        assert queue.statistics().waiting_dequeues == 1
        assert not taking.done
        await queue.enqueue(kind.element(1))
        assert kind.number(await taking.result()) == 1

    async def test_many_waits_for_exactly_n(self, world: World, kind: Kind) -> None:
        queue = kind.make(world)
        taking = await world.begin(queue.dequeue_many, 3)
        await queue.enqueue_many(kind.batch([1, 2]))
        assert queue.statistics().waiting_dequeues == 1
        await queue.enqueue_many(kind.batch([3, 4]))
        got = kind.numbers(await taking.result())
        assert len(got) == 3
        assert kind.in_order(got + await kind.drain(queue)) == [1, 2, 3, 4]

    async def test_producers_get_their_room_back_at_once(self, world: World) -> None:
        for queue in (world.fifo(2), world.shuffle(2, 0), world.padding(2, "int64", [()])):
            taking = await world.begin(queue.dequeue_many, 9)
            for number in range(8):
                await queue.enqueue(number)
                assert len(queue) == 0
            assert queue.statistics().waiting_dequeues == 1
            await queue.enqueue_many([8, 9])
            assert sorted([*await taking.result(), *await queue.dequeue_many(1)]) == [*range(10)]

    async def test_many_may_exceed_the_capacity(self, world: World) -> None:
        queue = world.fifo(2, "int64", ())
        putting = await world.begin(queue.enqueue_many, range(10))
        assert (await queue.dequeue_many(7)).tolist() == list(range(7))
        assert (await queue.dequeue_many(3)).tolist() == [7, 8, 9]
        await putting.result()

    async def test_a_priority_queue_refuses_more_than_its_capacity(self, world: World) -> None:
        queue = world.priority(2, "int64", [()])
        with pytest.raises(InvalidArgumentError, match="n: got 3; expected at most 2"):
            await queue.dequeue_many(3)
        await queue.enqueue_many(([2, 1], [2, 1]))
        assert (await queue.dequeue_many(2))[0].tolist() == [1, 2]

    async def test_a_priority_queue_takes_nothing_early(self, world: World) -> None:
        queue = world.priority(3)
        taking = await world.begin(queue.dequeue_many, 2)
        await queue.enqueue((5, "late"))
        assert len(queue) == 1
        await queue.enqueue((1, "early"))
        assert await taking.result() == [(1, "early"), (5, "late")]

    async def test_no_rows_are_an_empty_batch_at_once(self, world: World, kind: Kind) -> None:
        queue = kind.make(world)
        taking = await world.begin(queue.dequeue)  # others wait
        assert kind.numbers(await queue.dequeue_many(0)) == []
        assert kind.numbers(await queue.dequeue_up_to(0, max_wait=0)) == []
        queue.close()
        assert kind.numbers(await queue.dequeue_many(0)) == []
        with pytest.raises(OutOfRangeError):
            await taking.result()

    async def test_an_empty_batch_has_dtypes_and_shapes(self, world: World) -> None:
        queue = world.fifo(9, ["int8", str], [(2, 3), ()])
        first, second = await queue.dequeue_many(0)
        assert (first.shape, first.dtype) == ((0, 2, 3), np.dtype("int8"))
        assert (second.shape, second.dtype) == ((0,), np.dtype(object))
        padded = await world.padding(9, "int8", [(None, 3)]).dequeue_many(0)
        assert padded.shape == (0, 0, 3)
        assert await world.fifo(9).dequeue_many(0) == []

    async def test_nowait(self, world: World, kind: Kind) -> None:
        queue = kind.make(world)
        with pytest.raises(QueueEmpty, match=f"'{queue.name}' has no element"):
            queue.dequeue_nowait()
        await queue.enqueue(kind.element(1))
        assert kind.number(queue.dequeue_nowait()) == 1
        queue.close()
        with pytest.raises(OutOfRangeError):
            queue.dequeue_nowait()

    async def test_nowait_wakes_waiting_callers(self, world: World, kind: Kind) -> None:
        queue = kind.make(world, 1)
        await queue.enqueue(kind.element(1))
        putting = await world.begin(queue.enqueue, kind.element(2))
        assert kind.number(queue.dequeue_nowait()) == 1
        await putting.result()
        assert kind.number(queue.dequeue_nowait()) == 2

    async def test_nowait_never_overtakes(self, world: World, kind: Kind) -> None:
        queue = kind.make(world)
        taking = await world.begin(queue.dequeue_many, 2)
        await queue.enqueue(kind.element(1))
        with pytest.raises(QueueEmpty):
            queue.dequeue_nowait()
        await queue.enqueue(kind.element(2))
        assert kind.in_order(kind.numbers(await taking.result())) == [1, 2]

    async def test_priorities(self, world: World) -> None:
        queue = world.priority(9, [str], [()])
        for priority, label in [(3, "c"), (-1, "a"), (3, "d"), (2, "b"), (3, "e")]:
            await queue.enqueue((priority, label))
        assert await queue.dequeue() == (-1, "a")
        priorities, labels = await queue.dequeue_many(4)
        assert priorities.dtype == "int64"
        assert priorities.tolist() == [2, 3, 3, 3]
        assert labels.tolist() == ["b", "c", "d", "e"]

    async def test_priorities_have_64_bits(self, world: World) -> None:
        queue = world.priority(9)
        ends = [(2**63 - 1, "last"), (-(2**63), "first")]
        await queue.enqueue_many(ends)
        assert await queue.dequeue_many(2) == ends[::-1]

    async def test_equal_priorities_never_compare_their_objects(self, world: World) -> None:
        queue = world.priority(9)
        objects = [object() for _ in range(4)]
        for value in objects:
            await queue.enqueue((0, value))
        assert [value for _, value in await queue.dequeue_many(4)] == objects

    async def test_names_of_a_priority_queue_include_the_priority(self, world: World) -> None:
        queue = world.priority(9, [str], [()], ["rank", "label"])
        await queue.enqueue({"rank": 1, "label": "a"})
        assert await queue.dequeue() == {"rank": 1, "label": "a"}


class TestShuffle:
    async def test_keeps_min_after_dequeue_inside(self, world: World) -> None:
        queue = world.shuffle(9, 2, "int64", (), seed=3)
        await queue.enqueue_many([0, 1])
        with pytest.raises(QueueEmpty):
            queue.dequeue_nowait()
        taking = await world.begin(queue.dequeue)
        await queue.enqueue(2)
        got = [int(await taking.result())]
        assert len(queue) == 2
        batching = await world.begin(queue.dequeue_many, 2)
        await queue.enqueue(3)
        assert queue.statistics().waiting_dequeues == 1
        await queue.enqueue(4)
        got += (await batching.result()).tolist()
        assert len(queue) == 2
        queue.close()
        got += (await queue.dequeue_many(2)).tolist()
        assert sorted(got) == [0, 1, 2, 3, 4]

    async def test_close_gives_all_elements_to_waiting_callers(self, world: World) -> None:
        queue = world.shuffle(9, 5, "int64", (), seed=3)
        await queue.enqueue_many(range(4))
        taking = await world.begin(queue.dequeue)
        batching = await world.begin(queue.dequeue_up_to, 9)
        queue.close()
        got = [int(await taking.result()), *(await batching.result()).tolist()]
        assert sorted(got) == [0, 1, 2, 3]

    async def test_same_seed_same_order(self, world: World) -> None:
        orders = []
        for seed in (7, 7, 8, (1, 2), (1, 2)):
            queue = world.shuffle(100, 10, "int64", (), seed=seed)
            await queue.enqueue_many(range(50))
            order = (await queue.dequeue_many(20)).tolist()
            order += [int(await queue.dequeue()) for _ in range(20)]
            queue.close()
            order += (await queue.dequeue_many(10)).tolist()
            assert sorted(order) == list(range(50))
            orders.append(order)
        assert orders[0] == orders[1]
        assert orders[3] == orders[4]
        assert orders[0] != orders[2] != orders[3] != orders[0]

    async def test_fresh_entropy(self, world: World) -> None:
        orders = set()
        for _ in range(3):
            queue = world.shuffle(100, 0)
            await queue.enqueue_many(range(100))
            orders.add(tuple(await queue.dequeue_many(100)))
        assert len(orders) == 3

    async def test_each_is_drawn_uniformly(self, world: World) -> None:
        queue = world.shuffle(None, 0, "int64", (), seed=5)
        firsts = np.zeros(4)
        for _ in range(400):
            await queue.enqueue_many(range(4))
            firsts[int((await queue.dequeue_many(4))[0])] += 1
        assert (firsts > 70).all()  # 100 each is expected; 70 is 3.5 standard deviations below


class TestPadding:
    async def test_to_the_largest_in_this_batch(self, world: World) -> None:
        queue = world.padding(9, "int32", [(None,)])
        for element in ([1], [1, 2, 3], [], [4, 5]):
            await queue.enqueue(np.array(element, "int32"))
        assert (await queue.dequeue_many(2)).tolist() == [[1, 0, 0], [1, 2, 3]]
        assert (await queue.dequeue_many(2)).tolist() == [[0, 0], [4, 5]]

    async def test_single_dequeues_are_not_padded(self, world: World) -> None:
        queue = world.padding(9, "int32", [(None,)])
        await queue.enqueue([1])
        await queue.enqueue([1, 2])
        assert (await queue.dequeue()).tolist() == [1]
        assert (await queue.dequeue()).tolist() == [1, 2]

    @pytest.mark.parametrize("rank", [1, 2, 3, 5, 8])
    async def test_any_rank(self, world: World, rank: int) -> None:
        queue = world.padding(9, "float64", [(None,) * rank])
        small, large = np.ones((1,) * rank), np.ones((2,) * rank)
        await queue.enqueue(small)
        await queue.enqueue(large)
        batch = await queue.dequeue_many(2)
        assert batch.shape == (2, *large.shape)
        assert batch[0].sum() == 1
        assert batch[(0, *(0,) * rank)] == 1  # zeros are at the high end
        assert batch[1].sum() == large.size

    async def test_per_component_and_fixed_dimensions(self, world: World) -> None:
        queue = world.padding(9, ["int32", "int32"], [(None, 2), ()])
        await queue.enqueue((np.ones((1, 2), "int32"), 1))
        await queue.enqueue((np.ones((3, 2), "int32"), 2))
        images, labels = await queue.dequeue_many(2)
        assert images.shape == (2, 3, 2)
        assert labels.tolist() == [1, 2]

    @pytest.mark.parametrize(
        ("dtype", "value", "zero"), [("bool", True, False), (str, "a", ""), (bytes, b"a", b"")]
    )
    async def test_with_what(self, world: World, dtype: Any, value: Any, zero: Any) -> None:
        queue = world.padding(9, dtype, [(None,)])
        await queue.enqueue([value])
        await queue.enqueue([value, value])
        assert (await queue.dequeue_many(2)).tolist() == [[value, zero], [value, value]]

    async def test_rows_of_varying_shape_as_a_batch(self, world: World) -> None:
        queue = world.padding(9, "int32", [(None,)])
        await queue.enqueue_many([[1], [2, 3]])
        await queue.enqueue_many(np.array([[4, 5, 6]], "int32"))
        assert (await queue.dequeue_many(3)).tolist() == [[1, 0, 0], [2, 3, 0], [4, 5, 6]]

    async def test_a_batch_that_waits(self, world: World) -> None:
        queue = world.padding(1, "int32", [(None,)])
        taking = await world.begin(queue.dequeue_many, 3)
        for element in ([1], [2, 3], [4, 5, 6]):
            await queue.enqueue(element)
        assert (await taking.result()).tolist() == [[1, 0, 0], [2, 3, 0], [4, 5, 6]]


class TestUpTo:
    async def test_n_if_they_are_there(self, world: World, kind: Kind) -> None:
        queue = kind.make(world)
        await queue.enqueue_many(kind.batch(range(5)))
        got = kind.numbers(await queue.dequeue_up_to(3))
        assert len(got) == 3
        assert kind.in_order(got + await kind.drain(queue)) == list(range(5))

    async def test_waits_for_n_while_open(self, world: World, kind: Kind) -> None:
        queue = kind.make(world)
        await queue.enqueue(kind.element(0))
        taking = await world.begin(queue.dequeue_up_to, 3)
        await queue.enqueue(kind.element(1))
        assert queue.statistics().waiting_dequeues == 1
        await queue.enqueue(kind.element(2))
        assert kind.in_order(kind.numbers(await taking.result())) == [0, 1, 2]

    async def test_what_is_left_after_close(self, world: World, kind: Kind) -> None:
        queue = kind.make(world)
        await queue.enqueue_many(kind.batch(range(5)))
        queue.close()
        first = kind.numbers(await queue.dequeue_up_to(3))
        rest = kind.numbers(await queue.dequeue_up_to(3))
        assert (len(first), len(rest)) == (3, 2)
        assert kind.in_order(first + rest) == list(range(5))
        with pytest.raises(OutOfRangeError):
            await queue.dequeue_up_to(3)

    async def test_what_is_left_when_closed_meanwhile(self, world: World, kind: Kind) -> None:
        queue = kind.make(world)
        taking = await world.begin(queue.dequeue_up_to, 3)
        waiting_dequeue = await world.begin(queue.dequeue_up_to, 3)
        await queue.enqueue_many(kind.batch([0, 1]))
        queue.close()
        assert kind.in_order(kind.numbers(await taking.result())) == [0, 1]
        with pytest.raises(OutOfRangeError):
            await waiting_dequeue.result()

    async def test_what_is_there_when_max_wait_has_passed(self, world: World, kind: Kind) -> None:
        queue = kind.make(world)
        await queue.enqueue_many(kind.batch([0, 1]))
        batch = await queue.dequeue_up_to(3, max_wait=0.01)
        assert kind.in_order(kind.numbers(batch)) == [0, 1]
        await queue.enqueue(kind.element(2))
        assert kind.numbers(await queue.dequeue_up_to(3, max_wait=0)) == [2]

    async def test_the_first_one_when_nothing_was_there(self, world: World, kind: Kind) -> None:
        queue = kind.make(world)
        taking = await world.begin(queue.dequeue_up_to, 3, max_wait=0)
        putting = await world.begin(queue.dequeue_up_to, 3)  # the next in line
        # Only when its time is up does one element serve it.
        await queue.enqueue(kind.element(0))
        assert kind.numbers(await taking.result()) == [0]
        await queue.enqueue_many(kind.batch([1, 2, 3]))
        assert kind.in_order(kind.numbers(await putting.result())) == [1, 2, 3]

    async def test_batches_with_max_wait(self, world: World, kind: Kind) -> None:
        queue = kind.make(world)
        await queue.enqueue_many(kind.batch([1, 2, 3, 4, 5]))
        batches = aiter(queue.batches(2, max_wait=0))
        sizes = [len(kind.numbers(await anext(batches))) for _ in range(3)]
        assert sizes == [2, 2, 1]
        taking = world.spawn(batches.__anext__)
        await world.in_line(taking, queue.dequeue)
        assert not taking.done, "an empty batch"
        await queue.enqueue(kind.element(6))
        assert kind.numbers(await taking.result()) == [6]
        queue.close()
        with pytest.raises(StopAsyncIteration):
            await anext(batches)
        with pytest.raises(InvalidArgumentError, match=r"^max_wait: got 1.* with drop_remainder"):
            queue.batches(2, max_wait=1, drop_remainder=True)
        with pytest.raises(InvalidArgumentError, match=r"^max_wait: got -1"):
            queue.batches(2, max_wait=-1)

    async def test_max_wait_is_not_used_up_by_a_full_batch(self, world: World, kind: Kind) -> None:
        queue = kind.make(world)
        taking = await world.begin(queue.dequeue_up_to, 2, max_wait=3600)
        await queue.enqueue_many(kind.batch([0, 1]))
        assert kind.in_order(kind.numbers(await taking.result())) == [0, 1]

    async def test_an_expired_one_does_not_overtake(self, world: World) -> None:
        queue = world.fifo(9)
        first = await world.begin(queue.dequeue_many, 2)
        expired = await world.begin(queue.dequeue_up_to, 5, max_wait=0)
        await queue.enqueue(0)
        assert queue.statistics().waiting_dequeues == 2
        await queue.enqueue_many([1, 2])
        assert await first.result() == [0, 1]
        assert await expired.result() == [2]

    async def test_min_after_dequeue_counts(self, world: World) -> None:
        queue = world.shuffle(9, 2, "int64", ())
        await queue.enqueue_many(range(5))
        assert len(await queue.dequeue_up_to(5, max_wait=0)) == 3
        taking = await world.begin(queue.dequeue_up_to, 5, max_wait=0)
        assert queue.statistics().waiting_dequeues == 1
        await queue.enqueue(5)
        assert len(await taking.result()) == 1


class TestIteration:
    async def test_elements(self, world: World, kind: Kind) -> None:
        queue = kind.make(world)
        await queue.enqueue_many(kind.batch(range(5)))
        queue.close()
        got = [kind.number(element) async for element in queue]
        assert kind.in_order(got) == list(range(5))
        assert [element async for element in queue] == []

    async def test_elements_as_they_come(self, world: World) -> None:
        queue = world.fifo(1)

        async def collect() -> list[Any]:
            return [element async for element in queue]

        collecting = world.spawn(collect)
        for number in range(5):
            await queue.enqueue(number)
        queue.close()
        assert await collecting.result() == list(range(5))

    @pytest.mark.parametrize("how", ["elements", "batches", "whole batches"])
    async def test_a_failure_is_no_end(self, world: World, kind: Kind, how: str) -> None:
        """All that is inside comes first; then the failure, each time that more is asked for."""
        queue = kind.make(world)
        await queue.enqueue_many(kind.batch(range(5)))
        failure = OSError("the feed is down")
        queue.close(cause=failure)
        taken: list[int] = []
        for _ in range(2):
            with pytest.raises(OutOfRangeError) as raised:
                if how == "elements":
                    async for element in queue:
                        taken.append(kind.number(element))  # noqa: PERF401
                else:
                    async for batch in queue.batches(2, drop_remainder=how == "whole batches"):
                        taken += kind.numbers(batch)
            assert repr(raised.value.__cause__) == repr(failure)  # a copy, in another program
        assert len(taken) == len(set(taken)) == (4 if how == "whole batches" else 5)

    async def test_batches(self, world: World, kind: Kind) -> None:
        queue = kind.make(world)
        await queue.enqueue_many(kind.batch(range(8)))
        queue.close()
        batches = [kind.numbers(batch) async for batch in queue.batches(3)]
        assert [len(batch) for batch in batches] == [3, 3, 2]
        assert kind.in_order(chain(*batches)) == list(range(8))

    async def test_drop_remainder(self, world: World, kind: Kind) -> None:
        queue = kind.make(world)
        await queue.enqueue_many(kind.batch(range(8)))
        queue.close()
        batches = [kind.numbers(batch) async for batch in queue.batches(3, drop_remainder=True)]
        assert [len(batch) for batch in batches] == [3, 3]
        rest = kind.numbers(await queue.dequeue_up_to(3))  # it stayed in the queue
        assert kind.in_order([*chain(*batches), *rest]) == list(range(8))

    async def test_iterators_are_their_own(self, world: World) -> None:
        queue = world.fifo(9)
        await queue.enqueue_many([0, 1, 2])
        batches = queue.batches(2)
        async for batch in batches:
            assert batch == [0, 1]
            break
        queue.close()
        assert [batch async for batch in batches] == [[2]]


class TestOrder:
    async def test_enqueues_proceed_as_they_began(self, world: World) -> None:
        queue = world.fifo(1)
        await queue.enqueue(0)
        putting = [await world.begin(queue.enqueue, number) for number in range(1, 6)]
        assert [await queue.dequeue() for _ in range(6)] == list(range(6))
        for operation in putting:
            await operation.result()

    async def test_dequeues_proceed_as_they_began(self, world: World) -> None:
        queue = world.fifo(9)
        taking = [await world.begin(queue.dequeue) for _ in range(5)]
        await queue.enqueue_many(range(5))
        assert [await operation.result() for operation in taking] == list(range(5))

    async def test_a_mixture_of_dequeues(self, world: World) -> None:
        queue = world.fifo(4)
        taking = [
            await world.begin(queue.dequeue),
            await world.begin(queue.dequeue_many, 3),
            await world.begin(queue.dequeue_up_to, 2),
            await world.begin(queue.dequeue),
            await world.begin(queue.dequeue_many, 6),
        ]
        await queue.enqueue_many(range(13))
        got = [await operation.result() for operation in taking]
        assert got == [0, [1, 2, 3], [4, 5], 6, [7, 8, 9, 10, 11, 12]]

    async def test_a_mixture_of_enqueues(self, world: World) -> None:
        queue = world.fifo(2)
        await queue.enqueue_many([0, 1])
        putting = [
            await world.begin(queue.enqueue, 2),
            await world.begin(queue.enqueue_many, [3, 4, 5]),
            await world.begin(queue.enqueue, 6),
            await world.begin(queue.enqueue, 7),
            await world.begin(queue.enqueue_many, [8, 9]),
        ]
        assert [await queue.dequeue() for _ in range(10)] == list(range(10))
        for operation in putting:
            await operation.result()

    async def test_a_smaller_one_does_not_overtake(self, world: World, kind: Kind) -> None:
        queue = kind.make(world)
        large = await world.begin(queue.dequeue_many, 3)
        small = await world.begin(queue.dequeue)
        await queue.enqueue_many(kind.batch([0, 1]))
        statistics = queue.statistics()
        assert statistics.waiting_dequeues == 2
        await queue.enqueue_many(kind.batch([2, 3]))
        got = [*kind.numbers(await large.result()), kind.number(await small.result())]
        assert kind.in_order(got) == [0, 1, 2, 3]

    async def test_enqueues_are_tried_before_dequeues(self, world: World) -> None:
        """One dequeue makes room for all: what came in is there before the next one is tried."""
        queue = world.priority(2)
        await queue.enqueue_many([(5, "a"), (6, "b")])
        putting = [await world.begin(queue.enqueue, element) for element in [(1, "c"), (0, "d")]]
        assert await queue.dequeue() == (5, "a")
        await putting[0].result()
        assert await queue.dequeue() == (1, "c")
        await putting[1].result()
        assert await queue.dequeue() == (0, "d")

    async def test_many_waiters_of_many_sizes(self, world: World) -> None:
        queue = world.fifo(3)
        sizes = [2, 1, 5, 1, 1, 4, 3, 2]
        taking = [await world.begin(queue.dequeue_many, size) for size in sizes]
        for number in range(sum(sizes)):
            await queue.enqueue(number)
        numbers = iter(range(sum(sizes)))
        for operation, size in zip(taking, sizes, strict=True):
            assert await operation.result() == [next(numbers) for _ in range(size)]


class TestClosing:
    async def test_state(self, world: World, kind: Kind) -> None:
        queue = kind.make(world, 1)
        await queue.enqueue(kind.element(0))
        putting = await world.begin(queue.enqueue_many, kind.batch([1, 2]))
        assert (queue.is_closed(), queue.state) == (False, QueueState.OPEN)
        queue.close()
        assert (queue.is_closed(), queue.state) == (True, QueueState.CLOSING)
        await queue.dequeue()
        assert (queue.is_closed(), queue.state) == (True, QueueState.CLOSING)
        await queue.dequeue()
        await putting.result()
        assert queue.state is QueueState.CLOSED
        queue.close()  # any number of times
        assert (queue.is_closed(), queue.state) == (True, QueueState.CLOSED)

    async def test_without_waiting_callers_it_is_closed_at_once(
        self, world: World, kind: Kind
    ) -> None:
        queue = kind.make(world)
        queue.close()
        assert queue.state is QueueState.CLOSED
        await queue.wait_closed()

    async def test_earlier_enqueues_still_complete(self, world: World, kind: Kind) -> None:
        queue = kind.make(world, 1)
        await queue.enqueue(kind.element(0))
        putting = await world.begin(queue.enqueue, kind.element(1))
        queue.close()
        with pytest.raises(QueueClosedError):
            await queue.enqueue(kind.element(2))
        with pytest.raises(QueueClosedError):
            queue.enqueue_nowait(kind.element(2))
        got = [kind.number(await queue.dequeue()), kind.number(await queue.dequeue())]
        assert got == [0, 1]
        await putting.result()
        with pytest.raises(OutOfRangeError):
            await queue.dequeue()

    async def test_wait_closed(self, world: World, kind: Kind) -> None:
        queue = kind.make(world, 1)

        async def watch() -> QueueState:
            await queue.wait_closed()
            return queue.state

        watching = [world.spawn(watch), world.spawn(watch)]
        await queue.enqueue(kind.element(0))
        putting = await world.begin(queue.enqueue, kind.element(1))
        queue.close()
        watching.append(world.spawn(watch))
        assert (queue.is_closed(), queue.state) == (True, QueueState.CLOSING)
        assert not any(operation.done for operation in watching)
        await queue.dequeue()
        await putting.result()
        for operation in watching:
            assert await operation.result() is QueueState.CLOSED

    async def test_wait_closed_ends_when_enqueues_have_failed(self, world: World) -> None:
        queue = world.fifo(1)
        await queue.enqueue(0)
        putting = await world.begin(queue.enqueue, 1)
        queue.close()
        watching = world.spawn(queue.wait_closed)
        queue.close(cancel_pending_enqueues=True)
        await watching.result()
        assert queue.state is QueueState.CLOSED
        with pytest.raises(QueueClosedError):
            await putting.result()

    async def test_close_wakes_waiting_consumers(self, world: World, kind: Kind) -> None:
        queue = kind.make(world)
        taking = [
            await world.begin(queue.dequeue),
            await world.begin(queue.dequeue_many, 2),
            await world.begin(queue.dequeue_up_to, 3),
            await world.begin(queue.dequeue_up_to, 3, max_wait=3600),
        ]
        queue.close()
        for operation, n in zip(taking, [1, 2, 3, 3], strict=True):
            with pytest.raises(OutOfRangeError) as caught:
                await operation.result()
            error = caught.value
            assert (error.queue, error.requested) == (queue.name, n)
            assert (error.remaining, error.held) == (0, 0)

    async def test_out_of_range_reports_what_is_left(self, world: World, kind: Kind) -> None:
        queue = kind.make(world)
        await queue.enqueue_many(kind.batch([0, 1]))
        queue.close()
        message = rf"'{queue.name}' is closed.*\(requested 3, current size 2\)"
        with pytest.raises(OutOfRangeError, match=message) as caught:
            await queue.dequeue_many(3)
        assert (caught.value.queue, caught.value.requested) == (queue.name, 3)
        assert (caught.value.remaining, caught.value.held) == (2, 0)
        assert caught.value.__cause__ is None
        assert len(queue) == 2
        # A smaller request can still have it.
        assert kind.in_order(kind.numbers(await queue.dequeue_many(2))) == [0, 1]

    async def test_rows_of_a_failed_batch_serve_the_next(self, world: World, kind: Kind) -> None:
        queue = kind.make(world)
        large = await world.begin(queue.dequeue_many, 9)
        await queue.enqueue_many(kind.batch(range(5)))
        single = await world.begin(queue.dequeue)
        middle = await world.begin(queue.dequeue_many, 2)
        too_large = await world.begin(queue.dequeue_many, 3)
        queue.close()
        with pytest.raises(OutOfRangeError) as caught:
            await large.result()
        assert (caught.value.requested, caught.value.remaining) == (9, 5)
        assert caught.value.held in (5, 0)
        assert (caught.value.held == 0) == (kind.name == "priority")  # which takes nothing early
        got = [kind.number(await single.result()), *kind.numbers(await middle.result())]
        with pytest.raises(OutOfRangeError) as caught:
            await too_large.result()
        assert caught.value.remaining == 2
        assert kind.in_order(got + await kind.drain(queue)) == list(range(5))

    async def test_rows_beyond_the_capacity_go_back_too(self, world: World) -> None:
        queue = world.fifo(2, "int64", ())
        taking = await world.begin(queue.dequeue_many, 9)
        for number in range(5):
            await queue.enqueue(number)
        queue.close()
        with pytest.raises(OutOfRangeError) as caught:
            await taking.result()
        assert (caught.value.remaining, caught.value.held) == (5, 5)
        assert len(queue) == 5
        assert (await queue.dequeue_many(2)).tolist() == [0, 1]
        assert (await queue.dequeue_up_to(9)).tolist() == [2, 3, 4]

    async def test_later_batches_leave_out_unchanged(self, world: World) -> None:
        """A failed batch may have written to its `out`; its rows must not live there."""
        queue = world.fifo(2, "int64", (1,))
        out = np.zeros((9, 1), "int64")
        taking = await world.begin(queue.dequeue_many, 9, out=out)
        for number in range(5):
            await queue.enqueue([number])
        queue.close()
        with pytest.raises(OutOfRangeError):
            await taking.result()
        out[:] = -1
        assert (await queue.dequeue_many(5)).ravel().tolist() == list(range(5))

    async def test_cancel_pending_enqueues(self, world: World, kind: Kind) -> None:
        queue = kind.make(world, 2)
        await queue.enqueue(kind.element(0))
        many = await world.begin(queue.enqueue_many, kind.batch([1, 2, 3]))
        single = await world.begin(queue.enqueue, kind.element(4))
        nothing_yet = await world.begin(queue.enqueue_many, kind.batch([5, 6]))
        queue.close(cancel_pending_enqueues=True)
        assert queue.state is QueueState.CLOSED
        for operation, enqueued in ((many, 1), (single, 0), (nothing_yet, 0)):
            with pytest.raises(QueueClosedError, match="closed while this enqueue was") as caught:
                await operation.result()
            assert (caught.value.queue, caught.value.enqueued) == (queue.name, enqueued)
        assert await kind.drain(queue) == [0, 1]

    async def test_pending_enqueues_can_be_cancelled_later(self, world: World) -> None:
        queue = world.fifo(1)
        await queue.enqueue(0)
        putting = await world.begin(queue.enqueue, 1)
        queue.close()
        assert queue.statistics().waiting_enqueues == 1
        queue.close(cancel_pending_enqueues=True)
        with pytest.raises(QueueClosedError):
            await putting.result()

    async def test_the_cause_is_the_cause_of_later_errors(self, world: World, kind: Kind) -> None:
        queue = kind.make(world, 1)
        await queue.enqueue(kind.element(0))
        putting = await world.begin(queue.enqueue, kind.element(1))
        empty = kind.make(world)
        taking = await world.begin(empty.dequeue)
        failure = OSError("disk on fire")
        for closed in (queue, empty):
            closed.close(cancel_pending_enqueues=True, cause=failure)
            closed.close(cause=KeyError("came later"))
        for call, error in (
            (putting.result, QueueClosedError),
            (taking.result, OutOfRangeError),
            (lambda: queue.enqueue(kind.element(2)), QueueClosedError),
            (lambda: queue.dequeue_many(1 + len(queue)), OutOfRangeError),
            (empty.dequeue, OutOfRangeError),
        ):
            if kind.name == "priority" and call is not putting.result and error is OutOfRangeError:
                call = empty.dequeue  # a priority queue refuses more than its capacity
            with pytest.raises(error) as caught:
                await call()
            assert caught.value.__cause__ is failure
        with pytest.raises(OutOfRangeError) as last:
            empty.dequeue_nowait()
        assert last.value.__cause__ is failure

    async def test_a_cause_can_come_with_a_later_close(self, world: World) -> None:
        queue = world.fifo(1)
        queue.close()
        failure = OSError()
        queue.close(cause=failure)
        with pytest.raises(OutOfRangeError) as caught:
            await queue.dequeue()
        assert caught.value.__cause__ is failure

    async def test_all_of_many_waiting_callers_are_woken(self, world: World) -> None:
        queue = world.fifo(1)
        taking = [await world.begin(queue.dequeue) for _ in range(50)]
        queue.close()
        for operation in taking:
            with pytest.raises(OutOfRangeError):
                await operation.result()
        assert queue.statistics().waiting_dequeues == 0


class TestStatistics:
    async def test_counts(self, world: World, kind: Kind) -> None:
        queue = kind.make(world, 3)
        assert queue.statistics().capacity == 3
        await queue.enqueue_many(kind.batch([0, 1, 2]))
        await queue.dequeue()
        statistics = queue.statistics()
        assert (statistics.size, statistics.enqueued, statistics.dequeued) == (2, 3, 1)
        assert (statistics.waiting_enqueues, statistics.waiting_dequeues) == (0, 0)
        assert (statistics.enqueue_wait, statistics.dequeue_wait) == (0, 0)
        await queue.dequeue_many(2)
        taking = await world.begin(queue.dequeue_many, 2)
        await queue.enqueue(kind.element(3))
        statistics = queue.statistics()
        assert (statistics.enqueued, statistics.dequeued) == (4, 3)
        assert statistics.waiting_dequeues == 1
        await queue.enqueue(kind.element(4))
        await taking.result()
        statistics = queue.statistics()
        assert (statistics.size, statistics.enqueued, statistics.dequeued) == (0, 5, 5)
        assert statistics.dequeue_wait > 0
        assert statistics.enqueue_wait == 0

    async def test_enqueue_wait(self, world: World, kind: Kind) -> None:
        queue = kind.make(world, 1)
        await queue.enqueue(kind.element(0))
        putting = await world.begin(queue.enqueue, kind.element(1))
        assert queue.statistics().waiting_enqueues == 1
        await queue.dequeue()
        await putting.result()
        statistics = queue.statistics()
        assert statistics.enqueue_wait > 0
        assert (statistics.dequeue_wait, statistics.waiting_enqueues) == (0, 0)
        assert (statistics.size, statistics.enqueued, statistics.dequeued) == (1, 2, 1)

    async def test_a_wait_that_closing_ends_counts(self, world: World) -> None:
        queue = world.fifo(1)
        taking = await world.begin(queue.dequeue)
        queue.close()
        with pytest.raises(OutOfRangeError):
            await taking.result()
        assert queue.statistics().dequeue_wait > 0

    async def test_no_bound(self, world: World) -> None:
        assert world.fifo(None).statistics().capacity is None

    async def test_is_a_frozen_record(self, world: World) -> None:
        statistics = world.fifo(1).statistics()
        with pytest.raises(FrozenInstanceError):
            statistics.size = 3  # type: ignore[misc]
        assert statistics == world.fifo(1).statistics()

    async def test_size_is_len(self, world: World, kind: Kind) -> None:
        queue = kind.make(world)
        await queue.enqueue_many(kind.batch(range(4)))
        assert queue.size() == len(queue) == queue.statistics().size == 4


def test_drive_refuses_what_suspends() -> None:
    """The world of threads notices a face that suspends where it should block."""

    async def suspends() -> None:
        await aioqueue.FIFOQueue(1).enqueue(1)

    with pytest.raises(RuntimeError, match="no running event loop"):
        drive(suspends())
