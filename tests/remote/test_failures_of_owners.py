"""Calls on the handle of a queue whose owner has ended."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from aioqueue import WorkerDiedError, sync
from aioqueue.sharing import connection
from tests.kit.processing import start_the_forkserver
from tests.sharing.members import FORKSERVER, members

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs Unix sockets")


def _own(_: Any, report: Callable[[Any], Any]) -> None:
    """Own a queue, and stay."""
    report(sync.FIFOQueue(1).share())
    threading.Event().wait()


def death_of(queue: Any) -> str:
    with pytest.raises(WorkerDiedError) as caught:
        queue.dequeue()
    assert caught.value.exitcode == -9
    return str(caught.value).rpartition(": ")[2]


def test_each_call_names_the_signal_that_killed_the_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_MOST_ENDED_OWNERS", 1)
    start_the_forkserver()
    with members() as start:
        for _ in range(2):
            owner = start(_own, None, FORKSERVER)
            queue = owner.reported()
            owner.answer()
            assert queue.size() == 0
            owner.kill()
            killed = f"the process that shares it (pid {owner.pid}) was killed by SIGKILL"
            assert [death_of(queue) for _ in range(3)] == [killed] * 3
            assert len(connection._ended_owners) == 1
