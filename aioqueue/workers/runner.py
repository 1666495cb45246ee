"""`prepare`: a queue runner that makes examples from the items of a source."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

import aioqueue
from aioqueue import AsyncQueue, InvalidArgumentError, sync
from aioqueue.base.arguments import (
    EnqueueOp,
    checked_count,
    checked_flag,
    checked_period,
    function_name,
    is_async,
    name_of_work,
)
from aioqueue.base.public_names import public
from aioqueue.items.item import Item, ItemCounts
from aioqueue.items.quarantine import QuarantineFile
from aioqueue.items.quarantined import Quarantined
from aioqueue.sources.base import BaseSource
from aioqueue.sources.shuffling import resolved_seed
from aioqueue.sources.source_reader import SourceReader
from aioqueue.system.processors import usable_processors
from aioqueue.telemetry import Watch
from aioqueue.workers.calls import ItemCall
from aioqueue.workers.executor import Executor, find_executor
from aioqueue.workers.flow_control import DefaultInFlight, InFlightWindow, OutputBuffer
from aioqueue.workers.job import Job
from aioqueue.workers.key_limits import AdaptiveBuckets, KeyLimit, TokenBuckets
from aioqueue.workers.options import (
    Autotune,
    Items,
    OnError,
    PrepareFunction,
    PrepareOptions,
    Where,
)
from aioqueue.workers.rates import AdaptiveRate, Rate
from aioqueue.workers.retries import FailurePolicy, PrepareProgress, QuarantineList
from aioqueue.workers.stage_metrics import JobStage, explained_stage
from aioqueue.workers.statistics import PrepareStatistics

if TYPE_CHECKING:
    from aioqueue.telemetry import Tuner

T = TypeVar("T")


class _Preparing:
    """The part of a `prepare` that the runners of both faces share."""

    name: str
    _job: Job
    _executor: Executor
    _stage: JobStage
    _description: str
    _bounds: tuple[int, int] | None = None  # the bounds of its tuning
    _tuner: Tuner | None = None
    _watch: Watch | None = None  # the monitor of the pipeline that it is a part of

    def __repr__(self) -> str:
        progress = self._job.progress.statistics()
        counts = (("prepared", progress.prepared), ("skipped", progress.skipped))
        parts = [
            f"{self._description} into '{self.name}'",
            *[f"{count} {what}" for what, count in counts if count],
            self._job.state,
        ]
        return f"<{type(self).__module__}.{type(self).__name__} {', '.join(parts)}>"

    # What a run calls.

    def _explained(self, workers: Any, frames: Any) -> Any:
        # Of the runner, as below.
        explained = super()._explained(workers, frames)  # type: ignore[misc]
        return explained_stage(explained, self._job, self._description.removeprefix("of "), frames)

    def _work_of(self, op: Any) -> str:
        name, does = self._job.progress.name, function_name(op)
        return name if does == "prepare_items" else f"{name}-{does.replace('_', '-')}"

    def _begin(self, core: Any) -> Any:
        run = super()._begin(core)  # type: ignore[misc]  # of the runner, the other base
        self._job.begin(run, self._executor)
        if self._bounds is not None:
            from aioqueue.telemetry import Tuner

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
        self._job.detach()
        self._job.return_leased()
        super()._ended(run)  # type: ignore[misc]

    def _resize_quietly(self, workers: int) -> None:
        if self._run is not None:  # type: ignore[attr-defined]
            try:
                self.resize(workers)
            except RuntimeError:
                if self._run is not None:  # type: ignore[attr-defined]  # otherwise it has ended
                    raise

    def is_part(self, watch: Watch, key: str, name: str, source: str | None) -> None:
        """Make it a part of a pipeline.

        Args:
            watch: the pipeline's monitor.
            key: the key of the stage, the same in all runs of the pipeline.
            name: the name of the stage.
            source: the name of the queue that it reads, if it reads one.
        """
        self._watch = watch
        self._stage.key, self._stage.name, self._stage.source = key, name, source
        self._job.progress.name = key
        function, on, workers = self._description.rpartition(" on ")
        if on and function.startswith("of _itself"):  # our own function, which does nothing
            self._description = f"of {name}{on}{workers}"

    @property
    def output_buffer(self) -> OutputBuffer | None:
        """Return the buffer that collects items to enqueue together, if there is one."""
        return self._job.output_buffer

    def _stages(self, run: Any) -> list[Any]:
        return [self._stage]

    def _worker_never_ran(self) -> None:
        self._job.stop()

    def _in_flight(self) -> int:
        return self._job.in_flight()

    def _truncation_cause(self) -> BaseException | None:
        return self._job.truncation_cause()

    @property
    def quarantine(self) -> list[Quarantined]:
        """The items that were skipped, in the order in which they were given up.

        If there is a quarantine file, they are read from it: only the records of this run, whatever
        else the file holds. Nothing is unpickled.

        Raises:
            OSError: the file cannot be read.
            DataLossError: records of this run are no longer in the file.
        """
        return self._job.progress.quarantine.records()

    @property
    def workers(self) -> int:
        """The number of workers, not counting those that have been asked to leave."""
        return self._job.count

    def resize(self, workers: int) -> None:
        """Change the number of workers while it runs.

        Surplus workers leave when they have finished their current item. No item is lost or
        prepared twice, and with ``ordered=True`` the order is kept. ``max_in_flight`` follows the
        number of workers, unless you have set it. Once the source has ended, nothing changes.

        Args:
            workers: the new number, >= 1.

        Raises:
            InvalidArgumentError: ``workers`` is not such an int.
            RuntimeError: the runner has not been started or has ended, or a thread cannot be
                started.
        """
        count = checked_count(workers, "workers", least=1)
        run = self._run  # type: ignore[attr-defined]  # of the runner, the other base
        if run is None and self._job.state == "ended":
            into = self._job.into
            if into.size() or not into.is_closed():
                return  # a pipeline continues with what they have left
            raise RuntimeError(
                f"the prepare into '{self.name}' has ended and has no workers: got"
                f" workers={count}; call resize() while it runs"
            )
        if run is None:
            raise RuntimeError(
                f"the prepare into '{self.name}' has not been started: pass workers={count} to"
                " prepare() instead"
            )
        op = self.enqueue_ops[0]  # type: ignore[attr-defined]
        self._job.resize(count, partial(run.add_worker, op))

    def _finishes(self, queue: AsyncQueue | sync.BlockingQueue) -> None:
        """Call `task_done` of a queue for each item that is skipped, or gives no example.

        Args:
            queue: its elements are the items, one for one.
        """
        self._job.progress.finish = queue.task_done

    def _restore(self, counts: ItemCounts, is_known: Callable[[Item], bool], sign: str) -> None:
        """Continue from an earlier run, for a pipeline.

        Args:
            counts: the counts of the earlier run, to start from.
            is_known: returns whether these counts include an item that is prepared again.
            sign: the mark of that run's lines in a quarantine file; empty without such a file.

        Raises:
            OSError: that file cannot be read.
        """
        self._job.progress.restore_counts(counts, is_known)
        self._job.progress.quarantine.resume(sign)

    @property
    def _sign(self) -> str:
        """Return the mark of this run's lines in a quarantine file, valid in later processes."""
        return self._job.progress.quarantine.sign

    def statistics(self) -> PrepareStatistics:
        """Return the counts so far."""
        return self._job.progress.statistics()


@public("aioqueue.inputs")
class AsyncPrepareRunner(_Preparing, aioqueue.QueueRunner):
    """A queue runner made by `prepare`, for an `aioqueue.Coordinator`. It runs once."""

    def __init__(
        self, into: AsyncQueue, ops: list[EnqueueOp], job: Job, stage: JobStage, description: str
    ) -> None:
        super().__init__(into, ops, source=job.feed.queue)
        self._drain_source = self._drain_source or job.drain
        self._job, self._stage = job, stage
        self._description = description


@public("aioqueue.inputs")
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
    rate: Rate | AdaptiveRate | None = None,
    burst: int | None = None,
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
    rate: Rate | AdaptiveRate | None = None,
    burst: int | None = None,
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
    rate: Rate | AdaptiveRate | None = None,
    burst: int | None = None,
    item_timeout: float | None = None,
    on_error: OnError = "stop",
    max_failures: float | None = None,
    quarantine: str | PathLike[str] | None = None,
    drop_none: bool = False,
    autotune: Autotune = False,
    seed: int | None = None,
    ray: Mapping[str, Any] | None = None,
) -> AsyncPrepareRunner | PrepareRunner:
    """Make examples from the items of a source, on several workers, and enqueue them.

    The result is a queue runner: pass it to the `start` of a coordinator. When the source has
    ended, the runner closes the queue, unless other runners still fill it. If the source is a queue
    that failed, the cause of the closing is that failure.

    Every example of every item enters the queue exactly once, unless ``on_error`` skips the item.
    The runner's ``statistics()`` count everything that happened; so does the log (``aioqueue``) at
    the end.

    The runner has no position to resume from, because others may fill and read the queue as well.
    To continue after a restart, pass source and function to a batcher, ``batch(...,
    function=function, resume=...)``, or to a `Pipeline`.

    Args:
        source: a source of `aioqueue.inputs`, any iterable or async iterable, or a queue or stream
            of either face. Workers take one item at a time; if items are in memory and fast, a
            worker reads several for all. Workers that are tasks read in their event loop, so make
            an iterable that blocks a `Source` that says so. What was taken from a queue, and has
            neither been enqueued nor skipped when the runner ends, goes back to its front.
        function: takes an item and returns an example in the form that ``into`` accepts. A
            generator function makes several examples per item. They may be held until it has ended,
            so each needs memory of its own. If the function has a parameter ``rng`` that no
            `functools.partial` has bound, it gets a NumPy generator that depends only on (seed,
            epoch, index) of the item.
        into: the queue. It decides the face: an async queue gives a runner for
            `aioqueue.Coordinator`, a blocking queue one for `aioqueue.sync.Coordinator`. If several
            runners fill the queue, it is closed when the last of those started has ended. A runner
            that you start later fails with a `RuntimeError`.
        workers: the number of items that are prepared at the same time, >= 1.
        where: the kind of worker. ``"task"``: tasks, for a coroutine function or async generator
            function. ``"thread"``: long-lived threads, for functions that release the GIL.
            ``"process"``: processes, for functions that hold the GIL; function and items must be
            picklable. ``"interpreter"``: subinterpreters (Python 3.14 and later; they cannot import
            NumPy). ``"ray"``: actors on the Ray cluster that this program is connected to; results
            are mapped from the object store, read-only if ``into`` is a queue of objects.
            ``"auto"``: ``"task"`` for a coroutine function, otherwise ``"thread"``.
        ordered: whether examples enter the queue in the order of the source.
        max_in_flight: the number of items that may be in flight: taken from the source, with
            examples not yet in the queue. ``None``: 16 per worker, or 128 per process or Ray actor.
        limit_bytes: the bytes of examples that may be in flight. Items in preparation count with
            the size of recent ones (before any size is known, one item per worker may come in). One
            item may always come in. ``None``: no limit, but 64 MiB for processes and 256 MiB for
            Ray.
        concurrency_key: returns the key of an item. At most ``max_per_key`` items of one key are in
            preparation at the same time, over all workers; ``None`` for no such limit. Items above
            the limit are put aside, and others go first. They stay in flight, so ``max_in_flight``
            bounds how many can be put aside. It must be a plain function. It runs where the workers
            are (for processes, in this process). If it raises, or its key is not hashable, the item
            has failed.
        max_per_key: the number of items of one key, >= 1; only with ``concurrency_key``.
        rate: how often the function may be called, such as ``per_second(100)``; with
            ``concurrency_key``, for each key. Each attempt counts. Items that have to wait are put
            aside, so that those of other keys go first. An `AdaptiveRate` gives way when the
            server refuses calls. ``None`` for no limit.
        burst: how many calls may begin at once after a pause, >= 1; only with ``rate``. ``None``
            is 1.
        item_timeout: seconds that each attempt to prepare an item may take; ``None`` for no limit.
            Then the attempt is cut short and fails with an `ItemTimeoutError` that says where it
            was; ``on_error`` decides about the item. Processes are killed and replaced. Tasks are
            cancelled at their next await. Threads cannot be ended, so they are abandoned and
            replaced, as long as at most ``workers`` abandoned threads still run; their late results
            are dropped. Interpreters have no such limit. The examples of a generator are held until
            it has ended.
        on_error: what to do if the function raises, or if the queue refuses its result: ``"stop"``
            everything; ``"skip"`` the item; or `Retry`. An item that the queue refused is not
            retried.
        max_failures: the number of items that may be skipped before everything stops after all: an
            int, or a share of all items in (0, 1), which is judged once more than ten were skipped,
            and at the end. ``None`` for no limit.
        quarantine: a file for skipped items, with one JSON object per line; see `read_quarantine`.
            ``None`` keeps them in the runner's ``quarantine``.
        drop_none: whether the function may return ``None`` to leave an item out; otherwise that is
            a failure.
        autotune: whether to change the number of workers while it runs: more are started as long as
            that makes it faster, and idle workers leave. A pair of ints sets the fewest and the
            most. ``True`` means 1 to 64 threads or tasks, or as many processes as this process may
            use cores (by its affinity and the quota of its control group), or ``workers`` if that
            is more. It begins with ``workers``, or the nearest number within
            the bounds. The log (``aioqueue``, INFO) and the ``changes`` of a `Monitor` list the
            changes.
        seed: the seed for ``rng``, if the source has none: an int >= 0 and < 2**64. ``None`` takes
            the seed of the source, or fresh entropy.
        ray: with ``where="ray"``, the resources and placement of each actor: Ray's ``num_cpus``
            (1), ``num_gpus``, ``memory``, ``resources``, ``accelerator_type``, ``label_selector``,
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
        rate=rate,
        burst=burst,
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
    item_size: int = 1,
    **options: Unpack[PrepareOptions],
) -> AsyncPrepareRunner | PrepareRunner:
    """Prepare for a pipeline: items are delivered as a whole, in a queue of `Delivered`.

    Args:
        source: the source.
        function: takes an item.
        into: a queue of objects.
        fit: converts every example. If it raises, the item has failed as if the queue had refused
            it.
        item_size: how many examples an item becomes: the more, the fewer are in flight by default.
        options: the other options of `prepare`.

    Raises:
        InvalidArgumentError: any option is not as described.
    """
    return _runner(source, function, into, by_item=True, fit=fit, item_size=item_size, **options)


def _runner(
    source: Any,
    function: Callable[..., Any],
    into: Any,
    *,
    by_item: bool = False,
    fit: Callable[[Any], Any] | None = None,
    item_size: int = 1,
    workers: int = 4,
    where: Where = "auto",
    ordered: bool = False,
    max_in_flight: int | None = None,
    limit_bytes: int | None = None,
    concurrency_key: Callable[[Any], Hashable] | None = None,
    max_per_key: int | None = None,
    rate: Rate | AdaptiveRate | None = None,
    burst: int | None = None,
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
    executor_class = find_executor(where, function, is_timed=item_timeout is not None)
    if ray is not None and not executor_class.takes_ray:
        raise InvalidArgumentError(
            f"ray: got {ray!r} with where={where!r}; expected where='ray', or no such options"
        )
    count = checked_count(workers, "workers", least=1)
    bounds = _checked_bounds(autotune, count, executor_class)
    if bounds is not None:
        count = min(max(count, bounds[0]), bounds[1])
    feed = SourceReader(source)
    if feed.queue is not None and feed.queue is into.sync:
        raise InvalidArgumentError("source: got the queue that is also `into`; expected another")
    seed = source.seed if seed is None and isinstance(source, BaseSource) else resolved_seed(seed)
    policy = FailurePolicy(on_error, max_failures, has_quarantine=quarantine is not None)
    records = QuarantineList() if quarantine is None else QuarantineFile(quarantine)
    in_flight = None
    if max_in_flight is None:
        in_flight = DefaultInFlight.of(executor_class.per_worker, item_size)
        max_in_flight = in_flight.items(count)
    if limit_bytes is None:
        limit_bytes = executor_class.limit_bytes
    window = InFlightWindow(
        checked_count(max_in_flight, "max_in_flight", least=1),
        None if limit_bytes is None else checked_count(limit_bytes, "limit_bytes", least=1),
        at_once=count,
    )
    job = Job(
        feed,
        into,
        ItemCall(function, seed, drop_none),
        PrepareProgress(policy, records, seed, window, name_of_work(function, "prepare")),
        window,
        ordered=ordered,
        count=count,
        key_limit=_checked_key_limit(concurrency_key, max_per_key, _checked_buckets(rate, burst)),
        in_flight=in_flight,
        by_item=by_item,
        fit=fit,
        item_timeout=None
        if item_timeout is None
        else checked_period(item_timeout, "item_timeout", otherwise=", or None"),
    )
    executor = executor_class.build(job, ray)
    description = f"of {function_name(function)} on {executor_class.counted(count)}"
    stage = JobStage(job, function_name(function), executor_class.worker_name)
    runner: AsyncPrepareRunner | PrepareRunner
    if isinstance(into, AsyncQueue):
        runner = AsyncPrepareRunner(into, executor.enqueue_ops(), job, stage, description)
    else:
        runner = PrepareRunner(into, executor.enqueue_ops(), job, stage, description)
    runner._bounds, runner._executor = bounds, executor
    if feed.queue is not None:
        runner._finishes(feed.queue)
    return runner


def _expected(into: Any) -> str:
    """Return the queue to use instead of something that is not a queue of this program."""
    if not hasattr(into, "enqueue_many"):
        return "a queue of aioqueue"
    # For a remote queue: results of workers come here first, to be kept in order and exactly once.
    return (
        "a queue of this program. A remote queue needs one call per batch, so make batches here and"
        " send these: `for batch in source.prepare(function, where='ray').batch(128):"
        " queue.sync.enqueue_many(batch)`; or let programs on the cluster fill it, each with its"
        " own function: `queue.sync.fill(make_batch, producer=name)`"
    )


def _checked_bounds(autotune: Any, count: int, executor: type[Executor]) -> tuple[int, int] | None:
    if isinstance(autotune, bool):
        return (1, max(count, executor.most_workers or usable_processors())) if autotune else None
    if not isinstance(autotune, tuple | list) or len(autotune) != 2:
        raise InvalidArgumentError(
            f"autotune: got {autotune!r}; expected True, False, or a pair of ints: the fewest and"
            " the most workers"
        )
    low = checked_count(autotune[0], "autotune[0]", least=1)
    return low, checked_count(autotune[1], "autotune[1]", least=low)


def _checked_key_limit(
    concurrency_key: Any, max_per_key: Any, rate: TokenBuckets | None
) -> KeyLimit | None:
    if concurrency_key is None and max_per_key is None:
        return None if rate is None else KeyLimit(None, None, rate)
    if concurrency_key is None:
        raise InvalidArgumentError(
            "max_per_key: given without concurrency_key; expected both, or `max_in_flight` to limit"
            " all items together"
        )
    if not callable(concurrency_key) or is_async(concurrency_key):
        raise InvalidArgumentError(
            f"concurrency_key: got {concurrency_key!r}; expected a plain function that returns"
            " the key of an item, or None"
        )
    if max_per_key is None and rate is None:
        raise InvalidArgumentError(
            "concurrency_key: given without max_per_key; expected both, or a rate for each key"
        )
    if max_per_key is not None:
        max_per_key = checked_count(max_per_key, "max_per_key", least=1)
    return KeyLimit(concurrency_key, max_per_key, rate)


def _checked_buckets(rate: Any, burst: Any) -> TokenBuckets | None:
    if rate is None:
        if burst is not None:
            raise InvalidArgumentError(
                f"burst: got {burst!r} without rate; expected both, as in rate=per_second(100)"
            )
        return None
    if not isinstance(rate, Rate | AdaptiveRate):
        raise InvalidArgumentError(
            f"rate: got {rate!r}; expected per_second(100), per_minute(20), an AdaptiveRate, or"
            " None"
        )
    burst = 1 if burst is None else checked_count(burst, "burst", least=1)
    return TokenBuckets(rate, burst) if isinstance(rate, Rate) else AdaptiveBuckets(rate, burst)
