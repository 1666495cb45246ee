"""A job without its surroundings: a run and an executor that only record their calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aioqueue import sync
from aioqueue.base.arguments import EnqueueOp
from aioqueue.items.item import Item
from aioqueue.sources.source_reader import SourceReader
from aioqueue.system.locks import is_held_here
from aioqueue.workers.calls import ItemCall
from aioqueue.workers.flow_control import InFlightWindow
from aioqueue.workers.job import Job
from aioqueue.workers.key_limits import KeyLimit
from aioqueue.workers.options import OnError
from aioqueue.workers.retries import FailurePolicy, PrepareProgress, QuarantineList


class Run:
    """A run that is over when the test says so."""

    def __init__(self, *, in_time: bool = True) -> None:
        self.began_in_time = in_time
        self.callbacks: list[Callable[[], object]] = []

    def call_when_over(self, callback: Callable[[], object]) -> None:
        self.callbacks.append(callback)


class Executor:
    """Counts its calls, and records whether the job's lock was held then."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.stops = self.rooms = self.ends = self.resizes = 0
        self.failure: BaseException | None = None
        self.order: list[str] = []

    def enqueue_ops(self) -> list[EnqueueOp]:
        return []

    def stop(self) -> None:
        assert self.job.is_halted
        self.stops += 1

    def notify_room(self) -> None:
        assert is_held_here(self.job.lock)
        self.rooms += 1

    def notify_resize(self) -> None:
        assert is_held_here(self.job.lock)
        self.resizes += 1

    def end(self) -> BaseException | None:
        self.ends += 1
        return self.failure


class Made:
    """A job of so many workers, and what is around it."""

    def __init__(
        self,
        count: int = 2,
        *,
        ordered: bool = False,
        limit_bytes: int | None = None,
        on_error: OnError = "stop",
        max_failures: float | None = None,
        in_time: bool = True,
        key_limit: KeyLimit | None = None,
        function: Callable[..., Any] = abs,
        source: Any = (),
        dtype: Any = None,
        by_item: bool = False,
        fit: Callable[[Any], Any] | None = None,
    ) -> None:
        self.queue = sync.FIFOQueue(9, dtype, name="images")
        self.window = InFlightWindow(9, limit_bytes, count)
        policy = FailurePolicy(on_error, max_failures, has_quarantine=False)
        self.progress = PrepareProgress(policy, QuarantineList(), 0, self.window)
        self.job = Job(
            SourceReader(source),
            self.queue,
            ItemCall(function, 0, False),
            self.progress,
            self.window,
            ordered=ordered,
            count=count,
            key_limit=key_limit,
            by_item=by_item,
            fit=fit,
        )
        self.executor = Executor(self.job)
        self.job.is_room_awaited = True
        self.run = Run(in_time=in_time)
        self.job.begin(self.run, self.executor)

    def taken(self, number: int = 0) -> Item:
        """An item that has come in."""
        self.window.enter()
        return Item(number, number, 0, number)

    def exhausted(self) -> BaseException:
        """Have the source end; returns by what the worker ends that has asked."""
        self.window.enter()
        return self.job.source_raised(StopIteration())
