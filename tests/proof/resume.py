"""Runs that are killed at random moments, and must end as an undisturbed one does.

``python -m tests.proof.resume --kills 100`` kills a process that goes through a pipeline, by
SIGKILL, again and again, with other workers at each start, and looks at the batches in the end:
where the order is kept they must be those of one run, byte for byte; else each example must be
there once. ``--shape`` chooses one shape of `tests.inputs.pipeline.resuming`.

The process writes each batch, as its digest, into a log, and its position into a file by
`save_position`. When it begins, it cuts the log where the position was saved: what came behind that
was lost with the process, and comes again.

A shape that begins with ``ranks:`` is gone through by several ranks, in turns, and by another
number of them at each start: each example must be there once.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

from aioqueue.inputs import load_position, merge_positions, save_position
from tests.inputs.pipeline.going import plain
from tests.inputs.pipeline.resuming import (
    NOT_ELASTIC,
    How,
    examples,
    ordered_shapes,
    run,
    unordered_shapes,
    write_files,
)

__all__ = ("EPOCHS", "Outcome", "main", "prove")

EPOCHS = 2
_SECONDS = 120.0
_RANKS = "ranks:"


class Outcome:
    """What was found out about one shape."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.kills = self.runs = self.batches = 0
        self.faults: list[str] = []

    def __str__(self) -> str:
        verdict = "as undisturbed" if not self.faults else "; ".join(self.faults)
        counts = f"{self.kills} kills in {self.runs} runs, {self.batches} batches"
        return f"{self.name}: {counts}: {verdict}"


def shape_of(name: str, folder: Path) -> Any:
    """A shape by its name; the unordered ones begin with ``unordered:``."""
    name = name.removeprefix(_RANKS)
    kind, _, rest = name.rpartition(":")
    return unordered_shapes(folder)[rest] if kind else ordered_shapes(folder)[name]


def child(name: str, folder: Path, seed: int) -> None:
    """Go through a pipeline from where the position is, a little slower than it could."""
    chance = random.Random(seed)
    how = How(chance.randint(1, 6), limit=chance.choice([None, 4, 16]))
    kept = load_position(folder / "position.json", default=None)
    log = folder / "log.jsonl"
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    log.write_text("".join(lines[: kept["batches"] if kept else 0]))
    epochs = shape_of(name, folder)(how).epochs(EPOCHS, resume=kept and kept["data"])
    count = kept["batches"] if kept else 0
    every = chance.randint(1, 4)
    with log.open("a") as file, epochs:
        for epoch in epochs:
            for batch in epoch:
                time.sleep(0.003)  # so that a kill finds something under way
                file.write(json.dumps([epoch.number, plain(batch)]) + "\n")
                file.flush()
                count += 1
                if not count % every:
                    state = {"batches": count, "data": epochs.state_dict()}
                    save_position(folder / "position.json", state)
    (folder / "ended").touch()


def child_of_ranks(name: str, folder: Path, seed: int) -> None:
    """The same with several ranks, whose positions are in the folder of their step."""
    chance = random.Random(seed)
    ranks, every = chance.randint(1, 8), chance.randint(1, 3)
    kept: Any = load_position(folder / "position.json", default=None) or {"batches": 0, "step": 0}
    position = None
    if kept["step"]:
        saved = (folder / str(kept["step"])).glob("rank-*.json")
        position = merge_positions([load_position(path) for path in saved], lockstep=False)
    log = folder / "log.jsonl"
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    log.write_text("".join(lines[: kept["batches"]]))
    step, count = kept["step"], kept["batches"]
    make = shape_of(name, folder)
    all_epochs = [
        make(How(chance.randint(1, 3)))
        .shard(rank, ranks, uneven="allow")
        .epochs(EPOCHS, resume=position)
        for rank in range(ranks)
    ]
    with log.open("a") as file:
        for batches in zip_longest(*map(_numbered, all_epochs)):
            step += 1
            for one in batches:
                if one is not None:
                    file.write(json.dumps(one) + "\n")
                    count += 1
            file.flush()
            time.sleep(0.003)
            if not step % every:
                (folder / str(step)).mkdir(exist_ok=True)
                for old in (folder / str(step)).glob("rank-*.json"):
                    old.unlink()  # of a run that was killed while it saved
                for rank, epochs in enumerate(all_epochs):
                    save_position(folder / str(step) / f"rank-{rank}.json", epochs.state_dict())
                save_position(folder / "position.json", {"batches": count, "step": step})
    (folder / "ended").touch()


def _numbered(epochs: Any) -> Iterator[list[Any]]:
    """All batches, with their epochs."""
    for epoch in epochs:
        for batch in epoch:
            yield [epoch.number, plain(batch)]


def prove(name: str, kills: int, seed: int = 0) -> Outcome:
    """Kill a run so many times, beginning anew whenever it comes to its end.

    Args:
        name: the shape.
        kills: how often at least.
        seed: of the moments.
    """
    outcome, chance = Outcome(name), random.Random(f"{name} {seed}")
    while outcome.kills < kills or not outcome.runs:
        with tempfile.TemporaryDirectory() as made:
            folder = write_files(Path(made))
            _run_killed(name, folder, chance, outcome, kills)
            _judge(name, folder, outcome)
        outcome.runs += 1
    return outcome


def _run_killed(
    name: str, folder: Path, chance: random.Random, outcome: Outcome, kills: int
) -> None:
    end = time.monotonic() + _SECONDS
    while not (folder / "ended").exists():
        command = [sys.executable, "-m", "tests.proof.resume", "--child", name]
        process = subprocess.Popen([*command, str(folder), str(chance.randrange(2**31))])
        patience = _SECONDS
        if outcome.kills < kills and time.monotonic() < end:
            _wait_for_work(process, folder)
            patience = chance.uniform(0.0, 0.06)
        try:
            if process.wait(patience):
                outcome.faults.append(f"ended with status {process.returncode}")
                return
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            outcome.kills += 1


def _wait_for_work(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Wait until the process has begun: importing takes longer than all of the run."""
    log = folder / "log.jsonl"
    before = log.stat().st_mtime_ns if log.exists() else 0
    while process.poll() is None:
        if log.exists() and log.stat().st_mtime_ns != before:
            return
        time.sleep(0.001)


def _judge(name: str, folder: Path, outcome: Outcome) -> None:
    found = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    whole = json.loads(json.dumps(run(shape_of(name, folder)(How()), EPOCHS)[0]))
    outcome.batches += len(whole)
    if ":" in name:
        same = examples([_restored(found)]) == examples([_restored(whole)])
    else:
        same = found == whole
    if not same:
        outcome.faults.append(f"another result: {len(found)} batches, expected {len(whole)}")


def _restored(batches: list[Any]) -> Any:
    """Batches that come from JSON: what has several components was a tuple."""
    return [
        (epoch, tuple(batch) if isinstance(batch[0], list) else batch) for epoch, batch in batches
    ]


def main(arguments: list[str]) -> int:
    """Prove all shapes, or one; returns how many failed."""
    if arguments[:1] == ["--child"]:
        begin = child_of_ranks if arguments[1].startswith(_RANKS) else child
        begin(arguments[1], Path(arguments[2]), int(arguments[3]))
        return 0
    parser = argparse.ArgumentParser(prog="python -m tests.proof.resume", description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="in each shape")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shape", action="append", help="only these")
    given = parser.parse_args(arguments)
    names = [*ordered_shapes(Path()), *(f"unordered:{one}" for one in unordered_shapes(Path()))]
    names += [_RANKS + name for name in names if name not in NOT_ELASTIC]
    failed = 0
    for name in given.shape or names:
        outcome = prove(name, given.kills, given.seed)
        failed += bool(outcome.faults)
        print(outcome, flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
