"""Fixtures for the tests of batchers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType

import pytest

from tests.batcher.models import WHERES, Model
from tests.kit.processing import start_the_forkserver


@pytest.fixture(autouse=True)
def light_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process would import the main module, and with it all of pytest."""
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))


@pytest.fixture(params=WHERES)
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Model]:
    """A model that is a coroutine function, a plain one, and one that runs in a process."""
    if request.param == "process":
        start_the_forkserver()
    with closing(Model(request.param, tmp_path)) as made:
        yield made


@pytest.fixture(params=["task", "thread"])
def model_here(request: pytest.FixtureRequest) -> Model:
    """Those that run in this process, where the function can end its worker."""
    return Model(request.param)
