"""Run an unmodified TensorFlow 1 script: ``python -m aioqueue.compat.v1 script.py [args]``.

Within that process ``import tensorflow as tf`` gives `aioqueue.compat.v1`, and so do
``tensorflow.compat.v1`` and the modules below ``tensorflow.python`` that scripts with queues import
from. The script sees what it would see under ``python script.py``: ``sys.argv``, ``sys.path``,
``__main__``, tracebacks that begin with its own first line, and the exit status.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import io
import os
import runpy
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

from aioqueue.compat.v1.checking import check
from aioqueue.compat.v1.shim import install

USAGE = """\
usage: python -m aioqueue.compat.v1 script.py [args ...]
       python -m aioqueue.compat.v1 -m module [args ...]
       python -m aioqueue.compat.v1 --check script.py [more.py ...]

Runs a TensorFlow 1 script on aioqueue: `import tensorflow as tf` in it, or in what it
imports, gives aioqueue.compat.v1. TensorFlow itself is neither needed nor imported.

  script.py    the script; it sees the arguments after it in sys.argv
  -m module    run a module by name, as `python -m` does
  --check      run nothing: read the scripts, and what they import from beside them, and
               list what is absent, with what to use instead, which extras are missing, and
               what has no effect; the exit status is 1 if anything is absent or missing
  -h, --help   this text
"""


def main(arguments: Sequence[str]) -> int:
    first = arguments[0] if arguments else None
    if first in ("-h", "--help"):
        sys.stdout.write(USAGE)
        return 0
    if first == "--check" and len(arguments) > 1:
        return check_scripts(arguments[1:])
    wants_module = first == "-m"
    if first is None or (wants_module and len(arguments) < 2) or _is_unknown_option(first):
        sys.stderr.write(USAGE)
        return 2
    install()
    if wants_module:
        return run_module(arguments[1], arguments[2:])
    return run_script(first, arguments[1:])


def run_script(path: str, arguments: Sequence[str]) -> int:
    full = os.path.abspath(path)
    try:
        with io.open_code(full) as file:
            source = file.read()
    except OSError as error:
        _cannot_open(full, error)
        return 2
    module = types.ModuleType("__main__")
    module.__file__ = full
    module.__dict__["__builtins__"] = __builtins__
    module.__dict__["__cached__"] = None
    module.__loader__ = importlib.machinery.SourceFileLoader("__main__", full)
    sys.modules["__main__"] = module
    sys.argv[:] = [path, *arguments]
    sys.path[0] = os.path.dirname(os.path.realpath(path))
    _run(lambda: exec(compile(source, full, "exec", dont_inherit=True), module.__dict__))
    return 0


def check_scripts(paths: Sequence[str]) -> int:
    """Print what scripts will miss, and what has no effect in them, without running them."""
    status = 0
    for path in paths:
        try:
            report = check(path)
        except OSError as error:
            status = 2
            _cannot_open(path, error)
            continue
        status = max(status, 1 if report.absent or report.lacking else 0)
        sys.stdout.write(f"{report}\n")
    return status


def run_module(name: str, arguments: Sequence[str]) -> int:
    sys.argv[:] = [name, *arguments]
    missing = _missing(name)
    if missing:
        sys.stderr.write(f"{sys.executable}: {missing}\n")
        return 1
    _run(lambda: runpy.run_module(name, run_name="__main__", alter_sys=True))
    return 0


def _cannot_open(path: str, error: OSError) -> None:
    reason = f"[Errno {error.errno}] {error.strerror}"
    sys.stderr.write(f"{sys.executable}: can't open file {path!r}: {reason}\n")


def _missing(name: str) -> str:
    try:
        return "" if importlib.util.find_spec(name) else f"No module named {name}"
    except ImportError as error:
        return (
            f"Error while finding module specification for {name!r}"
            f" ({type(error).__name__}: {error})"
        )


def _is_unknown_option(argument: str) -> bool:
    return argument.startswith("-") and argument != "-m"


def _run(program: Callable[[], Any]) -> None:
    """Run a program. If it fails, the traceback that Python prints begins in the program."""
    try:
        program()
    except SystemExit:
        raise
    except BaseException as error:
        failure, theirs = error, error.__traceback__
        while theirs is not None and _is_ours(theirs):
            theirs = theirs.tb_next
        print_error = sys.excepthook  # the program may have set its own

        def hook(
            kind: type[BaseException], value: BaseException, trace: types.TracebackType | None
        ) -> None:
            trace = theirs if value is failure else trace
            print_error(kind, value.with_traceback(trace), trace)

        sys.excepthook = hook
        raise


def _is_ours(trace: types.TracebackType) -> bool:
    names = (__file__, runpy.__file__, "<frozen runpy>")
    return trace.tb_frame.f_code.co_filename in names


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
