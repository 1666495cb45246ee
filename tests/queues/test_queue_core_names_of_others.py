"""Names of other queues lead to those of ours."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from typing import Any

import pytest

import aioqueue
from aioqueue import inputs, sync


@pytest.fixture(params=[aioqueue.FIFOQueue, sync.FIFOQueue], ids=["async", "threads"])
def queue(request: pytest.FixtureRequest) -> Any:
    return request.param(4)


@pytest.mark.parametrize(
    ("there", "here"),
    [
        ("put", "enqueue(element)"),
        ("get", "dequeue()"),
        ("shutdown", "close()"),
        ("sync_q", "sync"),
    ],
)
def test_what_is_meant_is_named(queue: Any, there: str, here: str) -> None:
    with pytest.raises(AttributeError) as error:
        getattr(queue, there)
    assert str(error.value) == f"a queue has no {there!r}; here that is .{here}"
    assert not hasattr(queue, there)


@pytest.mark.parametrize("there", ["qsize", "empty"])
def test_the_hint_explains_that_empty_is_not_done(queue: Any, there: str) -> None:
    with pytest.raises(AttributeError, match=r"here that is .size\(\)") as error:
        getattr(queue, there)
    assert "an empty queue does not mean that the work is done" in str(error.value)
    assert "join() waits for that" in str(error.value)


def test_others_are_not_there(queue: Any) -> None:
    with pytest.raises(AttributeError, match=r"has no attribute 'wrong'$"):
        _ = queue.wrong
    for refused in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError):
            refused(queue)


def test_editors_do_not_suggest_what_is_not_there(queue: Any) -> None:
    assert {"dequeue", "size"} <= set(dir(queue))
    assert not {"put", "get", "qsize"} & set(dir(queue))


def test_a_mix_in_behind_our_class_may_define_such_a_name() -> None:
    class Mixin:
        limit = 3

        def qsize(self: Any) -> int:
            return int(self.size())

        @property
        def maxsize(self: Any) -> int:
            return int(self.capacity)

    class Mine(aioqueue.FIFOQueue[int], Mixin):
        pass

    mine = Mine(4)
    assert (mine.qsize(), mine.maxsize, Mine.qsize(mine)) == (0, 4, 0)
    assert "qsize" in dir(mine)
    with pytest.raises(AttributeError, match=r"here that is \.dequeue\(\)"):
        mine.get()  # type: ignore[attr-defined]


def test_attribute_access_in_a_queue_is_as_fast_as_in_any_object() -> None:
    """A class with a ``__getattr__`` makes CPython look up even what is there in the slow way."""
    for cls in (
        aioqueue.FIFOQueue,
        sync.PriorityQueue,
        inputs.Source,
        inputs.Pipeline,
        inputs.Epochs,
        inputs.Epoch,
    ):
        assert not hasattr(cls, "__getattr__")
        assert cls.__getattribute__ is object.__getattribute__


def test_the_other_face_is_an_attribute_of_its_maker_and_no_cycle() -> None:
    for make, world in ((aioqueue.FIFOQueue, "sync"), (sync.FIFOQueue, "aio")):
        maker: Any = make(4)
        other = getattr(maker, world)
        assert getattr(maker, world) is other is vars(maker)[world]
        assert getattr(other, "aio" if world == "sync" else "sync") is maker
        reference = [weakref.ref(maker), weakref.ref(other)]
        gc.disable()
        try:
            del maker, other
            assert [ref() for ref in reference] == [None, None]
        finally:
            gc.enable()
