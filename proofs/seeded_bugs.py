"""Broken builds, each with one mistake of the kind that matters, and who catches them.

::

    python -m proofs.seeded_bugs            # all of them, and one build without a mistake
    python -m proofs.seeded_bugs --list
    python -m proofs.seeded_bugs "lost wake" "dropped restore"
    python -m proofs.seeded_bugs --quick "dropped restore"      # by the first that catches it

Each is made in a temporary copy of the package, by replacing a piece of its source that must be
there exactly once: when the source has changed, the mistake has to be thought of anew. Then the
quick part of the proof runs against it, one module after the other. The exit status is 0 if each
mistake was caught by at least one of them, and the build without one by none.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ("BUGS", "Bug", "main")

ROOT = Path(__file__).resolve().parents[1]
MODULES = (
    "proofs/test_model",
    "proofs/test_linearizability",
    "proofs/test_scheduling",
    "core/test_machine_exhaustive",  # what chance may miss: every order in small worlds
    "rl/test_queue",
    "rl/test_queue_in_virtual_time",
)
OWN_TESTS = (
    "not TestAFailure and not TestTheReference and not TestTheChecker and not TestTheExplorers"
)
"""Tests of the tools themselves, which say nothing of the queues."""
PATIENCE = 300


@dataclass(frozen=True)
class Bug:
    """One mistake.

    Attributes:
        name: what it is called.
        file: of the package.
        before: what stands there, exactly once.
        after: what is put in its place.
    """

    name: str
    file: str
    before: str
    after: str

    def applied(self, source: str) -> str:
        """The source with the mistake in it.

        Raises:
            LookupError: what should be replaced is not there exactly once.
        """
        count = source.count(self.before)
        if count != 1:
            raise LookupError(
                f"{self.name}: found {count} times in aioqueue/{self.file}, expected once:\n"
                f"{self.before}\nThe source has changed; make the mistake anew in {__file__}"
            )
        return source.replace(self.before, self.after)


BUGS = (
    Bug(
        "a lost step",  # of a trainer that is cancelled after the grant
        "rl/core.py",
        """        if taker.batch is not None:
            return self._give_back(self.steps[taker.batch.step])
        return self.machine.untake() if is_first else NOTHING
""",
        """        return self.machine.untake() if is_first else NOTHING
""",
    ),
    Bug(
        "a rollout begins in a publication",  # its task was started just before
        "rl/machine.py",
        """        if self.is_paused or call.state is not _STARTED:
            return False
""",
        """        if call.state is not _STARTED:
            return False
""",
    ),
    Bug(
        "a slot too early",  # a step that is not done has given its slots back
        "rl/machine.py",
        """            self._remove_from_waiting(group)
            self._move(group, _HELD)
""",
        """            self._remove_from_waiting(group)
            self._move(group, _HELD)
            self._settled_weight -= group.weight
            group.weight = 0
""",
    ),
    Bug(
        "empty is done",  # a join ends while the last elements are in somebody's hands
        "core/machine.py",
        """        unfinished = self._enqueued - self._finished
""",
        """        unfinished = self.storage.size
""",
    ),
    Bug(
        "granted is nowhere",
        "core/fast_path.py",
        """            granted=granted,
""",
        "",
    ),
    Bug(
        "dropped restore",  # what a cancelled dequeue held is lost
        "core/machine.py",
        """                self.storage.restore(attempt.held)
""",
        """                attempt.held.clear()
""",
    ),
    Bug(
        "views leave the queue",  # scalars of a structured dtype change when their slot is reused
        "core/storage/columns.py",
        '".copy()" if not c.scalar or c.dtype.kind == "V"',
        '".copy()" if not c.scalar',
    ),
    Bug(
        "memory used too early",  # of a batch, while others have still to copy from it
        "core/storage/blocks.py",
        """        block.uses -= 1
        if block.uses or not block.is_private:
""",
        """        block.uses -= 1
        if not block.is_private:
""",
    ),
    Bug(
        "written before it is taken",  # a caller's arrays are what its rows come back from
        "core/storage/blocks.py",
        """        self._reinsert(held.parts)
        held.clear()""",
        """        if held.out is not None:
            block = Block(held.out, held.count)
            held.parts = [_Segment(block, 0, held.count, held.parts[0].origin)]
        self._reinsert(held.parts)
        held.clear()""",
    ),
    Bug(
        "lost wake",  # what is notified just before the flag falls is told to nobody
        "worlds/asyncio.py",
        """        self._set_scheduled(False)
        self._resume()
""",
        """        self._resume()
        self._set_scheduled(False)
""",
    ),
    Bug(
        "skipped fairness",  # who comes now is served before those who wait
        "core/machine.py",
        "            if wait_list:\n",
        "            if False:\n",
    ),
    Bug(
        "wrong waiter woken",  # the last in line is woken instead of the one that was granted
        "core/machine.py",
        "            wakers[attempt.waker] = None\n",
        """            last = next(reversed(self._wait_lists.list_of(attempt)), attempt)
            wakers[last.waker or attempt.waker] = None
""",
    ),
    Bug(
        "commit of a withdrawn attempt",  # a cancelled task keeps what it was granted
        "queues/aio.py",
        "            apply_deferred(machine.withdraw, attempt, ended - began)\n",
        "            apply_deferred(machine.commit, attempt, ended - began)\n",
    ),
    Bug(
        "forgotten while it stands by",  # a close, or the next caller, does not see the task
        "core/fast_path.py",
        """        both = self._standby_attempts()
        self._standby_put = self._standby_take = None
""",
        """        both: list[Attempt] = []
        self._standby_put = self._standby_take = None
""",
    ),
    Bug(
        "leaked place",  # the place of a cancelled enqueue is never given back
        "core/attempts.py",
        """        elif isinstance(attempt, Put):
            self.leave_place(attempt)
""",
        "",
    ),
    Bug(
        "closed too early",  # while an enqueue has its place, but is not in
        "core/machine.py",
        "            if self._state is CLOSING and not enqueues and not self._places:\n",
        "            if self._state is CLOSING and not enqueues:\n",
    ),
    Bug(
        "timeout without a look",  # what was granted in the last moment is lost with the timeout
        "queues/blocking.py",
        """                deliver(self._machine.withdraw(attempt, waited, if_pending=True))
                if attempt.is_withdrawn:
""",
        """                deliver(self._machine.withdraw(attempt, waited, if_pending=True))
                if not attempt.is_pending:
""",
    ),
)


@dataclass(frozen=True)
class Catch:
    """What one module made of one build."""

    module: str
    failed: bool
    seconds: float
    output: str


def build(bug: Bug | None, folder: Path) -> None:
    """Copy the package, the proofs and the tests, and make the mistake."""
    for name in ("aioqueue", "proofs", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    if bug is not None:
        path = folder / "aioqueue" / bug.file
        path.write_text(bug.applied(path.read_text(encoding="utf-8")), encoding="utf-8")


def judge(module: str, folder: Path) -> Catch:
    """Run one module of the proof against a build."""
    began = time.monotonic()
    options = ["-q", "-x", "--run-slow", "-p", "no:cacheprovider", "-k", OWN_TESTS]
    command = [sys.executable, "-m", "pytest", *options, f"tests/{module}.py"]
    environment = {**os.environ, "PYTHONPATH": str(folder), "AIOQUEUE_PROOF": "1"}
    try:
        ran = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
    except subprocess.TimeoutExpired:
        return Catch(module, True, time.monotonic() - began, "it hung")
    if ran.returncode not in (0, 1):
        raise RuntimeError(f"{' '.join(command)} ended with {ran.returncode}:\n{ran.stdout}")
    return Catch(module, ran.returncode == 1, time.monotonic() - began, ran.stdout)


def judgements(folder: Path, *, quick: bool) -> Iterator[Catch]:
    """What the modules of the proof make of a build; of the first that catches it, if `quick`."""
    for module in MODULES:
        catch = judge(module, folder)
        yield catch
        if quick and catch.failed:
            return


def main(arguments: list[str] | None = None) -> int:
    """Make broken builds, and tell which module of the proof catches each."""
    parser = argparse.ArgumentParser(prog="python -m proofs.seeded_bugs", description=main.__doc__)
    parser.add_argument("names", nargs="*", help="of the mistakes; all, if none is given")
    parser.add_argument("--list", action="store_true", help="print their names")
    parser.add_argument("--verbose", action="store_true", help="print how they were caught")
    parser.add_argument(
        "--quick", action="store_true", help="be content with the first module that catches it"
    )
    given = parser.parse_args(arguments)
    by_name = {bug.name: bug for bug in BUGS}
    if given.list:
        print("\n".join(by_name))
        return 0
    if unknown := set(given.names) - set(by_name):
        parser.error(f"no such mistake: {', '.join(sorted(unknown))}")
    builds: list[Bug | None] = [by_name[name] for name in given.names] or [None, *BUGS]
    width = max(len(name) for name in by_name)
    judges = "  ".join(f"{module.partition('/test_')[2]:>18}" for module in MODULES)
    print(f"{'mistake':{width}}  {judges}")
    as_expected = True
    for bug in builds:
        with tempfile.TemporaryDirectory(prefix="aioqueue-seeded-") as folder:
            build(bug, Path(folder))
            catches = list(judgements(Path(folder), quick=given.quick))
        as_expected &= any(catch.failed for catch in catches) == (bug is not None)
        outcomes = [f"{'caught' if c.failed else 'passed'} {c.seconds:9.1f} s" for c in catches]
        print(f"{bug.name if bug else '(none)':{width}}  {'  '.join(outcomes)}", flush=True)
        if given.verbose or (bug is None and not as_expected):
            print("\n".join(catch.output for catch in catches if catch.failed))
    print("as expected" if as_expected else "NOT as expected")
    return 0 if as_expected else 1


if __name__ == "__main__":
    sys.exit(main())
