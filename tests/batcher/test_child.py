"""The code of a batcher's process, in a thread here."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from aioqueue.batcher.child import requests_half, work
from aioqueue.processes.arena import Allocator, Arena, pack, unpack
from aioqueue.processes.channel import Channel, channels
from aioqueue.processes.child import Ready
from aioqueue.processes.failures import failure_of_message
from tests.kit.worlds import PATIENCE

LARGE = 2**15
"""Numbers of an array that goes through the shared memory."""


def doubled(batch: list[Any]) -> list[Any]:
    return [2 * one for one in batch]


def broken(batch: list[Any]) -> list[Any]:
    raise ZeroDivisionError("of a batch")


def ends_the_process(batch: list[Any]) -> list[Any]:
    raise SystemExit


def one_too_few(batch: list[Any]) -> list[Any]:
    return batch[1:]


def not_picklable(batch: list[Any]) -> list[Any]:
    return [threading.Lock() if one == "lock" else one for one in batch]


def failures_for_some(batch: list[Any]) -> list[Any]:
    return [ValueError(one) if one == "bad" else one for one in batch]


def _refuse() -> None:
    raise LookupError("not to be had again")


class Unreadable:
    def __reduce__(self) -> Any:
        return _refuse, ()


class Program:
    """The parent's end of the channel and the arena."""

    def __init__(self, channel: Channel, arena: Arena) -> None:
        self.channel, self.arena = channel, arena
        self.allocator: Allocator = requests_half(arena)
        self.blocks = 0  # of the last batch's results, in the memory
        self.has_failed = False  # whether the last batch has failed as a whole

    def receive(self) -> Any:
        return pickle.loads(self.channel.receive())

    def ask(self, *requests: Any, number: int = 0) -> list[Any]:
        """Results and failures of the requests of a batch."""
        sent = [pack((one,), self.arena, self.allocator) for one in requests]
        self.channel.send(pickle.dumps((number, sent), 5))
        outcomes, self.has_failed = self.receive()
        self.blocks = sum(len(blocks) for _, blocks, _ in outcomes)
        return [self.read(*outcome) for outcome in outcomes]

    def read(self, message: bytes, blocks: Any, has_failed: bool) -> Any:
        if has_failed:
            return failure_of_message(message)
        (value,) = unpack(message, blocks, self.arena, bytearray)
        return value


@contextmanager
def at_work(payload: bytes) -> Iterator[Program]:
    ours, theirs = channels()
    arena = Arena(2**20)
    before = set(threading.enumerate())
    thread = threading.Thread(target=work, args=(theirs, arena))
    thread.start()
    try:
        ours.send(payload)
        yield Program(ours, arena)
    finally:
        ours.send(b"")  # without this it would take the program for gone, and end the process
        # So would its reader, if it had not read that yet: `work` does not wait for it.
        readers = [one for one in set(threading.enumerate()) - before if "_read" in one.name]
        for one in (thread, *readers):
            one.join(PATIENCE)
            assert not one.is_alive()
        ours.close()
        theirs.close()
        arena.close()


@contextmanager
def working(function: Callable[..., Any]) -> Iterator[Program]:
    with at_work(pickle.dumps(function)) as program:
        ready = program.receive()
        assert ready == Ready()
        yield program


def test_batches_one_after_another() -> None:
    with working(doubled) as program:
        assert program.ask(1, "a", 2.5) == [2, "aa", 5.0]
        assert program.ask(3, number=7) == [6]
        assert program.arena.item == 7  # what it would have died of


def test_large_parts_reuse_blocks_of_the_arena() -> None:
    rows = np.arange(LARGE, dtype=np.int64)  # two fill each half
    with working(doubled) as program:
        for number in range(5):
            program.allocator = requests_half(program.arena)  # all is read
            (found,) = program.ask(rows + number)
            assert (found == 2 * (rows + number)).all()
            assert program.blocks == 1, "what there is no place for goes through the pipe"


@pytest.mark.parametrize(
    ("function", "kind"),
    [(broken, "ZeroDivisionError"), (ends_the_process, "SystemExit"), (one_too_few, "1 result")],
)
def test_a_failure_is_that_of_the_whole_batch_and_the_next_batch_works(
    function: Callable[..., Any], kind: str
) -> None:
    with working(function) as program:
        for _ in range(2):
            first, second = program.ask(1, 2)
            assert isinstance(first, Exception)
            assert isinstance(second, Exception)
            assert kind in f"{first!r} {first.__cause__!r}"
            assert program.has_failed


def test_a_request_that_cannot_be_unpickled_fails_alone() -> None:
    with working(doubled) as program:
        first, bad, last = program.ask(1, Unreadable(), 3)
        assert (first, last) == (2, 6)
        assert isinstance(bad, LookupError)
        assert "while unpickling the request in a worker process" in bad.__notes__
        (bad,) = program.ask(Unreadable())  # the function has nothing to do
        assert isinstance(bad, LookupError)


def test_a_result_that_cannot_be_pickled_fails_alone() -> None:
    with working(not_picklable) as program:
        first, bad, last = program.ask(1, "lock", 3)
        assert (first, last) == (1, 3)
        assert isinstance(bad, Exception)
        assert "while pickling what the function returned" in bad.__notes__


def test_a_returned_failure_is_that_of_its_request() -> None:
    with working(failures_for_some) as program:
        first, bad, last = program.ask(1, "bad", 3)
        assert (first, last) == (1, 3)
        assert isinstance(bad, ValueError)
        assert not program.has_failed


def test_a_function_that_cannot_be_imported_is_refused() -> None:
    with at_work(pickle.dumps(Unreadable())) as program:
        refusal = program.receive().refusal
        assert refusal is not None
        assert isinstance(failure_of_message(refusal), LookupError)
