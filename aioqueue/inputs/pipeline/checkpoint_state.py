"""What a pipeline needs in order to go on after a restart: where its nodes are, and no data.

The state is that of what was handed to the user. What was taken but not delivered is forgotten, and
made again: every item has a generator of its own, so it becomes the same bytes. A node that holds
rows, as a shuffle does, tells which ones they are by their numbers, and is given them again first.

Most nodes cannot be asked for single rows. So from time to time a *mark* is made: the state of the
node before, and the row that it stood at. Who needs a row again goes back to the last mark before
it, and leaves out what was delivered since. Where items can be had one by one, or need not be
prepared, a `Wanted` tells the nodes before to save themselves the trouble.

While a state is taken nobody can take rows. So what takes long is put off: nodes copy what they
hold, and a `DeferredState` in the state names it when they go on already.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64decode
from binascii import b2a_base64
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

import numpy as np

from aioqueue.inputs.core.positions import plain_int
from aioqueue.inputs.pipeline.node import END, Id, Node, NoPositionError, State

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = (
    "NUMBER",
    "DeferredState",
    "StateMarks",
    "id_of",
    "id_text",
    "made",
    "packed",
    "packed_within",
    "plain",
    "settled",
    "unpacked",
    "unpacked_array",
)

_EVERY: Final = 256
"""Rows from one mark to the next, at least."""

NUMBER: Final = np.dtype("<i8")
"""Of the numbers of rows: their lowest words come first on every machine."""

_WORD: Final = np.dtype("<u2")

_FEW: Final = 16
"""Numbers that are no shorter if they are compressed."""

_LISTED: Final = 8
"""Numbers that are written one by one, for people to read."""

KeyT = TypeVar("KeyT", bound=tuple[int, ...])


def packed(numbers: Sequence[int] | NDArray[np.int64]) -> str:
    """Ints of 64 bits as text: ``3,5,7``, or the name of an encoding and what it makes.

    ``delta8(first)`` and ``delta16(first)`` hold the differences as ints of 8 or 16 bits. Ascending
    numbers, such as those that are missing, are much alike: ``zlib32`` and ``zlib64`` compress
    their differences, all lowest bytes first, then all second ones, and so on. The order of a
    shuffle is random, so that compression takes long and gains little: ``low16(first)`` holds the
    lowest 16 bits of each. Bytes are written in base64, and ints with their lowest byte first.
    """
    if len(numbers) <= _LISTED:
        return ",".join(str(int(number)) for number in numbers)
    found = np.asarray(numbers, np.int64)
    differences = found[1:] - found[:-1]
    least, most = differences.min(), differences.max()
    if (least < 0 or found.size <= _FEW) and least >= -(2**15) and most < 2**15:
        width = 1 if least >= -(2**7) and most < 2**7 else 2
        text = _text(differences.astype(f"<i{width}").tobytes())
        return f"delta{8 * width}({int(found[0])}){text}"
    differences = np.concatenate((found[:1], differences))
    width = 4 if min(least, found[0]) >= -(2**31) and max(most, found[0]) < 2**31 else 8
    planes = differences.astype(f"<i{width}").view(np.uint8).reshape(-1, width).T
    return f"zlib{8 * width}{_text(zlib.compress(planes.tobytes(), 1))}"


def packed_within(numbers: NDArray[np.int64], span: int) -> str:
    """The same where it is known how much they may differ: then their lowest 16 bits say all.

    It takes a fraction of the time: for whoever wants a state behind each batch.

    Args:
        numbers: of `NUMBER`.
        span: none differs from another by more.
    """
    if span >= 2**15 or len(numbers) <= _FEW:
        return packed(numbers)
    return f"low16({int(numbers[0])}){_text(numbers.view(_WORD)[::4].tobytes())}"


def unpacked(text: str) -> list[int]:
    """What `packed` was given."""
    numbers: list[int] = unpacked_array(text).tolist()
    return numbers


def unpacked_array(text: str) -> NDArray[np.int64]:
    """The same as an array."""
    if not text:
        return np.empty(0, np.int64)
    if text.startswith("zlib"):
        width = int(text[4:6]) // 8
        planes = np.frombuffer(zlib.decompress(b64decode(text[6:])), np.uint8).reshape(width, -1)
        differences = np.ascontiguousarray(planes.T).view(f"<i{width}").ravel()
        return np.cumsum(differences, dtype=np.int64)
    encoding, has_encoding, rest = text.partition("(")
    if not has_encoding:
        return np.array(text.split(","), np.int64)
    first, _, content = rest.partition(")")
    if encoding == "low16":  # they differ from the first one by no more than 16 bits say
        words = np.frombuffer(b64decode(content), _WORD)
        numbers: NDArray[np.int64] = (words - words[0]).astype(np.int16) + np.int64(first)
        return numbers
    width = int(encoding.removeprefix("delta")) // 8
    differences = np.frombuffer(b64decode(content), f"<i{width}").astype(np.int64)
    return np.cumsum(np.append(np.int64(first), differences))


def id_text(one: Id) -> str:
    """What names a row, as text: ``epoch:row``, or ``epoch:row.part`` for one of several examples
    of an item. The end of an epoch is ``epoch:end``."""
    epoch, number, sub = one
    return f"{epoch}:{'end' if number == END else number}{f'.{sub}' if sub else ''}"


def id_of(text: str) -> Id:
    """What `id_text` was given."""
    epoch, _, row = text.partition(":")
    number, _, sub = row.partition(".")
    return int(epoch), END if number == "end" else int(number), int(sub or 0)


def _text(data: bytes) -> str:
    return b2a_base64(data, newline=False).decode("ascii")


class DeferredState:
    """A part of a state that is made of copies, when the nodes that it is of go on already.

    Args:
        make: makes it; called once.
    """

    __slots__ = ("make",)

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make


def plain(document: Any) -> Any:
    """The same made of plain JSON types alone: its parts are made now, and nobody else has it."""
    return json.loads(_STATES.encode(document))


def _made(part: Any) -> Any:
    return part.make() if isinstance(part, DeferredState) else plain_int(part)


_STATES: Final = json.JSONEncoder(
    separators=(",", ":"),
    default=_made,
    check_circular=False,  # nodes have no circles
)


def made(part: Any) -> Any:
    """A part of a state: if it is to be made later, that is now."""
    return part.make() if isinstance(part, DeferredState) else part


def settled(state: Any) -> Any:
    """A state whose parts have all been made: plain JSON types."""
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
"""What may have something in it that is made later."""


def _refused(error: NoPositionError) -> Any:
    """A state that cannot be had: whoever makes it is told why."""
    why = str(error)  # without the frames, and with them the rows

    def refuse() -> State:
        raise NoPositionError(why)

    return DeferredState(refuse)


class _Mark(NamedTuple, Generic[KeyT]):
    at: KeyT
    state: State


class StateMarks(Generic[KeyT]):
    """States of a node, each with where it stood. Not thread-safe.

    Args:
        node: what has them.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._kept: deque[_Mark[KeyT]] = deque()
        self._since = 0

    def __len__(self) -> int:
        return len(self._kept)

    def count(self, rows: int) -> None:
        """So many rows were taken."""
        self._since += rows

    def note(self, at: KeyT, *, is_due: bool = False) -> None:
        """Make a mark if it is worth it: a node whose state is large is asked for it seldom.

        Args:
            at: where the node stands.
            is_due: whether it is worth it whatever was taken since the last one.
        """
        if is_due and self._kept and self._kept[-1].at == at:
            return  # a call that was cut short is made again
        if is_due or not self._kept or self._since >= max(_EVERY, self._node.weight()):
            self.make(at)

    @property
    def is_due(self) -> bool:
        """Whether a mark may be worth it: else there is no need to `note` anything."""
        return self._since >= _EVERY or not self._kept

    def make(self, at: KeyT) -> None:
        """Make a mark."""
        try:
            # At once: what is put off keeps the rows alive that it is to name.
            state = settled(self._node.state())
        except NoPositionError as error:  # the affair of who asks for one
            state = _refused(error)
        self._kept.append(_Mark(at, state))
        self._since = 0

    def copied(self) -> list[_Mark[KeyT]]:
        """All that there are, the last one first."""
        return list(reversed(self._kept))

    def restore(self, at: KeyT, state: State) -> None:
        """Begin with a mark of an earlier run."""
        self._kept.clear()
        self._kept.append(_Mark(at, state))

    def before(self, at: KeyT) -> _Mark[KeyT] | None:
        """The last one that is not behind this."""
        return next((mark for mark in reversed(self._kept) if mark.at <= at), None)

    def forget(self, at: KeyT) -> None:
        """Nobody goes back to before this."""
        kept = self._kept
        while len(kept) > 1 and kept[1].at <= at:
            kept.popleft()

    def thin_out(self) -> None:
        """Forget every second one but for the first."""
        self._kept = deque(mark for place, mark in enumerate(self._kept) if not place % 2)

    def clear(self) -> None:
        """Forget all."""
        self._kept.clear()
