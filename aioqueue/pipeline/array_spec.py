"""What elements look like: the dtype and shape of each of their arrays, inferred from examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from aioqueue.base.public_names import public
from aioqueue.core.elements.trees import Branch, branch_of
from aioqueue.pipeline.stages.base import BaseStage, Spec


@public("aioqueue.inputs")
class ArraySpec(NamedTuple):
    """An array, or a scalar with a dtype, in an element. See `Pipeline.element_spec`."""

    shape: tuple[int | None, ...]
    """Its dimensions; ``None`` for one that varies."""
    dtype: Any
    """Its dtype: NumPy's, or that of the framework whose array it is."""


def spec_of_all(elements: Sequence[Any], stages: Sequence[BaseStage]) -> Spec:
    """The spec that some elements have in common.

    Args:
        elements: one at least.
        stages: that have made them; they know whether the last batch may be smaller.
    """
    first, *others = map(_spec_of, elements)
    for other in others:
        first = _joined(first, other)
    return _leading_varies(first) if _last_is_smaller(stages) else first


def _spec_of(value: Any) -> Spec:
    if isinstance(value, np.generic):
        return ArraySpec((), value.dtype)
    branch = branch_of(value)
    if branch is None:
        shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
        if dtype is not None and isinstance(shape, Sequence):
            return ArraySpec(tuple(map(int, shape)), dtype)
    return type(value) if branch is None else branch.make(list(map(_spec_of, branch.parts)))


def _parts_of(spec: Spec) -> Branch | None:
    return None if isinstance(spec, ArraySpec) else branch_of(spec)


def _joined(one: Spec, other: Spec) -> Spec:
    """Return the spec that covers both; ``object`` if they have nothing in common."""
    if isinstance(one, ArraySpec) and isinstance(other, ArraySpec):
        if len(one.shape) != len(other.shape):
            return object
        pairs = zip(one.shape, other.shape, strict=True)
        shape = tuple(size if size == found else None for size, found in pairs)
        return ArraySpec(shape, _common(one.dtype, other.dtype))
    ours, theirs = _parts_of(one), _parts_of(other)
    if ours is None or theirs is None or type(one) is not type(other):
        return one if one == other else object
    if {*ours.keys} == {*theirs.keys}:
        others = dict(zip(theirs.keys, theirs.parts, strict=True))
        pairs = zip(ours.keys, ours.parts, strict=True)
        return ours.make([_joined(part, others[key]) for key, part in pairs])
    return list if isinstance(one, list) else object


def _common(one: Any, other: Any) -> Any:
    if one == other or not isinstance(one, np.dtype) or not isinstance(other, np.dtype):
        return one if one == other else object
    try:
        return np.promote_types(one, other)
    except TypeError:
        return np.dtype(object)


def _leading_varies(spec: Spec) -> Spec:
    """Return the same spec with a first dimension of any size."""
    if isinstance(spec, ArraySpec):
        return spec._replace(shape=(None, *spec.shape[1:])) if spec.shape else spec
    branch = _parts_of(spec)
    return spec if branch is None else branch.make(list(map(_leading_varies, branch.parts)))


def _last_is_smaller(stages: Sequence[BaseStage]) -> bool:
    """Whether the elements are batches or windows, and the last one may be smaller."""
    for stage in reversed(stages):
        if stage.makes_batches() is not None:
            return not getattr(stage, "drop_remainder", True)
        if not stage.is_passthrough() and not stage.is_on_device:
            return False  # a function has made what it likes
    return False
