"""The reference explains all that `dir()` shows of what users hold."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import aioqueue
from aioqueue import inputs, rl, sync

PAGES = sorted((Path(__file__).parents[2] / "docs" / "reference").glob("*.md"))
PACKAGE = Path(aioqueue.__file__).parent
EXTRAS = ("compat", "prometheus", "ray", "torch")  # not installed everywhere, or much to import
ENTRY = re.compile(r"^::: (\S+)\n((?:    .*\n)*)", re.MULTILINE)


class Shown(NamedTuple):
    """What a page asks to be rendered; `None` for all names."""

    path: str
    members: set[str] | None
    inherited: set[str] | None


def entries() -> Iterator[Shown]:
    for page in PAGES:
        for path, options in ENTRY.findall(page.read_text("utf-8") + "\n"):
            yield Shown(path, names_in(options, "members"), names_in(options, "inherited_members"))


def names_in(options: str, key: str) -> set[str] | None:
    """The names that an option lists, in either way of YAML: none for ``false``."""
    found = re.search(rf"^ +{key}:(.*\n(?: +- .*\n)*)", options, re.MULTILINE)
    return None if found is None else set(re.findall(r"\w+", found[1])) - {"false"}


def found(path: str) -> Any:
    """What a path of the reference leads to."""
    module, names = path, []
    while True:
        try:
            thing = importlib.import_module(module)
            break
        except ModuleNotFoundError:
            module, _, name = module.rpartition(".")
            names.append(name)
            if not module:
                raise
    return functools.reduce(getattr, reversed(names), thing)


@functools.cache
def described(cls: type) -> frozenset[str]:
    """The public names that a class itself describes, in docstrings of whatever kind."""
    names = {
        name
        for name, value in vars(cls).items()
        if not name.startswith("_") and (inspect.isroutine(value) or hasattr(value, "__get__"))
        if inspect.getdoc(getattr(cls, name, value))
    }
    text = inspect.getdoc(cls) or ""
    section = re.search(r"^Attributes:\n((?:    .*\n?|\n)*)", text, re.MULTILINE)
    if section is not None:
        names.update(re.findall(r"^    (\w+)(?: \(.*\))?:", section[1], re.MULTILINE))
    return frozenset(names | set(_attributes(cls)))


def _attributes(cls: type) -> Iterator[str]:
    """The attributes in the body of a class that a docstring follows."""
    functions = filter(inspect.isfunction, vars(cls).values())
    path = next(
        (one.__code__.co_filename for one in functions), ""
    )  # `__module__` is the public one
    for tree in classes_in(path) if path.startswith(str(PACKAGE)) else ():
        for one, after in pairwise(tree.body if tree.name == cls.__name__ else []):
            is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            if is_text and isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
                yield one.target.id


@functools.cache
def classes_in(path: str) -> list[ast.ClassDef]:
    tree = ast.parse(Path(path).read_text("utf-8"))
    return [one for one in tree.body if isinstance(one, ast.ClassDef)]


@functools.cache
def shown_classes() -> list[tuple[type, Shown]]:
    """The classes that the reference shows."""
    return [
        (thing, one)
        for one in entries()
        if one.path.split(".")[1] not in EXTRAS and isinstance(thing := found(one.path), type)
    ]


def unexplained(thing: object) -> list[str]:
    """The public names of something that no page explains."""
    bases = type(thing).__mro__
    names = {name for name in dir(thing) if not name.startswith("_")}
    for cls, (_, members, inherited) in shown_classes():
        for base in {*cls.__mro__} & {*bases}:
            limit = members if cls is base else inherited
            names -= described(base) if limit is None else described(base) & limit
    return sorted(names)


def test_each_path_leads_somewhere() -> None:
    for path, *_ in entries():
        if path.split(".")[1] not in EXTRAS:
            found(path)


class Squares(inputs.Source[int]):
    """A source of a user's."""

    def entries(self) -> Iterator[inputs.Entry[int]]:
        for number in range(4):
            yield inputs.Entry(number**2, 0, number)


def an_epoch() -> object:
    with inputs.numbers(4).batch(2).epochs(1) as epochs:
        return next(epochs)


def a_batch_of_rollouts() -> rl.Batch[int, int]:
    rollouts = rl.RolloutQueue([1], batch_size=1)
    with sync.Coordinator() as coord:
        coord.start(rollouts.generate(lambda prompt, rollout: prompt))
        return rollouts.sync.get()


HELD: dict[str, Callable[[], object]] = {
    "a source": lambda: inputs.numbers(10),
    "a source of a user's": lambda: Squares("squares"),
    "a source of an iterable": lambda: inputs.from_iterable([1]),
    "a mixture": lambda: inputs.mix([inputs.numbers(1), inputs.numbers(2)]),
    "one epoch of a source": lambda: inputs.numbers(10).epoch(1),
    "what is left of a source": lambda: inputs.numbers(3).after(inputs.numbers(3).position()),
    "a reader": lambda: inputs.read_lines(["a"]),
    "files": lambda: inputs.files(str(Path(__file__))),
    "a pipeline": lambda: inputs.numbers(4).batch(2),
    "epochs": lambda: inputs.numbers(4).batch(2).epochs(1),
    "an epoch": an_epoch,
    "a FIFO queue": lambda: aioqueue.FIFOQueue(1),
    "a shuffle queue": lambda: aioqueue.RandomShuffleQueue(2, 1),
    "a padding queue": lambda: aioqueue.PaddingFIFOQueue(1, ["int64"], [(None,)]),
    "a priority queue": lambda: aioqueue.PriorityQueue(1),
    "a FIFO queue of threads": lambda: sync.FIFOQueue(1),
    "a shuffle queue of threads": lambda: sync.RandomShuffleQueue(2, 1),
    "a padding queue of threads": lambda: sync.PaddingFIFOQueue(1, ["int64"], [(None,)]),
    "a priority queue of threads": lambda: sync.PriorityQueue(1),
    "a coordinator": aioqueue.Coordinator,
    "a coordinator of threads": sync.Coordinator,
    "a batcher": lambda: aioqueue.Batcher(list),
    "a batcher of threads": lambda: sync.Batcher(list),
    "a rollout queue": lambda: rl.RolloutQueue([1], batch_size=1),
    "a rollout queue of threads": lambda: rl.RolloutQueue([1], batch_size=1).sync,
    "a batch of rollouts": a_batch_of_rollouts,
    "a group of rollouts": lambda: a_batch_of_rollouts().groups[0],
    "a rollout": lambda: a_batch_of_rollouts().groups[0].rollouts[0],
    "the statistics of rollouts": lambda: rl.RolloutQueue([1], batch_size=1).statistics(),
}


@pytest.mark.parametrize("what", HELD)
def test_every_name_is_explained(what: str) -> None:
    assert not unexplained(HELD[what]())


def test_a_name_that_is_not_explained_is_found() -> None:
    class Loud(Squares):
        def loud(self) -> None:
            """No page renders this."""

    assert unexplained(Loud("loud")) == ["loud"]


@pytest.mark.slow
def test_signatures_show_each_option() -> None:
    """``**options: Unpack[PrepareOptions]`` would not."""
    griffe = pytest.importorskip("griffe")
    package = griffe.load(
        "aioqueue",
        search_paths=[str(PACKAGE.parent)],
        extensions=griffe.load_extensions(str(PAGES[0].parent.parent / "runtime_docstrings.py")),
        docstring_parser="google",
    )
    options = set(inputs.PrepareOptions.__optional_keys__)
    for path in ("pipeline.pipeline.Stages.prepare", "pipeline.streams.batch.batch"):
        function = package[path]
        assert options <= {one.name for one in function.parameters}
        assert "options" not in function.parameters


def test_a_method_stands_once() -> None:
    shown = dict(shown_classes())
    twice = []
    for cls, one in shown.items():
        for base in cls.__mro__[1:] if one.inherited is None and one.members is None else ():
            if base in shown and shown[base].members != set():
                names = described(base) - described(cls)
                methods = [name for name in names if inspect.isroutine(getattr(cls, name, None))]
                twice += [f"{one.path}.{name}, of {shown[base].path}" for name in methods]
    assert twice == []
