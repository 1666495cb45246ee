"""Fixtures for all tests; `worlds` explains how one test runs in four worlds."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import inspect
import logging
import multiprocessing
import os
import signal
import sys
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis.strategies import none

from tests.kit.processing import open_files, shared_memory, start_the_forkserver
from tests.kit.worlds import (
    KINDS,
    TASK_WORLDS,
    WORLDS,
    AsyncioWorld,
    Kind,
    TaskWorld,
    UvloopWorld,
    World,
    spin_until,
)

if TYPE_CHECKING:
    from tests.kit.clusters import Head

# In the programs that tests start: a second thread of numpy spins for as long as it waits.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

WorldT = TypeVar("WorldT", bound=World)
LOOPS = ("trio", "uvloop")
MISSING = [name for name in LOOPS if importlib.util.find_spec(name) is None]
# These play the event loops off against each other, so they need all of them.
NEED_ALL_LOOPS = [
    "queues/test_queue_core_cancellation.py",
    "queues/test_blocking_threads.py",
    "coordination/test_coordinator_core_failures.py",
    "coordination/test_blocking_loopers.py",
    "coordination/test_coordinator_core_stop.py",
]
collect_ignore = NEED_ALL_LOOPS if MISSING else []
HAS_TENSORFLOW = importlib.util.find_spec("tensorflow") is not None
COMPARE = [] if HAS_TENSORFLOW else ["compat/test_*_oracle.py", "proofs/oracle/test_*.py"]
HAS_TORCH = importlib.util.find_spec("torch") is not None
HAS_RAY = importlib.util.find_spec("ray") is not None
RAY = ["workers/ray", "ray/cluster", "ray/test_recovery_node_failures.py"]
# Folders of tests that need what may not be installed.
NEED_MORE = {"devices", "oracle", "ray", "torch"}
collect_ignore_glob = [
    *COMPARE,
    *([] if HAS_TORCH else ["torch"]),
    *([] if HAS_RAY else RAY),
]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of this suite; see README.md and CONTRIBUTING.md."""
    group = parser.getgroup("aioqueue")
    group.addoption("--run-slow", action="store_true", help="run the slow tests, too")
    group.addoption("--only-slow", action="store_true", help="run the slow tests alone")
    group.addoption(
        "--sample",
        type=int,
        default=1,
        metavar="N",
        help="with --only-slow: about one case of N of each test, at least one",
    )
    group.addoption(
        "--limit",
        type=float,
        metavar="SECONDS",
        help="fail the run if a test that is not marked slow takes more processor time than this",
    )


# Before pytest puts all of them in order, and others look at each.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is slow, unless an option or the name of the test asks for it."""
    only, sample = config.getoption("only_slow"), config.getoption("sample")
    if config.getoption("run_slow") and not only:
        return
    asked = [argument.split("[")[0] for argument in config.args if "::" in argument]
    left: list[pytest.Item] = []
    kept: list[pytest.Item] = []
    cases: Counter[str] = Counter()
    for item in items:
        named = any(argument in item.nodeid for argument in asked)
        wanted = is_slow(item, cases) == only
        if wanted and only:
            wanted = not _is_reported_elsewhere(item, cases) and _is_sampled(item, cases, sample)
        (kept if named or wanted else left).append(item)
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = kept


def is_slow(item: pytest.Item, cases: Counter[str]) -> bool:
    """Whether the default run leaves a test out.

    That is what ``pytest.mark.slow`` says. With arguments, it says so of the cases whose names
    contain one of them; with ``but=``, of all cases except those whose names contain it; with
    ``every=n``, of all cases except each n-th. So what remains is a cheap member of the same proof.

    Args:
        item: the test.
        cases: counts the cases of each test, and those in each world.
    """
    test, _, name = item.nodeid.partition("[")
    number = cases[test]
    cases[test] += 1
    if _repeats(item, cases):
        return True
    for marker in item.iter_markers("slow"):
        but = marker.kwargs.get("but", ())
        exceptions = (but,) if isinstance(but, str) else but
        if any(part in name for part in exceptions):
            continue
        if "every" in marker.kwargs and number % marker.kwargs["every"] == 0:
            continue
        if not marker.args or any(part in name for part in marker.args):
            return True
    return False


def _repeats(item: pytest.Item, cases: Counter[str]) -> bool:
    """Whether a case of a test is there for the sake of the world alone.

    Worlds differ in how a caller sleeps, and cases in what is done meanwhile. The default run has
    every case in the first world, and one case in every other; of uvloop, whose tasks run the same
    lines as those of asyncio, one in a class of tests.
    """
    callspec = getattr(item, "callspec", None)
    params = callspec.params if callspec is not None else {}
    where = params.get("world") or params.get("task_world")
    if where in (None, WORLDS[0]):
        return False
    group = item.nodeid.partition("[")[0]
    if where is UvloopWorld:
        group = group.rpartition("::")[0]
    elif len(params) == 1:
        return False
    key = f"{group} in {where}"
    cases[key] += 1
    return cases[key] > 1


def _is_reported_elsewhere(item: pytest.Item, cases: Counter[str]) -> bool:
    """Whether `.ci/run` leaves out a slow case, since others nearly say the same.

    Kinds of queues differ in how rows are kept, and worlds in how a caller sleeps: so all kinds are
    tried in the first world, and one kind in the others. Tasks of uvloop run the same lines as
    those of asyncio: one case of each test is enough. With ``--run-slow``, all of them run.
    """
    test = item.nodeid.partition("[")[0]
    callspec = getattr(item, "callspec", None)
    params = callspec.params if callspec is not None else {}
    where = params.get("world") or params.get("task_world") or params.get("loop_world")
    if where not in (None, WORLDS[0]):
        kind = params.get("kind", KINDS[0])
        if isinstance(kind, Kind) and kind is not KINDS[0]:
            return True
        cases[f"slow: {test} in {where}"] += 1
        if where is UvloopWorld and cases[f"slow: {test} in {where}"] > 1:
            return True
    return False


def _is_sampled(item: pytest.Item, cases: Counter[str], one_of: int) -> bool:
    """Whether a slow case is in the sample: the first case of each test, and one in so many others.

    The names decide, not the places: each n-th place would leave out the same world, kind or option
    each time. They are the same in all runs, so a failure comes back.
    """
    test = item.nodeid.partition("[")[0]
    cases[f"sampled: {test}"] += 1
    return cases[f"sampled: {test}"] == 1 or zlib.crc32(item.nodeid.encode()) % one_of == 0


PROCESSOR_SECONDS = "processor_seconds"
"""The property of a report that has what its test took, of its children too."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Measure the processor time of a test, with its fixtures and the processes it started."""
    _keep_collections_short(item)
    item.stash[_BEGUN] = _processor_seconds()
    return (yield)


def _keep_collections_short(item: pytest.Item) -> None:
    """Leave out of collections what the tests of the files before have imported, if it is much.

    That is no part of the first test of a file, so it happens before that is measured.
    """
    if item.path == item.config.stash.get(_FILE, None):
        return
    item.config.stash[_FILE] = item.path
    if len(gc.get_objects()) > 100_000:
        gc.unfreeze()
        gc.collect()
        gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, object]:
    """Put the time on the last report of a test that is not marked slow."""
    report = yield
    if report.when == "teardown" and not item.get_closest_marker("slow"):
        seconds = _processor_seconds() - item.stash[_BEGUN]
        report.user_properties.append((PROCESSOR_SECONDS, seconds))
    return report


_BEGUN = pytest.StashKey[float]()
_FILE = pytest.StashKey[Path]()


def _processor_seconds() -> float:
    return sum(os.times()[:4])


class TimeLimit:
    """Fails a run in which a test that should be quick was not, and lists such tests.

    The limit keeps the default run short. It says nothing about the library.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.over: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test that took too long."""
        taken = dict(report.user_properties).get(PROCESSOR_SECONDS)
        if isinstance(taken, float) and taken > self.seconds:
            self.over[report.nodeid] = taken

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail the run if there was one."""
        if self.over and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """List them."""
        if not self.over:
            return
        terminalreporter.section("tests over the limit", red=True)
        terminalreporter.line(
            f"Not marked slow, and longer than {self.seconds} s of processor time. "
            "Make them cheaper, or mark them with pytest.mark.slow:"
        )
        for name, taken in sorted(self.over.items(), key=lambda one: -one[1]):
            terminalreporter.line(f"{taken:6.1f} s  {name}")


def pytest_configure(config: pytest.Config) -> None:
    """Hear SIGINT, also in a background job, which shells start with that signal ignored.

    Else every test of Ctrl-C would wait for ever: processes inherit what is ignored.
    """
    # Programs that tests run keep what they compile: else each compiles the whole package again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # On a loaded machine, asyncio's debug mode remarks on callbacks that waited for a processor.
    logging.getLogger("asyncio").addFilter(lambda record: "took %.3f" not in str(record.msg))
    limit = config.getoption("limit")
    if limit is not None:
        config.pluginmanager.register(TimeLimit(limit), "time-limit")


def pytest_collection(session: pytest.Session) -> None:
    """Make it cheaper: there is no garbage in what is collected, and it is compiled only once."""
    gc.disable()
    with suppress(ImportError):
        from hypothesis.internal.conjecture import providers

        # Else it parses all modules of the package and the tests, and uses their constants: what
        # it draws would depend on which tests run together.
        vars(providers)["_get_local_constants"] = lambda: providers._local_constants
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if worker and [Path(path).name for path in session.config.args] == ["tests"]:
        workers = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        _import_part(int(worker.removeprefix("gw")), workers)


def _import_part(part: int, parts: int) -> None:
    """Import every so many-th test file.

    All worker processes collect all tests at the same time. In a new checkout, each would compile
    each file. So each begins with others, and finds what is compiled when it comes to the rest.
    """
    folder = Path(__file__).parent
    for path in sorted(folder.rglob("test_*.py"))[part::parts]:
        names = path.relative_to(folder.parent).with_suffix("").parts
        if not NEED_MORE.intersection(names):
            with suppress(Exception, pytest.skip.Exception):  # which collecting it reports
                importlib.import_module(".".join(names))


def pytest_collection_finish() -> None:
    """Leave what pytest knows out of collections: it is larger than all that a test makes."""
    _begin_hypothesis()
    gc.enable()
    gc.collect()
    gc.freeze()


@settings(max_examples=1, database=None)
@given(none())
def _begin_hypothesis(_: None) -> None:
    """Have Hypothesis look for who refers to its generators while `gc` still tells."""


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say which tests are left out, and why."""
    slow = "quick tests alone: --run-slow runs all"
    if config.getoption("run_slow"):
        slow = "quick and slow tests"
    if config.getoption("only_slow"):
        slow = "slow tests alone"
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
    return [slow, loops, oracle, loader, cluster]


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


@pytest.fixture(params=[AsyncioWorld, UvloopWorld], ids=lambda world: world.name)
def loop_world(request: pytest.FixtureRequest) -> AsyncioWorld:
    """The two worlds that have `asyncio.Task`."""
    kind_of_world: type[AsyncioWorld] = request.param
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


SHARING = ("aioqueue-sharing", "aioqueue-shared-client")
"""The threads of a process that shares objects, or is connected to one that does. They stay."""


def left_since(before: set[threading.Thread]) -> list[threading.Thread]:
    """The threads of ours that are there, and were not."""
    now = set(threading.enumerate()) - before
    return [one for one in now if "aioqueue" in one.name and one.name not in SHARING]


@pytest.fixture(scope="session")
def ray_head() -> Iterator[Head]:
    """A Ray cluster on this machine, for all tests that need one: see `tests.kit.clusters`."""
    from tests.kit import clusters

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
    spin_until(lambda: not left_since(set()))
    gc.collect()
    assert shared_memory() <= shared
    assert open_files() <= files
