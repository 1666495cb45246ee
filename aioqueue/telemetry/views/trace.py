"""Records a few seconds of a run, event by event, for Perfetto (https://ui.perfetto.dev).

While a trace is in progress, each worker writes what it does to a ring of its own, which keeps the
latest events. Where items are quick, it records only a sample, so that tracing stays cheap. A
thread samples how full queues are. The result is a file in Chrome's Trace Event Format, which
Perfetto and ``chrome://tracing`` open: a track for every worker, with a slice for every item and
every wait; a counter for every queue; and the training step.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import floor
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol

from aioqueue.base.display_text import on_one_line
from aioqueue.core.meters import Event, EventRing, Meter, Tracer
from aioqueue.telemetry.metrics.snapshots import Snapshot

_SAMPLES_PER_SECOND: Final = 10
"""Samples of the queues per second."""


class Track(NamedTuple):
    """What one worker did.

    Attributes:
        of: name of the stage that it belongs to.
        name: name of the worker.
        events: its events.
    """

    of: str
    name: str
    events: Sequence[Event]


class Traceable(Protocol):
    """A run that can be traced."""

    def snapshot(self) -> Snapshot: ...

    def _sizes(self) -> dict[str, int]: ...

    def _trace(self, tracer: Tracer) -> None: ...

    def _stop_tracing(self, tracer: Tracer) -> None: ...


_lock: Final = threading.RLock()
"""Guards who reads the ring of a worker."""


class Trace:
    """A trace in progress, taken by a thread of its own while the run continues.

    It ends after its seconds, at the end of its ``with`` block, or with `stop`. Then the file is
    written atomically.

    Args:
        of: the run.
        path: the file.
        seconds: most seconds to record, > 0.
    """

    def __init__(self, of: Traceable, path: str | os.PathLike[str], seconds: float) -> None:
        self._of = of
        self._path = Path(path)
        self._seconds = seconds
        self._workers: list[tuple[str, Meter, EventRing]] = []
        self._samples: list[tuple[float, dict[str, int]]] = []
        self._stopped = threading.Event()
        self._failure: BaseException | None = None
        self._began = perf_counter()
        of._trace(self._add_worker)
        self._thread = threading.Thread(target=self._run, name="aioqueue-trace", daemon=True)
        self._thread.start()

    def __enter__(self) -> Trace:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End the trace, if it has not ended, and wait until the file is written.

        Raises:
            OSError: the file cannot be written.
        """
        self._stopped.set()
        self.wait()

    def wait(self) -> None:
        """Wait until the trace has ended and the file is written.

        Raises:
            OSError: the file cannot be written.
        """
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            self._sample_queues()
        except BaseException as error:
            self._failure = error
        finally:
            self._of._stop_tracing(self._add_worker)
            for _, meter, ring in self._workers:
                with _lock:
                    ring.traces -= 1
                    if not ring.traces and meter.ring is ring:
                        meter.ring = None
        try:
            self._write()
        except BaseException as error:
            self._failure = self._failure or error

    def _sample_queues(self) -> None:
        end = self._began + self._seconds
        while True:  # at least once, however late a busy machine lets this thread begin
            now = perf_counter()
            self._samples.append((now, self._of._sizes()))
            if now >= end or self._stopped.wait(min(1 / _SAMPLES_PER_SECOND, end - now)):
                break

    def _add_worker(self, track: str, meter: Meter) -> None:
        """Give a ring to a worker, or read that of another trace."""
        if any(known is meter for _, known, _ in self._workers):
            return
        with _lock:  # two traces of one run share the rings, which end with the last of them
            meter.ring = ring = meter.ring or EventRing()
            ring.traces += 1
        self._workers.append((track, meter, ring))

    def _write(self) -> None:
        ended = perf_counter()
        order = [stage.name for stage in self._of.snapshot().stages]
        tracks = (  # one at a time, since all events together may be many
            track
            for of, meter, ring in self._workers
            for track in _split_by_process(Track(of, meter.name, ring.events()))
        )
        events = events_of(tracks, self._samples, self._began, ended, order)
        unfinished = self._path.with_name(f"{self._path.name}.unfinished")
        with unfinished.open("w", encoding="utf-8") as file:
            file.writelines(_document(events))
        unfinished.replace(self._path)


def _document(events: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Yield the text of the file, one event a line. Encoding all events at once would take more
    memory than they do, and hold the GIL for that long."""
    encode = json.JSONEncoder(separators=(",", ":")).encode
    yield '{"displayTimeUnit":"ms","traceEvents":[\n'
    separator = ""
    for event in events:
        yield f"{separator}{encode(event)}"
        separator = ",\n"
    yield "\n]}\n"


def events_of(
    tracks: Iterable[Track],
    samples: Iterable[tuple[float, Mapping[str, int]]],
    began: float,
    ended: float,
    order: Iterable[str] = (),
) -> Iterator[dict[str, Any]]:
    """Yield the events of a trace in its format; times are microseconds since it began.

    Args:
        tracks: what the workers did.
        samples: samples of the queues: the time, and the size of each queue.
        began: when the trace began.
        ended: when the trace ended.
        order: the names of the stages, in the order of the data flow.
    """
    ids = _TrackIds(order)
    for track in tracks:
        process, thread = ids.of(track)
        yield from ids.take_metadata()
        slices = [
            _slice(event, track.of, process, thread, began)
            for event in track.events
            if event.ended > began and event.began < ended
        ]
        yield from sorted(slices, key=_sort_key)
    process = ids.queues()
    yield from ids.take_metadata()
    for when, sizes in samples:
        for name, size in sizes.items():
            yield {
                "ph": "C",
                "name": on_one_line(name),
                "pid": process,
                "tid": 0,
                "ts": _microseconds(when - began),
                "args": {"elements": size},
            }


def _split_by_process(track: Track) -> list[Track]:
    """Return the tracks of a worker. A worker process has two: its own, and that of its thread
    here."""
    elsewhere = [event for event in track.events if event.doing == "works elsewhere"]
    if not elsewhere:
        return [track]
    here = [event for event in track.events if event.doing != "works elsewhere"]
    return [
        Track(track.of, track.name, elsewhere),
        Track(track.of, f"thread of {track.name}", here),
    ]


def _slice(event: Event, of: str, process: int, thread: int, began: float) -> dict[str, Any]:
    begin = _microseconds(max(0.0, event.began - began))  # clip events that began before the trace
    works = event.doing in ("works", "works elsewhere")
    args = {} if event.item is None else {"item": event.item}
    return {
        "ph": "X",
        "name": on_one_line(of) if works else event.doing,
        "cat": "work" if works else "wait",
        "pid": process,
        "tid": thread,
        "ts": begin,
        "dur": _microseconds(event.ended - began) - begin,
        "args": {**args, "items": event.items} if event.items > 1 else args,
    }


def _sort_key(of: Mapping[str, Any]) -> tuple[float, float]:
    """Sort events by time, and longer ones first, since shorter ones are nested in them."""
    return of["ts"], -of["dur"]


def _microseconds(seconds: float) -> float:
    """Return microseconds rounded to eighths, which add up exactly in binary.

    So slices stay nested or disjoint. Viewers drop one of two slices that overlap by a nanosecond.
    """
    return floor(8e6 * seconds) / 8


@dataclass
class _TrackIds:
    """Numbers the tracks, which the format calls processes, and the workers in them.

    Attributes:
        order: tracks in their order; others follow.
    """

    order: Iterable[str]
    _processes: dict[str, int] = field(default_factory=dict)
    _threads: dict[str, int] = field(default_factory=dict)
    _metadata: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for track in self.order:
            self._process(track)

    def of(self, track: Track) -> tuple[int, int]:
        process = self._process(track.of)
        thread = self._threads[track.of] = self._threads.get(track.of, 0) + 1
        self._add_metadata("thread_name", process, thread, name=on_one_line(track.name))
        self._add_metadata("thread_sort_index", process, thread, sort_index=thread)
        return process, thread

    def queues(self) -> int:
        return self._process("queues")

    def take_metadata(self) -> list[dict[str, Any]]:
        """Return the events that name tracks, those that were not returned yet."""
        metadata, self._metadata = self._metadata, []
        return metadata

    def _process(self, track: str) -> int:
        if track not in self._processes:
            process = self._processes[track] = len(self._processes) + 1
            self._add_metadata("process_name", process, 0, name=on_one_line(track))
            self._add_metadata("process_sort_index", process, 0, sort_index=process)
        return self._processes[track]

    def _add_metadata(self, what: str, process: int, thread: int, **args: object) -> None:
        self._metadata.append(
            {"ph": "M", "name": what, "pid": process, "tid": thread, "ts": 0, "args": args}
        )
