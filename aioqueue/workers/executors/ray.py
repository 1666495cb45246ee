"""`RayExecutor`: prepares items on a Ray cluster, with one actor per worker.

Each actor has a thread here that sends it items in chunks, one chunk ahead, and enqueues the
results. One more thread takes items from the source. An actor's result belongs to this program and
is in the object store. Its arrays are mapped from there: a queue of typed components copies each
once, into its own memory. A queue of objects gets the mapped arrays, which are read-only, as always
with Ray.

This program tracks which items an actor has, until the whole outcome of a chunk has arrived. So if
an actor, its node or its result is lost, exactly its remaining items are prepared again, and every
item is delivered once. The repeated result has the same bytes, because an item's random generator
depends only on the seed, the epoch and its index.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from time import monotonic
from typing import Any, Final, Self

from aioqueue import InvalidArgumentError, WorkerDiedError
from aioqueue.base.arguments import EnqueueOp, function_name
from aioqueue.errors import add_note, counted, exception_text
from aioqueue.items.item import Item, Prepared
from aioqueue.processes.messages import MOST_IN_VAIN, failure_of_message
from aioqueue.system.locks import guarded
from aioqueue.telemetry.explanation import ExplainedWorker, WorkerState
from aioqueue.workers.calls import ItemCall
from aioqueue.workers.executor import Executor
from aioqueue.workers.executors.ray_cluster import (
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
from aioqueue.workers.executors.worker_process import MOST_DEATHS, SendPace
from aioqueue.workers.executors.worker_threads import (
    ThreadDelivery,
    ThreadInbox,
    ThreadSource,
    WorkerThreads,
)
from aioqueue.workers.flow_control import Pending
from aioqueue.workers.job import Job, NothingMore
from aioqueue.workers.stage_metrics import explained_item
from aioqueue.workers.timing import WorkerGauge

_CHUNK_SECONDS: Final = 0.05
"""The seconds of work that a chunk should take; a call costs about a millisecond."""

_CHUNK_BYTES: Final = 2**20
"""The largest total of examples in a chunk of many items: all of them stay in the object store as
long as one of them is in use."""

_FEW: Final = 4
"""The number of items whose total may be larger: a few items waste little of the object store, and
share the overhead of an object."""

_FEW_BYTES: Final = 64 * 2**20
"""The largest total of the examples of a few items."""

_LONG: Final = 0.2
"""If items take longer than this many seconds, none are sent ahead."""

_SAYS: Final = 0.5
"""Seconds that an actor has to report its stack before it is ended."""

_CONNECTION_SECONDS: Final = 5.0
"""Seconds without an answer after which to check the connection."""

_PATIENCE: Final = 60.0
"""Seconds without a place for an actor after which to log that."""


class _Chunk:
    """Items that were sent to an actor together."""

    __slots__ = ("pendings", "reply")

    def __init__(self, pendings: list[Pending], reply: Future[ActorReport]) -> None:
        self.pendings = pendings
        self.reply = reply


class _Worker:
    """One actor, as its thread sees it.

    Args:
        handle: Ray's handle.
        gauge: the gauge of its worker.
        connected: returns Ray as long as the actor can be called; otherwise ``None``.
    """

    def __init__(self, handle: Any, gauge: WorkerGauge, connected: Callable[[], Any]) -> None:
        self.handle = handle
        self._connected = connected
        self.gauge = gauge
        gauge.get_item = self._item
        self.place = "which has not begun"
        self.was_of_use = False
        self.chunks: deque[_Chunk] = deque()  # sent but not answered, in order
        self.suspects: deque[Pending] = deque()  # to be sent when it has no other items

    @property
    def items(self) -> int:
        """The number of items that it has to prepare."""
        return sum(len(chunk.pendings) for chunk in self.chunks)

    def _item(self) -> Item | None:
        """Return the first of its items, if any. Any thread may call it."""
        try:
            return self.chunks[0].pendings[0].item
        except IndexError:
            return None

    def doing(self, seconds: float) -> Doing | None:
        """Return what it does now; ``None`` if it is idle, or does not answer in time. Any thread
        may call it."""
        if self._connected() is None:
            return None
        try:
            found: Doing | None = self.handle.doing.remote().future().result(seconds)
        except Exception:  # it is lost, or inside a call that holds the GIL
            return None
        return found

    def explained(self, seconds: float) -> ExplainedWorker:
        """Return what it does now. Any thread may call it.

        Args:
            seconds: how long to wait for its answer.
        """
        doing = self.doing(seconds)
        name = f"Ray actor ({self.place})"  # not before it has answered: it may begin meanwhile
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
        """End the actor, whatever it is doing."""
        ray = self._connected()
        if ray is not None:  # otherwise it has ended with the connection
            ray.kill(self.handle)


class _Lost(Exception):  # noqa: N818  # not a failure: the lost items are prepared again
    """An actor has ended, or cannot be reached any more."""


class _Late(Exception):  # noqa: N818  # it becomes the failure of an item
    """An actor takes too long for an item."""


class RayExecutor(Executor):
    """Calls the function in actors. Each actor has a thread here that feeds it.

    Args:
        job: the job.
        options: the options of each actor: see `prepare`.

    Raises:
        ImportError: Ray is not installed.
        InvalidArgumentError: the function cannot be pickled, or there is no such option.
    """

    where = "ray"
    worker_name = "actor"
    worker_plural = "actors"
    per_worker = 128
    limit_bytes = 256 * 2**20
    most_workers = 64
    is_async = False
    is_timed = None
    takes_ray = True

    def __init__(self, job: Job, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(job)
        self._lock = job.lock  # guards all below
        self._options = checked_options(options)
        self._ray = required_ray()
        self._payload = _pickled(job.call, self._ray)
        self._shipped: Any = None  # the payload in the object store
        self._session: tuple[str, str] | None = None  # the connection that has it
        self._source = ThreadSource(job, waits_till_low=True)
        self._delivery = ThreadDelivery(job)
        self._inbox = ThreadInbox(job, self._source, self._delivery)
        self._threads = WorkerThreads(job, self._source)
        self._pace = SendPace(_CHUNK_SECONDS, _LONG)
        self._sleepers: set[threading.Condition] = set()  # for threads that wait for a reply
        self._none_can_work = False

    @classmethod
    def build(cls, job: Job, ray: Mapping[str, Any] | None) -> Self:
        return cls(job, ray)

    def enqueue_ops(self) -> list[EnqueueOp]:
        return [
            *self._threads.enqueue_ops(self._work),
            *self._source.enqueue_ops(),
            self.take_items,
        ]

    def take_items(self) -> None:
        """Run the thread that takes items from the source."""
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

    def notify_resize(self) -> None:
        self._source.notify_resize()
        self._inbox.notify_resize()

    def notify_room(self) -> None:
        self._source.notify_room()
        self._inbox.notify_room()
        if self._job.source_ended:
            self._wake_all()

    def end(self) -> BaseException | None:
        self._shipped = None  # which frees it
        return self._source.close()

    def _work(self, gauge: WorkerGauge) -> None:
        """Do the work of one worker's thread, until no work is left."""
        in_vain = 0  # consecutive actors that prepared nothing
        gauge.process_starting()
        while True:
            worker = gauge.in_progress.process = _Worker(self._new_actor(), gauge, self._connected)
            try:
                why = self._work_with(worker)
            finally:
                gauge.in_progress.process = gauge.get_item = None
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
            # The end of the last actor may be visible before the end of the connection.
            raise self._once(not_connected() if self._shipped is None else _cut_off())
        with self._lock:
            if self._shipped is None:
                self._session = session_of(self._ray)
                self._shipped = self._ray.put(self._payload)
            payload = self._shipped
        return remote_class().options(**self._options).remote(payload)

    def _connected(self) -> Any:
        """Return Ray as long as the actors' connection lasts; otherwise ``None``. After another
        `ray.init` there is a new connection, which does not know these actors."""
        ray = connected()
        return ray if ray and self._session in (None, session_of(ray)) else None

    def _work_with(self, worker: _Worker) -> str:
        """Have an actor prepare until nothing is left to do, or it is lost.

        Returns:
            Why it was lost.
        """
        try:
            worker.place = self._until_it_is_there(worker)
            worker.gauge.process_ready()
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
        """Fail an item that takes too long, and replace its actor."""
        (pending,) = worker.chunks.popleft().pendings
        doing = worker.doing(_SAYS)
        worker.was_of_use = True
        self._job.progress.timed_out()
        self._failed(
            pending, self._job.timeout_error(pending.item, () if doing is None else doing.stack)
        )

    def _until_it_is_there(self, worker: _Worker) -> str:
        """Wait until an actor has begun, for as long as the cluster has no place for it."""
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
                " cannot import; expected one whose modules are installed there, and aioqueue too"
                " (you can install them with ray.init(runtime_env=...))"
            )
            error.__cause__ = loss.__cause__
            raise self._once(error) from loss.__cause__
        finally:
            late.cancel()

    def _say_it_waits(self, reply: Future[str]) -> None:
        if not reply.done():
            log.warning(
                "the prepare into '%s' has waited %.0f s for a Ray actor with %s: the cluster has"
                " %s in all, and %s free",
                self._job.into.name,
                _PATIENCE,
                self._options,
                self._ray.cluster_resources(),
                self._ray.available_resources(),
            )

    def _once(self, error: Exception) -> Exception:
        """Return a failure that every actor will have, so that only the first one reports it."""
        with self._lock:
            is_first, self._none_can_work = not self._none_can_work, True
        return error if is_first else self._job.nothing_more()

    def _reply(self, reply: Future[Any], timeout: float | None = None) -> Any:
        """Wait for an actor's reply.

        Args:
            reply: the reply.
            timeout: seconds to wait; ``None`` for no limit.

        Raises:
            _Late: the time is over.
            NothingMore: the reply is not wanted any more.
            _Lost: the actor or its reply is lost.
            WorkerDiedError: the connection to the cluster has ended.
            Exception: the call has failed.
        """
        job = self._job
        came = threading.Condition(self._lock)  # it wakes only this thread
        reply.add_done_callback(partial(self._wake_one, came))
        deadline = None if timeout is None else monotonic() + timeout
        with self._lock:
            self._sleepers.add(came)
            try:
                while not (reply.done() or job.is_halted or self._is_all_done()):
                    left = _CONNECTION_SECONDS if deadline is None else deadline - monotonic()
                    if left <= 0:
                        raise _Late
                    # After `ray.shutdown`, Ray neither answers nor reports anything.
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
        """Send items until the actor has some ahead or there are none; wait for the first."""
        size, ahead = self._chunk()
        while not worker.suspects and worker.items <= ahead:
            pendings = self._take(worker, size)
            if not pendings:
                return
            worker.suspects += [pending for pending in pendings if pending.deaths]
            others = [pending for pending in pendings if not pending.deaths]
            if others:
                self._send(worker, others)
        # Send a suspect item only when the actor has nothing else, and no reply in flight that
        # could be lost with it: then it is certain which item has killed the actor.
        if worker.suspects and not worker.chunks:
            self._send(worker, [worker.suspects.popleft()])

    def _take(self, worker: _Worker, size: int) -> list[Pending]:
        """Take items for a chunk: several shares, if there are enough and the actor has room."""
        pendings = self._inbox.take_for(worker.gauge, size, is_busy=bool(worker.chunks))
        while 0 < len(pendings) < size:
            others = self._inbox.take(size - len(pendings), wait=False)
            if not others:
                break
            pendings += others
        return pendings

    def _chunk(self) -> tuple[int, int]:
        """Return how many items to send at a time, and the backlog at which to send more."""
        if self._job.key_limit is not None or self._job.item_timeout is not None:
            return 1, 0  # a waiting item would take another one's place, or use up its time
        size, ahead = self._pace.chunk()
        each = self._job.window.mean_bytes
        if each:  # also limits what is sent ahead: otherwise one fast actor gets every item
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
                raise _cut_off()  # Ray would start a new cluster for the call
            reply = worker.handle.prepare.remote(sent).future()
            worker.chunks.append(_Chunk(going, reply))

    def _accept(self, worker: _Worker) -> None:
        """Wait for the outcome of the oldest chunk, and deliver it."""
        if not worker.chunks:
            return  # none of its items could be pickled
        chunk = worker.chunks[0]
        try:
            report = self._reply(chunk.reply, self._job.item_timeout)
        except (_Lost, _Late, NothingMore, WorkerDiedError):
            raise  # a cut connection says nothing about the result
        except Exception as error:
            worker.chunks.popleft()
            self._not_returned(chunk, error)
            return
        worker.chunks.popleft()
        worker.was_of_use = True
        calls = len(report.outcomes)
        self._pace.note(report.seconds, calls)
        worker.gauge.calls_reported(report.seconds, report.cpu, report.seconds, calls)
        for pending, outcome in zip(chunk.pendings, report.outcomes, strict=True):
            self._ended(worker, pending, outcome)

    def _ended(self, worker: _Worker, pending: Pending, outcome: Outcome) -> None:
        if outcome.failure is not None:
            where = f"in a Ray actor ({worker.place})"
            loads = self._ray.cloudpickle.loads
            self._failed(pending, failure_of_message(outcome.failure, where, loads))
            return
        self._inbox.release_place(pending)
        self._delivery.deliver(Prepared(pending.item, outcome.examples, failures=pending.failures))

    def _not_returned(self, chunk: _Chunk, error: Exception) -> None:
        """Handle a result that cannot be sent. Of several items, it is unknown which has it."""
        if len(chunk.pendings) == 1:
            function, into = function_name(self._job.call.function), self._job.into.name
            failure = TypeError(
                f"function: got {function!r} for '{into}', whose result cannot be pickled,"
                f" and so cannot be sent from a Ray actor ({why_failed(error)})"
            )
            failure.__cause__ = getattr(error, "cause", None)  # not Ray's error, a long traceback
            add_note(failure, "while sending what the function returned")
            self._failed(chunk.pendings[0], failure)
            return
        for pending in chunk.pendings:
            pending.deaths = max(1, pending.deaths)  # so each is sent alone from now on
        self._inbox.put_back(chunk.pendings)

    def _failed(self, pending: Pending, error: Exception) -> None:
        self._inbox.release_place(pending)
        self._inbox.failed(pending, error)

    def _recover(self, worker: _Worker, loss: _Lost) -> None:
        """Prepare the items of a lost actor again.

        Raises:
            NothingMore: no more is wanted.
        """
        if self._job.is_halted:
            raise self._job.nothing_more()
        error = loss.__cause__
        self._job.progress.worker_died()
        to_do = [pending for chunk in worker.chunks for pending in chunk.pendings]
        to_do += worker.suspects
        why = why_lost(error)
        items = counted(len(to_do), "item")
        log.warning("a Ray actor (%s) %s; %s will be prepared again", worker.place, why, items)
        given_up: Pending | None = None
        if worker.chunks and is_own_death(error):
            # It had begun the oldest chunk only: calls run one after the other.
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
        """Fail an item that too many actors have died of."""
        self._inbox.release_place(culprit)
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
    """Pickle the call for the object store: once for all actors.

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
            " belongs to this process, such as open files and locks"
        ) from error
    return payload
