"""The fork server: it imports once what every process needs, and forks on request.

It is multiprocessing's server, but we start it. So it imports the main module as a new process
does, under the name ``__mp_main__``, in every version of Python, and checks what the imports have
left behind. If forks must not have that, or if an import has failed, the server replaces itself by
an ``exec``, which leaves nothing behind, and imports nothing of the program. Then each process
imports the modules, has its own of everything, and reports a failure itself.
"""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import signal
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, process, spawn, util
from typing import Any, Final

from aioqueue import posix
from aioqueue.processes.import_side_effects import Seeds, left_behind, open_files
from aioqueue.processes.program import COLD, WARM, ImportOrders, Program
from aioqueue.processes.start_checks import (
    PARENT_GONE,
)

__all__ = ("main",)

_seeds: Final = Seeds()


def main(orders: int, listener: int, alive: int, keywords: dict[str, Any]) -> None:
    """Run the server until the program has ended.

    Args:
        orders: the descriptor of a file with the pickled `ImportOrders`.
        listener: the descriptor of the socket for requests.
        alive: the descriptor of a pipe that ends with the program.
        keywords: further arguments of multiprocessing's server.
    """
    with _dying_with_the_program(alive), _collecting_nothing():
        os.lseek(orders, 0, os.SEEK_SET)
        with open(orders, "rb", closefd=False) as file:
            import_orders: ImportOrders = pickle.load(file)
        _import(import_orders.modules)
        if sys.argv[1] == WARM:
            _import_program(import_orders)
    os.close(orders)
    os.register_at_fork(after_in_child=_seeds.renew)
    util._flush_std_streams()  # type: ignore[attr-defined]  # else each fork would write it again
    # That warning concerns children of imported modules, from before the server replaced itself.
    warnings.filterwarnings("ignore", "forkserver: waitpid returned unexpected pid")
    forkserver.main(listener, alive, [], **keywords)


def _import_program(import_orders: ImportOrders) -> None:
    """Import the program's modules, or start again without them."""
    util._close_stdin()  # type: ignore[attr-defined]
    files = open_files()
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        with _seeds.noted():
            _import_main(import_orders.program)
            _import(import_orders.wanted)
        why = left_behind(files)
    except BaseException:
        why = "a failure"  # each process meets it, too, and reports it
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    if why:
        _begin_anew(files)


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


def _begin_anew(files: set[int]) -> None:
    """Replace this process by a server without the program's modules and their threads."""
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
    if posix.is_readable(alive, 0):
        os._exit(PARENT_GONE)  # the program had ended before
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
