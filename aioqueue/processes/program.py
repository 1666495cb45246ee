"""What a new process takes over from the program: its main module, paths, files and environment.

A fork server imports these modules once. So it serves a program only as long as they do not change:
if you edit a module in a notebook session and run again, new processes must import the new version.
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
    def now(cls, *, with_main: bool = True) -> Program:
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


class ImportOrders(NamedTuple):
    """The imports that a fork server is to make."""

    program: Program
    modules: tuple[str, ...]
    """The modules of aioqueue that every process needs."""
    wanted: tuple[str, ...]
    """The modules that the program wants in every process, besides its main module."""


WARM: Final = "imports first"
COLD: Final = "imports nothing of the program"
"""The modes of a fork server. They end its command line, to be seen in a list of processes."""


def imports_main() -> bool:
    """Return whether a new process imports the program's main module."""
    return bool(main_module())


def where_main_is() -> str:
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


def sources() -> dict[str, int]:
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


def changes(before: Mapping[str, str]) -> dict[str, str | None]:
    """Return how the environment has changed; ``None`` for a variable that is gone."""
    now = dict(os.environ)
    changed: dict[str, str | None] = {
        name: value for name, value in now.items() if before.get(name) != value
    }
    changed.update(dict.fromkeys(before.keys() - now.keys()))
    return changed
