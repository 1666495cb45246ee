"""The arguments of a queue's constructor that say what its elements are."""

from __future__ import annotations

from typing import Any

from aioqueue.core.elements.object_spec import ObjectSpec, PriorityObjectSpec
from aioqueue.core.elements.spec import Spec
from aioqueue.errors import InvalidArgumentError


def spec_for(dtypes: Any, shapes: Any, names: Any) -> Spec:
    if dtypes is not None:
        from aioqueue.core.elements.element_spec import element_spec  # it loads NumPy

        return element_spec(dtypes, shapes, names)
    _refuse_without_dtypes(shapes, names)
    return ObjectSpec()


def priority_spec_for(dtypes: Any, shapes: Any, names: Any) -> Spec:
    """Make the spec of elements whose component 0 is a priority, which the caller does not list."""
    if dtypes is not None:
        from aioqueue.core.elements.element_spec import priority_element_spec

        return priority_element_spec(dtypes, shapes, names)
    _refuse_without_dtypes(shapes, names)
    return PriorityObjectSpec()


def _refuse_without_dtypes(shapes: Any, names: Any) -> None:
    for argument, value in (("shapes", shapes), ("names", names)):
        if value is not None:
            raise InvalidArgumentError(
                f"{argument}: got {value!r} without dtypes; a queue of plain objects has none"
            )
