"""The public surface: what is exported, what it is called, and that it is all explained."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import pkgutil
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import aioqueue
from aioqueue import sync
from aioqueue.queues.base import PeerFace
from tests.kit.docstrings import entries, sections

NEED_EXTRAS = {"aioqueue.worlds.trio": "trio", "aioqueue.torch": "torch"}
NAMES = ["aioqueue", *(i.name for i in pkgutil.walk_packages(aioqueue.__path__, "aioqueue."))]
MODULES = [
    importlib.import_module(name)
    for name in NAMES
    if name not in NEED_EXTRAS or importlib.util.find_spec(NEED_EXTRAS[name]) is not None
]
FACES = (aioqueue, sync)
PUBLIC = [module for module in MODULES if hasattr(module, "__all__")]
PROPERTIES = (property, PeerFace)
MADE = re.compile(r"^(?:async def|def|class) ([A-Za-z]\w*)", re.MULTILINE)
"""A definition with a public name, at the top level of a file."""
ROOM = re.compile(r"aioqueue\.compat\.v1\.\w+\.")
"""A module whose ``__all__`` is the part of it that a namespace of TensorFlow's takes."""
DOCUMENTED = ("__compiled__", "__version__")
"""What the package says of itself."""


def public_classes() -> list[type]:
    found = {getattr(face, name): None for face in FACES for name in face.__all__}
    return [thing for thing in found if isinstance(thing, type)]


def is_ours(function: Any) -> bool:
    return str(getattr(function, "__module__", "")).split(".")[0] == "aioqueue"


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties of a class that are ours, inherited ones included."""
    for name, _ in inspect.getmembers(kind):
        member = inspect.getattr_static(kind, name)
        function = member.fget if isinstance(member, PROPERTIES) else member
        function = getattr(function, "__func__", function)
        if not name.startswith("_") and inspect.isfunction(function) and is_ours(function):
            yield name, member


def function_of(member: Any) -> Any:
    if isinstance(member, PROPERTIES):
        return member.fget
    return getattr(member, "__func__", member)


def raises_itself(function: Any) -> bool:
    """Whether the body of a function has a ``raise`` of its own that is no re-raise."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    return any(isinstance(node, ast.Raise) and node.exc is not None for node in ast.walk(tree))


def amiss(kind: type) -> str:
    """What is wrong with the docstring of a class; empty if nothing is."""
    own = kind.__dict__.get("__doc__")
    if not own:
        return "no docstring of its own"
    found = sections(own)
    init = kind.__dict__.get("__init__") or getattr(kind, "__init__", None)
    if not inspect.isfunction(init) or not is_ours(init) or issubclass(kind, Exception):
        return ""
    if "Batches" in kind.__name__ or kind in (aioqueue.AsyncQueue, sync.BlockingQueue):
        return ""  # made by us only
    records = (aioqueue.Statistics, aioqueue.BatcherStatistics)
    if kind in (*records, aioqueue.Culprit, aioqueue.Explanation):
        return ""
    parameters = [name for name in inspect.signature(kind).parameters if name != "self"]
    if entries(found.get("Args", "")) != parameters:
        return f"Args: explains {entries(found.get('Args', ''))}; takes {parameters}"
    if "InvalidArgumentError" not in entries(found.get("Raises", "")):
        return "Raises: InvalidArgumentError is missing"
    return ""


def amiss_in_method(function: Any, is_property: bool) -> str:
    """What is wrong with the docstring of a method; empty if nothing is."""
    if not function.__doc__:
        return "no docstring"
    found = sections(function.__doc__)
    if not found[""].strip():
        return "no summary"
    names = [name for name in inspect.signature(function).parameters if name != "self"]
    if entries(found.get("Args", "")) != names or ("Args" in found) != bool(names):
        return f"Args: explains {entries(found.get('Args', ''))}; takes {names}"
    if inspect.iscoroutinefunction(function) and not found.get("Cancellation", "").strip():
        return "does not say what a cancelled call does"
    raised = entries(found.get("Raises", ""))
    if raises_itself(function) and not is_property and not raised:
        return "does not say what it raises"
    for entry in raised:
        ends = ("Error", "Group", "Empty", "Full")
        if not entry.isidentifier() or (entry != "BaseException" and not entry.endswith(ends)):
            return f"Raises: {entry!r} is no exception"
    runs_out = "timeout" in names and function.__name__ != "wait_for_stop"
    if runs_out and "DeadlineExceededError" not in raised:
        return "Raises: DeadlineExceededError is missing"
    return ""


class TestModules:
    def test_each_explains_itself(self) -> None:
        wrong = [
            module.__name__
            for module in MODULES
            if not (module.__doc__ or "").strip().partition("\n")[0].endswith((".", ":"))
        ]
        assert not wrong, "no docstring, or one that does not begin with a sentence"

    def test_all_is_a_tuple_of_what_is_there(self) -> None:
        wrong: list[str] = []
        for module in PUBLIC:
            exported = module.__all__
            if not isinstance(exported, tuple) or len(set(exported)) != len(exported):
                wrong.append(f"{module.__name__}: not a tuple of different names")
            wrong += [
                f"{module.__name__}: {name}"
                for name in exported
                if not hasattr(module, name) or (name.startswith("_") and name not in DOCUMENTED)
            ]
        assert not wrong

    def test_what_is_public_is_in_all(self) -> None:
        """Classes and functions that are made here, and have a public name."""
        wrong = [
            f"{module.__name__}: {name}"
            for module in PUBLIC
            if not ROOM.match(module.__name__)
            for name in MADE.findall(inspect.getsource(module))
            if name in vars(module) and name not in module.__all__
        ]
        assert not wrong

    def test_only_modules_that_users_import_have_all(self) -> None:
        """Each import names the module that defines, so that no private module exports again."""
        page = (Path(aioqueue.__file__).parents[1] / "docs/stability.md").read_text()
        imported = set(re.findall(r"^\| `(aioqueue[\w.]*)` \|", page, re.MULTILINE))
        imported |= {f"aioqueue.{name}" for name in ("errors", "prometheus", "telemetry")}
        found = {module.__name__ for module in PUBLIC if ".compat" not in module.__name__}
        missing = set(NEED_EXTRAS) - {module.__name__ for module in MODULES}
        assert found == {name for name in imported - missing if ".compat" not in name}


class TestNames:
    def test_the_package(self) -> None:
        assert aioqueue.__all__ == (
            "AioQueueError",
            "AsyncBatches",
            "AsyncQueue",
            "Batcher",
            "BatcherStatistics",
            "CancelledError",
            "Coordinator",
            "Culprit",
            "DataLossError",
            "DeadlineExceededError",
            "Explanation",
            "FIFOQueue",
            "InvalidArgumentError",
            "ItemTimeoutError",
            "Latest",
            "LooperTask",
            "Monitor",
            "OutOfRangeError",
            "PaddingFIFOQueue",
            "PreemptedError",
            "PriorityQueue",
            "QueueClosedError",
            "QueueEmpty",
            "QueueFull",
            "QueueRunner",
            "QueueState",
            "RandomShuffleQueue",
            "Restart",
            "StarvedError",
            "Statistics",
            "StillRunningError",
            "UndeliveredError",
            "Versioned",
            "WorkerDiedError",
            "__compiled__",
            "__version__",
            "connect",
            "explain",
            "explain_on_signal",
            "full_tracebacks",
            "sync",
        )

    def test_the_thread_face(self) -> None:
        assert sync.__all__ == (
            "Batcher",
            "Batches",
            "BlockingQueue",
            "CancelScope",
            "Coordinator",
            "FIFOQueue",
            "Latest",
            "LooperThread",
            "PaddingFIFOQueue",
            "PriorityQueue",
            "QueueRunner",
            "RandomShuffleQueue",
            "connect",
        )

    @pytest.mark.parametrize("face", FACES, ids=lambda face: face.__name__)
    def test_classes_know_their_public_path(self, face: ModuleType) -> None:
        for name in face.__all__:
            thing = getattr(face, name)
            if isinstance(thing, type):
                assert (thing.__module__, thing.__qualname__) == (face.__name__, name)

    @pytest.mark.parametrize("face", FACES, ids=lambda face: face.__name__)
    def test_star_import(self, face: ModuleType) -> None:
        names: dict[str, Any] = {}
        exec(f"from {face.__name__} import *", names)
        assert set(names) - {"__builtins__"} == set(face.__all__)

    def test_the_package_has_no_other_public_names(self) -> None:
        """Besides its modules, which Python puts there."""
        found = {name for name in vars(aioqueue) if not name.startswith("_")}
        others = found - set(aioqueue.__all__) - {"annotations"}
        assert all(isinstance(getattr(aioqueue, name), ModuleType) for name in others)

    @pytest.mark.slow
    def test_the_input_pipeline_is_imported_when_it_is_asked_for(self) -> None:
        program = """
import sys
import aioqueue
loaded = lambda: "aioqueue.inputs" in sys.modules
print(loaded(), "inputs" in dir(aioqueue), loaded(), aioqueue.inputs.prepare.__name__, loaded())
"""
        ran = subprocess.run(
            [sys.executable, "-W", "error", "-c", program],
            capture_output=True,
            text=True,
            check=False,
            cwd=Path(aioqueue.__file__).parents[1],
            timeout=50,
        )
        assert ran.stdout.split() == ["False", "True", "False", "prepare", "True"], ran.stderr

    def test_other_names_are_not_there(self) -> None:
        with pytest.raises(AttributeError, match=r"^module 'aioqueue' has no attribute 'input'$"):
            _ = aioqueue.input  # type: ignore[attr-defined]

    def test_dir_lists_what_is_public(self) -> None:
        assert dir(aioqueue) == sorted((*aioqueue.__all__, "inputs"))


class TestDocumentation:
    def test_classes(self) -> None:
        wrong = {kind.__qualname__: what for kind in public_classes() if (what := amiss(kind))}
        assert not wrong

    def test_methods(self) -> None:
        wrong = {
            f"{kind.__module__}.{kind.__qualname__}.{name}": what
            for kind in public_classes()
            for name, member in members(kind)
            if (what := amiss_in_method(function_of(member), isinstance(member, PROPERTIES)))
        }
        assert not wrong

    def test_every_face_has_the_same_first_sentence(self) -> None:
        """The two faces of a method differ in how they wait, not in what they do."""
        for name in ("FIFOQueue", "RandomShuffleQueue", "PaddingFIFOQueue", "PriorityQueue"):
            ours, theirs = getattr(aioqueue, name), getattr(sync, name)
            assert ours.__doc__ == theirs.__doc__
            common = dict(members(ours)).keys() & dict(members(theirs)).keys()
            for method in common:
                summaries = {
                    function_of(dict(members(kind))[method]).__doc__.split("\n\n")[0]
                    for kind in (ours, theirs)
                }
                assert len(summaries) == 1, method


QUEUES = ("FIFOQueue", "RandomShuffleQueue", "PaddingFIFOQueue", "PriorityQueue")

DIFFERENCES = {
    "queue": (
        {"__aiter__", "__anext__"},
        {"__iter__", "__next__"},
    ),
    "Coordinator": (
        {"__aenter__", "__aexit__"},
        {"__enter__", "__exit__"},
    ),
    "QueueRunner": ({"run"}, {"create_threads"}),
    "Batcher": (
        {"__aenter__", "__aexit__"},
        {"__enter__", "__exit__"},
    ),
}
"""What the async face has and the thread face has not, and the other way round."""


def only_refuses(method: Any) -> bool:
    """Whether it only says that the other face has it; see `aioqueue.coordination.misuse`."""
    return bool(method.__name__ == "refuse")


def surface(kind: type) -> set[str]:
    protocol = {"__len__", "__bool__", "__repr__", "__init__"}
    protocol |= {"__iter__", "__next__", "__aiter__", "__anext__"}
    protocol |= {"__enter__", "__exit__", "__aenter__", "__aexit__"}
    found = {name: getattr(kind, name, None) for name in protocol}
    dunders = {name for name, one in found.items() if is_ours(one) and not only_refuses(one)}
    return {name for name, _ in members(kind)} | dunders


class TestBothFaces:
    @pytest.mark.parametrize("name", [*QUEUES, "Coordinator", "QueueRunner", "Batcher"])
    def test_have_the_same_methods(self, name: str) -> None:
        ours, theirs = surface(getattr(aioqueue, name)), surface(getattr(sync, name))
        only_ours, only_theirs = DIFFERENCES["queue" if name in QUEUES else name]
        assert ours - theirs == only_ours
        assert theirs - ours == only_theirs

    @pytest.mark.parametrize("name", [*QUEUES, "Coordinator"])
    def test_take_the_same_arguments(self, name: str) -> None:
        """But for ``timeout``, which the thread face takes wherever the async face waits."""
        ours, theirs = getattr(aioqueue, name), getattr(sync, name)
        assert inspect.signature(ours) == inspect.signature(theirs)
        waits: list[str] = []
        for method in surface(ours) & surface(theirs) - {"start", "__init__", "__repr__"}:
            if isinstance(inspect.getattr_static(ours, method), PROPERTIES):
                continue
            our, their = getattr(ours, method), getattr(theirs, method)
            parameters = dict(inspect.signature(their).parameters)
            if inspect.iscoroutinefunction(our):
                waits.append(method)
                if (name, method) != ("Coordinator", "join"):  # whose limit is the grace period
                    assert parameters.pop("timeout").default is None
            assert list(inspect.signature(our).parameters.values()) == [*parameters.values()] or (
                method == "batches" and set(parameters) >= set(inspect.signature(our).parameters)
            )
        assert waits

    @pytest.mark.parametrize("name", QUEUES)
    def test_what_waits_is_awaited(self, name: str) -> None:
        kind = getattr(aioqueue, name)
        awaited = {
            method for method, member in members(kind) if inspect.iscoroutinefunction(member)
        }
        assert awaited == {
            "enqueue",
            "enqueue_many",
            "dequeue",
            "dequeue_many",
            "dequeue_up_to",
            "join",
            "wait_closed",
        }
        assert not [
            method
            for method, member in members(getattr(sync, name))
            if inspect.iscoroutinefunction(member)
        ]

    def test_what_waits_is_awaited_of_a_coordinator(self) -> None:
        kinds = (aioqueue.Coordinator, aioqueue.QueueRunner, aioqueue.LooperTask)
        awaited = {
            name
            for kind in kinds
            for name, member in members(kind)
            if inspect.iscoroutinefunction(member)
        }
        assert awaited == {"join", "wait_for_stop", "run"}
