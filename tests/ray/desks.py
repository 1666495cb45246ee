"""The actor of a queue without any cluster: what programs would send, sent by the tests themselves.

A *desk* is one handle. Its calls get their numbers when they are made, and reach the actor when the
test says so: in any order, more than once, or never.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from aioqueue.ray.actor import QueueActor
from aioqueue.ray.handles import Payload
from aioqueue.ray.messages import Answer, Description
from aioqueue.ray.parties import Caller

__all__ = ("Desk", "Sent", "fifo", "settled")


def fifo(capacity: int | None = None) -> tuple[QueueActor, Description]:
    """A queue of objects."""
    description = Description("FIFOQueue", capacity, 0, None, None, None, None, None)
    return QueueActor("desk", description), description


async def settled() -> None:
    """Let everything run that can."""
    for _ in range(30):
        await asyncio.sleep(0)


class Sent:
    """One call: made once, it may reach the actor several times."""

    def __init__(
        self, desk: Desk, what: str, number: int, call: Callable[[], Coroutine[Any, Any, Answer]]
    ) -> None:
        self.desk = desk
        self.what = what
        self.number = number
        self._call = call
        self._tasks: list[asyncio.Task[Answer]] = []
        self.rows: list[Any] = []  # to put in
        self.is_cancelled = False

    def arrive(self) -> Sent:
        """It reaches the actor, or does so once more."""
        self._tasks.append(self.desk.loop.create_task(self._call()))
        return self

    def cancel(self) -> None:
        """Nobody wants it any more, wherever it is."""
        self.is_cancelled = True
        self.desk.actor.cancel(self.what, self.desk.caller, self.number)

    @property
    def has_arrived(self) -> bool:
        return bool(self._tasks)

    @property
    def answer(self) -> Answer | None:
        """What has been answered, if anything: whichever copy it was to."""
        answers = [task.result() for task in self._tasks if task.done()]
        return answers[0] if answers else None

    @property
    def got(self) -> list[Any]:
        """The rows that were taken."""
        assert self.answer is not None
        assert self.answer.error is None, self.answer.error
        found = []
        for payload, rows in self.answer.runs:
            assert payload.columns is not None
            found += [payload.columns[row] for row in rows]
        return found


class Desk:
    """One handle, of a client that may have a name of its own."""

    def __init__(
        self,
        actor: QueueActor,
        description: Description,
        life: str,
        name: str = "",
        after: int | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.loop = loop or asyncio.get_running_loop()
        self.actor = actor
        self.life = life
        self.caller = Caller(name or life, life, after, description)
        first = 0 if after is None else after + 1
        self._next = {"enqueue": 0, "dequeue": first}
        self._open: dict[str, set[int]] = {"enqueue": set(), "dequeue": set()}

    def _made(
        self, what: str, call: Callable[[int, int], Coroutine[Any, Any, Answer]]
    ) -> tuple[int, Sent]:
        number = self._next[what]
        self._next[what] += 1
        self._open[what].add(number)
        known = min(self._open[what])
        return number, Sent(self, what, number, lambda: call(number, known))

    def put(self, *rows: Any) -> Sent:
        """Put rows in."""
        payload = Payload(list(rows))
        _, sent = self._made(
            "enqueue",
            lambda number, known: self.actor.enqueue(
                self.caller, number, known, payload, len(rows), 8, None, False
            ),
        )
        sent.rows = list(rows)
        return sent

    def take(
        self, n: int, *, up_to: bool = False, max_wait: float | None = None, used: Any = ()
    ) -> Sent:
        """Take rows out, and say which leases are used."""
        return self._made(
            "dequeue",
            lambda number, known: self.actor.dequeue(
                self.caller, number, known, n, up_to, max_wait, list(used)
            ),
        )[1]

    def received(self, sent: Sent) -> None:
        """The answer of a call has come here: nobody asks for it again."""
        self._open[sent.what].discard(sent.number)
