"""Whatever several processes do to one queue at once, it looks as if they had taken turns."""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection
from typing import Any

import pytest

from proofs.codec import Codec
from proofs.linearizability import Op, UndecidedError, check, check_joins
from proofs.stress import Load
from tests.kit.owners import Owner

KINDS = ("objects", "fifo", "large", "padding", "shuffle", "priority")
ENDINGS = {"to the end": None, "closed": False, "closed and cancelled": True}
OTHERS = 16
"""The number of the first worker of the other process."""


def made(kind: str, capacity: int | None, keep: int) -> Any:
    return Codec(kind).queue(capacity, keep).share()


@pytest.mark.slow(but=["objects-interrupted-closed and"])
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("interrupts", [False, True], ids=["", "interrupted"])
@pytest.mark.parametrize("kind", KINDS)
def test_histories_of_callers_elsewhere(
    owner: Owner, kind: str, interrupts: bool, ending: str
) -> None:
    """All callers have handles: several threads and event loops of one process."""
    load = Load(
        0,
        kind,
        turns=60,
        interrupts=interrupts,
        ends_with=ENDINGS[ending],
        make=lambda *arguments: owner.call(made, *arguments),
    )
    judge(load.run(), load)


@pytest.mark.slow
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("interrupts", [False, True], ids=["", "interrupted"])
@pytest.mark.parametrize("kind", KINDS)
def test_histories_of_two_processes(kind: str, interrupts: bool, ending: str) -> None:
    """The process that has the queue works at it directly, and another one at its handle."""
    options = {"turns": 60, "interrupts": interrupts, "ends_with": ENDINGS[ending]}
    load = Load(1, kind, has_others=True, **options)  # type: ignore[arg-type]
    context = multiprocessing.get_context("spawn")
    connection, theirs = context.Pipe()
    process = context.Process(
        target=work_elsewhere, args=(theirs, load.queue.share(), kind, options), daemon=True
    )
    process.start()
    assert connection.recv() == "ready"
    connection.send("go")
    history = load.run()
    history += connection.recv()
    process.join()
    assert load.queue.size() == 0
    load.queue.sync.join(timeout=0)
    judge(history, load)


def work_elsewhere(connection: Connection, queue: Any, kind: str, options: Any) -> None:
    load = Load(1, kind, make=lambda *_: queue, first_worker=OTHERS, has_others=True, **options)
    queue.size()  # it connects now
    connection.send("ready")
    connection.recv()
    connection.send(load.run())


def judge(history: list[Op], load: Load) -> None:
    assert len(history) > 100
    check_joins(history)
    try:
        check(history, load.spec)
    except UndecidedError:
        pytest.skip("too many orders are possible to try them all")
