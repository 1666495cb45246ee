"""`shuffle`: draws rows at random from a buffer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from aioqueue.base.arguments import checked_count
from aioqueue.core.elements.philox import PhiloxWords
from aioqueue.pipeline.nodes.node import READ_TOGETHER, Node
from aioqueue.pipeline.nodes.replay_log import KnownNames, NameColumns
from aioqueue.pipeline.nodes.rows import Id, Row, State
from aioqueue.pipeline.nodes.state_fields import HELD, NUMBER, Fields
from aioqueue.pipeline.stages.base import BaseStage, BuildContext
from aioqueue.pipeline.stages.transform import HoldingTransform
from aioqueue.sources.shuffling import resolved_seed


@dataclass(frozen=True)
class Shuffle(BaseStage):
    """Draws rows at random from a buffer."""

    name: ClassVar[str] = "shuffle"
    state_fields: ClassVar[Fields] = {
        "drawn": NUMBER,
        "buffered": NUMBER,
        "ready": NUMBER,
        **HELD,
    }
    size: int
    seed: int | None

    def __post_init__(self) -> None:
        checked_count(self.size, "size", least=1)
        resolved_seed(self.seed)

    def details(self) -> str:
        return f"{self.size}" if self.seed is None else f"{self.size} seed={self.seed}"

    def is_passthrough(self) -> bool:
        return True

    def is_random(self) -> bool:
        return True

    def keeps_rows_apart(self) -> bool:
        return True

    @classmethod
    def why_inelastic(cls, arguments: Mapping[str, Any]) -> str | None:
        return None

    def node(self, upstream: Node, building: BuildContext) -> Node:
        seed = building.seed("shuffle")
        return ShuffleNode(upstream, int(self.size), seed if self.seed is None else int(self.seed))

    def fingerprint(self) -> dict[str, Any]:
        own = {} if self.seed is None else {"seed": self.seed}
        return {"buffer": int(self.size), **own}


_FILL_CHUNK: Final = 256
"""The most rows to take at a time in order to fill a buffer."""


class ShuffleNode(HoldingTransform):
    """Gives rows in random order: each is drawn uniformly from a buffer that is kept full.

    Which row is drawn depends only on the seed, the epoch and the number of draws before. So the
    order of its output depends only on the order of its input.

    Args:
        upstream: the node before.
        size: how many rows the buffer holds.
        seed: the seed of the draws.
    """

    def __init__(self, upstream: Node, size: int, seed: int) -> None:
        super().__init__(upstream)
        # Without order, rows keep the names by which the node before can give them again.
        self.keeps_row_ids: bool = not upstream.is_ordered
        self.never_waits: bool = upstream.never_waits
        self._size = size
        self._seed = seed
        self._buffer: list[Row] = []
        self._names = KnownNames()  # the names of the rows in the buffer
        self._buffered = 0  # after a restore: so many of the rows were in the buffer, others ready
        self._words = self._words_of(0)
        self._drawn = 0  # how many random words of this epoch were used

    def begin(self, epoch: int) -> None:
        self._words = self._words_of(epoch)
        self._drawn = 0

    def _words_of(self, epoch: int) -> PhiloxWords:
        # The seed is the key and the epoch the upper half of the counter: no two epochs share one.
        return PhiloxWords((self._seed, epoch + 1))

    def accept(self, rows: Sequence[Row]) -> Iterable[Row]:
        buffer, size = self._buffer, self._size
        missing = size - len(buffer)
        if missing > 0:
            buffer += rows[:missing]
            rows = rows[missing:]
            self._names.forget()
        drawn = []
        places = [word % (size + 1) for word in self._draw(len(rows))]  # one place per newcomer
        for row, place in zip(rows, places, strict=True):
            # The newcomer may be drawn itself. Otherwise it takes the place of the drawn row.
            if place < size:
                row, buffer[place] = buffer[place], row
            drawn.append(row)
        self._names.change(places, size)
        return drawn

    def finish(self) -> Iterable[Row]:
        buffer, drawn = self._buffer, []
        self._names.forget()
        for word in self._draw(len(buffer)):
            place = word % len(buffer)
            buffer[place], buffer[-1] = buffer[-1], buffer[place]
            drawn.append(buffer.pop())
        return drawn

    def clear(self) -> None:
        self._buffer.clear()
        self._names.forget()

    def _draw(self, count: int) -> list[int]:
        self._drawn += count
        return self._words.take(count)

    def take_ready(self, n: int) -> list[Row]:
        if self.keeps_row_ids:
            return super().take_ready(n)
        # New numbers, in the order in which rows leave.
        first = self._given
        rows = super().take_ready(n)
        return [(value, number, *rest) for number, (value, _, *rest) in enumerate(rows, first)]

    def _held(self) -> list[Id]:
        return self._ids([*self._buffer, *self._ready])

    def _held_count(self) -> int:
        return len(self._buffer) + len(self._ready)

    def _copied(self) -> Callable[[], NameColumns] | None:
        if not (self._buffer or self._ready):
            return None
        epoch, buffer, ready = self._epoch, self._names.copied(self._buffer), list(self._ready)
        return lambda: NameColumns.of_columns(epoch, buffer(), ready)

    def _buffer_state(self) -> State:
        return {"drawn": self._drawn, "buffered": len(self._buffer), "ready": len(self._ready)}

    def _restore_buffer(self, state: State) -> None:
        self._buffered = state["buffered"]
        self._drawn = state["drawn"]
        self._words.skip(self._drawn)

    def _put_back(self, rows: list[Row]) -> None:
        self._names.forget()
        self._buffer[:], self._ready = rows[: self._buffered], deque(rows[self._buffered :])

    def _need(self, n: int) -> int:
        if self._upstream.never_waits and not self.is_limited:
            n = max(n, READ_TOGETHER)
        return max(n, min(_FILL_CHUNK, self._rows_for(n)))

    def _rows_for(self, rows: int) -> int:
        return rows + self._size - len(self._buffer) if rows else 0
