"""`RayExecutor`: prepares items on a Ray cluster, with one actor per worker.

The rules are those of `ChunkExecutor`; here is how an actor is started, called and ended. An
actor's result belongs to this program and is in the object store. Its arrays are mapped from there:
a queue of typed components copies each once, into its own memory. A queue of objects gets the
mapped arrays, which are read-only, as always with Ray.

A chunk is one call of the actor, and its reply arrives or is lost as a whole. If an actor, its node
or a reply is lost, the items are prepared again. The repeated result has the same bytes, because an
item's random generator depends only on the seed, the epoch and its index.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from time import monotonic
from typing import Any, ClassVar, Final, NamedTuple, Self

from aioqueue import InvalidArgumentError, ItemTimeoutError, WorkerDiedError
from aioqueue.base.arguments import function_name
from aioqueue.errors import add_note, counted, exception_text
from aioqueue.items.item import Item, Prepared
from aioqueue.processes.failures import failure_of_message
from aioqueue.processes.respawning import MOST_USELESS
from aioqueue.system.locks import synchronized
from aioqueue.telemetry.explain.explanation import ExplainedWorker, WorkerState
from aioqueue.workers.calls import ItemCall
from aioqueue.workers.executors.chunks import (
    Assignments,
    ChunkExecutor,
    Chunking,
    ConnectionLost,
    Loss,
    ResultNotSent,
    WhyNotReplaced,
)
from aioqueue.workers.executors.process_child import Sent
from aioqueue.workers.executors.ray_actor import ActorReport, Doing, Outcome, remote_class
from aioqueue.workers.executors.ray_cluster import (
    checked_options,
    connected,
    is_loss,
    is_own_death,
    log,
    not_connected,
    required_ray,
    session_of,
    was_refused,
    why_failed,
    why_lost,
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

_SLOW: Final = 0.2
"""If items take longer than this many seconds, none are sent ahead."""

_STACK_SECONDS: Final = 0.5
"""Seconds that an actor has to report its stack before it is ended."""

_CONNECTION_SECONDS: Final = 5.0
"""Seconds without an answer after which to check the connection."""

_PATIENCE: Final = 60.0
"""Seconds without a place for an actor after which to log that."""


class _Late(Exception):  # noqa: N818  # it becomes the failure of an item
    """A reply takes too long."""


class _Session:
    """The connection to the cluster that the actors belong to."""

    def __init__(self) -> None:
        self.ray = required_ray()
        self._identity: tuple[str, str] | None = None

    def connected(self) -> Any:
        """Return Ray as long as the actors' connection lasts; otherwise ``None``. After another
        `ray.init` there is a new connection, which does not know these actors."""
        ray = connected()
        return ray if ray and self._identity in (None, session_of(ray)) else None

    def put(self, payload: bytes) -> Any:
        """Put the function into the object store of this connection, which the actors then need."""
        self._identity = session_of(self.ray)
        return self.ray.put(payload)


class _Replies:
    """The waits for replies of actors.

    Args:
        job: the job: its end ends all waits.
        session: the connection: its end ends them, too.
    """

    def __init__(self, job: Job, session: _Session) -> None:
        self._job = job
        self._lock = job.lock
        self._session = session
        self._waiting: set[threading.Condition] = set()

    def wait(self, reply: Future[Any], timeout: float | None = None) -> Any:
        """Wait for an actor's reply.

        Args:
            reply: the reply.
            timeout: seconds to wait; ``None`` for no limit.

        Raises:
            _Late: the time is over.
            NothingMore: the reply is not wanted any more.
            ConnectionLost: the actor or its reply is lost.
            WorkerDiedError: the connection to the cluster has ended.
            Exception: the call has failed.
        """
        job, session = self._job, self._session
        came = threading.Condition(self._lock)  # it wakes only this thread
        # Ray calls back in a thread of its own, at once if the reply is there already. It needs the
        # lock, so it comes before the look below, or it wakes the wait.
        reply.add_done_callback(partial(self._wake_one, came))
        deadline = None if timeout is None else monotonic() + timeout
        with self._lock:
            self._waiting.add(came)
            try:
                while not (reply.done() or self._is_unwanted()):
                    left = _CONNECTION_SECONDS if deadline is None else deadline - monotonic()
                    if left <= 0:
                        raise _Late
                    # After `ray.shutdown`, Ray neither answers nor reports anything.
                    was_woken = came.wait(min(left, _CONNECTION_SECONDS))
                    if not was_woken and session.connected() is None:
                        break
            finally:
                self._waiting.remove(came)
            is_wanted = not self._is_unwanted()
        if not reply.done():
            raise _cut_off() if is_wanted else job.nothing_more()
        error = reply.exception()
        if error is not None and is_loss(error):
            raise ConnectionLost from error
        return reply.result()

    def _is_unwanted(self) -> bool:
        # The source has ended and no item is in flight: an actor that has not begun yet, since the
        # cluster has no place for it, has nothing to do any more.
        return self._job.is_halted or (self._job.source_ended and self._job.window.items == 0)

    @synchronized
    def wake(self) -> None:
        self.wake_locked()

    def wake_locked(self) -> None:
        """Wake all waits, so that they check their conditions again. The caller holds the lock."""
        for came in self._waiting:
            came.notify()

    @synchronized
    def _wake_one(self, came: threading.Condition, _: object) -> None:
        came.notify()


class _Call(NamedTuple):
    """A chunk that was sent to an actor, and its reply."""

    numbers: list[int]
    reply: Future[ActorReport]


class _Actor:
    """One actor as a `Connection`.

    Args:
        handle: Ray's handle.
        gauge: the gauge of its worker.
        job: the job.
        session: the connection to the cluster.
        replies: the waits for replies of all actors.
    """

    def __init__(
        self, handle: Any, gauge: WorkerGauge, job: Job, session: _Session, replies: _Replies
    ) -> None:
        self.handle = handle
        self.gauge = gauge
        gauge.get_item = self._item
        self.place = "which has not begun"
        self.assignments = Assignments()
        self.was_of_use = False
        self._job = job
        self._session = session
        self._replies = replies
        self._cloudpickle = session.ray.cloudpickle
        self._calls: deque[_Call] = deque()  # sent but not answered, in order
        self._overdue: tuple[int, ItemTimeoutError] | None = None
        self._lost_by: BaseException | None = None

    def wait(self, reply: Future[Any], timeout: float | None = None) -> Any:
        try:
            return self._replies.wait(reply, timeout)
        except ConnectionLost as lost:
            self._lost_by = lost.__cause__
            raise

    def pickled(self, value: Any) -> bytes:
        message: bytes = self._cloudpickle.dumps(value)
        return message

    def send(self, chunk: list[Sent]) -> None:
        if self._session.connected() is None:
            raise _cut_off()  # Ray would start a new cluster for the call
        reply = self.handle.prepare.remote(chunk).future()
        self._calls.append(_Call([sent[0] for sent in chunk], reply))

    def receive(self) -> ActorReport:
        """Wait for the reply with the oldest chunk: an actor answers its calls in order."""
        call = self._calls[0]
        try:
            report: ActorReport = self.wait(call.reply, self._job.item_timeout)
        except _Late:
            self._note_overdue(call)
            raise ConnectionLost from None
        except (ConnectionLost, NothingMore, WorkerDiedError):
            raise  # a cut connection says nothing about the result
        except Exception as error:
            self._calls.popleft()
            raise ResultNotSent(call.numbers, self._not_sent(error)) from None
        self._calls.popleft()
        return report

    def _note_overdue(self, call: _Call) -> None:
        (number,) = call.numbers  # with a time limit, one item is sent at a time
        pending = self.assignments.find(number)
        assert pending is not None
        doing = self.doing(_STACK_SECONDS)
        stack = () if doing is None else doing.stack
        self._overdue = number, self._job.timeout_error(pending.item, stack)

    def _not_sent(self, error: Exception) -> TypeError:
        function, into = function_name(self._job.call.function), self._job.into.name
        failure = TypeError(
            f"function: got {function!r} for '{into}', whose result cannot be pickled,"
            f" and so cannot be sent from a Ray actor ({why_failed(error)})"
        )
        failure.__cause__ = getattr(error, "cause", None)  # not Ray's error, a long traceback
        add_note(failure, "while sending what the function returned")
        return failure

    def unpacked(self, pending: Pending, outcome: Outcome) -> Prepared | Exception:
        if outcome.failure is not None:
            where = f"in a Ray actor ({self.place})"
            return failure_of_message(outcome.failure, where, self._cloudpickle.loads)
        return Prepared(pending.item, outcome.examples, failures=pending.failures)

    def loss(self) -> Loss:
        if self._overdue is not None:
            return Loss("has taken too long for an item", overdue=self._overdue)
        error = self._lost_by
        # Calls run one after the other, so it had begun the oldest chunk only. The loss of a node,
        # or of a reply, says nothing about the items.
        is_culprit_there = bool(self._calls) and is_own_death(error)
        suspects = self._calls[0].numbers if is_culprit_there else ()
        return Loss(why_lost(error), suspects=suspects)

    def loss_message(self, loss: Loss, items: int) -> str:
        will_be = f"{counted(items, 'item')} will be prepared again"
        return f"a Ray actor ({self.place}) {loss.how}; {will_be}"

    def _item(self) -> Item | None:
        """Return the first of its items, if any. Any thread may call it."""
        try:
            pending = self.assignments.find(self._calls[0].numbers[0])
        except IndexError:
            return None
        return None if pending is None else pending.item

    def doing(self, seconds: float) -> Doing | None:
        """Return what it does now; ``None`` if it is idle, or does not answer in time. Any thread
        may call it."""
        if self._session.connected() is None:
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
            state: WorkerState = "does not answer" if self._calls else "running"
            return ExplainedWorker(name, state)
        pending = self.assignments.find(doing.number)
        item = None
        if pending is not None:
            item = explained_item(pending.item, pending.failures, doing.seconds)
        return ExplainedWorker(name, "running", item, stack=doing.stack)


class RayExecutor(ChunkExecutor[_Actor]):
    """Calls the function in actors. Each actor has a thread here that feeds it.

    Args:
        job: the job.
        options: the options of each actor: see `prepare`.

    Raises:
        ImportError: Ray is not installed.
        InvalidArgumentError: the function cannot be pickled, or there is no such option.
    """

    knows_culprits = False

    where = "ray"
    worker_name = "actor"
    worker_plural = "actors"
    per_worker = 128
    limit_bytes: ClassVar[int | None] = 256 * 2**20
    most_workers: ClassVar[int | None] = 64
    is_async = False
    is_timed: ClassVar[bool | None] = None
    takes_ray = True

    def __init__(self, job: Job, options: Mapping[str, Any] | None = None) -> None:
        chunking = Chunking(
            _CHUNK_SECONDS,
            _SLOW,
            is_filled=True,
            has_late_clock=True,
            most_bytes=_CHUNK_BYTES,
            few=_FEW,
            few_bytes=_FEW_BYTES,
        )
        self._options = checked_options(options)
        self._session = _Session()
        self._payload = _pickled(job.call, self._session.ray)
        super().__init__(job, chunking, "Ray actors")
        self._shipped: Any = None  # the payload in the object store
        self._replies = _Replies(job, self._session)

    @classmethod
    def build(cls, job: Job, ray: Mapping[str, Any] | None) -> Self:
        return cls(job, ray)

    def connect(self, gauge: WorkerGauge) -> _Actor:
        if self._session.connected() is None:
            # The end of the last actor may be visible before the end of the connection.
            raise self.report_once(not_connected() if self._shipped is None else _cut_off())
        with self._lock:
            if self._shipped is None:
                self._shipped = self._session.put(self._payload)
            payload = self._shipped
        handle = remote_class().options(**self._options).remote(payload)
        return _Actor(handle, gauge, self._job, self._session, self._replies)

    def wait_until_ready(self, actor: _Actor) -> None:
        """Wait until an actor has begun, for as long as the cluster has no place for it."""
        reply: Future[str] = actor.handle.place.remote().future()
        late = threading.Timer(_PATIENCE, partial(self._log_waiting, reply))
        late.daemon = True
        late.start()
        try:
            actor.place = actor.wait(reply)
        except ConnectionLost as loss:
            if not was_refused(loss.__cause__):
                raise
            error = InvalidArgumentError(
                f"function: got {function_name(self._job.call.function)!r}, which a Ray actor"
                " cannot import; expected one whose modules are installed there, and aioqueue too"
                " (you can install them with ray.init(runtime_env=...))"
            )
            error.__cause__ = loss.__cause__
            raise self.report_once(error) from loss.__cause__
        finally:
            late.cancel()
        actor.gauge.process_ready()
        actor.gauge.name = f"Ray actor ({actor.place})"

    def _log_waiting(self, reply: Future[str]) -> None:
        if not reply.done():
            log.warning(
                "the prepare into '%s' has waited %.0f s for a Ray actor with %s: the cluster has"
                " %s in all, and %s free",
                self._job.into.name,
                _PATIENCE,
                self._options,
                self._session.ray.cluster_resources(),
                self._session.ray.available_resources(),
            )

    def disconnect(self, actor: _Actor, *, at_once: bool) -> None:
        """End an actor, whatever it is doing."""
        ray = self._session.connected()
        if ray is not None:  # otherwise it has ended with the connection
            ray.kill(actor.handle)

    def replacements(self) -> WhyNotReplaced[_Actor]:
        useless = 0  # actors in a row that have prepared nothing

        def why_not_replaced(actor: _Actor, loss: Loss) -> WorkerDiedError | None:
            nonlocal useless
            useless = 0 if actor.was_of_use else useless + 1
            if useless < MOST_USELESS:
                return None
            return WorkerDiedError(
                f"{useless} Ray actors in a row have ended before they had prepared"
                f" anything; the last one: {loss.how}"
            )

        return why_not_replaced

    def stop(self) -> None:
        super().stop()
        self._replies.wake()

    def notify_room(self) -> None:
        super().notify_room()
        if self._job.source_ended:
            self._replies.wake_locked()

    def end(self) -> BaseException | None:
        self._shipped = None  # which frees it
        return super().end()


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
