"""The fork server: it imports once what every process needs, and forks on request.

It is multiprocessing's server, but we start it. So it imports the main module as a new process
does, under the name ``__mp_main__``, in every version of Python, and checks what the imports have
left behind. If forks must not have that, or if an import has failed, the server replaces itself by
an ``exec``, which leaves nothing behind, and imports nothing of the program. Then each process
imports the modules, has its own of everything, and reports a failure itself.

**What imports leave behind.** A module that each process imports makes its own of everything. But
if it is imported once, and the process is forked afterwards, then threads are gone while the locks
that they held are not; an open file has one position for all; and a generator that the system has
seeded gives every process the same numbers. So the fork server checks before it forks. It can find
only what shows from outside, since the modules may be anyone's.
"""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import random
import signal
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, process, spawn, util
from typing import Any, Final

import numpy as np

from aioqueue.processes.fork_server.bootstrap import COLD, PARENT_DIED, WARM, ImportPlan, Program
from aioqueue.system import posix


def main(
    plan: int, listener: int, alive: int, folder: str | None, keywords: dict[str, Any]
) -> None:
    """Run the server until the program has ended.

    Args:
        plan: the descriptor of a file with the pickled `ImportPlan`.
        listener: the descriptor of the socket for requests.
        alive: the descriptor of a pipe that ends with the program.
        folder: the folder of the socket's file, which is removed when the program has ended.
        keywords: further arguments of multiprocessing's server.
    """
    with _dying_with_the_program(alive), _collecting_nothing():
        # This code runs again after an `exec` (`_restart_without_program`), with the same file.
        os.lseek(plan, 0, os.SEEK_SET)
        with open(plan, "rb", closefd=False) as file:
            import_plan: ImportPlan = pickle.load(file)
        _import(import_plan.modules)
        if sys.argv[1] == WARM:
            _import_program(import_plan)
    os.close(plan)
    os.register_at_fork(after_in_child=_seeds.reseed)
    util._flush_std_streams()  # type: ignore[attr-defined]  # else each fork would write it again
    # That warning concerns children of imported modules, from before the server replaced itself.
    warnings.filterwarnings("ignore", "forkserver: waitpid returned unexpected pid")
    try:
        forkserver.main(listener, alive, [], **keywords)
    finally:  # processes that it has forked end without coming here
        posix.remove_listener(folder)


def _import_program(import_plan: ImportPlan) -> None:
    """Import the program's modules, or start again without them."""
    util._close_stdin()  # type: ignore[attr-defined]
    files = open_files()
    # A module may unblock signals. The workers must inherit them as they are here: blocked.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        with _seeds.recording():
            _import_main(import_plan.program)
            _import(import_plan.wanted)
        why = fork_hazard(files)
    except BaseException:
        why = "a failure"  # each process meets it, too, and reports it
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    if why:
        _restart_without_program(files)


def _import_main(program: Program) -> None:
    """Import the main module as a new process does."""
    current: Any = process.current_process()
    current.name = "aioqueue-forkserver"
    current._inheriting = True
    try:
        spawn.prepare(program.preparation())
    finally:
        del current._inheriting


def _import(names: Iterable[str]) -> None:
    for name in names:
        with suppress(ImportError):
            importlib.import_module(name)


def _restart_without_program(files: set[int]) -> None:
    """Replace this process by a server without the program's modules and their threads."""
    # An `exec` ends threads and drops objects. Only inheritable descriptors outlive it.
    for fd in open_files() - files:
        with suppress(OSError):
            os.close(fd)
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os.execv(sys.executable, [*sys.orig_argv[:-1], COLD])


@contextmanager
def _dying_with_the_program(alive: int) -> Iterator[None]:
    """Let the kernel kill this process when the program ends, whatever is being imported.

    Later the server reads the pipe ``alive`` for that. During the imports nothing does, and a
    module may hold the GIL.
    """
    import fcntl  # not available on Windows

    fcntl.fcntl(alive, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(alive, fcntl.F_SETOWN, os.getpid())
    flags = fcntl.fcntl(alive, fcntl.F_GETFL)
    fcntl.fcntl(alive, fcntl.F_SETFL, flags | os.O_ASYNC)
    # The signal comes when the pipe ends from now on. So look whether it had ended before.
    if posix.is_readable(alive, 0):
        os._exit(PARENT_DIED)  # the program had ended before
    yield
    fcntl.fcntl(alive, fcntl.F_SETFL, flags & ~os.O_ASYNC)


@contextmanager
def _collecting_nothing() -> Iterator[None]:
    """Turn the garbage collector off while the imports make thousands of lasting objects.

    Afterwards the collector ignores them in all processes. Otherwise each process would get a copy
    of every page on which it marks an object.
    """
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


_TRIES: Final = 3
"""How often to check again for a thread that is ending."""

_MOST_FILES: Final = 4096
"""How many descriptors to try where the system does not list those that are open."""

_SURELY_SEEDED: Final = 2**64
"""Seeds above this may be the system's: it takes 128 bits, and a program that draws its seed from
the system may do the same."""


def open_files() -> set[int]:
    """Return the file descriptors of this process. Without /proc, these are only the lower ones."""
    try:
        fds = {int(name) for name in os.listdir("/proc/self/fd")}
    except OSError:
        fds = set(range(_MOST_FILES))
    return {fd for fd in fds if _is_open(fd)}  # without the descriptor of the listing itself


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def fork_hazard(files_before: set[int]) -> str:
    """Name the kind of state that forks of this process should not have; empty without any.

    Args:
        files_before: the descriptors that were open before the imports.
    """
    if len(open_files() - files_before) > 0:
        return "open files"
    if threading.active_count() > 1 or _has_threads():
        return "threads"
    if _has_children():
        return "processes"
    if _has_generators():
        return "generators that were not seeded"
    return ""


def _has_threads() -> bool:
    """Return whether there are threads that a fork would lose.

    Libraries that handle forks end their threads before one, as OpenBLAS does. So this makes a
    trial fork, then counts the threads that still run here: those are not prepared for forks.
    Without /proc nobody can count them, so there may be some.
    """
    if not os.path.exists("/proc/self/task"):
        return True
    for _ in range(_TRIES):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns of forks with threads
            pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        # A thread that is ending, here by the handlers of that fork, is listed for a moment.
        if len(os.listdir("/proc/self/task")) == 1:
            return False
    return True


def _has_children() -> bool:
    """Return whether this process has children, whose ends would confuse a fork server."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _has_generators() -> bool:
    """Return whether NumPy has a generator that the system has seeded. The global one does not
    count: each process seeds it anew (`Seeds`)."""
    ours = np.random.mtrand._rand
    kinds = (np.random.Generator, np.random.RandomState)
    return any(
        type(thing) in kinds and thing is not ours and _is_by_system(thing)
        for thing in gc.get_objects()
    )


def _is_by_system(generator: Any) -> bool:
    bits = getattr(generator, "bit_generator", None) or generator._bit_generator
    entropy = getattr(bits.seed_seq, "entropy", 0)
    return not isinstance(entropy, int) or entropy >= _SURELY_SEEDED


class Seeds:
    """The generators that the system has seeded. Each process must seed them anew."""

    def __init__(self) -> None:
        self._generators: weakref.WeakSet[random.Random] = weakref.WeakSet()

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the generators of `random` that are made in this context."""
        seed = random.Random.seed
        random.Random.seed = self._recorder(seed)  # type: ignore[method-assign]
        try:
            yield
        finally:
            random.Random.seed = seed  # type: ignore[method-assign]

    def _recorder(self, seed: Callable[..., None]) -> Callable[..., None]:
        def seed_and_record(generator: random.Random, a: Any = None, version: int = 2) -> None:
            seed(generator, a, version)
            if a is None:
                self._generators.add(generator)
            else:
                self._generators.discard(generator)

        return seed_and_record

    def reseed(self) -> None:
        """Seed them anew, in a new process. (Python does so for the functions of `random`.)"""
        for generator in self._generators:
            generator.seed()
        if np.random.mtrand._rand._bit_generator.seed_seq is not None:  # no explicit seed was set
            np.random.seed()


_seeds: Final = Seeds()
