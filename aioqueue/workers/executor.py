"""The interface of executors, which run a job's function in tasks, threads and so on.

`Executor` registers each class that implements it. `find_executor` returns the class for the
``where`` of a `prepare`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar, Final, Self, get_args

from aioqueue import InvalidArgumentError
from aioqueue.base.arguments import EnqueueOp, function_name, is_async
from aioqueue.workers.job import Job
from aioqueue.workers.options import Where

FILES: Final[Mapping[str, tuple[str, ...]]] = {
    "task": ("tasks",),
    "thread": ("threads", "timed_threads"),
    "process": ("processes",),
    "interpreter": ("interpreters",),
    "ray": ("ray",),
}
"""The files of `aioqueue.workers.executors` that have the executors of each ``where``.

A file is imported when a job needs it, because processes and Ray bring much along."""

_registry: Final[dict[tuple[str, bool], type[Executor]]] = {}
"""The executors that were imported, by their ``where``, and by whether items have a time limit."""


class Executor(ABC):
    """Runs the function of one `Job` for its items, in one kind of worker.

    The job decides everything: what a failure means, how many items may be in flight, in which
    order examples are enqueued, and when it is over. An executor moves items from the source to the
    function and results to the queue, and reports to the job. To add an executor, write a subclass
    in a file of its own, add that file to `FILES`, and its name to `Where`. A subclass sets all of
    the attributes below, which have no defaults. A base that executors share says
    ``registered=False``.

    An executor promises:

    **Workers.** `enqueue_ops` returns one op for each worker of the job (``job.count``), and any
    number of helper ops, for example to read the source. An op is called once and is the whole life
    of its worker. It begins with `Job.enter` and ends by raising the result of `Job.leave`,
    whatever has happened in between. (Helpers only raise: `Job.nothing_more` when there is nothing
    more to do.) Plain functions run on threads, coroutine functions as tasks of one event loop.

    **Every item once.** `InFlightWindow.enter` counts an item before it is taken from the source.
    From then on the executor keeps track of the item until it has become a `Prepared`. It passes
    that to `Job.item_prepared` and, when its examples are in the queue, to `Job.item_delivered`:
    exactly once, even if a process or machine with the item is lost and the item is prepared again.
    It enqueues no example as long as the item might be prepared once more.

    **Failures.** If the function raises, the executor calls `Job.failure_of_item` and then
    `PrepareProgress.failed`, which decides whether and when to retry the item. If the source
    raises, it calls `Job.source_raised`; if the queue raises, `Job.not_enqueued`. A failure from
    elsewhere has the remote traceback as its cause. The loss of a worker process is not a failure
    of an item, unless the item causes it again and again.

    **More and fewer workers.** The first op is that of a worker. It may be called more often, or
    end before the others. A worker calls `Job.dismiss` whenever it has no item, and before it waits
    for one.

    **The stop.** Every stop comes in one way: the job calls `stop`, in any thread. Then no worker
    takes another item. All that wait (for the source, for room, for a key's place, for a retry, for
    the queue, for an answer) end at once, with `Job.nothing_more`, and so do remote calls that can
    be ended. Only a plain function that runs on one of our threads is waited for. Nothing polls.

    **The drain.** For the job, the source ends at once (``job.source_ended``). `notify_room` then
    makes the worker that waits for room look again. If the workers are tasks of a loop, which not
    every thread may wake, the executor sets ``job.call_soon`` before they take anything.

    **Per-key limits.** If the job has a ``key_limit``, every item that is sent out was admitted by
    it, one item at a time for each worker, and gives its place back when its outcome has arrived.
    `ThreadInbox` does that for executors whose workers are threads.

    `ThreadSource`, `ThreadDelivery` and `WorkerThreads` are the common parts of executors that use
    one thread here per worker. With them, an executor only implements how an item gets to the
    function and how its outcome comes back.

    Args:
        job: the job.
    """

    where: ClassVar[str]
    """The value of ``where`` that selects it."""
    worker_name: ClassVar[str]
    """What one worker is called."""
    worker_plural: ClassVar[str]
    per_worker: ClassVar[int]
    """The default of ``max_in_flight``, per worker, for items that become one example each."""
    limit_bytes: ClassVar[int | None]
    """The default of ``limit_bytes``."""
    most_workers: ClassVar[int | None]
    """The most workers that tuning starts; ``None``: the number of cores."""
    is_async: ClassVar[bool]
    """Whether it runs coroutine functions, rather than plain ones."""
    is_timed: ClassVar[bool | None]
    """Whether it runs only jobs with an ``item_timeout`` (``True``), only jobs without one
    (``False``), or both (``None``)."""
    takes_ray: ClassVar[bool]
    """Whether it takes the option ``ray``."""

    def __init_subclass__(cls, *, registered: bool = True, **options: Any) -> None:
        super().__init_subclass__(**options)
        if not registered:
            return
        missing = [name for name in _ATTRIBUTES if not hasattr(cls, name)]
        if missing:
            raise TypeError(f"{cls.__qualname__} lacks the attributes {', '.join(missing)}")
        for is_timed in (False, True) if cls.is_timed is None else (cls.is_timed,):
            other = _registry.setdefault((cls.where, is_timed), cls)
            if other is not cls:
                raise TypeError(
                    f"{cls.__qualname__} and {other.__qualname__} both run where={cls.where!r}"
                    f" {'with' if is_timed else 'without'} an item_timeout"
                )

    def __init__(self, job: Job) -> None:
        self._job = job

    @classmethod
    def build(cls, job: Job, ray: Mapping[str, Any] | None) -> Self:
        """Make the executor of a job.

        Args:
            job: the job.
            ray: the option of `prepare`; ``None`` unless it `takes_ray`.
        """
        return cls(job)

    @classmethod
    def counted(cls, count: int) -> str:
        return f"{count} {cls.worker_plural if count > 1 else cls.worker_name}"

    @abstractmethod
    def enqueue_ops(self) -> list[EnqueueOp]:
        """Return the ops of the workers and helpers, for a `QueueRunner`."""

    @abstractmethod
    def stop(self) -> None:
        """End all waits of the workers. Any thread or signal handler may call it, at any time and
        more than once. It neither waits nor raises."""

    @abstractmethod
    def notify_room(self) -> None:
        """Wake the worker that waits for room, if ``job.is_room_awaited``.

        Another item may come in now, or none ever will; or an item has left after the end of the
        source, perhaps the last one. A worker calls it, or ``job.call_soon``, under the job's lock.
        It does not wait."""

    @abstractmethod
    def notify_resize(self) -> None:
        """Wake the workers that wait for an item or for room, because their number (``job.count``)
        has changed: they call `Job.dismiss`, or there is room now. Any thread may call it, under
        the job's lock. It does not wait."""

    @abstractmethod
    def end(self) -> BaseException | None:
        """Release everything, as the last worker leaves. Return what has failed in that."""


_ATTRIBUTES: Final = tuple(Executor.__annotations__)


def find_executor(where: Any, function: Any, *, is_timed: bool) -> type[Executor]:
    """Return the executor for the workers of a `prepare`.

    Args:
        where: the kind of worker, as the user gave it.
        function: the function, as the user gave it.
        is_timed: whether items have a time limit.

    Raises:
        InvalidArgumentError: there is no such kind, or it does not run such functions.
    """
    if not callable(function):
        raise InvalidArgumentError(f"function: got {function!r}; expected a callable")
    names = get_args(Where)
    if where not in names:
        *most, last = map(repr, names)
        raise InvalidArgumentError(f"where: got {where!r}; expected {', '.join(most)} or {last}")
    if where == "auto":
        where = "task" if is_async(function) else "thread"
    _import_files(where)
    executor = _registry[where, is_timed]
    if executor.is_async is not is_async(function):
        what = "a coroutine function" if executor.is_async else "a plain function"
        raise InvalidArgumentError(
            f"function: got {function_name(function)!r} with where={where!r}; expected {what}, or"
            " where='auto'"
        )
    return executor


def all_executors() -> list[type[Executor]]:
    """Return the executors of all files, each once. It imports the files."""
    for where in FILES:
        _import_files(where)
    return list(dict.fromkeys(_registry.values()))


def _import_files(where: str) -> None:
    for file in FILES[where]:
        import_module(f"aioqueue.workers.executors.{file}")
