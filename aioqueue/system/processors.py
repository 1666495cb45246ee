"""How many processors this process may use: by its affinity, and by the quota of its control group.

A container on a machine with 64 processors often may use two of them. Its quota is not part of what
`os.cpu_count` or the affinity say.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

_ROOT: Final = Path("/")

_MOUNT: Final = re.compile(r"\S+ \S+ \S+ (\S+) (\S+) .*- (cgroup2?) \S+ (\S+)$")
"""A line of mountinfo: what is shown of the control groups, where, their kind and options."""
_OCTAL: Final = re.compile(r"\\(\d{3})")
"""How mountinfo writes spaces and backslashes in names."""


def usable_processors() -> int:
    """Return how many processors this process may use, >= 1: `processors`, rounded up."""
    return max(1, math.ceil(processors()))


def processors(root: Path = _ROOT) -> float:
    """Return how many processors this process may use; a fraction if it has such a quota.

    Args:
        root: where ``/proc`` and the control groups are.
    """
    return min([float(_count()), *_quotas(root)])


def _count() -> int:
    """Return how many processors the affinity of this process allows, >= 1."""
    if hasattr(os, "process_cpu_count"):  # since Python 3.13; `-X cpu_count` may override it
        return os.process_cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):  # not on every system
        return len(os.sched_getaffinity(0)) or 1
    return os.cpu_count() or 1


class _Mount(NamedTuple):
    """Where control groups are mounted."""

    version: int
    root: PurePosixPath
    """The control group that the folder shows; others than ``/`` in containers."""
    folder: Path


def _quotas(root: Path) -> Iterator[float]:
    """Yield the quotas of this process's control group and of those that it is in."""
    groups = dict(_groups(root))
    for mount in _mounts(root):
        for folder in _folders(mount, groups.get(mount.version)):
            quota = _quota(folder, mount.version)
            if quota is not None:
                yield quota


def _groups(root: Path) -> Iterator[tuple[int, PurePosixPath]]:
    """Yield the paths of this process's control groups, by the version of their hierarchy."""
    for line in _lines(root / "proc/self/cgroup"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            yield 2, PurePosixPath(path)
        elif "cpu" in controllers.split(","):
            yield 1, PurePosixPath(path)


def _mounts(root: Path) -> Iterator[_Mount]:
    for line in _lines(root / "proc/self/mountinfo"):
        match = _MOUNT.match(line)
        if match is None:
            continue  # of another kind
        shown, folder, kind, options = match.groups()
        if kind == "cgroup2" or "cpu" in options.split(","):
            version = 2 if kind == "cgroup2" else 1
            place = _OCTAL.sub(lambda found: chr(int(found[1], 8)), folder).lstrip("/")
            yield _Mount(version, PurePosixPath(shown), root / place)


def _folders(mount: _Mount, group: PurePosixPath | None) -> Iterator[Path]:
    """Yield the folders of a control group and of those that it is in, as far as they are shown."""
    yield mount.folder
    if group is None or ".." in group.parts:
        return
    inner = group.relative_to(mount.root) if group.is_relative_to(mount.root) else group
    below = mount.folder
    for part in inner.parts:
        if part != "/":
            below /= part
            yield below


def _quota(folder: Path, version: int) -> float | None:
    """Return how many processors a control group may use; ``None`` without a limit."""
    if version == 2:
        words = " ".join(_lines(folder / "cpu.max")).split()
    else:
        words = [
            " ".join(_lines(folder / f"cpu.cfs_{name}_us")).strip() for name in ("quota", "period")
        ]
    try:
        quota, period = map(int, words)
    except ValueError:
        return None  # "max", or there is no such file
    return quota / period if quota > 0 and period > 0 else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []  # not on this system
