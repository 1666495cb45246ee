"""Runs that are killed at random moments, and must end as an undisturbed one does.

``python -m proofs.resume --kills 100`` kills a process that goes through a pipeline, by
SIGKILL, again and again, with other workers at each start (how many, threads or processes, how much
is in flight), and looks at the batches in the end: where the order is kept they must be those of
one run, byte for byte; else each example must be there once. So must be the items in the journal of
the run, and nobody who was skipped may be listed twice. A third of the kills are in the middle
of `save_position`, a tenth where one epoch ends and the next begins, the others anywhere.
``--shape`` chooses shapes of `tests.kit.resuming` by name or pattern, or, as
``stream:...``, streams made by hand in `tests.kit.resumable_streams`, which are compared with
those that cannot be resumed. A shape that begins with ``example:`` is the example of a stage or a
source in `tests.kit.examples`, so that a new one is proven unasked. A shape that begins with
``ranks:`` is iterated over by several ranks, in turns, and by another number of them at each start:
each example must be there once.

All shapes together take a while, and most of that is waiting: ``--jobs`` proves several at a time.
What is proven is written into the file of ``--done``; who begins again with it goes on behind that.

What is killed is in `proofs.resume_run`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from aioqueue.inputs import Journal, read_journal
from proofs.resume_run import (
    EPOCH_ENDS,
    EPOCHS,
    EXAMPLE,
    JOURNAL,
    RANKS,
    SAVING,
    KillPlan,
    Request,
    is_ordered,
    shapes,
    whole_of,
)
from tests.kit.resuming import NOT_ELASTIC, How, write_files

__all__ = ("Outcome", "Runs", "judge", "main", "names", "prove", "runs")

_ROOT = Path(__file__).resolve().parents[1]


class Outcome:
    """What was found out about one shape."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.runs = self.batches = 0
        self.kills: Counter[str] = Counter()  # by the moment
        self.faults: list[str] = []

    def __str__(self) -> str:
        verdict = "as undisturbed" if not self.faults else "; ".join(self.faults)
        saving = sum(self.kills[moment] for moment in SAVING)
        between = sum(self.kills[moment] for moment in EPOCH_ENDS)
        return (
            f"{self.name}: {self.kills.total()} kills ({saving} while it saved, {between} between"
            f" epochs) in {self.runs} runs, {self.batches} batches: {verdict}"
        )


class Runs:
    """Starts runs, and has them killed.

    Args:
        server: the process that they are forks of.
    """

    def __init__(self, server: subprocess.Popen[str]) -> None:
        self._server = server

    def exit_code(self, request: Request) -> int:
        """Run to the end, or until it is killed; returns how it has ended."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        return int(self._server.stdout.readline())


@contextmanager
def runs() -> Iterator[Runs]:
    """What starts runs, as long as the block lasts."""
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    # NumPy's own threads would not be in a fork.
    environment = {**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", "proofs.resume_run"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as server:
        yield Runs(server)  # it ends when its input does


def names() -> list[str]:
    """Those of all shapes."""
    all_shapes = [*shapes(Path())]
    elastic = [
        one
        for one in all_shapes
        if "stream:" not in one and not one.startswith(EXAMPLE) and one not in NOT_ELASTIC
    ]
    return [*all_shapes, *(RANKS + one for one in elastic)]


def prove(starter: Runs, name: str, kills: int, seed: int = 0) -> Outcome:
    """Kill a run so many times, beginning anew whenever it comes to its end.

    Args:
        starter: starts the runs.
        name: the shape.
        kills: how often at least.
        seed: of the moments.
    """
    outcome, chance = Outcome(name), random.Random(f"{name} {seed}")
    while not outcome.faults and (outcome.kills.total() < kills or not outcome.runs):
        with tempfile.TemporaryDirectory() as made:
            folder = write_files(Path(made))
            _run_killed(starter, name, folder, chance, outcome, kills)
            judge(name, folder, outcome)
        outcome.runs += 1
    return outcome


def _run_killed(
    starter: Runs, name: str, folder: Path, chance: random.Random, outcome: Outcome, kills: int
) -> None:
    while not (folder / "ended").exists():
        plan = _plan(chance) if outcome.kills.total() < kills else KillPlan()
        code = starter.exit_code(Request(name, str(folder), chance.randrange(2**31), plan))
        if code == -signal.SIGKILL and plan.moment:
            outcome.kills[plan.moment] += 1
        elif code:
            outcome.faults.append(f"ended with status {code}")
            return


def _plan(chance: random.Random) -> KillPlan:
    kind = chance.random()
    if kind < 1 / 3:
        return KillPlan(chance.choice(SAVING), after=chance.randint(0, 4))
    if kind < 1 / 3 + 1 / 10:
        return KillPlan(chance.choice(EPOCH_ENDS), after=chance.randint(0, 1))
    return KillPlan("outside", seconds=chance.uniform(0.0, 0.06))


def judge(name: str, folder: Path, outcome: Outcome) -> None:
    """Compare what a run has logged with what an undisturbed one gives."""
    found = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    whole = whole_of(name, folder)
    outcome.batches += len(whole)
    shown: Any = list if is_ordered(name) else _examples
    if shown(found) != shown(whole):
        outcome.faults.append(f"another result: {len(found)} batches, expected {len(whole)}")
    if "stream:" not in name and not name.startswith(RANKS):
        _judge_journal(name, folder, outcome, len(found))
    listed = folder / "skipped.jsonl"
    # An empty line ends one that another rank was seen writing, or had left without an end.
    lines = filter(None, listed.read_text().splitlines()) if listed.exists() else ()
    counts = Counter((one["run"], one["epoch"], one["index"]) for one in map(json.loads, lines))
    if any(count > 1 for count in counts.values()):
        outcome.faults.append(f"{counts.most_common(1)[0]} was listed more than once")


def _judge_journal(name: str, folder: Path, outcome: Outcome, batches: int) -> None:
    """The journal has each batch; where the order is kept it is that of an undisturbed run."""
    found, other = read_journal(folder / JOURNAL), folder / "other.journal"
    with shapes(folder)[name](How()).epochs(EPOCHS, journal=other) as epochs:
        for epoch in epochs:
            for _ in epoch:
                pass
    shown: Any = _items if name.startswith("unordered:") else list
    if found.damage is not None or found.is_torn or len(found) != batches:
        outcome.faults.append(f"{found!r}, expected {batches} batches")
    elif shown(found) != shown(read_journal(other)):
        outcome.faults.append("another journal")


def _items(journal: Journal) -> Counter[Any]:
    return Counter(item for entry in journal for item in entry.items)


def _examples(batches: list[Any]) -> Counter[Any]:
    return Counter((epoch, json.dumps(row)) for epoch, rows in batches for row in rows)


def _chosen(patterns: list[str], done: Path | None) -> list[str]:
    """The shapes to prove: those that match, without those that are proven."""
    chosen = [one for one in names() if any(fnmatchcase(one, pattern) for pattern in patterns)]
    lines = done.read_text().splitlines() if done is not None and done.exists() else []
    return [one for one in chosen if one not in lines]


def _prove_all(chosen: Iterable[str], given: argparse.Namespace) -> Iterator[Outcome]:
    """What is found out about each, as soon as it is."""
    idle: SimpleQueue[Runs] = SimpleQueue()

    def proven(name: str) -> Outcome:
        starter = idle.get()
        try:
            return prove(starter, name, given.kills, given.seed)
        finally:
            idle.put(starter)

    with ExitStack() as stack:
        for _ in range(given.jobs):
            idle.put(stack.enter_context(runs()))
        pool = stack.enter_context(ThreadPoolExecutor(given.jobs))
        for future in as_completed([pool.submit(proven, name) for name in chosen]):
            yield future.result()


def main(arguments: list[str]) -> int:
    """Prove all shapes, or some; returns how many failed."""
    parser = argparse.ArgumentParser(prog="python -m proofs.resume", description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="in each shape")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shape", action="append", help="only these, as in 'ranks:*'")
    parser.add_argument("--jobs", type=int, default=1, help="how many shapes at a time")
    parser.add_argument("--done", type=Path, help="a file of the shapes that are proven")
    given = parser.parse_args(arguments)
    begun, outcomes = time.monotonic(), []
    for outcome in _prove_all(_chosen(given.shape or ["*"], given.done), given):
        outcomes.append(outcome)
        print(outcome, flush=True)
        if given.done is not None and not outcome.faults:
            with given.done.open("a") as file:
                file.write(f"{outcome.name}\n")
    failed = sum(bool(outcome.faults) for outcome in outcomes)
    kills = sum(outcome.kills.total() for outcome in outcomes)
    batches = sum(outcome.batches for outcome in outcomes)
    print(
        f"{len(outcomes)} shapes, {kills} kills, {batches} batches compared in"
        f" {time.monotonic() - begun:.0f} s: {failed or 'none'} different"
    )
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
