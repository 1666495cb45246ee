"""Parts of a state that are made later, while the nodes run on."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from aioqueue.items.positions import plain_int


class DeferredState:
    """A part of a state that is made later, from copies, while its nodes run on.

    Args:
        make: makes the part; called once.
    """

    __slots__ = ("make",)

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make: Callable[[], Any] = make


def plain(document: Any) -> Any:
    """Return a copy in plain JSON types only; deferred parts are computed now."""
    return json.loads(_STATES.encode(document))


def _made(part: Any) -> Any:
    return part.make() if isinstance(part, DeferredState) else plain_int(part)


_STATES: Final = json.JSONEncoder(
    separators=(",", ":"),
    default=_made,
    check_circular=False,  # states have no cycles, so the check would only cost time
)


def made(part: Any) -> Any:
    """A part of a state; a deferred part is made now."""
    return part.make() if isinstance(part, DeferredState) else part


def settled(state: Any) -> Any:
    """A state in which all deferred parts have been made."""
    if isinstance(state, DeferredState):
        return settled(state.make())
    if isinstance(state, dict):
        return {
            key: settled(value) if type(value) in _PARTS else value for key, value in state.items()
        }
    if isinstance(state, list) and state and isinstance(state[0], dict):
        return [settled(one) for one in state]
    return state


_PARTS: Final = frozenset({DeferredState, dict, list})
"""The types that may contain a deferred part."""
