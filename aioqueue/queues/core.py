"""What the two faces of a queue share: its parts, its description, and all that never waits.

A queue *is* its core: a machine over a storage, and the spec of its elements. A face is a thin
object that adds one world's way of waiting; both faces of a queue hold the same core, so a thread
fills what a coroutine empties.
"""

from __future__ import annotations

import itertools
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import GenericAlias
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar, overload

import numpy as np

from aioqueue.arguments import checked_count, checked_flag, checked_seconds, is_int
from aioqueue.attempts import (
    ENQUEUE,
    NEITHER,
    Attempt,
    AttemptState,
    Put,
    PutMany,
    QueueState,
    Side,
    Statistics,
    Take,
    UntilClosed,
    Waker,
)
from aioqueue.copying import BatchCopier
from aioqueue.docstrings import World, describe
from aioqueue.elements import Columns, Component, ElementT, Row, Spec, Typed
from aioqueue.errors import InvalidArgumentError, QueueEmpty, QueueFull, counted
from aioqueue.gil_lock import machine_lock
from aioqueue.locks import holding
from aioqueue.machine import NOTHING, Machine
from aioqueue.migration_hints import no_attribute, not_searched, refuse_overrides
from aioqueue.queues.forked_queues import refuse_in_forks
from aioqueue.queues.methods import QueueMethods
from aioqueue.storage import Storage, WeighedStorage
from aioqueue.waiting import (
    AsyncWaker,
    CallbackWaker,
    Owner,
    apply_deferred,
    deliver,
    enter,
    in_task,
    withdraw_all,
)

__all__ = (
    "QueueCore",
    "QueueFace",
    "checked_bytes",
    "checked_capacity",
    "checked_count",
    "checked_seconds",
    "note_rows",
)

T = TypeVar("T")

_numbers = itertools.count(1)


class QueueCore:
    """The queue itself, whichever face it is seen by.

    Args:
        kind: the class of the queue, by name.
        spec: its elements.
        storage: where they rest.
        capacity: how many fit; ``None`` for no bound.
        max_bytes: how many bytes of them fit; ``None`` for no bound.
        keep: how many a dequeue must leave inside until the queue is closed.
        name: for messages and worker names; made up if ``None``.
    """

    def __init__(
        self,
        kind: str,
        spec: Spec,
        storage: Storage,
        *,
        capacity: int | None,
        max_bytes: int | None = None,
        keep: int = 0,
        name: str | None = None,
    ) -> None:
        if name is not None and not isinstance(name, str):
            raise InvalidArgumentError(f"name: got {name!r}; expected a string or None")
        self.kind = kind
        self.spec = spec
        self.storage = storage
        self.to_row = _row_maker(spec, storage)
        self.keep = keep
        self.name = name or f"{kind}-{next(_numbers)}"
        self.is_named = bool(name)
        lock = machine_lock()
        self.copier = BatchCopier(storage, lock)
        self.machine = Machine(
            storage,
            lock,
            capacity=capacity,
            max_bytes=max_bytes,
            keep=keep,
            kind=kind,
            name=self.name,
            enter=enter,
        )
        self.lock = threading.RLock()  # guards faces and wakers; a signal handler may close
        # World -> its face. Faces keep the core, so it must not keep them: a queue that is dropped
        # is to be gone at once, with all that is in it, and not when the collector comes.
        self.faces: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
        self.wakers: dict[AsyncWaker, None] = {}  # of the event loops whose tasks have waited here
        # How many tasks of an event loop are workers that fill it; see `stands_still_for`.
        self.fillers: dict[AsyncWaker, int] = {}
        # Of the threads that wait now, and of those who are called back instead. Only ever set,
        # popped and listed, each of which is atomic.
        self.sleepers: dict[Waker, None] = {}
        # Who has waited here last on each side, for whoever asks why nothing moves any more.
        self.last_waiter: dict[Side, Owner] = {}
        # What monitors know of it: each part goes with the queue, and then says its last numbers.
        self.parts: list[Any] = []
        self.last_end: str | None = None  # how the last run of a runner that filled it has ended
        refuse_in_forks(self)

    @property
    def capacity(self) -> int | None:
        """How many elements fit; ``None`` for no bound."""
        return self.machine.capacity

    def remember(self, waker: AsyncWaker) -> None:
        """Note an event loop whose tasks wait here."""
        holding(self.lock, self.wakers.__setitem__, waker, None)

    def note_filler(self, waker: AsyncWaker, change: int) -> None:
        """Note that a worker begins (+1) or ends (-1) which fills the queue as a task of a loop.

        In the loop's own thread, which alone counts its own.
        """
        count = self.fillers.get(waker, 0) + change
        if count > 0:
            self.fillers[waker] = count
            if waker not in self.wakers:
                self.remember(waker)
        else:
            self.fillers.pop(waker, None)

    def stands_still_for(self, attempt: Attempt) -> bool:
        """Whether an attempt of this thread waits for tasks that cannot run while the thread waits.

        They can only be there in the cell of a notebook, which blocks the loop that it runs in:
        tasks of that loop that wait here too (what they were given nobody else can have, and who
        stands behind them is not served), or workers that fill what the attempt takes out.
        """
        for waker in holding(self.lock, list, self.wakers):
            if not waker.is_current():
                continue
            if attempt.side is not ENQUEUE and self.fillers.get(waker):
                return True
            others = self.machine.attempts_in(waker)
            if any(other.side is not NEITHER for other in others):
                return True
        return False

    def falls_asleep(self, attempt: Attempt, runner: Any, began: float) -> None:
        """Note whose attempt has to wait, and since when.

        Args:
            attempt: what its owner is about to wait for.
            runner: that owner, a thread or task.
            began: on the clock of `time.perf_counter`.
        """
        owner = self.last_waiter.get(attempt.side)
        if owner is None or owner.thing is not runner:  # else the same one waits here once more
            owner = self.last_waiter[attempt.side] = Owner(runner)
        attempt.owner, attempt.began = owner, began

    def wake_all(self) -> None:
        """Wake everybody: those who need not wake go back to sleep.

        Ctrl-C may have come between a move of the machine and the wakes that it had named.
        """
        wakers = holding(self.lock, list, self.wakers)
        deliver([*wakers, *list(self.sleepers)], from_anywhere=True)

    def drop_dead_loops(self) -> None:
        """Withdraw the attempts of tasks whose event loop was closed: they will never run again.

        A caller that is about to wait does this first, so that nobody waits for what they have.
        """
        for waker in holding(self.lock, self._forget_dead_wakers):
            withdraw_all(self.machine.attempts_in(waker))

    def _forget_dead_wakers(self) -> list[AsyncWaker]:
        dead = [waker for waker in self.wakers if waker.is_dead()]
        for waker in dead:
            self.wakers.pop(waker, None)  # a handler may have done so in the middle of this
            self.fillers.pop(waker, None)
        return dead

    def call_when_closed(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call back when nothing more comes in, as `wait_closed` would return; now, if that is so.

        Args:
            callback: called in the thread that closes the queue, with no lock of ours held. It may
                be called more than once, and may neither wait nor raise. The queue keeps it.

        Returns:
            What has it forgotten, which may be called more than once.
        """
        attempt = UntilClosed()
        waker = CallbackWaker(attempt, callback)
        self.sleepers[waker] = None
        deliver(self.machine.begin(attempt, waker))
        waker.wake()  # it may have been closed before
        return partial(self._forget_call, attempt, waker)

    def _forget_call(self, attempt: UntilClosed, waker: CallbackWaker) -> None:
        self.sleepers.pop(waker, None)
        if attempt.is_pending:
            apply_deferred(self.machine.withdraw, attempt, if_pending=True)
        waker.forget()

    def check_batch_size(self, n: Any) -> int:
        """Check how many rows a batch is to have.

        Raises:
            InvalidArgumentError: it is not an int >= 0, or the queue can never have so many.
        """
        if not self.spec.batchable:
            raise InvalidArgumentError(
                f"{self.kind} '{self.name}' was made without shapes;"
                " batches can only be taken from a queue whose elements have shapes"
            )
        rows = checked_count(n, "n")
        most = self.machine.most
        if not self.storage.progressive and rows > most:
            bound = "the capacity" if most == self.capacity else "which is all that max_bytes holds"
            raise InvalidArgumentError(
                f"n: got {rows}; expected at most {most:.0f}, {bound}: a {self.kind}"
                " cannot give elements to a batch before all of them are there"
            )
        return rows

    def made_ready(self, columns: Columns, n: int, *, copy: bool) -> Columns:
        """Rows that have been checked, as they are to be put in; a large batch is copied here.

        What is returned may be memory of the storage, so it must go to the machine at once, with no
        await in between: that alone gives it back.
        """
        if not copy:
            return self.storage.wrap(columns, n)
        return self.copier.copy_in(columns, n) if self.storage.is_large(n) else columns

    def check_dequeue_many(self, n: Any, out: Any) -> tuple[int, Columns | None]:
        """Check the arguments of `dequeue_many`."""
        n = self.check_batch_size(n)
        return n, None if out is None else self.spec.outputs(out, n)

    def empty_batch(self, out: Columns | None = None) -> Any:
        """A batch of no rows."""
        return self.spec.batch(self.storage.empty() if out is None else out)

    def try_batch(self, n: int, out: Columns | None = None) -> Any:
        """A batch by the fast path; `NOTHING` if that is not possible."""
        if self.storage.is_large(n):
            take = Take(n, out=out)
            return self.finish_batch(take) if self.machine.try_take(take) else NOTHING
        columns = self.machine.try_dequeue_many(n, out)
        return NOTHING if columns is None else self.spec.batch(columns)

    def finish_batch(self, attempt: Take) -> Any:
        """The batch that a dequeue which has ended gives to its caller.

        Its rows are copied here, by their owner. If that fails, for want of memory perhaps, they go
        back.
        """
        try:
            return self.spec.batch(self.copier.copy_out(attempt))
        except BaseException:
            apply_deferred(self.machine.withdraw, attempt)
            raise


class QueueFace(QueueMethods[ElementT]):
    """A queue as one world sees it: here, everything that never waits."""

    _world: ClassVar[World]
    _kind: ClassVar[str]
    _faces: ClassVar[dict[tuple[str, World], type[QueueFace[Any]]]] = {}
    """The class of each kind of queue in each world, by which the two faces find each other."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.__module__.split(".")[0] != "aioqueue":
            refuse_overrides(cls)
        if "_kind" in vars(cls):
            # Python's messages about arguments name the class that the user has called.
            cls.__init__.__qualname__ = f"{cls._kind}.__init__"
        if "_world" in vars(cls):
            describe(cls, cls._world)
        if hasattr(cls, "_kind") and hasattr(cls, "_world"):
            cls._faces.setdefault((cls._kind, cls._world), cls)  # ours, not users' subclasses

    if not TYPE_CHECKING:
        # `Generic` would count the parameters, and those that have a default are new in 3.13.
        __class_getitem__ = classmethod(GenericAlias)

        def __getattr__(self, name: str) -> Any:
            no_attribute(self, name, kind="a queue")

    def __init__(self, core: QueueCore) -> None:
        self._bind(core)
        core.faces[self._world] = self

    def _bind(self, core: QueueCore) -> None:
        spec = core.spec
        self._core = core
        self._machine = core.machine
        # Bound once: the fast path in and out should do nothing but the work.
        machine, is_atomic = core.machine, core.storage.is_atomic
        self._try_enqueue = machine.try_enqueue if is_atomic else machine.try_enqueue_alone
        self._try_dequeue = machine.try_dequeue if is_atomic else machine.try_dequeue_alone
        self._to_row = core.to_row
        self._from_row = None if spec.element_is_identity else spec.element

    def __repr__(self) -> str:
        core = self._core
        try:
            size = self._machine.size
        except RuntimeError:  # see `forks`
            return f"<{type(self).__module__}.{core.kind} '{core.name}' of another process>"
        capacity, max_bytes = core.capacity, self.max_bytes
        inside = counted(size, "element") if capacity is None else f"{size}/{capacity}"
        if max_bytes is not None:
            inside += f", {self._machine.weight}/{max_bytes} bytes"
        elif capacity is None:
            inside += ", unbounded"
        state = self._machine.state
        suffix = "" if state is QueueState.OPEN else f", {state.value}"
        return (
            f"<{type(self).__module__}.{core.kind} '{core.name}' [{core.spec!r}] {inside}{suffix}>"
        )

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled.

        Raises:
            TypeError: always.
        """
        raise TypeError(
            f"{self._core.kind} '{self.name}' cannot be pickled or copied: a queue lives in one"
            " process. Send elements between processes, not queues"
        )

    def __len__(self) -> int:
        """How many elements are inside now."""
        return self._machine.size

    def __contains__(self, element: object) -> NoReturn:
        """Refuse to be searched, which would take elements out.

        Raises:
            TypeError: always.
        """
        not_searched(self)

    def __bool__(self) -> bool:
        """A queue is always true, also while it is empty."""
        return True

    @property
    def name(self) -> str:
        """What error messages and worker names call it."""
        return self._core.name

    @property
    def capacity(self) -> int | None:
        """How many elements fit; ``None`` where there is no bound.

        It can be set at any time, by any thread or task. With a larger one, enqueues that wait go
        on in their order. With a smaller one, what is inside stays, and enqueues wait until fewer
        are inside; but a batch that a `PriorityQueue` is waiting to give still comes together.

        Raises:
            InvalidArgumentError: set to what is no int >= 1 and not ``None``, or, in a
                `RandomShuffleQueue`, to no more than its ``min_after_dequeue``.
        """
        return self._core.capacity

    @capacity.setter
    def capacity(self, capacity: int | None) -> None:
        capacity = checked_capacity(capacity)
        if capacity is not None and capacity <= self._core.keep:
            raise InvalidArgumentError(
                f"capacity: got {capacity}; expected more than {self._core.keep},"
                " the min_after_dequeue"
            )
        try:
            apply_deferred(self._machine.resize, capacity)
        except BaseException:
            self._core.wake_all()  # callers whom it has let in, and that were not told
            raise

    @property
    def max_bytes(self) -> int | None:
        """How many bytes of elements fit; ``None`` where there is no bound."""
        return self._machine.max_bytes

    @property
    def dtypes(self) -> list[np.dtype[Any]] | None:
        """The components' dtypes, ``object`` for strings of any length; ``None`` for objects."""
        components = self._core.spec.components
        return None if components is None else [component.dtype for component in components]

    @property
    def shapes(self) -> list[tuple[int | None, ...]] | None:
        """The components' shapes; ``None`` where elements may have any."""
        components = self._core.spec.components
        if components is None or not self._core.spec.batchable:
            return None
        return [_shape(component) for component in components]

    @property
    def names(self) -> list[str] | None:
        """The components' names; ``None`` where they have none."""
        return self._core.spec.names or None

    @property
    def state(self) -> QueueState:
        """Whether it is open, closing or closed."""
        return self._machine.state

    def size(self) -> int:
        """How many elements are inside now, without those that a waiting batch has taken."""
        return self._machine.size

    def is_closed(self) -> bool:
        """Whether `close` has been called; `state` tells how far closing is."""
        return self._machine.state is not QueueState.OPEN

    def statistics(self) -> Statistics:
        """Counts and waits, all of one moment."""
        return self._machine.statistics()

    def close(
        self, cancel_pending_enqueues: bool = False, *, cause: BaseException | None = None
    ) -> None:
        """Let nothing more in. Returns at once; any thread or task may call it, any number of
        times.

        What is inside can still be dequeued; then every dequeue fails with `OutOfRangeError`.
        Enqueues that began before still complete as room appears; later ones raise
        `QueueClosedError`.

        Args:
            cancel_pending_enqueues: fail the enqueues that are waiting now with `QueueClosedError`.
            cause: the failure that made the producer give up; every `OutOfRangeError` and
                `QueueClosedError` from now on has it as its ``__cause__``. The first one counts.

        Raises:
            InvalidArgumentError: ``cause`` is not an exception.
        """
        if cause is not None and not isinstance(cause, BaseException):
            raise InvalidArgumentError(f"cause: got {cause!r}; expected an exception or None")
        checked_flag(cancel_pending_enqueues, "cancel_pending_enqueues")
        if self._core.wakers and not self._machine.is_entered_here():
            self._core.drop_dead_loops()  # what the dead hold would keep the end from being told
        try:
            apply_deferred(
                self._machine.close, cancel_pending_enqueues=cancel_pending_enqueues, cause=cause
            )
        except BaseException:
            self._core.wake_all()  # callers that the close has woken, and that were not told
            raise

    @overload
    def enqueue_nowait(self: QueueFace[Typed[Any, Any]], element: Any) -> None: ...
    @overload
    def enqueue_nowait(self, element: ElementT) -> None: ...
    def enqueue_nowait(self, element: Any) -> None:
        """Put one element in if that is possible without waiting.

        A signal handler may call it, and wakes those who wait. Where one, or a finalizer, has
        interrupted a move of the same queue, it is refused; `close` is made even then.

        Args:
            element: as for `enqueue`.

        Raises:
            QueueFull: there is no room, or others are waiting for it.
            QueueClosedError: `close` has been called.
            InvalidArgumentError: the element has the wrong dtype, shape or components.
            RuntimeError: it is called in the middle of another call of its thread.
        """
        row = element if self._to_row is None else self._to_row(element)
        if not self._try_enqueue(row) and not self._at_once(Put(row)):
            raise QueueFull(f"{self._core.kind} '{self.name}' is full, or others wait for room")

    @overload
    def dequeue_nowait(self: QueueFace[Typed[T, Any]]) -> T: ...
    @overload
    def dequeue_nowait(self) -> ElementT: ...
    def dequeue_nowait(self) -> Any:
        """Take one element out if that is possible without waiting.

        In signal handlers and finalizers the same holds as for `enqueue_nowait`.

        Returns:
            The element, as from `dequeue`.

        Raises:
            QueueEmpty: no element can be had now, or others are waiting for one.
            OutOfRangeError: the queue is closed and empty.
            RuntimeError: it is called in the middle of another call of its thread.
        """
        row = self._try_dequeue()
        if row is NOTHING:
            take = Take(1, single=True)
            if not self._at_once(take):
                raise QueueEmpty(
                    f"{self._core.kind} '{self.name}' has no element to give,"
                    " or others wait for one"
                )
            row = take.held.single
        return row if self._from_row is None else self._from_row(row)

    def _at_once(self, attempt: Attempt) -> bool:
        """Make an attempt that may not wait; tell whether it was made."""
        if self._core.wakers:
            self._core.drop_dead_loops()
        try:
            wakers = self._machine.begin(attempt, None)
            if wakers:
                # Outside of tasks it may be a signal handler, while the loop is asleep.
                deliver(wakers, from_anywhere=not in_task())
        except BaseException:
            self._core.wake_all()
            raise
        if attempt.error is not None:
            attempt.raise_error()
        return attempt.state is not AttemptState.WITHDRAWN

    def _peer(self, world: World) -> Any:
        """The face of the same queue in another world, made when first asked for."""
        return holding(self._core.lock, self._peer_here, world)

    def _peer_here(self, world: World) -> Any:
        core = self._core
        face: Any = core.faces.get(world)
        if face is None:
            peer = self._faces[self._kind, world]
            face = peer.__new__(peer)
            face._bind(core)
            core.faces[world] = face
            self._made = face  # kept by who made it
        return face


def _row_maker(spec: Spec, storage: Storage) -> Callable[[Any], Row] | None:
    """What makes a row of an element; ``None`` if it is one."""
    if isinstance(storage, WeighedStorage):
        return lambda element: storage.weighed(spec.row(element))
    return None if spec.row_is_identity else spec.row


def _shape(component: Component) -> tuple[int | None, ...]:
    assert component.shape is not None
    return component.shape


def note_rows(attempt: Attempt, error: BaseException) -> None:
    """Say on an interruption, which is not our own exception, how much of a batch is in."""
    if isinstance(attempt, PutMany):
        with suppress(Exception):  # if its class has no room for it
            error.enqueued = attempt.done  # type: ignore[attr-defined]
        with suppress(Exception):
            error.add_note(f"enqueue_many: {attempt.done} of {attempt.n} rows are in the queue")


def checked_capacity(capacity: Any) -> int | None:
    """Check a capacity: a positive int, or ``None`` for no bound."""
    if capacity is None:
        return None
    if not is_int(capacity) or capacity < 1:
        raise InvalidArgumentError(
            f"capacity: got {capacity!r}; expected an int >= 1, or None for no bound"
        )
    if capacity > sys.maxsize:  # no list or array is as long
        raise InvalidArgumentError(
            f"capacity: got {capacity!r}; expected at most {sys.maxsize}, or None for no bound"
        )
    return int(capacity)


def checked_bytes(max_bytes: Any) -> int | None:
    """Check a bound on bytes: a positive int, or ``None`` for none."""
    if max_bytes is not None and (not is_int(max_bytes) or max_bytes < 1):
        raise InvalidArgumentError(
            f"max_bytes: got {max_bytes!r}; expected a number of bytes, an int >= 1, or None for no"
            " bound"
        )
    return None if max_bytes is None else int(max_bytes)
