"""`tf.train`'s producers: a queue of names, numbers or slices, and a runner that adds epochs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aioqueue.compat.v1.coordination.runners import QueueRunner, add_queue_runner
from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.core.scopes import GraphKeys, control_dependencies, name_scope
from aioqueue.compat.v1.inputs.batchers import summarize_fullness
from aioqueue.compat.v1.ops import arrays, math
from aioqueue.compat.v1.ops.control import identity
from aioqueue.compat.v1.ops.effects import Assert
from aioqueue.compat.v1.ops.files import matching_files
from aioqueue.compat.v1.ops.indexing import gather
from aioqueue.compat.v1.ops.random import random_shuffle
from aioqueue.compat.v1.ops.variables import Variable
from aioqueue.compat.v1.queues.queues import FIFOQueue

__all__ = (
    "input_producer", "limit_epochs", "match_filenames_once", "range_input_producer",
    "slice_input_producer", "string_input_producer",
)  # fmt: skip


def match_filenames_once(pattern: Any, name: str | None = None) -> Variable:
    """A local variable: the names of files that match when it is initialised, in bytewise order."""
    with name_scope(name, "matching_filenames", [pattern]) as scope:
        return Variable(
            matching_files(pattern),
            trainable=False,
            collections=[GraphKeys.LOCAL_VARIABLES],
            validate_shape=False,
            name=scope,
        )


def limit_epochs(tensor: Any, num_epochs: int | None = None, name: str | None = None) -> Any:
    """The tensor, which can be had so many times; the count is a local variable."""
    if num_epochs is None:
        return tensor
    if num_epochs <= 0:
        raise ValueError(f"num_epochs must be > 0 not {num_epochs}.")
    with name_scope(name, "limit_epochs", [tensor]) as scope:
        epochs = Variable(
            np.int64(0), trainable=False, collections=[GraphKeys.LOCAL_VARIABLES], name="epochs"
        )
        with control_dependencies([epochs.count_up_to(num_epochs)]):
            return identity(tensor, name=scope)


def input_producer(
    input_tensor: Any,
    element_shape: Any = None,
    num_epochs: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    capacity: int = 32,
    shared_name: str | None = None,
    summary_name: str | None = None,
    name: str | None = None,
    cancel_op: Any = None,
) -> FIFOQueue:
    """A queue of the rows of a tensor, epoch after epoch, and a runner that fills it."""
    with name_scope(name, "input_producer", [input_tensor]):
        rows = convert_to_tensor(input_tensor, name="input_tensor")
        row_shape = rows.shape[1:].merge_with(element_shape)
        if not row_shape.is_fully_defined():
            raise ValueError(
                "Either `input_tensor` must have a fully defined shape or `element_shape` must be"
                " specified"
            )
        if shuffle:
            rows = random_shuffle(rows, seed=seed)
        rows = limit_epochs(rows, num_epochs)
        queue = FIFOQueue(capacity, [rows.dtype], [row_shape], None, shared_name, name)
        add_queue_runner(QueueRunner(queue, [queue.enqueue_many([rows])], cancel_op=cancel_op))
        if summary_name is not None:
            summarize_fullness(queue, capacity, tag=summary_name)
        return queue


def string_input_producer(
    string_tensor: Any,
    num_epochs: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    capacity: int = 32,
    shared_name: str | None = None,
    name: str | None = None,
    cancel_op: Any = None,
) -> FIFOQueue:
    """A queue of strings, such as file names, epoch after epoch, and a runner that fills it."""
    message = "string_input_producer requires a non-null input tensor"
    if isinstance(string_tensor, np.ndarray):
        is_empty = string_tensor.size == 0
    else:
        is_empty = not _is_deferred(string_tensor) and not string_tensor
    if is_empty:
        raise ValueError(message)
    with name_scope(name, "input_producer", [string_tensor]) as scope:
        strings = convert_to_tensor(string_tensor, dtypes.string)
        with control_dependencies([Assert(math.greater(arrays.size(strings), 0), [message])]):
            strings = identity(strings)
        options = num_epochs, shuffle, seed, capacity, shared_name, f"fraction_of_{capacity}_full"
        return input_producer(strings, [], *options, scope, cancel_op)


def range_input_producer(
    limit: Any,
    num_epochs: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    capacity: int = 32,
    shared_name: str | None = None,
    name: str | None = None,
) -> FIFOQueue:
    """A queue of the integers from 0 to a limit, epoch after epoch, and a runner that fills it."""
    with name_scope(name, "input_producer", [limit]) as scope:
        options = num_epochs, shuffle, seed, capacity, shared_name, f"fraction_of_{capacity}_full"
        return input_producer(arrays.range(limit), [], *options, scope)


def slice_input_producer(
    tensor_list: Sequence[Any],
    num_epochs: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    capacity: int = 32,
    shared_name: str | None = None,
    name: str | None = None,
) -> list[Tensor]:
    """Tensors of one row of each of several tensors, taken from a queue that a runner fills."""
    with name_scope(name, "input_producer", list(tensor_list)):
        tensors = [convert_to_tensor(tensor) for tensor in tensor_list]
        if not tensors:
            raise ValueError("Expected at least one tensor in slice_input_producer().")
        count = arrays.shape(tensors[0])[0]
        options = num_epochs, shuffle, seed, capacity, shared_name
        index = range_input_producer(count, *options).dequeue()
        return [gather(tensor, index) for tensor in tensors]


def _is_deferred(value: Any) -> bool:
    return isinstance(value, Tensor) or hasattr(value, "_as_graph_element")
