"""What a viewer of traces makes of a file: a strict reading of Chrome's Trace Event Format.

As Perfetto's trace processor does, it counts whole nanoseconds, cut off, puts all events in order
of their times, and keeps a stack of slices for each track; but where that one drops an event and
goes on, this one fails.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, NoReturn

__all__ = ("Opened", "Slice", "opened", "read")

_NAMES = {
    "process_name": ("name", str),
    "thread_name": ("name", str),
    "process_sort_index": ("sort_index", int),
    "thread_sort_index": ("sort_index", int),
}
_FIELDS = {
    "M": {"ph", "name", "pid", "tid", "ts", "args"},
    "X": {"ph", "name", "cat", "pid", "tid", "ts", "dur", "args"},
    "C": {"ph", "name", "pid", "tid", "ts", "args"},
}


@dataclass(frozen=True)
class Slice:
    """One slice, in nanoseconds, and how many others it lies in."""

    name: str
    begin: int
    end: int
    depth: int
    args: dict[str, Any]


@dataclass
class Opened:
    """What is shown.

    Attributes:
        groups: what processes are called, in the order in which they stand.
        tracks: slices in order, by process and thread.
        counters: values over time, by name.
    """

    groups: list[str] = field(default_factory=list)
    tracks: dict[tuple[str, str], list[Slice]] = field(default_factory=dict)
    counters: dict[str, list[tuple[int, float]]] = field(default_factory=dict)


def opened(path: Path, seconds: float) -> Opened:
    """Open a file: of a trace that was taken for so many seconds, at most."""
    document = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_number)
    assert set(document) == {"traceEvents", "displayTimeUnit"}
    assert document["displayTimeUnit"] in ("ms", "ns")
    return read(document["traceEvents"], seconds)


def read(events: list[dict[str, Any]], seconds: float) -> Opened:
    """The same of its events."""
    for event in events:
        _check(event, seconds)
    metadata: dict[tuple[str, int, int], Any] = {}
    for event in events:
        if event["ph"] == "M":
            key = (event["name"], event["pid"], event["tid"])
            assert key not in metadata, f"a second name: {event}"
            [metadata[key]] = event["args"].values()
    names = {pid: name for (what, pid, _), name in metadata.items() if what == "process_name"}
    places = {pid: metadata["process_sort_index", pid, 0] for pid in names}
    shown = Opened([names[pid] for pid in sorted(names, key=places.__getitem__)])
    stacks: dict[tuple[int, int], list[int]] = {}
    for event in sorted(events, key=lambda one: _nanoseconds(one["ts"])):  # which is stable
        pid, tid = event["pid"], event["tid"]
        if event["ph"] == "C":
            (value,) = event["args"].values()
            shown.counters.setdefault(event["name"], []).append((_nanoseconds(event["ts"]), value))
        elif event["ph"] == "X":
            track = (names[pid], metadata["thread_name", pid, tid])
            found = _put_on(stacks.setdefault((pid, tid), []), event)
            shown.tracks.setdefault(track, []).append(found)
    return shown


def _put_on(ends: list[int], event: dict[str, Any]) -> Slice:
    """Add a slice to the open ones, by their ends: it must lie within the last of them."""
    begin = _nanoseconds(event["ts"])
    end = begin + _nanoseconds(event["dur"])
    while ends and ends[-1] <= begin:
        ends.pop()
    assert not ends or end <= ends[-1], f"overlaps the one before, and would be dropped: {event}"
    ends.append(end)
    return Slice(event["name"], begin, end, len(ends) - 1, event["args"])


def _check(event: dict[str, Any], seconds: float) -> None:
    """Whether an event has the fields of its phase, and they are what they should be."""
    assert set(event) == _FIELDS[event["ph"]], event
    assert isinstance(event["name"], str), event
    assert event["name"], event
    assert type(event["pid"]) is type(event["tid"]) is int, event
    assert _is_number(event["ts"]), event
    assert 0 <= event["ts"] <= 1e6 * seconds, event
    assert isinstance(event["args"], dict), event
    if event["ph"] == "M":
        [(key, value)] = event["args"].items()
        name, kind = _NAMES[event["name"]]
        assert key == name, event
        assert type(value) is kind, event
    elif event["ph"] == "X":
        assert _is_number(event["dur"]), event
        assert event["dur"] >= 0, event
        assert event["cat"] in ("work", "wait"), event
    else:
        assert event["args"], event
        assert all(map(_is_number, event["args"].values())), event


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and isfinite(value)


def _nanoseconds(microseconds: float) -> int:
    return int(microseconds * 1000.0)


def _no_number(text: str) -> NoReturn:
    raise AssertionError(f"no JSON: {text}")
