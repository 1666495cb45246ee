"""Changes one thing at a time in the source, and looks whether a test notices.

::

    python -m proofs.mutation                          # all that is mutated: takes hours
    python -m proofs.mutation --sample 0.3 --seed 1    # 30 % of the mutants of each file, at random
    python -m proofs.mutation --minutes 30             # as many as fit, each file alike, at random
    python -m proofs.mutation 'queues/*'               # some files
    python -m proofs.mutation '*Gate.withdraw*'        # some mutants, by name
    python -m proofs.mutation --list 'core/machine.py*'     # which there are

It prints who survived, and for each file how many there are and were tried, killed and not. With
``--work FOLDER`` the map from tests to statements, and what was found, are kept there: a second run
goes on where the first one ended, as long as the package is the same. When a test has changed, only
those that had survived are tried again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import ChainMap, Counter
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from proofs.mutation.mutants import Mutant, Source

__all__ = ("main",)

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "aioqueue"
FILES = """
core/machine.py core/fast_path.py core/attempts.py system/locks.py core/elements/philox.py
core/storage/*.py worlds/*.py queues/*.py coordination/*.py
items/item.py items/provenance.py items/reordering.py sources/source_reader.py
workers/calls.py workers/retries.py workers/flow_control.py workers/job.py
workers/executors/worker_threads.py workers/executors/threads.py workers/executors/tasks.py
workers/executors/process_child.py workers/executors/chunks.py
workers/executors/processes.py processes/*.py
processes/fork_server/*.py
"""
"""What is mutated, below the package."""
TESTS = """
core/test_machine.py core/test_machine_corners.py core/test_machine_exhaustive.py
core/elements/test_philox.py
core/storage/test_columns_copying.py core/storage/test_protocol.py
core/storage/test_shelf_corners.py core/storage/test_columns_private.py system/test_locks_gil.py
system/test_locks.py worlds/test_waker_corners.py worlds/test_scopes.py
queues/test_blocking_threads.py
queues/test_queue_core.py coordination/test_coordinator.py
coordination/test_coordinator_core_stop.py coordination/test_coordinator_core_failures.py
coordination/test_coordinator_core_join.py coordination/test_coordinator_core_register.py
coordination/test_coordinator_core_block.py coordination/test_runs_of_queue_runners.py
coordination/test_classify_outcomes.py coordination/test_coordinator_core_interrupted_joins.py
coordination/test_blocking_loopers.py coordination/test_cancellations_native.py
coordination/test_coordinator_core_corners.py queues/test_queue_core_cancellation.py
queues/test_queue_core_adversary.py queues/test_queue_core_corners.py
core/storage/test_sized_weighed.py core/storage/test_blocks_accounting.py
worlds/test_asyncio_cells.py worlds/test_waker_owners.py worlds/test_waker_overtaken.py
queues/test_queue_core_max_bytes.py queues/test_queue_core_reentrance.py
queues/test_queue_core_resizing.py queues/test_queue_core_call_when_closed.py
queues/test_queue_core_values.py system/test_forks.py test_errors.py core/elements/test_spec.py
coordination/test_restarts.py coordination/test_coordinator_core_draining.py
coordination/test_runs_latecomers.py coordination/test_misuse.py telemetry/explain/test_frames.py
coordination/test_runner_metrics.py coordination/test_coordinator_core_leaving.py
coordination/test_cancellations_requests.py coordination/test_coordinator_core_wakeups.py
coordination/test_shutdown_slow_stops.py coordination/test_coordinator_core_places_of_blocks.py
coordination/test_tasks_turns.py coordination/test_runs_call_when_over.py
coordination/test_shutdown_exits.py coordination/test_workers_loops.py
queues/test_queue_core_names_of_others.py queues/test_queue_core_trees.py batcher/test_batcher.py
batcher/test_batcher_ends.py base/test_tracebacks.py test_testing.py
telemetry/metrics/test_queue_samples.py coordination/test_watchdog.py
telemetry/explain/test_stacks.py telemetry/explain/test_wait_graph_root_causes.py
telemetry/explain/test_wait_graph.py pipeline/test_run_left.py pipeline/test_ledger.py
pipeline/test_merge.py pipeline/test_replay_log.py pipeline/test_rows.py pipeline/test_run.py
pipeline/test_rows_failures.py items/test_journal.py queues/test_queue_core_bad_input.py processes
workers pipeline/streams/test_batch.py sources/test_source.py
pipeline/streams/test_forward_draining.py latest/test_latest.py batcher/test_batcher_explained.py
"""
"""Quick and sharp ones. The model, the linearizability checker, the explorer, and the tests where a
signal strikes everywhere are left out."""
IN_PROCESSES = (
    "processes/",
    "workers/calls.py",
    "workers/executors/process_child.py",
)
"""What other processes run too, where nothing is noted."""
PROCESS_TESTS = (
    "tests/processes/",
    "tests/workers/test_processes.py",
    "tests/workers/test_processes_life.py",
    "tests/base/test_tracebacks.py::TestTracebacks::test_of_processes",
)
TEST_SECONDS = 20
PYTEST = (
    *(
        "-q",
        "--run-slow",
        "-m",
        "not ray",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-p",
        "no:cov",
        "--assert=plain",
    ),
    *("--tb=line", "--hypothesis-seed=0", "-o", f"timeout={TEST_SECONDS}"),
)
MAP_SECONDS = 3600
PATIENCE = 3.0
"""For each test, in seconds; to this comes ten times as long as it takes with nothing changed."""


@dataclass
class Slot:
    """A copy of the tree, and the process that judges mutants there."""

    number: int
    folder: Path
    process: subprocess.Popen[bytes] = field(init=False)
    requests: Any = field(init=False)
    answers: Any = field(init=False)

    def start(self) -> None:
        """Copy the tree and collect the tests."""
        for name in (PACKAGE, "tests", "proofs", "benchmarks"):
            shutil.copytree(
                ROOT / name,
                self.folder / name,
                ignore=shutil.ignore_patterns("__pycache__"),
                dirs_exist_ok=True,
            )
        for path in [*ROOT.glob("*.toml"), *ROOT.glob("*.md")]:
            shutil.copy(path, self.folder)
        theirs, requests = os.pipe()
        answers, their_answers = os.pipe()
        environment = os.environ | {
            "PYTHONPATH": str(self.folder),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        tests = [f"tests/{name}" for name in TESTS.split()]
        with open(self.folder / "log", "wb") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "proofs.mutation.judge"),
                    *(str(theirs), str(their_answers), *PYTEST, *tests),
                ],
                cwd=self.folder,
                env=environment,
                stdout=log,
                stderr=log,
                pass_fds=(theirs, their_answers),
            )
        os.close(theirs)
        os.close(their_answers)
        self.requests, self.answers = os.fdopen(requests, "w"), os.fdopen(answers)

    def ask(self, **request: Any) -> Any:
        """Send a request and wait for the answer."""
        request["answer"] = str(self.folder / "answer")
        print(json.dumps(request), file=self.requests, flush=True)
        line = self.answers.readline()
        if not line:
            raise RuntimeError(f"a judge has ended: see {self.folder / 'log'}")
        return json.loads(line)

    def stop(self) -> None:
        """End the process."""
        self.requests.close()
        self.process.wait()
        self.answers.close()


def short(name: str) -> str:
    """The path of a file below the package."""
    return name.removeprefix(f"{PACKAGE}/")


class Trial:
    """All files, their mutants, and the tests that reach them.

    Args:
        work: where to keep things.
        jobs: how many mutants are judged at a time.
        seconds: how long the tests may take that a mutant is judged by, when nothing is changed.
    """

    def __init__(self, work: Path, jobs: int, seconds: float) -> None:
        self.seconds = seconds
        self._paths: dict[str, Path] = {}
        for pattern in FILES.split():
            for path in sorted((ROOT / PACKAGE).glob(pattern)):
                self._paths[path.relative_to(ROOT).as_posix()] = path
        self._sources: dict[str, Source] = {}
        self.work = work
        self.slots = [Slot(number, work / f"slot-{number}") for number in range(jobs)]
        self.tests: dict[str, Any] = {}
        self.reached_by: dict[int, list[str]] = {}
        self.results: dict[str, dict[str, Any]] = {}
        self._again: set[str] = set()  # survivors of before the tests changed: to be tried first
        self._kills: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()

    def source(self, name: str) -> Source:
        """A file by its path, parsed when it is needed: a list of some mutants parses few."""
        found = self._sources.get(name)
        if found is None:
            path = self._paths[name]
            found = self._sources[name] = Source(path.read_text(), short(name), str(path))
        return found

    @property
    def sources(self) -> dict[str, Source]:
        return {name: self.source(name) for name in self._paths}

    def mutants(self, patterns: list[str]) -> dict[str, list[tuple[int, Mutant]]]:
        """Those whose name or file matches one of the patterns, by file, with their numbers."""
        chosen = {}
        # A pattern without a folder and a line is one of names, which may be in any file.
        files = {
            pattern.partition(":")[0] if "/" in pattern or ":" in pattern else "*"
            for pattern in patterns or ["*"]
        }
        for name in self._paths:
            if not any(fnmatchcase(short(name), file) for file in files):
                continue
            source = self.source(name)
            numbered = list(enumerate(source.mutants))
            if not any(fnmatchcase(source.name, pattern) for pattern in patterns or ["*"]):
                numbered = [
                    (number, mutant)
                    for number, mutant in numbered
                    if any(fnmatchcase(mutant.name, pattern) for pattern in patterns)
                ]
            if numbered:
                chosen[name] = numbered
        return chosen

    def map(self) -> None:
        """Find out which tests reach what."""
        ours = _digest(ROOT / PACKAGE)
        self._state = f"{ours}-{_digest(ROOT / 'tests')}"
        self._kept = self.work / f"results-{ours}.jsonl"
        kept = self.work / f"map-{self._state}.json"
        self._in_all(lambda slot: slot.ask(do="collect", paths=list(self.sources)))
        if not kept.exists():
            parts = self._in_all(self._map_part)
            kept.write_text(json.dumps(dict(ChainMap(*parts))))
        self.tests = json.loads(kept.read_text())
        for test, noted in self.tests.items():
            if noted["failed"]:
                print(f"left out, since it fails with nothing changed: {test}")
                continue
            for statement in noted["reached"]:
                self.reached_by.setdefault(statement, []).append(test)
        if self._kept.exists():
            for line in self._kept.read_text().splitlines():
                result = json.loads(line)
                self.results[result["name"]] = result
                self._count(result)
        self._again = {
            name
            for name, result in self.results.items()
            if result["outcome"] != "killed" and result["state"] != self._state
        }

    def _map_part(self, slot: Slot) -> dict[str, Any]:
        names = slot.ask(do="names")
        modules = sorted({name.split("::")[0] for name in names})
        result: dict[str, Any] = {}
        # One at a time, each in a fork: a failure may leave threads behind, for which others wait.
        for module in modules[slot.number :: len(self.slots)]:
            tests = [name for name in names if name.split("::")[0] == module]
            result |= slot.ask(do="map", paths=list(self.sources), tests=tests, limit=MAP_SECONDS)
        return result

    def _in_all(self, call: Any) -> list[Any]:
        results: list[Any] = [None] * len(self.slots)

        def run(slot: Slot) -> None:
            results[slot.number] = call(slot)

        threads = [threading.Thread(target=run, args=(slot,)) for slot in self.slots]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    def judge(self, todo: list[tuple[str, int, Mutant]], minutes: float | None) -> None:
        """Judge mutants in this order, until the time is over."""
        deadline = time.monotonic() + (minutes * 60 if minutes else float("inf"))
        firsts, first = {}, 0
        for name, source in self.sources.items():
            firsts[name] = first
            first += len(source.statements)
        again = [one for one in todo if one[2].name in self._again]
        waiting = iter([*again, *(one for one in todo if one[2].name not in self.results)])

        def work(slot: Slot) -> None:
            while time.monotonic() < deadline:
                with self._lock:
                    one = next(waiting, None)
                if one is None:
                    return
                name, number, mutant = one
                tests = self._tests_for(name, firsts[name] + mutant.statement)
                result: dict[str, Any] = {"outcome": "unreached", "by": "", "seconds": 0.0}
                if tests:
                    limits = {test: PATIENCE + 10 * self.tests[test]["seconds"] for test in tests}
                    result = slot.ask(do="judge", path=name, mutant=number, tests=limits)
                self._note(mutant, result)

        self._in_all(work)

    def _tests_for(self, name: str, statement: int) -> list[str]:
        """The tests that reach a statement, as many as there is time for.

        Those come first that have killed most in the file; then, in turn, those that reach little
        else, and the quickest case of each.
        """
        reaching = set(self.reached_by.get(statement, ()))
        tests = reaching
        if name.removeprefix(f"{PACKAGE}/").startswith(IN_PROCESSES):
            tests = tests | {
                test
                for test, noted in self.tests.items()
                if test.startswith(PROCESS_TESTS) and not noted["failed"]
            }
        with self._lock:
            file = name.removeprefix(f"{PACKAGE}/")
            kills = {test: self._kills[file, test] for test in tests}
        by_time = sorted(tests, key=lambda test: self.tests[test]["seconds"])
        cases: Counter[str] = Counter()
        rounds: dict[str, int] = {}  # one case of each test, then a second one of each, and so on
        for test in by_time:
            function = test.partition("[")[0]
            rounds[test] = cases[function]
            cases[function] += 1
        various = sorted(by_time, key=lambda test: rounds[test])
        close = sorted(by_time, key=lambda test: len(self.tests[test]["reached"]))
        mixed = [test for both in zip(close, various, strict=True) for test in both]
        chosen: list[str] = []
        seconds = 0.0
        order = sorted(dict.fromkeys(mixed), key=lambda test: (-kills[test], test not in reaching))
        for test in order:
            seconds += self.tests[test]["seconds"]
            if seconds > self.seconds and chosen:
                break
            chosen.append(test)
        return chosen

    def _count(self, result: dict[str, Any]) -> None:
        if result["by"]:
            self._kills[result["name"].partition(":")[0], result["by"]] += 1

    def _note(self, mutant: Mutant, result: dict[str, Any]) -> None:
        result |= {"name": mutant.name, "state": self._state}
        with self._lock:
            self.results[mutant.name] = result
            self._count(result)
            with open(self._kept, "a") as kept:
                print(json.dumps(result), file=kept)
        if result["outcome"] in ("survived", "unreached"):
            print(f"{result['outcome']}: {mutant.name}", flush=True)


def _digest(folder: Path) -> str:
    """What tells whether a source in a folder has changed."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        if "mutation" not in path.as_posix():
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def sampled(
    chosen: dict[str, list[tuple[int, Mutant]]], share: float, seed: int
) -> list[tuple[str, int, Mutant]]:
    """A part of the mutants of each file, at random, and so mixed that any beginning is one too."""
    placed = []
    for name, numbered in chosen.items():
        chance = random.Random(f"{seed} {name}")
        picked = chance.sample(numbered, max(1, round(share * len(numbered))))
        for place, (number, mutant) in enumerate(picked):
            placed.append(((place + chance.random()) / len(numbered), name, number, mutant))
    placed.sort(key=lambda one: one[0])
    return [(name, number, mutant) for _, name, number, mutant in placed]


def report(trial: Trial, todo: list[tuple[str, int, Mutant]]) -> None:
    """Print a table: for each file how many mutants there are, were tried, killed, and not."""
    print("\n| File | Mutants | Tried | Killed | Survived |\n|---|---:|---:|---:|---:|")
    total: Counter[str] = Counter()
    for name, source in trial.sources.items():
        here: Counter[str] = Counter(all=len(source.mutants))
        for _, _, mutant in [one for one in todo if one[0] == name]:
            if mutant.name in trial.results:
                is_killed = trial.results[mutant.name]["outcome"] == "killed"
                here.update(tried=1, killed=is_killed, survived=not is_killed)
        if here["tried"]:
            total.update(here)
            print(_row(f"`{source.name}`", here))
    print(_row("**All**", total))
    print(f"\nscore: {total['killed'] / max(1, total['tried']):.1%}")


def _row(name: str, counts: Counter[str]) -> str:
    cells = [f"{counts[key]:,}" for key in ("all", "tried", "killed", "survived")]
    return f"| {' | '.join([name, *cells])} |"


def main(arguments: list[str] | None = None) -> int:
    """Run the command; see the module."""
    parser = argparse.ArgumentParser(prog="python -m proofs.mutation", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("patterns", nargs="*", metavar="PATTERN", help="files or mutants, by name")
    parser.add_argument("--sample", type=float, default=1.0, help="which part of the mutants")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--minutes", type=float, help="after which no further mutant is tried")
    parser.add_argument("--seconds", type=float, default=8, help="of tests, for each mutant")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="at a time")
    parser.add_argument("--work", type=Path, help="a folder to keep what was found")
    parser.add_argument("--list", action="store_true", help="print the mutants and end")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="mutation-") as temporary:
        trial = Trial((options.work or Path(temporary)).resolve(), options.jobs, options.seconds)
        todo = sampled(trial.mutants(options.patterns), options.sample, options.seed)
        if options.list:
            print(*(mutant.name for _, _, mutant in todo), sep="\n")
            return 0
        for slot in trial.slots:
            slot.start()
        try:
            trial.map()
            trial.judge(todo, options.minutes)
        finally:
            for slot in trial.slots:
                slot.stop()
        report(trial, todo)
    return 0


if __name__ == "__main__":
    sys.exit(main())
