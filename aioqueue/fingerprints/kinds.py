"""Kinds of objects that are not compared by what they hold.

Some count by their type: what they hold is of one run, and decides nothing, as that of a lock. Some
are handles of files, which count by the files. Others cannot be compared at all.
"""

from __future__ import annotations

import contextvars
import io
import logging
import os
import random
import sys
import threading
import types
import weakref
from typing import Any, Final, NamedTuple

_STATELESS: Final = (
    logging.Filterer,  # loggers and handlers
    type(threading.Lock()),
    type(threading.RLock()),
    threading.Condition,
    threading.Event,
    threading.Semaphore,
    threading.Barrier,
    threading.local,
    contextvars.ContextVar,
    weakref.ReferenceType,
    weakref.ProxyType,
    weakref.CallableProxyType,
    weakref.WeakSet,
    weakref.WeakKeyDictionary,
    weakref.WeakValueDictionary,
    weakref.finalize,
    type(os.environ),
)
_OF_LIBRARIES: Final = {
    "anyio": {"Lock", "Event", "Condition", "Semaphore", "CapacityLimiter"},
    "trio": {"Lock", "StrictFIFOLock", "Event", "Condition", "Semaphore", "CapacityLimiter"},
    "concurrent": {"Executor"},
    "asyncio": {"Lock", "Event", "Condition", "Semaphore", "Barrier"},
    "multiprocessing": {"Lock", "RLock", "Event", "Condition", "Semaphore", "BoundedSemaphore"},
}
_ARCHIVES: Final = {("zipfile", "ZipFile"), ("tarfile", "TarFile"), ("h5py", "File")}
_STREAMS: Final = ("stdin", "stdout", "stderr", "__stdin__", "__stdout__", "__stderr__")

_GLOBAL: Final = (("numpy.random.mtrand", "_rand"), ("random", "_inst"))
"""The generators behind the functions of modules, which distributions of SciPy have."""

_RNG: Final = (
    "a parameter `rng` of your function, which gets a generator of its own for each example"
)
_DRAWING: Final = {
    "numpy": {"Generator", "RandomState", "BitGenerator"},
    "torch": {"Generator"},
}
_RUNNING: Final = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)


class OpenFile(NamedTuple):
    """A file that is open for reading."""

    path: str


def is_stateless(value: Any) -> bool:
    """Whether an object counts by its type alone."""
    if isinstance(value, _STATELESS):
        return True
    if any(value is getattr(sys, name, None) for name in _STREAMS):
        return True
    if any(value is getattr(sys.modules.get(one), name, cure_of) for one, name in _GLOBAL):
        return True
    for cls in type(value).__mro__:
        names = _OF_LIBRARIES.get(cls.__module__.partition(".")[0])
        if names is not None and cls.__name__ in names:
            return True
    return False


def cure_of(value: Any) -> str | None:
    """What to do about an object of a kind that cannot be compared; ``None`` if it may be of
    another kind."""
    if isinstance(value, random.Random):
        return _RNG
    for cls in type(value).__mro__:
        names = _DRAWING.get(cls.__module__.partition(".")[0])
        if names is not None and cls.__name__ in names:
            return _RNG
    if isinstance(value, _RUNNING):
        return "what it gives, as a list"
    if isinstance(value, io.IOBase) and not isinstance(value, io.BytesIO | io.StringIO):
        return "one that is open for reading, or its path"
    return None


def open_file(value: Any) -> OpenFile | None:
    """Return the file that an object reads from; ``None`` if it reads from none, or may write."""
    value = getattr(value, "file", value) if type(value).__module__ == "tempfile" else value
    path: Any = None
    if isinstance(value, io.IOBase):
        try:
            is_read = value.readable() and not value.writable()
        except ValueError:  # it is closed
            return None
        path = getattr(value, "name", None) if is_read else None
    elif any(
        (cls.__module__.partition(".")[0], cls.__name__) in _ARCHIVES for cls in _bases(value)
    ):
        name = getattr(value, "filename", None) or getattr(value, "name", None)
        path = name if value.mode in ("r", "rb") else None
    if isinstance(path, str | bytes | os.PathLike):
        return OpenFile(os.fsdecode(path))
    return None


def _bases(value: Any) -> tuple[type, ...]:
    return type(value).__mro__
