"""A queue that another process shares, in processes that PyTorch's launchers start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.multiprocessing

from aioqueue import sync
from tests.kit.children import environment
from tests.kit.sharing import sharing_ended

pytestmark = pytest.mark.slow

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
NAME = "a-queue-for-ranks"

RANK = f"""
import aioqueue
import torch.distributed as dist

queue = aioqueue.connect({NAME!r}, timeout=60)
dist.init_process_group("gloo")
found = [None] * dist.get_world_size()
dist.all_gather_object(found, [int(number) for number in queue.sync])
if dist.get_rank() == 0:
    print(len(found), sorted(sum(found, [])) == list(range(200)))
dist.destroy_process_group()
"""


def numbers() -> Any:
    """Return a closed queue of 200 numbers."""
    queue = sync.FIFOQueue(200)
    for number in range(200):
        queue.enqueue(number)
    queue.close()
    return queue


def test_ranks_of_torchrun_find_it_by_name(tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text(RANK)
    with sharing_ended():
        queue = numbers()
        queue.share(name=NAME)
        done = subprocess.run(
            [*TORCHRUN, "rank.py"],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert (done.returncode, done.stdout) == (0, "2 True\n"), done.stderr


def passed_on(rank: int, numbers: Any, taken: Any) -> None:
    for number in numbers.sync:
        taken.sync.enqueue((rank, number))


def test_processes_of_torch_multiprocessing_get_it_as_an_argument() -> None:
    with sharing_ended():
        taken = sync.FIFOQueue(200)
        torch.multiprocessing.spawn(passed_on, (numbers().share(), taken.share()), nprocs=2)
        assert sorted(number for _, number in taken.dequeue_many(200)) == list(range(200))
