"""A run that is going to be killed: what `proofs.resume` starts, again and again.

The process goes through a pipeline. It writes each batch into a log, and its position into a file
by `save_position`. When it begins, it cuts the log where the position was saved: what came behind
that was lost with the process, and comes again.

It is killed by SIGKILL: from outside at a random moment; or by itself in the middle of
`save_position`, or where one epoch ends and the next begins, which random moments hit too rarely.

Python and NumPy take longer to start than all of such a run lasts. So the runs are forks of one
process that has imported all, and has no threads: ``python -m proofs.resume_run`` reads one
request a line and answers each with a line.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from aioqueue import sync
from aioqueue.inputs import load_position, merge_positions, save_position
from aioqueue.items import position_file
from tests.contracts.programs import programs_asked
from tests.kit.exact import plain_form
from tests.kit.resumable_streams import ordered_streams, undisturbed, unordered_streams
from tests.kit.resuming import How, ordered_shapes, rows_in, unordered_shapes
from tests.kit.resuming import run as going_through

__all__ = (
    "EPOCHS",
    "EPOCH_ENDS",
    "EXAMPLE",
    "JOURNAL",
    "RANKS",
    "SAVING",
    "KillPlan",
    "Request",
    "begun",
    "die",
    "is_ordered",
    "logged",
    "run",
    "shapes",
    "whole_of",
)

EPOCHS = 2

JOURNAL = "run.journal"
"""The file that notes the items of each batch of a pipeline, where one rank goes through it."""

RANKS = "ranks:"
"""How the names of shapes begin that several ranks go through."""

EXAMPLE = "example:"
"""How the names begin of the shapes that are made of the examples of stages and sources."""

SAVING = ("opened", "half written", "written", "on disk", "renamed", "folder on disk")
"""The moments within `save_position`."""

EPOCH_ENDS = ("ended", "ended and saved", "begun and saved")
"""The moments between two epochs."""

_PATIENCE = 120.0


class KillPlan(NamedTuple):
    """When a run is killed."""

    moment: str = ""
    """One of those above; ``"outside"`` for a random one; or never."""
    after: int = 0
    """How often the moment passes before."""
    seconds: float = 0.0
    """For ``"outside"``: how long after the first batch."""


class Request(NamedTuple):
    """What a run has to do."""

    shape: str
    folder: str
    seed: int
    """Of what may be another in each run."""
    plan: KillPlan


def shapes(folder: Path) -> dict[str, Any]:
    """All shapes by their names; the unordered ones begin with ``unordered``."""
    return {
        **ordered_shapes(folder),
        **{f"unordered:{name}": shape for name, shape in unordered_shapes(folder).items()},
        **{f"stream:{name}": shape for name, shape in ordered_streams(folder).items()},
        **{f"unordered stream:{name}": shape for name, shape in unordered_streams().items()},
        **{
            f"{EXAMPLE}{program.variant}": partial(program.pipeline, folder=folder)
            for family in ("stage", "source")
            for program in programs_asked("resume", of=family)
            if program.is_random
        },
    }


@contextmanager
def begun(
    name: str, folder: Path, how: How, resume: Any, between: Callable[[str], object]
) -> Iterator[tuple[Iterator[tuple[int, Any]], Callable[[], dict[str, Any]]]]:
    """The batches behind a position, with their epochs, and what tells where they stand.

    Args:
        name: of the shape.
        folder: where its files are.
        how: what may be another in each run.
        resume: the position; ``None`` for the beginning.
        between: called at the moments between two epochs.
    """

    def batches() -> Iterator[tuple[int, Any]]:
        for epoch in epochs:
            between("begun and saved")
            for made in epoch:
                yield epoch.number, made
            between("ended")
            between("ended and saved")

    shape = shapes(folder)[name]
    if "stream:" in name:
        with sync.Coordinator() as coord:
            stream = shape(how, coord, resume=resume)
            yield ((0, made) for made in stream), stream.state_dict
        return
    with shape(how).epochs(EPOCHS, resume=resume, journal=folder / JOURNAL) as epochs:
        yield batches(), epochs.state_dict


def whole_of(name: str, folder: Path) -> list[Any]:
    """All batches with their epochs, where nothing is disturbed."""
    shape = shapes(folder)[name.removeprefix(RANKS)]
    if "stream:" in name:
        found: list[Any] = [(0, made) for made in undisturbed(shape)]
    else:
        found, _ = going_through(shape(How()), EPOCHS)
    return [[epoch, logged(name, made.value)] for epoch, made in found]


def is_ordered(name: str) -> bool:
    """Whether a shape gives the same batches each time, and not only the same examples."""
    return not name.startswith(("unordered", RANKS))


def logged(name: str, batch: Any) -> Any:
    """A batch to the last byte, in plain JSON types; or where there is no order, its examples."""
    return plain_form(batch) if is_ordered(name) else [plain_form(row) for row in rows_in(batch)]


class _Doom:
    """Counts the moments, and kills this process at the one that is fated."""

    def __init__(self, plan: KillPlan) -> None:
        self._plan = plan
        self._left = plan.after

    def has_come(self, moment: str) -> bool:
        """Whether this is the moment."""
        if moment != self._plan.moment:
            return False
        self._left -= 1
        return self._left < 0

    def at(self, moment: str) -> None:
        """A moment has come."""
        if self.has_come(moment):
            die()


def die() -> None:
    """Be killed, now."""
    os.kill(os.getpid(), signal.SIGKILL)


class _Dangerous:
    """Stands in for `os` within `save_position`, and tells where that is."""

    def __init__(self, doom: _Doom) -> None:
        self._doom = doom
        self._has_renamed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def fsync(self, descriptor: int) -> None:
        """Of the file, and then of the folder."""
        if not self._has_renamed:
            self._doom.at("written")
        os.fsync(descriptor)
        self._doom.at("folder on disk" if self._has_renamed else "on disk")
        self._has_renamed = False

    def replace(self, source: Any, target: Any) -> None:
        """Between the two."""
        os.replace(source, target)
        self._has_renamed = True
        self._doom.at("renamed")

    def open_file(self, *arguments: Any, **options: Any) -> Any:
        """Stands in for the built-in `open`."""
        file = open(*arguments, **options)  # noqa: SIM115  # it is closed by who has asked
        self._doom.at("opened")
        if self._doom.has_come("half written"):
            _write_half(file)
        return file


def _write_half(file: TextIO) -> None:
    """Make a file whose next writing is cut off."""

    def write(text: str) -> int:
        file.buffer.write(text[: len(text) // 2].encode())
        file.flush()
        die()
        return 0

    file.write = write  # type: ignore[method-assign]


def _how(chance: random.Random) -> How:
    """Other workers in each run, of another kind, and another number of items in flight."""
    where = chance.choice(["auto"] * 5 + ["thread"] * 2 + ["process"])
    workers = chance.randint(1, 2 if where == "process" else 6)
    return How(workers, where, limit=chance.choice([None, 4, 16]))


def run(request: Request) -> None:
    """Go through a pipeline from where the position is, a little slower than it could."""
    folder, doom = Path(request.folder), _Doom(request.plan)
    dangerous: Any = _Dangerous(doom)
    position_file.os, position_file.open = dangerous, dangerous.open_file  # type: ignore[attr-defined]
    kept = load_position(folder / "position.json", default=None)
    log, count = folder / "log.jsonl", kept["batches"] if kept else 0
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    log.write_text("".join(lines[:count]))
    if request.shape.startswith(RANKS):
        _run_ranks(request, kept, log, doom)
    else:
        _run_one(request, kept, log, doom)
    (folder / "ended").touch()


def _run_one(request: Request, kept: Any, log: Path, doom: _Doom) -> None:
    folder, chance = Path(request.folder), random.Random(request.seed)
    count = kept["batches"] if kept else 0

    def save() -> None:
        save_position(folder / "position.json", {"batches": count, "data": ask()})

    def between(moment: str) -> None:
        if doom.has_come(moment):
            if moment.endswith("saved"):
                save()
            die()

    how, resume = _how(chance), kept and kept["data"]
    every = chance.randint(1, 4)
    with (
        log.open("a") as file,
        begun(request.shape, folder, how, resume, between) as (batches, ask),
    ):
        for epoch, batch in batches:
            time.sleep(0.003)  # so that a kill finds something under way
            file.write(json.dumps([epoch, logged(request.shape, batch)]) + "\n")
            file.flush()
            count += 1
            if not count % every:
                save()


def _run_ranks(request: Request, kept: Any, log: Path, doom: _Doom) -> None:
    """The same with several ranks, whose positions are in the folder of their step."""
    folder, chance = Path(request.folder), random.Random(request.seed)
    ranks, every = chance.randint(1, 8), chance.randint(1, 3)
    count, step, position = 0, 0, None
    if kept:
        count, step = kept["batches"], kept["step"]
        saved = (folder / str(step)).glob("rank-*.json")
        position = merge_positions([load_position(path) for path in saved], lockstep=False)
    make = shapes(folder)[request.shape.removeprefix(RANKS)]
    all_epochs = [
        make(How(chance.randint(1, 3)))
        .shard(rank, ranks, uneven="allow")
        .epochs(EPOCHS, resume=position)
        for rank in range(ranks)
    ]
    with log.open("a") as file:
        for batches in zip_longest(*map(partial(_numbered, doom), all_epochs)):
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


def _numbered(doom: _Doom, epochs: Any) -> Iterator[list[Any]]:
    """All batches of a rank, with their epochs."""
    for epoch in epochs:
        doom.at("begun and saved")
        for batch in epoch:
            yield [epoch.number, logged(RANKS, batch)]
        doom.at("ended")
        doom.at("ended and saved")


def _serve() -> None:
    """Answer requests by exit codes."""
    for line in sys.stdin:
        shape, folder, seed, plan = json.loads(line)
        request = Request(shape, folder, seed, KillPlan(*plan))
        log = Path(folder) / "log.jsonl"
        before = log.stat().st_size if log.exists() else -1
        pid = os.fork()
        if not pid:
            _run_and_exit(request)
        print(_exit_code(pid, request.plan, log, before), flush=True)


def _run_and_exit(request: Request) -> None:
    code = 1
    try:
        run(request)
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def _exit_code(pid: int, plan: KillPlan, log: Path, before: int) -> int:
    """How a run has ended, which is killed if that is its fate."""
    end = time.monotonic() + _PATIENCE
    is_fated = plan.moment == "outside"
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if is_fated and log.exists() and log.stat().st_size not in (before, 0):
            end, is_fated = time.monotonic() + plan.seconds, False  # it has begun
        if time.monotonic() >= end:
            os.kill(pid, signal.SIGKILL)
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        time.sleep(0.0005)


if __name__ == "__main__":
    with suppress(BrokenPipeError, KeyboardInterrupt):  # nobody asks any more
        _serve()
