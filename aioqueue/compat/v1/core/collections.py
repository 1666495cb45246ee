"""Collections: what a graph keeps in lists by name, until it is finalized."""

from __future__ import annotations

import re
import threading
from typing import Any

__all__ = ("Collections",)


class Collections:
    """The part of a graph that keeps things by name, and knows whether more may be added."""

    def __init__(self) -> None:
        self._collections_lock = threading.RLock()
        self._collections: dict[Any, list[Any]] = {}
        self._finalized = False

    @property
    def finalized(self) -> bool:
        """Whether operations can no longer be added."""
        return self._finalized

    def finalize(self) -> None:
        """Let nothing be added from now on."""
        self._finalized = True

    def unfinalize(self) -> None:
        """Let operations be added again."""
        self._finalized = False

    def check_not_finalized(self) -> None:
        """Raise RuntimeError if operations can no longer be added."""
        if self._finalized:
            raise RuntimeError("Graph is finalized and cannot be modified.")

    def add_to_collection(self, name: Any, value: Any) -> None:
        """Append `value` to the collection of that name."""
        self.check_not_finalized()
        with self._collections_lock:
            self._collections.setdefault(name, []).append(value)

    def add_to_collections(self, names: Any, value: Any) -> None:
        """Append `value` to several collections, each once."""
        for name in (names,) if isinstance(names, str) else dict.fromkeys(names):
            self.add_to_collection(name, value)

    def get_collection(self, name: Any, scope: str | None = None) -> list[Any]:
        """A copy of a collection."""
        with self._collections_lock:
            items = list(self._collections.get(name, ()))
        if scope is None:
            return items
        matches = re.compile(scope).match
        return [one for one in items if hasattr(one, "name") and matches(one.name)]

    def get_collection_ref(self, name: Any) -> list[Any]:
        """The collection itself, made if need be: changing it changes the graph's."""
        with self._collections_lock:
            return self._collections.setdefault(name, [])

    def get_all_collection_keys(self) -> list[Any]:
        """The names of all collections that have something in them."""
        with self._collections_lock:
            return [name for name, items in self._collections.items() if items]

    def clear_collection(self, name: Any) -> None:
        """Empty a collection."""
        self.check_not_finalized()
        with self._collections_lock:
            self._collections.pop(name, None)
