"""A batcher as one world sees it: here, everything that never waits."""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Generic, TypeVar

from aioqueue.batching.batcher_statistics import BatcherState, BatcherStatistics
from aioqueue.batching.core import BatcherCore, OnFull, Where
from aioqueue.coordination.core import DEFAULT_GRACE
from aioqueue.coordination.shutdown import warn_of_slow_stop
from aioqueue.forks import is_refusing, note_for_forks, refusing
from aioqueue.locks import holding
from aioqueue.queues.faces import AsyncQueue, BlockingQueue

__all__ = (
    "BATCHER_ARGUMENTS",
    "BatcherFace",
    "ResultT",
    "ValueT",
    "leave_stragglers",
    "warn_of_slow_end",
)

FaceT = TypeVar("FaceT", bound="BatcherFace[Any, Any]")
ValueT = TypeVar("ValueT")
ResultT = TypeVar("ResultT")

_log = logging.getLogger("aioqueue")

BATCHER_ARGUMENTS = """\
Args:
    function: is given a list of the values that callers have asked with, 1 to ``max_batch`` of
        them, and returns a list or an array of as many results, in the same order. A result that is
        an exception is raised to its caller. What the function raises is raised to every caller of
        that batch, and the batcher goes on. A coroutine function runs as a task, a plain function
        on a thread of its own or, if you say so, in a process.
    max_batch: how many requests a batch has at most, >= 1.
    max_wait: seconds that a batch which has begun waits for more requests, while a worker is free
        for it. A full batch waits for nothing; with 0, no batch does.
    queue: where requests wait: a new `FIFOQueue` or `PriorityQueue` of plain objects, by either of
        its faces, for this batcher alone. Its capacity is the longest line that you allow, and its
        ``max_bytes`` the most bytes that the values in it may have. ``None`` makes a `FIFOQueue`
        for 1024 requests.
    workers: how many batches may be worked on at the same time.
    where: ``"task"`` (a coroutine function, in as many tasks), ``"thread"`` (a plain function, on
        as many threads), ``"process"`` (a plain function that can be pickled, in as many
        processes), or ``"auto"`` for one of the first two, whichever fits the function. When a
        process dies, the callers of the batch that it had begun get a `WorkerDiedError`, and
        another process takes its place.
    on_full: what becomes of a call when the queue is full: ``"wait"`` for room, or ``"refuse"`` it
        at once with `QueueFull`.
    name: what error messages and workers are named after; made up from the function's if ``None``.
    watchdog: seconds after which the log (``aioqueue``) has a warning with an explanation (see
        `aioqueue.explain`), when no call has been answered for so long while one is in a batch;
        ``None`` for none.

Raises:
    InvalidArgumentError: any argument is not as described.
"""


class BatcherFace(Generic[ValueT, ResultT]):
    """See `aioqueue.Batcher`."""

    _core: BatcherCore
    _peer: BatcherFace[ValueT, ResultT] | None = None

    def __init__(
        self,
        function: Callable[
            [list[ValueT]],
            Iterable[ResultT | Exception] | Awaitable[Iterable[ResultT | Exception]],
        ],
        max_batch: int = 32,
        max_wait: float = 0.005,
        *,
        queue: AsyncQueue | BlockingQueue | None = None,
        workers: int = 1,
        where: Where = "auto",
        on_full: OnFull = "wait",
        name: str | None = None,
        watchdog: float | None = None,
    ) -> None:
        self._core = BatcherCore(
            function,
            max_batch=max_batch,
            max_wait=max_wait,
            queue=queue,
            workers=workers,
            where=where,
            on_full=on_full,
            name=name,
            watchdog=watchdog,
        )
        note_for_forks(self)

    def _was_forked(self) -> None:
        core = self._core
        if is_refusing(core):
            return
        if core.state is BatcherState.NEW:
            core.renew()
        else:
            self._core = refusing(str(core), core)

    def __repr__(self) -> str:
        kind = f"{type(self).__module__}.{type(self).__name__}"
        if is_refusing(self._core):
            return f"<{kind} of another process>"
        return f"<{kind} '{self.name}' {self._core.describe()}>"

    @property
    def name(self) -> str:
        """What error messages and workers are named after."""
        return self._core.name

    def statistics(self) -> BatcherStatistics:
        """Counts, sizes and times: those of the calls, and right after them those of the queue."""
        return self._core.statistics()

    def _as(self, face_class: type[FaceT]) -> FaceT:
        """The other face of the same batcher, made when first asked for."""
        return holding(self._core._lock, self._peer_of, face_class)

    def _peer_of(self, face_class: type[FaceT]) -> FaceT:
        peer: Any = self._peer
        if peer is None:
            self._peer = peer = face_class.__new__(face_class)
            peer._core, peer._peer = self._core, self
            note_for_forks(peer)
        assert isinstance(peer, face_class)
        return peer


def warn_of_slow_end(core: BatcherCore) -> None:
    """Say which workers its block waits for, since that has taken long."""
    until = "" if core.is_stopped else "all calls to be answered"
    alive = [worker for worker in core.started if worker.is_alive()]
    warn_of_slow_stop(alive, DEFAULT_GRACE, whose=str(core), until=until)


def leave_stragglers(core: BatcherCore, threads: Iterable[threading.Thread]) -> None:
    """Say which workers are still in a call of the function, since their block is left now; those
    that are processes are killed."""
    names = [thread.name for thread in threads if thread.is_alive()]
    if names:
        _log.warning("%s stopped with workers still running: %s", core, " ".join(names))
        core.give_up()
