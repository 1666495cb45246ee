"""The actor of a queue without a cluster: the tests send what programs would send.

A `LocalHandle` is one handle. Its calls get their numbers when they are made, and reach the actor
when the test says so: in any order, more than once, or never.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from aioqueue.ray.client_registry import CallerId, ClientReport
from aioqueue.ray.journal import NoJournal
from aioqueue.ray.messages import Answer, Description
from aioqueue.ray.queue_actor import QueueActor
from aioqueue.ray.segments import Payload

__all__ = ("LocalHandle", "Records", "RestartableActor", "Sent", "fifo", "settled")


def fifo(capacity: int | None = None) -> tuple[QueueActor, Description]:
    """A queue of objects."""
    description = Description("FIFOQueue", capacity, 0, None, None, None, None, None)
    return QueueActor("desk", description), description


class Records(NoJournal):
    """A journal whose file is a list. A death loses all records that no caller has waited for."""

    def __init__(self, before: Records | None = None) -> None:
        super().__init__()
        self.lines: list[str] = [] if before is None else before.lines[: before.count]
        for line in self.lines:
            self.ledger.apply(json.loads(line))
        self.count: int = len(self.lines)  # of those that somebody has waited for
        self.append("start", self.ledger.starts + 1)
        self.count = len(self.lines)

    @property
    def starts(self) -> int:  # type: ignore[override]
        return self.ledger.starts

    def append(self, *record: object) -> None:
        self.lines.append(json.dumps(record))
        self.ledger.apply(list(json.loads(self.lines[-1])))

    async def flushed(self) -> None:
        self.count = len(self.lines)

    def freed(self, life: str) -> list[int]:
        return self.ledger.freed(life)

    def answered(self, life: str, number: int) -> int | None:
        return self.ledger.answered.get(life, {}).get(number)

    def droppable_of(self, life: str, numbers: Any) -> list[int]:
        return [number for number in numbers if (life, number) not in self.ledger.batches]


class RestartableActor(QueueActor):
    """An actor that can die, and come back from its journal if it has one.

    Attributes:
        records: its journal.
    """

    def __init__(self, name: str, description: Description, records: Records | None) -> None:
        super().__init__(name, description, records)
        self.records: Any = records
        self._as_made = name, description

    def restarted(self) -> RestartableActor:
        """Return the actor that Ray starts after its death."""
        assert self.records is not None, "without a journal it does not come back"
        return RestartableActor(*self._as_made, type(self.records)(self.records))


async def settled() -> None:
    """Let everything run that can."""
    for _ in range(30):
        await asyncio.sleep(0)


class Sent:
    """One call: made once, it may reach the actor several times."""

    def __init__(
        self,
        handle: LocalHandle,
        what: str,
        number: int,
        call: Callable[[], Coroutine[Any, Any, Answer]],
    ) -> None:
        self.handle = handle
        self.what = what
        self.number = number
        self.call = call
        self._tasks: list[asyncio.Task[Answer]] = []
        self.rows: list[Any] = []  # to put in
        self.is_cancelled = False

    def arrive(self) -> Sent:
        """It reaches the actor, or does so once more."""
        self._tasks.append(self.handle.loop.create_task(self.call()))
        return self

    def lose(self) -> None:
        """The actor has died: what has not been answered will not be."""
        for task in self._tasks:
            task.cancel()
        self._tasks = [task for task in self._tasks if task.done()]

    def miss(self) -> None:
        """The answers that are on their way never come."""
        self._tasks.clear()

    def cancel(self) -> None:
        """Cancel it, wherever it is."""
        self.is_cancelled = True
        self.handle.actor.cancel(self.what, self.handle.caller, self.number)

    @property
    def has_arrived(self) -> bool:
        return bool(self._tasks)

    @property
    def is_answered(self) -> bool:
        return self.answer is not None

    @property
    def answer(self) -> Answer | None:
        """What has been answered, if anything: whichever copy it was to."""
        answers = [task.result() for task in self._tasks if task.done() and not task.cancelled()]
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


class LocalHandle:
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
        self.caller = CallerId(name or life, life, after, description)
        self._next = {"enqueue": 0, "dequeue": 0}
        self._knows_first = name in ("", life)  # else its first lease has a number that it asks for
        self._open: dict[str, set[int]] = {"enqueue": set(), "dequeue": set()}
        self.calls: list[Sent] = []
        self.kept: list[tuple[int, Payload]] = []
        self._starts = 0  # how often the actor had started, as it has said

    def made(
        self, what: str, call: Callable[[int, int], Coroutine[Any, Any, Answer]]
    ) -> tuple[int, Sent]:
        """A call with the next number, given that and the first that has no answer."""
        number = self._next[what]
        self._next[what] += 1
        self._open[what].add(number)
        known = min(self._open[what])
        self.calls.append(Sent(self, what, number, lambda: call(number, known)))
        return number, self.calls[-1]

    def put(self, *rows: Any) -> Sent:
        """Put rows in."""
        payload = Payload(list(rows))
        number, sent = self.made(
            "enqueue",
            lambda number, known: self.actor.enqueue(
                self.caller, number, known, payload, len(rows), 8, None, False
            ),
        )
        sent.rows = list(rows)
        self.kept.append((number, payload))
        return sent

    def take(
        self, n: int, *, up_to: bool = False, max_wait: float | None = None, used: Any = ()
    ) -> Sent:
        """Take rows out, and say which leases are used."""
        if not self._knows_first:
            agreed = self.actor.agree(self.caller)
            self._knows_first = not agreed.error and not agreed.starts
            self._next["dequeue"] = agreed.rows
        return self.made(
            "dequeue",
            lambda number, known: self.actor.dequeue(
                self.caller, number, known, n, up_to, max_wait, list(used)
            ),
        )[1]

    async def rejoin(self, actor: QueueActor, held: Iterable[int] = ()) -> Answer:
        """The actor has come back, or is met for the first time."""
        self.actor = actor
        answer = await actor.rejoin(self.caller, self.report(held))
        self._starts = max(self._starts, answer.starts)
        return await self.rejoin(actor, held) if answer.is_outdated else answer

    def report(self, held: Iterable[int] = ()) -> ClientReport:
        """Return the report for an actor that has restarted."""
        unanswered = [sent for sent in self.calls if sent.answer is None]

        def reported(what: str) -> tuple[int, list[int]]:
            return self._next[what], [one.number for one in unanswered if one.what == what]

        return ClientReport(
            starts=self._starts,
            enqueues=reported("enqueue"),
            dequeues=reported("dequeue"),
            kept=list(self.kept),
            held=list(held),
            cancelled_calls=[(one.what, one.number) for one in unanswered if one.is_cancelled],
        )

    def received(self, sent: Sent) -> None:
        """Record that the answer has arrived, so the call is not repeated."""
        self._open[sent.what].discard(sent.number)
