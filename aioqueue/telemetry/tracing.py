"""A few seconds of a run, event by event, for Perfetto (https://ui.perfetto.dev).

Workers write what they have done into rings of their own, one each, and only while a trace is
taken: a ring keeps the latest events, and what is older is gone. A thread reads how full queues are
from time to time. In the end all of it becomes one file in Chrome's Trace Event Format, which
Perfetto and ``chrome://tracing`` open: a track for every worker, with a slice for every item and
for every wait; a counter for every queue; and the training step.
"""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol

from aioqueue.telemetry.numbers import Snapshot

__all__ = ("Event", "Ring", "Rings", "Trace", "Traceable", "events_of")

_EVENTS: Final = 65_536
"""In one ring: the latest that many."""

_LOOKS: Final = 50
"""Times a second that queues are looked at."""

_SHORTEST: Final = 2e-6
"""Seconds: a wait that is shorter is none."""


class Event(NamedTuple):
    """What a worker did for a time.

    Attributes:
        name: what it did.
        began: when, on the clock of `time.perf_counter`.
        ended: until when.
        item: index of the item that it did that for; `None`: of none.
    """

    name: str
    began: float
    ended: float
    item: int | None


class Ring:
    """The latest events of one worker, which alone writes them.

    Args:
        track: what the worker belongs to: the name of a stage.
        name: of the worker.
    """

    __slots__ = ("_events", "name", "track")

    def __init__(self, track: str, name: str) -> None:
        self.track = track
        self.name = name
        self._events: deque[Event] = deque(maxlen=_EVENTS)

    def add(self, name: str, began: float, ended: float, item: int | None = None) -> None:
        """The worker has done something."""
        self._events.append(Event(name, began, ended, item))

    def waited(self, what: str, began: float, ended: float) -> None:
        """The worker has waited, if that was no matter of microseconds."""
        if ended - began >= _SHORTEST:
            self._events.append(Event(what, began, ended, None))

    def events(self) -> list[Event]:
        """Those that it keeps, for any thread."""
        return list(self._events)


class Rings:
    """All rings of a trace. Thread-safe."""

    def __init__(self) -> None:
        self._rings: list[Ring] = []

    def ring(self, track: str, name: str) -> Ring:
        """One more, for a worker."""
        ring = Ring(track, name)
        self._rings.append(ring)
        return ring

    def all(self) -> list[Ring]:
        """Those that there are."""
        return list(self._rings)


class Traceable(Protocol):
    """A run that can be traced."""

    def snapshot(self) -> Snapshot:
        """The numbers of now."""

    def _write_into(self, rings: Rings | None) -> None:
        """Have all workers write into rings of their own from now on, those too that come later;
        or no more."""


class Trace:
    """A trace that is being taken: by a thread of its own, so that the run goes on.

    It ends after its seconds, at the end of its ``with`` block, or with `stop`; then the file is
    written, as a whole or not at all.

    Args:
        of: the run.
        path: the file.
        seconds: how long it goes on at most, > 0.
    """

    def __init__(self, of: Traceable, path: str | os.PathLike[str], seconds: float) -> None:
        self._of = of
        self._path = Path(path)
        self._seconds = seconds
        self._rings = Rings()
        self._looks: list[tuple[float, dict[str, int]]] = []
        self._stopped = threading.Event()
        self._failure: BaseException | None = None
        self._began = perf_counter()
        of._write_into(self._rings)
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
        """End it now, if it has not ended, and wait until the file is written.

        Raises:
            OSError: the file cannot be written.
        """
        self._stopped.set()
        self.wait()

    def wait(self) -> None:
        """Wait until it has ended, and the file is written.

        Raises:
            OSError: the file cannot be written.
        """
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        """The life of its thread."""
        try:
            self._look_on()
        except BaseException as error:
            self._failure = error
        finally:
            self._of._write_into(None)
        try:
            self._write()
        except BaseException as error:
            self._failure = self._failure or error

    def _look_on(self) -> None:
        end = self._began + self._seconds
        while (now := perf_counter()) < end:
            snapshot = self._of.snapshot()
            self._looks.append((now, {queue.name: queue.size for queue in snapshot.queues}))
            if self._stopped.wait(min(1 / _LOOKS, end - now)):
                break

    def _write(self) -> None:
        ended = perf_counter()
        tracks = [stage.name for stage in self._of.snapshot().stages]
        document = {
            "traceEvents": list(
                events_of(self._rings.all(), self._looks, self._began, ended, tracks)
            ),
            "displayTimeUnit": "ms",
        }
        unfinished = self._path.with_name(f"{self._path.name}.unfinished")
        unfinished.write_text(json.dumps(document, separators=(",", ":")), encoding="utf-8")
        unfinished.replace(self._path)


def events_of(
    rings: Iterable[Ring],
    looks: Iterable[tuple[float, Mapping[str, int]]],
    began: float,
    ended: float,
    order: Iterable[str] = (),
) -> Iterator[dict[str, Any]]:
    """All events of a trace, as the format has them; times are microseconds since it began.

    Args:
        rings: what workers have written.
        looks: when was looked at queues, and how many elements were in each.
        began: when the trace began.
        ended: when it ended.
        order: tracks, in the order in which data go through them.
    """
    groups = _Groups(order)
    for ring in rings:
        process, thread = groups.of(ring)
        yield from groups.news()
        for event in ring.events():
            if event.ended > began and event.began < ended:
                yield _slice(event, process, thread, began)
    process = groups.queues()
    yield from groups.news()
    for when, sizes in looks:
        for name, size in sizes.items():
            yield {
                "ph": "C",
                "name": name,
                "pid": process,
                "tid": 0,
                "ts": _microseconds(when - began),
                "args": {"elements": size},
            }


def _slice(event: Event, process: int, thread: int, began: float) -> dict[str, Any]:
    begin = max(event.began, began)  # of what had begun before, as much as was seen
    found = {
        "ph": "X",
        "name": event.name,
        "cat": "work" if event.item is not None else "wait",
        "pid": process,
        "tid": thread,
        "ts": _microseconds(begin - began),
        "dur": _microseconds(event.ended - begin),
    }
    return found if event.item is None else {**found, "args": {"item": event.item}}


def _microseconds(seconds: float) -> float:
    return round(1e6 * seconds, 3)


@dataclass
class _Groups:
    """Numbers for tracks, which the format calls processes, and for workers in them.

    Attributes:
        order: tracks in their order; others come after them.
    """

    order: Iterable[str]
    _processes: dict[str, int] = field(default_factory=dict)
    _threads: dict[str, int] = field(default_factory=dict)
    _news: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for track in self.order:
            self._process(track)

    def of(self, ring: Ring) -> tuple[int, int]:
        """Those of a worker."""
        process = self._process(ring.track)
        thread = self._threads[ring.track] = self._threads.get(ring.track, 0) + 1
        self._say("thread_name", process, thread, name=ring.name)
        self._say("thread_sort_index", process, thread, sort_index=thread)
        return process, thread

    def queues(self) -> int:
        """That of the queues."""
        return self._process("queues")

    def news(self) -> list[dict[str, Any]]:
        """Names that have not been told yet."""
        news, self._news = self._news, []
        return news

    def _process(self, track: str) -> int:
        if track not in self._processes:
            process = self._processes[track] = len(self._processes) + 1
            self._say("process_name", process, 0, name=track)
            self._say("process_sort_index", process, 0, sort_index=process)
        return self._processes[track]

    def _say(self, what: str, process: int, thread: int, **told: object) -> None:
        self._news.append(
            {"ph": "M", "name": what, "pid": process, "tid": thread, "ts": 0, "args": told}
        )
