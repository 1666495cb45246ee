"""``tf.data.Iterator``: ops that go through a dataset; where it stands is the session's."""

from __future__ import annotations

import secrets
import threading
from typing import Any

from aioqueue.compat.v1 import errors
from aioqueue.compat.v1.core import default_graph
from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.dtypes import resource, string
from aioqueue.compat.v1.core.graph import Operation, Tensor
from aioqueue.compat.v1.core.shapes import TensorShape
from aioqueue.compat.v1.datasets import nest
from aioqueue.compat.v1.datasets.elements import DatasetRun, Described, Elements, TensorInfo
from aioqueue.compat.v1.datasets.stages import Rows
from aioqueue.compat.v1.ops.building import invalid, shape_text
from aioqueue.compat.v1.ops.sparse import SparseTensor
from aioqueue.compat.v1.queues.resources import type_names

__all__ = (
    "Iterator", "get_output_classes", "get_output_shapes", "get_output_types",
    "make_initializable_iterator", "make_one_shot_iterator",
)  # fmt: skip

SCALAR = TensorShape([])
_HANDLE = b"iterator-"


class _Place:
    """Where an iterator stands in a session. One thread at a time makes an element."""

    def __init__(self, leaves: list[TensorInfo]) -> None:
        self.leaves = leaves
        self.handle = _HANDLE + secrets.token_hex(8).encode()
        self._lock = threading.Lock()
        self._rows: Rows | None = None
        self._run: DatasetRun | None = None

    def begin(self, dataset: Elements, values: tuple[Any, ...], step: Any) -> None:
        run = DatasetRun(dict(zip(dataset._sources, values, strict=True)), step)
        # Before the lock: if this fails, the iterator stays where it is, and others may go on.
        rows = dataset._begin(run)()
        with self._lock:
            self._run, self._rows = run, rows

    def get_next(self, step: Any) -> tuple[Any, ...]:
        with self._lock:
            if self._rows is None or self._run is None:
                raise errors.FailedPreconditionError(
                    None,
                    None,
                    "GetNext() failed because the iterator has not been initialized. Ensure that"
                    " you have run the initializer operation for this iterator before getting the"
                    " next element.",
                )
            self._run.step = step
            row = next(self._rows, None)
        if row is None:
            raise errors.OutOfRangeError(None, None, "End of sequence")
        return row


class Iterator(Described):
    """Goes through the elements of a dataset, in each session from the beginning."""

    def __init__(self, spec: Any, ref: Tensor, initializer: Operation | None) -> None:
        self._spec = spec
        self._ref = ref
        self._initializer = initializer

    def __repr__(self) -> str:
        return f"<tf.data.Iterator '{self._ref.op.name}' types: {self.output_types}>"

    @staticmethod
    def from_structure(
        output_types: Any, output_shapes: Any = None, shared_name: str | None = None
    ) -> Iterator:
        """An iterator without a dataset: `make_initializer` gives it one, and then others."""
        infos = _infos(output_types, output_shapes)
        return Iterator(nest.packed(output_types, infos), _handle("Iterator", infos), None)

    @staticmethod
    def from_string_handle(
        string_handle: Any, output_types: Any, output_shapes: Any = None, output_classes: Any = None
    ) -> Iterator:
        """An iterator that is chosen in each run: by the handle that is fed as a string."""
        infos = _infos(output_types, output_shapes, output_classes)
        handle = convert_to_tensor(string_handle, dtype=string, name="string_handle")

        def kernel(step: Any, handle: Any) -> _Place:
            return _place_of(step, handle, infos)

        made = default_graph.op(
            "IteratorFromStringHandleV2", [handle], [(resource, SCALAR)], kernel
        )
        return Iterator(nest.packed(output_types, infos), made.outputs[0], None)

    def string_handle(self, name: str | None = None) -> Tensor:
        """A string scalar that stands for the iterator in a session; see `from_string_handle`."""

        def kernel(step: Any, place: _Place) -> bytes:
            step.resources.get_or_create(("iterator handle", place.handle), lambda: place)
            return place.handle

        made = default_graph.op(
            "IteratorToStringHandle", [self._ref], [(string, SCALAR)], kernel, name=name
        )
        return made.outputs[0]

    @property
    def initializer(self) -> Operation:
        """The op that puts it before the first element."""
        if self._initializer is None:
            raise ValueError("Iterator does not have an initializer.")
        return self._initializer

    def make_initializer(self, dataset: Elements, name: str | None = None) -> Operation:
        """An op that puts it before the first element of a dataset."""
        if dataset.output_types != self.output_types:
            raise TypeError(
                f"Expected output types {self.output_types} but got dataset with output types"
                f" {dataset.output_types}."
            )
        pairs = zip(nest.flatten(self._spec), nest.flatten(dataset._spec), strict=True)
        if not all(ours.shape.is_compatible_with(theirs.shape) for ours, theirs in pairs):
            raise TypeError(
                f"Expected output shapes compatible with {self.output_shapes} but got dataset with"
                f" output shapes {dataset.output_shapes}."
            )
        return _initializer(self._ref, dataset, name)

    def get_next(self, name: str | None = None) -> Any:
        """Tensors of the next element, which each run takes, until `tf.errors.OutOfRangeError`."""
        leaves = nest.flatten(self._spec)
        is_one = len(leaves) == 1

        def kernel(step: Any, place: _Place) -> Any:
            row = place.get_next(step)
            return row[0] if is_one else row

        made = default_graph.op(
            "IteratorGetNext", [self._ref], [info.held for info in leaves], kernel, name=name
        )
        given = [info.given(one) for info, one in zip(leaves, made.outputs, strict=True)]
        return nest.packed(self._spec, given)


def get_output_types(dataset_or_iterator: Any) -> Any:
    """The dtypes of an element, in its nesting."""
    return dataset_or_iterator.output_types


def get_output_shapes(dataset_or_iterator: Any) -> Any:
    """The static shapes of an element, in its nesting."""
    return dataset_or_iterator.output_shapes


def get_output_classes(dataset_or_iterator: Any) -> Any:
    """`Tensor` or `SparseTensor` for each tensor of an element, in its nesting."""
    return dataset_or_iterator.output_classes


def make_one_shot_iterator(dataset: Elements) -> Iterator:
    """An iterator that needs no initialisation, and goes through the elements once."""
    for source in dataset._sources:
        _check_is_known(source.op)
    key = object()

    def kernel(step: Any, *values: Any) -> _Place:
        def make() -> _Place:
            place = _Place(nest.flatten(dataset._spec))
            place.begin(dataset, values, step)
            return place

        found: _Place = step.resources.get_or_create(("iterator", key), make)
        return found

    made = default_graph.op("OneShotIterator", dataset._sources, [(resource, SCALAR)], kernel)
    return Iterator(dataset._spec, made.outputs[0], None)


def make_initializable_iterator(dataset: Elements, shared_name: str | None = None) -> Iterator:
    """An iterator that begins at the first element whenever its ``initializer`` is run."""
    ref = _handle("IteratorV2", nest.flatten(dataset._spec))
    return Iterator(dataset._spec, ref, _initializer(ref, dataset, None))


def _handle(op_type: str, leaves: list[TensorInfo]) -> Tensor:
    key = object()

    def kernel(step: Any) -> _Place:
        found: _Place = step.resources.get_or_create(("iterator", key), lambda: _Place(leaves))
        return found

    return default_graph.op(op_type, [], [(resource, SCALAR)], kernel).outputs[0]


def _place_of(step: Any, handle: Any, infos: list[TensorInfo]) -> _Place:
    """Where the iterator of a handle stands, if its elements are as they are said to be."""
    place: _Place | None = step.resources.get(("iterator handle", handle))
    if place is None:
        if isinstance(handle, bytes) and handle.startswith(_HANDLE):
            message = f"There is no iterator {handle.decode()} in this session."
            raise errors.NotFoundError(None, None, message)
        raise invalid("Could not parse string_handle as a valid ResourceHandle")
    if len(infos) != len(place.leaves):
        raise invalid(
            "Number of components does not match: expected"
            f" {len(infos)} types but got {len(place.leaves)}."
        )
    for number, (wanted, found) in enumerate(zip(infos, place.leaves, strict=True)):
        if wanted.dtype is not found.dtype:
            raise invalid(
                f"Data type mismatch at component {number}: expected"
                f" {type_names([wanted.dtype])} but got {type_names([found.dtype])}."
            )
        if not wanted.shape.is_compatible_with(found.shape):
            raise invalid(
                f"Incompatible shapes at component {number}: expected"
                f" {shape_text(wanted.shape.as_tuple())} but got"
                f" {shape_text(found.shape.as_tuple())}."
            )
    return place


def _initializer(ref: Tensor, dataset: Elements, name: str | None) -> Operation:
    def kernel(step: Any, place: _Place, *values: Any) -> None:
        place.begin(dataset, values, step)

    return default_graph.op("MakeIterator", [ref, *dataset._sources], [], kernel, name=name)


def _check_is_known(op: Operation) -> None:
    """Refuse what has no value before it is fed."""
    pending, seen = [op], {op}
    while pending:
        one = pending.pop()
        if one.type == "Placeholder":
            raise ValueError(
                f"Cannot capture a placeholder (name:{one.name}, type:{one.type}) by value."
            )
        makers = {tensor.op for tensor in one.inputs} - seen
        seen |= makers
        pending.extend(makers)


def _infos(output_types: Any, output_shapes: Any, output_classes: Any = None) -> list[TensorInfo]:
    """What is said of the tensors of an element: without shapes any, without classes dense ones."""
    types = nest.flatten(output_types)
    kinds = [Tensor] * len(types) if output_classes is None else nest.flatten(output_classes)
    shapes: list[Any] = [None] * len(types)
    if output_shapes is not None:
        # The only shape may stand for a nest of one.
        is_one = len(types) == 1 and not isinstance(output_shapes, dict)
        shapes = nest.flatten(output_shapes) if not is_one else [output_shapes]
        if is_one and _is_one_in_tuple(output_shapes):
            shapes = [output_shapes[0]]
    return [
        TensorInfo(dtype, shape, kind is SparseTensor)
        for dtype, shape, kind in zip(types, shapes, kinds, strict=True)
    ]


def _is_one_in_tuple(shapes: Any) -> bool:
    return isinstance(shapes, tuple) and len(shapes) == 1 and not isinstance(shapes[0], int | None)
