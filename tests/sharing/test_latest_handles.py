"""Handles of a `Latest`: each value goes to a process once."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aioqueue
from aioqueue import sync
from aioqueue.errors import (
    DeadlineExceededError,
    OutOfRangeError,
    QueueClosedError,
    QueueEmpty,
    WorkerDiedError,
)
from tests.kit.sharing import METHODS, Child
from tests.kit.worlds import spin_until

Start = Callable[..., Child]


class Weights:
    """An object with a large array; it notes each time that one is unpickled."""

    unpickled = 0

    def __init__(self, number: int) -> None:
        self.array = np.full(1 << 15, number)

    def __setstate__(self, state: Any) -> None:
        type(self).unpickled += 1
        self.__dict__.update(state)


def read(latest: Any, pipe: Any) -> Any:
    with pytest.raises(QueueEmpty):
        latest.get_nowait()
    pipe.send("is empty")
    first = latest.get()
    with pytest.raises(DeadlineExceededError):
        latest.wait_newer(1, timeout=0.01)

    async def many() -> list[Any]:
        waiting = [asyncio.ensure_future(latest.aio.wait_newer(1)) for _ in range(5)]
        await asyncio.sleep(0)
        pipe.send("waits")
        return await asyncio.gather(*waiting)

    found = asyncio.run(many())
    assert len({id(one.value) for one in found}) == 1, "they share the copy"
    assert latest.get().value is found[0].value
    return first.version, int(found[0].value.array[0]), Weights.unpickled


@pytest.mark.parametrize(
    "method", [METHODS[0], *(pytest.param(one, marks=pytest.mark.slow) for one in METHODS[1:])]
)
def test_a_process_gets_each_value_once(child: Start, method: str) -> None:
    latest = sync.Latest[Any]().share()
    reading = child(read, latest, method=method, talks=True)
    assert reading.reported() == "is empty"
    latest.publish(Weights(1))
    assert reading.reported() == "waits"
    weights = Weights(2)
    latest.publish(weights)
    assert latest.get().value is weights, "here it is the object itself"
    assert reading.result() == (1, 2, 2)


def publish(latest: Any) -> int:
    version: int = latest.publish(Weights(5))
    latest.close(cause=ValueError("the reason"))
    with pytest.raises(QueueClosedError):
        latest.publish(1)
    assert latest.is_closed()
    assert latest.version == version
    return version


def test_a_client_publishes(child: Start) -> None:
    latest = aioqueue.Latest[Any]("first").share()
    assert child(publish, latest.sync).result() == 2
    found = latest.get_nowait()
    assert found.version == 2
    assert found.value.array[0] == 5
    assert latest.get_nowait().value is found.value, "it is unpickled once"
    with pytest.raises(OutOfRangeError) as end:
        latest.sync.wait_newer(2)
    assert isinstance(end.value.__cause__, ValueError)


def iterate(latest: Any) -> Any:
    return [one.value for one in latest]


def test_iterating(child: Start) -> None:
    latest = sync.Latest[str]().share()
    reading = child(iterate, latest)
    spin_until(lambda: len(latest._core._pending()) == 1)
    latest.publish("only")
    spin_until(lambda: len(latest._core._pending()) == 1)
    latest.close()
    assert reading.result() == ["only"]


def test_a_handle_that_comes_home_is_the_object_itself() -> None:
    latest = sync.Latest(1).share()
    assert pickle.loads(pickle.dumps(latest)) is latest
    assert pickle.loads(pickle.dumps(latest.aio)) is latest.aio


def own(pipe: Any) -> None:
    pipe.send(sync.Latest("last", name="weights").share())
    pipe.recv()


@pytest.mark.parametrize("is_killed", [True, False])
def test_the_owner_ends(child: Start, is_killed: bool) -> None:
    owning = child(own, talks=True)
    latest = owning.reported()
    assert latest.get() == (1, "last")
    errors: list[Exception] = []

    def wait() -> None:
        try:
            latest.wait_newer(1)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    spin_until(lambda: len(latest._core._pending()) == 3)
    if is_killed:
        os.kill(owning.pid, signal.SIGKILL)
    else:
        owning.pipe.send("end")
    for thread in threads:
        thread.join()
    assert {type(error) for error in errors} == {WorkerDiedError if is_killed else OutOfRangeError}
    assert len(errors) == 3
    if is_killed:
        assert "was killed by SIGKILL" in str(errors[0])


def leave_waiting(latest: Any) -> None:
    threading.Thread(target=lambda: latest.wait_newer(5), daemon=True).start()
    spin_until(lambda: latest._core._pending())
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_reader_waits_no_more(child: Start) -> None:
    latest = sync.Latest(1).share()
    child(leave_waiting, latest).wait()
    spin_until(lambda: not latest._core._pending())


def cancel_after_the_answer(latest: Any) -> Any:
    async def main() -> Any:
        for version in range(20):
            reading = asyncio.ensure_future(latest.wait_newer(version))
            while not latest._core._calls:
                await asyncio.sleep(0)
            latest.sync.publish(version)
            spin_until(lambda: latest._core._kept.version > version)  # noqa: B023
            reading.cancel()  # in the same turn of the loop: the task has not run on
            with pytest.raises(asyncio.CancelledError):
                await reading
        return len(latest._core._calls)

    return asyncio.run(main())


def test_a_reading_that_is_cancelled_after_its_answer_is_forgotten(child: Start) -> None:
    assert child(cancel_after_the_answer, aioqueue.Latest[Any]().share()).result() == 0


def its_repr(latest: Any) -> str:
    return repr(latest)


def test_the_text_of_a_handle_names_the_process_that_shares_it(child: Start) -> None:
    latest = sync.Latest(1, name="weights").share()
    text = child(its_repr, latest).result()
    assert text == f"{repr(latest)[:-1]}, shared by process {os.getpid()}>"
