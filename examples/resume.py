"""A training run that is killed at random moments, and ends as if nothing had happened.

    $ python examples/resume.py --kills 3 --seed 1
    run 1: 2 workers from step 0, killed at step 15; 10 are saved
    run 2: 1 worker from step 10, killed at step 10; 10 are saved
    run 3: 4 workers from step 10, killed at step 50; 50 are saved
    run 4: 4 workers from step 50 to the end, step 375
    once more, and nobody disturbs it: 6 workers, 375 steps
    3 kills, 375 batches: every one as in a run that was not disturbed

A child process "trains": it writes down a digest of every batch. It saves its step, and the
position of its data, every few steps. The parent kills it again and again, and starts it with other
workers. In the end every batch is compared with those of a run that nobody disturbed.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from aioqueue.inputs import Pipeline, load_position, numbers, save_position

EPOCHS = 3


def augmented(number: int, rng: np.random.Generator) -> tuple[np.ndarray, int]:
    """An example whose noise depends on nothing but its index."""
    return number + rng.random(1000, np.float32), number


def batches(workers: int) -> Pipeline[Any]:
    """The input of the training."""
    source = numbers(4000, shuffle=True, seed=7)
    return source.prepare(augmented, workers=workers).shuffle(200).batch(32).prefetch(2)


def train(folder: Path, workers: int) -> None:
    """Train from where the last run has saved what it had."""
    kept: Any = load_position(folder / "run.json", default=None) or {"step": 0, "data": None}
    step = kept["step"]
    log = folder / "log.txt"
    done = log.read_text().splitlines(keepends=True)[:step] if step else []
    log.write_text("".join(done))
    epochs = batches(workers).epochs(EPOCHS, resume=kept["data"])
    with epochs, epochs.monitor() as monitor, log.open("a") as file:
        for epoch in epochs:
            for noise, labels in epoch:
                step += 1
                digest = hashlib.sha256(noise.tobytes() + labels.tobytes()).hexdigest()
                print(step, epoch.number, digest, file=file, flush=True)
                if step % 5 == 0:
                    state = {"step": step, "data": epochs.state_dict()}
                    save_position(folder / "run.json", state)
        (folder / "verdict.txt").write_text(str(monitor.verdict()))


def run_child(folder: Path, workers: int, chance: random.Random, *, kill: bool) -> bool:
    """Train in a process, and kill it on request; returns whether it was killed."""
    command = [sys.executable, __file__, "--train", str(folder), "--workers", str(workers)]
    log = folder / "log.txt"
    before = log.stat().st_size if log.exists() else -1
    with subprocess.Popen(command) as child:
        # Python takes its time to start: a kill is to find the training under way.
        while kill and child.poll() is None:
            if log.exists() and log.stat().st_size not in (before, 0):
                try:
                    child.wait(chance.uniform(0, 0.2))
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()
                    return True
        if child.wait() != 0:
            raise SystemExit(f"the training has failed with status {child.returncode}")
    return False


def disturb(folder: Path, kills: int, chance: random.Random) -> int:
    """Train to the end, and kill that on the way; returns how often it was killed."""
    killed = 0
    for run in itertools.count(1):
        begun, workers = steps_saved(folder), chance.randint(1, 6)
        report = f"run {run}: {counted(workers)} from step {begun}"
        if not run_child(folder, workers, chance, kill=killed < kills):
            print(f"{report} to the end, step {steps_done(folder)}", flush=True)
            break
        killed += 1
        done, saved = steps_done(folder), steps_saved(folder)
        print(f"{report}, killed at step {done}; {saved} are saved", flush=True)
    return killed


def counted(workers: int) -> str:
    """How many there are, in words."""
    return f"{workers} worker" + "s" * (workers > 1)


def steps_saved(folder: Path) -> int:
    """How many steps a run begins behind."""
    kept: Any = load_position(folder / "run.json", default=None)
    return kept["step"] if kept else 0


def steps_done(folder: Path) -> int:
    """How many steps were made, saved or not."""
    return len((folder / "log.txt").read_text().splitlines())


def main() -> None:
    """Kill, go on, and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=None, help="of the moments")
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, default=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.train is not None:
        train(given.train, given.workers)
        return
    chance = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        disturbed, undisturbed = Path(one), Path(other)
        kills = disturb(disturbed, given.kills, chance)
        workers = chance.randint(1, 6)
        run_child(undisturbed, workers, chance, kill=False)
        steps = steps_done(undisturbed)
        print(f"once more, and nobody disturbs it: {counted(workers)}, {steps} steps")
        found = (disturbed / "log.txt").read_text().splitlines()
        expected = (undisturbed / "log.txt").read_text().splitlines()
        print((undisturbed / "verdict.txt").read_text())
    if found != expected:
        raise SystemExit(f"the batches differ: {len(found)}, expected {len(expected)}")
    print(f"{kills} kills, {len(found)} batches: every one as in a run that was not disturbed")


if __name__ == "__main__":
    main()
