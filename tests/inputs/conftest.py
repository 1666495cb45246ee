"""Fixtures for the tests of inputs."""

from __future__ import annotations

import gc
import multiprocessing
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.inputs.prepare.processing import open_files, shared_memory, start_the_forkserver
from tests.worlds import spin_until

Write = Callable[..., str]
"""The type of the fixture `write`."""


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a file; return its path."""

    def write(content: str | bytes, name: str = "file") -> str:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    return write


@pytest.fixture
def nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No process, no thread of ours, no shared memory and no open file outlives a test."""
    # Each process would import the main module, and with it all of pytest.
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    start_the_forkserver()
    files, shared = open_files(), shared_memory()
    yield
    assert multiprocessing.active_children() == []
    spin_until(lambda: not [t for t in threading.enumerate() if "aioqueue" in t.name])
    gc.collect()
    assert shared_memory() <= shared
    assert open_files() <= files
