"""Runs that are killed at random moments, and must end as an undisturbed one does.

``python -m tests.proof.resume --kills 100`` kills a process that goes through a pipeline, by
SIGKILL, again and again, with other workers at each start, and looks at the batches in the end:
where the order is kept they must be those of one run, byte for byte; else each example must be
there once. ``--shape`` chooses one shape of `tests.inputs.pipeline.resuming`.

The process writes each batch, as its digest, into a log, and its position into a file by
`save_position`. When it begins, it cuts the log where the position was saved: what came behind that
was lost with the process, and comes again.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from aioqueue.inputs import Journal, load_position, read_journal, save_position
from tests.inputs.pipeline.going import plain
from tests.inputs.pipeline.resuming import How, ordered_shapes, run, unordered_shapes, write_files

__all__ = ("EPOCHS", "Outcome", "main", "prove")

EPOCHS = 2
_SECONDS = 120.0


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
    journal = folder / "run.journal"
    pipeline = shape_of(name, folder)(how)
    epochs = pipeline.epochs(EPOCHS, resume=kept and kept["data"], journal=journal)
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
    shown: Any = _examples if name.startswith("unordered:") else list
    same = shown(found) == shown(whole)
    if not same:
        outcome.faults.append(f"another result: {len(found)} batches, expected {len(whole)}")
    _judge_journal(name, folder, outcome)
    listed = folder / "skipped.jsonl"
    lines = map(json.loads, listed.read_text().splitlines()) if listed.exists() else ()
    counts = Counter((line["run"], line["epoch"], line["index"]) for line in lines)
    if any(count > 1 for count in counts.values()):
        outcome.faults.append(f"{counts.most_common(1)[0]} was listed more than once")


def _judge_journal(name: str, folder: Path, outcome: Outcome) -> None:
    """The journal has each batch; where the order is kept it is that of an undisturbed run."""
    found, other = read_journal(folder / "run.journal"), folder / "other.journal"
    with shape_of(name, folder)(How()).epochs(EPOCHS, journal=other) as epochs:
        batches = sum(len(list(epoch)) for epoch in epochs)
    shown: Any = _items if name.startswith("unordered:") else list
    if found.damage is not None or found.is_torn or len(found) != batches:
        outcome.faults.append(f"{found!r}, expected {batches} batches")
    elif shown(found) != shown(read_journal(other)):
        outcome.faults.append("another journal")


def _items(journal: Journal) -> Counter[Any]:
    return Counter(item for entry in journal for item in entry.items)


def _examples(batches: list[Any]) -> Counter[str]:
    return Counter(
        json.dumps([epoch, row])
        for epoch, batch in batches
        for row in (zip(*batch, strict=True) if isinstance(batch[0], list) else batch)
    )


def main(arguments: list[str]) -> int:
    """Prove all shapes, or one; returns how many failed."""
    if arguments[:1] == ["--child"]:
        child(arguments[1], Path(arguments[2]), int(arguments[3]))
        return 0
    parser = argparse.ArgumentParser(prog="python -m tests.proof.resume", description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="in each shape")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shape", action="append", help="only these")
    given = parser.parse_args(arguments)
    names = [*ordered_shapes(Path()), *(f"unordered:{one}" for one in unordered_shapes(Path()))]
    failed = 0
    for name in given.shape or names:
        outcome = prove(name, given.kills, given.seed)
        failed += bool(outcome.faults)
        print(outcome, flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
