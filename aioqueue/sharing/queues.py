"""Shared queues: how the owner serves one, and the core of a handle in another process.

A handle is a face of its queue, over a `RemoteMachine`: what the machine of a local queue decides
under its lock, the owner decides, and the answer comes by a message. The caller of a handle waits
as at a local queue; it unpacks what it got on its own thread, and makes the hand-over as the last
step before it returns.
"""

from __future__ import annotations

import importlib
import logging
import os
import pickle
import struct
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from threading import Thread, current_thread
from time import perf_counter
from typing import Any, Final, NamedTuple

from aioqueue.base.arguments import checked_seconds
from aioqueue.base.public_names import World
from aioqueue.base.tracebacks import SHORTENED
from aioqueue.core.attempts import (
    CLOSED,
    DEQUEUE,
    DONE,
    ENQUEUE,
    FAILED,
    GRANTED,
    NEITHER,
    OPEN,
    PENDING,
    WITHDRAWN,
    Attempt,
    Borrower,
    Put,
    PutMany,
    QueueState,
    Statistics,
    Take,
    UntilClosed,
    UntilDone,
    Waker,
)
from aioqueue.core.elements.object_spec import ObjectSpec, PriorityObjectSpec
from aioqueue.core.elements.spec import Columns, Row, Spec
from aioqueue.core.fast_path import NOTHING, Waiting
from aioqueue.core.machine import Machine
from aioqueue.core.meters import Durations, current_meter
from aioqueue.core.storage.objects import ObjectStorage
from aioqueue.core.storage.protocol import Held
from aioqueue.core.storage.sized import WeighedStorage, size_of
from aioqueue.errors import (
    InvalidArgumentError,
    OutOfRangeError,
    QueueClosedError,
    SealedFailure,
    WorkerDiedError,
    queue_label,
)
from aioqueue.processes.failures import message_of_failure
from aioqueue.queues.aio import AsyncMethods
from aioqueue.queues.blocking import BlockingMethods
from aioqueue.queues.queue_core import QueueCore, QueueFace, add_rows_note, face_of
from aioqueue.remote.failures import closing_cause, message_of_error, received_cause, sendable
from aioqueue.sharing import addresses, frames, sealing
from aioqueue.sharing.connection import (
    CallerWaker,
    EventLoop,
    Room,
    SharingConnection,
    connection_to,
    failure_in,
)
from aioqueue.sharing.memory import LARGE, Parts, bytes_of
from aioqueue.sharing.owner import (
    Address,
    ConnectedClient,
    LaterCall,
    Server,
    running_server,
    server,
    shared_by,
)
from aioqueue.sharing.packed_rows import PACKED, row_packer
from aioqueue.sharing.row_blocks import ROWS, answer_of
from aioqueue.sharing.sealing import Sealed, SealingSpec, parts_of
from aioqueue.system.locks import call_with_lock, is_held_here, machine_lock, synchronized
from aioqueue.worlds.current import current_waker
from aioqueue.worlds.scopes import (
    CancelScope,
    active_stops,
    current_scopes,
    seconds_left,
    stop_scopes,
    unwatch,
    watch,
)
from aioqueue.worlds.waker import (
    AsyncWaker,
    apply_deferred,
    current_worker,
    deliver,
    in_event_loop,
    running_loop,
)

TAKE: Final = frames.FIRST_OF_SERVICE
PUT: Final = frames.FIRST_OF_SERVICE + 1
PUT_MANY: Final = frames.FIRST_OF_SERVICE + 2
UNTIL_CLOSED: Final = frames.FIRST_OF_SERVICE + 3
UNTIL_DONE: Final = frames.FIRST_OF_SERVICE + 4
CALL: Final = frames.FIRST_OF_SERVICE + 5
GIVE_BACK: Final = frames.FIRST_OF_SERVICE + 6

_TAKE: Final = struct.Struct("<QBdQ")
"""How many rows, flags, the longest wait (negative: none), the borrower (0: none)."""
_SINGLE: Final = 1
_UP_TO: Final = 2
_EXPIRED: Final = 4
_NOWAIT: Final = 8

_PUT: Final = struct.Struct("<BQ")
"""Flags, and how many bytes the object takes as the queue counts them; or how many rows."""

_PAIR: Final = struct.Struct("<q")
"""A priority."""

_WORD: Final = struct.Struct("<BQ")
"""What has become of a cancelled call: whether it is done, and how many rows are in."""

MOST_UNANSWERED: Final = 32 << 20
"""How many bytes of enqueues of one process may wait at the owner of a queue."""

_MOST_COPIED: Final = 4
"""How many large rows that wait to go in have been copied already."""

_UNREADABLE: Final = struct.Struct("<qB")
"""Which row of a dequeue could not be unpickled (negative: unknown), and what that counts."""

_log: Final = logging.getLogger("aioqueue")

_REFUSED: Final = b"\0"
"""The answer of a call that may not wait, and would have to."""


class QueueDescription(NamedTuple):
    """What a process needs to know to make a handle of a queue."""

    kind: str
    """Its class."""
    name: str
    """Its name."""
    is_named: bool
    """Whether the user has named it."""
    spec: Spec
    """What its elements are."""
    keep: int
    """Its ``min_after_dequeue``."""
    max_bytes: int | None
    """How many bytes fit."""


# The owner's side.

_MOST_EXCHANGES: Final = 8
"""How often a batch is exchanged at most. A shuffle may draw what cannot be pickled again."""


def queue_identity(address: Address, thing: int) -> str:
    return f"{address.path} {thing}"


class _Caller:
    """The caller of a client's attempt, for explanations: it has no thread or task here."""

    __slots__ = ("loops", "name", "worker")

    def __init__(self, client: ConnectedClient) -> None:
        self.name = f"process {client.pid}"
        self.worker = None
        self.loops = ()

    thing = None

    @staticmethod
    def reference() -> None:
        return None

    @property
    def key(self) -> int:
        return id(self)

    def has_ended(self) -> bool:
        return False


class _RemoteCall:
    """A call of a client at its queue; also the waker of its attempt."""

    __slots__ = (
        *("attempt", "blocks", "client", "has_waited", "is_answered", "number", "service"),
        *("timer", "two_step"),
    )

    def __init__(
        self, service: QueueService, client: ConnectedClient, number: int, attempt: Attempt
    ) -> None:
        # What a dequeue gets stays granted until its caller has run on. An enqueue is in when it is
        # answered: everybody else sees it by then.
        self.two_step: bool = type(attempt) is Take
        self.service = service
        self.client = client
        self.number = number
        self.attempt = attempt
        self.blocks: tuple[int, ...] = ()
        self.is_answered = False
        self.has_waited = False
        self.timer: LaterCall | None = None  # ends its `max_wait`

    def notify(self, attempt: Attempt, /) -> None:
        """Do nothing: there is only one attempt."""

    def wake(self, from_anywhere: bool = False) -> Iterable[Attempt]:
        if self.attempt.state is not PENDING and not self.is_answered:
            self.service.server.call_soon(self.answer)
        return ()

    def is_dead(self) -> bool:
        """See `Waker`; the owner ends the calls of a client that has gone."""
        return False

    def answer(self) -> None:
        self.service.answer(self)

    def end_timer(self) -> None:
        timer, self.timer = self.timer, None
        if timer is not None:
            self.service.server.cancel(timer)

    def expire(self) -> None:
        self.timer = None
        if self.attempt.state is PENDING:
            deliver(self.service.machine.expire(self.attempt))


def _log_set_aside(core: QueueCore, row: Row) -> None:
    what = ", ".join(map(sealing.described, sealing.sealed_in(row)))
    _log.warning("%s: %s is set aside: two consumers could not unpickle it", core.label, what)


def _withdraw_without(core: QueueCore, take: Take, row: Row) -> None:
    """Put the rows of a batch back but one, which is set aside."""
    # Under one lock, so that nobody takes it in between.
    (sealed, *_) = sealing.sealed_in(row)
    deliver(call_with_lock(core.machine._lock, _withdraw_and_drop, core.machine, take, sealed))


def _withdraw_and_drop(machine: Machine, take: Take, sealed: Sealed) -> list[Waker]:
    wakers = [*machine.withdraw(take)]
    with suppress(NotImplementedError):  # a storage without an order by which to find it
        wakers += machine.drop(sealed)
    return wakers


def _note_unreadable(error: BaseException, label: str, what: str, index: int | None) -> None:
    row = "" if index is None or index < 0 else f"row {index} of "
    error.add_note(
        f"{row}what a dequeue of {label} got ({what}) cannot be unpickled in this process. It goes"
        " back; an element that fails twice is set aside"
    )


def take_plain(storage: ObjectStorage) -> Row:
    """Take the next row, unless it is pickled, and may have to go back: then return `NOTHING`."""
    if storage and type(storage[0]) is not Sealed:
        try:
            row = storage.popleft()
        except IndexError:  # a signal handler has taken it since the look
            return NOTHING
        if type(row) is not Sealed:
            return row
        storage.appendleft(row)  # likewise
    return NOTHING


class SharedObjectsCore(QueueCore):
    """The core of a shared queue whose elements are, or have, objects, in the owner's process.

    A caller of this process has what it takes once it is unpickled. Until then the row can go back,
    as at a handle.
    """

    opens_rows = True

    @property
    def try_dequeue(self) -> Callable[[], Row]:
        is_plain = _is_of_references(self.spec, self.storage)
        return self._try_plain_or_opened if is_plain else self._try_opened

    def _try_plain_or_opened(self) -> Row:
        row = self.machine.try_dequeue()  # see `take_plain`
        return self._try_opened() if row is NOTHING else row

    def _try_opened(self) -> Row:
        take = Take(1, True, leased=True)
        no_waker: Any = None
        if not self.machine.try_grant(take, no_waker):
            return NOTHING
        try:
            row = self.row_of(take)
            wakers = self.machine.commit_leases((take,))
        except BaseException:
            apply_deferred(self.machine.withdraw, take)
            raise
        if wakers:
            deliver(wakers)
        return row

    def row_of(self, attempt: Take) -> Row:
        spec: Any = self.spec
        try:
            return spec.unsealed_row(attempt.held.single)
        except BaseException as error:
            self._give_back(attempt, error, attempt.held.single, None)
            raise

    def try_batch(self, n: int, out: Columns | None = None) -> Any:
        take = Take(n, out=out)
        return self.finish_batch(take) if self.machine.try_take(take) else NOTHING

    def finish_batch(self, attempt: Take) -> Any:
        batch = self.leased_batch(attempt)
        self.copier._free(attempt.held)
        return batch

    def leased_batch(self, attempt: Take) -> Any:
        spec: Any = self.spec
        row, index = None, -1
        opened: list[Row] = []
        try:
            columns = self.storage.columns(attempt.held)
            if spec.components is None and not spec.has_sealed_rows(columns):
                opened = list(columns)
            elif spec.components is None:
                try:
                    opened.extend(map(spec.unsealed_row, columns))
                except BaseException:
                    index = len(opened)
                    row = columns[index]
                    raise
            else:
                opened = spec.unsealed_columns(columns)
                if attempt.held.out is not None:
                    for target, column in zip(columns, opened, strict=True):
                        if column is not target:  # the caller's array has the pickles still
                            target[...] = column
                    opened = columns
            batch = spec.inner.batch(opened)
        except BaseException as error:
            self._give_back(attempt, error, row, index)
            raise
        return batch

    def _give_back(
        self, take: Take, error: BaseException, row: Row | None, index: int | None
    ) -> None:
        """Give back what a dequeue of this process could not unpickle, or set it aside."""
        sealed = sealing.sealed_in(row) if row is not None else []
        if sealed and isinstance(error, Exception):
            _note_unreadable(error, self.label, sealing.described(sealed[0]), index)
        if not sealed or not sealing.count_failure(row, sealing.weight_of_failure(error)):
            apply_deferred(self.machine.withdraw, take)
            return
        _log_set_aside(self, row)
        if take.single:
            deliver(self.machine.commit_leases((take,)))
            deliver(self.machine.task_done(1) or ())  # nobody gets it, so nobody could say so
        else:
            _withdraw_without(self, take, row)


class QueueService:
    """One shared queue, as the owner's thread serves it.

    Args:
        core: the queue.
        server: the thread.
    """

    def __init__(self, core: QueueCore, server: Server) -> None:
        self.core = core
        self.server = server
        self.machine: Machine = core.machine
        self.label: str = core.label
        self.number = 0
        self._spec: Any = core.spec
        self._is_of_objects = type(_inner(core.spec)) is ObjectSpec
        self._weighed = core.storage.weighed if isinstance(core.storage, WeighedStorage) else None
        self._borrowers: dict[tuple[ConnectedClient, int], Borrower] = {}
        self._callers: dict[ConnectedClient, _Caller] = {}
        # The storage, if clients can read its rows in place: asked at the first dequeue of one.
        self._blocks: Any = None
        self._row_bytes = core.storage.row_bytes or 0
        self._packer = row_packer(core.spec)
        self._has_clients = False
        # Answers with objects that were put in before the queue was shared; the first one is being
        # pickled. Only the server's thread touches this.
        self._unpickled: deque[tuple[_RemoteCall, Any]] = deque()
        # Those that could not be pickled, by identity, each with its failure. None come in later.
        self._unpicklable: dict[int, tuple[Any, bytes]] = {}
        self._settled: list[_RemoteCall] = []  # acknowledged, and not committed yet

    @property
    def description(self) -> QueueDescription:
        core = self.core
        max_bytes = self.machine.max_bytes
        spec = _inner(core.spec)
        return QueueDescription(core.kind, core.name, core.is_named, spec, core.keep, max_bytes)

    def pickled(self, world: World) -> tuple[Any, ...]:
        """Return what pickle makes of a face of the queue."""
        return restored, (world, self.server.address, self.number, self.description)

    @property
    def identity(self) -> str:
        """What identifies the queue in all processes, for explanations."""
        return queue_identity(self.server.address, self.number)

    def was_forked(self) -> None:
        """Turn the faces that this fork has inherited into handles."""
        core = handle_core(self.server.address, self.number, self.description)
        for world, made in list(self.core.faces.items()):
            face = made()
            if face is not None:
                face.__class__ = core.face_class(world)  # type: ignore[arg-type]
                face._bind(core)
                core.faces[world] = made

    def begin(self, client: ConnectedClient, kind: int, number: int, body: memoryview) -> None:
        if kind == TAKE:
            self._begin_take(client, number, body)
            return
        self._commit_settled()  # what this call does or reports comes after them
        if kind == PUT:
            self._begin_put(client, number, body)
        elif kind == PUT_MANY:
            self._begin_put_many(client, number, body)
        elif kind == UNTIL_CLOSED:
            self._begin(client, number, UntilClosed(), bool(body[0] & _NOWAIT))
        elif kind == UNTIL_DONE:
            self._begin(client, number, UntilDone(), bool(body[0] & _NOWAIT))
        elif kind == GIVE_BACK:
            self._give_back(client, struct.unpack(f"<{len(body) // 8}Q", body))
            client.answer(number)
        elif kind == CALL:
            self._call(client, number, body)
        else:
            raise ValueError(f"{self.label}: a call of kind {kind}")

    def _begin_take(self, client: ConnectedClient, number: int, body: memoryview) -> None:
        n, flags, max_wait, borrower = _TAKE.unpack(body)
        single = bool(flags & _SINGLE)
        if not single:
            self.core.check_batch_size(n)
        take = Take(
            n,
            single,
            bool(flags & _UP_TO),
            expired=bool(flags & _EXPIRED),
            leased=True,
            borrower=self._borrower(client, borrower) if borrower else None,
        )
        if not self._has_clients:
            self._share_blocks()
        if self._unpicklable and not self.machine.size and not self.machine.statistics().granted:
            self._unpicklable.clear()  # callers of this process have taken them
        if single and self._blocks is not None and self._row_bytes >= LARGE:
            take.held.in_place = True
        self._begin(client, number, take, bool(flags & _NOWAIT))
        if max_wait > 0.0 and take.state is PENDING:
            call = client.calls.get(number)
            if call is not None:
                call.timer = self.server.call_later(max_wait, call.expire)

    def _share_blocks(self) -> None:
        """Have the rows kept where clients can read them, from now on."""
        self._has_clients = True
        storage, capacity = self.core.storage, self.machine.capacity
        if capacity is not None and capacity * self._row_bytes < LARGE:
            return  # no dequeue is that large
        if not self._row_bytes or self._spec.rows_private:
            return
        from aioqueue.core.storage.blocks import BlockStorage  # loaded, as it is typed

        if isinstance(storage, BlockStorage):
            self._blocks = storage
            call_with_lock(self.machine._lock, self._use_blocks)

    def _use_blocks(self) -> None:
        make = partial(self.server.row_blocks.block, self._spec.components)
        self._blocks.share_blocks(make)
        if self._row_bytes >= LARGE:
            self.machine.put_with(self._blocks.put_shared)
            self.core.set_row_maker(self._row_in_block)

    def _row_in_block(self, element: Any) -> Row:
        """Make a row of an element of this process: where clients can read it, if it goes in soon.

        So it is copied before the machine's lock is taken, which the server's thread needs.
        """
        row = self._spec.row(element)
        return self._copied_to_block(row) if self._takes_blocks() else row

    def _takes_blocks(self) -> bool:
        # What waits to go in is memory beyond the capacity: only the first rows are copied before.
        return self.machine.waiting_enqueues < _MOST_COPIED

    def _copied_to_block(self, row: Row) -> Row:
        return self._blocks.block_of(self.core.copier._reserve(1), row)

    def _borrower(self, client: ConnectedClient, number: int) -> Borrower:
        found = self._borrowers.get((client, number))
        if found is None:
            found = self._borrowers[client, number] = Borrower((object(),))
        return found

    def _begin_put(self, client: ConnectedClient, number: int, body: memoryview) -> None:
        flags, nbytes = _PUT.unpack_from(body)
        rest = body[_PUT.size :]
        if type(_inner(self._spec)) is PriorityObjectSpec:
            (priority,) = _PAIR.unpack_from(rest)
            row: Any = (priority, self._received(client, rest[_PAIR.size :], nbytes))
        elif self._is_of_objects:
            row = self._received(client, rest, nbytes)
        elif self._packer is not None and bytes(rest[:1]) == PACKED:
            row = self._packer.row(rest)
        elif self._row_bytes >= LARGE and self._blocks is not None and self._takes_blocks():
            row = self._loaded(client, rest, self._copied_to_block)
        else:
            row = self._loaded(client, rest)
        if self._weighed is not None:
            row = self._weighed(row)
        self._begin(client, number, Put(row), bool(flags & _NOWAIT))

    def _begin_put_many(self, client: ConnectedClient, number: int, body: memoryview) -> None:
        flags, n = _PUT.unpack_from(body)
        rest = body[_PUT.size :]
        is_large = self.core.storage.is_large(n)
        if self._packer is not None and bytes(rest[:1]) == PACKED:
            columns, _ = self._packer.columns(rest)
            columns = self.core.prepare_columns(columns, n, copy=True)
        elif is_large and self._blocks is not None:
            copy = partial(self.core.prepare_columns, n=n, copy=True)  # where clients can read them
            columns = self._loaded(client, rest, copy)
        else:
            columns = self._loaded(client, rest)
            # The arrays are this process's own copies, so the storage may keep them.
            columns = self.core.prepare_columns(columns, n, copy=not is_large)
        self._begin(client, number, PutMany(columns, n), bool(flags & _NOWAIT))

    def _received(self, client: ConnectedClient, body: memoryview, nbytes: int) -> Sealed:
        """Return an object of a client, still pickled."""
        assert client.memory is not None
        data, buffers, blocks = client.memory.unpack(body)
        if blocks:
            client.send(frames.FREE, 0, 0, struct.pack(f"<{len(blocks)}Q", *blocks))
        return Sealed(bytes(data), buffers, nbytes)

    def _loaded(
        self, client: ConnectedClient, body: memoryview, copy: Callable[[Row], Row] | None = None
    ) -> Any:
        """Unpickle a row, or columns: arrays and sealed objects, whose pickles run no user code.

        Args:
            client: who has sent it.
            body: what it has sent.
            copy: copies the row, which is memory that the client writes; ``None``: its arrays are
                copies already.
        """
        assert client.memory is not None
        data, buffers, blocks = client.memory.unpack(body, copies=copy is None)
        try:
            loaded = pickle.loads(data, buffers=buffers)
            return loaded if copy is None else copy(loaded)
        finally:
            if blocks:
                client.send(frames.FREE, 0, 0, struct.pack(f"<{len(blocks)}Q", *blocks))

    def _begin(
        self, client: ConnectedClient, number: int, attempt: Attempt, may_not_wait: bool
    ) -> None:
        call = _RemoteCall(self, client, number, attempt)
        caller = self._callers.get(client)
        if caller is None:
            caller = self._callers[client] = _Caller(client)
        attempt.owner = caller
        attempt.began = perf_counter()
        if type(attempt) is Take:
            self.core.last_dequeuer = caller  # type: ignore[assignment]
        elif attempt.side is ENQUEUE:
            self.core.last_enqueuer = caller  # type: ignore[assignment]
        if self.core.wakers:
            self.core.drop_dead_loops()
        client.calls[number] = call
        wakers = self.machine.begin(attempt, None if may_not_wait else call)
        if wakers:
            self.server.call_after_answers(partial(deliver, wakers))
        if attempt.state is WITHDRAWN:
            client.calls.pop(number, None)
            client.answer(number, _REFUSED)
        elif attempt.state is not PENDING:
            self.answer(call)
        else:
            call.has_waited = True

    def answer(self, call: _RemoteCall) -> None:
        """Send what has become of a call, once."""
        client, attempt, number = call.client, call.attempt, call.number
        if call.is_answered or client.has_left or client.calls.get(number) is not call:
            return
        if attempt.state is PENDING:
            return
        if client.is_congested:
            # It does not read. What it was granted stays in the storage, and is not copied for it.
            client.postpone(call.answer)
            return
        call.is_answered = True
        call.end_timer()
        waited = perf_counter() - attempt.began if call.has_waited else 0.0
        self.machine.count_wait(attempt, waited)
        if attempt.error is not None:
            del client.calls[number]
            client.fail(number, attempt.error)
        elif type(attempt) is Take:
            self._answer_with_rows(call, attempt)
        else:
            del client.calls[number]
            client.answer(number)

    def _answer_with_rows(self, call: _RemoteCall, take: Take) -> None:
        client, number = call.client, call.number
        try:
            if self._blocks is not None and self._row_bytes * take.held.count >= LARGE:
                places = self._blocks.shared_rows(take.held)
                if places is not None:
                    client.answer(number, answer_of(places))
                    return
            content = self._content_of(take)
            if self._packer is not None:
                packed = self._packer.packed(content, 1 if take.single else take.held.count)
                if packed is not None:
                    client.answer(number, packed)
                    return
            if self._is_sealed(take, content):
                call.blocks = client.answer(number, _parts_of_object(content))
                return
        except Exception as error:
            self._refuse(call, error)
            return
        # It was put in before the queue was shared. To pickle it runs code of the user.
        if self._unpicklable and self._failure_of(take):
            self._skip_unpicklable(call)
            return
        self._unpickled.append((call, content))
        if len(self._unpickled) == 1:
            self._pickle_next()

    def _content_of(self, take: Take) -> Any:
        """Return the row or the columns that a dequeue holds, as its caller gets them."""
        held = take.held
        if take.single:
            return self._blocks.row(held) if held.in_place else held.single
        components = self._spec.components
        if components is not None and held.out is None and not self._spec.rows_private:
            # Copies: these rows may come back, and must not be memory of the storage by then.
            held.out = _empty_columns(components, held.count)
        return self.core.storage.columns(held)

    def _refuse(self, call: _RemoteCall, error: Exception) -> None:
        """Fail a dequeue whose answer is too long, say. Nothing is wrong with its rows: they go
        back."""
        self._end_call(call)
        call.client.fail(call.number, error)

    def _is_sealed(self, take: Take, content: Any) -> bool:
        """Return whether pickling what a dequeue holds runs no code of the user."""
        spec = self._spec
        if type(spec) is not SealingSpec:
            return True
        if take.single:
            sealed: bool = spec.is_sealed_row(content)
        else:
            sealed = spec.are_sealed_columns(content)
        return sealed

    def _pickle_next(self) -> None:
        """Pickle one answer on a thread of its own, and continue with the next one."""
        call, content = self._unpickled[0]
        rows = self._objects_in(call.attempt, content)
        pickling = Thread(target=self._pickle, args=(content, rows), name="aioqueue-pickling")
        pickling.daemon = True
        pickling.start()

    def _objects_in(self, take: Any, content: Any) -> list[list[Any]]:
        """Return the objects of each row of what a dequeue holds."""
        if take.single:
            return [self._spec.objects_of_row(content)]
        objects: list[list[Any]] = self._spec.objects_of_columns(content)
        return objects

    def _pickle(self, content: Any, rows: list[list[Any]]) -> None:
        parts, failure = None, _PicklingFailure(b"")
        try:
            parts = parts_of(content)
        except BaseException as error:
            index, things = _unpicklable_row(rows)
            message = _message_of_pickling(error, self.label, index, things)
            # It may be the memory of a moment that it lacks.
            failure = _PicklingFailure(message, () if isinstance(error, MemoryError) else things)
        self.server.call_soon(partial(self._note_pickled, parts, failure))

    def _note_pickled(self, parts: Parts | None, failure: _PicklingFailure) -> None:
        call, _ = self._unpickled.popleft()
        client, number = call.client, call.number
        for thing in failure.things:
            self._unpicklable[id(thing)] = thing, failure.message
        if not client.has_left and client.calls.get(number) is call:  # else it was cancelled
            if parts is not None:
                try:
                    call.blocks = client.answer(number, parts)
                except Exception as error:
                    self._refuse(call, error)
            else:
                self._fail_unpicklable(call, failure.message)
        if self._unpickled:
            self._pickle_next()

    def _fail_unpicklable(self, call: _RemoteCall, message: bytes) -> None:
        """Fail a dequeue of what cannot be pickled. That goes back, for callers of this process."""
        self._end_call(call)
        call.client.send(frames.FAILED, 0, call.number, message)

    def _failure_of(self, take: Any) -> bytes:
        """Return why rows that a dequeue holds cannot be pickled; empty if nobody has tried."""
        rows = self._objects_in(take, self._content_of(take))
        for thing in chain.from_iterable(rows):
            # Another object may have its identity by now, if callers of this process have taken it.
            known, message = self._unpicklable.get(id(thing), (None, b""))
            if message and known is thing:
                return message
        return b""

    def _skip_unpicklable(self, call: _RemoteCall) -> None:
        """Give a dequeue the rows behind those that cannot be pickled; fail it if there are none.

        Each of these has failed one dequeue, so that its failure is reported. It must not block the
        others, nor be lost: a caller of this process can take it, and it keeps its place.
        """
        wakers: list[Waker] = []
        take, message = self._picklable_rows(call.attempt, wakers)
        deliver(wakers)
        if take is None:
            self._fail_unpicklable(call, message)
        else:
            call.attempt = take
            self._answer_with_rows(call, take)

    def _picklable_rows(self, take: Any, wakers: list[Waker]) -> tuple[Take | None, bytes]:
        """Exchange what a dequeue holds for the next rows that can be pickled.

        Args:
            take: the dequeue.
            wakers: extended with those to wake.

        Returns:
            Another dequeue in its place, and why its rows could not be pickled; no dequeue if there
            are no other rows at the moment.
        """
        machine = self.machine
        skipped: list[Take] = []
        message = b""
        found: Any = take
        try:
            for _ in range(_MOST_EXCHANGES):
                failure = self._failure_of(found)
                if not failure:
                    return found, message
                message = failure
                if found.single:
                    skipped.append(found)
                else:
                    self._hold_unpicklable(found, skipped, wakers)
                found = self._taken_at_once(
                    Take(
                        take.n,
                        take.single,
                        take.up_to,
                        expired=take.up_to,
                        leased=True,
                        borrower=take.borrower,
                    ),
                    take,
                    wakers,
                )
                if found is None:
                    return None, message
            wakers += machine.withdraw(found)
            return None, message
        finally:
            for one in reversed(skipped):
                wakers += machine.withdraw(one)

    def _hold_unpicklable(self, batch: Any, skipped: list[Take], wakers: list[Waker]) -> None:
        """Put the rows of a batch back, but for those that cannot be pickled."""
        count = batch.held.count
        wakers += self.machine.withdraw(batch)
        others: list[Take] = []
        for _ in range(count):
            one = self._taken_at_once(Take(1, True, leased=True), batch, wakers)
            if one is None:
                break
            (skipped if self._failure_of(one) else others).append(one)
        for one in reversed(others):
            wakers += self.machine.withdraw(one)

    def _taken_at_once(self, take: Take, model: Take, wakers: list[Waker]) -> Take | None:
        """Begin another dequeue of the same caller; return it if it gets rows without waiting."""
        take.owner, take.began = model.owner, model.began
        wakers += self.machine.begin(take, None)
        self.machine.count_wait(take, 0.0)
        return take if take.state is GRANTED else None

    def acknowledge(self, client: ConnectedClient, number: int) -> None:
        call = client.calls.get(number)
        if call is not None and call.service is self:
            del client.calls[number]
            # The next dequeue often comes with the acknowledgement, and waits for its answer.
            self._settled.append(call)
            if len(self._settled) == 1:
                self.server.call_after_answers(self._commit_settled)

    def _commit_settled(self) -> None:
        settled, self._settled = self._settled, []
        if settled:
            self._commit(*settled)

    def _commit(self, *calls: _RemoteCall) -> None:
        takes: list[Any] = [call.attempt for call in calls]
        wakers = self.machine.commit_leases(takes)
        if wakers:
            deliver(wakers)

    def cancel(self, client: ConnectedClient, number: int, body: memoryview) -> bytes:
        self._commit_settled()
        call = client.calls.get(number)
        if call is None or call.service is not self:
            return b""  # it has been answered, and its answer is on the way
        if len(body):
            self._end_unreadable(call, *_UNREADABLE.unpack(body))
            return b""
        word: bytes = self._end_call(call)
        return word

    def _end_call(self, call: _RemoteCall) -> bytes:
        """Withdraw the attempt of a call; return what has become of it."""
        client, attempt = call.client, call.attempt
        client.calls.pop(call.number, None)
        call.end_timer()
        deliver(self.machine.withdraw(attempt, perf_counter() - attempt.began))
        self._free_blocks(call)
        done = attempt.done if isinstance(attempt, PutMany) else 0
        word: bytes = _WORD.pack(attempt.state is DONE, done)
        return word

    @staticmethod
    def _free_blocks(call: _RemoteCall) -> None:
        if call.blocks:
            call.client.free_blocks(call.number, call.blocks)
            call.blocks = ()

    def _end_unreadable(self, call: _RemoteCall, index: int, weight: int) -> bool:
        """End a dequeue whose rows its caller could not unpickle.

        They go back, since another consumer may be able to. An element that has failed twice is set
        aside instead: it would go round for ever, and nobody would get past it.

        Args:
            call: the call.
            index: which row it was; negative if unknown.
            weight: what the failure counts.

        Returns:
            Whether an element was set aside.
        """
        take: Any = call.attempt
        held = take.held
        row: Any = None
        if take.single:
            row = held.single
        elif self._spec.components is None and 0 <= index < held.count:
            row = self.core.storage.columns(held)[index]
        if row is None or not sealing.count_failure(row, weight):
            self._end_call(call)
            return False
        _log_set_aside(self.core, row)
        if take.single:
            call.client.calls.pop(call.number, None)
            self._commit(call)
            self._free_blocks(call)
            self._task_done(1)  # nobody gets it, so nobody could say so
        else:
            call.client.calls.pop(call.number, None)
            _withdraw_without(self.core, take, row)
            self._free_blocks(call)
        return True

    def _give_back(self, client: ConnectedClient, numbers: Iterable[int]) -> None:
        """End leases of a client, all at once, before anybody takes one of the elements."""
        calls = [client.calls.pop(number, None) for number in numbers]
        self._withdraw_leases([call for call in calls if call is not None])

    def _withdraw_leases(self, calls: list[_RemoteCall]) -> None:
        takes: list[Any] = [call.attempt for call in calls]
        deliver(self.machine.withdraw_leases(takes))
        for call in calls:
            self._free_blocks(call)

    def leave(self, client: ConnectedClient) -> None:
        self._commit_settled()
        calls = [call for call in client.calls.values() if call.service is self]
        for call in calls:
            client.calls.pop(call.number, None)
            call.end_timer()
        leases: list[_RemoteCall] = []
        waiting: list[_RemoteCall] = []
        for call in calls:
            is_lease = type(call.attempt) is Take and call.attempt.state is GRANTED
            if is_lease and call.is_answered and client.is_acknowledged(call.number):
                self._commit(call)  # its caller had run on; only the message was not sent
            else:
                (leases if is_lease else waiting).append(call)
        # First what waits: else the client's own dequeues would get its own elements back.
        for call in reversed(waiting):
            deliver(self.machine.withdraw(call.attempt, perf_counter() - call.attempt.began))
        # What was granted in between, and not answered, is among the leases now.
        leases += [one for one in waiting if one.attempt.state is GRANTED]
        self._withdraw_leases(leases)
        self._callers.pop(client, None)
        for key in [key for key in self._borrowers if key[0] is client]:
            del self._borrowers[key]

    def finish(self) -> None:
        self._commit_settled()
        deliver(self.machine.close(cancel_pending_enqueues=True))
        for client in self.server.clients:
            for call in list(client.calls.values()):
                if call.service is self and call.attempt.state is PENDING:
                    client.calls.pop(call.number, None)
                    deliver(self.machine.withdraw(call.attempt))
                    client.fail(call.number, self._end_error(call.attempt))
                elif call.service is self:
                    self.answer(call)

    def _end_error(self, attempt: Attempt) -> Exception:
        return end_error(self.core.kind, self.core.name, attempt)

    def _call(self, client: ConnectedClient, number: int, body: memoryview) -> None:
        name, arguments = pickle.loads(body)
        method: Callable[..., Any] = _METHODS[name]
        result = method(self, *arguments)
        client.answer(number, pickle.dumps(result))

    def _statistics(self) -> Statistics:
        return self.machine.statistics()

    def _state(self) -> str:
        return self.machine.state.value

    def _recent(self) -> tuple[Statistics, QueueState]:
        return self.machine.statistics(), self.machine.state

    def _capacity(self) -> int | None:
        return self.machine.capacity

    def _resize(self, capacity: int | None) -> None:
        deliver(self.machine.resize(capacity))

    def _task_done(self, n: int) -> bool:
        wakers = self.machine.task_done(n)
        if wakers:
            deliver(wakers)
        return wakers is not None

    def _close(self, cancel_pending_enqueues: bool, cause: bytes | None) -> None:
        if self.core.wakers:
            self.core.drop_dead_loops()
        failure = received_cause(cause)
        deliver(self.machine.close(cancel_pending_enqueues=cancel_pending_enqueues, cause=failure))

    @staticmethod
    def closing_cause(failure: BaseException) -> BaseException:
        """Return what the machine keeps of a failure of this process."""
        return closing_cause(failure)


_METHODS: Final[dict[str, Callable[..., Any]]] = {
    "capacity": QueueService._capacity,
    "close": QueueService._close,
    "recent": QueueService._recent,
    "resize": QueueService._resize,
    "state": QueueService._state,
    "statistics": QueueService._statistics,
    "task_done": QueueService._task_done,
}


class _PicklingFailure(NamedTuple):
    """Why an answer could not be pickled."""

    message: bytes
    """What the call raises."""
    things: Sequence[Any] = ()
    """The objects that could not be pickled."""


def _unpicklable_row(rows: list[list[Any]]) -> tuple[int, list[Any]]:
    """Return the first row with objects that cannot be pickled, and those; -1 if each can be."""
    for index, row in enumerate(rows):
        things = [thing for thing in row if not _can_be_pickled(thing)]
        if things:
            return index, things
    return -1, []


def _can_be_pickled(thing: Any) -> bool:
    try:
        parts_of(thing)
    except BaseException:
        return False
    return True


def _message_of_pickling(
    error: BaseException, label: str, index: int, things: Sequence[Any]
) -> bytes:
    """Return what a call raises because an element could not be pickled for it."""
    what = f"{sealing.described(things[0])} in {label}" if things else f"an element of {label}"
    note = (
        f"{what} cannot be pickled for another process. It was put in before the queue was shared,"
        f" and stays there: take it in process {os.getpid()}, which owns the queue. Other processes"
        " get the elements behind it"
    )
    if index > 0:
        note = f"row {index} of the batch: {note}"
    try:
        if isinstance(error, Exception):
            error.add_note(note)
            return message_of_error(error)
        # SystemExit, say: it must not end the process that asked for the element.
        text = f"{type(error).__name__}: {error}"
    except BaseException as second:  # code of the user, too
        text = f"{type(error).__name__}, and then {type(second).__name__}"
    return message_of_error(RuntimeError(f"{note}: its pickling raised {text}"))


def end_error(kind: str, name: str, attempt: Attempt) -> Exception:
    """Make the error of a call whose queue's owner has ended in order."""
    text = f"{queue_label(kind, name)}: the process that shared it has ended"
    if isinstance(attempt, Take):
        return OutOfRangeError(text, queue=name, requested=attempt.n)
    done = attempt.done if isinstance(attempt, PutMany) else 0
    return QueueClosedError(text, queue=name, enqueued=done)


def _empty_columns(components: Any, n: int) -> Columns:
    import numpy as np

    return [np.empty((n, *one.shape), one.dtype) for one in components]


def _inner(spec: Any) -> Any:
    return spec.inner if isinstance(spec, SealingSpec) else spec


# The client's side.


class Settlement(Attempt):
    """A cancelled call that waits for the owner's word on it."""

    __slots__ = ()


class _Presence:
    """A caller holds it while it is in its call, and nobody else does.

    A signal handler may raise in the middle of what ends a call. Then nothing but the end of this
    object shows that nobody waits for the call any more.
    """

    __slots__ = ("__weakref__",)


class AttemptCall:
    """The call of one attempt. The reader notes the answer; the caller unpacks it."""

    __slots__ = (
        "__weakref__",
        "abandoned",
        "attempt",
        "body",
        "caller",
        "connection",
        "is_cancelled",
        "is_refused",
        "kind",
        "machine",
        "number",
        "settlement",
        "size",
        "thing",
        "unreadable",
        "word",
    )

    def __init__(
        self, machine: RemoteMachine, connection: SharingConnection, attempt: Attempt
    ) -> None:
        self.machine: RemoteMachine = machine
        self.connection: SharingConnection = connection
        self.attempt: Attempt = attempt
        self.thing: int = machine.thing
        self.number: int = 0
        self.kind: int = 0  # of the answer; 0: none has come
        self.body: Any = b""
        self.word: bytes | None = None  # what has become of it after it was cancelled
        self.caller: Any = None  # a reference to the presence of its caller
        self.abandoned: Any = None  # another one
        self.is_cancelled: bool = False  # whether the owner was asked to end it
        self.is_refused: bool = False  # whether it would have had to wait, and must not
        self.size: int = 0  # how many bytes it has sent, as long as the owner has not answered
        self.settlement: Settlement | None = None
        # The rows that its caller could not unpickle, as CANCEL reports them.
        self.unreadable: bytes = b""

    def answered(self, kind: int, body: memoryview) -> None:
        # The connection forgets the call last: if a signal handler interrupts this, the reader
        # comes again, and has to find it.
        if kind == frames.SETTLED:
            self.word = bytes(body)
            self.machine.note_end(self)
            self._end()
            return
        is_over = self.machine.note_answer(self, kind, body)
        if is_over:
            self._wake()
        self.machine.note_end(self)
        if is_over:
            self.connection.forget_unless(self, self._is_cancelled)

    def cut_off(self) -> None:
        if self.machine.note_answer(self, 0, b""):
            self._wake()
        self.machine.note_end(self)
        self._end()

    def _is_cancelled(self) -> bool:
        return self.settlement is not None

    def _wake(self) -> None:
        waker: Any = self.attempt.waker
        if waker is not None:
            deliver((waker,))

    def _end(self) -> None:
        """Note that a cancelled call is settled."""
        self.machine.settle(self)
        settlement = self.settlement
        if settlement is not None:
            settlement.state = DONE
            waker: Any = settlement.waker
            waker.notify(settlement)
            deliver((waker,))
        self.connection.settle(self.number)
        self.connection.forget(self)


class RemoteStorage:
    """Stands where a queue has its storage: the elements are in another process.

    Args:
        spec: the spec of the elements.
    """

    progressive = True
    returned: tuple[()] = ()

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self.size = 0  # as the owner last said

    def __len__(self) -> int:
        return self.size

    def is_large(self, n: int) -> bool:
        return True

    def columns(self, held: Held) -> Columns:
        columns: Any = held.parts
        out = held.out
        if out is None:
            return list(columns)
        if columns is not out:  # else they were copied there from where the owner keeps them
            for target, column in zip(out, columns, strict=True):
                target[...] = column
        return out

    def empty(self) -> Columns:
        components = self._spec.components
        if components is None:
            return []
        from aioqueue.core.storage.padded import padded  # it loads NumPy

        return padded(components, ())


class RemoteMachine:
    """The machine of a queue in another process: its moves are calls to the owner.

    Args:
        address: where the owner listens.
        thing: the number of the queue there.
        description: what it is.
    """

    observers: tuple[Callable[[], object], ...] = ()
    max_rows: float = float("inf")  # the owner checks

    def __init__(self, address: Address, thing: int, description: QueueDescription) -> None:
        self.address = address
        self.thing = thing
        self.kind: str = description.kind
        self.name: str = description.name
        self.max_bytes: int | None = description.max_bytes
        self.storage: RemoteStorage = RemoteStorage(description.spec)
        self._spec = description.spec
        self._sealing = (
            SealingSpec(description.spec) if sealing.has_objects(description.spec) else None
        )
        self._is_of_objects = type(description.spec) is ObjectSpec
        self._has_pairs = type(description.spec) is PriorityObjectSpec
        self._packer = row_packer(description.spec)
        self._lock: Any = machine_lock()  # guards the states of attempts
        self._calls: dict[Attempt, AttemptCall] = {}
        self._connection: SharingConnection | None = None
        # What the callers of this process have waited, and the last answer of the owner.
        self._enqueue_waits, self._dequeue_waits = Durations(), Durations()
        nothing = Statistics(0, None, 0, 0, 0, 0, 0.0, 0.0)
        self._recent: tuple[Statistics, QueueState] = (nothing, OPEN)
        self._rooms: deque[Room] = deque()
        # The presences of callers that have left, as weak references.
        self._abandoned: deque[object] = deque()
        self._withdrawn_leases: deque[AttemptCall] = deque()  # which the owner may not know yet
        self._read_row: Callable[[Columns, int], Row] | None = None
        self._unanswered = 0  # bytes of enqueues that the owner has not answered
        self._silent_until = 0.0  # until when the owner is not asked again for a report

    # Connecting.

    def connection(self) -> SharingConnection:
        """Return the connection of this process to the owner.

        Raises:
            WorkerDiedError: the owner has ended.
        """
        connection = self._connection
        if connection is None or connection.has_ended:
            if connection is not None and connection.has_ended and not connection.ended_here:
                raise self.end_error(None)
            connection = self._connection = connection_to(self.address)
        return connection

    def reclaim_role(self) -> None:
        """Let others read the connection, after an exception of a signal handler."""
        connection = self._connection
        if connection is not None:
            connection.reclaim_role()

    def guard_with(self, lock: object) -> None:
        """Begin anew in a fork: nothing that the parent waits for is waited for there."""
        self._lock = machine_lock()
        self._calls = {}
        self._connection = None
        self._rooms, self._unanswered, self._abandoned = deque(), 0, deque()
        self._withdrawn_leases = deque()

    def end_error(self, attempt: Attempt | None) -> BaseException:
        """Make the error of a call that the owner does not answer, since it has ended."""
        connection = self._connection
        label = queue_label(self.kind, self.name)
        if connection is None:
            return WorkerDiedError(f"{label}: the process that shares it has ended")
        if connection.ended_in_order and attempt is not None:
            return end_error(self.kind, self.name, attempt)
        error = connection.end_error()
        if isinstance(error, OSError):
            return error  # this process has no descriptors left: it says nothing of the queue
        error.args = (f"{label}: {error}", *error.args[1:])
        return error

    def is_entered_here(self) -> bool:
        return is_held_here(self._lock)

    # The fast path, which only an owner has.

    lines: Final = ((), ())

    @staticmethod
    def try_enqueue(row: Row) -> bool:
        return False

    @staticmethod
    def try_dequeue() -> Row:
        return NOTHING

    @staticmethod
    def try_enqueue_many(columns: Columns, n: int) -> bool:
        return False

    @staticmethod
    def try_grant(attempt: Attempt, waker: Any) -> bool:
        return False

    # Attempts.

    def begin(
        self,
        attempt: Attempt,
        waker: Any,
        max_wait: float | None = None,
        presence: _Presence | None = None,
        loop: EventLoop | None = None,
    ) -> Collection[Waker]:
        """Send an attempt to the owner; its caller then waits in the waker.

        Args:
            attempt: a new attempt.
            waker: where its caller waits; ``None``: it waits here, for an answer that comes at
                once, and an attempt that would have to wait is withdrawn.
            max_wait: after how many seconds it takes what is there.
            presence: its caller's.
            loop: see `SharingConnection.begin`.
        """
        attempt.host = self
        may_wait = waker is not None
        try:
            connection = self.connection()
        except WorkerDiedError:
            if self._connection is None or not self._connection.ended_in_order:
                raise
            self._end(attempt)
            return ()
        if self._abandoned:
            self._end_abandoned()
        if self._withdrawn_leases:
            self._give_back()
        kind, body, size = self._message(connection, attempt, max_wait, may_wait)
        sleeper = CallerWaker(connection) if waker is None else waker
        attempt.waker = sleeper
        attempt.waits = may_wait
        call = AttemptCall(self, connection, attempt)
        if presence is not None:
            call.caller = weakref.ref(presence, partial(self._abandon, weakref.ref(call)))
            # A signal handler may raise in `_abandon`, too, but not in this callback, which is no
            # Python function: then the next call ends this one.
            call.abandoned = weakref.ref(presence, self._abandoned.append)
        self._calls[attempt] = call
        try:
            if size:
                call_with_lock(self._lock, self._count_unanswered, call, size)
            connection.begin(call, kind, body, loop)
        except BaseException:
            if not call.number:
                self._calls.pop(attempt, None)
                self.note_end(call)
            # Else a signal handler has raised, and it may have been sent: the caller withdraws it.
            raise
        if not may_wait:
            self._complete_now(attempt, sleeper)
        elif type(sleeper) is not CallerWaker or not sleeper.reads(connection):
            connection.need_reader()
        return ()

    def _abandon(self, call_of: Callable[[], AttemptCall | None], _: object) -> None:
        """End a call whose caller has left without ending it."""
        call = call_of()
        if call is not None and self._calls.get(call.attempt) is call:
            apply_deferred(self.withdraw, call.attempt)

    def _end_abandoned(self) -> None:
        """Withdraw the calls whose `_abandon` was interrupted by a signal handler."""
        abandoned = list(self._abandoned)
        for call in list(self._calls.values()):
            if call.caller is not None and call.caller() is None:
                apply_deferred(self.withdraw, call.attempt)
        # Last, for a signal handler may interrupt this, too. Then the next call comes here again.
        for presence in abandoned:
            with suppress(ValueError):  # another thread has made a call meanwhile
                self._abandoned.remove(presence)

    def _complete_now(self, attempt: Attempt, sleeper: Any) -> None:
        """Wait for the answer of an attempt that may not wait at the owner, and commit it."""
        try:
            while attempt.state is PENDING:
                sleeper.wait(None)
            if attempt.state is WITHDRAWN:
                self._calls.pop(attempt, None)
            self.commit(attempt)
        except BaseException:
            apply_deferred(self.withdraw, attempt)
            settlement = self.settlement(attempt)
            while settlement is not None and settlement.state is PENDING:
                sleeper.wait(None)
            raise

    # Room. What is on its way to the owner, or waits there to go in, is a second copy. So it has a
    # bound, and callers beyond it wait before they pickle, in their order.

    def room(self, waker: Any) -> Room | None:
        """Return what a caller that is about to enqueue must wait for; ``None`` if nothing."""
        if not self._rooms and self._has_room():
            return None
        room = Room()
        room.host, room.waker = self, waker
        self._rooms.append(room)
        connection = self._connection
        if connection is not None:
            connection.call_when_flushed(self.make_room)
        self.make_room()  # it may have appeared since the look
        return room

    def _has_room(self) -> bool:
        connection = self._connection
        if connection is None or connection.has_ended:
            return True  # `begin` connects, or says that the owner has ended
        return self._unanswered <= MOST_UNANSWERED and connection.has_room

    def make_room(self) -> bool:
        """Let the first caller go on, if there is room now; return whether others wait still."""
        rooms = self._rooms
        if rooms and self._has_room():
            with suppress(IndexError):
                room = rooms[0]
                if room.state is PENDING:
                    room.state = DONE
                    waker: Any = room.waker
                    waker.notify(room)
                    deliver((waker,))
        return bool(rooms)

    def leave_room(self, room: Room) -> None:
        """Note that a caller does not wait for room any more: the next one may go on."""
        with suppress(ValueError):
            self._rooms.remove(room)
        if self._rooms:
            self.make_room()

    def note_end(self, call: AttemptCall) -> None:
        """Note that the owner has answered a call: what it has sent does not wait there."""
        if call.size:
            call_with_lock(self._lock, self._count_unanswered, call, 0)
            if self._rooms:
                self.make_room()

    def _count_unanswered(self, call: AttemptCall, size: int) -> None:
        # Callers and the reader change it at once, so this happens under the lock.
        self._unanswered += size - call.size
        call.size = size

    def _message(
        self, connection: SharingConnection, attempt: Any, max_wait: float | None, may_wait: bool
    ) -> tuple[int, bytes, int]:
        """Pack a call, on the caller's thread; return its kind, its body, and the bytes of what it
        puts in."""
        flags = 0 if may_wait else _NOWAIT
        kind = type(attempt)
        if kind is Take:
            if attempt.single:
                flags |= _SINGLE
            if attempt.up_to:
                flags |= _UP_TO
            if attempt.expired:
                flags |= _EXPIRED
            borrower = 0 if attempt.borrower is None else attempt.borrower.number
            wait = -1.0 if max_wait is None else max_wait
            return TAKE, _TAKE.pack(attempt.n, flags, wait, borrower), 0
        if kind is Put:
            head = b""
            row, nbytes = attempt.row, 0
            if self._packer is not None:
                body = self._packer.packed(row)
                if body is not None:
                    return PUT, _PUT.pack(flags, 0) + body, len(body)
            if self._is_of_objects or self._has_pairs:
                if self._has_pairs:
                    head, row = _PAIR.pack(row[0]), row[1]
                if self.max_bytes is not None:
                    nbytes = size_of((row,))
                parts = _parts_of_object(row)
            else:
                row = row if self._sealing is None else self._sealing.sealed_row(row)
                parts = parts_of(row)
            packed = connection.pack(parts)
            return PUT, b"".join((_PUT.pack(flags, nbytes), head, packed)), bytes_of(parts)
        if kind is PutMany:
            columns = attempt.columns
            if self._packer is not None:
                body = self._packer.packed(columns, attempt.n)
                if body is not None:
                    return PUT_MANY, _PUT.pack(flags, attempt.n) + body, len(body)
            if self._sealing is not None:
                columns = self._sealing.sealed_columns(columns)
            parts = parts_of(columns)
            packed = connection.pack(parts)
            return PUT_MANY, _PUT.pack(flags, attempt.n) + packed, bytes_of(parts)
        return (UNTIL_CLOSED if kind is UntilClosed else UNTIL_DONE), bytes((flags,)), 0

    def note_answer(self, call: AttemptCall, kind: int, body: Any) -> bool:
        """Note the answer of a call; return whether its caller is to be woken.

        A signal handler may raise in the middle of this: then the reader comes again.
        """
        return call_with_lock(self._lock, self._note_answer, call, kind, body)

    def _note_answer(self, call: AttemptCall, kind: int, body: Any) -> bool:
        attempt = call.attempt
        is_refused = len(body) == 1 and body[:1] == _REFUSED
        if attempt.state is WITHDRAWN and not call.is_refused:
            # Cancelled; the owner's word on that follows. What came tells what it was worth.
            if kind:
                call.kind, call.body = kind, body
            return False
        if attempt.state is PENDING:
            call.kind, call.body, call.is_refused = kind, body, is_refused
            self._count_wait(attempt)
            if kind != frames.OK:
                attempt.state = FAILED
            elif is_refused:
                attempt.state = WITHDRAWN
            elif type(attempt) is Take:
                call.connection.hold(call)
                attempt.state = GRANTED
            else:
                attempt.state = DONE
        waker: Any = attempt.waker
        waker.notify(attempt)
        return True

    def _count_wait(self, attempt: Attempt) -> None:
        if attempt.began and attempt.side is not NEITHER:
            waits = self._dequeue_waits if type(attempt) is Take else self._enqueue_waits
            waits.add(perf_counter() - attempt.began)

    def commit(self, attempt: Attempt, waited: float = 0.0) -> Collection[Waker]:
        """Unpack what a call got, and make the hand-over. Its caller runs on.

        Raises:
            Exception: it cannot be unpacked here: withdraw the attempt.
        """
        call = self._calls.get(attempt)
        if call is None:
            return ()
        if attempt.state is GRANTED:
            if call.body is not None:
                self._unpack(call)
            # The hand-over. It comes last, and cannot fail.
            call.connection.acknowledge(call.number)
            attempt.state = DONE
            del self._calls[attempt]
            return ()
        self._read_error(call)
        return ()

    def _read_error(self, call: AttemptCall) -> None:
        """Unpack the failure of a call that has failed."""
        attempt = call.attempt
        self._calls.pop(attempt, None)
        if attempt.state is FAILED and attempt.error is None:
            if call.kind == frames.FAILED:
                attempt.error = failure_in(call.body)
                if isinstance(attempt, PutMany):
                    attempt.done = getattr(attempt.error, "enqueued", 0)
            else:
                self._end(attempt)

    def _end(self, attempt: Attempt) -> None:
        """End an attempt that the owner does not answer, since it has ended."""
        if (
            isinstance(attempt, UntilClosed)
            and self._connection
            and self._connection.ended_in_order
        ):
            attempt.state = DONE  # its owner closed it
        else:
            attempt.state, attempt.error = FAILED, self.end_error(attempt)

    def count_wait(self, attempt: Attempt, waited: float) -> None:
        """Unpack what a lease got; it is committed later."""
        call = self._calls.get(attempt)
        if call is None:
            return
        if attempt.state is GRANTED:
            call.caller = None  # it outlives this call of its caller
            if call.body is not None:
                self._unpack(call)
        else:
            self._read_error(call)

    def _unpack(self, call: AttemptCall) -> None:
        attempt: Any = call.attempt
        connection = call.connection
        held = attempt.held
        data: Any = b""
        value: Any = None
        index = 0 if attempt.single else -1
        try:
            if call.body[:1] == PACKED and self._packer is not None:
                columns, n = self._packer.columns(call.body)
                self._copy_rows(attempt, [(columns, 0, n)])
                call.body = None
                return
            if call.body[:1] == ROWS:
                assert connection.rows is not None  # it comes before the first answer
                components: Any = self._spec.components
                places = connection.rows.parts(self.thing, components, call.body)
                self._copy_rows(attempt, places)
                if connection.has_ended:  # the owner has them again, and may have overwritten them
                    raise self.end_error(attempt)
                call.body = None
                return
            data, buffers, blocks = connection.unpack(call.body)
            value = pickle.loads(data, buffers=buffers)
            sealing_spec = self._sealing
            if attempt.single:
                if sealing_spec is not None and not self._is_of_objects:
                    value = sealing_spec.unsealed_row(value)
                held.single, held.count = value, 1
            else:
                if sealing_spec is not None and self._spec.components is None:
                    if sealing_spec.has_sealed_rows(value):
                        opened: list[Row] = []
                        try:
                            opened.extend(map(sealing_spec.unsealed_row, value))
                        except BaseException:
                            index = len(opened)
                            raise
                        value = opened
                elif sealing_spec is not None:
                    value = sealing_spec.unsealed_columns(value)
                held.count = len(value) if self._spec.components is None else len(value[0])
                held.parts = value
                if attempt.borrower is None:
                    held.single = self._spec.batch(self.storage.columns(held))
        except BaseException as error:
            if isinstance(error, Exception) and connection.has_ended:
                raise self.end_error(attempt) from error
            call.unreadable = _UNREADABLE.pack(index, sealing.weight_of_failure(error))
            if isinstance(error, Exception):
                if value is None:
                    value = Sealed(bytes(data))  # for the message
                what = _described(call, value, index)
                label = queue_label(self.kind, self.name)
                _note_unreadable(error, label, what, None if attempt.single else index)
            raise
        call.body = None
        connection.free(blocks)

    def _copy_rows(self, take: Any, parts: Sequence[tuple[Columns, int, int]]) -> None:
        """Copy what a call got: from its answer, or from where the owner holds it until then."""
        components: Any = self._spec.components
        held = take.held
        if take.single:
            ((columns, start, _),) = parts
            if self._read_row is None:
                from aioqueue.core.storage.columns import RowReader  # it loads NumPy

                self._read_row = RowReader(components).row
            held.single, held.count = self._read_row(columns, start), 1
            return
        count = sum(stop - start for _, start, stop in parts)
        made = _empty_columns(components, count) if held.out is None else held.out
        done = 0
        for columns, start, stop in parts:
            for target, column in zip(made, columns, strict=True):
                target[done : done + stop - start] = column[start:stop]
            done += stop - start
        held.parts, held.count = made, count
        if take.borrower is None:
            held.single = self._spec.batch(self.storage.columns(held))

    def withdraw(
        self, attempt: Attempt, waited: float = 0.0, *, if_pending: bool = False
    ) -> Collection[Waker]:
        """Ask the owner to end an attempt. `settlement` waits for its word."""
        call = self._withdraw(attempt, if_pending)
        if call is None and not if_pending:
            call = self._calls.get(attempt)
            if call is None or call.settlement is None or call.is_cancelled:
                return ()
            # A signal handler has raised before the owner was asked.
        if call is not None:
            call.connection.cancel(call, call.unreadable)
            call.is_cancelled = True
        return ()

    @synchronized
    def _withdraw(self, attempt: Attempt, if_pending: bool) -> AttemptCall | None:
        call = self._calls.get(attempt)
        if call is None:
            if attempt.state is PENDING:
                attempt.state = WITHDRAWN
            return None
        if attempt.state is not PENDING and (if_pending or attempt.state is not GRANTED):
            if not if_pending and attempt.state is not WITHDRAWN:
                self._calls.pop(attempt, None)  # it has ended, and nobody reads how
            return None
        # The settlement comes before the state: a second signal handler may raise in between. A
        # withdrawn attempt without one would never be cancelled, and its element would stay leased.
        settlement = Settlement()
        settlement.host, settlement.waker = self, attempt.waker
        call.settlement = settlement
        was_pending = attempt.state is PENDING
        attempt.state = WITHDRAWN
        if was_pending:
            self._count_wait(attempt)
        return call

    def settlement(self, attempt: Attempt) -> Settlement | None:
        """Return what to wait for until the owner has said what has become of an attempt that was
        withdrawn; ``None`` if that is known. Then ask `outcome`."""
        call = self._calls.get(attempt)
        settlement = None if call is None else call.settlement
        return settlement if settlement is not None and settlement.state is PENDING else None

    def settle(self, call: AttemptCall) -> None:
        """Note what has become of a call that was cancelled."""
        attempt = call.attempt
        if attempt.state is not WITHDRAWN:
            return
        is_done, done = _WORD.unpack(call.word) if call.word else (False, 0)
        if isinstance(attempt, PutMany):
            attempt.done = attempt.n if call.kind == frames.OK else done
            is_done = attempt.done == attempt.n
            if call.kind == frames.FAILED:
                return  # the caller reads how many rows are in: see `outcome`
        elif isinstance(attempt, Put) and call.kind == frames.OK:
            is_done = True
        self._calls.pop(attempt, None)
        if is_done and not isinstance(attempt, Take):
            attempt.state = DONE  # it is in, and cannot be undone any more
            # The caller that has withdrawn it may not have looked at its state yet. Then it finds
            # an attempt that has ended, and relies on its wake.
            waker: Any = attempt.waker
            waker.notify(attempt)
            deliver((waker,))

    def outcome(self, attempt: Attempt) -> None:
        """Read what the owner has said of a cancelled attempt, on the caller's thread."""
        call = self._calls.get(attempt)
        if call is not None and attempt.state is WITHDRAWN and call.kind == frames.FAILED:
            self._calls.pop(attempt, None)
            if isinstance(attempt, PutMany):
                attempt.done = getattr(failure_in(call.body), "enqueued", 0)

    def withdraw_leases(self, attempts: Iterable[Attempt]) -> Collection[Waker]:
        for attempt in attempts:
            call = self._calls.pop(attempt, None)
            if call is not None and attempt.state is GRANTED:
                attempt.state = WITHDRAWN
                self._withdrawn_leases.append(call)
        if self._withdrawn_leases:
            self._give_back()
        return ()

    def _give_back(self) -> None:
        """Give withdrawn leases back, and wait until the owner has them.

        A signal handler may interrupt this. Then the next call comes here again, and what the owner
        has already does no harm.
        """
        calls = list(self._withdrawn_leases)
        for connection in {call.connection for call in calls}:
            numbers = [call.number for call in calls if call.connection is connection]
            try:
                connection.request(
                    self.thing, GIVE_BACK, struct.pack(f"<{len(numbers)}Q", *numbers)
                )
            except WorkerDiedError:
                pass  # they have gone with the owner
            for number in numbers:
                connection.settle(number)
        for call in calls:
            with suppress(ValueError):  # another thread has given it back, too
                self._withdrawn_leases.remove(call)

    def commit_leases(self, attempts: Iterable[Attempt]) -> Collection[Waker]:
        for attempt in attempts:
            call = self._calls.pop(attempt, None)
            if call is not None and attempt.state is GRANTED:
                attempt.state = DONE
                call.connection.acknowledge(call.number)
        return ()

    def attempts_in(self, waker: Waker) -> list[Attempt]:
        return [attempt for attempt in list(self._calls) if attempt.waker is waker]

    def waiting(self) -> list[Attempt]:
        return [
            attempt
            for attempt in list(self._calls)
            if attempt.state is PENDING and not isinstance(attempt, UntilClosed | UntilDone)
        ]

    def joins(self) -> list[Attempt]:
        return [one for one in list(self._calls) if isinstance(one, UntilDone)]

    # What the owner answers at once.

    def _ask(self, method: str, *arguments: Any) -> Any:
        try:
            connection = self.connection()
            body = connection.request(self.thing, CALL, pickle.dumps((method, arguments)))
        except WorkerDiedError as error:
            if queue_label(self.kind, self.name) not in str(error):
                raise self.end_error(None) from None
            raise
        return pickle.loads(body)

    @property
    def state(self) -> QueueState:
        if self._connection is not None and self._connection.has_ended:
            return CLOSED
        return QueueState(self._ask("state"))

    @property
    def size(self) -> int:
        return self.statistics().size

    @property
    def weight(self) -> int | None:
        return self.statistics().bytes

    @property
    def capacity(self) -> int | None:
        found: int | None = self._ask("capacity")
        return found

    def statistics(self) -> Statistics:
        found: Statistics = self._ask("statistics")
        return found

    def recent(self) -> tuple[Statistics, QueueState]:
        """Return the statistics and the state as the owner last said, if it does not answer now."""
        if perf_counter() < self._silent_until:
            return self._recent  # a report asks more than once
        try:
            body = self.connection().request(self.thing, CALL, _RECENT, _LONGEST_REPORT)
            self._recent = pickle.loads(body)
            self.storage.size = self._recent[0].size
        except (OSError, WorkerDiedError):  # a TimeoutError is an OSError
            self._silent_until = perf_counter() + _LONGEST_REPORT
            connection = self._connection
            if connection is not None and connection.has_ended:
                self._recent = self._recent[0], CLOSED
        return self._recent

    def waits(self) -> Waiting:
        """Return how long the callers of this process have waited, with the owner's statistics."""
        statistics, _ = self.recent()
        waiting = self.waiting()
        return Waiting(
            statistics,
            self._enqueue_waits.counted(),
            self._dequeue_waits.counted(),
            sorted(one.began for one in waiting if one.side is ENQUEUE and one.began),
            sorted(one.began for one in waiting if one.side is DEQUEUE and one.began),
        )

    def resize(self, capacity: int | None) -> Collection[Waker]:
        self._ask("resize", capacity)
        return ()

    def close(
        self, *, cancel_pending_enqueues: bool = False, cause: BaseException | None = None
    ) -> Collection[Waker]:
        sent = None if cause is None else message_of_failure(sendable(cause))
        connection = self._connection
        if connection is not None and connection.ended_in_order:
            return ()
        self._ask("close", cancel_pending_enqueues, sent)
        return ()

    def task_done(self, n: int) -> Collection[Waker] | None:
        return () if self._ask("task_done", n) else None

    def end_joins(self) -> Collection[Waker]:
        return ()

    def replace_cause(self, cause: BaseException, instead: BaseException) -> None:
        """Do nothing: the cause is the owner's."""


_RECENT: Final = pickle.dumps(("recent", ()))

_LONGEST_REPORT: Final = 1.0
"""Seconds that a report waits for the owner. It may be stopped, or be what everybody waits for."""


def _described(call: AttemptCall, value: Any, index: int) -> str:
    if isinstance(value, list) and index >= 0:
        value = value[index]
    sealed = sealing.sealed_in(value)
    return sealing.described(sealed[0]) if sealed else f"{len(call.body)} bytes"


def _parts_of_object(thing: Any) -> Parts:
    if type(thing) is Sealed:
        return thing.data, thing.buffers
    return parts_of(thing)


class RemoteQueueCore(QueueCore):
    """The core of a queue's handle.

    Args:
        address: where the owner listens.
        thing: the number of the queue there.
        description: what it is.
    """

    def __init__(self, address: Address, thing: int, description: QueueDescription) -> None:
        self.name: str = description.name
        self.is_named: bool = description.is_named
        self.machine: Any = RemoteMachine(address, thing, description)
        self.copier: Any = self.machine
        self.whose: str = shared_by(address)
        self._description = description
        storage: Any = self.machine.storage
        self._describe_elements(description.kind, description.spec, storage, description.keep)
        self.shared = self

    def pickled(self, world: World) -> tuple[Any, ...]:
        machine = self.machine
        return restored, (world, machine.address, machine.thing, self._description)

    @property
    def identity(self) -> str:
        return queue_identity(self.machine.address, self.machine.thing)

    def face_class(self, world: World) -> Any:
        return face_class_of(self.kind, world)

    @staticmethod
    def closing_cause(failure: BaseException) -> BaseException:
        return failure  # the machine sends it

    def prepare_columns(self, columns: Columns, n: int, *, copy: bool) -> Columns:
        return columns  # what is sent is a copy

    def try_batch(self, n: int, out: Columns | None = None) -> Any:
        return NOTHING

    def finish_batch(self, attempt: Take) -> Any:
        return attempt.held.single

    def would_deadlock(self, attempt: Attempt) -> bool:
        return False

    def recent_statistics(self) -> Statistics:
        statistics: Statistics = self.machine.recent()[0]
        return statistics

    def recent_state(self) -> QueueState:
        state: QueueState = self.machine.recent()[1]
        return state


_cores: Final[weakref.WeakValueDictionary[tuple[Address, int], RemoteQueueCore]] = (
    weakref.WeakValueDictionary()
)


def handle_core(address: Address, thing: int, description: QueueDescription) -> RemoteQueueCore:
    """Return the core of this process's handle of a queue."""
    core = _cores.get((address, thing))
    if core is None:
        core = _cores[address, thing] = RemoteQueueCore(address, thing, description)
    return core


_MODULES: Final = {
    "FIFOQueue": "aioqueue.queues.fifo",
    "PaddingFIFOQueue": "aioqueue.queues.fifo",
    "RandomShuffleQueue": "aioqueue.queues.shuffle",
    "PriorityQueue": "aioqueue.queues.priority",
}

_face_classes: Final[dict[tuple[str, World], type]] = {}


def face_class_of(kind: str, world: World) -> type:
    """Return the class of the handles of a kind of queue."""
    found = _face_classes.get((kind, world))
    if found is None:
        importlib.import_module(_MODULES[kind])
        local = QueueFace._faces[kind, world]
        mixin = RemoteAsyncMethods if world == "aio" else RemoteBlockingMethods
        names = {"__module__": local.__module__, "__doc__": local.__doc__}
        found = _face_classes[kind, world] = type(local.__name__, (mixin, local), names)
    return found


def restored(world: World, address: Address, thing: int, description: QueueDescription) -> Any:
    """Return the face of a queue that was pickled: in its own process, the queue itself."""
    server = running_server()
    if server is not None and server.address == address:
        service: Any = server.service(thing)
        return face_of(service.core, world)
    return face_of(handle_core(address, thing, description), world)


def share_queue(core: QueueCore, name: str | None) -> None:
    """Share a queue; see `QueueFace.share`."""
    if name is not None:
        name = addresses.checked_name(name)
    if isinstance(core, RemoteQueueCore):
        if name is not None:
            raise InvalidArgumentError(
                f"name: got {name!r} for {core.label}, which another process owns; name it there"
            )
        return
    shared = call_with_lock(core.lock, _service_of, core)
    cause = core.machine.cause
    if cause is not None and type(cause) is not SealedFailure:  # it was closed before
        core.machine.replace_cause(cause, closing_cause(cause))
    if name is not None:
        shared.server.add_name(name, shared.number)


def _seal_objects(core: QueueCore) -> None:
    """Have a queue keep its objects pickled, from now on."""
    core.__class__ = SharedObjectsCore
    storage: Any = core.storage
    if _is_of_references(core.spec, storage):
        call_with_lock(core.machine._lock, core.machine.take_with, partial(take_plain, storage))
        core.set_spec(SealingSpec(core.spec))
        core.set_row_maker(sealing.seal)
    else:
        core.set_spec(SealingSpec(core.spec))


def _is_of_references(spec: Spec, storage: Any) -> bool:
    """Return whether the rows of a queue are its elements, first in, first out, as they are."""
    return type(storage) is ObjectStorage and type(_inner(spec)) is ObjectSpec


def _service_of(core: QueueCore) -> QueueService:
    """Return the service of a queue; the first call shares it."""
    service: QueueService | None = core.shared
    if service is None:
        serving = server()
        if sealing.has_objects(core.spec):
            _seal_objects(core)
        service = QueueService(core, serving)
        service.number = serving.add(service)
        core.shared = service
    return service


def _note_rows(attempt: Attempt, error: BaseException) -> None:
    if isinstance(attempt, PutMany):
        add_rows_note(attempt, error)


class RemoteAsyncMethods(AsyncMethods[Any]):
    """The waits of the async face of a handle."""

    _machine: Any
    _allowance: Any
    _budget: Any

    def _bind(self, core: QueueCore) -> None:
        super()._bind(core)
        self._budget = self._allowance = float("inf")  # each call lets other tasks run

    def _spend_budget(self, n: int) -> None:
        return None

    async def _yield_if_due(self, n: int) -> None:
        await self._current_waker().pause(n)

    def _current_waker(self) -> AsyncWaker:
        waker: AsyncWaker | None = self._waker
        if waker is None or not waker.is_current():
            waker = self._waker = current_waker()
            self._core.remember(waker)
        return waker

    async def wait_closed(self) -> None:
        await self._complete_wait(UntilClosed())

    async def join(self) -> None:
        await self._complete_wait(UntilDone())

    async def _complete(
        self, attempt: Attempt, max_wait: float | None = None, may_stand_by: bool = False
    ) -> bool:
        """Send an attempt, wait for its outcome, and commit it."""
        machine, core = self._machine, self._core
        waker = self._current_waker()
        first = waker.await_first()
        if first is not None:
            await first
        asked = waker.cancellations()
        meter = None
        scopes: Collection[CancelScope] = ()
        began = attempt.began = perf_counter()
        if attempt.side is ENQUEUE:
            await self._wait_for_room(attempt, waker)
        try:
            machine.begin(attempt, waker, max_wait, loop=running_loop())
            if attempt.waits:
                runner = waker.runner()
                core.record_owner(attempt, runner)
                if active_stops:
                    scopes = stop_scopes(runner)
                    watch(scopes, attempt, began)
                meter = current_meter.get()
                if meter is not None:
                    meter.wait_started(attempt, core.name, began)
                await waker.wait(attempt)
                if attempt.state is WITHDRAWN:
                    await self._settle(attempt, waker)
                    # An enqueue may have been on its way in when the stop came. Then it has
                    # happened, and the stop ends the next call.
                    if attempt.state is WITHDRAWN:
                        raise self._stopped_error(attempt)
                if attempt.borrower is not None:
                    machine.count_wait(attempt, perf_counter() - began)
                else:
                    machine.commit(attempt, perf_counter() - began)
        except BaseException as error:
            # The exception does not say what has become of the attempt; the owner does.
            if attempt.state is not WITHDRAWN:
                apply_deferred(machine.withdraw, attempt)
            if not isinstance(error, GeneratorExit):
                await self._settle(attempt, waker)
            if attempt.state is not DONE or isinstance(attempt, Take):
                _note_rows(attempt, error)
                raise
            machine.commit(attempt)  # it is in, and stays so
            if not waker.defer(error, asked):
                _note_rows(attempt, error)
                raise
        finally:
            if meter is not None:
                meter.wait_ended(perf_counter())
            if scopes:
                unwatch(scopes, attempt)
        if attempt.error is not None:
            if (worker := current_worker.get()) is not None:
                worker.note_call_end(attempt.error, core)
            attempt.raise_error()
        return True

    async def _wait_for_room(self, attempt: Attempt, waker: AsyncWaker) -> None:
        """Wait until not too much is on the way to the owner. The attempt has not begun."""
        room = self._machine.room(waker)
        if room is None:
            return
        scopes = stop_scopes(waker.runner()) if active_stops else ()
        try:
            watch(scopes, room, attempt.began)
            await waker.wait(room)
            if room.state is WITHDRAWN:
                raise self._stopped_error(attempt)
        except BaseException as error:
            _note_rows(attempt, error)
            raise
        finally:
            unwatch(scopes, room)
            self._machine.leave_room(room)

    async def _settle(self, attempt: Attempt, waker: AsyncWaker) -> None:
        """Wait for the owner's word on an attempt that was withdrawn."""
        settlement = self._machine.settlement(attempt)
        if settlement is not None:
            await waker.wait_shielded(settlement)
            self._machine.outcome(attempt)


class RemoteBlockingMethods(BlockingMethods[Any]):
    """The waits of the blocking face of a handle."""

    _machine: Any

    def wait_closed(self, *, timeout: float | None = None) -> None:
        if timeout is not None:
            timeout = checked_seconds(timeout, "timeout")
        with SHORTENED:
            self._complete_wait(UntilClosed(), "wait_closed", timeout)

    def _complete(
        self,
        attempt: Attempt,
        method: str,
        timeout: float | None,
        max_wait: float | None = None,
    ) -> None:
        """Send an attempt, wait for its outcome, and commit it."""
        if in_event_loop():
            super()._complete(attempt, method, timeout, max_wait)
            return
        machine, core = self._machine, self._core
        meter = None
        began = attempt.began = perf_counter()
        scopes = current_scopes()
        try:
            waker: Any = CallerWaker(machine.connection())
        except WorkerDiedError:
            waker = None  # `begin` says what has become of the owner
        presence = _Presence()
        if attempt.side is ENQUEUE and waker is not None:
            self._wait_for_room(attempt, waker, method, timeout)
        try:
            # Without time to wait, what the owner can do at once is done all the same. (Of a batch
            # that goes in, the rows that fit do: the owner's word on its withdrawal counts them.)
            is_now = timeout is not None and timeout <= 0 and type(attempt) is not PutMany
            is_now = is_now and attempt.borrower is None
            machine.begin(attempt, None if is_now else waker, max_wait, presence)
            if is_now and attempt.state is WITHDRAWN:
                raise self._timeout_error(attempt, method, timeout)
            if attempt.waits:
                assert waker is not None
                core.record_owner(attempt, current_thread())
                limit = timeout
                if scopes:
                    limit = seconds_left(scopes, timeout)
                    watch(scopes, attempt, began)
                meter = current_meter.get()
                if meter is not None:
                    meter.wait_started(attempt, core.name, began)
                is_in_time = self._wait(attempt, waker, began, limit, None)
                if attempt.state is WITHDRAWN:
                    self._settle(attempt, waker)
                    # An enqueue may have been on its way in when its time was up. Then it has
                    # happened.
                    if attempt.state is WITHDRAWN and not is_in_time:
                        raise self._timeout_error(
                            attempt, method, timeout if limit == timeout else None
                        )
                    if attempt.state is WITHDRAWN:
                        raise self._cancelled_error(attempt, method)
                if attempt.borrower is not None:
                    machine.count_wait(attempt, perf_counter() - began)
                else:
                    machine.commit(attempt, perf_counter() - began)
        except BaseException as error:
            if attempt.state is not WITHDRAWN:
                apply_deferred(machine.withdraw, attempt)
            self._settle(attempt, waker)
            machine.reclaim_role()
            _note_rows(attempt, error)
            raise
        finally:
            if meter is not None:
                meter.wait_ended(perf_counter())
            if scopes:
                unwatch(scopes, attempt)
        if attempt.error is not None:
            attempt.raise_error()

    def _wait_for_room(
        self, attempt: Attempt, waker: Any, method: str, timeout: float | None
    ) -> None:
        """Wait until not too much is on the way to the owner. The attempt has not begun."""
        room = self._machine.room(waker)
        if room is None:
            return
        scopes = current_scopes()
        try:
            watch(scopes, room, attempt.began)
            limit = seconds_left(scopes, timeout)
            if not self._wait(room, waker, attempt.began, limit, None):
                raise self._timeout_error(attempt, method, timeout if limit == timeout else None)
            if room.state is WITHDRAWN:
                raise self._cancelled_error(attempt, method)
        except BaseException as error:
            _note_rows(attempt, error)
            raise
        finally:
            unwatch(scopes, room)
            self._machine.leave_room(room)

    def _settle(self, attempt: Attempt, waker: CallerWaker | None) -> None:
        """Wait for the owner's word on an attempt that was withdrawn."""
        settlement = self._machine.settlement(attempt)
        if settlement is not None and waker is not None:
            while settlement.state is PENDING:
                waker.wait(None)
            self._machine.outcome(attempt)
