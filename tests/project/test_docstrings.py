"""One docstring, rendered for each face of a method."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import aioqueue
import aioqueue.compat.v1 as tensorflow
from aioqueue import sync
from aioqueue.base.public_names import describe, text_for, with_sections
from tests.kit.docstrings import entries, sections

BOTH = """
    Wait for it.

    In any case it waits: for long.

    Args:
        n: how many.
        timeout: in threads, seconds to wait
            at most.

    Raises:
        TimeoutError: in threads, it has
            run out.

    Cancellation:
        Nothing has happened.
    """


def test_the_async_face_has_no_timeouts() -> None:
    assert text_for(BOTH, "aio") == textwrap.dedent(
        """\
        Wait for it.

        In any case it waits: for long.

        Args:
            n: how many.

        Cancellation:
            Nothing has happened."""
    )


def test_the_thread_face_has_no_cancellation() -> None:
    assert text_for(BOTH, "sync") == textwrap.dedent(
        """\
        Wait for it.

        In any case it waits: for long.

        Args:
            n: how many.
            timeout: seconds to wait
                at most.

        Raises:
            TimeoutError: it has
                run out."""
    )


def test_what_has_a_docstring_keeps_it() -> None:
    class Words:
        def both(self) -> None:
            """Cancellation:
            None.
            """

        def own(self) -> None:
            """Not this."""

    class Face(Words):
        def both(self) -> None:
            pass

        def own(self) -> None:
            """But this."""

        def without_words(self) -> None:
            pass

    describe(Face, "aio")
    assert Face.own.__doc__ == "But this."
    assert str(Face.both.__doc__).startswith("Cancellation:")
    assert Face.without_words.__doc__ is None


def test_a_class_has_prose_of_its_own_and_sections_of_its_base() -> None:
    prose = """It is this.

        And that."""
    base = """It is a base.

        Args:
            n: how many.
        """
    assert with_sections(prose, base) == "It is this.\n\nAnd that.\n\nArgs:\n    n: how many."
    assert with_sections(None, base) is None, "where Python leaves docstrings out"


MODULES = ("aioqueue", "aioqueue.sync", "aioqueue.inputs", "aioqueue.testing", "aioqueue.asgi")
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def public_callables() -> Iterator[tuple[str, Any]]:
    """The public functions and classes, and the public methods of these."""
    for module in map(importlib.import_module, MODULES):
        for name in module.__all__:
            found = getattr(module, name)
            if inspect.isfunction(found) or inspect.isclass(found):
                yield f"{module.__name__}.{name}", found
            if inspect.isclass(found):
                for method, function in inspect.getmembers(found, inspect.isfunction):
                    if not method.startswith("_"):
                        yield f"{module.__name__}.{name}.{method}", function


def unexplained(function: Any) -> list[str]:
    """The parameters that the ``Args:`` of a docstring lack; none if it has no such section."""
    parts = sections(inspect.getdoc(function) or "")
    if "Args" not in parts:
        return []
    explained = [*entries(parts["Args"]), *entries(parts.get("Attributes", ""))]
    parameters = inspect.signature(function).parameters.values()
    return [
        one.name
        for one in parameters
        if one.name != "self" and one.kind not in VARIADIC and one.name not in explained
    ]


def test_each_parameter_is_explained() -> None:
    """An option that was added, say to the `Batcher`, is one that a user can read of."""
    found = {name: missing for name, one in public_callables() if (missing := unexplained(one))}
    assert not found


def test_a_parameter_that_is_not_explained_is_found() -> None:
    def function(n: int, m: int) -> None:
        """Do it.

        Args:
            n: how many.
        """

    assert unexplained(function) == ["m"]


OURS = ("aioqueue.compat.v1.shim.install", "aioqueue.compat.v1.absent.AbsentNameError")
"""What TensorFlow does not have, so that only its docstring explains it."""

IN_SHORT = ("session", "summaries", "queues", "coordination", "inputs", "errors", "logging")
"""The rooms of `aioqueue.compat.v1` that leave a name's arguments to TensorFlow's pages."""


def names_of_tensorflow(space: ModuleType = tensorflow) -> Iterator[tuple[str, Any]]:
    """The functions and classes of TensorFlow's names, and the public methods of the classes."""
    for name in space.__all__:
        found = getattr(space, name)
        if inspect.ismodule(found):
            yield from names_of_tensorflow(found)
        elif inspect.isfunction(found) or inspect.isclass(found):
            path = f"{found.__module__}.{found.__qualname__}"
            methods = (
                inspect.getmembers(found, inspect.isfunction) if inspect.isclass(found) else []
            )
            yield path, found
            yield from ((f"{path}.{method}", one) for method, one in methods if method[0] != "_")


def test_a_name_of_tensorflow_has_one_sentence() -> None:
    """One line says what it is; further paragraphs say what differs from TensorFlow."""
    wrong = []
    for path, found in names_of_tensorflow():
        if not path.startswith("aioqueue.compat.") or not (text := inspect.getdoc(found)):
            continue
        is_explained = bool({"Args", "Raises"} & {*sections(text)})
        may_explain = path in OURS or path.split(".")[3] not in IN_SHORT
        if not text.partition("\n\n")[0].endswith((".", ":")) or (is_explained and not may_explain):
            wrong.append(path)
    assert not wrong, "no sentence, or arguments that TensorFlow's own page explains"


@pytest.mark.parametrize("name", ["FIFOQueue", "RandomShuffleQueue", "Coordinator"])
def test_no_face_shows_what_is_for_the_other(name: str) -> None:
    ours, theirs = getattr(aioqueue, name), getattr(sync, name)
    for face, forbidden in ((ours, "timeout:"), (theirs, "\nCancellation:")):
        for member, function in inspect.getmembers(face, inspect.isfunction):
            if not member.startswith("_"):
                assert "in threads, " not in str(function.__doc__), member
                assert forbidden not in str(function.__doc__), member


@pytest.mark.parametrize("face", [aioqueue, sync])
@pytest.mark.parametrize(
    "name", ["FIFOQueue", "RandomShuffleQueue", "PaddingFIFOQueue", "PriorityQueue"]
)
def test_a_queue_of_a_type_is_that_queue(face: object, name: str) -> None:
    kind = getattr(face, name)
    arguments = {"RandomShuffleQueue": (2, 1), "PaddingFIFOQueue": (2, "int64", (None,))}
    queue = kind[int](*arguments.get(name, (2,)))
    assert type(queue) is kind
    assert isinstance(queue, kind)
    assert repr(kind[int]) == f"{kind.__module__}.{name}[int]"


WITHOUT_DOCSTRINGS = """
import importlib, sys
failed = {}
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ImportError as error:  # of an extra that is not installed
        failed[name] = str(error)
print(sorted(failed))

from aioqueue import inputs
pipeline = inputs.numbers(6).prepare(float, workers=2).batch(3)
print([batch.tolist() for batch in pipeline])
"""


@pytest.mark.slow
def test_python_may_leave_docstrings_out() -> None:
    """`python -OO` strips them, and asserts: whatever can be imported can be imported so too."""
    root = Path(aioqueue.__file__).parent
    files = [path.relative_to(root.parent).with_suffix("") for path in sorted(root.rglob("*.py"))]
    names = [".".join(path.parts) for path in files if path.name not in {"__init__", "__main__"}]

    def run(*options: str) -> str:
        command = [sys.executable, "-W", "error", *options, "-c", WITHOUT_DOCSTRINGS, *names]
        ran = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=root.parent, timeout=100
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    as_ever = run()
    assert "[[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]" in as_ever
    assert run("-OO") == as_ever
