"""How many processors this process may use, on machines of every kind."""

from __future__ import annotations

import os
import random
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

import pytest

from aioqueue.system.processors import processors, usable_processors
from aioqueue.workers.runner import _checked_bounds

PERIOD = 100_000


def has(monkeypatch: pytest.MonkeyPatch, count: int, by: str) -> None:
    """Let this process have some processors, and the system one way to say so."""
    ways: dict[str, Any] = {
        "process_cpu_count": lambda: count,
        "sched_getaffinity": lambda pid: set(range(count)),
        "cpu_count": lambda: count,
    }
    for name in list(ways)[: list(ways).index(by)]:
        monkeypatch.delattr(os, name, raising=False)
    monkeypatch.setattr(os, by, ways[by], raising=False)
    if by != "cpu_count":
        monkeypatch.setattr(os, "cpu_count", lambda: 64)


def written(root: Path, version: int, shown: str, quotas: dict[str, int | None]) -> None:
    """Write a machine's files: of a process in the last of some control groups.

    Args:
        root: where.
        version: that of the control groups.
        shown: the group at which the mount begins, in a container.
        quotas: the groups from the outermost to that of the process, with their quotas.
    """
    group = list(quotas)[-1]
    proc = root / "proc" / "self"
    proc.mkdir(parents=True)
    own = {
        1: f"9:name=systemd:/x\n4:cpuset:/y\n3:cpuacct,cpu:{group}\n",
        2: f"1:name=systemd:/x\n0::{group}\n",
    }
    proc.joinpath("cgroup").write_text(own[version])
    place = "/sys/fs/cgroup/cpu,cpuacct" if version == 1 else "/sys/fs/cgroup"
    kind = {1: "cgroup cgroup rw,cpu,cpuacct", 2: "cgroup2 cgroup2 rw,nsdelegate"}
    proc.joinpath("mountinfo").write_text(
        "22 27 0:21 / /proc rw,nosuid - proc proc rw\n"
        f"32 31 0:29 {shown} {place} rw,relatime shared:4 - {kind[version]}\n"
        "33 31 0:30 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
    )
    for name, quota in quotas.items():
        if not PurePosixPath(name).is_relative_to(shown):
            continue  # a container does not see it
        folder = root / place[1:] / PurePosixPath(name).relative_to(shown)
        folder.mkdir(parents=True, exist_ok=True)
        if version == 2 and name != "/":  # the root group has no such file
            folder.joinpath("cpu.max").write_text(f"{quota or 'max'} {PERIOD}\n")
        elif version == 1:
            folder.joinpath("cpu.cfs_quota_us").write_text(f"{quota or -1}\n")
            folder.joinpath("cpu.cfs_period_us").write_text(f"{PERIOD}\n")


def test_the_least_of_the_affinity_and_all_quotas_that_can_be_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(38)
    for number in range(60):
        version = draw.choice([1, 2])
        depth = draw.randrange(1, 4)
        names = ["/", *("/" + "/".join("abc"[: n + 1]) for n in range(depth))]
        quotas = {name: draw.choice([None, 50_000, 150_000, 400_000, 0]) or None for name in names}
        shown = draw.choice(names)
        count = draw.randrange(1, 9)
        by = draw.choice(["process_cpu_count", "sched_getaffinity", "cpu_count"])
        root = tmp_path / str(number)
        written(root, version, shown, quotas)
        seen = [
            quota / PERIOD
            for name, quota in quotas.items()
            if quota and PurePosixPath(name).is_relative_to(shown) and (version, name) != (2, "/")
        ]
        with monkeypatch.context() as patch:
            has(patch, count, by)
            assert processors(root) == min([count, *seen]), (version, shown, quotas, count)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8),  # neither Linux nor a container
        ({"cgroup": "0::/../x\n", "mountinfo": "3 1 0:29 / /sys/fs/cgroup rw - cgroup2 c rw\n"}, 2),
        ({"cgroup": "nonsense", "mountinfo": "nonsense\n - \n"}, 8),
        ({"cgroup": "0::/\n", "mountinfo": "x - cgroup2 c rw\n3 1 - cgroup\n"}, 8),
        ({"cgroup": "0::/\n", "mountinfo": "3 1 0:2 / /sys/fs\\057cgroup rw - cgroup2 c rw\n"}, 2),
    ],
)
def test_what_cannot_be_read_sets_no_limit(
    files: dict[str, str], expected: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = {
        name: tmp_path / place for name, place in [("proc", "proc/self"), ("g", "sys/fs/cgroup")]
    }
    for folder in folders.values():
        folder.mkdir(parents=True)
    folders["g"].joinpath("cpu.max").write_text("200000 100000\n")
    for name, text in files.items():
        folders["proc"].joinpath(name).write_text(text)
    has(monkeypatch, 8, "sched_getaffinity")
    assert processors(tmp_path) == expected


def test_autotuning_starts_no_more_processes_than_can_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    has(monkeypatch, 3, "process_cpu_count")
    monkeypatch.setattr("aioqueue.system.processors._quotas", lambda root: iter([1.5]))
    assert usable_processors() == 2
    processes: Any = SimpleNamespace(most_workers=None)
    assert _checked_bounds(True, 1, processes) == (1, 2)
    monkeypatch.setattr("aioqueue.system.processors._quotas", lambda root: iter([0.25]))
    assert _checked_bounds(True, 1, processes) == (1, 1)
