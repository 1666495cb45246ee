"""`StagingArea`: where scripts put batches ahead of the steps that take them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import aioqueue
from aioqueue import sync
from aioqueue.compat.v1 import errors
from aioqueue.compat.v1.core import dtypes as tf_dtypes
from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.default_graph import get_default_graph, op
from aioqueue.compat.v1.core.graph import WOULD_WAIT, Operation, Tensor
from aioqueue.compat.v1.core.scopes import name_scope
from aioqueue.compat.v1.core.shapes import TensorShape, as_shape, unknown_shape
from aioqueue.core.storage.sized import size_of


class StagingArea:
    """Elements leave in the order in which they came; a run that waits for one can be cancelled."""

    def __init__(
        self,
        dtypes: Sequence[Any],
        shapes: Sequence[Any] | None = None,
        names: Sequence[str] | None = None,
        shared_name: str | None = None,
        capacity: int = 0,
        memory_limit: int = 0,
    ) -> None:
        if shared_name is not None and not isinstance(shared_name, str):
            raise ValueError(f"shared_name must be a string, got {shared_name}")
        for what, given in (("shapes", shapes), ("names", names)):
            if given is not None and len(given) != len(dtypes):
                raise ValueError(f"StagingArea {what} must be the same length as dtypes")
        self.name: str = shared_name or get_default_graph().unique_name("StagingArea")
        self.dtypes = [tf_dtypes.as_dtype(one) for one in dtypes]
        self.shapes: list[TensorShape] = (
            [unknown_shape()] * len(dtypes) if shapes is None else list(map(as_shape, shapes))
        )
        self.names = names
        self.capacity = capacity
        self.memory_limit = memory_limit

    def put(self, values: Any, name: str | None = None) -> Operation:
        """An op that puts an element in, and waits while there is no room."""
        with name_scope(name, f"{self.name}_put") as scope:
            tensors = [
                self._component(index, value) for index, value in enumerate(self._ordered(values))
            ]
            return self._op("Stage", _Staged.put, (), scope, tensors, waits=True)

    def get(self, name: str | None = None) -> Any:
        """Tensors of the first element, which is taken out; running them waits for one."""
        return self._element("Unstage", "get", _Staged.get, name)

    def peek(self, index: Any, name: str | None = None) -> Any:
        """Tensors of an element, which stays; running them waits until there are so many."""
        number = convert_to_tensor(index, dtype=tf_dtypes.int32, name="index")
        return self._element("StagePeek", "peek", _Staged.peek, name, [number])

    def size(self, name: str | None = None) -> Tensor:
        """An int32 tensor: how many elements are inside."""
        outputs = [(tf_dtypes.int32, TensorShape([]))]
        return self._op("StageSize", _Staged.size, outputs, name or f"{self.name}_size").outputs[0]

    def clear(self, name: str | None = None) -> Operation:
        """An op that drops all elements."""
        return self._op("StageClear", _Staged.clear, (), name or f"{self.name}_clear")

    def _ordered(self, values: Any) -> list[Any]:
        if not isinstance(values, Mapping):
            if self.names:
                raise ValueError("You must enqueue a dictionary in a staging area with names")
            listed = list(values) if isinstance(values, list | tuple) else [values]
        elif not self.names:
            raise ValueError("Staging areas must have names to enqueue a dictionary")
        elif set(values) != set(self.names):
            raise ValueError(
                "Keys in dictionary to put do not match names of staging area. Dictionary:"
                f" {sorted(values)}Queue: {sorted(self.names)}"
            )
        else:
            listed = [values[name] for name in self.names]
        if len(listed) != len(self.dtypes):
            raise ValueError(f"Unexpected number of inputs {len(listed)} vs {len(self.dtypes)}")
        return listed

    def _component(self, index: int, value: Any) -> Tensor:
        wanted = self.dtypes[index]
        if isinstance(value, Tensor) and value.dtype != wanted:
            raise ValueError(
                f"Datatypes do not match. Received val.dtype {value.dtype} and dtype {wanted}"
            )
        tensor = convert_to_tensor(value, dtype=wanted, name=f"component_{index}")
        tensor.shape.assert_is_compatible_with(self.shapes[index])
        return tensor

    def _element(
        self,
        op_type: str,
        what: str,
        act: Callable[..., Any],
        name: str | None,
        inputs: Sequence[Tensor] = (),
    ) -> Any:
        outputs = list(zip(self.dtypes, self.shapes, strict=True))
        name = name or f"{self.name}_{what}"
        tensors = self._op(op_type, act, outputs, name, inputs, waits=True).outputs
        return dict(zip(self.names, tensors, strict=True)) if self.names else tensors

    def _op(
        self,
        op_type: str,
        act: Callable[..., Any],
        outputs: Sequence[tuple[Any, TensorShape]],
        name: str | None,
        inputs: Sequence[Tensor] = (),
        waits: bool = False,
    ) -> Operation:
        key = "staging", self.name
        capacity, memory_limit = self.capacity, self.memory_limit

        def staged(step: Any) -> _Staged:
            made: _Staged = step.resources.get_or_create(
                key, lambda: _Staged(capacity, memory_limit)
            )
            return made

        def try_now(step: Any, *values: Any) -> Any:
            return act(staged(step), *values)

        def kernel(step: Any, *values: Any) -> Any:
            return (
                staged(step).until(lambda area: act(area, *values))
                if waits
                else try_now(step, *values)
            )

        attrs = {"try_now": try_now} if waits else None
        return op(op_type, inputs, outputs, kernel, name=name, waits=waits, attrs=attrs)


class _Staged:
    """The elements of an area in a session; what would have to wait returns `WOULD_WAIT`."""

    def __init__(self, capacity: int, memory_limit: int) -> None:
        self._capacity = capacity
        self._memory_limit = memory_limit
        self._lock = threading.RLock()  # guards all below
        self._elements: deque[list[Any]] = deque()
        self._bells: list[Any] = []  # a queue for each who waits, since such waits can be cancelled
        self._bytes = 0

    def until(self, act: Callable[[_Staged], Any]) -> Any:
        while True:
            with self._lock:
                found = act(self)
                if found is not WOULD_WAIT:
                    return found
                bell = sync.FIFOQueue(1)
                self._bells.append(bell)
            try:
                bell.dequeue()
            except aioqueue.CancelledError:
                with self._lock:
                    self._bells = [one for one in self._bells if one is not bell]
                raise errors.CancelledError(None, None, "Staging was cancelled") from None

    def _changed(self) -> None:
        bells, self._bells = self._bells, []
        for bell in bells:
            bell.enqueue_nowait(None)

    def put(self, *values: Any) -> Any:
        size = size_of(values)
        if 0 < self._memory_limit < size:
            raise errors.ResourceExhaustedError(
                None,
                None,
                f"Attempted to insert tensors with combined size of '{size}' bytes into Staging"
                f" Area with a memory limit of '{self._memory_limit}'.",
            )
        with self._lock:
            if 0 < self._capacity <= len(self._elements):
                return WOULD_WAIT
            if 0 < self._memory_limit < self._bytes + size:
                return WOULD_WAIT
            self._elements.append(_copied(values))
            self._bytes += size
            self._changed()
        return None

    def get(self) -> Any:
        with self._lock:
            if not self._elements:
                return WOULD_WAIT
            element = self._elements.popleft()
            self._bytes -= size_of(element)
            self._changed()
        return _as_outputs(element)

    def peek(self, index: Any) -> Any:
        with self._lock:
            if len(self._elements) <= index:
                return WOULD_WAIT
            return _as_outputs(_copied(self._elements[int(index)]))

    def size(self) -> Any:
        return np.int32(len(self._elements))

    def clear(self) -> None:
        with self._lock:
            self._elements.clear()
            self._bytes = 0
            self._changed()


def _copied(values: Sequence[Any]) -> list[Any]:
    return [value.copy() if isinstance(value, np.ndarray) else value for value in values]


def _as_outputs(element: list[Any]) -> Any:
    return element[0] if len(element) == 1 else tuple(element)
