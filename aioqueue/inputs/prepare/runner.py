"""`prepare`: a queue runner that makes examples of the items of a source."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from typing import Any, Final, overload

import aioqueue
from aioqueue import AsyncQueue, InvalidArgumentError, sync
from aioqueue.checks import checked_count, checked_flag
from aioqueue.inputs.options import OnError, Where
from aioqueue.inputs.prepare.call import Call, function_name, is_async
from aioqueue.inputs.prepare.feed import Feed
from aioqueue.inputs.prepare.interpreters import InterpreterWorkers
from aioqueue.inputs.prepare.job import Workers
from aioqueue.inputs.prepare.policy import FailurePolicy
from aioqueue.inputs.prepare.processes.parent import ProcessWorkers
from aioqueue.inputs.prepare.progress import Progress
from aioqueue.inputs.prepare.quarantine import QuarantineFile, QuarantineList
from aioqueue.inputs.prepare.tasks import TaskWorkers
from aioqueue.inputs.prepare.threads import ThreadWorkers
from aioqueue.inputs.prepare.window import Window
from aioqueue.inputs.sources.base import Source, resolved_seed
from aioqueue.inputs.sources.quarantined import Quarantined
from aioqueue.inputs.statistics import PrepareStatistics

__all__ = ("AsyncPrepareRunner", "PrepareRunner", "prepare")

_PER_WORKER: Final = {"task": 16, "thread": 16, "process": 128, "interpreter": 16}
"""Items in flight per worker, unless ``limit`` says otherwise."""

_PROCESS_BYTES: Final = 64 * 2**20
"""Bytes in flight from processes, unless ``limit_bytes`` says otherwise."""


class _Preparing:
    """What the runners of both faces know of a `prepare`."""

    name: str
    _workers: Workers
    _progress: Progress
    _description: str

    def __repr__(self) -> str:
        progress = self._progress.statistics()
        counts = (("prepared", progress.prepared), ("skipped", progress.skipped))
        parts = [
            f"{self._description} into '{self.name}'",
            *[f"{count} {what}" for what, count in counts if count],
            self._workers.state,
        ]
        return f"<{type(self).__module__}.{type(self).__name__} {', '.join(parts)}>"

    def _begin(self, core: Any) -> Any:
        run = super()._begin(core)  # type: ignore[misc]  # of the runner, the other base
        self._workers.begins(in_time=run.comes_in_time)
        return run

    @property
    def quarantine(self) -> list[Quarantined]:
        """The items that were skipped, in the order in which they were given up.

        Those in a file are read from it: the records of this run, whatever else the file holds, of
        which nothing is unpickled.

        Raises:
            OSError: the file cannot be read.
            DataLossError: records of this run are no longer in the file.
        """
        return self._progress.quarantine.records()

    def statistics(self) -> PrepareStatistics:
        """What has become of the items so far."""
        return self._progress.statistics()


class AsyncPrepareRunner(_Preparing, aioqueue.QueueRunner):
    """A queue runner made by `prepare`, for an `aioqueue.Coordinator`. It runs once."""

    def __init__(
        self, into: AsyncQueue, workers: Workers, progress: Progress, description: str
    ) -> None:
        super().__init__(into, workers.enqueue_ops())
        self._workers = workers
        self._progress = progress
        self._description = description


class PrepareRunner(_Preparing, sync.QueueRunner):
    """A queue runner made by `prepare`, for an `aioqueue.sync.Coordinator`. It runs once."""

    def __init__(
        self, into: sync.BlockingQueue, workers: Workers, progress: Progress, description: str
    ) -> None:
        super().__init__(into, workers.enqueue_ops())
        self._workers = workers
        self._progress = progress
        self._description = description


@overload
def prepare(
    source: Any,
    function: Callable[..., Any],
    *,
    into: AsyncQueue,
    workers: int = 4,
    where: Where = "auto",
    ordered: bool = False,
    limit: int | None = None,
    limit_bytes: int | None = None,
    on_error: OnError = "stop",
    max_failures: float | None = None,
    quarantine: str | PathLike[str] | None = None,
    skip_none: bool = False,
    seed: int | None = None,
) -> AsyncPrepareRunner: ...
@overload
def prepare(
    source: Any,
    function: Callable[..., Any],
    *,
    into: sync.BlockingQueue,
    workers: int = 4,
    where: Where = "auto",
    ordered: bool = False,
    limit: int | None = None,
    limit_bytes: int | None = None,
    on_error: OnError = "stop",
    max_failures: float | None = None,
    quarantine: str | PathLike[str] | None = None,
    skip_none: bool = False,
    seed: int | None = None,
) -> PrepareRunner: ...
def prepare(
    source: Any,
    function: Callable[..., Any],
    *,
    into: Any,
    workers: int = 4,
    where: Where = "auto",
    ordered: bool = False,
    limit: int | None = None,
    limit_bytes: int | None = None,
    on_error: OnError = "stop",
    max_failures: float | None = None,
    quarantine: str | PathLike[str] | None = None,
    skip_none: bool = False,
    seed: int | None = None,
) -> AsyncPrepareRunner | PrepareRunner:
    """Make examples of the items of a source, on several workers, and enqueue them.

    The result is a queue runner: give it to the `start` of a coordinator. When the source has
    ended, the queue is closed, unless other runners still fill it; if a failed queue was the
    source, with that failure as the cause.

    Every example of every item enters the queue exactly once, unless the item is skipped as
    ``on_error`` says; counts of all that happened are in the runner's ``statistics()``, and in the
    log (``aioqueue``) at the end.

    Args:
        source: where items come from: a source of `aioqueue.inputs`, any iterable or async
            iterable, or a queue or stream of either face. Items are taken one at a time, by one
            worker or another; by tasks in their event loop, so that an iterable which blocks is
            better made a `Source` that says so.
        function: called with an item, returns an example, as ``into`` wants it. A generator
            function makes several of one item; they may be held until it has ended, so each must
            have memory of its own. If it has a parameter ``rng``, which no `functools.partial` has
            bound, it is given a NumPy generator that depends only on (seed, epoch, index) of the
            item.
        into: the queue. It decides the face: an async queue gives a runner for
            `aioqueue.Coordinator`, a blocking one for `aioqueue.sync.Coordinator`. If other
            runners fill it as well, it is closed when the last one that has been started has ended;
            one that is started later finds it closed, and fails with a `RuntimeError`.
        workers: how many items are prepared at the same time, >= 1.
        where: ``"task"``: a coroutine function (or async generator function), in as many tasks.
            ``"thread"``: in long-lived threads, for functions that release the GIL. ``"process"``:
            in processes, for functions that hold it; they and the items must be picklable.
            ``"interpreter"``: in subinterpreters (Python 3.14 and later; without NumPy, which they
            cannot import). ``"auto"``: ``"task"`` if it is a coroutine function, else ``"thread"``.
        ordered: whether examples enter the queue in the order of the source.
        limit: how many items may be in flight: taken, and their examples not yet in the queue.
            ``None``: 16 for each worker, 128 for each that is a process.
        limit_bytes: how many bytes of examples may be in flight, with items in preparation counted
            as those before them (before there are any, one for each worker is let in); one item is
            always let in. ``None``: any number, but 64 MiB from processes.
        on_error: what to do when the function raises, or the queue refuses what it returned:
            ``"stop"`` everything; ``"skip"`` the item; or `Retry`. What the queue has refused is
            not tried again.
        max_failures: how many items may be skipped before that stops everything all the same: an
            int, or a share of all items in (0, 1), which is judged as soon as more than ten were
            skipped, and at the end. ``None`` for any number.
        quarantine: a file that skipped items are written to, one JSON object per line; see
            `read_quarantine`. ``None`` keeps them in the runner's ``quarantine``.
        skip_none: whether the function may return ``None`` to leave an item out; else that is a
            failure.
        seed: for ``rng``, if the source has none: an int >= 0 and < 2**64. ``None`` takes that of
            the source, or fresh entropy.

    Returns:
        A queue runner of the face of ``into``, with ``statistics()`` and ``quarantine``.

    Raises:
        InvalidArgumentError: any argument is not as described.
    """
    if not isinstance(into, AsyncQueue | sync.BlockingQueue):
        raise InvalidArgumentError(f"into: got {into!r}; expected a queue of aioqueue")
    checked_flag(ordered, "ordered")
    checked_flag(skip_none, "skip_none")
    where = _checked_where(where, function)
    count = checked_count(workers, "workers", least=1)
    if limit_bytes is None and where == "process":
        limit_bytes = _PROCESS_BYTES
    feed = Feed(source)
    if feed.queue is not None and feed.queue is into.sync:
        raise InvalidArgumentError("source: got the queue that is also `into`; expected another")
    seed = source.seed if seed is None and isinstance(source, Source) else resolved_seed(seed)
    policy = FailurePolicy(on_error, max_failures, has_quarantine=quarantine is not None)
    records = QuarantineList() if quarantine is None else QuarantineFile(quarantine)
    window = Window(
        count * _PER_WORKER[where] if limit is None else checked_count(limit, "limit", least=1),
        None if limit_bytes is None else checked_count(limit_bytes, "limit_bytes", least=1),
        at_once=count,
    )
    progress = Progress(policy, records, seed, window)
    call = Call(function, seed, skip_none)
    kind = _workers_class(where)
    made: Workers = kind(feed, into, progress, window, ordered=ordered, count=count, call=call)
    description = f"of {function_name(function)} on {_counted(count, where)}"
    if isinstance(into, AsyncQueue):
        return AsyncPrepareRunner(into, made, progress, description)
    return PrepareRunner(into, made, progress, description)


_PLURALS: Final = {
    "task": "tasks",
    "thread": "threads",
    "process": "processes",
    "interpreter": "interpreters",
}


def _workers_class(where: str) -> Callable[..., Workers]:
    if where == "task":
        return TaskWorkers
    if where == "process":
        return ProcessWorkers
    if where == "interpreter":
        return InterpreterWorkers
    return ThreadWorkers


def _counted(count: int, where: str) -> str:
    return f"{count} {_PLURALS[where]}" if count > 1 else f"{count} {where}"


def _checked_where(where: Any, function: Any) -> Where:
    if not callable(function):
        raise InvalidArgumentError(f"function: got {function!r}; expected a callable")
    if not isinstance(where, str) or (where != "auto" and where not in _PLURALS):
        raise InvalidArgumentError(
            f"where: got {where!r}; expected 'auto', 'task', 'thread', 'process' or 'interpreter'"
        )
    if where == "auto":
        return "task" if is_async(function) else "thread"
    if (where == "task") != is_async(function):
        what = "a coroutine function" if where == "task" else "a plain function"
        raise InvalidArgumentError(
            f"function: got {function_name(function)!r} with where={where!r}; expected {what}, or"
            " where='auto'"
        )
    return where  # type: ignore[return-value]


def prepare_items(*arguments: Any, **options: Any) -> Any:
    raise NotImplementedError
