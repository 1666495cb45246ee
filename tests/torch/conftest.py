"""Fixtures for the tests of `aioqueue.torch`."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.torch.comparison import no_thread_is_left

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests have more workers than a machine may have cores, and PyTorch warns of that."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore:This DataLoader will create"))


@pytest.fixture(scope="session")
def fork_server() -> None:
    """A fork server that has imported what else each process would: PyTorch takes seconds."""
    multiprocessing.set_forkserver_preload(["aioqueue.torch", "tests.torch.datasets"])


@pytest.fixture
def few_processes(monkeypatch: pytest.MonkeyPatch, fork_server: None) -> Iterator[None]:
    """For tests with worker processes, which would else import the main module: all of pytest."""
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    yield
    no_thread_is_left()
