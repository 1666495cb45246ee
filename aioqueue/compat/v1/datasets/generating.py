"""What a Python function yields, as the elements of a dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from aioqueue.compat.v1.core.convert import as_value
from aioqueue.compat.v1.datasets import nest
from aioqueue.compat.v1.datasets.elements import TensorInfo
from aioqueue.compat.v1.datasets.stages import Row
from aioqueue.compat.v1.ops.building import call_python

__all__ = ("elements_of", "generated")

_END: Any = object()


def elements_of(generator: Callable[..., Iterable[Any]], arguments: Sequence[Any]) -> Iterator[Any]:
    """What a user's function yields; an error of another run that it raises is not this one's."""
    iterator = call_python(lambda: iter(generator(*arguments)))
    while (element := call_python(next, iterator, _END)) is not _END:
        yield element


def generated(spec: Any, infos: Sequence[TensorInfo], element: Any) -> Row:
    """A row of what a generator has yielded."""
    leaves = _leaves_like(spec, element)
    if len(leaves) != len(infos):
        expected = nest.mapped(lambda info: info.dtype.name, spec)
        raise TypeError(
            "`generator` yielded an element that did not match the expected structure. The"
            f" expected structure was {expected}, but the yielded element was {element!r}."
        )
    return tuple(_value(info, leaf) for info, leaf in zip(infos, leaves, strict=True))


def _leaves_like(spec: Any, element: Any) -> list[Any]:
    """The leaves of an element that has about the nesting of a spec: a list may be a tuple."""
    if isinstance(spec, tuple):
        if not isinstance(element, tuple | list) or len(element) != len(spec):
            return []
        pairs = zip(spec, element, strict=True)
        return [leaf for part, one in pairs for leaf in _leaves_like(part, one)]
    if isinstance(spec, Mapping):
        if not isinstance(element, Mapping) or set(element) != set(spec):
            return []
        return [leaf for key in sorted(spec) for leaf in _leaves_like(spec[key], element[key])]
    return [element]


def _value(info: TensorInfo, leaf: Any) -> Any:
    try:
        value = as_value(leaf, info.dtype)
    except (TypeError, ValueError) as error:
        raise TypeError(
            "`generator` yielded an element that could not be converted to the expected type. The"
            f" expected type was {info.dtype.name}, but the yielded element was {leaf!r}."
        ) from error
    if not info.shape.is_compatible_with(np.shape(value)):
        raise TypeError(
            f"`generator` yielded an element of shape {np.shape(value)} where an element of shape"
            f" {info.shape} was expected."
        )
    return value
