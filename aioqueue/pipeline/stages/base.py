"""A pipeline and its stages as descriptions.

A stage is an immutable description. A `BuildContext` gives it what it needs to run, and it then
makes a `Node`, which does the work. What a stage is stands in its class alone: how many rows it
makes, whether other ranks can continue it, and what its entry in a position holds.

To add a stage, write a file of its name beside this one, and a method in `Stages`.

A pipeline has one watch, which all its runs share.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Protocol, Self, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from aioqueue import InvalidArgumentError
from aioqueue.base.display_text import on_one_line
from aioqueue.base.json_files import DocumentError
from aioqueue.pipeline.nodes.state_fields import (
    COMMON,
    LAYOUT,
    PADDING,
    RANK_FIELDS,
    Fields,
    NestedField,
    WorkerCounts,
    read_fields,
    write_fields,
)
from aioqueue.sources.base import BaseSource
from aioqueue.system.locks import call_with_lock
from aioqueue.telemetry import Watch
from aioqueue.worlds.waker import in_event_loop

if TYPE_CHECKING:
    from aioqueue.pipeline.nodes.node import Node
    from aioqueue.pipeline.nodes.rows import State


T_co = TypeVar("T_co", covariant=True)


class BuildContext(Protocol):
    """What a stage needs in order to make its node. `Builder` is the only one."""

    def seed(self, kind: str) -> int:
        """A seed for the next stage of this kind."""

    def workers(
        self,
        upstream: Node,
        function: Callable[..., Any],
        *,
        buffer_size: int,
        options: dict[str, Any],
        at_once: int | None = None,
    ) -> Node:
        """Start workers that prepare the rows of a node.

        Args:
            upstream: the node.
            function: called with each row's value.
            buffer_size: how many prepared rows may wait.
            options: the options of the `prepare`.
            at_once: how many waiting rows may be taken out together; ``None`` for the default.
        """

    def branch(self, pipeline: BasePipeline[Any]) -> Node:
        """Build a pipeline that is mixed into this one. Returns its last node."""

    def buffer_size(self) -> int:
        """How many rows may wait behind this stage, if it has workers."""


_classes: Final[dict[str, type[BaseStage]]] = {}


def stage_class(name: str) -> type[BaseStage]:
    """The class of stages that has a name, such as ``"batch"``.

    A stage is defined in the file of its name beside this one, which is imported at the first use:
    a program pays for the stages that it has.

    Raises:
        KeyError: no stage has this name. The name may come from a position, so only files of this
            folder are looked for.
    """
    if name not in _classes and name.isidentifier():
        home = f"{__package__}.{name}"
        if find_spec(home) is not None:
            import_module(home)
    return _classes[name]


class BaseStage(ABC):
    """One step of a pipeline: all that the library knows about it.

    A class with a `name` is registered, so that positions, ranks and pipelines find it. It has to
    say whether another number of ranks can continue it (`why_inelastic`): there is no default,
    because the wrong answer would lose examples in silence.
    """

    name: ClassVar[str]
    """What pipelines and positions call it, and the name of its file."""
    state_fields: ClassVar[Fields] = {}
    """The fields of its state in a position, besides `COMMON`."""
    has_state: ClassVar[bool] = True
    """Whether it has a node, whose state is in positions."""
    combines: ClassVar[bool] = False
    """Whether it mixes in other pipelines: only such a stage has `branches`."""
    needs_batches: ClassVar[bool] = False
    """Whether a stage before it, or the source, has to make batches."""
    takes_apart: ClassVar[bool] = False
    """Whether it makes several rows of each."""
    is_on_device: ClassVar[bool] = False
    """Whether its output is in the memory of a device."""
    may_follow_device: ClassVar[bool] = False
    """Whether it leaves arrays untouched, so that these may be in the memory of a device."""

    entry_fields: ClassVar[Fields] = {}
    """All fields that the entry of such a stage may have for its state."""
    _further_nodes: ClassVar[Mapping[str, Fields]] = {}
    """Those of them that are the state of a node behind the first one, with the fields of it."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.entry_fields = (
            {**COMMON, **cls.state_fields, "padding": PADDING} if cls.has_state else RANK_FIELDS
        )
        cls._further_nodes = {
            name: field.fields
            for name, field in cls.entry_fields.items()
            if isinstance(field, NestedField) and field.is_node
        }
        name = vars(cls).get("name")
        if name is None:
            return  # what several stages share
        if cls.why_inelastic.__func__ is BaseStage.why_inelastic.__func__:  # type: ignore[attr-defined]
            raise TypeError(
                f"{cls.__name__}: got no why_inelastic; expected a class method that returns why no"
                " other number of ranks can continue an epoch behind this stage, or None if any"
                " can: where it counts or pairs the rows of one rank, merged positions would lose"
                " examples"
            )
        other = _classes.setdefault(name, cls)
        if (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
            raise TypeError(
                f"{cls.__name__}: got the name {name!r}, which {other.__qualname__} has; expected"
                " another one: positions find a stage by its name"
            )
        _classes[name] = cls

    @classmethod
    @abstractmethod
    def why_inelastic(cls, arguments: Mapping[str, Any]) -> str | None:
        """Why no other number of ranks can continue an epoch that was begun; ``None`` if any can.

        Args:
            arguments: what identifies the stage; see `fingerprint`.

        Returns:
            The end of a sentence that has the name of the stage before it.
        """

    def is_elastic(self) -> bool:
        """Whether another number of ranks can continue an epoch that was begun."""
        return self.why_inelastic(self.fingerprint()) is None

    @abstractmethod
    def details(self) -> str:
        """The most important arguments, in few words."""

    def describe(self) -> str:
        return f"{self.name} {self.details()}".strip()

    @abstractmethod
    def node(self, upstream: Node, building: BuildContext) -> Node:
        """Make the node that does the work of this stage."""

    def function_name(self) -> str:
        """The name of the user's function that it calls; its own name without a function."""
        return self.name

    def worker_function(self) -> Callable[..., Any] | None:
        """The user's function that its workers call; ``None`` without one."""
        return None

    def may_skip(self) -> bool:
        """Whether it may skip items that have failed."""
        return False

    def without_quarantine(self) -> BaseStage:
        """The same stage, which writes no quarantine file: a later run would write the same items
        again."""
        return self

    def length(self, rows: int | None) -> int | None:
        """How many rows it makes of this many; ``None`` if that is unknown."""
        return rows

    def depends_on_data(self) -> bool:
        """Whether the number of output rows depends on the data."""
        return self.length(2**40) is None

    def rows_per_output(self) -> int:
        """How many rows it may need to make one row."""
        return 1

    def rows_for(self, outputs: int) -> int:
        """How many rows it needs to make this many, as far as that is known."""
        return outputs * self.rows_per_output()

    def spans_epochs(self) -> bool:
        """Whether it keeps rows of one epoch for the next one."""
        return False

    def fingerprint(self) -> dict[str, Any]:
        """The arguments that must be the same for a position to fit, in plain JSON types."""
        return {}

    def branches(self) -> list[BasePipeline[Any]]:
        """The pipelines that it mixes in."""
        return []

    def with_branches(self, change: Callable[[Any, int], Any]) -> BaseStage:
        """The same stage with other pipelines.

        Args:
            change: called with each pipeline or source, and its number from 1; returns the new one.
        """
        return self

    def is_passthrough(self) -> bool:
        """Whether it gives the same objects that it receives, each to one later stage."""
        return False

    def keeps_rows_apart(self) -> bool:
        """Whether each row that it gives is one that it receives, or is made of one alone, and at
        most one of each."""
        return False

    def copies(self) -> bool:
        """Whether it copies the arrays that it receives into what it makes."""
        return False

    def makes_batches(self) -> bool | None:
        """Whether it makes batches, or single examples of them; ``None`` if neither."""
        return None

    def depth_of_batches(self, depth: int) -> int:
        """How deep batches are in batches behind it: 0 for single examples.

        Args:
            depth: before it.
        """
        makes = self.makes_batches()
        return depth if makes is None else depth + 1 if makes else 0

    def is_random(self) -> bool:
        """Whether its output differs between epochs."""
        return False

    @classmethod
    def has_workers(cls) -> bool:
        """Whether workers make its rows, so that positions have counts of items."""
        return isinstance(cls.state_fields.get("counts"), WorkerCounts)

    @classmethod
    def fixes_layout(cls) -> bool:
        """Whether the first example fixes the containers, dtypes and shapes of all."""
        return LAYOUT.keys() <= cls.state_fields.keys()

    @classmethod
    def blank_entry(cls, arguments: Mapping[str, Any], *, is_padded: bool) -> dict[str, Any]:
        """The empty fields of its entry in a position.

        Args:
            arguments: what identifies the stage.
            is_padded: whether rank padding stands behind it.
        """
        if not cls.has_state:
            return {}
        fields = {**COMMON, **cls.state_fields}
        blank = {name: field.blank() for name, field in fields.items()}
        return blank | ({"padding": PADDING.blank()} if is_padded else {})

    @classmethod
    def check_entry(cls, entry: Mapping[str, Any]) -> None:
        """Check the values of an entry.

        Raises:
            DocumentError: a field has a value that no state has.
            KeyError, TypeError, AttributeError: it has another shape.
        """
        if not cls.has_state:
            return
        for name, field in cls.entry_fields.items():
            if name in entry:
                field.check(f"{cls.name}.{name}", entry[name])
        if cls.fixes_layout():
            check_layout(entry)

    @classmethod
    def write_entry(cls, entry: dict[str, Any], state: State | None) -> list[State | None]:
        """Write the state of its node into an entry.

        Returns:
            The states of the nodes that it reads: of the node before, and of its branches.
        """
        if not cls.has_state:
            return [state]
        for name in cls._further_nodes:
            if name in entry:
                state = write_fields(entry[name], state)
        return [write_fields(entry, state)]

    @classmethod
    def read_entry(
        cls, entry: Mapping[str, Any], upstream: State | None, others: Sequence[State | None]
    ) -> State | None:
        """Read the state of its node from an entry; ``None`` before the first batch.

        Args:
            entry: the entry.
            upstream: the state of the node before.
            others: the states of its branches.
        """
        if not cls.has_state:
            return upstream
        state = read_fields(entry, cls.entry_fields, upstream)
        for name, fields in cls._further_nodes.items():
            if name in entry:
                state = read_fields(entry[name], fields, state)
        return state


def check_layout(entry: Mapping[str, Any]) -> None:
    """Check that the containers and the components of an example fit together.

    Raises:
        DocumentError: they do not.
    """
    kind, components = entry["example"], entry["components"]
    if kind is None:
        return
    if components is None:
        raise DocumentError("components: got None; expected one for the example")
    if kind == "one" and len(components) != 1:
        raise DocumentError(f"components: got {len(components)}; expected 1")
    if kind in ("mapping", "named tuple") and len({type(label) for label, _ in components}) > 1:
        raise DocumentError("components: got labels of several types; expected one type")


class BasePipeline(Generic[T_co]):
    """A source and the stages after it: the part of a `Pipeline` that nodes and runs use.

    Args:
        source: where the items come from.
        stages: what is done with them, in order.
    """

    def __init__(self, source: BaseSource[Any], stages: Iterable[BaseStage] = ()) -> None:
        if not isinstance(source, BaseSource):
            raise InvalidArgumentError(
                f"source: got {source!r}; expected a source, such as items(...) or numbers(...)"
            )
        self.source = source
        self.stages: tuple[BaseStage, ...] = tuple(stages)

    def _described(self) -> str:
        parts = [self.source._described(), *(stage.describe() for stage in self.stages)]
        return f"Pipeline of {' | '.join(parts)}"

    def __repr__(self) -> str:
        parts = " | ".join([repr(self.source), *(stage.describe() for stage in self.stages)])
        return on_one_line(f"<aioqueue.inputs.Pipeline of {parts}>")

    def _made_of(self, source: BaseSource[Any], stages: Iterable[BaseStage]) -> Self:
        """A pipeline of the same class with another source or other stages."""
        return type(self)(source, stages)


_lock: Final = threading.RLock()  # guards _watches


_watches: Final[WeakKeyDictionary[BasePipeline[Any], Watch]] = WeakKeyDictionary()


def watch_of(pipeline: BasePipeline[Any]) -> Watch:
    """The watch of a pipeline; it lives as long as the pipeline."""
    return call_with_lock(_lock, _watch_of, pipeline)


def _watch_of(pipeline: BasePipeline[Any]) -> Watch:
    watch = _watches.get(pipeline)
    if watch is None:
        watch = _watches[pipeline] = Watch(is_repeatable=True)
    return watch


Spec: TypeAlias = Any
"""An element with `ArraySpec` in the place of arrays, and types in the place of other objects."""


def gives_batches(source: BaseSource[Any], stages: Iterable[BaseStage]) -> bool:
    """Whether the elements behind some stages are batches, as far as these and the source tell."""
    depth = int(source._gives_batches)
    for stage in stages:
        depth = stage.depth_of_batches(depth)
    return depth > 0


def refuse_in_loop(method: str) -> None:
    """Refuse a blocking method in a coroutine, where it would block all other tasks.

    Args:
        method: its name; that of coroutines has an ``a`` in front.

    Raises:
        RuntimeError: an event loop runs in this thread.
    """
    if in_event_loop():
        raise RuntimeError(
            f"{method} would block the event loop that runs in this thread: use `await"
            f" pipeline.a{method}(...)` here"
        )
