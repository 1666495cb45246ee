"""The base class of both faces of a batcher: everything that never waits."""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Generic, TypeVar

from aioqueue.batching.batcher_statistics import BatcherState, BatcherStatistics
from aioqueue.batching.core import BatcherCore, OnFull, Where
from aioqueue.batching.function_calls import FunctionWithContexts
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
    function: gets a list of 1 to ``max_batch`` values, one per caller, and returns a list or an
        array with one result per value, in the same order. A result that is an exception is raised
        in its caller. An exception that the function raises is raised in every caller of the batch,
        and the batcher continues. A coroutine function runs in a task, a plain function on a thread
        of its own or, if you say so, in a process. If it has a parameter ``contexts``, it also gets
        a list with a copy of each caller's `contextvars.Context`, in the order of the values.
    max_batch: how many requests a batch has at most, >= 1.
    max_wait: how many seconds a batch waits for more requests after its first one, once a worker is
        free for it. A full batch does not wait. With 0, no batch waits.
    queue: holds the waiting requests: a new `FIFOQueue` or `PriorityQueue` of plain objects, as
        either of its faces, for this batcher alone. Its capacity bounds the number of waiting
        requests, and its ``max_bytes`` the size of their values. ``None`` makes a `FIFOQueue` for
        1024 requests.
    workers: how many batches may be processed at the same time.
    where: ``"task"`` (for a coroutine function), ``"thread"`` (for a plain function), ``"process"``
        (for a plain function that can be pickled), or ``"auto"``: a task or a thread, whichever
        fits the function. There are as many of them as ``workers``. If a process dies, the callers
        of the batch that it had begun get a `WorkerDiedError`, and a new process replaces it.
    on_full: what a call does when the queue is full: ``"wait"`` for room, or ``"refuse"``, which
        raises `QueueFull` at once.
    name: the name in error messages and worker names; ``None`` derives one from the function's.
    watchdog: seconds after which to log a warning with an explanation (see `aioqueue.explain`) if
        a call is in a batch and none has been answered for that long, in the log ``aioqueue``.
        ``None`` for never.

Raises:
    InvalidArgumentError: any argument is not as described.
"""


class BatcherFace(Generic[ValueT, ResultT]):
    """The base class of both faces. See `aioqueue.Batcher`."""

    _core: BatcherCore
    _peer: BatcherFace[ValueT, ResultT] | None = None

    def __init__(
        self,
        function: Callable[
            [list[ValueT]],
            Iterable[ResultT | Exception] | Awaitable[Iterable[ResultT | Exception]],
        ]
        | FunctionWithContexts[ValueT, ResultT],
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
        """The name in error messages and worker names."""
        return self._core.name

    def statistics(self) -> BatcherStatistics:
        """Return counts, sizes and times: first the calls', then the queue's a moment later."""
        return self._core.statistics()

    def _as(self, face_class: type[FaceT]) -> FaceT:
        """Return the other face of this batcher; the first call makes it."""
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
    """Log which workers the batcher's block has waited for, after a while."""
    until = "" if core.is_stopped else "all calls to be answered"
    alive = [worker for worker in core.started if worker.is_alive()]
    warn_of_slow_stop(alive, DEFAULT_GRACE, whose=str(core), until=until)


def leave_stragglers(core: BatcherCore, threads: Iterable[threading.Thread]) -> None:
    """Log which workers still call the function as their block is left; kill those in processes."""
    names = [thread.name for thread in threads if thread.is_alive()]
    if names:
        _log.warning("%s stopped with workers still running: %s", core, " ".join(names))
        core.give_up()
