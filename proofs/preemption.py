"""Trainers whose whole process group is sent a signal, and must end as they choose.

``python -m proofs.preemption --times 20`` does so with SIGTERM, SIGUSR1 and SIGINT, with
workers that are threads and that are processes: as SLURM, Kubernetes and terminals do it. The
trainer must come to the end of its step with all processes of its group alive, be given another
batch, save its position and leave its loop; then all of them must be gone soon. What it saved must
be right: another one goes on there. It prints how long the slowest one took from leaving its loop
to being gone.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from aioqueue.inputs import Pipeline, Preemption, load_position, numbers, save_position

__all__ = ("PLACES", "SIGNALS", "Preempted", "batches", "main", "preempt")

PLACES = ("thread", "process")
SIGNALS = ("SIGTERM", "SIGUSR1", "SIGINT")

_ROOT = Path(__file__).resolve().parents[1]
_WORKERS = 2
_FAMILY = {"thread": 1, "process": 3 + _WORKERS}
"""How many processes there are: with workers also a fork server and the resource tracker."""

_PATIENCE = 60.0


def double(number: int) -> int:
    """What is prepared, slowly enough for a signal to find something under way."""
    time.sleep(0.002)
    return 2 * number


def batches(where: Any) -> Pipeline[Any]:
    """What the trainer goes through."""
    return numbers(100_000).prepare(double, workers=_WORKERS, where=where).batch(4)


def group(leader: int) -> set[int]:
    """The processes of a group that live."""
    return {int(pid) for pid in os.listdir("/proc") if pid.isdigit() and _is_in(leader, int(pid))}


def _is_in(leader: int, pid: int) -> bool:
    try:
        rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(rest[2]) == leader and rest[0] != "Z"
    except (OSError, IndexError):
        return False  # it has just ended


class Preempted(NamedTuple):
    """What has become of a trainer."""

    reason: str
    """What it was told."""
    lived: bool
    """Whether all processes of its group lived at the end of its step."""
    died: int
    """Workers that had to be replaced."""
    is_exact: bool
    """Whether its batches and those behind its position are the whole."""
    errors: str
    """Its error output."""
    code: int
    """Its exit code."""
    seconds: float
    """From leaving the loop until all processes are gone."""


def train(where: str, path: Path) -> None:
    """The trainer: it says when it is ready, and what it found when it was asked to stop."""
    lived, taken = False, list[int]()
    family: set[int] = set()
    with (
        Preemption([getattr(signal, name) for name in SIGNALS]) as preempted,
        batches(where).epochs(1) as epochs,
    ):
        epoch = next(epochs)
        for batch in epoch:
            taken += batch.tolist()
            if not family and len(group(os.getpid())) == _FAMILY[where]:
                family = group(os.getpid())
                print("ready", flush=True)
            if preempted:
                taken += next(epoch).tolist()
                lived = group(os.getpid()) == family
                save_position(path, epochs.state_dict())
                break
        died = sum(stage.workers_died for stage in epochs.statistics())
        observed = [preempted.reason, lived, died, taken == [2 * n for n in range(len(taken))]]
        print(json.dumps([*observed, len(taken), time.monotonic()]), flush=True)


def preempt(where: str, number: int) -> Preempted:
    """Have a trainer preempted by a signal to its whole group."""
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryDirectory() as folder:
        position = Path(folder) / "position.json"
        with subprocess.Popen(
            [sys.executable, "-m", "proofs.preemption", "--train", where, str(position)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        ) as trainer:
            killer = threading.Timer(_PATIENCE, os.killpg, (trainer.pid, signal.SIGKILL))
            killer.start()
            assert trainer.stdout is not None
            trainer.stdout.readline()
            os.killpg(trainer.pid, number)
            output, errors = trainer.communicate()
            while group(trainer.pid):
                time.sleep(0.001)
            ended = time.monotonic()
            killer.cancel()
        if not output:
            return Preempted("", False, 0, False, errors, trainer.returncode, 0.0)
        reason, lived, died, is_exact, count, left = json.loads(output)
        with batches("thread").epochs(1, resume=load_position(position)) as epochs:
            is_exact = is_exact and next(next(epochs))[0] == 2 * count
    return Preempted(reason, lived, died, is_exact, errors, trainer.returncode, ended - left)


def main(arguments: list[str]) -> int:
    """Preempt trainers again and again; returns how many did not end as they should."""
    if arguments[:1] == ["--train"]:
        train(arguments[1], Path(arguments[2]))
        return 0
    parser = argparse.ArgumentParser(prog="python -m proofs.preemption", description=__doc__)
    parser.add_argument("--times", type=int, default=20, help="with each signal, in each place")
    given = parser.parse_args(arguments)
    failed = 0
    for where in PLACES:
        for name in SIGNALS:
            found = [preempt(where, getattr(signal, name)) for _ in range(given.times)]
            wrong = [one for one in found if one[:6] != (name, True, 0, True, "", 0)]
            slowest = max(one.seconds for one in found)
            print(
                f"{where}, {name}: {len(found)} times, {len(wrong)} wrong; gone within"
                f" {slowest:.2f} s of leaving the loop",
                *wrong,
                flush=True,
            )
            failed += len(wrong)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
