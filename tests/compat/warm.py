"""A warm interpreter that runs programs in forks of itself: `run` is ``python arguments``, sooner.

Importing aioqueue and NumPy takes longer than most scripts do. One process imports them, once, and
forks for each program; each fork begins in the state that the imports have left, and ends as an
interpreter does. Where there is no fork, a program has an interpreter of its own.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import subprocess
import sys
import tempfile
import time
import types
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ("WARM", "Interpreter")

SECONDS = 100


class Interpreter:
    """Starts with the first program, and ends with this process."""

    def __init__(self) -> None:
        self._server: subprocess.Popen[str] | None = None

    def run(
        self, *arguments: str, cwd: Path, environment: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """Run a script or a module, and return what it has written.

        Args:
            arguments: of the interpreter.
            cwd: the folder to run it in.
            environment: all of it.
        """
        if not hasattr(os, "fork"):
            return subprocess.run(
                [sys.executable, *arguments],
                cwd=cwd,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
            )
        if self._server is None:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "tests.compat.warm"],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            atexit.register(self._server.communicate)
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            out, err = Path(folder, "out"), Path(folder, "err")
            asked = {
                "arguments": arguments, "cwd": str(cwd), "environment": environment,
                "out": str(out), "err": str(err),
            }  # fmt: skip
            print(json.dumps(asked), file=self._server.stdin, flush=True)
            status = json.loads(self._server.stdout.readline())
            return subprocess.CompletedProcess(
                [sys.executable, *arguments], status, out.read_text(), err.read_text()
            )


WARM = Interpreter()
"""For all tests. What it takes counts for none of them, for it ends after the last one."""


def serve() -> dict[str, Any] | None:
    """Fork for each program that is asked for.

    Returns:
        In a fork: the program. In the server: None, when nobody asks any more.
    """
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        child = os.fork()
        if not child:
            return asked
        print(json.dumps(_status(child)), flush=True)
    return None


def _status(child: int) -> int:
    """How a fork has ended, as `subprocess` says it; it is killed when it takes too long."""
    limit = time.monotonic() + SECONDS
    pause = 0.001
    while time.monotonic() < limit:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(pause)
        pause = min(2 * pause, 0.02)
    os.kill(child, 9)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def become(asked: Mapping[str, Any]) -> None:
    """Make this process what an interpreter is that has been started for a program.

    Args:
        asked: the program.
    """
    for number, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, asked["out"], os.O_WRONLY | os.O_CREAT),
        (2, asked["err"], os.O_WRONLY | os.O_CREAT),
    ):
        opened = os.open(path, flags)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(asked["environment"])
    tempfile.tempdir = None  # what was found in the environment before
    os.chdir(asked["cwd"])
    sys.excepthook = _print_without_us


def _print_without_us(
    kind: type[BaseException], error: BaseException, trace: types.TracebackType | None
) -> None:
    """Print a traceback that begins in the program."""
    while trace is not None and trace.tb_frame.f_code.co_filename in (
        __file__,
        runpy.__file__,
        "<frozen runpy>",
    ):
        trace = trace.tb_next
    sys.__excepthook__(kind, error.with_traceback(trace), trace)


def run(arguments: Sequence[str]) -> None:
    """Run a program in this process.

    Args:
        arguments: of an interpreter; ``-W error`` may be the first.
    """
    if arguments[:2] == ["-W", "error"]:
        warnings.simplefilter("error")
        arguments = arguments[2:]
    if arguments[0] == "-m":
        sys.argv[:] = list(arguments[1:])
        sys.path[0] = ""
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv[:] = list(arguments)
        sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    import aioqueue.compat.v1.__main__  # noqa: F401

    del sys.modules["aioqueue.compat.v1.__main__"]
    gc.freeze()
    program = serve()
    if program is not None:
        become(program)
        run(program["arguments"])
