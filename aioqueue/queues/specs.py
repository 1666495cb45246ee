"""What a queue's elements are, out of what its constructor was given."""

from __future__ import annotations

from typing import Any

from aioqueue.elements import ElementSpec, ObjectSpec, PriorityObjectSpec, Spec
from aioqueue.errors import InvalidArgumentError

__all__ = ("priority_spec_for", "spec_for")


def spec_for(dtypes: Any, shapes: Any, names: Any) -> Spec:
    """The spec of a queue's elements, out of the arguments of its constructor."""
    if dtypes is not None:
        return ElementSpec(dtypes, shapes, names)
    _refuse_without_dtypes(shapes, names)
    return ObjectSpec()


def priority_spec_for(dtypes: Any, shapes: Any, names: Any) -> Spec:
    """The same where component 0 is a priority, which is not listed."""
    if dtypes is None:
        _refuse_without_dtypes(shapes, names)
        return PriorityObjectSpec()
    # Checked on its own first, so that messages speak of what the caller wrote.
    payload = ElementSpec(dtypes, shapes)
    listed = list(dtypes) if isinstance(dtypes, list | tuple) else [dtypes]
    all_shapes = None
    if payload.batchable:
        all_shapes = [(), *(component.shape for component in payload.components)]
    return ElementSpec(["int64", *listed], all_shapes, names, priority=True)


def _refuse_without_dtypes(shapes: Any, names: Any) -> None:
    for argument, value in (("shapes", shapes), ("names", names)):
        if value is not None:
            raise InvalidArgumentError(
                f"{argument}: got {value!r} without dtypes; a queue of plain objects has none"
            )
