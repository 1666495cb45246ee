"""Hints for names of other libraries: each row of the tables, and each way to ask for a name."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import types
from abc import ABC
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, suppress
from typing import Any, Protocol, runtime_checkable

import pytest

import aioqueue
import aioqueue.ray
from aioqueue import inputs, sync
from aioqueue.base.hint_tables import ATTRIBUTES, KEYWORDS, NAMES
from aioqueue.rl import Batch, BlockingRolloutQueue, Group, Rollout, RolloutQueue

QUEUES = ("FIFOQueue", "RandomShuffleQueue", "PaddingFIFOQueue", "PriorityQueue")
FACES: tuple[Any, ...] = (aioqueue, sync)
KINDS: dict[str, tuple[type, ...]] = {
    "a queue": (aioqueue.FIFOQueue, sync.FIFOQueue),
    "a queue on Ray": (aioqueue.ray.FIFOQueue, aioqueue.ray.BlockingRayQueue),
    "a source or pipeline": (inputs.Source, inputs.Pipeline),
    "a source": (inputs.Source,),
    "a pipeline": (inputs.Pipeline,),
    "a run of epochs": (inputs.Epochs,),
    "an epoch": (inputs.Epoch,),
    "a coordinator": (aioqueue.Coordinator, sync.Coordinator),
    "a Latest": (aioqueue.Latest, sync.Latest),
    "a Batcher": (aioqueue.Batcher, sync.Batcher),
    "the statistics of a batcher": (aioqueue.BatcherStatistics,),
    "a QueueRunner": (aioqueue.QueueRunner, sync.QueueRunner),
    "a monitor": (aioqueue.Monitor,),
    "a RolloutQueue": (RolloutQueue, BlockingRolloutQueue),
    "a Rollout": (Rollout,),
    "a Group": (Group,),
    "a Batch": (Batch,),
}
METHODS: tuple[Any, ...] = (aioqueue.FIFOQueue, inputs.Pipeline, inputs.Epochs, inputs.Epoch)
METHODS = (*METHODS, inputs.Reader, aioqueue.Coordinator, aioqueue.ray.FIFOQueue, aioqueue.Latest)
METHODS = (*METHODS, BlockingRolloutQueue, RolloutQueue, Rollout, Batch)
METHODS = (*METHODS, aioqueue.Batcher, aioqueue.BatcherStatistics, aioqueue.Monitor)
OPTIONS = tuple(inputs.PrepareOptions.__optional_keys__)


def example(kind: str) -> Any:
    """A thing of a kind."""
    if kind == "a queue":
        return sync.FIFOQueue(4)
    if kind == "a queue on Ray":
        return object.__new__(aioqueue.ray.FIFOQueue)  # as there is no cluster
    if kind == "a coordinator":
        return sync.Coordinator()
    if kind == "a Latest":
        return sync.Latest()
    if kind == "a Batcher":
        return sync.Batcher(list)
    if kind == "the statistics of a batcher":
        return sync.Batcher(list).statistics()
    if kind == "a QueueRunner":
        return sync.QueueRunner(None, [print])
    if kind == "a monitor":
        monitor = aioqueue.Monitor(sync.Coordinator())
        monitor.close()
        return monitor
    if kind == "a RolloutQueue":
        return RolloutQueue(range(4), batch_size=2)
    if kind == "a Rollout":
        return object.__new__(Rollout)  # which only a queue makes
    if kind == "a Group":
        return Group("a prompt", 0, (), 0, 0)
    if kind == "a Batch":
        return Batch(None, 0, 0, ())
    source = inputs.numbers(4)
    pipeline = source.batch(2)
    if kind in ("a source", "a pipeline", "a source or pipeline"):
        return source if kind == "a source" else pipeline
    return pipeline.epochs(1) if kind == "a run of epochs" else next(pipeline.epochs(1))


def resolved(name: str) -> Any:
    """The object that a dotted name refers to; `None` where its package is not installed."""
    parts = name.split(".")
    if importlib.util.find_spec("torch") is None and "torch" in parts:
        return None
    for count in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            found = getattr(found, part)
        return found
    raise AssertionError(name)


def check_code(code: str) -> None:
    """What an advice calls exists, and takes the keywords that it is given."""
    for call in ast.walk(ast.parse(code, mode="eval")):
        if not isinstance(call, ast.Call):
            continue
        name = ast.unparse(call.func)
        if name.startswith(("aioqueue.", "asyncio.")):
            functions = [resolved(name)]
        elif name == "RolloutQueue":
            functions = [RolloutQueue]
        else:
            last = name.rsplit(".", 1)[-1]
            functions = [getattr(cls, last) for cls in METHODS if hasattr(cls, last)]
        assert functions, code
        for keyword in call.keywords:
            assert any(keyword.arg in parameters(function) for function in functions), code


def run_code(code: str) -> bool:
    """Run an advice that is complete but for the function; return whether it is."""
    expression = ast.parse(code, mode="eval")
    used = {one.id for one in ast.walk(expression) if isinstance(one, ast.Name)}
    is_complete = isinstance(expression.body, ast.Call) and used <= {"aioqueue", "function"}
    if is_complete and code.startswith("aioqueue."):
        eval(code, {"aioqueue": aioqueue, "function": lambda batch: batch})
    return is_complete


def parameters(function: Any) -> set[str]:
    """The names that a function takes."""
    found = inspect.signature(function).parameters.values()
    more = OPTIONS if any(one.kind is one.VAR_KEYWORD for one in found) else ()
    return {one.name for one in found} | {*more}


def call(function: Any, keyword: str) -> None:
    """Call a function with a keyword argument; if it is a coroutine function, await the call."""
    made = function(**{keyword: 1})
    if inspect.iscoroutine(made):
        made.send(None)


def called(topic: str) -> Iterator[Callable[..., Any]]:
    """What answers by the table of a topic."""
    if topic == "queues":
        for face in FACES:
            yield from (getattr(face, name) for name in QUEUES)
        yield from (aioqueue.Latest, sync.Latest)
        for queue in (aioqueue.FIFOQueue(1), sync.FIFOQueue(1)):
            yield from (queue.batches, queue.close, queue.share)
        yield sync.FIFOQueue(1).join
    elif topic == "batchers":
        yield from (aioqueue.Batcher, sync.Batcher)
    elif topic == "rollouts":
        rollouts = RolloutQueue(range(1), batch_size=1)
        yield from (RolloutQueue, rollouts.generate, rollouts.set)
    elif topic == "rollouts in training":
        for face in (RolloutQueue(range(1), batch_size=1), RolloutQueue([1], batch_size=1).sync):
            yield from (face.batches, face.publishing)
        yield from (face.evaluate, face.get, face.publish)
    elif topic == "coordinators":
        yield from (aioqueue.Coordinator, aioqueue.QueueRunner, aioqueue.LooperTask)
        yield aioqueue.Restart
        yield from (sync.Coordinator, sync.QueueRunner, sync.LooperThread, sync.CancelScope)
        for coord in (aioqueue.Coordinator(), sync.Coordinator()):
            yield from (coord.start, coord.request_stop, coord.drain, coord.register, coord.share)
        yield from (coord.join, coord.wait_for_stop)
    else:
        found = (getattr(inputs, name) for name in inputs.__all__)
        yield from (one for one in found if hasattr(one, "__wrapped__"))
        yield from (inputs.Retry, inputs.Pipeline, inputs.Preemption, inputs.TFRecordWriter)
        pipeline = inputs.numbers(1)
        yield from (pipeline.split, inputs.mix([pipeline]).split, pipeline.repeat)
        yield inputs.read_lines("a.txt").interleave
        yield from (
            getattr(pipeline, name)
            for name, method in inspect.getmembers(inputs.Pipeline, inspect.isfunction)
            if hasattr(method, "__wrapped__") and name[0] != "_"
        )


def test_every_attribute_leads_to_one_that_is_there() -> None:
    for kind, hints in ATTRIBUTES.items():
        thing = example(kind)
        for name, advice in hints.items():
            code = advice.split(";")[0]
            for cls in KINDS[kind]:
                if not code.startswith("aioqueue."):
                    assert hasattr(cls, code.split("(")[0].split(" ")[0]), (kind, name)
                assert not hasattr(cls, name), (kind, name)
            check_code(code)
            with pytest.raises(AttributeError) as error:
                getattr(thing, name)
            dot = "" if code.startswith("aioqueue.") else "."
            assert str(error.value) == f"{kind} has no {name!r}; here that is {dot}{advice}"


def protocol_of(names: Iterable[str], *, are_methods: bool) -> Any:
    """A protocol that asks for some names, to be checked at run time."""

    def body(namespace: dict[str, Any]) -> None:
        if are_methods:
            namespace.update({name: lambda self: None for name in names})
        else:
            namespace["__annotations__"] = dict.fromkeys(names, int)

    return runtime_checkable(types.new_class("Asked", (Protocol,), {}, body))


class Foreign:
    """What a user may mix in."""

    def get(self) -> str:
        return "the user's own"


@pytest.mark.parametrize("are_methods", [True, False], ids=["methods", "data"])
def test_a_hint_satisfies_no_protocol(are_methods: bool) -> None:
    """What is checked at run time looks whether a name is there, and not what it does."""
    for kind, hints in ATTRIBUTES.items():
        thing = example(kind)
        for name in hints:
            asked = protocol_of([name], are_methods=are_methods)
            assert not isinstance(thing, asked), (kind, name)
            assert name not in dir(thing)
            with pytest.raises(AttributeError):
                inspect.getattr_static(thing, name)
            for cls in KINDS[kind]:
                assert not any(name in vars(base) for base in cls.__mro__), (kind, name)
                assert not are_methods or not issubclass(cls, asked), (kind, name)
        unset = [name for name, value in getattr(thing, "__dict__", {}).items() if value is None]
        real = [name for name in dir(thing) if name[0] != "_" and name not in unset][:2]
        assert isinstance(thing, protocol_of(real, are_methods=True))
        assert inspect.getattr_static(thing, real[0]) is not None


def test_nor_does_a_block_that_is_refused() -> None:
    for name in ("Coordinator", "Batcher"):
        arguments = [list] if name == "Batcher" else []
        ours, theirs = (getattr(face, name)(*arguments) for face in FACES)
        assert isinstance(ours, AbstractAsyncContextManager)
        assert isinstance(theirs, AbstractContextManager)
        assert not isinstance(ours, AbstractContextManager)
        assert not isinstance(theirs, AbstractAsyncContextManager)


@pytest.mark.parametrize("other", [Foreign, ABC, protocol_of(["get"], are_methods=True)])
def test_a_class_with_hints_goes_with_any_other(other: type) -> None:
    """A user's name comes before a hint, in any order of bases."""
    for cls in (aioqueue.FIFOQueue, aioqueue.Coordinator, aioqueue.Latest, inputs.Source):
        for bases in ((cls, other), (other, cls)):
            with suppress(TypeError):  # an override that a queue refuses, or an abstract class
                made: Any = types.new_class("Mine", bases)
                assert issubclass(made, cls)
                if other is Foreign and cls is not aioqueue.Latest:  # which has its own `get`
                    assert made.get is Foreign.get

    class Mine(aioqueue.FIFOQueue[Any], Foreign):
        pass

    assert Mine(1).get() == "the user's own"


def test_every_name_leads_to_one_that_is_there() -> None:
    for package, hints in NAMES.items():
        for name, advice in hints.items():
            code = advice.split(";")[0]
            if code.startswith("import "):
                assert importlib.util.find_spec(code.removeprefix("import ")) is not None
            else:
                resolved(code)
            if package == "aioqueue.torch" and importlib.util.find_spec("torch") is None:
                continue
            module = importlib.import_module(package)
            assert name not in module.__all__, (package, name)
            if name in vars(module):  # a package of ours that some other test has imported
                continue
            with pytest.raises(AttributeError) as error:
                getattr(module, name)
            reported = f"module {package!r} has no attribute {name!r}; here that is {advice}"
            assert str(error.value) == reported
            if code.startswith("import "):  # which `from` would do
                continue
            with pytest.raises(ImportError) as missing:
                exec(f"from {package} import {name}")
            reported = f"cannot import name {name!r} from {package!r}; here that is {advice}"
            assert str(missing.value) == reported


def test_every_keyword_leads_to_one_that_is_there() -> None:
    unused = []
    for topic, hints in KEYWORDS.items():
        functions = [(function, parameters(function)) for function in called(topic)]
        assert functions
        used: set[str] = set()
        for keyword, advices in hints.items():
            for advice in advices:
                if not advice.split("=")[0].isidentifier():
                    check_code(advice.removeprefix("."))
            for function, known in functions:
                if keyword in known:
                    continue
                with pytest.raises(TypeError) as error:
                    call(function, keyword)
                name = f"{function.__name__}() got an unexpected keyword argument {keyword!r}; "
                assert str(error.value).startswith(name)
                advice = str(error.value).partition("; here that is ")[2]
                first = advice.split("=")[0]
                if first.isidentifier():
                    assert first in known, (function, keyword, advice)
                    used.add(f"{keyword}: {first}")
            for advice in advices:
                first = advice.split("=")[0]
                if first.isidentifier() and f"{keyword}: {first}" not in used:
                    unused.append(f"{topic}: no function answers {keyword}= by {advice}")
    assert not unused


def test_every_complete_advice_runs() -> None:
    tables = [*ATTRIBUTES.values(), *NAMES.values(), *KEYWORDS.values()]
    advices: set[str] = set()
    for table in tables:
        for found in table.values():
            advices |= {found} if isinstance(found, str) else {*found}
    codes = {one.partition(";")[0] for one in advices if one.startswith("aioqueue.")}
    assert sum(run_code(code) for code in sorted(codes)) > 5


def test_a_misspelt_keyword_leads_to_the_nearest() -> None:
    numbers: Any = inputs.numbers(3)
    with pytest.raises(TypeError, match=r"prepare\(\) .* 'worker'; did you mean workers="):
        numbers.prepare(abs, worker=2)
    with pytest.raises(TypeError, match=r"batch\(\) .* 'xyz'; expected some of .*drop_remainder"):
        numbers.batch(2, xyz=2)


def test_probing_for_a_missing_package_is_false() -> None:
    for module in (aioqueue, sync, inputs):
        assert not hasattr(module, "Queue")
        assert not hasattr(module, "wrong")
        with pytest.raises(AttributeError, match=r"has no attribute 'wrong'$"):
            _ = module.wrong
        with pytest.raises(ImportError, match="cannot import name 'wrong'"):
            exec(f"from {module.__name__} import wrong")


def test_signatures_stay() -> None:
    assert list(inspect.signature(aioqueue.FIFOQueue).parameters)[:2] == ["capacity", "dtypes"]
    assert "drop_remainder" in inspect.signature(inputs.Pipeline.batch).parameters
    assert inputs.prepare.__module__.startswith("aioqueue.")
