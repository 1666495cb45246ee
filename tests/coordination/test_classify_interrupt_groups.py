"""A group of Ctrl-C becomes one `KeyboardInterrupt`, whose cause is the group.

Task groups and nurseries wrap whatever their tasks raise. Python ends a program quietly, and with
the exit status of Ctrl-C, only after an interrupt that is in no group.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Any

import anyio
import pytest

import aioqueue
from aioqueue import inputs, sync
from aioqueue.errors import interrupt_of
from tests.kit.worlds import needs_trio


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("aioqueue"), "disabled", True)


def group_of(*errors: BaseException) -> BaseExceptionGroup[Any]:
    return BaseExceptionGroup("a group", errors)


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt("why")


async def interrupt_in_task(*_: object) -> None:
    raise KeyboardInterrupt("why")


async def leave_a_block() -> None:
    async with aioqueue.Coordinator():
        raise group_of(KeyboardInterrupt("why"), group_of(KeyboardInterrupt()))


async def join_threads() -> None:
    async with aioqueue.Coordinator() as coord:
        coord.start(aioqueue.QueueRunner(aioqueue.FIFOQueue(1), [interrupt, interrupt]))
        await coord.join()


async def join_tasks() -> None:
    async with aioqueue.Coordinator() as coord:
        coord.start(aioqueue.QueueRunner(aioqueue.FIFOQueue(1), [interrupt_in_task]))
        await coord.wait_for_stop()


async def run_a_runner() -> None:
    await aioqueue.QueueRunner(aioqueue.FIFOQueue(1), [interrupt, interrupt]).run()


async def iterate() -> None:
    async for _ in inputs.numbers(4).prepare(interrupt_in_task, workers=2):
        pass


def leave_a_block_of_threads() -> None:
    with sync.Coordinator():
        raise group_of(KeyboardInterrupt("why"), KeyboardInterrupt())


def join_blocking() -> None:
    with sync.Coordinator() as coord:
        coord.start(sync.QueueRunner(sync.FIFOQueue(1), [interrupt, interrupt]))
        coord.join()


def raise_what_was_requested() -> None:
    coord = sync.Coordinator()
    coord.request_stop(KeyboardInterrupt("why"))
    coord.raise_requested_exception()


def iterate_blocking() -> None:
    list(inputs.numbers(4).prepare(interrupt, workers=2))


IN_TASKS = (leave_a_block, join_threads, join_tasks, run_a_runner, iterate)
IN_THREADS = (leave_a_block_of_threads, join_blocking, raise_what_was_requested, iterate_blocking)


def check(error: BaseException) -> None:
    assert (type(error), error.args) == (KeyboardInterrupt, ("why",))
    assert isinstance(error.__cause__, BaseExceptionGroup)
    found = error.__cause__.exceptions[0]
    assert (type(found), found.args) == (KeyboardInterrupt, ("why",))


@pytest.mark.parametrize("backend", ["asyncio", pytest.param("trio", marks=needs_trio)])
@pytest.mark.parametrize("call", IN_TASKS, ids=lambda call: call.__name__)
def test_in_tasks(backend: str, call: Callable[..., Any]) -> None:
    with pytest.raises(KeyboardInterrupt) as caught:
        anyio.run(call, backend=backend)
    check(caught.value)


@pytest.mark.parametrize("call", IN_THREADS, ids=lambda call: call.__name__)
def test_in_threads(call: Callable[[], object]) -> None:
    with pytest.raises(KeyboardInterrupt) as caught:
        call()
    check(caught.value)


def test_a_failure_among_them_keeps_the_group() -> None:
    async def main() -> None:
        async with aioqueue.Coordinator():
            raise group_of(KeyboardInterrupt(), ValueError())

    with pytest.raises(BaseExceptionGroup, match="a group"):
        anyio.run(main)


def test_of_any_shape() -> None:
    """Random nested groups: the first interrupt is raised, unless a failure is among them."""
    for seed in range(300):
        rng = random.Random(seed)
        leaves: list[BaseException] = []

        def grow(depth: int, rng: Any = rng, leaves: Any = leaves) -> BaseException:
            if depth and rng.random() < 0.6:
                return group_of(*(grow(depth - 1) for _ in range(rng.randint(1, 3))))
            kind = rng.choice([KeyboardInterrupt] * 9 + [ValueError])
            leaf: BaseException = kind(len(leaves))
            leaves.append(leaf)
            return leaf

        error = grow(4)
        raised = interrupt_of(error)
        is_interrupt = all(isinstance(leaf, KeyboardInterrupt) for leaf in leaves)
        if error is leaves[0] or not is_interrupt:
            assert raised is error
        else:
            assert (type(raised), raised.args) == (KeyboardInterrupt, (0,))
            assert raised.__cause__ is error
