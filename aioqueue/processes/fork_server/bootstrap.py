"""What a new process takes over from the program, and whether the program may start one.

A process takes over its main module, paths, files and environment.

A fork server imports these modules once. So it serves a program only as long as they do not change:
if you edit a module in a notebook session and run again, new processes must import the new version.

A program that is ending starts no process. Nor does what multiprocessing has started by mistake, in
place of a worker: then each program would start the next, without end.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.process
import os
import re
import sys
import sysconfig
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import spawn
from typing import Any, Final, NamedTuple

_INSTALLED: Final = tuple(
    {os.path.join(sysconfig.get_path(kind), "") for kind in ("stdlib", "purelib", "platlib")}
)
"""Where installed modules are, which do not change while a program runs."""


class Program(NamedTuple):
    """The parts of the program that a process takes over when it imports the main module."""

    main: Mapping[str, str]
    """The main module, in the form of `multiprocessing.spawn.prepare`; empty if not imported."""
    sys_path: list[str]
    sys_argv: list[Any]
    dir: str | None
    orig_dir: str | None

    @classmethod
    def current(cls, *, with_main: bool = True) -> Program:
        """Return the parts as they are now.

        Args:
            with_main: whether a new process imports the main module.
        """
        try:
            here = os.getcwd()
        except OSError:
            here = None  # the working directory was removed
        original: str | None = multiprocessing.process.ORIGINAL_DIR  # type: ignore[attr-defined]
        path = [
            original if entry == "" and original is not None else entry
            for entry in sys.path
            if isinstance(entry, str)
        ]
        return cls(main_module() if with_main else {}, path, list(sys.argv), here, original)

    def preparation(self) -> dict[str, Any]:
        """Return the parts as the argument of `multiprocessing.spawn.prepare`."""
        data = {"sys_path": self.sys_path, "sys_argv": self.sys_argv, **self.main}
        if self.dir is not None:
            data["dir"] = self.dir
        if self.orig_dir is not None:
            data["orig_dir"] = self.orig_dir
        return data


class ImportPlan(NamedTuple):
    """The imports that a fork server is to make."""

    program: Program
    modules: tuple[str, ...]
    """The modules of aioqueue that every process needs."""
    wanted: tuple[str, ...]
    """The modules that the program wants in every process, besides its main module."""


WARM: Final = "imports first"
COLD: Final = "imports nothing of the program"
"""The modes of a fork server. They end its command line, to be seen in a list of processes."""


def ensure_tracker() -> None:
    """Start multiprocessing's tracker of shared memory and semaphores, if it does not run."""
    from multiprocessing import resource_tracker  # not available on Windows

    resource_tracker.ensure_running()


def imports_main() -> bool:
    return bool(main_module())


def main_module_hint() -> str:
    """Say where the functions are that new processes cannot import, and what the user should do."""
    main = sys.modules["__main__"]
    name = getattr(getattr(main, "__spec__", None), "name", None)
    if name is not None:
        return f"in the module '{name}', which only the program runs; write it to another module"
    path = getattr(main, "__file__", None)
    if path is not None and _is_no_file(path):
        return "in a program that is no file; write it to a file"
    return (
        "in a cell of a notebook or at a prompt; write it to a file (in a notebook with"
        " %%writefile)"
    )


def main_module() -> dict[str, str]:
    """Return the main module by multiprocessing's rules; empty if it cannot be imported."""
    main = sys.modules["__main__"]
    name = getattr(getattr(main, "__spec__", None), "name", None)
    if name is not None:
        # The main module of a package usually has no guard, and is never imported.
        is_of_package = name == "__main__" or name.endswith(".__main__")
        return {} if is_of_package else {"init_main_from_name": name}
    path = getattr(main, "__file__", None)
    if path is None or _is_no_file(path) or _is_ipython(path):
        return {}
    original = multiprocessing.process.ORIGINAL_DIR  # type: ignore[attr-defined]
    if not os.path.isabs(path) and original is not None:
        path = os.path.join(original, path)
    return {"init_main_from_path": os.path.normpath(path)}


def _is_no_file(path: str) -> bool:
    return os.path.basename(path).startswith("<")  # such as "<stdin>"


def _is_ipython(path: str) -> bool:
    return os.path.splitext(os.path.basename(path))[0] == "ipython"


def source_times() -> dict[str, int]:
    """Return the files of the modules that the program has imported, except installed ones, and
    when each was written."""
    found: dict[str, int] = {}
    for module in list(sys.modules.values()):
        path = getattr(module, "__dict__", {}).get("__file__")
        if isinstance(path, str) and not path.startswith(_INSTALLED):
            found[path] = _written(path)
    return found


def has_changed(before: Mapping[str, int]) -> bool:
    """Return whether one of the files has been written since."""
    return any(_written(path) != when for path, when in before.items())


def _written(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0  # it is gone, or in an archive


def environment_changes(before: Mapping[str, str]) -> dict[str, str | None]:
    """Return how the environment has changed; ``None`` for a removed variable."""
    now = dict(os.environ)
    changed: dict[str, str | None] = {
        name: value for name, value in now.items() if before.get(name) != value
    }
    changed.update(dict.fromkeys(before.keys() - now.keys()))
    return changed


PARENT_DIED: Final = 70
"""The exit code of a process whose program has ended."""

STARTS: Final = "AIOQUEUE_STARTS_WORKER"
"""An environment variable: the program that is being started as a worker process, if that is no
Python interpreter."""

_INTERPRETER: Final = re.compile(r"(python|pypy|graalpy)", re.IGNORECASE)
"""How the names of interpreters begin."""

_PATIENCE: Final = 1.0
"""How many seconds the program's exit waits for a process that is just getting its data."""

# Only threads that are made for this take this lock, and no signal handler runs in them.
_delays_exit = threading.Lock()  # a process, or the server, may exist without its data
_is_ending = False


class CannotStartError(Exception):
    """A process cannot be started, and another try would fail, too.

    Args:
        why: the reason.
        exitcode: the fork server's exit code, if it has ended with one.
    """

    def __init__(self, why: str, exitcode: int | None = None) -> None:
        super().__init__(why)
        self.exitcode = exitcode


def is_daemonic() -> bool:
    """Return whether this is a worker process, or another one that may not start processes."""
    return multiprocessing.current_process().daemon


def refused_children(what: str) -> str:
    """Say why a process that is a worker itself starts no others, and what to do instead.

    Args:
        what: what would have started them.
    """
    return (
        f"{what} cannot start processes in a worker process: they would outlive it when it is"
        " killed. Use where='thread' for the function that starts them, and it runs in the program"
        " itself; or let it work alone, on more workers"
    )


def is_importing_main() -> bool:
    """Return whether this is a new process that is importing the program's main module."""
    return bool(getattr(multiprocessing.current_process(), "_inheriting", False))


def is_ending() -> bool:
    """Return whether the program ends. Then multiprocessing may join what we would close."""
    return _is_ending


def refuse_starts() -> None:
    """Start no process from now on, because the program ends."""
    global _is_ending
    _is_ending = True
    # A process that got half of its data would print an error.
    if _delays_exit.acquire(timeout=_PATIENCE):
        _delays_exit.release()


@contextmanager
def delaying_exit() -> Iterator[None]:
    """Let the program's exit wait a moment: a process, or the server, may exist without its data.

    Raises:
        CannotStartError: the program is ending.
    """
    with _delays_exit:
        if is_ending():
            raise CannotStartError("the program is ending")
        yield


def is_python() -> bool:
    """Return whether multiprocessing starts a Python interpreter that runs what it is given.

    Frozen programs and those that embed Python do not: they would start themselves. They start
    processes in a way of their own, on which their tools and multiprocessing have agreed.
    """
    if getattr(sys, "frozen", False):
        return False
    executable = os.fsdecode(spawn.get_executable() or "")
    names = (os.path.basename(path) for path in (executable, os.path.realpath(executable)))
    return any(_INTERPRETER.match(name) for name in names)


@contextmanager
def refusing_self_start() -> Iterator[None]:
    """Refuse to start a process in a program that was itself started instead of one.

    It would go on for ever: each program would start the next.

    Raises:
        CannotStartError: so it is; or the program does not know what to start.
    """
    if is_python():
        yield
        return
    executable = os.fsdecode(spawn.get_executable() or "")
    if not executable:
        raise CannotStartError(
            "sys.executable is empty, so Python cannot be started; name an interpreter by"
            " multiprocessing.set_executable()"
        )
    if os.environ.get(STARTS) == executable and multiprocessing.parent_process() is None:
        raise CannotStartError(
            f"{executable} has started itself instead of a worker process; call"
            ' multiprocessing.freeze_support() first under `if __name__ == "__main__":`, or name a'
            " Python interpreter by multiprocessing.set_executable()"
        )
    os.environ[STARTS] = executable
    try:
        yield
    finally:
        os.environ.pop(STARTS, None)


def _after_fork() -> None:
    global _delays_exit
    _delays_exit = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
