"""`prepare`: a queue runner that makes examples of the items of a source."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from os import PathLike
from typing import Any, TypeVar, Unpack, overload

import aioqueue
from aioqueue import AsyncQueue, InvalidArgumentError, sync
from aioqueue.checks import checked_count, checked_flag
from aioqueue.functions import EnqueueOp, function_name, is_async
from aioqueue.inputs.options import Items, OnError, PrepareFunction, PrepareOptions, Where
from aioqueue.inputs.prepare.call import Call
from aioqueue.inputs.prepare.delivery import Counts
from aioqueue.inputs.prepare.feed import Feed
from aioqueue.inputs.prepare.job import Job
from aioqueue.inputs.prepare.limits import KeyLimit
from aioqueue.inputs.prepare.policy import FailurePolicy
from aioqueue.inputs.prepare.progress import Progress
from aioqueue.inputs.prepare.quarantine import QuarantineFile, QuarantineList
from aioqueue.inputs.prepare.where import checked_place
from aioqueue.inputs.prepare.window import Window
from aioqueue.inputs.sources.base import Source, resolved_seed
from aioqueue.inputs.sources.item import Item
from aioqueue.inputs.sources.quarantined import Quarantined
from aioqueue.inputs.statistics import PrepareStatistics

__all__ = ("AsyncPrepareRunner", "PrepareRunner", "prepare", "prepare_items")

T = TypeVar("T")


class _Preparing:
    """What the runners of both faces know of a `prepare`."""

    name: str
    _job: Job
    _description: str

    def __repr__(self) -> str:
        progress = self._job.progress.statistics()
        counts = (("prepared", progress.prepared), ("skipped", progress.skipped))
        parts = [
            f"{self._description} into '{self.name}'",
            *[f"{count} {what}" for what, count in counts if count],
            self._job.state,
        ]
        return f"<{type(self).__module__}.{type(self).__name__} {', '.join(parts)}>"

    # What a run asks of its runner.

    def _begin(self, core: Any) -> Any:
        run = super()._begin(core)  # type: ignore[misc]  # of the runner, the other base
        self._job.begin(run)
        return run

    def _lost_worker(self) -> None:
        self._job.stop()

    def _in_flight(self) -> int:
        return self._job.in_flight()

    def _what_cut_it_short(self) -> BaseException | None:
        return self._job.what_cut_it_short()

    @property
    def quarantine(self) -> list[Quarantined]:
        """The items that were skipped, in the order in which they were given up.

        Those in a file are read from it: the records of this run, whatever else the file holds, of
        which nothing is unpickled.

        Raises:
            OSError: the file cannot be read.
            DataLossError: records of this run are no longer in the file.
        """
        return self._job.progress.quarantine.records()

    def _go_on(self, counts: Counts, is_known: Callable[[Item], bool], sign: str) -> None:
        """Begin where an earlier run has left off, which is said by a pipeline.

        Args:
            counts: those of the run before, to go on with.
            is_known: tells of an item that comes again whether they have it already.
            sign: that of its lines in a quarantine file; empty for none.

        Raises:
            OSError: that file cannot be read.
        """
        self._job.progress.go_on(counts, is_known)
        self._job.progress.quarantine.go_on(sign)

    @property
    def _sign(self) -> str:
        """What tells the lines of this run in a quarantine file, also to later processes."""
        return self._job.progress.quarantine.sign

    def statistics(self) -> PrepareStatistics:
        """What has become of the items so far."""
        return self._job.progress.statistics()


class AsyncPrepareRunner(_Preparing, aioqueue.QueueRunner):
    """A queue runner made by `prepare`, for an `aioqueue.Coordinator`. It runs once."""

    def __init__(self, into: AsyncQueue, ops: list[EnqueueOp], job: Job, description: str) -> None:
        super().__init__(into, ops, source=job.feed.queue)
        self._drain_source = self._drain_source or job.drain
        self._job = job
        self._description = description


class PrepareRunner(_Preparing, sync.QueueRunner):
    """A queue runner made by `prepare`, for an `aioqueue.sync.Coordinator`. It runs once."""

    def __init__(
        self, into: sync.BlockingQueue, ops: list[EnqueueOp], job: Job, description: str
    ) -> None:
        super().__init__(into, ops, source=job.feed.queue)
        self._drain_source = self._drain_source or job.drain
        self._job = job
        self._description = description


@overload
def prepare(
    source: Items[T],
    function: PrepareFunction[T],
    *,
    into: AsyncQueue,
    workers: int = 4,
    where: Where = "auto",
    ordered: bool = False,
    limit: int | None = None,
    limit_bytes: int | None = None,
    limit_per: Callable[[T], Hashable] | None = None,
    at_most: int | None = None,
    on_error: OnError = "stop",
    max_failures: float | None = None,
    quarantine: str | PathLike[str] | None = None,
    skip_none: bool = False,
    seed: int | None = None,
    ray: Mapping[str, Any] | None = None,
) -> AsyncPrepareRunner: ...
@overload
def prepare(
    source: Items[T],
    function: PrepareFunction[T],
    *,
    into: sync.BlockingQueue,
    workers: int = 4,
    where: Where = "auto",
    ordered: bool = False,
    limit: int | None = None,
    limit_bytes: int | None = None,
    limit_per: Callable[[T], Hashable] | None = None,
    at_most: int | None = None,
    on_error: OnError = "stop",
    max_failures: float | None = None,
    quarantine: str | PathLike[str] | None = None,
    skip_none: bool = False,
    seed: int | None = None,
    ray: Mapping[str, Any] | None = None,
) -> PrepareRunner: ...
def prepare(
    source: Items[T],
    function: PrepareFunction[T],
    *,
    into: Any,
    workers: int = 4,
    where: Where = "auto",
    ordered: bool = False,
    limit: int | None = None,
    limit_bytes: int | None = None,
    limit_per: Callable[[T], Hashable] | None = None,
    at_most: int | None = None,
    on_error: OnError = "stop",
    max_failures: float | None = None,
    quarantine: str | PathLike[str] | None = None,
    skip_none: bool = False,
    seed: int | None = None,
    ray: Mapping[str, Any] | None = None,
) -> AsyncPrepareRunner | PrepareRunner:
    """Make examples of the items of a source, on several workers, and enqueue them.

    The result is a queue runner: give it to the `start` of a coordinator. When the source has
    ended, the queue is closed, unless other runners still fill it; if a failed queue was the
    source, with that failure as the cause.

    Every example of every item enters the queue exactly once, unless the item is skipped as
    ``on_error`` says; counts of all that happened are in the runner's ``statistics()``, and in the
    log (``aioqueue``) at the end.

    What has left the queue has no position, since others may fill and read it as well: to go on
    after a restart, give source and function to a batcher, ``batch(..., function=function,
    resume=...)``, or to a `Pipeline`.

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
            cannot import). ``"ray"``: in actors on the Ray cluster that this program is connected
            to; what the function returns is mapped from the object store, read-only where ``into``
            is a queue of objects. ``"auto"``: ``"task"`` if it is a coroutine function, else
            ``"thread"``.
        ordered: whether examples enter the queue in the order of the source.
        limit: how many items may be in flight: taken, and their examples not yet in the queue.
            ``None``: 16 for each worker, 128 for each that is a process or a Ray actor.
        limit_bytes: how many bytes of examples may be in flight, with items in preparation counted
            as those before them (before there are any, one for each worker is let in); one item is
            always let in. ``None``: any number, but 64 MiB from processes and 256 MiB from Ray.
        limit_per: gives the key of an item, and of one key no more than ``at_most`` items are in
            preparation at the same time, over all workers; ``None`` for no such limit. Items that
            have to wait are put aside, and others go first; they remain in flight, so ``limit``
            bounds how many can be put aside. A plain function, called with the item where the
            workers are (but not in the processes); if it raises, or its key cannot be hashed, the
            item has failed.
        at_most: how many items of one key, >= 1; with ``limit_per`` only.
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
        ray: with ``where="ray"``, what each actor takes and where it runs: Ray's ``num_cpus`` (1),
            ``num_gpus``, ``memory``, ``resources``, ``accelerator_type``, ``label_selector``,
            ``scheduling_strategy`` and ``runtime_env``.

    Returns:
        A queue runner of the face of ``into``, with ``statistics()`` and ``quarantine``.

    Raises:
        InvalidArgumentError: any argument is not as described.
    """
    return _runner(
        source,
        function,
        into,
        workers=workers,
        where=where,
        ordered=ordered,
        limit=limit,
        limit_bytes=limit_bytes,
        limit_per=limit_per,
        at_most=at_most,
        on_error=on_error,
        max_failures=max_failures,
        quarantine=quarantine,
        skip_none=skip_none,
        seed=seed,
        ray=ray,
    )


def prepare_items(
    source: Source[Any],
    function: Callable[..., Any],
    *,
    into: AsyncQueue | sync.BlockingQueue,
    fit: Callable[[Any], Any] | None = None,
    **options: Unpack[PrepareOptions],
) -> AsyncPrepareRunner | PrepareRunner:
    """The same for pipelines: items are delivered as a whole, in a queue of `Delivered`.

    Args:
        source: where items come from.
        function: called with an item.
        into: a queue of objects.
        fit: makes of every example what is delivered. One that it refuses, by raising, has failed
            as if the queue had refused it.
        options: the others of `prepare`.

    Raises:
        InvalidArgumentError: an option is wrong.
    """
    return _runner(source, function, into, by_item=True, fit=fit, **options)


def _runner(
    source: Any,
    function: Callable[..., Any],
    into: Any,
    *,
    by_item: bool = False,
    fit: Callable[[Any], Any] | None = None,
    workers: int = 4,
    where: Where = "auto",
    ordered: bool = False,
    limit: int | None = None,
    limit_bytes: int | None = None,
    limit_per: Callable[[Any], Hashable] | None = None,
    at_most: int | None = None,
    on_error: OnError = "stop",
    max_failures: float | None = None,
    quarantine: str | PathLike[str] | None = None,
    skip_none: bool = False,
    seed: int | None = None,
    ray: Mapping[str, Any] | None = None,
) -> AsyncPrepareRunner | PrepareRunner:
    if not isinstance(into, AsyncQueue | sync.BlockingQueue):
        raise InvalidArgumentError(f"into: got {into!r}; expected a queue of aioqueue")
    checked_flag(ordered, "ordered")
    checked_flag(skip_none, "skip_none")
    place = checked_place(where, function)
    if ray is not None and not place.is_ray:
        raise InvalidArgumentError(
            f"ray: got {ray!r} with where={where!r}; expected where='ray', or no such options"
        )
    count = checked_count(workers, "workers", least=1)
    feed = Feed(source)
    if feed.queue is not None and feed.queue is into.sync:
        raise InvalidArgumentError("source: got the queue that is also `into`; expected another")
    seed = source.seed if seed is None and isinstance(source, Source) else resolved_seed(seed)
    policy = FailurePolicy(on_error, max_failures, has_quarantine=quarantine is not None)
    records = QuarantineList() if quarantine is None else QuarantineFile(quarantine)
    if limit is None:
        limit = count * place.per_worker
    if limit_bytes is None:
        limit_bytes = place.limit_bytes
    window = Window(
        checked_count(limit, "limit", least=1),
        None if limit_bytes is None else checked_count(limit_bytes, "limit_bytes", least=1),
        at_once=count,
    )
    job = Job(
        feed,
        into,
        Call(function, seed, skip_none),
        Progress(policy, records, seed, window),
        window,
        ordered=ordered,
        count=count,
        key_limit=_checked_key_limit(limit_per, at_most),
        by_item=by_item,
        fit=fit,
    )
    executor = place.executor(job, ray) if place.is_ray else place.executor(job)
    job.run_by(executor)
    description = f"of {function_name(function)} on {place.counted(count)}"
    if isinstance(into, AsyncQueue):
        return AsyncPrepareRunner(into, executor.enqueue_ops(), job, description)
    return PrepareRunner(into, executor.enqueue_ops(), job, description)


def _checked_key_limit(limit_per: Any, at_most: Any) -> KeyLimit | None:
    if limit_per is None and at_most is None:
        return None
    if limit_per is None:
        raise InvalidArgumentError(
            "at_most: given without limit_per; expected both, or `limit` for all items together"
        )
    if not callable(limit_per) or is_async(limit_per):
        raise InvalidArgumentError(
            f"limit_per: got {limit_per!r}; expected a plain function that returns the key of an"
            " item, or None"
        )
    if at_most is None:
        raise InvalidArgumentError("limit_per: given without at_most; expected both")
    return KeyLimit(limit_per, checked_count(at_most, "at_most", least=1))
