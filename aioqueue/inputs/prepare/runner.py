"""`prepare`: a queue runner that makes examples of the items of a source."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import partial
from os import PathLike
from typing import Any, TypeVar, Unpack, overload

import aioqueue
from aioqueue import AsyncQueue, InvalidArgumentError, sync
from aioqueue.arguments import (
    EnqueueOp,
    checked_count,
    checked_flag,
    checked_seconds,
    function_name,
    is_async,
)
from aioqueue.inputs.core.base_source import BaseSource
from aioqueue.inputs.core.items import Item
from aioqueue.inputs.core.quarantine import Quarantined, QuarantineFile, QuarantineList
from aioqueue.inputs.core.shuffling import resolved_seed
from aioqueue.inputs.options import Autotune, Items, OnError, PrepareFunction, PrepareOptions, Where
from aioqueue.inputs.prepare.call import ItemCall
from aioqueue.inputs.prepare.executor import Executor
from aioqueue.inputs.prepare.executors import ExecutorChoice, checked_place
from aioqueue.inputs.prepare.failures import FailurePolicy, PrepareProgress
from aioqueue.inputs.prepare.flow_control import InFlightWindow, KeyLimit
from aioqueue.inputs.prepare.introspection import JobStage, explained_stage
from aioqueue.inputs.prepare.job import Job
from aioqueue.inputs.prepare.output_buffer import OutputBuffer
from aioqueue.inputs.prepare.prepared_items import ItemCounts
from aioqueue.inputs.prepare.source_reader import SourceReader
from aioqueue.inputs.statistics import PrepareStatistics
from aioqueue.telemetry import Tuner, Watch

__all__ = ("AsyncPrepareRunner", "PrepareRunner", "prepare", "prepare_items")

T = TypeVar("T")


class _Preparing:
    """What the runners of both faces know of a `prepare`."""

    name: str
    _job: Job
    _executor: Executor
    _stage: JobStage
    _description: str
    _bounds: tuple[int, int] | None = None  # of its tuning
    _tuner: Tuner | None = None
    _watch: Watch | None = None  # of what it is a part of
    _watches_ops = False  # which last as long as their workers; the function is (see `FirstCall`)

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

    def _explained(self, workers: Any) -> Any:
        told = super()._explained(workers)  # type: ignore[misc]  # of the runner, as below
        return explained_stage(told, self._job, self._description.removeprefix("of "))

    def _begin(self, core: Any) -> Any:
        run = super()._begin(core)  # type: ignore[misc]  # of the runner, the other base
        self._job.begin(run, self._executor)
        if self._bounds is not None:
            watch = self._watch or run.watch
            self._tuner = Tuner(
                watch,
                self._stage.name,
                self._job.into.name,
                self._bounds,
                count=lambda: self._job.count,
                resize=self._resize_quietly,
            )
        return run

    def _queues(self) -> Any:
        source = self._job.feed.queue
        own = super()._queues()  # type: ignore[misc]  # of the runner, as above
        return own if source is None else [*own, source._core]

    def _ended(self, run: Any) -> None:
        self._tuner = None
        self._job.let_go()
        super()._ended(run)  # type: ignore[misc]

    def _resize_quietly(self, workers: int) -> None:
        if self._run is not None:  # type: ignore[attr-defined]
            try:
                self.resize(workers)
            except RuntimeError:
                if self._run is not None:  # type: ignore[attr-defined]  # else it has ended
                    raise

    def is_part(self, watch: Watch, key: str, name: str, source: str | None) -> None:
        """It is a part of a pipeline.

        Args:
            watch: of the pipeline.
            key: names the stage, in all runs of the pipeline.
            name: what people call it.
            source: name of the queue that it is fed from, if it is.
        """
        self._watch = watch
        self._stage.key, self._stage.name, self._stage.source = key, name, source
        function, on, workers = self._description.rpartition(" on ")
        if on and function.startswith("of _itself"):  # a function of ours, which does nothing
            self._description = f"of {name}{on}{workers}"

    @property
    def line(self) -> OutputBuffer | None:
        """Where its workers lay down what goes into the queue together, if they do."""
        return self._job.line

    def _stages(self, run: Any) -> list[Any]:
        return [self._stage]

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

    @property
    def workers(self) -> int:
        """How many workers there are, or are going to be when those that are too many have left."""
        return self._job.count

    def resize(self, workers: int) -> None:
        """Have more workers from now on, or fewer, while it runs.

        Those that are too many leave when they have ended what they are at. No item is lost or
        prepared twice, and an order that is kept stays kept. Where ``max_in_flight`` was not given,
        it goes by the number of workers. While nothing more comes from the source, nothing is
        changed.

        Args:
            workers: how many, >= 1.

        Raises:
            InvalidArgumentError: it is no such int.
            RuntimeError: it has not been started; it has ended, and so has what it has filled the
                queue with; or a thread cannot be started.
        """
        count = checked_count(workers, "workers", least=1)
        run = self._run  # type: ignore[attr-defined]  # of the runner, the other base
        if run is None and self._job.state == "ended":
            into = self._job.into
            if into.size() or not into.is_closed():
                return  # a loop goes on with what they have left
            raise RuntimeError(
                f"what prepares into '{self.name}' has ended, and has no workers any more: got"
                f" workers={count}; resize it while it runs"
            )
        if run is None:
            raise RuntimeError(
                f"what prepares into '{self.name}' has not been started: prepare(..., workers="
                f"{count}) begins with as many"
            )
        op = self.enqueue_ops[0]  # type: ignore[attr-defined]
        self._job.resize(count, partial(run.grow, op))

    def _go_on(self, counts: ItemCounts, is_known: Callable[[Item], bool], sign: str) -> None:
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

    def __init__(
        self, into: AsyncQueue, ops: list[EnqueueOp], job: Job, stage: JobStage, description: str
    ) -> None:
        super().__init__(into, ops, source=job.feed.queue)
        self._drain_source = self._drain_source or job.drain
        self._job, self._stage = job, stage
        self._description = description


class PrepareRunner(_Preparing, sync.QueueRunner):
    """A queue runner made by `prepare`, for an `aioqueue.sync.Coordinator`. It runs once."""

    def __init__(
        self,
        into: sync.BlockingQueue,
        ops: list[EnqueueOp],
        job: Job,
        stage: JobStage,
        description: str,
    ) -> None:
        super().__init__(into, ops, source=job.feed.queue)
        self._drain_source = self._drain_source or job.drain
        self._job, self._stage = job, stage
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
    max_in_flight: int | None = None,
    limit_bytes: int | None = None,
    concurrency_key: Callable[[T], Hashable] | None = None,
    max_per_key: int | None = None,
    item_timeout: float | None = None,
    on_error: OnError = "stop",
    max_failures: float | None = None,
    quarantine: str | PathLike[str] | None = None,
    drop_none: bool = False,
    autotune: Autotune = False,
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
    max_in_flight: int | None = None,
    limit_bytes: int | None = None,
    concurrency_key: Callable[[T], Hashable] | None = None,
    max_per_key: int | None = None,
    item_timeout: float | None = None,
    on_error: OnError = "stop",
    max_failures: float | None = None,
    quarantine: str | PathLike[str] | None = None,
    drop_none: bool = False,
    autotune: Autotune = False,
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
    max_in_flight: int | None = None,
    limit_bytes: int | None = None,
    concurrency_key: Callable[[T], Hashable] | None = None,
    max_per_key: int | None = None,
    item_timeout: float | None = None,
    on_error: OnError = "stop",
    max_failures: float | None = None,
    quarantine: str | PathLike[str] | None = None,
    drop_none: bool = False,
    autotune: Autotune = False,
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
            worker or another (or some together for all workers, where they are in memory and go
            quickly); by tasks in their event loop, so that an iterable which blocks is better made
            a `Source` that says so.
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
        max_in_flight: how many items may be in flight: taken, and their examples not yet in the
            queue.
            ``None``: 16 for each worker, 128 for each that is a process or a Ray actor.
        limit_bytes: how many bytes of examples may be in flight, with items in preparation counted
            as those before them (before there are any, one for each worker is let in); one item is
            always let in. ``None``: any number, but 64 MiB from processes and 256 MiB from Ray.
        concurrency_key: gives the key of an item, and of one key no more than ``max_per_key`` items
            are in preparation at the same time, over all workers; ``None`` for no such limit. Items
            that have to wait are put aside, and others go first; they remain in flight, so
            ``max_in_flight`` bounds how many can be put aside. A plain function, called with the
            item where the workers are (but not in the processes); if it raises, or its key cannot
            be hashed, the item has failed.
        max_per_key: how many items of one key, >= 1; with ``concurrency_key`` only.
        item_timeout: seconds that the preparation of an item may take, each time it is tried; then
            it is cut short, and has failed by an `ItemTimeoutError` that says where it was, which
            is a matter for ``on_error``. Processes are killed and replaced; tasks are cancelled at
            their next await; threads cannot be ended, so they are left behind and replaced, but for
            no more than ``workers`` that still run, and what they come back with is dropped.
            Interpreters have no such limit. The examples of a generator are held until it has
            ended. ``None`` for no limit.
        on_error: what to do when the function raises, or the queue refuses what it returned:
            ``"stop"`` everything; ``"skip"`` the item; or `Retry`. What the queue has refused is
            not tried again.
        max_failures: how many items may be skipped before that stops everything all the same: an
            int, or a share of all items in (0, 1), which is judged as soon as more than ten were
            skipped, and at the end. ``None`` for any number.
        quarantine: a file that skipped items are written to, one JSON object per line; see
            `read_quarantine`. ``None`` keeps them in the runner's ``quarantine``.
        drop_none: whether the function may return ``None`` to leave an item out; else that is a
            failure.
        autotune: whether the number of workers is changed while it runs: more are started while
            that makes it faster, and not otherwise, and those that have nothing to do leave. A pair
            of ints is the fewest and the most. ``True`` is from 1 to 64 threads or tasks, or as
            many processes as there are cores, or ``workers`` if those are more. It begins with
            ``workers``, or the nearest within the bounds. What it does is in the log (``aioqueue``,
            INFO), and in the ``changes`` of a `Monitor`.
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
        max_in_flight=max_in_flight,
        limit_bytes=limit_bytes,
        concurrency_key=concurrency_key,
        max_per_key=max_per_key,
        item_timeout=item_timeout,
        on_error=on_error,
        max_failures=max_failures,
        quarantine=quarantine,
        drop_none=drop_none,
        autotune=autotune,
        seed=seed,
        ray=ray,
    )


def prepare_items(
    source: Iterable[Any],
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
    max_in_flight: int | None = None,
    limit_bytes: int | None = None,
    concurrency_key: Callable[[Any], Hashable] | None = None,
    max_per_key: int | None = None,
    item_timeout: float | None = None,
    on_error: OnError = "stop",
    max_failures: float | None = None,
    quarantine: str | PathLike[str] | None = None,
    drop_none: bool = False,
    autotune: Autotune = False,
    seed: int | None = None,
    ray: Mapping[str, Any] | None = None,
) -> AsyncPrepareRunner | PrepareRunner:
    if not isinstance(into, AsyncQueue | sync.BlockingQueue):
        raise InvalidArgumentError(f"into: got {into!r}; expected {_expected(into)}")
    checked_flag(ordered, "ordered")
    checked_flag(drop_none, "drop_none")
    place = checked_place(where, function)
    if ray is not None and not place.is_ray:
        raise InvalidArgumentError(
            f"ray: got {ray!r} with where={where!r}; expected where='ray', or no such options"
        )
    count = checked_count(workers, "workers", least=1)
    bounds = _checked_bounds(autotune, count, place)
    if bounds is not None:
        count = min(max(count, bounds[0]), bounds[1])
    feed = SourceReader(source)
    if feed.queue is not None and feed.queue is into.sync:
        raise InvalidArgumentError("source: got the queue that is also `into`; expected another")
    seed = source.seed if seed is None and isinstance(source, BaseSource) else resolved_seed(seed)
    policy = FailurePolicy(on_error, max_failures, has_quarantine=quarantine is not None)
    records = QuarantineList() if quarantine is None else QuarantineFile(quarantine)
    per_worker = place.per_worker if max_in_flight is None else None
    if max_in_flight is None:
        max_in_flight = count * place.per_worker
    if limit_bytes is None:
        limit_bytes = place.limit_bytes
    window = InFlightWindow(
        checked_count(max_in_flight, "max_in_flight", least=1),
        None if limit_bytes is None else checked_count(limit_bytes, "limit_bytes", least=1),
        at_once=count,
    )
    job = Job(
        feed,
        into,
        ItemCall(function, seed, drop_none),
        PrepareProgress(policy, records, seed, window),
        window,
        ordered=ordered,
        count=count,
        key_limit=_checked_key_limit(concurrency_key, max_per_key),
        per_worker=per_worker,
        by_item=by_item,
        fit=fit,
        item_timeout=_checked_timeout(item_timeout),
    )
    executor = place.executor(job, ray) if place.is_ray else place.executor(job)
    description = f"of {function_name(function)} on {place.counted(count)}"
    stage = JobStage(job, function_name(function), place.name)
    runner: AsyncPrepareRunner | PrepareRunner
    if isinstance(into, AsyncQueue):
        runner = AsyncPrepareRunner(into, executor.enqueue_ops(), job, stage, description)
    else:
        runner = PrepareRunner(into, executor.enqueue_ops(), job, stage, description)
    runner._bounds, runner._executor = bounds, executor
    return runner


def _expected(into: Any) -> str:
    """What to give instead of something that is no queue of this program."""
    if not hasattr(into, "enqueue_many"):
        return "a queue of aioqueue"
    # One that lives elsewhere: what workers make comes here first, to be kept in order and once.
    return (
        "a queue of this program; what lives elsewhere is filled by a call for each batch, so make"
        " batches here and send these: `for batch in source.prepare(function,"
        " where='ray').batch(128): queue.sync.enqueue_many(batch)`; or have programs on the cluster"
        " fill it, each from a book of its own: `queue.sync.fill(book, producer=name)`"
    )


def _checked_bounds(autotune: Any, count: int, place: ExecutorChoice) -> tuple[int, int] | None:
    if isinstance(autotune, bool):
        cores = os.cpu_count() or 1
        return (1, max(count, place.most or cores)) if autotune else None
    if not isinstance(autotune, tuple | list) or len(autotune) != 2:
        raise InvalidArgumentError(
            f"autotune: got {autotune!r}; expected True, False, or a pair of ints: the fewest and"
            " the most workers"
        )
    low = checked_count(autotune[0], "autotune[0]", least=1)
    return low, checked_count(autotune[1], "autotune[1]", least=low)


def _checked_timeout(seconds: Any) -> float | None:
    if seconds is None:
        return None
    checked = checked_seconds(seconds, "item_timeout", otherwise=", or None")
    if not checked:
        raise InvalidArgumentError(
            f"item_timeout: got {seconds!r}; expected a number of seconds > 0, or None"
        )
    return checked


def _checked_key_limit(concurrency_key: Any, max_per_key: Any) -> KeyLimit | None:
    if concurrency_key is None and max_per_key is None:
        return None
    if concurrency_key is None:
        raise InvalidArgumentError(
            "max_per_key: given without concurrency_key; expected both, or `max_in_flight` for all"
            " items together"
        )
    if not callable(concurrency_key) or is_async(concurrency_key):
        raise InvalidArgumentError(
            f"concurrency_key: got {concurrency_key!r}; expected a plain function that returns"
            " the key of an item, or None"
        )
    if max_per_key is None:
        raise InvalidArgumentError("concurrency_key: given without max_per_key; expected both")
    return KeyLimit(concurrency_key, checked_count(max_per_key, "max_per_key", least=1))
