"""Fixtures for all tests; `worlds` explains how one test runs in four worlds."""

from __future__ import annotations

import gc
import importlib.util
import inspect
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis.strategies import none

from tests.worlds import KINDS, TASK_WORLDS, WORLDS, Kind, TaskWorld, World, spin_until

if TYPE_CHECKING:
    from tests.clusters import Head

WorldT = TypeVar("WorldT", bound=World)
LOOPS = ("trio", "uvloop")
MISSING = [name for name in LOOPS if importlib.util.find_spec(name) is None]
# These play the event loops off against each other, so they need all of them.
NEED_ALL_LOOPS = [
    "queues/test_cancellation.py",
    "queues/test_threads.py",
    "coordination/test_failures.py",
    "coordination/test_loopers.py",
    "coordination/test_stop.py",
]
collect_ignore = NEED_ALL_LOOPS if MISSING else []
HAS_TENSORFLOW = importlib.util.find_spec("tensorflow") is not None
COMPARE = [] if HAS_TENSORFLOW else ["compat/test_*_oracle.py", "oracle/test_*.py"]
HAS_TORCH = importlib.util.find_spec("torch") is not None
HAS_RAY = importlib.util.find_spec("ray") is not None
RAY = ["inputs/prepare/ray", "ray/cluster", "ray/test_nodes.py"]
collect_ignore_glob = [
    *COMPARE,
    *([] if HAS_TORCH else ["torch"]),
    *([] if HAS_RAY else RAY),
]


def pytest_configure() -> None:
    """Hear SIGINT, also in a background job, which shells start with that signal ignored.

    Else every test of Ctrl-C would wait for ever: processes inherit what is ignored.
    """
    # Programs that tests run keep what they compile: else each compiles the whole package again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Leave what pytest knows out of collections: it is larger than all that a test makes."""
    _begin_hypothesis()
    gc.collect()
    gc.freeze()


@settings(max_examples=1, database=None)
@given(none())
def _begin_hypothesis(_: None) -> None:
    """Have Hypothesis look for who refers to its generators while `gc` still tells."""


def pytest_report_header() -> list[str]:
    """Say which tests are left out, and why."""
    loops = "event loops: asyncio, trio, uvloop"
    if MISSING:
        loops = f"without {', '.join(MISSING)}: not run: {', '.join(NEED_ALL_LOOPS)}"
    oracle = "compared with TensorFlow"
    if not HAS_TENSORFLOW:
        oracle = (
            f"TensorFlow is not installed: not run: {', '.join(COMPARE)} (pip install '.[oracle]')"
        )
    loader = "aioqueue.torch: compared with PyTorch's loader"
    if not HAS_TORCH:
        loader = "PyTorch is not installed: not run: torch/ (pip install '.[torch]')"
    cluster = "where='ray' and aioqueue.ray: on a cluster of this machine"
    if not HAS_RAY:
        cluster = f"Ray is not installed: not run: {', '.join(RAY)} (pip install '.[ray]')"
    return [loops, oracle, loader, cluster]


def made(kind: type[WorldT]) -> WorldT:
    """A world of a kind; skips the test where what it needs is not installed."""
    if kind.missing():
        pytest.skip(kind.missing())
    return kind()


@pytest.fixture(params=WORLDS, ids=lambda world: world.name)
def world(request: pytest.FixtureRequest) -> World:
    """Each of the four worlds in turn."""
    kind_of_world: type[World] = request.param
    return made(kind_of_world)


@pytest.fixture(params=TASK_WORLDS, ids=lambda world: world.name)
def task_world(request: pytest.FixtureRequest) -> TaskWorld:
    """Each of the worlds in which an operation can be cancelled from outside."""
    kind_of_world: type[TaskWorld] = request.param
    return made(kind_of_world)


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Each of the four kinds of queue in turn."""
    kind_of_queue: Kind = request.param
    return kind_of_queue


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """No thread of ours outlives a test, for another one might take it for its own."""
    before = set(threading.enumerate())
    yield
    with suppress(AssertionError):
        spin_until(lambda: not left_since(before))
    left = left_since(before)
    assert not left, f"left behind: {left}"


def left_since(before: set[threading.Thread]) -> list[threading.Thread]:
    """The threads of ours that are there, and were not."""
    now = set(threading.enumerate()) - before
    return [thread for thread in now if "aioqueue" in thread.name]


@pytest.fixture(scope="session")
def ray_head() -> Iterator[Head]:
    """A Ray cluster on this machine, for all tests that need one: see `tests.clusters`."""
    from tests import clusters

    with clusters.head() as head:
        yield head


@pytest.fixture(scope="session")
def cluster(ray_head: Head) -> Any:
    """Ray, connected to it."""
    return ray_head.ray


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine function that asks for a world in that world."""
    worlds = [value for value in pyfuncitem.funcargs.values() if isinstance(value, World)]
    if not worlds or not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    worlds[0].run(partial(pyfuncitem.obj, **arguments))
    return True
