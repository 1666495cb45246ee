"""The failure of one process, as the processes report it whose queues it has closed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from aioqueue import OutOfRangeError, QueueClosedError, sync
from aioqueue.coordination.classify import failures_behind
from tests.kit.processing import start_the_forkserver
from tests.kit.worlds import spin_until
from tests.sharing.members import FORKSERVER, members

needs_sockets = pytest.mark.skipif(sys.platform == "win32", reason="needs Unix sockets")


@pytest.mark.parametrize("kind", [OutOfRangeError, QueueClosedError])
def test_a_failure_is_behind_both_ends_of_a_queue(kind: type[Exception]) -> None:
    failure = ValueError("a bad example")
    end, later = kind("closed"), OutOfRangeError("closed, too")
    end.__cause__, later.__cause__ = failure, end
    assert list(failures_behind(end, (OutOfRangeError,))) == [failure]
    assert list(failures_behind(later, (OutOfRangeError,))) == [failure]
    assert list(failures_behind(kind("closed"), (OutOfRangeError,))) == []


def test_a_class_named_as_an_end_needs_no_failure() -> None:
    end = QueueClosedError("closed")
    end.__cause__ = ValueError("a bad example")
    assert list(failures_behind(end, (OutOfRangeError, QueueClosedError))) == []


@pytest.fixture
def coord() -> Iterator[Any]:
    shared = sync.Coordinator().share()
    yield shared
    shared._core.shared.end()


def _fill(coord: Any, report: Callable[[Any], Any]) -> None:
    """Fill a queue of another process, and report what the join raises."""
    episodes = report("ready")
    coord.start(sync.QueueRunner(episodes, [lambda: episodes.enqueue(1)]))
    try:
        coord.sync.join()
    except ExceptionGroup as group:
        report([repr(one) for one in group.exceptions])


def _fail(coord: Any, report: Callable[[Any], Any]) -> None:
    """Fill the queue as well, but fail."""
    episodes = report("ready")

    def fail() -> None:
        raise ValueError("a bad example")

    coord.start(sync.QueueRunner(episodes, [fail]))
    try:
        coord.sync.join()
    except ExceptionGroup:
        report("failed")


@needs_sockets
def test_the_end_of_a_queue_is_no_second_failure(coord: Any) -> None:
    """It reaches the process before the failure does that has closed the queue."""
    start_the_forkserver()
    episodes = sync.FIFOQueue(2)
    with members() as start:
        waiting = [start(_fill, coord, FORKSERVER) for _ in range(2)]
        failing = start(_fail, coord, FORKSERVER)
        for one in waiting:
            assert one.reported() == "ready"
            one.answer(episodes.share())
        spin_until(lambda: episodes.statistics().waiting_enqueues == 2)
        assert failing.reported() == "ready"
        failing.answer(episodes)
        for one in waiting:
            assert one.reported() == ["ValueError('a bad example')"]
            one.answer()
        assert failing.reported() == "failed"
        failing.answer()
        with pytest.RaisesGroup(pytest.RaisesExc(ValueError, match="a bad example")):
            coord.join()
