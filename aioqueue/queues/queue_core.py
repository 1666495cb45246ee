"""The core of a queue, and the methods that never wait, which both faces share.

A queue *is* its core: a machine over a storage, plus the spec of its elements. A face is a thin
object that adds one world's way of waiting. Both faces of a queue hold the same core, so a thread
can fill what a coroutine empties.
"""

from __future__ import annotations

import itertools
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import RLock
from types import GenericAlias
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self, TypeVar, overload

from aioqueue.base.arguments import checked_count, checked_flag, checked_seconds, is_int
from aioqueue.base.hints import hint_attributes, refuse_overrides, refuse_search
from aioqueue.base.public_names import DeferredModule, World, describe
from aioqueue.core.attempts import (
    ENQUEUE,
    NEITHER,
    Attempt,
    AttemptState,
    Put,
    PutMany,
    QueueState,
    Statistics,
    Take,
    UntilClosed,
    Waker,
)
from aioqueue.core.elements.spec import Columns, ElementT, Row, Spec, Typed
from aioqueue.core.fast_path import NOTHING
from aioqueue.core.machine import Machine
from aioqueue.core.storage.protocol import BatchCopier, Storage
from aioqueue.core.storage.sized import WeighedStorage
from aioqueue.errors import InvalidArgumentError, QueueEmpty, QueueFull, counted, queue_label
from aioqueue.queues.leases import QueueLeases, running_caller
from aioqueue.queues.method_docstrings import QueueMethods
from aioqueue.system.forks import refuse_in_forks
from aioqueue.system.locks import call_with_lock, machine_lock
from aioqueue.worlds.scopes import register_wait, unregister_wait
from aioqueue.worlds.waker import (
    AsyncWaker,
    CallbackWaker,
    LoopOwner,
    Owner,
    apply_deferred,
    current_worker,
    deliver,
    enter,
    in_task,
    withdraw_all,
)

if TYPE_CHECKING:
    import numpy as np

    from aioqueue.core.elements.component import Component
    from aioqueue.core.elements.element_spec import ElementSpec

T = TypeVar("T")

_numbers = itertools.count(1)

_sharing: Any = DeferredModule("aioqueue.sharing.queues")  # above this room; used by `share` alone


class QueueCore:
    """The state of one queue, shared by its faces.

    Attributes:
        opens_rows: whether `row_of` changes rows.
        whose: what its text says of the process that shares it; empty in that process.

    Args:
        kind: the name of the queue's class.
        spec: the dtypes, shapes and names of its elements.
        storage: where the elements are kept.
        capacity: how many elements fit; ``None`` for no bound.
        max_bytes: how many bytes of elements fit; ``None`` for no bound.
        keep: how many elements a dequeue must leave inside until the queue is closed.
        name: shown in messages and worker names; ``None`` generates one.
    """

    opens_rows = False
    whose: str = ""

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
        self.name: str = name or f"{kind}-{next(_numbers)}"
        self.is_named: bool = bool(name)
        lock = machine_lock()
        self.copier: BatchCopier = BatchCopier(storage, lock)
        self.machine: Machine = Machine(
            storage,
            lock,
            capacity=capacity,
            max_bytes=max_bytes,
            keep=keep,
            kind=kind,
            name=self.name,
            enter=enter,
        )
        self._describe_elements(kind, spec, storage, keep)

    def _describe_elements(self, kind: str, spec: Spec, storage: Storage, keep: int) -> None:
        """Set the rest of the fields; the core of a queue of another process does so, too."""
        self.series_name: str | None = None
        """The name under which monitors add it up with others; ``None`` for its own."""
        self.kind: str = kind
        self.spec: Spec = spec
        self.storage: Storage = storage
        self.to_row: Callable[[Any], Row] | None = _row_maker(spec, storage)
        self.keep = keep
        # How the processes of this machine share it (`aioqueue.sharing`); ``None``: they do not.
        self.shared: Any = None
        self.lock: RLock = threading.RLock()  # guards faces and wakers; a signal handler may close
        # World -> its face. A face refers to its core, so the core must not keep its faces alive:
        # a dropped queue is freed at once with its elements, without the garbage collector.
        self.faces: dict[str, weakref.ref[Any]] = {}
        # The event loops whose tasks have waited here, so that a closed loop can be detected.
        self.wakers: dict[AsyncWaker, None] = {}
        # Event loop -> how many of its tasks are workers that fill this queue; see
        # `would_deadlock`.
        self.fillers: dict[AsyncWaker, int] = {}
        # The blocked threads and the callbacks. Code only ever sets, pops and lists this dict: each
        # is atomic, so it needs no lock.
        self.blocked_wakers: dict[Waker, None] = {}
        # The latest caller that waited on each side, for the report that explains a hang.
        self.last_enqueuer: Owner | None = None
        self.last_dequeuer: Owner | None = None
        # The monitors' parts. A part lives as long as the queue, then reports its last numbers.
        self.parts: list[Any] = []
        self.has_leases = False  # whether a loop has ever taken elements on lease
        self.last_end: str | None = None  # how the latest run of a runner that filled it ended
        refuse_in_forks(self)

    @property
    def label(self) -> str:
        return queue_label(self.kind, self.name)

    @property
    def capacity(self) -> int | None:
        return self.machine.capacity

    def recent_statistics(self) -> Statistics:
        """Return the statistics for a report, which must not wait for another process for long."""
        return self.machine.statistics()

    def recent_state(self) -> QueueState:
        """Return the state for such a report."""
        return self.machine.state

    def remember(self, waker: AsyncWaker) -> None:
        call_with_lock(self.lock, self.wakers.__setitem__, waker, None)

    def count_filler(self, waker: AsyncWaker, change: int) -> None:
        """Count a worker that fills the queue as a task of a loop: +1 at its start, -1 at its end.

        Call it in the loop's own thread. Only that thread changes the loop's count, so no update
        can be lost.
        """
        count = self.fillers.get(waker, 0) + change
        if count > 0:
            self.fillers[waker] = count
            if waker not in self.wakers:
                self.remember(waker)
        else:
            self.fillers.pop(waker, None)

    def would_deadlock(self, attempt: Attempt) -> bool:
        """Return whether this attempt would deadlock: it waits for tasks that its thread blocks.

        This happens only in the cell of a notebook, which blocks the loop that runs the cell. The
        tasks in question wait here too, or they are the workers that fill what the attempt takes.
        A waiting task holds rows that only it may have, and callers behind it are not served.
        """
        for waker in call_with_lock(self.lock, list, self.wakers):
            if not waker.is_current():
                continue  # the loop of another thread: its tasks run on, and may end the wait
            if attempt.side is not ENQUEUE and self.fillers.get(waker):
                return True
            others = self.machine.attempts_in(waker)
            if any(other.side is not NEITHER for other in others):
                return True
        return False

    def face_class(self, world: World) -> type[QueueFace[Any]]:
        return QueueFace._faces[self.kind, world]

    def record_owner(self, attempt: Attempt, runner: Any) -> None:
        """Record the owner of an attempt that has to wait.

        Args:
            attempt: the attempt that its owner is about to wait for.
            runner: the owner, a thread or task.
        """
        # Nearly always the same owner waits once more. (Its reference gets a local name, as in
        # `aioqueue.core.fast_path`.)
        is_take = type(attempt) is Take
        owner = self.last_dequeuer if is_take else self.last_enqueuer
        if is_take and self.has_leases:
            if not (isinstance(owner, LoopOwner) and owner.is_current_owner(runner)):
                owner = self.last_dequeuer = LoopOwner(runner)
            attempt.owner = owner
            return
        if not is_take and attempt.waits and attempt.side is NEITHER:
            # The report of a hang finds it in no wait list. `forget_wait` undoes this.
            register_wait(attempt, runner)
        if owner is not None:
            reference = owner.reference
            # (A thread of a pool works for one worker, and then for another.)
            if reference() is runner and owner.worker is current_worker.get():
                attempt.owner = owner
                return
        owner = Owner(runner)
        if is_take:
            self.last_dequeuer = owner
        elif attempt.side is ENQUEUE:
            self.last_enqueuer = owner
        attempt.owner = owner

    @staticmethod
    def forget_wait(attempt: Attempt) -> None:
        """Unregister the owner of an attempt that moves nothing, after it has ended."""
        unregister_wait(attempt)

    def wake_all(self) -> None:
        """Wake every caller. Callers that have nothing to do go back to sleep.

        Call it after an interruption: Ctrl-C may strike after the machine has granted an attempt
        and before its owner was woken, and that wake would be lost.
        """
        wakers = call_with_lock(self.lock, list, self.wakers)
        deliver([*wakers, *list(self.blocked_wakers)], from_anywhere=True)

    def drop_dead_loops(self) -> None:
        """Withdraw the attempts of tasks whose event loop is closed: they will never run again.

        A caller does this before it waits. Otherwise it might wait for rows that a dead task holds.
        """
        for waker in call_with_lock(self.lock, self._forget_dead_wakers):
            withdraw_all(self.machine.attempts_in(waker))

    def _forget_dead_wakers(self) -> list[AsyncWaker]:
        dead = [waker for waker in self.wakers if waker.is_dead()]
        for waker in dead:
            self.wakers.pop(waker, None)  # a signal handler may have removed it meanwhile
            self.fillers.pop(waker, None)
        return dead

    def call_when_closed(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call back once nothing more comes in, at the moment when `wait_closed` would return.

        If that is already so, the callback runs now.

        Args:
            callback: runs in the thread that closes the queue, with no lock of ours held. It may
                run more than once, and must neither wait nor raise. The queue keeps it alive.

        Returns:
            A function that cancels the callback. You may call it more than once.
        """
        attempt = UntilClosed()
        waker = CallbackWaker(attempt, callback)
        self.blocked_wakers[waker] = None  # first: `wake_all` must reach it after an interruption
        deliver(self.machine.begin(attempt, waker))
        waker.wake()  # the queue may have been closed before `begin`
        return partial(self._forget_call, attempt, waker)

    def _forget_call(self, attempt: UntilClosed, waker: CallbackWaker) -> None:
        self.blocked_wakers.pop(waker, None)
        if attempt.is_pending:
            apply_deferred(self.machine.withdraw, attempt, if_pending=True)
        waker.forget()

    def quick_row_maker(self) -> Callable[[Any], Row] | None:
        """Return a function that does what ``to_row`` does, for a caller with many elements.

        It takes about as long to make as the rest of the queue.
        """
        spec = self.spec
        if spec.components is None or isinstance(self.storage, WeighedStorage):
            return self.to_row
        from aioqueue.core.elements.element_spec import ElementSpec  # loaded, as it is typed

        return spec.row_maker() if type(spec) is ElementSpec else self.to_row

    def spec_of_packed_rows(self) -> ElementSpec | None:
        """Return the spec, if elements may be written as packed rows, which enter together."""
        from aioqueue.core.elements.element_spec import ElementSpec

        spec = self.spec
        return spec if type(spec) is ElementSpec and not spec.rows_private else None

    def set_spec(self, spec: Spec) -> None:
        """Replace the spec by one whose rows have another form, for the live faces as well."""
        self.spec = spec
        self.set_row_maker(_row_maker(spec, self.storage))

    def set_row_maker(self, to_row: Callable[[Any], Row] | None) -> None:
        """Replace what makes a row of an element, for the live faces as well."""
        self.to_row = to_row
        for made in list(self.faces.values()):
            face = made()
            if face is not None:
                face._set_conversions()

    def check_batch_size(self, n: Any) -> int:
        """Check the number of rows of a batch.

        Raises:
            InvalidArgumentError: n is not an int >= 0, or the queue can never hold that many.
        """
        if not self.spec.batchable:
            raise InvalidArgumentError(
                f"{self.label} was made without shapes;"
                " batches can only be taken from a queue whose elements have shapes"
            )
        rows = checked_count(n, "n")
        most = self.machine.max_rows
        if not self.storage.progressive and rows > most:
            bound = "the capacity" if most == self.capacity else "which is all that max_bytes holds"
            raise InvalidArgumentError(
                f"n: got {rows}; expected at most {most:.0f}, {bound}: a {self.kind}"
                " cannot give elements to a batch before all of them are there"
            )
        return rows

    def check_batches(
        self, n: Any, drop_remainder: bool, max_wait: Any
    ) -> tuple[int, float | None]:
        """Check the arguments of `batches`; return n and ``max_wait``.

        Raises:
            InvalidArgumentError: any is not as described there.
        """
        if self.check_batch_size(n) == 0:
            raise InvalidArgumentError("n: got 0; expected an int >= 1")
        if max_wait is None:
            return n, None
        max_wait = checked_seconds(max_wait, "max_wait")
        if drop_remainder:
            raise InvalidArgumentError(
                f"max_wait: got {max_wait!r} with drop_remainder=True; expected one of them: after"
                " max_wait a batch has fewer elements, and drop_remainder wants whole batches"
            )
        return n, max_wait

    def prepare_columns(self, columns: Columns, n: int, *, copy: bool) -> Columns:
        """Prepare checked rows for the machine. A large batch is copied here, outside of its lock.

        The result may be memory of the storage. Hand it to the machine at once, with no await in
        between: only the machine gives that memory back.
        """
        if not copy:
            return self.storage.wrap(columns, n)
        return self.copier.copy_in(columns, n) if self.storage.is_large(n) else columns

    def check_dequeue_many(self, n: Any, out: Any) -> tuple[int, Columns | None]:
        n = self.check_batch_size(n)
        return n, None if out is None else self.spec.outputs(out, n)

    def empty_batch(self, out: Columns | None = None) -> Any:
        return self.spec.batch(self.storage.empty() if out is None else out)

    @property
    def try_dequeue(self) -> Callable[[], Row]:
        """The fast path of a single row out."""
        return self.machine.try_dequeue

    def row_of(self, attempt: Take) -> Row:
        """Return the row of a single dequeue that has ended."""
        return attempt.held.single

    def try_batch(self, n: int, out: Columns | None = None) -> Any:
        """Take a batch on the fast path; return `NOTHING` if the caller may have to wait."""
        if self.storage.is_large(n):
            take = Take(n, out=out)
            return self.finish_batch(take) if self.machine.try_take(take) else NOTHING
        columns = self.machine.try_dequeue_many(n, out)
        return NOTHING if columns is None else self.spec.batch(columns)

    def leased_batch(self, attempt: Take) -> Any:
        """Return the batch of a lease, which still holds its rows."""
        return self.spec.batch(self.storage.columns(attempt.held))

    def finish_batch(self, attempt: Take) -> Any:
        """Return the batch of a dequeue that has ended.

        The calling thread copies the rows here, outside of the machine's lock. If the copy fails,
        for want of memory perhaps, the rows go back into the queue.
        """
        try:
            return self.spec.batch(self.copier.copy_out(attempt.held))
        except BaseException:
            apply_deferred(self.machine.withdraw, attempt)
            raise


@hint_attributes("a queue")
class QueueFace(QueueMethods[ElementT]):
    """One face of a queue: here, all the methods that never wait."""

    _world: ClassVar[World]
    _kind: ClassVar[str]
    _faces: ClassVar[dict[tuple[str, World], type[QueueFace[Any]]]] = {}
    """(kind, world) -> class. The two faces of a queue find each other's class here."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        refuse_overrides(cls, "a queue", "the queue's other face, and workers that use it,")
        if "_kind" in vars(cls):
            # Python's messages about arguments show this name: it must be the class that you call.
            cls.__init__.__qualname__ = f"{cls._kind}.__init__"
        if "_world" in vars(cls):
            describe(cls, cls._world)
        if hasattr(cls, "_kind") and hasattr(cls, "_world"):
            cls._faces.setdefault((cls._kind, cls._world), cls)  # ours, not users' subclasses

    if not TYPE_CHECKING:
        # `Generic` would check the number of parameters; defaults for them are new in Python 3.13.
        __class_getitem__ = classmethod(GenericAlias)

    def __init__(self, core: QueueCore) -> None:
        self._bind(core)
        core.faces[self._world] = weakref.ref(self)

    def _bind(self, core: QueueCore) -> None:
        self._core = core
        self._machine = core.machine
        # Bound once: each attribute lookup would cost the fast path some nanoseconds per element.
        self._try_enqueue = core.machine.try_enqueue
        self._set_conversions()

    def _set_conversions(self) -> None:
        core, spec = self._core, self._core.spec
        self._try_dequeue = core.try_dequeue
        self._row_of = core.row_of if core.opens_rows else None
        self._to_row = core.to_row
        self._from_row = None if spec.element_is_identity else spec.element

    def __repr__(self) -> str:
        core = self._core
        try:
            counts = core.recent_statistics()
        except RuntimeError:  # the queue of a parent process; see `aioqueue.system.forks`
            return f"<{type(self).__module__}.{core.label} of another process>"
        size, capacity, max_bytes = counts.size, counts.capacity, counts.max_bytes
        inside = counted(size, "element") if capacity is None else f"{size}/{capacity}"
        if max_bytes is not None:
            inside += f", {counts.bytes}/{max_bytes} bytes"
        elif capacity is None:
            inside += ", unbounded"
        inside += f", {counts.granted} granted" if counts.granted else ""
        inside += f", {counts.claimed} claimed" if counts.claimed else ""
        state = core.recent_state()
        suffix = core.whose if state is QueueState.OPEN else f", {state.value}{core.whose}"
        return f"<{type(self).__module__}.{core.label} [{core.spec!r}] {inside}{suffix}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle a queue that is shared; see `share`.

        Raises:
            TypeError: it is not shared.
        """
        if self._core.shared is not None:
            pickled: tuple[Any, ...] = self._core.shared.pickled(self._world)
            return pickled
        raise TypeError(
            f"{self._core.label} cannot be pickled or copied: a queue lives in one"
            " process. Share it (`queue.share()`), and send that to other processes of this"
            " machine; or send elements, not queues"
        )

    def share(self, *, name: str | None = None) -> Self:
        """Share the queue with the other processes of this machine.

        From now on the queue can be pickled: pass it to a process as an argument, or inside of
        anything that is. In the other process it is a *handle* of the same queue, with both faces,
        all methods, errors and guarantees. This process owns the queue, and goes on using it
        directly.

        A call on a handle waits in the same line as the calls here. What never waits here (`size`,
        `statistics`, `close`, ``..._nowait``) takes a short trip to this process there. An element
        belongs to the caller that has taken it as soon as its call returns. What was on its way to
        a process that dies goes back to the front of the queue. If this process dies, calls on
        handles raise `WorkerDiedError`; if it ends in order, dequeues raise `OutOfRangeError`, and
        enqueues `QueueClosedError`.

        Objects are pickled by the caller that puts them in, and unpickled by the caller that takes
        them out, also if both are in this process; numbers, strings, arrays, and flat containers of
        them are not pickled in this process. Only processes of the same user can connect.

        The queue lives with its elements until this process ends, even if nothing here refers to it
        any more: nobody can know where a pickled handle still is. So share a few queues that stay,
        not one for each request.

        Args:
            name: a name by which other processes of this user find the queue (`connect`): letters,
                digits, ``-``, ``_`` and ``.``; ``None`` for none.

        Returns:
            The queue itself.

        Raises:
            InvalidArgumentError: the name is not as described, or a living process shares something
                by that name.
            OSError: this system has no Unix sockets, or the socket cannot be made.
        """
        _sharing.share_queue(self._core, name)
        return self

    def __len__(self) -> int:
        """Return how many elements are inside now."""
        return self._machine.size

    def __contains__(self, element: object) -> NoReturn:
        """Refuse to be searched, which would take elements out.

        Raises:
            TypeError: always.
        """
        refuse_search(self)

    def __bool__(self) -> bool:
        """Return true, also while the queue is empty."""
        return True

    @property
    def name(self) -> str:
        """The name in error messages and worker names."""
        return self._core.name

    @property
    def capacity(self) -> int | None:
        """How many elements fit; ``None`` for no bound.

        You can set it at any time, from any thread or task. A larger capacity lets waiting enqueues
        continue in their order. With a smaller one the elements stay inside, and enqueues wait
        until there is room. A `PriorityQueue` still completes a batch that a caller waits for.

        Raises:
            InvalidArgumentError: the new value is neither an int >= 1 nor ``None``, or, in a
                `RandomShuffleQueue`, not above ``min_after_dequeue``.
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
            self._core.wake_all()  # the new capacity may have granted attempts: see `wake_all`
            raise

    @property
    def max_bytes(self) -> int | None:
        """How many bytes of elements fit; ``None`` for no bound."""
        return self._machine.max_bytes

    @property
    def dtypes(self) -> list[np.dtype[Any]] | None:
        """The dtype of each component, ``object`` for strings; ``None`` in a queue of objects."""
        components = self._core.spec.components
        return None if components is None else [component.dtype for component in components]

    @property
    def shapes(self) -> list[tuple[int | None, ...]] | None:
        """The shape of each component; ``None`` if elements may have any shape."""
        components = self._core.spec.components
        if components is None or not self._core.spec.batchable:
            return None
        return [_shape(component) for component in components]

    @property
    def names(self) -> list[str] | None:
        """The name of each component; ``None`` if the components have no names."""
        return self._core.spec.names or None

    @property
    def structure(self) -> Any:
        """An element with the index of each component in its place; ``None`` in a queue of objects.

        The indices are those of `dtypes` and `shapes`: ``{"x": {"a": 0, "b": 1}}``.
        """
        structure = self._core.spec.structure
        return None if structure is None else structure.made(itertools.count())

    @property
    def state(self) -> QueueState:
        """Whether the queue is open, closing or closed."""
        return self._machine.state

    def size(self) -> int:
        """Return how many elements are inside and belong to no caller yet.

        0 does not mean that all work is done. Elements may be on their way to callers that have not
        run on yet (`statistics` has them as ``granted`` and ``claimed``), and in the hands of those
        that have. `join` waits until all is done.
        """
        return self._machine.size

    def is_closed(self) -> bool:
        """Return whether `close` has been called. For the progress of closing, see `state`."""
        return self._machine.state is not QueueState.OPEN

    def statistics(self) -> Statistics:
        """Return counts and waiting times, all of one moment.

        Each element is in one number: ``enqueued == dequeued + size + granted + claimed``.
        """
        return self._machine.statistics()

    def close(
        self, cancel_pending_enqueues: bool = False, *, cause: BaseException | None = None
    ) -> None:
        """Close the queue: it accepts no further elements.

        The call returns at once. You may call it from any thread or task, and more than once.

        You can still dequeue what is inside; after that, every dequeue raises `OutOfRangeError`.
        Enqueues that began earlier still complete as room appears. Later ones raise
        `QueueClosedError`.

        Args:
            cancel_pending_enqueues: make the enqueues that wait now fail with `QueueClosedError`.
            cause: the failure that made the producer give up. It becomes the ``__cause__`` of every
                later `OutOfRangeError` and `QueueClosedError`. Only the first cause is kept.

        Raises:
            InvalidArgumentError: ``cause`` is not an exception.
        """
        if cause is not None and not isinstance(cause, BaseException):
            raise InvalidArgumentError(f"cause: got {cause!r}; expected an exception or None")
        checked_flag(cancel_pending_enqueues, "cancel_pending_enqueues")
        if self._core.wakers and not self._machine.is_entered_here():
            self._core.drop_dead_loops()  # rows that dead tasks hold would keep the queue open
        if cause is not None and self._core.shared is not None:
            cause = self._core.shared.closing_cause(cause)
        options: Any = {"cancel_pending_enqueues": cancel_pending_enqueues, "cause": cause}
        try:
            apply_deferred(self._machine.close, **options)
        except BaseException:
            if self.is_closed():  # a signal handler has raised in the middle: finish what began
                apply_deferred(self._machine.close, **options)
            self._core.wake_all()  # callers that the close has granted may be asleep still
            raise

    @overload
    def enqueue_nowait(self: QueueFace[Typed[Any, Any]], element: Any) -> None: ...
    @overload
    def enqueue_nowait(self, element: ElementT) -> None: ...
    def enqueue_nowait(self, element: Any) -> None:
        """Put one element in without waiting.

        A signal handler may call this, and wakes blocked callers. If a handler or a finalizer has
        interrupted a move of the same queue, the call is refused; `close` works even then.

        Args:
            element: as for `enqueue`.

        Raises:
            QueueFull: the queue has no room, or other enqueues are waiting for it.
            QueueClosedError: `close` has been called.
            InvalidArgumentError: the element has the wrong dtype, shape or components.
            RuntimeError: the call interrupts another call of the same thread.
        """
        row = element if self._to_row is None else self._to_row(element)
        if not self._try_enqueue(row) and not self._try_nowait(Put(row)):
            raise QueueFull(
                f"{self._core.label} is full, or other enqueues wait for room:"
                " use enqueue to wait, too"
            )

    @overload
    def dequeue_nowait(self: QueueFace[Typed[T, Any]]) -> T: ...
    @overload
    def dequeue_nowait(self) -> ElementT: ...
    def dequeue_nowait(self) -> Any:
        """Take one element out without waiting.

        Signal handlers and finalizers may call it as they may call `enqueue_nowait`.

        Returns:
            The element, as from `dequeue`.

        Raises:
            QueueEmpty: the queue has no element to give, or other dequeues are waiting for one.
            OutOfRangeError: the queue is closed and empty.
            RuntimeError: the call interrupts another call of the same thread.
        """
        row = self._try_dequeue()
        if row is NOTHING:
            take = Take(1, True)
            if not self._try_nowait(take):
                raise QueueEmpty(
                    f"{self._core.label} has no element to give, or other dequeues"
                    " wait for one: use dequeue to wait, too"
                )
            row = self._core.row_of(take)
        return row if self._from_row is None else self._from_row(row)

    def task_done(self, n: int = 1) -> None:
        """Say that you are done with n elements that came from this queue.

        `join` waits until that has been said of every element that went in. Say it once for each
        element that you have taken out, when all that follows from it is in a queue. For a batch,
        say ``task_done(len(batch))``. An element that goes back into the queue, because its call
        was cancelled, is not done.

        Call it from any thread or task. It never waits. If you never call `join`, you need not call
        it either.

        Args:
            n: the number of elements, >= 0.

        Raises:
            InvalidArgumentError: fewer than n elements are unfinished; the queue is unchanged. It
                is a `ValueError`, as in `queue.Queue`.
            RuntimeError: a finalizer or a signal handler makes the call, and interrupts another
                call of the same thread.
        """
        n = checked_count(n, "n")
        try:
            wakers = self._machine.task_done(n)
            if wakers:
                deliver(wakers, from_anywhere=not in_task())
        except BaseException:  # a signal handler may have raised before all were woken
            apply_deferred(self._machine.end_joins)
            self._core.wake_all()
            raise
        if wakers is None:
            unfinished = self._machine.statistics().unfinished
            raise InvalidArgumentError(
                f"task_done: got n={n} for {self._core.label}, which has"
                f" {counted(unfinished, 'unfinished element')}; expected one call for each element"
                " that came out of it"
            )

    def _leases(self) -> QueueLeases:
        """Return a way to take elements on lease, which go back unless they are used."""
        return QueueLeases(self)

    def _try_nowait(self, attempt: Attempt) -> bool:
        """Make an attempt that may not wait; return whether it succeeded."""
        if self._core.wakers:
            self._core.drop_dead_loops()  # rows that a dead task holds may be what this call lacks
        if self._core.has_leases and type(attempt) is Take:
            self._core.record_owner(attempt, running_caller())  # the machine asks whose it is
        try:
            wakers = self._machine.begin(attempt, None)
            if wakers:
                # A caller outside of a task may be a signal handler, with the loop asleep.
                deliver(wakers, from_anywhere=not in_task())
        except BaseException:
            apply_deferred(self._machine.withdraw, attempt)  # and let others proceed
            self._core.wake_all()
            raise
        if attempt.error is not None:
            attempt.raise_error()
        return attempt.state is not AttemptState.WITHDRAWN

    def _peer(self, world: World) -> Any:
        """Return the face of this queue in another world; the first call makes it."""
        made = self._core.faces.get(world)
        face = None if made is None else made()
        return (
            call_with_lock(self._core.lock, self._find_or_make_peer, world)
            if face is None
            else face
        )

    def _find_or_make_peer(self, world: World) -> Any:
        core = self._core
        made = core.faces.get(world)
        face: Any = None if made is None else made()
        if face is None:
            face = _find_or_make_face(core, world)
            # The core holds the face weakly, so its maker keeps it alive. It does so under the name
            # by which users ask for the face: see `aioqueue.queues.base.PeerFace`.
            vars(self)[world] = face
        return face


def face_of(core: QueueCore, world: World) -> Any:
    """Return the face of a queue in a world, and make it if there is not one yet."""
    return call_with_lock(core.lock, _find_or_make_face, core, world)


def _find_or_make_face(core: QueueCore, world: World) -> Any:
    made = core.faces.get(world)
    face: Any = None if made is None else made()
    if face is None:
        kind = core.face_class(world)
        face = kind.__new__(kind)
        face._bind(core)
        core.faces[world] = weakref.ref(face)
    return face


def _row_maker(spec: Spec, storage: Storage) -> Callable[[Any], Row] | None:
    """Return the function that turns an element into a row; ``None`` if each already is one."""
    if isinstance(storage, WeighedStorage):
        return lambda element: storage.weighed(spec.row(element))
    return None if spec.row_is_identity else spec.row


def _shape(component: Component) -> tuple[int | None, ...]:
    assert component.shape is not None
    return component.shape


def add_rows_note(attempt: Attempt, error: BaseException) -> None:
    """Note on an exception that interrupts an `enqueue_many` how many of its rows are in."""
    if isinstance(attempt, PutMany):
        with suppress(Exception):  # a class with slots has no room for it
            error.enqueued = attempt.done  # type: ignore[attr-defined]
        with suppress(Exception):
            error.add_note(f"enqueue_many: {attempt.done} of {attempt.n} rows are in the queue")


def checked_capacity(capacity: Any) -> int | None:
    """Return a valid capacity: a positive int, or ``None`` for no bound."""
    if capacity is None:
        return None
    if not is_int(capacity) or capacity < 1:
        raise InvalidArgumentError(
            f"capacity: got {capacity!r}; expected an int >= 1, or None for no bound"
        )
    if capacity > sys.maxsize:  # no list or array can be longer
        raise InvalidArgumentError(
            f"capacity: got {capacity!r}; expected at most {sys.maxsize}, or None for no bound"
        )
    return int(capacity)


def checked_bytes(max_bytes: Any) -> int | None:
    """Return a valid bound on bytes: a positive int, or ``None`` for no bound."""
    if max_bytes is not None and (not is_int(max_bytes) or max_bytes < 1):
        raise InvalidArgumentError(
            f"max_bytes: got {max_bytes!r}; expected a number of bytes, an int >= 1, or None for no"
            " bound"
        )
    return None if max_bytes is None else int(max_bytes)
