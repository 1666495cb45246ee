"""Names within a graph: made unique in the name scope of the thread that makes them.

They are made as TensorFlow makes them, because scripts and error messages use them.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

__all__ = ("NameScopes", "check_operation_name", "named")

F = TypeVar("F", bound=Callable[..., Any])

_NAME = re.compile(r"^[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*$")
_SCOPE_NAME = re.compile(r"^[A-Za-z0-9_.\\/>-]*$")


def named(function: F, name: str, doc: str) -> F:
    """A function that was made by another one, as if it had been defined by itself."""
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


def check_operation_name(name: str) -> None:
    """Raise ValueError if no operation can have this name."""
    if not _NAME.match(name):
        raise ValueError(
            f"`{name}` is not a valid node name. Accepted names conform to Regex /{_NAME.pattern}/"
        )


class _Scope(threading.local):
    """The name scope that the calling thread is in."""

    def __init__(self) -> None:
        self.name = ""


class NameScopes:
    """The part of a graph that knows which names are taken, and in which scope a thread is."""

    def __init__(self) -> None:
        self._names_lock = threading.RLock()
        self._names_in_use: dict[str, int] = {}
        self._scope = _Scope()

    def unique_name(self, name: str, mark_as_used: bool = True) -> str:
        """`name` in the current name scope, with ``_1``, ``_2``, ... if it is taken."""
        with self._names_lock:
            full = f"{self._scope.name}/{name}" if self._scope.name else name
            key = full.lower()  # names differ by more than case: some file systems need it
            used = self._names_in_use.get(key, 0)
            if mark_as_used:
                self._names_in_use[key] = used + 1
            if used == 0:
                return full
            base, number = key, used
            while key in self._names_in_use:
                key = f"{base}_{number}"
                number += 1
            if mark_as_used:
                self._names_in_use[key] = 1
            return f"{full}_{number - 1}"

    @contextmanager
    def name_scope(self, name: str | None) -> Iterator[str]:
        """Names made within the block begin with this one, made unique, and ``/``."""
        outer = self._scope.name
        if name:
            pattern = _SCOPE_NAME if outer else _NAME
            if not pattern.match(name):
                where = "" if outer else "root "
                raise ValueError(
                    f"'{name}' is not a valid {where}scope name. A {where}scope name has to match "
                    f"the following pattern: {pattern.pattern}"
                )
            self._scope.name = name[:-1] if name.endswith("/") else self.unique_name(name)
        else:
            self._scope.name = ""
        try:
            yield f"{self._scope.name}/" if self._scope.name else ""
        finally:
            self._scope.name = outer

    def get_name_scope(self) -> str:
        """The current name scope, without a ``/`` at its end."""
        return self._scope.name
