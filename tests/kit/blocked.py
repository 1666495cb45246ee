"""Whether a program polls, asked of the operating system and without a clock.

A thread that polls runs, or sleeps in a call of the system that has a limit, at each moment of its
life. So one moment in which every thread waits in a call without a limit shows that none of them
polls, and that no timer runs, however long its period is.
"""

from __future__ import annotations

import platform
import threading
from pathlib import Path
from typing import Final

_ALWAYS: Final = ("read", "recvfrom", "recvmsg", "accept", "accept4", "flock", "wait4", "waitid")
"""Calls that wait without a limit."""

_BY_POINTER: Final = {"futex": 3, "select": 4, "pselect6": 4, "ppoll": 2}
"""The arguments that point to a limit, or are null."""

_BY_NUMBER: Final = {"poll": 2, "epoll_wait": 3, "epoll_pwait": 3}
"""The arguments that are milliseconds, or negative."""

_NAMES: Final = {
    "x86_64": {
        0: "read",
        7: "poll",
        23: "select",
        43: "accept",
        45: "recvfrom",
        47: "recvmsg",
        61: "wait4",
        73: "flock",
        202: "futex",
        232: "epoll_wait",
        247: "waitid",
        270: "pselect6",
        271: "ppoll",
        281: "epoll_pwait",
        288: "accept4",
    },
    "aarch64": {
        22: "epoll_pwait",
        32: "flock",
        63: "read",
        72: "pselect6",
        73: "ppoll",
        95: "waitid",
        98: "futex",
        202: "accept",
        207: "recvfrom",
        212: "recvmsg",
        242: "accept4",
        260: "wait4",
    },
}.get(platform.machine(), {})

_A_DAY: Final = 86_400_000
"""Milliseconds that an event loop of trio without a deadline waits at a time."""


def can_be_seen() -> bool:
    """Whether the system says in which call a thread waits."""
    try:
        return bool(_NAMES) and bool(Path("/proc/self/syscall").read_text())
    except OSError:
        return False


def threads_of(pid: int | str = "self") -> set[int]:
    return {int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()}


def with_a_limit(
    pid: int | str = "self", without: set[int] | frozenset[int] = frozenset()
) -> set[str]:
    """Return which threads of a process run, or wait for no longer than some time.

    Args:
        pid: the process.
        without: the native identifiers of threads that are left out.
    """
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    found = set()
    for thread in threads_of(pid) - without:
        try:
            text = Path(f"/proc/{pid}/task/{thread}/syscall").read_text()
        except OSError:
            continue  # it has ended
        how = _limit_in(text.split())
        if how:
            name = names.get(thread, thread) if pid == "self" else f"{thread} of process {pid}"
            found.add(f"{name} {how}")
    return found


def _limit_in(words: list[str]) -> str:
    if words[0] == "running":
        return "runs"
    name = _NAMES.get(int(words[0]))
    arguments = [int(word, 16) for word in words[1:7]]
    if name is None:
        return f"is in call {words[0]}"
    if name in _ALWAYS:
        return ""
    if name in _BY_POINTER:
        return f"waits in {name} with a limit" if arguments[_BY_POINTER[name]] else ""
    milliseconds = arguments[_BY_NUMBER[name]] & 0xFFFFFFFF
    if milliseconds >= 2**31 or milliseconds == _A_DAY:
        return ""
    return f"waits in {name} for {milliseconds} ms"
