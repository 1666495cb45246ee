"""What our fork server does: import once what every process needs, and then fork when it is asked.

It is multiprocessing's server, begun by us: so that it imports the main module as a new process
does, under the name ``__mp_main__``, in all versions of Python; and looks at what that has left
behind. If forks had better not have that, or the import has failed, the server begins anew by an
``exec``, which leaves nothing, and imports none of what is the program's. Then each process does,
and has its own of everything; and reports how it fails, if it does.
"""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import select
import signal
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, process, spawn, util
from typing import Any, Final

from aioqueue.processes.import_side_effects import Seeds, left_behind, open_files
from aioqueue.processes.program import COLD, WARM, ImportOrders, Program
from aioqueue.processes.start import PARENT_GONE

__all__ = ("main",)

_seeds: Final = Seeds()


def main(orders: int, listener: int, alive: int, keywords: dict[str, Any]) -> None:
    """Run the server, until the program has ended.

    Args:
        orders: the descriptor of a file that has the pickled `ImportOrders`.
        listener: that of the socket at which processes are asked for.
        alive: that of a pipe that ends with the program.
        keywords: what else multiprocessing's server is told.
    """
    with _dying_with_the_program(alive), _collecting_nothing():
        os.lseek(orders, 0, os.SEEK_SET)
        with open(orders, "rb", closefd=False) as file:
            told: ImportOrders = pickle.load(file)
        _import(told.modules)
        if sys.argv[1] == WARM:
            _import_what_is_the_programs(told)
    os.close(orders)
    os.register_at_fork(after_in_child=_seeds.renew)
    util._flush_std_streams()  # type: ignore[attr-defined]  # else all would write it once more
    # One that was forked by what was imported, and that we left for being cold: none of ours.
    warnings.filterwarnings("ignore", "forkserver: waitpid returned unexpected pid")
    forkserver.main(listener, alive, [], **keywords)


def _import_what_is_the_programs(told: ImportOrders) -> None:
    """Import it, or begin anew without it."""
    util._close_stdin()  # type: ignore[attr-defined]
    files = open_files()
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        with _seeds.noted():
            _import_main(told.program)
            _import(told.wanted)
        why = left_behind(files)
    except BaseException:
        why = "a failure"  # which each process has, too, and tells
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    if why:
        _begin_anew(files)


def _import_main(program: Program) -> None:
    """As a new process imports it."""
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


def _begin_anew(files: set[int]) -> None:
    """Go on as a server that has nothing of the program, and none of its threads."""
    for fd in open_files() - files:
        with suppress(OSError):
            os.close(fd)
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os.execv(sys.executable, [*sys.orig_argv[:-1], COLD])


@contextmanager
def _dying_with_the_program(alive: int) -> Iterator[None]:
    """Be killed when the program ends, whatever is being imported.

    Afterwards the server reads that pipe. Now nobody does, and a module may hold the GIL: so it is
    the kernel that is asked to look.
    """
    import fcntl  # which Windows does not have

    fcntl.fcntl(alive, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(alive, fcntl.F_SETOWN, os.getpid())
    flags = fcntl.fcntl(alive, fcntl.F_GETFL)
    fcntl.fcntl(alive, fcntl.F_SETFL, flags | os.O_ASYNC)
    if select.select([alive], [], [], 0)[0]:
        os._exit(PARENT_GONE)  # it has ended before
    yield
    fcntl.fcntl(alive, fcntl.F_SETFL, flags & ~os.O_ASYNC)


@contextmanager
def _collecting_nothing() -> Iterator[None]:
    """Keep the garbage collector away while thousands of objects are made that stay.

    Afterwards it leaves them alone in all processes, which else would each get a copy of every page
    that it writes its marks to.
    """
    gc.disable()
    yield
    gc.freeze()
    gc.enable()
