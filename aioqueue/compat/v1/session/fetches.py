"""What is fetched and fed: nestings of tensors, operations, names, and registered types."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from aioqueue.compat.v1.core.convert import as_value, freeze
from aioqueue.compat.v1.core.dtypes import DType
from aioqueue.compat.v1.core.graph import Graph, Operation, Tensor
from aioqueue.compat.v1.ops.sparse import SparseTensor, SparseTensorValue

Rebuild = Callable[[Iterator[Any]], Any]
FetchFunction = Callable[[Any], tuple[list[Any], Callable[[list[Any]], Any]]]
FeedFunction = Callable[[Any, Any], list[tuple[Any, Any]]]

_conversions: list[tuple[type, FetchFunction, FeedFunction | None]] = []


def register_session_run_conversion_functions(
    tensor_type: type,
    fetch_function: FetchFunction,
    feed_function: FeedFunction | None = None,
    feed_function_for_partial_run: Any = None,
) -> None:
    """Let sessions fetch and feed objects of another type."""
    for known, _, _ in _conversions:
        if issubclass(tensor_type, known):
            raise ValueError(f"{tensor_type} has already been registered so ignore it.")
    _conversions.insert(0, (tensor_type, fetch_function, feed_function))


register_session_run_conversion_functions(
    SparseTensor,
    lambda sparse: (list(sparse.parts), lambda values: SparseTensorValue(*values)),
    lambda sparse, value: list(zip(sparse.parts, value, strict=True)),
)


class Fetches:
    """The fetches of a run, flattened, and how to build the result from their values."""

    def __init__(self, graph: Graph, fetches: Any) -> None:
        self._graph = graph
        self.elements: list[Tensor | Operation] = []
        self._rebuild = self._take(fetches)

    def result(self, values: Sequence[Any]) -> Any:
        """What ``run`` returns, given the values of `elements`."""
        return self._rebuild(iter(values))

    def _take(self, fetch: Any) -> Rebuild:
        """Note the elements of one fetch; returns how to build its result."""
        if fetch is None:
            raise TypeError(
                f'Argument `fetch` = {fetch} has invalid type "{type(fetch).__name__}". '
                "Cannot be None"
            )
        if isinstance(fetch, Tensor | Operation):
            return self._take_element(fetch)
        if isinstance(fetch, list | tuple):
            return self._take_sequence(fetch)
        if isinstance(fetch, Mapping):
            return self._take_mapping(fetch)
        for kind, fetch_function, _ in _conversions:
            if isinstance(fetch, kind):
                parts, contract = fetch_function(fetch)
                takes = [self._take(one) for one in parts]
                return lambda values: contract([take(values) for take in takes])
        return self._take_element(fetch)

    def _take_element(self, fetch: Any) -> Rebuild:
        try:
            element = self._graph.as_graph_element(fetch)
        except TypeError as error:
            raise TypeError(
                f'Argument `fetch` = {fetch} has invalid type "{type(fetch).__name__}" must be a '
                f"string or Tensor. ({error})"
            ) from None
        except (KeyError, ValueError) as error:
            name = fetch.decode() if isinstance(fetch, bytes) else fetch
            raise ValueError(
                f"Argument `fetch` = {name} cannot be interpreted as a Tensor. ({error})"
            ) from None
        if not self._graph.is_fetchable(element):
            raise ValueError(
                f"Operation '{getattr(element, 'op', element).name}' has been marked as not "
                "fetchable: it is part of a function body (a branch of a cond, a loop, a mapped "
                "function). Fetch what the function returns instead."
            )
        self.elements.append(element)
        return next

    def _take_sequence(self, fetch: Sequence[Any]) -> Rebuild:
        takes = [self._take(one) for one in fetch]
        kind: Any = type(fetch)
        if hasattr(fetch, "_fields"):
            return lambda values: kind(*[take(values) for take in takes])
        return lambda values: kind([take(values) for take in takes])

    def _take_mapping(self, fetch: Mapping[Any, Any]) -> Rebuild:
        takes = {key: self._take(one) for key, one in fetch.items()}
        like = copy.copy(fetch) if isinstance(fetch, MutableMapping) else dict(fetch)

        def rebuild(values: Iterator[Any]) -> Any:
            made = copy.copy(like)  # with the default factory of a defaultdict, for instance
            for key, take in takes.items():
                made[key] = take(values)
            return made

        return rebuild


def expand_feeds(graph: Graph, feed_dict: Mapping[Any, Any]) -> dict[Tensor, Any]:
    """A ``feed_dict`` with tensors for keys: names looked up, other objects taken apart."""
    if not isinstance(feed_dict, Mapping):
        raise TypeError(f"feed_dict: got {feed_dict!r}; expected a mapping from tensors to values")
    result: dict[Tensor, Any] = {}
    for key, value in feed_dict.items():
        for one, part in _parts(key, value):
            tensor = _fed_tensor(graph, one)
            if not graph.is_feedable(tensor):
                raise ValueError(f"Tensor {tensor} may not be fed.")
            result[tensor] = part
    return result


def _parts(key: Any, value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(key, tuple):
        if not isinstance(value, Sequence | np.ndarray) or len(key) != len(value):
            raise ValueError(f"feed_dict: the key {key} has {len(key)} parts, got {value!r}")
        for one, part in zip(key, value, strict=True):
            yield from _parts(one, part)
        return
    for kind, _, feed_function in _conversions:
        if isinstance(key, kind) and feed_function is not None:
            for one, part in feed_function(key, value):
                yield from _parts(one, part)
            return
    yield key, value


def _fed_tensor(graph: Graph, key: Any) -> Tensor:
    try:
        found = graph.as_graph_element(key, allow_operation=False)
    except (TypeError, ValueError, KeyError) as error:
        raise TypeError(f"Cannot interpret feed_dict key as Tensor: {error.args[0]}") from None
    assert isinstance(found, Tensor)
    return found


class Feeder:
    """Makes of what is fed for one tensor the value that kernels get."""

    __slots__ = ("_dims", "_dtype", "_number", "_numpy", "_tensor")

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        self._dtype: DType = tensor.dtype
        self._dims = tensor.shape.as_tuple()
        self._numpy = tensor.dtype.numpy
        self._number = self._numpy.kind in "iufc"

    def __call__(self, value: Any) -> Any:
        """The value as an array (read-only: it is the caller's), NumPy scalar or ``bytes``."""
        if type(value) is np.ndarray and value.dtype == self._numpy and self._number:
            made = freeze(value) if value.ndim else value[()]  # by far the most frequent kind
            self._check_shape(value.shape)
            return made
        if type(value) is bytes and self._dtype.name == "string":
            self._check_shape(())
            return value
        if isinstance(value, Tensor):
            raise TypeError(
                "The value of a feed cannot be a tf.Tensor object. Acceptable feed values include "
                "Python scalars, strings, lists, numpy ndarrays, or TensorHandles. For reference, "
                f"the tensor object was {value} which was passed to the argument `feed_dict` with "
                f"key {self._tensor}."
            )
        if self._dtype.name in ("resource", "variant"):
            return value
        if self._number and isinstance(value, int):
            made = self._integer(value)
        else:
            made = freeze(as_value(value, self._dtype, check=self._dtype.name == "string"))
        self._check_shape(np.shape(made))
        return made

    def _check_shape(self, shape: tuple[int, ...]) -> None:
        if shape != self._dims and not self._tensor.shape.is_compatible_with(shape):
            raise ValueError(
                f"Cannot feed value of shape {shape} for Tensor {self._tensor.name}, which has "
                f"shape {self._tensor.shape}"
            )

    def _holds(self, value: int) -> bool:
        """Whether it is in the range of an integer dtype; NumPy 1 would wrap it around."""
        if self._numpy.kind not in "iu":
            return True
        info = np.iinfo(self._numpy)
        return bool(info.min <= value <= info.max)

    def _integer(self, value: int) -> Any:
        kind = self._dtype.as_numpy_dtype
        try:
            made = kind(value) if self._holds(value) else None
        except OverflowError:  # of a float
            made = None
        if made != value:
            raise TypeError(
                f"Type of feed value {value} with type {type(value)} is not compatible with Tensor "
                f"type {kind}. Try explicitly setting the type of the feed tensor to a larger type "
                "(e.g. int64)."
            )
        return made
