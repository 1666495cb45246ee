"""What a monitor sees of a `prepare`."""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import Any

from aioqueue.inputs.prepare.job import Job
from aioqueue.meters import Tracer
from aioqueue.telemetry import Histogram, Mortal, StageNumbers

__all__ = ("JobStage",)


class JobStage(Mortal):
    """The workers of a job, as a part of what a monitor watches.

    Args:
        job: whose workers they are.
        name: of the function.
        where: what runs it.
    """

    def __init__(self, job: Job, name: str, where: str) -> None:
        self.key: Hashable = id(self)
        self.name = name
        self.source: str | None = None if job.feed.queue is None else job.feed.queue.name
        self._job = job
        self._where = where

    @property
    def is_over(self) -> bool:
        """Whether all its workers have ended."""
        return self._job.state == "ended"

    def queues(self) -> list[Any]:
        """The queue that it reads, if it is known, and the one that it fills."""
        feed, into = self._job.feed, self._job.into
        return [into] if feed.queue is None else [feed.queue, into]

    def look(self, now: float) -> None:
        """See what its workers are at, and have them measure their turns."""
        self._job.gauge.look(now)

    def look_no_more(self) -> None:
        """Nobody looks any more: no further turns are measured."""
        self._job.gauge.is_on = False

    def trace(self, tracer: Tracer | None) -> None:
        """Tell of each worker that there is, and that comes; ``None``: no more."""
        self._job.gauge.trace(None if tracer is None else partial(tracer, self.name))

    def numbers(self, now: float) -> StageNumbers:
        """What it has done so far."""
        job, gauge = self._job, self._job.gauge
        workers, total = gauge.workers(), gauge.sum(now)
        counts, keys = job.progress.statistics(), job.key_limit
        delivered = counts.prepared + counts.left_out
        return StageNumbers(
            name=self.name,
            where=self._where,
            source=self.source or next((one.reads for one in workers if one.reads), None),
            into=job.into.name,
            workers=tuple(worker.numbers(now) for worker in workers),
            resizable=True,
            taken=delivered + counts.skipped + counts.in_flight,
            delivered=delivered,
            skipped=counts.skipped,
            retried=counts.retried,
            in_flight=counts.in_flight,
            in_flight_bytes=job.window.bytes if job.window.limit_bytes is not None else None,
            limit=job.window.limit,
            service=Histogram(*total.service),
            cpu_sampled=total.cpu_sampled,
            cpu=total.cpu,
            source_waits=Histogram(*gauge.source_waits.counted()),
            blocked=total.blocked,
            starved=total.starved,
            seconds_window_full=gauge.full_until(now),
            ordered=job.is_ordered,
            busy=total.busy,
            alive=total.alive,
            fed=total.fed,
            deaths=total.deaths,
            limit_bytes=job.window.limit_bytes,
            seconds_bytes_full=gauge.bytes_full_until(now),
            looks=gauge.locks.looks,
            in_line=gauge.locks.in_line,
            lock=gauge.locks.lock,
            at_most=None if keys is None else keys.at_most,
            seconds_keys_full=0.0 if keys is None else keys.seconds_short(now),
            full_key=None if keys is None else keys.fullest(),
        )
