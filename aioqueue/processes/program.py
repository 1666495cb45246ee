"""What a new process is to find as the program has it: its main module, paths, files, environment.

A fork server has imported these modules once, so it serves a program for as long as nothing of that
has changed: a notebook in which a module is edited, and run again, gets the new one.
"""

from __future__ import annotations

import multiprocessing.process
import os
import sys
import sysconfig
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

__all__ = (
    "COLD",
    "WARM",
    "ImportOrders",
    "Program",
    "changes",
    "has_changed",
    "imports_main",
    "main_module",
    "sources",
    "where_main_is",
)

_INSTALLED: Final = tuple(
    {os.path.join(sysconfig.get_path(kind), "") for kind in ("stdlib", "purelib", "platlib")}
)
"""Where modules are installed, which nobody edits while a program runs."""


class Program(NamedTuple):
    """What of the program a process takes over when it imports the main module."""

    main: Mapping[str, str]
    """The main module, as `multiprocessing.spawn.prepare` is told; empty if it is not imported."""
    sys_path: list[str]
    sys_argv: list[Any]
    dir: str | None
    orig_dir: str | None

    @classmethod
    def now(cls, *, with_main: bool = True) -> Program:
        """What it is at this moment.

        Args:
            with_main: whether a new process imports the main module.
        """
        try:
            here = os.getcwd()
        except OSError:
            here = None  # it was removed
        original: str | None = multiprocessing.process.ORIGINAL_DIR  # type: ignore[attr-defined]
        path = [
            original if entry == "" and original is not None else entry
            for entry in sys.path
            if isinstance(entry, str)
        ]
        return cls(main_module() if with_main else {}, path, list(sys.argv), here, original)

    def preparation(self) -> dict[str, Any]:
        """The same as the argument of `multiprocessing.spawn.prepare`."""
        data = {"sys_path": self.sys_path, "sys_argv": self.sys_argv, **self.main}
        if self.dir is not None:
            data["dir"] = self.dir
        if self.orig_dir is not None:
            data["orig_dir"] = self.orig_dir
        return data


class ImportOrders(NamedTuple):
    """What a fork server is told to import."""

    program: Program
    modules: tuple[str, ...]
    """Ours that every process needs."""
    wanted: tuple[str, ...]
    """What the program wants to be imported by all, but for its main module."""


WARM: Final = "imports first"
COLD: Final = "imports nothing of the program"
"""The ways of a fork server: the end of its command line, for who looks at a list of processes."""


def imports_main() -> bool:
    """Whether a new process imports the main module of the program."""
    return bool(main_module())


def where_main_is() -> str:
    """Where the functions of a main module are that no new process imports, and what to do."""
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
    """The main module, by the rules of multiprocessing; empty if there is none to import."""
    main = sys.modules["__main__"]
    name = getattr(getattr(main, "__spec__", None), "name", None)
    if name is not None:
        # That of a package has no guard, as a rule, and is never imported.
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
    return os.path.basename(path).startswith("<")  # as that of standard input


def _is_ipython(path: str) -> bool:
    return os.path.splitext(os.path.basename(path))[0] == "ipython"


def sources() -> dict[str, int]:
    """The files of the modules that the program has imported, and when each was written; but for
    those that are installed."""
    found: dict[str, int] = {}
    for module in list(sys.modules.values()):
        path = getattr(module, "__dict__", {}).get("__file__")
        if isinstance(path, str) and not path.startswith(_INSTALLED):
            found[path] = _written(path)
    return found


def has_changed(before: Mapping[str, int]) -> bool:
    """Whether one of the files was written since."""
    return any(_written(path) != when for path, when in before.items())


def _written(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0  # it is gone, or lies in an archive


def changes(before: Mapping[str, str]) -> dict[str, str | None]:
    """How the environment differs from what it was; ``None`` for what is not there any more."""
    now = dict(os.environ)
    changed: dict[str, str | None] = {
        name: value for name, value in now.items() if before.get(name) != value
    }
    changed.update(dict.fromkeys(before.keys() - now.keys()))
    return changed
