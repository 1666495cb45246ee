"""Preparing on a Ray cluster: every worker is an actor there, the queue stays at home.

Each actor has a thread here that sends it items in chunks, one ahead of what is being prepared, and
enqueues what comes back. One more thread takes items from the source. What an actor returns belongs
to this program and lies in the object store, where the actor has put it; arrays are mapped from
there, so a queue of typed components copies each once, into its own memory. A queue of objects is
handed the mapped arrays: they cannot be written to, as always with Ray.

The books are kept here: which items an actor has, until the outcome of a chunk has come, in one
piece. So when an actor, its node or what it has returned is lost, it is known what has to be
prepared again, exactly; and every item arrives once. It becomes the same bytes, since its random
generator depends on the seed, the epoch and its index.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from time import monotonic
from typing import Any, Final

from aioqueue import InvalidArgumentError, WorkerDiedError
from aioqueue.arguments import EnqueueOp, counted, function_name
from aioqueue.coordination.classify import add_note, exception_text
from aioqueue.inputs.core.items import Item
from aioqueue.inputs.prepare.assignments import MOST_DEATHS, SendPace
from aioqueue.inputs.prepare.call import ItemCall
from aioqueue.inputs.prepare.flow_control import Pending
from aioqueue.inputs.prepare.introspection import explained_item
from aioqueue.inputs.prepare.job import Job, NothingMore
from aioqueue.inputs.prepare.prepared_items import Prepared
from aioqueue.inputs.prepare.ray_cluster import (
    ActorReport,
    Doing,
    Outcome,
    Sent,
    checked_options,
    connected,
    is_loss,
    is_own_death,
    log,
    not_connected,
    remote_class,
    required_ray,
    session_of,
    was_refused,
    why_failed,
    why_lost,
)
from aioqueue.inputs.prepare.thread_common import (
    ThreadDelivery,
    ThreadInbox,
    ThreadSource,
    WorkerThreads,
)
from aioqueue.inputs.prepare.worker_timing import WorkerGauge
from aioqueue.locks import guarded
from aioqueue.processes.remote_failures import MOST_IN_VAIN, failure_of_message
from aioqueue.telemetry.explanation import ExplainedWorker, WorkerState

__all__ = ("RayExecutor",)

_CHUNK_SECONDS: Final = 0.05
"""How much work a chunk aims to be: a call costs about a millisecond."""

_CHUNK_BYTES: Final = 2**20
"""How large the examples of a chunk of many items may be: as long as one of them is in use, all of
them stay in the object store."""

_FEW: Final = 4
"""How many items may be larger than that together: as few keep little in the object store that is
not in use, and what an object costs there beside its bytes is shared."""

_FEW_BYTES: Final = 64 * 2**20
"""How large the examples of a few items may be."""

_LONG: Final = 0.2
"""Seconds that an item may take for others to be sent ahead of its end."""

_SAYS: Final = 0.5
"""Seconds that an actor which is going to be ended has to say where it is."""

_CONNECTION_SECONDS: Final = 5.0
"""How long nothing has to come until it is looked whether there still is a connection."""

_PATIENCE: Final = 60.0
"""Seconds after which it is said that the cluster has no place for an actor."""


class _Chunk:
    """Items that an actor was sent together."""

    __slots__ = ("pendings", "reply")

    def __init__(self, pendings: list[Pending], reply: Future[ActorReport]) -> None:
        self.pendings = pendings
        self.reply = reply


class _Worker:
    """One actor, as its thread sees it.

    Args:
        handle: Ray's.
        gauge: of the worker that it is.
        connected: gives Ray, as long as the actor can be asked; else ``None``.
    """

    def __init__(self, handle: Any, gauge: WorkerGauge, connected: Callable[[], Any]) -> None:
        self.handle = handle
        self._connected = connected
        self.gauge = gauge
        gauge.tell_item = self._item
        self.place = "which has not begun"
        self.was_of_use = False
        self.chunks: deque[_Chunk] = deque()  # sent and not answered, in the order of sending
        self.suspects: deque[Pending] = deque()  # to be sent when there are no others

    @property
    def items(self) -> int:
        """How many items it has to prepare."""
        return sum(len(chunk.pendings) for chunk in self.chunks)

    def _item(self) -> Item | None:
        """The first of what it is at, if there is any; for any thread."""
        try:
            return self.chunks[0].pendings[0].item
        except IndexError:
            return None

    def doing(self, seconds: float) -> Doing | None:
        """What it does now, for any thread; ``None`` if it does nothing, or does not say so in so
        many seconds."""
        if self._connected() is None:
            return None
        try:
            found: Doing | None = self.handle.doing.remote().future().result(seconds)
        except Exception:  # it is lost, or busy in a call that holds the GIL
            return None
        return found

    def explained(self, seconds: float) -> ExplainedWorker:
        """What it does now; for any thread.

        Args:
            seconds: how long to wait for it to say so.
        """
        name = f"Ray actor ({self.place})"
        doing = self.doing(seconds)
        if doing is None:
            state: WorkerState = "does not answer" if self.chunks else "running"
            return ExplainedWorker(name, state)
        chunks = list(self.chunks)
        all_of_them = (pending for chunk in chunks for pending in chunk.pendings)
        pending = next((one for one in all_of_them if one.item.number == doing.number), None)
        item = None
        if pending is not None:
            item = explained_item(pending.item, pending.failures, doing.seconds)
        return ExplainedWorker(name, "running", item, stack=doing.stack)

    def end(self) -> None:
        """End it, whatever it is doing."""
        ray = self._connected()
        if ray is not None:  # else it has ended with the connection
            ray.kill(self.handle)


class _Lost(Exception):  # noqa: N818  # it is no failure: what was lost is prepared again
    """An actor has ended, or cannot be spoken to any more."""


class _Late(Exception):  # noqa: N818  # it becomes the failure of an item
    """An actor takes too long for an item."""


class RayExecutor:
    """Has the function called by actors, each of which has a thread here that feeds it.

    Args:
        job: what is to be done.
        options: what each actor is to have: see `prepare`.

    Raises:
        ImportError: Ray is not installed.
        InvalidArgumentError: the function cannot be pickled, or there is no such option.
    """

    def __init__(self, job: Job, options: Mapping[str, Any] | None = None) -> None:
        self._job = job
        self._lock = job.lock  # guards all below
        self._options = checked_options(options)
        self._ray = required_ray()
        self._payload = _pickled(job.call, self._ray)
        self._shipped: Any = None  # the same in the object store
        self._session: tuple[str, str] | None = None  # which connection that is
        self._source = ThreadSource(job, waits_till_low=True)
        self._delivery = ThreadDelivery(job)
        self._inbox = ThreadInbox(job, self._source, self._delivery)
        self._threads = WorkerThreads(job, self._source)
        self._pace = SendPace(_CHUNK_SECONDS, _LONG)
        self._sleepers: set[threading.Condition] = set()  # where threads wait for a reply
        self._none_can_work = False

    def enqueue_ops(self) -> list[EnqueueOp]:
        return [
            *self._threads.enqueue_ops(self._work),
            *self._source.enqueue_ops(),
            self.take_items,
        ]

    def take_items(self) -> None:
        """The whole life of the thread that takes items from the source."""
        self._threads.helper(self._inbox.take_items)

    def stop(self) -> None:
        self._source.stop()
        self._threads.stop()
        self._inbox.stop()
        self._wake()

    @guarded
    def _wake(self) -> None:
        self._wake_all()

    def _wake_all(self) -> None:
        for sleeper in self._sleepers:
            sleeper.notify()

    @guarded
    def _wake_one(self, sleeper: threading.Condition, _: object) -> None:
        sleeper.notify()

    def resized(self) -> None:
        self._source.resized()
        self._inbox.resized()

    def room_came(self) -> None:
        self._source.room_came()
        self._inbox.room_came()
        if self._job.source_ended:
            self._wake_all()

    def end(self) -> BaseException | None:
        self._shipped = None  # and so freed
        return self._source.close()

    def _work(self, gauge: WorkerGauge) -> None:
        """The work of the thread of one worker, until there is none."""
        in_vain = 0  # actors in a row
        gauge.is_starting()
        while True:
            worker = gauge.hand.process = _Worker(self._new_actor(), gauge, self._connected)
            try:
                why = self._work_with(worker)
            finally:
                gauge.hand.process = gauge.tell_item = None
                worker.end()
            gauge.deaths += 1
            in_vain = 0 if worker.was_of_use else in_vain + 1
            if in_vain == MOST_IN_VAIN:
                raise self._once(
                    WorkerDiedError(
                        f"{in_vain} Ray actors in a row have ended before they had prepared"
                        f" anything; the last one: {why}"
                    )
                )

    def _new_actor(self) -> Any:
        if self._connected() is None:
            # The last actor may have been seen to end before the connection had.
            raise self._once(not_connected() if self._shipped is None else _cut_off())
        with self._lock:
            if self._shipped is None:
                self._session = session_of(self._ray)
                self._shipped = self._ray.put(self._payload)
            payload = self._shipped
        return remote_class().options(**self._options).remote(payload)

    def _connected(self) -> Any:
        """Ray, as long as the connection lasts by which the actors are asked; else ``None``. After
        `ray.init` it is another one, of which they know nothing."""
        ray = connected()
        return ray if ray and self._session in (None, session_of(ray)) else None

    def _work_with(self, worker: _Worker) -> str:
        """Have an actor prepare until nothing is left to do, or it is lost.

        Returns:
            Why it was lost.
        """
        try:
            worker.place = self._until_it_is_there(worker)
            worker.gauge.is_there()
            worker.gauge.name = f"Ray actor ({worker.place})"
            while True:
                self._feed_worker(worker)
                self._accept(worker)
        except _Lost as loss:
            self._recover(worker, loss)
            return why_lost(loss.__cause__)
        except _Late:
            self._cut_short(worker)
            return "has taken too long for an item"

    def _cut_short(self, worker: _Worker) -> None:
        """An item takes too long, and has failed by that; its actor is replaced."""
        (pending,) = worker.chunks.popleft().pendings
        doing = worker.doing(_SAYS)
        worker.was_of_use = True
        self._job.progress.timed_out()
        self._failed(pending, self._job.overdue(pending.item, () if doing is None else doing.stack))

    def _until_it_is_there(self, worker: _Worker) -> str:
        """Wait until an actor has begun, which may take as long as the cluster has no place."""
        reply: Future[str] = worker.handle.place.remote().future()
        late = threading.Timer(_PATIENCE, partial(self._say_it_waits, reply))
        late.daemon = True
        late.start()
        try:
            place: str = self._reply(reply)
            return place
        except _Lost as loss:
            if not was_refused(loss.__cause__):
                raise
            error = InvalidArgumentError(
                f"function: got {function_name(self._job.call.function)!r}, which a Ray actor"
                " cannot import; expected one whose modules are installed there, aioqueue among"
                " them (ray.init(runtime_env=...) can do that)"
            )
            error.__cause__ = loss.__cause__
            raise self._once(error) from loss.__cause__
        finally:
            late.cancel()

    def _say_it_waits(self, reply: Future[str]) -> None:
        if not reply.done():
            log.warning(
                "what prepares into '%s' has waited %.0f s for a Ray actor with %s: the cluster has"
                " %s, of which %s are free",
                self._job.into.name,
                _PATIENCE,
                self._options,
                self._ray.cluster_resources(),
                self._ray.available_resources(),
            )

    def _once(self, error: Exception) -> Exception:
        """A failure that every actor is going to have: the first one tells it for all."""
        with self._lock:
            is_first, self._none_can_work = not self._none_can_work, True
        return error if is_first else self._job.nothing_more()

    def _reply(self, reply: Future[Any], timeout: float | None = None) -> Any:
        """Wait for what an actor answers.

        Args:
            reply: that.
            timeout: seconds that it may take.

        Raises:
            _Late: they have passed.
            NothingMore: nobody wants it any more.
            _Lost: the actor, or what it has answered, is lost.
            WorkerDiedError: the connection to the cluster has ended.
            Exception: it has failed to answer.
        """
        job = self._job
        came = threading.Condition(self._lock)  # nobody else is woken by it
        reply.add_done_callback(partial(self._wake_one, came))
        deadline = None if timeout is None else monotonic() + timeout
        with self._lock:
            self._sleepers.add(came)
            try:
                while not (reply.done() or job.is_halted or self._is_all_done()):
                    left = _CONNECTION_SECONDS if deadline is None else deadline - monotonic()
                    if left <= 0:
                        raise _Late
                    # After `ray.shutdown` Ray answers nothing, and tells nobody.
                    if not came.wait(min(left, _CONNECTION_SECONDS)) and self._connected() is None:
                        break
            finally:
                self._sleepers.remove(came)
            is_wanted = not (job.is_halted or self._is_all_done())
        if not reply.done():
            raise _cut_off() if is_wanted else job.nothing_more()
        error = reply.exception()
        if error is not None and is_loss(error):
            raise _Lost from error
        return reply.result()

    def _is_all_done(self) -> bool:
        return self._job.source_ended and self._job.window.items == 0

    def _feed_worker(self, worker: _Worker) -> None:
        """Send items, until the actor has some ahead or there are none; wait for the first."""
        size, ahead = self._chunk()
        while not worker.suspects and worker.items <= ahead:
            pendings = self._take(worker, size)
            if not pendings:
                return
            worker.suspects += [pending for pending in pendings if pending.deaths]
            others = [pending for pending in pendings if not pending.deaths]
            if others:
                self._send(worker, others)
        # What an actor may have died of is sent when it has nothing else, nor has an answer on its
        # way, which could be lost with it: then it is known what it has died of.
        if worker.suspects and not worker.chunks:
            self._send(worker, [worker.suspects.popleft()])

    def _take(self, worker: _Worker, size: int) -> list[Pending]:
        """Take items for a chunk: all that there are, share by share, if it has room for them."""
        pendings = self._first(worker, size)
        while 0 < len(pendings) < size:
            others = self._inbox.take(size - len(pendings), wait=False)
            if not others:
                break
            pendings += others
        return pendings

    def _first(self, worker: _Worker, size: int) -> list[Pending]:
        """Its share of them; waits for the first, if it has nothing else to do."""
        if worker.chunks:
            return self._inbox.take(size, wait=False)
        worker.gauge.asks()
        try:
            return self._inbox.take(size)
        finally:
            worker.gauge.has_items()

    def _chunk(self) -> tuple[int, int]:
        """How many items to send at a time, and how many an actor may have left by then."""
        if self._job.key_limit is not None or self._job.item_timeout is not None:
            return 1, 0  # what only waits would have the place of another, or its time would run
        size, ahead = self._pace.chunk()
        each = self._job.window.mean_bytes
        if each:  # also ahead: else a quick actor has all, and the others nothing
            few = min(_FEW, int(_FEW_BYTES / each))
            size = min(size, max(1, few, int(_CHUNK_BYTES / each)))
        return size, min(ahead, size)

    def _send(self, worker: _Worker, pendings: list[Pending]) -> None:
        sent: list[Sent] = []
        going: list[Pending] = []
        for pending in pendings:
            number, value, epoch, index = pending.item
            try:
                sent.append((number, epoch, index, self._ray.cloudpickle.dumps(value)))
            except Exception as error:
                add_note(error, "while pickling the item")
                self._failed(pending, error)
            else:
                going.append(pending)
        if going:
            if self._connected() is None:
                raise _cut_off()  # Ray would start a cluster for it
            reply = worker.handle.prepare.remote(sent).future()
            worker.chunks.append(_Chunk(going, reply))

    def _accept(self, worker: _Worker) -> None:
        """Wait for the outcome of the oldest chunk, and take it to where it belongs."""
        if not worker.chunks:
            return  # none of its items could be sent
        chunk = worker.chunks[0]
        try:
            report = self._reply(chunk.reply, self._job.item_timeout)
        except (_Lost, _Late, NothingMore):
            raise
        except Exception as error:
            worker.chunks.popleft()
            self._not_returned(chunk, error)
            return
        worker.chunks.popleft()
        worker.was_of_use = True
        calls = len(report.outcomes)
        self._pace.note(report.seconds, calls)
        worker.gauge.reported(report.seconds, report.cpu, report.seconds, calls)
        for pending, outcome in zip(chunk.pendings, report.outcomes, strict=True):
            self._ended(worker, pending, outcome)

    def _ended(self, worker: _Worker, pending: Pending, outcome: Outcome) -> None:
        if outcome.failure is not None:
            where = f"in a Ray actor ({worker.place})"
            loads = self._ray.cloudpickle.loads
            self._failed(pending, failure_of_message(outcome.failure, where, loads))
            return
        self._inbox.give_back(pending)
        self._delivery.deliver(Prepared(pending.item, outcome.examples, failures=pending.failures))

    def _not_returned(self, chunk: _Chunk, error: Exception) -> None:
        """What a function has made cannot be sent: it is not known which of several it was."""
        if len(chunk.pendings) == 1:
            function, into = function_name(self._job.call.function), self._job.into.name
            failure = TypeError(
                f"function: got {function!r} for '{into}', which returned what cannot be pickled,"
                f" and so cannot be sent from a Ray actor ({why_failed(error)})"
            )
            failure.__cause__ = getattr(error, "cause", None)  # not Ray's, which is a traceback
            add_note(failure, "while sending what the function returned")
            self._failed(chunk.pendings[0], failure)
            return
        for pending in chunk.pendings:
            pending.deaths = max(1, pending.deaths)  # so each is sent alone now
        self._inbox.put_back(chunk.pendings)

    def _failed(self, pending: Pending, error: Exception) -> None:
        self._inbox.give_back(pending)
        self._inbox.failed(pending, error)

    def _recover(self, worker: _Worker, loss: _Lost) -> None:
        """An actor is lost: what it had is prepared again.

        Raises:
            NothingMore: nobody wants that.
        """
        if self._job.is_halted:
            raise self._job.nothing_more()
        error = loss.__cause__
        self._job.progress.worker_died()
        to_do = [pending for chunk in worker.chunks for pending in chunk.pendings]
        to_do += worker.suspects
        why = why_lost(error)
        items = counted(len(to_do), "item")
        log.warning("a Ray actor (%s) %s; %s that it had: prepared again", worker.place, why, items)
        given_up: Pending | None = None
        if worker.chunks and is_own_death(error):
            # It had begun with the oldest chunk only: calls are made one after the other.
            suspects = worker.chunks[0].pendings
            for pending in suspects:
                pending.deaths += 1
            if len(suspects) == 1 and suspects[0].deaths >= MOST_DEATHS:
                given_up = suspects[0]
                to_do.remove(given_up)
        worker.chunks.clear()
        worker.suspects.clear()
        self._inbox.put_back(to_do)
        if given_up is not None:
            self._give_up(given_up, why)

    def _give_up(self, culprit: Pending, why: str) -> None:
        """Too many actors have died of an item."""
        self._inbox.give_back(culprit)
        error = WorkerDiedError(
            f"{culprit.deaths} Ray actors have died of one item; the last one {why}"
        )
        self._job.progress.give_up(culprit.item, error, culprit.failures + culprit.deaths)
        skipped = Prepared(culprit.item, failures=culprit.failures, is_skipped=True)
        self._delivery.deliver(skipped)


def _cut_off() -> WorkerDiedError:
    return WorkerDiedError(
        "the connection to the Ray cluster has ended: ray.shutdown() was called while it prepared"
    )


def _pickled(call: ItemCall, ray: Any) -> bytes:
    """The call, as it is put into the object store: once for all actors.

    Raises:
        InvalidArgumentError: its function cannot be pickled.
    """
    try:
        payload: bytes = ray.cloudpickle.dumps(call)
    except Exception as error:
        raise InvalidArgumentError(
            f"function: got {function_name(call.function)!r}, which cannot be pickled and so cannot"
            f" be sent to a Ray actor ({exception_text(error)});"
            f" expected one that closes over nothing that"
            " belongs to this process, as open files and locks do"
        ) from error
    return payload
