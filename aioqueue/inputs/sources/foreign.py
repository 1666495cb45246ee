"""Iterables of other libraries that can say where they are: `Stateful`, as PyTorch calls it.

What such a state is made of is the library's affair; here it becomes plain JSON types, so that it
can be kept in a position, and nothing of it is pickled: to load a position runs no code.
"""

from __future__ import annotations

import logging
import math
import time
from base64 import b85decode, b85encode
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, TypeAlias, TypeGuard

import numpy as np

from aioqueue import InvalidArgumentError
from aioqueue.inputs.sources.positions import Place, misplaced

__all__ = ("Placing", "Replay", "Stateful", "decoded", "encoded", "is_stateful")

_log: Final = logging.getLogger("aioqueue")

_EVERY: Final = 64
"""Items from one state to the next, at least."""

_SHARE: Final = 50
"""How many times as long as a state takes its iterable is gone through, before the next one."""

_KIND: Final = "!"
"""The key by which the JSON object of something that JSON has not is told from a dict."""


class Stateful(Protocol):
    """What can say where it is, and go there."""

    def state_dict(self) -> Any:
        """Where it is."""

    def load_state_dict(self, state_dict: Any, /) -> Any:
        """Go there."""


def is_stateful(thing: object) -> TypeGuard[Stateful]:
    """Whether something can say where it is, and go there."""
    names = ("state_dict", "load_state_dict")
    return all(callable(getattr(thing, name, None)) for name in names)


Replay: TypeAlias = bool | Callable[[int, int], object]
"""Whether an iterable may be read again from its beginning; or what is told how far that is."""


class Placing:
    """Where a run through an iterable is.

    Args:
        made: the iterable.
        after: a place in it; ``None`` for its beginning.
        name: what the log calls it.
        replay: whether it may be read again from its beginning.
        refuse: called if there are no places, perhaps with the reason.

    Attributes:
        taken: how many items there were at its latest state.
        is_behind: whether the item that was taken last comes before the place.
    """

    def __init__(
        self,
        made: object,
        after: Place,
        name: str,
        replay: Replay,
        refuse: Callable[..., object],
    ) -> None:
        begun: tuple[int, Any, int] = after or (0, None, 0)
        self.taken, self._state, self._again = begun
        self.is_behind = False
        self._since = 0  # items since the state, of which `_again` come again
        self._name = name
        self._replay = replay
        self._refuse = refuse
        self._stateful = made if is_stateful(made) else None
        self._is_placed = True
        self._went_on = time.perf_counter()
        self._cost = 0.0
        if self._stateful is not None:
            self._load(self._stateful)

    def begin(self, run: object) -> None:
        """Items come from this iterator, which may have the state that the iterable has not.

        Raises:
            InvalidArgumentError: the place is one of something else.
        """
        if self._stateful is None and is_stateful(run):
            self._stateful = run
            self._load(run)
        if self._stateful is None:
            if self._state is not None:
                raise misplaced("a state of an iterable", f"{self._name} to have state_dict()")
            if not self._replay:
                self._refuse()
                self._is_placed = False
        if self._again:
            self._say_begin()

    def next(self) -> Place:
        """An item has been taken; returns the place behind it, which may be none."""
        self._since += 1
        self.is_behind = self._since <= self._again
        if self.is_behind:
            self._show()
        elif self._stateful is not None and self._is_due():
            self._ask(self._stateful)
        return (self.taken, self._state, self._since) if self._is_placed else None

    def end(self) -> None:
        """There are no more items.

        Raises:
            InvalidArgumentError: there were fewer than before.
        """
        if self._since < self._again:
            raise misplaced(
                f"a place behind {self.taken + self._again} items",
                f"{self.taken + self._since} at most, as many as {self._name} has now",
            )

    def _load(self, stateful: Stateful) -> None:
        if self._state is not None:
            stateful.load_state_dict(decoded(self._state))

    def _is_due(self) -> bool:
        if self._since < _EVERY:
            return False
        return time.perf_counter() - self._went_on >= _SHARE * self._cost

    def _ask(self, stateful: Stateful) -> None:
        began = time.perf_counter()
        try:
            self._state = encoded(stateful.state_dict())
        except Exception as error:  # who asks for no position need not care
            self._stateful = None
            if not self._replay:
                self._refuse(error)
                self._is_placed = False
            return
        self.taken, self._since, self._again = self.taken + self._since, 0, 0
        self._went_on = time.perf_counter()
        self._cost = self._went_on - began

    def _say_begin(self) -> None:
        if self._stateful is None:
            is_shown = callable(self._replay)
            _log.log(
                logging.INFO if is_shown else logging.WARNING,
                "%s has no state: it is read again from its beginning, %d items",
                self._name,
                self._again,
            )
        else:
            _log.info("%s reads %d items again since its last state", self._name, self._again)

    def _show(self) -> None:
        done, count = self._since, self._again
        if callable(self._replay) and done * 100 // count > (done - 1) * 100 // count:
            self._replay(done, count)
        if self._stateful is None and done * 10 // count > (done - 1) * 10 // count:
            _log.info("%s: %d of %d items read again", self._name, done, count)


def encoded(state: Any, where: str = "state_dict()") -> Any:
    """A state in plain JSON types; nothing of it is shared with the original.

    Args:
        state: ``None``, bools, numbers, strings, bytes, arrays and scalars of NumPy, tensors of
            PyTorch; and lists, tuples and mappings of them.
        where: what messages call it.

    Raises:
        InvalidArgumentError: there is something else in it.
    """
    if isinstance(state, np.ndarray | np.generic) and not state.dtype.hasobject:
        if state.dtype.kind == "V":  # of fields, or of another library: its name says too little
            raise InvalidArgumentError(
                f"{where}: got an array of dtype {state.dtype}; expected one of numbers, bools,"
                " strings or times"
            )
        return _encoded_array(np.asarray(state), "array" if state.ndim else "scalar")
    if state is None or isinstance(state, bool | str):
        return state
    if isinstance(state, int):
        return int(state)
    if isinstance(state, float):
        return float(state) if math.isfinite(state) else {_KIND: "float", "of": repr(float(state))}
    if isinstance(state, bytes):
        return {_KIND: "bytes", "of": b85encode(state).decode("ascii")}
    if isinstance(state, list):
        return [encoded(one, f"{where}[{place}]") for place, one in enumerate(state)]
    if isinstance(state, tuple):
        return {_KIND: "tuple", "of": encoded(list(state), where)}
    if isinstance(state, Mapping):
        return _encoded_mapping(state, where)
    if type(state).__module__ == "torch" and type(state).__name__ == "Tensor":
        return _encoded_array(state.detach().cpu().numpy(), "tensor")
    raise InvalidArgumentError(
        f"{where}: got a {type(state).__name__}; expected plain types, arrays or tensors, which a"
        " position can hold"
    )


def decoded(plain: Any) -> Any:
    """What `encoded` was given, but that mappings of any kind are dicts, and tuples plain ones."""
    if isinstance(plain, list):
        return [decoded(one) for one in plain]
    if not isinstance(plain, Mapping):
        return plain
    kind = plain.get(_KIND)
    if kind is None:
        return {key: decoded(one) for key, one in plain.items()}
    content = plain["of"]
    if kind == "float":
        return float(content)
    if kind == "bytes":
        return b85decode(content)
    if kind == "tuple":
        return tuple(decoded(content))
    if kind == "dict":
        return {decoded(key): decoded(one) for key, one in content}
    array = np.frombuffer(b85decode(content), plain["dtype"]).reshape(plain["shape"]).copy()
    if kind == "scalar":
        return array[()]
    if kind == "tensor":
        import torch

        return torch.from_numpy(array)
    return array


def _encoded_array(array: Any, kind: str) -> dict[str, Any]:
    content = b85encode(array.tobytes()).decode("ascii")
    return {_KIND: kind, "dtype": array.dtype.str, "shape": list(array.shape), "of": content}


def _encoded_mapping(state: Mapping[Any, Any], where: str) -> dict[str, Any]:
    if all(type(key) is str for key in state) and _KIND not in state:
        return {key: encoded(one, f"{where}[{key!r}]") for key, one in state.items()}
    pairs = [[encoded(key, where), encoded(one, f"{where}[{key!r}]")] for key, one in state.items()]
    return {_KIND: "dict", "of": pairs}
