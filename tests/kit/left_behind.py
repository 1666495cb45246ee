"""What a program leaves behind: files, threads, and what only the garbage collector finds."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import BuiltinFunctionType, CellType, FunctionType, GeneratorType, MethodType
from typing import Any

from aioqueue.items.value_text import safe_repr
from tests.kit.worlds import spin_until

HAS_PROC = os.path.isdir("/proc/self/fd")


def opened() -> dict[str, int]:
    """How many descriptors and mappings of files there are, and threads of ours.

    The threads of shared objects stay, once a test of this process has shared one.
    """
    names = [one.name for one in threading.enumerate()]
    ours = [name for name in names if "aioqueue" in name and "aioqueue-shar" not in name]
    found = {"threads": len(ours)}
    if HAS_PROC:
        found["descriptors"] = len(os.listdir("/proc/self/fd"))
        maps = Path("/proc/self/maps").read_text().splitlines()
        found["mappings"] = sum("pytest-" in line for line in maps)
    return found


_PLAIN = (FunctionType, MethodType, BuiltinFunctionType, GeneratorType, CellType)


def is_of_ours(thing: Any) -> bool:
    kind = type(thing)
    if kind.__module__.startswith(("aioqueue", "mmap", "pyarrow", "_io")):
        return True
    module = getattr(thing, "__module__", None)
    return isinstance(thing, _PLAIN) and isinstance(module, str) and module.startswith("aioqueue")


def left_behind(program: Callable[[], object]) -> tuple[dict[str, int], list[str]]:
    """Run a program with the collector off.

    Returns:
        What is open more than before it, and what of ours only the collector finds.
    """
    spin_until(lambda: not opened()["threads"])
    gc.collect()
    gc.disable()
    before = opened()
    try:
        program()
        spin_until(lambda: not opened()["threads"])  # who was told to end may take a moment
        after = opened()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        more = {name: after[name] - count for name, count in before.items() if after[name] > count}
        return more, sorted(
            {f"{type(one).__name__} {safe_repr(one):.80}" for one in gc.garbage if is_of_ours(one)}
        )
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
